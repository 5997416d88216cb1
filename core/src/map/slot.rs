//! A place of a map whose keys are hashed: where a key may be, and what it takes to make an entry and to remove it. The
//! text that filters run (`text.rs`) does the same.

use super::layout::{
    HEADER_CLAIMED, HEADER_GENERATION, HEADER_REMOVED, Layout, MAX_PROBES, STATE_PRESENT, STATE_REMOVED, hash,
    stored_word,
};

/// The places that a search for a key looks at, in its order.
pub fn of(layout: &Layout, key: &[u32]) -> impl Iterator<Item = u32> + use<> {
    let mask = layout.slots - 1;
    (1..=MAX_PROBES).scan(hash(key), move |next, step| {
        let place = *next & mask;
        *next = next.wrapping_add(step);
        Some(place)
    })
}

/// Whose a place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotOwner {
    /// This key's, whose entry may be removed by now.
    Key,
    /// Another key's.
    OtherKey,
    /// Nobody's: a search ends here.
    Unclaimed,
}

/// What a search for a key meets at a place, whose words begin `words`.
pub fn meets(layout: &Layout, words: &[u32], key: &[u32]) -> SlotOwner {
    let stored = &words[..layout.state as usize];
    if stored[0] == 0 {
        SlotOwner::Unclaimed
    } else if stored.iter().enumerate().all(|(index, word)| *word == stored_word(key, index)) {
        SlotOwner::Key
    } else {
        SlotOwner::OtherKey
    }
}

/// Whether a place that is a key's has its entry.
pub fn is_present(layout: &Layout, words: &[u32]) -> bool {
    words[layout.state as usize] == STATE_PRESENT
}

/// How many entries there are, by a map's header.
pub fn entry_count(header: &[u32]) -> u32 {
    header[HEADER_CLAIMED as usize].saturating_sub(header[HEADER_REMOVED as usize])
}

/// Makes the entry of a key at its place, or at one that is nobody's. The value is not touched: it is zeros, or in a map of an
/// object's what it was before the key was removed.
pub fn make(layout: &Layout, header: &mut [u32], words: &mut [u32], key: &[u32]) {
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

/// Removes the entry that is at a place. The place stays the key's.
pub fn remove(layout: &Layout, header: &mut [u32], words: &mut [u32]) {
    words[layout.value as usize..].fill(0);
    words[layout.state as usize] = STATE_REMOVED;
    header[HEADER_REMOVED as usize] = header[HEADER_REMOVED as usize].saturating_add(1);
}
