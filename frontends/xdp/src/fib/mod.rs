//! Where packets go by routes: `bpf_fib_lookup` and `bpf_check_mtu`. The kernel asks its own tables; here they are maps that a
//! program has besides its own, which the host fills ([`RoutingTables`](portcullis_core::routes::RoutingTables)): by hand, or from the kernel's.
//!
//! | map | key | value |
//! |---|---|---|
//! | `fib_v4`, `fib_v6` | a prefix | the route that is tried first for addresses whose longest prefix it is |
//! | `fib_others` | a number | a route that is tried behind others |
//! | `neighbours` | an interface, an address | a MAC |
//! | `interfaces` | its number | MAC, MTU, whether packets that come in there are forwarded |

mod tables;

use std::collections::BTreeSet;

pub use tables::Row;

use portcullis_core::map::Declaration;
use portcullis_core::map::declaration::{CommentSyntax, declarations};

/// The functions that stand for them.
pub(super) const LOOKUP: &str = "x_fib_lookup";
/// See `LOOKUP`.
pub(super) const MTU: &str = "x_check_mtu";

/// What the words of a route are called, in `fib_v4`, `fib_v6` and `fib_others` alike.
const ROUTE: &str = "type,table,interface,metric,mtu,tos,encap,source:ip,gateway:ip,next";

/// Routes that are tried for an address, at most.
pub const MOST_TRIES: usize = 256;

/// Which of the maps a filter's are, by their numbers in it; those that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Maps {
    /// Routes of IPv4.
    pub v4: Option<usize>,
    /// Routes of IPv6.
    pub v6: Option<usize>,
    /// Routes that are tried behind those.
    pub others: Option<usize>,
    /// Who is reached by which MAC.
    pub neighbours: Option<usize>,
    /// Interfaces.
    pub interfaces: Option<usize>,
}

impl Maps {
    /// Whether it has none.
    pub fn is_none(&self) -> bool {
        self.all().next().is_none()
    }

    /// Those that there are.
    pub fn all(&self) -> impl Iterator<Item = usize> {
        [self.v4, self.v6, self.others, self.neighbours, self.interfaces].into_iter().flatten()
    }
}

/// Of which families a program may look for routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Families {
    pub v4: bool,
    pub v6: bool,
}

/// The maps that a program needs for the helpers that it calls, and the functions that stand for these. `taken` are names of
/// other maps; the first of the maps will be the one with the number `first`.
pub(super) fn needed(
    called: &BTreeSet<&str>,
    families: Families,
    taken: &[Declaration],
) -> (Vec<Declaration>, String, Maps) {
    let (looks, checks) = (called.contains(LOOKUP), called.contains(MTU));
    let mut text = String::new();
    if checks {
        text += include_str!("mtu.wgsl");
    }
    if looks {
        text += &include_str!("lookup.wgsl").replace("MOST_TRIES", &format!("{MOST_TRIES}u"));
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
    let route = |kind: &str| format!("{kind} value=16 entries=16384 fields=PREFIX,{ROUTE}");
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
        // An object may have a map of this name itself.
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
    fn a_program_gets_the_maps_that_it_needs() {
        let names = |called: &[&str], v4, v6| {
            let (maps, text, numbers) = needed(&called.iter().copied().collect(), Families { v4, v6 }, &[]);
            let names: Vec<String> = maps.into_iter().map(|map| map.name).collect();
            assert_eq!(numbers.all().collect::<Vec<_>>(), (0..names.len()).collect::<Vec<_>>());
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<String>();
            assert!(!["FIB_", "INTERFACES", "NEIGHBOURS", "MOST"].iter().any(|it| code.contains(it)), "{text}");
            names
        };
        assert!(names(&["x_shl64"], true, true).is_empty());
        assert_eq!(names(&[MTU], false, false), ["interfaces"]);
        assert_eq!(names(&[LOOKUP], true, false), ["fib_v4", "fib_others", "neighbours", "interfaces"]);
        assert_eq!(names(&[LOOKUP, MTU], true, true).len(), 5);
    }

    #[test]
    fn an_object_keeps_the_names_of_its_maps() {
        let (own, _, _) = needed(&[MTU].into_iter().collect(), Families::default(), &[]);
        let (maps, text, numbers) = needed(&[MTU].into_iter().collect(), Families::default(), &own);
        assert_eq!((maps[0].name.as_str(), numbers.interfaces), ("interfaces_2", Some(1)));
        assert!(text.contains("interfaces_2_find(at)"), "{text}");
    }
}
