//! What comes from where packets go that pass: out of a port, past the filter.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portcullis_dpdk_sys as sys;

use super::executor::{Port, lock};
use super::memory::{Mbuf, Mbufs, Memory, Together};
use crate::live::{ExecutedCounts, checksum};

/// Packets that are taken at a time.
const BURST: usize = 64;

/// How often that is done before the filter's packets have their turn again.
const TURNS: usize = 4;

/// The first lane has it. Nothing is lost here: what the port has no room for waits, and so does then what comes behind it, in the
/// kernel's own queue. What makes no sense, or has not left in the end, is counted.
#[derive(Debug)]
pub(super) struct WayBack {
    memory: Arc<Memory>,
    /// The port that packets come from, by its first queue.
    from: u16,
    to: Port,
    /// Whether there may be checksums that their sender has left to a card.
    completes: bool,
    /// Whether packets may go out in several pieces.
    in_pieces: bool,
    /// What there was no room for yet.
    waiting: Mbufs,
    /// What came after that, and is not put together yet, with its places.
    behind: VecDeque<(Mbuf, sys::pc_lies)>,
    /// Whether an end is wanted.
    ending: Arc<AtomicBool>,
}

impl WayBack {
    pub fn new(memory: Arc<Memory>, from: u16, to: Port, completes: bool, ending: Arc<AtomicBool>) -> WayBack {
        // Where packets are split, all ports send pieces (`super::port`), and whoever has checksums left to him splits none. Elsewhere
        // drivers of devices that there are not may send the first piece alone.
        let in_pieces = memory.rest().is_some() && !completes;
        let (waiting, behind) = (Mbufs::default(), VecDeque::new());
        WayBack { memory, from, to, completes, in_pieces, waiting, behind, ending }
    }

    /// Whether it is to have a turn soon.
    pub fn is_busy(&self) -> bool {
        !self.ending.load(Ordering::Relaxed)
    }

    /// Sends on what has come.
    pub fn turn(&mut self, carried: &mut ExecutedCounts) {
        for _ in 0..TURNS {
            let came = match self.waiting.is_empty() {
                true if !self.behind.is_empty() => {
                    self.linearize(carried);
                    0
                }
                true if self.is_busy() => self.receive(carried),
                _ => 0,
            };
            if !self.waiting.is_empty() {
                let queue = lock(&self.to);
                let count = self.waiting.len() as u16;
                // SAFETY: the packets are ours, as many as is said; and the queue is, while it is locked.
                let took = unsafe { sys::pc_send(queue.port, queue.queue, self.waiting.as_mut_ptr(), count) };
                // SAFETY: the driver has these.
                unsafe { self.waiting.taken(took.into()) };
                carried.from_stack += u64::from(took);
            }
            if came < BURST || !self.waiting.is_empty() {
                return;
            }
        }
    }

    /// No more comes, and what has not left never will.
    pub fn finish(&mut self, carried: &mut ExecutedCounts) {
        carried.from_stack_lost += (self.waiting.len() + self.behind.len()) as u64;
        self.waiting.free();
        self.behind.clear();
    }

    /// Takes a burst. Gives how many there were, which is more than are there then where one makes no sense, or has to wait.
    fn receive(&mut self, carried: &mut ExecutedCounts) -> usize {
        let mut lies = [sys::pc_lies::default(); BURST];
        let (mut bytes, mut elsewhere) = (0, 0);
        let memory = self.memory.shim(portcullis_core::packet::ResizeRoom::None);
        // SAFETY: nobody else receives by this queue. There is room for so many packets and their places, of which as many are
        // written as it says, and the packets are ours.
        let came = unsafe {
            self.waiting.extend(BURST, |room| {
                let (bytes, elsewhere) = (&raw mut bytes, &raw mut elsewhere);
                sys::pc_receive(self.from, 0, memory, room, lies.as_mut_ptr(), BURST as u16, bytes, elsewhere).into()
            })
        };
        if elsewhere > 0 {
            self.behind = self.waiting.drain_from(0).into_iter().zip(lies).collect();
            self.linearize(carried);
        } else if self.completes {
            lies[..came].iter().for_each(|lies| self.complete(*lies, carried));
        }
        came
    }

    /// Makes packets that came ready to be sent, up to one for which there is no room now to be put together.
    fn linearize(&mut self, carried: &mut ExecutedCounts) {
        while let Some((mut mbuf, mut lies)) = self.behind.pop_front() {
            // SAFETY: the packet is ours.
            let goes_so = self.in_pieces && unsafe { sys::pc_is_whole(mbuf.as_ptr()) } != 0;
            if lies.offset == sys::PC_ELSEWHERE && !goes_so {
                match self.memory.linearize(mbuf, lies.length as usize) {
                    Together::Whole(whole, place) => {
                        mbuf = whole;
                        lies.offset = place.offset;
                    }
                    Together::Later(mbuf) => return self.behind.push_front((mbuf, lies)),
                    Together::Never => {
                        carried.from_stack_lost += 1;
                        continue;
                    }
                }
            }
            if self.completes {
                self.complete(lies, carried);
            }
            self.waiting.push(mbuf);
        }
    }

    /// Completes the checksums of a packet, which is in one piece.
    fn complete(&self, lies: sys::pc_lies, carried: &mut ExecutedCounts) {
        // SAFETY: the packet is ours, and lies there.
        let bytes = unsafe {
            let at = self.memory.span.as_ptr().add(lies.offset as usize);
            std::slice::from_raw_parts_mut(at, lies.length as usize)
        };
        carried.checksums += u64::from(checksum::complete(bytes));
    }
}
