//! Verdicts on their way back from a device.

use super::Order;
use crate::packet::{Action, Verdicts};

/// The verdicts of a batch as they come back.
#[derive(Debug, Default)]
pub struct VerdictColumns {
    pub(super) actions: Vec<u8>,
    pub(super) targets: Vec<u32>,
    /// Packets of the batch.
    pub(super) packets: usize,
}

impl VerdictColumns {
    /// For a batch of so many packets.
    pub(super) fn of(packets: usize) -> VerdictColumns {
        VerdictColumns { packets, ..VerdictColumns::default() }
    }

    /// All of them.
    pub(super) fn into_verdicts(self) -> Verdicts {
        Verdicts::from_columns(self.actions, self.targets)
    }

    /// Appends action bytes, one a packet. What is no action, as from a driver that is broken, is ABORTED.
    pub fn append(&mut self, actions: impl Iterator<Item = u8>) {
        self.actions.reserve_exact(self.packets.saturating_sub(self.actions.len()));
        // Branch-free, and on the way: a pass of its own over the column would be one more.
        self.actions.extend(actions.map(action));
    }

    /// Appends redirect targets, one a packet, where the kernel gives them.
    pub fn append_targets(&mut self, targets: impl Iterator<Item = u32>) {
        self.targets.reserve_exact(self.packets.saturating_sub(self.targets.len()));
        self.targets.extend(targets);
    }

    /// As [`VerdictColumns::append`], without copying where these are the verdicts of the whole batch.
    pub fn adopt(&mut self, mut actions: Vec<u8>) {
        if actions.len() < self.packets {
            return self.append(actions.into_iter());
        }
        // Looked at first, as usually there is nothing to be written.
        if actions.iter().fold(0, |most, &byte| most.max(byte)) > Action::Redirect as u8 {
            actions.iter_mut().for_each(|byte| *byte = action(*byte));
        }
        self.actions = actions;
    }

    /// As [`VerdictColumns::append_targets`], without copying where these are the targets of the whole batch.
    pub fn adopt_targets(&mut self, targets: Vec<u32>) {
        if targets.len() < self.packets {
            return self.append_targets(targets.into_iter());
        }
        self.targets = targets;
    }

    /// Brings the last packets, which were appended in an order of their own, back into that of the batch.
    pub(super) fn reorder(&mut self, packets: std::ops::Range<usize>, order: &Order) {
        if let Some(actions) = self.actions.get_mut(packets.clone()) {
            order.back(actions);
        }
        if let Some(targets) = self.targets.get_mut(packets) {
            order.back(targets);
        }
    }
}

/// The byte, or ABORTED where it is no action.
fn action(byte: u8) -> u8 {
    if byte > Action::Redirect as u8 { Action::Aborted as u8 } else { byte }
}
