//! Batches on their way through a device: what a session of any device's does with OpenCL.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ocl_core::{ArgVal, Event, Mem, MemFlags};
use portcullis_c_writer::Argument;
use portcullis_cache::costs;
use portcullis_core::device::chunk::{ChunkLimits, PacketLayout};
use portcullis_core::device::launch_budget::LaunchBudget;
use portcullis_core::device::offload::{
    self, DRAIN_TIMEOUT, DeviceTimes, KernelEffects, Launcher, OffloadSession, TransferBytes, VerdictColumns,
};
use portcullis_core::device::transfer_planner::{BatchMemory, MemoryReach, TransferCosts};
use portcullis_core::device::{CancelToken, DeviceError, DeviceKind, Imported, LoadOptions};
use portcullis_core::map::{self, Declaration};
use portcullis_core::packet::gather::StorePolicy;
use portcullis_core::packet::{Batch, Descriptor, Metadata, Span};
use portcullis_core::program::Program;

use crate::column::Answers;
use crate::compile::{self, Loaded};
use crate::device::Gpu;
use crate::memory::{Download, Import, Imports, Upload};
use crate::probe::OpenClDevice;
use crate::signals::Signals;
use crate::wait::Ticket;

#[cfg(test)]
mod tests;

/// Work items in a group of a processor's where launches are cut small: each core gets some of them,
/// and a packet of such a filter takes long.
const PACED_GROUP: usize = 8;

/// A program loaded on an OpenCL device.
pub(crate) type OpenClSession = OffloadSession<OpenCl>;

/// Loads a program.
pub(crate) fn open(
    device: &OpenClDevice,
    program: &Arc<Program>,
    options: &LoadOptions,
) -> Result<OpenClSession, DeviceError> {
    let (gpu, loaded) = compile::load(device, program, options)?;
    of(gpu, loaded, program, options)
}

/// See [`crate::measure`].
pub(crate) fn open_text(
    device: &OpenClDevice,
    program: &Arc<Program>,
    text: &str,
    entry: &str,
) -> Result<OpenClSession, DeviceError> {
    let (gpu, loaded) = compile::load_text(device, program, text, entry)?;
    of(gpu, loaded, program, &LoadOptions::default())
}

fn of(
    gpu: Arc<Gpu>,
    mut loaded: Loaded,
    program: &Arc<Program>,
    options: &LoadOptions,
) -> Result<OpenClSession, DeviceError> {
    let (kind, effects) = (gpu.kind, loaded.effects);
    let is_paced = kind == DeviceKind::Cpu && !LaunchBudget::new(kind, program, effects.size, 0).is_unlimited();
    let chosen = if is_paced { loaded.group.min(PACED_GROUP) } else { loaded.group };
    loaded.group = gpu.group.unwrap_or(chosen);
    let maps = program.maps().iter().map(|map| zeros(&gpu, map)).collect::<Result<_, _>>()?;
    let launcher = OpenCl { loaded, imports: Imports::default(), maps, signals: None, watched: 8, gpu };
    OffloadSession::new(launcher, kind, effects, program, options)
}

/// A map's memory, with nothing in it.
fn zeros(gpu: &Gpu, map: &Declaration) -> Result<Mem, DeviceError> {
    let bytes = map::layout::Layout::of(map).words() * 4;
    if bytes as u64 > gpu.largest {
        return Err(DeviceError::Unsupported {
            device: gpu.id.clone(),
            reason: format!("its map `{}` takes {bytes} bytes, and a buffer has at most {}", map.name, gpu.largest),
        });
    }
    // SAFETY: no memory of the host's is given.
    let memory = unsafe { gpu.buffer(MemFlags::READ_WRITE, bytes as u64, std::ptr::null_mut())? };
    // In the queue of kernels: it comes before them.
    let filled = ocl_core::enqueue_fill_buffer(
        &gpu.kernels,
        &memory,
        0_u32,
        0,
        bytes / 4,
        None::<&Event>,
        None::<&mut Event>,
        None,
    );
    filled.map_err(|error| gpu.failed(format_args!("has no memory for the map `{}`", map.name), &error))?;
    Ok(memory)
}

/// A compiled filter, with what it takes to launch it.
pub(crate) struct OpenCl {
    loaded: Loaded,
    imports: Imports,
    /// The words of the filter's maps.
    maps: Vec<Mem>,
    /// As they were before the first launch, and how many launches are still to be watched for a driver that compiles
    /// then. Later changes are the program's own.
    signals: Option<Signals>,
    watched: u32,
    // Last: what was made on it goes first.
    gpu: Arc<Gpu>,
}

/// The buffers that a part of a batch needs.
#[derive(Default)]
pub(crate) struct Buffers {
    packets: Upload,
    descriptors: Upload,
    metadata: Upload,
    actions: Answers<u8>,
    targets: Answers<u32>,
    /// The descriptors and packets as the filter left them.
    ends: Download,
    changed: Download,
    /// The last command that has to end before kernels run.
    ready: Option<Event>,
    /// What is to be asked for its time, where anybody wants to know.
    timed: Timed,
}

/// Commands of a part, by what they are for.
#[derive(Default)]
struct Timed {
    uploads: Vec<Event>,
    kernels: Vec<Event>,
    downloads: Vec<Event>,
}

type ChunkView<'a> = offload::ChunkView<'a, Arc<Import>>;

impl OpenCl {
    /// Whether kernels get the batch's own descriptors.
    fn lends_descriptors(&self, part: &ChunkView<'_>, effects: KernelEffects) -> bool {
        !part.is_copied() && !effects.resizes_packets && !part.is_ordered()
    }

    /// Tells the kernel where everything is.
    fn set_arguments(
        &self,
        part: &ChunkView<'_>,
        buffers: &Buffers,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        let import = part.import().map(|import| import.memory());
        let (base, count) = (part.base(first) as u32, count as u32);
        for (index, argument) in self.loaded.arguments.iter().enumerate() {
            let value = match argument {
                Argument::Arena { .. } => ArgVal::mem(import.unwrap_or_else(|| buffers.packets.memory())),
                Argument::Descriptors { .. } => ArgVal::mem(buffers.descriptors.memory()),
                Argument::Metadata => ArgVal::mem(buffers.metadata.memory()),
                Argument::Verdicts => ArgVal::mem(buffers.actions.memory()),
                Argument::Targets => ArgVal::mem(buffers.targets.memory()),
                Argument::Map(number) => ArgVal::mem(&self.maps[*number as usize]),
                Argument::Base => ArgVal::scalar(&base),
                Argument::Count => ArgVal::scalar(&count),
            };
            ocl_core::set_kernel_arg(&self.loaded.kernel, index as u32, value)
                .map_err(|error| self.gpu.failed(format_args!("setting argument {index} failed"), &error))?;
        }
        Ok(())
    }

    /// Queues the kernel for `count` lanes.
    fn enqueue(&self, count: usize, after: Option<&Event>) -> Result<Event, DeviceError> {
        let group = self.loaded.group;
        let size = [count.div_ceil(group) * group, 1, 1];
        let mut event = Event::null();
        let kernel = &self.loaded.kernel;
        // SAFETY: the kernel stays within its buffers, whatever the filter: it ends before lane
        // `count`, and the lanes' packets have room among the descriptors, metadata and verdicts; the arena it reaches at
        // bytes of packets and their rooms, which lie in the buffer, and in the `OVERREAD_BYTES` bytes
        // behind (`BatchCutter::cut_batch`, `chunk::split_batch`). Indices into the filter's own arrays are clamped. The
        // batch, whose words these are, is the session's until the kernel has ended (`Launcher`).
        let queued = unsafe {
            let (queue, group) = (&self.gpu.kernels, Some([group, 1, 1]));
            ocl_core::enqueue_kernel(queue, kernel, 1, None, &size, group, after, Some(&mut event))
        };
        queued.map_err(|error| self.gpu.failed("launching the filter failed", &error))?;
        Ok(event)
    }

    /// Queues bringing a part's results back, after the event. The event of the last of it.
    fn bring_back(
        &self,
        part: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
        after: Event,
    ) -> Result<Event, DeviceError> {
        let (gpu, packets) = (&*self.gpu, part.packets());
        let mut event = after;
        let timed = &mut buffers.timed.downloads;
        let mut note = |event: &Event| {
            if gpu.clocks {
                timed.push(event.clone());
            }
        };
        if effects.resizes_packets {
            event = buffers.ends.enqueue(gpu, buffers.descriptors.memory(), packets as u64 * 8, &event)?;
            note(&event);
        }
        let bytes = part.bytes();
        match part.import().zip(part.extent()) {
            _ if !effects.writes_packets => {}
            Some((import, extent)) => {
                let mut last = Event::null();
                import.read_back(gpu, &extent, &mut last)?;
                event = last;
                note(&event);
            }
            None if !bytes.is_empty() => {
                let changed = bytes.end - bytes.start;
                event = buffers.changed.enqueue(gpu, buffers.packets.memory(), changed, &event)?;
                note(&event);
            }
            None => {}
        }
        if effects.redirects {
            event = buffers.targets.enqueue(gpu, packets, &event)?;
            note(&event);
        }
        let event = buffers.actions.enqueue(gpu, packets, &event)?;
        note(&event);
        Ok(event)
    }
}

impl Launcher for OpenCl {
    type Buffers = Buffers;
    type Import = Arc<Import>;
    type Ticket = Ticket;

    fn id(&self) -> &str {
        &self.gpu.id
    }

    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        let import = self.imports.get(&self.gpu, span, self.loaded.effects.writes_packets);
        Ok(if import.is_some() { Imported::InPlace } else { Imported::Copied })
    }

    fn batch_memory(&mut self, batch: &Batch, _: bool) -> BatchMemory<Arc<Import>> {
        match self.imports.get(&self.gpu, batch.span(), self.loaded.effects.writes_packets) {
            Some(import) => {
                BatchMemory { reach: MemoryReach::Shared, import: Some(import), ..BatchMemory::unreachable() }
            }
            None => BatchMemory::unreachable(),
        }
    }

    fn no_in_place_reason(&self) -> Option<String> {
        (!self.gpu.shares_memory).then(|| "its memory is not the host's, and OpenCL has no way to reach that".into())
    }

    fn transfer_costs(&self) -> TransferCosts {
        if self.gpu.shares_memory {
            return costs::host_costs().without_bus();
        }
        let mut upload = Upload::default();
        costs::device_costs(&self.gpu.about, || {
            let began = Instant::now();
            let copied = upload.write(&self.gpu, costs::BUS_COPY_BYTES as u64, |_| ()).ok()??;
            self.gpu.flush(&self.gpu.uploads).ok()?;
            Ticket::new(&self.gpu, copied).ok()?.wait(&self.gpu, &CancelToken::new()).ok()?;
            Some(began.elapsed())
        })
    }

    fn traffic(&self, part: &ChunkView<'_>, effects: KernelEffects) -> TransferBytes {
        let all = TransferBytes::of(part, effects);
        if !self.gpu.shares_memory {
            return all;
        }
        // What the batch has is read there, and columns are written where the caller gets them.
        let metadata = if part.metadata().is_some() { part.packets() * size_of::<Metadata>() } else { 0 };
        let descriptors = if self.lends_descriptors(part, effects) { 8 * part.descriptor_count() } else { 0 };
        let lent = descriptors * usize::from(effects.accesses_packets) + metadata * usize::from(effects.metadata);
        TransferBytes { to_device: all.to_device.saturating_sub(lent as u64), to_host: 0 }
    }

    fn chunk_limits(&self, layout: PacketLayout) -> ChunkLimits {
        // A packet's descriptor and that of its run are no more than its metadata.
        const { assert!(2 * size_of::<Descriptor>() <= size_of::<Metadata>()) };
        // Far below what a grid can have, and enough to keep any device busy.
        let packets = (self.gpu.largest / size_of::<Metadata>() as u64).min(1 << 24) as usize;
        match layout {
            // The kernel gets the span from its start, so one part has them all, and the batch's
            // descriptors are those of the kernel.
            PacketLayout::InPlace => ChunkLimits { binding: u64::MAX, alignment: 1 << 32, packets },
            _ => ChunkLimits { binding: self.gpu.largest.min(u32::MAX.into()) & !3, alignment: 4, packets },
        }
    }

    fn new_buffers(&self) -> Buffers {
        Buffers::default()
    }

    fn upload(
        &mut self,
        part: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let (gpu, packets) = (&*self.gpu, part.packets() as u64);
        buffers.timed = Timed::default();
        let mut uploads = Vec::new();
        let mut ready = if self.lends_descriptors(part, effects) {
            // SAFETY: a batch's descriptors stay where they are, and the session keeps the batch until
            // its last command has ended (`Launcher`); `release` takes them back.
            unsafe { buffers.descriptors.lend(gpu, part.descriptors())? }
        } else {
            let (seen, size) = (part.descriptor_bytes(), part.descriptor_count() as u64 * 8);
            buffers.descriptors.write(gpu, size, |to| copy_each(seen, to))?
        };
        uploads.extend(ready.clone());
        if effects.metadata {
            let size = packets * size_of::<Metadata>() as u64;
            let written = match part.metadata() {
                // SAFETY: as for the descriptors.
                Some(metadata) => unsafe { buffers.metadata.lend(gpu, metadata)? },
                None => buffers.metadata.write(gpu, size, |to| copy_each(part.metadata_bytes(), to))?,
            };
            uploads.extend(written.clone());
            ready = written.or(ready);
        }
        if part.is_copied() {
            // Elsewhere the device copies them out of the host's memory.
            let store = if gpu.shares_memory { StorePolicy::Cached } else { StorePolicy::Streamed };
            let written = buffers.packets.write(gpu, part.copy_size(), |to| part.copy_into(to, store))?;
            uploads.extend(written.clone());
            ready = written.or(ready);
        }
        buffers.actions.reserve(gpu, part.packets())?;
        if effects.redirects {
            buffers.targets.reserve(gpu, part.packets())?;
        }
        if gpu.clocks {
            buffers.timed.uploads.extend(uploads);
        }
        buffers.ready = ready;
        gpu.flush(&gpu.uploads)
    }

    fn can_reuse_uploads(&self) -> bool {
        true
    }

    fn reuse_upload(
        &mut self,
        part: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        // What was brought is there since the launch before.
        buffers.ready = None;
        buffers.timed = Timed::default();
        buffers.actions.release();
        buffers.actions.reserve(&self.gpu, part.packets())?;
        if effects.redirects {
            buffers.targets.release();
            buffers.targets.reserve(&self.gpu, part.packets())?;
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
    ) -> Result<Ticket, DeviceError> {
        if self.watched > 0 {
            self.signals.get_or_insert_with(Signals::now);
        }
        let gpu = &*self.gpu;
        // Nothing where no packet has a byte.
        if let (0, Some((import, extent))) = (first, part.import().zip(part.extent())) {
            import.written(gpu, &extent)?;
        }
        self.set_arguments(part, buffers, first, count)?;
        let mut event = self.enqueue(count, buffers.ready.as_ref())?;
        if gpu.clocks {
            buffers.timed.kernels.push(event.clone());
        }
        if first + count == part.lanes() {
            event = self.bring_back(part, effects, buffers, event)?;
        }
        gpu.flush(&gpu.kernels)?;
        gpu.flush(&gpu.downloads)?;
        Ticket::new(gpu, event)
    }

    fn wait(&mut self, ticket: &Ticket, cancel: &CancelToken) -> Result<(), DeviceError> {
        let ended = ticket.wait(&self.gpu, cancel);
        if let Some(signals) = &self.signals {
            signals.restore();
            self.watched = self.watched.saturating_sub(1);
            if self.watched == 0 {
                self.signals = None;
            }
        }
        ended
    }

    fn enable_device_clock(&mut self) -> bool {
        self.gpu.clocks
    }

    fn device_times(&mut self, buffers: &mut Buffers) -> Option<DeviceTimes> {
        let Timed { uploads, kernels, downloads } = std::mem::take(&mut buffers.timed);
        let sum = |events: &[Event]| events.iter().map(|event| self.gpu.time_of(event)).sum::<Option<Duration>>();
        Some(DeviceTimes { upload: sum(&uploads)?, kernel: sum(&kernels)?, download: sum(&downloads)? })
    }

    fn read_verdicts(
        &mut self,
        packets: usize,
        buffers: &mut Buffers,
        columns: &mut VerdictColumns,
    ) -> Result<(), DeviceError> {
        let copy = |bytes: &[u8]| columns.append(bytes.iter().copied());
        // SAFETY: all launches of the part have ended, and the last brought a byte for each packet.
        if let Some(actions) = unsafe { buffers.actions.take(&self.gpu, packets, copy)? } {
            columns.adopt(actions);
        }
        if self.loaded.effects.redirects {
            let copy = |bytes: &[u8]| columns.append_targets(offload::le_words(bytes));
            // SAFETY: as for the actions, a word for each packet.
            if let Some(targets) = unsafe { buffers.targets.take(&self.gpu, packets, copy)? } {
                columns.adopt_targets(targets);
            }
        }
        Ok(())
    }

    fn read_descriptors(
        &mut self,
        _: usize,
        buffers: &mut Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        buffers.ends.read(&self.gpu, buffers.descriptors.memory(), read)
    }

    fn read_packets(&mut self, _: u64, buffers: &mut Buffers, read: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        buffers.changed.read(&self.gpu, buffers.packets.memory(), read)
    }

    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        let mut copy = vec![0_u32; words];
        // SAFETY: the buffer has so many words from there on, and the copy, which is there when this returns.
        let read = unsafe {
            let (queue, memory) = (&self.gpu.kernels, &self.maps[map]);
            ocl_core::enqueue_read_buffer(queue, memory, true, at, &mut copy, None::<&Event>, None::<&mut Event>)
        };
        read.map_err(|error| self.gpu.failed("reading a map failed", &error))?;
        Ok(copy)
    }

    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        // SAFETY: the words lie in the buffer (`Launcher`), and are there until this returns.
        let written = unsafe {
            let (queue, memory) = (&self.gpu.kernels, &self.maps[map]);
            ocl_core::enqueue_write_buffer(queue, memory, true, at, words, None::<&Event>, None::<&mut Event>)
        };
        written.map_err(|error| self.gpu.failed("writing a map failed", &error))
    }

    fn release(&mut self, buffers: &mut Buffers) {
        buffers.descriptors.take_back();
        buffers.metadata.take_back();
        buffers.actions.release();
        buffers.targets.release();
        buffers.ready = None;
        buffers.timed = Timed::default();
    }

    fn wait_idle(&mut self) {
        self.gpu.settle();
    }

    fn try_drain(&mut self, tickets: &[&Ticket], torn: bool) -> bool {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        let left = || deadline.saturating_duration_since(Instant::now());
        tickets.iter().all(|ticket| ticket.ends_within(left())) && !torn
    }

    fn keep_alive(&mut self, kept: impl Send + 'static) {
        let gpu = self.gpu.clone();
        offload::drop_after((kept, self.gpu.clone()), move || gpu.settle());
    }
}

/// See [`crate::measure`].
pub(crate) fn kernel_only(
    session: &mut OpenClSession,
    batch: Batch,
    rounds: u32,
) -> Result<(Duration, Batch), DeviceError> {
    session.with_uploaded(batch, |device, parts| {
        let cancel = CancelToken::new();
        let launch = |rounds| -> Result<(), DeviceError> {
            let mut last = None;
            for _ in 0..rounds {
                for (part, buffers) in &*parts {
                    device.set_arguments(part, buffers, 0, part.lanes())?;
                    last = Some(device.enqueue(part.lanes(), buffers.ready.as_ref())?);
                }
            }
            device.gpu.flush(&device.gpu.kernels)?;
            last.map_or(Ok(()), |event| Ticket::new(&device.gpu, event)?.wait(&device.gpu, &cancel))
        };
        launch(1)?;
        let started = Instant::now();
        launch(rounds)?;
        Ok(started.elapsed() / rounds.max(1))
    })
}

/// Writes items one behind the other.
fn copy_each<const N: usize>(items: impl Iterator<Item = [u8; N]>, to: &mut [u8]) {
    for (to, item) in to.chunks_exact_mut(N).zip(items) {
        to.copy_from_slice(&item);
    }
}
