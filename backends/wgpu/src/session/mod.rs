//! Sessions on a wgpu device: core's offloading session over a launcher that submits to a wgpu
//! queue.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_cache::costs;
use portcullis_core::device::chunk::{ChunkLimits, PacketLayout};
use portcullis_core::device::descriptor_format::DescriptorRule;
use portcullis_core::device::offload::{
    self, KernelEffects, Launcher, MAX_ORDERED_DESCRIPTOR_BYTES, NoVerdictMemory, OffloadSession, TransferBytes,
    VerdictColumns, WrittenDescriptors,
};
use portcullis_core::device::transfer_planner::{BatchMemory, MemoryReach, TransferCosts};
use portcullis_core::device::{CancelToken, DeviceError, Imported, LoadOptions, StageTimes};
use portcullis_core::map::BIND_GROUP;
use portcullis_core::packet::gather::StorePolicy;
use portcullis_core::packet::{Batch, Descriptor, Metadata, Span};
use portcullis_core::program::Program;
use wgpu::{BufferUsages, CommandEncoder};

use crate::compile::{self, ARENA, DESCRIPTORS, LAUNCH, Launch, LoadedProgram, METADATA, VERDICTS};
use crate::driver::gpu::Gpu;
use crate::driver::gpu::{GpuProperties, TIMESTAMP_FEATURES};
use crate::maps::Maps;
use crate::memory::{Binding, CachedBindGroup, Download, ImportCache, Upload};
use timestamps::StageTimer;
use verdict_packer::{VerdictPacker, VerdictWords, packed_size, words_size};

mod timestamps;
mod verdict_packer;

#[cfg(test)]
mod tests;

/// A program loaded on a wgpu device.
pub(crate) type WgpuSession = OffloadSession<WgpuLauncher>;

/// Opens a session.
pub(crate) fn open(
    device: &GpuProperties,
    program: &Arc<Program>,
    options: &LoadOptions,
) -> Result<WgpuSession, DeviceError> {
    let (gpu, loaded) = compile::load(device, program, &options.cancel)?;
    let (kind, effects) = (gpu.kind, loaded.effects);
    let maps = Maps::new(&gpu, program.maps())?;
    gpu.check()?;
    let map_bind_group = loaded.map_bind_group(&gpu, maps.buffers());
    // If the host reads the kernel's memory directly, packing would save no transfer. A word also
    // has room for a redirect target, and takes less than a byte and a word of its own.
    let packs = !effects.redirects && !gpu.shares_memory;
    let packer = if packs { Some(VerdictPacker::new(&gpu)?) } else { None };
    let launcher = WgpuLauncher {
        loaded,
        packer,
        group_size: device.group_size,
        times_stages: false,
        imports: ImportCache::default(),
        maps,
        map_bind_group,
        gpu,
    };
    OffloadSession::new(launcher, kind, effects, program, options)
}

/// Launches a compiled filter.
pub(crate) struct WgpuLauncher {
    loaded: LoadedProgram,
    /// Packs verdicts to bytes; `None` if the host reads words.
    packer: Option<VerdictPacker>,
    /// Invocations in a work group.
    group_size: u32,
    /// Whether to time the stages with the device's clock.
    times_stages: bool,
    imports: ImportCache,
    maps: Maps,
    map_bind_group: Option<wgpu::BindGroup>,
    // Last: whatever was made on it is dropped first.
    gpu: Gpu,
}

/// Device buffers of one chunk.
pub(crate) struct Buffers {
    packets: Upload,
    /// Descriptors, and behind them the parameters of a launch of the whole chunk: writing those by
    /// the queue would create a buffer for each launch.
    descriptors: Upload,
    metadata: Upload,
    launch: wgpu::Buffer,
    /// The parameters that the device finds there, after the commands submitted so far.
    launched: Option<Launch>,
    written: WrittenDescriptors,
    verdicts: Download,
    /// The kernel's verdicts, if they are packed.
    words: VerdictWords,
    /// Descriptors and packets as the filter left them.
    descriptors_back: Download,
    packets_back: Download,
    /// The kernel's bind group, and the packer's.
    bindings: CachedBindGroup,
    packer_bindings: CachedBindGroup,
    /// Present if stages are timed.
    timer: Option<StageTimer>,
    /// State of the upload, if it is retained for further launches.
    retained: Option<UploadState>,
}

/// Whether a retained upload has reached the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadState {
    Pending,
    Uploaded,
}

type ChunkView<'a> = offload::ChunkView<'a, wgpu::Buffer>;

impl WgpuLauncher {
    /// Whether the kernel may read the batch's own memory.
    fn reads_in_place(&self) -> bool {
        self.loaded.effects.accesses_packets && !self.loaded.effects.writes_packets
    }

    /// Size in bytes of the verdicts that are downloaded.
    fn verdicts_size(&self, packets: u64) -> u64 {
        if self.packer.is_some() { packed_size(packets) } else { packets * 4 }
    }

    /// Parameters of a launch over some packets of a chunk, and its grid of work groups.
    fn grid(&self, chunk: &ChunkView<'_>, rule: DescriptorRule, first: usize, count: usize) -> (Launch, (u32, u32)) {
        let groups = (count as u32).div_ceil(self.group_size);
        let width = groups.min(self.gpu.limits.max_compute_workgroups_per_dimension);
        let launch = Launch { base: chunk.base(first) as u32, count: count as u32, row: width * self.group_size, rule };
        (launch, (width, groups.div_ceil(width)))
    }

    fn encode_launch(&self, encoder: &mut CommandEncoder, bindings: &wgpu::BindGroup, (x, y): (u32, u32)) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.loaded.pipeline);
        pass.set_bind_group(0, bindings, &[]);
        if let Some(maps) = &self.map_bind_group {
            pass.set_bind_group(BIND_GROUP, maps, &[]);
        }
        pass.dispatch_workgroups(x, y, 1);
    }

    fn encode_uploads(&self, chunk: &ChunkView<'_>, buffers: &Buffers, encoder: &mut CommandEncoder) {
        let packets = chunk.packets() as u64;
        buffers.descriptors.encode_copy(encoder, table_size(buffers));
        if self.loaded.effects.metadata {
            buffers.metadata.encode_copy(encoder, packets * size_of::<Metadata>() as u64);
        }
        if chunk.is_copied() {
            buffers.packets.encode_copy(encoder, chunk.copy_size());
        }
    }

    /// Requests the uploads' buffers for the next batch, after the last submission that uses them.
    fn request_uploads(&self, copied: bool, buffers: &Buffers) {
        buffers.descriptors.request_write();
        if self.loaded.effects.metadata {
            buffers.metadata.request_write();
        }
        if copied {
            buffers.packets.request_write();
        }
    }

    /// The bind group of a chunk's launches.
    fn bind_group(&self, chunk: &ChunkView<'_>, buffers: &mut Buffers) -> wgpu::BindGroup {
        let (packets, table_size) = (chunk.packets() as u64, table_size(buffers));
        let bind = |index, buffer, offset, size| Binding { index, buffer, offset, size };
        let Buffers { packets: copied, descriptors, metadata, launch, verdicts, words, bindings, .. } = buffers;
        let verdicts = match &self.packer {
            Some(_) => bind(VERDICTS, words.buffer(), 0, words_size(packets)),
            None => bind(VERDICTS, verdicts.buffer(), 0, packets * 4),
        };
        let mut all = vec![verdicts, bind(LAUNCH, launch, 0, Launch::SIZE)];
        if self.loaded.effects.accesses_packets {
            let (start, size) = (chunk.bytes().start, chunk.copy_size());
            all.push(match chunk.import() {
                // A span is readable past its last byte, and its size is a multiple of a page.
                Some(span) => bind(ARENA, span, start, size.min(span.size() - start)),
                None => bind(ARENA, copied.buffer(), 0, size),
            });
        }
        if self.loaded.descriptors {
            // Without a table, a kernel may still read a word.
            all.push(bind(DESCRIPTORS, descriptors.buffer(), 0, table_size.max(size_of::<Descriptor>() as u64)));
        }
        if self.loaded.effects.metadata {
            all.push(bind(METADATA, metadata.buffer(), 0, packets * size_of::<Metadata>() as u64));
        }
        bindings.get_or_create(&self.gpu, self.loaded.layout(), &all).clone()
    }
}

impl Launcher for WgpuLauncher {
    type Buffers = Buffers;
    type Import = wgpu::Buffer;
    type Ticket = wgpu::SubmissionIndex;
    type VerdictMemory = NoVerdictMemory;

    fn id(&self) -> &str {
        &self.gpu.id
    }

    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        if !self.reads_in_place() {
            return Ok(Imported::Copied);
        }
        let imported = self.imports.get_or_import(&self.gpu, span, true);
        self.gpu.check()?;
        Ok(if imported.is_some() { Imported::InPlace } else { Imported::Copied })
    }

    fn batch_memory(&mut self, batch: &Batch, asked: bool) -> BatchMemory<wgpu::Buffer> {
        let mut import = None;
        if self.reads_in_place() {
            let worth_it = asked || batch.span().allocated() >= ImportCache::MIN_BYTES;
            import = self.imports.get_or_import(&self.gpu, batch.span(), worth_it);
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
            () if self.gpu.host_memory.is_none() => "its driver lets it reach no memory of the host's",
            () => return None,
        };
        Some(reason.into())
    }

    fn transfer_costs(&self, threads: NonZeroUsize) -> TransferCosts {
        match self.gpu.shares_memory {
            true => costs::host_costs(threads).without_bus(),
            false => {
                costs::device_costs(&self.gpu.identity, threads, || self.gpu.time_copy(costs::BUS_COPY_BYTES as u64))
            }
        }
    }

    /// A verdict and its target share a word.
    fn traffic(&self, chunk: &ChunkView<'_>, effects: KernelEffects, buffers: &Buffers) -> TransferBytes {
        let TransferBytes { to_device, to_host } =
            TransferBytes::of(chunk, KernelEffects { redirects: false, ..effects });
        let packets = chunk.packets() as u64;
        let has_table = effects.accesses_packets || chunk.is_ordered();
        let saved = if has_table { 8 * chunk.descriptor_count() as u64 - buffers.written.size as u64 } else { 0 };
        TransferBytes { to_device: to_device - saved, to_host: to_host + self.verdicts_size(packets) - packets }
    }

    fn chunk_limits(&self, _: PacketLayout) -> ChunkLimits {
        // A packet's own descriptor, and with flows that of its run, and its number.
        let descriptors = if self.loaded.flows { MAX_ORDERED_DESCRIPTOR_BYTES } else { size_of::<Descriptor>() };
        let a_packet = if self.loaded.effects.metadata { descriptors.max(size_of::<Metadata>()) } else { descriptors };
        let packets = (self.gpu.binding_limit() - Launch::SIZE) / a_packet as u64;
        ChunkLimits {
            binding: self.gpu.binding_limit(),
            alignment: self.gpu.limits.min_storage_buffer_offset_alignment.into(),
            // Far below the limit of the grid, and enough to fill any device.
            packets: packets.min(1 << 24) as usize,
        }
    }

    fn new_buffers(&self) -> Buffers {
        let gpu = &self.gpu;
        Buffers {
            packets: Upload::with_read_back("packets", BufferUsages::STORAGE, self.loaded.effects.writes_packets),
            descriptors: Upload::new("descriptors", BufferUsages::STORAGE),
            metadata: Upload::new("metadata", BufferUsages::STORAGE),
            launch: gpu.buffer("launch", Launch::SIZE, BufferUsages::UNIFORM | BufferUsages::COPY_DST, false),
            verdicts: Download::for_kernel("verdicts"),
            words: VerdictWords::default(),
            descriptors_back: Download::for_copies("ends"),
            packets_back: Download::for_copies("changed packets"),
            launched: None,
            written: WrittenDescriptors::default(),
            bindings: CachedBindGroup::default(),
            packer_bindings: CachedBindGroup::default(),
            timer: self.times_stages.then(|| StageTimer::new(gpu)),
            retained: None,
        }
    }

    fn can_reuse_uploads(&self) -> bool {
        true
    }

    fn retain_upload(&mut self, buffers: &mut Buffers) {
        buffers.retained = Some(UploadState::Pending);
    }

    fn reuse_upload(&mut self, _: &ChunkView<'_>, _: KernelEffects, buffers: &mut Buffers) -> Result<(), DeviceError> {
        if let Some(timer) = &mut buffers.timer {
            timer.reset();
        }
        Ok(())
    }

    fn upload(
        &mut self,
        chunk: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let (gpu, packets) = (&self.gpu, chunk.packets() as u64);
        let limit = gpu.binding_limit();
        if let Some(timer) = &mut buffers.timer {
            timer.reset();
        }
        let capacity = match self.loaded.takes_descriptor_rule {
            true => chunk.descriptor_capacity(effects).next_multiple_of(4),
            false => chunk.descriptor_count() * size_of::<Descriptor>(),
        };
        let written = &mut buffers.written;
        buffers.descriptors.write(gpu, capacity as u64 + Launch::SIZE, limit, |mut to| {
            // SAFETY: as for packets, below.
            let to = unsafe { to.as_raw_ptr().as_mut() };
            *written = match self.loaded.takes_descriptor_rule {
                true => chunk.write_rebased_descriptors(effects, to),
                false => chunk.write_descriptor_table(to),
            };
            let launch = self.grid(chunk, written.rule, 0, chunk.invocations()).0.bytes();
            to[written.size.next_multiple_of(4)..][..launch.len()].copy_from_slice(&launch);
        })?;
        if effects.metadata {
            let size = packets * size_of::<Metadata>() as u64;
            buffers.metadata.write(gpu, size, limit, |mut to| {
                // SAFETY: as for packets, below.
                chunk.write_metadata_table(unsafe { to.as_raw_ptr().as_mut() });
            })?;
        }
        if chunk.is_copied() {
            // Bypass the cache where the device will copy the bytes.
            let store = if gpu.shares_memory { StorePolicy::Cached } else { StorePolicy::Streamed };
            buffers.packets.write(gpu, chunk.copy_size(), limit, |mut to| {
                // SAFETY: mapped memory, which wgpu has initialised and nobody else accesses now.
                // It is write-only for the sake of speed, and nothing here reads it.
                chunk.copy_into(unsafe { to.as_raw_ptr().as_mut() }, store);
            })?;
        }
        buffers.verdicts.ensure_capacity(gpu, self.verdicts_size(packets), limit)?;
        if self.packer.is_some() {
            buffers.words.ensure_capacity(gpu, packets, limit)?;
        }
        if effects.writes_packets && !gpu.shares_memory {
            buffers.packets_back.ensure_capacity(gpu, chunk.copy_size(), limit)?;
        }
        if effects.resizes_packets {
            buffers.descriptors_back.ensure_capacity(gpu, packets * 8, limit)?;
        }
        Ok(())
    }

    fn launch(
        &mut self,
        chunk: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
        first: usize,
        count: usize,
    ) -> Result<wgpu::SubmissionIndex, DeviceError> {
        let packets = chunk.packets() as u64;
        let bytes = chunk.bytes();
        let changed = if effects.writes_packets { bytes.end - bytes.start } else { 0 };
        let is_last = first + count == chunk.invocations();
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut timer = buffers.timer.take();
        let mut timestamp = |encoder: &mut CommandEncoder| timer.iter_mut().for_each(|timer| timer.write(encoder));
        if first == 0 {
            timestamp(&mut encoder);
            if buffers.retained != Some(UploadState::Uploaded) {
                self.encode_uploads(chunk, buffers, &mut encoder);
            }
        }
        let bindings = self.bind_group(chunk, buffers);
        let (launch, grid) = self.grid(chunk, buffers.written.rule, first, count);
        if buffers.launched != Some(launch) {
            let is_uploaded = first == 0 && is_last && buffers.retained != Some(UploadState::Uploaded);
            match is_uploaded {
                true => {
                    let at = table_size(buffers);
                    buffers.descriptors.encode_copy_to(&mut encoder, at, &buffers.launch, Launch::SIZE);
                }
                false => self.gpu.write_buffer(&buffers.launch, 0, &launch.bytes()),
            }
            buffers.launched = Some(launch);
        }
        timestamp(&mut encoder);
        self.encode_launch(&mut encoder, &bindings, grid);
        timestamp(&mut encoder);
        if is_last {
            if let Some(packer) = &self.packer {
                let Buffers { words, verdicts, packer_bindings, .. } = buffers;
                let bindings = packer.bind_group(&self.gpu, packer_bindings, words, verdicts.buffer(), packets);
                packer.encode(&self.gpu, &mut encoder, bindings, packets);
            }
            buffers.verdicts.encode_copy(&mut encoder, self.verdicts_size(packets));
            if changed > 0 && !self.gpu.shares_memory {
                encoder.copy_buffer_to_buffer(buffers.packets.buffer(), 0, buffers.packets_back.buffer(), 0, changed);
            }
            if effects.resizes_packets {
                encoder.copy_buffer_to_buffer(
                    buffers.descriptors.buffer(),
                    0,
                    buffers.descriptors_back.buffer(),
                    0,
                    packets * 8,
                );
            }
            timestamp(&mut encoder);
            timer.iter().for_each(|timer| timer.resolve(&mut encoder));
        }
        buffers.timer = timer;
        let submission = self.gpu.submit(encoder);
        self.gpu.check()?;
        if is_last {
            buffers.verdicts.request_read(self.verdicts_size(packets));
            match changed > 0 {
                true if self.gpu.shares_memory => buffers.packets.request_read(changed),
                true => buffers.packets_back.request_read(changed),
                false => {}
            }
            if effects.resizes_packets {
                buffers.descriptors_back.request_read(packets * 8);
            }
            if let Some(timer) = &mut buffers.timer {
                timer.request();
            }
            // Mapped for reading first.
            match &mut buffers.retained {
                Some(state) => *state = UploadState::Uploaded,
                None => self.request_uploads(chunk.is_copied() && !(self.gpu.shares_memory && changed > 0), buffers),
            }
            if chunk.import().is_some() {
                // It would keep the batch's memory imported.
                buffers.bindings.clear();
            }
        }
        Ok(submission)
    }

    fn wait(&mut self, ticket: &wgpu::SubmissionIndex, cancel: &CancelToken) -> Result<(), DeviceError> {
        self.gpu.wait(Some(ticket), cancel)
    }

    fn enable_device_clock(&mut self) -> bool {
        self.times_stages = self.gpu.device.features().contains(TIMESTAMP_FEATURES);
        self.times_stages
    }

    fn device_times(&mut self, buffers: &mut Buffers) -> Option<StageTimes> {
        // An error here shows again where errors are reported.
        buffers.timer.as_mut().and_then(|timer| timer.times(&self.gpu).ok().flatten())
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
        buffers.descriptors_back.read(&self.gpu, packets as u64 * 8, read)
    }

    fn read_packets(
        &mut self,
        bytes: u64,
        buffers: &mut Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        if self.gpu.shares_memory {
            buffers.packets.read(&self.gpu, bytes, read)
        } else {
            buffers.packets_back.read(&self.gpu, bytes, read)
        }
    }

    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.maps.read(&self.gpu, map, at, words)
    }

    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.maps.write(&self.gpu, map, at, words)
    }

    fn wait_idle(&mut self) {
        self.gpu.wait_idle();
    }

    fn try_drain(&mut self, _: &[&wgpu::SubmissionIndex], _: bool) -> bool {
        self.gpu.try_drain()
    }

    fn keep_alive(&mut self, kept: impl Send + 'static) {
        self.gpu.keep_alive(kept);
    }
}

/// Times the kernel alone; see [`crate::measure`].
pub(crate) fn time_kernel(
    session: &mut WgpuSession,
    batch: Batch,
    rounds: u32,
) -> Result<(Duration, Batch), DeviceError> {
    session.with_uploaded(batch, |device, chunks| {
        let encoder = |gpu: &Gpu| gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let cancel = CancelToken::new();
        let mut uploads = encoder(&device.gpu);
        let mut launches = Vec::new();
        for (chunk, buffers) in &mut *chunks {
            device.encode_uploads(chunk, buffers, &mut uploads);
            buffers.launched = None;
            let (launch, grid) = device.grid(chunk, buffers.written.rule, 0, chunk.invocations());
            device.gpu.write_buffer(&buffers.launch, 0, &launch.bytes());
            launches.push((device.bind_group(chunk, buffers), grid));
        }
        device.gpu.submit(uploads);
        device.gpu.wait(None, &cancel)?;
        let started = Instant::now();
        let mut runs = encoder(&device.gpu);
        for _ in 0..rounds {
            for (bindings, grid) in &launches {
                device.encode_launch(&mut runs, bindings, *grid);
            }
        }
        device.gpu.submit(runs);
        device.gpu.wait(None, &cancel)?;
        let time = started.elapsed() / rounds.max(1);
        for (chunk, buffers) in &*chunks {
            device.request_uploads(chunk.is_copied(), buffers);
        }
        device.gpu.wait(None, &cancel)?;
        Ok(time)
    })
}

/// Size in bytes of the descriptors' table, in whole words.
fn table_size(buffers: &Buffers) -> u64 {
    buffers.written.size.next_multiple_of(4) as u64
}
