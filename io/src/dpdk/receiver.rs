//! The receiver of a DPDK lane: packets of one or more queues.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis_core::packet::{Batch, Descriptor, Metadata, ResizeRoom};
use portcullis_dpdk_sys as sys;

use super::eal::register_this_thread;
use super::error::DpdkError;
use super::gpudev::CommList;
use super::interface_watch::InterfaceWatch;
use super::memory::{BatchBuffers, Linearized, Mbuf, Memory};
use super::port::{Port, RING_SIZE};
use crate::live::{LiveError, ReceivedCounts, Receiver, checksum, nanoseconds};

/// Maximum burst size.
const BURST: usize = 64;

/// How long a waiting thread spins without packets before it sleeps between polls.
const SPIN_TIME: Duration = Duration::from_millis(10);

/// Sleep time between polls. Together with up to 50 µs of the kernel's timer slack it is far below
/// the time that fills a ring, even at 14.88 million packets per second (minimum-size frames at 10
/// Gb/s, RFC 2544).
const POLL_SLEEP: Duration = Duration::from_micros(5);

/// How long packets wait for a long buffer before they are dropped.
const LONG_BUFFER_WAIT: Duration = Duration::from_secs(1);

/// A receive queue of a port.
pub(super) struct Queue {
    pub port: u16,
    pub queue: u16,
    /// Port number in metadata.
    pub number: u32,
}

/// Contents of batches and preparation of packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchFormat {
    pub room: ResizeRoom,
    pub metadata: bool,
    /// Whether partial checksums are completed before the filter.
    pub complete: bool,
}

/// Receives from a lane's queues.
pub(super) struct DpdkReceiver {
    /// The rest of a burst, with packet locations, from the first packet that had to wait for a
    /// long buffer. It goes into the next batch first.
    set_aside_packets: VecDeque<(Mbuf, Descriptor)>,
    /// The queue of these packets.
    set_aside_queue: usize,
    /// Since when there has been no free long buffer.
    stuck: Option<Instant>,
    /// Packets dropped for lack of one.
    dropped: u64,
    memory: Arc<Memory>,
    format: BatchFormat,
    queues: Vec<Queue>,
    /// The open batch.
    open_batch: BatchBuffers,
    /// Index of the queue to poll first next time (round robin).
    next: usize,
    received: ReceivedCounts,
    /// Ports whose drops this lane counts.
    counts: Vec<u16>,
    /// Since when the waiting caller has received nothing.
    idle: Option<Instant>,
    /// Maximum number of packets in a batch, which leaves some to the driver.
    max: usize,
    /// Set when the run is to end.
    ending: Arc<AtomicBool>,
    /// Packets still to be received after that: as many as the rings may have batch_mbufs.
    left: usize,
    /// The communication list shared with the GPU, if any.
    comm_list: Option<LaneCommList>,
    /// The GPU's error, reported by the next call.
    failed: Option<DpdkError>,
    /// The run's interfaces, watched by one of its lanes; if that ends, so do the others.
    interfaces: Option<InterfaceWatch>,
}

/// A lane's communication list.
pub(super) struct LaneCommList {
    pub list: Arc<CommList>,
    /// Packets dropped for lack of a FREE item; counted by the lane's executor.
    pub dropped: Arc<AtomicU64>,
}

impl DpdkReceiver {
    pub fn new(
        memory: Arc<Memory>,
        format: BatchFormat,
        queues: Vec<Queue>,
        counts: Vec<u16>,
        max: usize,
        ending: Arc<AtomicBool>,
        comm_list: Option<LaneCommList>,
    ) -> DpdkReceiver {
        let max = if comm_list.is_some() { max.min(CommList::MAX_PACKETS) } else { max };
        let left = queues.len() * usize::from(RING_SIZE);
        DpdkReceiver {
            set_aside_packets: VecDeque::new(),
            set_aside_queue: 0,
            stuck: None,
            dropped: 0,
            memory,
            format,
            queues,
            open_batch: BatchBuffers::default(),
            next: 0,
            received: ReceivedCounts::default(),
            counts,
            idle: None,
            max,
            ending,
            left,
            comm_list,
            failed: None,
            interfaces: None,
        }
    }

    /// Makes this lane watch the run's interfaces, if given.
    pub fn watching(self, interfaces: Option<InterfaceWatch>) -> DpdkReceiver {
        DpdkReceiver { interfaces, ..self }
    }

    /// Receives a burst from a queue; returns the number of packets from the driver and of those
    /// added to the batch.
    fn burst(&mut self, index: usize, max: usize, now: u64) -> (usize, usize) {
        let Queue { port, queue, .. } = self.queues[index];
        let memory = self.memory.to_shim(self.format.room);
        let BatchBuffers { batch_mbufs, descriptors, .. } = &mut self.open_batch;
        let first = descriptors.len();
        descriptors.reserve(max);
        let (mut bytes, mut elsewhere) = (0, 0);
        let lies = descriptors.spare_capacity_mut().as_mut_ptr().cast::<sys::pc_lies>();
        // SAFETY: the queue belongs to this lane alone. Both arrays have room for a burst, and the
        // mbufs written become owned here.
        let came = unsafe {
            batch_mbufs.mbufs.extend(max, |room| {
                let (bytes, elsewhere) = (&raw mut bytes, &raw mut elsewhere);
                let came = match self.memory.tail_pool() {
                    None => sys::pc_receive(port, queue, memory, room, lies, max as u16, bytes, elsewhere),
                    Some((rest, head)) => {
                        let split = sys::pc_split { rest, head };
                        sys::pc_receive_split(port, queue, memory, split, room, lies, max as u16, bytes, elsewhere)
                    }
                };
                usize::from(came)
            })
        };
        // SAFETY: `pc_lies` has the layout of `Descriptor` (`repr(C)`, offset and length), and
        // `came` elements were written.
        unsafe { descriptors.set_len(first + came) };
        self.received.bytes += bytes;
        if elsewhere > 0 {
            self.set_aside(first, index);
            self.add_set_aside(came);
        }
        (came, self.finish_columns(first, index, now))
    }

    /// Completes the batch's columns for packets from index `first` on, all of one queue; returns
    /// their number.
    fn finish_columns(&mut self, first: usize, index: usize, now: u64) -> usize {
        let number = self.queues[index].number;
        let BatchBuffers { batch_mbufs, descriptors, metadata, metadata_summary } = &mut self.open_batch;
        let kept = descriptors.len() - first;
        self.received.packets += kept as u64;
        if self.queues.len() > 1 {
            batch_mbufs.queues.resize(first + kept, index as u16);
        }
        if self.format.metadata {
            metadata.extend(descriptors[first..].iter().map(|it| {
                let metadata = Metadata::new(it.length, number, now);
                metadata_summary.add(&metadata, it.length);
                metadata
            }));
        }
        kept
    }

    /// Removes a burst from the batch, from index `first` on.
    #[cold]
    fn set_aside(&mut self, first: usize, index: usize) {
        let BatchBuffers { batch_mbufs, descriptors, .. } = &mut self.open_batch;
        let places = descriptors.split_off(first);
        self.received.bytes -= places.iter().map(|place| u64::from(place.length)).sum::<u64>();
        self.set_aside_packets = batch_mbufs.mbufs.drain_from(first).into_iter().zip(places).collect();
        self.set_aside_queue = index;
    }

    /// Adds packets that were set aside, at most `max`, to the batch, linearising those that are
    /// not contiguous in our memory. Stops at one that has to wait for a long buffer.
    #[cold]
    fn add_set_aside(&mut self, max: usize) {
        let BatchBuffers { batch_mbufs, descriptors, .. } = &mut self.open_batch;
        let enough = descriptors.len() + max;
        while descriptors.len() < enough {
            let Some((mut mbuf, mut place)) = self.set_aside_packets.pop_front() else { return };
            if place.offset == sys::PC_ELSEWHERE {
                match self.memory.linearize(mbuf, place.length as usize) {
                    Linearized::Whole(whole, lies) => {
                        (mbuf, place) = (whole, lies);
                        self.received.reassembled += 1;
                        self.stuck = None;
                    }
                    Linearized::Retry(mbuf) => {
                        if self.stuck.get_or_insert_with(Instant::now).elapsed() < LONG_BUFFER_WAIT {
                            self.set_aside_packets.push_front((mbuf, place));
                            return;
                        }
                        self.dropped += 1;
                        continue;
                    }
                    Linearized::Dropped => {
                        self.received.refused += 1;
                        continue;
                    }
                }
            }
            self.received.bytes += u64::from(place.length);
            batch_mbufs.mbufs.push(mbuf);
            descriptors.push(place);
        }
    }

    /// Completes the checksums of packets from index `first` on.
    fn complete(&mut self, first: usize) {
        let base = self.memory.span.as_ptr();
        for Descriptor { offset, length } in &self.open_batch.descriptors[first..] {
            // SAFETY: the packet is owned here, and lies at this location.
            let bytes = unsafe { std::slice::from_raw_parts_mut(base.add(*offset as usize), *length as usize) };
            self.received.checksums += u64::from(checksum::complete(bytes));
        }
    }
}

impl Receiver for DpdkReceiver {
    fn receive(&mut self, max: usize) -> Result<usize, LiveError> {
        if let Some(error) = self.failed.take() {
            let what = "giving packets to the GPU".into();
            return Err(LiveError::System { what, error: io::Error::other(error.to_string()) });
        }
        register_this_thread();
        // Check here, so that packets received before are still executed.
        self.interfaces.as_mut().map_or(Ok(()), InterfaceWatch::poll)?;
        let is_ending = self.ending.load(Ordering::Relaxed);
        // A communication list item has a limited number of packets.
        let max = match &self.comm_list {
            Some(_) => max.min(CommList::MAX_PACKETS.saturating_sub(self.open_batch.descriptors.len())),
            None => max,
        };
        let now = if self.format.metadata { nanoseconds() } else { 0 };
        let before = self.open_batch.descriptors.len();
        let (count, mut got) = (self.queues.len(), 0);
        if !self.set_aside_packets.is_empty() {
            self.add_set_aside(max);
            got = self.finish_columns(before, self.set_aside_queue, now);
        }
        let max = if is_ending { (max - got).min(self.left) } else { max - got };
        // Count rejected packets as well: a port may deliver nothing else, without end.
        let mut all = 0;
        for turn in 0..count {
            let index = (self.next + turn) % count;
            // Packets that were set aside come first.
            while all < max && self.set_aside_packets.is_empty() {
                let wanted = BURST.min(max - all);
                let (came, kept) = self.burst(index, wanted, now);
                (all, got) = (all + came, got + kept);
                if came < wanted {
                    break;
                }
            }
        }
        self.next = (self.next + 1) % count.max(1);
        if is_ending {
            self.left -= all;
        }
        if got > 0 {
            self.idle = None;
            if self.format.complete {
                self.complete(before);
            }
        }
        Ok(got)
    }

    /// Spins; after a while without packets it sleeps between polls. There are no interrupts.
    fn wait(&mut self, max: Duration) -> Result<(), LiveError> {
        match self.idle.get_or_insert_with(Instant::now).elapsed() < SPIN_TIME {
            true => std::hint::spin_loop(),
            false => std::thread::sleep(POLL_SLEEP.min(max)),
        }
        Ok(())
    }

    fn backlog_capacity(&self) -> usize {
        RING_SIZE.into()
    }

    fn is_full(&self) -> bool {
        self.open_batch.descriptors.len() >= self.max || !self.set_aside_packets.is_empty()
    }

    fn take_batch(&mut self) -> Option<Batch> {
        if self.open_batch.descriptors.is_empty() {
            return None;
        }
        let BatchBuffers { mut batch_mbufs, descriptors, metadata, metadata_summary } =
            std::mem::replace(&mut self.open_batch, self.memory.take_batch_buffers());
        if let Some(LaneCommList { list, dropped }) = &self.comm_list {
            match list.populate(&mut batch_mbufs.mbufs) {
                Ok(Some(ready)) => batch_mbufs.comm_list_item = Some(ready),
                without => {
                    // The packets are contiguous and not too many for an item, so a refusal is the
                    // GPU's failure.
                    self.failed = without.err();
                    dropped.fetch_add(batch_mbufs.mbufs.len() as u64, Ordering::Relaxed);
                    self.memory.recycle_batch_buffers(BatchBuffers {
                        batch_mbufs,
                        descriptors,
                        metadata,
                        metadata_summary,
                    });
                    return None;
                }
            }
        }
        batch_mbufs.memory = Some(self.memory.clone());
        let span = self.memory.span.clone();
        // SAFETY: each packet with its room lies in a buffer of its own; buffers start at multiples
        // of 64, and the source data owns them.
        let batch = unsafe { Batch::from_frames(span, descriptors, metadata, self.format.room, batch_mbufs) };
        Some(batch.expect("buffers lie in their memory").with_metadata_summary(metadata_summary.summary()))
    }

    fn received(&mut self) -> ReceivedCounts {
        let dropped: u64 = self.counts.iter().map(|port| Port::dropped(*port)).sum();
        ReceivedCounts { dropped_by_kernel: dropped + self.dropped, ..self.received }
    }
}
