//! Cells of rows.

/// A cell or a row of cells that is wrong. The message says what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CellError(String);

impl CellError {
    pub(super) fn new(message: impl Into<String>) -> CellError {
        CellError(message.into())
    }
}

/// The part of an entry that a cell belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Key,
    Value,
}

impl Part {
    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Part::Key => "key",
            Part::Value => "value",
        }
    }
}

/// Formats a cell for a message: shortened, and with control characters escaped.
pub(super) fn quote_cell(text: &str) -> String {
    const MAX_CHARS: usize = 40;
    let mut shown: String = text.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        shown.push('…');
    }
    shown
}
