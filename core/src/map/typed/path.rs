//! Resolution of paths in a value: `name.member[3].x`.

use std::sync::Arc;

use super::ctype::{CKind, CMember, CType};
use crate::spelling::nearest;

/// Type and location of a part of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldLocation {
    /// Type of the part.
    pub ty: Arc<CType>,
    /// Offset of its first byte.
    pub at: u32,
    /// For a bit field, the offset of its first bit.
    pub bit: u32,
    /// For a bit field, its width in bits; otherwise 0.
    pub bits: u32,
}

impl FieldLocation {
    /// The whole value.
    pub fn whole(ty: &Arc<CType>) -> FieldLocation {
        FieldLocation { ty: ty.clone(), at: 0, bit: 0, bits: 0 }
    }
}

/// Resolves the part of a path that follows the variable's name: nothing, or members and elements
/// (`.member`, `[3]`). If members' own names contain dots (`main.hits`, a static variable of a
/// function), the longest one that matches wins.
///
/// # Errors
/// The name or index that does not exist, and the alternatives.
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

/// Finds a member by its whole name, dots included, as it appears in JSON.
///
/// # Errors
/// If there is no such member; lists the members.
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

/// The member with this name, looked up in anonymous members as well.
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
