//! The no-op device: passes every packet without reading it. For tests, and for measuring the cost
//! of sources and sinks. A filter's maps exist and keep what the host writes to them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Completion, Device, DeviceError, DeviceInfo, DeviceKind, Dispatch, HostMaps, Imported, Instrumented, LoadOptions,
    Session, StageTimes, Stages, SubmitError, load_initial_maps,
};
use crate::packet::{Action, Batch, Span, Verdicts};
use crate::program::Program;

/// The device `noop`.
#[derive(Debug)]
pub struct NoopDevice {
    info: DeviceInfo,
}

impl NoopDevice {
    /// Returns the device, which is always available.
    pub fn new() -> NoopDevice {
        NoopDevice {
            info: DeviceInfo {
                id: "noop".into(),
                name: "no device: every packet passes".into(),
                kind: DeviceKind::Reference,
                driver: "portcullis".into(),
                dispatch: Dispatch::COMMON,
                limits: Vec::new(),
            },
        }
    }
}

impl Default for NoopDevice {
    fn default() -> Self {
        NoopDevice::new()
    }
}

impl Device for NoopDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let dispatch = Dispatch::select(&self.info, options)?;
        options.refuse_synthetic_work(&self.info.id)?;
        options.refuse_copies(&self.info.id)?;
        let depth = options.depth.max(1);
        let session = NoopSession {
            program: program.clone(),
            maps: HostMaps::new(program),
            queue: VecDeque::new(),
            depth,
            stages: options.measure.record_stages.then(Stages::default),
        };
        load_initial_maps(program, dispatch.wrap(session))
    }
}

struct NoopSession {
    program: Arc<Program>,
    maps: HostMaps,
    queue: VecDeque<Batch>,
    depth: usize,
    stages: Option<Stages>,
}

impl Session for NoopSession {
    fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::InPlace)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if let Err(error) = super::check_submission(&self.program, &batch, self.queue.len(), self.depth) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        self.queue.push_back(batch);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let Some(batch) = self.queue.pop_front() else { return Ok(None) };
        if let Some(stages) = &mut self.stages {
            stages.record_batch(batch.len(), Duration::ZERO);
        }
        Ok(Some(Completion {
            verdicts: Verdicts::new(vec![Action::Pass as u8; batch.len()], Vec::new()),
            batch,
            times: StageTimes::default(),
        }))
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
        self.queue.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl Instrumented for NoopSession {
    fn stages(&self) -> Option<Stages> {
        self.stages
    }
}
