//! The memory that frames lie in.

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::Arc;

use portcullis_core::packet::{Arena, Span};
use xsk_rs::config::UmemConfig;
use xsk_rs::umem::frame::FrameDesc;

use super::XdpError;
use super::homes::{Place, Slot};

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
        let page = if huge_pages { huge_page() } else { frame_size };
        let all = ((frames as usize + 1) * frame_size).next_multiple_of(page);
        let count =
            u32::try_from(all / frame_size).ok().and_then(NonZeroU32::new).expect("at least one, in less than 8 GiB");
        let (umem, descs) = xsk_rs::umem::Umem::new(config, count, huge_pages)
            .map_err(|error| XdpError::memory(all, huge_pages, &error))?;
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

    /// The frame, with its packet where it began when it was made. A driver may have put one further behind (igc does, behind a
    /// time stamp), and there is less room then.
    pub fn reset(&self, frame: Frame) -> Frame {
        Frame(self.original(frame.address()))
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
            Place::Slot(slot) => slot.memory(),
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

/// Bytes of a huge page, as proc(5) tells. Memory of such pages has to end with one: else munmap(2) does not take it back.
fn huge_page() -> usize {
    std::fs::read_to_string("/proc/meminfo").ok().and_then(|all| huge_page_of(&all)).unwrap_or(2 << 20)
}

fn huge_page_of(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kilobytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10).filter(|size| size.is_power_of_two())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn umem(frames: u32) -> (Umem, Vec<Frame>) {
        let config = UmemConfig::builder().frame_size(2048.try_into().unwrap()).build().unwrap();
        Umem::new(frames, config, false).unwrap()
    }

    #[test]
    fn a_frame_whose_packet_lay_further_behind_gets_its_room_back() {
        let (umem, _) = umem(2);
        let config = UmemConfig::builder().frame_size(2048.try_into().unwrap()).frame_headroom(16).build().unwrap();
        let (_, mut further) = Umem::new(2, config, false).unwrap();
        let frame = further.pop().unwrap();
        assert_eq!((frame.address(), umem.room(&frame)), (2048 + HEADROOM + 16, 2048 - HEADROOM - 16));
        let frame = umem.reset(frame);
        assert_eq!((frame.address(), umem.room(&frame)), (2048 + HEADROOM, 2048 - HEADROOM));
    }

    #[test]
    fn the_size_of_huge_pages_is_read() {
        let text = "HugePages_Free:        0\nHugepagesize:       2048 kB\nHugetlb:               0 kB\n";
        assert_eq!(huge_page_of(text), Some(2 << 20));
        assert_eq!(huge_page_of("Hugepagesize:    1048576 kB"), Some(1 << 30));
        for text in ["", "Hugepagesize:", "Hugepagesize: 0 kB", "Hugepagesize: 3 kB", "Hugepagesize: x kB"] {
            assert_eq!(huge_page_of(text), None, "{text}");
        }
        assert!(huge_page().is_power_of_two());
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
