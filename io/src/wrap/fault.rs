//! Fault injection: corrupts and truncates packets.

use portcullis_core::packet::{Batch, Descriptor};

use crate::source::{CaptureFormat, Progress, Source, SourceError, Warning};
use crate::synth::Random;

/// Fault rates; 0 is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// One packet in this many gets a bit flipped.
    pub corrupt_one_in: u32,
    /// One packet in this many is truncated to a random length, possibly 0.
    pub truncate_one_in: u32,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// A source that damages packets. The same seed damages the same packets, however they are batched.
#[derive(Debug)]
pub struct Fault<S> {
    inner: S,
    faults: Faults,
    random: Random,
}

impl<S: Source> Fault<S> {
    /// Wraps `inner`.
    pub fn new(inner: S, faults: Faults) -> Fault<S> {
        Fault { inner, faults, random: Random::new(faults.seed, 3) }
    }
}

impl<S: Source> Source for Fault<S> {
    fn next_batch(&mut self) -> Result<Option<Batch>, SourceError> {
        let Some(mut batch) = self.inner.next_batch()? else { return Ok(None) };
        let mut descriptors = batch.descriptors().to_vec();
        for (index, descriptor) in descriptors.iter_mut().enumerate() {
            let hit = |random: &mut Random, one_in| one_in != 0 && random.one_in(one_in);
            if hit(&mut self.random, self.faults.corrupt_one_in) {
                let (at, bit) = (self.random.below(descriptor.length), self.random.below(8));
                if let Some(byte) = batch.packet_mut(index).get_mut(at as usize) {
                    *byte ^= 1 << bit;
                }
            }
            if hit(&mut self.random, self.faults.truncate_one_in) {
                *descriptor = Descriptor { length: self.random.below(descriptor.length), ..*descriptor };
            }
        }
        batch.resize(descriptors).expect("packets only become shorter");
        Ok(Some(batch))
    }

    fn format(&self) -> &CaptureFormat {
        self.inner.format()
    }

    fn take_warnings(&mut self) -> Vec<Warning> {
        self.inner.take_warnings()
    }

    fn progress(&self) -> Progress {
        self.inner.progress()
    }
}
