//! Maps of eBPF objects, whose keys and values have C types, described by the object's BTF. Where
//! filters in source form have words, these maps have bytes, in the processor's order.
//!
//! - `ctype`: C types.
//! - `kernel_bytes`: keys and values as the kernel represents them.
//! - `json`: values as bpftool writes them.
//! - `scalars`: values as cells of a row, in human-readable form.
//! - `dump`: entries as text.
//! - `path`: members by name.

mod ctype;
mod dump;
mod json;
mod kernel_bytes;
mod path;
mod scalars;

use std::sync::Arc;

pub use ctype::{CKind, CMember, CType, Encoding, MAX_DEPTH};
pub use json::json;
pub use path::{FieldLocation, PathError, find_member, resolve_path};
pub use scalars::{NumberStyle, ParseValueError, ScalarField, parse_byte, parse_integer, parse_into, scalar_fields};

/// Name and types of a map in its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeInfo {
    /// Name of the map in the object.
    pub name: String,
    /// Name of the map type in bpftool.
    pub map_type: String,
    /// Map type, `enum bpf_map_type` of linux/bpf.h.
    pub map_type_number: u32,
    /// C type of the key.
    pub key: Arc<CType>,
    /// C type of the value.
    pub value: Arc<CType>,
    /// Whether the values are constants that the program was compiled with.
    pub constant: bool,
}

/// A key of a prefix map whose prefix is longer than its address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a prefix is of {length} bits, and the keys of `{map}` have {bits}")]
pub struct PrefixTooLong {
    /// Name of the map in the object.
    pub map: String,
    /// Length of the prefix in bits.
    pub length: u32,
    /// Size of the map's addresses in bits.
    pub bits: u32,
}

impl TypeInfo {
    /// Whether the kernel has a value for each CPU. Portcullis has a single one.
    pub fn is_per_cpu(&self) -> bool {
        matches!(self.map_type_number, 5 | 6 | 10)
    }

    /// Whether the keys are prefixes: a length in bits, followed by the address (`struct
    /// bpf_lpm_trie_key`).
    pub fn is_trie(&self) -> bool {
        self.map_type_number == 11 && self.key.size > 4
    }

    /// Checks that a key is valid.
    ///
    /// # Errors
    /// If the key is a prefix that is longer than the address.
    pub fn check_key(&self, key: &[u8]) -> Result<(), PrefixTooLong> {
        let length = key.first_chunk().copied().map_or(0, u32::from_le_bytes);
        let bits = 8 * self.key.size.saturating_sub(4);
        if self.is_trie() && length > bits {
            return Err(PrefixTooLong { map: self.name.clone(), length, bits });
        }
        Ok(())
    }
}

/// Reads a little-endian number of up to eight bytes.
fn number_of(bytes: &[u8], signed: bool) -> i128 {
    let bits = bytes.iter().take(8).rev().fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
    let unused = 64 - 8 * bytes.len().clamp(1, 8) as u32;
    if signed { i128::from((bits << unused) as i64 >> unused) } else { i128::from(bits) }
}

/// Reads a bit field.
fn bits_of(bytes: &[u8], bit: u32, bits: u32) -> u64 {
    let (first, shift) = (bit as usize / 8, bit % 8);
    let part = bytes.get(first..).unwrap_or_default().iter().take(16);
    let all = part.rev().fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
    (all >> shift) as u64 & (u64::MAX >> (64 - bits.clamp(1, 64)))
}

fn set_bits(bytes: &mut [u8], bit: u32, bits: u32, value: u64) {
    for number in 0..bits {
        let at = (bit + number) as usize;
        let Some(byte) = bytes.get_mut(at / 8) else { return };
        let mask = 1 << (at % 8);
        *byte = if value >> number & 1 == 1 { *byte | mask } else { *byte & !mask };
    }
}

/// Combines a kernel map's values for all CPUs into one: sums integers of four and eight bytes,
/// which is what programs use per-CPU maps for. Other scalars are taken from the first CPU on which
/// they are not zero. `leaves` are the scalars of the value's type.
pub fn sum_per_cpu(scalar_fields: &[ScalarField], size: u32, all: &[Vec<u8>]) -> Vec<u8> {
    let mut sum = vec![0; size as usize];
    for leaf in scalar_fields {
        let range = leaf.at as usize..(leaf.at + leaf.ty.size) as usize;
        let counts = leaf.bits == 0
            && matches!(leaf.ty.size, 4 | 8)
            && matches!(leaf.ty.kind, CKind::Int(Encoding::Unsigned | Encoding::Signed));
        let mut parts = all.iter().filter_map(|value| value.get(range.clone()));
        if leaf.bits > 0 {
            let of = |value: &Vec<u8>| bits_of(value, leaf.bit, leaf.bits);
            let value = all.iter().map(of).find(|value| *value != 0).unwrap_or(0);
            set_bits(&mut sum, leaf.bit, leaf.bits, value);
        } else if counts {
            let total = parts.fold(0_u64, |total, part| total.wrapping_add(number_of(part, false) as u64));
            sum[range.clone()].copy_from_slice(&total.to_le_bytes()[..range.len()]);
        } else if let Some(part) = parts.find(|part| part.iter().any(|byte| *byte != 0)) {
            sum[range.clone()].copy_from_slice(part);
        }
    }
    sum
}
