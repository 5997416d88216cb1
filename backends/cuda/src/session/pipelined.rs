//! `pipelined`, the default, and `inline`: uploads, kernels and downloads in a stream each, so that
//! several batches overlap; `inline` runs one batch at a time in a single stream.
//!
//! Packets in device memory are filtered in place. Of packets in host memory:
//! - those that lie close together are copied by the device, from memory that was pinned for that;
//! - those in frames, as a NIC ring delivers them, are read and written in place by the kernel,
//!   over the bus;
//! - for others the host gathers the bytes that the filter may access.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use portcullis_c_writer::Argument;
use portcullis_cache::costs;
use portcullis_core::device::chunk::{ChunkLimits, PacketLayout};
use portcullis_core::device::offload::{
    self, DRAIN_TIMEOUT, KernelEffects, Launcher, TransferBytes, VerdictColumns, VerdictPool,
};
use portcullis_core::device::transfer_planner::{BatchMemory, MemoryReach, TransferCosts};
use portcullis_core::device::{CancelToken, DeviceError, Imported, StageTimes};
use portcullis_core::packet::{Batch, Span};

use super::pinned_verdicts::PinnedVerdicts;
use super::timing::{Stage, StageTimer};
use crate::compile::{LoadedProgram, MAX_ARGUMENTS};
use crate::driver::ErrorCode;
use crate::driver::gpu::Gpu;
use crate::driver::poll;
use crate::driver::stream::Event;
use crate::memory::{Buffer, DeviceMemory, HostMemory, PinnedSpan, PinnedSpanCache, SpanAddress, UnpinnedMemory};

mod buffers;

pub(crate) use buffers::Buffers;

/// Maximum number of packets in a chunk: enough to fill any device, few enough that the chunks of a
/// large batch overlap.
const PACKETS_PER_CHUNK: usize = 1 << 20;

/// Maximum size in bytes of a chunk.
const BYTES_PER_CHUNK: u64 = 256 << 20;

/// Maximum number of packets of a batch that is not split: few enough for kernels to address tables
/// of descriptors and metadata by 32-bit words.
const MAX_UNSPLIT_PACKETS: usize = 1 << 29;

/// Launches a compiled filter in streams.
pub(crate) struct PipelinedLauncher {
    pub loaded: LoadedProgram,
    pinned_spans: PinnedSpanCache,
    verdict_pool: VerdictPool<PinnedVerdicts>,
    bounds: ChunkLimits,
    /// Whether to time the stages with the device's clock.
    times_stages: bool,
    unpinned: UnpinnedMemory,
    // Last: whatever was made on it is dropped first.
    pub gpu: Arc<Gpu>,
}

/// Memory of a batch that the device can access where it lies.
#[derive(Debug)]
pub(crate) struct InPlaceArena {
    address: u64,
    span: Arc<Span>,
    /// Keeps the span pinned, if it is host memory.
    _registration: Option<Arc<PinnedSpan>>,
}

type ChunkView<'a> = offload::ChunkView<'a, InPlaceArena, PinnedVerdicts>;

impl PipelinedLauncher {
    pub fn new(gpu: Arc<Gpu>, loaded: LoadedProgram) -> PipelinedLauncher {
        let bounds = ChunkLimits { binding: BYTES_PER_CHUNK, alignment: 4, packets: PACKETS_PER_CHUNK };
        let (pinned_spans, verdict_pool, unpinned) = Default::default();
        PipelinedLauncher { loaded, pinned_spans, verdict_pool, bounds, times_stages: false, unpinned, gpu }
    }

    /// Splits batches only where offsets would overflow: for measuring kernels, where the cost of a
    /// launch would weigh more the smaller it is.
    #[must_use]
    pub fn without_splitting(mut self) -> PipelinedLauncher {
        self.bounds = ChunkLimits { binding: u64::from(u32::MAX) & !3, alignment: 4, packets: MAX_UNSPLIT_PACKETS };
        self
    }

    /// Queues `count` invocations of the kernel for a chunk, from number `first` on.
    pub fn launch_kernel(
        &self,
        chunk: &ChunkView<'_>,
        buffers: &Buffers,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        let (verdicts, targets) = match chunk.verdict_memory() {
            Some(memory) => memory.addresses(chunk.first_packet()),
            None => buffers.verdict_addresses(),
        };
        let (descriptors, mut rule) = buffers.descriptors();
        let (metadata, mut metadata_rule) = buffers.metadata();
        let (mut base, mut invocations) = (chunk.base(first) as u32, count as u32);
        let mut addresses = [0; MAX_ARGUMENTS];
        for (address, argument) in addresses.iter_mut().zip(&self.loaded.arguments) {
            *address = match argument {
                Argument::Arena { .. } => {
                    in_place(chunk).map_or_else(|| buffers.arena_address(), |memory| memory.address)
                }
                Argument::Descriptors { .. } => descriptors,
                Argument::Metadata => metadata,
                Argument::Verdicts => verdicts,
                Argument::Targets => targets,
                Argument::Map(number) => self.loaded.maps.address(*number as usize),
                Argument::DescriptorRule | Argument::MetadataRule(_) | Argument::Base | Argument::Count => 0,
            };
        }
        let mut arguments: [*mut c_void; MAX_ARGUMENTS] =
            addresses.each_mut().map(|address| (address as *mut u64).cast());
        for (pointer, argument) in arguments.iter_mut().zip(&self.loaded.arguments) {
            match argument {
                Argument::DescriptorRule => *pointer = (&raw mut rule).cast(),
                Argument::MetadataRule(_) => *pointer = (&raw mut metadata_rule).cast(),
                Argument::Base => *pointer = (&raw mut base).cast(),
                Argument::Count => *pointer = (&raw mut invocations).cast(),
                _ => {}
            }
        }
        let kernel = &self.loaded.kernel;
        // SAFETY: the arguments are those that the C writer has listed, an address or a word each.
        // The kernel stays within its buffers whatever the filter does: invocations from number
        // `first + count` on do nothing, and the buffers have descriptors, metadata and verdicts
        // for the packets of those before. It accesses packets within their bytes and rooms, which
        // lie in the buffers or in the batch's span (`BatchCutter::cut_batch`,
        // `Batch::from_frames`, `chunk::split_batch`), and the `OVERREAD_BYTES` bytes after.
        // Indices into the filter's own arrays are clamped. The buffers and the lent verdicts
        // belong to the session until the launch was waited for (`Launcher`).
        let launched = unsafe { kernel.launch(kernel.blocks_for(invocations), &mut arguments, &self.gpu.kernels) };
        launched.map_err(|code| self.gpu.error("launching the filter failed", code))
    }

    /// Copies back what a kernel that has ended has changed, if that is still to be done.
    fn finish_downloads(&self, buffers: &mut Buffers) -> Result<(), DeviceError> {
        if !std::mem::take(&mut buffers.awaits_download) {
            return Ok(());
        }
        let (gpu, stream) = (&*self.gpu, &*self.gpu.downloads);
        let failed = |code| gpu.error("copying results failed", code);
        // SAFETY: the session keeps the buffers until the device is idle if this fails, and else
        // until the copies were waited for below.
        unsafe { buffers.enqueue_downloads(self.loaded.effects, stream) }.map_err(failed)?;
        let done = stream.record_event().map_err(failed)?;
        poll::until(&gpu.id, &CancelToken::new(), || done.is_complete().map_err(failed))
    }
}

/// The memory in which the kernel finds a chunk's packets, if they are filtered in place.
fn in_place<'a>(chunk: &ChunkView<'a>) -> Option<&'a InPlaceArena> {
    chunk.import().filter(|_| chunk.layout() == PacketLayout::InPlace)
}

impl Launcher for PipelinedLauncher {
    type Buffers = Buffers;
    type Import = InPlaceArena;
    type Ticket = Arc<Event>;
    type VerdictMemory = PinnedVerdicts;

    fn id(&self) -> &str {
        &self.gpu.id
    }

    fn can_reach(&self, span: &Span) -> bool {
        span.is_on_host() || SpanAddress::of_span(span, &self.gpu.id).is_some()
    }

    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        if SpanAddress::of_span(span, &self.gpu.id).is_some() {
            return Ok(Imported::InPlace);
        }
        let registered = self.pinned_spans.get_or_pin(&self.gpu.context, span, true).is_some();
        Ok(if registered { Imported::InPlace } else { Imported::Copied })
    }

    fn batch_memory(&mut self, batch: &Batch, asked: bool) -> BatchMemory<InPlaceArena> {
        let (context, span) = (&self.gpu.context, batch.span());
        let view = SpanAddress::of_span(span, &self.gpu.id);
        let registration = match view {
            Some(_) => None,
            None => {
                self.pinned_spans.get_or_pin(context, span, asked || span.allocated() >= PinnedSpanCache::MIN_BYTES)
            }
        };
        let (reach, address) = match (view, &registration) {
            (Some(SpanAddress { is_on_device: true, address }), _) => (MemoryReach::DeviceLocal, address),
            (Some(SpanAddress { is_on_device: false, address }), _) => (MemoryReach::Bus, address),
            (None, Some(registration)) => (MemoryReach::Bus, registration.address()),
            (None, None) => (MemoryReach::Unreachable, 0),
        };
        let reached = reach != MemoryReach::Unreachable;
        let import = reached.then(|| InPlaceArena { address, span: span.clone(), _registration: registration });
        BatchMemory { reach, import, word_aligned_only: true, gather_only: false }
    }

    fn transfer_costs(&self, threads: NonZeroUsize) -> TransferCosts {
        let gpu = &*self.gpu;
        costs::device_costs(&gpu.identity, threads, || {
            let _current = gpu.enter().ok()?;
            let from = HostMemory::new(&gpu.context, costs::BUS_COPY_BYTES).ok()?;
            let to = DeviceMemory::new(&gpu.context, costs::BUS_COPY_BYTES).ok()?;
            let (begins, ends) = (Event::with_timing(&gpu.context).ok()?, Event::with_timing(&gpu.context).ok()?);
            begins.record(&gpu.uploads).ok()?;
            // SAFETY: nobody writes to either, and both exist until the copy, or else everything
            // queued, was waited for.
            let copied = unsafe { to.upload(0, from.as_ptr(), costs::BUS_COPY_BYTES, &gpu.uploads) };
            let waited = copied.and_then(|()| ends.record(&gpu.uploads)).ok().and_then(|()| {
                let come = || ends.is_complete().map_err(|code| gpu.error("copying failed", code));
                poll::until(&gpu.id, &CancelToken::new(), come).ok()
            });
            if waited.is_none() {
                gpu.wait_idle();
            }
            waited?;
            ends.elapsed_ms_since(&begins)
                .ok()
                .map(|milliseconds| Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
        })
    }

    /// Measured on an H100 with 64-byte packets.
    fn overlap_packets(&self, layout: PacketLayout, reach: MemoryReach) -> usize {
        match (layout, reach) {
            // Splitting is disabled.
            _ if self.bounds.packets > PACKETS_PER_CHUNK => usize::MAX,
            (PacketLayout::InPlace, MemoryReach::Bus) => 128 << 10,
            (PacketLayout::Copied, _) => 256 << 10,
            // The host gathers a chunk while the one before is copied.
            (PacketLayout::Rows | PacketLayout::Packed, _) => 128 << 10,
            (PacketLayout::InPlace | PacketLayout::NoAccess, _) => usize::MAX,
        }
    }

    fn chunk_limits(&self, layout: PacketLayout) -> ChunkLimits {
        match layout {
            // The kernel addresses packets from the span's start, and nothing is copied.
            PacketLayout::InPlace => ChunkLimits { binding: u64::MAX, alignment: 1 << 32, ..self.bounds },
            _ => self.bounds,
        }
    }

    fn lend_verdict_memory(
        &mut self,
        packets: usize,
        effects: KernelEffects,
    ) -> Result<Option<Arc<PinnedVerdicts>>, DeviceError> {
        let (context, unpinned) = (&self.gpu.context, &mut self.unpinned);
        let allocate = |packets| match PinnedVerdicts::new(context, packets, effects.redirects) {
            Err(code) if code.is_unpinnable() => {
                unpinned.record(Some(code));
                Ok(None)
            }
            Err(ErrorCode::DEVICE_BUSY | ErrorCode::ABANDONED_WORK) => Ok(None),
            allocated => allocated.map(Some),
        };
        let lent = self.verdict_pool.lend(packets, PinnedVerdicts::packets, allocate);
        lent.map_err(|code| self.gpu.allocation_error("verdicts", code))
    }

    fn traffic(&self, chunk: &ChunkView<'_>, effects: KernelEffects, buffers: &Buffers) -> TransferBytes {
        TransferBytes { to_device: buffers.uploaded_bytes(), ..TransferBytes::of(chunk, effects) }
    }

    fn new_buffers(&self) -> Buffers {
        let timer = self.times_stages.then(|| StageTimer::new(&self.gpu.context));
        Buffers::new(Argument::metadata_fields(&self.loaded.arguments), timer)
    }

    /// Uploaded data stays in the slot until another chunk is written to it.
    fn can_reuse_uploads(&self) -> bool {
        true
    }

    fn reuse_upload(
        &mut self,
        chunk: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        if let Some(timer) = &mut buffers.timer {
            timer.reset();
        }
        let reserved = buffers.reserve_results(&self.gpu.context, chunk, effects);
        reserved.map_err(|code| self.gpu.allocation_error("verdicts", code))
    }

    fn upload(
        &mut self,
        chunk: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let gpu = &*self.gpu;
        let _current = gpu.enter()?;
        let from = chunk.import().filter(|_| chunk.layout() == PacketLayout::Copied && !chunk.bytes().is_empty());
        buffers
            .reserve(&gpu.context, chunk, effects, from.is_some())
            .map_err(|code| gpu.allocation_error("a batch", code))?;
        self.unpinned.record(buffers.pinning_refusal().or_else(|| self.pinned_spans.refusal()));
        // SAFETY: the launch that used the buffers last was waited for (`Launcher`).
        let written = unsafe { buffers.write(chunk, effects) };
        let mut timer = buffers.timer.take();
        if let Some(timer) = &mut timer {
            timer.reset();
        }
        // SAFETY: the buffers, and the batch with its pinned memory, exist until the launch was
        // waited for; the range lies in the span (`chunk::split_batch`). Nobody else writes to
        // those words meanwhile.
        let enqueue_uploads = || unsafe {
            if written > 0 {
                buffers.device().upload(0, buffers.staging().as_ptr(), written, &gpu.uploads)?;
            }
            let Some(memory) = from else { return Ok(()) };
            let start = memory.span.as_ptr().add(chunk.bytes().start as usize);
            let (at, bytes) = buffers.copied_packets();
            buffers.device().upload(at, start, bytes, &gpu.uploads)
        };
        let has_uploads = written > 0 || from.is_some();
        let queued = match has_uploads {
            true => StageTimer::measure(timer.as_mut(), Stage::Upload, &gpu.uploads, enqueue_uploads),
            false => Ok(()),
        };
        buffers.timer = timer;
        queued.map_err(|code| gpu.error("queuing a copy failed", code))?;
        if in_place(chunk).is_some() {
            gpu.flush_remote_writes().map_err(|code| gpu.error("flushing remote writes failed", code))?;
        }
        buffers.awaits_upload = has_uploads && !Arc::ptr_eq(&gpu.uploads, &gpu.kernels);
        if buffers.awaits_upload {
            gpu.uploads
                .record_reusing(&mut buffers.uploaded)
                .map_err(|code| gpu.error("recording an event failed", code))?;
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
    ) -> Result<Arc<Event>, DeviceError> {
        let gpu = &*self.gpu;
        let _current = gpu.enter()?;
        let failed = |code| gpu.error("queuing commands failed", code);
        if let Some(ready) = buffers.uploaded.as_ref().filter(|_| buffers.awaits_upload) {
            gpu.kernels.wait_for(ready).map_err(failed)?;
            buffers.awaits_upload = false;
        }
        // Moved out, since `launch_kernel` borrows the buffers.
        let mut timer = buffers.timer.take();
        let ran = match &mut timer {
            None => self.launch_kernel(chunk, buffers, first, count),
            Some(timer) => timer.begin(Stage::Kernel, &gpu.kernels).map_err(failed).and_then(|()| {
                self.launch_kernel(chunk, buffers, first, count)?;
                timer.end(&gpu.kernels).map_err(failed)
            }),
        };
        buffers.timer = timer;
        ran?;
        if first + count < chunk.invocations() {
            return buffers.completions.record(&gpu.kernels).map_err(failed);
        }
        // A copy that blocks is made when the kernel has ended: until then the session can be
        // cancelled, and takes other batches.
        buffers.awaits_download = buffers.has_downloads() && buffers.downloads_block();
        if !buffers.has_downloads() || buffers.awaits_download {
            return buffers.completions.record(&gpu.kernels).map_err(failed);
        }
        let stream = &*gpu.downloads;
        stream.follow(&gpu.kernels, &mut buffers.kernel_done).map_err(failed)?;
        let mut timer = buffers.timer.take();
        // SAFETY: the buffers exist until the launch was waited for, and nobody accesses the
        // response before.
        let enqueue_downloads = || unsafe { buffers.enqueue_downloads(effects, stream) };
        let queued = StageTimer::measure(timer.as_mut(), Stage::Download, stream, enqueue_downloads);
        buffers.timer = timer;
        queued.and_then(|()| buffers.completions.record(stream)).map_err(failed)
    }

    fn wait(&mut self, ticket: &Arc<Event>, cancel: &CancelToken) -> Result<(), DeviceError> {
        let gpu = &*self.gpu;
        let _current = gpu.enter()?;
        poll::until(&gpu.id, cancel, || ticket.is_complete().map_err(|code| gpu.error("the filter failed", code)))
    }

    fn take_warning(&mut self) -> Option<String> {
        self.unpinned.take_warning(&self.gpu.id)
    }

    fn enable_device_clock(&mut self) -> bool {
        self.times_stages = true;
        true
    }

    fn device_times(&mut self, buffers: &mut Buffers) -> Option<StageTimes> {
        let _current = self.gpu.enter().ok()?;
        // An error here shows again where errors are reported.
        buffers.timer.as_ref().and_then(|timer| timer.times().ok())
    }

    fn read_verdicts(
        &mut self,
        _: usize,
        buffers: &mut Buffers,
        columns: &mut VerdictColumns,
    ) -> Result<(), DeviceError> {
        self.finish_downloads(buffers)?;
        buffers.append_verdicts(self.loaded.effects, columns);
        Ok(())
    }

    fn read_descriptors(
        &mut self,
        _: usize,
        buffers: &mut Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        self.finish_downloads(buffers)?;
        read(buffers.changed_descriptors());
        Ok(())
    }

    fn read_packets(&mut self, _: u64, buffers: &mut Buffers, read: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        self.finish_downloads(buffers)?;
        read(buffers.changed_packets());
        Ok(())
    }

    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.loaded.maps.read(&self.gpu, map, at, words)
    }

    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.loaded.maps.write(&self.gpu, map, at, words)
    }

    fn map_address(&self, map: usize) -> Option<u64> {
        Some(self.loaded.maps.address(map))
    }

    fn wait_idle(&mut self) {
        self.gpu.wait_idle();
    }

    fn try_drain(&mut self, _: &[&Arc<Event>], _: bool) -> bool {
        poll::within(DRAIN_TIMEOUT, None, || self.gpu.is_idle())
    }

    fn keep_alive(&mut self, resources: impl Send + 'static) {
        self.gpu.abandon(resources, || ());
    }
}
