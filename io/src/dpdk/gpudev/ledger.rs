//! What a driver of ours holds.

use std::collections::BTreeMap;

use super::driver::Block;

/// How much a GPU holds for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuMemoryUsage {
    /// Pieces of its own memory.
    pub blocks: usize,
    /// Bytes of them.
    pub bytes: usize,
    /// Pieces of the host's memory that it is shown.
    pub registered: usize,
    /// Pieces of its memory that the host reaches.
    pub mapped: usize,
}

/// Everything that was allocated, registered and mapped, and not undone, by address.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    blocks: BTreeMap<u64, Block>,
    /// Its size, and where the GPU finds it.
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

    pub fn allocated(&mut self, block: Block) {
        self.blocks.insert(block.address, block);
    }

    pub fn free(&mut self, address: u64) -> Option<Block> {
        self.blocks.remove(&address)
    }

    /// Whether so many bytes lie in one block.
    pub fn has(&self, address: u64, size: usize) -> bool {
        let block = self.blocks.range(..=address).next_back();
        block.is_some_and(|(_, block)| {
            let before = (address - block.address) as usize;
            before.checked_add(size).is_some_and(|end| end <= block.size)
        })
    }

    pub fn registered(&mut self, address: u64, size: usize, found: u64) {
        self.registered.insert(address, (size, found));
    }

    pub fn found(&self, address: u64) -> Option<u64> {
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

    pub fn mapped(&mut self, address: u64, size: usize, view: u64) {
        self.mapped.insert(address, (size, view));
    }

    pub fn unmap(&mut self, address: u64) -> Option<(usize, u64)> {
        self.mapped.remove(&address)
    }

    pub fn views_beside(&self, before: &Ledger) -> impl Iterator<Item = u64> {
        self.mapped.keys().filter(|it| !before.mapped.contains_key(it)).copied()
    }

    pub fn registrations_beside(&self, before: &Ledger) -> impl Iterator<Item = u64> {
        self.registered.keys().filter(|it| !before.registered.contains_key(it)).copied()
    }

    pub fn blocks_beside(&self, before: &Ledger) -> impl Iterator<Item = u64> {
        self.blocks.keys().filter(|it| !before.blocks.contains_key(it)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_in_one_block_or_not() {
        let mut ledger = Ledger::default();
        ledger.allocated(Block { address: 4096, size: 4096, align: 4096 });
        ledger.allocated(Block { address: 8192, size: 4096, align: 4096 });
        for (address, size, is_in) in [
            (4096, 4096, true),
            (5000, 3192, true),
            (5000, 3193, false),
            (4095, 1, false),
            (8192, 4096, true),
            (12288, 1, false),
            (5000, usize::MAX, false),
        ] {
            assert_eq!(ledger.has(address, size), is_in, "{address} {size}");
        }
        assert!(ledger.free(4096).is_some() && ledger.free(4096).is_none());
        assert!(!ledger.has(4096, 1));
        assert_eq!(ledger.memory_usage(), GpuMemoryUsage { blocks: 1, bytes: 4096, ..GpuMemoryUsage::default() });
    }
}
