//! Sessions on an OpenCL device: core's offloading session over a launcher for in-order queues.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ocl_core::{ArgVal, Event};
use portcullis_c_writer::Argument;
use portcullis_cache::costs;
use portcullis_core::device::chunk::{ChunkLimits, PacketLayout};
use portcullis_core::device::descriptor_format::DescriptorRule;
use portcullis_core::device::launch_budget::LaunchBudget;
use portcullis_core::device::metadata_format::MetadataRule;
use portcullis_core::device::offload::{
    self, DRAIN_TIMEOUT, KernelEffects, Launcher, MAX_ORDERED_DESCRIPTOR_BYTES, OffloadSession, TransferBytes,
    VerdictColumns, VerdictMemory, VerdictPool, WrittenDescriptors,
};
use portcullis_core::device::transfer_planner::{BatchMemory, MemoryReach, TransferCosts};
use portcullis_core::device::{CancelToken, DeviceError, DeviceKind, Imported, LoadOptions, StageTimes};
use portcullis_core::packet::gather::StorePolicy;
use portcullis_core::packet::{Batch, Descriptor, Metadata, Span};
use portcullis_core::program::Program;

use crate::compile::{self, LoadedProgram};
use crate::driver::completion::{CompletionPool, PendingCommand};
use crate::driver::gpu::Gpu;
use crate::driver::gpu::GpuProperties;
use crate::driver::signals::SignalHandlers;
use crate::maps::Maps;
use crate::memory::{Download, ImportCache, ImportedSpan, LentVerdicts, Upload, VerdictColumn};

#[cfg(test)]
mod tests;

/// Packets of a group on a CPU if launches are split by a time budget: the packets of such a filter
/// take long, and every core should get some of a small launch.
const BUDGETED_GROUP_PACKETS: usize = 8;

/// A program loaded on an OpenCL device.
pub(crate) type OpenClSession = OffloadSession<OpenClLauncher>;

/// Opens a session.
pub(crate) fn open(
    device: &GpuProperties,
    program: &Arc<Program>,
    options: &LoadOptions,
) -> Result<OpenClSession, DeviceError> {
    let (gpu, loaded) = compile::load(device, program, options)?;
    open_loaded(gpu, loaded, program, options)
}

/// Opens a session with a hand-written kernel; see [`crate::measure`].
pub(crate) fn open_source(
    device: &GpuProperties,
    program: &Arc<Program>,
    text: &str,
    entry: &str,
) -> Result<OpenClSession, DeviceError> {
    let (gpu, loaded) = compile::load_source(device, program, text, entry)?;
    open_loaded(gpu, loaded, program, &LoadOptions::default())
}

fn open_loaded(
    gpu: Arc<Gpu>,
    mut loaded: LoadedProgram,
    program: &Arc<Program>,
    options: &LoadOptions,
) -> Result<OpenClSession, DeviceError> {
    let (kind, effects) = (gpu.kind, loaded.effects);
    let is_paced = kind == DeviceKind::Cpu && !LaunchBudget::new(kind, program, effects.size, 0).is_unlimited();
    if is_paced {
        loaded.group_size = (BUDGETED_GROUP_PACKETS / loaded.packets_per_item).max(1);
    }
    loaded.group_size = gpu.group_size.unwrap_or(loaded.group_size);
    let maps = Maps::new(&gpu, program.maps())?;
    let (imports, verdicts, completions) = Default::default();
    let launcher = OpenClLauncher {
        loaded,
        imports,
        verdicts,
        completions,
        maps,
        signals: None,
        launches_to_watch: 8,
        has_warned: false,
        gpu,
    };
    OffloadSession::new(launcher, kind, effects, program, options)
}

/// Launches a compiled filter.
pub(crate) struct OpenClLauncher {
    loaded: LoadedProgram,
    imports: ImportCache,
    verdicts: VerdictPool<LentVerdicts>,
    completions: CompletionPool,
    maps: Maps,
    /// The signal handlers before the first launch, and the number of launches for which they are
    /// still restored: drivers may compile at the first launches. Later changes are the program's
    /// own.
    signals: Option<SignalHandlers>,
    launches_to_watch: u32,
    /// Whether the user was told that the driver pins no memory.
    has_warned: bool,
    // Last: whatever was made on it is dropped first.
    gpu: Arc<Gpu>,
}

/// Device buffers of one chunk.
#[derive(Default)]
pub(crate) struct Buffers {
    packets: Upload,
    descriptors: Upload,
    /// How the kernel finds descriptors, if by a rule.
    written: WrittenDescriptors,
    metadata: Upload,
    /// How the kernel finds metadata, if by a rule.
    metadata_rule: MetadataRule,
    /// Number of bytes copied to the device.
    uploaded_bytes: u64,
    actions: VerdictColumn<u8>,
    targets: VerdictColumn<u32>,
    /// Descriptors and packets as the filter left them.
    descriptors_back: Download,
    packets_back: Download,
    /// The last command that the kernel has to wait for.
    uploaded: Option<Event>,
    /// Events of the chunk's commands, if their durations are wanted.
    stage_events: StageEvents,
}

/// Events of a chunk's commands, by stage.
#[derive(Default)]
struct StageEvents {
    uploads: Vec<Event>,
    kernels: Vec<Event>,
    downloads: Vec<Event>,
}

type ChunkView<'a> = offload::ChunkView<'a, Arc<ImportedSpan>, LentVerdicts>;

impl Buffers {
    /// Makes room for a chunk's verdicts.
    fn reserve_verdicts(
        &mut self,
        gpu: &Gpu,
        chunk: &ChunkView<'_>,
        effects: KernelEffects,
    ) -> Result<(), DeviceError> {
        let (packets, first) = (chunk.packets(), chunk.first_packet());
        let (actions, targets) = chunk.verdict_memory().map(|memory| (memory.actions(), memory.targets())).unzip();
        // SAFETY: the memory has room for the batch's packets, of which these are a part, and
        // belongs to the session until the chunk's last command has completed and `release` was
        // called.
        unsafe {
            self.actions.ensure_capacity(gpu, packets, actions.map(|column| column.add(first)))?;
            if effects.redirects {
                self.targets.ensure_capacity(gpu, packets, targets.flatten().map(|column| column.add(first)))?;
            }
        }
        Ok(())
    }
}

impl OpenClLauncher {
    /// Whether kernels read the batch's own descriptors.
    fn shares_descriptors(&self, chunk: &ChunkView<'_>, effects: KernelEffects) -> bool {
        self.gpu.shares_memory && !chunk.is_copied() && !effects.resizes_packets && !chunk.is_ordered()
    }

    /// Sets the kernel's arguments for a launch.
    fn set_arguments(
        &self,
        chunk: &ChunkView<'_>,
        buffers: &Buffers,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        let import = chunk.import().map(|import| import.memory());
        let (base, count) = (chunk.base(first) as u32, count as u32);
        for (index, argument) in self.loaded.arguments.iter().enumerate() {
            let value = match argument {
                Argument::Arena { .. } => ArgVal::mem(import.unwrap_or_else(|| buffers.packets.memory())),
                Argument::Descriptors { .. } => buffers.descriptors.argument(),
                Argument::DescriptorRule => {
                    let rule = (&raw const buffers.written.rule).cast();
                    // SAFETY: plain data, as the kernel declares it, that outlives the call below.
                    unsafe { ArgVal::from_raw(size_of::<DescriptorRule>(), rule, false) }
                }
                Argument::Metadata => buffers.metadata.argument(),
                Argument::Verdicts => ArgVal::mem(buffers.actions.memory()),
                Argument::Targets => ArgVal::mem(buffers.targets.memory()),
                Argument::Map(number) => ArgVal::mem(self.maps.memory(*number as usize)),
                Argument::Base => ArgVal::scalar(&base),
                Argument::Count => ArgVal::scalar(&count),
                Argument::MetadataRule(_) => {
                    let rule = (&raw const buffers.metadata_rule).cast();
                    // SAFETY: as above.
                    unsafe { ArgVal::from_raw(size_of::<MetadataRule>(), rule, false) }
                }
            };
            ocl_core::set_kernel_arg(&self.loaded.kernel, index as u32, value)
                .map_err(|error| self.gpu.error(format_args!("setting argument {index} failed"), &error))?;
        }
        Ok(())
    }

    /// Queues `count` invocations of the kernel.
    fn enqueue_kernel(&self, count: usize, after: Option<&Event>) -> Result<Event, DeviceError> {
        let group = self.loaded.group_size;
        let size = [count.div_ceil(self.loaded.packets_per_item).next_multiple_of(group), 1, 1];
        let mut event = Event::null();
        let kernel = &self.loaded.kernel;
        // SAFETY: the kernel stays within its buffers whatever the filter does: invocations from
        // number `count` on do nothing, and there are descriptors, metadata and verdicts for the
        // packets of those before. It accesses packets within their bytes and rooms, which lie in
        // the buffer, and the `OVERREAD_BYTES` bytes after (`BatchCutter::cut_batch`,
        // `chunk::split_batch`). Indices into the filter's own arrays are clamped. The batch, to
        // which this memory belongs, is the session's until the kernel has completed (`Launcher`).
        let queued = unsafe {
            let (queue, group) = (&self.gpu.kernels, Some([group, 1, 1]));
            ocl_core::enqueue_kernel(queue, kernel, 1, None, &size, group, after, Some(&mut event))
        };
        queued.map_err(|error| self.gpu.error("launching the filter failed", &error))?;
        Ok(event)
    }

    /// Queues downloading a chunk's results after an event, and returns the event of the last
    /// download.
    fn enqueue_downloads(
        &self,
        chunk: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
        after: Event,
    ) -> Result<Event, DeviceError> {
        let (gpu, packets) = (&*self.gpu, chunk.packets());
        let mut event = after;
        let stage_events = &mut buffers.stage_events.downloads;
        let mut record = |event: &Event| {
            if gpu.profiles {
                stage_events.push(event.clone());
            }
        };
        if effects.resizes_packets {
            event = buffers.descriptors_back.enqueue(gpu, buffers.descriptors.memory(), packets as u64 * 8, &event)?;
            record(&event);
        }
        let bytes = chunk.bytes();
        match chunk.import().zip(chunk.extent()) {
            _ if !effects.writes_packets => {}
            Some((import, extent)) => {
                let mut last = Event::null();
                import.make_visible_to_host(gpu, &extent, &mut last)?;
                event = last;
                record(&event);
            }
            None if chunk.is_copied() && !bytes.is_empty() => {
                let changed = bytes.end - bytes.start;
                event = buffers.packets_back.enqueue(gpu, buffers.packets.memory(), changed, &event)?;
                record(&event);
            }
            None => {}
        }
        if effects.redirects {
            event = buffers.targets.enqueue_download(gpu, packets, &event)?;
            record(&event);
        }
        let event = buffers.actions.enqueue_download(gpu, packets, &event)?;
        record(&event);
        Ok(event)
    }
}

impl Launcher for OpenClLauncher {
    type Buffers = Buffers;
    type Import = Arc<ImportedSpan>;
    type Ticket = PendingCommand;
    type VerdictMemory = LentVerdicts;

    fn id(&self) -> &str {
        &self.gpu.id
    }

    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        let import = self.imports.get_or_import(&self.gpu, span, self.loaded.effects.writes_packets);
        Ok(if import.is_some() { Imported::InPlace } else { Imported::Copied })
    }

    fn batch_memory(&mut self, batch: &Batch, _: bool) -> BatchMemory<Arc<ImportedSpan>> {
        match self.imports.get_or_import(&self.gpu, batch.span(), self.loaded.effects.writes_packets) {
            Some(import) => {
                BatchMemory { reach: MemoryReach::Shared, import: Some(import), ..BatchMemory::unreachable() }
            }
            None => BatchMemory::unreachable(),
        }
    }

    fn no_in_place_reason(&self) -> Option<String> {
        (!self.gpu.shares_memory).then(|| "its memory is not the host's, and OpenCL has no way to reach that".into())
    }

    fn transfer_costs(&self, threads: NonZeroUsize) -> TransferCosts {
        if self.gpu.shares_memory {
            return costs::host_costs(threads).without_bus();
        }
        let mut upload = Upload::default();
        costs::device_costs(&self.gpu.identity, threads, || {
            let began = Instant::now();
            let copied = upload.write(&self.gpu, costs::BUS_COPY_BYTES as u64, |all| all.len()).ok()??;
            self.gpu.flush(&self.gpu.uploads).ok()?;
            PendingCommand::new(&self.gpu, copied, &mut CompletionPool::default())
                .ok()?
                .wait(&self.gpu, &CancelToken::new())
                .ok()?;
            Some(began.elapsed())
        })
    }

    /// With 64-byte packets on an H100, CUDA's chunks overlap best at these sizes.
    fn overlap_packets(&self, layout: PacketLayout, _: MemoryReach) -> usize {
        match layout {
            _ if self.gpu.shares_memory => usize::MAX,
            PacketLayout::Copied => 256 << 10,
            // The host gathers a chunk while the one before is copied.
            PacketLayout::Rows | PacketLayout::Packed => 128 << 10,
            PacketLayout::InPlace | PacketLayout::NoAccess => usize::MAX,
        }
    }

    fn traffic(&self, chunk: &ChunkView<'_>, effects: KernelEffects, buffers: &Buffers) -> TransferBytes {
        // Where memory is shared, verdicts are written to the caller's columns.
        let to_host = if self.gpu.shares_memory { 0 } else { TransferBytes::of(chunk, effects).to_host };
        TransferBytes { to_device: buffers.uploaded_bytes, to_host }
    }

    fn take_warning(&mut self) -> Option<String> {
        let reason = self.gpu.unpinned.get().filter(|_| !self.has_warned)?;
        self.has_warned = true;
        Some(offload::unpinned_warning(&self.gpu.id, reason))
    }

    fn chunk_limits(&self, layout: PacketLayout) -> ChunkLimits {
        const { assert!(size_of::<Metadata>() <= MAX_ORDERED_DESCRIPTOR_BYTES) };
        // Far below the limit of a grid, and enough to fill any device.
        let packets = (self.gpu.max_buffer_size / MAX_ORDERED_DESCRIPTOR_BYTES as u64).min(1 << 24) as usize;
        match layout {
            // The kernel addresses packets from the span's start, with the batch's own descriptors,
            // so there is only one chunk.
            PacketLayout::InPlace => ChunkLimits { binding: u64::MAX, alignment: 1 << 32, packets },
            _ => ChunkLimits { binding: self.gpu.max_buffer_size.min(u32::MAX.into()) & !3, alignment: 4, packets },
        }
    }

    fn lend_verdict_memory(
        &mut self,
        packets: usize,
        effects: KernelEffects,
    ) -> Result<Option<Arc<LentVerdicts>>, DeviceError> {
        if self.gpu.unpinned.get().is_some() {
            return Ok(None);
        }
        let allocate = |packets| Ok(LentVerdicts::new(&self.gpu, packets, effects.redirects).unwrap_or(None));
        self.verdicts.lend(packets, LentVerdicts::packets, allocate)
    }

    fn new_buffers(&self) -> Buffers {
        Buffers::default()
    }

    fn upload(
        &mut self,
        chunk: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let gpu = &*self.gpu;
        buffers.stage_events = StageEvents::default();
        buffers.uploaded = None;
        let Buffers { written, uploaded_bytes, uploaded, stage_events, .. } = buffers;
        *uploaded_bytes = 0;
        let mut record = |event: Option<Event>| {
            if gpu.profiles {
                stage_events.uploads.extend(event.clone());
            }
            // The queue is in order.
            *uploaded = event.or(uploaded.take());
        };
        let shares = self.shares_descriptors(chunk, effects);
        let capacity = chunk.descriptor_capacity(effects);
        record(if self.loaded.takes_descriptor_rule && (capacity == 0 || !shares) {
            buffers.descriptors.write(gpu, capacity as u64, |to| {
                *written = chunk.write_rebased_descriptors(effects, to);
                *uploaded_bytes += written.size as u64;
                written.size
            })?
        } else if shares {
            *written = WrittenDescriptors::default();
            // SAFETY: the batch's descriptors do not move, and the session keeps the batch until
            // its last command has completed (`Launcher`); `release` drops the buffer.
            unsafe { buffers.descriptors.share(gpu, chunk.descriptors())? };
            None
        } else {
            let capacity = chunk.descriptor_count() * size_of::<Descriptor>();
            buffers.descriptors.write(gpu, capacity as u64, |to| {
                *written = chunk.write_descriptor_table(to);
                *uploaded_bytes += written.size as u64;
                written.size
            })?
        });
        if effects.metadata {
            let size = chunk.packets() * size_of::<Metadata>();
            let fields = Argument::metadata_fields(&self.loaded.arguments);
            record(match chunk.metadata() {
                _ if !fields.is_empty() => {
                    buffers.metadata.write(gpu, chunk.metadata_capacity(fields) as u64, |to| {
                        let written = chunk.write_metadata(fields, to);
                        buffers.metadata_rule = written.rule;
                        *uploaded_bytes += written.size as u64;
                        written.size
                    })?
                }
                Some(metadata) if gpu.shares_memory => {
                    // SAFETY: as for the descriptors.
                    unsafe { buffers.metadata.share(gpu, metadata)? };
                    None
                }
                _ => buffers.metadata.write(gpu, size as u64, |to| {
                    chunk.write_metadata_table(to);
                    *uploaded_bytes += size as u64;
                    size
                })?,
            });
        }
        if chunk.is_copied() {
            // Bypass the cache where the device will copy the bytes.
            let store = if gpu.shares_memory { StorePolicy::Cached } else { StorePolicy::Streamed };
            let bytes = (chunk.bytes().end - chunk.bytes().start) as usize;
            record(buffers.packets.write(gpu, chunk.copy_size(), |to| {
                chunk.copy_into(to, store);
                bytes
            })?);
            *uploaded_bytes += bytes as u64;
        }
        buffers.reserve_verdicts(gpu, chunk, effects)?;
        gpu.flush(&gpu.uploads)
    }

    fn can_reuse_uploads(&self) -> bool {
        true
    }

    fn reuse_upload(
        &mut self,
        chunk: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        // The uploads completed before the previous launch.
        buffers.uploaded = None;
        buffers.stage_events = StageEvents::default();
        buffers.reserve_verdicts(&self.gpu, chunk, effects)
    }

    fn launch(
        &mut self,
        chunk: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
        first: usize,
        count: usize,
    ) -> Result<PendingCommand, DeviceError> {
        if self.launches_to_watch > 0 {
            self.signals.get_or_insert_with(SignalHandlers::capture);
        }
        let gpu = &*self.gpu;
        // There is no extent if no packet has a byte.
        if let (0, Some((import, extent))) = (first, chunk.import().zip(chunk.extent())) {
            import.notify_host_write(gpu, &extent)?;
        }
        self.set_arguments(chunk, buffers, first, count)?;
        let mut event = self.enqueue_kernel(count, buffers.uploaded.as_ref())?;
        if gpu.profiles {
            buffers.stage_events.kernels.push(event.clone());
        }
        if first + count == chunk.invocations() {
            event = self.enqueue_downloads(chunk, effects, buffers, event)?;
        }
        gpu.flush(&gpu.kernels)?;
        gpu.flush(&gpu.downloads)?;
        PendingCommand::new(gpu, event, &mut self.completions)
    }

    fn wait(&mut self, ticket: &PendingCommand, cancel: &CancelToken) -> Result<(), DeviceError> {
        let ended = ticket.wait(&self.gpu, cancel);
        if let Some(signals) = &self.signals {
            signals.restore();
            self.launches_to_watch = self.launches_to_watch.saturating_sub(1);
            if self.launches_to_watch == 0 {
                self.signals = None;
            }
        }
        ended
    }

    fn enable_device_clock(&mut self) -> bool {
        self.gpu.profiles
    }

    fn device_times(&mut self, buffers: &mut Buffers) -> Option<StageTimes> {
        let StageEvents { uploads, kernels, downloads } = std::mem::take(&mut buffers.stage_events);
        let sum = |events: &[Event]| events.iter().map(|event| self.gpu.duration_of(event)).sum::<Option<Duration>>();
        Some(StageTimes { upload: sum(&uploads)?, kernel: sum(&kernels)?, download: sum(&downloads)? })
    }

    fn read_verdicts(
        &mut self,
        packets: usize,
        buffers: &mut Buffers,
        columns: &mut VerdictColumns,
    ) -> Result<(), DeviceError> {
        buffers.actions.read(&self.gpu, |bytes| columns.append(bytes[..packets].iter().copied()))?;
        if self.loaded.effects.redirects {
            buffers.targets.read(&self.gpu, |bytes| columns.append_targets(offload::le_words(bytes)))?;
        }
        Ok(())
    }

    fn read_descriptors(
        &mut self,
        _: usize,
        buffers: &mut Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        buffers.descriptors_back.read(&self.gpu, buffers.descriptors.memory(), read)
    }

    fn read_packets(&mut self, _: u64, buffers: &mut Buffers, read: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        buffers.packets_back.read(&self.gpu, buffers.packets.memory(), read)
    }

    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.maps.read(&self.gpu, map, at, words)
    }

    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.maps.write(&self.gpu, map, at, words)
    }

    fn release_results(&mut self, buffers: &mut Buffers) {
        buffers.actions.release();
        buffers.targets.release();
    }

    fn release(&mut self, buffers: &mut Buffers) {
        buffers.descriptors.release();
        buffers.metadata.release();
        buffers.actions.release();
        buffers.targets.release();
        buffers.uploaded = None;
        buffers.stage_events = StageEvents::default();
    }

    fn wait_idle(&mut self) {
        self.gpu.wait_idle();
    }

    fn try_drain(&mut self, tickets: &[&PendingCommand], torn: bool) -> bool {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        let left = || deadline.saturating_duration_since(Instant::now());
        tickets.iter().all(|ticket| ticket.completes_within(left())) && !torn
    }

    fn keep_alive(&mut self, kept: impl Send + 'static) {
        let gpu = self.gpu.clone();
        offload::drop_after((kept, self.gpu.clone()), move || gpu.wait_idle());
    }
}

/// Times the kernel alone; see [`crate::measure`].
pub(crate) fn time_kernel(
    session: &mut OpenClSession,
    batch: Batch,
    rounds: u32,
) -> Result<(Duration, Batch), DeviceError> {
    session.with_uploaded(batch, |device, chunks| {
        let cancel = CancelToken::new();
        let mut launch = |rounds| -> Result<(), DeviceError> {
            let mut last = None;
            for _ in 0..rounds {
                for (chunk, buffers) in &*chunks {
                    device.set_arguments(chunk, buffers, 0, chunk.invocations())?;
                    last = Some(device.enqueue_kernel(chunk.invocations(), buffers.uploaded.as_ref())?);
                }
            }
            device.gpu.flush(&device.gpu.kernels)?;
            last.map_or(Ok(()), |event| {
                PendingCommand::new(&device.gpu, event, &mut device.completions)?.wait(&device.gpu, &cancel)
            })
        };
        launch(1)?;
        let started = Instant::now();
        launch(rounds)?;
        Ok(started.elapsed() / rounds.max(1))
    })
}
