//! The session of a device that runs kernels: what such devices have in common.
//!
//! A batch becomes pieces that the device can take ([`plan`]), each piece gets buffers, is
//! brought to the device and launched, at once or in several launches where it could take long
//! ([`pace`](super::pace)); then verdicts, ends and changed bytes come back. Several batches are under way at
//! once. All of that, first in, first out, cancelling and giving up included, is here; a backend says by its
//! [`Launcher`] how buffers, copies and launches are made.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pace::Pace;
use super::plan::{self, Bounds, Layout, Needs, Piece};
use super::planner::{self, Plan, Reach, Site, TransferCosts};
use super::{
    CancelToken, Clock, DeviceError, DeviceKind, Done, Imported, InOrder, LoadOptions, Session, StageTimes, Stages,
    SubmitError, Taken, Transfer, check_batch, check_host, check_map, check_map_words,
};
use crate::map::layout::HEADER;
use crate::map::upkeep::{Memory, Upkeep};
use crate::packet::{Action, Batch, BatchError, Descriptor, Metadata, Span, Verdicts, gather};
use crate::program::Program;

mod compile;
mod order;
mod part;
#[cfg(test)]
mod tests;

pub use compile::{compile, said};
use order::{Order, longest};
pub use part::Part;

/// Launches that a batch may have queued at the device where they are paced: the next one starts without
/// waiting for the host, and cancelling waits for no more than these.
const QUEUED: usize = 2;

/// Parts of a batch at a device at once: enough to copy in, filter and copy out side by side.
const PARTS: usize = 8;

/// How long a device may be silent: launches are cut to a fraction of a second, so a device that takes this
/// long has died without telling, or its driver compiles.
pub const SILENCE: Duration = Duration::from_secs(120);

/// How often a cancel token is looked at while nothing else would wake who waits.
pub const SLICE: Duration = Duration::from_millis(50);

/// How long a device that is given up may take to finish what is queued.
pub const GRACE: Duration = Duration::from_millis(500);

/// What a kernel does, as far as it says what a session brings to it and back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effects {
    /// It looks at packets at all.
    pub sees_packets: bool,
    /// It writes to packets.
    pub writes_packets: bool,
    /// It moves packets' ends, and leaves them in the descriptors.
    pub moves_ends: bool,
    /// It reads metadata.
    pub metadata: bool,
    /// It gives targets beside the verdicts.
    pub redirects: bool,
    /// Expressions that it has, all functions inlined.
    pub size: u64,
}

/// How a device takes pieces of batches. One of these belongs to one session.
///
/// What it may rely on, also for memory that the device reaches by itself: the packets of a part that was shown to
/// [`Launcher::upload`] stay where they are and untouched by others, their import too, until [`Launcher::release`] was
/// called for the part's buffers, or until whatever was given to [`Launcher::outlive`] is dropped; both come after
/// the last launch over them was waited for, or [`Launcher::settle`] or [`Launcher::outlive`] saw to the device.
pub trait Launcher: Send + 'static {
    /// The buffers that a part needs. They are used for part after part, and live as long as the session.
    type Buffers: Send + 'static;
    /// Memory of batches that the device reaches.
    type Import: Send + 'static;
    /// A launch that somebody will wait for.
    type Ticket: Send + 'static;

    /// The device's id, for messages.
    fn id(&self) -> &str;

    /// Announces memory that batches will come from.
    ///
    /// # Errors
    /// Where the driver is lost.
    fn announce(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError>;

    /// Whether the device reaches packets in this memory. Where the host does not, they are filtered where they are.
    fn reaches(&self, span: &Span) -> bool {
        span.is_on_host()
    }

    /// What the device has to do with the memory of a batch, which is not empty and whose packets the kernel sees. With
    /// `asked` it is to reach that by itself if it can, else where that is worth it.
    fn site(&mut self, batch: &Batch, asked: bool) -> Site<Self::Import>;

    /// Why the filter's packets cannot be filtered where they lie, whatever memory that is.
    fn never_in_place(&self) -> Option<String> {
        None
    }

    /// What moving bytes costs, where nobody says.
    fn costs(&self) -> TransferCosts {
        TransferCosts::of_host()
    }

    /// Bytes that are copied for a part: to where the device reads them, and back. Of what it reads and writes where it lies
    /// there are none.
    fn traffic(&self, part: &Part<'_, Self::Import>, effects: Effects) -> Traffic {
        Traffic::of(part, effects)
    }

    /// Begins to take times on the device's own clock; it says whether it can. Before anything is queued.
    fn keep_time(&mut self) -> bool {
        false
    }

    /// What the device's clock says of the part that was in these buffers, all of whose launches were waited for; `None` where
    /// it says nothing.
    fn times(&mut self, buffers: &mut Self::Buffers) -> Option<DeviceTimes> {
        let _ = buffers;
        None
    }

    /// What bounds a piece.
    fn bounds(&self, layout: Layout) -> Bounds;

    /// New buffers, which need not have any room yet.
    fn buffers(&self) -> Self::Buffers;

    /// Parts of a batch that may be at the device at once, at least 1. A batch of more has the others wait, and takes no
    /// more memory.
    fn parts(&self) -> usize {
        PARTS
    }

    /// Makes room for all parts of a batch before the first is brought to the device. Part `n` goes into buffers `n`
    /// modulo their number; none of them is in use. Nothing is queued that looks at the batch's memory. For devices that
    /// stop for that: others make room with each part.
    ///
    /// # Errors
    /// As [`Launcher::upload`]'s.
    fn make_room(
        &mut self,
        parts: &mut dyn Iterator<Item = Part<'_, Self::Import>>,
        effects: Effects,
        buffers: &mut [Self::Buffers],
    ) -> Result<(), DeviceError> {
        let _ = (parts, effects, buffers);
        Ok(())
    }

    /// Brings to the device what the kernel reads of a part, or sees to it that it comes before the kernel runs, and
    /// makes room for what the kernel writes.
    ///
    /// # Errors
    /// Where there is no memory, or the driver gives up. The batch then goes back to the caller, but where the session is cancelled:
    /// then completing it tells.
    fn upload(
        &mut self,
        part: &Part<'_, Self::Import>,
        effects: Effects,
        buffers: &mut Self::Buffers,
    ) -> Result<(), DeviceError>;

    /// Queues the kernel for `count` lanes of a part, from lane `first` of it on ([`Part::lanes`]), and, where that is the
    /// rest of the part, bringing its results back. The launches of a part come in order. A ticket's launch has ended
    /// when all of this has.
    ///
    /// # Errors
    /// Where the driver gives up. The device may have begun all the same.
    fn launch(
        &mut self,
        part: &Part<'_, Self::Import>,
        effects: Effects,
        buffers: &mut Self::Buffers,
        first: usize,
        count: usize,
    ) -> Result<Self::Ticket, DeviceError>;

    /// Waits for a launch, looking at the token every [`SLICE`] or so.
    ///
    /// # Errors
    /// [`DeviceError::Cancelled`] where the token was used meanwhile, and the device may be busy still;
    /// [`DeviceError::Failed`] where the launch has failed, or does not end.
    fn wait(&mut self, ticket: &Self::Ticket, cancel: &CancelToken) -> Result<(), DeviceError>;

    /// Appends a part's verdicts, which have come back, one a packet.
    ///
    /// # Errors
    /// Where the driver gives up.
    fn verdicts(
        &mut self,
        packets: usize,
        buffers: &mut Self::Buffers,
        columns: &mut Columns,
    ) -> Result<(), DeviceError>;

    /// Reads a part's descriptors as the kernel left them, two little-endian words a packet.
    ///
    /// # Errors
    /// As [`Launcher::verdicts`].
    fn ends(
        &mut self,
        packets: usize,
        buffers: &mut Self::Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError>;

    /// Reads a part's packets as the kernel left them, `bytes` bytes in the part's layout, which is a copy.
    ///
    /// # Errors
    /// As [`Launcher::verdicts`].
    fn changed(
        &mut self,
        bytes: u64,
        buffers: &mut Self::Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError>;

    /// A copy of so many words of a map of the filter's, from word `at` on, which lie in it. Nothing is queued.
    ///
    /// # Errors
    /// Where there are no maps, or the driver gives up.
    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        let _ = (at, words);
        Err(DeviceError::Unsupported { device: self.id().into(), reason: format!("it has no map {map}") })
    }

    /// Writes words of a map of the filter's, which lie in it. Nothing is queued, and what is queued after this finds
    /// them.
    ///
    /// # Errors
    /// As [`Launcher::read_map`].
    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        let _ = (at, words);
        Err(DeviceError::Unsupported { device: self.id().into(), reason: format!("it has no map {map}") })
    }

    /// Lets go of the batch that the buffers were used for last.
    fn release(&mut self, buffers: &mut Self::Buffers) {
        let _ = buffers;
    }

    /// Waits until the device has nothing queued any more.
    fn settle(&mut self);

    /// Whether the device is done with these launches within [`GRACE`]. With `torn` there may be something queued
    /// that no ticket is about.
    fn settles(&mut self, tickets: &[&Self::Ticket], torn: bool) -> bool;

    /// Keeps something until the device is done with everything, without waiting for that.
    fn outlive(&mut self, kept: impl Send + 'static);
}

/// Bytes that are copied for a part of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Packets, descriptors and metadata, to where the device reads them.
    pub to_device: u64,
    /// Verdicts, targets, ends and packets, to where the host does.
    pub to_host: u64,
}

impl Traffic {
    /// Where everything is copied but packets that are filtered where they lie, and a verdict is a byte.
    pub fn of<I>(part: &Part<'_, I>, effects: Effects) -> Traffic {
        let (packets, copied) = (part.packets() as u64, if part.is_copied() { part.bytes() } else { 0..0 });
        let bytes = copied.end - copied.start;
        let when = |asked: bool, bytes: u64| if asked { bytes } else { 0 };
        let descriptors = when(effects.sees_packets || part.is_ordered(), 8 * part.descriptor_count() as u64);
        Traffic {
            to_device: descriptors + when(effects.metadata, packets * size_of::<Metadata>() as u64) + bytes,
            to_host: packets
                + when(effects.redirects, 4 * packets)
                + when(effects.moves_ends, 8 * packets)
                + when(effects.writes_packets, bytes),
        }
    }
}

/// What a device's clock says of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceTimes {
    /// Copying it in.
    pub upload: Duration,
    /// Its launches, without what was between them.
    pub kernel: Duration,
    /// Copying its results out.
    pub download: Duration,
}

impl DeviceTimes {
    fn add(&mut self, other: DeviceTimes) {
        self.upload += other.upload;
        self.kernel += other.kernel;
        self.download += other.download;
    }
}

/// The verdicts of a batch as they come back.
#[derive(Debug, Default)]
pub struct Columns {
    actions: Vec<u8>,
    targets: Vec<u32>,
    /// Packets of the batch.
    packets: usize,
}

impl Columns {
    /// Appends action bytes, one a packet. What is no action, as from a driver that is broken, is ABORTED.
    pub fn append(&mut self, actions: impl Iterator<Item = u8>) {
        self.actions.reserve_exact(self.packets.saturating_sub(self.actions.len()));
        // Branch-free, and on the way: a pass of its own over the column would be one more.
        self.actions.extend(actions.map(action));
    }

    /// Appends redirect targets, one a packet, where the kernel gives them.
    pub fn append_targets(&mut self, targets: impl Iterator<Item = u32>) {
        self.targets.reserve_exact(self.packets.saturating_sub(self.targets.len()));
        self.targets.extend(targets);
    }

    /// As [`Columns::append`], without copying where these are the verdicts of the whole batch.
    pub fn adopt(&mut self, mut actions: Vec<u8>) {
        if actions.len() < self.packets {
            return self.append(actions.into_iter());
        }
        // Looked at first, as usually there is nothing to be written.
        if actions.iter().fold(0, |most, &byte| most.max(byte)) > Action::Redirect as u8 {
            actions.iter_mut().for_each(|byte| *byte = action(*byte));
        }
        self.actions = actions;
    }

    /// As [`Columns::append_targets`], without copying where these are the targets of the whole batch.
    pub fn adopt_targets(&mut self, targets: Vec<u32>) {
        if targets.len() < self.packets {
            return self.append_targets(targets.into_iter());
        }
        self.targets = targets;
    }
}

impl Columns {
    /// Brings the last packets, which were appended in an order of their own, back into that of the batch.
    fn reorder(&mut self, packets: std::ops::Range<usize>, order: &Order) {
        if let Some(actions) = self.actions.get_mut(packets.clone()) {
            order.back(actions);
        }
        if let Some(targets) = self.targets.get_mut(packets) {
            order.back(targets);
        }
    }
}

/// The byte, or ABORTED where it is no action.
fn action(byte: u8) -> u8 {
    if byte > Action::Redirect as u8 { Action::Aborted as u8 } else { byte }
}

/// A program loaded on a device that runs kernels.
pub struct Offload<L: Launcher> {
    program: Arc<Program>,
    depth: usize,
    cancel: CancelToken,
    effects: Effects,
    needs: Needs,
    upkeep: Option<Upkeep>,
    /// Packets of one flow that a launch may have.
    longest: usize,
    pace: Pace,
    transfer: Transfer,
    costs: Option<TransferCosts>,
    /// How packets of the batch before came.
    plan: Option<Plan>,
    /// Where somebody asked for it.
    stages: Option<Stages>,
    /// Slots that no batch is in, the last used at the back.
    idle: Vec<Vec<L::Buffers>>,
    flights: VecDeque<Flight<L>>,
    /// When the device was last seen to finish something.
    finished: Instant,
    // Last: the buffers above go first.
    launcher: L,
}

/// A batch in flight.
struct Flight<L: Launcher> {
    // Before the batch: buffers may be made over its memory. One after the other has the parts in turn.
    slot: Vec<L::Buffers>,
    import: Option<L::Import>,
    batch: Batch,
    plan: Plan,
    pieces: Vec<Piece>,
    /// Of each piece, where packets are to be filtered in the order of their flows; else none.
    orders: Vec<Order>,
    /// How many pieces were brought to the device, and how many have been read back.
    uploaded: usize,
    collected: usize,
    /// The piece that is launched next, and how many of its lanes have been launched.
    next: usize,
    launched: usize,
    running: VecDeque<Running<L::Ticket>>,
    columns: Columns,
    /// Why no more of it can be launched; completing it tells.
    failed: Option<DeviceError>,
    /// Whether something may be queued that no ticket is about.
    torn: bool,
    times: StageTimes,
    stages: Stages,
    /// What the device's clock says of the parts that were read back.
    own: Option<DeviceTimes>,
    started: Instant,
}

/// How the packets of a batch are to lie, and the pieces that the device can take.
struct Cut<L: Launcher> {
    plan: Plan,
    import: Option<L::Import>,
    pieces: Vec<Piece>,
}

/// A launch on its way.
struct Running<T> {
    ticket: T,
    /// For how many packets it stands, and whether there would have been more but for the pace.
    packets: usize,
    cut: bool,
    /// Whether its piece ends with it.
    ends: bool,
}

impl<L: Launcher> Flight<L> {
    /// A piece, and its buffers.
    fn part(&mut self, index: usize) -> (Part<'_, L::Import>, &mut L::Buffers) {
        let Flight { slot, import, batch, plan, pieces, orders, .. } = self;
        let part = part(batch, plan, pieces, orders, import.as_ref(), index);
        let place = index % slot.len();
        (part, &mut slot[place])
    }

    /// The packets lie in a copy, which is not the batch's memory.
    fn is_copied(&self) -> bool {
        self.plan.layout.is_copy()
    }
}

fn part<'a, I>(
    batch: &'a Batch,
    plan: &Plan,
    pieces: &'a [Piece],
    orders: &'a [Order],
    import: Option<&'a I>,
    index: usize,
) -> Part<'a, I> {
    let &Plan { layout, needs, .. } = plan;
    Part { batch, piece: &pieces[index], layout, needs, import, order: orders.get(index), gathered: Cell::default() }
}

impl<L: Launcher> Offload<L> {
    /// A session over a launcher for a kernel of the program with these effects.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where packets are to be filtered where they lie, and never are.
    pub fn new(
        mut launcher: L,
        kind: DeviceKind,
        effects: Effects,
        program: &Arc<Program>,
        options: &LoadOptions,
    ) -> Result<Offload<L>, DeviceError> {
        if let (Transfer::Imported, true, Some(reason)) =
            (options.transfer, effects.sees_packets, launcher.never_in_place())
        {
            let reason = format!("the transfer `imported` was asked for, and {reason}; take `auto`");
            return Err(DeviceError::Unsupported { device: launcher.id().into(), reason });
        }
        let work = options.work.map_or(0, |work| u64::try_from(work.as_nanos()).unwrap_or(u64::MAX));
        let clock = if options.clocks && launcher.keep_time() { Clock::Device } else { Clock::Host };
        Ok(Offload {
            transfer: options.transfer,
            costs: options.costs,
            plan: None,
            stages: options.clocks.then(|| Stages { clock, ..Stages::default() }),
            program: program.clone(),
            depth: options.depth.max(1),
            cancel: options.cancel.clone(),
            effects,
            needs: Needs::of_program(program),
            upkeep: Upkeep::new(program),
            longest: longest(kind, program, effects.size, work),
            pace: Pace::new(kind, program, effects.size, work),
            idle: Vec::new(),
            flights: VecDeque::new(),
            finished: Instant::now(),
            launcher,
        })
    }

    /// The launcher, to look at.
    pub fn launcher(&self) -> &L {
        &self.launcher
    }

    /// The same session, which cuts no launches whatever the filter does: for tests of devices that are busy for
    /// long.
    #[doc(hidden)]
    #[must_use]
    pub fn unpaced(mut self) -> Offload<L> {
        self.pace = Pace::none();
        self
    }

    /// Refuses memory that the device does not reach.
    fn check_reach(&self, span: &Span) -> Result<(), DeviceError> {
        if !self.effects.sees_packets || self.launcher.reaches(span) { Ok(()) } else { check_host(span) }
    }

    /// Why a batch is not filtered where it is, where the host cannot copy it either.
    fn cannot_copy(&self, batch: &Batch) -> DeviceError {
        let lies = |d: &Descriptor| d.length > 0 && !d.offset.is_multiple_of(4);
        let why = match batch.descriptors().iter().position(lies) {
            Some(index) => {
                let offset = batch.descriptors()[index].offset;
                format!("packet {index} begins at byte {offset} there, which is no multiple of 4")
            }
            None => "the device would need a copy of them".into(),
        };
        let owner = batch.span().device_view().map_or("a device", |view| &view.device);
        DeviceError::Refused(format!(
            "its packets are in the memory of {owner}, where {} does not filter them: {why}",
            self.launcher.id()
        ))
    }

    /// Cuts a batch.
    fn cut(&mut self, batch: &Batch) -> Result<Cut<L>, DeviceError> {
        let (plan, import) = match self.effects.sees_packets && !batch.is_empty() {
            true => self.place(batch)?,
            false => (Plan::unseen(self.needs), None),
        };
        let Plan { layout, needs, .. } = plan;
        if layout.is_copy() && !batch.span().is_on_host() {
            return Err(self.cannot_copy(batch));
        }
        let bounds = self.launcher.bounds(layout);
        let pieces = plan::cut(batch, layout, needs, bounds).map_err(|large| {
            DeviceError::Refused(format!(
                "packet {} has {} bytes, and {} takes {} at a time, its own needs included",
                large.index,
                large.length,
                self.launcher.id(),
                bounds.binding
            ))
        })?;
        Ok(Cut { plan, import, pieces })
    }

    /// What moving bytes costs: as was said, or as it is here.
    fn costs(&self) -> TransferCosts {
        self.costs.unwrap_or_else(|| self.launcher.costs())
    }

    /// Decides where the kernel is to find a batch's packets, which it sees.
    fn place(&mut self, batch: &Batch) -> Result<(Plan, Option<L::Import>), DeviceError> {
        let site = self.launcher.site(batch, self.transfer == Transfer::Imported);
        let plan = planner::choose(batch, self.needs, &site, self.transfer, || self.costs()).map_err(|why| {
            DeviceError::Refused(format!(
                "the transfer `imported` was asked for, and {} does not filter these packets where they lie: {why}; take \
                 `auto`",
                self.launcher.id()
            ))
        })?;
        // Packets are where it says, or are copied from there by the device.
        let kept = plan.layout == Layout::InPlace || (plan.layout == Layout::Copied && site.reach == Reach::Bus);
        Ok((plan, site.import.filter(|_| kept)))
    }

    /// Cuts a batch, and has room made for it at the device; brings nothing there yet. Without flow numbers each packet is a flow.
    fn prepare(&mut self, batch: Batch, numbers: Option<&[u32]>) -> Result<Flight<L>, SubmitError> {
        let refuse = |batch, error| Err(SubmitError { batch: Box::new(batch), error });
        if self.cancel.is_cancelled() {
            return refuse(batch, DeviceError::Cancelled);
        }
        let started = Instant::now();
        let Cut { plan, import, pieces } = match self.cut(&batch) {
            Ok(cut) => cut,
            Err(error) => return refuse(batch, error),
        };
        let order = |piece: &Piece| match numbers {
            Some(numbers) => Order::new(&numbers[piece.packets.clone()], self.longest),
            None => Order::apart(piece.packets.len()),
        };
        let orders = if self.program.has_flows() { pieces.iter().map(order).collect() } else { Vec::new() };
        let mut slot = self.idle.pop().unwrap_or_default();
        while slot.len() < pieces.len().min(self.launcher.parts()) {
            slot.push(self.launcher.buffers());
        }
        let columns = Columns { packets: batch.len(), ..Columns::default() };
        let mut flight = Flight {
            slot,
            import,
            batch,
            plan,
            pieces,
            orders,
            uploaded: 0,
            collected: 0,
            next: 0,
            launched: 0,
            running: VecDeque::new(),
            columns,
            failed: None,
            torn: false,
            times: StageTimes::default(),
            stages: Stages::default(),
            own: None,
            started,
        };
        if flight.pieces.is_empty() {
            return Ok(flight);
        }
        match self.make_room(&mut flight) {
            Ok(()) => Ok(flight),
            // Nothing of it is queued yet.
            Err(error) => {
                self.idle.push(flight.slot);
                refuse(flight.batch, error)
            }
        }
    }

    fn make_room(&mut self, flight: &mut Flight<L>) -> Result<(), DeviceError> {
        let Flight { slot, import, batch, plan, pieces, orders, .. } = flight;
        let mut parts = (0..pieces.len()).map(|index| part(batch, plan, pieces, orders, import.as_ref(), index));
        self.launcher.make_room(&mut parts, self.effects, slot)
    }

    /// Brings the next piece to the device; there is one, and buffers are free for it.
    fn upload(&mut self, flight: &mut Flight<L>) -> Result<(), DeviceError> {
        let began = Instant::now();
        // One that fails half-way is to be released as well.
        flight.uploaded += 1;
        let (part, buffers) = flight.part(flight.uploaded - 1);
        self.launcher.upload(&part, self.effects, buffers)?;
        let took = began.elapsed();
        if self.stages.is_some() {
            let (gathered, traffic) = (part.gathered.get(), self.launcher.traffic(&part, self.effects));
            flight.stages.gather += gathered;
            flight.stages.upload += took.saturating_sub(gathered);
            flight.stages.bytes_to_device += traffic.to_device;
            flight.stages.bytes_to_host += traffic.to_host;
        }
        flight.times.upload += took;
        Ok(())
    }

    /// Queues the next launch of a batch; there is one, and its piece is at the device.
    fn launch(&mut self, flight: &mut Flight<L>) -> Result<(), DeviceError> {
        let (first, most) = (flight.launched, self.pace.packets());
        let (part, buffers) = flight.part(flight.next);
        let total = part.lanes();
        let (count, packets) = match part.order() {
            Some(order) => order.cut(first, most),
            None => ((total - first).min(most), (total - first).min(most)),
        };
        let ticket = self.launcher.launch(&part, self.effects, buffers, first, count)?;
        let ends = first + count == total;
        if ends {
            flight.next += 1;
            flight.launched = 0;
        } else {
            flight.launched += count;
        }
        flight.running.push_back(Running { ticket, packets, cut: !(first == 0 && ends), ends });
        Ok(())
    }

    /// Brings to the device and launches until the batch has all of its launches, or as many queued as it may have.
    fn advance(&mut self, flight: &mut Flight<L>) -> Result<(), DeviceError> {
        while flight.next < flight.pieces.len() && (self.pace.is_free() || flight.running.len() < QUEUED) {
            let fresh = flight.next == flight.uploaded;
            if fresh && flight.uploaded - flight.collected == flight.slot.len() {
                break;
            }
            if self.cancel.is_cancelled() {
                return Err(DeviceError::Cancelled);
            }
            flight.torn = true;
            if fresh {
                self.upload(flight)?;
            }
            self.launch(flight)?;
            flight.torn = false;
        }
        Ok(())
    }

    /// Runs a batch to its end.
    fn finish(&mut self, flight: &mut Flight<L>) -> Result<(), DeviceError> {
        loop {
            if let Some(error) = flight.failed.take() {
                return Err(error);
            }
            self.advance(flight)?;
            let Some(running) = flight.running.front() else { break };
            let began = self.finished.max(flight.started);
            self.launcher.wait(&running.ticket, &self.cancel)?;
            self.finished = Instant::now();
            let took = self.finished.saturating_duration_since(began);
            flight.times.kernel += took;
            flight.started = self.finished;
            if running.cut {
                self.pace.took(running.packets, took);
            }
            if flight.running.pop_front().is_some_and(|running| running.ends) {
                self.collect(flight)?;
                // That was no time of the device's.
                flight.started = Instant::now();
            }
        }
        Ok(())
    }

    /// Takes a batch, and begins with it.
    fn begin(&mut self, batch: Batch, numbers: Option<&[u32]>) -> Result<(), SubmitError> {
        let checked = self.check_reach(batch.span());
        let checked = checked.and_then(|()| check_batch(&self.program, &batch, self.flights.len(), self.depth));
        if let Err(error) = checked {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        if let Err(error) = self.keep_order().and_then(|()| self.keep_up(batch.len())) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        let mut flight = self.prepare(batch, numbers)?;
        // The first piece here: a batch that cannot be brought to the device goes back to the caller.
        let uploaded = if flight.pieces.is_empty() { Ok(()) } else { self.upload(&mut flight) };
        flight.started = Instant::now();
        let begun = match uploaded {
            Ok(()) => self.advance(&mut flight),
            // Whoever cancels waits for nobody, and the device may be one that hangs.
            Err(_) if self.cancel.is_cancelled() => Err(DeviceError::Cancelled),
            Err(error) => {
                // What was queued may look at the batch's memory.
                self.launcher.settle();
                self.release(&mut flight);
                return Err(SubmitError { batch: Box::new(flight.batch), error });
            }
        };
        if let Err(error) = begun {
            // One that the device has begun, if only with bringing it there, cannot be given back: completing it tells of the end.
            flight.torn |= flight.running.is_empty();
            flight.failed = Some(error);
        }
        self.flights.push_back(flight);
        Ok(())
    }

    /// Runs all batches in flight to their ends; they stay to be completed.
    fn finish_all(&mut self) -> Result<(), DeviceError> {
        let mut flights = std::mem::take(&mut self.flights);
        let finished = flights.iter_mut().try_for_each(|flight| {
            let finished = self.finish(flight);
            // Completing it tells again.
            flight.failed = finished.clone().err();
            finished
        });
        self.flights = flights;
        finished
    }

    /// Sees to it that a filter whose packets share something has the batches one after the other: launches that are paced
    /// of those before come first.
    fn keep_order(&mut self) -> Result<(), DeviceError> {
        let shares = self.program.has_flows() || !self.program.maps().is_empty();
        let waits = self.flights.iter().any(|flight| flight.next < flight.pieces.len());
        if shares && waits { self.finish_all() } else { Ok(()) }
    }

    /// Sees to the maps before a batch of so many packets, where that is due.
    fn keep_up(&mut self, packets: usize) -> Result<(), DeviceError> {
        let Some(mut upkeep) = self.upkeep.take() else { return Ok(()) };
        let kept = if upkeep.is_due(packets) {
            self.finish_all().and_then(|()| upkeep.look(packets, &mut Words { session: self }))
        } else {
            Ok(())
        };
        self.upkeep = Some(upkeep);
        kept
    }

    /// Lets go of all batches in flight. Their memory goes back to its owner, who may write to it, so not before the
    /// device is done with it: usually in a fraction of a second, but a driver that compiles can take minutes, and
    /// nobody waits for that here.
    fn give_up(&mut self) {
        let mut flights = std::mem::take(&mut self.flights);
        let tickets: Vec<_> = flights.iter().flat_map(|f| &f.running).map(|running| &running.ticket).collect();
        let torn = flights.iter().any(|flight| flight.torn);
        if self.launcher.settles(&tickets, torn) {
            for flight in &mut flights {
                self.release(flight);
            }
        } else {
            self.launcher.outlive(flights);
        }
    }

    fn release(&mut self, flight: &mut Flight<L>) {
        for index in flight.collected..flight.uploaded {
            let place = index % flight.slot.len();
            self.launcher.release(&mut flight.slot[place]);
        }
    }

    /// Reads what came back of the next piece, whose launches have ended, and lets go of its buffers.
    fn collect(&mut self, flight: &mut Flight<L>) -> Result<(), DeviceError> {
        let began = Instant::now();
        let copied = flight.is_copied() && self.effects.writes_packets;
        let Flight { slot, batch, plan, pieces, orders, collected, columns, .. } = &mut *flight;
        let (piece, order) = (&pieces[*collected], orders.get(*collected));
        let (packets, place) = (piece.packets.clone(), *collected % slot.len());
        let buffers = &mut slot[place];
        self.launcher.verdicts(packets.len(), buffers, columns)?;
        if let Some(order) = order {
            columns.reorder(packets.clone(), order);
        }
        // Where each packet lay, in the batch and in the copy, before it moved.
        let (mut before, mut seen) = (Vec::new(), Vec::new());
        if (copied && plan.layout != Layout::Rows) || self.effects.moves_ends {
            before = batch.descriptors()[packets.clone()].to_vec();
            seen = plan::descriptors(batch, piece, plan.layout, plan.needs).collect();
        }
        if self.effects.moves_ends {
            let mut ends = Vec::with_capacity(packets.len());
            self.launcher.ends(packets.len(), buffers, &mut |bytes| {
                let mut after: Vec<Descriptor> = descriptors(bytes).collect();
                if let Some(order) = order.filter(|order| order.positions().len() == after.len()) {
                    order.back(&mut after);
                }
                ends.extend(plan::ends(&before, seen.iter().copied(), after.into_iter()));
            })?;
            // From here on the batch knows that every packet lies within its room, and so within its piece.
            let broken = |error: BatchError| DeviceError::Broken { device: self.launcher.id().into(), error };
            if ends.len() != packets.len() {
                return Err(broken(BatchError::MetadataCount { packets: packets.len(), metadata: ends.len() }));
            }
            batch.resize_from(packets.start, &ends).map_err(broken)?;
        }
        let bytes = piece.bytes.end - piece.bytes.start;
        if copied && bytes > 0 {
            let window = if self.effects.moves_ends { u32::MAX } else { self.program.facts().writes.reach() };
            self.launcher.changed(bytes, buffers, &mut |from| {
                if plan.layout == Layout::Rows {
                    let stride = gather::stride(plan.needs.window);
                    gather::scatter(batch, piece.packets.clone(), window.min(plan.needs.window), from, stride);
                } else {
                    plan::write_back(batch, piece, &before, &seen, window, from);
                }
            })?;
        }
        let own = if self.stages.is_some() { self.launcher.times(buffers) } else { None };
        self.launcher.release(buffers);
        *collected += 1;
        let took = began.elapsed();
        flight.times.download += took;
        flight.stages.verdicts += took;
        if let Some(own) = own {
            flight.own.get_or_insert_default().add(own);
        }
        Ok(())
    }

    /// Takes note of what became of a batch's time and bytes, where somebody asked for that.
    fn note(&mut self, flight: &Flight<L>) {
        self.plan = Some(flight.plan);
        let Some(sum) = &mut self.stages else { return };
        let one = |is: bool| u64::from(is);
        let (transfer, own) = (flight.plan.transfer(), flight.plan.reach == Reach::Own);
        let taken = Taken {
            unseen: one(transfer.is_none()),
            resident: one(transfer == Some(Transfer::Imported) && own),
            imported: one(transfer == Some(Transfer::Imported) && !own),
            whole: one(transfer == Some(Transfer::Whole)),
            window: one(transfer == Some(Transfer::Window)),
        };
        let (batches, packets, clock) = (1, flight.batch.len() as u64, sum.clock);
        let kernel = flight.times.kernel;
        let mut stages = Stages { kernel, batches, packets, taken, clock, ..flight.stages };
        match flight.own {
            Some(own) => (stages.upload, stages.kernel, stages.download) = (own.upload, own.kernel, own.download),
            // Of a batch without packets there is nothing to be said.
            None if flight.pieces.is_empty() => {}
            None => stages.clock = Clock::Host,
        }
        *sum += stages;
    }

    /// Brings a batch to the device and lets `work` use the launcher on it: for measuring kernels by themselves.
    /// What it queues has to have ended when it returns.
    ///
    /// # Errors
    /// As [`Session::submit`]'s, and `work`'s.
    #[doc(hidden)]
    pub fn with_uploaded<T>(
        &mut self,
        batch: Batch,
        work: impl FnOnce(&mut L, &mut [(Part<'_, L::Import>, &mut L::Buffers)]) -> Result<T, DeviceError>,
    ) -> Result<(T, Batch), DeviceError> {
        let mut flight = self.prepare(batch, None).map_err(|refused| refused.error)?;
        // All of it at once, whatever memory that takes.
        while flight.slot.len() < flight.pieces.len() {
            flight.slot.push(self.launcher.buffers());
        }
        let uploaded = (flight.uploaded..flight.pieces.len()).try_for_each(|_| self.upload(&mut flight));
        let result = uploaded.and_then(|()| {
            let Flight { slot, import, batch, plan, pieces, orders, .. } = &mut flight;
            let parts = (0..pieces.len()).map(|index| part(batch, plan, pieces, orders, import.as_ref(), index));
            let mut parts: Vec<_> = parts.zip(slot.iter_mut()).collect();
            work(&mut self.launcher, &mut parts)
        });
        if result.is_err() {
            self.launcher.settle();
        }
        self.release(&mut flight);
        flight.slot.truncate(self.launcher.parts());
        self.idle.push(flight.slot);
        Ok((result?, flight.batch))
    }
}

/// The maps of a session at whose device nothing is queued.
struct Words<'a, L: Launcher> {
    session: &'a mut Offload<L>,
}

impl<L: Launcher> Memory for Words<'_, L> {
    type Error = DeviceError;

    fn header(&mut self, map: usize) -> Result<[u32; HEADER as usize], DeviceError> {
        let words = self.session.launcher.read_map(map, 0, HEADER as usize)?;
        let found = words.len();
        let short = || DeviceError::Failed {
            device: self.session.launcher.id().into(),
            reason: format!("{found} words came back of the {HEADER} before a map's entries"),
        };
        words.try_into().map_err(|_| short())
    }

    fn set_header(&mut self, map: usize, at: u32, word: u32) -> Result<(), DeviceError> {
        self.session.launcher.write_map(map, at as usize, &[word])
    }

    fn change(&mut self, map: usize, change: &mut dyn FnMut(&[u32]) -> Option<Vec<u32>>) -> Result<(), DeviceError> {
        let words = check_map(&self.session.program, map)?.words();
        let words = self.session.launcher.read_map(map, 0, words)?;
        match change(&words) {
            Some(words) => self.session.launcher.write_map(map, 0, &words),
            None => Ok(()),
        }
    }
}

impl<L: Launcher> Session for Offload<L> {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        // Of what no kernel looks at nothing is copied.
        if self.effects.sees_packets { self.launcher.announce(span) } else { Ok(Imported::InPlace) }
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        self.begin(batch, None)
    }

    fn complete(&mut self) -> Result<Option<Done>, DeviceError> {
        let Some(mut flight) = self.flights.pop_front() else { return Ok(None) };
        if let Err(error) = self.finish(&mut flight) {
            self.flights.push_front(flight);
            self.give_up();
            return Err(error);
        }
        self.note(&flight);
        self.idle.push(flight.slot);
        let verdicts = Verdicts::from_columns(flight.columns.actions, flight.columns.targets);
        Ok(Some(Done { batch: flight.batch, verdicts, times: flight.times }))
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        let words = check_map(&self.program, map)?.words();
        self.map_words_at(map, 0, words)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        check_map_words(&self.program, map, at, words)?;
        self.finish_all()?;
        if words == 0 { Ok(Vec::new()) } else { self.launcher.read_map(map, at, words) }
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        check_map_words(&self.program, map, at, words.len())?;
        self.finish_all()?;
        if let Some(upkeep) = &mut self.upkeep {
            upkeep.changed();
        }
        if words.is_empty() { Ok(()) } else { self.launcher.write_map(map, at, words) }
    }

    fn stages(&self) -> Option<Stages> {
        self.stages
    }

    fn plan(&self) -> Option<Plan> {
        self.plan
    }

    fn in_flight(&self) -> usize {
        self.flights.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl<L: Launcher> InOrder for Offload<L> {
    fn check(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let largest = batch.descriptors().iter().map(|packet| u64::from(packet.length)).max().unwrap_or(0);
        // Cutting is work, and only a packet that comes near what a piece may have is ever refused.
        let mut layouts = [Layout::Unseen, Layout::InPlace, Layout::Copied, Layout::Packed, Layout::Rows].into_iter();
        let fits = layouts.all(|layout| {
            let Bounds { binding, alignment, .. } = self.launcher.bounds(layout);
            largest + alignment < binding / 2
        });
        self.check_reach(batch.span())?;
        if fits && batch.span().is_on_host() { Ok(()) } else { self.cut(batch).map(drop) }
    }

    fn submit_in_order(&mut self, batch: Batch, numbers: &[u32]) -> Result<(), SubmitError> {
        if numbers.len() == batch.len() {
            return self.begin(batch, Some(numbers));
        }
        let text = format!("{} flow numbers for {} packets", numbers.len(), batch.len());
        Err(SubmitError { batch: Box::new(batch), error: DeviceError::Refused(text) })
    }
}

impl<L: Launcher> Drop for Offload<L> {
    fn drop(&mut self) {
        if !self.flights.is_empty() {
            self.give_up();
        }
    }
}

/// Keeps something until `settle` returns, which may take long, on a thread of its own. What the process still keeps
/// when it ends goes with it.
pub fn keep_until<T: Send + 'static>(kept: T, settle: impl FnOnce() + Send + 'static) {
    // Without a thread all of it is leaked.
    let kept = ManuallyDrop::new(kept);
    let keep = move || {
        settle();
        drop(ManuallyDrop::into_inner(kept));
    };
    let _ = std::thread::Builder::new().name("device".into()).spawn(keep);
}

/// The words of a device's buffer.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The descriptors in a device's buffer.
fn descriptors(bytes: &[u8]) -> impl Iterator<Item = Descriptor> + '_ {
    let mut words = words(bytes);
    std::iter::from_fn(move || Some(Descriptor { offset: words.next()?, length: words.next()? }))
}
