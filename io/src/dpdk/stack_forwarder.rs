//! Forwarding packets from the kernel's stack out of a port, past the filter.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portcullis_dpdk_sys as sys;

use super::memory::{Linearized, Mbuf, Mbufs, Memory};
use super::tx_queue::{SharedTxQueue, lock};
use crate::live::{ExecutedCounts, checksum};

/// Packets received at a time.
const BURST: usize = 64;

/// Maximum number of bursts before filtered packets have their turn.
const TURNS: usize = 4;

/// Forwards packets; owned by the first lane. Nothing is dropped for lack of room in the port: the
/// packets wait here, and those behind them in the kernel's queue. Only malformed packets, and
/// those left at the end, are counted as lost.
#[derive(Debug)]
pub(super) struct StackForwarder {
    memory: Arc<Memory>,
    /// The port to receive from, by its first queue.
    from: u16,
    to: SharedTxQueue,
    /// Whether packets may have partial checksums.
    completes: bool,
    /// Whether packets may be sent in several segments.
    in_pieces: bool,
    /// Packets that the port had no room for yet.
    waiting: Mbufs,
    /// Later packets that are not linearised yet, with their locations.
    behind: VecDeque<(Mbuf, sys::pc_lies)>,
    /// Set when the run is to end.
    ending: Arc<AtomicBool>,
}

impl StackForwarder {
    pub fn new(
        memory: Arc<Memory>,
        from: u16,
        to: SharedTxQueue,
        completes: bool,
        ending: Arc<AtomicBool>,
    ) -> StackForwarder {
        // With header split, all ports transmit multi-segment packets (`super::port`), and it is
        // not used with partial checksums. Otherwise, virtual devices' drivers may only transmit
        // the first segment.
        let in_pieces = memory.tail_pool().is_some() && !completes;
        let (waiting, behind) = (Mbufs::default(), VecDeque::new());
        StackForwarder { memory, from, to, completes, in_pieces, waiting, behind, ending }
    }

    /// Whether [`StackForwarder::poll`] should be called soon.
    pub fn is_busy(&self) -> bool {
        !self.ending.load(Ordering::Relaxed)
    }

    /// Forwards available packets.
    pub fn poll(&mut self, executed: &mut ExecutedCounts) {
        for _ in 0..TURNS {
            let came = match self.waiting.is_empty() {
                true if !self.behind.is_empty() => {
                    self.linearize(executed);
                    0
                }
                true if self.is_busy() => self.receive(executed),
                _ => 0,
            };
            if !self.waiting.is_empty() {
                let queue = lock(&self.to);
                let count = self.waiting.len() as u16;
                // SAFETY: the mbufs are owned here, as many as stated, and the queue is locked.
                let took = unsafe { sys::pc_send(queue.port, queue.queue, self.waiting.as_mut_ptr(), count) };
                // SAFETY: the driver owns these mbufs now.
                unsafe { self.waiting.forget_first(took.into()) };
                executed.from_stack += u64::from(took);
            }
            if came < BURST || !self.waiting.is_empty() {
                return;
            }
        }
    }

    /// Stops forwarding; packets left are lost.
    pub fn finish(&mut self, executed: &mut ExecutedCounts) {
        executed.from_stack_lost += (self.waiting.len() + self.behind.len()) as u64;
        self.waiting.free();
        self.behind.clear();
    }

    /// Receives a burst and returns its size, malformed and waiting packets included.
    fn receive(&mut self, executed: &mut ExecutedCounts) -> usize {
        let mut lies = [sys::pc_lies::default(); BURST];
        let (mut bytes, mut elsewhere) = (0, 0);
        let memory = self.memory.to_shim(portcullis_core::packet::ResizeRoom::None);
        // SAFETY: nothing else receives from this queue. Both arrays have room for a burst, and the
        // mbufs written become owned here.
        let came = unsafe {
            self.waiting.extend(BURST, |room| {
                let (bytes, elsewhere) = (&raw mut bytes, &raw mut elsewhere);
                sys::pc_receive(self.from, 0, memory, room, lies.as_mut_ptr(), BURST as u16, bytes, elsewhere).into()
            })
        };
        if elsewhere > 0 {
            self.behind = self.waiting.drain_from(0).into_iter().zip(lies).collect();
            self.linearize(executed);
        } else if self.completes {
            lies[..came].iter().for_each(|lies| self.complete(*lies, executed));
        }
        came
    }

    /// Prepares received packets for transmission, up to one that has to wait for a long buffer.
    fn linearize(&mut self, executed: &mut ExecutedCounts) {
        while let Some((mut mbuf, mut lies)) = self.behind.pop_front() {
            // SAFETY: the mbuf is owned here.
            let goes_so = self.in_pieces && unsafe { sys::pc_is_whole(mbuf.as_ptr()) } != 0;
            if lies.offset == sys::PC_ELSEWHERE && !goes_so {
                match self.memory.linearize(mbuf, lies.length as usize) {
                    Linearized::Whole(whole, place) => {
                        mbuf = whole;
                        lies.offset = place.offset;
                    }
                    Linearized::Retry(mbuf) => return self.behind.push_front((mbuf, lies)),
                    Linearized::Dropped => {
                        executed.from_stack_lost += 1;
                        continue;
                    }
                }
            }
            if self.completes {
                self.complete(lies, executed);
            }
            self.waiting.push(mbuf);
        }
    }

    /// Completes the checksum of a contiguous packet.
    fn complete(&self, lies: sys::pc_lies, executed: &mut ExecutedCounts) {
        // SAFETY: the packet is owned here, and lies at this location.
        let bytes = unsafe {
            let at = self.memory.span.as_ptr().add(lies.offset as usize);
            std::slice::from_raw_parts_mut(at, lies.length as usize)
        };
        executed.checksums += u64::from(checksum::complete(bytes));
    }
}
