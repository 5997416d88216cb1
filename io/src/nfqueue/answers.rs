//! Verdicts on their way to the kernel: as few messages as there can be, as many as go into a datagram.
//!
//! One message may give a verdict on all packets up to one (`NFQNL_MSG_VERDICT_BATCH`). So a run of packets with the same
//! verdict needs one, provided that no packet that came before them waits for another: neither one of an earlier batch,
//! which only the caller knows, nor an earlier one of these, which is so because verdicts are written in the order of
//! packets. A packet whose bytes have changed needs a message of its own, with the bytes.

use std::io::{self, IoSlice};
use std::ops::Range;

use super::message::{self, Verdict};
use super::socket::MAX_PIECES;

/// From this length on a datagram is sent. The longest message comes on top.
const ENOUGH: usize = 32 << 10;

/// Messages that make up a datagram.
#[derive(Debug)]
pub(super) struct Answers {
    queue: u16,
    /// Whether a verdict on one packet may be one on all before it.
    sweeps: bool,
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    /// How many of `bytes` are in `pieces`.
    placed: usize,
    /// Packets' own bytes in `pieces`.
    packet_bytes: usize,
    run: Option<Run>,
}

/// Where a part of the datagram lies.
#[derive(Debug)]
enum Piece {
    /// In `bytes`.
    Own(Range<usize>),
    /// In the arena.
    Packet(Range<usize>),
}

/// Packets one behind the other with the same verdict.
#[derive(Debug, Clone, Copy)]
struct Run {
    verdict: Verdict,
    last: u32,
    packets: u32,
    /// How many of them are accepted, and counted where the kernel says that they are gone.
    accepted: u32,
}

impl Answers {
    /// For verdicts on packets in the order in which they came. `sweeps`: no other packets wait that came before the last of
    /// them.
    pub fn new(queue: u16, sweeps: bool) -> Answers {
        Answers { queue, sweeps, bytes: Vec::new(), pieces: Vec::new(), placed: 0, packet_bytes: 0, run: None }
    }

    /// Begins anew, with other packets.
    pub fn restart(&mut self, sweeps: bool) {
        self.clear();
        self.sweeps = sweeps;
    }

    /// A verdict on a packet that has the bytes that it had.
    pub fn unchanged(&mut self, verdict: Verdict, id: u32) {
        self.push(verdict, id, u32::from(verdict == Verdict::Accept));
    }

    /// The same, of a packet that nobody counts.
    pub fn uncounted(&mut self, verdict: Verdict, id: u32) {
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
                self.run = Some(Run { verdict, last: id, packets: 1, accepted });
            }
        }
    }

    /// Accepts a packet that has become these bytes of the arena.
    pub fn changed(&mut self, id: u32, payload: Range<usize>) {
        self.end_run();
        let length = payload.len();
        let padding = message::verdict_with_payload(&mut self.bytes, self.queue, 1, Verdict::Accept, id, length);
        self.place();
        self.pieces.push(Piece::Packet(payload));
        self.packet_bytes += length;
        self.bytes.resize(self.bytes.len() + padding, 0);
    }

    fn end_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        let write = if run.packets > 1 { message::verdict_batch } else { message::verdict };
        write(&mut self.bytes, self.queue, run.accepted, run.verdict, run.last);
    }

    fn place(&mut self) {
        if self.placed < self.bytes.len() {
            self.pieces.push(Piece::Own(self.placed..self.bytes.len()));
            self.placed = self.bytes.len();
        }
    }

    /// How many packets are not accepted, where the kernel refuses the message with this sequence number.
    pub fn accepted(sequence: u32) -> u32 {
        sequence
    }

    /// Whether it is time to send.
    pub fn is_full(&self) -> bool {
        // The next packet needs two pieces, and the end one.
        self.bytes.len() + self.packet_bytes >= ENOUGH || self.pieces.len() + 3 > MAX_PIECES
    }

    /// The datagram, unless there is nothing to say.
    pub fn with_datagram(&mut self, arena: &[u8], send: impl FnOnce(&[IoSlice]) -> io::Result<()>) -> io::Result<()> {
        self.end_run();
        self.place();
        match &self.pieces[..] {
            [] => Ok(()),
            // The usual case needs no list.
            [Piece::Own(own)] => send(&[IoSlice::new(&self.bytes[own.clone()])]),
            pieces => {
                let slices = pieces.iter().map(|piece| match piece {
                    Piece::Own(own) => IoSlice::new(&self.bytes[own.clone()]),
                    Piece::Packet(packet) => IoSlice::new(&arena[packet.clone()]),
                });
                send(&slices.collect::<Vec<_>>())
            }
        }
    }

    /// Forgets what was gathered.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
        (self.placed, self.packet_bytes, self.run) = (0, 0, None);
    }
}
