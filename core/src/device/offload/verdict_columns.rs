//! The columns of actions and redirect targets that a device returns, chunk by chunk.

use super::FlowOrder;
use crate::packet::{Action, Verdicts};

/// The verdicts of a batch, appended as its chunks complete.
#[derive(Debug, Default)]
pub struct VerdictColumns {
    pub(super) actions: Vec<u8>,
    pub(super) targets: Vec<u32>,
    /// Number of packets in the batch.
    pub(super) packets: usize,
}

impl VerdictColumns {
    /// Creates empty columns for a batch of `packets` packets.
    pub(super) fn new(packets: usize) -> VerdictColumns {
        VerdictColumns { packets, ..VerdictColumns::default() }
    }

    pub(super) fn into_verdicts(self) -> Verdicts {
        Verdicts::from_columns(self.actions, self.targets)
    }

    /// Appends action bytes, one per packet. An invalid byte, as from a broken driver, becomes
    /// [`Action::Aborted`].
    pub fn append(&mut self, actions: impl Iterator<Item = u8>) {
        self.actions.reserve_exact(self.packets.saturating_sub(self.actions.len()));
        // Branch-free, and combined with the copy to save a pass over the column.
        self.actions.extend(actions.map(valid_action));
    }

    /// Appends redirect targets, one per packet, if the kernel returns them.
    pub fn append_targets(&mut self, targets: impl Iterator<Item = u32>) {
        self.targets.reserve_exact(self.packets.saturating_sub(self.targets.len()));
        self.targets.extend(targets);
    }

    /// Like [`VerdictColumns::append`], without a copy if these are the verdicts of the whole
    /// batch.
    pub fn adopt(&mut self, mut actions: Vec<u8>) {
        if actions.len() < self.packets {
            return self.append(actions.into_iter());
        }
        // Scan first: invalid bytes are rare, and a read-only pass vectorises.
        if actions.iter().fold(0, |max, &byte| max.max(byte)) > Action::Redirect as u8 {
            actions.iter_mut().for_each(|byte| *byte = valid_action(*byte));
        }
        self.actions = actions;
    }

    /// Like [`VerdictColumns::append_targets`], without a copy if these are the targets of the
    /// whole batch.
    pub fn adopt_targets(&mut self, targets: Vec<u32>) {
        if targets.len() < self.packets {
            return self.append_targets(targets.into_iter());
        }
        self.targets = targets;
    }

    /// Undoes the flow order of a chunk's verdicts: they return to the batch's order.
    pub(super) fn undo_flow_order(&mut self, packets: std::ops::Range<usize>, flow_order: &FlowOrder) {
        if let Some(actions) = self.actions.get_mut(packets.clone()) {
            flow_order.undo(actions);
        }
        if let Some(targets) = self.targets.get_mut(packets) {
            flow_order.undo(targets);
        }
    }
}

/// Replaces an invalid action byte by that of [`Action::Aborted`].
fn valid_action(byte: u8) -> u8 {
    if byte > Action::Redirect as u8 { Action::Aborted as u8 } else { byte }
}
