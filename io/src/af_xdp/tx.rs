//! Sending packets out of a queue.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use xsk_rs::socket::TxQueue;
use xsk_rs::umem::CompQueue;
use xsk_rs::umem::frame::FrameDesc;

use super::homes::{Homes, Place};
use super::sender::Sender;
use super::socket;
use super::umem::Frame;

/// Frames that one call of `sendto` sends where they are copied (`TX_BATCH_SIZE`, `net/xdp/xsk.c`).
const A_CALL: usize = 32;

/// Frames that are brought home at a time.
const BURST: usize = 64;

/// How long a batch waits for room, before what is left of it is given up.
const PATIENCE: Duration = Duration::from_millis(1);

/// The frame is not the packet's last (`XDP_PKT_CONTD`, `linux/if_xdp.h`).
const GOES_ON: u32 = 1;

/// The rings of a socket for what is to be sent, and for what was.
#[derive(Debug)]
pub(crate) enum Rings {
    /// Of one that receives, too.
    Both(TxQueue, CompQueue),
    /// Of one that only sends.
    Sending(Sender),
}

impl Rings {
    /// Frames that there is room for, in a ring of this size.
    fn free(&mut self, size: usize) -> usize {
        match self {
            // Whoever asks for less may be told of less.
            Rings::Both(tx, _) => tx.nb_free(size as u32) as usize,
            Rings::Sending(sender) => sender.free(),
        }
    }

    /// Gives frames to the ring, as many as there is room for; gives how many.
    ///
    /// # Safety
    /// They are frames of the socket's UMEM, and nobody's but the ring's from now on.
    unsafe fn produce(&mut self, descs: &[FrameDesc]) -> usize {
        match self {
            // SAFETY: as above.
            Rings::Both(tx, _) => unsafe { tx.produce(descs) },
            // SAFETY: as above.
            Rings::Sending(sender) => unsafe { sender.produce(descs) },
        }
    }

    /// Takes frames that were sent, which are nobody's any more; gives how many.
    fn completed(&mut self, into: &mut [FrameDesc]) -> usize {
        match self {
            // SAFETY: the descriptions are our own, and become those of this UMEM's frames.
            Rings::Both(_, completion) => unsafe { completion.consume(into) },
            Rings::Sending(sender) => sender.completed(into),
        }
    }

    /// Whether the kernel sends only when it is told to.
    fn needs_wakeup(&self) -> bool {
        match self {
            Rings::Both(tx, _) => tx.needs_wakeup(),
            Rings::Sending(sender) => sender.needs_wakeup(),
        }
    }

    fn fd(&self) -> RawFd {
        match self {
            Rings::Both(tx, _) => tx.fd().as_raw_fd(),
            Rings::Sending(sender) => sender.fd(),
        }
    }
}

/// The sending half of a socket. Several lanes may have it, one at a time.
#[derive(Debug)]
pub(crate) struct Tx {
    rings: Rings,
    size: usize,
    /// Frames that the kernel sends when it is told to once; `None` where the driver sends them itself, as many as there are.
    a_call: Option<usize>,
    homes: Arc<Homes>,
    /// Frames that are to be sent, or are sent and have not come home.
    sending: usize,
    counted: Arc<AtomicI64>,
    /// Bytes that a packet may have.
    longest: usize,
    multi_buffer: bool,
    /// Whether the interface was down, or gone, when something was to be sent last.
    is_down: bool,
    /// Whether room was waited for in vain, and nothing has moved since.
    is_stuck: bool,
    done: Box<[FrameDesc; BURST]>,
}

/// Packets on their way to one port.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    descs: Vec<FrameDesc>,
    /// How many of them each packet has, and its length.
    packets: Vec<(u16, u32)>,
}

impl Outgoing {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds a packet, in frames that are its own, as [`Umem::packet`](super::umem::Umem::packet) gives them.
    pub fn push(&mut self, frames: impl IntoIterator<Item = FrameDesc>, length: usize) {
        let before = self.descs.len();
        self.descs.extend(frames);
        let last = self.descs.len() - 1;
        for desc in &mut self.descs[before..last] {
            desc.set_options(GOES_ON);
        }
        self.packets.push(((last + 1 - before) as u16, length as u32));
    }
}

/// What became of packets that were to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sent {
    pub packets: u64,
    pub bytes: u64,
    /// Packets that there was no room for.
    pub no_room: u64,
    /// Packets whose interface is down, or gone.
    pub down: u64,
}

impl Tx {
    /// Of rings of this size.
    pub fn new(
        rings: Rings,
        size: u32,
        is_zero_copy: bool,
        homes: Arc<Homes>,
        longest: usize,
        multi_buffer: bool,
    ) -> Tx {
        Tx {
            rings,
            size: size as usize,
            a_call: (!is_zero_copy).then_some(A_CALL),
            homes,
            sending: 0,
            counted: Arc::default(),
            longest,
            multi_buffer,
            is_down: false,
            is_stuck: false,
            done: Box::new([FrameDesc::default(); BURST]),
        }
    }

    /// Frames that are being sent, now and later.
    pub fn sending(&self) -> Arc<AtomicI64> {
        self.counted.clone()
    }

    /// Whether frames are to come home soon.
    pub fn is_busy(&self) -> bool {
        self.sending > 0 && !self.is_down
    }

    /// Bytes that a packet may have, from its Ethernet header on.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Whether a packet may lie in several frames.
    pub fn takes_several_frames(&self) -> bool {
        self.multi_buffer
    }

    /// Sends all of them, or as many as there is room for soon enough. Frames of others go home. What cannot move is not waited
    /// for a second time: the lane has packets for other ports, and other lanes may want this one.
    pub fn send(&mut self, out: &mut Outgoing) -> Sent {
        let (mut sent, mut packet, mut frame) = (Sent::default(), 0, 0);
        let mut waiting: Option<Instant> = None;
        if self.is_down || self.is_stuck {
            self.kick();
            self.reap();
        }
        while packet < out.packets.len() && !self.is_down {
            let room = self.rings.free(self.size);
            // Whole packets only: the kernel drops what follows an end that is missing.
            let (mut packets, mut frames) = (0, 0);
            for (count, length) in &out.packets[packet..] {
                if frames + usize::from(*count) > room {
                    break;
                }
                frames += usize::from(*count);
                packets += 1;
                sent.bytes += u64::from(*length);
            }
            if packets == 0 {
                let since = *waiting.get_or_insert_with(Instant::now);
                if self.is_stuck || since.elapsed() >= PATIENCE {
                    self.is_stuck = true;
                    break;
                }
                self.kick();
                self.reap();
                continue;
            }
            // SAFETY: the frames are this UMEM's, and nobody's but the ring's from now on.
            let taken = unsafe { self.rings.produce(&out.descs[frame..frame + frames]) };
            debug_assert!(taken == frames, "there is room for all of them");
            self.count(taken as i64);
            (packet, frame) = (packet + packets, frame + taken);
            sent.packets += packets as u64;
            (waiting, self.is_stuck) = (None, false);
            self.kick();
            self.reap();
        }
        let lost = if self.is_down { &mut sent.down } else { &mut sent.no_room };
        *lost = (out.packets.len() - packet) as u64;
        // SAFETY: the ring has not taken them, and the list forgets them.
        let left = out.descs.drain(frame..).map(|desc| Place::Frame(unsafe { Frame::returned(desc) }));
        self.homes.put(left);
        out.descs.clear();
        out.packets.clear();
        sent
    }

    /// Has the kernel send, and brings home what it has sent.
    pub fn poll(&mut self) {
        if self.sending > 0 {
            self.kick();
            self.reap();
        }
    }

    /// Has the kernel send what is in the ring.
    fn kick(&mut self) {
        let waiting = self.size - self.rings.free(self.size);
        self.is_down = false;
        // A driver that is told has the ring sent by its own interrupt, some time later: to tell it again says nothing new.
        let calls = self.a_call.map_or(waiting.min(1), |frames| waiting.div_ceil(frames));
        for _ in 0..calls {
            if !self.rings.needs_wakeup() {
                break;
            }
            // What it cannot do now, it is asked for again, also where an interface is down: it may come up. One that is gone is
            // seen by who receives from it.
            if let Err(error) = socket::wake(self.rings.fd()) {
                self.is_down = matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV));
                break;
            }
        }
    }

    fn reap(&mut self) {
        loop {
            let came = self.rings.completed(&mut self.done[..]);
            // SAFETY: the ring has just given them back, once.
            let frames = self.done[..came].iter().map(|desc| Place::Frame(unsafe { Frame::returned(*desc) }));
            self.homes.put(frames);
            self.count(-(came as i64));
            self.is_stuck &= came == 0;
            if came < BURST {
                return;
            }
        }
    }

    fn count(&mut self, frames: i64) {
        self.sending = self.sending.saturating_add_signed(frames as isize);
        self.counted.fetch_add(frames, Ordering::Relaxed);
    }
}
