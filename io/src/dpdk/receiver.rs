//! A lane's packets, out of one queue or several.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis_core::packet::{Batch, Descriptor, Metadata, Room};
use portcullis_dpdk_sys as sys;

use super::eal::know_this_thread;
use super::error::DpdkError;
use super::gpudev::CommList;
use super::interfaces::Interfaces;
use super::memory::{Lists, Mbuf, Memory, Together};
use super::port::{Port, RING};
use crate::live::{LiveError, ReceivedCounts, Receiver, checksum, nanoseconds};

/// Packets that a driver is asked for at a time.
const BURST: usize = 64;

/// How long nothing may have come before a thread that has nothing else to do sleeps in between.
const AWAKE: Duration = Duration::from_millis(10);

/// How long it sleeps then: by the time its ring is full (14.88 million packets a second, RFC 2544's smallest frames at 10 Gb/s) it is
/// long awake, the kernel's 50 µs that a sleep may take longer included.
const NAP: Duration = Duration::from_micros(5);

/// How long packets wait for buffers to be put together in, before those count as gone for good: somebody keeps them who gives none back.
const PATIENCE: Duration = Duration::from_secs(1);

/// A queue of a port.
pub(super) struct Queue {
    pub port: u16,
    pub queue: u16,
    /// The number of the port in metadata.
    pub number: u32,
}

/// How packets are handed on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handing {
    pub room: Room,
    pub metadata: bool,
    /// Whether checksums that the sender left to its network card are completed before a filter sees them.
    pub complete: bool,
}

/// Receives from a lane's queues.
pub(super) struct DpdkReceiver {
    /// What is left of a burst, with its places, from a packet on for which there was no buffer to be put together in: the first of the
    /// next batch.
    aside: VecDeque<(Mbuf, Descriptor)>,
    /// The queue that they came by.
    aside_of: usize,
    /// Since when there has been no such buffer.
    stuck: Option<Instant>,
    /// Packets that were lost for want of one.
    dropped: u64,
    memory: Arc<Memory>,
    handing: Handing,
    queues: Vec<Queue>,
    /// For the next batch.
    gathered: Lists,
    /// The queue that is asked first next time.
    next: usize,
    received: ReceivedCounts,
    /// Ports whose drops this lane counts.
    counts: Vec<u16>,
    /// Since when nothing has come, by who waits for it.
    idle: Option<Instant>,
    /// Packets that a batch has at most, so that there are some for the driver.
    most: usize,
    /// Whether an end is wanted.
    ending: Arc<AtomicBool>,
    /// Packets that are taken after that: as many as may have come before.
    left: usize,
    /// How the GPU gets to know of packets.
    listing: Option<Listing>,
    /// Why the GPU takes no more packets.
    failed: Option<DpdkError>,
    /// Those of the run, which one of its lanes looks after: if it ends, so do the others.
    interfaces: Option<Interfaces>,
}

/// A lane's communication list.
pub(super) struct Listing {
    pub list: Arc<CommList>,
    /// Packets that were dropped for want of a FREE item, which the lane's executor counts.
    pub dropped: Arc<AtomicU64>,
}

impl DpdkReceiver {
    pub fn new(
        memory: Arc<Memory>,
        handing: Handing,
        queues: Vec<Queue>,
        counts: Vec<u16>,
        most: usize,
        ending: Arc<AtomicBool>,
        listing: Option<Listing>,
    ) -> DpdkReceiver {
        let most = if listing.is_some() { most.min(CommList::MOST) } else { most };
        let left = queues.len() * usize::from(RING);
        DpdkReceiver {
            aside: VecDeque::new(),
            aside_of: 0,
            stuck: None,
            dropped: 0,
            memory,
            handing,
            queues,
            gathered: Lists::default(),
            next: 0,
            received: ReceivedCounts::default(),
            counts,
            idle: None,
            most,
            ending,
            left,
            listing,
            failed: None,
            interfaces: None,
        }
    }

    /// Has it look after the run's interfaces, if it is given them.
    pub fn looking_after(self, interfaces: Option<Interfaces>) -> DpdkReceiver {
        DpdkReceiver { interfaces, ..self }
    }

    /// Takes one burst of a queue. Gives how many packets the driver gave, and how many of them are gathered.
    fn burst(&mut self, index: usize, most: usize, now: u64) -> (usize, usize) {
        let Queue { port, queue, .. } = self.queues[index];
        let memory = self.memory.shim(self.handing.room);
        let Lists { held, descriptors, .. } = &mut self.gathered;
        let first = descriptors.len();
        descriptors.reserve(most);
        let (mut bytes, mut elsewhere) = (0, 0);
        let lies = descriptors.spare_capacity_mut().as_mut_ptr().cast::<sys::pc_lies>();
        // SAFETY: the queue is this lane's alone. There is room for so many packets and their places, of which as many are written
        // as it says, and the packets are ours.
        let came = unsafe {
            held.mbufs.extend(most, |room| {
                let (bytes, elsewhere) = (&raw mut bytes, &raw mut elsewhere);
                let came = match self.memory.rest() {
                    None => sys::pc_receive(port, queue, memory, room, lies, most as u16, bytes, elsewhere),
                    Some((rest, head)) => {
                        let split = sys::pc_split { rest, head };
                        sys::pc_receive_split(port, queue, memory, split, room, lies, most as u16, bytes, elsewhere)
                    }
                };
                usize::from(came)
            })
        };
        // SAFETY: a place is a descriptor (both `repr(C)`, offset and length), and so many are written.
        unsafe { descriptors.set_len(first + came) };
        self.received.bytes += bytes;
        if elsewhere > 0 {
            self.set_aside(first, index);
            self.take_up(came);
        }
        (came, self.gathered(first, index, now))
    }

    /// Notes what is gathered from the `first` on, all of one queue. Gives how many they are.
    fn gathered(&mut self, first: usize, index: usize, now: u64) -> usize {
        let number = self.queues[index].number;
        let Lists { held, descriptors, metadata } = &mut self.gathered;
        let kept = descriptors.len() - first;
        self.received.packets += kept as u64;
        if self.queues.len() > 1 {
            held.queues.resize(first + kept, index as u16);
        }
        if self.handing.metadata {
            metadata.extend(descriptors[first..].iter().map(|it| Metadata::new(it.length, number, now)));
        }
        kept
    }

    /// Has a burst not be gathered, from the `first` packet on.
    #[cold]
    fn set_aside(&mut self, first: usize, index: usize) {
        let Lists { held, descriptors, .. } = &mut self.gathered;
        let places = descriptors.split_off(first);
        self.received.bytes -= places.iter().map(|place| u64::from(place.length)).sum::<u64>();
        self.aside = held.mbufs.drain_from(first).into_iter().zip(places).collect();
        self.aside_of = index;
    }

    /// Gathers packets that were set aside, so many at most, and puts those together that do not lie in one piece in our memory. Ends at
    /// one for which there is no room now.
    #[cold]
    fn take_up(&mut self, most: usize) {
        let Lists { held, descriptors, .. } = &mut self.gathered;
        let enough = descriptors.len() + most;
        while descriptors.len() < enough {
            let Some((mut mbuf, mut place)) = self.aside.pop_front() else { return };
            if place.offset == sys::PC_ELSEWHERE {
                match self.memory.linearize(mbuf, place.length as usize) {
                    Together::Whole(whole, lies) => {
                        (mbuf, place) = (whole, lies);
                        self.received.reassembled += 1;
                        self.stuck = None;
                    }
                    Together::Later(mbuf) => {
                        if self.stuck.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                            self.aside.push_front((mbuf, place));
                            return;
                        }
                        self.dropped += 1;
                        continue;
                    }
                    Together::Never => {
                        self.received.refused += 1;
                        continue;
                    }
                }
            }
            self.received.bytes += u64::from(place.length);
            held.mbufs.push(mbuf);
            descriptors.push(place);
        }
    }

    /// Completes the checksums of packets from the `first` on.
    fn complete(&mut self, first: usize) {
        let base = self.memory.span.as_ptr();
        for Descriptor { offset, length } in &self.gathered.descriptors[first..] {
            // SAFETY: the packet is ours, and lies there.
            let bytes = unsafe { std::slice::from_raw_parts_mut(base.add(*offset as usize), *length as usize) };
            self.received.checksums += u64::from(checksum::complete(bytes));
        }
    }
}

impl Receiver for DpdkReceiver {
    fn receive(&mut self, most: usize) -> Result<usize, LiveError> {
        if let Some(error) = self.failed.take() {
            let what = "giving packets to the GPU".into();
            return Err(LiveError::System { what, error: io::Error::other(error.to_string()) });
        }
        know_this_thread();
        // Here, so that what came before is still carried out.
        self.interfaces.as_mut().map_or(Ok(()), Interfaces::poll)?;
        let is_ending = self.ending.load(Ordering::Relaxed);
        // An item of a list has so many packets, and no more.
        let most = match &self.listing {
            Some(_) => most.min(CommList::MOST.saturating_sub(self.gathered.descriptors.len())),
            None => most,
        };
        let now = if self.handing.metadata { nanoseconds() } else { 0 };
        let before = self.gathered.descriptors.len();
        let (count, mut got) = (self.queues.len(), 0);
        if !self.aside.is_empty() {
            self.take_up(most);
            got = self.gathered(before, self.aside_of, now);
        }
        let most = if is_ending { (most - got).min(self.left) } else { most - got };
        // Those that are refused count as well: a port may have nothing else, and no end of it.
        let mut all = 0;
        for turn in 0..count {
            let index = (self.next + turn) % count;
            // What is set aside comes first.
            while all < most && self.aside.is_empty() {
                let wanted = BURST.min(most - all);
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
            if self.handing.complete {
                self.complete(before);
            }
        }
        Ok(got)
    }

    /// Nobody tells of packets: who waits for them looks again and again, and after a while without any sleeps in between.
    fn wait(&mut self, most: Duration) -> Result<(), LiveError> {
        match self.idle.get_or_insert_with(Instant::now).elapsed() < AWAKE {
            true => std::hint::spin_loop(),
            false => std::thread::sleep(NAP.min(most)),
        }
        Ok(())
    }

    fn backlog_capacity(&self) -> usize {
        RING.into()
    }

    fn is_full(&self) -> bool {
        self.gathered.descriptors.len() >= self.most || !self.aside.is_empty()
    }

    fn take_batch(&mut self) -> Option<Batch> {
        if self.gathered.descriptors.is_empty() {
            return None;
        }
        let Lists { mut held, descriptors, metadata } = std::mem::replace(&mut self.gathered, self.memory.take_lists());
        if let Some(Listing { list, dropped }) = &self.listing {
            match list.populate(&mut held.mbufs) {
                Ok(Some(ready)) => held.listed = Some(ready),
                without => {
                    // Packets are in one piece each, and no more than an item has: that they are not taken is the GPU's failure.
                    self.failed = without.err();
                    dropped.fetch_add(held.mbufs.len() as u64, Ordering::Relaxed);
                    self.memory.put_lists(Lists { held, descriptors, metadata });
                    return None;
                }
            }
        }
        held.memory = Some(self.memory.clone());
        let span = self.memory.span.clone();
        // SAFETY: each packet lies in a buffer of its own, with its room, and buffers begin at multiples of 64; the companion has them.
        let batch = unsafe { Batch::from_frames(span, descriptors, metadata, self.handing.room, held) };
        Some(batch.expect("buffers lie in their memory"))
    }

    fn received(&mut self) -> ReceivedCounts {
        let dropped: u64 = self.counts.iter().map(|port| Port::dropped(*port)).sum();
        ReceivedCounts { dropped_by_kernel: dropped + self.dropped, ..self.received }
    }
}
