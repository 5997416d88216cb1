//! Reference interpreter of classic BPF that works on encoded instructions and shares no code with
//! the front end.
//!
//! Follows McCanne and Jacobson ("The BSD Packet Filter", 1993) and libpcap's bpf_filter.c;
//! ancillary and header-relative loads follow linux/filter.h and net/core/filter.c.

use super::Instruction;

/// A packet and its metadata.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub packet: &'a [u8],
    pub wire_length: u32,
    pub port: u32,
}

impl<'a> Input<'a> {
    pub fn new(packet: &'a [u8]) -> Input<'a> {
        Input { packet, wire_length: packet.len() as u32, port: 0 }
    }

    /// Reads `size` big-endian bytes at `offset`; `None` past the packet's end. Offsets do not
    /// wrap.
    fn bytes(self, offset: u64, size: u64) -> Option<u32> {
        if offset + size > self.packet.len() as u64 {
            return None;
        }
        let bytes = &self.packet[offset as usize..][..size as usize];
        Some(bytes.iter().fold(0, |value, &byte| value << 8 | u32::from(byte)))
    }

    fn absolute(self, k: u32, size: u64, x: u32, a: u32) -> Option<u32> {
        let ancillary = |number: i32| (-0x1000_i32 + number) as u32;
        match k {
            _ if k == ancillary(0) => {
                let ty = self.bytes(12, 2)?;
                Some(match self.bytes(14, 2) {
                    _ if ty >= 0x600 => ty,
                    Some(0xffff) => 1,
                    _ => 4,
                })
            }
            _ if k == ancillary(8) => Some(self.port),
            _ if k == ancillary(28) => Some(1),
            _ if k == ancillary(40) => Some(a ^ x),
            _ if k == ancillary(44) || k == ancillary(48) || k == ancillary(60) => Some(0),
            0xffff_f000.. => None,
            0xfff0_0000.. => self.bytes(u64::from(k) - 0xfff0_0000 + 14, size),
            0xffe0_0000.. => self.bytes(u64::from(k) - 0xffe0_0000, size),
            _ => self.bytes(u64::from(k), size),
        }
    }
}

/// Returns what the program returns (zero rejects the packet), or `None` if it takes more than
/// `steps` instructions.
pub fn run(program: &[Instruction], input: Input<'_>, mut steps: u32) -> Option<u32> {
    let (mut a, mut x, mut m) = (0_u32, 0_u32, [0_u32; 16]);
    let mut at = 0_i64;
    loop {
        steps = steps.checked_sub(1)?;
        let Instruction { code, jt, jf, k } = program[at as usize];
        at += 1;
        let operand = if code & 8 == 0 { k } else { x };
        let size = match code & 0x18 {
            0 => 4,
            8 => 2,
            _ => 1,
        };
        // Instructions that do not write A.
        match code {
            0x01 => x = k,
            0x61 => x = m[k as usize],
            0x81 => x = input.wire_length,
            0xb1 => match input.bytes(k.into(), 1) {
                Some(byte) => x = 4 * (byte & 0xf),
                None => return Some(0),
            },
            0x07 => x = a,
            0x02 => m[k as usize] = a,
            0x03 => m[k as usize] = x,
            0x05 => at += i64::from(k as i32),
            0x06 => return Some(k),
            0x16 => return Some(a),
            _ => {}
        }
        if matches!(code & 7, 1..=3) || matches!(code, 0x05 | 0x07) {
            continue;
        }
        if code & 7 == 5 {
            let holds = match code & 0xf0 {
                0x10 => a == operand,
                0x20 => a > operand,
                0x30 => a >= operand,
                _ => a & operand != 0,
            };
            at += i64::from(if holds { jt } else { jf });
            continue;
        }
        let value = match code {
            0x00 => Some(k),
            0x20 | 0x28 | 0x30 => input.absolute(k, size, x, a),
            0x40 | 0x48 | 0x50 => input.bytes(u64::from(x) + u64::from(k), size),
            0x60 => Some(m[k as usize]),
            0x80 => Some(input.wire_length),
            0x87 => Some(x),
            0x04 | 0x0c => Some(a.wrapping_add(operand)),
            0x14 | 0x1c => Some(a.wrapping_sub(operand)),
            0x24 | 0x2c => Some(a.wrapping_mul(operand)),
            0x34 | 0x3c => a.checked_div(operand),
            0x94 | 0x9c => a.checked_rem(operand),
            0x44 | 0x4c => Some(a | operand),
            0x54 | 0x5c => Some(a & operand),
            0xa4 | 0xac => Some(a ^ operand),
            0x64 | 0x6c => Some(a.checked_shl(operand).unwrap_or(0)),
            0x74 | 0x7c => Some(a.checked_shr(operand).unwrap_or(0)),
            0x84 => Some(a.wrapping_neg()),
            _ => panic!("no such instruction: {code:#x}"),
        };
        // A load past the end or a division by zero rejects the packet.
        let Some(value) = value else { return Some(0) };
        a = value;
    }
}
