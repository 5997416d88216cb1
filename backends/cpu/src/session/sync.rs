//! Synchronization primitives of `queue` and `steps`, which are also compiled with those of a model
//! checker (`tests/interleavings.rs`).

pub(super) use crossbeam_utils::CachePadded;

pub(super) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
pub(super) use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
