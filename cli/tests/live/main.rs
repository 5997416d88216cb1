//! `portcullis run --af-xdp` and `--nfqueue`, and `selftest --af-xdp`, from the command line,
//! between network namespaces.
#![cfg(target_os = "linux")]

mod af_xdp;
#[allow(dead_code, reason = "shared by several test programs, none of which uses all of it")]
#[path = "../../../compat-tests/src/clang.rs"]
mod clang;
mod control;
mod ctl;
mod devices;
#[allow(dead_code, reason = "shared by several test programs, none of which uses all of it")]
mod each_device;
mod events;
mod flows;
mod hub;
#[allow(dead_code, reason = "the loader of other tests, none of which uses all of it")]
#[path = "../../../compat-tests/src/kernel/mod.rs"]
mod kernel;
#[cfg(feature = "nfqueue")]
mod nfqueue;
mod objects;
mod peers;
mod pinned;
#[allow(dead_code, reason = "shared by several test programs, none of which uses all of it")]
#[path = "../cli/support.rs"]
mod program;
mod routes;
mod selftest;
mod soak;
mod support;
mod terminal;
mod topology;
mod traps;
mod trouble;
mod watching;
