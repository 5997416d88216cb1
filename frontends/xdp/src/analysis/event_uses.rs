//! Records and prints of a program, for the host.

use std::collections::BTreeMap;

use crate::events::{PrintFormat, RecordSizes};

/// A record that a program reserves at one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReservedRecord {
    pub map: u16,
    pub bytes: u32,
}

/// Records a program sends to the host.
#[derive(Debug, Default)]
pub(crate) struct EventUses {
    /// Reserved records with the section and index of the reserving instruction.
    pub reserved: Vec<(ReservedRecord, (u32, u32))>,
    /// Reserved records, by number.
    pub records: Vec<ReservedRecord>,
    /// Sizes of the records of each map, and of prints (`None`).
    pub rings: BTreeMap<Option<u16>, RecordSizes>,
    /// Formats of prints; a record holds the index.
    pub prints: Vec<PrintFormat>,
}

impl EventUses {
    /// Forgets rings and prints before the final pass. The numbers of reserved records stay valid.
    pub fn reset_uses(&mut self) {
        self.rings.clear();
        self.prints.clear();
    }

    /// Sizes of the records of a ring, noting that it is used.
    pub fn ring_sizes(&mut self, ring: Option<u16>) -> &mut RecordSizes {
        self.rings.entry(ring).or_default()
    }
}
