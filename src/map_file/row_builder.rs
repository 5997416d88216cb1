//! Building rows from cells.

use std::fmt;

use portcullis_core::map::fields::{Field, FieldType};
use portcullis_core::map::{Columns, Declaration, MapKind, lpm};

use super::cells::{CellError, Part, quote_cell};
use super::entries::Entries;
use super::literals::{self, LiteralError};
use super::typed_rows::TypedRowBuilder;

/// Maximum number of errors that are reported individually.
const MAX_REPORTED: usize = 8;

/// The rows of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedRows {
    /// Keys and values of the rows.
    pub entries: Entries,
    /// Line number of each row, starting at 1.
    pub lines: Vec<usize>,
}

/// Errors in the rows of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default, thiserror::Error)]
pub struct RowErrors {
    /// The first errors: line numbers, starting at 1, and messages.
    pub first: Vec<(usize, String)>,
    /// Number of further errors.
    pub more: usize,
}

impl RowErrors {
    /// A single error.
    pub fn single(line: usize, what: impl Into<String>) -> RowErrors {
        RowErrors { first: vec![(line, what.into())], more: 0 }
    }

    fn push(&mut self, line: usize, what: String) {
        match self.first.len() {
            MAX_REPORTED => self.more += 1,
            _ => self.first.push((line, what)),
        }
    }

    /// Formats the errors, one per line: `blocked.csv:17: …`.
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

/// The field that the next cell belongs to.
#[derive(Clone, Copy)]
struct Column<'a> {
    field: &'a Field,
    /// Whether the cell is the first one of the field.
    is_first_cell: bool,
    /// Number of words from there to the end of the field.
    room: usize,
}

/// Builds rows from cells, and collects errors.
pub(super) struct RowBuilder<'a> {
    pub map: &'a Declaration,
    pub columns: Columns,
    /// Names of the columns.
    pub names: Vec<String>,
    /// Builder for maps with C types; it replaces everything else here.
    pub bytes: Option<TypedRowBuilder<'a>>,
    pub rows: ParsedRows,
    /// Words of the current row.
    pub words: Vec<u32>,
    pub errors: RowErrors,
}

impl<'a> RowBuilder<'a> {
    pub fn new(map: &'a Declaration) -> RowBuilder<'a> {
        let rows = ParsedRows { entries: Entries::new(map), lines: Vec::new() };
        let bytes = map.typed.as_ref().map(|typed| TypedRowBuilder::new(map, typed));
        let columns = Columns::of(map);
        let names = match &bytes {
            Some(bytes) => bytes.names(),
            None => columns.iter().map(|column| column.name.clone()).collect(),
        };
        RowBuilder { map, columns, names, bytes, rows, words: Vec::new(), errors: RowErrors::default() }
    }

    /// Names of annotation columns, which are ignored.
    pub fn annotation_columns(&self) -> &'a [&'static str] {
        self.map.annotations.as_ref().map(|annotations| annotations.columns.as_slice()).unwrap_or_default()
    }

    /// Number of words, or of cells in typed rows, in a part.
    pub fn length(&self, part: Part) -> usize {
        if let Some(bytes) = &self.bytes {
            return bytes.length(part);
        }
        match part {
            Part::Key => self.map.key_words() as usize,
            Part::Value => self.map.value as usize,
        }
    }

    /// Returns the part that the next cell belongs to.
    pub fn part(&self) -> Part {
        if let Some(bytes) = &self.bytes {
            return bytes.part();
        }
        if self.words.len() < self.length(Part::Key) { Part::Key } else { Part::Value }
    }

    /// Parses the cells of a row's key.
    pub fn parse_key_cells(&mut self, cells: &[impl AsRef<str>]) -> Result<(), CellError> {
        cells.iter().try_for_each(|cell| self.parse_cell(cell.as_ref().trim(), Part::Key))
    }

    /// Parses the next cell of a row.
    pub fn parse_cell(&mut self, text: &str, part: Part) -> Result<(), CellError> {
        if let Some(bytes) = &mut self.bytes {
            return bytes.parse_cell(text, part);
        }
        let (before, all) = match part {
            Part::Key => (self.words.len(), self.length(part)),
            Part::Value => (self.words.len() - self.length(Part::Key), self.length(part)),
        };
        let column = self.column(part, before);
        let wrong = |what: &str| {
            let expected = self.expected(part, all - before, column);
            CellError::new(format!("`{}` {what}; {expected}", quote_cell(text)))
        };
        if before == all {
            let row = self.describe_row();
            return Err(CellError::new(format!("`{}` is one cell too many; {row}", quote_cell(text))));
        }
        let words = self.parse_words(text, part, before).map_err(|error| wrong(&error.to_string()))?;
        // A cell must not extend beyond its field, so that a missing cell is not filled by the next
        // one.
        let (name, room) = match column {
            Some(column) => (format!("`{}`", column.field.name), column.room),
            None => (format!("the {}", part.name()), all - before),
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

    fn parse_words(&self, text: &str, part: Part, before: usize) -> Result<Vec<u32>, LiteralError> {
        if self.map.kind == MapKind::Counter && part == Part::Value {
            let sum = literals::parse_number(text)?;
            return Ok(vec![sum as u32, (sum >> 32) as u32]);
        }
        let ty = self.column(part, before).filter(|column| column.is_first_cell).map(|column| column.field.ty);
        if let Some(words) = literals::parse_field(text, ty) {
            return words;
        }
        let prefix = match (self.map.kind, part, before) {
            (MapKind::Lpm, Part::Key, 0) => literals::parse_prefix(text),
            _ => None,
        };
        let Some(prefix) = prefix else { return Ok(literals::parse_cell(text)?.as_slice().to_vec()) };
        let words = prefix?.as_slice().to_vec();
        match (words.len(), self.map.key) {
            (2, 4) => Err(LiteralError::Ipv4ForIpv6 { map: self.map.name.clone() }),
            (5, 1) => Err(LiteralError::Ipv6ForIpv4 { map: self.map.name.clone() }),
            _ => Ok(words),
        }
    }

    /// The field that a word belongs to, if fields are named.
    fn column(&self, part: Part, word: usize) -> Option<Column<'_>> {
        if self.map.fields.is_empty() {
            return None;
        }
        let columns = if part == Part::Key { &self.columns.key } else { &self.columns.value };
        let mut end = 0;
        columns.iter().find_map(|field| {
            let start = end;
            end += field.ty.words().map_or(self.length(part), |words| words as usize);
            (word < end).then(|| Column { field, is_first_cell: word == start, room: end - word })
        })
    }

    /// Checks the key that has been parsed.
    fn check_key(&self) -> Result<(), CellError> {
        match self.map.kind {
            MapKind::Array | MapKind::Counter if self.words[0] >= self.map.entries => {
                let (name, number, last) = (&self.map.name, self.words[0], self.map.entries - 1);
                let what = format!("the map `{name}` has no entry {number}: its entries are 0 to {last}");
                Err(CellError::new(what))
            }
            MapKind::Lpm => lpm::check(self.map, &self.words).map_err(|error| CellError::new(error.to_string())),
            _ => Ok(()),
        }
    }

    /// Describes what a cell may be, for error messages.
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
        if let Some(Column { field, is_first_cell, .. }) = column {
            let what = match field.ty {
                _ if !is_first_cell => "numbers for the rest of its words",
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

    /// Describes a row, for error messages.
    pub fn describe_row(&self) -> String {
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

    /// Ends a row that began in `line`.
    pub fn end_row(&mut self, line: usize) -> Result<(), CellError> {
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
        let row = self.describe_row();
        Err(CellError::new(format!("the row ends after {there} of {wanted} words of its {}; {row}", part.name())))
    }

    /// Adds the words of a row that began in `line`.
    pub fn push(&mut self, words: &[u32], line: usize) {
        self.rows.entries.push(words);
        self.rows.lines.push(line);
    }

    /// Records an error, and discards the current row.
    pub fn record_error(&mut self, line: usize, what: String) {
        self.errors.push(line, what);
        self.words.clear();
        if let Some(bytes) = &mut self.bytes {
            bytes.clear();
        }
    }

    pub fn finish(mut self) -> Result<ParsedRows, RowErrors> {
        if self.errors.first.is_empty() {
            self.report_duplicates();
        }
        if self.errors.first.is_empty() { Ok(self.rows) } else { Err(self.errors) }
    }

    /// Reports duplicate keys: it would be unclear which value is meant.
    fn report_duplicates(&mut self) {
        let keys: Vec<&[u32]> = self.rows.entries.iter().map(|(key, _)| key).collect();
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|row| (keys[*row], *row));
        // Each chunk contains the rows of one key.
        let again =
            order.chunk_by(|a, b| keys[*a] == keys[*b]).flat_map(|rows| rows[1..].iter().map(|row| (*row, rows[0])));
        let mut again: Vec<(usize, usize)> = again.collect();
        again.sort_unstable();
        for (row, first) in again {
            let [line, first] = [row, first].map(|row| self.rows.lines[row]);
            self.errors.push(line, format!("its key is the same as in line {first}; keys must be unique"));
        }
    }
}
