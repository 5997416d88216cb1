//! Names and types for the words of a map's entries: `fields=srcaddr:ip,port,bytes:u64`.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::cidr::display_prefix;

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
                let bytes = (u64::from(*first) << 32 | u64::from(*last)).to_be_bytes();
                let mut text = String::new();
                for (i, byte) in bytes[2..].iter().enumerate() {
                    let colon = if i == 0 { "" } else { ":" };
                    let _ = write!(text, "{colon}{byte:02x}");
                }
                text
            }
            (FieldType::Prefix, words) => display_prefix(words).to_string(),
            (_, words) => bits(words).to_string(),
        }
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
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
