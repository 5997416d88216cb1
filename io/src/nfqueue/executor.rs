//! The half that gives verdicts.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use portcullis_core::device::Completion;
use portcullis_core::packet::{Action, Descriptor};

use super::answers::Answers;
use super::message::{MAX_PAYLOAD, Verdict};
use super::queue::Queue;
use super::tickets::{State, Tickets};
use super::{ETHERNET_HEADER, QueueOptions};
use crate::live::{ExecutedCounts, Executor, LiveError, Loss, checksum};

/// Gives the verdicts on a netfilter queue's packets.
#[derive(Debug)]
pub struct QueueExecutor {
    queue: Arc<Queue>,
    options: QueueOptions,
    answers: Answers,
    carried: ExecutedCounts,
    /// What was sent to be accepted, and is not in `executed` yet: the kernel may say that it is gone.
    accepted: Accepted,
    /// Packets that were gone, and have not been taken from what was accepted.
    gone: u64,
    /// Where the packets of a batch lie.
    descriptors: Vec<Descriptor>,
}

/// Packets that are to be accepted.
#[derive(Debug, Clone, Copy, Default)]
struct Accepted {
    packets: u64,
    bytes: u64,
}

impl QueueExecutor {
    pub(super) fn new(queue: Arc<Queue>, options: QueueOptions) -> QueueExecutor {
        let answers = Answers::new(queue.number(), false);
        QueueExecutor {
            queue,
            options,
            answers,
            carried: ExecutedCounts::default(),
            accepted: Accepted::default(),
            gone: 0,
            descriptors: Vec::new(),
        }
    }

    /// Packets that got the fallback verdict, because they were in a batch that was dropped on its way, or had been cut off
    /// from one, or made no sense. Nobody else counts them here.
    pub fn fallback_count(&self) -> u64 {
        self.queue.fell_back()
    }

    /// Counts what was accepted. Packets that the kernel refused, since they were gone, were carried out no more than other
    /// losses.
    ///
    /// The kernel's refusals come in behind packets, and may be seen when those they are about have been counted. As counters
    /// only grow, later packets are counted for those then.
    fn count_accepted(&mut self) {
        self.gone += self.queue.take_gone();
        let Accepted { packets, bytes } = std::mem::take(&mut self.accepted);
        let refused = self.gone.min(packets);
        self.gone -= refused;
        self.carried.losses.add(Loss::Refused, refused);
        if refused < packets {
            // How many they are is known, not which: they count as of mean length.
            self.carried.packets[Action::Pass as usize] += packets - refused;
            self.carried.bytes[Action::Pass as usize] += bytes - bytes * refused / packets;
        }
    }

    fn answer(&mut self, tickets: &mut Tickets, actions: &[u8]) -> io::Result<()> {
        let mut arena = tickets.arena.take().expect("a batch has its arena until its verdicts are given");
        let result = self.answer_from(tickets, actions, &mut arena);
        tickets.arena = Some(arena);
        result
    }

    fn answer_from(&mut self, tickets: &mut Tickets, actions: &[u8], arena: &mut [u8]) -> io::Result<()> {
        self.answers.restart(tickets.is_oldest());
        let rewrites = self.options.rewrites();
        let mut comparison = tickets.comparison(self.options.writes);
        for (index, &action) in actions.iter().enumerate().take(tickets.packets.len()) {
            let ticket = tickets.packets[index];
            let Descriptor { offset, length } = self.descriptors[index];
            let (offset, length) = (offset as usize, length as usize);
            // The first bytes are no part of the packet, however far they were moved.
            let now = offset + ETHERNET_HEADER.min(length)..offset + length;
            let is_changed = rewrites && comparison.is_changed(tickets, &ticket, now.clone(), arena);
            let action = Action::from_byte(action).unwrap_or(Action::Aborted);
            let loss = match action {
                Action::Aborted => Some(Loss::Aborted),
                Action::Tx | Action::Redirect => Some(Loss::CannotTransmit),
                Action::Pass if is_changed => prepare(&mut arena[now.clone()], ticket.state).err(),
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
                (None, Action::Pass) if is_changed => self.answers.changed(ticket.id, now),
                (None, Action::Pass) => self.answers.unchanged(Verdict::Accept, ticket.id),
                _ => self.answers.unchanged(Verdict::Drop, ticket.id),
            }
            if self.answers.is_full() {
                self.queue.send(&mut self.answers, arena)?;
                tickets.settled = index + 1;
            }
        }
        self.queue.send(&mut self.answers, arena)?;
        tickets.settled = tickets.packets.len().min(actions.len());
        Ok(())
    }
}

/// Makes a packet that a filter changed what the kernel expects to get back, unless that cannot be.
fn prepare(packet: &mut [u8], state: State) -> Result<(), Loss> {
    let header = if packet.first().is_some_and(|byte| byte >> 4 == 6) { 40 } else { 20 };
    match state {
        State::Cut => Err(Loss::TooLong),
        _ if packet.len() > MAX_PAYLOAD => Err(Loss::TooLong),
        // Less than an IP header: the kernel would drop it without a word.
        _ if packet.len() < header => Err(Loss::Refused),
        State::Unfinished => Err(Loss::Refused),
        // When the kernel cuts a packet into datagrams of UDP, it makes their checksums of the sum of the pseudo-header. Of
        // segments of TCP it makes them from nothing. Where they are received it takes what has come back for one datagram,
        // and loses the way to cut it.
        State::Segments { here } if checksum::restore_partial_udp(packet) && here => Err(Loss::Refused),
        State::Segments { .. } | State::Whole => Ok(()),
    }
}

impl Executor for QueueExecutor {
    fn execute(&mut self, done: Completion) -> Result<(), LiveError> {
        self.poll()?;
        let Completion { batch, verdicts, .. } = done;
        self.descriptors.clear();
        self.descriptors.extend_from_slice(batch.descriptors());
        let tickets = batch.into_source_data::<Tickets>();
        let Some(mut tickets) = tickets.ok().filter(|tickets| Arc::ptr_eq(&tickets.queue, &self.queue)) else {
            let words = "the batch was not taken from this queue";
            return Err(self.queue.error("giving verdicts", io::Error::new(ErrorKind::InvalidInput, words)));
        };
        let actions = &verdicts.actions()[..verdicts.len().min(self.descriptors.len())];
        let result = self.answer(&mut tickets, actions);
        result.map_err(|error| self.queue.error("giving verdicts", error))
    }

    fn poll(&mut self) -> Result<(), LiveError> {
        self.count_accepted();
        self.queue.check()
    }

    fn finish(&mut self) -> Result<(), LiveError> {
        self.queue.finish();
        self.count_accepted();
        // No packet comes any more that could be counted for those that were gone.
        let pass = Action::Pass as usize;
        let ExecutedCounts { packets, bytes, losses, .. } = &mut self.carried;
        let late = std::mem::take(&mut self.gone).min(packets[pass]);
        if late > 0 {
            // Of mean length, as others.
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
