//! Routes, neighbours and interfaces as the kernel's rtnetlink describes them.
//!
//! Whoever reads them from the kernel and whoever looks routes up for a filter share these types.

use std::net::IpAddr;

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The prefix's address; what is behind the prefix is zeros.
    pub to: IpAddr,
    /// Bits of it that count.
    pub length: u8,
    /// `RTN_*` (linux/rtnetlink.h): 1 where packets are forwarded, 6, 7 and 8 where they are
    /// dropped, refused and forbidden.
    pub kind: u32,
    /// The number of its table.
    pub table: u32,
    /// The interface that packets go out of.
    pub interface: u32,
    /// Its metric: of several the least counts.
    pub metric: u32,
    /// The longest packets that may go there, in bytes from their IP header on; 0 where the
    /// interface says so.
    pub mtu: u32,
    /// Of IPv4: packets of this type of service alone; 0 of any.
    pub tos: u32,
    /// Whether packets are put into others on the way, which `bpf_fib_lookup` does not do.
    pub encap: bool,
    /// The address that packets come from.
    pub source: Option<IpAddr>,
    /// The next router, where there is one.
    pub gateway: Option<IpAddr>,
}

/// Somebody on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// The interface that it is reached by.
    pub interface: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its MAC.
    pub mac: [u8; 6],
}

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, which is in no map.
    pub name: String,
    /// Its number.
    pub number: u32,
    /// Its MAC; zeros where it has none.
    pub mac: [u8; 6],
    /// The longest packets that it takes, in bytes behind the link's header.
    pub mtu: u32,
    /// The longest of IPv6, where that is another number.
    pub mtu_v6: u32,
    /// Bytes of the link's header.
    pub header: u32,
    /// Whether packets of IPv4 that come in there are forwarded.
    pub forwarding_v4: bool,
    /// Whether packets of IPv6 that come in there are forwarded.
    pub forwarding_v6: bool,
}

/// All that is known of where packets go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoutingTables {
    /// Routes; of those to one prefix in one table, with the same type of service and metric, the
    /// first counts.
    pub routes: Vec<Route>,
    /// Who is on which link.
    pub neighbours: Vec<Neighbour>,
    /// Interfaces.
    pub interfaces: Vec<Interface>,
}
