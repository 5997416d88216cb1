//! Map definitions of an object: in `.maps` by the types of its variables, in `maps` as `struct
//! bpf_map_def`, and sections of global variables, each an array with one value.

use std::collections::HashMap;

use super::btf::{Btf, Kind};
use super::{MAX_MAPS, ObjectError};

/// A kernel map type, `enum bpf_map_type` (linux/bpf.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MapType(pub u32);

impl MapType {
    /// Names of the kernel's map types by number, as in bpftool, separated by spaces.
    const NAMES: &str = "\
        unspec hash array prog_array perf_event_array percpu_hash percpu_array stack_trace \
        cgroup_array lru_hash lru_percpu_hash lpm_trie array_of_maps hash_of_maps devmap sockmap \
        cpumap xskmap sockhash cgroup_storage reuseport_sockarray percpu_cgroup_storage queue \
        stack sk_storage devmap_hash struct_ops ringbuf inode_storage task_storage bloom_filter \
        user_ringbuf cgrp_storage arena";

    /// Values by key.
    pub const HASH: MapType = MapType(1);

    /// Values by index.
    pub const ARRAY: MapType = MapType(2);

    /// Programs, for tail calls.
    pub const PROG_ARRAY: MapType = MapType(3);

    /// Perf events, with a reader per CPU.
    pub const PERF_EVENT_ARRAY: MapType = MapType(4);

    /// Like `HASH`, with a value per CPU.
    pub const PERCPU_HASH: MapType = MapType(5);

    /// Like `ARRAY`, with a value per CPU.
    pub const PERCPU_ARRAY: MapType = MapType(6);

    /// Like `HASH`, evicting the least recently used entry when full.
    pub const LRU_HASH: MapType = MapType(9);

    /// Like `LRU_HASH`, with a value per CPU.
    pub const LRU_PERCPU_HASH: MapType = MapType(10);

    /// Values by address prefix.
    pub const LPM_TRIE: MapType = MapType(11);

    /// Maps by index.
    pub const ARRAY_OF_MAPS: MapType = MapType(12);

    /// Maps by key.
    pub const HASH_OF_MAPS: MapType = MapType(13);

    /// Network devices by index.
    pub const DEVMAP: MapType = MapType(14);

    /// CPUs by index.
    pub const CPUMAP: MapType = MapType(16);

    /// AF_XDP sockets by index.
    pub const XSKMAP: MapType = MapType(17);

    /// Network devices by key.
    pub const DEVMAP_HASH: MapType = MapType(25);

    /// Events in a ring shared by all CPUs.
    pub const RINGBUF: MapType = MapType(27);

    /// Whether maps of this type are arrays of values.
    pub fn is_array(self) -> bool {
        matches!(self, Self::ARRAY | Self::PERCPU_ARRAY)
    }

    /// Whether maps of this type have values by key and evict none.
    pub fn is_hash(self) -> bool {
        matches!(self, Self::HASH | Self::PERCPU_HASH)
    }

    /// Whether maps of this type have values by key and evict the least recently used.
    pub fn is_lru(self) -> bool {
        matches!(self, Self::LRU_HASH | Self::LRU_PERCPU_HASH)
    }

    /// Whether entries are redirect targets: devices, sockets or CPUs.
    pub fn holds_redirect_targets(self) -> bool {
        matches!(self, Self::DEVMAP | Self::DEVMAP_HASH | Self::CPUMAP | Self::XSKMAP)
    }

    /// Whether each CPU has its own values.
    pub fn is_per_cpu(self) -> bool {
        matches!(self, Self::PERCPU_HASH | Self::PERCPU_ARRAY | Self::LRU_PERCPU_HASH)
    }

    /// Whether entries are maps.
    pub fn is_map_of_maps(self) -> bool {
        matches!(self, Self::ARRAY_OF_MAPS | Self::HASH_OF_MAPS)
    }

    /// Whether filters can have a map of this type.
    pub fn is_supported(self) -> bool {
        let is_named = matches!(self, Self::PROG_ARRAY | Self::PERF_EVENT_ARRAY | Self::RINGBUF | Self::LPM_TRIE);
        is_named
            || self.is_array()
            || self.is_hash()
            || self.is_lru()
            || self.holds_redirect_targets()
            || self.is_map_of_maps()
    }

    /// Name of the missing feature if the type is not supported.
    pub fn missing_feature(self) -> String {
        if let Some(name) = self.known_name() {
            return format!("maps of type {name}");
        }
        let (last, name) = Self::NAMES.split(' ').enumerate().last().unwrap_or_default();
        format!("maps of a type beyond those of linux/bpf.h that are known here (up to {last}, {name})")
    }

    /// Whether programs cannot read entries.
    pub fn has_no_readable_values(self) -> bool {
        matches!(self.0, 3 | 4 | 7 | 26 | 27)
    }

    /// The type in a sentence: `type sockmap`, or `type 77` if unknown.
    pub fn describe(self) -> String {
        self.known_name().map_or_else(|| self.name(), |name| format!("type {name}"))
    }

    /// Name of the type.
    pub fn name(self) -> String {
        self.known_name().map_or_else(|| format!("type {}", self.0), str::to_owned)
    }

    fn known_name(self) -> Option<&'static str> {
        Self::NAMES.split(' ').nth(self.0 as usize)
    }
}

/// Initial content of a slot that holds a program or a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialSlot {
    /// Index of the slot.
    pub index: u32,
    /// Name of the function or map.
    pub symbol: String,
}

/// A global variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Name; that of a static variable in a function is prefixed by the function's (`count.seen`).
    pub name: String,
    /// Byte offset in the section.
    pub at: u32,
    /// Size in bytes.
    pub size: u32,
    /// BTF type, if known.
    pub ty: Option<u32>,
}

/// A map as the object defines it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MapDefinition {
    /// Name, or the section of global variables.
    pub name: String,
    /// Type of the map.
    pub ty: MapType,
    /// Size of a key in bytes.
    pub key_size: u32,
    /// Size of a value in bytes.
    pub value_size: u32,
    /// Maximum number of entries.
    pub max_entries: u32,
    /// Flags `BPF_F_*`.
    pub flags: u32,
    /// BTF type of the key, if known.
    pub key: Option<u32>,
    /// BTF type of the value, if known.
    pub value: Option<u32>,
    /// Definition of the inner maps of a map of maps.
    pub inner: Option<Box<MapDefinition>>,
    /// Initial contents of slots.
    pub slots: Vec<InitialSlot>,
    /// Bytes of a section of global variables.
    pub data: Option<Vec<u8>>,
    /// Variables of such a section, in ascending offset.
    pub variables: Vec<Variable>,
    /// Whether programs cannot write the map's values.
    pub read_only: bool,
}

impl MapDefinition {
    pub(super) fn new(name: &str) -> MapDefinition {
        MapDefinition { name: name.to_owned(), ..MapDefinition::default() }
    }

    /// The map of a section of global variables.
    pub(super) fn from_section(name: &str, data: Vec<u8>, variables: Vec<Variable>, read_only: bool) -> MapDefinition {
        let value_size = data.len() as u32;
        let ty = MapType::ARRAY;
        let map = MapDefinition { ty, key_size: 4, value_size, max_entries: 1, read_only, ..Self::new(name) };
        MapDefinition { data: Some(data), variables, ..map }
    }
}

/// Offset in its section where the slots of a map begin; relocations refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotsOffset {
    pub map: usize,
    pub offset: u64,
}

/// Checks the number of maps.
pub(super) fn check_map_count(count: usize) -> Result<(), ObjectError> {
    match count {
        0..=MAX_MAPS => Ok(()),
        _ => {
            Err(ObjectError::new(format!("there are more than {MAX_MAPS} maps, sections of global variables included")))
        }
    }
}

/// Reads the maps of `.maps` from the types of its variables. `places` are their offsets in the
/// section, which BTF has only after linking.
pub(super) fn from_btf(
    btf: &Btf,
    places: &HashMap<&str, u64>,
) -> Result<(Vec<MapDefinition>, Vec<SlotsOffset>), ObjectError> {
    let (mut maps, mut slots) = (Vec::new(), Vec::new());
    let variables = btf.section(".maps").unwrap_or_default();
    check_map_count(variables.len())?;
    for &(variable, ..) in variables {
        let name = btf.get(variable).map_or("", |ty| ty.name.as_str());
        let offset = places.get(name).copied().unwrap_or(0);
        let mut slots_offset = None;
        let map = from_btf_type(btf, name, variable, &mut slots_offset, 0)?;
        if let Some(at) = slots_offset {
            slots.push(SlotsOffset { map: maps.len(), offset: offset.saturating_add(u64::from(at)) });
        }
        maps.push(map);
    }
    Ok((maps, slots))
}

fn from_btf_type(
    btf: &Btf,
    name: &str,
    ty: u32,
    slots_offset: &mut Option<u32>,
    depth: u32,
) -> Result<MapDefinition, ObjectError> {
    let wrong = |what: &str| ObjectError::new(format!("the map `{name}` {what}"));
    let Some(Kind::Struct { members, .. }) = btf.resolve(ty).map(|ty| &ty.kind) else {
        return Err(wrong("is not a structure with `__uint` and `__type`"));
    };
    let pointed = |ty: u32| match btf.resolve(ty)?.kind {
        Kind::Pointer(to) => Some(to),
        _ => None,
    };
    // __uint(name, value) declares int (*name)[value].
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
                *slots_offset = Some(member.bit / 8);
                let of = match btf.resolve(member.ty).map(|ty| &ty.kind) {
                    Some(Kind::Array { of, .. }) => pointed(*of),
                    _ => None,
                };
                let of = of.ok_or_else(|| wrong("has `values` that are not an array of pointers"))?;
                if matches!(btf.resolve(of).map(|ty| &ty.kind), Some(Kind::Struct { .. })) {
                    if depth > 0 {
                        return Err(wrong("holds maps that hold maps"));
                    }
                    map.inner = Some(Box::new(from_btf_type(btf, &format!("{name}.inner"), of, &mut None, 1)?));
                }
                map.value_size = 4;
            }
            // Pinning, NUMA node and other properties that only the kernel needs.
            _ => {}
        }
    }
    Ok(map)
}

/// Reads a map of the section `maps`: `struct bpf_map_def` starts with type, key size, value size,
/// entries and flags. Fields after these are ignored.
pub(super) fn from_bpf_map_def(name: &str, at: u64, data: &[u8]) -> Result<MapDefinition, ObjectError> {
    let definition = usize::try_from(at).ok().and_then(|at| data.get(at..)).unwrap_or_default();
    let Some(words) = definition.as_chunks().0.first_chunk::<5>() else {
        return Err(ObjectError::new(format!("the map `{name}` lies beyond the end of its section")));
    };
    let [ty, key_size, value_size, max_entries, flags] = words.map(u32::from_le_bytes);
    Ok(MapDefinition { ty: MapType(ty), key_size, value_size, max_entries, flags, ..MapDefinition::new(name) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_the_kernels() {
        let named = [
            (MapType::HASH, "hash"),
            (MapType::ARRAY, "array"),
            (MapType::PROG_ARRAY, "prog_array"),
            (MapType::PERF_EVENT_ARRAY, "perf_event_array"),
            (MapType::PERCPU_HASH, "percpu_hash"),
            (MapType::PERCPU_ARRAY, "percpu_array"),
            (MapType::LRU_HASH, "lru_hash"),
            (MapType::LRU_PERCPU_HASH, "lru_percpu_hash"),
            (MapType::LPM_TRIE, "lpm_trie"),
            (MapType::ARRAY_OF_MAPS, "array_of_maps"),
            (MapType::HASH_OF_MAPS, "hash_of_maps"),
            (MapType::DEVMAP, "devmap"),
            (MapType::CPUMAP, "cpumap"),
            (MapType::XSKMAP, "xskmap"),
            (MapType::DEVMAP_HASH, "devmap_hash"),
            (MapType::RINGBUF, "ringbuf"),
            (MapType(33), "arena"),
        ];
        for (ty, name) in named {
            assert_eq!(ty.name(), name);
        }
        assert_eq!((MapType::NAMES.split(' ').count(), MapType(34).name().as_str()), (34, "type 34"));
    }
}
