//! A launcher's view of a chunk of a batch.

use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::flow_order::FlowOrder;
use crate::device::chunk::{self, AccessNeeds, Chunk, OVERREAD_BYTES, PacketLayout};
use crate::packet::gather::{StorePolicy, WindowRows};
use crate::packet::{Batch, Descriptor, Metadata};

/// Size in bytes from which a copy is written with non-temporal stores: it would evict too much of
/// the caches.
const MIN_STREAMED_BYTES: usize = 1 << 20;

/// A chunk of a batch, and where the kernel finds its packets.
pub struct ChunkView<'a, I> {
    pub(super) batch: &'a Batch,
    pub(super) chunk: &'a Chunk,
    pub(super) layout: PacketLayout,
    pub(super) needs: AccessNeeds,
    pub(super) import: Option<&'a I>,
    pub(super) flow_order: Option<&'a FlowOrder>,
    /// Host time spent copying packets.
    pub(super) gather_time: Cell<Duration>,
}

impl<'a, I> ChunkView<'a, I> {
    /// Number of packets; at least one.
    pub fn packets(&self) -> usize {
        self.chunk.packets.len()
    }

    /// Where the kernel finds the packets.
    pub fn layout(&self) -> PacketLayout {
        self.layout
    }

    /// The handle that [`Launcher::batch_memory`](super::Launcher::batch_memory) returned for the
    /// batch's memory.
    pub fn import(&self) -> Option<&'a I> {
        self.import
    }

    /// The byte range that holds the packets: in the batch's memory, or in the buffer of a packed
    /// or row layout.
    pub fn bytes(&self) -> Range<u64> {
        self.chunk.bytes.clone()
    }

    /// Whether the kernel works on a copy of the packets.
    pub fn is_copied(&self) -> bool {
        self.layout.is_copy()
    }

    /// Size in bytes of a buffer for the copy, including the bytes behind it that kernels may read.
    pub fn copy_size(&self) -> u64 {
        self.chunk.bytes.end - self.chunk.bytes.start + OVERREAD_BYTES
    }

    /// The ranges to copy, with their offsets in the buffer: all packets as one range, or one range
    /// per packet. None for rows.
    fn copy_ranges(&self) -> impl Iterator<Item = (usize, &'a [u8])> + '_ {
        let whole = (self.layout == PacketLayout::Copied).then(|| (0, self.batch.bytes(self.chunk.bytes.clone())));
        let packed = if self.layout == PacketLayout::Packed { self.chunk.packets.clone() } else { 0..0 };
        let packed = packed.zip(self.kernel_descriptors()).map(|(index, d)| {
            let bytes = &self.batch.packet(index)[..self.needs.copied_len(d.length) as usize];
            (d.offset as usize, bytes)
        });
        whole.into_iter().chain(packed)
    }

    /// Writes the copy to the start of a buffer of [`ChunkView::copy_size`] bytes, and adds the
    /// time to `gather_time`. Large copies are stored by `store`.
    ///
    /// # Panics
    /// If `to` is too short.
    pub fn copy_into(&self, to: &mut [u8], store: StorePolicy) {
        let start = Instant::now();
        if self.layout == PacketLayout::Rows {
            let rows = WindowRows::new(self.batch, self.chunk.packets.clone(), self.needs.window);
            rows.write(to, if rows.size() >= MIN_STREAMED_BYTES { store } else { StorePolicy::Cached });
        }
        for (at, bytes) in self.copy_ranges() {
            to[at..at + bytes.len()].copy_from_slice(bytes);
        }
        self.gather_time.set(self.gather_time.get() + start.elapsed());
    }

    /// The byte range of the batch's memory from the first packet to the last, rooms included if
    /// the filter may use them; `None` if all packets are empty.
    pub fn extent(&self) -> Option<Range<u64>> {
        chunk::extent(self.batch, self.chunk.packets.clone(), self.needs)
    }

    /// The packets in the batch's memory.
    pub fn descriptors(&self) -> &'a [Descriptor] {
        &self.batch.descriptors()[self.chunk.packets.clone()]
    }

    /// Whether packets without bytes may be among the packets: their offsets in the batch's memory
    /// may lie outside [`ChunkView::bytes`].
    pub fn has_empty_packets(&self) -> bool {
        self.batch.has_empty_packets()
    }

    /// The packets in the arena that the kernel sees.
    pub fn kernel_descriptors(&self) -> impl Iterator<Item = Descriptor> + 'a {
        chunk::kernel_descriptors(self.batch, self.chunk, self.layout, self.needs)
    }

    /// The flow order, for filters with flows.
    pub(super) fn flow_order(&self) -> Option<&'a FlowOrder> {
        self.flow_order
    }

    /// Whether the kernel takes the packets in flow order. Then descriptors and metadata differ in
    /// order from the batch.
    pub fn is_ordered(&self) -> bool {
        self.flow_order.is_some()
    }

    /// Returns the number of kernel invocations: one per packet, or one per run of packets of a
    /// flow.
    pub fn invocations(&self) -> usize {
        self.flow_order.map_or(self.packets(), FlowOrder::runs)
    }

    /// Index of the descriptor, of a packet or of a run, that tells `invocation` what to filter: a
    /// kernel's `base`.
    pub fn base(&self, invocation: usize) -> usize {
        if self.is_ordered() { self.packets() + invocation } else { invocation }
    }

    /// Number of descriptors that the kernel reads: those of the packets, and of the runs if there
    /// are any.
    pub fn descriptor_count(&self) -> usize {
        self.base(self.invocations())
    }

    /// The descriptors as the kernel reads them (`docs/reference/abi.md`): packets in the kernel's
    /// order, then runs.
    pub fn descriptor_bytes(&self) -> impl Iterator<Item = [u8; size_of::<Descriptor>()]> + 'a {
        let plain = self.flow_order.is_none().then(|| self.kernel_descriptors());
        let ordered = self.flow_order.map(|order| order.descriptors(self.kernel_descriptors().collect()));
        let all = plain.into_iter().flatten().chain(ordered.into_iter().flatten());
        all.map(|d| (u64::from(d.offset) | u64::from(d.length) << 32).to_le_bytes())
    }

    /// The packets' metadata as a slice of the batch's, if the batch has any and the kernel reads
    /// it in this order.
    pub fn metadata(&self) -> Option<&'a [Metadata]> {
        let all = self.batch.metadata();
        (!all.is_empty() && self.flow_order.is_none()).then(|| &all[self.chunk.packets.clone()])
    }

    /// The packets' metadata as the kernel reads it (`docs/reference/abi.md`), in the kernel's
    /// order; derived from the descriptors if the batch has none.
    pub fn metadata_bytes(&self) -> impl Iterator<Item = [u8; size_of::<Metadata>()]> + 'a {
        let (batch, flow_order, first) = (self.batch, self.flow_order, self.chunk.packets.start);
        self.chunk.packets.clone().map(move |index| {
            let index = flow_order.map_or(index, |order| first + order.positions()[index - first] as usize);
            batch.metadata_of(index).to_bytes()
        })
    }
}
