//! Lane IR as a device: filters as the CPU's vectors have them, executed by that form's own interpreter. What it shares
//! with the reference interpreter is the front end alone, so that a difference is a fault of one of the two.
//!
//! Filters without maps go four packets at a time, in lock step; those with maps one by one, in which order what they
//! leave there is said. What the form does not say is a number that changes from group to group.

use std::collections::VecDeque;
use std::sync::Arc;

use portcullis_core::device::{
    Device, DeviceError, DeviceInfo, DeviceKind, Dispatch, Done, Imported, LoadOptions, READS_IN_PLACE, Session,
    StageTimes, SubmitError, check_map, check_map_words, check_submission,
};
use portcullis_core::map::layout::Layout;
use portcullis_core::map::upkeep::Upkeep;
use portcullis_core::packet::{Batch, Descriptor, Metadata, Span, Verdicts};
use portcullis_core::program::Program;
use portcullis_cpu::vector::Traced;

const ID: &str = "lanes";

/// Packets side by side.
const LANES: usize = 4;

/// The device.
#[derive(Debug)]
pub struct Lanes {
    info: DeviceInfo,
}

impl Lanes {
    /// It is always there.
    pub fn new() -> Lanes {
        Lanes {
            info: DeviceInfo {
                id: ID.into(),
                name: "the interpreter of lane IR".into(),
                kind: DeviceKind::Reference,
                driver: "none".into(),
                dispatch: Dispatch::COMMON,
                limits: vec![("threads", "1".into()), (READS_IN_PLACE, "yes".into())],
            },
        }
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Lanes::new()
    }
}

impl Device for Lanes {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let traced = Traced::of(program).map_err(|reason| DeviceError::Unsupported { device: ID.into(), reason })?;
        Ok(Box::new(LanesSession {
            traced,
            maps: program.maps().iter().map(|map| vec![0; Layout::of(map).words()]).collect(),
            upkeep: Upkeep::new(program),
            program: program.clone(),
            done: VecDeque::new(),
            depth: options.depth.max(1),
            unspecified: 1,
        }))
    }
}

/// Batches run when they are submitted.
struct LanesSession {
    program: Arc<Program>,
    traced: Traced,
    /// The words of the filter's maps.
    maps: Vec<Vec<u32>>,
    upkeep: Option<Upkeep>,
    done: VecDeque<Done>,
    depth: usize,
    unspecified: u32,
}

impl Session for LanesSession {
    fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::InPlace)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if let Err(error) = check_submission(&self.program, &batch, self.done.len(), self.depth) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        let done = self.run_batch(batch)?;
        self.done.push_back(done);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Done>, DeviceError> {
        Ok(self.done.pop_front())
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        check_map(&self.program, map)?;
        Ok(self.maps[map].clone())
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        check_map_words(&self.program, map, at, words)?;
        Ok(self.maps[map][at..at + words].to_vec())
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        check_map_words(&self.program, map, at, words.len())?;
        self.maps[map][at..at + words.len()].copy_from_slice(words);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl LanesSession {
    fn run_batch(&mut self, mut batch: Batch) -> Result<Done, SubmitError> {
        if let Some(upkeep) = &mut self.upkeep {
            let Ok(()) = upkeep.look(batch.len(), &mut self.maps);
        }
        let lanes = if self.maps.is_empty() { LANES } else { 1 };
        let mut outcomes = Vec::with_capacity(batch.len());
        for first in (0..batch.len()).step_by(lanes) {
            let group = first..batch.len().min(first + lanes);
            let metadata: Vec<Metadata> = group.clone().map(|index| batch.metadata_of(index)).collect();
            let packets: Vec<_> = group.map(|index| batch.packet(index)).zip(&metadata).collect();
            // A linear congruence: small and large, odd and even.
            self.unspecified = self.unspecified.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match self.traced.run(&packets, &mut self.maps, self.unspecified >> (self.unspecified & 31)) {
                Ok(group) => outcomes.extend(group),
                Err(fault) => {
                    let reason = format!("{fault}\n{}", self.traced.dump());
                    let error = DeviceError::Failed { device: ID.into(), reason };
                    return Err(SubmitError { batch: Box::new(batch), error });
                }
            }
        }
        let moved = |(old, new): (&Descriptor, &portcullis_cpu::vector::interp::Outcome)| Descriptor {
            offset: old.offset.wrapping_add_signed(new.start),
            length: new.packet.len() as u32,
        };
        let descriptors = batch.descriptors().iter().zip(&outcomes).map(moved).collect();
        if let Err(error) = batch.resize(descriptors) {
            let error = DeviceError::Broken { device: ID.into(), error };
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        for (index, outcome) in outcomes.iter().enumerate() {
            // Only what was written to may be.
            if self.program.facts().rewrites() {
                batch.packet_mut(index).copy_from_slice(&outcome.packet);
            }
        }
        let values: Vec<u32> = outcomes.iter().map(|outcome| outcome.verdict).collect();
        let verdicts = Verdicts::from_returns(&values, self.program.facts().redirects);
        Ok(Done { batch, verdicts, times: StageTimes::default() })
    }
}
