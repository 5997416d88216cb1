//! Carrying out verdicts on DPDK's packets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portcullis_core::device::Done;
use portcullis_core::packet::{Action, Descriptor, Parts, Room, Verdict};
use portcullis_dpdk_sys as sys;

use super::eal::know_this_thread;
use super::memory::{Held, Lists, Mbufs, Memory};
use crate::live::{Carried, Executor, LiveError, Loss, checksum};

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
    /// Into the kernel's stack.
    pub stack: Option<Port>,
}

/// A queue, with what is to go out of it.
#[derive(Debug)]
struct Exit {
    port: Port,
    action: Action,
    mbufs: Mbufs,
    lengths: Vec<u32>,
    /// Whether room was waited for in vain, and nothing has gone since.
    is_stuck: bool,
}

/// Carries out the verdicts on a lane's packets.
#[derive(Debug)]
pub(super) struct DpdkExecutor {
    memory: Arc<Memory>,
    room: Room,
    /// Whether checksums are completed here.
    completes: bool,
    exits: Vec<Exit>,
    back: Vec<usize>,
    redirect: Vec<(u32, usize)>,
    stack: Option<usize>,
    carried: Carried,
}

impl DpdkExecutor {
    pub fn new(memory: Arc<Memory>, room: Room, completes: bool, ways: Ways) -> DpdkExecutor {
        let mut exits = Vec::new();
        let mut exit = |port: Port, action| {
            exits.push(Exit { port, action, mbufs: Mbufs::default(), lengths: Vec::new(), is_stuck: false });
            exits.len() - 1
        };
        let back = ways.back.into_iter().map(|port| exit(port, Action::Tx)).collect();
        let redirect = ways.redirect.into_iter().map(|(target, port)| (target, exit(port, Action::Redirect))).collect();
        let stack = ways.stack.map(|port| exit(port, Action::Pass));
        DpdkExecutor { memory, room, completes, exits, back, redirect, stack, carried: Carried::default() }
    }

    /// Where a packet goes, if anywhere; or why it cannot go where it should.
    fn exit(&self, verdict: Verdict, queue: usize) -> Result<Option<usize>, Loss> {
        match verdict {
            Verdict::Aborted => Err(Loss::Aborted),
            Verdict::Drop => Ok(None),
            Verdict::Pass => self.stack.map(Some).ok_or(Loss::NoStack),
            Verdict::Tx => Ok(Some(self.back[queue])),
            Verdict::Redirect(target) => {
                let found = self.redirect.iter().find(|(number, _)| *number == target);
                found.map(|(_, exit)| Some(*exit)).ok_or(Loss::NoTarget)
            }
        }
    }
}

impl Executor for DpdkExecutor {
    fn carry_out(&mut self, done: Done) -> Result<(), LiveError> {
        know_this_thread();
        let Done { batch, verdicts, .. } = done;
        let parts = batch.into_parts::<Held>().expect("a batch of this executor's receiver");
        let Parts { companion: held, descriptors, metadata } = parts;
        let Held { mut mbufs, queues, .. } = *held;
        if self.room == Room::Both {
            // SAFETY: the packets are ours, each with its place, which lies in its own buffer: a filter has moved it by no more than
            // the room that it had (`Batch::resize`). A place is a descriptor.
            unsafe {
                let lies = descriptors.as_ptr().cast::<sys::pc_lies>();
                sys::pc_settle(self.memory.shim(self.room), mbufs.as_mut_ptr(), lies, mbufs.len());
            }
        }
        let mut home = Mbufs::default();
        for (index, (mbuf, lies)) in mbufs.drain().zip(&descriptors).enumerate() {
            let queue = queues.get(index).map_or(0, |queue| usize::from(*queue));
            match self.exit(verdicts.get(index), queue) {
                Ok(Some(exit)) => {
                    if self.completes {
                        self.carried.checksums += u64::from(complete(&self.memory, lies));
                    }
                    let exit = &mut self.exits[exit];
                    exit.lengths.push(lies.length);
                    exit.mbufs.push(mbuf);
                }
                Ok(None) => {
                    self.carried.add(Action::Drop, lies.length as usize);
                    home.push(mbuf);
                }
                Err(loss) => {
                    self.carried.losses.add(loss, 1);
                    home.push(mbuf);
                }
            }
        }
        home.free();
        self.memory.put_lists(Lists { mbufs, descriptors, metadata, queues });
        for exit in &mut self.exits {
            exit.send(&mut self.carried);
        }
        Ok(())
    }

    fn tend(&mut self) -> Result<(), LiveError> {
        Ok(())
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn carried(&self) -> &Carried {
        &self.carried
    }
}

impl Exit {
    /// Sends all packets, or as many as there is room for soon enough.
    fn send(&mut self, carried: &mut Carried) {
        if self.mbufs.is_empty() {
            return;
        }
        let queue = lock(&self.port);
        let (all, mut sent) = (self.mbufs.len(), 0);
        let mut waiting: Option<Instant> = None;
        while sent < all {
            let count = (all - sent).min(BURST);
            // SAFETY: the packets are ours, as many as is said from there on; and the queue is, while it is locked.
            let took =
                unsafe { sys::pc_send(queue.port, queue.queue, self.mbufs.as_mut_ptr().add(sent), count as u16) };
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
        unsafe { self.mbufs.taken(sent) };
        carried.packets[self.action as usize] += sent as u64;
        carried.bytes[self.action as usize] +=
            self.lengths[..sent].iter().map(|length| u64::from(*length)).sum::<u64>();
        carried.losses.add(Loss::NoRoom, (all - sent) as u64);
        self.mbufs.free();
        self.lengths.clear();
    }
}

fn complete(memory: &Memory, lies: &Descriptor) -> bool {
    // SAFETY: the packet is ours, and lies there.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(memory.span.as_ptr().add(lies.offset as usize), lies.length as usize) };
    checksum::complete(bytes)
}

fn lock(port: &Port) -> MutexGuard<'_, SendQueue> {
    // A queue is whole whoever died meanwhile.
    port.lock().unwrap_or_else(PoisonError::into_inner)
}
