//! Metadata of packets that have none.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use portcullis_core::packet::{Batch, Descriptor, Metadata};

use super::column::Column;
use super::shared::Shared;

/// Whether the filter reads metadata and the batch has none.
pub(super) fn is_needed(shared: &Shared, batch: &Batch) -> bool {
    shared.program.facts().uses_metadata && batch.metadata().is_empty()
}

/// A column of default metadata, which the threads write that filter the packets.
pub(super) struct DefaultMetadata {
    shared: Arc<Shared>,
    /// Returned to [`Shared::metadata_columns`] when dropped.
    column: Column<Metadata>,
    /// The packets' descriptors on arrival.
    original: *const Descriptor,
}

impl DefaultMetadata {
    pub fn new(shared: &Arc<Shared>, batch: &Batch) -> DefaultMetadata {
        let column = shared.metadata_columns.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut column = column.unwrap_or_else(Column::new);
        column.reserve(batch.len());
        DefaultMetadata { shared: shared.clone(), column, original: batch.original().as_ptr() }
    }

    pub fn as_ptr(&self) -> *const Metadata {
        self.column.as_mut_ptr(0)
    }

    /// Writes the metadata of packets.
    ///
    /// # Safety
    ///
    /// The batch still has these packets, and no other thread accesses their metadata.
    pub unsafe fn write(&self, packets: Range<usize>) {
        // SAFETY: by the caller's promise.
        let (metadata, original) = unsafe {
            let original = std::slice::from_raw_parts(self.original.add(packets.start), packets.len());
            (self.column.slice_mut(packets), original)
        };
        for (metadata, descriptor) in metadata.iter_mut().zip(original) {
            *metadata = Metadata { wire_length: descriptor.length, ..Metadata::default() };
        }
    }
}

impl Drop for DefaultMetadata {
    fn drop(&mut self) {
        let column = std::mem::replace(&mut self.column, Column::new());
        self.shared.metadata_columns.lock().unwrap_or_else(PoisonError::into_inner).push(column);
    }
}
