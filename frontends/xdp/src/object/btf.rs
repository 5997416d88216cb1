//! BTF: type information of an object (Documentation/bpf/btf.rst, linux/btf.h).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::{ObjectError, StringBudget};
use portcullis_core::map::typed::{CType, Encoding};

const MAGIC: u16 = 0xeb9f;

/// Type kinds, `BTF_KIND_*`.
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
    /// Name; empty if anonymous.
    pub name: String,
    /// Number of its type.
    pub ty: u32,
    /// Offset in bits.
    pub bit: u32,
    /// Width in bits of a bit field, else 0.
    pub bits: u32,
}

/// Kind of a type, with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// `void`.
    Void,
    /// An integer.
    Int {
        /// Size in bytes.
        size: u32,
        /// Meaning of its bits.
        encoding: Encoding,
    },
    /// A pointer to this type.
    Pointer(u32),
    /// An array.
    Array {
        /// Type of the elements.
        of: u32,
        /// Number of elements.
        count: u32,
    },
    /// A structure.
    Struct {
        /// Size in bytes.
        size: u32,
        /// Members in order.
        members: Vec<Member>,
    },
    /// A union.
    Union {
        /// Size in bytes.
        size: u32,
        /// Members in order.
        members: Vec<Member>,
    },
    /// An enumeration.
    Enum {
        /// Size in bytes.
        size: u32,
        /// Whether values are signed.
        signed: bool,
        /// Names and values.
        values: Vec<(String, i64)>,
    },
    /// A typedef or qualifier of this type.
    Alias(u32),
    /// A function with this prototype.
    Function(u32),
    /// A function prototype.
    Prototype,
    /// A variable of this type.
    Variable(u32),
    /// A data section: variable, offset and size of each of its variables.
    Section(Vec<(u32, u32, u32)>),
    /// A floating-point number of this size in bytes.
    Float(u32),
    /// A kind that has no meaning here.
    Other,
}

/// A type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Type {
    /// Name; may be empty.
    pub name: String,
    /// Kind of the type.
    pub kind: Kind,
}

/// The types of an object by number; 0 is `void`. Clones share their memory.
#[derive(Debug, Clone, Default)]
pub struct Btf {
    types: Arc<[Type]>,
    strings: Arc<[u8]>,
    /// Cache of [`Btf::c_type`]: many maps and variables may be of one type.
    pub(crate) known: Arc<Mutex<HashMap<u32, Option<Arc<CType>>>>>,
}

/// Reader of little-endian numbers.
pub(super) struct ByteReader<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
    /// Name of the section, for errors.
    pub what: &'static str,
}

impl<'a> ByteReader<'a> {
    pub fn new(bytes: &'a [u8], what: &'static str) -> ByteReader<'a> {
        ByteReader { bytes, at: 0, what }
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], ObjectError> {
        let part = self.at.checked_add(count).and_then(|end| self.bytes.get(self.at..end));
        let part =
            part.ok_or_else(|| ObjectError::new(format!("{} ends too soon, at byte {}", self.what, self.bytes.len())))?;
        self.at += count;
        Ok(part)
    }

    pub fn u16(&mut self) -> Result<u16, ObjectError> {
        Ok(self.take(2)?.first_chunk().copied().map(u16::from_le_bytes).unwrap_or_default())
    }

    pub fn u32(&mut self) -> Result<u32, ObjectError> {
        Ok(self.take(4)?.first_chunk().copied().map(u32::from_le_bytes).unwrap_or_default())
    }
}

/// Reads the common header of `.BTF` and `.BTF.ext`. Returns the reader after it and the header's
/// length.
pub(super) fn read_header<'a>(bytes: &'a [u8], what: &'static str) -> Result<(ByteReader<'a>, usize), ObjectError> {
    let mut header = ByteReader::new(bytes, what);
    if header.u16()? != MAGIC {
        return Err(ObjectError::new(format!("{what} does not begin with its magic number, {MAGIC:#06x}")));
    }
    // Version and flags.
    header.u16()?;
    let length = header.u32()? as usize;
    Ok((header, length))
}

/// A part of a section, by its offset from the end of the header.
pub(super) fn section_part<'a>(
    bytes: &'a [u8],
    header: usize,
    offset: u32,
    length: u32,
    what: &'static str,
) -> Result<ByteReader<'a>, ObjectError> {
    let start = header.checked_add(offset as usize);
    let range = start.and_then(|start| Some(start..start.checked_add(length as usize)?));
    let part = range.and_then(|range| bytes.get(range));
    Ok(ByteReader::new(part.ok_or_else(|| ObjectError::new(format!("{what} has a part beyond its end")))?, what))
}

/// State of reading types.
struct TypeReader<'a> {
    strings: &'a [u8],
    strings_left: StringBudget,
}

impl TypeReader<'_> {
    fn string(&mut self, at: u32) -> Result<String, ObjectError> {
        self.strings_left.text(string(self.strings, at))
    }

    fn read_type(&mut self, from: &mut ByteReader) -> Result<Type, ObjectError> {
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
                let message = format!(".BTF has a type of unknown kind {other}");
                return Err(ObjectError::new(message));
            }
        };
        Ok(Type { name, kind })
    }
}

/// The string at an offset; empty if the offset is invalid.
fn string(strings: &[u8], at: u32) -> &[u8] {
    let rest = strings.get(at as usize..).unwrap_or_default();
    &rest[..rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len())]
}

impl Btf {
    /// Reads the section `.BTF`.
    pub(crate) fn read(bytes: &[u8]) -> Result<Btf, ObjectError> {
        let what = ".BTF";
        let (mut head, length) = read_header(bytes, what)?;
        let (types_at, types_length) = (head.u32()?, head.u32()?);
        let (strings_at, strings_length) = (head.u32()?, head.u32()?);
        let strings = section_part(bytes, length, strings_at, strings_length, what)?.bytes;
        let mut all = vec![Type { name: String::new(), kind: Kind::Void }];
        let mut types = section_part(bytes, length, types_at, types_length, what)?;
        let mut reading = TypeReader { strings, strings_left: StringBudget::default() };
        while types.at < types.bytes.len() {
            all.push(reading.read_type(&mut types)?);
        }
        Ok(Btf { types: all.into(), strings: strings.into(), known: Arc::default() })
    }

    /// The string at an offset; empty if the offset is invalid.
    pub(super) fn string(&self, at: u32) -> &[u8] {
        string(&self.strings, at)
    }

    /// The type with this number.
    pub fn get(&self, ty: u32) -> Option<&Type> {
        self.types.get(ty as usize)
    }

    /// The type behind typedefs, qualifiers and variables.
    pub fn resolve(&self, mut ty: u32) -> Option<&Type> {
        // Bounded, since malformed types may form a cycle.
        for _ in 0..64 {
            match self.get(ty)? {
                Type { kind: Kind::Alias(to) | Kind::Variable(to), .. } => ty = *to,
                found => return Some(found),
            }
        }
        None
    }

    /// Size of a type in bytes.
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

    /// The data section of this name: variable, offset and size of each variable.
    pub fn section(&self, name: &str) -> Option<&[(u32, u32, u32)]> {
        self.types.iter().find_map(|ty| match &ty.kind {
            Kind::Section(variables) if ty.name == name => Some(variables.as_slice()),
            _ => None,
        })
    }
}
