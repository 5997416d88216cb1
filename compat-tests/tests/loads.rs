//! Loads followed by shifts, masks and comparisons with constants. Code generators optimise these
//! patterns (a byte instead of a word, comparison without byte swap), also if a load may be outside
//! the packet. The model reads the packet byte by byte.

use portcullis_compat_tests::harness;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

const FILTERS: u64 = 12;
/// Number of cases that a device with a slow compiler runs.
const SHARE: usize = 6;
/// Number of terms in each filter.
const TERMS: usize = 40;

const LOADS: [(&str, usize, bool); 5] = [
    ("load_u8", 1, false),
    ("load_be16", 2, true),
    ("load_le16", 2, false),
    ("load_be32", 4, true),
    ("load_le32", 4, false),
];
/// Offsets of header fields, and around the number of bytes that may be read without a check.
const OFFSETS: [u32; 15] = [0, 1, 3, 12, 14, 20, 23, 33, 60, 63, 64, 123, 126, 128, 0xffff_fffd];
const SHIFTS: [u32; 7] = [0, 4, 8, 12, 16, 24, 31];
const MASKS: [u32; 9] = [0, 1, 0xff, 0xff00, 0x1fff, 0xffff, 0xff_00ff, 0xff00_0000, u32::MAX];
type Comparison = (&'static str, fn(u32, u32) -> bool);
const COMPARISONS: [Comparison; 4] =
    [("==", |a, b| a == b), ("!=", |a, b| a != b), ("<", |a, b| a < b), (">=", |a, b| a >= b)];

/// An expression that consists of one load and the operations applied to it.
struct Term {
    load: (&'static str, usize, bool),
    offset: u32,
    /// Whether the first byte of the packet is added to the offset.
    adds_first_byte: bool,
    steps: Vec<Step>,
}

enum Step {
    Shift(u32),
    Mask(u32),
    Compare(usize, u32),
}

impl Term {
    fn random(rng: &mut Pcg64Mcg) -> Term {
        fn one<T: Copy>(rng: &mut Pcg64Mcg, of: &[T]) -> T {
            *of.choose(rng).expect("the list is not empty")
        }
        let load = one(rng, &LOADS);
        // A value that the load may return for the bytes of `packets`, to be compared with.
        let mut like = u32::from_le_bytes(std::array::from_fn(|_| rng.random_range(0..3)));
        if load.1 < 4 {
            like &= (1 << (8 * load.1)) - 1;
        }
        // Extract a byte, compare a masked value, or any sequence.
        let kinds: Vec<u32> = match rng.random_range(0..3) {
            0 => vec![0, 3],
            1 => vec![1, 2],
            _ => (0..rng.random_range(0..4)).map(|_| rng.random_range(0..3)).collect(),
        };
        let steps = kinds.into_iter().map(|kind| match kind {
            0 => {
                let by = one(rng, &SHIFTS);
                like >>= by;
                Step::Shift(by)
            }
            1 => {
                let mask = one(rng, &MASKS);
                like &= mask;
                Step::Mask(mask)
            }
            2 => Step::Compare(rng.random_range(0..COMPARISONS.len()), one(rng, &[like, like, like, 0x1_0000])),
            _ => Step::Mask(0xff),
        });
        let steps = steps.collect();
        Term { load, offset: one(rng, &OFFSETS), adds_first_byte: rng.random(), steps }
    }

    fn text(&self) -> String {
        let moved = if self.adds_first_byte { " + load_u8(pkt, 0u)" } else { "" };
        let mut text = format!("{}(pkt, {}u{moved})", self.load.0, self.offset);
        for step in &self.steps {
            text = match step {
                Step::Shift(by) => format!("({text} >> {by}u)"),
                Step::Mask(mask) => format!("({text} & {mask}u)"),
                Step::Compare(which, with) => format!("select(3u, 5u, {text} {} {with}u)", COMPARISONS[*which].0),
            };
        }
        text
    }

    fn value(&self, packet: &[u8]) -> u32 {
        let (_, size, big) = self.load;
        let first = if self.adds_first_byte { packet.first().copied().unwrap_or(0) } else { 0 };
        let at = u64::from(self.offset.wrapping_add(u32::from(first)));
        let mut value = 0u32;
        if at + size as u64 <= packet.len() as u64 {
            for byte in 0..size {
                let from = if big { byte } else { size - 1 - byte };
                value = value << 8 | u32::from(packet[at as usize + from]);
            }
        }
        for step in &self.steps {
            value = match *step {
                Step::Shift(by) => value >> by,
                Step::Mask(mask) => value & mask,
                Step::Compare(which, with) => {
                    if COMPARISONS[which].1(value, with) {
                        5
                    } else {
                        3
                    }
                }
            };
        }
        value
    }
}

/// Returns a filter that redirects to the low 24 bits of a hash of its terms, and the terms.
fn filter(seed: u64) -> (String, Vec<Term>) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let terms: Vec<Term> = (0..TERMS).map(|_| Term::random(&mut rng)).collect();
    let mut text = String::from("fn xdp_filter(pkt: u32) -> u32 {\n    var sum = 1u;\n");
    for (index, term) in terms.iter().enumerate() {
        // Some loads follow a length check, which may or may not prove them.
        match index % 6 {
            2..=4 => text += &format!("    if pkt_len(pkt) >= 64u {{ sum = sum * 31u + {}; }}\n", term.text()),
            5 => text += &format!("    if pkt_len(pkt) < 130u || sum == 0u {{ sum = sum * 31u + {}; }}\n", term.text()),
            _ => text += &format!("    sum = sum * 31u + {};\n", term.text()),
        }
    }
    text += "    return redirect(sum & 0xffffffu);\n}\n";
    (text, terms)
}

fn model(terms: &[Term], packet: &[u8]) -> u32 {
    let mut sum = 1u32;
    for (index, term) in terms.iter().enumerate() {
        let reached = match index % 6 {
            2..=4 => packet.len() >= 64,
            5 => packet.len() < 130 || sum == 0,
            _ => true,
        };
        if reached {
            sum = sum.wrapping_mul(31).wrapping_add(term.value(packet));
        }
    }
    sum & 0xff_ffff
}

/// Returns packets of every length below 200, with few distinct bytes.
fn packets() -> Vec<Vec<u8>> {
    let mut rng = Pcg64Mcg::seed_from_u64(7);
    (0..200).map(|length| (0..length).map(|_| rng.random_range(0..3)).collect()).collect()
}

#[test]
fn loads_agree_with_the_model() {
    let filters = (0..FILTERS).map(|seed| {
        let (text, terms) = filter(seed);
        (text, move |packet: &[u8]| model(&terms, packet))
    });
    harness::compare_with_models("loads", filters, &packets(), SHARE);
}
