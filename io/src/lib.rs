//! Where packets come from and where they go.
//!
//! A [`Source`] hands out [`Batch`](portcullis_core::packet::Batch)es, a [`Sink`] takes the packets
//! of a batch that someone chose. What there is:
//!
//! - [`capture`]: pcap and pcapng files, in and out. A capture is read in large blocks straight
//!   into arenas, and its packets stay where they were read; they are copied only for filters that
//!   change lengths.
//! - [`RedirectSink`]: a capture for each redirect target.
//! - [`synth`]: traffic made from a seed, well-formed or hostile.
//! - `live` (Linux): how live packets come in, and how verdicts on them are carried out.
//! - `nfqueue` (Linux, feature `nfqueue`): packets for which the kernel itself asks for a verdict.
//! - `pinned` (Linux): maps of the kernel's, and what is in them;
//! - `routes` (Linux): where the kernel has packets go.
//! - [`wrap`]: limit, repeat, tee and faults around any source.
//!
//! [`open`] and [`create`] choose by the text that a user gives.
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
//!     let short: Vec<u32> = (0..batch.len() as u32).filter(|&i| batch.packet(i as usize).len() < 300).collect();
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
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "the tests that have it need more of it")]
mod bpf_call;
pub mod capture;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
pub mod dpdk;
mod layout;
#[cfg(target_os = "linux")]
pub mod live;
#[cfg(target_os = "linux")]
#[cfg_attr(not(feature = "af-xdp"), expect(dead_code, reason = "without AF_XDP the kernel is asked, and told nothing"))]
mod netlink;
#[cfg(all(target_os = "linux", feature = "nfqueue"))]
pub mod nfqueue;
#[cfg(target_os = "linux")]
pub mod pinned;
mod reason;
mod redirect;
#[cfg(target_os = "linux")]
pub mod routes;
mod several;
mod sink;
mod source;
pub mod synth;
pub mod wrap;

pub use reason::create_error_reason;
pub use redirect::RedirectSink;
pub use several::RedirectGroups;
pub use sink::{Sink, SinkError, Written, create, resolved_path, same_destination, same_file};
pub use source::{CaptureFormat, Interface, Progress, Resolution, Source, SourceError, SourceOptions, Warning, open};
