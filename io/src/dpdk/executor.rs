//! Carrying out verdicts on DPDK's packets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portcullis_core::device::Completion;
use portcullis_core::packet::{Action, BatchParts, Descriptor, ResizeRoom, Verdict, Verdicts};
use portcullis_dpdk_sys as sys;

use super::eal::know_this_thread;
use super::memory::{Held, Lists, Mbufs, Memory};
use super::way_back::WayBack;
use crate::live::{ExecutedCounts, Executor, LiveError, Loss, checksum};

/// How long a batch waits for room, before what is left of it is given up.
const PATIENCE: Duration = Duration::from_millis(1);

/// Packets that a driver is given at a time.
const BURST: usize = 512;

/// A queue that packets go out by. Several lanes may have it, one at a time.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub port: u16,
    pub queue: u16,
}

/// The same, shared.
pub(super) type Port = Arc<Mutex<SendQueue>>;

/// Where a lane's packets go.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// Out of the port where they came in: for each of the lane's queues one.
    pub back: Vec<Port>,
    /// To the ports of targets.
    pub redirect: Vec<(u32, Port)>,
    /// Where packets go that pass.
    pub stack: Option<Port>,
    /// For what comes from there.
    pub from_stack: Option<WayBack>,
}

/// A queue that packets with one of the verdicts go out of.
#[derive(Debug)]
struct Exit {
    port: Port,
    action: Action,
    /// Whether room was waited for in vain, and nothing has gone since.
    is_stuck: bool,
}

/// Packets of a batch that go the same way.
#[derive(Debug, Default)]
struct Pile {
    mbufs: Mbufs,
    bytes: u64,
}

/// Where a packet goes: the pile for home, or an exit's, which is the one behind its number.
type Way = usize;

const HOME: Way = 0;

/// Carries out the verdicts on a lane's packets.
#[derive(Debug)]
pub(super) struct DpdkExecutor {
    memory: Arc<Memory>,
    room: ResizeRoom,
    /// Whether checksums are completed here.
    completes: bool,
    exits: Vec<Exit>,
    /// Of the batch of the moment, by ways.
    piles: Vec<Pile>,
    /// For each of the lane's queues, the ways by actions, but for redirects.
    ways: Vec<[Way; Action::ALL.len()]>,
    redirect: Vec<(u32, Way)>,
    /// What becomes of packets that pass, where there is no way for them.
    no_stack: Option<Loss>,
    from_stack: Option<WayBack>,
    carried: ExecutedCounts,
    /// Packets that the receiver dropped, and has counted as received: for want of a FREE item of the communication list.
    dropped: Arc<AtomicU64>,
}

impl DpdkExecutor {
    pub fn new(
        memory: Arc<Memory>,
        room: ResizeRoom,
        completes: bool,
        ways: Ways,
        dropped: Arc<AtomicU64>,
    ) -> DpdkExecutor {
        let mut exits = Vec::new();
        let mut exit = |port: Port, action| {
            exits.push(Exit { port, action, is_stuck: false });
            exits.len()
        };
        let back: Vec<Way> = ways.back.into_iter().map(|port| exit(port, Action::Tx)).collect();
        let redirect = ways.redirect.into_iter().map(|(target, port)| (target, exit(port, Action::Redirect))).collect();
        let stack = ways.stack.map(|port| exit(port, Action::Pass));
        let by_queue = back.into_iter().map(|back| {
            let mut ways = [HOME; Action::ALL.len()];
            ways[Action::Tx as usize] = back;
            ways[Action::Pass as usize] = stack.unwrap_or(HOME);
            ways
        });
        DpdkExecutor {
            memory,
            room,
            completes,
            piles: (0..=exits.len()).map(|_| Pile::default()).collect(),
            exits,
            ways: by_queue.collect(),
            redirect,
            no_stack: stack.is_none().then_some(Loss::NoStack),
            from_stack: ways.from_stack,
            carried: ExecutedCounts::default(),
            dropped,
        }
    }

    fn count_dropped(&mut self) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        self.carried.losses.add(Loss::Overload, dropped);
    }

    /// The way of a packet that came by one of the lane's queues.
    fn way(&self, action: Action, target: u32, queue: usize) -> Way {
        match action {
            Action::Redirect => self.target(target).unwrap_or(HOME),
            action => self.ways[queue][action as usize],
        }
    }

    fn target(&self, target: u32) -> Option<Way> {
        self.redirect.iter().find(|(number, _)| *number == target).map(|(_, way)| *way)
    }

    /// Why packets with this verdict, by this way, are lost.
    fn loss(&self, action: Action, way: Way) -> Option<Loss> {
        match action {
            Action::Aborted => Some(Loss::Aborted),
            Action::Pass => self.no_stack,
            Action::Redirect => (way == HOME).then_some(Loss::NoTarget),
            Action::Drop | Action::Tx => None,
        }
    }

    /// Has packets that all have the same verdict go their way as they are.
    fn together(&mut self, action: Action, way: Way, mbufs: &mut Mbufs, descriptors: &[Descriptor]) {
        let count = mbufs.len() as u64;
        match (self.loss(action, way), way.checked_sub(1)) {
            (Some(loss), _) => self.carried.losses.add(loss, count),
            (None, Some(exit)) => self.exits[exit].send(mbufs, bytes(descriptors), &mut self.carried),
            (None, None) => {
                self.carried.packets[action as usize] += count;
                self.carried.bytes[action as usize] += bytes(descriptors);
            }
        }
        mbufs.free();
    }

    /// Deals packets out by their verdicts, and has each pile go its way.
    fn apart(&mut self, verdicts: &Verdicts, held: &mut Held, descriptors: &[Descriptor]) {
        let counts = verdicts.counts();
        let (mut dropped, mut nowhere) = (0, 0);
        // Without branches by the verdict but for redirects: nobody could foresee them.
        for (index, (mbuf, lies)) in held.mbufs.drain().zip(descriptors).enumerate() {
            let action = usize::from(verdicts.actions()[index]);
            let queue = held.queues.get(index).map_or(0, |queue| usize::from(*queue));
            let mut way = self.ways[queue][action];
            if action == Action::Redirect as usize {
                let target = verdicts.targets().get(index).copied().unwrap_or(0);
                way = self.target(target).unwrap_or(HOME);
                nowhere += u64::from(way == HOME);
            }
            let length = u64::from(lies.length);
            dropped += if action == Action::Drop as usize { length } else { 0 };
            let pile = &mut self.piles[way];
            pile.bytes += length;
            pile.mbufs.push(mbuf);
        }
        let ExecutedCounts { packets, bytes, losses, .. } = &mut self.carried;
        packets[Action::Drop as usize] += counts[Action::Drop as usize];
        bytes[Action::Drop as usize] += dropped;
        losses.add(Loss::Aborted, counts[Action::Aborted as usize]);
        losses.add(Loss::NoTarget, nowhere);
        if let Some(loss) = self.no_stack {
            losses.add(loss, counts[Action::Pass as usize]);
        }
        let (home, piles) = self.piles.split_first_mut().expect("there is the one for home");
        home.mbufs.free();
        home.bytes = 0;
        for (exit, Pile { mbufs, bytes }) in self.exits.iter_mut().zip(piles) {
            exit.send(mbufs, std::mem::take(bytes), &mut self.carried);
            mbufs.free();
        }
    }

    /// Completes the checksums of packets that go out.
    #[cold]
    fn complete(&mut self, verdicts: &Verdicts, queues: &[u16], descriptors: &[Descriptor]) {
        let base = self.memory.span.as_ptr();
        for (index, lies) in descriptors.iter().enumerate() {
            let queue = queues.get(index).map_or(0, |queue| usize::from(*queue));
            let (verdict, mut target) = (verdicts.get(index), 0);
            if let Verdict::Redirect(to) = verdict {
                target = to;
            }
            if self.way(verdict.action(), target, queue) != HOME {
                // SAFETY: the packet is ours, and lies there.
                let bytes =
                    unsafe { std::slice::from_raw_parts_mut(base.add(lies.offset as usize), lies.length as usize) };
                self.carried.checksums += u64::from(checksum::complete(bytes));
            }
        }
    }
}

impl Executor for DpdkExecutor {
    fn execute(&mut self, done: Completion) -> Result<(), LiveError> {
        know_this_thread();
        let Completion { batch, verdicts, .. } = done;
        let parts = batch.into_parts::<Held>().expect("a batch of this executor's receiver");
        let BatchParts { source_data: mut held, descriptors, metadata } = parts;
        // The GPU is through with them.
        if let Some(ready) = held.listed.take() {
            ready.finish(true).cleanup();
        }
        self.count_dropped();
        if self.room == ResizeRoom::Both {
            // SAFETY: the packets are ours, each with its place, which lies in its own buffer: a filter has moved it by no more than
            // the room that it had (`Batch::resize`). A place is a descriptor.
            unsafe {
                let lies = descriptors.as_ptr().cast::<sys::pc_lies>();
                sys::pc_settle(self.memory.shim(self.room), held.mbufs.as_mut_ptr(), lies, held.mbufs.len());
            }
        }
        if self.completes {
            self.complete(&verdicts, &held.queues, &descriptors);
        }
        match alike(&verdicts, &held.queues) {
            Some((action, target, queue)) => {
                let way = self.way(action, target, queue);
                self.together(action, way, &mut held.mbufs, &descriptors);
            }
            None => self.apart(&verdicts, &mut held, &descriptors),
        }
        self.memory.put_lists(Lists { held, descriptors, metadata });
        self.poll()
    }

    fn poll(&mut self) -> Result<(), LiveError> {
        if let Some(way) = &mut self.from_stack {
            know_this_thread();
            way.turn(&mut self.carried);
        }
        self.count_dropped();
        Ok(())
    }

    fn finish(&mut self) -> Result<(), LiveError> {
        if let Some(way) = &mut self.from_stack {
            way.finish(&mut self.carried);
        }
        self.count_dropped();
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.from_stack.as_ref().is_some_and(WayBack::is_busy)
    }

    fn executed(&self) -> &ExecutedCounts {
        &self.carried
    }
}

impl Exit {
    /// Sends packets of so many bytes, or as many as there is room for soon enough; the others are left.
    fn send(&mut self, mbufs: &mut Mbufs, bytes: u64, carried: &mut ExecutedCounts) {
        if mbufs.is_empty() {
            return;
        }
        let queue = lock(&self.port);
        let (all, mut sent) = (mbufs.len(), 0);
        let mut waiting: Option<Instant> = None;
        while sent < all {
            let count = (all - sent).min(BURST);
            // SAFETY: the packets are ours, as many as is said from there on; and the queue is, while it is locked.
            let took = unsafe { sys::pc_send(queue.port, queue.queue, mbufs.as_mut_ptr().add(sent), count as u16) };
            sent += usize::from(took);
            if took > 0 {
                (waiting, self.is_stuck) = (None, false);
                continue;
            }
            let since = *waiting.get_or_insert_with(Instant::now);
            if self.is_stuck || since.elapsed() >= PATIENCE {
                self.is_stuck = true;
                break;
            }
            std::hint::spin_loop();
        }
        drop(queue);
        // SAFETY: the driver has these.
        unsafe { mbufs.taken(sent) };
        carried.packets[self.action as usize] += sent as u64;
        carried.bytes[self.action as usize] += bytes - mbufs.bytes();
        carried.losses.add(Loss::NoRoom, mbufs.len() as u64);
    }
}

/// What packets have in common that are all to go the same way: their verdict, its target, and the queue by which they came.
fn alike(verdicts: &Verdicts, queues: &[u16]) -> Option<(Action, u32, usize)> {
    fn same<T: Copy + Default + PartialEq>(all: &[T]) -> Option<T> {
        let first = all.first().copied().unwrap_or_default();
        // All are looked at, many at a time.
        all.iter().fold(true, |same, one| same & (*one == first)).then_some(first)
    }
    let action = Action::from_byte(same(verdicts.actions())?)?;
    let target = if action == Action::Redirect { same(verdicts.targets())? } else { 0 };
    let queue = if action == Action::Tx { same(queues)? } else { 0 };
    Some((action, target, queue.into()))
}

fn bytes(descriptors: &[Descriptor]) -> u64 {
    descriptors.iter().map(|lies| u64::from(lies.length)).sum()
}

pub(super) fn lock(port: &Port) -> MutexGuard<'_, SendQueue> {
    // A queue is whole whoever died meanwhile.
    port.lock().unwrap_or_else(PoisonError::into_inner)
}
