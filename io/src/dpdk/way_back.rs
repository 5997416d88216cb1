//! What comes from where packets go that pass: out of a port, past the filter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portcullis_dpdk_sys as sys;

use super::executor::{Port, lock};
use super::memory::{Mbufs, Memory, Together};
use crate::live::{Carried, checksum};

/// Packets that are taken at a time.
const BURST: usize = 64;

/// How often that is done before the filter's packets have their turn again.
const TURNS: usize = 4;

/// The first lane has it. Nothing is lost here: what the port has no room for waits, and so does then what comes behind it, in the
/// kernel's own queue.
#[derive(Debug)]
pub(super) struct WayBack {
    memory: Arc<Memory>,
    /// The port that packets come from, by its first queue.
    from: u16,
    to: Port,
    /// Whether there may be checksums that their sender has left to a card.
    completes: bool,
    /// What there was no room for yet.
    waiting: Mbufs,
    /// Whether an end is wanted.
    ending: Arc<AtomicBool>,
}

impl WayBack {
    pub fn new(memory: Arc<Memory>, from: u16, to: Port, completes: bool, ending: Arc<AtomicBool>) -> WayBack {
        WayBack { memory, from, to, completes, waiting: Mbufs::default(), ending }
    }

    /// Whether it is to have a turn soon.
    pub fn is_busy(&self) -> bool {
        !self.ending.load(Ordering::Relaxed)
    }

    /// Sends on what has come.
    pub fn turn(&mut self, carried: &mut Carried) {
        for _ in 0..TURNS {
            let came = if self.waiting.is_empty() && self.is_busy() { self.receive(carried) } else { 0 };
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

    /// Takes a burst. Gives how many there were, which is more than are there then where one was too long.
    fn receive(&mut self, carried: &mut Carried) -> usize {
        let mut lies = [sys::pc_lies::default(); BURST];
        let (mut bytes, mut elsewhere) = (0, 0);
        let memory = self.memory.shim(portcullis_core::packet::Room::None);
        // SAFETY: nobody else receives by this queue. There is room for so many packets and their places, of which as many are
        // written as it says, and the packets are ours.
        let came = unsafe {
            self.waiting.extend(BURST, |room| {
                let (bytes, elsewhere) = (&raw mut bytes, &raw mut elsewhere);
                sys::pc_receive(self.from, 0, memory, room, lies.as_mut_ptr(), BURST as u16, bytes, elsewhere).into()
            })
        };
        if elsewhere > 0 {
            // Drivers of devices that there are not send the first piece alone.
            for (mbuf, lies) in self.waiting.drain_from(0).into_iter().zip(&mut lies) {
                if lies.offset != sys::PC_ELSEWHERE {
                    self.waiting.push(mbuf);
                } else if let Together::Whole(mbuf, place) = self.memory.put_together(mbuf, lies.length as usize) {
                    lies.offset = place.offset;
                    self.waiting.push(mbuf);
                }
            }
        }
        if self.completes {
            for lies in lies[..came].iter().filter(|lies| lies.offset != sys::PC_ELSEWHERE) {
                // SAFETY: the packet is ours, and lies there.
                let bytes = unsafe {
                    let at = self.memory.span.as_ptr().add(lies.offset as usize);
                    std::slice::from_raw_parts_mut(at, lies.length as usize)
                };
                carried.checksums += u64::from(checksum::complete(bytes));
            }
        }
        came
    }
}
