//! Annotations of a map's entries: columns of text after the map's own. They are written to files,
//! and ignored when files are read.

use std::fmt::Write;

use super::quoting::{csv_cell, write_quoted};

/// Annotations of entries by index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotations {
    /// Names of the columns.
    pub columns: Vec<&'static str>,
    /// For each entry, one annotation per column.
    pub rows: Vec<Vec<Annotation>>,
}

/// The value of one column for one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Annotation {
    /// Unknown.
    Unknown,
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

impl From<u32> for Annotation {
    fn from(number: u32) -> Annotation {
        Annotation::Number(number.into())
    }
}

impl From<&str> for Annotation {
    fn from(text: &str) -> Annotation {
        Annotation::Text(text.to_owned())
    }
}

impl<N: Into<Annotation>> From<Option<N>> for Annotation {
    fn from(known: Option<N>) -> Annotation {
        known.map_or(Annotation::Unknown, Into::into)
    }
}

impl Annotation {
    /// The annotation as a cell of CSV, which is empty if it is unknown.
    pub(super) fn cell(&self) -> String {
        match self {
            Annotation::Unknown => String::new(),
            Annotation::Number(number) => number.to_string(),
            Annotation::Text(text) => csv_cell(text).into_owned(),
        }
    }

    /// The annotation as JSON.
    pub(super) fn json(&self) -> String {
        let mut out = String::new();
        match self {
            Annotation::Unknown => out.push_str("null"),
            Annotation::Number(number) => _ = write!(out, "{number}"),
            Annotation::Text(text) => write_quoted(text, &mut out),
        }
        out
    }
}

impl Annotations {
    /// Column names and annotations of an entry; none if the index is out of range.
    pub fn of(&self, entry: u32) -> impl Iterator<Item = (&'static str, &Annotation)> {
        let row = self.rows.get(entry as usize).map(Vec::as_slice).unwrap_or_default();
        self.columns.iter().copied().zip(row)
    }
}
