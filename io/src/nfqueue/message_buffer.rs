//! The memory that messages are received into and packets stay in.
//!
//! ```text
//! slot:          room · netlink header and attributes · packet ·· room
//!                                       Ethernet ──┘ overwrites the attributes' last 14 bytes
//! overflow area: room · as long as a slot's message · what does not fit into a slot ·· room
//! ```
//!
//! Most packets fit an Ethernet MTU, but offloaded ones have up to 64 KiB. Slots for the latter
//! would spread the former over far too much memory. So slots fit an MTU. The excess of a longer
//! message is received into an overflow area, at the offset where it continues the message once the
//! start has been copied there from the slot: one copy of 2 KiB, whatever the length.

use std::io;

use portcullis_core::packet::{Arena, RESIZE_ROOM, ResizeRoom};

use super::socket::{BURST, Socket};

/// Maximum bytes of a message before its packet. The kernel's attributes need about 140, bridge
/// attributes 60 more; if there were more, messages would overflow their slots earlier, nothing
/// else.
const BEFORE_PACKET: usize = 256;

/// Bytes of a message in a slot: a packet of 1,500 bytes and everything before it.
const SLOT_BYTES: usize = 1984;

/// Maximum number of overflow areas: 16 MiB, enough for a batch.
const MAX_AREAS: usize = 256;

/// Layout of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    slots: usize,
    areas: usize,
    margin: usize,
    slot_bytes: usize,
    overflow_bytes: usize,
    slot_stride: usize,
    area_stride: usize,
}

impl Layout {
    /// Layout for `slots` packets, of which messages contain at most `packet` bytes each.
    pub fn new(slots: usize, room: ResizeRoom, packet: usize) -> Layout {
        let message = (BEFORE_PACKET + packet).next_multiple_of(4);
        let margin = if room == ResizeRoom::Both { RESIZE_ROOM as usize } else { 0 };
        let slot_bytes = message.min(SLOT_BYTES);
        let overflow_bytes = message - slot_bytes;
        let areas = if overflow_bytes > 0 { slots.min(MAX_AREAS) } else { 0 };
        let stride = |bytes: usize| ((bytes + 2 * margin).div_ceil(64) | 1) * 64;
        let (slot_stride, area_stride) = (stride(slot_bytes), stride(slot_bytes + overflow_bytes));
        Layout { slots, areas, margin, slot_bytes, overflow_bytes, slot_stride, area_stride }
    }

    /// Size of the arena in bytes.
    pub fn arena(&self) -> usize {
        self.slots.saturating_mul(self.slot_stride).saturating_add(self.areas * self.area_stride)
    }
}

/// An arena that is being filled.
#[derive(Debug)]
pub(super) struct MessageBuffer {
    layout: Layout,
    arena: Arena,
    slots_taken: usize,
    /// Which overflow areas are in use.
    areas_taken: Vec<bool>,
    /// Lengths of the last received messages, and the overflow areas they were given.
    lengths: [usize; BURST],
    areas: [usize; BURST],
}

/// Location of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageLocation {
    /// Offset of its first byte.
    pub start: usize,
    /// Number of bytes received.
    pub length: usize,
    /// Whether the message was truncated.
    pub is_truncated: bool,
    /// Whether the message was received into a slot and an overflow area.
    pub was_joined: bool,
}

impl MessageBuffer {
    /// Starts filling an arena of [`Layout::arena`] bytes.
    pub fn new(layout: Layout, arena: Arena) -> MessageBuffer {
        let areas_taken = vec![false; layout.areas];
        MessageBuffer { layout, arena, slots_taken: 0, areas_taken, lengths: [0; BURST], areas: [0; BURST] }
    }

    /// Returns the arena.
    pub fn into_arena(self) -> Arena {
        self.arena
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.arena
    }

    /// Number of further messages that fit, whatever their lengths.
    pub fn free_messages(&self) -> usize {
        let slots = self.layout.slots - self.slots_taken;
        if self.layout.overflow_bytes == 0 {
            return slots;
        }
        slots.min(self.areas_taken.iter().filter(|&&taken| !taken).count())
    }

    /// Frees the whole arena.
    pub fn reset(&mut self) {
        self.slots_taken = 0;
        self.areas_taken.fill(false);
    }

    /// Receives at most `max` messages; returns their number.
    pub fn receive(&mut self, socket: &Socket, max: usize) -> io::Result<usize> {
        let layout = self.layout;
        let max = max.min(self.free_messages()).min(BURST);
        let (slots, areas) = self.arena.split_at_mut(layout.slots * layout.slot_stride);
        let slot_parts = slots.chunks_exact_mut(layout.slot_stride).skip(self.slots_taken);
        let slot_parts = slot_parts.map(|slot| &mut slot[layout.margin..][..layout.slot_bytes]);
        let free = areas.chunks_exact_mut(layout.area_stride).zip(&self.areas_taken).enumerate();
        let free = free.filter(|(_, (_, taken))| !**taken);
        let mut noted = self.areas.iter_mut();
        let overflow_parts = free.map(|(number, (area, _))| {
            if let Some(noted) = noted.next() {
                *noted = number;
            }
            &mut area[layout.margin + layout.slot_bytes..][..layout.overflow_bytes]
        });
        // If no message can overflow, pair the slots with empty slices.
        let overflow_parts = overflow_parts.chain(std::iter::repeat_with(|| &mut [][..]));
        let places =
            slot_parts.zip(overflow_parts).take(max).map(|(slot_bytes, overflow_bytes)| [slot_bytes, overflow_bytes]);
        socket.receive_many(places, &mut self.lengths)
    }

    /// Returns the location of the `index`-th of the last received messages, now contiguous. Call
    /// it once for each, in order.
    pub fn locate(&mut self, index: usize) -> MessageLocation {
        let layout = self.layout;
        let length = self.lengths[index];
        let slot = self.slots_taken * layout.slot_stride + layout.margin;
        self.slots_taken += 1;
        if length <= layout.slot_bytes || layout.overflow_bytes == 0 {
            let is_truncated = length > layout.slot_bytes;
            return MessageLocation {
                start: slot,
                length: length.min(layout.slot_bytes),
                is_truncated,
                was_joined: false,
            };
        }
        let area = self.areas[index];
        self.areas_taken[area] = true;
        let start = layout.slots * layout.slot_stride + area * layout.area_stride + layout.margin;
        self.arena.copy_within(slot..slot + layout.slot_bytes, start);
        let there = layout.slot_bytes + layout.overflow_bytes;
        MessageLocation { start, length: length.min(there), is_truncated: length > there, was_joined: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_areas_lie_in_the_arena_without_overlap() {
        for (slots, room, packet) in [
            (1, ResizeRoom::None, 1),
            (3, ResizeRoom::Both, 100),
            (64, ResizeRoom::None, 65_531),
            (300, ResizeRoom::Both, 9000),
        ] {
            let layout = Layout::new(slots, room, packet);
            let margin = if room == ResizeRoom::Both { 128 } else { 0 };
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for slot in 0..slots {
                let start = slot * layout.slot_stride;
                taken.push((start, start + margin + layout.slot_bytes + margin));
            }
            for area in 0..layout.areas {
                let start = slots * layout.slot_stride + area * layout.area_stride;
                taken.push((start, start + margin + BEFORE_PACKET + packet + margin));
            }
            assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{layout:?}");
            assert!(taken.last().unwrap().1 <= layout.arena(), "{layout:?}");
            assert!(taken.iter().all(|locate| locate.0 % 64 == 0), "{layout:?}");
            assert!(!layout.slot_stride.is_power_of_two() && !layout.area_stride.is_power_of_two());
            assert_eq!(layout.slot_bytes + layout.overflow_bytes, (BEFORE_PACKET + packet).next_multiple_of(4));
        }
    }

    #[test]
    fn long_messages_are_joined_and_use_one_area_each() {
        let layout = Layout::new(BURST * 2, ResizeRoom::Both, 65_531);
        let mut frames = MessageBuffer::new(layout, Arena::new(layout.arena()).unwrap());
        let areas = layout.areas;
        for burst in 0..2 {
            // Simulate what the system call writes.
            let mut free = (0..areas).filter(|area| !frames.areas_taken[*area]).collect::<Vec<_>>().into_iter();
            for index in 0..BURST {
                let length = if index % 3 == 1 { 40_000 + index } else { 100 + index };
                frames.lengths[index] = length;
                frames.areas[index] = free.next().unwrap();
                let slot = (burst * BURST + index) * layout.slot_stride + layout.margin;
                let area = layout.slots * layout.slot_stride + frames.areas[index] * layout.area_stride;
                let message: Vec<u8> = (0..length).map(|i| (i * 3 + index + burst) as u8).collect();
                let (slot_bytes, overflow_bytes) = message.split_at(length.min(layout.slot_bytes));
                frames.arena[slot..slot + slot_bytes.len()].copy_from_slice(slot_bytes);
                frames.arena[area + layout.margin + layout.slot_bytes..][..overflow_bytes.len()]
                    .copy_from_slice(overflow_bytes);
            }
            let mut places = Vec::new();
            for index in 0..BURST {
                let received = frames.locate(index);
                assert_eq!(received.was_joined, index % 3 == 1);
                assert!(!received.is_truncated);
                places.push(received);
            }
            for (index, received) in places.into_iter().enumerate() {
                let bytes = &frames.bytes()[received.start..received.start + received.length];
                assert!(bytes.iter().enumerate().all(|(i, &byte)| byte == (i * 3 + index + burst) as u8), "{index}");
            }
        }
        let long = (0..BURST).filter(|index| index % 3 == 1).count() * 2;
        assert_eq!(frames.areas_taken.iter().filter(|&&taken| taken).count(), long);
        assert_eq!(frames.free_messages(), 0);
        frames.reset();
        assert_eq!(frames.free_messages(), BURST * 2);
        frames.lengths[0] = 70_000;
        assert!(frames.locate(0).is_truncated);
    }
}
