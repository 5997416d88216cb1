//! Ledger of the resources that an in-process GPU driver has handed out.

use std::collections::BTreeMap;

/// Memory that a driver has allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Address for the GPU.
    pub address: u64,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
}

/// GPU resources in use by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuMemoryUsage {
    /// Number of allocations of GPU memory.
    pub blocks: usize,
    /// Total size of these in bytes.
    pub bytes: usize,
    /// Number of host memory ranges registered with the GPU.
    pub registered: usize,
    /// Number of GPU memory ranges mapped for the CPU.
    pub mapped: usize,
}

/// Everything allocated, registered and mapped that was not released, by address.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    blocks: BTreeMap<u64, Block>,
    /// Size in bytes, and address for the GPU.
    registered: BTreeMap<u64, (usize, u64)>,
    mapped: BTreeMap<u64, (usize, u64)>,
}

impl Ledger {
    pub fn memory_usage(&self) -> GpuMemoryUsage {
        GpuMemoryUsage {
            blocks: self.blocks.len(),
            bytes: self.blocks.values().map(|block| block.size).sum(),
            registered: self.registered.len(),
            mapped: self.mapped.len(),
        }
    }

    pub fn record_block(&mut self, block: Block) {
        self.blocks.insert(block.address, block);
    }

    pub fn free(&mut self, address: u64) -> Option<Block> {
        self.blocks.remove(&address)
    }

    /// Whether the range lies in one block.
    pub fn contains(&self, address: u64, size: usize) -> bool {
        let block = self.blocks.range(..=address).next_back();
        block.is_some_and(|(_, block)| {
            let before = (address - block.address) as usize;
            before.checked_add(size).is_some_and(|end| end <= block.size)
        })
    }

    pub fn record_registration(&mut self, address: u64, size: usize, found: u64) {
        self.registered.insert(address, (size, found));
    }

    pub fn gpu_address(&self, address: u64) -> Option<u64> {
        self.registered.get(&address).map(|(_, found)| *found)
    }

    pub fn unregister(&mut self, address: u64) -> Option<usize> {
        self.registered.remove(&address).map(|(size, _)| size)
    }

    pub fn is_registered(&self, address: u64) -> bool {
        self.registered.contains_key(&address)
    }

    pub fn is_mapped(&self, address: u64) -> bool {
        self.mapped.contains_key(&address)
    }

    pub fn record_mapping(&mut self, address: u64, size: usize, view: u64) {
        self.mapped.insert(address, (size, view));
    }

    pub fn unmap(&mut self, address: u64) -> Option<(usize, u64)> {
        self.mapped.remove(&address)
    }

    pub fn mappings_since(&self, before: &Ledger) -> impl Iterator<Item = u64> {
        self.mapped.keys().filter(|it| !before.mapped.contains_key(it)).copied()
    }

    pub fn registrations_since(&self, before: &Ledger) -> impl Iterator<Item = u64> {
        self.registered.keys().filter(|it| !before.registered.contains_key(it)).copied()
    }

    pub fn blocks_since(&self, before: &Ledger) -> impl Iterator<Item = u64> {
        self.blocks.keys().filter(|it| !before.blocks.contains_key(it)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_lies_in_one_block_or_is_refused() {
        let mut ledger = Ledger::default();
        ledger.record_block(Block { address: 4096, size: 4096, align: 4096 });
        ledger.record_block(Block { address: 8192, size: 4096, align: 4096 });
        for (address, size, is_in) in [
            (4096, 4096, true),
            (5000, 3192, true),
            (5000, 3193, false),
            (4095, 1, false),
            (8192, 4096, true),
            (12288, 1, false),
            (5000, usize::MAX, false),
        ] {
            assert_eq!(ledger.contains(address, size), is_in, "{address} {size}");
        }
        assert!(ledger.free(4096).is_some() && ledger.free(4096).is_none());
        assert!(!ledger.contains(4096, 1));
        assert_eq!(ledger.memory_usage(), GpuMemoryUsage { blocks: 1, bytes: 4096, ..GpuMemoryUsage::default() });
    }
}
