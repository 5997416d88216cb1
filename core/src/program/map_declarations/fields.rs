//! The fields of a declaration: `fields=srcaddr:ip,port,bytes:u64`.

use crate::diagnostics::Diagnostic;
use crate::map::declaration::{MAX_NAME_BYTES, MapKind};
use crate::map::fields::{Field, FieldType};
use crate::spelling::nearest;

/// Parses the fields of a map of this kind: `srcaddr:ip,port`.
pub(super) fn parse(list: &str, kind: MapKind) -> Result<Vec<Field>, Diagnostic> {
    let mut fields: Vec<Field> = Vec::new();
    for part in list.split(',') {
        // A type that is determined by the kind may be omitted.
        let default = match (kind, fields.is_empty()) {
            (MapKind::Lpm, true) => FieldType::Prefix,
            (MapKind::Counter, false) => FieldType::U64,
            _ => FieldType::U32,
        };
        let (name, ty) = part.split_once(':').unwrap_or((part, default.name()));
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && name.len() <= MAX_NAME_BYTES;
        if !is_name {
            return Err(Diagnostic::new(format!("`{}` is not a valid field name", name.escape_debug())).note(format!(
                "a field's name is letters, digits and `_`, a letter first, at most {MAX_NAME_BYTES}; fields are separated by commas \
                 without spaces"
            )));
        }
        if fields.iter().any(|field| field.name == name) {
            return Err(Diagnostic::new(format!("there are two fields with the name `{name}`")));
        }
        let Some(known) = FieldType::ALL.into_iter().find(|known| known.name() == ty) else {
            let error = Diagnostic::new(format!("there is no field type `{}`", ty.escape_debug()));
            let error = match nearest(ty, FieldType::ALL.map(FieldType::name)) {
                Some(near) => error.note(format!("did you mean `{near}`?")),
                None => error,
            };
            return Err(error.note(format!("the types are {}", FieldType::ALL.map(FieldType::name).join(", "))));
        };
        fields.push(Field { name: name.to_owned(), ty: known });
    }
    Ok(fields)
}

/// Checks that fields cover the words of a key and then those of a value.
pub(super) fn check(fields: &[Field], kind: MapKind, key: u32, value: u32) -> Result<(), Diagnostic> {
    for (number, field) in fields.iter().enumerate() {
        let (name, ty) = (&field.name, field.ty);
        let (of_kind, only) = match (kind, number) {
            (MapKind::Lpm, 0) => ("the key of an `lpm`", FieldType::Prefix),
            (MapKind::Counter, 1) => ("the sum of a `counter`", FieldType::U64),
            _ if ty == FieldType::Prefix => {
                let message = format!("the field `{name}` cannot have the type `{ty}`");
                return Err(Diagnostic::new(message).note("only the whole key of an `lpm` is a prefix"));
            }
            _ => continue,
        };
        if ty != only {
            let message = format!("the field `{name}` cannot have the type `{ty}`");
            let note = format!("{of_kind} has the type `{only}`, which may be omitted: `{name}`");
            return Err(Diagnostic::new(message).note(note));
        }
    }
    let words = |field: &Field| field.ty.words().unwrap_or(key);
    let mut ends = fields.iter().scan(0, |end, field| {
        *end += words(field);
        Some(*end)
    });
    let all: u32 = fields.iter().map(words).sum();
    if all == key + value && ends.any(|end| end == key) {
        return Ok(());
    }
    let types = FieldType::ALL.into_iter().filter_map(|ty| Some(format!("`{ty}` {}", ty.words()?)));
    let types = types.collect::<Vec<_>>().join(", ");
    let message = format!("`fields=` does not cover the words of a key ({key}) and of a value ({value})");
    Err(Diagnostic::new(message).note(format!("it covers {all}; words per type: {types}")))
}
