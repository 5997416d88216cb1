//! `portcullis run --af-xdp` and `--nfqueue`, and `selftest --af-xdp`, as users meet them, between network namespaces.
#![cfg(target_os = "linux")]

mod af_xdp;
mod control;
#[cfg(feature = "nfqueue")]
mod nfqueue;
mod peers;
mod selftest;
mod soak;
mod support;
mod topology;
mod trouble;
mod watching;
