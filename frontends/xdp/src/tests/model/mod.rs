//! Model of eBPF that shares nothing with the front end: an interpreter written from the standard
//! ([`mod@reference`]), tables of instructions with operands at all corners ([`table`]), and a
//! generator of random programs ([`arbitrary`]). The crate's tests, the fuzz targets and the
//! comparison with the kernel share it.

pub mod arbitrary;
pub mod arithmetic;
pub mod compare;
pub mod reference;
pub mod shrink;
pub mod table;

use super::xdp;
pub use xdp::instruction::Instruction;
use xdp::object::{MapDefinition, MapType, Object};

/// A map of a test program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapSpec {
    /// `enum bpf_map_type`: array (2), hash (1) or per-CPU array (6).
    pub ty: u32,
    /// Size of a key in bytes.
    pub key: u32,
    /// Size of a value in bytes.
    pub value: u32,
    /// Maximum number of entries.
    pub entries: u32,
}

/// A test program: instructions that refer to maps by index; first instructions of its functions,
/// its own being the first; and its maps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Code {
    pub instructions: Vec<Instruction>,
    pub functions: Vec<usize>,
    pub maps: Vec<MapSpec>,
}

impl Code {
    /// The program as an object.
    pub fn object(&self) -> Object {
        let maps = (0..).zip(&self.maps).map(|(number, map)| {
            let name = format!("map{number}");
            MapDefinition::with_type(&name, MapType(map.ty), [map.key, map.value], map.entries)
        });
        Object::from_instructions("model", self.instructions.clone(), &self.functions, maps.collect())
    }

    /// Listing with one instruction a line.
    pub fn listing(&self) -> String {
        let lines = self.instructions.iter().enumerate().filter(|(_, it)| **it != op(0x05, 0, 0, 0, 0));
        let lines = lines.map(|(at, it)| {
            let function = if self.functions.contains(&at) { "function\n" } else { "" };
            let Instruction { code, dst, src, off, imm } = *it;
            format!("{function}{at:5}: {it:<40} {code:02x} {dst} {src} {off} {imm:#x}\n")
        });
        lines.collect::<String>() + &format!("{:?}\n", self.maps)
    }
}

/// Builds an instruction.
pub const fn op(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Instruction {
    Instruction { code, dst, src, off, imm }
}

/// Pseudo-random number generator.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// A random number.
    pub fn number(&mut self) -> u64 {
        let mut word = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) ^ (self.0 >> 15)
        };
        word() << 32 ^ word() & 0xffff_ffff
    }

    /// A random number below `count`.
    pub fn below(&mut self, count: u32) -> u32 {
        (self.number() % u64::from(count.max(1))) as u32
    }

    /// True once in `times` calls on average.
    pub fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }

    /// A random element.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }
}
