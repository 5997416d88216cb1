//! Events that programs record for the host: ring buffer and perf records, and prints.
//!
//! Each such map, and all prints of a program together, become an ordinary array map: a ring of
//! equal slots. Its first entry holds the number of records so far ([`HEAD_WORD`]) and how many of
//! them the host has read ([`TAIL_WORD`]). A packet increments the head, which numbers its record
//! and thereby selects the slot. If the slot's previous record is unread, the new one is lost, and
//! the head still counts it. So a slot belongs to one packet until the host has read it, and the
//! host reads between batches, when no packet writes ([`EventReader`]).
//!
//! All numbers wrap at 2^32, which the number of slots, a power of two, divides.

mod print;
mod reader;

use std::fmt;

pub use print::{Argument, PrintFormat};
pub use reader::{EventCounts, EventReader};

use portcullis_core::map::{Declaration, MapKind};

/// Word of the ring's first entry: number of records so far, lost ones included.
pub const HEAD_WORD: usize = 0;

/// Word of the ring's first entry: number of records that the host has read.
pub const TAIL_WORD: usize = 1;

/// Word of a slot: the record's number plus one, written last.
pub const SEQUENCE_WORD: usize = 0;

/// Word of a slot: size of the data in bytes, or the index of a print's format.
pub const LENGTH_WORD: usize = 1;

/// Word of a slot: number of bytes of the packet that the program requested.
pub const REQUESTED_WORD: usize = 2;

/// First of two words of a slot: arrival time of the packet in nanoseconds, low word first.
pub const TIME_WORD: usize = 3;

/// Name of the ring of prints.
pub const PRINT_RING: &str = "printk";

/// Words of a slot before the data.
pub const HEADER_WORDS: u32 = 5;

/// Default size of a ring, 4 MiB: some ten thousand small records.
const DEFAULT_RING_WORDS: u32 = 1 << 20;

/// Minimum number of slots, about the packets in a batch of a capture.
const MIN_SLOTS: u32 = 1 << 14;

/// Upper bound on the size of a ring, 64 MiB, whatever the minimum number of slots or the map asks
/// for.
const MAX_RING_WORDS: u32 = 16 << 20;

/// Maximum number of packet bytes in a record: a whole Ethernet frame of the usual size.
pub const MAX_PACKET_BYTES: u32 = 1514;

/// Kind of a ring's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordKind {
    /// Records of a `ringbuf` map.
    RingBuffer,
    /// Records of a `perf_event_array`, optionally with bytes of the packet.
    Perf,
    /// Lines of text.
    Prints,
}

/// Layout of a ring, for the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRing {
    /// Name of the object's map, or `printk`.
    pub name: String,
    /// Index of the filter's map that is the ring.
    pub map: usize,
    /// Kind of the records.
    pub records: RecordKind,
    /// Maximum size of the data in bytes.
    pub bytes: u32,
    /// Maximum number of packet bytes after the data.
    pub packet: u32,
    /// Number of sites that record: the records of a packet, unless there are loops.
    pub places: u32,
    /// Number of slots, a power of two.
    pub slots: u32,
}

/// Sizes of the records that a program makes for a ring.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RecordSizes {
    /// Maximum size of the data in bytes.
    pub bytes: u32,
    /// Maximum number of packet bytes.
    pub packet: u32,
    /// Number of sites that record.
    pub places: u32,
}

impl EventRing {
    /// A ring for records of these sizes, of at least `wanted` bytes if possible.
    pub(super) fn new(name: &str, map: usize, records: RecordKind, sizes: RecordSizes, wanted: u32) -> EventRing {
        let RecordSizes { bytes, packet, places } = sizes;
        let mut ring = EventRing { name: name.to_owned(), map, records, bytes, packet, places, slots: 0 };
        let words = DEFAULT_RING_WORDS.max(wanted / 4).max(ring.stride().saturating_mul(MIN_SLOTS)).min(MAX_RING_WORDS);
        // The largest power of two that fits.
        ring.slots = 1 << (words / ring.stride()).max(1).ilog2();
        ring
    }

    /// Number of packets whose records fit, if each records at most once per site.
    pub fn packet_capacity(&self) -> u32 {
        (self.slots / self.places.max(1)).max(1)
    }

    /// Words of a slot.
    pub fn stride(&self) -> u32 {
        self.packet_at() + self.packet.div_ceil(4)
    }

    /// Word of a slot where the packet's bytes begin.
    fn packet_at(&self) -> u32 {
        HEADER_WORDS + self.bytes.div_ceil(4)
    }

    /// Declaration of the map that is the ring.
    pub(super) fn declaration(&self) -> Declaration {
        let declared = Declaration::new(self.name.clone(), MapKind::Array, 1, self.stride(), self.slots + 1);
        Declaration { is_ring: true, ..declared }
    }

    /// WGSL functions with which programs write the ring.
    pub(super) fn text(&self) -> String {
        let text = FUNCTIONS.replace("SLOTSu", &format!("{}u", self.slots));
        text.replace("PACKETu", &format!("{}u", self.packet_at())).replace("NAME", &self.name)
    }
}

const FUNCTIONS: &str = "
// Reserves a slot if a record is wanted: its entry, and the sequence that marks it complete.
// MAP_NONE if the slot is still unread.
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

/// Content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventPayload {
    /// Data of the program.
    Data(Vec<u8>),
    /// Data of the program, and the first bytes of the packet.
    WithPacket {
        /// Data of the program.
        data: Vec<u8>,
        /// Bytes of the packet.
        packet: Vec<u8>,
        /// Number of packet bytes that the program requested; `packet` may be shorter.
        asked: u32,
    },
    /// A line of text, without a newline.
    Text(String),
}

/// A record that the host has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// The ring it was in.
    pub ring: &'a EventRing,
    /// Arrival of the packet, in nanoseconds since 1970.
    pub time: u64,
    /// Content of the record.
    pub payload: EventPayload,
}

impl EventRing {
    /// Decodes a slot; `None` if the packet did not complete the record because its fuel ran out.
    pub fn event(&self, slot: &[u32], number: u32, prints: &[PrintFormat]) -> Option<Event<'_>> {
        if slot.len() < self.stride() as usize || slot[SEQUENCE_WORD] != number.wrapping_add(1) {
            return None;
        }
        let time = u64::from(slot[TIME_WORD + 1]) << 32 | u64::from(slot[TIME_WORD]);
        let bytes = |at: u32, count: u32| -> Vec<u8> {
            let words = &slot[at as usize..(at + count.div_ceil(4)) as usize];
            words.iter().flat_map(|word| word.to_le_bytes()).take(count as usize).collect()
        };
        let payload = match self.records {
            RecordKind::Prints => {
                let print = prints.get(slot[LENGTH_WORD] as usize)?;
                EventPayload::Text(print.render(&slot[HEADER_WORDS as usize..self.packet_at() as usize]))
            }
            RecordKind::Perf if slot[REQUESTED_WORD] > 0 => EventPayload::WithPacket {
                data: bytes(HEADER_WORDS, slot[LENGTH_WORD].min(self.bytes)),
                packet: bytes(self.packet_at(), slot[REQUESTED_WORD].min(self.packet)),
                asked: slot[REQUESTED_WORD],
            },
            _ => EventPayload::Data(bytes(HEADER_WORDS, slot[LENGTH_WORD].min(self.bytes))),
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
