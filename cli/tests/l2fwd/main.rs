//! `portcullis l2fwd` from the command line, on virtual DPDK ports: without a network card, huge
//! pages or root.
#![cfg(target_os = "linux")]

mod arguments;
mod bursts;
mod devices;
#[path = "../live/each_device.rs"]
mod each_device;
mod ends;
mod mempools;
mod overload;
#[allow(dead_code, reason = "shared by several test programs, none of which uses all of it")]
#[path = "../cli/support.rs"]
mod program;
#[allow(dead_code, reason = "shared by several test programs, none of which uses all of it")]
#[path = "../live/support.rs"]
mod running;
mod support;
