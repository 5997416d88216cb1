//! The memory that a part of a batch travels in, and what is where in it. `slots.cu` has the same.

use std::iter;
use std::ops::Range;
use std::sync::Arc;

use portcullis_core::device::chunk::{ChunkLimits, OVERREAD_BYTES, PacketLayout};
use portcullis_core::device::offload::{ChunkView, KernelEffects, VerdictColumns, le_words};
use portcullis_core::device::transfer_planner::{BatchMemory, MemoryReach};
use portcullis_core::device::{DeviceError, Imported};
use portcullis_core::packet::gather::StorePolicy;
use portcullis_core::packet::{Batch, Descriptor, Metadata, RESIZE_ROOM, Span};

use crate::api::Code;
use crate::context::Context;
use crate::device::Gpu;
use crate::memory::{Buffer, DeviceMemory, HostMemory, View, reserve};

/// Bytes of the head of what is given: the address of the memory that packets are in where that is not the slot's, the
/// number of packets, the launch's first packet and its number of packets: little-endian, the address a double word, the rest
/// words.
pub(crate) const HEAD: usize = 32;

/// Each region's parts begin at multiples of this.
fn rounded(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

/// Where the parts of what is given begin: behind the head the descriptors, then these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Given {
    pub metadata: usize,
    pub packets: usize,
    pub end: usize,
}

impl Given {
    /// Of a part with so many descriptors, packets and bytes of those.
    pub fn of(effects: KernelEffects, descriptors: usize, packets: usize, bytes: usize) -> Given {
        let metadata = HEAD + rounded(descriptors * 8);
        let at = metadata + if effects.metadata { rounded(packets * size_of::<Metadata>()) } else { 0 };
        Given { metadata, packets: at, end: at + bytes }
    }
}

/// Where the parts of what is returned begin: the verdicts, then these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Returned {
    pub targets: usize,
    pub ends: usize,
    pub changed: usize,
    pub end: usize,
}

impl Returned {
    pub fn of(effects: KernelEffects, packets: usize, bytes: usize) -> Returned {
        let targets = rounded(packets);
        let ends = targets + if effects.redirects { rounded(packets * 4) } else { 0 };
        let changed = ends + if effects.resizes_packets { rounded(packets * 8) } else { 0 };
        Returned { targets, ends, changed, end: changed + if effects.writes_packets { bytes } else { 0 } }
    }

    /// Bytes of the verdicts and targets.
    pub fn answers(&self) -> usize {
        self.ends
    }
}

/// What a slot has memory for besides what is given and returned on the host's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inside {
    /// What is given: kernels write what they return to the host's memory by themselves.
    Given,
    /// And verdicts and targets, which are copied.
    GivenAndAnswers,
}

/// Memory for a part of a batch, used for part after part.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    given: Option<HostMemory>,
    inside: Option<DeviceMemory>,
    answers: Option<DeviceMemory>,
    returned: Option<HostMemory>,
    /// Of the part that it holds.
    pub given_at: Given,
    pub returned_at: Returned,
    pub packets: usize,
    /// Of the packets that are in the slot.
    pub bytes: usize,
    /// Where the memory begins that packets are in; 0 where that is the slot's.
    pub place: u64,
}

/// What a part takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    given_at: Given,
    returned_at: Returned,
    packets: usize,
    bytes: usize,
    /// Bytes of what the host writes itself.
    written: usize,
    place: u64,
}

impl Shape {
    /// `in_place`: the packets' bytes are copied from where they lie.
    pub fn of<I>(part: &ChunkView<'_, I>, effects: KernelEffects, in_place: bool) -> Shape {
        let bytes = if part.is_copied() { (part.bytes().end - part.bytes().start) as usize } else { 0 };
        let given_at = Given::of(effects, part.descriptor_count(), part.packets(), bytes);
        Shape {
            given_at,
            returned_at: Returned::of(effects, part.packets(), bytes),
            packets: part.packets(),
            bytes,
            written: if in_place { given_at.packets } else { given_at.end },
            place: 0,
        }
    }

    /// Of a part for kernels that answer slots: its packets are in the slot, or in the device's own memory.
    pub fn of_slot(part: &ChunkView<'_, InPlace>, effects: KernelEffects) -> Shape {
        let place = part.import().filter(|_| part.layout() == PacketLayout::InPlace);
        Shape { place: place.map_or(0, |place| place.0), ..Shape::of(part, effects, false) }
    }
}

/// Where the device's own memory begins that a batch's packets are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InPlace(u64);

impl InPlace {
    /// Where kernels that answer slots find a batch's packets: where they are in the device's own memory, and else in the slot.
    ///
    /// In the host's memory too, where the device reaches that: a kernel's reads of a packet depend on each other, and each is
    /// a way over the bus and back, which is more than gathering the packets of a small batch takes the host (some 10 ns each,
    /// docs/design.md, section 7). Of what is gathered everything is read at once.
    pub fn batch_memory(batch: &Batch, device: &str) -> BatchMemory<InPlace> {
        // Kernels count on words, but for filters that move packets anyway.
        let own = View::of(batch.span(), device).filter(|view| view.is_own);
        let reach = if own.is_some() { MemoryReach::DeviceLocal } else { MemoryReach::Unreachable };
        BatchMemory { reach, import: own.map(|view| InPlace(view.address)), word_aligned_only: true, gather_only: true }
    }

    /// How such memory is announced.
    pub fn announced(span: &Span, device: &str) -> Imported {
        let own = View::of(span, device).is_some_and(|view| view.is_own);
        if own { Imported::InPlace } else { Imported::Copied }
    }

    /// What bounds a part of so many packets, and so many bytes where they are in the slot.
    pub fn chunk_limits(layout: PacketLayout, packets: usize, bytes: u64) -> ChunkLimits {
        match layout {
            // Kernels get the memory from its start.
            PacketLayout::InPlace => ChunkLimits { binding: u64::MAX, alignment: 1 << 32, packets },
            _ => ChunkLimits { binding: bytes, alignment: 4, packets },
        }
    }
}

impl Shape {
    /// Bytes of the device's memory for what is given. Filters may look past the last packet, and what they see there
    /// means nothing.
    fn inside(&self) -> usize {
        self.given_at.end + OVERREAD_BYTES as usize
    }
}

impl Slot {
    /// Whether [`Slot::reserve`] has nothing to do.
    pub fn has_room(&self, shape: &Shape, inside: Inside) -> bool {
        fn enough<T: Buffer>(kept: &Option<T>, wanted: usize) -> bool {
            kept.as_ref().is_some_and(|kept| kept.size() >= wanted)
        }
        enough(&self.given, shape.written)
            && enough(&self.inside, shape.inside())
            && (inside == Inside::Given || enough(&self.answers, shape.returned_at.answers()))
            && enough(&self.returned, shape.returned_at.end)
    }

    /// Sees to it that there is room.
    pub fn reserve(&mut self, context: &Arc<Context>, shape: &Shape, inside: Inside) -> Result<(), Code> {
        if !self.has_room(shape, inside) {
            // One quiet time for all of it.
            let _quiet = context.quiet()?;
            reserve(&mut self.inside, shape.inside(), context)?;
            if inside == Inside::GivenAndAnswers {
                reserve(&mut self.answers, shape.returned_at.answers(), context)?;
            }
            reserve(&mut self.given, shape.written, context)?;
            reserve(&mut self.returned, shape.returned_at.end, context)?;
        }
        (self.given_at, self.returned_at) = (shape.given_at, shape.returned_at);
        (self.packets, self.bytes, self.place) = (shape.packets, shape.bytes, shape.place);
        Ok(())
    }

    /// Writes what is given of a part, for which there is room; the packets' bytes only where the shape says so.
    ///
    /// Gives what descriptors' offsets count from, in the packets' bytes: where those are copied from where they lie
    /// and their ends stay, descriptors are given as they are, which is no work.
    ///
    /// # Safety
    /// The device has ended all that was queued with this slot.
    pub unsafe fn write<I>(&mut self, part: &ChunkView<'_, I>, effects: KernelEffects, shape: &Shape) -> u64 {
        let at = self.given_at;
        // SAFETY: nothing is queued that uses it by the caller's promise, and the borrow ends here.
        let to = unsafe { self.given().bytes_mut(0, shape.written) };
        let as_they_are = cfg!(target_endian = "little")
            && matches!(part.layout(), PacketLayout::Copied | PacketLayout::InPlace)
            && !effects.resizes_packets
            && !part.is_ordered();
        if as_they_are {
            let descriptors = bytes_of(part.descriptors());
            to[HEAD..][..descriptors.len()].copy_from_slice(descriptors);
        } else {
            copy_each(part.descriptor_bytes(), &mut to[HEAD..]);
        }
        if effects.metadata {
            copy_each(part.metadata_bytes(), &mut to[at.metadata..]);
        }
        if shape.written == at.end && part.is_copied() {
            part.copy_into(&mut to[at.packets..], StorePolicy::Streamed);
        }
        let packets = self.packets;
        // SAFETY: as above.
        unsafe { self.write_head(0, packets) };
        if as_they_are { part.bytes().start } else { 0 }
    }

    /// Has packets that are in the device's own memory be seen by kernels that run already, whoever has written them.
    pub fn flush(&self, gpu: &Gpu) -> Result<(), DeviceError> {
        let failed = |code| gpu.failed("does not see what was written to its memory", code);
        if self.place == 0 { Ok(()) } else { gpu.flush_remote_writes().map_err(failed) }
    }

    /// Where the bytes of these packets lie among the packets' bytes, rooms included. Packets lie one behind the other.
    pub fn bytes_of(&self, effects: KernelEffects, packets: Range<usize>) -> Range<usize> {
        if self.place != 0 {
            return 0..0;
        }
        let start = |index: usize| {
            if !effects.accesses_packets || index >= self.packets {
                return self.bytes;
            }
            // SAFETY: the device only reads what is given.
            let offset = unsafe { self.given().bytes(HEAD + index * 8, 4) };
            let offset = u32::from_le_bytes([offset[0], offset[1], offset[2], offset[3]]) as usize;
            (offset - if effects.resizes_packets { RESIZE_ROOM as usize } else { 0 }) & !3
        };
        start(packets.start)..start(packets.end)
    }

    /// Writes the head: a launch of `count` packets from `first` on.
    ///
    /// # Safety
    /// The device has ended all that was queued with this slot.
    pub unsafe fn write_head(&mut self, first: usize, count: usize) {
        let words = [self.packets, first, count].map(|word| (word as u32).to_le_bytes());
        // SAFETY: nothing is queued that uses it by the caller's promise, and the borrow ends here.
        let to = unsafe { self.given().bytes_mut(0, HEAD) };
        copy_each(iter::once(self.place.to_le_bytes()), to);
        copy_each(words.into_iter(), &mut to[8..]);
    }

    /// Appends verdicts and targets.
    ///
    /// # Safety
    /// All that was queued to write them has ended.
    pub unsafe fn verdicts(&self, effects: KernelEffects, columns: &mut VerdictColumns) {
        // SAFETY: by the caller's promise.
        unsafe {
            columns.append(self.returned().bytes(0, self.packets).iter().copied());
            if effects.redirects {
                columns.append_targets(le_words(self.returned().bytes(self.returned_at.targets, self.packets * 4)));
            }
        }
    }

    /// The descriptors as the kernel left them.
    ///
    /// # Safety
    /// All that was queued to write them has ended.
    pub unsafe fn ends(&self) -> &[u8] {
        // SAFETY: by the caller's promise.
        unsafe { self.returned().bytes(self.returned_at.ends, self.packets * 8) }
    }

    /// The packets' bytes as the kernel left them.
    ///
    /// # Safety
    /// All that was queued to write them has ended.
    pub unsafe fn changed(&self) -> &[u8] {
        // SAFETY: by the caller's promise.
        unsafe { self.returned().bytes(self.returned_at.changed, self.bytes) }
    }

    pub fn given(&self) -> &HostMemory {
        self.given.as_ref().expect("reserved before it is used")
    }

    pub fn inside(&self) -> &DeviceMemory {
        self.inside.as_ref().expect("reserved before it is used")
    }

    pub fn answers(&self) -> &DeviceMemory {
        self.answers.as_ref().expect("reserved before it is used")
    }

    pub fn returned(&self) -> &HostMemory {
        self.returned.as_ref().expect("reserved before it is used")
    }
}

/// Descriptors in the host's order of bytes.
fn bytes_of(descriptors: &[Descriptor]) -> &[u8] {
    // SAFETY: two words each, without padding between them or behind.
    unsafe { std::slice::from_raw_parts(descriptors.as_ptr().cast(), size_of_val(descriptors)) }
}

/// Writes items one behind the other.
fn copy_each<const N: usize>(items: impl Iterator<Item = [u8; N]>, to: &mut [u8]) {
    for (to, item) in to.chunks_exact_mut(N).zip(items) {
        to.copy_from_slice(&item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: KernelEffects = KernelEffects {
        accesses_packets: true,
        writes_packets: true,
        resizes_packets: true,
        metadata: true,
        redirects: true,
        size: 1,
    };
    const NONE: KernelEffects = KernelEffects {
        accesses_packets: false,
        writes_packets: false,
        resizes_packets: false,
        metadata: false,
        redirects: false,
        size: 1,
    };

    #[test]
    fn regions_are_laid_out_as_the_kernels_think() {
        // By hand, from the comment at the head of slots.cu.
        assert_eq!(Given::of(ALL, 3, 3, 100), Given { metadata: 32 + 32, packets: 64 + 64, end: 128 + 100 });
        assert_eq!(Given::of(ALL, 5, 3, 100), Given { metadata: 32 + 48, packets: 80 + 64, end: 144 + 100 });
        assert_eq!(Given::of(NONE, 3, 3, 0), Given { metadata: 64, packets: 64, end: 64 });
        assert_eq!(Returned::of(ALL, 3, 100), Returned { targets: 16, ends: 32, changed: 64, end: 164 });
        assert_eq!(Returned::of(NONE, 17, 0), Returned { targets: 32, ends: 32, changed: 32, end: 32 });
    }
}
