//! `portcullis run --af-xdp` and `--nfqueue`, and `selftest --af-xdp`, as users meet them, between
//! network namespaces.
#![cfg(target_os = "linux")]

mod af_xdp;
#[allow(dead_code, reason = "it is shared with other tests, and none of them needs all of it")]
#[path = "../../../compat-tests/src/clang.rs"]
mod clang;
mod control;
mod desk;
mod devices;
#[allow(dead_code, reason = "it is shared with other tests, and none of them needs all of it")]
mod each_device;
mod events;
mod flows;
mod hub;
#[allow(dead_code, reason = "it is the loader of other tests, and none of them needs all of it")]
#[path = "../../../compat-tests/src/kernel/mod.rs"]
mod kernel;
#[cfg(feature = "nfqueue")]
mod nfqueue;
mod objects;
mod peers;
mod pinned;
mod routes;
mod selftest;
mod soak;
mod support;
mod topology;
mod traps;
mod trouble;
mod watching;
