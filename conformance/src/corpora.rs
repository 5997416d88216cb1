//! Packet corpora of the self-test, identical in every run and on every machine.

use portcullis_core::packet::Metadata;
use portcullis_io::synth::{self, Generator, Kind, Mix, Random, Size, Spec};

/// A packet and its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Packet bytes.
    pub bytes: Vec<u8>,
    /// Wire length, port and time.
    pub metadata: Metadata,
}

/// Packets of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    /// Name of the corpus.
    pub name: &'static str,
    /// The packets.
    pub packets: Vec<Packet>,
}

/// How many packets to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// A sample of every corpus, for debug builds, in which the interpreter is slow.
    Quick,
    /// All packets, but only one in three of the hostile ones: long series of them differ by a
    /// byte, and the reference is slow.
    #[default]
    Full,
}

/// Returns every corpus.
pub fn corpora(depth: Depth) -> Vec<Corpus> {
    let (usual, hostile_step) = match depth {
        Depth::Quick => (5, 250),
        Depth::Full => (1, 3),
    };
    [(boundaries(), usual), (traffic(), usual), (fronthaul(), usual), (hostile(), hostile_step)]
        .into_iter()
        .map(|(corpus, step)| Corpus { packets: corpus.packets.into_iter().step_by(step).collect(), ..corpus })
        .collect()
}

/// Well-formed packets of every kind in the generator's default mix.
fn traffic() -> Corpus {
    generated("traffic", 600, Mix::default())
}

/// Messages of a fronthaul.
fn fronthaul() -> Corpus {
    generated("fronthaul", 150, Mix::new(&[(Kind::Ecpri, 1)]).expect("a weight above 0"))
}

fn generated(name: &'static str, packets: u64, mix: Mix) -> Corpus {
    let spec = Spec { packets, seed: 7, size: Size::Range(64, 400), flows: 100, mix };
    let mut generator = Generator::new(&spec);
    let mut buffer = vec![0; 1 << 16];
    let packets = (0..spec.packets)
        .map(|_| {
            let (length, metadata) = generator.next_packet(&mut buffer);
            Packet { bytes: buffer[..length].to_vec(), metadata }
        })
        .collect();
    Corpus { name, packets }
}

/// Packets with contradictory headers and arbitrary metadata.
fn hostile() -> Corpus {
    let packets = synth::hostile::corpus().into_iter().filter(|bytes| bytes.len() <= 2048);
    let mut random = Random::new(0x0bad_cafe, 0);
    let packets = packets.map(|bytes| {
        let wire = bytes.len() as u32 + random.below(3);
        let time = u64::from(random.u32()) << 32 | u64::from(random.u32());
        Packet { metadata: Metadata::new(wire, random.below(20), time), bytes }
    });
    Corpus { name: "hostile", packets: packets.collect() }
}

/// Packets of every length up to 160 bytes, which covers the boundaries of most headers, and some
/// long ones. Neighbouring bytes differ, so that a byte read from a wrong offset is noticed.
fn boundaries() -> Corpus {
    let lengths = (0..=160).chain([255, 256, 257, 1500, 1501, 1514, 2048, 5000]);
    let packets = lengths
        .map(|length: u32| {
            // 167 and 256 are coprime, so every byte value occurs.
            let bytes = (0..length).map(|i| (i.wrapping_mul(167) + length * 31 + 1) as u8).collect();
            Packet {
                bytes,
                metadata: Metadata::new(length + length % 3, length % 5, u64::from(length) << 33 | 0x9abc_def1),
            }
        })
        .collect();
    Corpus { name: "boundaries", packets }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora_are_the_same_every_time() {
        assert_eq!(corpora(Depth::Full), corpora(Depth::Full));
        let count = |depth| corpora(depth).iter().map(|c| c.packets.len()).collect::<Vec<_>>();
        assert!(count(Depth::Quick).iter().zip(count(Depth::Full)).all(|(&quick, full)| quick > 25 && quick < full));
    }
}
