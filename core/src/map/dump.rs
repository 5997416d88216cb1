//! Writes a map's entries as text, for people and programs.
//!
//! The text depends on the entries only: they are in order of their keys, and numbers are decimal.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use super::annotations::Annotation;
use super::columns::Columns;
use super::declaration::{Declaration, MapKind};
use super::fields::Field;
use super::rows::{Row, sorted_rows};

/// Format of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A line of column names, then a line for each entry: `key0,key1,value0`. Maps by index have
    /// `index` instead of the key, prefix maps `prefix`; counters have `sum` instead of the value.
    /// If the map declares fields, they are the columns.
    Csv,
    /// An array with an object for each entry: `{"key": [1, 2], "value": [3]}`, or with `"index":
    /// 1`, `"prefix": "10.0.0.0/8"` or `"sum": 3`, as in CSV. Each field is one item, a string
    /// unless it is a number. Maps of objects are written as bpftool does ([`super::typed`]).
    Json,
}

impl Format {
    /// All formats, with their file name extension.
    pub const ALL: [(&'static str, Format); 2] = [("csv", Format::Csv), ("json", Format::Json)];

    /// The format that a file's extension stands for.
    pub fn of(path: &Path) -> Option<Format> {
        let ending = path.extension()?;
        Format::ALL.into_iter().find(|(name, _)| ending.eq_ignore_ascii_case(name)).map(|(_, format)| format)
    }
}

/// Writes the entries in a map's memory, in order of their keys.
///
/// # Errors
/// Errors of `out`.
pub fn dump(map: &Declaration, words: &[u32], format: Format, out: &mut dyn Write) -> io::Result<()> {
    dump_rows(map, sorted_rows(map, words), format, out)
}

/// Writes the given entries, in the given order.
///
/// # Errors
/// Errors of `out`.
pub fn dump_rows(
    map: &Declaration,
    rows: impl IntoIterator<Item = Row>,
    format: Format,
    out: &mut dyn Write,
) -> io::Result<()> {
    if let Some(typed) = &map.typed {
        return typed.dump(map, rows, format, out);
    }
    match format {
        Format::Csv => csv(map, rows, out),
        Format::Json => json(map, rows, out),
    }
}

/// Text of the words of a key or a value, column by column; `quotes` enclose text that is not a
/// number. No column's text needs escaping.
fn cells<'a>(columns: &'a [Field], mut words: &'a [u32], quotes: &'a str) -> impl Iterator<Item = String> + 'a {
    columns.iter().map(move |column| {
        let (cell, rest) = words.split_at(column.ty.words().map_or(words.len(), |count| count as usize));
        words = rest;
        let quotes = if column.ty.is_number() { "" } else { quotes };
        format!("{quotes}{}{quotes}", column.ty.text(cell))
    })
}

/// The annotations of a row.
fn annotations_of<'a>(map: &'a Declaration, row: &Row) -> impl Iterator<Item = (&'static str, &'a Annotation)> {
    let entry = row.key.first().copied().unwrap_or(u32::MAX);
    map.annotations.iter().flat_map(move |annotations| annotations.of(entry))
}

impl Declaration {
    /// The header line of CSV: the names of the columns.
    pub fn csv_header(&self) -> String {
        if let Some(typed) = &self.typed {
            return typed.header();
        }
        let own = Columns::of(self).header();
        let annotations = self.annotations.iter().flat_map(|annotations| &annotations.columns);
        annotations.fold(own, |header, name| header + "," + name)
    }
}

fn csv(map: &Declaration, rows: impl IntoIterator<Item = Row>, out: &mut dyn Write) -> io::Result<()> {
    let columns = Columns::of(map);
    writeln!(out, "{}", map.csv_header())?;
    for row in rows {
        write_list(out, cells(&columns.key, &row.key, "").chain(cells(&columns.value, &row.value, "")))?;
        for (_, annotation) in annotations_of(map, &row) {
            write!(out, ",{}", annotation.cell())?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn json(map: &Declaration, rows: impl IntoIterator<Item = Row>, out: &mut dyn Write) -> io::Result<()> {
    let columns = Columns::of(map);
    // A key or value that is always a single item is written without a list.
    let key = match map.kind {
        MapKind::Array | MapKind::Counter => ("index", ["", ""]),
        MapKind::Lpm => ("prefix", ["", ""]),
        MapKind::Hash | MapKind::LruHash => ("key", ["[", "]"]),
    };
    let value = if map.kind == MapKind::Counter { ("sum", ["", ""]) } else { ("value", ["[", "]"]) };
    out.write_all(b"[")?;
    let mut between = "\n{";
    for row in rows {
        out.write_all(between.as_bytes())?;
        for (end, (name, [opens, closes]), columns, words) in
            [(",", key, &columns.key, &row.key), ("", value, &columns.value, &row.value)]
        {
            write!(out, "\"{name}\":{opens}")?;
            write_list(out, cells(columns, words, "\""))?;
            write!(out, "{closes}{end}")?;
        }
        for (name, annotation) in annotations_of(map, &row) {
            write!(out, ",\"{name}\":{}", annotation.json())?;
        }
        out.write_all(b"}")?;
        between = ",\n{";
    }
    out.write_all(b"\n]\n")
}

/// Writes items separated by commas.
fn write_list(out: &mut dyn Write, items: impl IntoIterator<Item = impl Display>) -> io::Result<()> {
    for (i, item) in items.into_iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        write!(out, "{comma}{item}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::annotations::Annotations;
    use super::super::layout::{HEADER_WORDS, Layout, stored_word};
    use super::*;
    use crate::program::map_declarations::{CommentSyntax, declarations};

    fn map(kind: MapKind, key: u32, value: u32, entries: u32) -> Declaration {
        Declaration::new("m", kind, key, value, entries)
    }

    fn both(map: &Declaration, words: &[u32]) -> [String; 2] {
        Format::ALL.map(|(_, format)| {
            let mut text = Vec::new();
            dump(map, words, format, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        })
    }

    #[test]
    fn annotations_follow_the_entries_columns() {
        let text = |text: &str| Annotation::from(text);
        let rows = vec![vec![text("a"), 7_u32.into()], vec![text("say \"b\",\nor c"), Annotation::Unknown]];
        let annotations = Annotations { columns: vec!["what", "line"], rows };
        let map = Declaration { annotations: Some(Arc::new(annotations)), ..map(MapKind::Counter, 1, 2, 3) };
        let [csv, json] = both(&map, &vec![0; Layout::of(&map).words()]);
        // The third entry has no annotations.
        assert_eq!(csv, "index,sum,what,line\n0,0,a,7\n1,0,\"say \"\"b\"\",\nor c\",\n2,0\n");
        assert_eq!(
            json,
            "[\n{\"index\":0,\"sum\":0,\"what\":\"a\",\"line\":7},\n\
             {\"index\":1,\"sum\":0,\"what\":\"say \\\"b\\\",\\u000aor c\",\"line\":null},\n\
             {\"index\":2,\"sum\":0}\n]\n"
        );
    }

    #[test]
    fn words_of_keys_and_values_are_columns() {
        let map = map(MapKind::Hash, 2, 3, 4);
        let layout = Layout::of(&map);
        let mut words = vec![0; layout.words()];
        for (place, key) in [(1, [7, 0]), (4, [6, u32::MAX])] {
            let place = &mut words[layout.slot_offset(place)..layout.slot_offset(place + 1)];
            (0..3).for_each(|i| place[i] = stored_word(&key, i));
            place[3..].copy_from_slice(&[1, key[0] * 10, 0, u32::MAX]);
        }
        let [csv, json] = both(&map, &words);
        assert_eq!(csv, "key0,key1,value0,value1,value2\n6,4294967295,60,0,4294967295\n7,0,70,0,4294967295\n");
        assert_eq!(
            json,
            "[\n{\"key\":[6,4294967295],\"value\":[60,0,4294967295]},\n\
             {\"key\":[7,0],\"value\":[70,0,4294967295]}\n]\n"
        );
    }

    #[test]
    fn fields_are_columns_in_their_own_notation() {
        let line = "//! map m: array value=5 entries=2 fields=slice,gateway:ip,port";
        let [map] = &declarations(line, CommentSyntax::Wgsl).unwrap()[..] else { panic!("one map") };
        let words: Vec<u32> =
            [0; HEADER_WORDS as usize].into_iter().chain([0, 0, 0xffff, 0x0a00_0001, 7, 1, 0, 0, 2, 3]).collect();
        let [csv, json] = both(map, &words);
        assert_eq!(csv, "slice,gateway,port\n0,10.0.0.1,7\n1,0:1::2,3\n");
        assert_eq!(json, "[\n{\"index\":0,\"value\":[\"10.0.0.1\",7]},\n{\"index\":1,\"value\":[\"0:1::2\",3]}\n]\n");

        let line = "//! map m: lpm key=1 value=3 entries=2 fields=network,port,next_hop:mac";
        let [map] = &declarations(line, CommentSyntax::Wgsl).unwrap()[..] else { panic!("one map") };
        let mut table = super::super::Table::new(map, Vec::new());
        table.set(&[0x0a00_0000, 8], &[7, 0x0200, 1]).unwrap();
        let [csv, json] = both(map, table.changes().1);
        assert_eq!(csv, "network,port,next_hop\n10.0.0.0/8,7,02:00:00:00:00:01\n");
        assert_eq!(json, "[\n{\"prefix\":\"10.0.0.0/8\",\"value\":[7,\"02:00:00:00:00:01\"]}\n]\n");
    }

    #[test]
    fn maps_by_index_have_an_index_and_counters_a_sum() {
        let words: Vec<u32> = [0; HEADER_WORDS as usize].into_iter().chain([1, 0, u32::MAX, 2, 3, u32::MAX]).collect();
        let [csv, json] = both(&map(MapKind::Counter, 1, 2, 3), &words);
        assert_eq!(csv, "index,sum\n0,1\n1,12884901887\n2,18446744069414584323\n");
        let wanted = "[\n{\"index\":0,\"sum\":1},\n{\"index\":1,\"sum\":12884901887},\n\
                      {\"index\":2,\"sum\":18446744069414584323}\n]\n";
        assert_eq!(json, wanted);
        let [csv, json] = both(&map(MapKind::Array, 1, 3, 2), &words);
        assert_eq!(csv, "index,value0,value1,value2\n0,1,0,4294967295\n1,2,3,4294967295\n");
        assert!(json.ends_with("\n{\"index\":1,\"value\":[2,3,4294967295]}\n]\n"), "{json}");
    }

    #[test]
    fn prefixes_are_written_in_cidr_notation() {
        let of = |key, rows: &[(&[u32], &[u32])]| {
            let map = map(MapKind::Lpm, key, 2, 5);
            let mut table = super::super::Table::new(&map, Vec::new());
            rows.iter().for_each(|(key, value)| table.set(key, value).unwrap());
            both(&map, table.changes().1)
        };
        let rows: [(&[u32], &[u32]); 4] =
            [(&[0x0a00_0000, 16], &[1, 2]), (&[0xc0a8_0101, 32], &[3]), (&[0x0a00_0000, 8], &[4]), (&[0, 0], &[5])];
        let [csv, json] = of(1, &rows);
        assert_eq!(csv, "prefix,value0,value1\n0.0.0.0/0,5,0\n10.0.0.0/8,4,0\n10.0.0.0/16,1,2\n192.168.1.1/32,3,0\n");
        assert!(json.starts_with("[\n{\"prefix\":\"0.0.0.0/0\",\"value\":[5,0]},\n"), "{json}");
        let rows: [(&[u32], &[u32]); 2] =
            [(&[0x2001_0db8, 0, 0, 1, 128], &[1, u32::MAX]), (&[0x2001_0db8, 0, 0, 0, 32], &[2])];
        let [csv, json] = of(4, &rows);
        assert_eq!(csv, "prefix,value0,value1\n2001:db8::/32,2,0\n2001:db8::1/128,1,4294967295\n");
        assert!(json.ends_with("{\"prefix\":\"2001:db8::1/128\",\"value\":[1,4294967295]}\n]\n"), "{json}");
    }

    #[test]
    fn maps_without_entries_or_values_are_well_formed() {
        let set = map(MapKind::Hash, 1, 0, 4);
        let layout = Layout::of(&set);
        let mut words = vec![0; layout.words()];
        assert_eq!(both(&set, &words), ["key0\n", "[\n]\n"]);
        (0..2).for_each(|i| words[layout.slot_offset(3) + i] = stored_word(&[9], i));
        words[layout.slot_offset(3) + 2] = 1;
        assert_eq!(both(&set, &words), ["key0\n9\n", "[\n{\"key\":[9],\"value\":[]}\n]\n"]);
    }

    #[test]
    fn file_extensions_select_the_format() {
        let of = |name| Format::of(Path::new(name));
        assert_eq!((of("a.csv"), of("b/a.x.JSON")), (Some(Format::Csv), Some(Format::Json)));
        assert_eq!([of("csv"), of("a.txt"), of(".csv"), of("a.csv/x"), of("")], [None; 5]);
    }
}
