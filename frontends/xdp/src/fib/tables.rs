//! Layout of routing tables in the maps of a filter.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

use portcullis_core::routes::{Route, RoutingTables};

use super::{MAX_ROUTE_TRIES, Maps};

/// The tables that lookups use without policy rules: `RT_TABLE_DEFAULT`, `_MAIN` and `_LOCAL`
/// (linux/rtnetlink.h).
const DEFAULT_TABLE: u32 = 253;
const MAIN_TABLE: u32 = 254;
const LOCAL_TABLE: u32 = 255;

/// Bits of a prefix, left-aligned, and its length.
type Prefix = (u128, u8);

/// Words of the key and of the value of a map entry.
pub type MapRow = (Vec<u32>, Vec<u32>);

impl Maps {
    /// The rows of each routing map of a filter, by map index; keys are unique.
    pub fn rows(&self, tables: &RoutingTables) -> Vec<(usize, Vec<MapRow>)> {
        let mut others = FallbackRoutes::default();
        let mut all = Vec::new();
        for (number, is_v4) in [(self.v4, true), (self.v6, false)] {
            let Some(number) = number else { continue };
            all.push((number, first_routes(tables, is_v4, &mut others)));
        }
        if let Some(number) = self.others {
            all.push((number, others.rows));
        }
        if let Some(number) = self.neighbours {
            let rows = tables.neighbours.iter().map(|it| {
                let key = [&[it.interface][..], &address_words(Some(it.address))].concat();
                (key, mac_words(it.mac).to_vec())
            });
            all.push((number, rows.collect::<BTreeMap<_, _>>().into_iter().collect()));
        }
        if let Some(number) = self.interfaces {
            let rows = tables.interfaces.iter().map(|it| {
                let [first, last] = mac_words(it.mac);
                let forwards = [u32::from(it.forwarding_v4), u32::from(it.forwarding_v6)];
                (vec![it.number], [&[first, last, it.mtu, it.mtu_v6, it.header][..], &forwards].concat())
            });
            all.push((number, rows.collect::<BTreeMap<_, _>>().into_iter().collect()));
        }
        all
    }
}

/// The first route for each prefix; later ones are added to `others`.
fn first_routes(tables: &RoutingTables, is_v4: bool, others: &mut FallbackRoutes) -> Vec<MapRow> {
    let routes: Vec<&Route> =
        tables.routes.iter().filter(|route| route.to.is_ipv4() == is_v4 && is_routable(route)).collect();
    // Sorted, so that each prefix follows those that contain it.
    let mut prefixes: BTreeMap<Prefix, Vec<usize>> = BTreeMap::new();
    for (number, route) in routes.iter().enumerate() {
        prefixes.entry((address_bits(route.to), route.length)).or_default().push(number);
    }
    let mut rows: Vec<MapRow> = Vec::new();
    let mut around: Vec<(Prefix, &[usize])> = Vec::new();
    for (&(bits, length), own) in &prefixes {
        while around.pop_if(|((outer, outer_length), _)| !has_prefix(bits, *outer, *outer_length)).is_some() {}
        around.push(((bits, length), own));
        let mut tried: Vec<usize> = around.iter().flat_map(|(_, routes)| routes.iter().copied()).collect();
        tried.sort_by_key(|&number| (rank(routes[number]), number));
        tried.truncate(MAX_ROUTE_TRIES);
        let mut next = 0;
        for &number in tried[1..].iter().rev() {
            next = others.number(is_v4, number, route_words(routes[number], next), next);
        }
        let value = route_words(routes[tried[0]], next).to_vec();
        let address = if is_v4 { vec![(bits >> 96) as u32] } else { to_words(bits).to_vec() };
        rows.push(([&address[..], &[u32::from(length)]].concat(), value));
    }
    rows
}

/// Routes that are tried after others. Equal tails of the lists are shared.
#[derive(Default)]
struct FallbackRoutes {
    rows: Vec<MapRow>,
    known: HashMap<(bool, usize, u32), u32>,
}

impl FallbackRoutes {
    fn number(&mut self, is_v4: bool, route: usize, words: [u32; 16], next: u32) -> u32 {
        *self.known.entry((is_v4, route, next)).or_insert_with(|| {
            let number = self.rows.len() as u32 + 1;
            self.rows.push((vec![number], words.to_vec()));
            number
        })
    }
}

/// Order in which routes are tried for an address that matches all their prefixes: tables in the
/// order of the default rules, then the longest prefix, then the kernel's order. Without other
/// rules the kernel merges the local and the main table of IPv4.
fn rank(route: &Route) -> impl Ord + use<> {
    use std::cmp::Reverse;
    let table = match (route.to.is_ipv4(), route.table) {
        (true, LOCAL_TABLE | MAIN_TABLE) | (false, LOCAL_TABLE) => 0,
        (true, DEFAULT_TABLE) | (false, MAIN_TABLE) => 1,
        _ => 2,
    };
    (table, Reverse(route.length), Reverse(route.table), Reverse(route.tos), route.metric)
}

/// IPv6 never forwards link-local, loopback and multicast addresses, so their routes are not looked
/// up.
fn is_routable(route: &Route) -> bool {
    let IpAddr::V6(to) = route.to else { return true };
    let is_link = to.segments()[0] & 0xffc0 == 0xfe80 && route.length >= 10;
    let is_loopback = to == Ipv6Addr::LOCALHOST && route.length == 128;
    !(is_link || is_loopback || (to.is_multicast() && route.length >= 8))
}

/// Bits of an address, left-aligned.
fn address_bits(of: IpAddr) -> u128 {
    match of {
        IpAddr::V4(it) => u128::from(it.to_bits()) << 96,
        IpAddr::V6(it) => it.to_bits(),
    }
}

fn has_prefix(bits: u128, prefix: u128, length: u8) -> bool {
    (bits ^ prefix).checked_shr(128 - u32::from(length)).unwrap_or(0) == 0
}

fn to_words(bits: u128) -> [u32; 4] {
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

/// An address as four words: IPv4 as mapped (RFC 4291, section 2.5.5.2); zeros if absent.
fn address_words(of: Option<IpAddr>) -> [u32; 4] {
    to_words(match of {
        None => 0,
        Some(IpAddr::V4(it)) => it.to_ipv6_mapped().to_bits(),
        Some(IpAddr::V6(it)) => it.to_bits(),
    })
}

fn mac_words([a, b, c, d, e, f]: [u8; 6]) -> [u32; 2] {
    [u32::from(u16::from_be_bytes([a, b])), u32::from_be_bytes([c, d, e, f])]
}

fn route_words(route: &Route, next: u32) -> [u32; 16] {
    let Route { kind, table, interface, metric, mtu, tos, encap, .. } = *route;
    let [[a, b, c, d], [e, f, g, h]] = [address_words(route.source), address_words(route.gateway)];
    [kind, table, interface, metric, mtu, tos, u32::from(encap), a, b, c, d, e, f, g, h, next]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(prefix: &str, table: u32, interface: u32, metric: u32) -> Route {
        let (to, length) = prefix.split_once('/').unwrap();
        let (to, length) = (to.parse().unwrap(), length.parse().unwrap());
        let (source, gateway) = (None, None);
        Route { to, length, kind: 1, table, interface, metric, mtu: 0, tos: 0, encap: false, source, gateway }
    }

    /// The interfaces of the routes tried for a prefix, in order.
    fn tried(tables: &RoutingTables, prefix: &[u32]) -> Vec<u32> {
        let maps = Maps { v4: Some(0), v6: Some(1), others: Some(2), ..Maps::default() };
        let rows = maps.rows(tables);
        let find = |map: usize, key: &[u32]| rows[map].1.iter().find(|row| row.0 == key).map(|row| row.1.clone());
        let mut value = find(if prefix.len() == 2 { 0 } else { 1 }, prefix);
        let mut seen = Vec::new();
        while let Some(it) = value {
            seen.push(it[2]);
            value = find(2, &it[15..]);
        }
        seen
    }

    #[test]
    fn longer_prefixes_are_tried_before_shorter_ones() {
        let tables = RoutingTables {
            routes: vec![
                route("0.0.0.0/0", MAIN_TABLE, 1, 0),
                route("10.0.0.0/8", MAIN_TABLE, 2, 20),
                route("10.0.0.0/8", MAIN_TABLE, 3, 10),
                route("10.1.0.0/16", 7, 4, 0),
                route("10.1.0.1/32", LOCAL_TABLE, 5, 0),
                route("11.0.0.0/8", DEFAULT_TABLE, 6, 0),
            ],
            ..RoutingTables::default()
        };
        assert_eq!(tried(&tables, &[0, 0]), [1]);
        assert_eq!(tried(&tables, &[0x0a00_0000, 8]), [3, 2, 1]);
        assert_eq!(tried(&tables, &[0x0a01_0000, 16]), [3, 2, 1, 4]);
        assert_eq!(tried(&tables, &[0x0a01_0001, 32]), [5, 3, 2, 1, 4]);
        assert_eq!(tried(&tables, &[0x0b00_0000, 8]), [1, 6]);
    }

    #[test]
    fn the_local_table_of_ipv6_is_tried_before_the_main_one() {
        let tables = RoutingTables {
            routes: vec![
                route("2001:db8::/32", LOCAL_TABLE, 1, 0),
                route("2001:db8:1::/48", MAIN_TABLE, 2, 0),
                route("fe80::/64", MAIN_TABLE, 3, 0),
                route("ff00::/8", LOCAL_TABLE, 3, 0),
                route("::1/128", LOCAL_TABLE, 3, 0),
            ],
            ..RoutingTables::default()
        };
        assert_eq!(tried(&tables, &[0x2001_0db8, 0x0001_0000, 0, 0, 48]), [1, 2]);
        let maps = Maps { v6: Some(0), ..Maps::default() };
        assert_eq!(maps.rows(&tables)[0].1.len(), 2);
    }

    #[test]
    fn equal_tails_of_fallback_lists_are_shared() {
        let mut routes = vec![route("0.0.0.0/0", MAIN_TABLE, 1, 0)];
        routes.extend((0..200).map(|n| route(&format!("10.0.{n}.0/24"), MAIN_TABLE, 2, 0)));
        let tables = RoutingTables { routes, ..RoutingTables::default() };
        let maps = Maps { v4: Some(0), others: Some(1), ..Maps::default() };
        let rows = maps.rows(&tables);
        assert_eq!((rows[0].1.len(), rows[1].1.len()), (201, 1));
    }
}
