//! The UMEM and access to its frames.

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::Arc;

use portcullis_core::packet::{Arena, RESIZE_ROOM, Span};
use xsk_rs::config::UmemConfig;
use xsk_rs::umem::frame::FrameDesc;

use super::XdpError;

/// Bytes that the kernel leaves free before a received packet (`XDP_PACKET_HEADROOM`,
/// `linux/bpf.h`).
pub(crate) const HEADROOM: usize = 256;

/// A frame of a UMEM and exclusive ownership of its memory. There is one `Frame` per frame; passing
/// it to a ring gives up ownership until the ring returns it.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Frame(FrameDesc);

impl Frame {
    /// Takes over a frame that a ring has returned.
    ///
    /// # Safety
    /// The kernel must have released the frame, and no other `Frame` may exist for it.
    pub unsafe fn from_ring(desc: FrameDesc) -> Frame {
        Frame(desc)
    }

    /// Offset of the packet in the UMEM in bytes.
    pub fn address(&self) -> usize {
        self.0.addr()
    }

    /// Gives up the frame to a ring.
    pub fn into_descriptor(self) -> FrameDesc {
        self.0
    }

    /// Descriptors to offer to a ring. The caller has to forget the frames that the ring accepts.
    pub fn as_descriptors(frames: &[Frame]) -> &[FrameDesc] {
        // SAFETY: `Frame` is a transparent wrapper of the descriptor.
        unsafe { &*(std::ptr::from_ref(frames) as *const [FrameDesc]) }
    }
}

/// Contiguous frames into which the fragments of one multi-buffer packet are copied, so that a
/// filter sees the packet as one range. Its frames are never posted to a ring.
#[derive(Debug)]
pub(crate) struct ReassemblyBuffer {
    frames: Vec<Frame>,
    start: usize,
    len: usize,
}

impl ReassemblyBuffer {
    /// # Panics
    ///
    /// If `frames` are not contiguous and in ascending order.
    pub fn new(frames: Vec<Frame>, frame_size: usize) -> ReassemblyBuffer {
        let first = frames[0].address() / frame_size;
        let contiguous = frames.iter().enumerate().all(|(i, frame)| frame.address() / frame_size == first + i);
        assert!(contiguous, "the frames of a reassembly buffer are contiguous");
        let (start, len) = (first * frame_size, frames.len() * frame_size);
        ReassemblyBuffer { frames, start, len }
    }

    /// Start and length in bytes; the start counts from the beginning of the UMEM.
    pub fn memory(&self) -> (usize, usize) {
        (self.start, self.len)
    }

    /// Number of frames.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// Byte address at which a packet starts when it is given headroom.
    pub fn address(&self) -> usize {
        self.start + RESIZE_ROOM as usize
    }

    /// Longest packet, in bytes, that fits between headroom and tailroom.
    pub fn capacity(&self) -> usize {
        self.len - 2 * RESIZE_ROOM as usize
    }
}

/// The memory that holds one packet.
#[derive(Debug)]
pub(crate) enum PacketMemory {
    /// The frame that the kernel received it into.
    Frame(Frame),
    /// The buffer that its fragments were copied into.
    Reassembled(ReassemblyBuffer),
}

/// A UMEM: memory divided into frames of equal size, shared by all sockets of a run, so that
/// packets are forwarded between them without a copy.
#[derive(Debug)]
pub(crate) struct Umem {
    umem: xsk_rs::umem::Umem,
    span: Arc<Span>,
    frame_size: usize,
    /// Initial descriptor of each frame.
    initial_descriptors: Box<[FrameDesc]>,
}

impl Umem {
    /// Allocates a UMEM of `frames` frames; their size is a power of two (2,048 or 4,096 bytes).
    pub fn new(frames: u32, config: UmemConfig, huge_pages: bool) -> Result<(Umem, Vec<Frame>), XdpError> {
        let frame_size = config.frame_size().get() as usize;
        // One unused frame more, because filters may read past the end of the last packet.
        let page = if huge_pages { huge_page() } else { frame_size };
        let all = ((frames as usize + 1) * frame_size).next_multiple_of(page);
        let count =
            u32::try_from(all / frame_size).ok().and_then(NonZeroU32::new).expect("at least one, in less than 8 GiB");
        let (umem, descs) = xsk_rs::umem::Umem::new(config, count, huge_pages)
            .map_err(|error| XdpError::memory(all, huge_pages, &error))?;
        let first = &descs[0];
        // SAFETY: the frame belongs to this UMEM, and nothing accesses it yet.
        let data = unsafe { umem.data(first) };
        let start = data.contents().as_ptr().cast_mut().wrapping_sub(first.addr());
        let start = NonNull::new(start).expect("memory that is mapped");
        let len = frames as usize * frame_size;
        // SAFETY: the mapping of the UMEM is page-aligned and zeroed, and lives as long as the
        // clone. Nothing is accessed through the arena itself: only its span is used, and only for
        // frames that the user owns.
        let arena = unsafe { Arena::from_raw_parts(start, len, len + frame_size, Box::new(umem.clone())) };
        let span = arena.map_err(|error| XdpError::TooMuchMemory { error })?.span().clone();
        let initial_descriptors: Box<[FrameDesc]> = descs.into_iter().take(frames as usize).collect();
        let frames = initial_descriptors.iter().copied().map(Frame).collect();
        Ok((Umem { umem, span, frame_size, initial_descriptors }, frames))
    }

    /// The library's UMEM, for creating sockets.
    pub fn inner(&self) -> &xsk_rs::umem::Umem {
        &self.umem
    }

    /// The memory as batches refer to it.
    pub fn span(&self) -> &Arc<Span> {
        &self.span
    }

    /// Size of a frame in bytes, headroom included.
    pub fn frame_size(&self) -> usize {
        self.frame_size
    }

    /// Index of a frame.
    pub fn index(&self, frame: &Frame) -> usize {
        frame.address() / self.frame_size
    }

    /// Returns the initial descriptor of the frame that contains this UMEM offset.
    pub fn initial_descriptor(&self, address: usize) -> FrameDesc {
        self.initial_descriptors[address / self.frame_size]
    }

    /// Resets a frame to its initial packet offset. A driver may have moved it and so reduced the
    /// room (igc does, for a hardware timestamp).
    pub fn reset(&self, frame: Frame) -> Frame {
        Frame(self.initial_descriptor(frame.address()))
    }

    /// Bytes from the frame's packet offset to its end.
    pub fn room(&self, frame: &Frame) -> usize {
        self.frame_size - frame.address() % self.frame_size
    }

    /// Returns the TX descriptor of a packet of `length` bytes at the frame's packet offset,
    /// truncated to its [room](Umem::room).
    pub fn packet(&self, frame: Frame, length: usize) -> FrameDesc {
        let mut desc = frame.into_descriptor();
        desc.set_options(0);
        // SAFETY: the frame is owned by the caller, so nothing else accesses its bytes.
        unsafe { self.umem.data_mut(&mut desc) }.cursor().set_pos(length);
        desc
    }

    /// Moves `length` bytes at UMEM offset `offset` in the frame to its packet offset, truncated to
    /// its [room](Umem::room).
    pub fn move_to_packet_offset(&self, frame: &Frame, offset: usize, length: usize) {
        let start = self.index(frame) * self.frame_size;
        let end = start + self.frame_size;
        assert!(start <= offset && offset + length <= end, "the bytes lie outside of the frame");
        let length = length.min(self.room(frame));
        if offset != frame.address() {
            // SAFETY: both ranges lie in the frame, which the caller owns.
            unsafe {
                let base = self.span.as_ptr();
                std::ptr::copy(base.add(offset), base.add(frame.address()), length);
            }
        }
    }

    /// Writes `bytes` at offset `at` of the packet in a reassembly buffer.
    ///
    /// # Panics
    /// If the buffer has no room for them.
    pub fn write(&self, buffer: &mut ReassemblyBuffer, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= buffer.capacity(), "the bytes exceed the reassembly buffer");
        // SAFETY: the range lies in the buffer, which is borrowed mutably, and in no other owner's
        // frame.
        unsafe { self.span.as_ptr().add(buffer.address() + at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// The first `length` bytes of the packet in a reassembly buffer.
    ///
    /// # Panics
    /// If the buffer has fewer.
    pub fn reassembled_bytes_mut<'a>(&'a self, buffer: &'a mut ReassemblyBuffer, length: usize) -> &'a mut [u8] {
        assert!(length <= buffer.capacity(), "the bytes exceed the reassembly buffer");
        // SAFETY: the range lies in the buffer, which is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.span.as_ptr().add(buffer.address()), length) }
    }

    /// The frame's bytes from the packet offset on.
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        // SAFETY: the range lies in the frame, which is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.span.as_ptr().add(frame.address()), self.room(frame)) }
    }

    /// A range of a packet's memory, given by UMEM offset and length.
    ///
    /// # Panics
    /// If the range is not within that memory.
    pub fn packet_bytes<'a>(&'a self, memory: &'a PacketMemory, offset: usize, length: usize) -> &'a [u8] {
        self.check_range(memory, offset, length);
        // SAFETY: the range lies in the packet's memory, which is borrowed, so nothing writes to
        // it.
        unsafe { std::slice::from_raw_parts(self.span.as_ptr().add(offset), length) }
    }

    /// Mutable range of a packet's memory, given by UMEM offset and length.
    ///
    /// # Panics
    /// If the range is not within that memory.
    pub fn packet_bytes_mut<'a>(&'a self, memory: &'a mut PacketMemory, offset: usize, length: usize) -> &'a mut [u8] {
        self.check_range(memory, offset, length);
        // SAFETY: the range lies in the packet's memory, which is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.span.as_ptr().add(offset), length) }
    }

    fn check_range(&self, memory: &PacketMemory, offset: usize, length: usize) {
        let (start, size) = match memory {
            PacketMemory::Reassembled(buffer) => buffer.memory(),
            PacketMemory::Frame(frame) => (self.index(frame) * self.frame_size, self.frame_size),
        };
        assert!(start <= offset && offset + length <= start + size, "the bytes lie outside of the packet's memory");
    }

    /// The first `length` bytes from the frame's packet offset on.
    ///
    /// # Panics
    /// If the frame has fewer.
    pub fn bytes<'a>(&'a self, frame: &'a Frame, length: usize) -> &'a [u8] {
        assert!(length <= self.room(frame), "the bytes lie outside of the frame");
        // SAFETY: the range lies in the frame, which is borrowed, so nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.span.as_ptr().add(frame.address()), length) }
    }
}

/// Size of a huge page in bytes, from proc(5). A huge-page mapping has to be a multiple of it, or
/// munmap(2) fails.
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
    fn resetting_a_frame_restores_its_room() {
        let (umem, _) = umem(2);
        let config = UmemConfig::builder().frame_size(2048.try_into().unwrap()).frame_headroom(16).build().unwrap();
        let (_, mut further) = Umem::new(2, config, false).unwrap();
        let frame = further.pop().unwrap();
        assert_eq!((frame.address(), umem.room(&frame)), (2048 + HEADROOM + 16, 2048 - HEADROOM - 16));
        let frame = umem.reset(frame);
        assert_eq!((frame.address(), umem.room(&frame)), (2048 + HEADROOM, 2048 - HEADROOM));
    }

    #[test]
    fn the_huge_page_size_is_parsed() {
        let text = "HugePages_Free:        0\nHugepagesize:       2048 kB\nHugetlb:               0 kB\n";
        assert_eq!(huge_page_of(text), Some(2 << 20));
        assert_eq!(huge_page_of("Hugepagesize:    1048576 kB"), Some(1 << 30));
        for text in ["", "Hugepagesize:", "Hugepagesize: 0 kB", "Hugepagesize: 3 kB", "Hugepagesize: x kB"] {
            assert_eq!(huge_page_of(text), None, "{text}");
        }
        assert!(huge_page().is_power_of_two());
    }

    #[test]
    fn settling_moves_a_packet_to_the_packet_offset() {
        let (umem, mut frames) = umem(2);
        let mut frame = frames.pop().unwrap();
        assert_eq!((frame.address(), umem.room(&frame)), (2048 + HEADROOM, 2048 - HEADROOM));
        let at = frame.address();
        for (index, byte) in umem.bytes_mut(&mut frame).iter_mut().enumerate() {
            *byte = index as u8;
        }
        umem.move_to_packet_offset(&frame, at + 4, 60);
        let want: Vec<u8> = (4..64).collect();
        assert_eq!(umem.bytes(&frame, 60), want);
        // From the headroom on: truncated at the frame's end.
        umem.move_to_packet_offset(&frame, 2048, 2048);
        assert_eq!(&umem.bytes(&frame, 300)[..HEADROOM], [0; HEADROOM]);
        assert_eq!(umem.bytes(&frame, 300)[HEADROOM..][..4], [4, 5, 6, 7]);
        let desc = umem.packet(frame, 99);
        assert_eq!((desc.addr(), desc.lengths().data()), (at, 99));
    }
}
