//! Links a program and the functions that it calls into the single instruction sequence that the
//! kernel loads.

use std::collections::BTreeMap;

use portcullis_xdp::instruction::Instruction;
use portcullis_xdp::object::{Object, Reference};

/// A program in the form that the kernel loads.
#[derive(Debug)]
pub struct Linked {
    /// Instructions of the program, followed by those of the functions it calls.
    pub instructions: Vec<u64>,
    /// Index of the first instruction of each function.
    pub functions: Vec<u32>,
}

/// Opcode of `lddw`, the load of a 64-bit constant.
const LDDW: u8 = 0x18;
/// Opcode of `call`.
const CALL: u8 = 0x85;

/// State of the linker.
struct Linker<'a> {
    object: &'a Object,
    /// File descriptors of the object's maps, in its order.
    maps: &'a [i32],
    /// Output of all functions placed so far.
    out: Vec<Instruction>,
    /// Start of each function in the output, by its section and first instruction.
    placed: BTreeMap<(usize, usize), usize>,
    /// Instructions of the output that refer to a function, with its section and first instruction.
    function_uses: Vec<(usize, (usize, usize))>,
}

impl Linked {
    /// Links a program, with the file descriptors of its maps.
    ///
    /// # Errors
    /// If a reference cannot be resolved.
    pub fn of(object: &Object, name: &str, maps: &[i32]) -> Result<Linked, String> {
        let function = object.functions.iter().find(|it| it.name == name).ok_or("no such program")?;
        let mut linker = Linker { object, maps, out: Vec::new(), placed: BTreeMap::new(), function_uses: Vec::new() };
        linker.place((function.section, function.first))?;
        let mut done = 0;
        while done < linker.function_uses.len() {
            let (at, function) = linker.function_uses[done];
            linker.place(function)?;
            let to = linker.placed[&function];
            // A call's offset counts from the next instruction. A constant takes two slots and
            // counts from the first.
            linker.out[at].imm = (to as i64 - at as i64 - 1) as i32;
            done += 1;
        }
        let mut functions: Vec<u32> = linker.placed.values().map(|&at| at as u32).collect();
        functions.sort_unstable();
        let bytes = |it: &Instruction| {
            u64::from(it.code)
                | u64::from(it.dst | it.src << 4) << 8
                | u64::from(it.off as u16) << 16
                | u64::from(it.imm as u32) << 32
        };
        Ok(Linked { instructions: linker.out.iter().map(bytes).collect(), functions })
    }
}

impl Linker<'_> {
    /// Appends a function to the output, with its references to maps and data resolved, unless the
    /// output has it already.
    fn place(&mut self, (section, first): (usize, usize)) -> Result<(), String> {
        if self.placed.contains_key(&(section, first)) {
            return Ok(());
        }
        let object = self.object;
        let number = object.function_at(section, first).ok_or("a call leads to no function")?;
        let function = &object.functions[number];
        let section = &object.sections[function.section];
        let base = self.out.len();
        self.placed.insert((function.section, first), base);
        for at in function.first..function.end {
            let mut it = section.instructions[at];
            let here = self.out.len();
            match section.references.get(&at) {
                Some(&Reference::Map(map)) => (it.src, it.imm) = (1, self.maps[map]),
                Some(&Reference::Data { map, offset }) => {
                    let mut rest = section.instructions[at + 1];
                    rest.imm = (offset as i64 + i64::from(it.imm)) as i32;
                    (it.src, it.imm) = (2, self.maps[map]);
                    self.out.extend([it, rest]);
                    continue;
                }
                Some(&Reference::Code { section, offset }) => {
                    let first = if it.code == CALL {
                        (offset as i64 / 8 + i64::from(it.imm) + 1) as usize
                    } else {
                        it.src = 4;
                        (offset as i64 / 8 + i64::from(it.imm) / 8) as usize
                    };
                    self.function_uses.push((here, (section, first)));
                }
                Some(Reference::External(name)) => return Err(format!("`{name}` is not in the object")),
                None if it.code == CALL && it.src == 1 => {
                    let first = (at as i64 + 1 + i64::from(it.imm)) as usize;
                    self.function_uses.push((here, (function.section, first)));
                }
                // The second half of a variable's address was written together with the first.
                None if at > function.first
                    && section.instructions[at - 1].code == LDDW
                    && matches!(section.references.get(&(at - 1)), Some(Reference::Data { .. })) =>
                {
                    continue;
                }
                None => {}
            }
            self.out.push(it);
        }
        Ok(())
    }
}
