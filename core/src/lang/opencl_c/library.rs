//! What stands behind every filter: the prelude as a module, and what C's 64-bit accesses need besides.

use std::collections::HashMap;
use std::sync::OnceLock;

use naga::{Arena, Expression, Literal, Module, Span, UniqueArena};

use crate::lang::prelude::{self, Intrinsic};
use crate::program::CAPABILITIES;

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

/// The prelude as naga has it, with or without the accesses of 64 bits. Nothing in it has a place:
/// that would be taken for one in the filter's text.
pub(super) fn module(wide: bool) -> Module {
    static PLAIN: OnceLock<Module> = OnceLock::new();
    static WITH_WIDE: OnceLock<Module> = OnceLock::new();
    if wide {
        WITH_WIDE.get_or_init(|| parsed(&format!("{}{WIDE}", prelude::TEXT))).clone()
    } else {
        PLAIN.get_or_init(|| parsed(prelude::TEXT)).clone()
    }
}

fn parsed(text: &str) -> Module {
    let options = naga::front::wgsl::Options { parse_doc_comments: false, capabilities: CAPABILITIES };
    let mut module = naga::front::wgsl::Frontend::new_with_options(options).parse(text).expect("the prelude is right");
    let mut types = UniqueArena::new();
    for (_, ty) in module.types.iter() {
        types.insert(ty.clone(), Span::UNDEFINED);
    }
    module.types = types;
    fn placeless<T: Clone>(arena: &mut Arena<T>) {
        let mut without = Arena::new();
        for (_, item) in arena.iter() {
            without.append(item.clone(), Span::UNDEFINED);
        }
        *arena = without;
    }
    placeless(&mut module.constants);
    placeless(&mut module.global_variables);
    placeless(&mut module.global_expressions);
    placeless(&mut module.functions);
    module
}

/// The value of one of the prelude's constants.
pub(super) fn constant(name: &str) -> Option<u32> {
    all_constants().get(name).copied()
}

/// The names of the prelude's constants.
pub(super) fn constants<'a>() -> impl Iterator<Item = &'a str> {
    all_constants().keys().map(|name| name.as_str())
}

fn all_constants() -> &'static HashMap<String, u32> {
    static CONSTANTS: OnceLock<HashMap<String, u32>> = OnceLock::new();
    CONSTANTS.get_or_init(|| {
        let module = module(false);
        let value = |constant: &naga::Constant| match module.global_expressions[constant.init] {
            Expression::Literal(Literal::U32(value)) => Some((constant.name.clone()?, value)),
            _ => None,
        };
        module.constants.iter().filter_map(|(_, constant)| value(constant)).collect()
    })
}

/// What one of the prelude's functions is.
pub(super) fn function(name: &str) -> Option<Intrinsic> {
    prelude::FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, intrinsic)| *intrinsic)
}

/// Whether a name is the prelude's.
pub(super) fn is_prelude(name: &str) -> bool {
    constant(name).is_some() || function(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preludes_constants_are_known() {
        assert_eq!(constant("XDP_PASS"), Some(2));
        assert_eq!(constant("ETH_P_IPV6"), Some(0x86dd));
        assert_eq!(constant("IPPROTO_MH"), Some(135));
        assert_eq!(constant("pc_offset"), None);
    }
}
