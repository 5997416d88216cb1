//! The columns of actions and redirect targets that a device returns.
//!
//! A launcher that lends memory ([`VerdictMemory`]) has the device write each chunk's verdicts to
//! their place in it, and the columns are handed out as they are. From other launchers verdicts are
//! read chunk by chunk, and appended.
#![allow(unsafe_code)]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use super::FlowOrder;
use crate::packet::{Action, Column, Verdicts};

/// Memory for a batch's verdicts that a launcher lends. The launcher reuses it once it holds the
/// only reference.
pub trait VerdictMemory: Any + Send + Sync {
    /// The first action byte. From here on are as many initialised bytes as packets were asked for,
    /// which only the device and the session write to while the memory is lent.
    fn actions(&self) -> NonNull<u8>;

    /// The first redirect target, likewise one for each packet; `None` if the kernel returns none.
    fn targets(&self) -> Option<NonNull<u32>>;
}

/// For launchers that lend no memory.
#[derive(Debug)]
pub enum NoVerdictMemory {}

impl VerdictMemory for NoVerdictMemory {
    fn actions(&self) -> NonNull<u8> {
        match *self {}
    }

    fn targets(&self) -> Option<NonNull<u32>> {
        match *self {}
    }
}

/// The verdicts of a batch whose chunks complete one by one.
#[derive(Debug, Default)]
pub struct VerdictColumns {
    /// Appended columns; empty if memory is lent.
    pub(super) actions: Vec<u8>,
    pub(super) targets: Vec<u32>,
    lent: Option<LentColumns>,
    /// Number of packets in the batch.
    pub(super) packets: usize,
}

/// Columns in lent memory.
#[derive(Debug)]
struct LentColumns {
    actions: NonNull<u8>,
    targets: Option<NonNull<u32>>,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointers are into memory that `owner` keeps, and that only the session uses.
unsafe impl Send for LentColumns {}

impl VerdictColumns {
    /// Creates empty columns for a batch of `packets` packets, in lent memory if there is any.
    pub(super) fn new<M: VerdictMemory>(packets: usize, lent: Option<&Arc<M>>) -> VerdictColumns {
        let lent = lent.map(|m| LentColumns { actions: m.actions(), targets: m.targets(), owner: m.clone() });
        VerdictColumns { packets, lent, ..VerdictColumns::default() }
    }

    /// Whether the device writes the verdicts to lent memory, so that none are read.
    pub(super) fn are_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// The verdicts, after all chunks were collected.
    pub(super) fn into_verdicts(self) -> Verdicts {
        let Some(LentColumns { actions, targets, owner }) = self.lent else {
            return Verdicts::from_columns(self.actions, self.targets);
        };
        // SAFETY: `VerdictMemory` promises a column of this length. The device is done with it, and
        // the launcher does not use it again before it holds the only reference.
        unsafe {
            let targets = targets.map(|targets| Column::lent(targets, self.packets, owner.clone()));
            Verdicts::from_columns(Column::lent(actions, self.packets, owner), targets.unwrap_or_default())
        }
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
        let (actions, targets) = match &self.lent {
            None => (&mut *self.actions, &mut *self.targets),
            // SAFETY: `VerdictMemory` promises columns of this length, which the device is done
            // with for these packets, and which are not handed out yet.
            Some(lent) => unsafe {
                let column = |start: NonNull<u8>| std::slice::from_raw_parts_mut(start.as_ptr(), self.packets);
                let targets = lent.targets.map(|at| std::slice::from_raw_parts_mut(at.as_ptr(), self.packets));
                (column(lent.actions), targets.unwrap_or_default())
            },
        };
        if let Some(actions) = actions.get_mut(packets.clone()) {
            flow_order.undo(actions);
        }
        if let Some(targets) = targets.get_mut(packets) {
            flow_order.undo(targets);
        }
    }
}

/// Replaces an invalid action byte by that of [`Action::Aborted`].
fn valid_action(byte: u8) -> u8 {
    if byte > Action::Redirect as u8 { Action::Aborted as u8 } else { byte }
}
