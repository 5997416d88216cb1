//! Synthetic traffic: any amount, made from a seed, the same bytes on every machine and in every
//! version of this crate with the same [`GENERATION`].
//!
//! - [`Spec`]: what is wanted, also as text (`packets=100000,seed=7,size=64..1500,flows=1000`);
//! - [`Generator`]: one well-formed packet after the other;
//! - [`SynthSource`]: the same as a [`Source`](crate::Source);
//! - [`hostile`]: packets that lie, for tests;
//! - [`sample`]: what `samples/mixed.pcap` holds.

mod generator;
mod headers;
pub mod hostile;
mod random;
pub mod sample;
mod source;
mod spec;

pub use generator::Generator;
pub use random::Random;
pub use source::SynthSource;
pub use spec::{Kind, Mix, Size, Spec, SpecError};

/// Counts the changes after which a seed gives other packets.
pub const GENERATION: u32 = 1;
