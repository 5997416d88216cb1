//! Batches on their way through a device.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ocl_core::{ArgVal, Event, Mem};
use portcullis_c_writer::Argument;
use portcullis_core::device::pace::Pace;
use portcullis_core::device::plan::{self, Bounds, Layout, Needs, PAST_END, Piece};
use portcullis_core::device::{
    DeviceError, DeviceKind, Done, Imported, LoadOptions, Session, StageTimes, SubmitError, check_submission,
};
use portcullis_core::packet::{Batch, BatchError, Descriptor, Metadata, Span, Verdicts};
use portcullis_core::program::Program;

use crate::compile::{self, Loaded};
use crate::device::Gpu;
use crate::memory::{Download, Import, Imports, Output, Upload};
use crate::probe::OpenClDevice;
use crate::wait::{GRACE, Ticket};

#[cfg(test)]
mod tests;

/// Launches that a batch may have queued at the device: the next one starts without waiting for
/// the host, and cancelling waits for no more than these.
const QUEUED: usize = 2;

/// Work items in a group of a processor's where launches are cut small: each core gets some of them,
/// and a packet of such a filter takes long.
const PACED_GROUP: usize = 8;

/// A program loaded on an OpenCL device.
pub(crate) struct OpenClSession {
    program: Arc<Program>,
    options: LoadOptions,
    loaded: Loaded,
    needs: Needs,
    pace: Pace,
    imports: Imports,
    /// Slots that no batch is in, the last used at the back.
    idle: Vec<Vec<Buffers>>,
    flights: VecDeque<Flight>,
    /// When the device was last seen to finish something.
    finished: Instant,
    // Last: the buffers above go first.
    gpu: Arc<Gpu>,
}

/// The buffers that a piece of a batch needs.
#[derive(Default)]
struct Buffers {
    packets: Upload,
    descriptors: Upload,
    metadata: Upload,
    actions: Output,
    targets: Output,
    actions_back: Download,
    targets_back: Download,
    /// The descriptors and packets as the filter left them.
    ends: Download,
    changed: Download,
    /// The last command that has to end before kernels run.
    ready: Option<Event>,
}

/// A batch in flight.
struct Flight {
    // Before the batch: buffers are made over its memory.
    slot: Vec<Buffers>,
    /// The batch's memory, where the device works on it in place.
    import: Option<Arc<Import>>,
    batch: Batch,
    layout: Layout,
    pieces: Vec<Piece>,
    /// The piece that is launched next, and how many of its packets have been launched.
    next: usize,
    launched: usize,
    running: VecDeque<Running>,
    /// Why no more of it can be launched; completing it tells.
    failed: Option<DeviceError>,
    /// Whether commands may be queued that no ticket is about.
    torn: bool,
    times: StageTimes,
    started: Instant,
}

/// A launch on its way.
struct Running {
    ticket: Ticket,
    /// Number of packets, and whether there would have been more but for the pace.
    packets: usize,
    cut: bool,
}

impl OpenClSession {
    pub fn new(
        device: &OpenClDevice,
        program: &Arc<Program>,
        options: &LoadOptions,
    ) -> Result<OpenClSession, DeviceError> {
        let (gpu, loaded) = compile::load(device, program, &options.cancel)?;
        Ok(OpenClSession::of(gpu, loaded, program, options))
    }

    fn of(gpu: Arc<Gpu>, mut loaded: Loaded, program: &Arc<Program>, options: &LoadOptions) -> OpenClSession {
        let pace = Pace::new(gpu.kind, program, loaded.size);
        if !pace.is_free() && gpu.kind == DeviceKind::Cpu {
            loaded.group = loaded.group.min(PACED_GROUP);
        }
        OpenClSession {
            program: program.clone(),
            options: LoadOptions { depth: options.depth.max(1), ..options.clone() },
            needs: Needs::of_program(program),
            pace,
            loaded,
            imports: Imports::default(),
            idle: Vec::new(),
            flights: VecDeque::new(),
            finished: Instant::now(),
            gpu,
        }
    }

    fn bounds(&self, layout: Layout) -> Bounds {
        // Far below what a grid can have, and enough to keep any device busy.
        let packets = (self.gpu.largest / size_of::<Metadata>() as u64).min(1 << 24) as usize;
        match layout {
            // The kernel gets the span from its start, so one piece has them all, and the batch's
            // descriptors are those of the kernel.
            Layout::InPlace => Bounds { binding: u64::MAX, alignment: 1 << 32, packets },
            _ => Bounds { binding: self.gpu.largest.min(u32::MAX.into()) & !3, alignment: 4, packets },
        }
    }

    /// Cuts a batch and brings it to the device; launches nothing yet.
    fn prepare(&mut self, batch: Batch, slot: Vec<Buffers>) -> Result<Flight, SubmitError> {
        let refuse = |batch, error| Err(SubmitError { batch: Box::new(batch), error });
        let started = Instant::now();
        let mut import = None;
        if self.loaded.sees_packets && !batch.is_empty() {
            import = self.imports.get(&self.gpu, batch.span(), self.loaded.writes_packets);
        }
        let layout = match () {
            () if !self.loaded.sees_packets => Layout::Unseen,
            () if import.is_some() => Layout::InPlace,
            () if plan::pays_to_pack(&batch, self.needs) => Layout::Packed,
            () => Layout::Copied,
        };
        let bounds = self.bounds(layout);
        let pieces = match plan::cut(&batch, layout, self.needs, bounds) {
            Ok(pieces) => pieces,
            Err(large) => {
                let text = format!(
                    "packet {} has {} bytes, and {} takes {} at a time, its own needs included",
                    large.index, large.length, self.gpu.id, bounds.binding
                );
                self.idle.push(slot);
                return refuse(batch, DeviceError::Refused(text));
            }
        };
        let mut flight = Flight {
            slot,
            import,
            batch,
            layout,
            pieces,
            next: 0,
            launched: 0,
            running: VecDeque::new(),
            failed: None,
            torn: false,
            times: StageTimes::default(),
            started,
        };
        match self.upload(&mut flight) {
            Ok(()) => {
                flight.times.upload = started.elapsed();
                flight.started = Instant::now();
                Ok(flight)
            }
            Err(error) => {
                // What was queued may look at the batch's memory.
                self.gpu.settle();
                refuse(flight.batch, error)
            }
        }
    }

    /// Writes, or lends, what the kernel reads.
    fn upload(&self, flight: &mut Flight) -> Result<(), DeviceError> {
        let (gpu, needs, layout, batch) = (&*self.gpu, self.needs, flight.layout, &flight.batch);
        if flight.slot.len() < flight.pieces.len() {
            flight.slot.resize_with(flight.pieces.len(), Buffers::default);
        }
        for (piece, buffers) in flight.pieces.iter().zip(&mut flight.slot) {
            let packets = piece.packets.len() as u64;
            let as_they_are = matches!(layout, Layout::InPlace | Layout::Unseen) && !self.loaded.moves_ends;
            let mut ready = if as_they_are {
                // SAFETY: a batch's descriptors stay where they are, and the flight keeps the batch
                // until its last command has ended; `Buffers::take_back` is called before that.
                unsafe { buffers.descriptors.lend(gpu, &batch.descriptors()[piece.packets.clone()])? }
            } else {
                let seen = plan::descriptors(batch, piece, layout, needs);
                buffers.descriptors.write(gpu, packets * 8, |to| {
                    for (to, d) in to.chunks_exact_mut(8).zip(seen) {
                        to.copy_from_slice(&(u64::from(d.offset) | u64::from(d.length) << 32).to_le_bytes());
                    }
                })?
            };
            if self.loaded.metadata {
                let written = if batch.metadata().is_empty() {
                    let all = piece.packets.clone().map(|index| metadata_bytes(&batch.metadata_of(index)));
                    let size = size_of::<Metadata>();
                    buffers.metadata.write(gpu, packets * size as u64, |to| {
                        to.chunks_exact_mut(size).zip(all).for_each(|(to, bytes)| to.copy_from_slice(&bytes));
                    })?
                } else {
                    // SAFETY: as for the descriptors.
                    unsafe { buffers.metadata.lend(gpu, &batch.metadata()[piece.packets.clone()])? }
                };
                ready = written.or(ready);
            }
            if matches!(layout, Layout::Copied | Layout::Packed) {
                let bytes = piece.bytes.end - piece.bytes.start + PAST_END;
                let copy = |to: &mut [u8]| copy_packets(batch, piece, layout, needs, to);
                ready = buffers.packets.write(gpu, bytes, copy)?.or(ready);
            }
            buffers.actions.reserve(gpu, packets)?;
            if self.loaded.redirects {
                buffers.targets.reserve(gpu, packets * 4)?;
            }
            buffers.ready = ready;
        }
        gpu.flush(&gpu.uploads)
    }

    /// Queues the next launch of a batch; there is one.
    fn launch(&self, flight: &mut Flight) -> Result<(), DeviceError> {
        let gpu = &*self.gpu;
        flight.torn = true;
        let (piece, buffers) = (&flight.pieces[flight.next], &mut flight.slot[flight.next]);
        let total = piece.packets.len();
        let begins = flight.launched == 0;
        // What the batch has of the span; nothing where no packet has a byte.
        let extent = plan::extent(&flight.batch.descriptors()[piece.packets.clone()], self.needs);
        let in_place = flight.import.as_deref().zip(extent);
        if let (true, Some((import, extent))) = (begins, &in_place) {
            import.written(gpu, extent)?;
        }
        let count = (total - flight.launched).min(self.pace.packets());
        let packets = flight.import.as_ref().map(|import| import.memory());
        self.set_arguments(packets, buffers, flight.launched, count)?;
        let mut event = self.enqueue(count, buffers.ready.as_ref())?;
        flight.launched += count;
        let ends = flight.launched == total;
        if ends {
            event = self.bring_back(piece, buffers, in_place, event)?;
            flight.next += 1;
            flight.launched = 0;
        }
        gpu.flush(&gpu.kernels)?;
        gpu.flush(&gpu.downloads)?;
        flight.running.push_back(Running { ticket: Ticket::new(gpu, event)?, packets: count, cut: !(begins && ends) });
        flight.torn = false;
        Ok(())
    }

    /// Tells the kernel where everything is.
    fn set_arguments(
        &self,
        import: Option<&Mem>,
        buffers: &Buffers,
        base: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        let (base, count) = (base as u32, count as u32);
        for (index, argument) in self.loaded.arguments.iter().enumerate() {
            let value = match argument {
                Argument::Arena { .. } => ArgVal::mem(import.unwrap_or_else(|| buffers.packets.memory())),
                Argument::Descriptors { .. } => ArgVal::mem(buffers.descriptors.memory()),
                Argument::Metadata => ArgVal::mem(buffers.metadata.memory()),
                Argument::Verdicts => ArgVal::mem(buffers.actions.memory()),
                Argument::Targets => ArgVal::mem(buffers.targets.memory()),
                Argument::Base => ArgVal::scalar(&base),
                Argument::Count => ArgVal::scalar(&count),
            };
            ocl_core::set_kernel_arg(&self.loaded.kernel, index as u32, value)
                .map_err(|error| self.gpu.failed(format_args!("does not take argument {index}"), &error))?;
        }
        Ok(())
    }

    /// Queues the kernel over `count` packets.
    fn enqueue(&self, count: usize, after: Option<&Event>) -> Result<Event, DeviceError> {
        let group = self.loaded.group;
        let size = [count.div_ceil(group) * group, 1, 1];
        let mut event = Event::null();
        let kernel = &self.loaded.kernel;
        // SAFETY: the kernel stays within its buffers, whatever the filter: it ends before packet
        // `count`, for which the descriptors, metadata and verdicts have room; the arena it reaches at
        // bytes of packets and their rooms, which lie in the buffer, and in the `PAST_END` bytes
        // behind (`Carver::carve`, `plan::cut`). Indices into the filter's own arrays are clamped. The
        // batch, whose words these are, is the session's until the kernel has ended.
        let queued = unsafe {
            let (queue, group) = (&self.gpu.kernels, Some([group, 1, 1]));
            ocl_core::enqueue_kernel(queue, kernel, 1, None, &size, group, after, Some(&mut event))
        };
        queued.map_err(|error| self.gpu.failed("does not launch the filter", &error))?;
        Ok(event)
    }

    /// Queues bringing a piece's results back, after the event. The event of the last of it.
    fn bring_back(
        &self,
        piece: &Piece,
        buffers: &mut Buffers,
        in_place: Option<(&Import, Range<u64>)>,
        after: Event,
    ) -> Result<Event, DeviceError> {
        let (gpu, packets) = (&*self.gpu, piece.packets.len() as u64);
        let mut event = buffers.actions_back.enqueue(gpu, buffers.actions.memory(), packets, &after)?;
        if self.loaded.redirects {
            event = buffers.targets_back.enqueue(gpu, buffers.targets.memory(), packets * 4, &after)?;
        }
        if self.loaded.moves_ends {
            event = buffers.ends.enqueue(gpu, buffers.descriptors.memory(), packets * 8, &after)?;
        }
        let bytes = piece.bytes.end - piece.bytes.start;
        match in_place {
            Some((import, extent)) if self.loaded.writes_packets => {
                let mut last = Event::null();
                import.read_back(gpu, &extent, &mut last)?;
                event = last;
            }
            None if self.loaded.writes_packets && bytes > 0 => {
                event = buffers.changed.enqueue(gpu, buffers.packets.memory(), bytes, &after)?;
            }
            _ => {}
        }
        Ok(event)
    }

    /// Launches until the batch has all of its launches, or as many queued as it may have.
    fn advance(&self, flight: &mut Flight) -> Result<(), DeviceError> {
        while flight.next < flight.pieces.len() && (self.pace.is_free() || flight.running.len() < QUEUED) {
            if self.options.cancel.is_cancelled() {
                return Err(DeviceError::Cancelled);
            }
            self.launch(flight)?;
        }
        Ok(())
    }

    /// Runs a batch to its end.
    fn finish(&mut self, flight: &mut Flight) -> Result<(), DeviceError> {
        loop {
            if let Some(error) = flight.failed.take() {
                return Err(error);
            }
            self.advance(flight)?;
            let Some(running) = flight.running.front() else { break };
            let began = self.finished.max(flight.started);
            running.ticket.wait(&self.gpu, &self.options.cancel)?;
            self.finished = Instant::now();
            let took = self.finished.saturating_duration_since(began);
            flight.times.kernel += took;
            flight.started = self.finished;
            if running.cut {
                self.pace.took(running.packets, took);
            }
            flight.running.pop_front();
        }
        Ok(())
    }

    /// Lets go of all batches in flight. Their memory goes back to its owner, who may write to it,
    /// so not before the device is done with it: usually in a fraction of a second, but a driver
    /// that compiles can take minutes, and nobody waits for that here.
    fn give_up(&mut self) {
        let flights = std::mem::take(&mut self.flights);
        let deadline = Instant::now() + GRACE;
        let mut tickets = flights.iter().flat_map(|flight| &flight.running).map(|running| &running.ticket);
        let ended = tickets.all(|ticket| ticket.ends_within(deadline.saturating_duration_since(Instant::now())));
        if ended && !flights.iter().any(|flight| flight.torn) {
            return;
        }
        // A thread of its own waits for the rest. Without a thread all of it is leaked.
        let kept = ManuallyDrop::new((flights, self.gpu.clone()));
        let keep = move || {
            let (flights, gpu) = ManuallyDrop::into_inner(kept);
            gpu.settle();
            drop(flights);
        };
        let _ = std::thread::Builder::new().name("device".into()).spawn(keep);
    }

    /// Reads what came back.
    fn download(&self, flight: &mut Flight) -> Result<Verdicts, DeviceError> {
        let gpu = &*self.gpu;
        let count = flight.batch.len();
        let mut actions = Vec::with_capacity(count);
        let mut targets = Vec::with_capacity(if self.loaded.redirects { count } else { 0 });
        let mut ends = Vec::with_capacity(if self.loaded.moves_ends { count } else { 0 });
        for (piece, buffers) in flight.pieces.iter().zip(&mut flight.slot) {
            buffers.actions_back.read(gpu, buffers.actions.memory(), |bytes| actions.extend_from_slice(bytes))?;
            if self.loaded.redirects {
                buffers.targets_back.read(gpu, buffers.targets.memory(), |bytes| targets.extend(words(bytes)))?;
            }
            if self.loaded.moves_ends {
                let seen = plan::descriptors(&flight.batch, piece, flight.layout, self.needs);
                let before = &flight.batch.descriptors()[piece.packets.clone()];
                buffers.ends.read(gpu, buffers.descriptors.memory(), |bytes| {
                    let mut words = words(bytes);
                    let after =
                        std::iter::from_fn(|| Some(Descriptor { offset: words.next()?, length: words.next()? }));
                    ends.extend(plan::ends(before, seen, after));
                })?;
            }
        }
        self.write_back(flight, ends)?;
        for buffers in &mut flight.slot {
            buffers.take_back();
        }
        Ok(Verdicts::new(actions, targets))
    }

    /// Brings changed packets into the batch; `ends` is where they lie now, or empty.
    fn write_back(&self, flight: &mut Flight, ends: Vec<Descriptor>) -> Result<(), DeviceError> {
        let copied = matches!(flight.layout, Layout::Copied | Layout::Packed) && self.loaded.writes_packets;
        let mut seen: Vec<Vec<Descriptor>> = Vec::new();
        let mut before = Vec::new();
        if copied {
            let of = |piece| plan::descriptors(&flight.batch, piece, flight.layout, self.needs).collect();
            seen = flight.pieces.iter().map(of).collect();
            before = flight.batch.descriptors().to_vec();
        }
        if self.loaded.moves_ends {
            // From here on the batch knows that every packet lies within its room, and so within
            // its piece.
            let broken = |error: BatchError| DeviceError::Broken { device: self.gpu.id.clone(), error };
            flight.batch.resize(ends).map_err(broken)?;
        }
        if !copied {
            return Ok(());
        }
        let window = if self.loaded.moves_ends { u32::MAX } else { self.program.facts().writes.reach() };
        for ((piece, buffers), seen) in flight.pieces.iter().zip(&mut flight.slot).zip(seen) {
            if piece.bytes.is_empty() {
                continue;
            }
            let before = &before[piece.packets.clone()];
            buffers.changed.read(&self.gpu, buffers.packets.memory(), |from| {
                plan::write_back(&mut flight.batch, piece, before, &seen, window, from);
            })?;
        }
        Ok(())
    }

    /// See [`crate::measure`].
    pub fn kernel_only(&mut self, batch: Batch, rounds: u32) -> Result<(Duration, Batch), DeviceError> {
        let slot = self.idle.pop().unwrap_or_default();
        let mut flight = self.prepare(batch, slot).map_err(|refused| refused.error)?;
        let launch = |rounds| -> Result<(), DeviceError> {
            let mut last = None;
            for _ in 0..rounds {
                for (piece, buffers) in flight.pieces.iter().zip(&flight.slot) {
                    let import = flight.import.as_ref().map(|import| import.memory());
                    self.set_arguments(import, buffers, 0, piece.packets.len())?;
                    last = Some(self.enqueue(piece.packets.len(), buffers.ready.as_ref())?);
                }
            }
            self.gpu.flush(&self.gpu.kernels)?;
            last.map_or(Ok(()), |event| Ticket::new(&self.gpu, event)?.wait(&self.gpu, &self.options.cancel))
        };
        launch(1)?;
        let started = Instant::now();
        launch(rounds)?;
        let time = started.elapsed() / rounds.max(1);
        for buffers in &mut flight.slot {
            buffers.take_back();
        }
        self.idle.push(flight.slot);
        Ok((time, flight.batch))
    }
}

impl Session for OpenClSession {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        let in_place =
            self.loaded.sees_packets && self.imports.get(&self.gpu, span, self.loaded.writes_packets).is_some();
        Ok(if in_place { Imported::InPlace } else { Imported::Copied })
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if let Err(error) = check_submission(&self.program, &batch, self.flights.len(), self.options.depth) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        let slot = self.idle.pop().unwrap_or_default();
        let mut flight = self.prepare(batch, slot)?;
        match self.advance(&mut flight) {
            Ok(()) => {}
            // One that the device has begun cannot be given back: completing it tells of the end.
            Err(error) if flight.torn || !flight.running.is_empty() => flight.failed = Some(error),
            Err(error) => {
                // Nothing should touch the batch's memory any more when it is given back.
                self.gpu.settle();
                return Err(SubmitError { batch: Box::new(flight.batch), error });
            }
        }
        self.flights.push_back(flight);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Done>, DeviceError> {
        let Some(mut flight) = self.flights.pop_front() else { return Ok(None) };
        if let Err(error) = self.finish(&mut flight) {
            self.flights.push_front(flight);
            self.give_up();
            return Err(error);
        }
        let downloading = Instant::now();
        let verdicts = self.download(&mut flight)?;
        let mut times = flight.times;
        times.download = downloading.elapsed();
        self.idle.push(flight.slot);
        Ok(Some(Done { batch: flight.batch, verdicts, times }))
    }

    fn in_flight(&self) -> usize {
        self.flights.len()
    }

    fn depth(&self) -> usize {
        self.options.depth
    }
}

impl Drop for OpenClSession {
    fn drop(&mut self) {
        if !self.flights.is_empty() {
            self.give_up();
        }
    }
}

impl Buffers {
    /// Lets go of the batch's memory: after its last command.
    fn take_back(&mut self) {
        self.descriptors.take_back();
        self.metadata.take_back();
        self.ready = None;
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

fn metadata_bytes(m: &Metadata) -> [u8; size_of::<Metadata>()] {
    let mut bytes = [0; size_of::<Metadata>()];
    let words = [m.wire_length, m.port, m.time_low, m.time_high, m.time_ms];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Writes the packets of a piece to where its kernel looks for them.
fn copy_packets(batch: &Batch, piece: &Piece, layout: Layout, needs: Needs, to: &mut [u8]) {
    if layout == Layout::Copied {
        let (start, length) = (piece.bytes.start as usize, (piece.bytes.end - piece.bytes.start) as usize);
        // SAFETY: the words from the batch's first packet to its last, all in the span. Between
        // them lies nothing of other batches (a carver hands out an arena from its start to its
        // end, and no two packets share a word), so nobody writes there while we hold the batch.
        let bytes = unsafe { std::slice::from_raw_parts(batch.span().as_ptr().add(start), length) };
        to[..length].copy_from_slice(bytes);
        return;
    }
    for (index, d) in piece.packets.clone().zip(plan::descriptors(batch, piece, layout, needs)) {
        let bytes = &batch.packet(index)[..needs.of(d.length) as usize];
        to[d.offset as usize..d.offset as usize + bytes.len()].copy_from_slice(bytes);
    }
}
