//! Packets to run filters on, each corpus with a name: well-formed traffic, hostile packets, and
//! captures that lie beside the repository.

use std::path::Path;

use portcullis::io::synth::{self, Generator, Size, Spec};
use portcullis::io::{Source, SourceError, SourceOptions, capture};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Packets of one kind or from one file.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// What to call it in a failure.
    pub name: String,
    /// The packets' bytes.
    pub packets: Vec<Vec<u8>>,
}

/// Well-formed traffic of every kind, of the lengths that links carry and some jumbo frames.
pub fn synthetic() -> Corpus {
    let mut packets = Vec::new();
    for (count, size) in [(4000, Size::Range(64, 400)), (300, Size::Range(1400, 1600)), (50, Size::Range(64, 9000))] {
        let spec = Spec { packets: count, seed: 11, size, flows: 200, ..Spec::default() };
        let mut generator = Generator::new(&spec);
        let mut bytes = vec![0; Generator::MAX_PACKET];
        for _ in 0..count {
            let (length, _) = generator.next_packet(&mut bytes);
            packets.push(bytes[..length].to_vec());
        }
    }
    Corpus { name: "synthetic traffic".into(), packets }
}

/// The hostile packets of the synthetic source and those that are made for the stock filters here.
pub fn hostile() -> Corpus {
    let mut packets = synth::hostile::corpus();
    packets.extend(against_the_stock_filters());
    Corpus { name: "hostile packets".into(), packets }
}

/// Every Ethernet capture under `../shared/captures`, as far as it can be read, in the order of
/// their names; or why there is none. Each also says what ended it early, if anything did.
///
/// # Errors
/// The folder is not there.
pub fn captures() -> Result<Vec<(Corpus, Option<SourceError>)>, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/captures");
    let mut files = Vec::new();
    find_captures(&folder, &mut files).map_err(|e| format!("no captures in ../shared/captures: {e}"))?;
    files.sort();
    let mut corpora = Vec::new();
    for file in files {
        let name = file.strip_prefix(&folder).unwrap_or(&file).display().to_string();
        let mut corpus = Corpus { name, packets: Vec::new() };
        let mut source = match capture::open(&file.to_string_lossy(), &SourceOptions::default()) {
            Ok(source) => source,
            Err(error) => {
                corpora.push((corpus, Some(error)));
                continue;
            }
        };
        let fault = loop {
            match source.next_batch() {
                Ok(Some(batch)) => corpus.packets.extend(batch.packets().map(<[u8]>::to_vec)),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        corpora.push((corpus, fault));
    }
    Ok(corpora)
}

fn find_captures(folder: &Path, files: &mut Vec<std::path::PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find_captures(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "pcap" || e == "pcapng") {
            files.push(path);
        }
    }
    Ok(())
}

/// Packets that try a parser's patience: valid ones of every shape, cut off at every byte, with
/// bytes changed, with lengths that lie, and noise. The same every time.
fn against_the_stock_filters() -> Vec<Vec<u8>> {
    let mut random = Pcg64::seed_from_u64(0x0bad_cafe);
    let shapes = shapes();
    let mut packets = Vec::new();
    for shape in &shapes {
        packets.extend((0..=shape.len().min(160)).map(|length| shape[..length].to_vec()));
        packets.push(shape.clone());
        for _ in 0..60 {
            let mut changed = shape.clone();
            for _ in 0..random.random_range(1..4) {
                // Mostly where the headers are.
                let at = random.random_range(0..changed.len().min(80));
                changed[at] = random.random();
            }
            changed.truncate(random.random_range(changed.len() / 2..=changed.len()));
            packets.push(changed);
        }
    }
    for index in 0..1000 {
        let mut noise = vec![0; random.random_range(0..160)];
        random.fill(&mut noise[..]);
        // Pure noise would end at the EtherType.
        if let Some(ethertype) = noise.get_mut(12..14) {
            ethertype
                .copy_from_slice(&[[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x88, 0xa8], [0x08, 0x06]][index % 5]);
        }
        packets.push(noise);
    }
    for length in [0, 1, 13, 14, 63, 64, 65, 1500, 1501, 9000, 65_535] {
        let mut long = tcp(&ipv4_header(0, 6, [10, 0, 0, 1]), 80);
        long.resize(length, 0xff);
        packets.push(long);
        packets.push(vec![0; length]);
        packets.push(vec![0xff; length]);
    }
    packets
}

/// Ethernet and IPv4 with `options` words of options and a protocol.
fn ipv4_header(options: u8, protocol: u8, source: [u8; 4]) -> Vec<u8> {
    let mut packet = ethernet(&[0x08, 0x00]);
    packet.extend([0x45 + options, 0xb9, 0, 64, 0x12, 0x34, 0, 0, 64, protocol, 0xca, 0xfe]);
    packet.extend(source);
    packet.extend([203, 0, 113, 7]);
    packet.extend(vec![1; usize::from(options) * 4]);
    packet
}

/// Ethernet and IPv6 with a chain of extension headers, each a number and its length in bytes.
fn ipv6_header(chain: &[(u8, usize)], protocol: u8) -> Vec<u8> {
    let mut packet = ethernet(&[0x86, 0xdd]);
    let numbers: Vec<u8> = chain.iter().map(|&(number, _)| number).chain([protocol]).collect();
    packet.extend([0x6b, 0x9a, 0xbc, 0xde, 0, 64, numbers[0], 64]);
    packet.extend([0x20; 16]);
    packet.extend([0xfd; 16]);
    for (&(number, length), next) in chain.iter().zip(&numbers[1..]) {
        let mut header = vec![0; length];
        header[0] = *next;
        header[1] = match number {
            44 => 0,
            51 => (length / 4 - 2) as u8,
            _ => (length / 8 - 1) as u8,
        };
        packet.extend(header);
    }
    packet
}

fn ethernet(types: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x02, 1, 2, 3, 4, 5, 0x06, 7, 8, 9, 10, 11];
    packet.extend(types);
    packet
}

/// A header, and TCP or UDP to `port` behind it with some payload.
fn tcp(header: &[u8], port: u16) -> Vec<u8> {
    let mut packet = header.to_vec();
    packet.extend([0xc0, 0x01]);
    packet.extend(port.to_be_bytes());
    packet.extend(0..40);
    packet
}

/// The packet with bytes put in behind the addresses.
fn tagged(packet: &[u8], tags: &[u8]) -> Vec<u8> {
    [&packet[..12], tags, &packet[12..]].concat()
}

/// One valid packet of every shape that some filter tells apart, and some that are just not valid.
fn shapes() -> Vec<Vec<u8>> {
    let mut shapes = Vec::new();
    for port in [0, 22, 23, 80, 443, 1023, 1024, 65_535] {
        shapes.push(tcp(&ipv4_header(0, 6, [192, 168, 0, 1]), port));
        shapes.push(tcp(&ipv4_header(0, 17, [10, 0, 255, 1]), port));
        shapes.push(tcp(&ipv4_header(0, 6, [198, 51, 100, 1]), port));
        shapes.push(tcp(&ipv6_header(&[], 6), port));
    }
    for source in [[10, 1, 0, 1], [172, 16, 9, 9], [172, 17, 0, 1], [192, 168, 200, 1], [192, 169, 0, 1]] {
        shapes.push(tcp(&ipv4_header(0, 6, source), 25));
    }
    for options in [1, 5, 10] {
        shapes.push(tcp(&ipv4_header(options, 6, [10, 0, 0, 2]), 443));
        shapes.push(tcp(&ipv4_header(options, 17, [10, 0, 0, 2]), 53));
    }
    for protocol in [0, 1, 2, 41, 47, 51, 58, 132] {
        shapes.push(tcp(&ipv4_header(0, protocol, [10, 0, 0, 3]), 80));
        shapes.push(tcp(&ipv6_header(&[], protocol), 80));
    }
    // Fragments: first (more to come), later, the last possible, do not fragment.
    for field in [[0x20, 0x00], [0x20, 0x01], [0x00, 0xb9], [0x1f, 0xff], [0x40, 0x00]] {
        let mut fragment = tcp(&ipv4_header(0, 6, [10, 0, 0, 4]), 80);
        fragment[20..22].copy_from_slice(&field);
        shapes.push(fragment);
        let mut fragment = tcp(&ipv6_header(&[(44, 8)], 6), 80);
        // Offset in the upper 13 bits, "more" in the lowest.
        let offset = u16::from_be_bytes(field) << 3 | u16::from(field[0] & 0x20 != 0);
        fragment[56..58].copy_from_slice(&offset.to_be_bytes());
        shapes.push(fragment);
    }
    // Version and IHL that no IPv4 header has.
    for first in [0x00, 0x40, 0x44, 0x35, 0x55, 0x60, 0xf5] {
        let mut bad = tcp(&ipv4_header(0, 6, [10, 0, 0, 5]), 80);
        bad[14] = first;
        shapes.push(bad);
        let mut bad = tcp(&ipv6_header(&[], 6), 80);
        bad[14] = first;
        shapes.push(bad);
    }
    for count in [1, 2, 7, 8, 9, 10] {
        shapes.push(tcp(&ipv6_header(&vec![(60, 8); count], 6), 80));
        shapes.push(tcp(&ipv6_header(&vec![(51, 12); count], 6), 443));
    }
    shapes.push(tcp(&ipv6_header(&[(0, 8), (43, 24), (60, 16), (44, 8), (51, 24), (135, 8), (60, 8)], 6), 443));
    shapes.push(tcp(&ipv6_header(&[(0, 2048)], 6), 443));
    shapes.push(tcp(&ipv6_header(&[(0, 8), (50, 8)], 6), 80));
    shapes.push(tcp(&ipv6_header(&[(0, 8), (59, 8)], 6), 80));
    for inner in [
        tcp(&ipv4_header(0, 6, [10, 0, 0, 6]), 80),
        tcp(&ipv4_header(3, 6, [10, 0, 0, 6]), 443),
        tcp(&ipv6_header(&[(0, 8)], 6), 443),
    ] {
        shapes.push(tagged(&inner, &[0x81, 0x00, 0x20, 0x05]));
        shapes.push(tagged(&inner, &[0x88, 0xa8, 0x20, 0x05]));
        shapes.push(tagged(&inner, &[0x88, 0xa8, 0, 1, 0x81, 0x00, 0, 2]));
        shapes.push(tagged(&inner, &[0x81, 0x00, 0, 1, 0x81, 0x00, 0, 2]));
    }
    shapes.push([ethernet(&[0x08, 0x06]), vec![0, 1, 8, 0, 6, 4, 0, 1], vec![0; 38]].concat());
    // A checksum that RFC 1624's two zeros tell apart, and marks that are there already.
    for (tos, check) in [(0x00, [0x00, 0x00]), (0x00, [0xff, 0xff]), (0xb8, [0xff, 0xff]), (0xbb, [0x12, 0x34])] {
        let mut marked = tcp(&ipv4_header(0, 6, [10, 0, 0, 7]), 80);
        marked[15] = tos;
        marked[24..26].copy_from_slice(&check);
        shapes.push(marked);
    }
    shapes
}
