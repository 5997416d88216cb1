//! The session of a device that runs kernels: what such devices have in common.
//!
//! A batch becomes pieces that the device can take ([`plan`]), each piece gets buffers, is
//! brought to the device and launched, at once or in several launches where it could take long
//! ([`pace`](super::pace)); then verdicts, ends and changed bytes come back. Several batches are under way at
//! once. All of that, first in, first out, cancelling and giving up included, is here; a backend says by its
//! [`Launcher`] how buffers, copies and launches are made.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chunk::{self, AccessNeeds, Chunk, PacketLayout};
use super::launch_budget::LaunchBudget;
use super::transfer_planner::{TransferCosts, TransferPlan};
use super::{CancelToken, Clock, DeviceError, DeviceKind, LoadOptions, Stages, SubmitError, Transfer, check_batch};
use crate::map::compactor::MapCompactor;
use crate::packet::{Batch, BatchError, Descriptor, gather};
use crate::program::Program;

mod chunk_view;
mod compile_thread;
mod flight;
mod flow_order;
mod launcher;
mod map_access;
mod prepare;
mod resident;
mod session;
#[cfg(test)]
mod tests;
mod verdict_columns;

pub use chunk_view::ChunkView;
pub use compile_thread::{compile_on_thread, panic_message};
use flight::{BatchInFlight, QueuedLaunch, part};
use flow_order::{Order, longest};
pub use launcher::{DeviceTimes, KernelEffects, Launcher, TransferBytes};
use map_access::DeviceMapMemory;
use resident::{ResidentBatch, ResidentBuffers};
pub use verdict_columns::VerdictColumns;

/// Launches that a batch may have queued at the device where they are paced: the next one starts without
/// waiting for the host, and cancelling waits for no more than these.
const QUEUED: usize = 2;

/// How long a device may be silent: launches are cut to a fraction of a second, so a device that takes this
/// long has died without telling, or its driver compiles.
pub const LAUNCH_TIMEOUT: Duration = Duration::from_secs(120);

/// How often a cancel token is looked at while nothing else would wake who waits.
pub const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long a device that is given up may take to finish what is queued.
pub const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// A program loaded on a device that runs kernels.
pub struct OffloadSession<L: Launcher> {
    program: Arc<Program>,
    depth: usize,
    cancel: CancelToken,
    effects: KernelEffects,
    needs: AccessNeeds,
    compactor: Option<MapCompactor>,
    /// Packets of one flow that a launch may have.
    longest: usize,
    launch_budget: LaunchBudget,
    transfer: Transfer,
    /// What moving bytes costs, once it is known.
    costs: Option<TransferCosts>,
    /// How packets of the batch before came.
    plan: Option<TransferPlan>,
    /// Where somebody asked for it.
    stages: Option<Stages>,
    /// Slots that no batch is in, the last used at the back.
    idle: Vec<Vec<L::Buffers>>,
    flights: VecDeque<BatchInFlight<L>>,
    /// Batches that stay at the device, where somebody asked for that.
    resident: Option<ResidentBuffers<L::Buffers>>,
    /// When the device was last seen to finish something.
    finished: Instant,
    // Last: the buffers above go first.
    launcher: L,
}

impl<L: Launcher> OffloadSession<L> {
    /// A session over a launcher for a kernel of the program with these effects.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where packets are to be filtered where they lie, and never are.
    pub fn new(
        mut launcher: L,
        kind: DeviceKind,
        effects: KernelEffects,
        program: &Arc<Program>,
        options: &LoadOptions,
    ) -> Result<OffloadSession<L>, DeviceError> {
        if let (Transfer::Imported, true, Some(reason)) =
            (options.transfer, effects.accesses_packets, launcher.no_in_place_reason())
        {
            let reason = format!("the transfer `imported` was asked for, and {reason}; take `auto`");
            return Err(DeviceError::Unsupported { device: launcher.id().into(), reason });
        }
        let work = options.synthetic_work.map_or(0, |work| u64::try_from(work.as_nanos()).unwrap_or(u64::MAX));
        let clock = if options.record_stages && launcher.enable_device_clock() { Clock::Device } else { Clock::Host };
        let resident = options.resident.then(|| ResidentBuffers::new(&launcher, effects, program)).transpose()?;
        Ok(OffloadSession {
            // Wherever they come from, they are copied to the device's own memory, and as a whole.
            transfer: if options.resident { Transfer::Whole } else { options.transfer },
            resident,
            costs: options.costs,
            plan: None,
            stages: options.record_stages.then(|| Stages { clock, ..Stages::default() }),
            program: program.clone(),
            depth: options.depth.max(1),
            cancel: options.cancel.clone(),
            effects,
            needs: AccessNeeds::of_program(program),
            compactor: MapCompactor::new(program),
            longest: longest(kind, program, effects.size, work),
            launch_budget: LaunchBudget::new(kind, program, effects.size, work),
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
    pub fn with_unlimited_launches(mut self) -> OffloadSession<L> {
        self.launch_budget = LaunchBudget::unlimited();
        self
    }

    /// Brings the next piece to the device; there is one, and buffers are free for it.
    fn upload(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
        let began = Instant::now();
        // One that fails half-way is to be released as well.
        flight.uploaded += 1;
        let again = flight.again;
        let (part, buffers) = flight.part(flight.uploaded - 1);
        if again {
            self.launcher.reuse_upload(&part, self.effects, buffers)?;
        } else {
            self.launcher.upload(&part, self.effects, buffers)?;
            if self.resident.is_some() {
                self.launcher.retain_upload(buffers);
            }
        }
        let took = began.elapsed();
        if self.stages.is_some() {
            let (gathered, traffic) = (part.gathered.get(), self.launcher.traffic(&part, self.effects));
            flight.stages.gather += gathered;
            flight.stages.upload += took.saturating_sub(gathered);
            flight.stages.bytes_to_device += if again { 0 } else { traffic.to_device };
            flight.stages.bytes_to_host += traffic.to_host;
        }
        flight.times.upload += took;
        Ok(())
    }

    /// Queues the next launch of a batch; there is one, and its piece is at the device.
    fn launch(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
        let (first, most) = (flight.launched, self.launch_budget.max_launch_packets());
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
        flight.running.push_back(QueuedLaunch { ticket, packets, cut: !(first == 0 && ends), ends });
        Ok(())
    }

    /// Brings to the device and launches until the batch has all of its launches, or as many queued as it may have.
    fn advance(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
        while flight.next < flight.pieces.len() && (self.launch_budget.is_unlimited() || flight.running.len() < QUEUED)
        {
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
    fn finish(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
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
                self.launch_budget.record_launch(running.packets, took);
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
    fn begin(&mut self, batch: Batch, flow_ids: Option<&[u32]>) -> Result<(), SubmitError> {
        let checked = self.check_reach(batch.span());
        let checked = checked.and_then(|()| check_batch(&self.program, &batch, self.flights.len(), self.depth));
        if let Err(error) = checked {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        if let Err(error) = self.keep_order().and_then(|()| self.keep_up(batch.len())) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        let mut flight = self.prepare(batch, flow_ids)?;
        // The first piece here: a batch that cannot be brought to the device goes back to the caller.
        let uploaded = if flight.pieces.is_empty() { Ok(()) } else { self.upload(&mut flight) };
        flight.started = Instant::now();
        let begun = match uploaded {
            Ok(()) => self.advance(&mut flight),
            // Whoever cancels waits for nobody, and the device may be one that hangs.
            Err(_) if self.cancel.is_cancelled() => Err(DeviceError::Cancelled),
            Err(error) => {
                // What was queued may look at the batch's memory.
                self.launcher.wait_idle();
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
        let Some(mut compactor) = self.compactor.take() else { return Ok(()) };
        let kept = if compactor.needs_compaction(packets) {
            self.finish_all()
                .and_then(|()| compactor.compact_if_needed(packets, &mut DeviceMapMemory { session: self }))
        } else {
            Ok(())
        };
        self.compactor = Some(compactor);
        kept
    }

    /// Lets go of all batches in flight. Their memory goes back to its owner, who may write to it, so not before the
    /// device is done with it: usually in a fraction of a second, but a driver that compiles can take minutes, and
    /// nobody waits for that here.
    fn give_up(&mut self) {
        let mut flights = std::mem::take(&mut self.flights);
        let tickets: Vec<_> = flights.iter().flat_map(|f| &f.running).map(|running| &running.ticket).collect();
        let torn = flights.iter().any(|flight| flight.torn);
        if self.launcher.try_drain(&tickets, torn) {
            for flight in &mut flights {
                self.release(flight);
            }
        } else {
            self.launcher.keep_alive(flights);
        }
    }

    fn release(&mut self, flight: &mut BatchInFlight<L>) {
        for index in flight.collected..flight.uploaded {
            let place = index % flight.slot.len();
            self.launcher.release(&mut flight.slot[place]);
        }
    }

    /// Reads what came back of the next piece, whose launches have ended, and lets go of its buffers.
    fn collect(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
        let began = Instant::now();
        let copied = flight.is_copied() && self.effects.writes_packets;
        let BatchInFlight { slot, batch, plan, pieces, orders, collected, columns, .. } = &mut *flight;
        let (piece, order) = (&pieces[*collected], orders.get(*collected));
        let (packets, place) = (piece.packets.clone(), *collected % slot.len());
        let buffers = &mut slot[place];
        self.launcher.read_verdicts(packets.len(), buffers, columns)?;
        if let Some(order) = order {
            columns.reorder(packets.clone(), order);
        }
        // Where each packet lay, in the batch and in the copy, before it moved.
        let (mut before, mut seen) = (Vec::new(), Vec::new());
        if (copied && plan.layout != PacketLayout::Rows) || self.effects.resizes_packets {
            before = batch.descriptors()[packets.clone()].to_vec();
            seen = chunk::kernel_descriptors(batch, piece, plan.layout, plan.needs).collect();
        }
        if self.effects.resizes_packets {
            let mut ends = Vec::with_capacity(packets.len());
            self.launcher.read_descriptors(packets.len(), buffers, &mut |bytes| {
                let mut after: Vec<Descriptor> = descriptors(bytes).collect();
                if let Some(order) = order.filter(|order| order.positions().len() == after.len()) {
                    order.back(&mut after);
                }
                ends.extend(chunk::translate_descriptors(&before, seen.iter().copied(), after.into_iter()));
            })?;
            // From here on the batch knows that every packet lies within its room, and so within its piece.
            let broken = |error: BatchError| DeviceError::InvalidResult { device: self.launcher.id().into(), error };
            if ends.len() != packets.len() {
                return Err(broken(BatchError::MetadataCount { packets: packets.len(), metadata: ends.len() }));
            }
            batch.resize_from(packets.start, &ends).map_err(broken)?;
        }
        let bytes = piece.bytes.end - piece.bytes.start;
        if copied && bytes > 0 {
            let window = if self.effects.resizes_packets { u32::MAX } else { self.program.facts().writes.max_bytes() };
            self.launcher.read_packets(bytes, buffers, &mut |from| {
                if plan.layout == PacketLayout::Rows {
                    let stride = gather::stride(plan.needs.window);
                    gather::scatter(batch, piece.packets.clone(), window.min(plan.needs.window), from, stride);
                } else {
                    chunk::write_back(batch, piece, &before, &seen, window, from);
                }
            })?;
        }
        let own = if self.stages.is_some() { self.launcher.device_times(buffers) } else { None };
        if self.resident.is_none() {
            self.launcher.release(buffers);
        }
        *collected += 1;
        let took = began.elapsed();
        flight.times.download += took;
        flight.stages.verdicts += took;
        if let Some(own) = own {
            flight.own.get_or_insert_default().add(own);
        }
        Ok(())
    }

    /// Lets go of the slot of a batch that is complete, or has the batch stay there.
    fn leave(&mut self, slot: Vec<L::Buffers>, batch: &Batch, plan: TransferPlan, pieces: Vec<Chunk>) {
        match &mut self.resident {
            Some(resident) => resident.insert(batch, ResidentBatch { slot, plan, pieces }),
            None => self.idle.push(slot),
        }
    }

    /// Takes note of what became of a batch's time and bytes, where somebody asked for that.
    fn note(&mut self, flight: &BatchInFlight<L>) {
        self.plan = Some(flight.plan);
        let Some(sum) = &mut self.stages else { return };
        *sum += flight.stage_totals(sum.clock);
    }

    /// Brings a batch to the device and lets `work` use the launcher on it: for measuring kernels by themselves.
    /// What it queues has to have ended when it returns.
    ///
    /// # Errors
    /// As [`Session::submit`](super::Session::submit)'s, and `work`'s.
    #[doc(hidden)]
    pub fn with_uploaded<T>(
        &mut self,
        batch: Batch,
        work: impl FnOnce(&mut L, &mut [(ChunkView<'_, L::Import>, &mut L::Buffers)]) -> Result<T, DeviceError>,
    ) -> Result<(T, Batch), DeviceError> {
        let mut flight = self.prepare(batch, None).map_err(|refused| refused.error)?;
        // All of it at once, whatever memory that takes.
        while flight.slot.len() < flight.pieces.len() {
            flight.slot.push(self.launcher.new_buffers());
        }
        let uploaded = (flight.uploaded..flight.pieces.len()).try_for_each(|_| self.upload(&mut flight));
        let result = uploaded.and_then(|()| {
            let BatchInFlight { slot, import, batch, plan, pieces, orders, .. } = &mut flight;
            let parts = (0..pieces.len()).map(|index| part(batch, plan, pieces, orders, import.as_ref(), index));
            let mut parts: Vec<_> = parts.zip(slot.iter_mut()).collect();
            work(&mut self.launcher, &mut parts)
        });
        if result.is_err() {
            self.launcher.wait_idle();
        }
        self.release(&mut flight);
        flight.slot.truncate(self.launcher.max_chunks());
        self.idle.push(flight.slot);
        Ok((result?, flight.batch))
    }
}

/// Keeps something until `settle` returns, which may take long, on a thread of its own. What the process still keeps
/// when it ends goes with it.
pub fn drop_after<T: Send + 'static>(guarded: T, wait_idle: impl FnOnce() + Send + 'static) {
    // Without a thread all of it is leaked.
    let guarded = ManuallyDrop::new(guarded);
    let keep = move || {
        wait_idle();
        drop(ManuallyDrop::into_inner(guarded));
    };
    let _ = std::thread::Builder::new().name("device".into()).spawn(keep);
}

/// The words of a device's buffer.
pub fn le_words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The descriptors in a device's buffer.
fn descriptors(bytes: &[u8]) -> impl Iterator<Item = Descriptor> + '_ {
    let mut words = le_words(bytes);
    std::iter::from_fn(move || Some(Descriptor { offset: words.next()?, length: words.next()? }))
}
