//! Runs one packet filter on CPUs and GPUs with the same verdicts. A filter is written in WGSL or
//! OpenCL C, or is an XDP object or a tcpdump expression; its verdicts are those of
//! XDP: DROP, PASS, TX and REDIRECT.
//!
//! ```
//! use portcullis::{Device, Filter, Verdict};
//!
//! let filter = Filter::wgsl("fn xdp_filter(pkt: u32) -> u32 {
//!     return select(XDP_DROP, XDP_PASS, load_be16(pkt, 12u) == ETH_P_IP);
//! }");
//! let mut run = filter.load(&Device::open("interp")?)?; // or Device::auto()
//! let mut ipv4 = [0; 60];
//! ipv4[12] = 8;
//! let filtered = run.filter(&[[0; 60], ipv4])?;
//! let verdicts: Vec<Verdict> = filtered.iter().map(|(_, verdict)| verdict).collect();
//! assert_eq!(verdicts, [Verdict::Drop, Verdict::Pass]);
//! # Ok::<(), portcullis::Error>(())
//! ```
//!
//! # Three levels
//!
//! 1. [`Filter`], [`Device`], [`Run`]: packets in memory, as above (`examples/filter_a_vec.rs`,
//!    `examples/maps.rs`).
//! 2. [`Pipeline`]: a capture filtered into captures by verdict (`examples/capture.rs`), and
//!    `pipeline::live::LivePipeline`: live packets.
//! 3. [`Session`](device::Session): batches in flight, for whoever builds an engine
//!    (`examples/two_in_flight.rs`). Memory, order and errors are the caller's business.
//!
//! # Design
//!
//! - **One semantics.** A filter is one function, `fn xdp_filter(pkt: u32) -> u32`, called once for
//!   each packet. `docs/reference/semantics.md` specifies it; the reference interpreter
//!   ([`interp`]) implements exactly that, and every device must agree with it bit for bit.
//! - **One intermediate form.** Front ends ([`frontend`]) produce a [`Program`](program::Program):
//!   a validated naga module with inferred facts. Backends consume only that, so N front ends and M
//!   backends cost N + M.
//! - **Zero-copy batches.** A source reads a large block into an [`Arena`](packet::Arena) and cuts
//!   [`Batch`](packet::Batch)es out of it. Packets are copied only for filters that change lengths,
//!   to give them headroom and tailroom.
//! - **Batches in flight.** A [`Session`](device::Session) accepts batches without blocking and
//!   completes them in order: several are in flight while the next one is read.
//! - **A filter terminates and stays within its packet.** Loops cost fuel, loads outside the packet
//!   return 0, and stores outside it do nothing. No filter and no packet makes this library panic.
//! - **A missing device is reported with advice.** [`devices`] probes only the requested backends
//!   and says what to install for those that are missing.
//!
//! # Features
//!
//! - `cpu` (default): the Cranelift JIT for the host CPU;
//! - `wgpu` (default): Vulkan, Metal and DX12 devices;
//! - `cuda` (default): NVIDIA GPUs. Needs nothing at build time; driver and compiler are found at
//!   run time;
//! - `opencl`: OpenCL devices. Needs nothing at build time; the library is found at run time;
//! - `xdp` (default): XDP objects compiled by clang as filters;
//! - `map-files` (default): map contents from and to CSV and JSON files (`map_file`), route tables
//!   for XDP objects (`routes`), and the control socket's protocol (`control`);
//! - `pcap-expr`: tcpdump expressions as filters ([`expression`]). Needs libpcap;
//! - `af-xdp`, `nfqueue`, `dpdk`: live packets on Linux. To be built, `af-xdp` needs a C compiler,
//!   clang, m4, pkg-config and the headers of libelf and zlib, `dpdk` a C compiler, libclang,
//!   pkg-config and DPDK 22.11 or newer.
//!
//! Without any feature, the interpreter and the no-op device remain.

pub mod auto;
#[cfg(feature = "map-files")]
pub mod control;
pub mod devices;
mod error;
pub mod expression;
mod filter;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
pub mod gpudev;
pub mod maglev;
#[cfg(feature = "map-files")]
pub mod map_file;
pub mod pipeline;
#[cfg(all(feature = "xdp", feature = "map-files"))]
pub mod routes;
pub mod stock;

pub use error::Error;
pub use filter::{Device, Filter, Filtered, FilteredIntoIter, Packet, Run, RunMap};
pub use pipeline::Pipeline;
pub use portcullis_core::packet::{Verdict, VerdictCounts};

/// Front ends: from a filter's text or object to a [`program::Program`].
pub mod frontend {
    pub use portcullis_bpf as bpf;
    pub use portcullis_opencl_c as opencl_c;
    pub use portcullis_wgsl as wgsl;
    #[cfg(feature = "xdp")]
    pub use portcullis_xdp as xdp;
}

/// Backends: the devices that filters run on, a crate for each family.
pub mod backend {
    #[cfg(feature = "cpu")]
    pub use portcullis_cpu as cpu;
    #[cfg(feature = "cuda")]
    pub use portcullis_cuda as cuda;
    #[cfg(feature = "opencl")]
    pub use portcullis_opencl as opencl;
    #[cfg(feature = "wgpu")]
    pub use portcullis_wgpu as wgpu;
}

/// Maps: state that outlives a packet, and access to the maps of sessions.
pub mod map {
    pub use portcullis_core::device::{EntryAccess, EntryUpdate, MapHandle, OpenError, Snapshot, UpdateError};
    pub use portcullis_core::map::*;
}

pub use portcullis_core::{device, diagnostics, interp, naga, packet, program};
// Helpers that the crates of this workspace share; no part of the interface.
#[doc(hidden)]
pub use portcullis_core::{reason, spelling, stack};
pub use portcullis_io as packet_io;
