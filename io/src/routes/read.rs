//! Reading interfaces, addresses, routes and neighbours: linux/rtnetlink.h, if_link.h, if_addr.h, neighbour.h.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portcullis_core::routes::{Interface, Neighbour, Route, RoutingTables};

use super::RoutesError;
use crate::netlink::{LINK, Message, Netlink, attributes};

/// `struct rtmsg`, `struct ifaddrmsg`, `struct ndmsg`, `struct rtnexthop`.
const ROUTE: usize = 12;
const ADDRESS: usize = 8;
const NEIGHBOUR: usize = 12;
const NEXT_HOP: usize = 8;

// Attributes of these and of interfaces.
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_CONF: u16 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const RTA_VIA: u16 = 18;
const RTA_ENCAP_TYPE: u16 = 21;
const RTAX_LOCK: u16 = 1;
const RTAX_MTU: u16 = 2;

/// `NUD_VALID`: reachable, stale, delayed, probed, without ARP, permanent.
const VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

/// `RTNH_F_DEAD`, `RTM_F_CLONED`
const DEAD: u32 = 1;
const CLONED: u32 = 0x200;

/// `IFA_F_SECONDARY` (of IPv6: temporary), `IFA_F_DADFAILED | IFA_F_DEPRECATED | IFA_F_TENTATIVE`
const SECONDARY: u32 = 0x01;
const OF_NO_USE: u32 = 0x08 | 0x20 | 0x40;

/// `RT_SCOPE_LINK`: wider scopes have lower numbers.
const SCOPE_LINK: u8 = 253;

/// An address of this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Own {
    address: IpAddr,
    length: u8,
    interface: u32,
    scope: u8,
    flags: u32,
}

/// Asks the kernel.
#[derive(Debug)]
pub(super) struct Reader(Netlink);

impl Reader {
    pub fn open() -> Result<Reader, RoutesError> {
        let failed = |error| RoutesError { what: "a socket to ask the kernel for its routes", error };
        Netlink::open(0).map(Reader).map_err(failed)
    }

    /// Everything, in an order that is the same as long as nothing changes.
    pub fn read(&mut self) -> Result<RoutingTables, RoutesError> {
        let mut tables = RoutingTables::default();
        let mut links = Message::link(0, 0, 0);
        links.number(libc::IFLA_EXT_MASK, libc::RTEXT_FILTER_SKIP_STATS as u32);
        self.list("interfaces", libc::RTM_GETLINK, &links, |it| tables.interfaces.extend(interface(it)))?;
        let (mut own, mut found) = (Vec::new(), Vec::new());
        for family in [libc::AF_INET, libc::AF_INET6] {
            // Their structures begin with the family, and zeros ask for everything.
            let of = |length: usize| {
                let mut words = vec![0; length / 4];
                words[0] = u32::from_ne_bytes([family as u8, 0, 0, 0]);
                Message::new(&words)
            };
            // A kernel without IPv6 has nothing of it.
            self.list("addresses", libc::RTM_GETADDR, &of(ADDRESS), |it| own.extend(address(it)))?;
            self.list("routes", libc::RTM_GETROUTE, &of(ROUTE), |it| found.extend(route(it)))?;
            let neighbours = &mut tables.neighbours;
            self.list("neighbours", libc::RTM_GETNEIGH, &of(NEIGHBOUR), |it| neighbours.extend(neighbour(it)))?;
        }
        for (mut route, scope) in found {
            route.source = route.source.or_else(|| source(&route, scope, &own));
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
        match self.0.list(kind, message, each) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
            asked => asked.map_err(|error: io::Error| RoutesError {
                what: match what {
                    "interfaces" => "asking the kernel for its interfaces",
                    "addresses" => "asking the kernel for its addresses",
                    "routes" => "asking the kernel for its routes",
                    _ => "asking the kernel for its neighbours",
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

fn interface(message: &[u8]) -> Option<Interface> {
    let kind = u16::from_ne_bytes(*message.get(2..)?.first_chunk()?);
    // What `dev->hard_header_len` is nobody tells: that of Ethernet, which the loopback interface has as well, or none.
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
    for (kind, value) in attributes(message.get(LINK..)?) {
        match kind {
            libc::IFLA_IFNAME => {
                it.name = String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned();
            }
            libc::IFLA_ADDRESS => it.mac = value.try_into().unwrap_or_default(),
            libc::IFLA_MTU => it.mtu = number(value)?,
            libc::IFLA_AF_SPEC => {
                for (family, value) in attributes(value) {
                    for (kind, settings) in attributes(value) {
                        // `IPV4_DEVCONF_FORWARDING` is the first of 1; `DEVCONF_FORWARDING` and `DEVCONF_MTU6` are 0 and 2.
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

fn address(message: &[u8]) -> Option<Own> {
    let &[_, length, flags, scope] = message.first_chunk()?;
    let interface = number(message.get(4..)?)?;
    let all: HashMap<u16, &[u8]> = attributes(message.get(ADDRESS..)?).collect();
    // At the end of a link the one is the other's.
    let address = ip(all.get(&libc::IFA_LOCAL).or_else(|| all.get(&libc::IFA_ADDRESS))?)?;
    let flags = all.get(&libc::IFA_FLAGS).and_then(|value| number(value)).unwrap_or(flags.into());
    Some(Own { address, length, interface, scope, flags })
}

/// A route, and how far it reaches (`RT_SCOPE_*`).
fn route(message: &[u8]) -> Option<(Route, u8)> {
    let &[family, length, source, tos, table, _, scope, kind] = message.first_chunk()?;
    let flags = number(message.get(8..)?)?;
    let all: HashMap<u16, &[u8]> = attributes(message.get(ROUTE..)?).collect();
    let word = |kind: u16| all.get(&kind).and_then(|value| number(value));
    let table = word(libc::RTA_TABLE).unwrap_or(table.into());
    // What the kernel has found out on the way, routes by source, and what it has in place of none.
    if flags & CLONED != 0 || source != 0 || table == 0 {
        return None;
    }
    let nothing = if i32::from(family) == libc::AF_INET { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let first = all.get(&libc::RTA_MULTIPATH).and_then(|hops| next_hop(hops));
    let hop = match (first, all.contains_key(&libc::RTA_MULTIPATH)) {
        (Some(hop), _) => hop,
        (None, true) => return None,
        (None, false) if flags & DEAD != 0 => return None,
        (None, false) => Hop::of(word(libc::RTA_OIF).unwrap_or(0), &all),
    };
    let metrics: HashMap<u16, &[u8]> =
        all.get(&libc::RTA_METRICS).map(|value| attributes(value).collect()).unwrap_or_default();
    let metric = |kind: u16| metrics.get(&kind).and_then(|value| number(value)).unwrap_or(0);
    // Unless it is locked, the interface's counts (ip_mtu_from_fib_result, ip6_mtu_from_fib6).
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

/// The address that packets come from which go by a route that says nothing of it.
fn source(route: &Route, scope: u8, own: &[Own]) -> Option<IpAddr> {
    match route.to {
        IpAddr::V4(_) => source_v4(route, scope, own),
        IpAddr::V6(to) => source_v6(route.interface, to, own),
    }
}

/// inet_select_addr, net/ipv4/devinet.c: of the interface the one in the router's network, or the first; else of the others the
/// first.
fn source_v4(route: &Route, scope: u8, own: &[Own]) -> Option<IpAddr> {
    let primary = own.iter().filter(|it| it.address.is_ipv4() && it.flags & SECONDARY == 0);
    let is_here = |it: &&Own| it.interface == route.interface && it.scope.min(SCOPE_LINK) <= scope;
    let is_near = |it: &&Own| match (it.address, route.gateway) {
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

/// What RFC 6724, section 5 comes to for a prefix: an address that is seen everywhere, of this interface if there is one, and of
/// several that which has most bits with the prefix in common. For an address of that prefix another may have more.
fn source_v6(interface: u32, to: Ipv6Addr, own: &[Own]) -> Option<IpAddr> {
    let of_use = own.iter().filter(|it| it.scope == 0 && it.flags & OF_NO_USE == 0);
    let rated = of_use.filter_map(|it| match it.address {
        IpAddr::V6(address) => {
            let common = (address.to_bits() ^ to.to_bits()).leading_zeros().min(it.length.into());
            Some(((it.interface == interface, it.flags & SECONDARY != 0, common), it.address))
        }
        IpAddr::V4(_) => None,
    });
    // Of equal ones the first.
    rated.reduce(|best, it| if it.0 > best.0 { it } else { best }).map(|(_, address)| address)
}

/// Where packets go next.
struct Hop {
    interface: u32,
    gateway: Option<IpAddr>,
    encap: bool,
}

impl Hop {
    fn of(interface: u32, attributes: &HashMap<u16, &[u8]>) -> Hop {
        let gateway = attributes.get(&libc::RTA_GATEWAY).and_then(|value| ip(value));
        // `struct rtvia`: the family, then an address.
        let via = || attributes.get(&RTA_VIA).and_then(|value| value.get(2..)).and_then(ip);
        Hop { interface, gateway: gateway.or_else(via), encap: attributes.contains_key(&RTA_ENCAP_TYPE) }
    }
}

/// The first that is alive of several.
fn next_hop(mut hops: &[u8]) -> Option<Hop> {
    while let Some(header) = hops.first_chunk::<NEXT_HOP>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let hop = hops.get(..length)?;
        if u32::from(header[2]) & DEAD == 0 {
            let all = attributes(hop.get(NEXT_HOP..)?).collect();
            return Some(Hop::of(number(&header[4..])?, &all));
        }
        hops = hops.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn neighbour(message: &[u8]) -> Option<Neighbour> {
    let interface = number(message.get(4..)?)?;
    let state = u16::from_ne_bytes(*message.get(8..)?.first_chunk()?);
    let all: HashMap<u16, &[u8]> = attributes(message.get(NEIGHBOUR..)?).collect();
    let address = ip(all.get(&NDA_DST)?)?;
    // On links without addresses there is none.
    let mac = all.get(&NDA_LLADDR).and_then(|value| (*value).try_into().ok()).unwrap_or_default();
    (state & VALID != 0).then_some(Neighbour { interface, address, mac })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message: what comes before attributes, then these.
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

    const MAIN: [u8; ROUTE] = [2, 8, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];

    #[test]
    fn routes_are_read_with_what_counts() {
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
            let (route, _) = route(&message(&MAIN, &all)).unwrap();
            assert_eq!((route.to, route.length, route.kind), ("10.0.0.0".parse().unwrap(), 8, 1));
            assert_eq!((route.interface, route.gateway), (7, Some("192.0.2.1".parse().unwrap())));
            assert_eq!((route.metric, route.mtu, route.source), (20, mtu, None));
        }
        let via: &[u8] = &[10, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let (by_other, _) = route(&message(&MAIN, &[(RTA_VIA, via)])).unwrap();
        assert_eq!(by_other.gateway, Some("fe80::1".parse().unwrap()));
    }

    #[test]
    fn of_several_routers_the_first_that_is_alive_counts() {
        let hop = |flags: u8, interface: u8, router: u8| {
            let mut hop = message(&[0, 0, flags, 0, interface, 0, 0, 0], &[(libc::RTA_GATEWAY, &[192, 0, 2, router])]);
            let length = hop.len() as u16;
            hop[..2].copy_from_slice(&length.to_ne_bytes());
            hop
        };
        let hops = [hop(1, 3, 1), hop(0, 4, 2), hop(0, 5, 3)].concat();
        let (found, _) = route(&message(&MAIN, &[(libc::RTA_MULTIPATH, &hops)])).unwrap();
        assert_eq!((found.interface, found.gateway), (4, Some("192.0.2.2".parse().unwrap())));
        assert!(route(&message(&MAIN, &[(libc::RTA_MULTIPATH, &hop(1, 3, 1))])).is_none());
    }

    #[test]
    fn what_is_cut_off_is_nothing_or_a_part() {
        let all: [(u16, &[u8]); 2] =
            [(libc::RTA_DST, &[10, 0, 0, 0]), (libc::RTA_MULTIPATH, &[9, 0, 0, 0, 1, 0, 0, 0, 3])];
        let whole = message(&MAIN, &all);
        for length in 0..whole.len() {
            let (cut, none) = (&whole[..length], length < ROUTE);
            assert!(!none || route(cut).is_none());
            let _ = (interface(cut), address(cut), neighbour(cut));
        }
    }

    #[test]
    fn the_loopback_interface_and_its_routes_are_there() {
        let tables = Reader::open().unwrap().read().unwrap();
        let lo = tables.interfaces.iter().find(|it| it.number == 1).unwrap();
        assert!(lo.name == "lo" && lo.mac == [0; 6] && lo.mtu > 1000 && lo.header == 14, "{lo:?}");
    }

    #[test]
    fn sources_are_the_interfaces_own() {
        let own = |address: &str, length, interface, scope, flags| Own {
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
            own("2001:db8:4::1", 64, 3, 0, OF_NO_USE),
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
            source(&route, 0, &all).map(|it| it.to_string())
        };
        assert_eq!(of("0.0.0.0", 2, Some("10.0.1.254")).as_deref(), Some("10.0.1.1"));
        assert_eq!(of("0.0.0.0", 2, None).as_deref(), Some("10.0.0.1"));
        assert_eq!(of("0.0.0.0", 3, None).as_deref(), Some("10.0.0.1"));
        assert_eq!(of("2001:db8:3:5::", 2, None).as_deref(), Some("2001:db8:3::1"));
        assert_eq!(of("2001:db8:4::", 3, None).as_deref(), Some("2001:db8:2::1"));
    }
}
