//! What a launcher is shown of a batch.

use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::flow_order::Order;
use crate::device::chunk::{self, AccessNeeds, Chunk, OVERREAD_BYTES, PacketLayout};
use crate::packet::gather::{StorePolicy, WindowRows};
use crate::packet::{Batch, Descriptor, Metadata};

/// Bytes from which on a copy is not worth having in the caches: there is no room for more.
const STREAMED: usize = 1 << 20;

/// A piece of a batch, with where the kernel finds it.
pub struct ChunkView<'a, I> {
    pub(super) batch: &'a Batch,
    pub(super) piece: &'a Chunk,
    pub(super) layout: PacketLayout,
    pub(super) needs: AccessNeeds,
    pub(super) import: Option<&'a I>,
    pub(super) order: Option<&'a Order>,
    /// How long the host has copied packets.
    pub(super) gathered: Cell<Duration>,
}

impl<'a, I> ChunkView<'a, I> {
    /// Number of packets; at least one.
    pub fn packets(&self) -> usize {
        self.piece.packets.len()
    }

    /// Where the kernel finds the packets.
    pub fn layout(&self) -> PacketLayout {
        self.layout
    }

    /// What [`Launcher::batch_memory`](super::Launcher::site) said of the batch's memory.
    pub fn import(&self) -> Option<&'a I> {
        self.import
    }

    /// The bytes that hold the packets: of the batch's memory, or, packed, of the buffer.
    pub fn bytes(&self) -> Range<u64> {
        self.piece.bytes.clone()
    }

    /// Whether the kernel gets a copy of the packets.
    pub fn is_copied(&self) -> bool {
        self.layout.is_copy()
    }

    /// Bytes of a buffer that holds the copy, with what may be looked at behind it.
    pub fn copy_size(&self) -> u64 {
        self.piece.bytes.end - self.piece.bytes.start + OVERREAD_BYTES
    }

    /// What the copy is made of where it is no rows: where in the buffer, and the bytes. All of it as one, or packet by packet.
    fn copies(&self) -> impl Iterator<Item = (usize, &'a [u8])> + '_ {
        let whole = (self.layout == PacketLayout::Copied).then(|| (0, self.batch.bytes(self.piece.bytes.clone())));
        let packed = if self.layout == PacketLayout::Packed { self.piece.packets.clone() } else { 0..0 };
        let packed = packed.zip(self.seen()).map(|(index, d)| {
            let bytes = &self.batch.packet(index)[..self.needs.of(d.length) as usize];
            (d.offset as usize, bytes)
        });
        whole.into_iter().chain(packed)
    }

    /// Writes the copy to the start of a buffer of [`ChunkView::copy_size`] bytes, and takes note of how long that takes. `store` is
    /// how, where the copy is large.
    ///
    /// # Panics
    /// Where there is no room for it.
    pub fn copy_into(&self, to: &mut [u8], store: StorePolicy) {
        let began = Instant::now();
        if self.layout == PacketLayout::Rows {
            let rows = WindowRows::new(self.batch, self.piece.packets.clone(), self.needs.window);
            rows.write(to, if rows.size() >= STREAMED { store } else { StorePolicy::Cached });
        }
        for (at, bytes) in self.copies() {
            to[at..at + bytes.len()].copy_from_slice(bytes);
        }
        self.gathered.set(self.gathered.get() + began.elapsed());
    }

    /// The bytes of the batch's memory from the first packet to the last, rooms included where the filter may use
    /// them; `None` where no packet has any.
    pub fn extent(&self) -> Option<Range<u64>> {
        chunk::extent(self.batch, self.piece.packets.clone(), self.needs)
    }

    /// Where the packets lie in the batch's memory.
    pub fn descriptors(&self) -> &'a [Descriptor] {
        &self.batch.descriptors()[self.piece.packets.clone()]
    }

    /// Where the packets lie in the arena that the kernel sees.
    pub fn seen(&self) -> impl Iterator<Item = Descriptor> + 'a {
        chunk::kernel_descriptors(self.batch, self.piece, self.layout, self.needs)
    }

    /// The order in which the kernel takes the packets, where it is that of their flows.
    pub(super) fn order(&self) -> Option<&'a Order> {
        self.order
    }

    /// Whether the kernel takes the packets in the order of their flows: then what it reads of each is not as the batch
    /// has it.
    pub fn is_ordered(&self) -> bool {
        self.order.is_some()
    }

    /// Number of lanes that take the packets: one a packet, or one a run of packets of a flow.
    pub fn lanes(&self) -> usize {
        self.order.map_or(self.packets(), Order::runs)
    }

    /// The number of the descriptor that tells what a lane takes, a packet's or a run's: a kernel's `base`.
    pub fn base(&self, lane: usize) -> usize {
        if self.is_ordered() { self.packets() + lane } else { lane }
    }

    /// Number of descriptors that the kernel reads: of the packets, and of the runs where there are any.
    pub fn descriptor_count(&self) -> usize {
        self.base(self.lanes())
    }

    /// Where the packets lie, as the kernel reads it (`docs/abi.md`), in the kernel's order, and behind that the runs.
    pub fn descriptor_bytes(&self) -> impl Iterator<Item = [u8; size_of::<Descriptor>()]> + 'a {
        let plain = self.order.is_none().then(|| self.seen());
        let ordered = self.order.map(|order| order.descriptors(self.seen().collect()));
        let all = plain.into_iter().flatten().chain(ordered.into_iter().flatten());
        all.map(|d| (u64::from(d.offset) | u64::from(d.length) << 32).to_le_bytes())
    }

    /// The packets' metadata, where the batch has any and the kernel takes it as it is there.
    pub fn metadata(&self) -> Option<&'a [Metadata]> {
        let all = self.batch.metadata();
        (!all.is_empty() && self.order.is_none()).then(|| &all[self.piece.packets.clone()])
    }

    /// The packets' metadata, made up where the batch has none, as the kernel reads it (`docs/abi.md`), in the kernel's
    /// order.
    pub fn metadata_bytes(&self) -> impl Iterator<Item = [u8; size_of::<Metadata>()]> + 'a {
        let (batch, order, start) = (self.batch, self.order, self.piece.packets.start);
        self.piece.packets.clone().map(move |index| {
            let index = order.map_or(index, |order| start + order.positions()[index - start] as usize);
            batch.metadata_of(index).to_bytes()
        })
    }
}
