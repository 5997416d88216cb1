//! Batches on their way through a device.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::pace::Pace;
use portcullis_core::device::plan::{self, Bounds, Layout, Needs, PAST_END, Piece};
use portcullis_core::device::{
    DeviceError, Done, Imported, LoadOptions, Session, StageTimes, SubmitError, check_submission,
};
use portcullis_core::packet::{Batch, BatchError, Descriptor, Metadata, Span, Verdicts};
use portcullis_core::program::Program;
use wgpu::{BufferUsages, CommandEncoder, WriteOnly};

use crate::compile::{ARENA, DESCRIPTORS, LAUNCH, Launch, METADATA, VERDICTS, WORKGROUP};
use crate::device::Gpu;
use crate::memory::{Download, Imports, Upload};
use crate::probe::WgpuDevice;
use pipeline::Loaded;
pub(crate) use pipeline::SOFTWARE_SIZE;

mod pipeline;
#[cfg(test)]
mod tests;

/// Launches that a batch may have queued at the device: the next one starts without waiting for
/// the host, and cancelling waits for no more than these.
const QUEUED: usize = 2;

/// A program loaded on a device of wgpu's.
pub(crate) struct WgpuSession {
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
    gpu: Gpu,
}

/// The buffers that a piece of a batch needs.
struct Buffers {
    packets: Upload,
    descriptors: Upload,
    metadata: Upload,
    launch: wgpu::Buffer,
    verdicts: Download,
    /// The descriptors and packets as the filter left them.
    ends: Download,
    changed: Download,
}

/// A batch in flight.
struct Flight {
    batch: Batch,
    layout: Layout,
    /// The batch's memory, where the device reads it in place.
    import: Option<wgpu::Buffer>,
    pieces: Vec<Piece>,
    slot: Vec<Buffers>,
    /// The piece that is launched next, its bindings once it has been begun, and how many of its
    /// packets have been launched.
    next: usize,
    bindings: Option<wgpu::BindGroup>,
    launched: usize,
    running: VecDeque<Running>,
    times: StageTimes,
    started: Instant,
}

/// A launch on its way.
struct Running {
    submission: wgpu::SubmissionIndex,
    /// Number of packets, and whether there would have been more but for the pace.
    packets: usize,
    cut: bool,
}

impl WgpuSession {
    pub fn new(device: &WgpuDevice, program: &Arc<Program>, options: &LoadOptions) -> Result<WgpuSession, DeviceError> {
        let (gpu, loaded) = pipeline::load(device, program, &options.cancel)?;
        Ok(WgpuSession {
            program: program.clone(),
            options: LoadOptions { depth: options.depth.max(1), ..options.clone() },
            needs: Needs::of_program(program),
            pace: Pace::new(gpu.kind, program, loaded.size),
            loaded,
            imports: Imports::default(),
            idle: Vec::new(),
            flights: VecDeque::new(),
            finished: Instant::now(),
            gpu,
        })
    }

    /// Whether the kernel may run over the batch's own memory.
    fn reads_in_place(&self) -> bool {
        self.loaded.sees_packets && !self.loaded.writes_packets
    }

    fn bounds(&self) -> Bounds {
        let a_packet = if self.loaded.metadata { size_of::<Metadata>() } else { size_of::<Descriptor>() };
        let packets = self.gpu.binding_limit() / a_packet as u64;
        Bounds {
            binding: self.gpu.binding_limit(),
            alignment: self.gpu.limits.min_storage_buffer_offset_alignment.into(),
            // Far below what the grid can count, and enough to keep any device busy.
            packets: packets.min(1 << 24) as usize,
        }
    }

    /// Cuts a batch and brings it to the device; launches nothing yet.
    fn prepare(&mut self, batch: Batch, slot: Vec<Buffers>) -> Result<Flight, SubmitError> {
        let refuse = |batch, error| Err(SubmitError { batch: Box::new(batch), error });
        let started = Instant::now();
        let mut import = None;
        if self.reads_in_place() && !batch.is_empty() {
            let worth_it = batch.span().allocated() >= Imports::WORTH_IT;
            import = self.imports.get(&self.gpu, batch.span(), worth_it);
        }
        let layout = match () {
            () if !self.loaded.sees_packets => Layout::Unseen,
            () if import.is_some() => Layout::InPlace,
            () if plan::pays_to_pack(&batch, self.needs) => Layout::Packed,
            () => Layout::Copied,
        };
        let pieces = match plan::cut(&batch, layout, self.needs, self.bounds()) {
            Ok(pieces) => pieces,
            Err(large) => {
                let limit = self.gpu.binding_limit();
                let text = format!(
                    "packet {} has {} bytes, and {} takes {limit} at a time, its own needs included",
                    large.index, large.length, self.gpu.id
                );
                self.idle.push(slot);
                return refuse(batch, DeviceError::Refused(text));
            }
        };
        let mut flight = Flight {
            batch,
            layout,
            import,
            pieces,
            slot,
            next: 0,
            bindings: None,
            launched: 0,
            running: VecDeque::new(),
            times: StageTimes::default(),
            started,
        };
        match self.upload(&mut flight) {
            Ok(()) => {
                flight.times.upload = started.elapsed();
                flight.started = Instant::now();
                Ok(flight)
            }
            Err(error) => refuse(flight.batch, error),
        }
    }

    /// Writes what the kernel reads.
    fn upload(&self, flight: &mut Flight) -> Result<(), DeviceError> {
        let (gpu, needs, layout, batch) = (&self.gpu, self.needs, flight.layout, &flight.batch);
        let limit = gpu.binding_limit();
        while flight.slot.len() < flight.pieces.len() {
            flight.slot.push(Buffers::new(gpu));
        }
        for (piece, buffers) in flight.pieces.iter().zip(&mut flight.slot) {
            let packets = piece.packets.len() as u64;
            let seen = plan::descriptors(batch, piece, layout, needs);
            buffers.descriptors.write(gpu, packets * 8, limit, |to| {
                let (chunks, _) = to.into_chunks::<8>();
                chunks.write_iter(seen.map(|d| (u64::from(d.offset) | u64::from(d.length) << 32).to_le_bytes()));
            })?;
            if self.loaded.metadata {
                let size = size_of::<Metadata>() as u64;
                buffers.metadata.write(gpu, packets * size, limit, |to| {
                    let (chunks, _) = to.into_chunks::<{ size_of::<Metadata>() }>();
                    chunks.write_iter(piece.packets.clone().map(|i| metadata_bytes(&batch.metadata_of(i))));
                })?;
            }
            if matches!(layout, Layout::Copied | Layout::Packed) {
                let bytes = piece.bytes.end - piece.bytes.start + PAST_END;
                buffers.packets.write(gpu, bytes, limit, |to| copy_packets(batch, piece, layout, needs, to))?;
            }
            buffers.verdicts.reserve(gpu, packets * 4, limit)?;
            if self.loaded.writes_packets {
                buffers.changed.reserve(gpu, piece.bytes.end - piece.bytes.start + PAST_END, limit)?;
            }
            if self.loaded.moves_ends {
                buffers.ends.reserve(gpu, packets * 8, limit)?;
            }
        }
        Ok(())
    }

    /// Queues the next launch of a batch; there is one.
    fn launch(&self, flight: &mut Flight) -> Result<(), DeviceError> {
        let (piece, buffers) = (&flight.pieces[flight.next], &flight.slot[flight.next]);
        let total = piece.packets.len();
        let packets = total as u64;
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let begins = flight.bindings.is_none();
        if begins {
            self.encode_uploads(flight.layout, piece, buffers, &mut encoder);
        }
        let bindings = flight.bindings.get_or_insert_with(|| {
            self.loaded.bindings(&self.gpu, &self.entries(flight.import.as_ref(), piece, buffers))
        });
        let count = (total - flight.launched).min(self.pace.packets());
        let (launch, grid) = self.grid(flight.launched, count);
        self.gpu.queue.write_buffer(&buffers.launch, 0, &launch.bytes());
        self.encode_launch(&mut encoder, bindings, grid);
        flight.launched += count;
        let ends = flight.launched == total;
        let changed = piece.bytes.end - piece.bytes.start;
        if ends {
            buffers.verdicts.encode(&mut encoder, packets * 4);
            if self.loaded.writes_packets && changed > 0 {
                encoder.copy_buffer_to_buffer(buffers.packets.buffer(), 0, buffers.changed.buffer(), 0, changed);
            }
            if self.loaded.moves_ends {
                encoder.copy_buffer_to_buffer(buffers.descriptors.buffer(), 0, buffers.ends.buffer(), 0, packets * 8);
            }
        }
        let submission = self.gpu.queue.submit([encoder.finish()]);
        self.gpu.check()?;
        if ends {
            buffers.verdicts.submitted(packets * 4);
            if self.loaded.writes_packets && changed > 0 {
                buffers.changed.submitted(changed);
            }
            if self.loaded.moves_ends {
                buffers.ends.submitted(packets * 8);
            }
            self.give_back(flight.layout, buffers);
            flight.next += 1;
            flight.launched = 0;
            flight.bindings = None;
        }
        flight.running.push_back(Running { submission, packets: count, cut: !(begins && ends) });
        Ok(())
    }

    /// What a launch over some packets of a piece is told, and its grid of work groups.
    fn grid(&self, first: usize, count: usize) -> (Launch, (u32, u32)) {
        let groups = (count as u32).div_ceil(WORKGROUP);
        let width = groups.min(self.gpu.limits.max_compute_workgroups_per_dimension);
        let launch = Launch { base: first as u32, count: count as u32, row: width * WORKGROUP };
        (launch, (width, groups.div_ceil(width)))
    }

    fn encode_launch(&self, encoder: &mut CommandEncoder, bindings: &wgpu::BindGroup, (x, y): (u32, u32)) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.loaded.pipeline);
        pass.set_bind_group(0, bindings, &[]);
        pass.dispatch_workgroups(x, y, 1);
    }

    /// Asks for the buffers that the host writes: after the last submission that uses them.
    fn give_back(&self, layout: Layout, buffers: &Buffers) {
        buffers.descriptors.submitted();
        if self.loaded.metadata {
            buffers.metadata.submitted();
        }
        if matches!(layout, Layout::Copied | Layout::Packed) {
            buffers.packets.submitted();
        }
    }

    fn encode_uploads(&self, layout: Layout, piece: &Piece, buffers: &Buffers, encoder: &mut CommandEncoder) {
        let packets = piece.packets.len() as u64;
        buffers.descriptors.encode(encoder, packets * 8);
        if self.loaded.metadata {
            buffers.metadata.encode(encoder, packets * size_of::<Metadata>() as u64);
        }
        if matches!(layout, Layout::Copied | Layout::Packed) {
            buffers.packets.encode(encoder, piece.bytes.end - piece.bytes.start + PAST_END);
        }
    }

    fn entries<'a>(
        &self,
        import: Option<&'a wgpu::Buffer>,
        piece: &Piece,
        buffers: &'a Buffers,
    ) -> Vec<wgpu::BindGroupEntry<'a>> {
        let packets = piece.packets.len() as u64;
        let entry = |binding, buffer, offset, size| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset,
                size: wgpu::BufferSize::new(size),
            }),
        };
        let mut entries = vec![
            entry(VERDICTS, buffers.verdicts.buffer(), 0, packets * 4),
            entry(LAUNCH, &buffers.launch, 0, Launch::SIZE),
        ];
        if self.loaded.sees_packets {
            let size = piece.bytes.end - piece.bytes.start + PAST_END;
            entries.push(match import {
                // A span has room behind its last byte, and is a multiple of a page in all.
                Some(span) => entry(ARENA, span, piece.bytes.start, size.min(span.size() - piece.bytes.start)),
                None => entry(ARENA, buffers.packets.buffer(), 0, size),
            });
        }
        if self.loaded.descriptors {
            entries.push(entry(DESCRIPTORS, buffers.descriptors.buffer(), 0, packets * 8));
        }
        if self.loaded.metadata {
            let size = packets * size_of::<Metadata>() as u64;
            entries.push(entry(METADATA, buffers.metadata.buffer(), 0, size));
        }
        entries
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
            self.advance(flight)?;
            let Some(running) = flight.running.pop_front() else { break };
            let began = self.finished.max(flight.started);
            self.gpu.wait(Some(&running.submission), &self.options.cancel)?;
            self.finished = Instant::now();
            let took = self.finished.saturating_duration_since(began);
            flight.times.kernel += took;
            flight.started = self.finished;
            if running.cut {
                self.pace.took(running.packets, took);
            }
        }
        Ok(())
    }

    /// Lets go of all batches in flight. Their memory goes back to its owner, who may write to it,
    /// so not before the device is done with it: usually in a fraction of a second, but a driver
    /// that compiles can take minutes, and nobody waits for that here.
    fn give_up(&mut self) {
        let flights = std::mem::take(&mut self.flights);
        if !self.gpu.settles() {
            self.gpu.outlive(flights);
        }
    }

    /// Reads what came back.
    fn download(&self, flight: &mut Flight) -> Result<Verdicts, DeviceError> {
        let count = flight.batch.len();
        let redirects = self.program.facts().redirects;
        let mut actions = Vec::with_capacity(count);
        let mut targets = Vec::with_capacity(if redirects { count } else { 0 });
        let mut ends = Vec::with_capacity(if self.loaded.moves_ends { count } else { 0 });
        for (piece, buffers) in flight.pieces.iter().zip(&flight.slot) {
            let packets = piece.packets.len() as u64;
            buffers.verdicts.read(&self.gpu, packets * 4, |bytes| {
                let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
                actions.extend(words.clone().map(|word| word as u8));
                if redirects {
                    targets.extend(words.map(|word| word >> 8));
                }
            })?;
            if self.loaded.moves_ends {
                let seen = plan::descriptors(&flight.batch, piece, flight.layout, self.needs);
                let before = &flight.batch.descriptors()[piece.packets.clone()];
                buffers.ends.read(&self.gpu, packets * 8, |bytes| {
                    let after = bytes.chunks_exact(8).map(|d| {
                        let word = |at: usize| u32::from_le_bytes([d[at], d[at + 1], d[at + 2], d[at + 3]]);
                        Descriptor { offset: word(0), length: word(4) }
                    });
                    ends.extend(plan::ends(before, seen, after));
                })?;
            }
        }
        self.write_back(flight, ends)?;
        Ok(Verdicts::new(actions, targets))
    }

    /// See [`crate::measure`].
    pub fn kernel_only(&mut self, batch: Batch, rounds: u32) -> Result<(Duration, Batch), DeviceError> {
        let slot = self.idle.pop().unwrap_or_default();
        let flight = self.prepare(batch, slot).map_err(|refused| refused.error)?;
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut launches = Vec::new();
        for (piece, buffers) in flight.pieces.iter().zip(&flight.slot) {
            self.encode_uploads(flight.layout, piece, buffers, &mut encoder);
            let (launch, grid) = self.grid(0, piece.packets.len());
            self.gpu.queue.write_buffer(&buffers.launch, 0, &launch.bytes());
            let entries = self.entries(flight.import.as_ref(), piece, buffers);
            launches.push((self.loaded.bindings(&self.gpu, &entries), grid));
        }
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.wait(None, &self.options.cancel)?;
        let started = Instant::now();
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for _ in 0..rounds {
            for (bindings, grid) in &launches {
                self.encode_launch(&mut encoder, bindings, *grid);
            }
        }
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.wait(None, &self.options.cancel)?;
        let time = started.elapsed() / rounds.max(1);
        for buffers in &flight.slot[..flight.pieces.len()] {
            self.give_back(flight.layout, buffers);
        }
        self.gpu.wait(None, &self.options.cancel)?;
        self.idle.push(flight.slot);
        Ok((time, flight.batch))
    }

    /// Brings changed packets into the batch; `ends` is where they lie now, or empty.
    fn write_back(&self, flight: &mut Flight, ends: Vec<Descriptor>) -> Result<(), DeviceError> {
        let broken = |error: BatchError| DeviceError::Broken { device: self.gpu.id.clone(), error };
        let window = if self.loaded.moves_ends { u32::MAX } else { self.program.facts().writes.reach() };
        if !self.loaded.writes_packets && !self.loaded.moves_ends {
            return Ok(());
        }
        // Where each packet lay in the kernel's arena before it moved.
        let seen: Vec<Vec<Descriptor>> = flight
            .pieces
            .iter()
            .map(|piece| plan::descriptors(&flight.batch, piece, flight.layout, self.needs).collect())
            .collect();
        let before = flight.batch.descriptors().to_vec();
        if self.loaded.moves_ends {
            // From here on the batch knows that every packet lies within its room, and so within
            // its piece.
            flight.batch.resize(ends).map_err(broken)?;
        }
        if !self.loaded.writes_packets {
            return Ok(());
        }
        for ((piece, buffers), seen) in flight.pieces.iter().zip(&flight.slot).zip(seen) {
            let bytes = piece.bytes.end - piece.bytes.start;
            if bytes == 0 {
                continue;
            }
            let before = &before[piece.packets.clone()];
            buffers.changed.read(&self.gpu, bytes, |from| {
                plan::write_back(&mut flight.batch, piece, before, &seen, window, from);
            })?;
        }
        Ok(())
    }
}

impl Session for WgpuSession {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        if !self.reads_in_place() {
            return Ok(Imported::Copied);
        }
        let imported = self.imports.get(&self.gpu, span, true);
        self.gpu.check()?;
        Ok(if imported.is_some() { Imported::InPlace } else { Imported::Copied })
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if let Err(error) = check_submission(&self.program, &batch, self.flights.len(), self.options.depth) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        let slot = self.idle.pop().unwrap_or_default();
        let mut flight = self.prepare(batch, slot)?;
        match self.advance(&mut flight) {
            // One that the device has begun cannot be given back: completing it tells of the end.
            Err(DeviceError::Cancelled) if !flight.running.is_empty() => {}
            Err(error) => {
                // Nothing should touch the batch's memory any more when it is given back.
                let _ = self.gpu.wait(None, &self.options.cancel);
                return Err(SubmitError { batch: Box::new(flight.batch), error });
            }
            Ok(()) => {}
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
        self.gpu.check()?;
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

impl Drop for WgpuSession {
    fn drop(&mut self) {
        if !self.flights.is_empty() {
            let _ = self.gpu.wait(None, &self.options.cancel);
            self.give_up();
        }
    }
}

impl Buffers {
    fn new(gpu: &Gpu) -> Buffers {
        Buffers {
            packets: Upload::new("packets", BufferUsages::STORAGE),
            descriptors: Upload::new("descriptors", BufferUsages::STORAGE),
            metadata: Upload::new("metadata", BufferUsages::STORAGE),
            launch: gpu.buffer("launch", Launch::SIZE, BufferUsages::UNIFORM | BufferUsages::COPY_DST, false),
            verdicts: Download::of_kernel("verdicts"),
            ends: Download::of_copies("ends"),
            changed: Download::of_copies("changed packets"),
        }
    }
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
fn copy_packets(batch: &Batch, piece: &Piece, layout: Layout, needs: Needs, mut to: WriteOnly<'_, [u8]>) {
    if layout == Layout::Copied {
        let (start, length) = (piece.bytes.start as usize, (piece.bytes.end - piece.bytes.start) as usize);
        // SAFETY: the words from the batch's first packet to its last, all in the span. Between
        // them lies nothing of other batches (a carver hands out an arena from its start to its
        // end, and no two packets share a word), so nobody writes there while we hold the batch.
        let bytes = unsafe { std::slice::from_raw_parts(batch.span().as_ptr().add(start), length) };
        to.slice(..length).copy_from_slice(bytes);
        return;
    }
    for (index, d) in piece.packets.clone().zip(plan::descriptors(batch, piece, layout, needs)) {
        let bytes = &batch.packet(index)[..needs.of(d.length) as usize];
        to.slice(d.offset as usize..d.offset as usize + bytes.len()).copy_from_slice(bytes);
    }
}
