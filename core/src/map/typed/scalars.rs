//! The scalar parts of a value and their human-readable form: cells of CSV, values of `--set`.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::ctype::{CKind, CMember, CType, Encoding};
use super::json::{enumerator, text_of};
use super::path::FieldLocation;
use super::{bits_of, number_of, set_bits};
use crate::spelling::nearest;

/// A part of a value that is one number or string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalarField {
    /// Path of the part: `value.packets`, `key.address[2]`.
    pub name: String,
    /// Type of the part.
    pub ty: Arc<CType>,
    /// Offset of its first byte.
    pub at: u32,
    /// Offset of the first bit of a bit field.
    pub bit: u32,
    /// Width of a bit field in bits; otherwise 0.
    pub bits: u32,
    /// Whether the part overlaps an earlier one, as members of a union do.
    pub overlaps: bool,
}

/// Interpretation of numbers in network byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberStyle {
    /// Numbers are converted from network byte order: port 80 is 80.
    Human,
    /// Numbers are as the processor loads them, and as bpftool writes them: port 80 is 20480.
    Raw,
}

/// The scalar parts of a type, in the order of its members; `name` prefixes their paths.
pub fn scalar_fields(ty: &Arc<CType>, name: &str) -> Vec<ScalarField> {
    let mut all = Vec::new();
    collect_fields(ty, name.to_owned(), (0, false), &mut all);
    all
}

fn collect_fields(ty: &Arc<CType>, name: String, (at, overlaps): (u32, bool), all: &mut Vec<ScalarField>) {
    match &ty.kind {
        _ if ty.size == 0 => {}
        _ if ty.is_address() => all.push(ScalarField { name, ty: ty.clone(), at, bit: 8 * at, bits: 0, overlaps }),
        CKind::Members(members) | CKind::Section(members) => {
            let mut end = 0;
            for member in members {
                // In a structure, each member begins behind those before it.
                let overlaps = overlaps || end > member.bit;
                end = end.max(member.end());
                let name = match (name.as_str(), member.name.as_str()) {
                    (_, "") => name.clone(),
                    ("", own) => own.to_owned(),
                    (name, own) => format!("{name}.{own}"),
                };
                if member.bits > 0 {
                    let bit = 8 * at + member.bit;
                    all.push(ScalarField {
                        name,
                        ty: member.ty.clone(),
                        at: bit / 8,
                        bit,
                        bits: member.bits,
                        overlaps,
                    });
                } else {
                    collect_fields(&member.ty, name, (at + member.bit / 8, overlaps), all);
                }
            }
        }
        CKind::Array { of, count, .. } if !ty.is_bytes() => {
            (0..*count).for_each(|index| {
                collect_fields(of, format!("{name}[{index}]"), (at + index * of.size, overlaps), all)
            });
        }
        _ => all.push(ScalarField { name, ty: ty.clone(), at, bit: 8 * at, bits: 0, overlaps }),
    }
}

impl ScalarField {
    /// Location of the part in the value.
    pub fn place(&self) -> FieldLocation {
        FieldLocation { ty: self.ty.clone(), at: self.at, bit: self.bit, bits: self.bits }
    }

    /// Text form of the part.
    pub fn text(&self, whole: &[u8]) -> String {
        self.place().text(whole)
    }
}

impl FieldLocation {
    /// Text form of the part; composites as `{ports: [80, 443], address: 167772161}`.
    pub fn text(&self, whole: &[u8]) -> String {
        if self.bits > 0 {
            let bits = bits_of(whole, self.bit, self.bits);
            let unused = 64 - self.bits.clamp(1, 64);
            return match self.ty.kind {
                CKind::Int(Encoding::Signed) => ((bits << unused) as i64 >> unused).to_string(),
                _ => bits.to_string(),
            };
        }
        let bytes = whole.get(self.at as usize..(self.at + self.ty.size) as usize).unwrap_or_default();
        match &self.ty.kind {
            CKind::Int(Encoding::Bool) => (number_of(bytes, false) != 0).to_string(),
            CKind::Int(encoding) => number_of(bytes, matches!(encoding, Encoding::Signed | Encoding::Char)).to_string(),
            CKind::Network => {
                let bytes: Vec<u8> = bytes.iter().rev().copied().collect();
                number_of(&bytes, false).to_string()
            }
            CKind::Pointer => number_of(bytes, false).to_string(),
            CKind::Enum { signed, values } => match enumerator(values, bytes) {
                Some(name) => name.to_owned(),
                None => number_of(bytes, *signed).to_string(),
            },
            CKind::Array { text, .. } if self.ty.is_bytes() => {
                // Text must lose no bytes behind its end, nor anything that parsing a row would
                // strip.
                let whole = text_of(bytes).filter(|text| {
                    let rest_is_zeros = bytes[text.len()..].iter().all(|byte| *byte == 0);
                    rest_is_zeros && text.trim() == *text && !text.starts_with('#')
                });
                match whole {
                    Some(words) if *text => words.to_owned(),
                    _ => format_hex(bytes),
                }
            }
            CKind::Opaque => format_hex(bytes),
            _ if self.ty.is_address() => {
                bytes.first_chunk().map_or_else(String::new, |octets: &[u8; 16]| Ipv6Addr::from(*octets).to_string())
            }
            CKind::Array { of, count, .. } => {
                let element =
                    |index| FieldLocation { ty: of.clone(), at: index * of.size, bit: 0, bits: 0 }.text(bytes);
                format!("[{}]", (0..*count).map(element).collect::<Vec<_>>().join(", "))
            }
            CKind::Members(members) | CKind::Section(members) => {
                let mut parts = Vec::new();
                write_members(members, 0, bytes, &mut parts);
                format!("{{{}}}", parts.join(", "))
            }
        }
    }
}

/// Appends the text form of each member with its name; members of an anonymous member count as
/// members of its parent.
fn write_members(members: &[CMember], at: u32, bytes: &[u8], parts: &mut Vec<String>) {
    for CMember { name, ty, bit, bits } in members {
        let bit = 8 * at + bit;
        match &ty.kind {
            CKind::Members(inner) if name.is_empty() => write_members(inner, bit / 8, bytes, parts),
            _ => {
                let place = FieldLocation { ty: ty.clone(), at: bit / 8, bit, bits: *bits };
                parts.push(format!("{name}: {}", place.text(bytes)));
            }
        }
    }
}

/// Bytes in hexadecimal, separated by colons as in a MAC address.
fn format_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(3 * bytes.len());
    for (index, byte) in bytes.iter().enumerate() {
        let _ = write!(text, "{}{byte:02x}", if index == 0 { "" } else { ":" });
    }
    text
}

fn parse_hex(text: &str, count: usize) -> Option<Vec<u8>> {
    let by = if text.contains('-') { '-' } else { ':' };
    let byte = |part: &str| {
        let digits = part.len() == 2 && part.bytes().all(|it| it.is_ascii_hexdigit());
        digits.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    };
    let bytes: Vec<u8> = text.split(by).map(byte).collect::<Option<_>>()?;
    (bytes.len() == count).then_some(bytes)
}

/// Error of [`parse_into`] and [`parse_integer`]. The message is the predicate of a sentence that
/// begins with the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseValueError {
    /// The text is no decimal or hexadecimal number.
    #[error("is no number")]
    NotANumber,
    /// The text is no boolean.
    #[error("is neither `true` nor `false`")]
    NotABoolean,
    /// The number does not fit the type.
    #[error("is not in {ty}: {min} to {max}")]
    OutOfRange {
        /// Name of the type.
        ty: String,
        /// Minimum of the type.
        min: i128,
        /// Maximum of the type.
        max: i128,
    },
    /// The number does not fit the bit field.
    #[error("is not in a bit field of {bits} bits: {min} to {max}")]
    OutOfBitField {
        /// Width of the field.
        bits: u32,
        /// Minimum of the field.
        min: i128,
        /// Maximum of the field.
        max: i128,
    },
    /// The part lies outside of the value.
    #[error("has no place in the value")]
    OutsideValue,
    /// The text is longer than the array of characters.
    #[error("is longer than {ty} has room for")]
    TooLong {
        /// Name of the type.
        ty: String,
    },
    /// The text is not the bytes of a type that is written in hexadecimal.
    #[error("is no value of {ty}: expected {size} bytes in hexadecimal{example}")]
    NotHexadecimal {
        /// Name of the type.
        ty: String,
        /// Size of the type in bytes.
        size: u32,
        /// An example, as the rest of the message; may be empty.
        example: String,
    },
    /// An IPv4 address where only an IPv6 address fits.
    #[error("is an IPv4 address, and there is room for one of IPv6")]
    Ipv4ForIpv6,
    /// The text is neither a number nor an enumerator.
    #[error("is none of the enumeration's values: {}", match .nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => .known.join(", "),
    })]
    UnknownEnumerator {
        /// The enumerator with the most similar name, if one is similar.
        nearest: Option<String>,
        /// The first enumerators.
        known: Vec<String>,
    },
    /// One text for an array of several values.
    #[error("is one value, and {ty} has several: NAME[0]=…")]
    HasElements {
        /// Name of the array's type.
        ty: String,
    },
    /// One text for a structure.
    #[error("is one value, and {ty} has members: NAME.{first}=…")]
    HasMembers {
        /// Name of the structure's type.
        ty: String,
        /// Name of its first member.
        first: String,
    },
}

/// Parses `text` and writes it to a part of a value.
///
/// # Errors
/// If the text is no value of the type, with the reason.
pub fn parse_into(
    place: &FieldLocation,
    text: &str,
    style: NumberStyle,
    whole: &mut [u8],
) -> Result<(), ParseValueError> {
    let range = place.at as usize..place.at as usize + place.ty.size as usize;
    let ty = &place.ty;
    if place.bits > 0 {
        let number = match &ty.kind {
            CKind::Enum { values, .. } => parse_enumerator(values, text)?,
            CKind::Int(Encoding::Bool) => parse_bool(text)?.into(),
            _ => parse_integer(text)?,
        };
        let most = i128::from(u64::MAX >> (64 - place.bits.clamp(1, 64)));
        let least = if matches!(ty.kind, CKind::Int(Encoding::Signed)) { -(most / 2) - 1 } else { 0 };
        if !(least..=most).contains(&number) {
            return Err(ParseValueError::OutOfBitField { bits: place.bits, min: least, max: most });
        }
        set_bits(whole, place.bit, place.bits, number as u64);
        return Ok(());
    }
    let into = whole.get_mut(range).ok_or(ParseValueError::OutsideValue)?;
    let size = into.len();
    if let Some(address) = parse_address(ty, text) {
        into.copy_from_slice(&address?);
        return Ok(());
    }
    let number = match &ty.kind {
        CKind::Int(Encoding::Bool) => parse_bool(text)?.into(),
        CKind::Int(encoding) => {
            let signed = matches!(encoding, Encoding::Signed | Encoding::Char);
            check_range(ty, parse_integer(text)?, signed)?
        }
        CKind::Network | CKind::Pointer => check_range(ty, parse_integer(text)?, false)?,
        CKind::Enum { values, signed } => {
            let number = parse_enumerator(values, text)?;
            check_range(ty, number, *signed || number < 0)?
        }
        CKind::Array { text: is_text, count, .. } if ty.is_bytes() => {
            let bytes = parse_hex(text, size);
            let bytes = match bytes {
                Some(bytes) => bytes,
                None if *is_text && text.len() <= size => text.as_bytes().to_vec(),
                None if *is_text => return Err(ParseValueError::TooLong { ty: ty.name.clone() }),
                None => {
                    let like = format_hex(&vec![0x1a; (*count as usize).min(6)]);
                    let more = if *count > 6 { ":… to the last" } else { "" };
                    return Err(ParseValueError::NotHexadecimal {
                        ty: ty.name.clone(),
                        size: *count,
                        example: format!(", as {like}{more}"),
                    });
                }
            };
            into.fill(0);
            into[..bytes.len()].copy_from_slice(&bytes);
            return Ok(());
        }
        CKind::Opaque => match parse_hex(text, size) {
            Some(bytes) => {
                into.copy_from_slice(&bytes);
                return Ok(());
            }
            None => {
                let (ty, size) = (ty.name.clone(), ty.size);
                return Err(ParseValueError::NotHexadecimal { ty, size, example: String::new() });
            }
        },
        CKind::Array { .. } => return Err(ParseValueError::HasElements { ty: ty.name.clone() }),
        CKind::Members(members) | CKind::Section(members) => {
            let first = members.iter().map(|it| it.name.as_str()).find(|it| !it.is_empty()).unwrap_or("member");
            return Err(ParseValueError::HasMembers { ty: ty.name.clone(), first: first.to_owned() });
        }
    };
    let bytes = number.to_le_bytes();
    into.copy_from_slice(&bytes[..size]);
    if ty.kind == CKind::Network && style == NumberStyle::Human {
        into.reverse();
    }
    Ok(())
}

/// Parses a byte, decimal or hexadecimal.
pub fn parse_byte(text: &str) -> Option<u8> {
    parse_integer(text).ok().and_then(|number| u8::try_from(number).ok())
}

/// Parses an address if the type has room for one: IPv4 in four bytes, IPv6 in sixteen. Returns its
/// bytes in network order. (A MAC address is parsed as six bytes in hexadecimal.)
fn parse_address(ty: &CType, text: &str) -> Option<Result<Vec<u8>, ParseValueError>> {
    let is_number = matches!(ty.kind, CKind::Int(Encoding::Unsigned | Encoding::Signed) | CKind::Network);
    let array_of_numbers = || match &ty.kind {
        CKind::Array { of, text: false, .. } => {
            matches!(of.kind, CKind::Int(Encoding::Unsigned | Encoding::Signed) | CKind::Network)
        }
        CKind::Members(_) => ty.is_address(),
        _ => false,
    };
    match ty.size {
        4 if is_number || array_of_numbers() => {
            let address: Ipv4Addr = text.parse().ok()?;
            Some(Ok(address.octets().to_vec()))
        }
        16 if array_of_numbers() => match (text.parse::<Ipv6Addr>(), text.parse::<Ipv4Addr>()) {
            (Ok(address), _) => Some(Ok(address.octets().to_vec())),
            (_, Ok(_)) => Some(Err(ParseValueError::Ipv4ForIpv6)),
            _ => None,
        },
        _ => None,
    }
}

fn check_range(ty: &CType, number: i128, signed: bool) -> Result<i128, ParseValueError> {
    let bits = 8 * ty.size.min(8);
    let (least, most) =
        if signed { (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1) } else { (0, (1_i128 << bits) - 1) };
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    Err(ParseValueError::OutOfRange { ty: ty.name.clone(), min: least, max: most })
}

fn parse_bool(text: &str) -> Result<u8, ParseValueError> {
    match text {
        "true" | "1" => Ok(1),
        "false" | "0" => Ok(0),
        _ => Err(ParseValueError::NotABoolean),
    }
}

fn parse_enumerator(values: &[(String, i64)], text: &str) -> Result<i128, ParseValueError> {
    if let Some((_, value)) = values.iter().find(|(name, _)| name == text) {
        return Ok((*value).into());
    }
    parse_integer(text).map_err(|_| {
        let names = || values.iter().map(|(name, _)| name.as_str());
        ParseValueError::UnknownEnumerator {
            nearest: nearest(text, names()).map(str::to_owned),
            known: names().take(16).map(str::to_owned).collect(),
        }
    })
}

/// Parses a decimal or hexadecimal number with an optional minus sign; saturates far outside the
/// range of any type.
///
/// # Errors
/// [`ParseValueError::NotANumber`].
pub fn parse_integer(text: &str) -> Result<i128, ParseValueError> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (radix, digits) = hexadecimal.map_or((10, digits), |digits| (16, digits));
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(ParseValueError::NotANumber);
    }
    let value = i128::from_str_radix(digits, radix).unwrap_or(i128::MAX / 2);
    Ok(if negative { -value } else { value })
}
