//! Text in CSV and JSON.

use std::borrow::Cow;
use std::fmt::Write;

/// A cell of CSV, quoted if necessary (RFC 4180).
pub(super) fn csv_cell(text: &str) -> Cow<'_, str> {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\"")).into()
    } else {
        text.into()
    }
}

/// Appends a JSON string (RFC 8259, section 7).
pub(super) fn write_quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => _ = write!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
}
