//! Fuzz targets: functions that take any bytes and must return. A fuzzer calls them through
//! `fuzz_targets/` (see README.md), and `cargo test` calls each for a second with the mutations of
//! [`mutate`].

pub mod bpf_instructions;
pub mod bpf_text;
pub mod capture_bytes;
pub mod control_requests;
pub mod descriptors;
pub mod ebpf_instructions;
pub mod elf_objects;
mod filter;
pub mod map_files;
#[cfg(target_os = "linux")]
pub mod metrics_requests;
pub mod mutate;
#[cfg(target_os = "linux")]
pub mod nfqueue_messages;
pub mod opencl_c_preprocess;
pub mod opencl_c_text;
pub mod wgsl_text;
