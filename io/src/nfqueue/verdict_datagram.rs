//! Encoding verdicts: as few messages as possible, as many as fit into a datagram.
//!
//! One message can give a verdict on all waiting packets up to an ID (`NFQNL_MSG_VERDICT_BATCH`).
//! So a run of packets with the same verdict takes one message, provided that no earlier packet
//! waits for another verdict: neither of an earlier batch, which only the caller knows, nor of this
//! batch, which is ensured by writing verdicts in order. A changed packet takes a message of its
//! own, with the bytes.

use std::io::{self, IoSlice};
use std::ops::Range;

use super::message::{self, Verdict};
use super::socket::MAX_PARTS;

/// Length in bytes from which on a datagram is sent; it may exceed this by the longest message.
const DATAGRAM_TARGET: usize = 32 << 10;

/// A datagram of verdict messages under construction.
#[derive(Debug)]
pub(super) struct VerdictDatagram {
    queue: u16,
    /// Whether a verdict on one packet may cover all packets before it.
    sweeps: bool,
    bytes: Vec<u8>,
    parts: Vec<MessagePart>,
    /// Length of the part of `bytes` that `parts` covers.
    covered: usize,
    /// Total length of packets' bytes in `parts`.
    packet_bytes: usize,
    run: Option<VerdictRun>,
}

/// Source of a part of the datagram.
#[derive(Debug)]
enum MessagePart {
    /// Messages in `bytes`.
    Messages(Range<usize>),
    /// A packet's bytes in the arena.
    Packet(Range<usize>),
}

/// Consecutive packets with the same verdict.
#[derive(Debug, Clone, Copy)]
struct VerdictRun {
    verdict: Verdict,
    last: u32,
    packets: u32,
    /// Number of accepted packets in the run: the ones lost if the kernel reports the packet as
    /// gone.
    accepted: u32,
}

impl VerdictDatagram {
    /// Starts a datagram for verdicts on packets in order of arrival. `sweeps`: no other waiting
    /// packets arrived before the last of them.
    pub fn new(queue: u16, sweeps: bool) -> VerdictDatagram {
        VerdictDatagram { queue, sweeps, bytes: Vec::new(), parts: Vec::new(), covered: 0, packet_bytes: 0, run: None }
    }

    /// Starts over with other packets.
    pub fn reset(&mut self, sweeps: bool) {
        self.clear();
        self.sweeps = sweeps;
    }

    /// Adds a verdict on an unchanged packet.
    pub fn push_unchanged(&mut self, verdict: Verdict, id: u32) {
        self.push(verdict, id, u32::from(verdict == Verdict::Accept));
    }

    /// Adds a verdict on an unchanged packet, without counting it if it is accepted.
    pub fn push_uncounted(&mut self, verdict: Verdict, id: u32) {
        self.push(verdict, id, 0);
    }

    fn push(&mut self, verdict: Verdict, id: u32, accepted: u32) {
        match &mut self.run {
            Some(run) if run.verdict == verdict && self.sweeps => {
                run.last = id;
                run.packets += 1;
                run.accepted += accepted;
            }
            _ => {
                self.end_run();
                self.run = Some(VerdictRun { verdict, last: id, packets: 1, accepted });
            }
        }
    }

    /// Accepts a packet and replaces its bytes by these of the arena.
    pub fn push_changed(&mut self, id: u32, payload: Range<usize>) {
        self.end_run();
        let length = payload.len();
        let padding = message::verdict_with_payload(&mut self.bytes, self.queue, 1, Verdict::Accept, id, length);
        self.cover_bytes();
        self.parts.push(MessagePart::Packet(payload));
        self.packet_bytes += length;
        self.bytes.resize(self.bytes.len() + padding, 0);
    }

    fn end_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        let write = if run.packets > 1 { message::verdict_batch } else { message::verdict };
        write(&mut self.bytes, self.queue, run.accepted, run.verdict, run.last);
    }

    fn cover_bytes(&mut self) {
        if self.covered < self.bytes.len() {
            self.parts.push(MessagePart::Messages(self.covered..self.bytes.len()));
            self.covered = self.bytes.len();
        }
    }

    /// Number of packets not accepted if the kernel refuses the message with this sequence number,
    /// which encodes it.
    pub fn accepted_by(sequence: u32) -> u32 {
        sequence
    }

    /// Whether the datagram should be sent.
    pub fn is_full(&self) -> bool {
        // The next packet takes two parts, and the end one.
        self.bytes.len() + self.packet_bytes >= DATAGRAM_TARGET || self.parts.len() + 3 > MAX_PARTS
    }

    /// Passes the datagram to `send`, unless it is empty.
    pub fn with_datagram(&mut self, arena: &[u8], send: impl FnOnce(&[IoSlice]) -> io::Result<()>) -> io::Result<()> {
        self.end_run();
        self.cover_bytes();
        match &self.parts[..] {
            [] => Ok(()),
            // The common case needs no list.
            [MessagePart::Messages(own)] => send(&[IoSlice::new(&self.bytes[own.clone()])]),
            parts => {
                let slices = parts.iter().map(|piece| match piece {
                    MessagePart::Messages(own) => IoSlice::new(&self.bytes[own.clone()]),
                    MessagePart::Packet(packet) => IoSlice::new(&arena[packet.clone()]),
                });
                send(&slices.collect::<Vec<_>>())
            }
        }
    }

    /// Discards everything collected.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        (self.covered, self.packet_bytes, self.run) = (0, 0, None);
    }
}
