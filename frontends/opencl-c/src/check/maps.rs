//! Calls of the functions of the filter's maps (docs/maps.md), and what is said of names that look like such.

use super::Checker;
use super::expressions::wrong;
use crate::lang::opencl_c::ast::Space;
use crate::lang::opencl_c::files::{FileId, Span};
use crate::lang::opencl_c::library;
use crate::lang::opencl_c::tree::{Expr, ExprKind};
use crate::lang::opencl_c::types::{BOOL, Scalar, Type, UINT};
use crate::map::{self, Declaration, MapFunction};
use crate::program::prelude::Intrinsic;

/// Of what is there with maps only.
pub(super) const NO_MAPS: &str =
    "it is there when the filter declares maps, in lines such as `//! map flows: hash key=4 value=6 entries=1024`";

/// Every end that the names of maps' functions have.
const CALLS: [MapFunction; 7] = [
    MapFunction::Find,
    MapFunction::Insert,
    MapFunction::Remove,
    MapFunction::Read,
    MapFunction::Write,
    MapFunction::Add,
    MapFunction::CompareExchange,
];

/// The name of the map whose function this would be.
fn map_of(name: &str) -> Option<&str> {
    CALLS.iter().find_map(|call| name.strip_suffix(call.name())?.strip_suffix('_'))
}

impl Checker<'_> {
    /// Where the map is declared that a name comes with, if it does.
    pub(super) fn declaration_that_brings(&self, name: &str) -> Option<Span> {
        let Some(Intrinsic::Map { map, .. }) = library::function(self.maps, name) else { return None };
        let place = &self.maps[map as usize].source_range;
        Some(Span { file: FileId::FILTER, start: place.start as u32, end: place.end as u32 })
    }

    /// What a map has, where a name would be a function of it that there is not.
    pub(super) fn calls_of_its_map(&self, name: &str) -> Option<String> {
        let map = self.maps.iter().find(|map| Some(&*map.name) == map_of(name))?;
        let calls: Vec<String> = map::functions(map).map(|(name, _)| format!("`{name}`")).collect();
        Some(format!("`{}` is of the kind `{}`, with {}", map.name, map.kind, calls.join(", ")))
    }

    /// Where no maps are declared, that a name looks like what comes with them.
    pub(super) fn wants_maps(&self, name: &str) -> Option<String> {
        let looks_so = map_of(name).is_some() || name == library::MAP_IS_NEW;
        (self.maps.is_empty() && looks_so).then(|| NO_MAPS.to_owned())
    }

    /// A call of one of a map's functions.
    pub(super) fn map_call(&mut self, name: &str, map: u32, call: MapFunction, given: Vec<Expr>, span: Span) -> Expr {
        let (numbers, result) = match call {
            MapFunction::Find | MapFunction::Insert => (0, UINT),
            MapFunction::Remove => (0, BOOL),
            MapFunction::Read => (2, UINT),
            MapFunction::Write => (3, Type::Void),
            MapFunction::Add => (3, UINT),
            MapFunction::CompareExchange => (4, UINT),
            MapFunction::Count => (2, Type::Void),
            MapFunction::Atomic(change) => (2 + change.parameters().len(), UINT),
        };
        if !self.count(name, if numbers == 0 { 1 } else { numbers }, &given, span) {
            return wrong(span);
        }
        let mut arguments = Vec::with_capacity(given.len());
        for (i, argument) in given.into_iter().enumerate() {
            arguments.push(match numbers {
                0 => self.key(argument, &self.maps[map as usize]),
                _ => self.assigned(argument, &UINT, &format!("argument {} of `{name}`", i + 1)),
            });
        }
        if arguments.iter().any(|argument| argument.ty == Type::Wrong) {
            return wrong(span);
        }
        Expr { kind: ExprKind::Prelude(Intrinsic::Map { map, call }, arguments), ty: result, span }
    }

    /// A key: a number, or a vector of its words, or a pointer to them. Whether there are as many where it points to
    /// is seen when that is known, in lowering.
    fn key(&mut self, key: Expr, map: &Declaration) -> Expr {
        let (name, words, span) = (&map.name, map.key, key.span);
        if words == 1 {
            if let Type::Pointer(_) | Type::Array(..) = key.ty {
                let message = format!("a key of `{name}` is a `uint`, and this is a `{}`", self.shown(&key.ty));
                return self.wrong(span, message, "a key of one word is given as it is, not its address");
            }
            return self.assigned(key, &UINT, &format!("a key of `{name}`"));
        }
        let note = match &key.ty {
            Type::Vector(Scalar::UInt, size) if u32::from(*size) == words => return key,
            Type::Pointer(it) => match (it.space, &it.to) {
                (Some(Space::Global), _) => {
                    let message = format!("a key of `{name}` cannot lie in the packet");
                    let note = format!("load its words: `uint key[{words}] = {{load_le32(pkt, 26), ...}};`");
                    return self.wrong(span, message, &note);
                }
                (_, Type::Struct(_)) => return key,
                (_, to) if *to == UINT => return key,
                _ => "cast it: `(const uint *)`",
            },
            Type::Struct(_) => "give its address: `&key`",
            _ => "a key of several words is given by its address",
        };
        let message = format!(
            "a key of `{name}` is a pointer to {words} words, `const uint *`, and this is a `{}`",
            self.shown(&key.ty)
        );
        self.wrong(span, message, note)
    }
}
