//! Checks that an outcome is one that some order of the packets' calls produces (linearizability).
//!
//! A packet is a list of calls on a map `m`, each with a key, and the filter ([`filter`]) stores
//! their results in the packet. For each key, there must be one order of all packets' calls,
//! consistent with the order within each packet, in which a set of keys returns the same results
//! and ends in the same state as the map. Values are checked too, unless keys are removed. In
//! memory, each used slot must hold a complete key that no other slot holds, and the header must
//! count them.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_core::map::layout::{
    HEADER_CLAIMED, HEADER_GENERATION, HEADER_REMOVED, Layout, STATE_PRESENT, STATE_REMOVED, stored_key_words,
};
use portcullis_core::map::{Declaration, MapKind, Table, rows};

use super::Outcome;
use crate::texts::wgsl_key;

/// Operation on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapOperation {
    /// Looks the key up and reads its value.
    Find,
    /// Inserts the key.
    Insert,
    /// Removes the key.
    Remove,
    /// Inserts the key and adds this to its value.
    Count(u32),
}

/// A packet's call: an operation and its key.
pub type Call = (MapOperation, Vec<u32>);

/// Returns the filter that makes the calls, for keys of `key` words.
pub fn filter(kind: MapKind, key: u32, entries: u32) -> String {
    let words: Vec<String> = (0..key).map(|i| format!("load_le32(pkt, at + {}u)", 8 + 4 * i)).collect();
    let made = wgsl_key(&words);
    format!(
        "//! map m: {kind} key={key} value=1 entries={entries}
        fn xdp_filter(pkt: u32) -> u32 {{
            for (var at = 0u; at < pkt_len(pkt); at += {size}u) {{
                let what = load_le32(pkt, at);
                let amount = load_le32(pkt, at + 4u);
                let key = {made};
                var result = 0u;
                var value = 0u;
                switch what {{
                    case 0u: {{
                        let entry = m_find(key);
                        result = select(1u, 0u, entry == MAP_NONE);
                        value = m_read(entry, 0u);
                    }}
                    case 2u: {{ result = select(0u, 1u, m_remove(key)); }}
                    default: {{
                        let entry = m_insert(key);
                        result = select(select(1u, 2u, map_is_new(entry)), 0u, entry == MAP_FULL);
                        if what == 3u {{ value = m_add(entry, 0u, amount); }}
                    }}
                }}
                store_le32(pkt, at, result);
                store_le32(pkt, at + 4u, value);
            }}
            return XDP_PASS;
        }}",
        size = size(key)
    )
}

fn size(key: u32) -> usize {
    8 + 4 * key as usize
}

/// Encodes calls as a packet.
pub fn packet(calls: &[Call]) -> Vec<u8> {
    let words = calls.iter().flat_map(|(operation, key)| {
        let (number, amount) = match *operation {
            MapOperation::Find => (0, 0),
            MapOperation::Insert => (1, 0),
            MapOperation::Remove => (2, 0),
            MapOperation::Count(amount) => (3, amount),
        };
        [number, amount].into_iter().chain(key.iter().copied())
    });
    words.flat_map(u32::to_le_bytes).collect()
}

/// Decides which outcomes are correct.
#[derive(Debug)]
pub struct Check<'a> {
    /// Declaration of the map `m`.
    pub map: &'a Declaration,
    /// Entries before the operations.
    pub before: &'a BTreeMap<Vec<u32>, u32>,
    /// The packets' calls.
    pub packets: &'a [Vec<Call>],
}

/// An atomic step of a call, with its result.
#[derive(Debug, Clone, Copy)]
enum Event {
    Find(bool),
    Insert(Insertion),
    Remove(bool),
    Add(u32, u32),
    Read(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Insertion {
    Full,
    Old,
    New,
}

impl Check<'_> {
    /// Checks an outcome.
    ///
    /// # Errors
    /// A description of the first fault found.
    pub fn check_outcome(&self, outcome: &Outcome) -> Result<(), String> {
        let words = &outcome.maps[0];
        check_memory(self.map, words)?;
        let after: BTreeMap<Vec<u32>, u32> =
            rows(self.map, words).into_iter().map(|row| (row.key, row.value[0])).collect();
        let called = self.packets.iter().flatten().map(|(_, key)| key);
        for key in called.chain(self.before.keys()).chain(after.keys()).collect::<BTreeSet<_>>() {
            self.check_key(key, outcome, words, after.get(key).copied())?;
        }
        Ok(())
    }

    /// Checks that some order of the calls explains what happened to a key.
    fn check_key(&self, key: &[u32], outcome: &Outcome, words: &[u32], after: Option<u32>) -> Result<(), String> {
        if after != Table::new(self.map, words.to_vec()).get(key).map(|value| value[0]) {
            return Err(format!("{key:x?} is present but was not found"));
        }
        let is_full = words[HEADER_CLAIMED as usize] >= Layout::of(self.map).max_claimed;
        let mut events = Vec::new();
        // Removals may tear a value, so what remains may combine any of the updates.
        let calls = || self.packets.iter().flatten().filter(|(_, other)| other == key);
        let torn = calls().any(|(operation, _)| *operation == MapOperation::Remove);
        for (calls, (_, bytes)) in self.packets.iter().zip(&outcome.packets) {
            let mut own = Vec::new();
            for (at, (operation, other)) in calls.iter().enumerate() {
                let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
                let at = at * size(self.map.key);
                let (result, value) = (word(at), word(at + 4));
                if other != key {
                    continue;
                }
                let made = [Insertion::Full, Insertion::Old, Insertion::New][result as usize];
                if made == Insertion::Full
                    && matches!(operation, MapOperation::Insert | MapOperation::Count(_))
                    && !is_full
                {
                    return Err(format!("{key:x?} was refused by a map that is not full"));
                }
                match *operation {
                    MapOperation::Find => own.extend([Event::Find(result == 1), Event::Read(value)]),
                    MapOperation::Remove => own.push(Event::Remove(result == 1)),
                    MapOperation::Insert => own.push(Event::Insert(made)),
                    MapOperation::Count(_) if made == Insertion::Full => own.push(Event::Insert(made)),
                    MapOperation::Count(amount) => own.extend([Event::Insert(made), Event::Add(amount, value)]),
                }
            }
            // A packet that does not find the key reads zero.
            if let [Event::Find(false), Event::Read(value)] = own[..]
                && value != 0
            {
                return Err(format!("{value} was read without an entry"));
            }
            own.retain(|event| !matches!(event, Event::Add(..) | Event::Read(_)) || !torn);
            events.push(own);
        }
        let before = self.before.get(key).copied();
        if torn {
            let all = before.unwrap_or(0)
                | calls()
                    .map(|(operation, _)| if let MapOperation::Count(amount) = operation { *amount } else { 0 })
                    .fold(0, |all, amount| all | amount);
            if after.unwrap_or(0) & !all != 0 {
                return Err(format!("{key:x?} has the value {after:?}, which no order of additions gives"));
            }
        }
        let end = |state: Option<u32>| if torn { state.is_some() == after.is_some() } else { state == after };
        if is_serial(&mut events.iter().map(Vec::as_slice).collect::<Vec<_>>(), before, &end) {
            Ok(())
        } else {
            Err(format!("no order of {events:?} on {key:x?} takes it from {before:?} to {after:?}"))
        }
    }
}

/// Checks the words of a map whose entries have all been used since it was created or last
/// compacted.
///
/// # Errors
/// A description of the first fault found.
pub fn check_memory(map: &Declaration, words: &[u32]) -> Result<(), String> {
    let layout = Layout::of(map);
    let (mut keys, mut removed) = (BTreeSet::new(), 0);
    for place in 0..layout.slots {
        let place = &words[layout.slot_offset(place)..layout.slot_offset(place + 1)];
        let key = &place[..stored_key_words(map.key) as usize];
        if key.iter().all(|word| *word == 0) {
            continue;
        }
        if key.contains(&0) {
            return Err(format!("a slot has half a key: {place:x?}"));
        }
        if !keys.insert(key.to_vec()) {
            return Err(format!("a key has two slots: {key:x?}"));
        }
        let state = place[layout.state as usize];
        if ![STATE_PRESENT, STATE_REMOVED].contains(&state) {
            return Err(format!("a slot has a key and the state {state}"));
        }
        removed += u32::from(state == STATE_REMOVED);
        if let Some(stamp) = layout.stamp
            && state == STATE_PRESENT
            && place[stamp as usize] != words[HEADER_GENERATION as usize]
        {
            return Err("an entry that was used is not stamped".into());
        }
    }
    let (header_claimed, header_removed) = (words[HEADER_CLAIMED as usize], words[HEADER_REMOVED as usize]);
    if (header_claimed as usize, header_removed) != (keys.len(), removed) {
        return Err(format!(
            "the header counts {header_claimed} slots and {header_removed} removed keys, but there are {} and {removed}",
            keys.len()
        ));
    }
    Ok(())
}

/// Returns whether some order of the events takes a key from `state` to a state that `end` accepts.
fn is_serial(events: &mut [&[Event]], state: Option<u32>, end: &dyn Fn(Option<u32>) -> bool) -> bool {
    if events.iter().all(|own| own.is_empty()) {
        return end(state);
    }
    (0..events.len()).any(|number| {
        let [event, ref rest @ ..] = *events[number] else { return false };
        let next = match (event, state) {
            (Event::Find(found), _) if found == state.is_some() => state,
            (Event::Read(value), _) if value == state.unwrap_or(0) => state,
            (Event::Insert(Insertion::Full), None) | (Event::Remove(false), None) => None,
            (Event::Insert(Insertion::New), None) => Some(0),
            (Event::Insert(Insertion::Old), Some(_)) => state,
            (Event::Remove(true), Some(_)) => None,
            (Event::Add(amount, before), Some(value)) if value == before => Some(value.wrapping_add(amount)),
            _ => return false,
        };
        let own = std::mem::replace(&mut events[number], rest);
        let serial = is_serial(events, next, end);
        events[number] = own;
        serial
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_orders_are_found() {
        let (new, old) = (Event::Insert(Insertion::New), Event::Insert(Insertion::Old));
        let serial = |events: &[&[Event]], before, after| is_serial(&mut events.to_vec(), before, &|end| end == after);
        assert!(serial(&[&[old, Event::Add(1, 2)], &[new, Event::Add(2, 0)]], None, Some(3)));
        assert!(!serial(&[&[old, Event::Add(1, 0)], &[new, Event::Add(2, 0)]], None, Some(3)), "lost update");
        assert!(!serial(&[&[new], &[new]], None, Some(0)), "inserted twice");
        assert!(serial(&[&[new], &[new], &[Event::Remove(true)]], None, Some(0)));
        assert!(!serial(&[&[Event::Remove(true)], &[Event::Remove(true)]], Some(1), None));
        assert!(serial(&[&[Event::Remove(true)], &[Event::Find(false)]], Some(1), None));
        assert!(!serial(&[&[Event::Find(false), Event::Find(true)]], Some(1), Some(1)), "present at all times");
        assert!(!serial(&[&[Event::Insert(Insertion::Full)]], Some(1), Some(1)), "a present key needs no slot");
    }
}
