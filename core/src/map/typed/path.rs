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
    /// Offset of the first bit of a bit field.
    pub bit: u32,
    /// Width of a bit field in bits; otherwise 0.
    pub bits: u32,
}

impl FieldLocation {
    /// The whole value.
    pub fn whole(ty: &Arc<CType>) -> FieldLocation {
        FieldLocation { ty: ty.clone(), at: 0, bit: 0, bits: 0 }
    }
}

/// Error of [`resolve_path`] and [`find_member`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// An index without its closing bracket.
    #[error("`[` has no `]`")]
    Unclosed,
    /// An index into a type that is no array.
    #[error("`[{index}]` is no part of {ty}, which is no array")]
    NotAnArray {
        /// Text of the index.
        index: String,
        /// Name of the type.
        ty: String,
    },
    /// An index that is no number.
    #[error("`[{index}]` has no number of an element")]
    NotANumber {
        /// Text of the index.
        index: String,
    },
    /// An index beyond the array's end.
    #[error("`[{index}]` is none of the {count} elements of {ty}")]
    NoElement {
        /// The index.
        index: u32,
        /// Number of elements.
        count: u32,
        /// Name of the array's type.
        ty: String,
    },
    /// Text that is neither an index nor a member.
    #[error("`{rest}` begins with neither `.` nor `[`")]
    Malformed {
        /// The rest of the path.
        rest: String,
    },
    /// A member of a type that has no members.
    #[error("`.{name}` is no part of {ty}, which has no members")]
    NotAStructure {
        /// Name of the member.
        name: String,
        /// Name of the type.
        ty: String,
    },
    /// A member that does not exist.
    #[error("{ty} has no member `{name}` (it has {}){}", .known.join(", "), match .nearest {
        Some(near) => format!("; did you mean `{near}`?"),
        None => String::new(),
    })]
    NoMember {
        /// Name of the type.
        ty: String,
        /// Name of the missing member.
        name: String,
        /// The members that exist.
        known: Vec<String>,
        /// The member with the most similar name, if one is similar.
        nearest: Option<String>,
    },
}

/// Resolves the part of a path that follows the variable's name: nothing, or members and elements
/// (`.member`, `[3]`). If members' own names contain dots (`main.hits`, a static variable of a
/// function), the longest one that matches wins.
///
/// # Errors
/// The name or index that does not exist, and the alternatives.
pub fn resolve_path(ty: &Arc<CType>, path: &str) -> Result<FieldLocation, PathError> {
    let mut place = FieldLocation::whole(ty);
    let mut rest = path;
    while !rest.is_empty() {
        let here = place.ty.clone();
        if let Some(inner) = rest.strip_prefix('[') {
            let (index, behind) = inner.split_once(']').ok_or(PathError::Unclosed)?;
            let CKind::Array { of, count, .. } = &here.kind else {
                return Err(PathError::NotAnArray { index: index.to_owned(), ty: here.name.clone() });
            };
            let number = index.trim().parse::<u32>();
            let number = number.map_err(|_| PathError::NotANumber { index: index.to_owned() })?;
            if number >= *count {
                return Err(PathError::NoElement { index: number, count: *count, ty: here.name.clone() });
            }
            place = FieldLocation { ty: of.clone(), at: place.at + number * of.size, bit: 0, bits: 0 };
            rest = behind;
            continue;
        }
        let name = rest.strip_prefix('.').ok_or_else(|| PathError::Malformed { rest: rest.to_owned() })?;
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
pub fn find_member(ty: &CType, name: &str) -> Result<FieldLocation, PathError> {
    let members = members_of(ty, name)?;
    member(members, name, 0).ok_or_else(|| no_member(ty, members, name))
}

fn members_of<'a>(ty: &'a CType, name: &str) -> Result<&'a [CMember], PathError> {
    match &ty.kind {
        CKind::Members(members) | CKind::Section(members) => Ok(members),
        _ => Err(PathError::NotAStructure { name: name.to_owned(), ty: ty.name.clone() }),
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

fn no_member(ty: &CType, members: &[CMember], name: &str) -> PathError {
    let known = names(members);
    let nearest = nearest(name, known.iter().map(String::as_str)).map(str::to_owned);
    PathError::NoMember { ty: ty.name.clone(), name: name.to_owned(), known, nearest }
}
