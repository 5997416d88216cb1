//! Differential tests of devices, front ends and code generators. Stock filters, every operator and
//! random filters run on every device of the machine and are compared with the reference
//! interpreter; stock filters also with independently written models.
//!
//! - [`devices`]: runs a suite on each device and records the outcome;
//! - [`corpora`], [`layouts`]: packets, and their layout in memory;
//! - [`traffic`]: ordered traffic (connections, floods, stray packets) for filters with maps;
//! - [`stock`], [`models`]: the stock filters and their models; [`stateful`]: those with maps;
//! - [`generator`]: random valid filters, and packets for them;
//! - [`operators`], [`floating_point`]: filters that cover every operator and built-in function;
//! - [`c_programs`], [`cl_programs`]: random filters in the common subset of OpenCL C and plain C,
//!   and in OpenCL C alone;
//! - [`objects`], [`clang`], [`kernel`]: XDP programs, their compiler, and the kernel as reference;
//! - [`expressions`]: filter expressions, with tcpdump as reference;
//! - [`instructions`]: eBPF programs and a model of their semantics;
//! - [`lanes`]: an executor of the CPU's vector form that does not use its code generator;
//! - [`aarch64`]: AArch64 code under an emulator; [`synchronous`]: a session for such devices;
//! - [`oracle`]: which programs allow packets to be reordered, and the features that they use;
//! - [`witness`]: other compilers of the same sources;
//! - [`host`]: the C writer's output, compiled for this machine, as a device;
//! - [`oclgrind`]: that output under Oclgrind, which detects races and accesses out of bounds;
//! - [`nvidia`]: NVIDIA's compilers, which need no GPU;
//! - [`interleavings`]: model checking of map operations, over every interleaving of a few packets;
//! - [`texts`]: compiles filters from source; [`shrink`]: test-case reduction;
//! - [`harness`]: compares one filter on one device packet by packet; [`with_maps`]: likewise over
//!   several batches.

pub mod aarch64;
pub mod c_programs;
pub mod cl_programs;
#[cfg(target_os = "linux")]
pub mod clang;
pub mod corpora;
pub mod devices;
pub mod expressions;
pub mod floating_point;
pub mod generator;
pub mod harness;
pub mod host;
pub mod instructions;
pub mod interleavings;
pub mod ip;
#[cfg(target_os = "linux")]
pub mod kernel;
pub mod lanes;
pub mod launches;
pub mod layouts;
pub mod models;
pub mod nvidia;
#[cfg(target_os = "linux")]
pub mod objects;
pub mod oclgrind;
pub mod operators;
pub mod oracle;
mod records;
pub mod shrink;
pub mod stateful;
pub mod stock;
pub mod synchronous;
pub mod texts;
pub mod traffic;
pub mod with_maps;
pub mod witness;
