//! Batches that stay resident on the device, for benchmarks that exclude the transfer.

use std::collections::HashMap;

use super::{KernelEffects, Launcher, Slot};
use crate::device::DeviceError;
use crate::device::transfer_planner::TransferPlan;
use crate::packet::{Batch, Descriptor};
use crate::program::Program;

/// The resident batches of a session.
pub(super) struct ResidentBuffers<L: Launcher> {
    batches: HashMap<BatchKey, ResidentBatch<L>>,
}

/// Identifies a batch by its memory, its first and last packet and its number of packets. Comparing
/// all packets would take as long as what is being measured.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct BatchKey {
    span: u64,
    first_and_last: Option<(Descriptor, Descriptor)>,
    packets: usize,
}

/// A batch resident on the device.
pub(super) struct ResidentBatch<L: Launcher> {
    /// The slot, with its chunks and buffers for each of them.
    pub slot: Slot<L>,
    pub plan: TransferPlan,
}

impl<L: Launcher> ResidentBuffers<L> {
    /// Creates an empty set, for a filter whose result depends on the packet bytes alone.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for any other filter, or if the launcher cannot reuse uploads.
    pub fn new(launcher: &L, effects: KernelEffects, program: &Program) -> Result<Self, DeviceError> {
        let has_state = !program.maps().is_empty() || program.has_flows();
        let reason = match effects {
            KernelEffects { accesses_packets: false, .. } => "the filter accesses no packet bytes",
            KernelEffects { writes_packets: true, .. } | KernelEffects { resizes_packets: true, .. } => {
                "the filter changes packets"
            }
            KernelEffects { metadata: true, .. } => "the filter reads metadata, which does not stay",
            _ if has_state => "the filter has maps or flows, which change with each run",
            _ if !launcher.can_reuse_uploads() => "this dispatch method uploads packets for each run",
            _ => return Ok(ResidentBuffers { batches: HashMap::new() }),
        };
        let reason = format!("packets cannot stay resident: {reason}");
        Err(DeviceError::Unsupported { device: launcher.id().into(), reason })
    }

    fn key_of(batch: &Batch) -> BatchKey {
        let packets = batch.descriptors();
        let first_and_last = packets.first().copied().zip(packets.last().copied());
        BatchKey { span: batch.span().id(), first_and_last, packets: packets.len() }
    }

    /// Removes and returns the resident copy of a batch.
    pub fn take(&mut self, batch: &Batch) -> Option<ResidentBatch<L>> {
        self.batches.remove(&Self::key_of(batch))
    }

    /// Records the resident copy of a batch.
    pub fn insert(&mut self, batch: &Batch, resident: ResidentBatch<L>) {
        self.batches.insert(Self::key_of(batch), resident);
    }
}
