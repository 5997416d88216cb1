//! Sessions on a CUDA device: core's offloading session ([`OffloadSession`]) over one launcher for
//! each dispatch method.
//!
//! - `pipelined`, `inline`: copies and kernel launches in streams, see [`pipelined`];
//! - `graph`, `waitvalue`, `persistent`: kernels that are built into graphs, queued or running
//!   before their batch, and take requests from a ring in host memory, see [`mailbox`]. Packets and
//!   results travel through slots ([`slots`]), whose layout host and kernels share.

use std::sync::Arc;

use portcullis_core::device::offload::OffloadSession;
use portcullis_core::device::{DeviceError, Dispatch, LoadOptions, Session};
use portcullis_core::program::Program;

use crate::compile;
use crate::driver::gpu::GpuProperties;
use graph::GraphKernels;
use mailbox::MailboxLauncher;
use persistent::PersistentKernel;
use waitvalue::QueuedKernels;

mod graph;
mod mailbox;
mod persistent;
mod pinned_verdicts;
mod pipelined;
mod queued;
mod request;
mod slots;
mod timing;
mod waitvalue;

pub(crate) use pipelined::PipelinedLauncher;

/// Opens a session by [`Dispatch::Pipelined`] or [`Dispatch::Inline`].
///
/// # Errors
/// If the device cannot be opened, or the program does not compile.
pub(crate) fn open_pipelined(
    device: &GpuProperties,
    program: &Arc<Program>,
    dispatch: Dispatch,
    options: &LoadOptions,
) -> Result<OffloadSession<PipelinedLauncher>, DeviceError> {
    let (gpu, loaded) = compile::load(device, program, dispatch, options)?;
    let (kind, effects) = (gpu.kind, loaded.effects);
    OffloadSession::new(PipelinedLauncher::new(gpu, loaded), kind, effects, program, options)
}

/// Opens a session by a dispatch method that moves packets through slots.
///
/// # Errors
/// As [`open_pipelined`].
///
/// # Panics
/// If `dispatch` is [`Dispatch::Pipelined`] or [`Dispatch::Inline`].
pub(crate) fn open_slotted(
    device: &GpuProperties,
    program: &Arc<Program>,
    dispatch: Dispatch,
    options: &LoadOptions,
) -> Result<Box<dyn Session>, DeviceError> {
    let (gpu, loaded) = compile::load(device, program, dispatch, options)?;
    let (kind, effects) = (gpu.kind, loaded.effects);
    Ok(match dispatch {
        Dispatch::Inline | Dispatch::Pipelined => unreachable!("these have no slots"),
        Dispatch::Persistent => {
            let launcher = MailboxLauncher::new(PersistentKernel::new(gpu, loaded)?, effects, &options.cancel);
            Box::new(OffloadSession::new(launcher, kind, effects, program, options)?)
        }
        Dispatch::WaitValue => {
            let launcher = MailboxLauncher::new(QueuedKernels::new(gpu, loaded)?, effects, &options.cancel);
            Box::new(OffloadSession::new(launcher, kind, effects, program, options)?)
        }
        Dispatch::Graph => {
            let launcher = MailboxLauncher::new(GraphKernels::new(gpu, loaded)?, effects, &options.cancel);
            Box::new(OffloadSession::new(launcher, kind, effects, program, options)?)
        }
    })
}
