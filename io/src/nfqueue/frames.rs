//! The memory that messages are received into, and that packets stay in.
//!
//! ```text
//! slot:  room · message's header and attributes · packet ·· room
//!                                  Ethernet ──┘ the last 14 bytes of the attributes
//! area:  room · as long as a slot's message · what does not fit into a slot ·· room
//! ```
//!
//! Most packets are no longer than an Ethernet link takes, and the kernel's own segments have up to 64 KiB. Slots for those
//! would spread the others over as much memory. So a slot takes the former. The end of a longer message is received into an
//! area, right behind where the message's beginning is then copied from its slot: one copy of 2 KiB, whatever the length.

use std::io;

use portcullis_core::packet::{Arena, RESIZE_ROOM, ResizeRoom};

use super::socket::{BURST, Socket};

/// Bytes of a message in front of its packet, at the most. The kernel's need about 140, those of a bridge 60 more; where it
/// were more after all, a message would be longer than its slot sooner.
const BEFORE_PACKET: usize = 256;

/// A message's bytes in a slot: a packet of 1,500 bytes with everything before it.
const BEGINNING: usize = 1984;

/// The most areas: 16 MiB of packets are enough for a batch.
const MAX_AREAS: usize = 256;

/// How an arena is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    slots: usize,
    areas: usize,
    margin: usize,
    beginning: usize,
    rest: usize,
    slot_stride: usize,
    area_stride: usize,
}

impl Layout {
    /// For so many packets, of which messages have so many bytes at most.
    pub fn new(slots: usize, room: ResizeRoom, packet: usize) -> Layout {
        let message = (BEFORE_PACKET + packet).next_multiple_of(4);
        let margin = if room == ResizeRoom::Both { RESIZE_ROOM as usize } else { 0 };
        let beginning = message.min(BEGINNING);
        let rest = message - beginning;
        let areas = if rest > 0 { slots.min(MAX_AREAS) } else { 0 };
        let stride = |bytes: usize| ((bytes + 2 * margin).div_ceil(64) | 1) * 64;
        let (slot_stride, area_stride) = (stride(beginning), stride(beginning + rest));
        Layout { slots, areas, margin, beginning, rest, slot_stride, area_stride }
    }

    /// Bytes of an arena.
    pub fn arena(&self) -> usize {
        self.slots.saturating_mul(self.slot_stride).saturating_add(self.areas * self.area_stride)
    }
}

/// An arena that is being filled.
#[derive(Debug)]
pub(super) struct Frames {
    layout: Layout,
    arena: Arena,
    slots_taken: usize,
    /// Which areas have the end of a message.
    areas_taken: Vec<bool>,
    /// The lengths of the messages that were received last, and the areas that there were for them.
    lengths: [usize; BURST],
    areas: [usize; BURST],
}

/// Where a message lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageLocation {
    /// Its first byte.
    pub start: usize,
    /// The bytes that there are.
    pub length: usize,
    /// Whether it had more.
    pub is_cut: bool,
    /// Whether it was in two pieces.
    pub was_split: bool,
}

impl Frames {
    /// Makes use of an arena of [`Layout::arena`] bytes.
    pub fn new(layout: Layout, arena: Arena) -> Frames {
        let areas_taken = vec![false; layout.areas];
        Frames { layout, arena, slots_taken: 0, areas_taken, lengths: [0; BURST], areas: [0; BURST] }
    }

    /// Gives the arena up.
    pub fn into_arena(self) -> Arena {
        self.arena
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.arena
    }

    /// How many more messages there is room for, whatever their lengths.
    pub fn left(&self) -> usize {
        let slots = self.layout.slots - self.slots_taken;
        if self.layout.rest == 0 {
            return slots;
        }
        slots.min(self.areas_taken.iter().filter(|&&taken| !taken).count())
    }

    /// Makes all of the arena free again.
    pub fn reset(&mut self) {
        self.slots_taken = 0;
        self.areas_taken.fill(false);
    }

    /// Receives up to `most` messages; gives how many.
    pub fn receive(&mut self, socket: &Socket, most: usize) -> io::Result<usize> {
        let layout = self.layout;
        let most = most.min(self.left()).min(BURST);
        let (slots, areas) = self.arena.split_at_mut(layout.slots * layout.slot_stride);
        let beginnings = slots.chunks_exact_mut(layout.slot_stride).skip(self.slots_taken);
        let beginnings = beginnings.map(|slot| &mut slot[layout.margin..][..layout.beginning]);
        let free = areas.chunks_exact_mut(layout.area_stride).zip(&self.areas_taken).enumerate();
        let free = free.filter(|(_, (_, taken))| !**taken);
        let mut noted = self.areas.iter_mut();
        let rests = free.map(|(number, (area, _))| {
            if let Some(noted) = noted.next() {
                *noted = number;
            }
            &mut area[layout.margin + layout.beginning..][..layout.rest]
        });
        // Without areas there are as many empty ends as are asked for.
        let rests = rests.chain(std::iter::repeat_with(|| &mut [][..]));
        let places = beginnings.zip(rests).take(most).map(|(beginning, rest)| [beginning, rest]);
        socket.take(places, &mut self.lengths)
    }

    /// Where message `index` of those lies that were received last, now in one piece. To be asked for each once, in order.
    pub fn place(&mut self, index: usize) -> MessageLocation {
        let layout = self.layout;
        let length = self.lengths[index];
        let slot = self.slots_taken * layout.slot_stride + layout.margin;
        self.slots_taken += 1;
        if length <= layout.beginning || layout.rest == 0 {
            let is_cut = length > layout.beginning;
            return MessageLocation { start: slot, length: length.min(layout.beginning), is_cut, was_split: false };
        }
        let area = self.areas[index];
        self.areas_taken[area] = true;
        let start = layout.slots * layout.slot_stride + area * layout.area_stride + layout.margin;
        self.arena.copy_within(slot..slot + layout.beginning, start);
        let there = layout.beginning + layout.rest;
        MessageLocation { start, length: length.min(there), is_cut: length > there, was_split: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_in_the_arena_and_apart() {
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
                taken.push((start, start + margin + layout.beginning + margin));
            }
            for area in 0..layout.areas {
                let start = slots * layout.slot_stride + area * layout.area_stride;
                taken.push((start, start + margin + BEFORE_PACKET + packet + margin));
            }
            assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{layout:?}");
            assert!(taken.last().unwrap().1 <= layout.arena(), "{layout:?}");
            assert!(taken.iter().all(|place| place.0 % 64 == 0), "{layout:?}");
            assert!(!layout.slot_stride.is_power_of_two() && !layout.area_stride.is_power_of_two());
            assert_eq!(layout.beginning + layout.rest, (BEFORE_PACKET + packet).next_multiple_of(4));
        }
    }

    #[test]
    fn ends_join_their_beginnings_and_take_only_the_areas_that_they_need() {
        let layout = Layout::new(BURST * 2, ResizeRoom::Both, 65_531);
        let mut frames = Frames::new(layout, Arena::new(layout.arena()).unwrap());
        let areas = layout.areas;
        for burst in 0..2 {
            // What the system would have written.
            let mut free = (0..areas).filter(|area| !frames.areas_taken[*area]).collect::<Vec<_>>().into_iter();
            for index in 0..BURST {
                let length = if index % 3 == 1 { 40_000 + index } else { 100 + index };
                frames.lengths[index] = length;
                frames.areas[index] = free.next().unwrap();
                let slot = (burst * BURST + index) * layout.slot_stride + layout.margin;
                let area = layout.slots * layout.slot_stride + frames.areas[index] * layout.area_stride;
                let message: Vec<u8> = (0..length).map(|i| (i * 3 + index + burst) as u8).collect();
                let (beginning, rest) = message.split_at(length.min(layout.beginning));
                frames.arena[slot..slot + beginning.len()].copy_from_slice(beginning);
                frames.arena[area + layout.margin + layout.beginning..][..rest.len()].copy_from_slice(rest);
            }
            let mut places = Vec::new();
            for index in 0..BURST {
                let received = frames.place(index);
                assert_eq!(received.was_split, index % 3 == 1);
                assert!(!received.is_cut);
                places.push(received);
            }
            for (index, received) in places.into_iter().enumerate() {
                let bytes = &frames.bytes()[received.start..received.start + received.length];
                assert!(bytes.iter().enumerate().all(|(i, &byte)| byte == (i * 3 + index + burst) as u8), "{index}");
            }
        }
        let long = (0..BURST).filter(|index| index % 3 == 1).count() * 2;
        assert_eq!(frames.areas_taken.iter().filter(|&&taken| taken).count(), long);
        assert_eq!(frames.left(), 0);
        frames.reset();
        assert_eq!(frames.left(), BURST * 2);
        frames.lengths[0] = 70_000;
        assert!(frames.place(0).is_cut);
    }
}
