//! Members of a value by their names: `name.member[3].x`.

use std::sync::Arc;

use super::ctype::{CKind, CMember, CType};
use crate::spelling::nearest;

/// A part of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldLocation {
    /// Its type.
    pub ty: Arc<CType>,
    /// Its first byte.
    pub at: u32,
    /// Of a bit field, its first bit in the whole.
    pub bit: u32,
    /// Its bits; 0 where it is none.
    pub bits: u32,
}

impl FieldLocation {
    /// All of a value.
    pub fn whole(ty: &Arc<CType>) -> FieldLocation {
        FieldLocation { ty: ty.clone(), at: 0, bit: 0, bits: 0 }
    }
}

/// Finds a part of a value by what stands behind its name: nothing, or members and elements (`.member`, `[3]`). Of members whose own
/// names have dots (`main.hits`, a variable that is static in a function) the one with the longest name that fits is meant.
///
/// # Errors
/// What there is not, and what there is.
pub fn resolve_path(ty: &Arc<CType>, path: &str) -> Result<FieldLocation, String> {
    let mut place = FieldLocation::whole(ty);
    let mut rest = path;
    while !rest.is_empty() {
        let here = place.ty.clone();
        if let Some(inner) = rest.strip_prefix('[') {
            let (index, behind) = inner.split_once(']').ok_or("`[` has no `]`")?;
            let CKind::Array { of, count, .. } = &here.kind else {
                return Err(format!("`[{index}]` is no part of {}, which is no array", here.name));
            };
            let number = index.trim().parse::<u32>().map_err(|_| format!("`[{index}]` has no number of an element"))?;
            if number >= *count {
                return Err(format!("`[{number}]` is none of the {count} elements of {}", here.name));
            }
            place = FieldLocation { ty: of.clone(), at: place.at + number * of.size, bit: 0, bits: 0 };
            rest = behind;
            continue;
        }
        let name = rest.strip_prefix('.').ok_or_else(|| format!("`{rest}` begins with neither `.` nor `[`"))?;
        let first = &name[..name.find(['.', '[']).unwrap_or(name.len())];
        let members = members_of(&here, first)?;
        let ends = name.match_indices(['.', '[']).map(|(end, _)| end).chain([name.len()]);
        let fitting = ends.filter_map(|end| Some((member(members, &name[..end], place.at)?, &name[end..]))).next_back();
        (place, rest) = fitting.ok_or_else(|| no_member(&here, members, first))?;
    }
    Ok(place)
}

/// Finds a member by the whole of its name, dots and all, as JSON has it.
///
/// # Errors
/// That there is none, and what there is.
pub fn find_member(ty: &CType, name: &str) -> Result<FieldLocation, String> {
    let members = members_of(ty, name)?;
    member(members, name, 0).ok_or_else(|| no_member(ty, members, name))
}

fn members_of<'a>(ty: &'a CType, name: &str) -> Result<&'a [CMember], String> {
    match &ty.kind {
        CKind::Members(members) | CKind::Section(members) => Ok(members),
        _ => Err(format!("`.{name}` is no part of {}, which has no members", ty.name)),
    }
}

/// A member of this name, also of those without a name of their own.
pub(super) fn member(members: &[CMember], name: &str, at: u32) -> Option<FieldLocation> {
    members.iter().find_map(|member| {
        if !member.name.is_empty() && member.name == name {
            let bit = 8 * at + member.bit;
            return Some(FieldLocation { ty: member.ty.clone(), at: bit / 8, bit, bits: member.bits });
        }
        match &member.ty.kind {
            CKind::Members(inner) if member.name.is_empty() => self::member(inner, name, at + member.bit / 8),
            _ => None,
        }
    })
}

fn names(members: &[CMember]) -> Vec<String> {
    let of = |member: &CMember| match &member.ty.kind {
        CKind::Members(inner) if member.name.is_empty() => names(inner),
        _ if member.name.is_empty() => Vec::new(),
        _ => vec![member.name.clone()],
    };
    members.iter().flat_map(of).collect()
}

fn no_member(ty: &CType, members: &[CMember], name: &str) -> String {
    let there = names(members);
    let near =
        nearest(name, there.iter().map(String::as_str)).map(|it| format!("; did you mean `{it}`?")).unwrap_or_default();
    format!("{} has no member `{name}` (it has {}){near}", ty.name, there.join(", "))
}
