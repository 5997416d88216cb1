//! `--from-pin`: initialises a map from a pinned kernel map.

use portcullis::device::Session;
use portcullis::frontend::xdp::object::MapType;
use portcullis::map::typed::{CType, scalar_fields, sum_per_cpu};
use portcullis::map::{Declaration, MapKind, Row, Table};
use portcullis::packet_io::pinned::{Entries, PinnedMap};

use super::map_args::MapFile;
use crate::failure::Failure;

/// Reads the rows of a pinned kernel map after checking that it matches the filter's map.
pub fn read(from: &MapFile, map: &Declaration) -> Result<Vec<Row>, Failure> {
    let wrong = |what: String| Failure::Error(format!("--from-pin {from}: {what}"));
    let pinned = PinnedMap::open(&from.file).map_err(|error| wrong(error.to_string()))?;
    check(&pinned, map).map_err(wrong)?;
    let entries = pinned.entries().map_err(|error| wrong(error.to_string()))?;
    Ok(words(map, entries))
}

/// Sets the entries in the session's map, replacing those with the same keys.
pub fn set(
    entries: &[Row],
    from: &MapFile,
    (number, map): (usize, &Declaration),
    session: &mut dyn Session,
) -> Result<(), Failure> {
    let mut table = Table::new(map, session.map_words(number)?);
    for (number, Row { key, value }) in entries.iter().enumerate() {
        if table.set(key, value).is_err() {
            let what = format!(
                "the kernel's map has {} entries, and `{}` has no room for more than {number} of them (entries={}){}",
                entries.len(),
                from.map,
                map.entries,
                portcullis::map_file::capacity_hint(map, entries.len())
            );
            return Err(Failure::Error(format!("--from-pin {from}: {what}")));
        }
    }
    let (at, words) = table.changes();
    Ok(session.set_map_words(number, at, words)?)
}

/// Refuses a map of another type or with keys or values of other sizes.
fn check(pinned: &PinnedMap, map: &Declaration) -> Result<(), String> {
    let ty = MapType(pinned.ty);
    let fits = match &map.typed {
        // Values of these types are kernel-internal numbers, which mean nothing here.
        Some(_)
            if ty.has_no_readable_values()
                || ty.is_map_of_maps()
                || matches!(ty, MapType::CPUMAP | MapType::XSKMAP) =>
        {
            return Err(format!(
                "the kernel's map is of type {}, whose values mean nothing outside of the kernel",
                ty.name()
            ));
        }
        Some(typed) if typed.constant => {
            return Err("the program is compiled with these constants; change them with --set".into());
        }
        Some(typed) => typed.map_type_number == pinned.ty,
        None => match map.kind {
            MapKind::Array | MapKind::Counter => ty.is_array(),
            MapKind::Hash => ty.is_hash(),
            MapKind::LruHash => ty.is_lru(),
            MapKind::Lpm => ty == MapType::LPM_TRIE,
        },
    };
    let own = map.typed.as_ref().map_or_else(|| map.kind.name().to_owned(), |typed| typed.map_type.clone());
    if !fits {
        return Err(format!("the kernel's map is of type {}, and `{}` is of type {own}", ty.name(), map.name));
    }
    let (key, value) = map.sizes();
    for (what, there, here) in [("keys", pinned.key_size, key), ("values", pinned.value_size, value)] {
        if there != here {
            return Err(format!(
                "the kernel's map has {what} of {there} bytes, and `{}` has {what} of {here}",
                map.name
            ));
        }
    }
    Ok(())
}

/// Converts the entries to words. Per-CPU values are summed. Entries of an array beyond the map's
/// size are left out if they are zero.
fn words(map: &Declaration, entries: Entries) -> Vec<Row> {
    let value = match &map.typed {
        Some(typed) => typed.value.clone(),
        // A counter has 64 bits.
        None if map.kind == MapKind::Counter => CType::unknown(8),
        None => CType::unknown(map.sizes().1),
    };
    let of_value = scalar_fields(&value, "value");
    let numbered = matches!(map.kind, MapKind::Array | MapKind::Counter);
    let each = entries.into_iter().map(|(key, values)| {
        let value = match &values[..] {
            [one] => one.clone(),
            several => sum_per_cpu(&of_value, value.size, several),
        };
        Row { key: map.key_from_bytes(&key), value: map.value_from_bytes(&value) }
    });
    let beyond = |key: &[u32]| numbered && key.first().is_some_and(|number| *number >= map.entries);
    each.filter(|row| !beyond(&row.key) || row.value.iter().any(|word| *word != 0)).collect()
}
