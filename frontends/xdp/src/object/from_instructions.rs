//! Objects built from instructions instead of a file, for tests and fuzzing.

use super::{Btf, Function, MapDefinition, MapType, Object, Reference, Section};
use crate::instruction::{Instruction, LDDW};

/// Values of `src` in LDDW (linux/bpf.h): the constant refers to a map, or to a function.
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_FUNC: u8 = 4;

impl Object {
    /// Builds an object whose only program, `program` in section `xdp`, starts at the first
    /// instruction. LDDW of a map (`BPF_PSEUDO_MAP_FD`) holds its index in `maps`; LDDW of a
    /// function (`BPF_PSEUDO_FUNC`) and calls hold the distance from the next instruction.
    /// `functions` are the first instructions of all functions, in ascending order.
    pub fn from_instructions(
        name: &str,
        mut instructions: Vec<Instruction>,
        functions: &[usize],
        maps: Vec<MapDefinition>,
    ) -> Object {
        let mut references = std::collections::BTreeMap::new();
        let mut is_rest = false;
        for (at, it) in instructions.iter_mut().enumerate() {
            // The second half of an LDDW is not an instruction.
            let begins = it.code == LDDW && !is_rest;
            if std::mem::replace(&mut is_rest, begins) {
                continue;
            }
            let to = at as i64 + 1 + i64::from(it.imm);
            let reference = match (it.code, it.src) {
                (LDDW, PSEUDO_MAP_FD) if (0..maps.len() as i64).contains(&i64::from(it.imm)) => {
                    Reference::Map(it.imm as usize)
                }
                (LDDW, PSEUDO_FUNC) if to >= 0 => Reference::Code { section: 0, offset: 8 * to as u64 },
                _ => continue,
            };
            (it.src, it.imm) = (0, 0);
            references.insert(at, reference);
        }
        let count = instructions.len();
        let ends = functions.iter().copied().skip(1).chain([count]);
        let functions = functions.iter().zip(ends).map(|(&first, end)| Function {
            name: if first == 0 { "program".to_owned() } else { format!("function_{first}") },
            section: 0,
            first,
            end,
            is_global: first == 0,
        });
        let functions = functions.collect();
        let section = Section { name: "xdp".to_owned(), instructions, references, lines: Vec::new() };
        Object { name: name.to_owned(), sections: vec![section], functions, maps, btf: Btf::default() }
    }
}

impl MapDefinition {
    /// A map definition of this type, with sizes of key and value in bytes.
    pub fn with_type(name: &str, ty: MapType, [key_size, value_size]: [u32; 2], max_entries: u32) -> MapDefinition {
        MapDefinition { ty, key_size, value_size, max_entries, ..MapDefinition::new(name) }
    }
}
