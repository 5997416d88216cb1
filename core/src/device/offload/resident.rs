//! Batches that stay at the device between one time and the next: for measuring what a device does with packets that are in its
//! memory already.

use std::collections::HashMap;

use super::{KernelEffects, Launcher};
use crate::device::DeviceError;
use crate::device::chunk::Chunk;
use crate::device::transfer_planner::TransferPlan;
use crate::packet::{Batch, Descriptor};
use crate::program::Program;

/// What is at the device.
pub(super) struct ResidentBuffers<B> {
    batches: HashMap<BatchKey, ResidentBatch<B>>,
}

/// By what a batch is known again: its memory, its first packet and its last one there, and how many there are. To look at all of
/// them would take what is to be measured.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct BatchKey {
    memory: u64,
    ends: Option<(Descriptor, Descriptor)>,
    packets: usize,
}

/// A batch that is at the device.
pub(super) struct ResidentBatch<B> {
    /// As many as there are pieces.
    pub slot: Vec<B>,
    pub plan: TransferPlan,
    pub pieces: Vec<Chunk>,
}

impl<B> ResidentBuffers<B> {
    /// Nothing yet, for a filter that may be run over the same packets again.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for all other filters, and where the launcher has no way of running again.
    pub fn new<L: Launcher<Buffers = B>>(
        launcher: &L,
        effects: KernelEffects,
        program: &Program,
    ) -> Result<Self, DeviceError> {
        let stateful = !program.maps().is_empty() || program.has_flows();
        let why = match effects {
            KernelEffects { accesses_packets: false, .. } => "it looks at none",
            KernelEffects { writes_packets: true, .. } | KernelEffects { resizes_packets: true, .. } => {
                "it changes them"
            }
            KernelEffects { metadata: true, .. } => "it looks at their metadata, which is not kept",
            _ if stateful => "it has maps or flows, which would change with each time",
            _ if !launcher.can_reuse_uploads() => "this dispatch method brings them anew each time",
            _ => return Ok(ResidentBuffers { batches: HashMap::new() }),
        };
        let reason = format!("its packets cannot stay at the device from one time to the next: {why}");
        Err(DeviceError::Unsupported { device: launcher.id().into(), reason })
    }

    pub fn key_of(batch: &Batch) -> BatchKey {
        let packets = batch.descriptors();
        let ends = packets.first().copied().zip(packets.last().copied());
        BatchKey { memory: batch.span().id(), ends, packets: packets.len() }
    }

    pub fn take(&mut self, batch: &Batch) -> Option<ResidentBatch<B>> {
        self.batches.remove(&Self::key_of(batch))
    }

    pub fn insert(&mut self, batch: &Batch, stay: ResidentBatch<B>) {
        self.batches.insert(Self::key_of(batch), stay);
    }
}
