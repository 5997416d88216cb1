//! State that travels with a batch: the packet IDs that verdicts refer to, and the packet memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use portcullis_core::packet::Arena;
use portcullis_core::program::facts::Window;

use super::ETHERNET_HEADER;
use super::queue::Queue;

/// A packet that waits for its verdict.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingPacket {
    pub id: u32,
    /// Offset of its bytes in the arena, without the Ethernet header.
    pub offset: u32,
    pub length: u32,
    /// Whether its bytes could be replaced.
    pub state: Rewritability,
}

impl PendingPacket {
    pub fn bytes(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.length) as usize
    }
}

/// Whether and how a packet's bytes can be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rewritability {
    /// Complete, with a complete checksum.
    Whole,
    /// Complete, but to be segmented, or coalesced from segments. `is_local`: destined for this
    /// machine.
    Segmented { is_local: bool },
    /// Truncated.
    Truncated,
    /// Complete, but only the kernel knows how to complete its checksum.
    KernelChecksum,
}

/// The source data of a batch. On drop, packets without a verdict get the fallback verdict.
#[derive(Debug)]
pub(super) struct PendingBatch {
    pub queue: Arc<Queue>,
    /// Number of the batch in its queue.
    batch: u64,
    pub packets: Vec<PendingPacket>,
    /// Original bytes of the packets, as far as the filter may change them.
    saved: Vec<u8>,
    /// Number of packets that have verdicts, from the start.
    pub settled: usize,
    pub arena: Option<Arena>,
    arena_returns: Sender<Arena>,
}

impl PendingBatch {
    pub fn new(queue: Arc<Queue>, arena_returns: Sender<Arena>, expected: usize) -> PendingBatch {
        let batch = queue.register_batch();
        let packets = Vec::with_capacity(expected);
        PendingBatch { queue, batch, packets, saved: Vec::new(), settled: 0, arena: None, arena_returns }
    }

    /// Saves a packet's bytes, as far as the filter may change them.
    pub fn save(&mut self, packet: &[u8], writes: Window) {
        self.saved.extend_from_slice(&packet[..saved_length(packet.len(), writes)]);
    }

    /// Starts comparing packets with their saved bytes, in order.
    pub fn comparison(&self, writes: Window) -> Comparison {
        Comparison { at: 0, writes }
    }

    /// Whether no packet that arrived before these is waiting.
    pub fn is_oldest(&self) -> bool {
        self.queue.is_oldest(self.batch)
    }
}

impl Drop for PendingBatch {
    fn drop(&mut self) {
        if self.settled < self.packets.len() {
            let rest = self.packets[self.settled..].iter().map(|pending_packet| pending_packet.id);
            self.queue.give_fallback_verdict(rest, self.is_oldest());
        }
        self.queue.unregister_batch(self.batch);
        if let Some(arena) = self.arena.take() {
            // If the receiver is gone, the arena is freed.
            let _ = self.arena_returns.send(arena);
        }
    }
}

/// Number of a packet's bytes, without the Ethernet header, that the filter may change.
fn saved_length(length: usize, writes: Window) -> usize {
    match writes {
        Window::Nothing => 0,
        Window::Bytes(bytes) => length.min((bytes as usize).saturating_sub(ETHERNET_HEADER)),
        Window::WholePacket => length,
    }
}

/// A cursor over the saved bytes.
#[derive(Debug)]
pub(super) struct Comparison {
    at: usize,
    writes: Window,
}

impl Comparison {
    /// Whether the next packet, which now occupies `now` of the arena, was changed.
    pub fn is_changed(
        &mut self,
        pending_batch: &PendingBatch,
        pending_packet: &PendingPacket,
        now: Range<usize>,
        arena: &[u8],
    ) -> bool {
        let saved_length = saved_length(pending_packet.length as usize, self.writes);
        let saved = &pending_batch.saved[self.at..self.at + saved_length];
        self.at += saved_length;
        now != pending_packet.bytes() || arena[now.start..now.start + saved_length] != *saved
    }
}
