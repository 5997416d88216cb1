//! The prelude's packet functions, compared with models over a `Vec<u8>`.

use super::{Random, interpreter, run};
use crate::packet::{Metadata, Verdict};

fn random_packet(random: &mut Random, length: u64) -> Vec<u8> {
    (0..length).map(|_| random.next() as u8).collect()
}

/// Offsets near the start, near the end and near 2^32.
fn random_offset(random: &mut Random, length: usize) -> u32 {
    let near = random.below(9) as u32;
    match random.below(4) {
        0 => near,
        1 => (length as u32).wrapping_sub(4).wrapping_add(near),
        2 => u32::MAX - near,
        _ => random.below(length as u64 + 1) as u32,
    }
}

#[test]
fn loads_return_the_bytes_or_zero() {
    let names = ["u8", "le16", "be16", "le32", "be32"];
    let interpreters = names.map(|name| {
        // The offset is in the last four bytes; the filter stores the result in the first four.
        interpreter(&format!(
            "fn xdp_filter(pkt: u32) -> u32 {{
                let value = load_{name}(pkt, load_le32(pkt, pkt_len(pkt) - 4u));
                store_le32(pkt, 0u, value);
                return XDP_PASS;
            }}"
        ))
    });
    let mut random = Random(7);
    for round in 0..400 {
        let length = 4 + random.below(40);
        let mut packet = random_packet(&mut random, length);
        let offset = random_offset(&mut random, packet.len());
        let end = packet.len() - 4;
        packet[end..].copy_from_slice(&offset.to_le_bytes());
        for (name, interpreter) in names.iter().zip(&interpreters) {
            let size = match *name {
                "u8" => 1,
                "le16" | "be16" => 2,
                _ => 4,
            };
            let bytes = packet.get(offset as usize..offset as usize + size).unwrap_or(&[]);
            let fold = |value: u32, byte: &u8| value << 8 | u32::from(*byte);
            let expected =
                if name.starts_with("be") { bytes.iter().fold(0, fold) } else { bytes.iter().rev().fold(0, fold) };
            let outcome = interpreter.run(&packet, &Metadata::default()).unwrap();
            assert_eq!(outcome.packet[..4], expected.to_le_bytes(), "round {round}: load_{name} at {offset}");
        }
    }
}

#[test]
fn stores_write_all_bytes_or_none() {
    let names = ["u8", "le16", "be16", "le32", "be32"];
    let interpreters = names.map(|name| {
        interpreter(&format!(
            "fn xdp_filter(pkt: u32) -> u32 {{
                store_{name}(pkt, load_le32(pkt, pkt_len(pkt) - 4u), load_le32(pkt, pkt_len(pkt) - 8u));
                return XDP_PASS;
            }}"
        ))
    });
    let mut random = Random(8);
    for round in 0..400 {
        let length = 8 + random.below(40);
        let mut packet = random_packet(&mut random, length);
        let offset = random_offset(&mut random, packet.len());
        let end = packet.len();
        packet[end - 4..].copy_from_slice(&offset.to_le_bytes());
        let value = u32::from_le_bytes(packet[end - 8..end - 4].try_into().unwrap());
        for (name, interpreter) in names.iter().zip(&interpreters) {
            let bytes = match *name {
                "u8" => vec![value as u8],
                "le16" => (value as u16).to_le_bytes().to_vec(),
                "be16" => (value as u16).to_be_bytes().to_vec(),
                "le32" => value.to_le_bytes().to_vec(),
                _ => value.to_be_bytes().to_vec(),
            };
            let mut expected = packet.clone();
            if let Some(place) = expected.get_mut(offset as usize..offset as usize + bytes.len()) {
                place.copy_from_slice(&bytes);
            }
            let outcome = interpreter.run(&packet, &Metadata::default()).unwrap();
            assert_eq!(outcome.packet, expected, "round {round}: store_{name} at {offset}");
        }
    }
}

/// A model of a packet whose start and end can be adjusted, within their limits.
struct Model {
    bytes: Vec<u8>,
    front: i64,
    back: i64,
}

impl Model {
    fn head(&mut self, delta: i32) -> bool {
        let (delta, length) = (i64::from(delta), self.bytes.len() as i64);
        if length - delta < 14 || self.front + delta < -128 {
            return false;
        }
        if delta >= 0 {
            self.bytes.drain(..delta as usize);
        } else {
            self.bytes.splice(..0, vec![0; -delta as usize]);
        }
        self.front += delta;
        true
    }

    fn tail(&mut self, delta: i32) -> bool {
        let (delta, length) = (i64::from(delta), self.bytes.len() as i64);
        if length + delta < 14 || self.back + delta > 128 {
            return false;
        }
        self.bytes.resize((length + delta) as usize, 0);
        self.back += delta;
        true
    }
}

#[test]
fn adjusting_head_and_tail_matches_the_model() {
    let mut random = Random(9);
    for round in 0..120 {
        let length = random.below(80);
        let packet = random_packet(&mut random, length);
        let mut model = Model { bytes: packet.clone(), front: 0, back: 0 };
        let mut text = String::from("fn xdp_filter(pkt: u32) -> u32 { var ok = 0u;\n");
        let mut ok = 0u32;
        for step in 0..8 {
            let delta = match random.below(6) {
                0 => [i32::MIN, i32::MAX, -128, 128, -129, 129, 0][random.below(7) as usize],
                _ => random.below(90) as i32 - 45,
            };
            let written = if delta == i32::MIN { "i32(-2147483648)".into() } else { format!("i32({delta})") };
            let head = random.below(2) == 0;
            let moved = if head { model.head(delta) } else { model.tail(delta) };
            let name = if head { "adjust_head" } else { "adjust_tail" };
            text += &format!("if {name}(pkt, {written}) {{ ok |= {}u; }}\n", 1 << step);
            ok |= u32::from(moved) << step;
            // Write at an offset, to see that offsets follow the new start.
            let at = random.below(20) as usize;
            text += &format!("store_u8(pkt, {at}u, {step}u);\n");
            if let Some(byte) = model.bytes.get_mut(at) {
                *byte = step as u8;
            }
            text += &format!("if pkt_len(pkt) != {}u {{ return XDP_DROP; }}\n", model.bytes.len());
        }
        text += "return redirect(ok); }";
        let outcome = run(&text, &packet);
        assert_eq!(outcome.verdict, Verdict::Redirect(ok), "round {round}\n{text}");
        assert_eq!(outcome.packet, model.bytes, "round {round}\n{text}");
    }
}

/// The Internet checksum of whole data, RFC 1071: the complement of the one's complement sum of
/// its 16-bit words.
fn checksum(data: &[u8]) -> u16 {
    let mut sum: u64 = data.chunks(2).map(|c| u64::from(c[0]) << 8 | c.get(1).map_or(0, |&b| u64::from(b))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn checksums_follow_rfc_1071_and_1624() {
    // Bytes 0..4 take the updated checksums, 4..6 hold the checksum of 8..48, of which 16 bits at 8
    // and 32 bits at 12 are rewritten with what is at 50 and 54.
    let replace = interpreter(
        "fn xdp_filter(pkt: u32) -> u32 {
            let check = load_be16(pkt, 4u);
            store_be16(pkt, 0u, csum_replace16(check, load_be16(pkt, 8u), load_be16(pkt, 50u)));
            store_be16(pkt, 2u, csum_replace32(check, load_be32(pkt, 12u), load_be32(pkt, 54u)));
            var sum = 0u;
            for (var at = 8u; at < 48u; at += 4u) { sum = csum_add(sum, load_be32(pkt, at)); }
            store_be16(pkt, 6u, csum_fold(sum));
            return XDP_PASS;
        }",
    );
    let mut random = Random(10);
    for round in 0..300 {
        let mut packet = random_packet(&mut random, 58);
        if round % 7 == 0 {
            packet[50..].fill([0, 0xff][round % 2]);
        }
        let before = checksum(&packet[8..48]);
        packet[4..6].copy_from_slice(&before.to_be_bytes());
        let after = replace.run(&packet, &Metadata::default()).unwrap().packet;
        let field = |at: usize| u16::from_be_bytes([after[at], after[at + 1]]);
        let with = |at: usize, new: &[u8]| {
            let mut data = packet[8..48].to_vec();
            data[at..at + new.len()].copy_from_slice(new);
            checksum(&data)
        };
        assert_eq!(field(0), with(0, &packet[50..52]), "round {round}: csum_replace16");
        assert_eq!(field(2), with(4, &packet[54..58]), "round {round}: csum_replace32");
        assert_eq!(!field(6), before, "round {round}: csum_fold of csum_add");
    }
}

#[test]
fn filters_read_the_metadata() {
    let interpreter = interpreter(
        "fn xdp_filter(pkt: u32) -> u32 {
            store_le32(pkt, 0u, pkt_wire_len(pkt)); store_le32(pkt, 4u, pkt_port(pkt));
            let t = pkt_time(pkt);
            store_le32(pkt, 8u, t.x); store_le32(pkt, 12u, t.y); store_le32(pkt, 16u, pkt_time_ms(pkt));
            return redirect(pkt_len(pkt));
        }",
    );
    let time_ns = 1_700_000_000_123_456_789u64;
    let outcome = interpreter.run(&[0; 24], &Metadata::new(1514, 3, time_ns)).unwrap();
    let word = |at: usize| u32::from_le_bytes(outcome.packet[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(4)), (1514, 3));
    assert_eq!(u64::from(word(8)) + (u64::from(word(12)) << 32), time_ns);
    // 1,700,000,000,123 modulo 2^32.
    assert_eq!(word(16), 3_487_918_203);
    assert_eq!(outcome.verdict, Verdict::Redirect(24));
}

#[test]
fn a_redirect_beyond_24_bits_is_aborted() {
    let interpreter = interpreter("fn xdp_filter(pkt: u32) -> u32 { return redirect(load_le32(pkt, 0u)); }");
    for (port, verdict) in [
        (0, Verdict::Redirect(0)),
        (0xff_ffff, Verdict::Redirect(0xff_ffff)),
        (0x100_0000, Verdict::Aborted),
        (u32::MAX, Verdict::Aborted),
    ] {
        assert_eq!(interpreter.run(&port.to_le_bytes(), &Metadata::default()).unwrap().verdict, verdict);
    }
}

#[test]
fn the_trace_counts_from_the_packets_original_start() {
    let trace =
        |body: &str| run(&format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} return XDP_PASS; }}"), &[1; 40]).trace;
    let ends = |body: &str| (trace(body).read_end, trace(body).written_end);
    assert_eq!(ends(""), (None, None));
    assert_eq!(ends("_ = load_u8(pkt, 0u);"), (Some(1), None));
    assert_eq!(ends("_ = load_be32(pkt, 36u); _ = load_u8(pkt, 3u);"), (Some(40), None));
    // Accesses out of bounds do not count.
    assert_eq!(ends("_ = load_be32(pkt, 37u); store_u8(pkt, 40u, 1u);"), (None, None));
    assert_eq!(ends("store_be16(pkt, 12u, 7u);"), (None, Some(14)));
    assert_eq!(ends("_ = adjust_head(pkt, 10i); _ = load_be16(pkt, 2u); store_u8(pkt, 0u, 1u);"), (Some(14), Some(11)));
    // In front of the original start, and in the bytes that adjust_tail appended.
    assert_eq!(ends("_ = adjust_head(pkt, -20i); _ = load_be16(pkt, 2u);"), (None, None));
    assert_eq!(ends("_ = adjust_tail(pkt, 4i); store_be32(pkt, 40u, 7u);"), (None, Some(44)));
}
