//! Calls of map functions (docs/guide/maps.md), and notes on names that look like them.

use super::Checker;
use crate::files::{FileId, Span};
use crate::library;
use crate::tree::{Expr, ExprKind};
use crate::types::{BOOL, Scalar, Space, Type, UINT};
use portcullis_core::map::{self, Accumulation, Declaration, MapFunction};
use portcullis_core::program::prelude::Intrinsic;

/// Note on names that exist only if the filter declares maps.
pub(super) const NO_MAPS: &str =
    "it exists only if the filter declares maps, in lines such as `//! map flows: hash key=4 value=6 entries=1024`";

/// Map functions with names of their own, besides accumulations.
const MAP_FUNCTIONS: [MapFunction; 7] = [
    MapFunction::Find,
    MapFunction::Insert,
    MapFunction::Remove,
    MapFunction::Read,
    MapFunction::Write,
    MapFunction::Add,
    MapFunction::CompareExchange,
];

/// The map that a name would be a function of, by its suffix.
fn map_of(name: &str) -> Option<&str> {
    let accumulations = Accumulation::ALL.into_iter().map(MapFunction::Accumulate);
    MAP_FUNCTIONS.into_iter().chain(accumulations).find_map(|call| name.strip_suffix(call.name())?.strip_suffix('_'))
}

impl Checker<'_> {
    /// Place of the declaration of the map that a function belongs to.
    pub(super) fn declaring_map(&self, name: &str) -> Option<Span> {
        let Some(Intrinsic::Map { map, .. }) = library::function(self.maps, name) else { return None };
        let place = &self.maps[map as usize].source_range;
        Some(Span { file: FileId::FILTER, start: place.start as u32, end: place.end as u32 })
    }

    /// Lists the functions of a map whose prefix `name` has.
    pub(super) fn describe_map_functions(&self, name: &str) -> Option<String> {
        let map = self.maps.iter().find(|map| Some(&*map.name) == map_of(name))?;
        let calls: Vec<String> = map::functions(map).map(|(name, _)| format!("`{name}`")).collect();
        Some(format!("`{}` is of kind `{}`, with {}", map.name, map.kind, calls.join(", ")))
    }

    /// A note for a name that looks like a map function in a filter without maps.
    pub(super) fn missing_map_note(&self, name: &str) -> Option<String> {
        let looks_so = map_of(name).is_some() || name == library::MAP_IS_NEW;
        (self.maps.is_empty() && looks_so).then(|| NO_MAPS.to_owned())
    }

    /// Checks a call of a map function.
    pub(super) fn map_call(&mut self, name: &str, map: u32, call: MapFunction, given: Vec<Expr>, span: Span) -> Expr {
        let (numbers, result) = match call {
            MapFunction::Find | MapFunction::Insert => (0, UINT),
            MapFunction::Remove => (0, BOOL),
            MapFunction::Read => (2, UINT),
            MapFunction::Write | MapFunction::Accumulate(_) => (3, Type::Void),
            MapFunction::Add => (3, UINT),
            MapFunction::CompareExchange => (4, UINT),
            MapFunction::Count => (2, Type::Void),
            MapFunction::Atomic(change) => (2 + change.parameters().len(), UINT),
        };
        if !self.check_argument_count(name, if numbers == 0 { 1 } else { numbers }, &given, span) {
            return Expr::error(span);
        }
        let mut arguments = Vec::with_capacity(given.len());
        for (i, argument) in given.into_iter().enumerate() {
            arguments.push(match numbers {
                0 => self.key(argument, &self.maps[map as usize]),
                _ => self.convert_for_assignment(argument, &UINT, &format!("argument {} of `{name}`", i + 1)),
            });
        }
        if arguments.iter().any(|argument| argument.ty == Type::Error) {
            return Expr::error(span);
        }
        Expr { kind: ExprKind::Prelude(Intrinsic::Map { map, call }, arguments), ty: result, span }
    }

    /// Checks a key: a number, a vector of its words, or a pointer to them. Lowering checks the
    /// number of words after a pointer, because it knows the pointer's target.
    fn key(&mut self, key: Expr, map: &Declaration) -> Expr {
        let (name, words, span) = (&map.name, map.key, key.span);
        if words == 1 {
            if let Type::Pointer(_) | Type::Array(..) = key.ty {
                let message = format!("a key of `{name}` is a `uint`, but this is a `{}`", self.display_type(&key.ty));
                return self.report_error(span, message, "pass a key of one word by value");
            }
            return self.convert_for_assignment(key, &UINT, &format!("a key of `{name}`"));
        }
        let note = match &key.ty {
            Type::Vector(Scalar::UInt, size) if u32::from(*size) == words => return key,
            Type::Pointer(it) => match (it.space, &it.to) {
                (Some(Space::Global), _) => {
                    let message = format!("a key of `{name}` cannot lie in the packet");
                    let note = format!("load its words: `uint key[{words}] = {{load_le32(pkt, 26), ...}};`");
                    return self.report_error(span, message, &note);
                }
                (_, Type::Struct(_)) => return key,
                (_, to) if *to == UINT => return key,
                _ => "cast it: `(const uint *)`",
            },
            Type::Struct(_) => "pass its address: `&key`",
            _ => "pass a key of several words by its address",
        };
        let message = format!(
            "a key of `{name}` is a pointer to {words} words, `const uint *`, but this is a `{}`",
            self.display_type(&key.ty)
        );
        self.report_error(span, message, note)
    }
}
