//! The receiver of an AF_XDP lane: packets of one or more queues.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_core::packet::{Batch, Descriptor, Metadata, RESIZE_ROOM, ResizeRoom};

use super::frame_pool::{BatchBuffers, BatchFrames, FramePool};
use super::rx::{Rx, RxFragment};
use super::umem::{PacketMemory, ReassemblyBuffer, Umem};
use crate::live::{LiveError, ReceivedCounts, Receiver, checksum, nanoseconds};

/// How long to spin for packets before the thread sleeps. About the cost of a sleep with its
/// wakeup, so spinning in vain at most doubles the cost (competitive spinning, Karlin et al., SOSP
/// 1991). Without it, the thread slept at millions of packets per second, and the sender had to
/// wake it up each time.
const SPIN_TIME: Duration = Duration::from_micros(20);

/// Number of polls between two reads of the clock.
const POLLS_PER_CLOCK_READ: usize = 16;

/// A receive queue of a port.
pub(crate) struct Queue {
    pub interface: Arc<str>,
    /// Number of the port.
    pub port: u32,
    /// Port number in metadata.
    pub known_as: u32,
    pub queue: u32,
    pub rx: Rx,
}

/// Contents of batches and preparation of packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchFormat {
    pub room: ResizeRoom,
    pub metadata: bool,
    /// Whether partial checksums are completed before the filter.
    pub completes_checksums: bool,
}

/// A packet whose last fragment has not arrived yet.
struct Partial {
    /// The buffer it is copied into; `None` if no buffer was free or it is too long, and it will be
    /// dropped.
    buffer: Option<ReassemblyBuffer>,
    length: usize,
}

/// Receives from a lane's queues.
pub(crate) struct XdpReceiver {
    umem: Arc<Umem>,
    pool: Arc<FramePool>,
    lane: usize,
    format: BatchFormat,
    queues: Vec<Queue>,
    partial: Vec<Option<Partial>>,
    /// The open batch.
    open_batch: BatchBuffers,
    /// Index of the queue to poll first next time (round robin).
    next: usize,
    received: ReceivedCounts,
    waits: Vec<libc::pollfd>,
    spin: Duration,
    /// Duration of a busy poll; `None` if busy polling is disabled.
    busy_poll: Option<Duration>,
    /// Entries of a queue's RX ring.
    ring: usize,
}

impl XdpReceiver {
    pub fn new(
        umem: Arc<Umem>,
        pool: Arc<FramePool>,
        lane: usize,
        format: BatchFormat,
        queues: Vec<Queue>,
        ring: usize,
        busy_poll: Option<Duration>,
    ) -> XdpReceiver {
        // Do not spin on a single processor, where it would keep senders from running, nor with
        // busy polling, where packets arrive only during system calls.
        let never_spins =
            busy_poll.is_some() || thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
        let waits = queues.iter().map(|queue| libc::pollfd { fd: queue.rx.fd(), events: libc::POLLIN, revents: 0 });
        XdpReceiver {
            umem,
            pool,
            lane,
            format,
            waits: waits.collect(),
            spin: if never_spins { Duration::ZERO } else { SPIN_TIME },
            partial: queues.iter().map(|_| None).collect(),
            queues,
            open_batch: BatchBuffers::default(),
            next: 0,
            received: ReceivedCounts::default(),
            busy_poll,
            ring,
        }
    }

    /// Polls for packets for up to `time`; returns whether there are any. With busy polling, this
    /// also makes the kernel poll, through recvfrom(2): when waiting with ppoll(2), the kernel only
    /// does so as `net.core.busy_poll` says (`do_poll`, `fs/select.c`).
    fn poll_for(&mut self, time: Duration) -> bool {
        let begun = Instant::now();
        loop {
            for _ in 0..POLLS_PER_CLOCK_READ {
                if self.busy_poll.is_some() {
                    self.queues.iter().for_each(|queue| super::socket::poll(queue.rx.fd()));
                }
                if self.queues.iter_mut().any(|queue| queue.rx.has_packets()) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if begun.elapsed() >= time {
                return false;
            }
        }
    }

    /// Fills the fill rings before the first packet.
    pub fn fill_rings(&mut self) -> Result<(), LiveError> {
        for queue in &mut self.queues {
            queue.rx.refill().map_err(|error| system(queue, "giving frames to the kernel", error))?;
        }
        Ok(())
    }
}

impl Receiver for XdpReceiver {
    fn receive(&mut self, max: usize) -> Result<usize, LiveError> {
        let now = if self.format.metadata { nanoseconds() } else { 0 };
        let before = self.open_batch.descriptors.len();
        let count = self.queues.len();
        for turn in 0..count {
            let index = (self.next + turn) % count;
            let left = max - (self.open_batch.descriptors.len() - before);
            if left == 0 {
                break;
            }
            let Queue { known_as, rx, .. } = &mut self.queues[index];
            let mut builder = RxBatchBuilder {
                umem: &self.umem,
                pool: &self.pool,
                lane: self.lane,
                format: self.format,
                open_batch: &mut self.open_batch,
                partial: &mut self.partial[index],
                received: &mut self.received,
                queue: (count > 1).then_some(index as u16),
                port: *known_as,
                now,
            };
            rx.take(left, |fragment| builder.push_fragment(fragment));
            self.queues[index]
                .rx
                .refill()
                .map_err(|e| system(&self.queues[index], "giving frames to the kernel", e))?;
        }
        self.next = (self.next + 1) % count.max(1);
        Ok(self.open_batch.descriptors.len() - before)
    }

    fn wait(&mut self, max: Duration) -> Result<(), LiveError> {
        let begun = Instant::now();
        if self.poll_for(self.busy_poll.unwrap_or(self.spin).min(max)) {
            return Ok(());
        }
        let max = max.saturating_sub(begun.elapsed());
        let time = libc::timespec { tv_sec: max.as_secs() as i64, tv_nsec: i64::from(max.subsec_nanos()) };
        // SAFETY: `waits` and `time` are live and as long as stated.
        let ready = unsafe {
            libc::ppoll(self.waits.as_mut_ptr(), self.waits.len() as libc::nfds_t, &raw const time, std::ptr::null())
        };
        match ready {
            0 => self.queues.iter().try_for_each(check_not_removed),
            1.. => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(system(&self.queues[0], "waiting for packets", error)),
            },
        }
    }

    fn backlog_capacity(&self) -> usize {
        // With busy polling, nothing arrives unless someone waits.
        if self.busy_poll.is_some() { 0 } else { self.ring }
    }

    fn is_full(&self) -> bool {
        // Leave the other half to the kernel, which receives meanwhile.
        self.open_batch.descriptors.len() >= self.pool.frames_per_lane() / 2
    }

    fn take_batch(&mut self) -> Option<Batch> {
        if self.open_batch.descriptors.is_empty() {
            return None;
        }
        let next = self.pool.take_batch_buffers(self.lane);
        let open_batch = std::mem::replace(&mut self.open_batch, next);
        let BatchBuffers { descriptors, metadata, metadata_summary, memory, queues } = open_batch;
        let held = Box::new(BatchFrames::new(memory, queues, self.pool.clone()));
        let span = self.umem.span().clone();
        // SAFETY: each packet lies in memory of its own, with its room, which the source data owns
        // (`RxBatchBuilder::push_fragment`).
        let batch = unsafe { Batch::from_frames(span, descriptors, metadata, self.format.room, held) };
        Some(batch.expect("frames lie in their UMEM").with_metadata_summary(metadata_summary.summary()))
    }

    fn received(&mut self) -> ReceivedCounts {
        let dropped_by_kernel = self.queues.iter().map(|queue| queue.rx.dropped()).sum();
        ReceivedCounts { dropped_by_kernel, ..self.received }
    }
}

/// Adds the frames of one queue to the open batch.
struct RxBatchBuilder<'a> {
    umem: &'a Umem,
    pool: &'a FramePool,
    lane: usize,
    format: BatchFormat,
    open_batch: &'a mut BatchBuffers,
    partial: &'a mut Option<Partial>,
    received: &'a mut ReceivedCounts,
    queue: Option<u16>,
    port: u32,
    now: u64,
}

impl RxBatchBuilder<'_> {
    #[inline]
    fn push_fragment(&mut self, mut fragment: RxFragment) {
        if !fragment.has_more && self.partial.is_none() && self.has_room(&fragment) {
            if self.format.completes_checksums {
                let bytes = self.umem.bytes_mut(&mut fragment.frame);
                self.received.checksums += u64::from(checksum::complete(&mut bytes[..fragment.length]));
            }
            let at = fragment.frame.address();
            return self.push_packet(at, fragment.length, PacketMemory::Frame(fragment.frame));
        }
        self.reassemble(fragment);
    }

    /// Whether the packet has the required headroom and tailroom in its frame.
    fn has_room(&self, fragment: &RxFragment) -> bool {
        let left = self.umem.room(&fragment.frame);
        match self.format.room {
            ResizeRoom::None => fragment.length <= left,
            ResizeRoom::Both => {
                let before = self.umem.frame_size() - left;
                fragment.length + RESIZE_ROOM as usize <= left && before >= RESIZE_ROOM as usize
            }
        }
    }

    /// Copies a fragment, or a packet without enough room, into a reassembly buffer.
    #[cold]
    fn reassemble(&mut self, fragment: RxFragment) {
        let (pool, lane) = (self.pool, self.lane);
        let mut partial =
            self.partial.take().unwrap_or_else(|| Partial { buffer: pool.take_reassembly_buffer(lane), length: 0 });
        let bytes = self.umem.bytes(&fragment.frame, fragment.length.min(self.umem.room(&fragment.frame)));
        match &mut partial.buffer {
            Some(buffer) if partial.length + bytes.len() <= buffer.capacity() => {
                self.umem.write(buffer, partial.length, bytes);
                partial.length += bytes.len();
            }
            buffer => pool.release(buffer.take().map(PacketMemory::Reassembled)),
        }
        pool.release([PacketMemory::Frame(fragment.frame)]);
        if fragment.has_more {
            *self.partial = Some(partial);
            return;
        }
        match partial.buffer {
            Some(mut buffer) => {
                self.received.reassembled += 1;
                if self.format.completes_checksums {
                    let bytes = self.umem.reassembled_bytes_mut(&mut buffer, partial.length);
                    self.received.checksums += u64::from(checksum::complete(bytes));
                }
                self.push_packet(buffer.address(), partial.length, PacketMemory::Reassembled(buffer));
            }
            None => self.received.refused += 1,
        }
    }

    #[inline]
    fn push_packet(&mut self, offset: usize, length: usize, memory: PacketMemory) {
        let open_batch = &mut *self.open_batch;
        open_batch.descriptors.push(Descriptor { offset: offset as u32, length: length as u32 });
        open_batch.memory.push(memory);
        open_batch.queues.extend(self.queue);
        if self.format.metadata {
            let metadata = Metadata::new(length as u32, self.port, self.now);
            open_batch.metadata.push(metadata);
            open_batch.metadata_summary.add(&metadata, length as u32);
        }
        self.received.packets += 1;
        self.received.bytes += length as u64;
    }
}

fn system(queue: &Queue, what: &str, error: io::Error) -> LiveError {
    match error.raw_os_error() {
        Some(libc::ENXIO | libc::ENODEV) => LiveError::Gone { interface: queue.interface.to_string() },
        _ => LiveError::System { what: format!("{}, queue {}: {what}", queue.interface, queue.queue), error },
    }
}

/// Fails if the queue's interface was removed: the socket reports it once and then blocks forever.
fn check_not_removed(queue: &Queue) -> Result<(), LiveError> {
    match super::socket::pending_error(queue.rx.fd()) {
        Some(libc::ENETDOWN) => Err(LiveError::Gone { interface: queue.interface.to_string() }),
        _ => Ok(()),
    }
}
