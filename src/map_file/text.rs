//! A map's rows as people write them and as `dump` does: CSV and JSON. `docs/maps.md` says what may be in them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use portcullis_core::map::fields::{Columns, Field, FieldType};
use portcullis_core::map::{Declaration, Format, MapKind, lpm};

use super::entries::Entries;
use super::typed_rows::Bytes;
use super::{csv, json, literals};

/// Problems that are told of one by one.
const SHOWN: usize = 8;

/// The rows of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedRows {
    /// What is in them.
    pub entries: Entries,
    /// The line that each begins in, from 1.
    pub lines: Vec<usize>,
}

/// What is wrong with a file's rows, the first things of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, thiserror::Error)]
pub struct RowErrors {
    /// A line, from 1, and what is wrong there.
    pub first: Vec<(usize, String)>,
    /// How many more there are.
    pub more: usize,
}

impl RowErrors {
    /// A single one.
    pub fn single(line: usize, what: impl Into<String>) -> RowErrors {
        RowErrors { first: vec![(line, what.into())], more: 0 }
    }

    pub(super) fn push(&mut self, line: usize, what: String) {
        match self.first.len() {
            SHOWN => self.more += 1,
            _ => self.first.push((line, what)),
        }
    }

    /// As text, a line each: `blocked.csv:17: …`.
    pub fn with_file_name(&self, file: &str) -> String {
        let mut lines: Vec<String> = self.first.iter().map(|(line, what)| format!("{file}:{line}: {what}")).collect();
        match self.more {
            0 => {}
            1 => lines.push("and one more row is wrong".into()),
            more => lines.push(format!("and {more} more rows are wrong")),
        }
        lines.join("\n")
    }
}

impl fmt::Display for RowErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_file_name("line"))
    }
}

/// Reads rows, for a map that they are to be in.
///
/// # Errors
/// What is wrong with them; there are none then.
pub fn parse(map: &Declaration, format: Format, bytes: &[u8]) -> Result<ParsedRows, RowErrors> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        RowErrors::single(before + 1, "this is no text in UTF-8; save it in that encoding")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    check_variable(map).map_err(|what| RowErrors::single(1, what))?;
    let mut reader = Reader::new(map);
    match format {
        Format::Csv => csv::read(text, &mut reader),
        Format::Json => json::read(text, &mut reader),
    }
    reader.finish()
}

/// Refuses what a program was compiled with.
fn check_variable(map: &Declaration) -> Result<(), String> {
    match &map.typed {
        Some(typed) if typed.constant => Err(format!(
            "what is in `{}` are constants, with which the program was compiled: set them with --set",
            typed.name
        )),
        _ => Ok(()),
    }
}

/// The words of a key, out of cells as rows have them.
///
/// # Errors
/// What is wrong with them.
pub fn parse_key(map: &Declaration, cells: &[impl AsRef<str>]) -> Result<Vec<u32>, String> {
    let mut reader = Reader::new(map);
    reader.key(cells)?;
    if let Some(bytes) = &reader.bytes {
        return bytes.key_words();
    }
    let (there, wanted) = (reader.words.len(), reader.length(Part::Key));
    if there < wanted {
        return Err(format!("the key ends after {there} of {wanted} words; {}", reader.whole()));
    }
    Ok(reader.words)
}

/// The words of a key and of a value, out of cells as rows have them.
///
/// # Errors
/// What is wrong with them.
pub fn parse_entry(
    map: &Declaration,
    key: &[impl AsRef<str>],
    value: &[impl AsRef<str>],
) -> Result<(Vec<u32>, Vec<u32>), String> {
    check_variable(map)?;
    let mut reader = Reader::new(map);
    reader.key(key)?;
    if reader.part() == Part::Value || reader.length(Part::Value) == 0 {
        value.iter().try_for_each(|cell| reader.cell(cell.as_ref().trim(), Part::Value))?;
    }
    reader.end(1)?;
    let (key, value) = reader.rows.entries.iter().next().ok_or("there is no row")?;
    Ok((key.to_vec(), value.to_vec()))
}

/// The bytes of a file of rows. One that is larger than any rows of the map's can be is not read to its end, which it may
/// not have.
///
/// # Errors
/// Why there are none.
pub fn read_file(path: &Path, map: &Declaration) -> io::Result<Vec<u8>> {
    // A cell of the longest, with its name in JSON and what people put around it; and comments.
    let row = match &map.typed {
        // Each with its name, in all forms that there are.
        Some(typed) => {
            let (key, value) = typed.columns();
            let names: usize = key.iter().chain(&value).map(|leaf| leaf.name.len()).sum();
            4 * (64 + names as u64 + 16 * u64::from(typed.key.size + typed.value.size))
        }
        None => 64 * u64::from(1 + map.key_words() + map.value),
    };
    let most = (256 << 20) + u64::from(map.entries).saturating_mul(row);
    let (file, mut bytes) = (File::open(path)?, Vec::new());
    let length = file.metadata()?.len();
    if length <= most {
        bytes.try_reserve_exact(length as usize)?;
        file.take(most + 1).read_to_end(&mut bytes)?;
    }
    if length > most || bytes.len() as u64 > most {
        let (name, entries) = (&map.name, map.entries);
        return Err(io::Error::other(format!(
            "it is larger than all rows of the map `{name}` can be (entries={entries}); name the file that was meant"
        )));
    }
    Ok(bytes)
}

/// Which part of an entry a cell belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Key,
    Value,
}

/// A field, as the next cell meets it.
#[derive(Clone, Copy)]
struct Column<'a> {
    field: &'a Field,
    /// Whether the cell is its first.
    begins: bool,
    /// Words from there to its end.
    room: usize,
}

/// Rows on their way from cells to words.
pub(super) struct Reader<'a> {
    pub map: &'a Declaration,
    pub columns: Columns,
    /// The columns' names.
    pub names: Vec<String>,
    /// Where keys and values have types, all that becomes of cells.
    pub bytes: Option<Bytes<'a>>,
    rows: ParsedRows,
    /// Of the row that is read now.
    words: Vec<u32>,
    pub problems: RowErrors,
}

impl<'a> Reader<'a> {
    fn new(map: &'a Declaration) -> Reader<'a> {
        let rows = ParsedRows { entries: Entries::new(map), lines: Vec::new() };
        let bytes = map.typed.as_ref().map(|typed| Bytes::new(map, typed));
        let columns = Columns::of(map);
        let names = match &bytes {
            Some(bytes) => bytes.names(),
            None => columns.iter().map(|column| column.name.clone()).collect(),
        };
        Reader { map, columns, names, bytes, rows, words: Vec::new(), problems: RowErrors::default() }
    }

    /// Columns behind the map's own, which are nothing to read.
    pub fn notes(&self) -> &'a [&'static str] {
        self.map.annotations.as_ref().map(|annotations| annotations.columns.as_slice()).unwrap_or_default()
    }

    /// Words of a part.
    pub fn length(&self, part: Part) -> usize {
        if let Some(bytes) = &self.bytes {
            return bytes.length(part);
        }
        match part {
            Part::Key => self.map.key_words() as usize,
            Part::Value => self.map.value as usize,
        }
    }

    /// The part that the next cell is of.
    pub fn part(&self) -> Part {
        if let Some(bytes) = &self.bytes {
            return bytes.part();
        }
        if self.words.len() < self.length(Part::Key) { Part::Key } else { Part::Value }
    }

    /// The cells of a row's key; what is wrong with one.
    fn key(&mut self, cells: &[impl AsRef<str>]) -> Result<(), String> {
        cells.iter().try_for_each(|cell| self.cell(cell.as_ref().trim(), Part::Key))
    }

    /// The next cell of a row; what is wrong with it.
    pub fn cell(&mut self, text: &str, part: Part) -> Result<(), String> {
        if let Some(bytes) = &mut self.bytes {
            return bytes.cell(text, part);
        }
        let (before, all) = match part {
            Part::Key => (self.words.len(), self.length(part)),
            Part::Value => (self.words.len() - self.length(Part::Key), self.length(part)),
        };
        let column = self.column(part, before);
        let wrong = |what: &str| format!("`{}` {what}; {}", shown(text), self.expected(part, all - before, column));
        if before == all {
            return Err(format!("`{}` is one cell too many; {}", shown(text), self.whole()));
        }
        let words = self.words_of(text, part, before).map_err(|what| wrong(&what))?;
        // A cell ends with its field, so that one that is missing is not made up for by the next.
        let (name, room) = match column {
            Some(column) => (format!("`{}`", column.field.name), column.room),
            None => (format!("the {}", part_name(part)), all - before),
        };
        if words.len() > room {
            return Err(wrong(&format!("is {} words, and {name} has room for {room}", words.len())));
        }
        self.words.extend(words);
        if part == Part::Key && self.words.len() == all {
            self.check_key()?;
        }
        Ok(())
    }

    fn words_of(&self, text: &str, part: Part, before: usize) -> Result<Vec<u32>, String> {
        if self.map.kind == MapKind::Counter && part == Part::Value {
            let sum = literals::number(text)?;
            return Ok(vec![sum as u32, (sum >> 32) as u32]);
        }
        let ty = self.column(part, before).filter(|column| column.begins).map(|column| column.field.ty);
        if let Some(words) = literals::field(text, ty) {
            return words;
        }
        let prefix = match (self.map.kind, part, before) {
            (MapKind::Lpm, Part::Key, 0) => literals::prefix(text),
            _ => None,
        };
        let Some(prefix) = prefix else { return Ok(literals::cell(text)?.get().to_vec()) };
        let words = prefix?.get().to_vec();
        match (words.len(), self.map.key) {
            (2, 4) => Err(format!("is of IPv4, and the keys of the map `{}` are of IPv6 (key=4)", self.map.name)),
            (5, 1) => Err(format!("is of IPv6, and the keys of the map `{}` are of IPv4 (key=1)", self.map.name)),
            _ => Ok(words),
        }
    }

    /// The field that a word of a key or a value belongs to, where fields have names.
    fn column(&self, part: Part, word: usize) -> Option<Column<'_>> {
        if self.map.fields.is_empty() {
            return None;
        }
        let columns = if part == Part::Key { &self.columns.key } else { &self.columns.value };
        let mut end = 0;
        columns.iter().find_map(|field| {
            let start = end;
            end += field.ty.words().map_or(self.length(part), |words| words as usize);
            (word < end).then(|| Column { field, begins: word == start, room: end - word })
        })
    }

    /// What is wrong with the key that is there now.
    fn check_key(&self) -> Result<(), String> {
        match self.map.kind {
            MapKind::Array | MapKind::Counter if self.words[0] >= self.map.entries => {
                let (name, number, last) = (&self.map.name, self.words[0], self.map.entries - 1);
                Err(format!("the map `{name}` has no entry {number}: its entries are 0 to {last}"))
            }
            MapKind::Lpm => lpm::check(self.map, &self.words).map_err(|error| error.to_string()),
            _ => Ok(()),
        }
    }

    /// What a cell may be.
    fn expected(&self, part: Part, room: usize, column: Option<Column<'_>>) -> String {
        let numbered = matches!(self.map.kind, MapKind::Array | MapKind::Counter);
        match (self.map.kind, part) {
            (MapKind::Counter, Part::Value) => return format!("expected a number up to {}", u64::MAX),
            (_, Part::Key) if numbered => return format!("expected a number up to {}", self.map.entries - 1),
            (MapKind::Lpm, Part::Key) if room == self.length(part) => {
                let example = if self.map.key == 1 { "10.0.0.0/8" } else { "2001:db8::/32" };
                return format!("expected a prefix ({example})");
            }
            _ => {}
        }
        if let Some(Column { field, begins, .. }) = column {
            let what = match field.ty {
                _ if !begins => "numbers for the rest of its words",
                FieldType::U32 => "a number (80, 0x50)",
                FieldType::U64 => "a number of up to 64 bits",
                FieldType::Ipv4 => "an IPv4 address (10.0.0.19)",
                FieldType::Ip => "an IPv6 or IPv4 address (2001:db8::7, 10.0.0.19)",
                FieldType::Mac => "a MAC (02:1a:2b:3c:4d:5e)",
                FieldType::Prefix => "a prefix",
            };
            return format!("expected {what} as `{}`", field.name);
        }
        let mut text = "expected a number (80, 0x50) or an IPv4 address".to_owned();
        if room >= 2 {
            text += ", a MAC";
        }
        if room >= 4 {
            text += ", an IPv6 address";
        }
        text
    }

    /// What a row is.
    fn whole(&self) -> String {
        if !self.map.fields.is_empty() {
            return format!("a row is {}", self.columns.header());
        }
        let words = |count| if count == 1 { "1 word".into() } else { format!("{count} words") };
        match self.map.kind {
            MapKind::Counter => "a row is a number and a sum".into(),
            MapKind::Array => format!("a row is a number and a value of {}", words(self.map.value)),
            MapKind::Lpm => format!("a row is a prefix and a value of {}", words(self.map.value)),
            MapKind::Hash | MapKind::LruHash => {
                format!("a row is a key of {} and a value of {}", words(self.map.key), words(self.map.value))
            }
        }
    }

    /// The end of a row that begins in this line; what is wrong with it.
    pub fn end(&mut self, line: usize) -> Result<(), String> {
        if let Some(bytes) = &mut self.bytes {
            let words = bytes.words()?;
            bytes.clear();
            self.push(&words, line);
            return Ok(());
        }
        let (key, all) = (self.length(Part::Key), self.rows.entries.width());
        let there = self.words.len();
        if there == all {
            let words = std::mem::take(&mut self.words);
            self.push(&words, line);
            return Ok(());
        }
        let (there, wanted, part) =
            if there < key { (there, key, Part::Key) } else { (there - key, all - key, Part::Value) };
        Err(format!("the row ends after {there} of {wanted} words of its {}; {}", part_name(part), self.whole()))
    }

    /// Takes the words of a row that begins in this line.
    pub fn push(&mut self, words: &[u32], line: usize) {
        self.rows.entries.push(words);
        self.rows.lines.push(line);
    }

    /// The row is wrong.
    pub fn wrong(&mut self, line: usize, what: String) {
        self.problems.push(line, what);
        self.words.clear();
        if let Some(bytes) = &mut self.bytes {
            bytes.clear();
        }
    }

    fn finish(mut self) -> Result<ParsedRows, RowErrors> {
        if self.problems.first.is_empty() {
            self.find_duplicates();
        }
        if self.problems.first.is_empty() { Ok(self.rows) } else { Err(self.problems) }
    }

    /// A key that comes twice: of two values nobody knows which is meant.
    fn find_duplicates(&mut self) {
        let keys: Vec<&[u32]> = self.rows.entries.iter().map(|(key, _)| key).collect();
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|row| (keys[*row], *row));
        // A chunk has the rows of one key.
        let again =
            order.chunk_by(|a, b| keys[*a] == keys[*b]).flat_map(|rows| rows[1..].iter().map(|row| (*row, rows[0])));
        let mut again: Vec<(usize, usize)> = again.collect();
        again.sort_unstable();
        for (row, first) in again {
            let [line, first] = [row, first].map(|row| self.rows.lines[row]);
            self.problems.push(line, format!("its key is that of line {first}; a key may come once"));
        }
    }
}

fn part_name(part: Part) -> &'static str {
    match part {
        Part::Key => "key",
        Part::Value => "value",
    }
}

/// A cell for a message: not too long, and without what a terminal would obey.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 40;
    let mut shown: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests;
