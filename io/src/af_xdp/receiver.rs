//! A lane's packets, out of one queue or several.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_core::packet::{Batch, Descriptor, Metadata, RESIZE_ROOM, ResizeRoom};

use super::homes::{Held, Homes, Lists, Place, Slot};
use super::rx::{Piece, Rx};
use super::umem::Umem;
use crate::live::{LiveError, ReceivedCounts, Receiver, checksum, nanoseconds};

/// For how long packets are looked for before the thread sleeps. It is about what a sleep costs, with being woken up: so who looks
/// in vain pays twice at most (competitive spinning, Karlin and others, SOSP 1991). Without, the thread slept at millions of packets
/// a second, and whoever sent them had to wake it up each time.
const LOOK: Duration = Duration::from_micros(20);

/// How often it is looked between two looks at the clock.
const LOOKS: usize = 16;

/// A queue of a port.
pub(crate) struct Queue {
    pub interface: Arc<str>,
    /// The number of the port.
    pub port: u32,
    /// What it is in metadata.
    pub known_as: u32,
    pub queue: u32,
    pub rx: Rx,
}

/// How packets are handed on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handing {
    pub room: ResizeRoom,
    pub metadata: bool,
    /// Whether checksums that the sender left to its network card are completed before a filter sees them.
    pub complete: bool,
}

/// A packet of which not all frames have come.
struct Partial {
    /// Where it is put together; none where there is no place, and then it is lost.
    slot: Option<Slot>,
    length: usize,
}

/// Receives from a lane's queues.
pub(crate) struct XdpReceiver {
    umem: Arc<Umem>,
    homes: Arc<Homes>,
    lane: usize,
    handing: Handing,
    queues: Vec<Queue>,
    partial: Vec<Option<Partial>>,
    /// For the next batch.
    gathered: Lists,
    /// The queue that is asked first next time.
    next: usize,
    received: ReceivedCounts,
    waits: Vec<libc::pollfd>,
    look: Duration,
    /// For how long the kernel polls for packets that are waited for; `None` where it does not.
    polls: Option<Duration>,
    /// The packets that a queue's ring has room for.
    ring: usize,
}

impl XdpReceiver {
    pub fn new(
        umem: Arc<Umem>,
        homes: Arc<Homes>,
        lane: usize,
        handing: Handing,
        queues: Vec<Queue>,
        ring: usize,
        polls: Option<Duration>,
    ) -> XdpReceiver {
        // With one processor, whoever looks keeps senders from it; and where packets only come while they are waited for, none
        // is ever seen.
        let in_vain = polls.is_some() || thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
        let waits = queues.iter().map(|queue| libc::pollfd { fd: queue.rx.fd(), events: libc::POLLIN, revents: 0 });
        XdpReceiver {
            umem,
            homes,
            lane,
            handing,
            waits: waits.collect(),
            look: if in_vain { Duration::ZERO } else { LOOK },
            partial: queues.iter().map(|_| None).collect(),
            queues,
            gathered: Lists::default(),
            next: 0,
            received: ReceivedCounts::default(),
            polls,
            ring,
        }
    }

    /// Whether packets are there, or come within this time. Where that is asked for, the kernel polls meanwhile: it does so when a
    /// socket is asked for what has come, and where one is waited for only as `net.core.busy_poll` says (`do_poll`, `fs/select.c`).
    fn comes_within(&mut self, time: Duration) -> bool {
        let begun = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.polls.is_some() {
                    self.queues.iter().for_each(|queue| super::socket::poll(queue.rx.fd()));
                }
                if self.queues.iter_mut().any(|queue| queue.rx.is_there()) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if begun.elapsed() >= time {
                return false;
            }
        }
    }

    /// Lets the kernel have frames from the start.
    pub fn prime(&mut self) -> Result<(), LiveError> {
        for queue in &mut self.queues {
            queue.rx.refill().map_err(|error| system(queue, "giving frames to the kernel", error))?;
        }
        Ok(())
    }
}

impl Receiver for XdpReceiver {
    fn receive(&mut self, most: usize) -> Result<usize, LiveError> {
        let now = if self.handing.metadata { nanoseconds() } else { 0 };
        let before = self.gathered.descriptors.len();
        let count = self.queues.len();
        for turn in 0..count {
            let index = (self.next + turn) % count;
            let left = most - (self.gathered.descriptors.len() - before);
            if left == 0 {
                break;
            }
            let Queue { known_as, rx, .. } = &mut self.queues[index];
            let mut intake = Intake {
                umem: &self.umem,
                homes: &self.homes,
                lane: self.lane,
                handing: self.handing,
                gathered: &mut self.gathered,
                partial: &mut self.partial[index],
                received: &mut self.received,
                queue: (count > 1).then_some(index as u16),
                port: *known_as,
                now,
            };
            rx.take(left, |piece| intake.piece(piece));
            self.queues[index]
                .rx
                .refill()
                .map_err(|e| system(&self.queues[index], "giving frames to the kernel", e))?;
        }
        self.next = (self.next + 1) % count.max(1);
        Ok(self.gathered.descriptors.len() - before)
    }

    fn wait(&mut self, most: Duration) -> Result<(), LiveError> {
        let begun = Instant::now();
        if self.comes_within(self.polls.unwrap_or(self.look).min(most)) {
            return Ok(());
        }
        let most = most.saturating_sub(begun.elapsed());
        let time = libc::timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        // SAFETY: the descriptors are there during the call, as many as is said, and so is the time.
        let ready = unsafe {
            libc::ppoll(self.waits.as_mut_ptr(), self.waits.len() as libc::nfds_t, &raw const time, std::ptr::null())
        };
        match ready {
            0 => self.queues.iter().try_for_each(gone),
            1.. => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(system(&self.queues[0], "waiting for packets", error)),
            },
        }
    }

    fn backlog_capacity(&self) -> usize {
        // Where the kernel polls for whoever waits, nothing comes for one who does not.
        if self.polls.is_some() { 0 } else { self.ring }
    }

    fn is_full(&self) -> bool {
        // The other half is for the kernel, which receives into it meanwhile.
        self.gathered.descriptors.len() >= self.homes.per_lane() / 2
    }

    fn take_batch(&mut self) -> Option<Batch> {
        if self.gathered.descriptors.is_empty() {
            return None;
        }
        let next = self.homes.take_lists(self.lane);
        let Lists { descriptors, metadata, places, queues } = std::mem::replace(&mut self.gathered, next);
        let held = Box::new(Held::new(places, queues, self.homes.clone()));
        let span = self.umem.span().clone();
        // SAFETY: each packet lies in memory of its own, with its room, which the companion keeps (`Intake::piece`).
        let batch = unsafe { Batch::from_frames(span, descriptors, metadata, self.handing.room, held) };
        Some(batch.expect("frames lie in their UMEM"))
    }

    fn received(&mut self) -> ReceivedCounts {
        let dropped_by_kernel = self.queues.iter().map(|queue| queue.rx.dropped()).sum();
        ReceivedCounts { dropped_by_kernel, ..self.received }
    }
}

/// Takes frames of one queue into a batch.
struct Intake<'a> {
    umem: &'a Umem,
    homes: &'a Homes,
    lane: usize,
    handing: Handing,
    gathered: &'a mut Lists,
    partial: &'a mut Option<Partial>,
    received: &'a mut ReceivedCounts,
    queue: Option<u16>,
    port: u32,
    now: u64,
}

impl Intake<'_> {
    #[inline]
    fn piece(&mut self, mut piece: Piece) {
        if !piece.goes_on && self.partial.is_none() && self.has_room(&piece) {
            if self.handing.complete {
                let bytes = self.umem.bytes_mut(&mut piece.frame);
                self.received.checksums += u64::from(checksum::complete(&mut bytes[..piece.length]));
            }
            let at = piece.frame.address();
            return self.packet(at, piece.length, Place::Frame(piece.frame));
        }
        self.part(piece);
    }

    /// Whether the packet can stay where it is.
    fn has_room(&self, piece: &Piece) -> bool {
        let left = self.umem.room(&piece.frame);
        match self.handing.room {
            ResizeRoom::None => piece.length <= left,
            ResizeRoom::Both => {
                let before = self.umem.frame_size() - left;
                piece.length + RESIZE_ROOM as usize <= left && before >= RESIZE_ROOM as usize
            }
        }
    }

    /// A part of a packet, or one that has no room where it is.
    #[cold]
    fn part(&mut self, piece: Piece) {
        let (homes, lane) = (self.homes, self.lane);
        let mut partial = self.partial.take().unwrap_or_else(|| Partial { slot: homes.take_slot(lane), length: 0 });
        let bytes = self.umem.bytes(&piece.frame, piece.length.min(self.umem.room(&piece.frame)));
        match &mut partial.slot {
            Some(slot) if partial.length + bytes.len() <= slot.capacity() => {
                self.umem.write(slot, partial.length, bytes);
                partial.length += bytes.len();
            }
            slot => homes.put(slot.take().map(Place::Slot)),
        }
        homes.put([Place::Frame(piece.frame)]);
        if piece.goes_on {
            *self.partial = Some(partial);
            return;
        }
        match partial.slot {
            Some(mut slot) => {
                self.received.reassembled += 1;
                if self.handing.complete {
                    let bytes = self.umem.slot_bytes_mut(&mut slot, partial.length);
                    self.received.checksums += u64::from(checksum::complete(bytes));
                }
                self.packet(slot.address(), partial.length, Place::Slot(slot));
            }
            None => self.received.refused += 1,
        }
    }

    #[inline]
    fn packet(&mut self, offset: usize, length: usize, place: Place) {
        let gathered = &mut *self.gathered;
        gathered.descriptors.push(Descriptor { offset: offset as u32, length: length as u32 });
        gathered.places.push(place);
        gathered.queues.extend(self.queue);
        if self.handing.metadata {
            gathered.metadata.push(Metadata::new(length as u32, self.port, self.now));
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

/// An error where the queue's interface has been removed: its socket is told so once, and waits for ever.
fn gone(queue: &Queue) -> Result<(), LiveError> {
    match super::socket::pending_error(queue.rx.fd()) {
        Some(libc::ENETDOWN) => Err(LiveError::Gone { interface: queue.interface.to_string() }),
        _ => Ok(()),
    }
}
