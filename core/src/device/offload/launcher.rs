//! The interface between the shared session and a backend: buffers, copies and launches.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::{ChunkView, VerdictColumns, VerdictMemory};
use crate::device::chunk::{ChunkLimits, PacketLayout};
use crate::device::transfer_planner::{BatchMemory, MemoryReach, TransferCosts};
use crate::device::{CancelToken, DeviceError, Imported, StageTimes};
use crate::packet::{Batch, Metadata, Span};

/// Maximum number of a batch's chunks on the device at once: enough for copying in, filtering and
/// copying out to overlap.
pub(super) const MAX_CHUNKS_IN_FLIGHT: usize = 8;

/// Memory that a kernel accesses and results that it returns, which determine the transfers around
/// it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelEffects {
    /// The kernel reads or writes packet bytes.
    pub accesses_packets: bool,
    /// The kernel writes packet bytes.
    pub writes_packets: bool,
    /// The kernel resizes packets, and returns their descriptors.
    pub resizes_packets: bool,
    /// The kernel reads metadata.
    pub metadata: bool,
    /// The kernel returns redirect targets beside the actions.
    pub redirects: bool,
    /// Number of expressions, with all functions inlined.
    pub size: u64,
}

/// A backend's operations on chunks of batches. A launcher belongs to one session.
///
/// Guarantee to launchers, also for memory that the device accesses in place: after
/// [`Launcher::upload`] the chunk's packets, and their import, stay valid and are accessed by
/// nothing else until [`Launcher::release`] is called for its buffers, or the value given to
/// [`Launcher::keep_alive`] is dropped. Either comes after the last launch over them was waited
/// for, or after [`Launcher::wait_idle`], [`Launcher::try_drain`] or [`Launcher::keep_alive`].
pub trait Launcher: Send + 'static {
    /// Buffers for one chunk. They are reused for chunk after chunk, and live as long as the
    /// session.
    type Buffers: Send + 'static;
    /// Handle on memory of batches that the device accesses.
    type Import: Send + 'static;
    /// A queued launch that can be waited for.
    type Ticket: Send + 'static;
    /// Memory that kernels write verdicts to and that is handed out with them;
    /// [`NoVerdictMemory`](super::NoVerdictMemory) if there is none.
    type VerdictMemory: VerdictMemory;

    /// The device's id, for messages.
    fn id(&self) -> &str;

    /// Imports memory that batches will come from; see
    /// [`Session::import`](crate::device::Session::import).
    ///
    /// # Errors
    /// If the driver is lost.
    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError>;

    /// Whether the device can access packets in this memory. If the host cannot, they are filtered
    /// in place.
    fn can_reach(&self, span: &Span) -> bool {
        span.is_on_host()
    }

    /// Returns the device's access to the memory of a batch that is not empty and whose packets the
    /// kernel accesses. With `requested` the device is to access it directly if it can, otherwise
    /// only if that pays.
    fn batch_memory(&mut self, batch: &Batch, requested: bool) -> BatchMemory<Self::Import>;

    /// The reason why packets can never be filtered in place with this program, in any memory.
    fn no_in_place_reason(&self) -> Option<String> {
        None
    }

    /// Costs of moving bytes with this many threads of the host, if none were given when loading.
    /// Called when the choice depends on them; may measure host and device in a few milliseconds if
    /// there is no cached measurement.
    fn transfer_costs(&self, threads: NonZeroUsize) -> TransferCosts {
        let _ = threads;
        TransferCosts::GEN4
    }

    /// Number of packets in a chunk with which the stages of a batch's chunks overlap best: host
    /// work, copies and kernels. A larger batch is split into chunks of about that size.
    fn overlap_packets(&self, layout: PacketLayout, reach: MemoryReach) -> usize {
        let _ = (layout, reach);
        usize::MAX
    }

    /// Bytes copied for a chunk that was uploaded to these buffers, in either direction. Packets
    /// that the device accesses in place do not count; verdicts that it writes to host memory do.
    fn traffic(
        &self,
        chunk: &ChunkView<'_, Self::Import, Self::VerdictMemory>,
        effects: KernelEffects,
        buffers: &Self::Buffers,
    ) -> TransferBytes {
        let _ = buffers;
        TransferBytes::of(chunk, effects)
    }

    /// Starts to record times on the device's clock, before anything is queued. Returns whether the
    /// device can.
    fn enable_device_clock(&mut self) -> bool {
        false
    }

    /// Times on the device's clock of the chunk in these buffers, after all of its launches were
    /// waited for; `None` if the device has none. The gaps between launches do not count.
    fn device_times(&mut self, buffers: &mut Self::Buffers) -> Option<StageTimes> {
        let _ = buffers;
        None
    }

    /// Takes the next warning; see
    /// [`Instrumented::take_warnings`](crate::device::Instrumented::take_warnings).
    fn take_warning(&mut self) -> Option<String> {
        None
    }

    /// Limits of a chunk in this layout.
    fn chunk_limits(&self, layout: PacketLayout) -> ChunkLimits;

    /// Lends memory for the verdicts of a batch of `packets` packets, at least one, to which its
    /// launches write them ([`ChunkView::verdict_memory`]). Without it, as if the device has no
    /// such memory left, they are read by [`Launcher::read_verdicts`].
    ///
    /// # Errors
    /// If the driver is lost.
    fn lend_verdict_memory(
        &mut self,
        packets: usize,
        effects: KernelEffects,
    ) -> Result<Option<Arc<Self::VerdictMemory>>, DeviceError> {
        let _ = (packets, effects);
        Ok(None)
    }

    /// Creates buffers, which need no capacity yet.
    fn new_buffers(&self) -> Self::Buffers;

    /// Maximum number of a batch's chunks on the device at once, at least 1. Further chunks wait,
    /// so a batch of more chunks takes no more memory.
    fn max_chunks(&self) -> usize {
        MAX_CHUNKS_IN_FLIGHT
    }

    /// Reserves capacity for all chunks of a batch before the first is uploaded, for devices that
    /// stall when they allocate; others allocate in [`Launcher::upload`]. Chunk `n` uses buffers
    /// `n` modulo their number; none of them is in use. Queues nothing that accesses the batch's
    /// memory.
    ///
    /// # Errors
    /// As [`Launcher::upload`].
    fn reserve_chunks(
        &mut self,
        chunks: &mut dyn Iterator<Item = ChunkView<'_, Self::Import, Self::VerdictMemory>>,
        effects: KernelEffects,
        buffers: &mut [Self::Buffers],
    ) -> Result<(), DeviceError> {
        let _ = (chunks, effects, buffers);
        Ok(())
    }

    /// Uploads what the kernel reads of a chunk, or queues that before the kernel, and reserves
    /// capacity for what the kernel writes.
    ///
    /// # Errors
    /// If memory cannot be allocated or the driver fails. The batch is then returned to the caller,
    /// unless the session is cancelled: then
    /// [`Session::complete`](crate::device::Session::complete) reports it.
    fn upload(
        &mut self,
        chunk: &ChunkView<'_, Self::Import, Self::VerdictMemory>,
        effects: KernelEffects,
        buffers: &mut Self::Buffers,
    ) -> Result<(), DeviceError>;

    /// Queues `count` invocations of the kernel for a chunk, from number `first` on
    /// ([`ChunkView::invocations`]), and, if these are the last, reading back its results. The
    /// launches of a chunk come in order. The ticket covers all of this.
    ///
    /// # Errors
    /// If the driver fails. The device may have begun nevertheless.
    fn launch(
        &mut self,
        chunk: &ChunkView<'_, Self::Import, Self::VerdictMemory>,
        effects: KernelEffects,
        buffers: &mut Self::Buffers,
        first: usize,
        count: usize,
    ) -> Result<Self::Ticket, DeviceError>;

    /// Waits for a launch, checking the token about every
    /// [`CANCEL_POLL_INTERVAL`](super::CANCEL_POLL_INTERVAL).
    ///
    /// # Errors
    /// [`DeviceError::Cancelled`] if the token was triggered; the device may still be busy.
    /// [`DeviceError::Failed`] if the launch failed or does not end.
    fn wait(&mut self, ticket: &Self::Ticket, cancel: &CancelToken) -> Result<(), DeviceError>;

    /// Appends a completed chunk's verdicts, one per packet, if the batch has no lent memory.
    ///
    /// # Errors
    /// If the driver fails.
    fn read_verdicts(
        &mut self,
        packets: usize,
        buffers: &mut Self::Buffers,
        columns: &mut VerdictColumns,
    ) -> Result<(), DeviceError>;

    /// Passes a completed chunk's descriptors, as the kernel left them, to `read`: two
    /// little-endian words per packet.
    ///
    /// # Errors
    /// If the driver fails.
    fn read_descriptors(
        &mut self,
        packets: usize,
        buffers: &mut Self::Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError>;

    /// Passes a completed chunk's packets, as the kernel left them, to `read`: `bytes` bytes in the
    /// chunk's layout, which is a copy.
    ///
    /// # Errors
    /// If the driver fails.
    fn read_packets(
        &mut self,
        bytes: u64,
        buffers: &mut Self::Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError>;

    /// Copies `words` words of map `map` from word `at` on; the range lies in the map. Nothing is
    /// queued.
    ///
    /// # Errors
    /// If the device has no maps, or the driver fails.
    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        let _ = (at, words);
        Err(DeviceError::Unsupported { device: self.id().into(), reason: format!("it has no map {map}") })
    }

    /// Writes words of a map; the range lies in the map. Nothing is queued, and work queued
    /// afterwards sees the new words.
    ///
    /// # Errors
    /// As [`Launcher::read_map`].
    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        let _ = (at, words);
        Err(DeviceError::Unsupported { device: self.id().into(), reason: format!("it has no map {map}") })
    }

    /// The device address of a map, for other kernels of the process; `None` if the device's API
    /// has no addresses.
    fn map_address(&self, map: usize) -> Option<u64> {
        let _ = map;
        None
    }

    /// Whether a chunk can be launched again over its previous upload ([`Launcher::reuse_upload`]).
    fn can_reuse_uploads(&self) -> bool {
        false
    }

    /// Called after [`Launcher::upload`] of a chunk that stays resident: its upload must not be
    /// overwritten, nor its buffers released, until the session ends. Only if
    /// [`Launcher::can_reuse_uploads`].
    fn retain_upload(&mut self, buffers: &mut Self::Buffers) {
        let _ = buffers;
    }

    /// Replaces [`Launcher::upload`] for a resident chunk, after all of its launches were waited
    /// for and its verdicts read. The batch is in other memory than the upload, and there is no
    /// import.
    ///
    /// # Errors
    /// As [`Launcher::upload`].
    fn reuse_upload(
        &mut self,
        chunk: &ChunkView<'_, Self::Import, Self::VerdictMemory>,
        effects: KernelEffects,
        buffers: &mut Self::Buffers,
    ) -> Result<(), DeviceError> {
        let _ = (chunk, effects, buffers);
        Ok(())
    }

    /// Called in place of [`Launcher::release`] after the results of a resident chunk were read:
    /// its upload stays, and the batch's memory for verdicts is handed out.
    fn release_results(&mut self, buffers: &mut Self::Buffers) {
        let _ = buffers;
    }

    /// Releases the batch that the buffers were last used for.
    fn release(&mut self, buffers: &mut Self::Buffers) {
        let _ = buffers;
    }

    /// Waits until the device has nothing queued.
    fn wait_idle(&mut self);

    /// Waits at most [`DRAIN_TIMEOUT`](super::DRAIN_TIMEOUT) for these launches, and returns
    /// whether the device is done. With `has_untracked_work`, work without a ticket may be queued
    /// too.
    fn try_drain(&mut self, tickets: &[&Self::Ticket], has_untracked_work: bool) -> bool;

    /// Keeps a value alive until the device is done with everything, without waiting for it.
    fn keep_alive(&mut self, value: impl Send + 'static);
}

/// Number of bytes copied for a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransferBytes {
    /// Packets, descriptors and metadata, copied to where the device reads them.
    pub to_device: u64,
    /// Verdicts, targets, descriptors and packets, copied to where the host reads them.
    pub to_host: u64,
}

impl TransferBytes {
    /// The bytes if everything but packets in place is copied, and a verdict is one byte.
    pub fn of<I, M>(chunk: &ChunkView<'_, I, M>, effects: KernelEffects) -> TransferBytes {
        let (packets, copied) = (chunk.packets() as u64, if chunk.is_copied() { chunk.bytes() } else { 0..0 });
        let bytes = copied.end - copied.start;
        let if_needed = |needed: bool, bytes: u64| if needed { bytes } else { 0 };
        let descriptors =
            if_needed(effects.accesses_packets || chunk.is_ordered(), 8 * chunk.descriptor_count() as u64);
        TransferBytes {
            to_device: descriptors + if_needed(effects.metadata, packets * size_of::<Metadata>() as u64) + bytes,
            to_host: packets
                + if_needed(effects.redirects, 4 * packets)
                + if_needed(effects.resizes_packets, 8 * packets)
                + if_needed(effects.writes_packets, bytes),
        }
    }
}
