//! What a backend says of its device: how buffers, copies and launches are made there.

use std::sync::Arc;
use std::time::Duration;

use super::{ChunkView, VerdictColumns};
use crate::device::chunk::{ChunkLimits, PacketLayout};
use crate::device::transfer_planner::{BatchMemory, TransferCosts};
use crate::device::{CancelToken, DeviceError, Imported};
use crate::packet::{Batch, Metadata, Span};

/// Parts of a batch at a device at once: enough to copy in, filter and copy out side by side.
pub(super) const PARTS: usize = 8;

/// What a kernel does, as far as it says what a session brings to it and back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelEffects {
    /// It looks at packets at all.
    pub accesses_packets: bool,
    /// It writes to packets.
    pub writes_packets: bool,
    /// It moves packets' ends, and leaves them in the descriptors.
    pub resizes_packets: bool,
    /// It reads metadata.
    pub metadata: bool,
    /// It gives targets beside the verdicts.
    pub redirects: bool,
    /// Expressions that it has, all functions inlined.
    pub size: u64,
}

/// How a device takes pieces of batches. One of these belongs to one session.
///
/// What it may rely on, also for memory that the device reaches by itself: the packets of a part that was shown to
/// [`Launcher::upload`] stay where they are and untouched by others, their import too, until [`Launcher::release`] was
/// called for the part's buffers, or until whatever was given to [`Launcher::outlive`] is dropped; both come after
/// the last launch over them was waited for, or [`Launcher::settle`] or [`Launcher::outlive`] saw to the device.
pub trait Launcher: Send + 'static {
    /// The buffers that a part needs. They are used for part after part, and live as long as the session.
    type Buffers: Send + 'static;
    /// Memory of batches that the device reaches.
    type Import: Send + 'static;
    /// A launch that somebody will wait for.
    type Ticket: Send + 'static;

    /// The device's id, for messages.
    fn id(&self) -> &str;

    /// Announces memory that batches will come from.
    ///
    /// # Errors
    /// Where the driver is lost.
    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError>;

    /// Whether the device reaches packets in this memory. Where the host does not, they are filtered where they are.
    fn can_reach(&self, span: &Span) -> bool {
        span.is_on_host()
    }

    /// What the device has to do with the memory of a batch, which is not empty and whose packets the kernel sees. With
    /// `asked` it is to reach that by itself if it can, else where that is worth it.
    fn batch_memory(&mut self, batch: &Batch, asked: bool) -> BatchMemory<Self::Import>;

    /// Why the filter's packets cannot be filtered where they lie, whatever memory that is.
    fn no_in_place_reason(&self) -> Option<String> {
        None
    }

    /// What moving bytes costs, where nobody says: asked for where there is a choice between ways that cost differently. The
    /// device may be measured for it, in a few milliseconds, where that was not done before.
    fn transfer_costs(&self) -> TransferCosts {
        TransferCosts::GEN4
    }

    /// Bytes that are copied for a part: to where the device reads them, and back. Of what it reads and writes where it lies
    /// there are none.
    fn traffic(&self, part: &ChunkView<'_, Self::Import>, effects: KernelEffects) -> TransferBytes {
        TransferBytes::of(part, effects)
    }

    /// Begins to take times on the device's own clock; it says whether it can. Before anything is queued.
    fn enable_device_clock(&mut self) -> bool {
        false
    }

    /// What the device's clock says of the part that was in these buffers, all of whose launches were waited for; `None` where
    /// it says nothing.
    fn device_times(&mut self, buffers: &mut Self::Buffers) -> Option<DeviceTimes> {
        let _ = buffers;
        None
    }

    /// What bounds a piece.
    fn chunk_limits(&self, layout: PacketLayout) -> ChunkLimits;

    /// New buffers, which need not have any room yet.
    fn new_buffers(&self) -> Self::Buffers;

    /// Parts of a batch that may be at the device at once, at least 1. A batch of more has the others wait, and takes no
    /// more memory.
    fn max_chunks(&self) -> usize {
        PARTS
    }

    /// Makes room for all parts of a batch before the first is brought to the device. Part `n` goes into buffers `n`
    /// modulo their number; none of them is in use. Nothing is queued that looks at the batch's memory. For devices that
    /// stop for that: others make room with each part.
    ///
    /// # Errors
    /// As [`Launcher::upload`]'s.
    fn reserve_chunks(
        &mut self,
        parts: &mut dyn Iterator<Item = ChunkView<'_, Self::Import>>,
        effects: KernelEffects,
        buffers: &mut [Self::Buffers],
    ) -> Result<(), DeviceError> {
        let _ = (parts, effects, buffers);
        Ok(())
    }

    /// Brings to the device what the kernel reads of a part, or sees to it that it comes before the kernel runs, and
    /// makes room for what the kernel writes.
    ///
    /// # Errors
    /// Where there is no memory, or the driver gives up. The batch then goes back to the caller, but where the session is cancelled:
    /// then completing it tells.
    fn upload(
        &mut self,
        part: &ChunkView<'_, Self::Import>,
        effects: KernelEffects,
        buffers: &mut Self::Buffers,
    ) -> Result<(), DeviceError>;

    /// Queues the kernel for `count` lanes of a part, from lane `first` of it on ([`ChunkView::lanes`]), and, where that is the
    /// rest of the part, bringing its results back. The launches of a part come in order. A ticket's launch has ended
    /// when all of this has.
    ///
    /// # Errors
    /// Where the driver gives up. The device may have begun all the same.
    fn launch(
        &mut self,
        part: &ChunkView<'_, Self::Import>,
        effects: KernelEffects,
        buffers: &mut Self::Buffers,
        first: usize,
        count: usize,
    ) -> Result<Self::Ticket, DeviceError>;

    /// Waits for a launch, looking at the token every [`CANCEL_POLL_INTERVAL`](super::SLICE) or so.
    ///
    /// # Errors
    /// [`DeviceError::Cancelled`] where the token was used meanwhile, and the device may be busy still;
    /// [`DeviceError::Failed`] where the launch has failed, or does not end.
    fn wait(&mut self, ticket: &Self::Ticket, cancel: &CancelToken) -> Result<(), DeviceError>;

    /// Appends a part's verdicts, which have come back, one a packet.
    ///
    /// # Errors
    /// Where the driver gives up.
    fn read_verdicts(
        &mut self,
        packets: usize,
        buffers: &mut Self::Buffers,
        columns: &mut VerdictColumns,
    ) -> Result<(), DeviceError>;

    /// Reads a part's descriptors as the kernel left them, two little-endian words a packet.
    ///
    /// # Errors
    /// As [`Launcher::verdicts`].
    fn read_descriptors(
        &mut self,
        packets: usize,
        buffers: &mut Self::Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError>;

    /// Reads a part's packets as the kernel left them, `bytes` bytes in the part's layout, which is a copy.
    ///
    /// # Errors
    /// As [`Launcher::verdicts`].
    fn read_packets(
        &mut self,
        bytes: u64,
        buffers: &mut Self::Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError>;

    /// A copy of so many words of a map of the filter's, from word `at` on, which lie in it. Nothing is queued.
    ///
    /// # Errors
    /// Where there are no maps, or the driver gives up.
    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        let _ = (at, words);
        Err(DeviceError::Unsupported { device: self.id().into(), reason: format!("it has no map {map}") })
    }

    /// Writes words of a map of the filter's, which lie in it. Nothing is queued, and what is queued after this finds
    /// them.
    ///
    /// # Errors
    /// As [`Launcher::read_map`].
    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        let _ = (at, words);
        Err(DeviceError::Unsupported { device: self.id().into(), reason: format!("it has no map {map}") })
    }

    /// Whether a part can be launched again over what it left in its buffers ([`Launcher::again`]).
    fn can_reuse_uploads(&self) -> bool {
        false
    }

    /// A part that was shown to [`Launcher::upload`] just now stays at the device: what was brought there is not to be written to
    /// until the session ends, and the buffers are released only then. Where [`Launcher::can_reuse_uploads`] says so.
    fn retain_upload(&mut self, buffers: &mut Self::Buffers) {
        let _ = buffers;
    }

    /// In place of [`Launcher::upload`] for a part that was kept, all of whose launches were waited for, and whose verdicts were read:
    /// it is launched again. The batch's memory is not what it was made of, and there is no import.
    ///
    /// # Errors
    /// As [`Launcher::upload`]'s.
    fn reuse_upload(
        &mut self,
        part: &ChunkView<'_, Self::Import>,
        effects: KernelEffects,
        buffers: &mut Self::Buffers,
    ) -> Result<(), DeviceError> {
        let _ = (part, effects, buffers);
        Ok(())
    }

    /// Lets go of the batch that the buffers were used for last.
    fn release(&mut self, buffers: &mut Self::Buffers) {
        let _ = buffers;
    }

    /// Waits until the device has nothing queued any more.
    fn wait_idle(&mut self);

    /// Whether the device is done with these launches within [`DRAIN_TIMEOUT`](super::GRACE). With `torn` there may be something queued
    /// that no ticket is about.
    fn try_drain(&mut self, tickets: &[&Self::Ticket], torn: bool) -> bool;

    /// Keeps something until the device is done with everything, without waiting for that.
    fn keep_alive(&mut self, kept: impl Send + 'static);
}

/// Bytes that are copied for a part of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransferBytes {
    /// Packets, descriptors and metadata, to where the device reads them.
    pub to_device: u64,
    /// Verdicts, targets, ends and packets, to where the host does.
    pub to_host: u64,
}

impl TransferBytes {
    /// Where everything is copied but packets that are filtered where they lie, and a verdict is a byte.
    pub fn of<I>(part: &ChunkView<'_, I>, effects: KernelEffects) -> TransferBytes {
        let (packets, copied) = (part.packets() as u64, if part.is_copied() { part.bytes() } else { 0..0 });
        let bytes = copied.end - copied.start;
        let when = |asked: bool, bytes: u64| if asked { bytes } else { 0 };
        let descriptors = when(effects.accesses_packets || part.is_ordered(), 8 * part.descriptor_count() as u64);
        TransferBytes {
            to_device: descriptors + when(effects.metadata, packets * size_of::<Metadata>() as u64) + bytes,
            to_host: packets
                + when(effects.redirects, 4 * packets)
                + when(effects.resizes_packets, 8 * packets)
                + when(effects.writes_packets, bytes),
        }
    }
}

/// What a device's clock says of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceTimes {
    /// Copying it in.
    pub upload: Duration,
    /// Its launches, without what was between them.
    pub kernel: Duration,
    /// Copying its results out.
    pub download: Duration,
}

impl DeviceTimes {
    pub(super) fn add(&mut self, other: DeviceTimes) {
        self.upload += other.upload;
        self.kernel += other.kernel;
        self.download += other.download;
    }
}
