//! Shrinking of failing programs: removes instructions as long as the failure persists.

use super::{Code, Instruction, op};

/// A jump to the next instruction.
const NOP: Instruction = op(0x05, 0, 0, 0, 0);

/// The smallest program found that still fails.
pub fn shrink(code: &Code, fails: impl Fn(&Code) -> bool) -> Code {
    let mut code = code.clone();
    loop {
        let before = code.clone();
        let mut length = code.instructions.len().next_power_of_two() / 2;
        while length > 0 {
            let mut at = 0;
            while at < code.instructions.len() {
                let mut less = code.clone();
                let end = (at + length).min(less.instructions.len());
                less.instructions[at..end].fill(NOP);
                if less != code && fails(&less) {
                    code = less;
                }
                at += length;
            }
            length /= 2;
        }
        if code == before {
            break;
        }
    }
    let less = remove_nops(&code);
    if fails(&less) { less } else { code }
}

/// Removes instructions that do nothing, adjusting jumps.
fn remove_nops(code: &Code) -> Code {
    let mut places = Vec::new();
    let mut kept = 0;
    for it in &code.instructions {
        places.push(kept);
        kept += i64::from(*it != NOP);
    }
    places.push(kept);
    let to = |at: i64| places[at.clamp(0, code.instructions.len() as i64) as usize];
    let mut instructions = Vec::new();
    for (at, &it) in code.instructions.iter().enumerate() {
        let mut it = it;
        let here = to(at as i64);
        let leads = |by: i64| to(at as i64 + 1 + by) - here - 1;
        match (it.code & 7, it.code) {
            _ if it == NOP => continue,
            (5, 0x95) => {}
            (5, 0x85) if it.src == 1 => it.imm = leads(it.imm.into()) as i32,
            (5, 0x85) => {}
            (6, 0x06) => it.imm = leads(it.imm.into()) as i32,
            (5 | 6, _) => it.off = leads(it.off.into()) as i16,
            (0, 0x18) if it.src == 4 => it.imm = leads(it.imm.into()) as i32,
            _ => {}
        }
        instructions.push(it);
    }
    let functions = code.functions.iter().map(|&first| to(first as i64) as usize).collect();
    Code { instructions, functions, maps: code.maps.clone() }
}
