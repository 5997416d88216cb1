//! `portcullis l2fwd` as users meet it, on ports that DPDK makes: no network card is needed, nor
//! huge pages, nor root.
#![cfg(target_os = "linux")]

mod arguments;
mod bursts;
mod devices;
#[path = "../live/each_device.rs"]
mod each_device;
mod ends;
mod mempools;
mod overload;
#[allow(dead_code, reason = "it is shared with other tests, and none of them needs all of it")]
#[path = "../cli/support.rs"]
mod program;
mod support;
