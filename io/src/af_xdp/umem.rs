//! The memory that frames lie in, and who has which of them.

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_core::packet::{Arena, Descriptor, Metadata, ROOM, Span};
use xsk_rs::config::UmemConfig;
use xsk_rs::umem::frame::FrameDesc;

use super::XdpError;

/// Bytes that the kernel leaves free before a frame it has received (`XDP_PACKET_HEADROOM`, `linux/bpf.h`).
pub(crate) const HEADROOM: usize = 256;

/// A frame of a UMEM. Whoever has it has its memory: there is one for each piece of memory, and giving it to a ring is giving
/// it up, until the ring gives it back.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Frame(FrameDesc);

impl Frame {
    /// A frame that a ring gave back.
    ///
    /// # Safety
    /// The kernel has let go of it, and nobody has it yet.
    pub unsafe fn returned(desc: FrameDesc) -> Frame {
        Frame(desc)
    }

    /// Where its packet begins, in bytes from the UMEM's first.
    pub fn address(&self) -> usize {
        self.0.addr()
    }

    /// For a ring, which has it then.
    pub fn give(self) -> FrameDesc {
        self.0
    }

    /// For a ring, which has as many of them as it says it has taken; those are to be forgotten.
    pub fn lend(frames: &[Frame]) -> &[FrameDesc] {
        // SAFETY: a frame is its description, and nothing else.
        unsafe { &*(std::ptr::from_ref(frames) as *const [FrameDesc]) }
    }
}

/// A UMEM: frames of one size in one piece of memory, which all sockets of a run share, so that a packet that came in by one
/// goes out by another without a copy.
#[derive(Debug)]
pub(crate) struct Umem {
    umem: xsk_rs::umem::Umem,
    span: Arc<Span>,
    frame_size: usize,
    /// Each frame as it was made.
    originals: Box<[FrameDesc]>,
}

impl Umem {
    /// One with this many frames, which have a power of two of bytes each (2,048 or 4,096).
    pub fn new(frames: u32, config: UmemConfig, huge_pages: bool) -> Result<(Umem, Vec<Frame>), XdpError> {
        let frame_size = config.frame_size().get() as usize;
        // One frame more, which nobody gets: what is behind the last one can be read.
        let all = NonZeroU32::new(frames + 1).expect("at least one");
        let (umem, descs) = xsk_rs::umem::Umem::new(config, all, huge_pages)
            .map_err(|error| XdpError::memory(frames as usize * frame_size, huge_pages, &error))?;
        let first = &descs[0];
        // SAFETY: it is a frame of this UMEM, and nobody has written to it or read it yet.
        let data = unsafe { umem.data(first) };
        let start = data.contents().as_ptr().cast_mut().wrapping_sub(first.addr());
        let start = NonNull::new(start).expect("memory that is mapped");
        let len = frames as usize * frame_size;
        // SAFETY: this is the mapping of the UMEM, whose pages are aligned and zeroed, and which stays until the clone goes.
        // Through the arena nobody looks at it: only its span is used, and through that only frames that somebody has.
        let arena = unsafe { Arena::from_raw_parts(start, len, len + frame_size, Box::new(umem.clone())) };
        let span = arena.map_err(|error| XdpError::TooMuchMemory { error })?.span().clone();
        let originals: Box<[FrameDesc]> = descs.into_iter().take(frames as usize).collect();
        let frames = originals.iter().copied().map(Frame).collect();
        Ok((Umem { umem, span, frame_size, originals }, frames))
    }

    /// For sockets.
    pub fn inner(&self) -> &xsk_rs::umem::Umem {
        &self.umem
    }

    /// The memory, as batches have it.
    pub fn span(&self) -> &Arc<Span> {
        &self.span
    }

    /// The bytes of a frame, all of them a packet's but for the headroom.
    pub fn frame_size(&self) -> usize {
        self.frame_size
    }

    /// The number of a frame.
    pub fn number(&self, frame: &Frame) -> usize {
        frame.address() / self.frame_size
    }

    /// The frame that has this byte of the UMEM, as it was when it was made, for a [`Frame`] that a ring gives back.
    pub fn original(&self, address: usize) -> FrameDesc {
        self.originals[address / self.frame_size]
    }

    /// Bytes from where the frame's packet begins to its end.
    pub fn room(&self, frame: &Frame) -> usize {
        self.frame_size - frame.address() % self.frame_size
    }

    /// The frame as a ring for sending takes it, with a packet of these many bytes from its address on. Longer ones than it
    /// has [room](Umem::room) for are cut.
    pub fn packet(&self, frame: Frame, length: usize) -> FrameDesc {
        let mut desc = frame.give();
        desc.set_options(0);
        // SAFETY: the frame is ours, so that nobody else looks at its bytes.
        unsafe { self.umem.data_mut(&mut desc) }.cursor().set_pos(length);
        desc
    }

    /// Moves bytes that lie in the frame so that they begin where its packet does; more than it has [room](Umem::room) for
    /// are cut.
    pub fn settle(&self, frame: &Frame, offset: usize, length: usize) {
        let start = self.number(frame) * self.frame_size;
        let end = start + self.frame_size;
        assert!(start <= offset && offset + length <= end, "outside of the frame");
        let length = length.min(self.room(frame));
        if offset != frame.address() {
            // SAFETY: both are in the frame, which is ours.
            unsafe {
                let base = self.span.as_ptr();
                std::ptr::copy(base.add(offset), base.add(frame.address()), length);
            }
        }
    }

    /// Writes bytes of the packet that is put together in a slot, from its byte `at` on.
    ///
    /// # Panics
    /// When the slot has no room for them.
    pub fn write(&self, slot: &mut Slot, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= slot.capacity(), "outside of the slot");
        // SAFETY: the bytes are the slot's, which is ours for as long as it is borrowed, and no frame's that somebody else has.
        unsafe { self.span.as_ptr().add(slot.address() + at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// The bytes of the packet that was put together in a slot, this many.
    ///
    /// # Panics
    /// When the slot has no room for them.
    pub fn slot_bytes_mut<'a>(&'a self, slot: &'a mut Slot, length: usize) -> &'a mut [u8] {
        assert!(length <= slot.capacity(), "outside of the slot");
        // SAFETY: the bytes are the slot's, which is ours for as long as it is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.span.as_ptr().add(slot.address()), length) }
    }

    /// The frame's bytes from its address on.
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        // SAFETY: the bytes are the frame's, which is ours for as long as it is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.span.as_ptr().add(frame.address()), self.room(frame)) }
    }

    /// Bytes that lie anywhere in a packet's memory.
    ///
    /// # Panics
    /// When they are not all in it.
    pub fn place_bytes<'a>(&'a self, place: &'a Place, offset: usize, length: usize) -> &'a [u8] {
        self.check(place, offset, length);
        // SAFETY: the bytes are the place's, which is ours for as long as it is borrowed, and nobody writes to it meanwhile.
        unsafe { std::slice::from_raw_parts(self.span.as_ptr().add(offset), length) }
    }

    /// The same, for writing.
    ///
    /// # Panics
    /// When they are not all in it.
    pub fn place_bytes_mut<'a>(&'a self, place: &'a mut Place, offset: usize, length: usize) -> &'a mut [u8] {
        self.check(place, offset, length);
        // SAFETY: the bytes are the place's, which is ours alone for as long as it is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.span.as_ptr().add(offset), length) }
    }

    fn check(&self, place: &Place, offset: usize, length: usize) {
        let (start, size) = match place {
            Place::Slot(slot) => (slot.start, slot.length),
            Place::Frame(frame) => (self.number(frame) * self.frame_size, self.frame_size),
        };
        assert!(start <= offset && offset + length <= start + size, "outside of the packet's memory");
    }

    /// The frame's bytes from its address on, this many.
    ///
    /// # Panics
    /// When the frame has fewer.
    pub fn bytes<'a>(&'a self, frame: &'a Frame, length: usize) -> &'a [u8] {
        assert!(length <= self.room(frame), "outside of the frame");
        // SAFETY: the bytes are the frame's, which is ours for as long as it is borrowed, and nobody writes to it meanwhile.
        unsafe { std::slice::from_raw_parts(self.span.as_ptr().add(frame.address()), length) }
    }
}

/// Frames side by side that hold one packet which came in several, as a filter sees a packet in one piece. Nobody gives
/// them to a ring.
#[derive(Debug)]
pub(crate) struct Slot {
    frames: Vec<Frame>,
    start: usize,
    length: usize,
}

impl Slot {
    /// Out of frames that lie side by side, in this order.
    fn new(frames: Vec<Frame>, frame_size: usize) -> Slot {
        let first = frames[0].address() / frame_size;
        assert!(frames.iter().enumerate().all(|(n, frame)| frame.address() / frame_size == first + n), "side by side");
        let (start, length) = (first * frame_size, frames.len() * frame_size);
        Slot { frames, start, length }
    }

    /// Where a packet begins that has room on both sides, in bytes from the UMEM's first.
    pub fn address(&self) -> usize {
        self.start + ROOM as usize
    }

    /// Bytes that a packet may have which has room on both sides.
    pub fn capacity(&self) -> usize {
        self.length - 2 * ROOM as usize
    }
}

/// The memory of a packet.
#[derive(Debug)]
pub(crate) enum Place {
    /// The frame in which it came.
    Frame(Frame),
    /// Where it was put together.
    Slot(Slot),
}

/// Where memory goes that nobody needs: to the lane that it belongs to, which gives frames to its fill rings again.
#[derive(Debug)]
pub(crate) struct Homes {
    frame_size: usize,
    per_lane: usize,
    lanes: Vec<Mutex<Home>>,
}

#[derive(Debug, Default)]
struct Home {
    frames: Vec<Frame>,
    slots: Vec<Slot>,
    lists: Vec<Lists>,
}

/// What batches are made of. Those of batches that are through are empty, and as long as a batch was: for the next ones.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub descriptors: Vec<Descriptor>,
    pub metadata: Vec<Metadata>,
    pub places: Vec<Place>,
    /// By which of the lane's queues each came; empty where the lane has one.
    pub queues: Vec<u16>,
}

impl Homes {
    /// For this many lanes, which have the same number of frames each, the first of them the first. Of these, `slots` times
    /// `slot_frames` are side by side for packets that come in several.
    pub fn new(frames: Vec<Frame>, lanes: usize, slots: usize, slot_frames: usize, frame_size: usize) -> Homes {
        let per_lane = frames.len() / lanes;
        assert!(slots * slot_frames < per_lane, "a lane has frames that are in no slot");
        let mut frames = frames.into_iter();
        let lanes = (0..lanes).map(|_| {
            let mut slot = || Slot::new(frames.by_ref().take(slot_frames).collect(), frame_size);
            let slots: Vec<_> = (0..slots).map(|_| slot()).collect();
            let frames = frames.by_ref().take(per_lane - slots.len() * slot_frames).collect();
            Mutex::new(Home { frames, slots, lists: Vec::new() })
        });
        // What is left over by the division is nobody's.
        Homes { frame_size, per_lane, lanes: lanes.collect() }
    }

    /// Brings memory home.
    pub fn put(&self, places: impl IntoIterator<Item = Place>) {
        let mut open: Option<(usize, MutexGuard<'_, Home>)> = None;
        for place in places {
            let address = match &place {
                Place::Frame(frame) => frame.address(),
                Place::Slot(slot) => slot.start,
            };
            let lane = address / self.frame_size / self.per_lane;
            if open.as_ref().is_none_or(|(at, _)| *at != lane) {
                // The lock of the one before goes first: whoever holds two would need an order.
                drop(open.take());
                open = Some((lane, self.lock(lane)));
            }
            let Some((_, home)) = &mut open else { unreachable!("set above") };
            match place {
                Place::Frame(frame) => home.frames.push(frame),
                Place::Slot(slot) => home.slots.push(slot),
            }
        }
    }

    /// Takes up to `most` frames that are at home.
    pub fn take(&self, lane: usize, most: usize, into: &mut Vec<Frame>) {
        let frames = &mut self.lock(lane).frames;
        let from = frames.len() - most.min(frames.len());
        into.extend(frames.drain(from..));
    }

    /// Takes a slot, if one is at home.
    pub fn take_slot(&self, lane: usize) -> Option<Slot> {
        self.lock(lane).slots.pop()
    }

    /// Takes lists, with nothing in them.
    pub fn take_lists(&self, lane: usize) -> Lists {
        self.lock(lane).lists.pop().unwrap_or_default()
    }

    /// Brings lists home. What is in them is forgotten, but for memory, which goes home, too.
    pub fn put_lists(&self, lane: usize, mut lists: Lists) {
        self.put(lists.places.drain(..));
        lists.descriptors.clear();
        lists.metadata.clear();
        lists.queues.clear();
        self.lock(lane).lists.push(lists);
    }

    /// Frames that a lane has, wherever they are.
    pub fn per_lane(&self) -> usize {
        self.per_lane
    }

    /// Frames that lanes have in all, wherever they are.
    pub fn all(&self) -> usize {
        self.per_lane * self.lanes.len()
    }

    /// Frames that are at home, those of slots included.
    pub fn count(&self) -> usize {
        let of = |home: &Home| home.frames.len() + home.slots.iter().map(|slot| slot.frames.len()).sum::<usize>();
        (0..self.lanes.len()).map(|lane| of(&self.lock(lane))).sum()
    }

    fn lock(&self, lane: usize) -> MutexGuard<'_, Home> {
        // A list is a list whoever died while it was locked.
        self.lanes[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of a batch's packets: the batch's companion.
#[derive(Debug)]
pub(crate) struct Held {
    /// One a packet.
    places: Vec<Place>,
    /// By which of the lane's queues each came; empty where the lane has one.
    queues: Vec<u16>,
    homes: Arc<Homes>,
}

impl Held {
    pub fn new(places: Vec<Place>, queues: Vec<u16>, homes: Arc<Homes>) -> Held {
        Held { places, queues, homes }
    }

    /// What it holds, which no longer goes home by itself.
    pub fn take(mut self) -> (Vec<Place>, Vec<u16>) {
        (std::mem::take(&mut self.places), std::mem::take(&mut self.queues))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.homes.put(self.places.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn umem(frames: u32) -> (Umem, Vec<Frame>) {
        let config = UmemConfig::builder().frame_size(2048.try_into().unwrap()).build().unwrap();
        Umem::new(frames, config, false).unwrap()
    }

    #[test]
    fn memory_goes_home_to_its_lane() {
        let (umem, frames) = umem(13);
        assert_eq!(umem.span().len(), 13 * 2048);
        let homes = Arc::new(Homes::new(frames, 2, 1, 2, umem.frame_size()));
        assert_eq!((homes.all(), homes.count()), (12, 12));
        let (mut first, mut second) = (Vec::new(), Vec::new());
        homes.take(0, 10, &mut first);
        homes.take(1, 3, &mut second);
        assert_eq!((first.len(), second.len(), homes.count()), (4, 3, 5));
        let numbers = |frames: &[Frame]| frames.iter().map(|frame| umem.number(frame)).collect::<Vec<_>>();
        assert_eq!(numbers(&first), [2, 3, 4, 5]);
        assert_eq!(numbers(&second), [9, 10, 11]);
        let slot = homes.take_slot(1).unwrap();
        assert_eq!((slot.address(), slot.capacity()), (6 * 2048 + 128, 4096 - 256));
        assert!(homes.take_slot(1).is_none());
        // Mixed, and in a batch that is dropped.
        let mixed = [first.pop().unwrap(), second.pop().unwrap(), first.pop().unwrap()].map(Place::Frame);
        let mixed = mixed.into_iter().chain([Place::Slot(slot)]).collect();
        drop(Held::new(mixed, vec![], homes.clone()));
        assert_eq!(homes.count(), 8);
        let mut again = Vec::new();
        homes.take(0, 10, &mut again);
        assert_eq!(numbers(&again), [5, 4]);
        assert!(homes.take_slot(1).is_some());
        let held = Held::new(first.into_iter().map(Place::Frame).collect(), vec![7], homes.clone());
        let (places, queues) = held.take();
        assert_eq!((places.len(), queues.as_slice(), homes.count()), (2, &[7][..], 4));
    }

    #[test]
    fn lists_come_back_empty_and_what_was_in_them_goes_home() {
        let (umem, frames) = umem(4);
        let homes = Homes::new(frames, 1, 0, 1, umem.frame_size());
        let mut lists = homes.take_lists(0);
        let mut frames = Vec::new();
        homes.take(0, 3, &mut frames);
        lists.places.extend(frames.into_iter().map(Place::Frame));
        lists.descriptors.resize(3, Descriptor::default());
        lists.metadata.resize(3, Metadata::default());
        lists.queues.resize(3, 1);
        assert_eq!(homes.count(), 1);
        homes.put_lists(0, lists);
        assert_eq!(homes.count(), 4);
        let Lists { descriptors, metadata, places, queues } = homes.take_lists(0);
        assert_eq!((descriptors.len(), metadata.len(), places.len(), queues.len()), (0, 0, 0, 0));
        let room = [descriptors.capacity(), metadata.capacity(), places.capacity(), queues.capacity()];
        assert!(room.iter().all(|room| *room >= 3), "{room:?}");
    }

    #[test]
    fn a_packet_is_moved_to_where_its_frame_begins() {
        let (umem, mut frames) = umem(2);
        let mut frame = frames.pop().unwrap();
        assert_eq!((frame.address(), umem.room(&frame)), (2048 + HEADROOM, 2048 - HEADROOM));
        let at = frame.address();
        for (index, byte) in umem.bytes_mut(&mut frame).iter_mut().enumerate() {
            *byte = index as u8;
        }
        umem.settle(&frame, at + 4, 60);
        let want: Vec<u8> = (4..64).collect();
        assert_eq!(umem.bytes(&frame, 60), want);
        // From the headroom, to the frame's end and no further.
        umem.settle(&frame, 2048, 2048);
        assert_eq!(&umem.bytes(&frame, 300)[..HEADROOM], [0; HEADROOM]);
        assert_eq!(umem.bytes(&frame, 300)[HEADROOM..][..4], [4, 5, 6, 7]);
        let desc = umem.packet(frame, 99);
        assert_eq!((desc.addr(), desc.lengths().data()), (at, 99));
    }
}
