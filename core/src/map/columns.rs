//! The columns of a map's rows.

use super::declaration::{Declaration, MapKind};
use super::fields::{Field, FieldType};

/// The columns of a map's rows: its fields or, if it declares none, numbered words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// Columns of the key.
    pub key: Vec<Field>,
    /// Columns of the value.
    pub value: Vec<Field>,
}

impl Columns {
    /// The columns of a map.
    pub fn of(map: &Declaration) -> Columns {
        if !map.fields.is_empty() {
            let mut words = 0;
            let is_key = |field: &&Field| {
                let is_key = words < map.key;
                words += field.ty.words().unwrap_or(map.key);
                is_key
            };
            let (key, value) = map.fields.split_at(map.fields.iter().take_while(is_key).count());
            return Columns { key: key.into(), value: value.into() };
        }
        let one = |name: &str, ty| vec![Field { name: name.into(), ty }];
        let numbered =
            |name: &str, count| (0..count).map(|i| Field { name: format!("{name}{i}"), ty: FieldType::U32 }).collect();
        Columns {
            key: match map.kind {
                MapKind::Array | MapKind::Counter => one("index", FieldType::U32),
                MapKind::Hash | MapKind::LruHash => numbered("key", map.key),
                MapKind::Lpm => one("prefix", FieldType::Prefix),
            },
            value: match map.kind {
                MapKind::Counter => one("sum", FieldType::U64),
                _ => numbered("value", map.value),
            },
        }
    }

    /// All columns, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Field> {
        self.key.iter().chain(&self.value)
    }

    /// The header line of CSV: the names of the columns.
    pub fn header(&self) -> String {
        self.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(",")
    }
}
