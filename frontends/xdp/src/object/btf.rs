//! BTF: what an object says of its types (Documentation/bpf/btf.rst, linux/btf.h).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::{Letters, Wrong};
use portcullis_core::map::typed::{CType, Encoding};

const MAGIC: u16 = 0xeb9f;

/// `BTF_KIND_*` that we tell apart.
mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// A member of a structure or union.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name; empty where it has none.
    pub name: String,
    /// Its type's number.
    pub ty: u32,
    /// Where it begins, in bits.
    pub bit: u32,
    /// Its bits, where it is a bit field; else 0.
    pub bits: u32,
}

/// What a type is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Void,
    /// An integer of so many bytes.
    Int {
        /// Bytes.
        size: u32,
        /// What its bits mean.
        encoding: Encoding,
    },
    /// A pointer.
    Pointer(u32),
    /// An array.
    Array {
        /// Its elements' type.
        of: u32,
        /// How many there are.
        count: u32,
    },
    /// A structure.
    Struct {
        /// Bytes.
        size: u32,
        /// In their order.
        members: Vec<Member>,
    },
    /// A union.
    Union {
        /// Bytes.
        size: u32,
        /// In their order.
        members: Vec<Member>,
    },
    /// An enumeration: names and values.
    Enum {
        /// Bytes.
        size: u32,
        /// Whether values have a sign.
        signed: bool,
        /// With their names.
        values: Vec<(String, i64)>,
    },
    /// Another name, or a qualifier, for a type.
    Alias(u32),
    /// A function of this prototype.
    Function(u32),
    /// A prototype.
    Prototype,
    /// A variable of this type.
    Variable(u32),
    /// A section: its variables, where each begins, and its size.
    Section(Vec<(u32, u32, u32)>),
    /// A floating-point number of so many bytes.
    Float(u32),
    /// Something without a meaning here.
    Other,
}

/// A type with its name, which may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Type {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
}

/// An object's types by number; 0 is `void`. Copies have the same types in memory.
#[derive(Debug, Clone, Default)]
pub struct Btf {
    types: Arc<[Type]>,
    strings: Arc<[u8]>,
    /// Those that were asked for as types of C's ([`Btf::c_type`]): many maps and variables may be of one.
    pub(crate) known: Arc<Mutex<HashMap<u32, Option<Arc<CType>>>>>,
}

/// Numbers out of bytes, in the byte order of the object: little-endian.
pub(super) struct Bytes<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
    /// What it is, for errors.
    pub what: &'static str,
}

impl<'a> Bytes<'a> {
    pub fn new(bytes: &'a [u8], what: &'static str) -> Bytes<'a> {
        Bytes { bytes, at: 0, what }
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Wrong> {
        let part = self.at.checked_add(count).and_then(|end| self.bytes.get(self.at..end));
        let part =
            part.ok_or_else(|| Wrong::new(format!("{} ends too soon, at byte {}", self.what, self.bytes.len())))?;
        self.at += count;
        Ok(part)
    }

    pub fn u16(&mut self) -> Result<u16, Wrong> {
        Ok(self.take(2)?.first_chunk().copied().map(u16::from_le_bytes).unwrap_or_default())
    }

    pub fn u32(&mut self) -> Result<u32, Wrong> {
        Ok(self.take(4)?.first_chunk().copied().map(u32::from_le_bytes).unwrap_or_default())
    }
}

/// The parts of `.BTF` and `.BTF.ext`, which both begin with a header that says its own length.
pub(super) fn header<'a>(bytes: &'a [u8], what: &'static str) -> Result<(Bytes<'a>, usize), Wrong> {
    let mut header = Bytes::new(bytes, what);
    if header.u16()? != MAGIC {
        return Err(Wrong::new(format!("{what} does not begin with its magic number, {MAGIC:#06x}")));
    }
    // The version, flags.
    header.u16()?;
    let length = header.u32()? as usize;
    Ok((header, length))
}

/// A part of a section behind its header.
pub(super) fn part<'a>(
    bytes: &'a [u8],
    header: usize,
    offset: u32,
    length: u32,
    what: &'static str,
) -> Result<Bytes<'a>, Wrong> {
    let start = header.checked_add(offset as usize);
    let range = start.and_then(|start| Some(start..start.checked_add(length as usize)?));
    let part = range.and_then(|range| bytes.get(range));
    Ok(Bytes::new(part.ok_or_else(|| Wrong::new(format!("{what} has a part that lies outside of it")))?, what))
}

/// Types being read.
struct Reading<'a> {
    strings: &'a [u8],
    letters: Letters,
}

impl Reading<'_> {
    fn string(&mut self, at: u32) -> Result<String, Wrong> {
        self.letters.text(string(self.strings, at))
    }

    fn ty(&mut self, from: &mut Bytes) -> Result<Type, Wrong> {
        let name = self.string(from.u32()?)?;
        let info = from.u32()?;
        let size_or_type = from.u32()?;
        let (count, flag) = (info & 0xffff, info >> 31 == 1);
        let kind = match info >> 24 & 0x1f {
            kind::INT => {
                let encoding = match from.u32()? >> 24 & 0xf {
                    4 => Encoding::Bool,
                    2 => Encoding::Char,
                    1 => Encoding::Signed,
                    _ => Encoding::Unsigned,
                };
                Kind::Int { size: size_or_type, encoding }
            }
            kind::PTR => Kind::Pointer(size_or_type),
            kind::ARRAY => {
                let (of, _, count) = (from.u32()?, from.u32()?, from.u32()?);
                Kind::Array { of, count }
            }
            kind @ (kind::STRUCT | kind::UNION) => {
                let mut members = Vec::new();
                for _ in 0..count {
                    let (name, ty, at) = (self.string(from.u32()?)?, from.u32()?, from.u32()?);
                    let (bit, bits) = if flag { (at & 0xff_ffff, at >> 24) } else { (at, 0) };
                    members.push(Member { name, ty, bit, bits });
                }
                match kind {
                    kind::STRUCT => Kind::Struct { size: size_or_type, members },
                    _ => Kind::Union { size: size_or_type, members },
                }
            }
            kind::ENUM => {
                let mut values = Vec::new();
                for _ in 0..count {
                    let (name, value) = (self.string(from.u32()?)?, from.u32()?);
                    values.push((name, if flag { i64::from(value as i32) } else { i64::from(value) }));
                }
                Kind::Enum { size: size_or_type, signed: flag, values }
            }
            kind::ENUM64 => {
                let mut values = Vec::new();
                for _ in 0..count {
                    let (name, low, high) = (self.string(from.u32()?)?, from.u32()?, from.u32()?);
                    values.push((name, (u64::from(high) << 32 | u64::from(low)) as i64));
                }
                Kind::Enum { size: size_or_type, signed: flag, values }
            }
            kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => Kind::Alias(size_or_type),
            kind::FUNC => Kind::Function(size_or_type),
            kind::FUNC_PROTO => {
                from.take(8 * count as usize)?;
                Kind::Prototype
            }
            kind::VAR => {
                from.u32()?;
                Kind::Variable(size_or_type)
            }
            kind::DATASEC => {
                let mut variables = Vec::new();
                for _ in 0..count {
                    variables.push((from.u32()?, from.u32()?, from.u32()?));
                }
                Kind::Section(variables)
            }
            kind::FLOAT => Kind::Float(size_or_type),
            kind::DECL_TAG => {
                from.u32()?;
                Kind::Other
            }
            kind::FWD => Kind::Other,
            other => {
                let message = format!(".BTF has a type of kind {other}, which there was none of when this was written");
                return Err(Wrong::new(message));
            }
        };
        Ok(Type { name, kind })
    }
}

/// A string by its offset; nothing where there is none.
fn string(strings: &[u8], at: u32) -> &[u8] {
    let rest = strings.get(at as usize..).unwrap_or_default();
    &rest[..rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len())]
}

impl Btf {
    /// Reads the section `.BTF`.
    pub(crate) fn read(bytes: &[u8]) -> Result<Btf, Wrong> {
        let what = ".BTF";
        let (mut head, length) = header(bytes, what)?;
        let (types_at, types_length) = (head.u32()?, head.u32()?);
        let (strings_at, strings_length) = (head.u32()?, head.u32()?);
        let strings = part(bytes, length, strings_at, strings_length, what)?.bytes;
        let mut all = vec![Type { name: String::new(), kind: Kind::Void }];
        let mut types = part(bytes, length, types_at, types_length, what)?;
        let mut reading = Reading { strings, letters: Letters::default() };
        while types.at < types.bytes.len() {
            all.push(reading.ty(&mut types)?);
        }
        Ok(Btf { types: all.into(), strings: strings.into(), known: Arc::default() })
    }

    /// A string by its offset; nothing where there is none.
    pub(super) fn string(&self, at: u32) -> &[u8] {
        string(&self.strings, at)
    }

    /// A type by its number.
    pub fn get(&self, ty: u32) -> Option<&Type> {
        self.types.get(ty as usize)
    }

    /// A type without other names and qualifiers.
    pub fn resolve(&self, mut ty: u32) -> Option<&Type> {
        // Each step leads to another type, unless they lie.
        for _ in 0..64 {
            match self.get(ty)? {
                Type { kind: Kind::Alias(to) | Kind::Variable(to), .. } => ty = *to,
                found => return Some(found),
            }
        }
        None
    }

    /// Bytes of a type.
    pub fn size(&self, ty: u32) -> Option<u32> {
        let mut count = 1_u32;
        let mut ty = ty;
        for _ in 0..16 {
            let size = match &self.resolve(ty)?.kind {
                Kind::Int { size, .. } | Kind::Struct { size, .. } | Kind::Union { size, .. } => *size,
                Kind::Enum { size, .. } | Kind::Float(size) => *size,
                Kind::Pointer(_) => 8,
                Kind::Array { of, count: more } => {
                    count = count.checked_mul(*more)?;
                    ty = *of;
                    continue;
                }
                _ => return None,
            };
            return count.checked_mul(size);
        }
        None
    }

    /// The section of this name: its variables' types, where each begins, and its size.
    pub fn section(&self, name: &str) -> Option<&[(u32, u32, u32)]> {
        self.types.iter().find_map(|ty| match &ty.kind {
            Kind::Section(variables) if ty.name == name => Some(variables.as_slice()),
            _ => None,
        })
    }
}
