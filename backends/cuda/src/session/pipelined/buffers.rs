//! Buffers of a chunk for `pipelined` and `inline`, and their layout.
//!
//! What the host writes lies in one piece of pinned memory, and is copied to the device at once:
//! metadata, then the packets that the host gathers, then the descriptors. The sizes of metadata
//! and descriptors are known once they are written. Packets that the device copies from where they
//! lie come behind that, in the device's memory only.

use std::sync::Arc;

use portcullis_core::device::chunk::OVERREAD_BYTES;
use portcullis_core::device::descriptor_format::DescriptorRule;
use portcullis_core::device::metadata_format::{MetadataRule, WrittenMetadata};
use portcullis_core::device::offload::{ChunkView, KernelEffects, VerdictColumns, WrittenDescriptors, le_words};
use portcullis_core::packet::MetadataFields;
use portcullis_core::packet::gather::StorePolicy;

use crate::driver::ErrorCode;
use crate::driver::context::Context;
use crate::driver::stream::{Event, EventPool, Stream};
use crate::memory::{Buffer, DeviceMemory, HostMemory, ensure_capacity, ensure_capacity_by};
use crate::session::slots::{ResponseLayout, aligned};
use crate::session::timing::StageTimer;

/// Byte offsets of the sections of what a chunk's kernel reads; metadata comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UploadLayout {
    /// Packets that the host gathers.
    gathered: usize,
    descriptors: usize,
    /// Packets that the device copies; the end of what the host writes.
    copied: usize,
    /// End of all sections.
    end: usize,
    /// Size of the packets, wherever they are.
    bytes: usize,
}

impl UploadLayout {
    /// Lays out a chunk with that many bytes of metadata. With `device_copies`, the device copies
    /// the packets from where they lie.
    pub fn new<I, M>(
        chunk: &ChunkView<'_, I, M>,
        effects: KernelEffects,
        metadata: usize,
        device_copies: bool,
    ) -> UploadLayout {
        let bytes = if chunk.is_copied() { (chunk.bytes().end - chunk.bytes().start) as usize } else { 0 };
        UploadLayout::of_sizes(metadata, bytes, chunk.descriptor_capacity(effects), device_copies)
    }

    fn of_sizes(metadata: usize, bytes: usize, descriptors: usize, device_copies: bool) -> UploadLayout {
        let gathered = aligned(metadata);
        let (host_bytes, device_bytes) = if device_copies { (0, bytes) } else { (bytes, 0) };
        let descriptors_at = gathered + aligned(host_bytes);
        let copied = descriptors_at + aligned(descriptors);
        // Kernels may read behind the last packet, if only descriptors.
        let behind = if bytes > 0 { OVERREAD_BYTES as usize } else { 0 };
        UploadLayout { gathered, descriptors: descriptors_at, copied, end: copied + device_bytes + behind, bytes }
    }

    /// Offset of the packets.
    fn packets(&self, device_copies: bool) -> usize {
        if device_copies { self.copied } else { self.gathered }
    }
}

/// Whether a buffer has room for that many bytes.
fn fits<T: Buffer>(buffer: &Option<T>, bytes: usize) -> bool {
    bytes == 0 || buffer.as_ref().is_some_and(|buffer| buffer.size() >= bytes)
}

/// Buffers for one chunk, reused for chunk after chunk.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Memory that the host writes.
    staging: Option<HostMemory>,
    /// Memory that the kernel reads.
    device: Option<DeviceMemory>,
    /// Verdicts and targets of batches without lent memory.
    verdicts: Option<DeviceMemory>,
    /// Results that are copied back.
    response: Option<HostMemory>,
    layout: UploadLayout,
    response_layout: ResponseLayout,
    descriptors: WrittenDescriptors,
    metadata: WrittenMetadata,
    /// The fields of metadata that the kernel reads.
    metadata_fields: MetadataFields,
    device_copies: bool,
    packets: usize,
    /// Size in bytes of what the host has written.
    written: usize,
    // Events are reused, since creating one is a driver call.
    pub uploaded: Option<Event>,
    pub kernel_done: Option<Event>,
    pub completions: EventPool,
    /// Whether the next kernel still has to wait for the upload.
    pub awaits_upload: bool,
    /// Whether what the kernel has changed is still to be copied back, once it has ended.
    pub awaits_download: bool,
    /// Present if stages are timed.
    pub timer: Option<StageTimer>,
}

impl Buffers {
    /// Buffers without capacity for a kernel that reads these fields of metadata; with a timer if
    /// stages are timed.
    pub fn new(metadata_fields: MetadataFields, timer: Option<StageTimer>) -> Buffers {
        Buffers { metadata_fields, timer, ..Buffers::default() }
    }

    /// Ensures capacity for a chunk. With `device_copies`, the device copies the packets from where
    /// they lie.
    pub fn reserve<I, M>(
        &mut self,
        context: &Arc<Context>,
        chunk: &ChunkView<'_, I, M>,
        effects: KernelEffects,
        device_copies: bool,
    ) -> Result<(), ErrorCode> {
        let metadata = chunk.metadata_capacity(self.metadata_fields);
        let layout = UploadLayout::new(chunk, effects, metadata, device_copies);
        if !fits(&self.staging, layout.copied) || !fits(&self.device, layout.end) {
            let _quiescent = context.quiesce()?;
            ensure_capacity(&mut self.device, layout.end, context)?;
            ensure_capacity_by(&mut self.staging, layout.copied, |size| HostMemory::for_copies(context, size))?;
        }
        (self.layout, self.device_copies, self.packets) = (layout, device_copies, chunk.packets());
        self.reserve_results(context, chunk, effects)
    }

    /// Ensures capacity for what is copied back of the chunk that was reserved for. A resident
    /// chunk is launched again, maybe without the lent memory that it had before.
    pub fn reserve_results<I, M>(
        &mut self,
        context: &Arc<Context>,
        chunk: &ChunkView<'_, I, M>,
        effects: KernelEffects,
    ) -> Result<(), ErrorCode> {
        let has_lent_memory = chunk.verdict_memory().is_some();
        let response = ResponseLayout::new(effects, self.packets, self.layout.bytes, !has_lent_memory);
        let verdicts = if has_lent_memory { 0 } else { response.descriptors };
        if !fits(&self.verdicts, verdicts) || !fits(&self.response, response.end) {
            let _quiescent = context.quiesce()?;
            ensure_capacity(&mut self.verdicts, verdicts, context)?;
            ensure_capacity_by(&mut self.response, response.end, |size| HostMemory::for_copies(context, size))?;
        }
        self.response_layout = response;
        Ok(())
    }

    /// Why the host's memory is not pinned; `None` if it is.
    pub fn pinning_refusal(&self) -> Option<ErrorCode> {
        [&self.staging, &self.response].into_iter().flatten().find_map(HostMemory::pinning_refusal)
    }

    /// Writes what the host contributes to a chunk, and returns its size in bytes.
    ///
    /// # Safety
    /// All queued commands that use these buffers have completed.
    pub unsafe fn write<I, M>(&mut self, chunk: &ChunkView<'_, I, M>, effects: KernelEffects) -> usize {
        let to: &mut [u8] = match &self.staging {
            // SAFETY: no queued command uses it, by the caller's promise; the borrow ends in this
            // function.
            Some(staging) => unsafe { staging.slice_mut(0, self.layout.copied) },
            None => &mut [],
        };
        self.metadata = chunk.write_metadata(self.metadata_fields, to);
        // What follows moves up if the metadata is smaller than it might have been.
        self.layout = UploadLayout::new(chunk, effects, self.metadata.size, self.device_copies);
        let at = self.layout;
        if chunk.is_copied() && !self.device_copies {
            chunk.copy_into(&mut to[at.gathered..], StorePolicy::Streamed);
        }
        self.descriptors = chunk.write_descriptors(effects, &mut to[at.descriptors..]);
        let gathered = if self.device_copies { 0 } else { at.bytes };
        let end_of_packets = at.gathered + gathered;
        let size = self.descriptors.size;
        self.written = match (size, gathered) {
            (0, 0) => self.metadata.size,
            (0, _) => end_of_packets,
            _ => at.descriptors + size,
        };
        self.written
    }

    /// Bytes copied to the device.
    pub fn uploaded_bytes(&self) -> u64 {
        (self.written + if self.device_copies { self.layout.bytes } else { 0 }) as u64
    }

    /// Memory that the host has written.
    pub fn staging(&self) -> &HostMemory {
        self.staging.as_ref().expect("reserved before it is used")
    }

    /// Memory that the kernel reads.
    pub fn device(&self) -> &DeviceMemory {
        self.device.as_ref().expect("reserved before it is used")
    }

    /// Offset of packets that the device copies, and their size in bytes.
    pub fn copied_packets(&self) -> (usize, usize) {
        (self.layout.copied, self.layout.bytes)
    }

    fn device_address(&self) -> u64 {
        self.device.as_ref().map_or(0, DeviceMemory::address)
    }

    /// Address of the metadata's tables for the kernel, and how it finds them.
    pub fn metadata(&self) -> (u64, MetadataRule) {
        (self.device_address(), self.metadata.rule)
    }

    /// Address of the descriptors' tables for the kernel, and how it finds them.
    pub fn descriptors(&self) -> (u64, DescriptorRule) {
        (self.device_address() + self.layout.descriptors as u64, self.descriptors.rule)
    }

    /// Address of the kernel's arena, if packets were copied. It may lie before the buffer: the
    /// kernel adds a packet's offset before it accesses anything.
    pub fn arena_address(&self) -> u64 {
        let packets = self.layout.packets(self.device_copies) as u64;
        (self.device_address() + packets).wrapping_sub(self.descriptors.origin)
    }

    /// Addresses of verdicts and targets for a kernel whose batch has no lent memory.
    pub fn verdict_addresses(&self) -> (u64, u64) {
        let verdicts = self.verdicts.as_ref().map_or(0, DeviceMemory::address);
        (verdicts, verdicts + self.response_layout.targets as u64)
    }

    /// Whether anything is copied back after the kernel.
    pub fn has_downloads(&self) -> bool {
        self.response_layout.end > 0
    }

    /// Whether copies back block the caller until they are done, as those to pageable memory do.
    pub fn downloads_block(&self) -> bool {
        self.response.as_ref().is_some_and(|response| response.pinning_refusal().is_some())
    }

    /// Queues copying back what the kernel has changed.
    ///
    /// # Safety
    /// The session keeps these buffers, and nobody accesses the response, until the copies have
    /// completed.
    pub unsafe fn enqueue_downloads(&self, effects: KernelEffects, stream: &Stream) -> Result<(), ErrorCode> {
        let at = self.response_layout;
        let response = self.response.as_ref().expect("reserved before it is used");
        let packets = self.layout.packets(self.device_copies);
        let tables = effects.resizes_packets.then_some((self.layout.descriptors, at.descriptors, self.packets * 8));
        let changed = effects.writes_packets.then_some((packets, at.packets, self.layout.bytes));
        // SAFETY: by the caller's promise.
        unsafe {
            if let Some(verdicts) = self.verdicts.as_ref().filter(|_| at.descriptors > 0) {
                verdicts.download(0, response, 0, at.descriptors, stream)?;
            }
            for (from, to, bytes) in tables.into_iter().chain(changed).filter(|(.., bytes)| *bytes > 0) {
                self.device().download(from, response, to, bytes, stream)?;
            }
        }
        Ok(())
    }

    fn response(&self, at: usize, bytes: usize) -> &[u8] {
        let response = self.response.as_ref().expect("reserved before it is used");
        // SAFETY: the launch, and with it the copies, were waited for (`Launcher`).
        unsafe { response.slice(at, bytes) }
    }

    /// Appends verdicts and targets that were copied back.
    pub fn append_verdicts(&self, effects: KernelEffects, columns: &mut VerdictColumns) {
        columns.append(self.response(0, self.packets).iter().copied());
        if effects.redirects {
            columns.append_targets(le_words(self.response(self.response_layout.targets, self.packets * 4)));
        }
    }

    /// Descriptors as the kernel left them.
    pub fn changed_descriptors(&self) -> &[u8] {
        self.response(self.response_layout.descriptors, self.packets * 8)
    }

    /// The packets' bytes as the kernel left them.
    pub fn changed_packets(&self) -> &[u8] {
        self.response(self.response_layout.packets, self.layout.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_do_not_overlap_and_kernels_may_read_behind_packets() {
        let gathered = UploadLayout::of_sizes(20 * 3, 100, 3 * 8, false);
        let over = OVERREAD_BYTES as usize;
        let expected = UploadLayout { gathered: 64, descriptors: 176, copied: 208, end: 208 + over, bytes: 100 };
        assert_eq!(gathered, expected);
        let copied = UploadLayout::of_sizes(0, 100, 3 * 8, true);
        assert_eq!(copied, UploadLayout { gathered: 0, descriptors: 0, copied: 32, end: 32 + 100 + over, bytes: 100 });
        // Uniform packets in place need no memory at all.
        assert_eq!(UploadLayout::of_sizes(0, 0, 0, false), UploadLayout::default());
    }
}
