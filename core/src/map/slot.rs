//! Slots of a hash map: the probe sequence of a key, and how an entry is inserted and removed. The
//! WGSL functions that filters run (`wgsl.rs`) do the same.

use super::layout::{
    HEADER_CLAIMED, HEADER_GENERATION, HEADER_REMOVED, Layout, MAX_PROBES, STATE_PRESENT, STATE_REMOVED, hash,
    stored_word,
};

/// The slots that a probe for a key visits, in order: triangular probing, which visits every slot
/// of a power-of-two table.
pub fn probe_sequence(layout: &Layout, key: &[u32]) -> impl Iterator<Item = u32> + use<> {
    let mask = layout.slots - 1;
    (1..=MAX_PROBES).scan(hash(key), move |next, step| {
        let slot = *next & mask;
        *next = next.wrapping_add(step);
        Some(slot)
    })
}

/// The key that has claimed a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotOwner {
    /// The key that is looked for; its entry may have been removed.
    Key,
    /// Another key.
    OtherKey,
    /// No key has claimed the slot: the probe ends here.
    Unclaimed,
}

/// Which key has claimed the slot whose words start at `words`.
pub fn owner_of(layout: &Layout, words: &[u32], key: &[u32]) -> SlotOwner {
    let stored = &words[..layout.state as usize];
    if stored[0] == 0 {
        SlotOwner::Unclaimed
    } else if stored.iter().enumerate().all(|(index, word)| *word == stored_word(key, index)) {
        SlotOwner::Key
    } else {
        SlotOwner::OtherKey
    }
}

/// Whether the entry of a claimed slot is present.
pub fn is_present(layout: &Layout, words: &[u32]) -> bool {
    words[layout.state as usize] == STATE_PRESENT
}

/// Number of entries, according to a map's header.
pub fn entry_count(header: &[u32]) -> u32 {
    header[HEADER_CLAIMED as usize].saturating_sub(header[HEADER_REMOVED as usize])
}

/// Inserts the entry of a key in its slot or in an unclaimed one. Does not touch the value: it is
/// zeros or, in a map of an object, what it was before the key was removed.
pub fn insert(layout: &Layout, header: &mut [u32], words: &mut [u32], key: &[u32]) {
    if words[0] == 0 {
        for (index, word) in words[..layout.state as usize].iter_mut().enumerate() {
            *word = stored_word(key, index);
        }
        header[HEADER_CLAIMED as usize] = header[HEADER_CLAIMED as usize].saturating_add(1);
    }
    if words[layout.state as usize] == STATE_REMOVED {
        header[HEADER_REMOVED as usize] = header[HEADER_REMOVED as usize].saturating_sub(1);
    }
    words[layout.state as usize] = STATE_PRESENT;
    if let Some(stamp) = layout.stamp {
        words[stamp as usize] = header[HEADER_GENERATION as usize];
    }
}

/// Removes the entry in a slot. The key keeps the slot until the map is compacted.
pub fn remove(layout: &Layout, header: &mut [u32], words: &mut [u32]) {
    words[layout.value as usize..].fill(0);
    words[layout.state as usize] = STATE_REMOVED;
    header[HEADER_REMOVED as usize] = header[HEADER_REMOVED as usize].saturating_add(1);
}
