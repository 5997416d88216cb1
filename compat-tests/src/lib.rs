//! Whether every device means the same by a filter: stock filters, every operator, and random
//! filters, on every device that a machine has, against the reference interpreter. The stock
//! filters are compared with models of them, too, which were written apart from their text.
//!
//! - [`devices`]: runs a suite on each device, and notes what became of it;
//! - [`corpora`], [`layouts`]: packets, and how they lie in memory;
//! - [`traffic`]: connections, floods and strays, in order, for filters with maps;
//! - [`stock`], [`models`]: the stock filters, and what they should do; [`stateful`]: those with maps;
//! - [`generator`]: random filters that are valid, and packets for them;
//! - [`operators`], [`floating_point`]: filters that compute with everything there is to compute with;
//! - [`c_programs`], [`cl_programs`]: random filters in OpenCL C, which mean the same in plain C, or in OpenCL C alone;
//! - [`objects`], [`clang`], [`kernel`]: programs of XDP, who compiles them, and who says what they do;
//! - [`expressions`]: tcpdump's expressions, and tcpdump;
//! - [`instructions`]: programs of eBPF, and what they mean;
//! - [`lanes`]: the form in which the CPU takes several packets at a time, executed apart from its code;
//! - [`aarch64`]: the CPU's code for another processor, under an emulator; [`in_turn`]: a session for such devices;
//! - [`oracle`]: which packets may go side by side, and the table of what the kernel said;
//! - [`witness`]: other compilers of the same texts;
//! - [`host`]: the C writer's source, compiled for this machine, as a device;
//! - [`oclgrind`]: the same, run by Oclgrind, which sees races and accesses out of bounds;
//! - [`nvidia`]: NVIDIA's compilers, which need no GPU;
//! - [`interleavings`]: the operations of a few packets on maps, in every order;
//! - [`texts`]: filters out of texts; [`harness`]: one filter on one device, packet by packet; [`with_maps`]: from batch to batch; [`shrink`] makes what fails small.

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
pub mod in_turn;
pub mod instructions;
pub mod interleavings;
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
pub mod shrink;
pub mod stateful;
pub mod stock;
pub mod texts;
pub mod traffic;
pub mod with_maps;
pub mod witness;
