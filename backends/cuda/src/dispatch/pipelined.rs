//! `pipelined`, the default, and `inline`: copies in, the kernel, copies out, each in a stream of its own, so
//! that several batches are under way at once; or, one batch at a time, in one.
//!
//! Packets in the device's own memory are filtered there. Of the host's, those that lie close together are copied by the device from where they are, out of memory that was
//! registered for that. Packets in frames of their own, as a ring delivers them, are read there by the kernel, over the bus,
//! and written there. Of other packets far apart the host gathers what the filter may touch.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use portcullis_c_writer::Argument;
use portcullis_cache::costs;
use portcullis_core::device::chunk::{ChunkLimits, PacketLayout};
use portcullis_core::device::offload::{self, DRAIN_TIMEOUT, DeviceTimes, KernelEffects, Launcher, VerdictColumns};
use portcullis_core::device::transfer_planner::{BatchMemory, MemoryReach, TransferCosts};
use portcullis_core::device::{CancelToken, DeviceError, Imported};
use portcullis_core::packet::{Batch, Span};

use super::clock::{Clock, Stage};
use super::slots::{HEAD, Inside, Shape, Slot};
use crate::compile::{Loaded, MOST_ARGUMENTS};
use crate::device::{Event, Gpu, Tickets};
use crate::memory::{Buffer, DeviceMemory, HostMemory, Registration, Registrations, View};
use crate::wait;

/// Packets in a part: enough to keep any device busy, and few enough that a large batch is copied in, filtered
/// and copied out at the same time.
const PACKETS: usize = 1 << 20;

/// Bytes of a part.
const BYTES: u64 = 256 << 20;

/// A compiled filter, with what it takes to launch it.
pub(crate) struct Pipelined {
    pub loaded: Loaded,
    registrations: Registrations,
    bounds: ChunkLimits,
    /// Somebody asked for the device's clock.
    clocks: bool,
    // Last: what was made on it goes first.
    pub gpu: Arc<Gpu>,
}

/// A slot, and when what is given has been copied in.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    slot: Slot,
    /// What descriptors' offsets count from, in the packets' bytes.
    origin: u64,
    // Events, used again and again: making one is a call of the driver's.
    ready: Option<Event>,
    ran: Option<Event>,
    ended: Tickets,
    /// Whether kernels have yet to wait for what was copied in.
    waits: bool,
    /// Where somebody asked for the device's times.
    clock: Option<Clock>,
}

/// Memory of a batch's that the device reaches where it is.
#[derive(Debug)]
pub(crate) struct Memory {
    address: u64,
    span: Arc<Span>,
    /// Of the host's that was registered for that.
    _registration: Option<Arc<Registration>>,
}

type ChunkView<'a> = offload::ChunkView<'a, Memory>;

impl Pipelined {
    pub fn new(gpu: Arc<Gpu>, loaded: Loaded) -> Pipelined {
        let bounds = ChunkLimits { binding: BYTES, alignment: 4, packets: PACKETS };
        Pipelined { loaded, registrations: Registrations::default(), bounds, clocks: false, gpu }
    }

    /// The same, which cuts no batch as long as its packets have offsets: for measuring kernels, whose start and end
    /// weigh more the shorter they are.
    #[must_use]
    pub fn whole(mut self) -> Pipelined {
        self.bounds = ChunkLimits { binding: u64::from(u32::MAX) & !3, alignment: 4, packets: u32::MAX as usize };
        self
    }

    /// Queues the kernel for `count` lanes of a part.
    pub fn run(&self, part: &ChunkView<'_>, buffers: &Buffers, first: usize, count: usize) -> Result<(), DeviceError> {
        let slot = &buffers.slot;
        let (given, returned) = (slot.inside().address(), slot.answers().address());
        let (at, maps) = (slot.given_at, self.loaded.maps.addresses());
        let (mut base, mut lanes) = (part.base(first) as u32, count as u32);
        let mut addresses = self.loaded.arguments.iter().map(|argument| match argument {
            Argument::Arena { .. } if let Some(memory) = in_place(part) => memory.address,
            // An address before the packets, as a number: the kernel adds an offset before it reads anything.
            Argument::Arena { .. } => (given + at.packets as u64).wrapping_sub(buffers.origin),
            Argument::Descriptors { .. } => given + HEAD as u64,
            Argument::Metadata => given + at.metadata as u64,
            Argument::Verdicts => returned,
            Argument::Targets => returned + slot.returned_at.targets as u64,
            Argument::Map(number) => maps[*number as usize],
            Argument::Base | Argument::Count => 0,
        });
        let mut addresses: [u64; MOST_ARGUMENTS] = std::array::from_fn(|_| addresses.next().unwrap_or_default());
        let arguments = self.loaded.arguments.iter().zip(&mut addresses).map(|(argument, address)| match argument {
            Argument::Base => (&raw mut base).cast(),
            Argument::Count => (&raw mut lanes).cast(),
            _ => (address as *mut u64).cast(),
        });
        let mut arguments: Vec<*mut c_void> = arguments.collect();
        let kernel = &self.loaded.kernel;
        // SAFETY: the arguments are those that the writer has named, an address or a word each. The kernel stays within
        // its buffers, whatever the filter: it ends before lane `first + count`, for whose packets the slot has
        // descriptors, metadata and verdicts; packets it reaches at their bytes and rooms, which lie in the slot or in the
        // batch's span (`BatchCutter::cut_batch`, `Batch::from_frames`, `chunk::split_batch`), and in the `OVERREAD_BYTES` bytes behind. Indices into the filter's own arrays are clamped. The slot
        // is the session's until the launch was waited for (`Launcher`).
        let launched = unsafe { kernel.launch(kernel.blocks_for(lanes), &mut arguments, &self.gpu.kernels) };
        launched.map_err(|code| self.gpu.failed("does not launch the filter", code))
    }
}

/// The memory that the kernel finds the part's packets in, where it is the batch's own.
fn in_place<'a>(part: &ChunkView<'a>) -> Option<&'a Memory> {
    part.import().filter(|_| part.layout() == PacketLayout::InPlace)
}

impl Launcher for Pipelined {
    type Buffers = Buffers;
    type Import = Memory;
    type Ticket = Arc<Event>;

    fn id(&self) -> &str {
        &self.gpu.id
    }

    fn can_reach(&self, span: &Span) -> bool {
        span.is_on_host() || View::of(span, &self.gpu.id).is_some()
    }

    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        if View::of(span, &self.gpu.id).is_some() {
            return Ok(Imported::InPlace);
        }
        let registered = self.registrations.get(&self.gpu.context, span, true).is_some();
        Ok(if registered { Imported::InPlace } else { Imported::Copied })
    }

    fn batch_memory(&mut self, batch: &Batch, asked: bool) -> BatchMemory<Memory> {
        let (context, span) = (&self.gpu.context, batch.span());
        let view = View::of(span, &self.gpu.id);
        let registration = match view {
            Some(_) => None,
            None => self.registrations.get(context, span, asked || span.allocated() >= Registrations::WORTH_IT),
        };
        let (reach, address) = match (view, &registration) {
            (Some(View { is_own: true, address }), _) => (MemoryReach::DeviceLocal, address),
            (Some(View { is_own: false, address }), _) => (MemoryReach::Bus, address),
            (None, Some(registration)) => (MemoryReach::Bus, registration.address()),
            (None, None) => (MemoryReach::Unreachable, 0),
        };
        let reached = reach != MemoryReach::Unreachable;
        let import = reached.then(|| Memory { address, span: span.clone(), _registration: registration });
        BatchMemory { reach, import, word_aligned_only: true, gather_only: false }
    }

    fn transfer_costs(&self) -> TransferCosts {
        let gpu = &*self.gpu;
        costs::device_costs(&gpu.about, || {
            let _here = gpu.enter().ok()?;
            let from = HostMemory::new(&gpu.context, costs::BUS_COPY_BYTES).ok()?;
            let to = DeviceMemory::new(&gpu.context, costs::BUS_COPY_BYTES).ok()?;
            let (begins, ends) = (Event::timed(&gpu.context).ok()?, Event::timed(&gpu.context).ok()?);
            begins.record(&gpu.uploads).ok()?;
            // SAFETY: both stay until the copy was waited for, or all that was queued was, and nobody writes to them.
            let copied = unsafe { to.bring_in(0, from.host(), costs::BUS_COPY_BYTES, &gpu.uploads) };
            let waited = copied.and_then(|()| ends.record(&gpu.uploads)).ok().and_then(|()| {
                let come = || ends.has_come().map_err(|code| gpu.failed("does not copy", code));
                wait::until(&gpu.id, &CancelToken::new(), come).ok()
            });
            if waited.is_none() {
                gpu.settle();
            }
            waited?;
            ends.since(&begins).ok().map(|milliseconds| Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
        })
    }

    fn chunk_limits(&self, layout: PacketLayout) -> ChunkLimits {
        match layout {
            // The kernel gets the span from its start, of which nothing is copied.
            PacketLayout::InPlace => ChunkLimits { binding: u64::MAX, alignment: 1 << 32, ..self.bounds },
            _ => self.bounds,
        }
    }

    fn new_buffers(&self) -> Buffers {
        Buffers { clock: self.clocks.then(|| Clock::new(&self.gpu.context)), ..Buffers::default() }
    }

    /// What a kernel reads stays in the slot until it is written to for another part.
    fn can_reuse_uploads(&self) -> bool {
        true
    }

    fn reuse_upload(&mut self, _: &ChunkView<'_>, _: KernelEffects, buffers: &mut Buffers) -> Result<(), DeviceError> {
        if let Some(clock) = &mut buffers.clock {
            clock.start();
        }
        Ok(())
    }

    fn upload(
        &mut self,
        part: &ChunkView<'_>,
        effects: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let (gpu, slot) = (&*self.gpu, &mut buffers.slot);
        let _here = gpu.enter()?;
        let from = part.import().filter(|_| part.layout() == PacketLayout::Copied && !part.bytes().is_empty());
        let shape = Shape::of(part, effects, from.is_some());
        slot.reserve(&gpu.context, &shape, Inside::GivenAndAnswers).map_err(|code| gpu.no_room("a batch", code))?;
        // SAFETY: the part that the slot was used for last was waited for (`Launcher`).
        buffers.origin = unsafe { slot.write(part, effects, &shape) };
        let at = slot.given_at;
        let written = if from.is_some() { at.packets } else { at.end };
        if let Some(clock) = &mut buffers.clock {
            clock.start();
        }
        // SAFETY: the slot's memory stays until the launch was waited for, and the batch's, with the registration, as
        // long; the range lies in the span (`chunk::split_batch`). Nobody else writes to those words meanwhile.
        let bring_in = || unsafe {
            let given = slot.inside().bring_in(0, slot.given().host(), written, &gpu.uploads);
            match from {
                Some(memory) => given.and_then(|()| {
                    let start = memory.span.as_ptr().add(part.bytes().start as usize);
                    slot.inside().bring_in(at.packets, start, slot.bytes, &gpu.uploads)
                }),
                None => given,
            }
        };
        let queued = Clock::around(buffers.clock.as_mut(), Stage::Upload, &gpu.uploads, bring_in);
        queued.map_err(|code| gpu.failed("does not take a copy", code))?;
        if in_place(part).is_some() {
            gpu.flush_remote_writes()
                .map_err(|code| gpu.failed("does not see what was written to its memory", code))?;
        }
        buffers.waits = !Arc::ptr_eq(&gpu.uploads, &gpu.kernels);
        if buffers.waits {
            gpu.uploads.record_in(&mut buffers.ready).map_err(|code| gpu.failed("has no event to give", code))?;
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
    ) -> Result<Arc<Event>, DeviceError> {
        let gpu = &*self.gpu;
        let _here = gpu.enter()?;
        let failed = |code| gpu.failed("does not take commands", code);
        if let Some(ready) = buffers.ready.as_ref().filter(|_| buffers.waits) {
            gpu.kernels.wait_for(ready).map_err(failed)?;
            buffers.waits = false;
        }
        // Away from the buffers, which are lent out meanwhile.
        let mut clock = buffers.clock.take();
        let ran = match &mut clock {
            None => self.run(part, buffers, first, count),
            Some(clock) => clock.begin(Stage::Kernel, &gpu.kernels).map_err(failed).and_then(|()| {
                self.run(part, buffers, first, count)?;
                clock.end(&gpu.kernels).map_err(failed)
            }),
        };
        buffers.clock = clock;
        ran?;
        if first + count < part.lanes() {
            return buffers.ended.next(&gpu.kernels).map_err(failed);
        }
        let (slot, stream) = (&buffers.slot, &*gpu.downloads);
        stream.follow(&gpu.kernels, &mut buffers.ran).map_err(failed)?;
        let (given, back) = (slot.given_at, slot.returned_at);
        // SAFETY: the slot's memory stays until the launch was waited for, and nobody looks before.
        let bring_back = || unsafe {
            let mut queued = slot.answers().bring_back(0, slot.returned(), 0, back.answers(), stream);
            if effects.resizes_packets {
                let ends = || slot.inside().bring_back(HEAD, slot.returned(), back.ends, slot.packets * 8, stream);
                queued = queued.and_then(|()| ends());
            }
            if effects.writes_packets && slot.bytes > 0 {
                let changed =
                    || slot.inside().bring_back(given.packets, slot.returned(), back.changed, slot.bytes, stream);
                queued = queued.and_then(|()| changed());
            }
            queued
        };
        let queued = Clock::around(buffers.clock.as_mut(), Stage::Download, stream, bring_back);
        queued.and_then(|()| buffers.ended.next(stream)).map_err(failed)
    }

    fn wait(&mut self, ticket: &Arc<Event>, cancel: &CancelToken) -> Result<(), DeviceError> {
        let gpu = &*self.gpu;
        let _here = gpu.enter()?;
        wait::until(&gpu.id, cancel, || ticket.has_come().map_err(|code| gpu.failed("the filter failed", code)))
    }

    fn enable_device_clock(&mut self) -> bool {
        self.clocks = true;
        true
    }

    fn device_times(&mut self, buffers: &mut Buffers) -> Option<DeviceTimes> {
        let _here = self.gpu.enter().ok()?;
        // What fails here fails again where it is told.
        buffers.clock.as_ref().and_then(|clock| clock.times().ok())
    }

    fn read_verdicts(
        &mut self,
        _: usize,
        buffers: &mut Buffers,
        columns: &mut VerdictColumns,
    ) -> Result<(), DeviceError> {
        // SAFETY: the launch was waited for (`Launcher`); the same below.
        unsafe { buffers.slot.verdicts(self.loaded.effects, columns) };
        Ok(())
    }

    fn read_descriptors(
        &mut self,
        _: usize,
        buffers: &mut Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { buffers.slot.ends() });
        Ok(())
    }

    fn read_packets(&mut self, _: u64, buffers: &mut Buffers, read: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { buffers.slot.changed() });
        Ok(())
    }

    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.loaded.maps.read(&self.gpu, map, at, words)
    }

    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.loaded.maps.write(&self.gpu, map, at, words)
    }

    fn wait_idle(&mut self) {
        self.gpu.settle();
    }

    fn try_drain(&mut self, _: &[&Arc<Event>], _: bool) -> bool {
        wait::within(DRAIN_TIMEOUT, None, || self.gpu.is_idle())
    }

    fn keep_alive(&mut self, kept: impl Send + 'static) {
        self.gpu.abandon(kept, || ());
    }
}
