//! What makes instructions a program: what libpcap's and Linux's checkers ask (`bpf_validate`, `bpf_check_classic`).

use std::ops::Range;

use super::instruction::{Comparison, Decoded, Instruction, Invalid, MEMORY, Op, Operand};
use super::text::{Listed, MAX_ERRORS};
use super::{MAX_INSTRUCTIONS, too_many};
use portcullis_core::diagnostics::Diagnostic;

/// An instruction that is right. Where it goes on is an instruction's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checked {
    Do(Op),
    Jump(usize),
    Branch {
        comparison: Comparison,
        operand: Operand,
        then: usize,
        otherwise: usize,
    },
    /// See [`Decoded::Return`].
    Return(Option<u32>),
}

/// Checks a program. What it gives is never run past its end.
pub(super) fn check(listed: &Listed) -> Result<Vec<Checked>, Vec<Diagnostic>> {
    let Listed { program, places } = listed;
    if program.len() > MAX_INSTRUCTIONS {
        return Err(vec![too_many()]);
    }
    let mut errors = Vec::new();
    let mut checked = Vec::with_capacity(program.len());
    for (number, &instruction) in program.iter().enumerate() {
        match one(program, number, instruction) {
            Ok(instruction) => checked.push(instruction),
            Err(what) if errors.len() < MAX_ERRORS => errors.push(what.at_instruction(places, number)),
            Err(_) => break,
        }
    }
    match program.last() {
        None => errors.push(Diagnostic::new("a program has at least one instruction")),
        Some(last) if !matches!(last.decode(), Ok(Decoded::Return(_))) => {
            let what = What::new("the last instruction is no `ret`", "control would run on past the program's end");
            errors.push(what.at_instruction(places, program.len() - 1));
        }
        Some(_) => {}
    }
    if errors.is_empty() { Ok(checked) } else { Err(errors) }
}

/// What is wrong with an instruction, and why it is wrong.
struct What {
    message: String,
    note: String,
}

impl What {
    fn new(message: impl Into<String>, note: impl Into<String>) -> What {
        What { message: message.into(), note: note.into() }
    }

    fn at_instruction(self, places: &[Range<usize>], number: usize) -> Diagnostic {
        let error = match places.get(number) {
            Some(place) => Diagnostic::new(self.message).at(place.clone(), format!("instruction {number}")),
            None => Diagnostic::new(format!("instruction {number}: {}", self.message)),
        };
        if self.note.is_empty() { error } else { error.note(self.note) }
    }
}

fn one(program: &[Instruction], number: usize, instruction: Instruction) -> Result<Checked, What> {
    let decoded = instruction.decode().map_err(|invalid| match invalid {
        Invalid::Unknown => What::new(format!("no instruction has the code 0x{:02x}", instruction.code), ""),
        Invalid::Memory => What::new(
            format!("there is no M[{}]", instruction.k),
            format!("scratch memory has {MEMORY} words, from M[0] on"),
        ),
        Invalid::Division => What::new("this divides by zero", ""),
        Invalid::Ancillary(name, why) => What::new(format!("the load of {name} has no value here"), why),
    })?;
    let there = |skipped: i64| {
        let target = number as i64 + 1 + skipped;
        usize::try_from(target).ok().filter(|&target| target < program.len()).ok_or_else(|| {
            let most = program.len() - 1;
            What::new(
                format!("this jumps to instruction {target}, out of the program"),
                format!("the last one is {most}"),
            )
        })
    };
    Ok(match decoded {
        Decoded::Do(op) => Checked::Do(op),
        // `ip6 protochain` has loops: libpcap jumps back by what is a negative number in 32 bits.
        Decoded::Jump(skipped) => Checked::Jump(there(skipped.into())?),
        Decoded::Branch(comparison, operand) => Checked::Branch {
            comparison,
            operand,
            then: there(instruction.jt.into())?,
            otherwise: there(instruction.jf.into())?,
        },
        Decoded::Return(value) => Checked::Return(value),
    })
}
