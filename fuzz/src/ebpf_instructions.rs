//! Fuzz target: arbitrary bytes as a packet and eBPF instructions. An accepted program must give
//! the result of an independent eBPF interpreter.

#[path = "../../frontends/xdp/src/tests/model/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod model;

use model::arbitrary::MAPS;
use model::compare::{Comparison, compare};
use model::{Code, Instruction};
use portcullis_xdp as xdp;

/// Splits the input into the packet, whose length the first byte gives, and the instructions.
fn parts(data: &[u8]) -> (&[u8], Code) {
    let Some((&length, rest)) = data.split_first() else { return (&[], Code::default()) };
    let (packet, rest) = rest.split_at(rest.len().min(length.into()));
    let instruction = |bytes: &[u8; 8]| Instruction {
        code: bytes[0],
        dst: bytes[1] & 15,
        src: bytes[1] >> 4,
        off: i16::from_le_bytes([bytes[2], bytes[3]]),
        imm: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    let instructions = rest.as_chunks().0.iter().map(instruction).collect();
    (packet, Code { instructions, functions: vec![0], maps: MAPS.to_vec() })
}

/// Compares the front end with the independent interpreter, on the packet and two others.
fn compare_with_model(data: &[u8]) -> Comparison {
    let (packet, code) = parts(data);
    let packets = [packet.to_vec(), vec![0x45; 60], vec![0xff; 14]];
    compare(&code, &packets).unwrap_or_else(|difference| panic!("{}\n{}", difference.what, code.listing()))
}

/// Translates the instructions, and runs an accepted program over the packet and two others.
///
/// # Panics
/// If the front end panics, or the translated filter differs from the instructions.
pub fn run(data: &[u8]) {
    compare_with_model(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::{A_SECOND, Corpus, mutation, run_for};
    use model::Random;

    /// Accepted programs, encoded as bytes.
    fn seeds() -> Vec<Vec<u8>> {
        let seed = |number: u64| {
            let mut random = Random(number);
            let code = model::arbitrary::program(&mut random, 3 + number as u32 % 10);
            let mut bytes = vec![20];
            bytes.extend(&model::arbitrary::packets(&mut random, 1)[0][..14]);
            bytes.resize(21, 7);
            for it in &code.instructions {
                bytes.extend([it.code, it.dst | it.src << 4]);
                bytes.extend(it.off.to_le_bytes());
                bytes.extend(it.imm.to_le_bytes());
            }
            bytes
        };
        (1..24).map(seed).collect()
    }

    #[test]
    fn mutated_seeds_never_panic() {
        let seeds = seeds();
        let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
        let pieces: &[&[u8]] = &[
            b"\x95\x00\x00\x00\x00\x00\x00\x00",
            b"\x79\x12\x00\x00\x00\x00\x00\x00",
            b"\x7b\x2a\xf8\xff\x00\x00\x00\x00",
            b"\xdb\x2a\xf8\xff\x01\x00\x00\x00",
            b"\xbf\x21\x20\x00\x00\x00\x00\x00",
            b"\x85\x00\x00\x00\x01\x00\x00\x00",
            b"\x05\x00\xfe\xff\x00\x00\x00\x00",
        ];
        println!(
            "{} programs",
            run_for(A_SECOND, "ebpf_instructions", Corpus { seeds: &seeds, tokens: "", pieces }, 0, run)
        );
    }

    #[test]
    fn seeds_and_some_mutations_are_valid_programs() {
        let seeds = seeds();
        let is_accepted = |data: &[u8]| !matches!(compare_with_model(data), Comparison::Refused(_));
        let accepted = seeds.iter().filter(|seed| is_accepted(seed)).count();
        assert!(accepted > 15, "{accepted} of {}", seeds.len());
        let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
        let corpus = Corpus { seeds: &seeds, ..Corpus::default() };
        assert!((0..100).filter(|&number| is_accepted(&mutation(corpus, number))).count() > 5);
    }
}
