//! Taking packets from a queue.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use xsk_rs::socket::RxQueue;
use xsk_rs::umem::FillQueue;
use xsk_rs::umem::frame::FrameDesc;

use super::homes::{Homes, Place};
use super::umem::Frame;

/// Packets that are taken from a ring at a time, and frames that are given to it.
const BURST: usize = 64;

/// The receiving half of a socket.
#[derive(Debug)]
pub(crate) struct Rx {
    rx: RxQueue,
    fill: FillQueue,
    /// Frames that the kernel has; shared with who counts them in the end.
    lent: Arc<AtomicI64>,
    homes: Arc<Homes>,
    lane: usize,
    descs: Box<[FrameDesc; BURST]>,
    /// Frames on their way to the fill ring.
    fresh: Vec<Frame>,
}

/// A frame that came, with the packet's or a part of it.
pub(crate) struct Piece {
    pub frame: Frame,
    pub length: usize,
    /// Whether the packet goes on in the next one.
    pub goes_on: bool,
}

impl Rx {
    /// Of a lane, which has the frames.
    pub fn new(rx: RxQueue, fill: FillQueue, homes: Arc<Homes>, lane: usize) -> Rx {
        let descs = Box::new([FrameDesc::default(); BURST]);
        Rx { rx, fill, lent: Arc::default(), homes, lane, descs, fresh: Vec::with_capacity(BURST) }
    }

    /// Frames that the kernel has, now and later.
    pub fn lent(&self) -> Arc<AtomicI64> {
        self.lent.clone()
    }

    /// For waiting.
    pub fn fd(&self) -> RawFd {
        self.rx.fd().as_raw_fd()
    }

    /// Whether there are packets to be taken: a look at the ring, and no system call.
    pub fn is_there(&mut self) -> bool {
        self.rx.nb_avail(1) > 0
    }

    /// Takes up to `most` frames, in the order in which they came.
    pub fn take(&mut self, most: usize, mut each: impl FnMut(Piece)) -> usize {
        let mut taken = 0;
        while taken < most {
            let wanted = BURST.min(most - taken);
            // SAFETY: the descriptions are our own, and this socket's UMEM is the one whose frames these become.
            let came = unsafe { self.rx.consume(&mut self.descs[..wanted]) };
            for desc in &self.descs[..came] {
                let (length, goes_on) = (desc.lengths().data(), desc.has_more_frames());
                // SAFETY: the ring has just given it back, once.
                let frame = unsafe { Frame::returned(*desc) };
                each(Piece { frame, length, goes_on });
            }
            taken += came;
            if came < wanted {
                break;
            }
        }
        self.lent.fetch_sub(taken as i64, Ordering::Relaxed);
        taken
    }

    /// Gives the kernel frames to receive into: as many as there is room for and as are at home.
    pub fn refill(&mut self) -> io::Result<()> {
        // What was left over comes first.
        loop {
            let room = self.fill.nb_free(BURST as u32) as usize;
            let missing = room.min(BURST).saturating_sub(self.fresh.len());
            if missing > 0 {
                self.homes.take(self.lane, missing, &mut self.fresh);
            }
            let count = room.min(self.fresh.len());
            if count == 0 {
                break;
            }
            let from = self.fresh.len() - count;
            // SAFETY: the frames are ours, of this socket's UMEM, and are forgotten as soon as the ring has them.
            let given = unsafe { self.fill.produce(Frame::lend(&self.fresh[from..])) };
            debug_assert!(given == count, "there is room for all of them");
            self.fresh.truncate(self.fresh.len() - given);
            self.lent.fetch_add(given as i64, Ordering::Relaxed);
            if given < BURST {
                break;
            }
        }
        if self.fill.needs_wakeup() {
            self.fill.wakeup(self.rx.fd_mut(), 0)?;
        }
        Ok(())
    }

    /// Packets that the kernel dropped for want of room, or because they were too long.
    pub fn dropped(&self) -> u64 {
        // How often a driver found no frame (`rx_fill_ring_empty_descs`) is no number of packets.
        // A socket that tells nothing has dropped nothing that is known of.
        self.rx.fd().xdp_statistics().map_or(0, |seen| seen.rx_dropped() + seen.rx_ring_full())
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.homes.put(self.fresh.drain(..).map(Place::Frame));
    }
}
