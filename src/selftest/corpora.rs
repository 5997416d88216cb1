//! The packets of the self-test. The same ones every time and everywhere.

use portcullis_core::packet::Metadata;
use portcullis_io::synth::{self, Generator, Mix, Size, Spec};

/// A packet and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its wire length, port and time.
    pub metadata: Metadata,
}

impl Packet {
    /// A packet that arrived whole, on port 0, at the epoch.
    pub fn plain(bytes: Vec<u8>) -> Packet {
        let metadata = Metadata::new(bytes.len() as u32, 0, 0);
        Packet { bytes, metadata }
    }
}

/// Packets of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    /// What they are.
    pub name: &'static str,
    /// The packets.
    pub packets: Vec<Packet>,
}

/// How many packets are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// A part, spread over all: for debug builds, in which the interpreter is slow.
    Quick,
    /// All of them.
    #[default]
    Full,
}

/// Every corpus.
pub fn corpora(depth: Depth) -> Vec<Corpus> {
    let (usual, hostile_step) = match depth {
        Depth::Quick => (5, 100),
        Depth::Full => (1, 1),
    };
    [(boundaries(), usual), (noise(), usual), (traffic(), usual), (hostile(), hostile_step)]
        .into_iter()
        .map(|(corpus, step)| Corpus { packets: corpus.packets.into_iter().step_by(step).collect(), ..corpus })
        .collect()
}

/// Well-formed packets of every kind that there is.
fn traffic() -> Corpus {
    let spec = Spec { packets: 600, seed: 7, size: Size::Range(64, 400), flows: 100, mix: Mix::default() };
    let mut generator = Generator::new(&spec);
    let mut buffer = vec![0; 1 << 16];
    let packets = (0..spec.packets)
        .map(|_| {
            let (length, metadata) = generator.next_packet(&mut buffer);
            Packet { bytes: buffer[..length].to_vec(), metadata }
        })
        .collect();
    Corpus { name: "traffic", packets }
}

/// Packets that lie about themselves.
fn hostile() -> Corpus {
    let packets = synth::hostile::corpus().into_iter().filter(|bytes| bytes.len() <= 2048).map(Packet::plain).collect();
    Corpus { name: "hostile", packets }
}

/// Packets of every length up to 160 bytes, where the boundaries of most headers lie, and some long
/// ones. No byte is like its neighbours, so that one that is read from a wrong place shows.
fn boundaries() -> Corpus {
    let lengths = (0..=160).chain([255, 256, 257, 1500, 1501, 1514, 2048, 5000]);
    let packets = lengths
        .map(|length: u32| {
            // 167 is prime to 256: all bytes occur.
            let bytes = (0..length).map(|i| (i.wrapping_mul(167) + length * 31 + 1) as u8).collect();
            Packet {
                bytes,
                metadata: Metadata::new(length + length % 3, length % 5, u64::from(length) << 33 | 0x9abc_def1),
            }
        })
        .collect();
    Corpus { name: "boundaries", packets }
}

/// Bytes without any order behind an Ethernet header that has one of the EtherTypes that filters
/// look at.
fn noise() -> Corpus {
    let mut random = SplitMix(0x0bad_cafe);
    let packets = (0..400)
        .map(|index| {
            let length = if index % 80 == 0 { 500 + random.below(2000) } else { random.below(150) } as usize;
            let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
            if let Some(ethertype) = bytes.get_mut(12..14) {
                let known = [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x88, 0xa8], [0x08, 0x06]];
                ethertype.copy_from_slice(&known[index % known.len()]);
            }
            // Half of the IPv4 and IPv6 packets have a first byte that is right.
            if let (Some(first), true) = (bytes.get_mut(14), index % 2 == 0) {
                *first = [0x45, 0x60, 0x46, 0x4f][index / 2 % 4];
            }
            let wire = length as u32 + random.below(3) as u32;
            Packet { bytes, metadata: Metadata::new(wire, random.below(20) as u32, random.next()) }
        })
        .collect();
    Corpus { name: "noise", packets }
}

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): all that
/// is needed here, and no dependency that could change the corpus.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_gives_the_published_numbers() {
        // The first outputs for seed 1234567, as other implementations of it list them.
        let mut random = SplitMix(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn corpora_are_the_same_every_time() {
        assert_eq!(corpora(Depth::Full), corpora(Depth::Full));
        let count = |depth| corpora(depth).iter().map(|c| c.packets.len()).collect::<Vec<_>>();
        assert!(count(Depth::Quick).iter().zip(count(Depth::Full)).all(|(&quick, full)| quick > 25 && quick < full));
    }
}
