//! Routes, neighbours and interfaces as rtnetlink (linux/rtnetlink.h) reports them.
//!
//! Shared by the code that reads them from the kernel and the front end that looks routes up for
//! filters.

use std::net::IpAddr;

/// One route to a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Address of the prefix; bits beyond the prefix length are zero.
    pub to: IpAddr,
    /// Prefix length in bits.
    pub length: u8,
    /// Route type, `RTN_*`: 1 forwards packets; 6, 7 and 8 drop, reject and prohibit them.
    pub kind: u32,
    /// Number of the routing table.
    pub table: u32,
    /// Index of the outgoing interface.
    pub interface: u32,
    /// Metric; the route with the lowest wins.
    pub metric: u32,
    /// Route MTU in bytes from the IP header on; 0 if the interface's MTU applies.
    pub mtu: u32,
    /// IPv4 type of service that packets must have; 0 matches any.
    pub tos: u32,
    /// Whether the route encapsulates packets, which `bpf_fib_lookup` does not do.
    pub encap: bool,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Next hop, if the destination is not on the link.
    pub gateway: Option<IpAddr>,
}

/// Link-layer address of a host on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the interface that leads to the host.
    pub interface: u32,
    /// IP address of the host.
    pub address: IpAddr,
    /// MAC address of the host.
    pub mac: [u8; 6],
}

/// Properties of an interface that a lookup reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Interface name; stored in no map.
    pub name: String,
    /// Interface index.
    pub number: u32,
    /// MAC address; zeros if the interface has none.
    pub mac: [u8; 6],
    /// MTU in bytes, without the link-layer header.
    pub mtu: u32,
    /// MTU for IPv6, if it differs.
    pub mtu_v6: u32,
    /// Length of the link-layer header in bytes.
    pub header: u32,
    /// Whether IPv4 packets received on the interface are forwarded.
    pub forwarding_v4: bool,
    /// Whether IPv6 packets received on the interface are forwarded.
    pub forwarding_v6: bool,
}

/// A snapshot of the kernel's routes, neighbours and interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoutingTables {
    /// Routes; of several with the same prefix, table, type of service and metric, the first
    /// counts.
    pub routes: Vec<Route>,
    /// Known neighbours.
    pub neighbours: Vec<Neighbour>,
    /// All interfaces.
    pub interfaces: Vec<Interface>,
}
