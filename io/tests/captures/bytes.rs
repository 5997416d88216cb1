//! Building captures byte by byte, and parsing them.

use super::Packet;

/// A byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Little,
    Big,
}

pub const ORDERS: [Order; 2] = [Order::Little, Order::Big];

impl Order {
    pub fn u16(self, value: u16) -> [u8; 2] {
        if self == Order::Big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    pub fn u32(self, value: u32) -> [u8; 4] {
        if self == Order::Big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    pub fn words<const N: usize>(self, values: [u32; N]) -> Vec<u8> {
        values.map(|value| self.u32(value)).concat()
    }

    fn get(self, bytes: &[u8], at: usize) -> u32 {
        let field = bytes[at..at + 4].try_into().unwrap();
        if self == Order::Big { u32::from_be_bytes(field) } else { u32::from_le_bytes(field) }
    }
}

/// A classic pcap header: magic number, version 2.4, time zone, accuracy, snap length, link type.
pub fn pcap_header(order: Order, magic: u32, link_type: u32) -> Vec<u8> {
    let version = [order.u16(2), order.u16(4)].concat();
    [&order.u32(magic)[..], &version, &[0; 8], &order.u32(65_535), &order.u32(link_type)].concat()
}

/// A classic pcap record: seconds, fraction, captured length, wire length, bytes.
pub fn pcap_record(order: Order, seconds: u32, fraction: u32, bytes: &[u8], wire: u32) -> Vec<u8> {
    [&order.words([seconds, fraction, bytes.len() as u32, wire])[..], bytes].concat()
}

/// A pcapng block: type, length, body, padding, length.
pub fn block(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let total = 12 + padded as u32;
    let mut out = [&order.words([kind, total])[..], body].concat();
    out.resize(8 + padded, 0);
    out.extend(order.u32(total));
    out
}

/// A section header block without options.
pub fn section(order: Order) -> Vec<u8> {
    let version = [order.u16(1), order.u16(0)].concat();
    block(order, 0x0a0d_0d0a, &[&order.u32(0x1a2b_3c4d)[..], &version, &[0xff; 8]].concat())
}

/// An interface description block with options (code and value).
pub fn interface(order: Order, link_type: u16, snap_length: u32, options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = [&order.u16(link_type)[..], &order.u16(0), &order.u32(snap_length)].concat();
    for (code, value) in options {
        body.extend(order.u16(*code));
        body.extend(order.u16(value.len() as u16));
        body.extend(*value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    if !options.is_empty() {
        body.extend([0; 4]);
    }
    block(order, 1, &body)
}

/// An enhanced packet block; `options` are the bytes of its options, a multiple of 4.
pub fn enhanced(order: Order, interface: u32, time: u64, bytes: &[u8], wire: u32, options: &[u8]) -> Vec<u8> {
    let fields = order.words([interface, (time >> 32) as u32, time as u32, bytes.len() as u32, wire]);
    let mut body = [&fields[..], bytes].concat();
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend(options);
    block(order, 6, &body)
}

/// A simple packet block.
pub fn simple(order: Order, bytes: &[u8], wire: u32) -> Vec<u8> {
    block(order, 3, &[&order.u32(wire)[..], bytes].concat())
}

/// Parses a classic pcap: magic number, snapshot length, the whole link type field, packets.
pub fn parse_pcap(bytes: &[u8]) -> (u32, u32, u32, Vec<Packet>) {
    let order = if bytes[0] == 0xa1 { Order::Big } else { Order::Little };
    let magic = order.get(bytes, 0);
    let unit = if magic == 0xa1b2_3c4d { 1 } else { 1000 };
    let mut packets = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let field = |i: usize| order.get(bytes, at + 4 * i);
        let length = field(2) as usize;
        packets.push(Packet {
            bytes: bytes[at + 16..at + 16 + length].to_vec(),
            wire: field(3),
            port: 0,
            time: u64::from(field(0)) * 1_000_000_000 + u64::from(field(1)) * unit,
        });
        at += 16 + length;
    }
    (magic, order.get(bytes, 16), order.get(bytes, 20), packets)
}

/// Parses a little-endian pcapng into block types and bodies; checks that both lengths of a block
/// agree.
pub fn parse_pcapng(bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let total = Order::Little.get(bytes, at + 4) as usize;
        assert_eq!(total % 4, 0);
        assert_eq!(Order::Little.get(bytes, at + total - 4) as usize, total, "the length at the block's end");
        blocks.push((Order::Little.get(bytes, at), bytes[at + 8..at + total - 4].to_vec()));
        at += total;
    }
    assert_eq!(at, bytes.len());
    blocks
}
