//! The communication list: which packets a GPU is to look at, and which it is through with.
//!
//! ```text
//! FREE ──populate──► READY ──finish──► DONE or ERROR ──cleanup──► FREE
//!        (packets)                                     (packets)
//! ```
//!
//! Packets are the item's from the one arrow to the other. What is [`Ready`] or [`Done`] is a type of its own, so that nothing is done
//! to an item in a state in which it may not be.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use portcullis_dpdk_sys as sys;

use super::gpu::Gpu;
use crate::dpdk::error::DpdkError;
use crate::dpdk::memory::Mbufs;
use sys::rte_gpu_comm_list_status as status;

/// A list of items, each for packets of one batch.
#[derive(Debug)]
pub(in crate::dpdk) struct CommList {
    gpu: Arc<Gpu>,
    items: NonNull<sys::rte_gpu_comm_list>,
    count: u32,
    /// Bytes from where the processor has packets to where the GPU has them.
    shift: isize,
    /// Whether the first pieces alone of packets in several are meant.
    heads: bool,
    free: Mutex<Vec<u32>>,
}

// SAFETY: whoever has an item has it alone (`free`), and what they have in common does not change.
unsafe impl Send for CommList {}
// SAFETY: as above.
unsafe impl Sync for CommList {}

impl CommList {
    /// Packets of one item at most.
    pub const MOST: usize = sys::RTE_GPU_COMM_LIST_PKTS_MAX as usize;

    /// A list of `count` items, for packets that the GPU has `shift` bytes further than the processor; or for the heads of packets that
    /// are split.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`]; nothing is left behind then with a driver of this process.
    pub fn new(gpu: &Arc<Gpu>, count: u32, shift: isize, heads: bool) -> Result<Arc<CommList>, DpdkError> {
        let items = gpu.whole(
            || {
                // SAFETY: the GPU is there.
                let items = unsafe { sys::rte_gpu_comm_create_list(gpu.number() as u16, count) };
                gpu.pointer(&format!("making a communication list of {count} items"), items)
            },
            // Where the processor does not reach memory of the GPU, DPDK (to 22.11.11 at least) forgets what it has allocated for
            // states, and has them in the host's.
            |items| {
                // SAFETY: the list was just made, with so many items.
                let items = unsafe { std::slice::from_raw_parts(items.as_ptr(), count as usize) };
                let mut kept = vec![items.as_ptr() as u64, items[0].status_h as u64, items[0].status_d as u64];
                kept.extend(items.iter().map(|item| item.pkt_list as u64));
                Some(kept)
            },
        )?;
        let list =
            CommList { gpu: gpu.clone(), items, count, shift, heads, free: Mutex::new((0..count).rev().collect()) };
        for index in 0..count {
            // DPDK writes all states but the first, which is what memory of the GPU has.
            list.set(index, status::RTE_GPU_COMM_LIST_FREE);
        }
        Ok(Arc::new(list))
    }

    /// Items that are FREE.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Gives packets to the GPU; `None` where no item is FREE. They stay where they are, and are nobody else's until the item is
    /// cleaned up.
    ///
    /// # Errors
    /// More than [`CommList::MOST`] packets, or one in several pieces. The item is FREE then.
    pub fn populate(self: &Arc<Self>, mbufs: &mut Mbufs) -> Result<Option<Ready>, DpdkError> {
        let index = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(index) = index else { return Ok(None) };
        // From here on the item becomes FREE by being dropped.
        let item = Item { list: self.clone(), index };
        let (count, heads) = (u32::try_from(mbufs.len()).unwrap_or(u32::MAX), self.heads.into());
        // SAFETY: the item is ours and FREE; there are so many packets, and they are ours.
        let result = unsafe { sys::pc_gpu_populate(self.item(index), mbufs.as_mut_ptr(), count, self.shift, heads) };
        self.gpu.check(&format!("giving it {count} packets"), result)?;
        Ok(Some(Ready(item)))
    }

    pub(super) fn item(&self, index: u32) -> *mut sys::rte_gpu_comm_list {
        assert!(index < self.count);
        // SAFETY: there are so many items.
        unsafe { self.items.as_ptr().add(index as usize) }
    }

    fn set(&self, index: u32, to: status::Type) {
        // SAFETY: the item is there.
        let result = unsafe { sys::rte_gpu_comm_set_status(self.item(index), to) };
        debug_assert_eq!(result, 0);
    }

    fn status(&self, index: u32) -> status::Type {
        let mut it = status::RTE_GPU_COMM_LIST_ERROR;
        // SAFETY: the item is there, and its status is written.
        let result = unsafe { sys::rte_gpu_comm_get_status(self.item(index), &raw mut it) };
        debug_assert_eq!(result, 0);
        it
    }
}

impl Drop for CommList {
    fn drop(&mut self) {
        // SAFETY: nobody has an item.
        self.gpu.alone(|| unsafe { sys::rte_gpu_comm_destroy_list(self.items.as_ptr(), self.count) });
    }
}

/// An item that is somebody's. Dropped, it is FREE, with no packets.
#[derive(Debug)]
struct Item {
    list: Arc<CommList>,
    index: u32,
}

impl Drop for Item {
    fn drop(&mut self) {
        // The library does not take packets out of an item that is READY: what drops it is through with it.
        if self.list.status(self.index) == status::RTE_GPU_COMM_LIST_READY {
            self.list.set(self.index, status::RTE_GPU_COMM_LIST_ERROR);
        }
        // SAFETY: the item is ours. The packets in it are forgotten: they are its holder's.
        let result = unsafe { sys::rte_gpu_comm_cleanup_list(self.list.item(self.index)) };
        debug_assert_eq!(result, 0);
        self.list.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

/// An item that the GPU has. Dropped, it was in vain, and is FREE.
#[derive(Debug)]
pub(in crate::dpdk) struct Ready(Item);

/// An item that the GPU is through with.
#[derive(Debug)]
pub(in crate::dpdk) struct Done(Item);

impl Ready {
    /// The packets have come back: well, or not.
    pub fn finish(self, well: bool) -> Done {
        let Ready(item) = self;
        let to = if well { status::RTE_GPU_COMM_LIST_DONE } else { status::RTE_GPU_COMM_LIST_ERROR };
        item.list.set(item.index, to);
        Done(item)
    }
}

impl Done {
    /// Has the item be FREE: what it knew of packets is gone.
    pub fn cleanup(self) {
        drop(self.0);
    }
}
