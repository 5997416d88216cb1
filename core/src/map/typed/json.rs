//! Values as JSON, as `bpftool -j map dump` writes them for a map with BTF (its `btf_dumper.c`):
//! members by name, anonymous ones under `""`, enumerators by name, zero-terminated arrays of
//! `char` as strings, bit fields as hexadecimal strings.

use std::fmt::Write;

use super::super::quoting::write_quoted;
use super::ctype::{CKind, CMember, CType, Encoding};
use super::{bits_of, number_of};

/// A value as JSON; `bytes` has the type's size.
pub fn json(ty: &CType, bytes: &[u8]) -> String {
    let mut out = String::new();
    write_value(ty, bytes, &mut out);
    out
}

fn write_value(ty: &CType, bytes: &[u8], out: &mut String) {
    match &ty.kind {
        CKind::Int(Encoding::Bool) => {
            out.push_str(if bytes.first().is_some_and(|it| *it != 0) { "true" } else { "false" })
        }
        CKind::Int(Encoding::Char) if ty.size == 1 => match bytes.first() {
            Some(&byte @ 0x20..0x7f) => write_quoted(&char::from(byte).to_string(), out),
            byte => _ = write!(out, "\"\\u00{:02x}\"", byte.copied().unwrap_or(0)),
        },
        CKind::Int(Encoding::Signed) => _ = write!(out, "{}", number_of(bytes, true)),
        CKind::Int(_) | CKind::Network | CKind::Pointer => _ = write!(out, "{}", number_of(bytes, false)),
        CKind::Enum { values, .. } => match enumerator(values, bytes) {
            Some(name) => write_quoted(name, out),
            None => _ = write!(out, "{}", number_of(bytes, true)),
        },
        CKind::Array { of, count, text } => {
            if let (true, Some(text)) = (*text, text_of(bytes)) {
                return write_quoted(text, out);
            }
            out.push('[');
            for index in 0..*count as usize {
                if index > 0 {
                    out.push(',');
                }
                let at = index * of.size as usize;
                write_value(of, bytes.get(at..at + of.size as usize).unwrap_or_default(), out);
            }
            out.push(']');
        }
        CKind::Members(members) => {
            out.push('{');
            for (number, member) in members.iter().enumerate() {
                if number > 0 {
                    out.push(',');
                }
                write_member(member, bytes, out);
            }
            out.push('}');
        }
        CKind::Section(members) => {
            out.push('{');
            write_quoted(&ty.name, out);
            out.push_str(":[");
            for (number, member) in members.iter().enumerate() {
                out.push_str(if number > 0 { ",{" } else { "{" });
                write_member(member, bytes, out);
                out.push('}');
            }
            out.push_str("]}");
        }
        CKind::Opaque => {
            // Most significant byte first.
            out.push_str("\"0x");
            bytes.iter().rev().for_each(|byte| _ = write!(out, "{byte:02x}"));
            out.push('"');
        }
    }
}

fn write_member(member: &CMember, bytes: &[u8], out: &mut String) {
    write_quoted(&member.name, out);
    out.push(':');
    if member.bits > 0 {
        let _ = write!(out, "\"{:#x}\"", bits_of(bytes, member.bit, member.bits));
        return;
    }
    let at = member.bit as usize / 8;
    write_value(&member.ty, bytes.get(at..at + member.ty.size as usize).unwrap_or_default(), out);
}

/// Name of the enumerator with this value.
pub(super) fn enumerator<'a>(values: &'a [(String, i64)], bytes: &[u8]) -> Option<&'a str> {
    let mask = u64::MAX >> (64 - 8 * bytes.len().clamp(1, 8));
    let is = number_of(bytes, false) as u64;
    values.iter().find(|(_, value)| *value as u64 & mask == is).map(|(name, _)| name.as_str())
}

/// The text of a zero-terminated array of printable `char`.
pub(super) fn text_of(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let text = &bytes[..end];
    if !text.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        return None;
    }
    std::str::from_utf8(text).ok()
}
