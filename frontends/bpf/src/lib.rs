//! Classic BPF in: what tcpdump's expressions are compiled to becomes one naga module. `docs/expressions.md` says what there
//! is of it, and what a program means.
//!
//! - `text`: programs as text; `instruction`, `ancillary`: what the numbers mean; `check`: what makes them a program;
//! - `flow`: the program as blocks; `lengths`: what it rejects a packet for becomes branches; `merge`: fewer of them;
//! - `values`: how large the registers are, and where they are read;
//! - `lower`: blocks become statements, by way of `lang::structure`.
//!
//! What it means is what libpcap's `bpf_filter` does (bpf_filter.c), and Linux's for the loads that only Linux has.

mod ancillary;
mod check;
mod flow;
mod instruction;
mod lengths;
mod lower;
mod merge;
mod text;
mod values;

use flow::Flow;
use portcullis_core::diagnostics::too_long;
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, MAX_SOURCE, Source};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_core::stack::on_large_stack;
use text::Listed;

pub use instruction::{Instruction, MEMORY, listing};

/// Instructions that a program may have: as many as `struct sock_fprog` can say. Linux itself takes 4,096 (`BPF_MAXINSNS`);
/// libpcap makes longer ones, which `tcpdump -r` runs.
pub const MAX_INSTRUCTIONS: usize = 65_535;

/// Reads a program, as `tcpdump -ddd`, `tcpdump -dd` or `bpf_asm` print it.
///
/// # Errors
/// Everything that is wrong with the text, with its place. What the numbers mean is not looked at.
pub fn read(source: &Source) -> Result<Vec<Instruction>, Diagnostics> {
    Ok(listed(source)?.program)
}

fn listed(source: &Source) -> Result<Listed, Diagnostics> {
    if source.text.len() > MAX_SOURCE {
        return Err(Diagnostics::one(source, too_long()));
    }
    text::read(source)
}

/// Reads, checks, lowers and analyses a program, on a thread with a stack of [`LARGE_STACK`](portcullis_core::stack::LARGE_STACK) bytes.
///
/// # Errors
/// Everything that is wrong with the text, with its place.
pub fn compile(source: &Source, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    let listed = listed(source)?;
    on_large_stack(source, || compile_here(source, &listed, options))?
}

/// The same with a program that was made of a text in another way: diagnostics say an instruction's number.
///
/// # Errors
/// Everything that is wrong with the program.
pub fn compile_program(
    source: &Source,
    program: &[Instruction],
    options: &ProgramOptions,
) -> Result<Program, Diagnostics> {
    let listed = Listed { program: program.to_vec(), places: Vec::new() };
    on_large_stack(source, || compile_here(source, &listed, options))?
}

fn compile_here(source: &Source, listed: &Listed, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    let refused = |errors| Diagnostics { source: source.clone(), errors };
    let checked = check::check(listed).map_err(refused)?;
    if !options.parameters.is_empty() {
        let none = |(name, _): &(String, String)| {
            let error = Diagnostic::new(format!("the filter has no parameter `{name}`")).of_parameter(name);
            error.note("a program of classic BPF has no parameters")
        };
        return Err(refused(options.parameters.iter().map(none).collect()));
    }
    let flow = merge::merged(lengths::checked(&Flow::of(&checked)));
    let module = lower::module(&flow, listed).map_err(|_| {
        Diagnostics::one(
            source,
            Diagnostic::new("the program's loops stand in each other deeper than devices can take"),
        )
    })?;
    Program::new(source, module, Vec::new(), options)
}

fn too_many() -> Diagnostic {
    Diagnostic::new(format!("a program has at most {MAX_INSTRUCTIONS} instructions"))
}

#[cfg(test)]
mod tests;
