//! A device with an overload fallback: a second device that filters batches when the first is busy.

use std::sync::Arc;

use super::{
    Completion, Device, DeviceError, DeviceInfo, Dispatch, Imported, Instrumented, LoadOptions, Session, Stages,
    SubmitError, TransferPlan,
};
use crate::packet::{Batch, DeviceView, Span};
use crate::program::Program;

/// A device and, if one is given, a fallback that has the same filter loaded. Whoever drives the
/// session may give batches to the fallback that would otherwise wait
/// ([`FallbackSession::fallback`]), except batches in device memory.
#[derive(Clone)]
pub struct WithFallback {
    device: Arc<dyn Device>,
    fallback: Option<Arc<dyn Device>>,
}

impl From<Arc<dyn Device>> for WithFallback {
    /// A device without fallback.
    fn from(device: Arc<dyn Device>) -> WithFallback {
        WithFallback { device, fallback: None }
    }
}

impl WithFallback {
    /// Combines a device with its fallback.
    pub fn new(device: Arc<dyn Device>, fallback: Arc<dyn Device>) -> WithFallback {
        WithFallback { device, fallback: Some(fallback) }
    }

    /// Identity and properties of the device, not of the fallback.
    pub fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// Loads the program on both devices. Filters with maps or flows are refused if there is a
    /// fallback, because their state would be in two places.
    ///
    /// # Errors
    /// As [`Device::load`] of either; [`DeviceError::Unsupported`] for a filter with maps or flows.
    pub fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<FallbackSession, DeviceError> {
        let Some(fallback_device) = &self.fallback else { return Ok(self.device.load(program, options)?.into()) };
        let (id, fallback) = (&self.info().id, &fallback_device.info().id);
        let reason = match () {
            _ if !program.maps().is_empty() => {
                format!("its maps would be in two places, with `{fallback}` as fallback for `{id}`")
            }
            _ if program.has_flows() => {
                format!("packets of a flow (`xdp_flow`) would be reordered, with `{fallback}` as fallback for `{id}`")
            }
            // With inline dispatch the caller waits for each batch, so no batch ever queues for the
            // fallback.
            _ if Dispatch::select(self.info(), options)? == Dispatch::Inline => {
                return Ok(self.device.load(program, options)?.into());
            }
            _ => {
                // The driver of the session runs one fallback batch at a time and waits for it.
                let inline = LoadOptions { dispatch: Some(Dispatch::Inline), ..options.clone() };
                let fallback = fallback_device.load(program, &inline)?;
                return Ok(FallbackSession::new(self.device.load(program, options)?, fallback));
            }
        };
        Err(DeviceError::Unsupported { device: id.clone(), reason })
    }
}

/// A session that filters the batches submitted to it and, if there is one, a fallback session of
/// the same filter on another device.
pub struct FallbackSession {
    session: Box<dyn Session>,
    fallback: Option<Box<dyn Session>>,
    /// Whether the fallback has taken the session's place.
    has_failed_over: bool,
}

impl From<Box<dyn Session>> for FallbackSession {
    /// A session without fallback.
    fn from(session: Box<dyn Session>) -> FallbackSession {
        FallbackSession { session, fallback: None, has_failed_over: false }
    }
}

impl FallbackSession {
    /// Combines a session with its fallback, which takes one batch at a time.
    pub fn new(session: Box<dyn Session>, fallback: Box<dyn Session>) -> FallbackSession {
        FallbackSession { session, fallback: Some(fallback), has_failed_over: false }
    }

    /// The fallback, for batches that would otherwise wait because this session is at its depth.
    pub fn fallback(&mut self) -> Option<&mut dyn Session> {
        self.fallback.as_mut().map(|fallback| &mut **fallback as &mut dyn Session)
    }

    /// Drops the session, whose device has failed, and has the fallback take its place. Returns
    /// false if there is none.
    pub fn fail_over(&mut self) -> bool {
        match self.fallback.take() {
            Some(fallback) => {
                self.session = fallback;
                self.has_failed_over = true;
                true
            }
            None => false,
        }
    }

    /// Whether the fallback has taken the session's place.
    pub fn has_failed_over(&self) -> bool {
        self.has_failed_over
    }
}

impl Session for FallbackSession {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        if let Some(fallback) = &mut self.fallback {
            fallback.import(span)?;
        }
        self.session.import(span)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        self.session.submit(batch)
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        self.session.complete()
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        self.session.map_words(map)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.session.map_words_at(map, at, words)
    }

    fn map_device_view(&mut self, map: usize) -> Result<Option<DeviceView>, DeviceError> {
        self.session.map_device_view(map)
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.session.set_map_words(map, at, words)
    }

    fn in_flight(&self) -> usize {
        self.session.in_flight()
    }

    fn depth(&self) -> usize {
        self.session.depth()
    }
}

impl Instrumented for FallbackSession {
    fn finish_background_work(&mut self) {
        self.session.finish_background_work();
        if let Some(fallback) = &mut self.fallback {
            fallback.finish_background_work();
        }
    }

    fn stages(&self) -> Option<Stages> {
        let mut sum = self.session.stages()?;
        if let Some(fallback) = &self.fallback {
            sum += fallback.stages()?;
        }
        Some(sum)
    }

    fn transfer_plan(&self) -> Option<TransferPlan> {
        self.session.transfer_plan()
    }

    fn take_warnings(&mut self) -> Vec<String> {
        let mut warnings = self.session.take_warnings();
        warnings.extend(self.fallback.iter_mut().flat_map(|fallback| fallback.take_warnings()));
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::noop::NoopDevice;
    use crate::interp::InterpDevice;
    use crate::testing::program;

    fn load(text: &str) -> Result<FallbackSession, DeviceError> {
        load_with(Dispatch::Pipelined, text)
    }

    fn load_with(dispatch: Dispatch, text: &str) -> Result<FallbackSession, DeviceError> {
        WithFallback::new(Arc::new(InterpDevice::new()), Arc::new(NoopDevice::new()))
            .load(&program(text), &LoadOptions { dispatch: Some(dispatch), ..LoadOptions::default() })
    }

    #[test]
    fn the_device_and_its_fallback_both_run_the_filter() {
        let text = "fn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }";
        assert!(load_with(Dispatch::Inline, text).unwrap().fallback().is_none(), "inline dispatch queues no batch");
        let mut session = load(text).unwrap();
        let batch = || Batch::from_packets(&[[0u8; 20]; 3]).unwrap();
        assert_eq!((session.depth(), session.in_flight()), (3, 0));
        assert_eq!(session.run(batch()).unwrap().verdicts.counts().drop, 3);
        // The no-op device passes every packet.
        let fallback = session.fallback().unwrap();
        assert_eq!(fallback.depth(), 1);
        assert_eq!(fallback.run(batch()).unwrap().verdicts.counts().pass, 3);
    }

    #[test]
    fn filters_with_state_are_refused() {
        let error = |text| load(text).err().unwrap().to_string();
        let maps = "//! map m: array value=1 entries=2\nfn xdp_filter(pkt: u32) -> u32 { m_add(1u, 0u, 2u); return XDP_PASS; }";
        assert_eq!(
            error(maps),
            "interp cannot run this filter: its maps would be in two places, with `noop` as fallback for `interp`"
        );
        let flows = "fn xdp_flow(pkt: u32) -> u32 { return load_u8(pkt, 0u); }\nfn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
        assert_eq!(
            error(flows),
            "interp cannot run this filter: packets of a flow (`xdp_flow`) would be reordered, with `noop` as fallback for `interp`"
        );
    }
}
