//! A wgpu device that was found, and how it loads a program.

use std::sync::Arc;

use portcullis_core::device::{
    Device, DeviceError, DeviceInfo, Dispatch, FlowSession, InPlaceReads, LoadOptions, Session, load_initial_maps,
};
use portcullis_core::program::Program;

use crate::driver::gpu::GpuProperties;
use crate::session;

/// A device that wgpu offers.
#[derive(Debug, Clone)]
pub struct WgpuDevice {
    info: DeviceInfo,
    properties: GpuProperties,
}

impl WgpuDevice {
    pub(crate) fn new(info: DeviceInfo, properties: GpuProperties) -> WgpuDevice {
        WgpuDevice { info, properties }
    }

    /// Treats the device as a discrete one, whose memory is its own and which cannot access host
    /// memory. For tests, in which a CPU can then stand in for a discrete GPU.
    #[must_use]
    pub fn as_discrete(mut self) -> WgpuDevice {
        self.properties.is_discrete = true;
        self.properties.import = None;
        self.info.set_in_place_reads(InPlaceReads::Never);
        self
    }

    /// Sets the number of invocations in a work group. The best number differs between GPUs; a
    /// filter's result does not depend on it. Loading a filter fails if the device does not support
    /// the number.
    #[must_use]
    pub fn with_group_size(mut self, invocations: u32) -> WgpuDevice {
        self.properties.group_size = invocations.max(1);
        self
    }

    pub(crate) fn properties(&self) -> &GpuProperties {
        &self.properties
    }
}

impl Device for WgpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let dispatch = Dispatch::select(&self.info, options)?;
        options.refuse_synthetic_work(&self.info.id)?;
        let session = session::open(&self.properties, program, options)?;
        if program.has_flows() {
            return load_initial_maps(program, dispatch.wrap(FlowSession::new(self, session, program, options)?));
        }
        load_initial_maps(program, dispatch.wrap(session))
    }
}
