//! Validation of a program, by the rules of libpcap's `bpf_validate` and Linux's
//! `bpf_check_classic`.

use std::ops::Range;

use super::instruction::{Comparison, DecodeError, Decoded, Instruction, Op, Operand, SCRATCH_WORDS};
use super::parser::{MAX_ERRORS, ParsedListing};
use super::{MAX_INSTRUCTIONS, too_many_instructions};
use portcullis_core::diagnostics::Diagnostic;

/// A valid instruction; jump targets are absolute instruction numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckedInstruction {
    Op(Op),
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

/// Validates a program; no path through the result runs past its end.
///
/// # Errors
/// At most `MAX_ERRORS` invalid instructions, and a missing `ret` at the end.
pub(super) fn check(listing: &ParsedListing) -> Result<Vec<CheckedInstruction>, Vec<Diagnostic>> {
    let ParsedListing { program, spans } = listing;
    if program.len() > MAX_INSTRUCTIONS {
        return Err(vec![too_many_instructions()]);
    }
    let mut errors = Vec::new();
    let mut checked = Vec::with_capacity(program.len());
    for (number, &instruction) in program.iter().enumerate() {
        match check_instruction(program, number, instruction) {
            Ok(instruction) => checked.push(instruction),
            Err(problem) if errors.len() < MAX_ERRORS => errors.push(problem.at_instruction(spans, number)),
            Err(_) => break,
        }
    }
    match program.last() {
        None => errors.push(Diagnostic::new("a program has at least one instruction")),
        Some(last) if !matches!(last.decode(), Ok(Decoded::Return(_))) => {
            let problem =
                Problem::new("the last instruction is not a `ret`", "control would run past the program's end");
            errors.push(problem.at_instruction(spans, program.len() - 1));
        }
        Some(_) => {}
    }
    if errors.is_empty() { Ok(checked) } else { Err(errors) }
}

/// An error of one instruction, and a note that explains it.
struct Problem {
    message: String,
    note: String,
}

impl Problem {
    fn new(message: impl Into<String>, note: impl Into<String>) -> Problem {
        Problem { message: message.into(), note: note.into() }
    }

    fn at_instruction(self, spans: &[Range<usize>], number: usize) -> Diagnostic {
        let error = match spans.get(number) {
            Some(place) => Diagnostic::new(self.message).at(place.clone(), format!("instruction {number}")),
            None => Diagnostic::new(format!("instruction {number}: {}", self.message)),
        };
        if self.note.is_empty() { error } else { error.note(self.note) }
    }
}

fn check_instruction(
    program: &[Instruction],
    number: usize,
    instruction: Instruction,
) -> Result<CheckedInstruction, Problem> {
    let decoded = instruction.decode().map_err(|invalid| match invalid {
        DecodeError::Unknown => Problem::new(format!("unknown opcode 0x{:02x}", instruction.code), ""),
        DecodeError::ScratchIndex => Problem::new(
            format!("M[{}] does not exist", instruction.k),
            format!("scratch memory has {SCRATCH_WORDS} words, from M[0] on"),
        ),
        DecodeError::DivisionByZero => Problem::new("division by zero", ""),
        DecodeError::Ancillary(name, why) => Problem::new(format!("the load of {name} is not supported"), why),
    })?;
    let jump_target = |skipped: i64| {
        let target = number as i64 + 1 + skipped;
        usize::try_from(target).ok().filter(|&target| target < program.len()).ok_or_else(|| {
            let last = program.len() - 1;
            Problem::new(
                format!("jump to instruction {target}, out of the program"),
                format!("the last instruction is {last}"),
            )
        })
    };
    Ok(match decoded {
        Decoded::Op(op) => CheckedInstruction::Op(op),
        // `ip6 protochain` has loops: libpcap jumps back with an offset that is negative as an
        // `i32`.
        Decoded::Jump(skipped) => CheckedInstruction::Jump(jump_target(skipped.into())?),
        Decoded::Branch(comparison, operand) => CheckedInstruction::Branch {
            comparison,
            operand,
            then: jump_target(instruction.jt.into())?,
            otherwise: jump_target(instruction.jf.into())?,
        },
        Decoded::Return(value) => CheckedInstruction::Return(value),
    })
}
