//! What goes with a batch: the numbers that its packets' verdicts name, and the memory that they lie in.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use portcullis_core::packet::Arena;
use portcullis_core::program::facts::Window;

use super::ETHERNET_HEADER;
use super::queue::Queue;

/// A packet that waits for its verdict.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    pub id: u32,
    /// Where its bytes lay in the arena, without the Ethernet header.
    pub offset: u32,
    pub length: u32,
    /// Whether it could go back with other bytes than it had.
    pub state: State,
}

impl Ticket {
    pub fn bytes(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.length) as usize
    }
}

/// What there is of a packet, for making it another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// All of it, with its checksum.
    Whole,
    /// The same, and the kernel will cut it, or has put it together from several. `here`: they are for this machine.
    Segments { here: bool },
    /// Not all of its bytes.
    Cut,
    /// All of it, but only the kernel knows how to complete its checksum.
    Unfinished,
}

/// A batch's companion. Packets whose verdicts are not given when it is dropped get the fallback verdict.
#[derive(Debug)]
pub(super) struct Tickets {
    pub queue: Arc<Queue>,
    /// The batch's number among those of its queue.
    batch: u64,
    pub packets: Vec<Ticket>,
    /// The bytes that packets had, of those that a filter may change.
    before: Vec<u8>,
    /// How many packets have their verdicts, the first ones.
    pub settled: usize,
    pub arena: Option<Arena>,
    home: Sender<Arena>,
}

impl Tickets {
    pub fn new(queue: Arc<Queue>, home: Sender<Arena>, expected: usize) -> Tickets {
        let batch = queue.opened();
        let packets = Vec::with_capacity(expected);
        Tickets { queue, batch, packets, before: Vec::new(), settled: 0, arena: None, home }
    }

    /// Keeps a packet's bytes, as far as a filter may change them.
    pub fn keep(&mut self, packet: &[u8], writes: Window) {
        self.before.extend_from_slice(&packet[..kept(packet.len(), writes)]);
    }

    /// For comparing packets with what they were, one after the other in order.
    pub fn comparison(&self, writes: Window) -> Comparison {
        Comparison { at: 0, writes }
    }

    /// Whether no packet waits that came before the first of these.
    pub fn is_oldest(&self) -> bool {
        self.queue.is_oldest(self.batch)
    }
}

impl Drop for Tickets {
    fn drop(&mut self) {
        if self.settled < self.packets.len() {
            let rest = self.packets[self.settled..].iter().map(|ticket| ticket.id);
            self.queue.fall_back(rest, self.is_oldest());
        }
        self.queue.settled(self.batch);
        if let Some(arena) = self.arena.take() {
            // Nobody waiting for it is no fault: then it is freed.
            let _ = self.home.send(arena);
        }
    }
}

/// How many of a packet's bytes, the Ethernet header not counted, a filter may change.
fn kept(length: usize, writes: Window) -> usize {
    match writes {
        Window::Nothing => 0,
        Window::Bytes(bytes) => length.min((bytes as usize).saturating_sub(ETHERNET_HEADER)),
        Window::WholePacket => length,
    }
}

/// Goes along the bytes that were kept.
#[derive(Debug)]
pub(super) struct Comparison {
    at: usize,
    writes: Window,
}

impl Comparison {
    /// Whether the next packet, which now is these bytes of the arena, has become another.
    pub fn is_changed(&mut self, tickets: &Tickets, ticket: &Ticket, now: Range<usize>, arena: &[u8]) -> bool {
        let kept = kept(ticket.length as usize, self.writes);
        let before = &tickets.before[self.at..self.at + kept];
        self.at += kept;
        now != ticket.bytes() || arena[now.start..now.start + kept] != *before
    }
}
