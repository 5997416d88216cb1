//! Builds frames that go over a link from its left end to its right.

use crate::veth::Veth;

/// EtherType reserved for local experiments (IEEE Std 802, 88b5): no kernel answers it.
pub const EXPERIMENTAL_ETHERTYPE: u16 = 0x88b5;

/// Builds a frame of [`EXPERIMENTAL_ETHERTYPE`] with a number and `length` bytes, at least 18. The
/// fill bytes depend on the number.
pub fn numbered(veth: &Veth, number: u32, length: usize) -> Vec<u8> {
    let mut frame =
        [&veth.right.mac()[..], &veth.left.mac(), &EXPERIMENTAL_ETHERTYPE.to_be_bytes(), &number.to_be_bytes()]
            .concat();
    frame.extend((frame.len()..length).map(|at| (at as u32 ^ at as u32 >> 8 ^ number) as u8));
    frame
}

/// Returns the number of a frame that [`numbered`] built.
pub fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().expect("four bytes"))
}

/// Builds a UDP datagram over IPv4 without a UDP checksum (RFC 768).
pub fn udp(veth: &Veth, port: u16, payload: &[u8]) -> Vec<u8> {
    let mut ip = [&[0x45, 0], &(28 + payload.len() as u16).to_be_bytes()[..], &[0, 1, 0, 0, 64, 17, 0, 0]].concat();
    ip.extend(veth.left.ipv4().octets());
    ip.extend(veth.right.ipv4().octets());
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let ports = [12345_u16.to_be_bytes(), port.to_be_bytes()].concat();
    let rest = [(8 + payload.len() as u16).to_be_bytes(), [0, 0]].concat();
    [&veth.right.mac()[..], &veth.left.mac(), &[8, 0], &ip, &ports, &rest, payload].concat()
}

/// Returns a frame with its MAC addresses swapped, as a reflector sends it back.
pub fn swapped(mut frame: Vec<u8>) -> Vec<u8> {
    swap_addresses(&mut frame);
    frame
}

/// Swaps the MAC addresses of a frame.
pub fn swap_addresses(frame: &mut [u8]) {
    let (to, from) = frame.split_at_mut(6);
    to.swap_with_slice(&mut from[..6]);
}
