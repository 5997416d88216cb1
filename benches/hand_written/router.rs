//! Hand-written counterparts of `shaders/router_v4.wgsl` and `shaders/router_v6.wgsl`, over
//! DIR-24-8.

use super::dir24::Dir24;

pub const DROP: u32 = 1;
pub const PASS: u32 = 2;

/// The verdict that redirects a packet to a port.
pub fn redirect(port: u32) -> u32 {
    4 | port << 8
}

/// A next hop: output port, its MAC address, and the MAC address of the neighbour.
pub struct NextHop {
    port: u32,
    macs: [u8; 12],
}

impl NextHop {
    /// Derives a next hop from a number; some have no MAC address yet.
    pub fn new(number: u32) -> NextHop {
        let mut macs = [2; 12];
        macs[2..6].copy_from_slice(&number.to_be_bytes());
        macs[8..].copy_from_slice(&(number % 16).to_be_bytes());
        if number % 50 == 49 {
            macs[..6].fill(0);
        }
        NextHop { port: number % 16, macs }
    }

    /// Encodes the next hop for the filters' map.
    pub fn words(&self) -> [u32; 5] {
        let two = |at: usize| u16::from_be_bytes([self.macs[at], self.macs[at + 1]]).into();
        let four = |at: usize| two(at) << 16 | two(at + 2);
        [self.port, two(0), four(2), two(6), four(8)]
    }
}

/// Forwards an IPv4 packet and returns its verdict.
pub fn ipv4(routes: &Dir24, next_hops: &[NextHop], packet: &mut [u8]) -> u32 {
    let is_unicast = |first: u8| !matches!(first, 0 | 127 | 224..);
    let Some(header) = packet.first_chunk_mut::<34>() else { return PASS };
    let is_plain = header[12..15] == [0x08, 0x00, 0x45] && header[0] & 1 == 0 && header[22] > 1;
    if !is_plain || !is_unicast(header[26]) || !is_unicast(header[30]) {
        return PASS;
    }
    let destination = u32::from_be_bytes([header[30], header[31], header[32], header[33]]);
    let Some(next_hop) = reachable(routes.ipv4(destination), next_hops) else { return PASS };
    let word = |header: &[u8; 34], at: usize| u32::from(u16::from_be_bytes([header[at], header[at + 1]]));
    let (check, before) = (word(header, 24), word(header, 22));
    header[22] -= 1;
    // RFC 1624, equation 3.
    let sum = (check ^ 0xffff) + (before ^ 0xffff) + word(header, 22);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    header[24..26].copy_from_slice(&(!sum as u16).to_be_bytes());
    header[..12].copy_from_slice(&next_hop.macs);
    redirect(next_hop.port)
}

/// Forwards an IPv6 packet and returns its verdict.
pub fn ipv6(routes: &Dir24, next_hops: &[NextHop], packet: &mut [u8]) -> u32 {
    let is_forwarded = |first: u8, second: u8| !matches!((first, second), (0 | 0xff, _) | (0xfe, 0x80..0xc0));
    let Some(header) = packet.first_chunk_mut::<54>() else { return PASS };
    let is_plain = header[12..14] == [0x86, 0xdd] && header[14] >> 4 == 6 && header[0] & 1 == 0;
    if !is_plain || header[20] == 0 || header[21] <= 1 {
        return PASS;
    }
    if !is_forwarded(header[22], header[23]) || !is_forwarded(header[38], header[39]) {
        return PASS;
    }
    let destination = header[38..].first_chunk().expect("16 bytes are left");
    let Some(next_hop) = reachable(routes.ipv6(destination), next_hops) else { return PASS };
    header[21] -= 1;
    header[..12].copy_from_slice(&next_hop.macs);
    redirect(next_hop.port)
}

/// Looks up a next hop that has a MAC address.
fn reachable(next_hop: Option<u32>, next_hops: &[NextHop]) -> Option<&NextHop> {
    next_hops.get(next_hop? as usize).filter(|next_hop| next_hop.macs[..6] != [0; 6])
}
