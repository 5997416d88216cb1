//! Receiving from a socket's RX ring and refilling its fill ring.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use xsk_rs::socket::RxQueue;
use xsk_rs::umem::FillQueue;
use xsk_rs::umem::frame::FrameDesc;

use super::frame_pool::FramePool;
use super::umem::{Frame, PacketMemory};

/// Maximum number of descriptors taken from the RX ring, or put into the fill ring, at a time.
const BURST: usize = 64;

/// The receiving half of a socket.
#[derive(Debug)]
pub(crate) struct Rx {
    rx: RxQueue,
    fill: FillQueue,
    /// Number of frames owned by the kernel; shared with [`FrameAudit`](super::FrameAudit).
    kernel_frames: Arc<AtomicI64>,
    pool: Arc<FramePool>,
    lane: usize,
    descs: Box<[FrameDesc; BURST]>,
    /// Free frames on their way to the fill ring.
    refill_frames: Vec<Frame>,
}

/// A received frame, which holds a packet or a fragment of one.
pub(crate) struct RxFragment {
    pub frame: Frame,
    pub length: usize,
    /// Whether the packet continues in the next frame.
    pub has_more: bool,
}

impl Rx {
    /// Creates the half for `lane`, which owns the frames.
    pub fn new(rx: RxQueue, fill: FillQueue, pool: Arc<FramePool>, lane: usize) -> Rx {
        let descs = Box::new([FrameDesc::default(); BURST]);
        Rx { rx, fill, kernel_frames: Arc::default(), pool, lane, descs, refill_frames: Vec::with_capacity(BURST) }
    }

    /// Number of frames owned by the kernel, updated continually.
    pub fn kernel_frames(&self) -> Arc<AtomicI64> {
        self.kernel_frames.clone()
    }

    /// File descriptor for waiting.
    pub fn fd(&self) -> RawFd {
        self.rx.fd().as_raw_fd()
    }

    /// Whether packets are available; looks at the ring without a system call.
    pub fn has_packets(&mut self) -> bool {
        self.rx.nb_avail(1) > 0
    }

    /// Takes at most `max` frames, in order of arrival.
    pub fn take(&mut self, max: usize, mut each: impl FnMut(RxFragment)) -> usize {
        let mut taken = 0;
        while taken < max {
            let wanted = BURST.min(max - taken);
            // SAFETY: the descriptors are local, and the socket belongs to the UMEM whose frames
            // they become.
            let came = unsafe { self.rx.consume(&mut self.descs[..wanted]) };
            for desc in &self.descs[..came] {
                let (length, has_more) = (desc.lengths().data(), desc.has_more_frames());
                // SAFETY: the ring has just returned the frame.
                let frame = unsafe { Frame::from_ring(*desc) };
                each(RxFragment { frame, length, has_more });
            }
            taken += came;
            if came < wanted {
                break;
            }
        }
        self.kernel_frames.fetch_sub(taken as i64, Ordering::Relaxed);
        taken
    }

    /// Moves free frames of the lane to the fill ring, as many as fit.
    pub fn refill(&mut self) -> io::Result<()> {
        // Frames left over from the last time come first.
        loop {
            let room = self.fill.nb_free(BURST as u32) as usize;
            let missing = room.min(BURST).saturating_sub(self.refill_frames.len());
            if missing > 0 {
                self.pool.take_frames(self.lane, missing, &mut self.refill_frames);
            }
            let count = room.min(self.refill_frames.len());
            if count == 0 {
                break;
            }
            let from = self.refill_frames.len() - count;
            // SAFETY: the frames belong to this socket's UMEM, and are forgotten as soon as the
            // ring has accepted them.
            let given = unsafe { self.fill.produce(Frame::as_descriptors(&self.refill_frames[from..])) };
            debug_assert!(given == count, "the ring has room for all of them");
            self.refill_frames.truncate(self.refill_frames.len() - given);
            self.kernel_frames.fetch_add(given as i64, Ordering::Relaxed);
            if given < BURST {
                break;
            }
        }
        if self.fill.needs_wakeup() {
            self.fill.wakeup(self.rx.fd_mut(), 0)?;
        }
        Ok(())
    }

    /// Number of packets that the kernel dropped because the ring was full or the packet invalid.
    pub fn dropped(&self) -> u64 {
        // `rx_fill_ring_empty_descs` is not counted: it is not a number of packets. If statistics
        // are unavailable, report 0.
        self.rx.fd().xdp_statistics().map_or(0, |seen| seen.rx_dropped() + seen.rx_ring_full())
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.pool.release(self.refill_frames.drain(..).map(PacketMemory::Frame));
    }
}
