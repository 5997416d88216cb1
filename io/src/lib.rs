//! Packet sources and sinks: captures, synthetic traffic, and live interfaces.
//!
//! A [`Source`] yields [`Batch`](portcullis_core::packet::Batch)es; a [`Sink`] takes the selected
//! packets of a batch. The modules:
//!
//! - [`capture`]: pcap and pcapng files, read and written. A capture is read in large blocks
//!   straight into arenas, and packets are filtered where they were read; they are copied only for
//!   filters that change packet lengths.
//! - [`RedirectSink`]: one capture file per redirect target.
//! - [`synth`]: well-formed or hostile traffic generated from a seed.
//! - `live` (Linux): receiving live packets and executing verdicts on them.
//! - `af_xdp`, `dpdk` and `nfqueue` (Linux, features of the same names): live packets from AF_XDP
//!   sockets, DPDK ports and netfilter queues.
//! - `pinned` (Linux): entries of kernel BPF maps pinned in a BPF file system.
//! - `routes` (Linux): the kernel's interfaces, routes and neighbours.
//! - [`wrap`]: sources around other sources: limit, repeat, tee, fault injection.
//!
//! [`open()`] and [`create`] choose the source or sink from the user's text.
//!
//! ```
//! use portcullis_io::{Sink, Source, SourceOptions, create, open};
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("short.pcap");
//! # let path = path.to_str().unwrap();
//! // A thousand packets; "-" would be standard input, and anything else a capture file.
//! let mut source = open("synth:packets=1000,seed=7,size=64..1500", &SourceOptions::default())?;
//! let mut sink = create(path, source.format())?;
//! while let Some(batch) = source.next_batch()? {
//!     let is_short = |&i: &u32| batch.packet(i as usize).len() < 300;
//!     let short: Vec<u32> = (0..batch.len() as u32).filter(is_short).collect();
//!     sink.write(&batch, &short)?;
//! }
//! for warning in source.take_warnings() {
//!     eprintln!("{warning}");
//! }
//! let written = sink.finish()?;
//! assert!(written.packets > 100 && written.packets < 300);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

#[cfg(all(target_os = "linux", feature = "af-xdp"))]
pub mod af_xdp;
mod batching;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "tests include this file as a module and use more of it")]
mod bpf_call;
pub mod capture;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
pub mod dpdk;

mod link_type;
#[cfg(target_os = "linux")]
pub mod live;
#[cfg(target_os = "linux")]
#[cfg_attr(not(feature = "af-xdp"), expect(dead_code, reason = "only AF_XDP configures interfaces; other users query"))]
mod netlink;
#[cfg(all(target_os = "linux", feature = "nfqueue"))]
pub mod nfqueue;
mod open;
#[cfg(target_os = "linux")]
pub mod pinned;
mod reason;
mod redirect;
mod redirect_groups;
#[cfg(target_os = "linux")]
pub mod routes;
mod sink;
mod source;
pub mod synth;
mod synth_spec;
pub mod wrap;

pub use open::{create, open};
pub use reason::create_error_reason;
pub use redirect::RedirectSink;
pub use redirect_groups::RedirectGroups;
pub use sink::{Sink, SinkError, Written, resolved_path, same_destination, same_file};
pub use source::{CaptureFormat, Interface, Progress, Resolution, Source, SourceError, SourceOptions, Warning};
