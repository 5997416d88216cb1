//! What stands behind every filter: the prelude as a module, with the functions of the filter's maps, and what C's
//! 64-bit accesses need besides.

use std::collections::HashMap;
use std::sync::OnceLock;

use naga::{Expression, Literal, Module};

use portcullis_core::map::declaration::{self, CommentSyntax};
use portcullis_core::map::{self, Declaration, MapKind};
use portcullis_core::program::prelude::{self, Intrinsic};

/// 64 bits at once: all of them or nothing, as every access.
const WIDE: &str = "
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

/// The prelude as naga has it, with what the filter's maps bring, and with or without the accesses of 64 bits.
pub(super) fn module(maps: &[Declaration], wide: bool) -> Module {
    static PLAIN: OnceLock<Module> = OnceLock::new();
    static WITH_WIDE: OnceLock<Module> = OnceLock::new();
    let wide_text = if wide { WIDE } else { "" };
    let build = || prelude::module(maps, wide_text);
    match (maps, wide) {
        ([], false) => PLAIN.get_or_init(build).clone(),
        ([], true) => WITH_WIDE.get_or_init(build).clone(),
        _ => build(),
    }
}

/// The value of one of the prelude's constants, in a filter with these maps.
pub(super) fn constant(maps: &[Declaration], name: &str) -> Option<u32> {
    all_constants(maps).get(name).copied()
}

/// The names of the prelude's constants, in a filter with these maps.
pub(super) fn constants<'a>(maps: &[Declaration]) -> impl Iterator<Item = &'a str> + use<'a> {
    all_constants(maps).keys().map(|name| name.as_str())
}

/// They are the same whatever the maps are: those that all maps have in common are there if there are any.
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
        let example =
            declaration::declarations(&declaration::example_declaration(MapKind::Counter, 1), CommentSyntax::C);
        of(&example.expect("the example is right"))
    })
}

/// What one of the prelude's functions is, or one of the maps'.
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

/// The name of the function that is about entries of any map.
pub(super) const MAP_IS_NEW: &str = "map_is_new";

/// The names of what maps bring.
pub(super) fn map_functions(maps: &[Declaration]) -> impl Iterator<Item = String> {
    let each = maps.iter().flat_map(|map| map::functions(map).map(|(name, _)| name));
    each.chain((!maps.is_empty()).then(|| MAP_IS_NEW.to_owned()))
}

/// Whether a name is the prelude's, which the functions of the filter's maps are a part of.
pub(super) fn is_prelude(maps: &[Declaration], name: &str) -> bool {
    constant(maps, name).is_some() || function(maps, name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preludes_constants_are_known() {
        assert_eq!(constant(&[], "XDP_PASS"), Some(2));
        assert_eq!(constant(&[], "ETH_P_IPV6"), Some(0x86dd));
        assert_eq!(constant(&[], "IPPROTO_MH"), Some(135));
        assert_eq!(constant(&[], "pc_offset"), None);
        assert_eq!(constant(&[], "MAP_NONE"), None);
    }

    #[test]
    fn each_function_of_a_map_is_known_by_its_name() {
        for kind in MapKind::ALL {
            let maps =
                format!("{}{}", declaration::example_declaration(kind, 1), declaration::example_declaration(kind, 2));
            let maps = declaration::declarations(&maps, CommentSyntax::C).unwrap();
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
