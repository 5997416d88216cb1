//! Names for the words of a map's entries, and how they are written: `fields=srcaddr:ip,port,bytes:u64`.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::diagnostics::Diagnostic;
use crate::spelling::nearest;

use super::declaration::{Declaration, MAX_NAME_BYTES, MapKind};
use super::lpm;

/// Words of an entry that mean one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// What it is called.
    pub name: String,
    /// What its words are.
    pub ty: FieldType,
}

/// What a field's words are, and how they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldType {
    /// A number of 32 bits.
    U32,
    /// A number of 64 bits, low word first.
    U64,
    /// An IPv4 address, as `load_be32` gives it.
    Ipv4,
    /// An IPv6 address, its first 32 bits first; one that stands for an IPv4 address (`::ffff:0:0/96`) is written as that.
    Ip,
    /// A MAC address: its first two bytes, then its last four.
    Mac,
    /// The key of an `lpm`: an address, as `Ipv4` or as IPv6 without exceptions, and a length.
    Prefix,
}

impl FieldType {
    /// Every form, in the order in which they are told of.
    pub const ALL: [FieldType; 6] =
        [FieldType::U32, FieldType::U64, FieldType::Ipv4, FieldType::Ip, FieldType::Mac, FieldType::Prefix];

    /// Its name in a declaration.
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

    /// How many words it has; `None` of a prefix, which is a whole key.
    pub fn words(self) -> Option<u32> {
        match self {
            FieldType::U32 | FieldType::Ipv4 => Some(1),
            FieldType::U64 | FieldType::Mac => Some(2),
            FieldType::Ip => Some(4),
            FieldType::Prefix => None,
        }
    }

    /// Whether it is a number, which needs no quotes.
    pub fn is_number(self) -> bool {
        matches!(self, FieldType::U32 | FieldType::U64)
    }

    /// Its words as people write them; there are as many as it has.
    pub fn text(self, words: &[u32]) -> String {
        let bits = |high_first: &[u32]| high_first.iter().fold(0, |bits, word| bits << 32 | u128::from(*word));
        match (self, words) {
            (FieldType::U64, [low, high]) => bits(&[*high, *low]).to_string(),
            (FieldType::Ipv4, [word]) => Ipv4Addr::from_bits(*word).to_string(),
            (FieldType::Ip, words) => Ipv6Addr::from_bits(bits(words)).to_canonical().to_string(),
            (FieldType::Mac, [first, last]) => {
                let bytes = (u64::from(*first) << 32 | u64::from(*last)).to_be_bytes();
                let mut text = String::new();
                for (i, byte) in bytes[2..].iter().enumerate() {
                    let colon = if i == 0 { "" } else { ":" };
                    let _ = write!(text, "{colon}{byte:02x}");
                }
                text
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

/// The columns in which a map's entries are written: its fields, or words by number where it has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// Those of the key.
    pub key: Vec<Field>,
    /// Those of the value.
    pub value: Vec<Field>,
}

impl Columns {
    /// Those of a map.
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

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Field> {
        self.key.iter().chain(&self.value)
    }

    /// The line of their names with which CSV begins.
    pub fn header(&self) -> String {
        self.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(",")
    }
}

/// Reads a list of fields of a map of a kind: `srcaddr:ip,port`.
pub(super) fn parse(list: &str, kind: MapKind) -> Result<Vec<Field>, Diagnostic> {
    let mut fields: Vec<Field> = Vec::new();
    for part in list.split(',') {
        // What it can only be need not be said.
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
            return Err(Diagnostic::new(format!("`{}` is no name for a field", name.escape_debug())).note(format!(
                "a field's name is letters, digits and `_`, a letter first, {MAX_NAME_BYTES} at the most; commas stand between \
                 fields, and no spaces"
            )));
        }
        if fields.iter().any(|field| field.name == name) {
            return Err(Diagnostic::new(format!("there are two fields with the name `{name}`")));
        }
        let Some(known) = FieldType::ALL.into_iter().find(|known| known.name() == ty) else {
            let error = Diagnostic::new(format!("a field cannot be of the form `{}`", ty.escape_debug()));
            let error = match nearest(ty, FieldType::ALL.map(FieldType::name)) {
                Some(near) => error.note(format!("did you mean `{near}`?")),
                None => error,
            };
            return Err(error.note(format!("there are {}", FieldType::ALL.map(FieldType::name).join(", "))));
        };
        fields.push(Field { name: name.to_owned(), ty: known });
    }
    Ok(fields)
}

/// Refuses fields that are not the words of a key and then those of a value.
pub(super) fn check(fields: &[Field], kind: MapKind, key: u32, value: u32) -> Result<(), Diagnostic> {
    for (number, field) in fields.iter().enumerate() {
        let (name, ty) = (&field.name, field.ty);
        let (of_kind, only) = match (kind, number) {
            (MapKind::Lpm, 0) => ("the key of an `lpm`", FieldType::Prefix),
            (MapKind::Counter, 1) => ("the sum of a `counter`", FieldType::U64),
            _ if ty == FieldType::Prefix => {
                let message = format!("the field `{name}` cannot be of the form `{ty}`");
                return Err(Diagnostic::new(message).note("only the key of an `lpm` is a prefix, as a whole"));
            }
            _ => continue,
        };
        if ty != only {
            let message = format!("the field `{name}` cannot be of the form `{ty}`");
            let note = format!("{of_kind} is of the form `{only}`, which need not be said: `{name}`");
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
    let forms = FieldType::ALL.into_iter().filter_map(|ty| Some(format!("`{ty}` {}", ty.words()?)));
    let forms = forms.collect::<Vec<_>>().join(", ");
    let message = format!("`fields=` is not the words of a key ({key}) and then of a value ({value})");
    Err(Diagnostic::new(message).note(format!("it has {all}; words of a field: {forms}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_as_people_do() {
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
