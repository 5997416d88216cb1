//! Rows of JSON: an array with an object for each, `{"key": […], "value": […]}`.

use std::borrow::Cow;

use portcullis_core::map::MapKind;
use portcullis_core::map::fields::{Field, FieldType};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::text::{Part, Reader, shown};
use super::typed_rows::Pairs;

/// A row as it stands in the text.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, expecting = "a row")]
struct Object<'a> {
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

impl<'a> Object<'a> {
    /// What is left of members when these are passed over; what is wrong with one.
    fn without(notes: &[&str], members: Vec<(String, &'a RawValue)>) -> Result<Object<'a>, String> {
        let mut object = Object::default();
        for (name, value) in members {
            let place = match name.as_str() {
                "index" => &mut object.index,
                "key" => &mut object.key,
                "prefix" => &mut object.prefix,
                "value" => &mut object.value,
                "sum" => &mut object.sum,
                other if notes.contains(&other) => continue,
                other => return Err(format!("unknown field `{}`", shown(other))),
            };
            if place.replace(value).is_some() {
                return Err(format!("duplicate field `{}`", shown(&name)));
            }
        }
        Ok(object)
    }
}

/// Reads all rows.
pub fn read(text: &str, rows: &mut Reader) {
    let content = text.trim_ascii_start();
    match content.chars().next() {
        Some('[') => {}
        None => return rows.wrong(1, "it is empty; where a map is to have no entries, write `[]`".into()),
        Some(other) => {
            let line = 1 + newlines(&text[..text.len() - content.len()]);
            let begins = format!("it begins with `{}`", shown(&other.to_string()));
            return rows.wrong(line, format!("{begins}; expected an array of objects, as [{}]", example(rows)));
        }
    }
    let all: Vec<&RawValue> = match serde_json::from_str(text) {
        Ok(all) => all,
        Err(error) => {
            let what = format!("column {}: {}; expected an array of objects", error.column().max(1), words_of(&error));
            return rows.wrong(error.line().max(1), what);
        }
    };
    let (mut at, mut line) = (0, 1);
    for one in all {
        let start = offset(text, one.get());
        line += newlines(&text[at..start]);
        at = start;
        if let Err((inside, what)) = row(one.get(), line, rows) {
            rows.wrong(line + newlines(&one.get()[..inside]), what);
        }
    }
}

/// A row; where in it something is wrong, and what.
fn row(text: &str, line: usize, rows: &mut Reader) -> Result<(), (usize, String)> {
    if let Some(bytes) = &mut rows.bytes {
        let words = bytes.row(text)?;
        rows.push(&words, line);
        return Ok(());
    }
    let unfit = |error: &serde_json::Error| (0, format!("{}; {}", words_of(error), shape(rows)));
    let object = match rows.notes() {
        [] => serde_json::from_str(text).map_err(|error| unfit(&error))?,
        notes => {
            let Pairs(pairs) = serde_json::from_str(text).map_err(|error| unfit(&error))?;
            Object::without(notes, pairs)
                .map_err(|name| (0, format!("unknown field `{}`; {}", shown(&name), shape(rows))))?
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
        return Err((0, shape(rows)));
    }
    for ((name, cells), part) in [(key, Part::Key), (value, Part::Value)] {
        let Some(cells) = cells else {
            if rows.length(part) == 0 {
                continue;
            }
            return Err((0, format!("the row has no `{name}`; {}", shape(rows))));
        };
        let list = cells.get().starts_with('[');
        let cells = match list {
            true => serde_json::from_str(cells.get()).map_err(|error| (offset(text, cells.get()), words_of(&error)))?,
            false => vec![cells],
        };
        for (number, cell) in cells.into_iter().enumerate() {
            let here = |what| {
                let item = if list { format!("item {} of `{name}`", number + 1) } else { format!("`{name}`") };
                (offset(text, cell.get()), format!("{item}: {what}"))
            };
            if part == Part::Value && rows.part() == Part::Key {
                break;
            }
            let content = content(cell).map_err(here)?;
            rows.cell(content.trim(), part).map_err(here)?;
        }
    }
    rows.end(line).map_err(|what| (0, what))
}

/// A number's digits, or what is between the quotes of a text.
fn content(cell: &RawValue) -> Result<Cow<'_, str>, String> {
    let text = cell.get();
    match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        Some(text) if !text.contains('\\') => Ok(text.into()),
        Some(_) => serde_json::from_str::<String>(text).map(Cow::from).map_err(|error| words_of(&error)),
        None if text.starts_with(['{', '[']) => Err(format!("`{}` is no number and no text", shown(text))),
        None => Ok(text.into()),
    }
}

/// What a row is.
fn shape(rows: &Reader) -> String {
    format!("expected a row as {}", example(rows))
}

/// A row, as one may be.
fn example(rows: &Reader) -> String {
    if rows.bytes.is_some() {
        return r#"{"key": …, "value": …}"#.into();
    }
    // So many cells, and the others need not be shown.
    const MOST: usize = 6;
    let cells = |columns: &[Field]| {
        let cells = columns.iter().take(MOST).map(|column| match column.ty {
            FieldType::U32 | FieldType::U64 => "1",
            FieldType::Ipv4 => r#""10.0.0.19""#,
            FieldType::Ip => r#""2001:db8::7""#,
            FieldType::Mac => r#""02:1a:2b:3c:4d:5e""#,
            FieldType::Prefix if rows.map.key == 1 => r#""10.0.0.0/8""#,
            FieldType::Prefix => r#""2001:db8::/32""#,
        });
        let rest = (columns.len() > MOST).then_some("…");
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

/// Where a part of a text begins in it.
fn offset(text: &str, part: &str) -> usize {
    let offset = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    // Were it none, its place would be the beginning.
    if text.is_char_boundary(offset) { offset } else { 0 }
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// What is wrong, without the place, which is told apart.
pub(super) fn words_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rfind(" at line ").map_or(text.as_str(), |at| &text[..at]);
    // Names out of the file are in it as they are there.
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
