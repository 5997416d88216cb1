//! Batches on their way through a device: the session that all devices which run kernels have, over one of the
//! dispatch methods.

use std::sync::Arc;

use portcullis_core::device::offload::OffloadSession;
use portcullis_core::device::{Device, DeviceError, Dispatch, FlowSession, LoadOptions, Session};
use portcullis_core::program::Program;

use crate::compile;
use crate::dispatch::entries::Posting;
use crate::dispatch::graph::Graphs;
use crate::dispatch::persistent::Ring;
use crate::dispatch::pipelined::Pipelined;
use crate::dispatch::waitvalue::Queue;
use crate::probe::CudaDevice;

/// Loads a program, to be run by the method that was asked for.
pub(crate) fn load(
    device: &CudaDevice,
    program: &Arc<Program>,
    options: &LoadOptions,
) -> Result<Box<dyn Session>, DeviceError> {
    let dispatch = Dispatch::select(device.info(), options)?;
    if program.has_flows() && !matches!(dispatch, Dispatch::Inline | Dispatch::Pipelined) {
        // Their kernels take packets side by side, and launches too.
        let reason = format!(
            "it has flows (`xdp_flow`), which `{dispatch}` does not keep in order: take `{}` or `{}`",
            Dispatch::Pipelined,
            Dispatch::Inline
        );
        return Err(DeviceError::Unsupported { device: device.info().id.clone(), reason });
    }
    let (gpu, loaded) = compile::load(device, program, dispatch, options)?;
    let (kind, effects) = (gpu.kind, loaded.effects);
    Ok(match dispatch {
        Dispatch::Inline | Dispatch::Pipelined => {
            let session = OffloadSession::new(Pipelined::new(gpu, loaded), kind, effects, program, options)?;
            if program.has_flows() {
                return Ok(dispatch.wrap(FlowSession::new(device, session, program, options)?));
            }
            dispatch.wrap(session)
        }
        Dispatch::Persistent => {
            let launcher = Posting::new(Ring::new(gpu, loaded)?, effects, &options.cancel);
            Box::new(OffloadSession::new(launcher, kind, effects, program, options)?)
        }
        Dispatch::WaitValue => {
            let launcher = Posting::new(Queue::new(gpu, loaded)?, effects, &options.cancel);
            Box::new(OffloadSession::new(launcher, kind, effects, program, options)?)
        }
        Dispatch::Graph => {
            let launcher = Graphs::new(gpu, loaded, &options.cancel);
            Box::new(OffloadSession::new(launcher, kind, effects, program, options)?)
        }
    })
}
