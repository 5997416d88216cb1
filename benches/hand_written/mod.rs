//! Four stock filters in hand-written safe Rust: one length check for fixed offsets, and `get` for
//! the rest. The other side of `benches/stock.rs`.

/// `XDP_DROP`.
pub const DROP: u8 = 1;
/// `XDP_PASS`.
pub const PASS: u8 = 2;
const REDIRECT: u32 = 4;

const ETH_P_IP: u16 = 0x0800;
const ETH_P_8021Q: u16 = 0x8100;
const ETH_P_IPV6: u16 = 0x86dd;
const ETH_P_8021AD: u16 = 0x88a8;

const TCP: u8 = 6;
const UDP: u8 = 17;

#[inline(always)]
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|&b| u16::from_be_bytes(b))
}

/// The Ethernet header and the fixed part of the IPv4 header, if present.
#[inline(always)]
fn ipv4_header(packet: &[u8]) -> Option<&[u8; 34]> {
    let header = packet.first_chunk::<34>()?;
    let is_ipv4 = u16::from_be_bytes([header[12], header[13]]) == ETH_P_IP && (0x45..=0x4f).contains(&header[14]);
    is_ipv4.then_some(header)
}

#[inline(always)]
fn later_fragment(header: &[u8; 34]) -> bool {
    u16::from_be_bytes([header[20], header[21]]) & 0x1fff != 0
}

#[inline(always)]
fn transport(header: &[u8; 34]) -> usize {
    14 + usize::from(header[14] & 0xf) * 4
}

/// `shaders/simple_filter.wgsl`
#[inline(always)]
pub fn simple_filter(packet: &[u8]) -> u8 {
    let Some(header) = ipv4_header(packet) else { return DROP };
    let source = u32::from_be_bytes([header[26], header[27], header[28], header[29]]);
    if source == 0xc0a8_0001 {
        return DROP;
    }
    if header[23] == TCP || header[23] == UDP { PASS } else { DROP }
}

/// `shaders/port_filter.wgsl`
#[inline(always)]
pub fn port_filter(packet: &[u8]) -> u8 {
    let Some(header) = ipv4_header(packet) else { return DROP };
    if later_fragment(header) || (header[23] != TCP && header[23] != UDP) {
        return DROP;
    }
    match be16(packet, transport(header) + 2) {
        Some(80 | 443 | 1024..) => PASS,
        _ => DROP,
    }
}

/// `shaders/http_only.wgsl`
#[inline(always)]
pub fn http_only(packet: &[u8]) -> u8 {
    match http_port(packet) {
        Some(80 | 443) => PASS,
        _ => DROP,
    }
}

#[inline(always)]
fn http_port(packet: &[u8]) -> Option<u16> {
    let (kind, ip) = match be16(packet, 12)? {
        ETH_P_8021Q | ETH_P_8021AD => (be16(packet, 16)?, packet.get(18..)?),
        kind => (kind, packet.get(14..)?),
    };
    match kind {
        ETH_P_IP => {
            let header = ip.first_chunk::<20>()?;
            let first_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff == 0;
            if !(0x45..=0x4f).contains(&header[0]) || header[9] != TCP || !first_fragment {
                return None;
            }
            be16(ip, usize::from(header[0] & 0xf) * 4 + 2)
        }
        ETH_P_IPV6 => http_port_ipv6(ip),
        _ => None,
    }
}

fn http_port_ipv6(ip: &[u8]) -> Option<u16> {
    let header = ip.first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let (mut next, mut at) = (header[6], 40);
    for _ in 0..8 {
        if next == TCP {
            break;
        }
        let &[following, length] = ip.get(at..)?.first_chunk::<2>()?;
        at += match next {
            0 | 43 | 60 | 135 => (usize::from(length) + 1) * 8,
            51 => (usize::from(length) + 2) * 4,
            44 if be16(ip, at + 2)? & 0xfff8 == 0 => 8,
            _ => return None,
        };
        next = following;
    }
    if next == TCP { be16(ip, at + 2) } else { None }
}

/// `shaders/hash_lb.wgsl`; returns the verdict with the target in bits 8 to 31.
#[inline(always)]
pub fn hash_lb(packet: &[u8]) -> u32 {
    let Some(header) = ipv4_header(packet) else { return u32::from(PASS) };
    if header[23] != TCP && header[23] != UDP {
        return u32::from(PASS);
    }
    let (mut source_port, mut destination_port) = (0, 0);
    if !later_fragment(header) {
        let at = transport(header);
        source_port = be16(packet, at).unwrap_or(0);
        destination_port = be16(packet, at + 2).unwrap_or(0);
    }
    let fnv = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    let mut hash = 2_166_136_261;
    for at in [29, 28, 27, 26, 33, 32, 31, 30] {
        hash = fnv(hash, header[at]);
    }
    for byte in source_port.to_le_bytes().into_iter().chain(destination_port.to_le_bytes()) {
        hash = fnv(hash, byte);
    }
    ((hash % 8) << 8) | REDIRECT
}
