//! The interpreter as a [`Device`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::Interpreter;
use super::machine::{Machine, Stop};
use crate::device::{
    CancelToken, Completion, Device, DeviceError, DeviceInfo, DeviceKind, DeviceLimit, Dispatch, HostMaps, Imported,
    InPlaceReads, Instrumented, LoadOptions, Session, StageTimes, Stages, SubmitError, check_submission,
    load_initial_maps,
};
use crate::map::compactor::MapCompactor;
use crate::packet::{Batch, Descriptor, RESIZE_ROOM, Span, Verdicts};
use crate::program::Program;

const ID: &str = "interp";

/// The device `interp`: the reference that every other device is compared with.
#[derive(Debug)]
pub struct InterpDevice {
    info: DeviceInfo,
}

impl InterpDevice {
    /// Returns the device, which is always available.
    pub fn new() -> InterpDevice {
        InterpDevice {
            info: DeviceInfo {
                id: ID.into(),
                name: "the reference interpreter".into(),
                kind: DeviceKind::Reference,
                driver: concat!("portcullis ", env!("CARGO_PKG_VERSION")).into(),
                dispatch: Dispatch::COMMON,
                limits: vec![DeviceLimit::new("threads", "1"), DeviceLimit::ReadsInPlace(InPlaceReads::Always)],
            },
        }
    }
}

impl Default for InterpDevice {
    fn default() -> Self {
        InterpDevice::new()
    }
}

impl Device for InterpDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let dispatch = Dispatch::select(&self.info, options)?;
        options.refuse_synthetic_work(&self.info.id)?;
        options.refuse_copies(&self.info.id)?;
        let interpreter = Interpreter::new(program)
            .map_err(|error| DeviceError::Unsupported { device: ID.into(), reason: error.to_string() })?;
        let session = InterpSession {
            maps: HostMaps::new(program),
            compactor: program.map_compactor(),
            interpreter,
            queue: VecDeque::new(),
            depth: options.depth.max(1),
            stages: options.measure.record_stages.then(Stages::default),
            cancel: options.cancel.clone(),
        };
        load_initial_maps(program, dispatch.wrap(session))
    }
}

/// A session of the interpreter. Batches run when they are completed, or when maps are accessed.
struct InterpSession {
    interpreter: Interpreter,
    maps: HostMaps,
    compactor: Option<MapCompactor>,
    queue: VecDeque<Queued>,
    depth: usize,
    stages: Option<Stages>,
    cancel: CancelToken,
}

enum Queued {
    /// The batch has not run yet.
    Waiting(Batch),
    /// The batch ran early because a map was accessed.
    Completed(Result<Completion, DeviceError>),
}

impl Session for InterpSession {
    fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::InPlace)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if let Err(error) = check_submission(&self.interpreter.program, &batch, self.queue.len(), self.depth) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        self.queue.push_back(Queued::Waiting(batch));
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let done = match self.queue.pop_front() {
            None => return Ok(None),
            Some(Queued::Waiting(batch)) => self.run_batch(batch)?,
            Some(Queued::Completed(done)) => done?,
        };
        if let Some(stages) = &mut self.stages {
            stages.record_batch(done.batch.len(), done.times.kernel);
        }
        Ok(Some(done))
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        self.run_waiting();
        self.maps.get(map)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.run_waiting();
        self.maps.get_at(map, at, words)
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.run_waiting();
        self.maps.set(map, at, words)
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl Instrumented for InterpSession {
    fn stages(&self) -> Option<Stages> {
        self.stages
    }
}

impl InterpSession {
    /// Runs all waiting batches.
    fn run_waiting(&mut self) {
        for mut queued in std::mem::take(&mut self.queue) {
            if let Queued::Waiting(batch) = queued {
                queued = Queued::Completed(self.run_batch(batch));
            }
            self.queue.push_back(queued);
        }
    }

    fn run_batch(&mut self, batch: Batch) -> Result<Completion, DeviceError> {
        if let Some(compactor) = &mut self.compactor {
            let Ok(()) = compactor.compact_if_needed(batch.len(), &mut self.maps.words);
        }
        let maps = std::mem::take(&mut self.maps.words);
        let mut machine = Machine::new(&self.interpreter.program, &self.interpreter.code, maps, &self.cancel);
        let done = self.run_packets(batch, &mut machine);
        self.maps.words = machine.memory.maps;
        done
    }

    fn run_packets(&self, mut batch: Batch, machine: &mut Machine<'_>) -> Result<Completion, DeviceError> {
        let start = Instant::now();
        let mut values = Vec::with_capacity(batch.len());
        let mut descriptors = Vec::with_capacity(batch.len());
        let mut resized = Vec::new();
        for index in 0..batch.len() {
            if self.cancel.is_cancelled() {
                return Err(DeviceError::Cancelled);
            }
            let old = batch.descriptors()[index];
            let misalignment = old.offset % 4;
            let metadata = batch.metadata_of(index);
            let value =
                machine.run_packet(batch.packet(index), misalignment as usize, &metadata).map_err(
                    |stop| match stop {
                        Stop::Cancelled => DeviceError::Cancelled,
                        Stop::OutOfFuel => {
                            DeviceError::Failed { device: ID.into(), reason: "the prelude ran out of fuel".into() }
                        }
                        other => DeviceError::Failed { device: ID.into(), reason: other.into_error().to_string() },
                    },
                )?;
            values.push(value);
            let [offset, length] = machine.memory.descriptor;
            // Both offsets are relative to the packet's arena.
            let new =
                Descriptor { offset: old.offset.wrapping_add(offset).wrapping_sub(RESIZE_ROOM + misalignment), length };
            descriptors.push(new);
            let bytes = (0..length).map(|i| machine.memory.byte((offset + i) as usize));
            if new == old {
                for (to, byte) in batch.packet_mut(index).iter_mut().zip(bytes) {
                    *to = byte;
                }
            } else {
                resized.push((index, bytes.collect::<Vec<u8>>()));
            }
        }
        batch.resize(descriptors).map_err(|error| DeviceError::InvalidResult { device: ID.into(), error })?;
        for (index, bytes) in resized {
            batch.packet_mut(index).copy_from_slice(&bytes);
        }
        let verdicts = Verdicts::from_returns(&values, self.interpreter.program.facts().redirects);
        let times = StageTimes { kernel: start.elapsed(), ..StageTimes::default() };
        Ok(Completion { batch, verdicts, times })
    }
}
