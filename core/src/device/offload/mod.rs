//! The session of devices that run kernels, shared by the CUDA, OpenCL and wgpu backends.
//!
//! A batch is split into chunks that the device can take ([`chunk`]). Each chunk gets buffers, is
//! uploaded, and is launched in one launch, or in several if one could take long
//! ([`launch_budget`](super::launch_budget)); then verdicts, descriptors and changed bytes are read
//! back. Several batches are in flight at once, first in, first out. This module does all of that,
//! with cancellation and failures; a backend implements buffers, copies and launches as a
//! [`Launcher`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chunk::{self, AccessNeeds, CopiedPackets, PacketLayout};
use super::host_threads::HostThreads;
use super::launch_budget::LaunchBudget;
use super::transfer_planner::{TransferCosts, TransferPlan};
use super::{CancelToken, Clock, DeviceError, DeviceKind, LoadOptions, Stages, SubmitError, Transfer, check_batch};
use crate::map::compactor::MapCompactor;
use crate::packet::{Batch, BatchError, Descriptor, gather};
use crate::program::Program;

mod chunk_view;
mod driver_threads;
mod flight;
mod flow_order;
mod launcher;
mod map_access;
pub mod poll;
mod prepare;
mod resident;
mod session;
#[cfg(test)]
mod tests;
mod transfer_tuner;
mod verdict_columns;

pub use chunk_view::{ChunkView, WrittenDescriptors};
pub use driver_threads::{DriverThread, compile_on_thread, drop_after, has_abandoned_work, panic_message};
use flight::{BatchInFlight, LauncherChunk, QueuedLaunch, Slot};
pub use flow_order::MAX_ORDERED_DESCRIPTOR_BYTES;
use flow_order::{FlowOrder, max_run_length};
pub use launcher::{KernelEffects, Launcher, TransferBytes};
use map_access::DeviceMapMemory;
use resident::{ResidentBatch, ResidentBuffers};
use transfer_tuner::TransferTuner;
pub use verdict_columns::{
    HostVerdictPool, HostVerdicts, NoVerdictMemory, VerdictColumns, VerdictMemory, VerdictPool, find_unused,
};

/// Maximum number of launches that a batch has queued if the launch budget limits them: the next
/// one starts without waiting for the host, and cancelling waits for no more than these.
const MAX_QUEUED_LAUNCHES: usize = 2;

/// How long to wait for a launch before the device counts as lost. Launches are limited to a
/// fraction of a second, so a device silent for this long hangs, or its driver compiles.
pub const LAUNCH_TIMEOUT: Duration = Duration::from_secs(120);

/// How often a waiting host checks its cancel token.
pub const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long a session that is abandoned waits for the device to finish queued work.
pub const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// What the user can do if the driver refuses to pin host memory.
pub const PINNING_ADVICE: &str = concat!(
    "raise what this user may lock (`ulimit -l`; for a container, `--ulimit memlock=-1`), ",
    "or close programs that pin memory",
);

/// The warning of a session that does without pinned memory.
pub fn unpinned_warning(device: &str, reason: &str) -> String {
    format!(
        "{device}: host memory cannot be pinned ({reason}), so packets or verdicts are copied once more, which is slower: \
         {PINNING_ADVICE}"
    )
}

/// A program loaded on a device that runs kernels.
pub struct OffloadSession<L: Launcher> {
    program: Arc<Program>,
    depth: usize,
    cancel: CancelToken,
    effects: KernelEffects,
    needs: AccessNeeds,
    compactor: Option<MapCompactor>,
    /// Maximum number of packets of one flow in a launch.
    max_run_length: usize,
    launch_budget: LaunchBudget,
    threads: Arc<HostThreads>,
    transfer: Transfer,
    tuner: TransferTuner,
    /// Whether transfers are tried out: unless the caller has given their costs.
    tunes: bool,
    /// Costs of moving bytes with one thread and with all, once known.
    costs: [Option<TransferCosts>; 2],
    /// The transfer plan of the last completed batch.
    plan: Option<TransferPlan>,
    /// Per-stage totals, if requested.
    stages: Option<Stages>,
    changed_descriptors: ChangedDescriptors,
    /// Columns for verdicts of batches for which the launcher lends none.
    host_verdicts: HostVerdictPool,
    /// Slots not in use by a batch, the most recently used at the back.
    free_slots: Vec<Slot<L>>,
    in_flight: VecDeque<BatchInFlight<L>>,
    /// Batches that stay resident on the device, if requested.
    resident: Option<ResidentBuffers<L>>,
    /// When the host last saw the device finish a launch.
    last_finished: Instant,
    /// When the last batch was completed.
    last_completed: Instant,
    /// Declared last, and so dropped after the buffers above.
    launcher: L,
}

/// Descriptors of a chunk whose results are read back; reused, so that nothing is allocated.
#[derive(Debug, Default)]
struct ChangedDescriptors {
    /// From before the launch, in the batch and in the kernel's arena.
    before: Vec<Descriptor>,
    in_kernel: Vec<Descriptor>,
    /// As the kernel left them, in its arena and in the batch.
    after: Vec<Descriptor>,
    resized: Vec<Descriptor>,
}

impl ChangedDescriptors {
    fn cleared(&mut self) -> &mut ChangedDescriptors {
        [&mut self.before, &mut self.in_kernel, &mut self.after, &mut self.resized].into_iter().for_each(Vec::clear);
        self
    }
}

impl<L: Launcher> OffloadSession<L> {
    /// Creates a session over a launcher for a kernel of the program with these effects.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if [`Transfer::Imported`] was requested, but the device cannot
    /// filter this program's packets in place; or if resident batches were requested, but the
    /// program or the launcher does not allow them.
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
            let reason = format!("the transfer `imported` was requested, but {reason}; use `auto`");
            return Err(DeviceError::Unsupported { device: launcher.id().into(), reason });
        }
        let work = options.measure.synthetic_work.map_or(0, |work| u64::try_from(work.as_nanos()).unwrap_or(u64::MAX));
        let clock =
            if options.measure.record_stages && launcher.enable_device_clock() { Clock::Device } else { Clock::Host };
        let resident =
            options.measure.resident.then(|| ResidentBuffers::new(&launcher, effects, program)).transpose()?;
        Ok(OffloadSession {
            // Resident batches are whole copies in the device's own memory, wherever they come
            // from.
            transfer: if options.measure.resident { Transfer::Whole } else { options.transfer },
            resident,
            tuner: TransferTuner::new(options.depth.max(1)),
            tunes: options.measure.costs.is_none(),
            costs: [options.measure.costs; 2],
            plan: None,
            stages: options.measure.record_stages.then(|| Stages { clock, ..Stages::default() }),
            program: program.clone(),
            depth: options.depth.max(1),
            cancel: options.cancel.clone(),
            effects,
            needs: AccessNeeds::of_program(program),
            compactor: program.map_compactor(),
            max_run_length: max_run_length(kind, program, effects.size, work),
            launch_budget: LaunchBudget::new(kind, program, effects.size, work),
            threads: Arc::new(HostThreads::new(options.threads)),
            changed_descriptors: ChangedDescriptors::default(),
            host_verdicts: HostVerdictPool::default(),
            free_slots: Vec::new(),
            in_flight: VecDeque::new(),
            last_finished: Instant::now(),
            last_completed: Instant::now(),
            launcher,
        })
    }

    /// The backend's launcher, for tests.
    pub fn launcher(&self) -> &L {
        &self.launcher
    }

    /// Disables the launch budget, for tests that need long launches.
    #[doc(hidden)]
    #[must_use]
    pub fn with_unlimited_launches(mut self) -> OffloadSession<L> {
        self.launch_budget = LaunchBudget::unlimited();
        self
    }

    /// Uploads the next chunk. There must be one, and free buffers for it.
    fn upload(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
        let start = Instant::now();
        // Count it first: the buffers of an upload that fails half-way have to be released too.
        flight.uploaded += 1;
        let is_resident = flight.is_resident;
        let (chunk, buffers) = flight.chunk_and_buffers(flight.uploaded - 1);
        if is_resident {
            self.launcher.reuse_upload(&chunk, self.effects, buffers)?;
        } else {
            self.launcher.upload(&chunk, self.effects, buffers)?;
            if self.resident.is_some() {
                self.launcher.retain_upload(buffers);
            }
        }
        let elapsed = start.elapsed();
        if self.stages.is_some() {
            let (gather_time, traffic) =
                (chunk.gather_time.get(), self.launcher.traffic(&chunk, self.effects, buffers));
            flight.stages.gather += gather_time;
            flight.stages.upload += elapsed.saturating_sub(gather_time);
            flight.stages.bytes_to_device += if is_resident { 0 } else { traffic.to_device };
            flight.stages.bytes_to_host += traffic.to_host;
        }
        flight.times.upload += elapsed;
        Ok(())
    }

    /// Queues the next launch of a batch. There must be one, and its chunk must be uploaded.
    fn launch(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
        let (first, max_packets) = (flight.launched_invocations, self.launch_budget.max_launch_packets());
        let (chunk, buffers) = flight.chunk_and_buffers(flight.launching);
        let invocations = chunk.invocations();
        let (count, packets) = match chunk.flow_order() {
            Some(flow_order) => flow_order.next_launch(first, max_packets),
            None => ((invocations - first).min(max_packets), (invocations - first).min(max_packets)),
        };
        let ticket = self.launcher.launch(&chunk, self.effects, buffers, first, count)?;
        let ends_chunk = first + count == invocations;
        if ends_chunk {
            flight.launching += 1;
            flight.launched_invocations = 0;
        } else {
            flight.launched_invocations += count;
        }
        let is_limited = !(first == 0 && ends_chunk);
        flight.queued.push_back(QueuedLaunch { ticket, packets, is_limited, ends_chunk });
        Ok(())
    }

    /// Uploads and launches until the batch has all of its launches, or as many queued as it may
    /// have.
    fn advance(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
        while flight.launching < flight.chunks.len()
            && (self.launch_budget.is_unlimited() || flight.queued.len() < MAX_QUEUED_LAUNCHES)
        {
            let needs_upload = flight.launching == flight.uploaded;
            if needs_upload && flight.uploaded - flight.collected == flight.slot.len() {
                break;
            }
            if self.cancel.is_cancelled() {
                return Err(DeviceError::Cancelled);
            }
            flight.has_untracked_work = true;
            if needs_upload {
                self.upload(flight)?;
            }
            self.launch(flight)?;
            flight.has_untracked_work = false;
        }
        Ok(())
    }

    /// Runs a batch to completion.
    fn finish(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
        loop {
            if let Some(error) = flight.error.take() {
                return Err(error);
            }
            self.advance(flight)?;
            let Some(launch) = flight.queued.front() else { break };
            let start = self.last_finished.max(flight.waiting_since);
            self.launcher.wait(&launch.ticket, &self.cancel)?;
            self.last_finished = Instant::now();
            let elapsed = self.last_finished.saturating_duration_since(start);
            flight.times.kernel += elapsed;
            flight.waiting_since = self.last_finished;
            if launch.is_limited {
                self.launch_budget.record_launch(launch.packets, elapsed);
            }
            if flight.queued.pop_front().is_some_and(|launch| launch.ends_chunk) {
                self.collect_results(flight)?;
                // Reading results is not device time.
                flight.waiting_since = Instant::now();
            }
        }
        Ok(())
    }

    /// Accepts a batch and starts it.
    fn start(&mut self, batch: Batch, flow_ids: Option<&[u32]>) -> Result<(), SubmitError> {
        let checked = self.check_reach(batch.span());
        let checked = checked.and_then(|()| check_batch(&self.program, &batch, self.in_flight.len(), self.depth));
        if let Err(error) = checked {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        if let Err(error) = self.serialize_batches().and_then(|()| self.compact_maps(batch.len())) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        let mut flight = self.prepare(batch, flow_ids, true)?;
        // Upload the first chunk here: if that fails, the batch can still be returned.
        let uploaded = if flight.chunks.is_empty() { Ok(()) } else { self.upload(&mut flight) };
        flight.waiting_since = Instant::now();
        let started = match uploaded {
            Ok(()) => self.advance(&mut flight),
            // The device may hang, and a cancelled session must not wait for it.
            Err(_) if self.cancel.is_cancelled() => Err(DeviceError::Cancelled),
            Err(error) => {
                // Queued copies may still access the batch's memory.
                self.launcher.wait_idle();
                self.release(&mut flight);
                return Err(SubmitError { batch: Box::new(flight.batch), error });
            }
        };
        if let Err(error) = started {
            // The device has begun with the batch, so it cannot be returned: `complete` reports the
            // error.
            flight.has_untracked_work |= flight.queued.is_empty();
            flight.error = Some(error);
        }
        self.in_flight.push_back(flight);
        Ok(())
    }

    /// Runs all batches in flight to their ends; they stay in flight until completed.
    fn finish_all(&mut self) -> Result<(), DeviceError> {
        let mut in_flight = std::mem::take(&mut self.in_flight);
        let finished = in_flight.iter_mut().try_for_each(|flight| {
            let finished = self.finish(flight);
            // `complete` reports the error again.
            flight.error = finished.clone().err();
            finished
        });
        self.in_flight = in_flight;
        finished
    }

    /// Finishes earlier batches whose launches are not all queued yet, if packets share state:
    /// their launches must come before those of the next batch.
    fn serialize_batches(&mut self) -> Result<(), DeviceError> {
        let shares_state = self.program.has_flows() || !self.program.maps().is_empty();
        let has_pending = self.in_flight.iter().any(|flight| flight.launching < flight.chunks.len());
        if shares_state && has_pending { self.finish_all() } else { Ok(()) }
    }

    /// Compacts the maps before a batch of `packets` packets if they need it.
    fn compact_maps(&mut self, packets: usize) -> Result<(), DeviceError> {
        let Some(mut compactor) = self.compactor.take() else { return Ok(()) };
        let compacted = if compactor.needs_compaction(packets) {
            self.finish_all()
                .and_then(|()| compactor.compact_if_needed(packets, &mut DeviceMapMemory { session: self }))
        } else {
            Ok(())
        };
        self.compactor = Some(compactor);
        compacted
    }

    /// Drops all batches in flight. Their memory returns to its owner, who may write to it, so the
    /// device must be done with it first. That usually takes a fraction of a second, but a driver
    /// that compiles can take minutes; then the batches are kept alive without waiting here.
    fn abandon_all(&mut self) {
        let mut in_flight = std::mem::take(&mut self.in_flight);
        let tickets: Vec<_> = in_flight.iter().flat_map(|f| &f.queued).map(|launch| &launch.ticket).collect();
        let has_untracked_work = in_flight.iter().any(|flight| flight.has_untracked_work);
        if self.launcher.try_drain(&tickets, has_untracked_work) {
            for flight in &mut in_flight {
                self.release(flight);
            }
        } else {
            self.launcher.keep_alive(in_flight);
        }
    }

    /// Releases the buffers of chunks that were uploaded and not collected.
    fn release(&mut self, flight: &mut BatchInFlight<L>) {
        for index in flight.collected..flight.uploaded {
            let buffers = index % flight.slot.len();
            self.launcher.release(&mut flight.slot[buffers]);
        }
    }

    /// Reads the results of the next chunk, whose launches have ended, and releases its buffers.
    fn collect_results(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
        let start = Instant::now();
        let copies_back = flight.is_copied() && self.effects.writes_packets;
        let BatchInFlight { slot, batch, plan, chunks, collected, columns, threads, .. } = &mut *flight;
        let chunk = &chunks[*collected];
        let (packets, index) = (chunk.packets.clone(), *collected % slot.len());
        let buffers = &mut slot[index];
        if !columns.are_lent() {
            self.launcher.read_verdicts(packets.len(), buffers, columns)?;
        }
        let ChangedDescriptors { before, in_kernel, after, resized } = self.changed_descriptors.cleared();
        if (copies_back && plan.layout == PacketLayout::Packed) || self.effects.resizes_packets {
            before.extend_from_slice(&batch.descriptors()[packets.clone()]);
            in_kernel.extend(chunk::kernel_descriptors(batch, chunk, plan.layout, plan.needs));
        }
        if self.effects.resizes_packets {
            self.launcher.read_descriptors(packets.len(), buffers, &mut |bytes| {
                after.extend(descriptors(bytes));
                let (in_kernel, after) = (in_kernel.iter().copied(), after.iter().copied());
                resized.extend(chunk::translate_descriptors(before, in_kernel, after));
            })?;
            // `resize_from` checks that every packet lies within its room, and so within its chunk.
            let invalid = |error: BatchError| DeviceError::InvalidResult { device: self.launcher.id().into(), error };
            if resized.len() != packets.len() {
                return Err(invalid(BatchError::MetadataCount { packets: packets.len(), metadata: resized.len() }));
            }
            batch.resize_from(packets.start, resized).map_err(invalid)?;
        }
        let bytes = chunk.bytes.end - chunk.bytes.start;
        if copies_back && bytes > 0 {
            let window = if self.effects.resizes_packets { u32::MAX } else { self.program.facts().writes.max_bytes() };
            let copied = match plan.layout {
                PacketLayout::Rows => CopiedPackets::Rows(gather::stride(plan.needs.window)),
                PacketLayout::Copied if !self.effects.resizes_packets => {
                    CopiedPackets::AtBatchOffsets(chunk.bytes.start)
                }
                _ => CopiedPackets::AtDescriptors(before, in_kernel),
            };
            let window = window.min(plan.needs.window);
            self.launcher.read_packets(bytes, buffers, &mut |from| {
                chunk::write_back(batch.packets_mut(packets.clone()), copied, window, from, threads);
            })?;
        }
        let device_times = if self.stages.is_some() { self.launcher.device_times(buffers) } else { None };
        match self.resident {
            Some(_) => self.launcher.release_results(buffers),
            None => self.launcher.release(buffers),
        }
        *collected += 1;
        let elapsed = start.elapsed();
        flight.times.download += elapsed;
        flight.stages.verdicts += elapsed;
        if let Some(device_times) = device_times {
            *flight.device_times.get_or_insert_default() += device_times;
        }
        Ok(())
    }

    /// Frees the slot of a completed batch, or keeps the batch resident in it.
    fn retire_slot(&mut self, slot: Slot<L>, batch: &Batch, plan: TransferPlan) {
        match &mut self.resident {
            Some(resident) => resident.insert(batch, ResidentBatch { slot, plan }),
            None => self.free_slots.push(Slot { chunks: cleared(slot.chunks), ..slot }),
        }
    }

    /// Records the plan of a completed batch, and its time and bytes if requested.
    fn record_stages(&mut self, flight: &BatchInFlight<L>) {
        self.plan = Some(flight.plan);
        let Some(totals) = &mut self.stages else { return };
        *totals += flight.stage_totals(totals.clock);
    }

    /// Uploads a batch and lets `work` use the launcher on its chunks, for measuring kernels by
    /// themselves. Everything that `work` queues must have ended when it returns.
    ///
    /// # Errors
    /// As [`Session::submit`](super::Session::submit), and the errors of `work`.
    #[doc(hidden)]
    pub fn with_uploaded<T>(
        &mut self,
        batch: Batch,
        work: impl FnOnce(&mut L, &mut [(LauncherChunk<'_, L>, &mut L::Buffers)]) -> Result<T, DeviceError>,
    ) -> Result<(T, Batch), DeviceError> {
        let mut flight = self.prepare(batch, None, false).map_err(|refused| refused.error)?;
        // Buffers for all chunks at once, whatever memory that takes.
        while flight.slot.len() < flight.chunks.len() {
            flight.slot.push(self.launcher.new_buffers());
        }
        let uploaded = (flight.uploaded..flight.chunks.len()).try_for_each(|_| self.upload(&mut flight));
        let result = uploaded.and_then(|()| {
            let chunks = flight.chunks.len();
            let (slot, view) = flight.chunk_views();
            let mut views: Vec<_> = (0..chunks).map(view).zip(slot.iter_mut()).collect();
            work(&mut self.launcher, &mut views)
        });
        if result.is_err() {
            self.launcher.wait_idle();
        }
        self.release(&mut flight);
        flight.slot.truncate(self.launcher.max_chunks());
        let (slot, batch) = flight.into_slot();
        self.free_slots.push(slot);
        Ok((result?, batch))
    }
}

/// An empty vector with the capacity of this one.
fn cleared<T>(mut items: Vec<T>) -> Vec<T> {
    items.clear();
    items
}

/// The little-endian words of a device buffer.
pub fn le_words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The descriptors in a device buffer.
fn descriptors(bytes: &[u8]) -> impl Iterator<Item = Descriptor> + '_ {
    let mut words = le_words(bytes);
    std::iter::from_fn(move || Some(Descriptor { offset: words.next()?, length: words.next()? }))
}
