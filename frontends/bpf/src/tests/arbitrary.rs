//! Generators of random programs and packets, shared with compat-tests.

use super::Instruction;

/// Linear congruential generator, seeded by the caller.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns a random 32-bit number.
    pub fn number(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 ^ (self.0 >> 17) as u32
    }

    /// Returns a random number below `count`.
    pub fn below(&mut self, count: u32) -> u32 {
        self.number() % count
    }

    /// Returns a random element of `of`.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }
}

/// Returns a valid program of `count` random instructions and a `ret`. Jumps lead forward; with
/// `with_loops`, some `ja` lead back.
pub fn program(random: &mut Random, count: u32, with_loops: bool) -> Vec<Instruction> {
    let mut code: Vec<(u16, u8, u8, u32)> = Vec::new();
    for at in 0..count {
        let left = count - at;
        let k = match random.below(8) {
            0 => random.number(),
            1 => u32::MAX - random.below(4),
            2 => 1 << random.below(32),
            _ => random.below(24),
        };
        let jump = |random: &mut Random| random.below(left.min(6)) as u8;
        code.push(match random.below(16) {
            0..5 => (random.pick(&[0x15, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d]), jump(random), jump(random), k),
            5 => (random.pick(&[0x20, 0x28, 0x30]), 0, 0, random.below(24)),
            6 => (random.pick(&[0x40, 0x48, 0x50, 0xb1]), 0, 0, if k < 1 << 16 { k } else { k & 0xf }),
            7 => (random.pick(&[0x60, 0x61, 0x02, 0x03]), 0, 0, k % 3),
            8 => (random.pick(&[0x07, 0x87, 0x84, 0x80, 0x81]), 0, 0, 0),
            9 => (random.pick(&[0x00, 0x01]), 0, 0, k),
            10 => (random.pick(&[0x34, 0x94]), 0, 0, k.max(1)),
            11 => (random.pick(&[0x3c, 0x9c, 0x6c, 0x7c]), 0, 0, 0),
            12 if with_loops && random.below(2) == 0 => (0x05, 0, 0, (-1 - random.below(at.min(8) + 1) as i32) as u32),
            12 => (0x05, 0, 0, jump(random).into()),
            13 if random.below(3) == 0 => (random.pick(&[0x06, 0x16]), 0, 0, random.below(2)),
            _ => {
                let code = random.pick(&[0x04, 0x14, 0x24, 0x44, 0x54, 0x64, 0x74, 0xa4]);
                (code | random.pick(&[0, 8]), 0, 0, k)
            }
        });
    }
    code.push((random.pick(&[0x06, 0x06, 0x16]), 0, 0, random.below(2)));
    code.into_iter().map(|(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect()
}

/// Returns random packets of at most 31 bytes, the range that random programs load from.
pub fn packets(random: &mut Random, count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|_| {
            let length = random.below(32) as usize;
            let small = random.below(3) == 0;
            (0..length).map(|_| if small { random.below(8) as u8 } else { random.number() as u8 }).collect()
        })
        .collect()
}
