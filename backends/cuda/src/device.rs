//! A CUDA device that was found, and how it loads a program: one session per load, by one of the
//! dispatch methods.

use std::sync::Arc;

use portcullis_core::device::{
    Device, DeviceError, DeviceInfo, DeviceLimit, Dispatch, FlowSession, LoadOptions, Session, load_initial_maps,
};
use portcullis_core::program::Program;

use crate::driver::gpu::GpuProperties;
use crate::session;

/// A GPU that the CUDA driver offers.
#[derive(Debug, Clone)]
pub struct CudaDevice {
    info: DeviceInfo,
    properties: GpuProperties,
    /// Why no filter can be loaded on the device; `None` if filters can.
    unsupported_reason: Option<String>,
}

impl CudaDevice {
    pub(crate) fn new(info: DeviceInfo, properties: GpuProperties, unsupported_reason: Option<String>) -> CudaDevice {
        CudaDevice { info, properties, unsupported_reason }
    }

    /// Sets the number of threads in a block for `inline` and `pipelined` launches. The best number
    /// differs between GPUs; a filter's result does not depend on it. Loading a filter fails if the
    /// device does not support the number.
    #[must_use]
    pub fn with_group_size(mut self, threads: u32) -> CudaDevice {
        self.properties.block_size = threads.max(1);
        self
    }

    pub(crate) fn properties(&self) -> &GpuProperties {
        &self.properties
    }

    /// Adds a line to what the device's limits are listed as.
    pub(crate) fn add_limit(&mut self, limit: DeviceLimit) {
        self.info.limits.push(limit);
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        if let Some(reason) = &self.unsupported_reason {
            return Err(DeviceError::Unsupported { device: self.info.id.clone(), reason: reason.clone() });
        }
        let dispatch = Dispatch::select(&self.info, options)?;
        let session = match dispatch {
            Dispatch::Inline | Dispatch::Pipelined => {
                let session = session::open_pipelined(&self.properties, program, dispatch, options)?;
                if program.has_flows() {
                    dispatch.wrap(FlowSession::new(self, session, program, options)?)
                } else {
                    dispatch.wrap(session)
                }
            }
            _ if program.has_flows() => {
                // Their kernels run packets, and launches, concurrently.
                let reason = format!(
                    "it has flows (`xdp_flow`), which `{dispatch}` does not keep in order: take `{}` or `{}`",
                    Dispatch::Pipelined,
                    Dispatch::Inline
                );
                return Err(DeviceError::Unsupported { device: self.info.id.clone(), reason });
            }
            _ => session::open_slotted(&self.properties, program, dispatch, options)?,
        };
        load_initial_maps(program, session)
    }
}
