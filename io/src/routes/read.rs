//! Parsing interfaces, addresses, routes and neighbours: linux/rtnetlink.h, if_link.h, if_addr.h,
//! neighbour.h.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portcullis_core::routes::{Interface, Neighbour, Route, RoutingTables};

use super::RoutesError;
use crate::netlink::{LINK_HEADER, Message, Netlink, attributes};

/// Sizes of `struct rtmsg`, `struct ifaddrmsg`, `struct ndmsg`, `struct rtnexthop`.
const ROUTE_HEADER: usize = 12;
const ADDRESS_HEADER: usize = 8;
const NEIGHBOUR_HEADER: usize = 12;
const NEXT_HOP_HEADER: usize = 8;

// Attribute types of these messages and of interfaces.
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_CONF: u16 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const RTA_VIA: u16 = 18;
const RTA_ENCAP_TYPE: u16 = 21;
const RTAX_LOCK: u16 = 1;
const RTAX_MTU: u16 = 2;

/// `NUD_VALID`: reachable, stale, delay, probe, noarp, permanent.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

/// `RTNH_F_DEAD`, `RTM_F_CLONED`.
const RTNH_DEAD: u32 = 1;
const CLONED: u32 = 0x200;

/// `IFA_F_SECONDARY` (temporary addresses in IPv6); `IFA_F_DADFAILED | IFA_F_DEPRECATED |
/// IFA_F_TENTATIVE`.
const SECONDARY: u32 = 0x01;
const UNUSABLE: u32 = 0x08 | 0x20 | 0x40;

/// `RT_SCOPE_LINK`; wider scopes have lower numbers.
const SCOPE_LINK: u8 = 253;

/// An address of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LocalAddress {
    address: IpAddr,
    length: u8,
    interface: u32,
    scope: u8,
    flags: u32,
}

/// Reads the kernel's tables.
#[derive(Debug)]
pub(super) struct Reader(Netlink);

impl Reader {
    pub fn open() -> Result<Reader, RoutesError> {
        let failed = |error| RoutesError { what: "opening an rtnetlink socket", error };
        Netlink::open(0).map(Reader).map_err(failed)
    }

    /// Reads everything, in an order that is stable while nothing changes.
    pub fn read(&mut self) -> Result<RoutingTables, RoutesError> {
        let mut tables = RoutingTables::default();
        let mut links = Message::link(0, 0, 0);
        links.number(libc::IFLA_EXT_MASK, libc::RTEXT_FILTER_SKIP_STATS as u32);
        self.list("interfaces", libc::RTM_GETLINK, &links, |it| tables.interfaces.extend(parse_interface(it)))?;
        let (mut own, mut found) = (Vec::new(), Vec::new());
        for family in [libc::AF_INET, libc::AF_INET6] {
            // All these structures start with the address family; zeros elsewhere select
            // everything.
            let of = |length: usize| {
                let mut words = vec![0; length / 4];
                words[0] = u32::from_ne_bytes([family as u8, 0, 0, 0]);
                Message::new(&words)
            };
            // A kernel without IPv6 answers EOPNOTSUPP, which `list` ignores.
            self.list("addresses", libc::RTM_GETADDR, &of(ADDRESS_HEADER), |it| own.extend(parse_address(it)))?;
            self.list("routes", libc::RTM_GETROUTE, &of(ROUTE_HEADER), |it| found.extend(parse_route(it)))?;
            let neighbours = &mut tables.neighbours;
            self.list("neighbours", libc::RTM_GETNEIGH, &of(NEIGHBOUR_HEADER), |it| {
                neighbours.extend(parse_neighbour(it))
            })?;
        }
        for (mut route, scope) in found {
            route.source = route.source.or_else(|| select_source(&route, scope, &own));
            tables.routes.push(route);
        }
        tables.interfaces.sort_by_key(|interface| interface.number);
        tables.neighbours.sort_by_key(|neighbour| (neighbour.interface, neighbour.address));
        Ok(tables)
    }

    fn list(
        &mut self,
        what: &'static str,
        kind: u16,
        message: &Message,
        each: impl FnMut(&[u8]),
    ) -> Result<(), RoutesError> {
        match self.0.dump(kind, message, each) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
            asked => asked.map_err(|error: io::Error| RoutesError {
                what: match what {
                    "interfaces" => "reading the kernel's interfaces",
                    "addresses" => "reading the kernel's addresses",
                    "routes" => "reading the kernel's routes",
                    _ => "reading the kernel's neighbours",
                },
                error,
            }),
        }
    }
}

fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk::<4>().map(|bytes| Ipv4Addr::from(*bytes).into()),
        _ => value.first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes).into()),
    }
}

fn parse_interface(message: &[u8]) -> Option<Interface> {
    let kind = u16::from_ne_bytes(*message.get(2..)?.first_chunk()?);
    // rtnetlink does not report `dev->hard_header_len`: assume 14 for Ethernet and loopback, 0 for
    // others.
    let header = if kind == libc::ARPHRD_ETHER || kind == libc::ARPHRD_LOOPBACK { 14 } else { 0 };
    let mut it = Interface {
        name: String::new(),
        number: number(message.get(4..)?)?,
        mac: [0; 6],
        mtu: 0,
        mtu_v6: 0,
        header,
        forwarding_v4: false,
        forwarding_v6: false,
    };
    for (kind, value) in attributes(message.get(LINK_HEADER..)?) {
        match kind {
            libc::IFLA_IFNAME => {
                it.name = String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned();
            }
            libc::IFLA_ADDRESS => it.mac = value.try_into().unwrap_or_default(),
            libc::IFLA_MTU => it.mtu = number(value)?,
            libc::IFLA_AF_SPEC => {
                for (family, value) in attributes(value) {
                    for (kind, settings) in attributes(value) {
                        // `IPV4_DEVCONF_FORWARDING` is 1-based; `DEVCONF_FORWARDING` and
                        // `DEVCONF_MTU6` are 0 and 2.
                        let setting = |at: usize| settings.get(4 * at..).and_then(number);
                        match (i32::from(family), kind) {
                            (libc::AF_INET, IFLA_INET_CONF) => it.forwarding_v4 = setting(0).is_some_and(|it| it != 0),
                            (libc::AF_INET6, IFLA_INET6_CONF) => {
                                it.forwarding_v6 = setting(0).is_some_and(|it| it != 0);
                                it.mtu_v6 = setting(2).unwrap_or(0);
                            }
                            _ => {}
                        }
                    }
                }
            }
            _ => {}
        }
    }
    Some(it)
}

fn parse_address(message: &[u8]) -> Option<LocalAddress> {
    let &[_, length, flags, scope] = message.first_chunk()?;
    let interface = number(message.get(4..)?)?;
    let all: HashMap<u16, &[u8]> = attributes(message.get(ADDRESS_HEADER..)?).collect();
    // On point-to-point links IFA_ADDRESS is the peer's address.
    let address = ip(all.get(&libc::IFA_LOCAL).or_else(|| all.get(&libc::IFA_ADDRESS))?)?;
    let flags = all.get(&libc::IFA_FLAGS).and_then(|value| number(value)).unwrap_or(flags.into());
    Some(LocalAddress { address, length, interface, scope, flags })
}

/// Parses a route; returns it with its scope (`RT_SCOPE_*`).
fn parse_route(message: &[u8]) -> Option<(Route, u8)> {
    let &[family, length, source, tos, table, _, scope, kind] = message.first_chunk()?;
    let flags = number(message.get(8..)?)?;
    let all: HashMap<u16, &[u8]> = attributes(message.get(ROUTE_HEADER..)?).collect();
    let word = |kind: u16| all.get(&kind).and_then(|value| number(value));
    let table = word(libc::RTA_TABLE).unwrap_or(table.into());
    // Ignore cached clones, source-routed entries, and the unspecified table.
    if flags & CLONED != 0 || source != 0 || table == 0 {
        return None;
    }
    let nothing = if i32::from(family) == libc::AF_INET { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let first = all.get(&libc::RTA_MULTIPATH).and_then(|hops| first_live_next_hop(hops));
    let hop = match (first, all.contains_key(&libc::RTA_MULTIPATH)) {
        (Some(hop), _) => hop,
        (None, true) => return None,
        (None, false) if flags & RTNH_DEAD != 0 => return None,
        (None, false) => NextHop::of(word(libc::RTA_OIF).unwrap_or(0), &all),
    };
    let metrics: HashMap<u16, &[u8]> =
        all.get(&libc::RTA_METRICS).map(|value| attributes(value).collect()).unwrap_or_default();
    let metric = |kind: u16| metrics.get(&kind).and_then(|value| number(value)).unwrap_or(0);
    // Unless it is locked, the interface's MTU wins (ip_mtu_from_fib_result, ip6_mtu_from_fib6).
    let is_locked = metric(RTAX_LOCK) & (1 << RTAX_MTU) != 0;
    let route = Route {
        to: all.get(&libc::RTA_DST).and_then(|value| ip(value)).unwrap_or(nothing),
        length,
        kind: kind.into(),
        table,
        interface: hop.interface,
        metric: word(libc::RTA_PRIORITY).unwrap_or(0),
        mtu: if is_locked { metric(RTAX_MTU) } else { 0 },
        tos: tos.into(),
        encap: hop.encap,
        source: all.get(&libc::RTA_PREFSRC).and_then(|value| ip(value)),
        gateway: hop.gateway,
    };
    Some((route, scope))
}

/// Selects the source address for a route without a preferred one.
fn select_source(route: &Route, scope: u8, own: &[LocalAddress]) -> Option<IpAddr> {
    match route.to {
        IpAddr::V4(_) => select_source_v4(route, scope, own),
        IpAddr::V6(to) => select_source_v6(route.interface, to, own),
    }
}

/// IPv4 source address selection as in inet_select_addr, net/ipv4/devinet.c: an address of the
/// output interface in the gateway's network, else that interface's first address, else the first
/// of any other interface.
fn select_source_v4(route: &Route, scope: u8, own: &[LocalAddress]) -> Option<IpAddr> {
    let primary = own.iter().filter(|it| it.address.is_ipv4() && it.flags & SECONDARY == 0);
    let is_here = |it: &&LocalAddress| it.interface == route.interface && it.scope.min(SCOPE_LINK) <= scope;
    let is_near = |it: &&LocalAddress| match (it.address, route.gateway) {
        (IpAddr::V4(own), Some(IpAddr::V4(router))) => {
            (own.to_bits() ^ router.to_bits()).checked_shr(32 - u32::from(it.length)).unwrap_or(0) == 0
        }
        _ => true,
    };
    let mut here = primary.clone().filter(is_here);
    let near = here.clone().find(is_near).or_else(|| here.next());
    let mut elsewhere = primary.filter(|it| it.scope != SCOPE_LINK && it.scope <= scope);
    near.or_else(|| elsewhere.next()).map(|it| it.address)
}

/// IPv6 source address selection (RFC 6724, section 5) for a prefix: among addresses of global
/// scope, prefer those of the output interface, then the longest match with the prefix. A single
/// destination in the prefix might match another address better.
fn select_source_v6(interface: u32, to: Ipv6Addr, own: &[LocalAddress]) -> Option<IpAddr> {
    let of_use = own.iter().filter(|it| it.scope == 0 && it.flags & UNUSABLE == 0);
    let rated = of_use.filter_map(|it| match it.address {
        IpAddr::V6(address) => {
            let common = (address.to_bits() ^ to.to_bits()).leading_zeros().min(it.length.into());
            Some(((it.interface == interface, it.flags & SECONDARY != 0, common), it.address))
        }
        IpAddr::V4(_) => None,
    });
    // Keep the first of equals.
    rated.reduce(|best, it| if it.0 > best.0 { it } else { best }).map(|(_, address)| address)
}

/// A next hop.
struct NextHop {
    interface: u32,
    gateway: Option<IpAddr>,
    encap: bool,
}

impl NextHop {
    fn of(interface: u32, attributes: &HashMap<u16, &[u8]>) -> NextHop {
        let gateway = attributes.get(&libc::RTA_GATEWAY).and_then(|value| ip(value));
        // `struct rtvia`: the family, then an address.
        let via = || attributes.get(&RTA_VIA).and_then(|value| value.get(2..)).and_then(ip);
        NextHop { interface, gateway: gateway.or_else(via), encap: attributes.contains_key(&RTA_ENCAP_TYPE) }
    }
}

/// Returns the first live next hop of a multipath route.
fn first_live_next_hop(mut hops: &[u8]) -> Option<NextHop> {
    while let Some(header) = hops.first_chunk::<NEXT_HOP_HEADER>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let hop = hops.get(..length)?;
        if u32::from(header[2]) & RTNH_DEAD == 0 {
            let all = attributes(hop.get(NEXT_HOP_HEADER..)?).collect();
            return Some(NextHop::of(number(&header[4..])?, &all));
        }
        hops = hops.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn parse_neighbour(message: &[u8]) -> Option<Neighbour> {
    let interface = number(message.get(4..)?)?;
    let state = u16::from_ne_bytes(*message.get(8..)?.first_chunk()?);
    let all: HashMap<u16, &[u8]> = attributes(message.get(NEIGHBOUR_HEADER..)?).collect();
    let address = ip(all.get(&NDA_DST)?)?;
    // Links without addresses have no link-layer address.
    let mac = all.get(&NDA_LLADDR).and_then(|value| (*value).try_into().ok()).unwrap_or_default();
    (state & NUD_VALID != 0).then_some(Neighbour { interface, address, mac })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a message from a fixed part and attributes.
    fn message(fixed: &[u8], all: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = fixed.to_vec();
        for (kind, value) in all {
            bytes.extend((value.len() as u16 + 4).to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    const MAIN: [u8; ROUTE_HEADER] = [2, 8, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];

    #[test]
    fn routes_are_parsed_and_only_locked_mtus_count() {
        let locked = message(&[], &[(RTAX_LOCK, &4_u32.to_ne_bytes()), (RTAX_MTU, &1400_u32.to_ne_bytes())]);
        let advised = message(&[], &[(RTAX_MTU, &1400_u32.to_ne_bytes())]);
        for (metrics, mtu) in [(&locked, 1400), (&advised, 0)] {
            let all: [(u16, &[u8]); 5] = [
                (libc::RTA_DST, &[10, 0, 0, 0]),
                (libc::RTA_OIF, &7_u32.to_ne_bytes()),
                (libc::RTA_GATEWAY, &[192, 0, 2, 1]),
                (libc::RTA_PRIORITY, &20_u32.to_ne_bytes()),
                (libc::RTA_METRICS, metrics),
            ];
            let (route, _) = parse_route(&message(&MAIN, &all)).unwrap();
            assert_eq!((route.to, route.length, route.kind), ("10.0.0.0".parse().unwrap(), 8, 1));
            assert_eq!((route.interface, route.gateway), (7, Some("192.0.2.1".parse().unwrap())));
            assert_eq!((route.metric, route.mtu, route.source), (20, mtu, None));
        }
        let via: &[u8] = &[10, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let (by_other, _) = parse_route(&message(&MAIN, &[(RTA_VIA, via)])).unwrap();
        assert_eq!(by_other.gateway, Some("fe80::1".parse().unwrap()));
    }

    #[test]
    fn of_a_multipath_route_the_first_live_next_hop_is_used() {
        let hop = |flags: u8, interface: u8, router: u8| {
            let mut hop = message(&[0, 0, flags, 0, interface, 0, 0, 0], &[(libc::RTA_GATEWAY, &[192, 0, 2, router])]);
            let length = hop.len() as u16;
            hop[..2].copy_from_slice(&length.to_ne_bytes());
            hop
        };
        let hops = [hop(1, 3, 1), hop(0, 4, 2), hop(0, 5, 3)].concat();
        let (found, _) = parse_route(&message(&MAIN, &[(libc::RTA_MULTIPATH, &hops)])).unwrap();
        assert_eq!((found.interface, found.gateway), (4, Some("192.0.2.2".parse().unwrap())));
        assert!(parse_route(&message(&MAIN, &[(libc::RTA_MULTIPATH, &hop(1, 3, 1))])).is_none());
    }

    #[test]
    fn truncated_messages_do_not_panic() {
        let all: [(u16, &[u8]); 2] =
            [(libc::RTA_DST, &[10, 0, 0, 0]), (libc::RTA_MULTIPATH, &[9, 0, 0, 0, 1, 0, 0, 0, 3])];
        let whole = message(&MAIN, &all);
        for length in 0..whole.len() {
            let (cut, none) = (&whole[..length], length < ROUTE_HEADER);
            assert!(!none || parse_route(cut).is_none());
            let _ = (parse_interface(cut), parse_address(cut), parse_neighbour(cut));
        }
    }

    #[test]
    fn the_loopback_interface_is_read() {
        let tables = Reader::open().unwrap().read().unwrap();
        let lo = tables.interfaces.iter().find(|it| it.number == 1).unwrap();
        assert!(lo.name == "lo" && lo.mac == [0; 6] && lo.mtu > 1000 && lo.header == 14, "{lo:?}");
    }

    #[test]
    fn source_addresses_are_selected_as_the_kernel_does() {
        let own = |address: &str, length, interface, scope, flags| LocalAddress {
            address: address.parse().unwrap(),
            length,
            interface,
            scope,
            flags,
        };
        let all = [
            own("127.0.0.1", 8, 1, 254, 0),
            own("10.0.0.1", 24, 2, 0, 0),
            own("10.0.1.1", 24, 2, 0, 0),
            own("10.0.1.9", 24, 2, 0, SECONDARY),
            own("fe80::1", 64, 2, SCOPE_LINK, 0),
            own("2001:db8:2::1", 64, 2, 0, 0),
            own("2001:db8:3::1", 64, 2, 0, 0),
            own("2001:db8:4::1", 64, 3, 0, UNUSABLE),
        ];
        let of = |to: &str, interface, gateway: Option<&str>| {
            let gateway = gateway.map(|it| it.parse().unwrap());
            let to = to.parse().unwrap();
            let (length, kind, table) = (8, 1, 254);
            let route = Route {
                to,
                length,
                kind,
                table,
                interface,
                metric: 0,
                mtu: 0,
                tos: 0,
                encap: false,
                source: None,
                gateway,
            };
            select_source(&route, 0, &all).map(|it| it.to_string())
        };
        assert_eq!(of("0.0.0.0", 2, Some("10.0.1.254")).as_deref(), Some("10.0.1.1"));
        assert_eq!(of("0.0.0.0", 2, None).as_deref(), Some("10.0.0.1"));
        assert_eq!(of("0.0.0.0", 3, None).as_deref(), Some("10.0.0.1"));
        assert_eq!(of("2001:db8:3:5::", 2, None).as_deref(), Some("2001:db8:3::1"));
        assert_eq!(of("2001:db8:4::", 3, None).as_deref(), Some("2001:db8:2::1"));
    }
}
