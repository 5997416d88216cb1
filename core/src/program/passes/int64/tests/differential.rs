//! Filters before and after the pass, on the reference interpreter: verdicts, packet bytes and fuel
//! must agree.

use super::super::super::Lowering;
use super::super::super::testing::Pair;
use super::random::filter;
use super::{corpus, filter_of};
use crate::interp::Outcome;
use crate::testing::Random;

/// Returns a lowering with only this pass.
fn alone() -> Lowering {
    Lowering { int64: true, ..Lowering::default() }
}

/// This pass together with those that interact with it.
fn with_others() -> Lowering {
    Lowering { int64: true, clamp_indices: true, mask_shifts: true, ..Lowering::default() }
}

/// Values around carries, sign changes, word boundaries and shifts.
const CORNERS: [u64; 23] = [
    0,
    1,
    2,
    3,
    10,
    0xffff,
    0x10000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x1_0000_0001,
    0xffff_ffff_0000,
    0x80_0000_1000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x8000_0000_0000_0001,
    // Just above the midpoint between two adjacent f32.
    0x8000_0080_0000_0001,
    0xdead_beef_cafe_f00d,
    0xffff_ffff_0000_0000,
    0xffff_ffff_8000_0000,
    0xffff_ffff_ffff_fffe,
    0xffff_ffff_ffff_ffff,
];

const COUNTS: [u32; 8] = [0, 1, 31, 32, 33, 63, 64, 0xffff_ffff];

/// Floating-point numbers around the ranges of integers.
const FLOATS: [f32; 16] = [
    0.0,
    -0.5,
    0.99,
    1.0,
    -1.0,
    -1.5,
    8_388_607.5,
    16_777_216.0,
    4_294_967_296.0,
    -4_294_967_297.0,
    9.2e18,
    -9.3e18,
    1.8e19,
    1.9e19,
    f32::MAX,
    f32::NAN,
];

/// A packet with operands for `filter_of`.
fn operands(x: u64, y: u64, w: u32, f: f32) -> Vec<u8> {
    let mut packet = vec![0xee; 64];
    packet[..8].copy_from_slice(&x.to_le_bytes());
    packet[8..16].copy_from_slice(&y.to_le_bytes());
    packet[16..20].copy_from_slice(&w.to_le_bytes());
    packet[20..24].copy_from_slice(&f.to_bits().to_le_bytes());
    packet
}

/// The 64-bit value that `filter_of` stored to the packet.
fn result(outcome: &Outcome) -> u64 {
    outcome.packet[24..32].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[test]
fn every_operation_behaves_the_same_lowered() {
    let mut random = Random(1);
    for (ty, expression) in corpus::expressions() {
        let pair = Pair::new(&filter_of(ty, expression), with_others());
        for i in 0..24 {
            let (x, y) = (random.operand(), random.operand());
            pair.run(&operands(x, y, random.count(), FLOATS[i % FLOATS.len()]));
        }
    }
}

#[test]
fn corpus_filters_behave_the_same_lowered() {
    let mut random = Random(2);
    for text in corpus::FILTERS {
        for lowering in [alone(), with_others()] {
            let pair = Pair::new(text, lowering);
            for length in [0, 20, 64] {
                for _ in 0..8 {
                    pair.run(&random.packet(length));
                }
            }
        }
    }
}

#[test]
fn random_filters_behave_the_same_lowered() {
    for seed in 0..60 {
        let text = filter(seed);
        let pair = Pair::new(&text, if seed % 2 == 0 { alone() } else { with_others() });
        let mut random = Random(seed);
        for length in [64, 64, 64, 30, 0] {
            pair.run(&random.packet(length));
        }
    }
}

/// Compares the arithmetic with Rust's, because the interpreter and the library might share a
/// mistake.
#[test]
fn arithmetic_agrees_with_rust() {
    type Expected = fn(u64, u64, u32) -> u64;
    let cases: &[(&str, Expected)] = &[
        ("x + y", |x, y, _| x.wrapping_add(y)),
        ("x - y", |x, y, _| x.wrapping_sub(y)),
        ("x * y", |x, y, _| x.wrapping_mul(y)),
        ("x / y", |x, y, _| x.checked_div(y).unwrap_or(x)),
        ("x % y", |x, y, _| x.checked_rem(y).unwrap_or(0)),
        ("u64(i / j)", |x, y, _| if y == 0 { x } else { (x as i64).wrapping_div(y as i64) as u64 }),
        ("u64(i % j)", |x, y, _| if y == 0 { 0 } else { (x as i64).wrapping_rem(y as i64) as u64 }),
        ("u64(-i)", |x, _, _| x.wrapping_neg()),
        ("x << w", |x, _, w| x << (w % 64)),
        ("x >> w", |x, _, w| x >> (w % 64)),
        ("u64(i >> w)", |x, _, w| ((x as i64) >> (w % 64)) as u64),
        ("u64(x < y)", |x, y, _| u64::from(x < y)),
        ("u64(x <= y)", |x, y, _| u64::from(x <= y)),
        ("u64(i < j)", |x, y, _| u64::from((x as i64) < y as i64)),
        ("u64(i >= j)", |x, y, _| u64::from(x as i64 >= y as i64)),
        ("u64(x == y)", |x, y, _| u64::from(x == y)),
        ("min(x, y)", |x, y, _| x.min(y)),
        ("u64(max(i, j))", |x, y, _| (x as i64).max(y as i64) as u64),
        ("u64(abs(i))", |x, _, _| (x as i64).wrapping_abs() as u64),
        ("u64(sign(i))", |x, _, _| (x as i64).signum() as u64),
        ("countOneBits(x)", |x, _, _| x.count_ones().into()),
        ("countLeadingZeros(x)", |x, _, _| x.leading_zeros().into()),
        ("countTrailingZeros(x)", |x, _, _| x.trailing_zeros().into()),
        ("firstLeadingBit(x)", |x, _, _| x.checked_ilog2().map_or(u64::MAX, u64::from)),
        ("reverseBits(x)", |x, _, _| x.reverse_bits()),
        ("u64(i64(s))", |_, _, w| w as i32 as i64 as u64),
        ("u64(bitcast<u32>(f32(x)))", |x, _, _| (x as f32).to_bits().into()),
        ("u64(bitcast<u32>(f32(i)))", |x, _, _| (x as i64 as f32).to_bits().into()),
    ];
    for (expression, expected) in cases {
        let pair = Pair::new(&filter_of("u64", expression), alone());
        for (n, &x) in CORNERS.iter().enumerate() {
            // Expressions without y and w need only one pass over x.
            let others = if expression.contains(['y', 'j']) { CORNERS.len() } else { COUNTS.len() };
            for (m, &y) in CORNERS[..others].iter().enumerate() {
                let w = COUNTS[(n + m) % COUNTS.len()];
                let outcome = pair.run(&operands(x, y, w, 0.0));
                assert_eq!(result(&outcome), expected(x, y, w), "{expression} of {x:#x}, {y:#x}, {w}");
            }
        }
    }
}

/// Estimated digits of a quotient are rarely corrected more than once, so test many divisions.
#[test]
fn division_agrees_with_rust() {
    let pair = Pair::new(&filter_of("vec2<u64>", "vec2<u64>(x / y, x % y)"), alone());
    let mut random = Random(4);
    // Long runs of equal bits make digits of all ones or all zeros likely.
    let runs = |random: &mut Random| {
        (0..6).fold(0u64, |bits, _| bits.rotate_left(7 + random.below(20) as u32) ^ (u64::MAX >> random.below(64)))
    };
    for n in 0..4000 {
        let (x, y) = (runs(&mut random), runs(&mut random) >> [0, 0, 16, 32, 33, 48][n % 6]);
        let outcome = pair.run(&operands(x, y, 0, 0.0));
        let remainder = outcome.packet[32..40].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        let expected = (x.checked_div(y).unwrap_or(x), x.checked_rem(y).unwrap_or(0));
        assert_eq!((result(&outcome), remainder), expected, "{x:#x} by {y:#x}");
    }
}

/// Compares conversions from floating point with the clamped ranges of WGSL.
#[test]
fn floating_point_is_clamped() {
    let pairs = ["u64(f)", "u64(i64(f))"].map(|expression| Pair::new(&filter_of("u64", expression), alone()));
    for f in FLOATS {
        let run = |pair: &Pair| result(&pair.run(&operands(0, 0, 0, f)));
        // Rust clamps to the integer's range, WGSL to the f32s within it.
        let unsigned = (f as u64).min(u64::MAX - 0xff_ffff_ffff);
        let signed = (f as i64).min(i64::MAX - 0x7f_ffff_ffff) as u64;
        assert_eq!([run(&pairs[0]), run(&pairs[1])], [unsigned, signed], "{f}");
    }
}

impl Random {
    /// A corner value, a value near one, or an arbitrary value.
    fn operand(&mut self) -> u64 {
        let corner = self.pick(&CORNERS);
        match self.below(4) {
            0 | 1 => corner,
            2 => corner.wrapping_add(self.next() % 5).wrapping_sub(2),
            _ => self.next() >> self.below(64),
        }
    }

    fn count(&mut self) -> u32 {
        match self.below(3) {
            0 => self.pick(&COUNTS),
            1 => self.below(70) as u32,
            _ => self.next() as u32,
        }
    }

    /// Packs random operands one after the other.
    fn packet(&mut self, length: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| self.operand().to_le_bytes()).collect();
        packet.truncate(length);
        packet
    }
}
