//! FFI bindings for DPDK, and for the C shim (`c/shim.h`) around its inline functions.
//!
//! Structures whose layout changes between releases, above all `rte_mbuf`, are opaque here: the
//! shim, compiled against the installed DPDK's headers, accesses them.
#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case, unsafe_code)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks)]

#[cfg(feature = "link")]
include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
