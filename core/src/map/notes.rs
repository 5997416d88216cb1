//! What is said of a map's entries besides what is in them: columns of text for people, behind the map's own. Files that are written
//! have them; where files are read they are passed over.

use std::fmt::Write;

use super::typed::quoted;

/// What is said of entries by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notes {
    /// What the columns are called.
    pub columns: Vec<&'static str>,
    /// Of each entry, what is in them.
    pub rows: Vec<Vec<Note>>,
}

/// A thing that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// It is not known.
    Unknown,
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

impl From<u32> for Note {
    fn from(number: u32) -> Note {
        Note::Number(number.into())
    }
}

impl From<&str> for Note {
    fn from(text: &str) -> Note {
        Note::Text(text.to_owned())
    }
}

impl<N: Into<Note>> From<Option<N>> for Note {
    fn from(known: Option<N>) -> Note {
        known.map_or(Note::Unknown, Into::into)
    }
}

impl Note {
    /// As a cell of CSV, which is empty where nothing is known.
    pub(super) fn cell(&self) -> String {
        match self {
            Note::Unknown => String::new(),
            Note::Number(number) => number.to_string(),
            Note::Text(text) => super::typed::cell(text).into_owned(),
        }
    }

    /// As JSON.
    pub(super) fn json(&self) -> String {
        let mut out = String::new();
        match self {
            Note::Unknown => out.push_str("null"),
            Note::Number(number) => _ = write!(out, "{number}"),
            Note::Text(text) => quoted(text, &mut out),
        }
        out
    }
}

impl Notes {
    /// What is said of an entry; nothing of one that there is none of.
    pub fn of(&self, entry: u32) -> impl Iterator<Item = (&'static str, &Note)> {
        let row = self.rows.get(entry as usize).map(Vec::as_slice).unwrap_or_default();
        self.columns.iter().copied().zip(row)
    }
}
