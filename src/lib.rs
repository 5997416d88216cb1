//! XDP-style packet filters, written once in WGSL, run on CPUs and GPUs with the same verdicts.
//!
//! The design choices, in short:
//!
//! - **One meaning.** A filter is one function, `fn xdp_filter(pkt: u32) -> u32`, called once for
//!   each packet. What it may do and what that means is `docs/semantics.md`; the reference
//!   interpreter ([`interp`]) runs exactly that, and every device must agree with it to the bit.
//! - **One hub.** Front ends ([`frontend`]) make a [`Program`](program::Program): a validated naga
//!   module and facts about it. Backends take that and nothing else, so N front ends and M
//!   backends cost N + M.
//! - **Nobody copies packets to make a batch.** A source reads a large block into an
//!   [`Arena`](packet::Arena) and cuts [`Batch`](packet::Batch)es out of it. Only a filter that
//!   changes lengths makes it lay packets out anew, with room on both sides.
//! - **Batches queue.** A [`Session`](device::Session) takes batches without waiting and gives
//!   them back in the same order: several are in flight while the next is being read.
//! - **A filter always ends and never reaches out of its packet.** Loops cost fuel, loads outside
//!   the packet give 0, stores outside do nothing. No filter and no packet makes this library
//!   panic.
//! - **A missing device is not an error of the program.** [`devices`] probes only what is asked
//!   for and says what to install for what is not there.
//!
//! # A filter over a few packets
//!
//! ```
//! use std::sync::Arc;
//!
//! use portcullis::device::{Device, LoadOptions};
//! use portcullis::diagnostics::Source;
//! use portcullis::frontend::wgsl;
//! use portcullis::packet::Batch;
//! use portcullis::program::ProgramOptions;
//!
//! let text = "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
//! let program = wgsl::compile(&Source::new("all.wgsl", text), &ProgramOptions::default())?;
//! let device = portcullis::devices::open("noop")?;
//! let mut session = device.load(&Arc::new(program), &LoadOptions::default())?;
//! let done = session.run(Batch::from_packets(&[[0u8; 60], [1u8; 60]])?)?;
//! assert_eq!(done.verdicts.counts(), [0, 0, 2, 0, 0]); // aborted, drop, pass, tx, redirect
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! - `cpu` (default): the Cranelift JIT for the host's processor;
//! - `wgpu` (default): Vulkan, Metal and DX12 devices;
//! - `cuda` (default): NVIDIA GPUs. Needs nothing at build time; driver and compiler are found at run time;
//! - `opencl`: OpenCL devices. Needs nothing at build time; what there is is found at run time;
//! - `pcap-expr`: tcpdump's expressions as filters ([`expression`]). Needs libpcap.
//!
//! Without any, the interpreter and the device that does nothing remain.

pub mod auto;
pub mod control;
pub mod devices;
mod error;
pub mod expression;
mod filter;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
pub mod gpudev;
pub mod maglev;
pub mod map_file;
pub mod pipeline;
pub mod routes;
pub mod stock;

pub use error::Error;
pub use filter::{Device, Filter, Filtered, FilteredIntoIter, Packet, Run, RunMap};
pub use portcullis_core::packet::{Verdict, VerdictCounts};

pub use portcullis_c_writer as c_writer;
/// Front ends: from a filter's text or object to a [`program::Program`].
pub mod frontend {
    pub use portcullis_bpf as bpf;
    pub use portcullis_opencl_c as opencl_c;
    pub use portcullis_wgsl as wgsl;
    pub use portcullis_xdp as xdp;
}

pub use portcullis_core::{device, diagnostics, interp, map, naga, packet, program, reason, spelling, stack};
#[cfg(feature = "cpu")]
pub use portcullis_cpu as cpu;
#[cfg(feature = "cuda")]
pub use portcullis_cuda as cuda;
pub use portcullis_io as io;
#[cfg(feature = "opencl")]
pub use portcullis_opencl as opencl;
#[cfg(feature = "wgpu")]
pub use portcullis_wgpu as wgpu;
