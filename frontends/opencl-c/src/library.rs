//! The prelude module that every filter is linked with, including the functions of the filter's
//! maps and helpers for C's 64-bit accesses.

use std::collections::HashMap;
use std::sync::OnceLock;

use naga::{Expression, Literal, Module};

use portcullis_core::map::{self, Declaration, MapKind};
use portcullis_core::program::map_declarations::{self, CommentSyntax};
use portcullis_core::program::prelude::{self, Intrinsic};

/// 64-bit accesses of the packet: as for narrower ones, all bytes are accessed or none.
const WIDE_ACCESSES: &str = "
fn load_le64(pkt: u32, off: u32) -> u64 {
    let length = pkt_len(pkt);
    if length < 8u || off > length - 8u { return 0lu; }
    return (u64(load_le32(pkt, off + 4u)) << 32u) | u64(load_le32(pkt, off));
}

fn store_le64(pkt: u32, off: u32, value: u64) {
    let length = pkt_len(pkt);
    if length < 8u || off > length - 8u { return; }
    store_le32(pkt, off, u32(value));
    store_le32(pkt, off + 4u, u32(value >> 32u));
}
";

/// Returns the prelude module with the functions of `maps`, and with the 64-bit accesses if `wide`.
pub(super) fn module(maps: &[Declaration], wide: bool) -> Module {
    static PLAIN: OnceLock<Module> = OnceLock::new();
    static WITH_WIDE: OnceLock<Module> = OnceLock::new();
    let wide_text = if wide { WIDE_ACCESSES } else { "" };
    let build = || prelude::module(maps, wide_text);
    match (maps, wide) {
        ([], false) => PLAIN.get_or_init(build).clone(),
        ([], true) => WITH_WIDE.get_or_init(build).clone(),
        _ => build(),
    }
}

/// Value of a prelude constant in a filter with these maps.
pub(super) fn constant(maps: &[Declaration], name: &str) -> Option<u32> {
    all_constants(maps).get(name).copied()
}

/// Names of the prelude's constants in a filter with these maps.
pub(super) fn constants<'a>(maps: &[Declaration]) -> impl Iterator<Item = &'a str> + use<'a> {
    all_constants(maps).keys().map(|name| name.as_str())
}

/// All constants by name. Those of maps are common to all maps, so two cached sets suffice.
fn all_constants(maps: &[Declaration]) -> &'static HashMap<String, u32> {
    static PLAIN: OnceLock<HashMap<String, u32>> = OnceLock::new();
    static WITH_MAPS: OnceLock<HashMap<String, u32>> = OnceLock::new();
    let of = |maps: &[Declaration]| {
        let module = module(maps, false);
        let value = |constant: &naga::Constant| match module.global_expressions[constant.init] {
            Expression::Literal(Literal::U32(value)) => Some((constant.name.clone()?, value)),
            _ => None,
        };
        module.constants.iter().filter_map(|(_, constant)| value(constant)).collect()
    };
    if maps.is_empty() {
        return PLAIN.get_or_init(|| of(&[]));
    }
    WITH_MAPS.get_or_init(|| {
        let example = map_declarations::declarations(
            &map_declarations::example_declaration(MapKind::Counter, 1),
            CommentSyntax::C,
        );
        of(&example.expect("the example map parses"))
    })
}

/// Returns the intrinsic after a function name of the prelude or of a map.
pub(super) fn function(maps: &[Declaration], name: &str) -> Option<Intrinsic> {
    let plain = prelude::FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, intrinsic)| *intrinsic);
    plain.or_else(|| match name {
        MAP_IS_NEW => (!maps.is_empty()).then_some(Intrinsic::MapIsNew),
        _ => (0..).zip(maps).find_map(|(number, map)| {
            let end = name.strip_prefix(&map.name)?.strip_prefix('_')?;
            let (_, call) = map::functions(map).find(|(_, call)| call.name() == end)?;
            Some(Intrinsic::Map { map: number, call })
        }),
    })
}

/// Function on entries of any map.
pub(super) const MAP_IS_NEW: &str = "map_is_new";

/// Names of the functions that the maps bring.
pub(super) fn map_functions(maps: &[Declaration]) -> impl Iterator<Item = String> {
    let each = maps.iter().flat_map(|map| map::functions(map).map(|(name, _)| name));
    each.chain((!maps.is_empty()).then(|| MAP_IS_NEW.to_owned()))
}

/// Whether a name belongs to the prelude, functions of the filter's maps included.
pub(super) fn is_prelude(maps: &[Declaration], name: &str) -> bool {
    constant(maps, name).is_some() || function(maps, name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prelude_constants_have_values() {
        assert_eq!(constant(&[], "XDP_PASS"), Some(2));
        assert_eq!(constant(&[], "ETH_P_IPV6"), Some(0x86dd));
        assert_eq!(constant(&[], "IPPROTO_MH"), Some(135));
        assert_eq!(constant(&[], "pc_offset"), None);
        assert_eq!(constant(&[], "MAP_NONE"), None);
    }

    #[test]
    fn map_functions_are_found_by_name() {
        for kind in MapKind::ALL {
            let maps = format!(
                "{}{}",
                map_declarations::example_declaration(kind, 1),
                map_declarations::example_declaration(kind, 2)
            );
            let maps = map_declarations::declarations(&maps, CommentSyntax::C).unwrap();
            assert_eq!((constant(&maps, "MAP_NONE"), constant(&maps, "MAP_FULL")), (Some(!0), Some(!1)));
            assert_eq!(constant(&maps, "XDP_PASS"), Some(2));
            let module = module(&maps, false);
            for (number, map) in (0..).zip(&maps) {
                for (name, call) in map::functions(map) {
                    assert_eq!(function(&maps, &name), Some(Intrinsic::Map { map: number, call }));
                    assert_eq!(function(&[], &name), None);
                    assert!(
                        module.functions.iter().any(|(_, function)| function.name.as_ref() == Some(&name)),
                        "{name}"
                    );
                }
            }
            assert_eq!(function(&maps, MAP_IS_NEW), Some(Intrinsic::MapIsNew));
            assert!(module.functions.iter().any(|(_, function)| function.name.as_deref() == Some(MAP_IS_NEW)));
            assert_eq!(function(&maps, "example1_word"), None);
        }
    }
}
