//! `portcullis l2fwd` as users meet it, on ports that DPDK makes: no network card is needed, nor huge pages, nor root.
#![cfg(target_os = "linux")]

mod arguments;
mod bursts;
mod devices;
mod ends;
mod mempools;
mod overload;
mod support;
