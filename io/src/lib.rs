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
//! - [`wrap`]: limit, repeat, tee and faults around any source.
//!
//! [`open`] and [`create`] choose by the text that a user gives.
#![deny(unsafe_code)]

pub mod capture;
mod layout;
mod redirect;
mod sink;
mod source;
pub mod synth;
pub mod wrap;

pub use redirect::RedirectSink;
pub use sink::{Sink, SinkError, Written, create, same_file};
pub use source::{CaptureFormat, Interface, Progress, Resolution, Source, SourceError, SourceOptions, Warning, open};
