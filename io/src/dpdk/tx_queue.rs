//! Transmit queues, which lanes share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A transmit queue of a port.
#[derive(Debug)]
pub(super) struct TxQueue {
    pub port: u16,
    pub queue: u16,
}

/// A transmit queue, shared by lanes.
pub(super) type SharedTxQueue = Arc<Mutex<TxQueue>>;

/// Locks a queue.
pub(super) fn lock(port: &SharedTxQueue) -> MutexGuard<'_, TxQueue> {
    // A queue is consistent even if another user panicked.
    port.lock().unwrap_or_else(PoisonError::into_inner)
}
