//! Rows of maps from objects, whose keys and values have C types: CSV cell by cell, JSON by member
//! names, both as bpftool writes them.

use portcullis_core::map::typed::Encoding;
use portcullis_core::map::typed::{self, CKind, CMember, CType, FieldLocation, NumberStyle, ScalarField, TypeInfo};
use portcullis_core::map::{Declaration, MapKind};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::cells::{CellError, Part, quote_cell};
use super::json_members::{JsonMembers, message_of};
use super::literals;

/// Builds a row's key and value bytes from its cells.
pub(super) struct TypedRowBuilder<'a> {
    map: &'a Declaration,
    typed: &'a TypeInfo,
    of_key: Vec<ScalarField>,
    of_value: Vec<ScalarField>,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Number of cells of the current row.
    cells: usize,
}

impl<'a> TypedRowBuilder<'a> {
    pub fn new(map: &'a Declaration, typed: &'a TypeInfo) -> TypedRowBuilder<'a> {
        let (of_key, of_value) = typed.columns();
        let (key, value) = (vec![0; typed.key.size as usize], vec![0; typed.value.size as usize]);
        TypedRowBuilder { map, typed, of_key, of_value, key, value, cells: 0 }
    }

    /// Returns the column names.
    pub fn names(&self) -> Vec<String> {
        self.of_key.iter().chain(&self.of_value).map(|leaf| leaf.name.clone()).collect()
    }

    /// Starts a new row.
    pub fn clear(&mut self) {
        self.key.fill(0);
        self.value.fill(0);
        self.cells = 0;
    }

    /// Returns the part that the next cell belongs to.
    pub fn part(&self) -> Part {
        if self.cells < self.of_key.len() { Part::Key } else { Part::Value }
    }

    /// Number of cells in a part.
    pub fn length(&self, part: Part) -> usize {
        match part {
            Part::Key => self.of_key.len(),
            Part::Value => self.of_value.len(),
        }
    }

    /// Parses the next cell. An empty cell leaves zeros, or the value of an earlier member of the
    /// same union.
    pub fn parse_cell(&mut self, text: &str, part: Part) -> Result<(), CellError> {
        if part == Part::Key && self.cells == 0 && self.prefix(text)? {
            return Ok(());
        }
        let (scalar_fields, before, whole) = match part {
            Part::Key => (&self.of_key, self.cells, &mut self.key),
            Part::Value => (&self.of_value, self.cells - self.of_key.len(), &mut self.value),
        };
        let Some(leaf) = scalar_fields.get(before) else {
            let row = self.describe_row();
            return Err(CellError::new(format!("`{}` is one cell too many; {row}", quote_cell(text))));
        };
        if !text.is_empty() {
            let before = leaf.overlaps.then(|| whole.clone());
            typed::parse_into(&leaf.place(), text, NumberStyle::Human, whole).map_err(|what| {
                CellError::new(format!("`{}` {what} (`{}` is {})", quote_cell(text), leaf.name, leaf.ty.name))
            })?;
            let place = leaf.at as usize..(leaf.at + leaf.ty.size) as usize;
            let place = place.start..place.end.min(whole.len());
            if let Some(before) = before
                && before[place.clone()].iter().any(|byte| *byte != 0)
                && before[place.clone()] != whole[place]
            {
                let what = "contradicts the earlier member of the union; leave one of them empty";
                return Err(CellError::new(format!("`{}` as `{}` {what}", quote_cell(text), leaf.name)));
            }
        }
        self.cells += 1;
        if self.cells == self.of_key.len() && part == Part::Key { self.check_key() } else { Ok(()) }
    }

    /// Parses a prefix as the whole key, if the map's keys are prefixes and the text looks like
    /// one. Returns whether it did.
    fn prefix(&mut self, text: &str) -> Result<bool, CellError> {
        let prefix = if self.typed.is_trie() { literals::parse_prefix(text) } else { None };
        let Some(words) = prefix else { return Ok(false) };
        let words = words.map_err(|what| CellError::new(format!("`{}` {what}", quote_cell(text))))?;
        let Some((length, address)) = words.as_slice().split_last() else { return Ok(false) };
        let address = address.iter().flat_map(|word| word.to_be_bytes());
        let key: Vec<u8> = length.to_le_bytes().into_iter().chain(address).collect();
        if key.len() != self.key.len() {
            let (bits, name) = (8 * (self.typed.key.size - 4), &self.typed.name);
            let what = format!("is not a prefix of an address of {bits} bits, as the keys of `{name}`");
            return Err(CellError::new(format!("`{}` {what}", quote_cell(text))));
        }
        self.key = key;
        self.cells = self.of_key.len();
        self.check_key()?;
        Ok(true)
    }

    /// Checks the key that has been parsed.
    fn check_key(&self) -> Result<(), CellError> {
        self.typed.check_key(&self.key).map_err(|error| CellError::new(error.to_string()))?;
        let words = self.map.key_from_bytes(&self.key);
        match self.map.kind {
            MapKind::Array if words[0] >= self.map.entries => {
                let (name, number, last) = (&self.typed.name, words[0], self.map.entries - 1);
                let what = format!("the map `{name}` has no entry {number}: its entries are 0 to {last}");
                Err(CellError::new(what))
            }
            _ => Ok(()),
        }
    }

    /// Returns the words of the key once it is complete.
    pub fn key_words(&self) -> Result<Vec<u32>, CellError> {
        let (there, wanted) = (self.cells, self.of_key.len());
        if there < wanted {
            let row = self.describe_row();
            return Err(CellError::new(format!("the key ends after {there} of {wanted} cells; {row}")));
        }
        Ok(self.map.key_from_bytes(&self.key))
    }

    /// Returns the words of the row once it is complete.
    pub fn words(&self) -> Result<Vec<u32>, CellError> {
        let (there, wanted) = (self.cells, self.of_key.len() + self.of_value.len());
        if there < wanted {
            let row = self.describe_row();
            return Err(CellError::new(format!("the row ends after {there} of {wanted} cells; {row}")));
        }
        Ok(self.all())
    }

    fn all(&self) -> Vec<u32> {
        [self.map.key_from_bytes(&self.key), self.map.value_from_bytes(&self.value)].concat()
    }

    /// Describes a row, for error messages.
    pub fn describe_row(&self) -> String {
        let names = self.names();
        let first: Vec<&str> = names.iter().take(12).map(String::as_str).collect();
        format!("a row is {}{}", first.join(","), if names.len() > 12 { ",…" } else { "" })
    }

    /// Parses a row of JSON into words. An error comes with its byte offset in `text`.
    pub fn parse_json_row(&mut self, text: &str) -> Result<Vec<u32>, (usize, String)> {
        self.clear();
        let here = |at: usize, what: String| (at, what);
        let row: Row =
            serde_json::from_str(text).map_err(|error| here(0, format!("{}; {EXPECTED_ROW}", message_of(&error))))?;
        // bpftool may add a formatted variant, which has member names: prefer it.
        let inner: Row = match row.formatted {
            Some(formatted) => serde_json::from_str(formatted.get()).map_err(|error| {
                here(offset_of(text, formatted.get()), format!("{}; {EXPECTED_ROW}", message_of(&error)))
            })?,
            None => row,
        };
        let in_text = |(at, what): JsonError<'_>| (offset_of(text, at), what);
        // Variables of a section are a single entry, and bpftool has no type for its key.
        let is_section = matches!(self.typed.value.kind, CKind::Section(_));
        let (key, is_prefix) = match inner.key {
            Some(key) => {
                let prefix = scalar_text(key).map(|cell| self.prefix(&cell)).transpose();
                let prefix = prefix.map_err(|what| here(offset_of(text, key.get()), what.to_string()))?;
                (Some(key), prefix.unwrap_or(false))
            }
            None if is_section => (None, true),
            None => return Err(here(0, format!("the row has no `key`; {EXPECTED_ROW}"))),
        };
        if let (Some(key), false) = (key, is_prefix) {
            fill_value(&FieldLocation::whole(&self.typed.key), key, "key", &mut self.key).map_err(in_text)?;
            self.check_key().map_err(|what| here(offset_of(text, key.get()), what.to_string()))?;
        }
        match (inner.value, inner.values) {
            (Some(value), _) => {
                fill_value(&FieldLocation::whole(&self.typed.value), value, "value", &mut self.value)
                    .map_err(in_text)?;
            }
            (None, Some(values)) if self.typed.is_per_cpu() => {
                let all: Vec<PerCpuValue> = serde_json::from_str(values.get()).map_err(|error| {
                    here(offset_of(text, values.get()), format!("`values`: {}", message_of(&error)))
                })?;
                let mut each = Vec::new();
                for one in all {
                    let mut bytes = vec![0; self.value.len()];
                    fill_value(&FieldLocation::whole(&self.typed.value), one.value, "value", &mut bytes)
                        .map_err(in_text)?;
                    each.push(bytes);
                }
                self.value = typed::sum_per_cpu(&self.of_value, self.typed.value.size, &each);
            }
            (None, Some(values)) => {
                let what = format!("the map `{}` has one value for all processors: expected `value`", self.typed.name);
                return Err(here(offset_of(text, values.get()), what));
            }
            (None, None) if self.value.is_empty() => {}
            (None, None) => return Err(here(0, format!("the row has no `value`; {EXPECTED_ROW}"))),
        }
        Ok(self.all())
    }
}

const EXPECTED_ROW: &str = "expected a row as bpftool writes it: {\"key\": …, \"value\": …}";

/// A row whose members are not parsed yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a row")]
struct Row<'a> {
    #[serde(borrow)]
    key: Option<&'a RawValue>,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
    #[serde(borrow)]
    values: Option<&'a RawValue>,
    #[serde(borrow)]
    formatted: Option<&'a RawValue>,
}

/// A value of one CPU.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PerCpuValue<'a> {
    #[serde(rename = "cpu")]
    _processor: u32,
    #[serde(borrow)]
    value: &'a RawValue,
}

/// The part of the text that is wrong, and an error message.
type JsonError<'t> = (&'t str, String);

/// Parses a JSON value into a location of the bytes in `whole`; `name` is its path, for messages.
fn fill_value<'t>(
    place: &FieldLocation,
    from: &'t RawValue,
    name: &str,
    whole: &mut [u8],
) -> Result<(), JsonError<'t>> {
    let text = from.get();
    let wrong = |what: String| (text, format!("`{name}`: {what}"));
    if let Some(cell) = scalar_text(from) {
        // bpftool writes a single char as a character.
        let mut letters = cell.chars();
        let code = match (&place.ty.kind, text.starts_with('"'), letters.next(), letters.next()) {
            (CKind::Int(Encoding::Char), true, Some(letter), None) => u8::try_from(letter).ok(),
            _ => None,
        };
        let cell = code.map_or(cell, |code| (code as i8).to_string());
        return typed::parse_into(place, &cell, NumberStyle::Raw, whole)
            .map_err(|what| wrong(format!("`{}` {what}", quote_cell(&cell))));
    }
    if text.starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| wrong(message_of(&error)))?;
        if let CKind::Array { of, count, .. } = &place.ty.kind {
            let bytes_are_missing = place.ty.is_bytes() && items.len() < *count as usize;
            if items.len() > *count as usize || bytes_are_missing {
                return Err(wrong(format!("{} has {count} elements, and here are {}", place.ty.name, items.len())));
            }
            for (index, item) in (0..).zip(items) {
                let element = FieldLocation { ty: of.clone(), at: place.at + index * of.size, bit: 0, bits: 0 };
                fill_value(&element, item, &format!("{name}[{index}]"), whole)?;
            }
            return Ok(());
        }
        // A list of bytes, as bpftool writes without BTF.
        let byte = |item: &&RawValue| scalar_text(item).and_then(|it| typed::parse_byte(&it));
        let bytes: Option<Vec<u8>> = items.iter().map(byte).collect();
        let into = whole.get_mut(place.at as usize..(place.at + place.ty.size) as usize);
        return match (bytes, into) {
            (Some(bytes), Some(into)) if bytes.len() == into.len() => {
                into.copy_from_slice(&bytes);
                Ok(())
            }
            _ => Err(wrong(format!("expected {}, or its {} bytes", place.ty.name, place.ty.size))),
        };
    }
    let JsonMembers(pairs) = serde_json::from_str(text).map_err(|error| wrong(message_of(&error)))?;
    let (CKind::Members(members) | CKind::Section(members)) = &place.ty.kind else {
        return Err(wrong(format!("expected {}, and this has members", place.ty.name)));
    };
    let mut nameless = members.iter().filter(|it| it.name.is_empty());
    for (member, value) in pairs {
        if member.is_empty() {
            let it = nameless
                .next()
                .ok_or_else(|| (value.get(), format!("`{name}`: there is no such member without a name")))?;
            fill_value(&location_of(it, place.at), value, name, whole)?;
        } else if matches!(place.ty.kind, CKind::Section(_)) && member == place.ty.name && value.get().starts_with('[')
        {
            let variables: Vec<JsonMembers> =
                serde_json::from_str(value.get()).map_err(|error| wrong(message_of(&error)))?;
            for (variable, value) in variables.into_iter().flat_map(|JsonMembers(pairs)| pairs) {
                fill_member(&place.ty, (&variable, value), (name, place.at), whole)?;
            }
        } else {
            fill_member(&place.ty, (&member, value), (name, place.at), whole)?;
        }
    }
    Ok(())
}

/// Parses the JSON value of a named member, like [`fill_value`].
fn fill_member<'t>(
    ty: &std::sync::Arc<CType>,
    (member, value): (&str, &'t RawValue),
    (name, at): (&str, u32),
    whole: &mut [u8],
) -> Result<(), JsonError<'t>> {
    let found = typed::find_member(ty, member).map_err(|what| (value.get(), format!("`{name}`: {what}")))?;
    let place = FieldLocation { at: at + found.at, bit: 8 * at + found.bit, ..found };
    fill_value(&place, value, &format!("{name}.{member}"), whole)
}

fn location_of(member: &CMember, at: u32) -> FieldLocation {
    let bit = 8 * at + member.bit;
    FieldLocation { ty: member.ty.clone(), at: bit / 8, bit, bits: member.bits }
}

/// The digits of a number or the content of a string; `None` for lists and objects.
fn scalar_text(value: &RawValue) -> Option<String> {
    let text = value.get();
    match text.as_bytes().first()? {
        b'[' | b'{' => None,
        b'"' => serde_json::from_str(text).ok(),
        _ => Some(text.to_owned()),
    }
}

/// Byte offset of `part` in `text`.
fn offset_of(text: &str, part: &str) -> usize {
    let offset = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    if text.is_char_boundary(offset) { offset } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::map_file::text;

    fn map(number: u32, key: u32, value: u32) -> Declaration {
        let typed = TypeInfo {
            name: "m".into(),
            map_type: "any".into(),
            map_type_number: number,
            key: CType::unknown(key),
            value: CType::unknown(value),
            constant: false,
        };
        let kind = if number == 2 { MapKind::Array } else { MapKind::Hash };
        Declaration {
            typed: Some(Arc::new(typed)),
            ..Declaration::new("m", kind, key.div_ceil(4), value.div_ceil(4), 4)
        }
    }

    #[test]
    fn command_line_entries_are_parsed_like_rows() {
        let numbered = map(2, 4, 8);
        assert_eq!(text::parse_entry(&numbered, &["3"], &["0x100000002"]), Ok((vec![3], vec![2, 1])));
        assert_eq!(text::parse_key(&numbered, &["3"]), Ok(vec![3]));
        for (key, value, wrong) in [
            (&["4"][..], &["1"][..], "has no entry 4: its entries are 0 to 3"),
            (&["0"], &[], "ends after 1 of 2 cells"),
            (&["0"], &["1", "2"], "one cell too many"),
            (&["0", "1"], &["1"], "one cell too many"),
            (&["0"], &["-1"], "is not in __u64"),
        ] {
            let message = text::parse_entry(&numbered, key, value).unwrap_err().to_string();
            assert!(message.contains(wrong), "{key:?} {value:?}: {message}");
        }
        // A key whose size is not that of a number, and a prefix.
        let hash = map(1, 6, 3);
        let (key, value) = text::parse_entry(&hash, &["02:00:00:00:00:01"], &["0a:0b:0c"]).unwrap();
        assert_eq!((key, value), (vec![2, 0x0100], vec![0x000c_0b0a]));
        let trie = map(11, 8, 4);
        assert_eq!(text::parse_key(&trie, &["10.255.0.0/12"]), Ok(vec![12, 0x0000_f00a]));
        assert!(
            text::parse_key(&trie, &["2001:db8::/32"])
                .unwrap_err()
                .to_string()
                .contains("not a prefix of an address of 32 bits")
        );
        assert!(text::parse_key(&map(1, 8, 4), &["10.0.0.0/8"]).is_err(), "the keys are no prefixes");
    }

    #[test]
    fn members_with_dots_in_their_names_survive_a_dump() {
        let mut map = map(2, 4, 8);
        let members = [("a", 0), ("a.loc", 4)].map(|(name, at)| (name.to_owned(), at, CType::unknown(4)));
        let typed = TypeInfo { value: CType::section(".bss", 8, members), ..map.typed.as_deref().unwrap().clone() };
        map.typed = Some(Arc::new(typed));
        for format in [portcullis_core::map::Format::Json, portcullis_core::map::Format::Csv] {
            let mut dumped = Vec::new();
            let row = portcullis_core::map::Row { key: vec![0], value: vec![7, 9] };
            portcullis_core::map::dump_rows(&map, [row], format, &mut dumped).unwrap();
            let read = text::parse(&map, format, &dumped).map_err(|wrong| format!("{wrong:?}"));
            assert!(format!("{read:?}").contains("0, 7, 9"), "{}: {read:?}", String::from_utf8_lossy(&dumped));
        }
    }

    #[test]
    fn byte_lists_must_have_the_length_of_the_type() {
        let map = map(1, 4, 16);
        let read = |count: usize| {
            let row = format!(r#"[{{"key": 1, "value": [{}]}}]"#, vec![r#""0x1""#; count].join(","));
            text::parse(&map, portcullis_core::map::Format::Json, row.as_bytes()).map_err(|wrong| format!("{wrong:?}"))
        };
        assert!(read(16).is_ok());
        for count in [1, 15, 17] {
            let message = read(count).unwrap_err();
            assert!(message.contains(&format!("__u8[16] has 16 elements, and here are {count}")), "{message}");
        }
    }

    #[test]
    fn damaged_rows_do_not_panic() {
        let map = map(5, 4, 16);
        let whole = br#"[{"key": 7, "values": [{"cpu": 0, "value": [1,2,"0x03"]}], "formatted": {"key": ["1","2","3","4"], "value": "::1"}}]"#;
        let mut random = portcullis_io::synth::Random::new(9, 0);
        for _ in 0..4000 {
            let mut text = whole.to_vec();
            for _ in 0..1 + random.below(3) {
                let at = random.below(text.len() as u32) as usize;
                match random.below(3) {
                    0 => text[at] = b"{}[]\":,0-x \n"[random.below(12) as usize],
                    1 => _ = text.remove(at),
                    _ => text.insert(at, b"{}[]\":,0-x \n"[random.below(12) as usize]),
                }
            }
            for format in [portcullis_core::map::Format::Json, portcullis_core::map::Format::Csv] {
                let _ = text::parse(&map, format, &text);
            }
        }
        let _ = text::parse(&map, portcullis_core::map::Format::Json, "[".repeat(100_000).as_bytes());
    }
}
