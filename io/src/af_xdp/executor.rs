//! Carrying out verdicts on packets that lie in frames.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_core::device::Completion;
use portcullis_core::packet::{Action, BatchParts, Verdict};

use super::homes::{Held, Homes, Lists, Place};
use super::tx::{Outgoing, Tx};
use super::umem::{Frame, HEADROOM, Umem};
use crate::RedirectGroups;
use crate::live::link::{InjectionPoint, StackInjector};
use crate::live::{ExecutedCounts, Executor, LiveError, Loss, checksum};

/// A port that packets go out of.
pub(crate) type Port = Arc<Mutex<Tx>>;

/// How packets that pass get into the kernel's stack.
#[derive(Debug, Clone)]
pub(crate) enum IntoStack {
    /// Not at all.
    Nowhere,
    /// They are sent.
    Port(Port),
    /// They are written.
    Tap(Arc<StackInjector>),
}

/// Where a lane's packets go.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// Out of the port where they came in: for each of the lane's queues one.
    pub back: Vec<Port>,
    /// To the ports of targets, in the order of these.
    pub redirect: Vec<(u32, Port)>,
    /// Into the kernel's stack, for each of the lane's queues.
    pub stack: Vec<IntoStack>,
}

/// Where a packet goes.
#[derive(Debug, Clone, Copy)]
enum Exits {
    /// Nowhere.
    None,
    /// Out of the exit with this number.
    Port(usize),
    /// Into the TAP with this number.
    Tap(usize),
}

/// A port with what is to go out of it.
#[derive(Debug)]
struct Exit {
    port: Port,
    action: Action,
    longest: usize,
    multi_buffer: bool,
    out: Outgoing,
}

/// Carries out the verdicts on a lane's packets.
#[derive(Debug)]
pub(crate) struct XdpExecutor {
    umem: Arc<Umem>,
    homes: Arc<Homes>,
    lane: usize,
    /// Whether checksums are completed here, as the receiver has not done it.
    completes: bool,
    exits: Vec<Exit>,
    /// Which exits are for packets that came by each of the lane's queues.
    back: Vec<usize>,
    stack: Vec<Exits>,
    taps: Vec<Arc<StackInjector>>,
    redirect: Vec<(u32, usize)>,
    /// What goes home with the batch.
    home: Vec<Place>,
    spare: Vec<Frame>,
    /// Targets that stand for several.
    several: Option<Arc<RedirectGroups>>,
    /// The exits of a packet that goes to several.
    to: Vec<usize>,
    carried: ExecutedCounts,
}

impl XdpExecutor {
    pub fn new(umem: Arc<Umem>, homes: Arc<Homes>, lane: usize, completes: bool, ways: Ways) -> XdpExecutor {
        let mut exits: Vec<Exit> = Vec::new();
        let mut exit = |port: Port, action| {
            let (longest, multi_buffer) = {
                let tx = lock(&port);
                (tx.longest(), tx.takes_several_frames())
            };
            exits.push(Exit { port, action, longest, multi_buffer, out: Outgoing::default() });
            exits.len() - 1
        };
        let back = ways.back.into_iter().map(|port| exit(port, Action::Tx)).collect();
        let mut taps = Vec::new();
        let stack = ways.stack.into_iter().map(|way| match way {
            IntoStack::Nowhere => Exits::None,
            IntoStack::Port(port) => Exits::Port(exit(port, Action::Pass)),
            IntoStack::Tap(tap) => {
                taps.push(tap);
                Exits::Tap(taps.len() - 1)
            }
        });
        let stack = stack.collect();
        let redirect = ways.redirect.into_iter().map(|(target, port)| (target, exit(port, Action::Redirect))).collect();
        XdpExecutor {
            umem,
            homes,
            lane,
            completes,
            exits,
            back,
            stack,
            taps,
            redirect,
            home: Vec::new(),
            spare: Vec::new(),
            several: None,
            to: Vec::new(),
            carried: ExecutedCounts::default(),
        }
    }

    /// Where a packet goes, or why it cannot go where it should.
    fn exit(&self, verdict: Verdict, queue: usize) -> Result<Exits, Loss> {
        match verdict {
            Verdict::Aborted => Err(Loss::Aborted),
            Verdict::Drop => Ok(Exits::None),
            Verdict::Pass => match self.stack[queue] {
                Exits::None => Err(Loss::NoStack),
                exit => Ok(exit),
            },
            Verdict::Tx => Ok(Exits::Port(self.back[queue])),
            Verdict::Redirect(target) => {
                let found = self.redirect.iter().find(|(number, _)| *number == target);
                found.map(|(_, exit)| Exits::Port(*exit)).ok_or(Loss::NoTarget)
            }
        }
    }

    /// Writes a packet to where the kernel's stack gets it.
    fn write(&mut self, tap: usize, place: Place, offset: usize, length: usize) {
        let bytes = self.umem.place_bytes(&place, offset, length);
        let written = match self.taps[tap].injection_point() {
            InjectionPoint::Tap(tap) => tap.write(bytes).is_ok(),
            InjectionPoint::Veth(_) => false,
        };
        match written {
            true => self.carried.add(Action::Pass, length),
            false => self.carried.losses.add(Loss::Refused, 1),
        }
        self.home.push(place);
    }

    /// Has a packet go out of an exit. Its memory goes with it, or home.
    fn leave(&mut self, exit: usize, place: Place, offset: usize, length: usize) {
        let Exit { longest, out, .. } = &mut self.exits[exit];
        match place {
            Place::Frame(frame) if length <= self.umem.room(&frame) && length <= *longest => {
                self.umem.settle(&frame, offset, length);
                out.push([self.umem.packet(frame, length)], length);
            }
            // It was put together, or has grown beyond its frame.
            place => {
                self.leave_copy(exit, &place, offset, length);
                self.home.push(place);
            }
        }
    }

    /// Has a copy of a packet go out of an exit.
    fn leave_copy(&mut self, exit: usize, place: &Place, offset: usize, length: usize) {
        let Exit { longest, multi_buffer, out, .. } = &mut self.exits[exit];
        let room = self.umem.frame_size() - HEADROOM;
        let count = length.div_ceil(room).max(1);
        if length > *longest || count > 1 && !*multi_buffer {
            self.carried.losses.add(Loss::TooLong, 1);
            return;
        }
        self.spare.clear();
        self.homes.take(self.lane, count, &mut self.spare);
        if self.spare.len() < count {
            self.carried.losses.add(Loss::NoRoom, 1);
            self.home.extend(self.spare.drain(..).map(Place::Frame));
            return;
        }
        let bytes = self.umem.place_bytes(place, offset, length);
        let umem = &self.umem;
        let frames = self.spare.drain(..).zip(bytes.chunks(room)).map(|(frame, part)| {
            let mut frame = umem.reset(frame);
            umem.bytes_mut(&mut frame)[..part.len()].copy_from_slice(part);
            umem.packet(frame, part.len())
        });
        out.push(frames, length);
    }

    /// The exits of a packet whose target stands for several ports, in `self.to`; whether it does.
    fn leads_to_several(&mut self, verdict: Verdict, ingress: u32) -> bool {
        let (Verdict::Redirect(target), Some(several)) = (verdict, &self.several) else { return false };
        let Some(ports) = several.ports(target, ingress) else { return false };
        self.to.clear();
        for port in ports {
            match self.redirect.iter().find(|(number, _)| *number == port) {
                Some((_, exit)) => self.to.push(*exit),
                None => self.carried.losses.add(Loss::NoTarget, 1),
            }
        }
        true
    }

    /// Has a packet go out of all exits in `self.to`: copies of it, and out of the last itself.
    fn leave_by_all(&mut self, place: Place, offset: usize, length: usize) {
        let to = std::mem::take(&mut self.to);
        match to.split_last() {
            Some((last, others)) => {
                others.iter().for_each(|exit| self.leave_copy(*exit, &place, offset, length));
                self.leave(*last, place, offset, length);
            }
            None => self.home.push(place),
        }
        self.to = to;
    }

    /// Sends what is to go out of every exit.
    fn send(&mut self) {
        for Exit { port, action, out, .. } in &mut self.exits {
            if out.is_empty() {
                continue;
            }
            let sent = lock(port).send(out);
            self.carried.packets[*action as usize] += sent.packets;
            self.carried.bytes[*action as usize] += sent.bytes;
            self.carried.losses.add(Loss::NoRoom, sent.no_room);
            self.carried.losses.add(Loss::Down, sent.down);
        }
    }
}

impl Executor for XdpExecutor {
    fn execute(&mut self, done: Completion) -> Result<(), LiveError> {
        let Completion { batch, verdicts, .. } = done;
        let parts = batch.into_parts::<Held>().expect("a batch of this executor's receiver");
        let BatchParts { source_data: held, descriptors, metadata } = parts;
        let (mut places, queues) = held.take();
        for (index, (mut place, lies)) in places.drain(..).zip(&descriptors).enumerate() {
            let queue = queues.get(index).map_or(0, |queue| usize::from(*queue));
            let (offset, length) = (lies.offset as usize, lies.length as usize);
            let ingress = metadata.get(index).map_or(u32::MAX, |metadata| metadata.port);
            let to_several = self.leads_to_several(verdicts.get(index), ingress);
            let exit = if to_several { Ok(Exits::None) } else { self.exit(verdicts.get(index), queue) };
            if self.completes && (to_several || matches!(exit, Ok(Exits::Port(_) | Exits::Tap(_)))) {
                let bytes = self.umem.place_bytes_mut(&mut place, offset, length);
                self.carried.checksums += u64::from(checksum::complete(bytes));
            }
            match exit {
                _ if to_several => self.leave_by_all(place, offset, length),
                Ok(Exits::Port(exit)) => self.leave(exit, place, offset, length),
                Ok(Exits::Tap(tap)) => self.write(tap, place, offset, length),
                Ok(Exits::None) => {
                    self.carried.add(Action::Drop, length);
                    self.home.push(place);
                }
                Err(loss) => {
                    self.carried.losses.add(loss, 1);
                    self.home.push(place);
                }
            }
        }
        self.homes.put_lists(self.lane, Lists { descriptors, metadata, places, queues });
        self.homes.put(self.home.drain(..));
        self.send();
        Ok(())
    }

    fn set_redirect_groups(&mut self, several: &Arc<RedirectGroups>) {
        self.several = Some(several.clone());
    }

    fn poll(&mut self) -> Result<(), LiveError> {
        for exit in &self.exits {
            lock(&exit.port).poll();
        }
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.exits.iter().any(|exit| lock(&exit.port).is_busy())
    }

    fn executed(&self) -> &ExecutedCounts {
        &self.carried
    }
}

fn lock(port: &Port) -> MutexGuard<'_, Tx> {
    // Its rings are whole whoever died meanwhile.
    port.lock().unwrap_or_else(PoisonError::into_inner)
}
