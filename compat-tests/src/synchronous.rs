//! A session that runs each batch when it is submitted, for slow test devices that implement
//! nothing but the filtering of packets.

use std::collections::VecDeque;
use std::sync::Arc;

use portcullis_core::device::{
    Completion, DeviceError, HostMaps, Imported, Instrumented, LoadOptions, Session, StageTimes, SubmitError,
    check_submission,
};
use portcullis_core::map::compactor::MapCompactor;
use portcullis_core::packet::{Batch, Descriptor, Metadata, ResizeRoom, Span, Verdicts};
use portcullis_core::program::Program;
use portcullis_cpu::vector::interp::{Outcome, Packet};

/// Filters the packets of a batch.
pub trait Execute: Send {
    /// Filters packets in order, which have `room` to grow; `maps` holds the words of each of the
    /// filter's maps.
    ///
    /// # Errors
    /// A description of the failure.
    fn execute(
        &mut self,
        packets: &[Packet<'_>],
        room: ResizeRoom,
        maps: &mut [Vec<u32>],
    ) -> Result<Vec<Outcome>, String>;
}

/// A session that executes batches synchronously, in the order of submission.
#[derive(Debug)]
pub struct SynchronousSession<E> {
    device: String,
    program: Arc<Program>,
    executor: E,
    maps: HostMaps,
    compactor: Option<MapCompactor>,
    done: VecDeque<Completion>,
    depth: usize,
}

impl<E: Execute> SynchronousSession<E> {
    /// Creates a session with empty maps.
    pub fn new(device: &str, program: &Arc<Program>, options: &LoadOptions, executor: E) -> SynchronousSession<E> {
        SynchronousSession {
            device: device.to_owned(),
            executor,
            maps: HostMaps::new(program),
            compactor: program.map_compactor(),
            program: program.clone(),
            done: VecDeque::new(),
            depth: options.depth.max(1),
        }
    }

    fn failed(&self, batch: Batch, reason: String) -> SubmitError {
        let error = DeviceError::Failed { device: self.device.clone(), reason };
        SubmitError { batch: Box::new(batch), error }
    }

    fn run_batch(&mut self, mut batch: Batch) -> Result<Completion, SubmitError> {
        if let Some(compactor) = &mut self.compactor {
            let Ok(()) = compactor.compact_if_needed(batch.len(), &mut self.maps.words);
        }
        let metadata: Vec<Metadata> = (0..batch.len()).map(|index| batch.metadata_of(index)).collect();
        let packets: Vec<_> = batch.packets().zip(&metadata).collect();
        let outcomes = match self.executor.execute(&packets, batch.room(), &mut self.maps.words) {
            Ok(outcomes) => outcomes,
            Err(reason) => return Err(self.failed(batch, reason)),
        };
        let moved = |(old, new): (&Descriptor, &Outcome)| Descriptor {
            offset: old.offset.wrapping_add_signed(new.start),
            length: new.packet.len() as u32,
        };
        let descriptors = batch.descriptors().iter().zip(&outcomes).map(moved).collect();
        if let Err(error) = batch.resize(descriptors) {
            let error = DeviceError::InvalidResult { device: self.device.clone(), error };
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        for (index, outcome) in outcomes.iter().enumerate() {
            // A batch's packets may be modified only if the filter rewrites them.
            if self.program.facts().rewrites() {
                batch.packet_mut(index).copy_from_slice(&outcome.packet);
            } else if outcome.packet != batch.packet(index) {
                return Err(self.failed(batch, format!("packet {index} was written to")));
            }
        }
        let values: Vec<u32> = outcomes.iter().map(|outcome| outcome.verdict).collect();
        let verdicts = Verdicts::from_returns(&values, self.program.facts().redirects);
        Ok(Completion { batch, verdicts, times: StageTimes::default() })
    }
}

impl<E: Execute> Session for SynchronousSession<E> {
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

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        Ok(self.done.pop_front())
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        self.maps.get(map)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.maps.get_at(map, at, words)
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.maps.set(map, at, words)
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl<E: Execute> Instrumented for SynchronousSession<E> {}
