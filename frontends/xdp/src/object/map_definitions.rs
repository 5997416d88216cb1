//! The maps that an object defines: in `.maps` by the types of its variables, in `maps` as `struct bpf_map_def`, and the
//! sections of its global variables, of which each is an array of one value.

use std::collections::HashMap;

use super::btf::{Btf, Kind};
use super::{MAX_MAPS, Wrong};

/// `enum bpf_map_type`, linux/bpf.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapType(pub u32);

impl MapType {
    /// The names of the kernel's map types, by number, as bpftool shows them.
    const NAMES: [&str; 34] = [
        "unspec",
        "hash",
        "array",
        "prog_array",
        "perf_event_array",
        "percpu_hash",
        "percpu_array",
        "stack_trace",
        "cgroup_array",
        "lru_hash",
        "lru_percpu_hash",
        "lpm_trie",
        "array_of_maps",
        "hash_of_maps",
        "devmap",
        "sockmap",
        "cpumap",
        "xskmap",
        "sockhash",
        "cgroup_storage",
        "reuseport_sockarray",
        "percpu_cgroup_storage",
        "queue",
        "stack",
        "sk_storage",
        "devmap_hash",
        "struct_ops",
        "ringbuf",
        "inode_storage",
        "task_storage",
        "bloom_filter",
        "user_ringbuf",
        "cgrp_storage",
        "arena",
    ];

    /// Values by key.
    pub const HASH: MapType = MapType(1);

    /// Values by number.
    pub const ARRAY: MapType = MapType(2);

    /// Programs.
    pub const PROG_ARRAY: MapType = MapType(3);

    /// Events for a reader per processor.
    pub const PERF_EVENT_ARRAY: MapType = MapType(4);

    /// As `HASH`, for each processor its own.
    pub const PERCPU_HASH: MapType = MapType(5);

    /// As `ARRAY`, for each processor its own.
    pub const PERCPU_ARRAY: MapType = MapType(6);

    /// As `HASH`, where what was not used for longest makes room.
    pub const LRU_HASH: MapType = MapType(9);

    /// As `LRU_HASH`, with values for each processor.
    pub const LRU_PERCPU_HASH: MapType = MapType(10);

    /// Values by prefix.
    pub const LPM_TRIE: MapType = MapType(11);

    /// Maps by number.
    pub const ARRAY_OF_MAPS: MapType = MapType(12);

    /// Maps by key.
    pub const HASH_OF_MAPS: MapType = MapType(13);

    /// Devices by number.
    pub const DEVMAP: MapType = MapType(14);

    /// Processors by number.
    pub const CPUMAP: MapType = MapType(16);

    /// Sockets of AF_XDP by number.
    pub const XSKMAP: MapType = MapType(17);

    /// Devices by key.
    pub const DEVMAP_HASH: MapType = MapType(25);

    /// Events for one reader.
    pub const RINGBUF: MapType = MapType(27);

    /// Whether it is an array of values.
    pub fn is_array(self) -> bool {
        matches!(self, Self::ARRAY | Self::PERCPU_ARRAY)
    }

    /// Whether it has values by key, all of which stay.
    pub fn is_hash(self) -> bool {
        matches!(self, Self::HASH | Self::PERCPU_HASH)
    }

    /// Whether it has values by key, of which those that were not used for longest go.
    pub fn is_lru(self) -> bool {
        matches!(self, Self::LRU_HASH | Self::LRU_PERCPU_HASH)
    }

    /// Whether its entries are where packets can go: devices, sockets, processors.
    pub fn holds_redirect_targets(self) -> bool {
        matches!(self, Self::DEVMAP | Self::DEVMAP_HASH | Self::CPUMAP | Self::XSKMAP)
    }

    /// Whether each processor has values of its own.
    pub fn is_per_cpu(self) -> bool {
        matches!(self, Self::PERCPU_HASH | Self::PERCPU_ARRAY | Self::LRU_PERCPU_HASH)
    }

    /// Whether its entries are other maps.
    pub fn is_map_of_maps(self) -> bool {
        matches!(self, Self::ARRAY_OF_MAPS | Self::HASH_OF_MAPS)
    }

    /// Whether there are maps of this type for filters.
    pub fn is_supported(self) -> bool {
        let is_named = matches!(self, Self::PROG_ARRAY | Self::PERF_EVENT_ARRAY | Self::RINGBUF | Self::LPM_TRIE);
        is_named
            || self.is_array()
            || self.is_hash()
            || self.is_lru()
            || self.holds_redirect_targets()
            || self.is_map_of_maps()
    }

    /// What is missing where there is none of it here.
    pub fn feature(self) -> String {
        let last = Self::NAMES.len() - 1;
        match Self::NAMES.get(self.0 as usize) {
            Some(name) => format!("maps of type {name}"),
            None => format!(
                "maps of a type beyond those of linux/bpf.h that are known here (up to {last}, {})",
                Self::NAMES[last]
            ),
        }
    }

    /// Whether programs cannot look at its entries.
    pub fn has_no_readable_values(self) -> bool {
        matches!(self.0, 3 | 4 | 7 | 26 | 27)
    }

    /// Its name in a sentence: `type sockmap`, and of one that is not known `type 77`.
    pub fn words(self) -> String {
        Self::NAMES.get(self.0 as usize).map_or_else(|| self.name(), |name| format!("type {name}"))
    }

    /// Its name.
    pub fn name(self) -> String {
        Self::NAMES.get(self.0 as usize).map_or_else(|| format!("type {}", self.0), |name| (*name).to_owned())
    }
}

/// What a slot of a map holds from the beginning, where that is a program or a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its number.
    pub index: u32,
    /// The name of the function or map.
    pub symbol: String,
}

/// A global variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name; of one that is static in a function, that function's and its own (`count.seen`).
    pub name: String,
    /// Its first byte in its section.
    pub at: u32,
    /// Bytes.
    pub size: u32,
    /// BTF's type, where that says one.
    pub ty: Option<u32>,
}

/// A map as an object defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapDefinition {
    /// Its name; of global variables their section's.
    pub name: String,
    /// What kind it is.
    pub ty: MapType,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// `max_entries`.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
    /// BTF's types of key and value.
    pub key: Option<u32>,
    /// See `key`.
    pub value: Option<u32>,
    /// Of a map of maps: what maps it holds.
    pub inner: Option<Box<MapDefinition>>,
    /// What is in its slots from the beginning.
    pub slots: Vec<Slot>,
    /// Of global variables, their bytes.
    pub data: Option<Vec<u8>>,
    /// And which they are, in the order of their places.
    pub variables: Vec<Variable>,
    /// Whether programs cannot write there.
    pub read_only: bool,
}

impl MapDefinition {
    pub(super) fn new(name: &str) -> MapDefinition {
        MapDefinition {
            name: name.to_owned(),
            ty: MapType(0),
            key_size: 0,
            value_size: 0,
            max_entries: 0,
            flags: 0,
            key: None,
            value: None,
            inner: None,
            slots: Vec::new(),
            data: None,
            variables: Vec::new(),
            read_only: false,
        }
    }

    /// Global variables of a section.
    pub(super) fn of_section(name: &str, data: Vec<u8>, variables: Vec<Variable>, read_only: bool) -> MapDefinition {
        let value_size = data.len() as u32;
        let ty = MapType::ARRAY;
        let map = MapDefinition { ty, key_size: 4, value_size, max_entries: 1, read_only, ..Self::new(name) };
        MapDefinition { data: Some(data), variables, ..map }
    }
}

/// Where the slots of a map begin in its section, by which relocations find them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotsAt {
    pub map: usize,
    pub offset: u64,
}

/// That there may be so many maps.
pub(super) fn is_room(count: usize) -> Result<(), Wrong> {
    match count {
        0..=MAX_MAPS => Ok(()),
        _ => Err(Wrong::new(format!(
            "there are more than {MAX_MAPS} maps, the most there may be, sections of global variables included"
        ))),
    }
}

/// The maps of `.maps`, by the types of its variables; `places` says where in the section they are, which the types say only
/// once they are linked.
pub(super) fn by_types(btf: &Btf, places: &HashMap<&str, u64>) -> Result<(Vec<MapDefinition>, Vec<SlotsAt>), Wrong> {
    let (mut maps, mut slots) = (Vec::new(), Vec::new());
    let variables = btf.section(".maps").unwrap_or_default();
    is_room(variables.len())?;
    for &(variable, ..) in variables {
        let name = btf.get(variable).map_or("", |ty| ty.name.as_str());
        let offset = places.get(name).copied().unwrap_or(0);
        let mut slots_at = None;
        let map = by_type(btf, name, variable, &mut slots_at, 0)?;
        if let Some(at) = slots_at {
            slots.push(SlotsAt { map: maps.len(), offset: offset.saturating_add(u64::from(at)) });
        }
        maps.push(map);
    }
    Ok((maps, slots))
}

fn by_type(btf: &Btf, name: &str, ty: u32, slots_at: &mut Option<u32>, depth: u32) -> Result<MapDefinition, Wrong> {
    let wrong = |what: &str| Wrong::new(format!("the map `{name}` {what}"));
    let Some(Kind::Struct { members, .. }) = btf.resolve(ty).map(|ty| &ty.kind) else {
        return Err(wrong("is no structure with `__uint` and `__type`"));
    };
    let pointed = |ty: u32| match btf.resolve(ty)?.kind {
        Kind::Pointer(to) => Some(to),
        _ => None,
    };
    // __uint(name, value): int (*name)[value]
    let number = |ty: u32| match btf.resolve(pointed(ty)?)?.kind {
        Kind::Array { count, .. } => Some(count),
        _ => None,
    };
    let mut map = MapDefinition::new(name);
    for member in members {
        let as_number = || number(member.ty).ok_or_else(|| wrong(&format!("has no number for `{}`", member.name)));
        let as_type = || pointed(member.ty).ok_or_else(|| wrong(&format!("has no type for `{}`", member.name)));
        let size = |ty: u32| btf.size(ty).ok_or_else(|| wrong(&format!("has a `{}` of no size", member.name)));
        match member.name.as_str() {
            "type" => map.ty = MapType(as_number()?),
            "max_entries" => map.max_entries = as_number()?,
            "map_flags" => map.flags = as_number()?,
            "key_size" => map.key_size = as_number()?,
            "value_size" => map.value_size = as_number()?,
            "key" => {
                let ty = as_type()?;
                (map.key, map.key_size) = (Some(ty), size(ty)?);
            }
            "value" => {
                let ty = as_type()?;
                (map.value, map.value_size) = (Some(ty), size(ty)?);
            }
            "values" => {
                *slots_at = Some(member.bit / 8);
                let of = match btf.resolve(member.ty).map(|ty| &ty.kind) {
                    Some(Kind::Array { of, .. }) => pointed(*of),
                    _ => None,
                };
                let of = of.ok_or_else(|| wrong("has `values` that are no array of pointers"))?;
                if matches!(btf.resolve(of).map(|ty| &ty.kind), Some(Kind::Struct { .. })) {
                    if depth > 0 {
                        return Err(wrong("holds maps that hold maps"));
                    }
                    map.inner = Some(Box::new(by_type(btf, &format!("{name}.inner"), of, &mut None, 1)?));
                }
                map.value_size = 4;
            }
            // Pinning, NUMA nodes and what else only a kernel needs.
            _ => {}
        }
    }
    Ok(map)
}

/// A map of `maps`: `struct bpf_map_def` begins with type, key size, value size, entries and flags; of what may stand behind
/// them nothing is taken.
pub(super) fn by_definition(name: &str, at: u64, data: &[u8]) -> Result<MapDefinition, Wrong> {
    let definition = usize::try_from(at).ok().and_then(|at| data.get(at..)).unwrap_or_default();
    let Some(words) = definition.as_chunks().0.first_chunk::<5>() else {
        return Err(Wrong::new(format!("the map `{name}` lies beyond the end of its section")));
    };
    let [ty, key_size, value_size, max_entries, flags] = words.map(u32::from_le_bytes);
    Ok(MapDefinition { ty: MapType(ty), key_size, value_size, max_entries, flags, ..MapDefinition::new(name) })
}
