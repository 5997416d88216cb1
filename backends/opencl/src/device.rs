//! An OpenCL device that was found, and how it loads a program.

use std::sync::Arc;

use portcullis_core::device::{
    Device, DeviceError, DeviceInfo, DeviceLimit, Dispatch, FlowSession, InPlaceReads, LoadOptions, Session,
    load_initial_maps,
};
use portcullis_core::program::Program;

use crate::driver::gpu::GpuProperties;
use crate::session;

/// A device that an OpenCL platform offers.
#[derive(Debug, Clone)]
pub struct OpenClDevice {
    info: DeviceInfo,
    properties: GpuProperties,
    /// Why no filter can be loaded on the device; `None` if filters can.
    unsupported_reason: Option<String>,
}

impl OpenClDevice {
    pub(crate) fn new(info: DeviceInfo, properties: GpuProperties, unsupported_reason: Option<String>) -> OpenClDevice {
        OpenClDevice { info, properties, unsupported_reason }
    }

    /// Treats the device as a discrete one, whose memory is its own: packets are copied to it and
    /// back. For tests, in which a CPU can then stand in for a discrete GPU.
    #[must_use]
    pub fn as_discrete(mut self) -> OpenClDevice {
        self.properties.shares_memory = false;
        self.info.set_in_place_reads(InPlaceReads::Never);
        self
    }

    /// Sets the number of work items in a group. The best number differs between devices; a
    /// filter's result does not depend on it. Running a batch fails if the device does not support
    /// the number.
    #[must_use]
    pub fn with_group_size(mut self, items: u32) -> OpenClDevice {
        self.properties.group_size = Some(items.max(1) as usize);
        self
    }

    /// Sets whether kernels for a CPU gather words of several packets at once, or load them in a
    /// loop of their own.
    #[cfg(test)]
    pub(crate) fn with_fast_gather(mut self, gathers: bool) -> OpenClDevice {
        self.properties.has_fast_gather = gathers;
        self
    }

    pub(crate) fn properties(&self) -> &GpuProperties {
        &self.properties
    }

    pub(crate) fn set_id(&mut self, id: String) {
        self.properties.id.clone_from(&id);
        self.info.id = id;
    }

    /// Adds a line to the device's listed limits.
    pub(crate) fn add_limit(&mut self, limit: DeviceLimit) {
        self.info.limits.push(limit);
    }
}

impl Device for OpenClDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        if let Some(reason) = &self.unsupported_reason {
            return Err(DeviceError::Unsupported { device: self.info.id.clone(), reason: reason.clone() });
        }
        let dispatch = Dispatch::select(&self.info, options)?;
        options.refuse_synthetic_work(&self.info.id)?;
        let session = session::open(&self.properties, program, options)?;
        if program.has_flows() {
            return load_initial_maps(program, dispatch.wrap(FlowSession::new(self, session, program, options)?));
        }
        load_initial_maps(program, dispatch.wrap(session))
    }
}
