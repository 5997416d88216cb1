//! An XDP object together with the filter maps that its maps become.

use std::collections::BTreeSet;

use crate::decode::maps::{self, MapInfo, MapUse};
use crate::object::{MapDefinition, Object};
use portcullis_core::map::Table;
use portcullis_core::map::layout::Layout;

/// `BPF_F_INNER_MAP`: an array with this flag may be an inner map with any number of entries.
const BPF_F_INNER_MAP: u32 = 1 << 12;

/// An object, its maps as maps of a filter, and its programs.
pub(crate) struct LinkedObject<'o> {
    pub object: &'o Object,
    pub maps: Vec<MapInfo>,
    /// The programs in order: name, section, first instruction. A program array stores the index
    /// plus one.
    pub programs: Vec<(String, u32, u32)>,
    /// Seed of `bpf_get_prandom_u32`.
    pub random_seed: u32,
}

impl<'o> LinkedObject<'o> {
    pub fn new(object: &'o Object, random_seed: u32) -> LinkedObject<'o> {
        let programs = object.programs().map(|it| (it.name.clone(), it.section as u32, it.first as u32)).collect();
        LinkedObject { object, maps: maps::link_maps(object), programs, random_seed }
    }

    /// The non-zero initial contents of a map, as (first word, words): global variables, and slots
    /// that hold programs or maps.
    pub fn initial_words(&self, info: &MapInfo) -> Vec<(usize, Vec<u32>)> {
        let MapDefinition { data, slots, max_entries, .. } = &info.definition;
        let layout = Layout::of(&info.declaration());
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        if let Some(data) = data {
            return vec![(layout.slot_offset(0), data.chunks(4).map(word).collect())];
        }
        if slots.is_empty() {
            return Vec::new();
        }
        let number = |symbol: &str| match info.definition.ty.is_map_of_maps() {
            true => self.object.maps.iter().position(|map| map.name == symbol),
            false => self.programs.iter().position(|(name, ..)| name == symbol),
        };
        if info.used_as == MapUse::Hash {
            let mut table = Table::new(&info.declaration(), Vec::new());
            for slot in slots {
                let mut key = vec![0; info.declaration().key as usize];
                key[0] = slot.index;
                if let Some(number) = number(&slot.symbol) {
                    // The table has room for `max_entries` keys, so this does not fail.
                    let _ = table.set(&key, &[number as u32 + 1]);
                }
            }
            let (at, words) = table.changes();
            return if words.is_empty() { Vec::new() } else { vec![(at, words.to_vec())] };
        }
        let slots = slots.iter().filter(|slot| slot.index < *max_entries);
        slots
            .filter_map(|slot| {
                let number = number(&slot.symbol)?;
                Some((layout.slot_offset(slot.index), vec![number as u32 + 1]))
            })
            .collect()
    }

    /// The programs that a program array may hold, as (index, section, first instruction): those of
    /// its initial slots, or all programs if the host fills it.
    pub fn tail_call_targets(&self, map: u16) -> Vec<(u32, u32, u32)> {
        let slots = &self.maps[usize::from(map)].definition.slots;
        let held: BTreeSet<&str> = slots.iter().map(|slot| slot.symbol.as_str()).collect();
        let all = (0..).zip(&self.programs);
        let all = all.filter(|(_, (name, ..))| held.is_empty() || held.contains(name.as_str()));
        all.map(|(number, (_, section, first))| (number, *section, *first)).collect()
    }

    /// The maps that a map of maps may hold: those of its initial slots, or, if the host fills it,
    /// those that match the declared inner map.
    pub fn inner_maps(&self, outer: u16) -> Vec<u16> {
        let MapDefinition { slots, inner, .. } = &self.maps[usize::from(outer)].definition;
        let shape = |map: &MapDefinition| (map.ty, map.key_size, map.value_size, map.flags);
        // The bounds of an inner array are compiled in, unless BPF_F_INNER_MAP says that they vary
        // (`array_map_meta_equal`).
        let is_bound = |map: &MapDefinition| map.ty.is_array() && map.flags & BPF_F_INNER_MAP == 0;
        let is_like = |inner: &MapDefinition, map: &MapDefinition| {
            shape(inner) == shape(map) && (!is_bound(inner) || inner.max_entries == map.max_entries)
        };
        let may = |map: &MapDefinition| match slots.is_empty() {
            true => inner.as_ref().is_some_and(|inner| is_like(inner, map)),
            false => slots.iter().any(|slot| slot.symbol == map.name),
        };
        let all = (0..).zip(&self.object.maps);
        all.filter(|(_, map)| may(map)).map(|(number, _)| number).collect()
    }
}
