//! gpudev's communication list, which tells a GPU about the packets to process and the host about
//! completion.
//!
//! ```text
//! FREE ──populate──► READY ──finish──► DONE or ERROR ──cleanup──► FREE
//!        (packets)                                     (packets)
//! ```
//!
//! An item refers to packets between the first and the last transition. READY and DONE items have
//! types of their own ([`ReadyItem`] and [`FinishedItem`]), so that invalid transitions do not
//! compile.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use portcullis_dpdk_sys as sys;

use super::gpu::Gpu;
use crate::dpdk::error::DpdkError;
use crate::dpdk::memory::Mbufs;
use sys::rte_gpu_comm_list_status as status;

/// A list of items, each for the packets of one batch.
#[derive(Debug)]
pub(in crate::dpdk) struct CommList {
    gpu: Arc<Gpu>,
    items: NonNull<sys::rte_gpu_comm_list>,
    count: u32,
    /// Offset in bytes from a packet's address for the CPU to its address for the GPU.
    gpu_offset: isize,
    /// Whether only the first segment of a packet is shared with the GPU (header split).
    heads: bool,
    free: Mutex<Vec<u32>>,
}

// SAFETY: an item is used by the one who took its index from `free`, and the other fields do not
// change.
unsafe impl Send for CommList {}
// SAFETY: as above.
unsafe impl Sync for CommList {}

impl CommList {
    /// Maximum number of packets in an item.
    pub const MAX_PACKETS: usize = sys::RTE_GPU_COMM_LIST_PKTS_MAX as usize;

    /// Creates a list of `count` items. `shift` is the offset from CPU to GPU addresses; with
    /// `heads`, only the first segments of packets are shared.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`]; with an in-process driver nothing is leaked.
    pub fn new(gpu: &Arc<Gpu>, count: u32, gpu_offset: isize, heads: bool) -> Result<Arc<CommList>, DpdkError> {
        let items = gpu.with_rollback(
            || {
                // SAFETY: the GPU exists.
                let items = unsafe { sys::rte_gpu_comm_create_list(gpu.number() as u16, count) };
                gpu.pointer(&format!("creating a communication list of {count} items"), items)
            },
            // If the CPU cannot access GPU memory, DPDK (up to 22.11.11 at least) puts the status
            // words in host memory but leaks the GPU memory allocated for them.
            |items| {
                // SAFETY: the list was just created with `count` items.
                let items = unsafe { std::slice::from_raw_parts(items.as_ptr(), count as usize) };
                let mut kept = vec![items.as_ptr() as u64, items[0].status_h as u64, items[0].status_d as u64];
                kept.extend(items.iter().map(|item| item.pkt_list as u64));
                Some(kept)
            },
        )?;
        let list = CommList {
            gpu: gpu.clone(),
            items,
            count,
            gpu_offset,
            heads,
            free: Mutex::new((0..count).rev().collect()),
        };
        for index in 0..count {
            // DPDK initialises all status words but the first, which has whatever the memory held.
            list.set(index, status::RTE_GPU_COMM_LIST_FREE);
        }
        Ok(Arc::new(list))
    }

    /// Number of FREE items.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Shares packets with the GPU; `None` if no item is FREE. The packets must stay where they
    /// are, owned by the caller, until the item is cleaned up.
    ///
    /// # Errors
    /// If there are more than [`CommList::MAX_PACKETS`] packets, or one has several segments. The
    /// item stays FREE.
    pub fn populate(self: &Arc<Self>, mbufs: &mut Mbufs) -> Result<Option<ReadyItem>, DpdkError> {
        let index = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(index) = index else { return Ok(None) };
        // From here on, dropping the item makes it FREE.
        let item = Item { list: self.clone(), index };
        let (count, heads) = (u32::try_from(mbufs.len()).unwrap_or(u32::MAX), self.heads.into());
        // SAFETY: the item is ours and FREE; the packets are owned, as many as stated.
        let result =
            unsafe { sys::pc_gpu_populate(self.item(index), mbufs.as_mut_ptr(), count, self.gpu_offset, heads) };
        self.gpu.check(&format!("sharing {count} packets with it"), result)?;
        Ok(Some(ReadyItem(item)))
    }

    pub(super) fn item(&self, index: u32) -> *mut sys::rte_gpu_comm_list {
        assert!(index < self.count);
        // SAFETY: the index is in range.
        unsafe { self.items.as_ptr().add(index as usize) }
    }

    fn set(&self, index: u32, to: status::Type) {
        // SAFETY: the item exists.
        let result = unsafe { sys::rte_gpu_comm_set_status(self.item(index), to) };
        debug_assert_eq!(result, 0);
    }

    fn status(&self, index: u32) -> status::Type {
        let mut it = status::RTE_GPU_COMM_LIST_ERROR;
        // SAFETY: the item exists, and the call only writes the status.
        let result = unsafe { sys::rte_gpu_comm_get_status(self.item(index), &raw mut it) };
        debug_assert_eq!(result, 0);
        it
    }
}

impl Drop for CommList {
    fn drop(&mut self) {
        // SAFETY: no item is in use.
        self.gpu.locked(|| unsafe { sys::rte_gpu_comm_destroy_list(self.items.as_ptr(), self.count) });
    }
}

/// Exclusive use of an item. On drop it becomes FREE, without packets.
#[derive(Debug)]
struct Item {
    list: Arc<CommList>,
    index: u32,
}

impl Drop for Item {
    fn drop(&mut self) {
        // DPDK refuses to clean up a READY item, so mark it as failed.
        if self.list.status(self.index) == status::RTE_GPU_COMM_LIST_READY {
            self.list.set(self.index, status::RTE_GPU_COMM_LIST_ERROR);
        }
        // SAFETY: the item is ours. Its packet pointers are cleared; the packets belong to the
        // batch.
        let result = unsafe { sys::rte_gpu_comm_cleanup_list(self.list.item(self.index)) };
        debug_assert_eq!(result, 0);
        self.list.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

/// An item that is shared with the GPU. Dropping it cancels it.
#[derive(Debug)]
pub(in crate::dpdk) struct ReadyItem(Item);

/// An item that the GPU has finished with.
#[derive(Debug)]
pub(in crate::dpdk) struct FinishedItem(Item);

impl ReadyItem {
    /// Marks the packets as processed, successfully or not.
    pub fn finish(self, well: bool) -> FinishedItem {
        let ReadyItem(item) = self;
        let to = if well { status::RTE_GPU_COMM_LIST_DONE } else { status::RTE_GPU_COMM_LIST_ERROR };
        item.list.set(item.index, to);
        FinishedItem(item)
    }
}

impl FinishedItem {
    /// Makes the item FREE.
    pub fn cleanup(self) {
        drop(self.0);
    }
}
