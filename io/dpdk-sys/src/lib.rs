//! DPDK's functions as Rust declares them, and those of the shim (`c/shim.h`) for what is inline in DPDK.
//!
//! Structures whose layout changes from release to release, packets' descriptions (`rte_mbuf`) before all, are opaque here: the
//! shim, which is compiled against the headers of the DPDK that is there, looks at them.
#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case, unsafe_code)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks)]

#[cfg(feature = "link")]
include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
