//! Packet memory and batches: an [`Arena`] of bytes, [`Descriptor`]s that locate packets in it, a
//! [`Batch`] of those, and the [`Verdicts`] that a device returns. `docs/reference/abi.md`
//! specifies the layout in memory.

mod arena;
mod batch;
mod column;
pub mod gather;
mod metadata_summary;
mod summary;
mod verdict;

pub use arena::{Arena, ArenaError, DeviceView, READABLE_PAST_END, Span};
pub use batch::{
    Batch, BatchCutter, BatchError, BatchParts, Descriptor, MIN_PACKET_LENGTH, Metadata, PacketsMut, RESIZE_ROOM,
    ResizeRoom, SourceData,
};
pub use column::Column;
pub use metadata_summary::{MetadataAccumulator, MetadataFields, MetadataSummary};
pub use summary::DescriptorSummary;
pub use verdict::{Action, MAX_REDIRECT_TARGET, Verdict, VerdictCounts, Verdicts};
