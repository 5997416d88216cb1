//! Routing: `bpf_fib_lookup` and `bpf_check_mtu`. Instead of the kernel's tables they use maps that
//! the front end adds to the program. The host fills these maps from
//! [`portcullis_core::routes::RoutingTables`], which are set by hand or read from the kernel.
//!
//! | map | key | value |
//! |---|---|---|
//! | `fib_v4`, `fib_v6` | prefix | the first route to try for addresses with this longest prefix |
//! | `fib_others` | number | a route to try after another |
//! | `neighbours` | interface, address | MAC |
//! | `interfaces` | number | MAC, MTU, whether packets received there are forwarded |

mod tables;

use std::collections::BTreeSet;

pub use tables::MapRow;

use portcullis_core::map::Declaration;
use portcullis_core::program::map_declarations::{CommentSyntax, declarations};

/// WGSL function for `bpf_fib_lookup`.
pub(super) const LOOKUP_FUNCTION: &str = "x_fib_lookup";
/// WGSL function for `bpf_check_mtu`.
pub(super) const MTU_FUNCTION: &str = "x_check_mtu";

/// Names of the words of a route, in `fib_v4`, `fib_v6` and `fib_others` alike.
const ROUTE_FIELDS: &str = "type,table,interface,metric,mtu,tos,encap,source:ip,gateway:ip,next";

/// Upper bound on routes that are tried for an address.
pub const MAX_ROUTE_TRIES: usize = 256;

/// Indices in the filter of the routing maps that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Maps {
    /// IPv4 routes.
    pub v4: Option<usize>,
    /// IPv6 routes.
    pub v6: Option<usize>,
    /// Routes that are tried after those.
    pub others: Option<usize>,
    /// MACs of neighbours.
    pub neighbours: Option<usize>,
    /// Interfaces.
    pub interfaces: Option<usize>,
}

impl Maps {
    /// Whether the filter has no routing map.
    pub fn is_none(&self) -> bool {
        self.all().next().is_none()
    }

    /// The maps that the filter has.
    pub fn all(&self) -> impl Iterator<Item = usize> {
        [self.v4, self.v6, self.others, self.neighbours, self.interfaces].into_iter().flatten()
    }
}

/// Address families for which a program may look up routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct AddressFamilies {
    pub v4: bool,
    pub v6: bool,
}

/// Declares the maps that the called helpers need, and gives the WGSL functions for these. `taken`
/// are the filter's maps so far; the new ones follow them.
pub(super) fn declare_maps(
    called: &BTreeSet<&str>,
    families: AddressFamilies,
    taken: &[Declaration],
) -> (Vec<Declaration>, String, Maps) {
    let (looks, checks) = (called.contains(LOOKUP_FUNCTION), called.contains(MTU_FUNCTION));
    let mut text = String::new();
    if checks {
        text += include_str!("mtu.wgsl");
    }
    if looks {
        text += &include_str!("lookup.wgsl").replace("MAX_ROUTE_TRIES", &format!("{MAX_ROUTE_TRIES}u"));
        for (family, key, is_there) in [("4", "u32", families.v4), ("6", "vec4<u32>", families.v6)] {
            let [find, read] = match is_there {
                true => [format!("FIB_V{family}_find(address)"), format!("FIB_V{family}_read(route, word)")],
                false => ["MAP_NONE".into(), "0u".into()],
            };
            text += &format!("\nfn x_fib_find{family}(address: {key}) -> u32 {{ return {find}; }}\n");
            text += &format!("\nfn x_fib_read{family}(route: u32, word: u32) -> u32 {{ return {read}; }}\n");
        }
    }
    let (mut declared, mut maps) = (Vec::new(), Maps::default());
    let Maps { v4, v6, others, neighbours, interfaces } = &mut maps;
    let route = |kind: &str| format!("{kind} value=16 entries=16384 fields=PREFIX,{ROUTE_FIELDS}");
    let all = [
        (looks && families.v4, "fib_v4", v4, route("lpm key=1").replace("PREFIX", "prefix")),
        (looks && families.v6, "fib_v6", v6, route("lpm key=4").replace("PREFIX", "prefix")),
        (looks, "fib_others", others, route("hash key=1").replace("PREFIX", "number")),
        (
            looks,
            "neighbours",
            neighbours,
            "hash key=5 value=2 entries=16384 fields=interface,address:ip,mac:mac".into(),
        ),
        (
            looks || checks,
            "interfaces",
            interfaces,
            "hash key=1 value=7 entries=4096 fields=interface,mac:mac,mtu,mtu_v6,header,forwarding_v4,forwarding_v6"
                .into(),
        ),
    ];
    for (is_needed, name, number, rest) in all {
        if !is_needed {
            continue;
        }
        // The object may have a map of this name.
        let is_taken = |name: &str| taken.iter().any(|map| map.name == name);
        let own = (1..).map(|n| if n == 1 { name.to_owned() } else { format!("{name}_{n}") }).find(|it| !is_taken(it));
        let own = own.unwrap_or_default();
        text = text.replace(&format!("{}_", name.to_uppercase()), &format!("{own}_"));
        let line = format!("//! map {own}: {rest}");
        let map = declarations(&line, CommentSyntax::Wgsl).ok().and_then(|mut maps| maps.pop());
        let map = map.expect("it is declared as maps are");
        *number = Some(taken.len() + declared.len());
        declared.push(Declaration { source_range: 0..0, ..map });
    }
    (declared, text, maps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_maps_that_helpers_need_are_declared() {
        let names = |called: &[&str], v4, v6| {
            let (maps, text, numbers) =
                declare_maps(&called.iter().copied().collect(), AddressFamilies { v4, v6 }, &[]);
            let names: Vec<String> = maps.into_iter().map(|map| map.name).collect();
            assert_eq!(numbers.all().collect::<Vec<_>>(), (0..names.len()).collect::<Vec<_>>());
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<String>();
            assert!(!["FIB_", "INTERFACES", "NEIGHBOURS", "MOST"].iter().any(|it| code.contains(it)), "{text}");
            names
        };
        assert!(names(&["x_shl64"], true, true).is_empty());
        assert_eq!(names(&[MTU_FUNCTION], false, false), ["interfaces"]);
        assert_eq!(names(&[LOOKUP_FUNCTION], true, false), ["fib_v4", "fib_others", "neighbours", "interfaces"]);
        assert_eq!(names(&[LOOKUP_FUNCTION, MTU_FUNCTION], true, true).len(), 5);
    }

    #[test]
    fn added_maps_avoid_the_names_of_the_object_s_maps() {
        let (own, _, _) = declare_maps(&[MTU_FUNCTION].into_iter().collect(), AddressFamilies::default(), &[]);
        let (maps, text, numbers) =
            declare_maps(&[MTU_FUNCTION].into_iter().collect(), AddressFamilies::default(), &own);
        assert_eq!((maps[0].name.as_str(), numbers.interfaces), ("interfaces_2", Some(1)));
        assert!(text.contains("interfaces_2_find(at)"), "{text}");
    }
}
