//! What is said of a map's entries besides what is in them: columns of text for people, behind the map's own. Files that are written
//! have them; where files are read they are passed over.

use std::fmt::Write;

use super::typed::quoted;

/// What is said of entries by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotations {
    /// What the columns are called.
    pub columns: Vec<&'static str>,
    /// Of each entry, what is in them.
    pub rows: Vec<Vec<Annotation>>,
}

/// A thing that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Annotation {
    /// It is not known.
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
    /// As a cell of CSV, which is empty where nothing is known.
    pub(super) fn cell(&self) -> String {
        match self {
            Annotation::Unknown => String::new(),
            Annotation::Number(number) => number.to_string(),
            Annotation::Text(text) => super::typed::cell(text).into_owned(),
        }
    }

    /// As JSON.
    pub(super) fn json(&self) -> String {
        let mut out = String::new();
        match self {
            Annotation::Unknown => out.push_str("null"),
            Annotation::Number(number) => _ = write!(out, "{number}"),
            Annotation::Text(text) => quoted(text, &mut out),
        }
        out
    }
}

impl Annotations {
    /// What is said of an entry; nothing of one that there is none of.
    pub fn of(&self, entry: u32) -> impl Iterator<Item = (&'static str, &Annotation)> {
        let row = self.rows.get(entry as usize).map(Vec::as_slice).unwrap_or_default();
        self.columns.iter().copied().zip(row)
    }
}
