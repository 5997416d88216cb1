//! Packet stores that are not emitted yet; `coalesce` merges them.

use std::collections::BTreeMap;

use super::ops::Id;

/// A packet offset: a constant, or a constant distance from a run-time value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketAddress {
    pub base: Option<Id>,
    pub off: u32,
}

/// A byte of a number, 0 the lowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredByte {
    pub of: Id,
    pub number: u32,
    /// Size in bytes of the store that the byte is from.
    pub stored: u32,
}

/// Delayed stores: bytes by their distance from a common base.
#[derive(Debug, Clone, Default)]
pub(crate) struct PendingStores {
    pub base: Option<Id>,
    pub bytes: BTreeMap<u32, StoredByte>,
}

impl PendingStores {
    /// Whether some of these bytes may be pending.
    pub fn may_overlap(&self, at: PacketAddress, size: u32) -> bool {
        if self.bytes.is_empty() {
            return false;
        }
        self.base != at.base || (0..size).any(|byte| self.bytes.contains_key(&at.off.wrapping_add(byte)))
    }
}
