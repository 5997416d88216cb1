//! What programs tell the host while they run: records for ring buffers and perf buffers, and prints.
//!
//! Each map of that kind, and the prints of a program together, become an ordinary map: a ring of slots of one size. Its first
//! entry counts the records that there were to be ([`HEAD`]), and says how many of them the host has seen ([`TAIL`]). A packet
//! adds one to the count, which gives its record a number, and the record lies in the slot of that number. Where the host has not
//! seen what lies there, the record is lost, and the count says so. So a slot that is taken belongs to one packet alone until
//! the host has read it, and the host reads between batches, when nobody writes ([`EventReader`]).
//!
//! All numbers wrap at 2^32, of which the number of slots, a power of two, is a divisor.

mod drain;
mod print;

use std::fmt;

pub use drain::{EventCounts, EventReader};
pub use print::{Argument, Print};

use portcullis_core::map::{Declaration, MapKind};

/// In the ring's first entry: how many records there were to be.
pub const HEAD: usize = 0;

/// In the ring's first entry: how many of them the host has seen.
pub const TAIL: usize = 1;

/// In a slot: the record's number and one, written when all else is.
pub const SEQUENCE: usize = 0;

/// In a slot: how many bytes the program gave, or of a print which it is.
pub const LENGTH: usize = 1;

/// In a slot: how many bytes of the packet it asked for besides.
pub const ASKED: usize = 2;

/// In a slot: the packet's time in nanoseconds, two words, the low one first.
pub const TIME: usize = 3;

/// The ring of prints.
pub const PRINTS: &str = "printk";

/// Words before what the program gave.
pub const HEADER: u32 = 5;

/// Words that a ring takes, about: 4 MiB, which is as much as some ten thousand records of a small size need.
const RING_WORDS: u32 = 1 << 20;

/// Slots, at least: as many packets as a batch of a capture has, about.
const LEAST_SLOTS: u32 = 1 << 14;

/// And where these take more, or a ring buffer asks for it, at most: 64 MiB.
const MOST_WORDS: u32 = 16 << 20;

/// Bytes of a packet that a record has, at most: a whole Ethernet frame of the usual size.
pub const MAX_PACKET_BYTES: u32 = 1514;

/// What kind of records a ring has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// Those of a map of type `ringbuf`.
    RingBuffer,
    /// Those of a `perf_event_array`, which may have bytes of the packet behind them.
    Perf,
    /// Lines of text.
    Prints,
}

/// A ring as the host finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRing {
    /// Its name: that of the object's map, or `printk`.
    pub name: String,
    /// The number of the filter's map that it lies in.
    pub map: usize,
    /// What is in it.
    pub records: RecordKind,
    /// Bytes that a program gives for a record, at most.
    pub bytes: u32,
    /// Bytes of the packet that may be behind them.
    pub packet: u32,
    /// At how many places the program makes a record: so many does a packet, unless there are loops.
    pub places: u32,
    /// How many slots there are: a power of two.
    pub slots: u32,
}

/// What records a program makes for a ring.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sizes {
    /// Bytes that it gives, at most.
    pub bytes: u32,
    /// Bytes of the packet, at most.
    pub packet: u32,
    /// How many places there are where it makes one.
    pub places: u32,
}

impl EventRing {
    /// A ring for such records; of a map that asks for `wanted` bytes in all.
    pub(super) fn new(name: &str, map: usize, records: RecordKind, sizes: Sizes, wanted: u32) -> EventRing {
        let Sizes { bytes, packet, places } = sizes;
        let mut ring = EventRing { name: name.to_owned(), map, records, bytes, packet, places, slots: 0 };
        let words = RING_WORDS.max(wanted / 4).max(ring.stride().saturating_mul(LEAST_SLOTS)).min(MOST_WORDS);
        // The largest power of two that fits.
        ring.slots = 1 << (words / ring.stride()).max(1).ilog2();
        ring
    }

    /// How many packets find room for their records, if none of them makes several at one place.
    pub fn packets(&self) -> u32 {
        (self.slots / self.places.max(1)).max(1)
    }

    /// Words of a slot.
    pub fn stride(&self) -> u32 {
        self.packet_at() + self.packet.div_ceil(4)
    }

    /// In a slot: where the packet's bytes begin.
    fn packet_at(&self) -> u32 {
        HEADER + self.bytes.div_ceil(4)
    }

    /// The map that it lies in.
    pub(super) fn declaration(&self) -> Declaration {
        let declared = Declaration::new(self.name.clone(), MapKind::Array, 1, self.stride(), self.slots + 1);
        Declaration { is_ring: true, ..declared }
    }

    /// What programs do with it.
    pub(super) fn text(&self) -> String {
        let text = TEXT.replace("SLOTSu", &format!("{}u", self.slots));
        text.replace("PACKETu", &format!("{}u", self.packet_at())).replace("NAME", &self.name)
    }
}

const TEXT: &str = "
// A slot for a record, if there is to be one, and what marks it as whole in the end; none where the host has not seen yet what is
// there.
fn x_NAME_take(wanted: bool) -> vec2<u32> {
    if !wanted { return vec2<u32>(MAP_NONE, 0u); }
    let number = NAME_add(0u, 0u, 1u);
    if number - NAME_read(0u, 1u) >= SLOTSu { return vec2<u32>(MAP_NONE, 0u); }
    return vec2<u32>(1u + (number & (SLOTSu - 1u)), number + 1u);
}

fn x_NAME_packet(pkt: u32, entry: u32, count: u32) {
    if entry == MAP_NONE { return; }
    for (var at = 0u; at < count; at = at + 4u) {
        NAME_write(entry, PACKETu + (at >> 2u), x_bytes(pkt, at));
    }
}

fn x_NAME_done(pkt: u32, entry: u32, sequence: u32, length: u32, asked: u32) {
    let time = pkt_time(pkt);
    NAME_write(entry, 1u, length);
    NAME_write(entry, 2u, asked);
    NAME_write(entry, 3u, time.x);
    NAME_write(entry, 4u, time.y);
    NAME_write(entry, 0u, sequence);
}
";

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventPayload {
    /// Bytes.
    Data(Vec<u8>),
    /// Bytes, and the beginning of the packet.
    WithPacket {
        /// What the program gave.
        data: Vec<u8>,
        /// Of the packet.
        packet: Vec<u8>,
        /// How many bytes of the packet the program asked for: more than there are here where they were cut.
        asked: u32,
    },
    /// A line of text, without its end.
    Text(String),
}

/// A record that the host has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// The ring.
    pub ring: &'a EventRing,
    /// When the packet came, in nanoseconds since 1970.
    pub time: u64,
    /// What it says.
    pub payload: EventPayload,
}

impl EventRing {
    /// The record in a slot; `None` where what took the slot has not come to its end (its fuel was spent).
    pub fn event(&self, slot: &[u32], number: u32, prints: &[Print]) -> Option<Event<'_>> {
        if slot.len() < self.stride() as usize || slot[SEQUENCE] != number.wrapping_add(1) {
            return None;
        }
        let time = u64::from(slot[TIME + 1]) << 32 | u64::from(slot[TIME]);
        let bytes = |at: u32, count: u32| -> Vec<u8> {
            let words = &slot[at as usize..(at + count.div_ceil(4)) as usize];
            words.iter().flat_map(|word| word.to_le_bytes()).take(count as usize).collect()
        };
        let payload = match self.records {
            RecordKind::Prints => {
                let print = prints.get(slot[LENGTH] as usize)?;
                EventPayload::Text(print.text(&slot[HEADER as usize..self.packet_at() as usize]))
            }
            RecordKind::Perf if slot[ASKED] > 0 => EventPayload::WithPacket {
                data: bytes(HEADER, slot[LENGTH].min(self.bytes)),
                packet: bytes(self.packet_at(), slot[ASKED].min(self.packet)),
                asked: slot[ASKED],
            },
            _ => EventPayload::Data(bytes(HEADER, slot[LENGTH].min(self.bytes))),
        };
        Some(Event { ring: self, time, payload })
    }
}

impl fmt::Display for EventPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"));
        match self {
            EventPayload::Data(data) => hex(f, data),
            EventPayload::WithPacket { data, packet, .. } => {
                hex(f, data)?;
                f.write_str(" ")?;
                hex(f, packet)
            }
            EventPayload::Text(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests;
