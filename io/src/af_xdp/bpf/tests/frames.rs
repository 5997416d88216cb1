//! Frames that match rules or narrowly miss them, complete, truncated and corrupted.

use crate::synth::Random;

/// Ports that the tests' rules match, and neighbouring ones.
pub const PORTS: [u16; 9] = [0, 22, 79, 80, 80, 81, 8000, 8050, 65535];
/// TCP, UDP, SCTP, ICMPv6, ICMP, GRE, ESP, AH, extension headers of IPv6, and an unassigned number.
pub const PROTOCOLS: [u8; 16] = [6, 6, 17, 17, 132, 58, 58, 1, 47, 50, 51, 0, 43, 44, 60, 255];
/// Mostly IPv4 and IPv6; also ARP, MPLS, LLDP, a length, tags.
pub const ETHERTYPES: [u16; 14] =
    [0x0800, 0x0800, 0x0800, 0x86dd, 0x86dd, 0x86dd, 0x86dd, 0x0806, 0x8847, 0x88cc, 0x05dc, 0x8100, 0x88a8, 0x0600];

/// Builds a mostly valid frame.
pub fn frame(random: &mut Random) -> Vec<u8> {
    let mut frame = vec![0; 12];
    random.fill(&mut frame);
    for _ in 0..random.pick(&[0, 0, 0, 1, 1, 2, 3]) {
        frame.extend(random.pick(&[0x8100u16, 0x88a8]).to_be_bytes());
        frame.extend((random.u32() as u16).to_be_bytes());
    }
    let ethertype = random.pick(&ETHERTYPES);
    frame.extend(ethertype.to_be_bytes());
    match ethertype {
        0x0800 => ipv4(random, &mut frame),
        0x86dd => ipv6(random, &mut frame),
        _ => {}
    }
    let tail = frame.len() + random.below(24) as usize;
    frame.resize(tail, random.u32() as u8);
    frame
}

/// Truncates the frame, or changes a byte.
pub fn corrupt(random: &mut Random, frame: &mut Vec<u8>) {
    match random.below(4) {
        0 => frame.truncate(random.below(frame.len() as u32 + 1) as usize),
        1 => {
            let at = random.below(frame.len() as u32) as usize;
            frame[at] = random.u32() as u8;
        }
        _ => {}
    }
}

fn ipv4(random: &mut Random, frame: &mut Vec<u8>) {
    let words = random.pick(&[5, 5, 5, 5, 6, 15, 4, 0]);
    let mut header = vec![0; 4 * words.max(5)];
    random.fill(&mut header);
    header[0] = random.pick(&[4, 4, 4, 4, 4, 4, 5, 3]) << 4 | words as u8;
    // Reserved bit, don't-fragment and more-fragments do not matter; of the offset set a single
    // bit.
    let offset = if random.one_in(3) { 1 << random.below(13) } else { 0 };
    header[6..8].copy_from_slice(&(random.pick(&[0u16, 0x2000, 0x4000, 0x8000]) | offset).to_be_bytes());
    let protocol = random.pick(&PROTOCOLS);
    header[9] = protocol;
    frame.extend(header);
    payload(random, frame, protocol);
}

fn ipv6(random: &mut Random, frame: &mut Vec<u8>) {
    let start = frame.len();
    frame.resize(start + 40, 0);
    random.fill(&mut frame[start..]);
    frame[start] = random.pick(&[0x60, 0x60, 0x60, 0x60, 0x6f, 0x40]);
    // Offset of the previous header's next-header field.
    let mut next = start + 6;
    for _ in 0..random.pick(&[0, 0, 0, 1, 1, 2, 3, 7, 8, 9]) {
        frame[next] = random.pick(&[0, 43, 44, 60]);
        let units = if frame[next] != 44 { random.pick(&[0, 0, 0, 1, 2, 40]) } else { 0 };
        let mut header = vec![0; 8 * (units + 1)];
        random.fill(&mut header);
        if frame[next] == 44 {
            let offset = if random.one_in(3) { 8 << random.below(13) } else { 0 };
            // The lowest three bits are not part of the offset.
            header[2..4].copy_from_slice(&(offset | random.below(8) as u16).to_be_bytes());
        } else {
            header[1] = units as u8;
        }
        next = frame.len();
        frame.extend(header);
    }
    let protocol = random.pick(&PROTOCOLS);
    frame[next] = protocol;
    payload(random, frame, protocol);
}

fn payload(random: &mut Random, frame: &mut Vec<u8>, protocol: u8) {
    let mut header = [0; 8];
    random.fill(&mut header);
    match protocol {
        58 => header[0] = 130 + random.below(10) as u8,
        // A source port that would match as a destination port.
        _ => {
            header[..2].copy_from_slice(&random.pick(&PORTS).to_be_bytes());
            header[2..4].copy_from_slice(&random.pick(&PORTS).to_be_bytes());
        }
    }
    frame.extend(header);
}
