//! Transmitting through a socket's TX ring and reclaiming frames from its completion ring.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use xsk_rs::socket::TxQueue;
use xsk_rs::umem::CompQueue;
use xsk_rs::umem::frame::FrameDesc;

use super::frame_pool::FramePool;
use super::socket;
use super::tx_only_socket::TxOnlySocket;
use super::umem::{Frame, PacketMemory};

/// Maximum number of frames that one `sendto` transmits in copy mode (`TX_BATCH_SIZE`,
/// `net/xdp/xsk.c`).
const FRAMES_PER_SENDTO: usize = 32;

/// Maximum number of frames reclaimed at a time.
const BURST: usize = 64;

/// How long a batch waits for room in the TX ring before its rest is dropped.
const TX_WAIT: Duration = Duration::from_millis(1);

/// Descriptor flag: the packet continues in the next frame (`XDP_PKT_CONTD`, `linux/if_xdp.h`).
const XDP_PKT_CONTD: u32 = 1;

/// The TX and completion rings of a socket.
#[derive(Debug)]
pub(crate) enum TxRings {
    /// Rings of a socket that also receives.
    WithRx(TxQueue, CompQueue),
    /// Rings of a transmit-only socket.
    TxOnly(TxOnlySocket),
}

impl TxRings {
    /// Number of free entries of the TX ring, which has `size` entries.
    fn free(&mut self, size: usize) -> usize {
        match self {
            // The library caches the count and only refreshes it if fewer than `size` entries seem
            // free.
            TxRings::WithRx(tx, _) => tx.nb_free(size as u32) as usize,
            TxRings::TxOnly(sender) => sender.free(),
        }
    }

    /// Puts frames into the TX ring, as many as fit; returns their number.
    ///
    /// # Safety
    /// The frames must belong to the socket's UMEM, and the ring takes over those it accepts.
    unsafe fn produce(&mut self, descs: &[FrameDesc]) -> usize {
        match self {
            // SAFETY: by the caller's promise.
            TxRings::WithRx(tx, _) => unsafe { tx.produce(descs) },
            // SAFETY: by the caller's promise.
            TxRings::TxOnly(sender) => unsafe { sender.produce(descs) },
        }
    }

    /// Takes transmitted frames, which have no owner then; returns their number.
    fn take_completed(&mut self, into: &mut [FrameDesc]) -> usize {
        match self {
            // SAFETY: the descriptors are local and become those of this UMEM's frames.
            TxRings::WithRx(_, completion) => unsafe { completion.consume(into) },
            TxRings::TxOnly(sender) => sender.take_completed(into),
        }
    }

    /// Whether the kernel transmits only when woken up.
    fn needs_wakeup(&self) -> bool {
        match self {
            TxRings::WithRx(tx, _) => tx.needs_wakeup(),
            TxRings::TxOnly(sender) => sender.needs_wakeup(),
        }
    }

    fn fd(&self) -> RawFd {
        match self {
            TxRings::WithRx(tx, _) => tx.fd().as_raw_fd(),
            TxRings::TxOnly(sender) => sender.fd(),
        }
    }
}

/// The transmitting half of a socket, shared by lanes under a lock.
#[derive(Debug)]
pub(crate) struct Tx {
    rings: TxRings,
    size: usize,
    /// Frames that the kernel transmits per wakeup; `None` in zero-copy mode, where the driver
    /// transmits all.
    frames_per_wakeup: Option<usize>,
    pool: Arc<FramePool>,
    /// Frames in the TX or completion ring.
    in_rings: usize,
    shared_count: Arc<AtomicI64>,
    /// Maximum packet length in bytes.
    max_length: usize,
    multi_buffer: bool,
    /// Whether the interface was down or gone at the last attempt to transmit.
    is_down: bool,
    /// Whether the last wait for room timed out and nothing has moved since.
    is_stuck: bool,
    completed_descs: Box<[FrameDesc; BURST]>,
}

/// Packets to be transmitted on one port.
#[derive(Debug, Default)]
pub(crate) struct TxBatch {
    descs: Vec<FrameDesc>,
    /// Number of frames and length in bytes of each packet.
    packets: Vec<(u16, u32)>,
}

impl TxBatch {
    /// Whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds a packet in frames of its own, as returned by
    /// [`Umem::packet`](super::umem::Umem::packet).
    pub fn push(&mut self, frames: impl IntoIterator<Item = FrameDesc>, length: usize) {
        let before = self.descs.len();
        self.descs.extend(frames);
        let last = self.descs.len() - 1;
        for desc in &mut self.descs[before..last] {
            desc.set_options(XDP_PKT_CONTD);
        }
        self.packets.push(((last + 1 - before) as u16, length as u32));
    }
}

/// Result of transmitting a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TxResult {
    pub packets: u64,
    pub bytes: u64,
    /// Packets dropped because the ring stayed full.
    pub no_room: u64,
    /// Packets dropped because the interface is down or gone.
    pub down: u64,
}

impl Tx {
    /// Creates the half for rings with `size` entries.
    pub fn new(
        rings: TxRings,
        size: u32,
        is_zero_copy: bool,
        pool: Arc<FramePool>,
        max_length: usize,
        multi_buffer: bool,
    ) -> Tx {
        Tx {
            rings,
            size: size as usize,
            frames_per_wakeup: (!is_zero_copy).then_some(FRAMES_PER_SENDTO),
            pool,
            in_rings: 0,
            shared_count: Arc::default(),
            max_length,
            multi_buffer,
            is_down: false,
            is_stuck: false,
            completed_descs: Box::new([FrameDesc::default(); BURST]),
        }
    }

    /// Number of frames in the rings, updated continually.
    pub fn in_rings(&self) -> Arc<AtomicI64> {
        self.shared_count.clone()
    }

    /// Whether frames will be reclaimed soon.
    pub fn is_busy(&self) -> bool {
        self.in_rings > 0 && !self.is_down
    }

    /// Maximum packet length in bytes, Ethernet header included.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// Whether a packet may span several frames.
    pub fn supports_multi_buffer(&self) -> bool {
        self.multi_buffer
    }

    /// Transmits the packets, or as many as the ring takes within `TX_WAIT`, and releases the
    /// frames of the others. If the ring is stuck, later calls do not wait again: the lane has
    /// packets for other ports, and other lanes may need this one.
    pub fn send(&mut self, out: &mut TxBatch) -> TxResult {
        let (mut sent, mut packet, mut frame) = (TxResult::default(), 0, 0);
        let mut waiting: Option<Instant> = None;
        if self.is_down || self.is_stuck {
            self.kick();
            self.reclaim_completed();
        }
        while packet < out.packets.len() && !self.is_down {
            let room = self.rings.free(self.size);
            // Whole packets only: the kernel drops packets whose last fragment is missing.
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
                if self.is_stuck || since.elapsed() >= TX_WAIT {
                    self.is_stuck = true;
                    break;
                }
                self.kick();
                self.reclaim_completed();
                continue;
            }
            // SAFETY: the frames belong to this UMEM, and the ring takes over those it accepts.
            let taken = unsafe { self.rings.produce(&out.descs[frame..frame + frames]) };
            debug_assert!(taken == frames, "the ring has room for all of them");
            self.count(taken as i64);
            (packet, frame) = (packet + packets, frame + taken);
            sent.packets += packets as u64;
            (waiting, self.is_stuck) = (None, false);
            self.kick();
            self.reclaim_completed();
        }
        let lost = if self.is_down { &mut sent.down } else { &mut sent.no_room };
        *lost = (out.packets.len() - packet) as u64;
        // SAFETY: the ring has not accepted these frames, and draining forgets the descriptors.
        let left = out.descs.drain(frame..).map(|desc| PacketMemory::Frame(unsafe { Frame::from_ring(desc) }));
        self.pool.release(left);
        out.descs.clear();
        out.packets.clear();
        sent
    }

    /// Makes the kernel transmit, and reclaims transmitted frames.
    pub fn poll(&mut self) {
        if self.in_rings > 0 {
            self.kick();
            self.reclaim_completed();
        }
    }

    /// Wakes up the kernel to transmit what is in the TX ring.
    fn kick(&mut self) {
        let waiting = self.size - self.rings.free(self.size);
        self.is_down = false;
        // In zero-copy mode a wakeup only triggers the driver's interrupt; one is enough.
        let calls = self.frames_per_wakeup.map_or(waiting.min(1), |frames| waiting.div_ceil(frames));
        for _ in 0..calls {
            if !self.rings.needs_wakeup() {
                break;
            }
            // Transient errors are retried at the next call, also for an interface that is down: it
            // may come up. Removal is detected by the receiver.
            if let Err(error) = socket::wake(self.rings.fd()) {
                self.is_down = matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV));
                break;
            }
        }
    }

    fn reclaim_completed(&mut self) {
        loop {
            let came = self.rings.take_completed(&mut self.completed_descs[..]);
            // SAFETY: the ring has just returned these frames.
            let frames =
                self.completed_descs[..came].iter().map(|desc| PacketMemory::Frame(unsafe { Frame::from_ring(*desc) }));
            self.pool.release(frames);
            self.count(-(came as i64));
            self.is_stuck &= came == 0;
            if came < BURST {
                return;
            }
        }
    }

    fn count(&mut self, frames: i64) {
        self.in_rings = self.in_rings.saturating_add_signed(frames as isize);
        self.shared_count.fetch_add(frames, Ordering::Relaxed);
    }
}
