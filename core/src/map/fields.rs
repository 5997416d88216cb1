//! Names and types for the words of a map's entries: `fields=srcaddr:ip,port,bytes:u64`.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::diagnostics::Diagnostic;
use crate::spelling::nearest;

use super::declaration::{Declaration, MAX_NAME_BYTES, MapKind};
use super::lpm;
use super::typed::format_hex;

/// A field: one or more words of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name of the field.
    pub name: String,
    /// Type of the field.
    pub ty: FieldType,
}

/// Type of a field, which determines its size and its text form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldType {
    /// A 32-bit number.
    U32,
    /// A 64-bit number, low word first.
    U64,
    /// An IPv4 address, as `load_be32` returns it.
    Ipv4,
    /// An IPv6 address, most significant word first; an IPv4-mapped address (`::ffff:0:0/96`) is
    /// written as IPv4.
    Ip,
    /// A MAC address: its first two bytes, then its last four.
    Mac,
    /// The key of an `lpm`: an address, as `Ipv4` or as IPv6 without mapped addresses, and a
    /// length.
    Prefix,
}

impl FieldType {
    /// All types, in the order in which messages list them.
    pub const ALL: [FieldType; 6] =
        [FieldType::U32, FieldType::U64, FieldType::Ipv4, FieldType::Ip, FieldType::Mac, FieldType::Prefix];

    /// Name of the type in a declaration.
    pub fn name(self) -> &'static str {
        match self {
            FieldType::U32 => "u32",
            FieldType::U64 => "u64",
            FieldType::Ipv4 => "ipv4",
            FieldType::Ip => "ip",
            FieldType::Mac => "mac",
            FieldType::Prefix => "prefix",
        }
    }

    /// Number of words; `None` for a prefix, which is a whole key.
    pub fn words(self) -> Option<u32> {
        match self {
            FieldType::U32 | FieldType::Ipv4 => Some(1),
            FieldType::U64 | FieldType::Mac => Some(2),
            FieldType::Ip => Some(4),
            FieldType::Prefix => None,
        }
    }

    /// Whether the text form is a number, which needs no quotes.
    pub fn is_number(self) -> bool {
        matches!(self, FieldType::U32 | FieldType::U64)
    }

    /// Text form of a field; `words` must have the type's length.
    pub fn text(self, words: &[u32]) -> String {
        let bits = |high_first: &[u32]| high_first.iter().fold(0, |bits, word| bits << 32 | u128::from(*word));
        match (self, words) {
            (FieldType::U64, [low, high]) => bits(&[*high, *low]).to_string(),
            (FieldType::Ipv4, [word]) => Ipv4Addr::from_bits(*word).to_string(),
            (FieldType::Ip, words) => Ipv6Addr::from_bits(bits(words)).to_canonical().to_string(),
            (FieldType::Mac, [first, last]) => {
                format_hex(&(u64::from(*first) << 32 | u64::from(*last)).to_be_bytes()[2..])
            }
            (FieldType::Prefix, words) => lpm::display_prefix(words).to_string(),
            (_, words) => bits(words).to_string(),
        }
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The columns of a map's rows: its fields or, if it declares none, numbered words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// Columns of the key.
    pub key: Vec<Field>,
    /// Columns of the value.
    pub value: Vec<Field>,
}

impl Columns {
    /// The columns of a map.
    pub fn of(map: &Declaration) -> Columns {
        if !map.fields.is_empty() {
            let mut words = 0;
            let is_key = |field: &&Field| {
                let is_key = words < map.key;
                words += field.ty.words().unwrap_or(map.key);
                is_key
            };
            let (key, value) = map.fields.split_at(map.fields.iter().take_while(is_key).count());
            return Columns { key: key.into(), value: value.into() };
        }
        let one = |name: &str, ty| vec![Field { name: name.into(), ty }];
        let numbered =
            |name: &str, count| (0..count).map(|i| Field { name: format!("{name}{i}"), ty: FieldType::U32 }).collect();
        Columns {
            key: match map.kind {
                MapKind::Array | MapKind::Counter => one("index", FieldType::U32),
                MapKind::Hash | MapKind::LruHash => numbered("key", map.key),
                MapKind::Lpm => one("prefix", FieldType::Prefix),
            },
            value: match map.kind {
                MapKind::Counter => one("sum", FieldType::U64),
                _ => numbered("value", map.value),
            },
        }
    }

    /// All columns, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Field> {
        self.key.iter().chain(&self.value)
    }

    /// The header line of CSV: the names of the columns.
    pub fn header(&self) -> String {
        self.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(",")
    }
}

/// Parses the fields of a map of this kind: `srcaddr:ip,port`.
pub(super) fn parse(list: &str, kind: MapKind) -> Result<Vec<Field>, Diagnostic> {
    let mut fields: Vec<Field> = Vec::new();
    for part in list.split(',') {
        // A type that is determined by the kind may be omitted.
        let default = match (kind, fields.is_empty()) {
            (MapKind::Lpm, true) => FieldType::Prefix,
            (MapKind::Counter, false) => FieldType::U64,
            _ => FieldType::U32,
        };
        let (name, ty) = part.split_once(':').unwrap_or((part, default.name()));
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && name.len() <= MAX_NAME_BYTES;
        if !is_name {
            return Err(Diagnostic::new(format!("`{}` is not a valid field name", name.escape_debug())).note(format!(
                "a field's name is letters, digits and `_`, a letter first, at most {MAX_NAME_BYTES}; fields are separated by commas \
                 without spaces"
            )));
        }
        if fields.iter().any(|field| field.name == name) {
            return Err(Diagnostic::new(format!("there are two fields with the name `{name}`")));
        }
        let Some(known) = FieldType::ALL.into_iter().find(|known| known.name() == ty) else {
            let error = Diagnostic::new(format!("there is no field type `{}`", ty.escape_debug()));
            let error = match nearest(ty, FieldType::ALL.map(FieldType::name)) {
                Some(near) => error.note(format!("did you mean `{near}`?")),
                None => error,
            };
            return Err(error.note(format!("the types are {}", FieldType::ALL.map(FieldType::name).join(", "))));
        };
        fields.push(Field { name: name.to_owned(), ty: known });
    }
    Ok(fields)
}

/// Checks that fields cover the words of a key and then those of a value.
pub(super) fn check(fields: &[Field], kind: MapKind, key: u32, value: u32) -> Result<(), Diagnostic> {
    for (number, field) in fields.iter().enumerate() {
        let (name, ty) = (&field.name, field.ty);
        let (of_kind, only) = match (kind, number) {
            (MapKind::Lpm, 0) => ("the key of an `lpm`", FieldType::Prefix),
            (MapKind::Counter, 1) => ("the sum of a `counter`", FieldType::U64),
            _ if ty == FieldType::Prefix => {
                let message = format!("the field `{name}` cannot have the type `{ty}`");
                return Err(Diagnostic::new(message).note("only the whole key of an `lpm` is a prefix"));
            }
            _ => continue,
        };
        if ty != only {
            let message = format!("the field `{name}` cannot have the type `{ty}`");
            let note = format!("{of_kind} has the type `{only}`, which may be omitted: `{name}`");
            return Err(Diagnostic::new(message).note(note));
        }
    }
    let words = |field: &Field| field.ty.words().unwrap_or(key);
    let mut ends = fields.iter().scan(0, |end, field| {
        *end += words(field);
        Some(*end)
    });
    let all: u32 = fields.iter().map(words).sum();
    if all == key + value && ends.any(|end| end == key) {
        return Ok(());
    }
    let types = FieldType::ALL.into_iter().filter_map(|ty| Some(format!("`{ty}` {}", ty.words()?)));
    let types = types.collect::<Vec<_>>().join(", ");
    let message = format!("`fields=` does not cover the words of a key ({key}) and of a value ({value})");
    Err(Diagnostic::new(message).note(format!("it covers {all}; words per type: {types}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_their_conventional_text_form() {
        for (ty, words, text) in [
            (FieldType::U32, &[u32::MAX][..], "4294967295"),
            (FieldType::U64, &[1, 2], "8589934593"),
            (FieldType::U64, &[u32::MAX, u32::MAX], "18446744073709551615"),
            (FieldType::Ipv4, &[0x0a00_0013], "10.0.0.19"),
            (FieldType::Ip, &[0, 0, 0xffff, 0x0a00_0013], "10.0.0.19"),
            (FieldType::Ip, &[0x2001_0db8, 0, 0, 7], "2001:db8::7"),
            (FieldType::Ip, &[0; 4], "::"),
            (FieldType::Mac, &[0x021a, 0x2b3c_4d5e], "02:1a:2b:3c:4d:5e"),
            (FieldType::Prefix, &[0x0a00_0000, 8], "10.0.0.0/8"),
            (FieldType::Prefix, &[0x2001_0db8, 0, 0, 0, 32], "2001:db8::/32"),
        ] {
            assert_eq!(ty.text(words), text);
            assert!(ty.words().is_none_or(|count| count as usize == words.len()));
        }
    }
}
