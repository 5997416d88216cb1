//! Compares with a model that sums differently: one's complement sums are numbers modulo 65,535.

use super::{complete, complete_packet, is_partial, restore_partial_udp};
use crate::synth::{Random, hostile};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// Sum of big-endian words; an odd byte is padded with zero.
fn words(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|word| u64::from(word[0]) * 256 + word.get(1).map_or(0, |&low| u64::from(low))).sum()
}

/// A frame together with what the tests need to know about it.
#[derive(Debug, Clone)]
struct TestFrame {
    frame: Vec<u8>,
    /// Offset of the IP header.
    packet: usize,
    /// Offset of the segment.
    segment: usize,
    end: usize,
    protocol: u8,
    /// Sum of the pseudo-header's words.
    pseudo: u64,
}

impl TestFrame {
    fn field(&self) -> usize {
        self.segment + [16, 6][usize::from(self.protocol == UDP)]
    }

    fn set(&mut self, value: u16) {
        let at = self.field();
        self.frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }

    fn get(&self) -> u16 {
        let at = self.field();
        u16::from_be_bytes([self.frame[at], self.frame[at + 1]])
    }

    /// The partial checksum: of the two representations of zero, 65,535 is used.
    fn partial(&self) -> u16 {
        match self.pseudo % 65_535 {
            0 => 65_535,
            sum => sum as u16,
        }
    }

    /// Whether pseudo-header and segment sum to 0 modulo 65,535.
    fn is_right(&self) -> bool {
        (self.pseudo + words(&self.frame[self.segment..self.end])).is_multiple_of(65_535)
    }

    /// The field's value according to RFC 9293 and RFC 768.
    fn right(&self) -> u16 {
        let mut other = self.clone();
        other.set(0);
        let sum = (self.pseudo + words(&other.frame[self.segment..self.end])) % 65_535;
        match 65_535 - sum as u16 {
            // The sum is congruent to 0, so its complement is 0: the pseudo-header is not all
            // zeros.
            65_535 if self.protocol == TCP => 0,
            value => value,
        }
    }
}

/// Builds a frame with tags, options or extension headers, TCP or UDP, a payload, and perhaps
/// padding.
fn make(random: &mut Random) -> TestFrame {
    let protocol = random.pick(&[TCP, UDP]);
    let mut frame = vec![0; 12];
    random.fill(&mut frame);
    for _ in 0..random.below(3) {
        frame.extend(random.pick(&[[0x81, 0x00], [0x88, 0xa8]]));
        frame.extend(random.u32().to_be_bytes().first_chunk::<2>().unwrap());
    }
    let payload = match random.below(8) {
        0 => random.between(0, 3),
        1 => random.between(1400, 8960),
        _ => random.between(0, 200),
    } as usize;
    let length = if protocol == TCP { 20 } else { 8 } + payload;
    let is_ipv4 = random.one_in(2);
    frame.extend(if is_ipv4 { [0x08, 0x00] } else { [0x86, 0xdd] });
    let packet = frame.len();
    let mut pseudo = u64::from(protocol) + length as u64;
    if is_ipv4 {
        let options = random.pick(&[0, 0, 1, 5, 10]);
        frame.extend([0x45 + options as u8, random.u32() as u8]);
        frame.extend(((20 + options * 4 + length) as u16).to_be_bytes());
        frame.extend([1, 2, random.pick(&[0x00, 0x40, 0x80, 0xc0]), 0, 64, protocol, 3, 4]);
        let mut rest = vec![0; 8 + options * 4];
        random.fill(&mut rest);
        frame.extend(&rest);
        pseudo += words(&rest[..8]);
    } else {
        let mut chain = Vec::new();
        let mut next = protocol;
        let mut last: Option<[u8; 16]> = None;
        // Build the chain from the last header to the first.
        for _ in 0..random.pick(&[0, 0, 0, 1, 2, 6]) {
            let (number, header) = extension(random, next, &mut last);
            chain.splice(0..0, header);
            next = number;
        }
        frame.extend([0x60, 1, 2, 3]);
        frame.extend(((chain.len() + length) as u16).to_be_bytes());
        frame.extend([next, 64]);
        let mut addresses = [0; 32];
        random.fill(&mut addresses);
        frame.extend(addresses);
        frame.extend(chain);
        pseudo += words(&addresses[..16]) + words(&last.unwrap_or(*addresses.last_chunk().unwrap()));
    }
    let segment = frame.len();
    let end = segment + length;
    let mut rest = vec![0; length];
    random.fill(&mut rest);
    if protocol == UDP {
        rest[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    }
    if random.one_in(8) {
        // A payload that sums to 0.
        rest[8..].fill(random.pick(&[0x00, 0xff]));
    }
    frame.extend(rest);
    frame.extend(vec![0xa5; random.pick(&[0, 0, 1, 18])]);
    TestFrame { frame, packet, segment, end, protocol, pseudo }
}

/// Builds an IPv6 extension header; returns its number and bytes. Of several routing headers the
/// last one processed determines the destination.
fn extension(random: &mut Random, next: u8, last: &mut Option<[u8; 16]>) -> (u8, Vec<u8>) {
    let words = random.below(4) as u8;
    let mut filled = vec![0; 8 + usize::from(words) * 8];
    random.fill(&mut filled);
    filled[..2].copy_from_slice(&[next, words]);
    match random.below(4) {
        0 => (0, filled),
        1 => (60, filled),
        // An atomic fragment, with reserved bits set at random.
        2 => (44, vec![next, random.u32() as u8, 0, random.pick(&[0, 2, 4, 6]), 1, 2, 3, 4]),
        _ => {
            let addresses = random.between(1, 3) as usize;
            let kind = random.pick(&[0, 2, 4]);
            let left = random.pick(&[0, 1, 3]);
            let mut header = vec![0; 8 + addresses * 16];
            random.fill(&mut header);
            header[..4].copy_from_slice(&[next, addresses as u8 * 2, kind, left]);
            if left != 0 && last.is_none() {
                let at = if kind == 4 { 8 } else { header.len() - 16 };
                *last = header[at..].first_chunk().copied();
            }
            (43, header)
        }
    }
}

#[test]
fn partial_checksums_are_completed_and_nothing_else_changes() {
    let mut random = Random::new(0xc0_ffee, 1);
    for number in 0..20_000 {
        let mut made = make(&mut random);
        made.set(made.partial());
        let (mut packet, mut expected) = (made.frame[made.packet..].to_vec(), made.clone());
        expected.set(made.right());
        let was_right = made.is_right();
        assert_eq!(complete(&mut made.frame), !was_right, "{number}: {made:?}");
        assert!(made.is_right() && (was_right || made.frame == expected.frame), "{number}: {made:?}");
        assert!(made.protocol == TCP || made.get() != 0, "{number}");
        // Completing again changes nothing.
        let done = made.frame.clone();
        assert!(!complete(&mut made.frame) && made.frame == done, "{number}: {made:?}");
        assert_eq!(complete_packet(&mut packet), !was_right);
        assert_eq!(packet, done[made.packet..]);
    }
}

#[test]
fn complete_absent_and_wrong_checksums_are_left_alone() {
    let mut random = Random::new(0xc0_ffee, 2);
    for number in 0..20_000 {
        let mut made = make(&mut random);
        // A correct checksum, none (UDP), a wrong one, and the partial one's complement.
        let field = random.pick(&[made.right(), 0, made.right() ^ 0x0100, !made.partial()]);
        if field == made.partial() && field != made.right() {
            continue;
        }
        made.set(field);
        let before = made.frame.clone();
        assert!(!complete(&mut made.frame) && made.frame == before, "{number}: {made:?}");
    }
}

/// P + P + R = 0: the checksum is correct and equals the partial one.
#[test]
fn a_correct_checksum_equal_to_the_partial_one_is_left_alone() {
    let mut random = Random::new(0xc0_ffee, 3);
    let (mut seen, mut all_ones) = (0, 0);
    while seen < 2000 {
        let mut made = make(&mut random);
        let (from, to) = (made.segment + [20, 8][usize::from(made.protocol == UDP)], made.end);
        if to - from < 2 {
            continue;
        }
        if random.one_in(4) && made.frame[made.packet] >> 4 == 4 {
            // Choose an address word that makes the pseudo-header's sum 0, and so the field 65,535.
            let address = made.packet + 12..made.packet + 14;
            made.pseudo -= words(&made.frame[address.clone()]);
            let missing = 65_535 - (made.pseudo % 65_535) as u16;
            made.frame[address].copy_from_slice(&missing.to_be_bytes());
            made.pseudo += u64::from(missing);
        }
        made.set(made.partial());
        made.frame[from..from + 2].fill(0);
        // Choose a payload word that makes the total 0.
        let sum = (made.pseudo + words(&made.frame[made.segment..to])) % 65_535;
        made.frame[from..from + 2].copy_from_slice(&(65_535 - sum as u16).to_be_bytes());
        assert!(made.is_right());
        assert_eq!(made.right() % 65_535, made.partial() % 65_535, "completing gives the value that is there");
        let before = made.frame.clone();
        assert!(!complete(&mut made.frame) && made.frame == before, "{made:?}");
        seen += 1;
        all_ones += u32::from(made.partial() == 65_535);
    }
    assert!(all_ones > 100);
}

/// Frames with a partial checksum and one defect each.
#[test]
fn frames_that_cannot_be_completed_are_left_alone() {
    let mut random = Random::new(0xc0_ffee, 4);
    let mut seen = [0; 8];
    for number in 0..20_000 {
        let mut made = make(&mut random);
        made.set(made.partial());
        let (packet, first) = (made.packet, made.frame[made.packet]);
        let is_ipv4 = first >> 4 == 4;
        let kind = random.below(seen.len() as u32) as usize;
        match kind {
            // First and later fragments.
            0 if is_ipv4 => made.frame[packet + 6] |= 0x20,
            1 if is_ipv4 => made.frame[packet + 7] |= random.pick(&[1, 0x80]),
            0 if made.frame[packet + 6] == 44 => made.frame[packet + 43] |= random.pick(&[1, 8]),
            1 if made.frame[packet + 6] == 44 => made.frame[packet + 42] |= random.pick(&[1, 0x80]),
            // Truncated by at least one byte.
            2 => made.frame.truncate(random.between(0, made.end as u32 - 1) as usize),
            // A header length that is too short, or a wrong version.
            3 if is_ipv4 => made.frame[packet] = 0x40 | random.pick(&[0, 1, 4]),
            3 => made.frame[packet] = random.pick(&[0x00, 0x40, 0x50, 0x70, 0xf0]),
            // An EtherType that is not IP.
            4 => made.frame[packet - 2..packet].copy_from_slice(&random.pick(&[[0x08, 0x06], [0x88, 0x47]])),
            5 => {
                let other = [[0x86, 0xdd], [0x08, 0x00]][usize::from(!is_ipv4)];
                made.frame[packet - 2..packet].copy_from_slice(&other);
            }
            // A UDP length beyond the packet, or shorter than the header.
            6 if made.protocol == UDP => {
                let length = (made.end - made.segment) as u16;
                let length = random.pick(&[0, 7, length + 1, 65_535]);
                made.frame[made.segment + 4..made.segment + 6].copy_from_slice(&length.to_be_bytes());
            }
            // One or two tags too many.
            7 => {
                let tags = (2 - (packet - 14) / 4) + random.between(1, 2) as usize;
                made.frame.splice(12..12, [0x81, 0x00, 0, 1].repeat(tags));
            }
            _ => continue,
        }
        seen[kind] += 1;
        let before = made.frame.clone();
        assert!(!complete(&mut made.frame) && made.frame == before, "{number}, {kind}: {made:?}");
    }
    assert!(seen.iter().all(|&times| times > 200), "{seen:?}");
}

/// Bitwise CRC32c: RFC 9260, appendix A.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

#[test]
fn sctp_checksums_of_zero_are_completed() {
    let mut random = Random::new(0xc0_ffee, 5);
    let mut seen = 0;
    for _ in 0..4000 {
        let mut made = make(&mut random);
        // Only packets without extension headers, where the protocol is in the IP header.
        let at = made.packet + [9, 6][usize::from(made.frame[made.packet] >> 4 == 6)];
        if made.frame[at] != made.protocol || made.end - made.segment < 12 {
            continue;
        }
        seen += 1;
        made.frame[at] = SCTP;
        let field = made.segment + 8..made.segment + 12;
        if random.one_in(2) {
            let before = made.frame.clone();
            assert_eq!(complete(&mut made.frame), made.frame != before);
            assert_eq!(made.frame != before, before[field.clone()] == [0; 4]);
        }
        made.frame[field.clone()].fill(0);
        let mut expected = made.frame.clone();
        let checksum = crc32c(&expected[made.segment..made.end]);
        expected[field].copy_from_slice(&checksum.to_le_bytes());
        assert!(complete(&mut made.frame) && made.frame == expected);
        assert!(!complete(&mut made.frame) && made.frame == expected);
    }
    assert!(seen > 1000);
}

/// For hostile input nothing panics, and at most the four bytes of one checksum change.
#[test]
fn hostile_frames_change_in_the_checksum_field_only() {
    let mut completed = 0;
    for frame in hostile::corpus() {
        for complete in [complete, complete_packet] {
            let mut changed = frame.clone();
            let did = complete(&mut changed);
            let at: Vec<usize> = (0..frame.len()).filter(|&i| frame[i] != changed[i]).collect();
            assert_eq!(did, !at.is_empty());
            assert!(at.last().is_none_or(|last| last - at[0] < 4), "{frame:02x?}");
            completed += u32::from(did);
        }
    }
    println!("{completed} frames were completed");
}

/// A datagram whose sums were worked out by hand after RFC 768 and RFC 9293.
#[test]
fn a_udp_datagram_computed_by_hand() {
    let mut packet = vec![0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    // Ports 1 and 2, length 10; the pseudo-header: 0a00 + 0001 + 0a00 + 0002 + 0011 + 000a = 141e.
    packet.extend([0, 1, 0, 2, 0, 10, 0x14, 0x1e, 0xab, 0xcd]);
    let mut damaged = packet.clone();
    damaged[27] = 0x1f;
    assert!(complete_packet(&mut packet));
    // 141e + 0001 + 0002 + 000a + abcd = bff8, and its complement.
    assert_eq!(packet[26..28], [0x40, 0x07]);
    assert!(!complete_packet(&mut damaged));
}

#[test]
fn partial_checksums_are_recognised_and_restored() {
    let mut random = Random::new(11, 0);
    for round in 0..3000 {
        let mut made = make(&mut random);
        let partial = made.partial();
        made.set(partial);
        let before = made.frame.clone();
        let packet = &mut made.frame[made.packet..];
        assert!(is_partial(packet), "{round}");
        complete_packet(packet);
        let completed = packet.to_vec();
        assert_eq!(
            is_partial(packet),
            completed == before[made.packet..],
            "{round}: only if completing changed nothing"
        );
        assert_eq!(restore_partial_udp(packet), made.protocol == UDP);
        let wanted = if made.protocol == UDP { &before[made.packet..] } else { &completed[..] };
        assert_eq!(packet, wanted, "{round}");
        // A datagram without checksum stays so.
        if made.protocol == UDP {
            made.set(0);
            let none = made.frame.clone();
            assert!(restore_partial_udp(&mut made.frame[made.packet..]));
            assert_eq!(made.frame, none);
        }
    }
}

#[test]
fn truncated_packets_have_no_partial_checksum() {
    let mut random = Random::new(12, 0);
    for _ in 0..300 {
        let mut made = make(&mut random);
        let partial = made.partial();
        made.set(partial);
        for length in 0..made.end - made.packet {
            let mut packet = made.frame[made.packet..made.packet + length].to_vec();
            let before = packet.clone();
            assert!(!is_partial(&packet) && !restore_partial_udp(&mut packet), "{length}");
            assert_eq!(packet, before);
        }
    }
}
