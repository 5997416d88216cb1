//! Synthetic traffic, generated from a seed: the same bytes on every machine and in every version
//! of this crate with the same [`GENERATION`].
//!
//! - [`Spec`]: a description of the traffic, also as text
//!   (`packets=100000,seed=7,size=64..1500,flows=1000`);
//! - [`Generator`]: generates well-formed packets one by one;
//! - [`SynthSource`]: a [`Source`](crate::Source) of these packets;
//! - [`hostile`]: malformed packets, for tests;
//! - [`sample`]: the contents of `samples/mixed.pcap`.

mod fronthaul;
mod generator;
mod headers;
pub mod hostile;
mod random;
pub mod sample;
mod source;

pub use crate::synth_spec::{Kind, Mix, Size, Spec, SpecError};
pub use generator::Generator;
pub use random::Random;
pub use source::SynthSource;

/// Version of the generator; incremented when the same seed yields other packets.
pub const GENERATION: u32 = 1;
