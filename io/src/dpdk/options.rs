//! Configuration of a run.

use portcullis_core::packet::ResizeRoom;

use super::gpudev::Mempool;
use super::pass_target::PassTarget;
use super::spec::PortSpec;

/// Configuration of a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Ports that packets are received on. A port's number in metadata is its index here.
    pub ports: Vec<PortSpec>,
    /// Number of receive queues per port; each has its own lane unless `one_lane` is set.
    pub queues: u16,
    /// Whether one lane serves all queues, for filters whose state is shared by all packets.
    pub one_lane: bool,
    /// Output port of each redirect target: one of `ports`, or another.
    pub redirect: Vec<(u32, PortSpec)>,
    /// Destination of passed packets; `None` drops them. Packets received from there are forwarded
    /// out of the first of `ports`, past the filter, unless the destination is one of `ports`
    /// itself.
    pub pass_to: Option<PassTarget>,
    /// Additional EAL arguments.
    pub eal: Vec<String>,
    /// Whether packets have headroom and tailroom, for filters that change packet lengths.
    pub room: ResizeRoom,
    /// Whether batches carry metadata.
    pub metadata: bool,
    /// Whether the filter writes to packets (like `af_xdp::Options::rewrites`).
    pub rewrites: bool,
    /// Packets per queue, at least 64: drivers' rings hold up to 2,048 of them, the others are in
    /// batches.
    pub packets: u32,
    /// Minimum packets per queue for which the EAL reserves memory. It is initialised only once, so
    /// this covers later runs of the process.
    pub later: u32,
    /// Location of packet buffers.
    pub mempool: Mempool,
    /// Header split: this many bytes of each packet are received into host memory, the rest where
    /// `mempool` says.
    pub split: Option<u16>,
    /// Number of items in each lane's communication list, which tells the GPU about batches:
    /// batches in flight beyond it are dropped.
    pub items: u32,
}

impl Options {
    /// Default number of packets per queue.
    pub const PACKETS: u32 = 8192;

    /// Default number of communication list items: more than the batches that a session accepts.
    pub const ITEMS: u32 = 64;

    /// Options for these ports with one queue each and no other outputs, for filters that neither
    /// read metadata nor change packets.
    pub fn new(ports: Vec<PortSpec>) -> Options {
        Options {
            ports,
            queues: 1,
            one_lane: false,
            redirect: Vec::new(),
            pass_to: None,
            eal: Vec::new(),
            room: ResizeRoom::None,
            metadata: false,
            rewrites: false,
            packets: Options::PACKETS,
            later: 0,
            mempool: Mempool::Host,
            split: None,
            items: Options::ITEMS,
        }
    }

    /// Sets [`Options::queues`].
    #[must_use]
    pub fn with_queues(self, queues: u16) -> Options {
        Options { queues, ..self }
    }

    /// Sets [`Options::one_lane`].
    #[must_use]
    pub fn with_one_lane(self, one_lane: bool) -> Options {
        Options { one_lane, ..self }
    }

    /// Sets [`Options::redirect`].
    #[must_use]
    pub fn with_redirect(self, redirect: Vec<(u32, PortSpec)>) -> Options {
        Options { redirect, ..self }
    }

    /// Sets [`Options::pass_to`].
    #[must_use]
    pub fn with_pass_to(self, pass_to: impl Into<Option<PassTarget>>) -> Options {
        Options { pass_to: pass_to.into(), ..self }
    }

    /// Sets [`Options::eal`].
    #[must_use]
    pub fn with_eal(self, eal: Vec<String>) -> Options {
        Options { eal, ..self }
    }

    /// Sets [`Options::room`].
    #[must_use]
    pub fn with_room(self, room: ResizeRoom) -> Options {
        Options { room, ..self }
    }

    /// Sets [`Options::metadata`].
    #[must_use]
    pub fn with_metadata(self, metadata: bool) -> Options {
        Options { metadata, ..self }
    }

    /// Sets [`Options::rewrites`].
    #[must_use]
    pub fn with_rewrites(self, rewrites: bool) -> Options {
        Options { rewrites, ..self }
    }

    /// Sets [`Options::packets`].
    #[must_use]
    pub fn with_packets(self, packets: u32) -> Options {
        Options { packets, ..self }
    }

    /// Sets [`Options::later`].
    #[must_use]
    pub fn with_later(self, later: u32) -> Options {
        Options { later, ..self }
    }

    /// Sets [`Options::mempool`].
    #[must_use]
    pub fn with_mempool(self, mempool: Mempool) -> Options {
        Options { mempool, ..self }
    }

    /// Sets [`Options::split`].
    #[must_use]
    pub fn with_split(self, split: impl Into<Option<u16>>) -> Options {
        Options { split: split.into(), ..self }
    }

    /// Sets [`Options::items`].
    #[must_use]
    pub fn with_items(self, items: u32) -> Options {
        Options { items, ..self }
    }
}
