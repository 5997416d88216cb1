//! Values as JSON, as `bpftool -j map dump` writes them where a map has BTF (its `btf_dumper.c`): members by their names, those
//! without one under `""`, enumerators by theirs, arrays of `char` that end with a zero as text, bit fields as text in hexadecimal.

use std::fmt::Write;

use super::ctype::{CKind, CMember, CType, Encoding};
use super::{bits_of, number_of};

/// A value, of which there are as many bytes as its type has.
pub fn json(ty: &CType, bytes: &[u8]) -> String {
    let mut out = String::new();
    value(ty, bytes, &mut out);
    out
}

fn value(ty: &CType, bytes: &[u8], out: &mut String) {
    match &ty.kind {
        CKind::Int(Encoding::Bool) => {
            out.push_str(if bytes.first().is_some_and(|it| *it != 0) { "true" } else { "false" })
        }
        CKind::Int(Encoding::Char) if ty.size == 1 => match bytes.first() {
            Some(&byte @ 0x20..0x7f) => quoted(&char::from(byte).to_string(), out),
            byte => _ = write!(out, "\"\\u00{:02x}\"", byte.copied().unwrap_or(0)),
        },
        CKind::Int(Encoding::Signed) => _ = write!(out, "{}", number_of(bytes, true)),
        CKind::Int(_) | CKind::Network | CKind::Pointer => _ = write!(out, "{}", number_of(bytes, false)),
        CKind::Enum { values, .. } => match enumerator(values, bytes) {
            Some(name) => quoted(name, out),
            None => _ = write!(out, "{}", number_of(bytes, true)),
        },
        CKind::Array { of, count, text } => {
            if let (true, Some(text)) = (*text, text_of(bytes)) {
                return quoted(text, out);
            }
            out.push('[');
            for index in 0..*count as usize {
                if index > 0 {
                    out.push(',');
                }
                let at = index * of.size as usize;
                value(of, bytes.get(at..at + of.size as usize).unwrap_or_default(), out);
            }
            out.push(']');
        }
        CKind::Members(members) => {
            out.push('{');
            for (number, member) in members.iter().enumerate() {
                if number > 0 {
                    out.push(',');
                }
                named(member, bytes, out);
            }
            out.push('}');
        }
        CKind::Section(members) => {
            out.push('{');
            quoted(&ty.name, out);
            out.push_str(":[");
            for (number, member) in members.iter().enumerate() {
                out.push_str(if number > 0 { ",{" } else { "{" });
                named(member, bytes, out);
                out.push('}');
            }
            out.push_str("]}");
        }
        CKind::Opaque => {
            // The first digits are the highest.
            out.push_str("\"0x");
            bytes.iter().rev().for_each(|byte| _ = write!(out, "{byte:02x}"));
            out.push('"');
        }
    }
}

fn named(member: &CMember, bytes: &[u8], out: &mut String) {
    quoted(&member.name, out);
    out.push(':');
    if member.bits > 0 {
        let _ = write!(out, "\"{:#x}\"", bits_of(bytes, member.bit, member.bits));
        return;
    }
    let at = member.bit as usize / 8;
    value(&member.ty, bytes.get(at..at + member.ty.size as usize).unwrap_or_default(), out);
}

/// The name of an enumeration's value.
pub(super) fn enumerator<'a>(values: &'a [(String, i64)], bytes: &[u8]) -> Option<&'a str> {
    let mask = u64::MAX >> (64 - 8 * bytes.len().clamp(1, 8));
    let is = number_of(bytes, false) as u64;
    values.iter().find(|(_, value)| *value as u64 & mask == is).map(|(name, _)| name.as_str())
}

/// What an array of `char` says, where it is text that a zero ends.
pub(super) fn text_of(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let text = &bytes[..end];
    if !text.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        return None;
    }
    std::str::from_utf8(text).ok()
}

/// A text of JSON's (RFC 8259, section 7).
pub(in crate::map) fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => _ = write!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
}
