//! Parses map rows from JSON: an array of objects, `{"key": […], "value": […]}`.

use std::borrow::Cow;

use portcullis_core::map::MapKind;
use portcullis_core::map::fields::{Field, FieldType};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::cells::{Part, quote_cell};
use super::json_members::{JsonMembers, message_of};
use super::row_builder::RowBuilder;

/// A row whose members are not parsed yet.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, expecting = "a row")]
struct RawRow<'a> {
    #[serde(borrow)]
    index: Option<&'a RawValue>,
    #[serde(borrow)]
    key: Option<&'a RawValue>,
    #[serde(borrow)]
    prefix: Option<&'a RawValue>,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
    #[serde(borrow)]
    sum: Option<&'a RawValue>,
}

impl<'a> RawRow<'a> {
    /// Builds a row from members, ignoring annotations.
    fn without_annotations(annotations: &[&str], members: Vec<(String, &'a RawValue)>) -> Result<RawRow<'a>, String> {
        let mut object = RawRow::default();
        for (name, value) in members {
            let place = match name.as_str() {
                "index" => &mut object.index,
                "key" => &mut object.key,
                "prefix" => &mut object.prefix,
                "value" => &mut object.value,
                "sum" => &mut object.sum,
                other if annotations.contains(&other) => continue,
                other => return Err(format!("unknown field `{}`", quote_cell(other))),
            };
            if place.replace(value).is_some() {
                return Err(format!("duplicate field `{}`", quote_cell(&name)));
            }
        }
        Ok(object)
    }
}

/// Parses all rows.
pub fn parse(text: &str, rows: &mut RowBuilder) {
    let content = text.trim_ascii_start();
    match content.chars().next() {
        Some('[') => {}
        None => return rows.record_error(1, "the file is empty; for a map without entries, write `[]`".into()),
        Some(other) => {
            let line = 1 + newlines(&text[..text.len() - content.len()]);
            let begins = format!("it begins with `{}`", quote_cell(&other.to_string()));
            return rows.record_error(line, format!("{begins}; expected an array of objects, as [{}]", example(rows)));
        }
    }
    let all: Vec<&RawValue> = match serde_json::from_str(text) {
        Ok(all) => all,
        Err(error) => {
            let what =
                format!("column {}: {}; expected an array of objects", error.column().max(1), message_of(&error));
            return rows.record_error(error.line().max(1), what);
        }
    };
    let (mut at, mut line) = (0, 1);
    for one in all {
        let start = offset_of(text, one.get());
        line += newlines(&text[at..start]);
        at = start;
        if let Err((inside, what)) = parse_row(one.get(), line, rows) {
            rows.record_error(line + newlines(&one.get()[..inside]), what);
        }
    }
}

/// Parses a row. An error comes with its byte offset in the row's text.
fn parse_row(text: &str, line: usize, rows: &mut RowBuilder) -> Result<(), (usize, String)> {
    if let Some(bytes) = &mut rows.bytes {
        let words = bytes.parse_json_row(text)?;
        rows.push(&words, line);
        return Ok(());
    }
    let unfit = |error: &serde_json::Error| (0, format!("{}; {}", message_of(error), expected_row(rows)));
    let object = match rows.annotation_columns() {
        [] => serde_json::from_str(text).map_err(|error| unfit(&error))?,
        annotations => {
            let JsonMembers(pairs) = serde_json::from_str(text).map_err(|error| unfit(&error))?;
            RawRow::without_annotations(annotations, pairs)
                .map_err(|what| (0, format!("{what}; {}", expected_row(rows))))?
        }
    };
    let (key, value) = match rows.map.kind {
        MapKind::Array => (("index", object.index), ("value", object.value)),
        MapKind::Counter => (("index", object.index), ("sum", object.sum)),
        MapKind::Lpm => (("prefix", object.prefix), ("value", object.value)),
        MapKind::Hash | MapKind::LruHash => (("key", object.key), ("value", object.value)),
    };
    let given = [object.index, object.key, object.prefix, object.value, object.sum].into_iter().flatten().count();
    if given > key.1.iter().chain(value.1.iter()).count() {
        return Err((0, expected_row(rows)));
    }
    for ((name, cells), part) in [(key, Part::Key), (value, Part::Value)] {
        let Some(cells) = cells else {
            if rows.length(part) == 0 {
                continue;
            }
            return Err((0, format!("the row has no `{name}`; {}", expected_row(rows))));
        };
        let list = cells.get().starts_with('[');
        let cells = match list {
            true => {
                serde_json::from_str(cells.get()).map_err(|error| (offset_of(text, cells.get()), message_of(&error)))?
            }
            false => vec![cells],
        };
        for (number, cell) in cells.into_iter().enumerate() {
            let here = |what: String| {
                let item = if list { format!("item {} of `{name}`", number + 1) } else { format!("`{name}`") };
                (offset_of(text, cell.get()), format!("{item}: {what}"))
            };
            if part == Part::Value && rows.part() == Part::Key {
                break;
            }
            let content = cell_text(cell).map_err(here)?;
            rows.parse_cell(content.trim(), part).map_err(|what| here(what.to_string()))?;
        }
    }
    rows.end_row(line).map_err(|what| (0, what.to_string()))
}

/// The digits of a number, or the content of a string.
fn cell_text(cell: &RawValue) -> Result<Cow<'_, str>, String> {
    let text = cell.get();
    match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        Some(text) if !text.contains('\\') => Ok(text.into()),
        Some(_) => serde_json::from_str::<String>(text).map(Cow::from).map_err(|error| message_of(&error)),
        None if text.starts_with(['{', '[']) => Err(format!("`{}` is neither a number nor a text", quote_cell(text))),
        None => Ok(text.into()),
    }
}

/// Describes a row, for error messages.
fn expected_row(rows: &RowBuilder) -> String {
    format!("expected a row as {}", example(rows))
}

/// An example of a row.
fn example(rows: &RowBuilder) -> String {
    if rows.bytes.is_some() {
        return r#"{"key": …, "value": …}"#.into();
    }
    // Enough columns for an example.
    const MAX_COLUMNS: usize = 6;
    let cells = |columns: &[Field]| {
        let cells = columns.iter().take(MAX_COLUMNS).map(|column| match column.ty {
            FieldType::U32 | FieldType::U64 => "1",
            FieldType::Ipv4 => r#""10.0.0.19""#,
            FieldType::Ip => r#""2001:db8::7""#,
            FieldType::Mac => r#""02:1a:2b:3c:4d:5e""#,
            FieldType::Prefix if rows.map.key == 1 => r#""10.0.0.0/8""#,
            FieldType::Prefix => r#""2001:db8::/32""#,
        });
        let rest = (columns.len() > MAX_COLUMNS).then_some("…");
        cells.chain(rest).collect::<Vec<_>>().join(", ")
    };
    let (key, value) = (cells(&rows.columns.key), cells(&rows.columns.value));
    match rows.map.kind {
        MapKind::Array => format!(r#"{{"index": {key}, "value": [{value}]}}"#),
        MapKind::Counter => format!(r#"{{"index": {key}, "sum": {value}}}"#),
        MapKind::Lpm => format!(r#"{{"prefix": {key}, "value": [{value}]}}"#),
        MapKind::Hash | MapKind::LruHash if value.is_empty() => format!(r#"{{"key": [{key}]}}"#),
        MapKind::Hash | MapKind::LruHash => format!(r#"{{"key": [{key}], "value": [{value}]}}"#),
    }
}

/// Byte offset of `part` in `text`.
fn offset_of(text: &str, part: &str) -> usize {
    let offset = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    // Point to the start if it is not a part of the text.
    if text.is_char_boundary(offset) { offset } else { 0 }
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}
