//! Batches on their way through a device: what a session of any device's does with wgpu.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_cache::costs;
use portcullis_core::device::chunk::{ChunkLimits, PacketLayout};
use portcullis_core::device::offload::{
    self, DeviceTimes, KernelEffects, Launcher, OffloadSession, TransferBytes, VerdictColumns,
};
use portcullis_core::device::transfer_planner::{BatchMemory, MemoryReach, TransferCosts};
use portcullis_core::device::{CancelToken, DeviceError, Imported, LoadOptions};
use portcullis_core::map::{self, BIND_GROUP, Declaration};
use portcullis_core::packet::gather::StorePolicy;
use portcullis_core::packet::{Batch, Descriptor, Metadata, Span};
use portcullis_core::program::Program;
use wgpu::{BufferUsages, CommandEncoder, WriteOnly};

use crate::compile::{ARENA, DESCRIPTORS, LAUNCH, Launch, METADATA, VERDICTS};
use crate::device::Gpu;
use crate::memory::{Download, Imports, Upload};
use crate::probe::WgpuDevice;
use clock::Clock;
use pack::{Packer, Words, packed_size, words_size};
use pipeline::Loaded;
pub(crate) use pipeline::{SOFTWARE_NESTING, SOFTWARE_SIZE};

pub(crate) mod clock;
mod pack;
mod pipeline;
#[cfg(test)]
mod tests;

/// A program loaded on a device of wgpu's.
pub(crate) type WgpuSession = OffloadSession<Wgpu>;

/// Loads a program.
pub(crate) fn open(
    device: &WgpuDevice,
    program: &Arc<Program>,
    options: &LoadOptions,
) -> Result<WgpuSession, DeviceError> {
    let (gpu, loaded) = pipeline::load(device, program, &options.cancel)?;
    let (kind, effects) = (gpu.kind, loaded.effects);
    let maps = program.maps().iter().map(|map| zeros(&gpu, map)).collect::<Result<Vec<_>, _>>()?;
    gpu.check()?;
    let map_bindings = loaded.map_bindings(&gpu, &maps);
    // Where the host reads what the kernel has written nothing comes back, and the pass would only take time. A word has room
    // for a target as well: with one it is less than a byte and a word of its own.
    let packs = !effects.redirects && !gpu.direct;
    let packer = if packs { Some(Packer::new(&gpu)?) } else { None };
    let launcher = Wgpu {
        loaded,
        packer,
        group: device.group(),
        clocks: false,
        imports: Imports::default(),
        maps,
        map_bindings,
        gpu,
    };
    OffloadSession::new(launcher, kind, effects, program, options)
}

/// A map's memory, with nothing in it: wgpu clears what it gives.
fn zeros(gpu: &Gpu, map: &Declaration) -> Result<wgpu::Buffer, DeviceError> {
    let (bytes, limit) = (map::layout::Layout::of(map).words() as u64 * 4, gpu.binding_limit());
    if bytes > limit {
        return Err(DeviceError::Unsupported {
            device: gpu.id.clone(),
            reason: format!("its map `{}` takes {bytes} bytes, and a binding has at most {limit}", map.name),
        });
    }
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    Ok(gpu.buffer("map", bytes, usage, false))
}

/// A compiled filter, with what it takes to launch it.
pub(crate) struct Wgpu {
    loaded: Loaded,
    /// Makes bytes of verdicts; `None` where the host reads words.
    packer: Option<Packer>,
    /// Invocations in a work group.
    group: u32,
    /// Somebody asked for the device's clock, which there is.
    clocks: bool,
    imports: Imports,
    /// The words of the filter's maps.
    maps: Vec<wgpu::Buffer>,
    map_bindings: Option<wgpu::BindGroup>,
    // Last: what was made on it goes first.
    gpu: Gpu,
}

/// The buffers that a part of a batch needs.
pub(crate) struct Buffers {
    packets: Upload,
    descriptors: Upload,
    metadata: Upload,
    launch: wgpu::Buffer,
    verdicts: Download,
    /// The kernel's verdicts, where bytes are made of them.
    words: Words,
    /// The descriptors and packets as the filter left them.
    ends: Download,
    changed: Download,
    /// What is bound, from a part's first launch to its last.
    bindings: Option<wgpu::BindGroup>,
    /// Where somebody asked for the device's times.
    clock: Option<Clock>,
    /// What was written stays there, and whether kernels have it yet.
    kept: Option<Brought>,
}

/// Whether the device has what the host has written for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Brought {
    NotYet,
    Already,
}

type ChunkView<'a> = offload::ChunkView<'a, wgpu::Buffer>;

impl Wgpu {
    /// Whether the kernel may run over the batch's own memory.
    fn reads_in_place(&self) -> bool {
        self.loaded.effects.accesses_packets && !self.loaded.effects.writes_packets
    }

    /// Bytes that come back for so many verdicts.
    fn verdicts_size(&self, packets: u64) -> u64 {
        if self.packer.is_some() { packed_size(packets) } else { packets * 4 }
    }

    /// What a launch over some packets of a part is told, and its grid of work groups.
    fn grid(&self, part: &ChunkView<'_>, first: usize, count: usize) -> (Launch, (u32, u32)) {
        let groups = (count as u32).div_ceil(self.group);
        let width = groups.min(self.gpu.limits.max_compute_workgroups_per_dimension);
        let launch = Launch { base: part.base(first) as u32, count: count as u32, row: width * self.group };
        (launch, (width, groups.div_ceil(width)))
    }

    fn encode_launch(&self, encoder: &mut CommandEncoder, bindings: &wgpu::BindGroup, (x, y): (u32, u32)) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.loaded.pipeline);
        pass.set_bind_group(0, bindings, &[]);
        if let Some(maps) = &self.map_bindings {
            pass.set_bind_group(BIND_GROUP, maps, &[]);
        }
        pass.dispatch_workgroups(x, y, 1);
    }

    fn encode_uploads(&self, part: &ChunkView<'_>, buffers: &Buffers, encoder: &mut CommandEncoder) {
        let packets = part.packets() as u64;
        buffers.descriptors.encode(encoder, part.descriptor_count() as u64 * 8);
        if self.loaded.effects.metadata {
            buffers.metadata.encode(encoder, packets * size_of::<Metadata>() as u64);
        }
        if part.is_copied() {
            buffers.packets.encode(encoder, part.copy_size());
        }
    }

    /// Asks for the buffers that the host writes: after the last submission that uses them.
    fn give_back(&self, copied: bool, buffers: &Buffers) {
        buffers.descriptors.submitted();
        if self.loaded.effects.metadata {
            buffers.metadata.submitted();
        }
        if copied {
            buffers.packets.submitted();
        }
    }

    fn bindings(&self, part: &ChunkView<'_>, buffers: &Buffers) -> wgpu::BindGroup {
        let packets = part.packets() as u64;
        let entry = |binding, buffer, offset, size| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset,
                size: wgpu::BufferSize::new(size),
            }),
        };
        let (verdicts, size) = match &self.packer {
            Some(_) => (buffers.words.buffer(), words_size(packets)),
            None => (buffers.verdicts.buffer(), packets * 4),
        };
        let mut entries = vec![entry(VERDICTS, verdicts, 0, size), entry(LAUNCH, &buffers.launch, 0, Launch::SIZE)];
        if self.loaded.effects.accesses_packets {
            let (start, size) = (part.bytes().start, part.copy_size());
            entries.push(match part.import() {
                // A span has room behind its last byte, and is a multiple of a page in all.
                Some(span) => entry(ARENA, span, start, size.min(span.size() - start)),
                None => entry(ARENA, buffers.packets.buffer(), 0, size),
            });
        }
        if self.loaded.descriptors {
            entries.push(entry(DESCRIPTORS, buffers.descriptors.buffer(), 0, part.descriptor_count() as u64 * 8));
        }
        if self.loaded.effects.metadata {
            let size = packets * size_of::<Metadata>() as u64;
            entries.push(entry(METADATA, buffers.metadata.buffer(), 0, size));
        }
        self.loaded.bindings(&self.gpu, &entries)
    }
}

impl Launcher for Wgpu {
    type Buffers = Buffers;
    type Import = wgpu::Buffer;
    type Ticket = wgpu::SubmissionIndex;

    fn id(&self) -> &str {
        &self.gpu.id
    }

    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        if !self.reads_in_place() {
            return Ok(Imported::Copied);
        }
        let imported = self.imports.get(&self.gpu, span, true);
        self.gpu.check()?;
        Ok(if imported.is_some() { Imported::InPlace } else { Imported::Copied })
    }

    fn batch_memory(&mut self, batch: &Batch, asked: bool) -> BatchMemory<wgpu::Buffer> {
        let mut import = None;
        if self.reads_in_place() {
            let worth_it = asked || batch.span().allocated() >= Imports::WORTH_IT;
            import = self.imports.get(&self.gpu, batch.span(), worth_it);
        }
        match import {
            Some(import) => {
                BatchMemory { reach: MemoryReach::Shared, import: Some(import), ..BatchMemory::unreachable() }
            }
            None => BatchMemory::unreachable(),
        }
    }

    fn no_in_place_reason(&self) -> Option<String> {
        let reason = match () {
            () if self.loaded.effects.writes_packets => "the filter writes to packets, which wgpu does in copies alone",
            () if self.gpu.host.is_none() => "its driver lets it reach no memory of the host's",
            () => return None,
        };
        Some(reason.into())
    }

    fn transfer_costs(&self) -> TransferCosts {
        match self.gpu.direct {
            true => costs::host_costs().without_bus(),
            false => costs::device_costs(&self.gpu.about, || self.gpu.time_of_copy(costs::BUS_COPY_BYTES as u64)),
        }
    }

    /// A verdict with its target is a word.
    fn traffic(&self, part: &ChunkView<'_>, effects: KernelEffects) -> TransferBytes {
        let TransferBytes { to_device, to_host } =
            TransferBytes::of(part, KernelEffects { redirects: false, ..effects });
        let packets = part.packets() as u64;
        TransferBytes { to_device, to_host: to_host + self.verdicts_size(packets) - packets }
    }

    fn chunk_limits(&self, _: PacketLayout) -> ChunkLimits {
        // Its own, and that of its run where there are any.
        let descriptors = size_of::<Descriptor>() * if self.loaded.flows { 2 } else { 1 };
        let a_packet = if self.loaded.effects.metadata { size_of::<Metadata>() } else { descriptors };
        let packets = self.gpu.binding_limit() / a_packet as u64;
        ChunkLimits {
            binding: self.gpu.binding_limit(),
            alignment: self.gpu.limits.min_storage_buffer_offset_alignment.into(),
            // Far below what the grid can count, and enough to keep any device busy.
            packets: packets.min(1 << 24) as usize,
        }
    }

    fn new_buffers(&self) -> Buffers {
        let gpu = &self.gpu;
        Buffers {
            packets: Upload::read_back("packets", BufferUsages::STORAGE, self.loaded.effects.writes_packets),
            descriptors: Upload::new("descriptors", BufferUsages::STORAGE),
            metadata: Upload::new("metadata", BufferUsages::STORAGE),
            launch: gpu.buffer("launch", Launch::SIZE, BufferUsages::UNIFORM | BufferUsages::COPY_DST, false),
            verdicts: Download::of_kernel("verdicts"),
            words: Words::default(),
            ends: Download::of_copies("ends"),
            changed: Download::of_copies("changed packets"),
            bindings: None,
            clock: self.clocks.then(|| Clock::new(gpu)),
            kept: None,
        }
    }

    fn can_reuse_uploads(&self) -> bool {
        true
    }

    fn retain_upload(&mut self, buffers: &mut Buffers) {
        buffers.kept = Some(Brought::NotYet);
    }

    fn reuse_upload(&mut self, _: &ChunkView<'_>, _: KernelEffects, buffers: &mut Buffers) -> Result<(), DeviceError> {
        if let Some(clock) = &mut buffers.clock {
            clock.begin();
        }
        Ok(())
    }

    fn upload(
        &mut self,
        part: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let (gpu, packets) = (&self.gpu, part.packets() as u64);
        let limit = gpu.binding_limit();
        if let Some(clock) = &mut buffers.clock {
            clock.begin();
        }
        let descriptors = part.descriptor_count() as u64 * 8;
        buffers.descriptors.write(gpu, descriptors, limit, |to| write_each(part.descriptor_bytes(), to))?;
        if effects.metadata {
            let size = packets * size_of::<Metadata>() as u64;
            buffers.metadata.write(gpu, size, limit, |to| write_each(part.metadata_bytes(), to))?;
        }
        if part.is_copied() {
            // Elsewhere the device copies them out of the host's memory.
            let store = if gpu.direct { StorePolicy::Cached } else { StorePolicy::Streamed };
            buffers.packets.write(gpu, part.copy_size(), limit, |mut to| {
                // SAFETY: mapped memory, which has been written before if only by wgpu, and nobody else looks at now. To
                // be written alone is for the sake of speed, and nothing here reads it.
                part.copy_into(unsafe { to.as_raw_ptr().as_mut() }, store);
            })?;
        }
        buffers.verdicts.reserve(gpu, self.verdicts_size(packets), limit)?;
        if self.packer.is_some() {
            buffers.words.reserve(gpu, packets, limit)?;
        }
        if effects.writes_packets && !gpu.direct {
            buffers.changed.reserve(gpu, part.copy_size(), limit)?;
        }
        if effects.resizes_packets {
            buffers.ends.reserve(gpu, packets * 8, limit)?;
        }
        Ok(())
    }

    fn launch(
        &mut self,
        part: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
        first: usize,
        count: usize,
    ) -> Result<wgpu::SubmissionIndex, DeviceError> {
        let packets = part.packets() as u64;
        let bytes = part.bytes();
        let changed = if effects.writes_packets { bytes.end - bytes.start } else { 0 };
        let ends = first + count == part.lanes();
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut clock = buffers.clock.take();
        let mut look = |encoder: &mut CommandEncoder| clock.iter_mut().for_each(|clock| clock.look(encoder));
        if first == 0 {
            look(&mut encoder);
            if buffers.kept != Some(Brought::Already) {
                self.encode_uploads(part, buffers, &mut encoder);
            }
            buffers.bindings = Some(self.bindings(part, buffers));
        }
        let (launch, grid) = self.grid(part, first, count);
        self.gpu.queue.write_buffer(&buffers.launch, 0, &launch.bytes());
        look(&mut encoder);
        self.encode_launch(&mut encoder, buffers.bindings.as_ref().expect("made for the first launch"), grid);
        look(&mut encoder);
        if ends {
            if let Some(packer) = &self.packer {
                packer.encode(&self.gpu, &mut encoder, &buffers.words, buffers.verdicts.buffer(), packets);
            }
            buffers.verdicts.encode(&mut encoder, self.verdicts_size(packets));
            if changed > 0 && !self.gpu.direct {
                encoder.copy_buffer_to_buffer(buffers.packets.buffer(), 0, buffers.changed.buffer(), 0, changed);
            }
            if effects.resizes_packets {
                encoder.copy_buffer_to_buffer(buffers.descriptors.buffer(), 0, buffers.ends.buffer(), 0, packets * 8);
            }
            look(&mut encoder);
            clock.iter().for_each(|clock| clock.end(&mut encoder));
        }
        buffers.clock = clock;
        let submission = self.gpu.queue.submit([encoder.finish()]);
        self.gpu.check()?;
        if ends {
            buffers.verdicts.submitted(self.verdicts_size(packets));
            match changed > 0 {
                true if self.gpu.direct => buffers.packets.submitted_to_be_read(changed),
                true => buffers.changed.submitted(changed),
                false => {}
            }
            if effects.resizes_packets {
                buffers.ends.submitted(packets * 8);
            }
            if let Some(clock) = &mut buffers.clock {
                clock.submitted();
            }
            // What is read of it comes first.
            match &mut buffers.kept {
                Some(brought) => *brought = Brought::Already,
                None => self.give_back(part.is_copied() && !(self.gpu.direct && changed > 0), buffers),
            }
            buffers.bindings = None;
        }
        Ok(submission)
    }

    fn wait(&mut self, ticket: &wgpu::SubmissionIndex, cancel: &CancelToken) -> Result<(), DeviceError> {
        self.gpu.wait(Some(ticket), cancel)
    }

    fn enable_device_clock(&mut self) -> bool {
        self.clocks = self.gpu.device.features().contains(clock::NEEDED);
        self.clocks
    }

    fn device_times(&mut self, buffers: &mut Buffers) -> Option<DeviceTimes> {
        // What fails here fails again where it is told.
        buffers.clock.as_mut().and_then(|clock| clock.times(&self.gpu).ok().flatten())
    }

    fn read_verdicts(
        &mut self,
        packets: usize,
        buffers: &mut Buffers,
        columns: &mut VerdictColumns,
    ) -> Result<(), DeviceError> {
        let packed = self.packer.is_some();
        buffers.verdicts.read(&self.gpu, self.verdicts_size(packets as u64), |bytes| {
            if packed {
                return columns.append(bytes[..packets].iter().copied());
            }
            columns.append(offload::le_words(bytes).map(|word| word as u8));
            if self.loaded.effects.redirects {
                columns.append_targets(offload::le_words(bytes).map(|word| word >> 8));
            }
        })?;
        self.gpu.check()
    }

    fn read_descriptors(
        &mut self,
        packets: usize,
        buffers: &mut Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        buffers.ends.read(&self.gpu, packets as u64 * 8, read)
    }

    fn read_packets(
        &mut self,
        bytes: u64,
        buffers: &mut Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        if self.gpu.direct {
            buffers.packets.read(&self.gpu, bytes, read)
        } else {
            buffers.changed.read(&self.gpu, bytes, read)
        }
    }

    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        let bytes = words as u64 * 4;
        let mut copy = Download::of_copies("a map's words");
        copy.reserve(&self.gpu, bytes, self.gpu.binding_limit())?;
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&self.maps[map], at as u64 * 4, copy.buffer(), 0, bytes);
        let submission = self.gpu.queue.submit([encoder.finish()]);
        copy.submitted(bytes);
        self.gpu.wait(Some(&submission), &CancelToken::new())?;
        copy.read(&self.gpu, bytes, |bytes| offload::le_words(bytes).collect())
    }

    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        // It comes before what is submitted next.
        self.gpu.queue.write_buffer(&self.maps[map], at as u64 * 4, &bytes);
        self.gpu.check()
    }

    fn wait_idle(&mut self) {
        self.gpu.settle();
    }

    fn try_drain(&mut self, _: &[&wgpu::SubmissionIndex], _: bool) -> bool {
        self.gpu.settles()
    }

    fn keep_alive(&mut self, kept: impl Send + 'static) {
        self.gpu.outlive(kept);
    }
}

/// See [`crate::measure`].
pub(crate) fn kernel_only(
    session: &mut WgpuSession,
    batch: Batch,
    rounds: u32,
) -> Result<(Duration, Batch), DeviceError> {
    session.with_uploaded(batch, |device, parts| {
        let encoder = |gpu: &Gpu| gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let cancel = CancelToken::new();
        let mut uploads = encoder(&device.gpu);
        let mut launches = Vec::new();
        for (part, buffers) in &*parts {
            device.encode_uploads(part, buffers, &mut uploads);
            let (launch, grid) = device.grid(part, 0, part.lanes());
            device.gpu.queue.write_buffer(&buffers.launch, 0, &launch.bytes());
            launches.push((device.bindings(part, buffers), grid));
        }
        device.gpu.queue.submit([uploads.finish()]);
        device.gpu.wait(None, &cancel)?;
        let started = Instant::now();
        let mut runs = encoder(&device.gpu);
        for _ in 0..rounds {
            for (bindings, grid) in &launches {
                device.encode_launch(&mut runs, bindings, *grid);
            }
        }
        device.gpu.queue.submit([runs.finish()]);
        device.gpu.wait(None, &cancel)?;
        let time = started.elapsed() / rounds.max(1);
        for (part, buffers) in &*parts {
            device.give_back(part.is_copied(), buffers);
        }
        device.gpu.wait(None, &cancel)?;
        Ok(time)
    })
}

/// Writes items one behind the other.
fn write_each<const N: usize>(items: impl Iterator<Item = [u8; N]>, to: WriteOnly<'_, [u8]>) {
    let (chunks, _) = to.into_chunks::<N>();
    chunks.write_iter(items);
}
