//! Sending verdicts to a netfilter queue.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use portcullis_core::device::Completion;
use portcullis_core::packet::{Action, Descriptor};

use super::message::{MAX_PAYLOAD, Verdict};
use super::pending::{PendingBatch, Rewritability};
use super::queue::Queue;
use super::verdict_datagram::VerdictDatagram;
use super::{ETHERNET_HEADER, QueueOptions};
use crate::live::{ExecutedCounts, Executor, LiveError, Loss, checksum};

/// Executes verdicts on a netfilter queue's packets.
#[derive(Debug)]
pub struct QueueExecutor {
    queue: Arc<Queue>,
    options: QueueOptions,
    datagram: VerdictDatagram,
    carried: ExecutedCounts,
    /// Accepted packets that are not in the counters yet, because the kernel may still report them
    /// as gone.
    accepted: Accepted,
    /// Packets reported as gone that have not been subtracted yet.
    gone: u64,
    /// Locations of the packets of the current batch.
    descriptors: Vec<Descriptor>,
}

/// Accepted packets.
#[derive(Debug, Clone, Copy, Default)]
struct Accepted {
    packets: u64,
    bytes: u64,
}

impl QueueExecutor {
    pub(super) fn new(queue: Arc<Queue>, options: QueueOptions) -> QueueExecutor {
        let datagram = VerdictDatagram::new(queue.number(), false);
        QueueExecutor {
            queue,
            options,
            datagram,
            carried: ExecutedCounts::default(),
            accepted: Accepted::default(),
            gone: 0,
            descriptors: Vec::new(),
        }
    }

    /// Number of packets that got the fallback verdict: their batch was dropped or shortened on its
    /// way, or they were malformed. No other counter of the executor includes them.
    pub fn fallback_count(&self) -> u64 {
        self.queue.fallbacks()
    }

    /// Counts accepted packets. Those that the kernel refused because they were gone count as
    /// losses.
    ///
    /// The kernel's reports queue up behind packets, so a report may be read after its packet has
    /// been counted as accepted. Counters only grow, so a later packet is then counted as lost in
    /// its place.
    fn count_accepted(&mut self) {
        self.gone += self.queue.take_gone();
        let Accepted { packets, bytes } = std::mem::take(&mut self.accepted);
        let refused = self.gone.min(packets);
        self.gone -= refused;
        self.carried.losses.add(Loss::Refused, refused);
        if refused < packets {
            // Only their number is known, so attribute the mean length to them.
            self.carried.packets[Action::Pass as usize] += packets - refused;
            self.carried.bytes[Action::Pass as usize] += bytes - bytes * refused / packets;
        }
    }

    fn answer(&mut self, pending_batch: &mut PendingBatch, actions: &[u8]) -> io::Result<()> {
        let mut arena = pending_batch.arena.take().expect("a batch has its arena until its verdicts are given");
        let result = self.answer_from(pending_batch, actions, &mut arena);
        pending_batch.arena = Some(arena);
        result
    }

    fn answer_from(&mut self, pending_batch: &mut PendingBatch, actions: &[u8], arena: &mut [u8]) -> io::Result<()> {
        self.datagram.reset(pending_batch.is_oldest());
        let rewrites = self.options.rewrites();
        let mut comparison = pending_batch.comparison(self.options.writes);
        for (index, &action) in actions.iter().enumerate().take(pending_batch.packets.len()) {
            let pending_packet = pending_batch.packets[index];
            let Descriptor { offset, length } = self.descriptors[index];
            let (offset, length) = (offset as usize, length as usize);
            // Skip the Ethernet header, wherever the filter moved the packet's start.
            let now = offset + ETHERNET_HEADER.min(length)..offset + length;
            let is_changed = rewrites && comparison.is_changed(pending_batch, &pending_packet, now.clone(), arena);
            let action = Action::from_byte(action).unwrap_or(Action::Aborted);
            let loss = match action {
                Action::Aborted => Some(Loss::Aborted),
                Action::Tx | Action::Redirect => Some(Loss::CannotTransmit),
                Action::Pass if is_changed => prepare(&mut arena[now.clone()], pending_packet.state).err(),
                Action::Pass | Action::Drop => None,
            };
            match (loss, action) {
                (Some(loss), _) => self.carried.losses.add(loss, 1),
                (None, Action::Pass) => {
                    self.accepted.packets += 1;
                    self.accepted.bytes += length as u64;
                }
                (None, action) => self.carried.add(action, length),
            }
            match (loss, action) {
                (None, Action::Pass) if is_changed => self.datagram.push_changed(pending_packet.id, now),
                (None, Action::Pass) => self.datagram.push_unchanged(Verdict::Accept, pending_packet.id),
                _ => self.datagram.push_unchanged(Verdict::Drop, pending_packet.id),
            }
            if self.datagram.is_full() {
                self.queue.send(&mut self.datagram, arena)?;
                pending_batch.settled = index + 1;
            }
        }
        self.queue.send(&mut self.datagram, arena)?;
        pending_batch.settled = pending_batch.packets.len().min(actions.len());
        Ok(())
    }
}

/// Prepares a changed packet for return to the kernel; fails if it cannot be returned.
fn prepare(packet: &mut [u8], state: Rewritability) -> Result<(), Loss> {
    let header = if packet.first().is_some_and(|byte| byte >> 4 == 6) { 40 } else { 20 };
    match state {
        Rewritability::Truncated => Err(Loss::TooLong),
        _ if packet.len() > MAX_PAYLOAD => Err(Loss::TooLong),
        // Shorter than an IP header: the kernel would drop it silently.
        _ if packet.len() < header => Err(Loss::Refused),
        Rewritability::KernelChecksum => Err(Loss::Refused),
        // When the kernel segments UDP, it derives each datagram's checksum from the partial
        // checksum, so restore that; for TCP it computes checksums from scratch. On local delivery
        // the kernel would take the returned packet for a single datagram and lose the
        // segmentation.
        Rewritability::Segmented { is_local } if checksum::restore_partial_udp(packet) && is_local => {
            Err(Loss::Refused)
        }
        Rewritability::Segmented { .. } | Rewritability::Whole => Ok(()),
    }
}

impl Executor for QueueExecutor {
    fn execute(&mut self, done: Completion) -> Result<(), LiveError> {
        self.poll()?;
        let Completion { batch, verdicts, .. } = done;
        self.descriptors.clear();
        self.descriptors.extend_from_slice(batch.descriptors());
        let pending_batch = batch.into_source_data::<PendingBatch>();
        let Some(mut pending_batch) =
            pending_batch.ok().filter(|pending_batch| Arc::ptr_eq(&pending_batch.queue, &self.queue))
        else {
            let words = "the batch was not received from this queue";
            return Err(self.queue.error("giving verdicts", io::Error::new(ErrorKind::InvalidInput, words)));
        };
        let actions = &verdicts.actions()[..verdicts.len().min(self.descriptors.len())];
        let result = self.answer(&mut pending_batch, actions);
        result.map_err(|error| self.queue.error("giving verdicts", error))
    }

    fn poll(&mut self) -> Result<(), LiveError> {
        self.count_accepted();
        self.queue.check()
    }

    fn finish(&mut self) -> Result<(), LiveError> {
        self.queue.finish();
        self.count_accepted();
        // No further packet can be counted in place of those that were gone.
        let pass = Action::Pass as usize;
        let ExecutedCounts { packets, bytes, losses, .. } = &mut self.carried;
        let late = std::mem::take(&mut self.gone).min(packets[pass]);
        if late > 0 {
            // Attribute the mean length.
            bytes[pass] -= (u128::from(bytes[pass]) * u128::from(late) / u128::from(packets[pass])) as u64;
            packets[pass] -= late;
            losses.add(Loss::Refused, late);
        }
        self.queue.check()
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn executed(&self) -> &ExecutedCounts {
        &self.carried
    }
}
