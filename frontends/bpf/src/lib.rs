//! Front end for classic BPF: compiles what libpcap makes of a tcpdump expression to a naga module.
//! `docs/guide/expressions.md` is the user's reference.
//!
//! - `parser` reads program listings; `instruction` and `ancillary` decode them; `check` validates;
//! - `cfg` builds the control-flow graph; `bounds_checks` makes implicit rejections explicit
//!   branches; `merge_branches` joins branches that share a target;
//! - `dataflow` has the analyses of registers: upper bounds and liveness;
//! - `lower` emits the filter function, structured by `ir::structure`.
//!
//! Semantics are those of libpcap's `bpf_filter` (bpf_filter.c), and Linux's for the ancillary
//! loads that only Linux has.

mod ancillary;
mod bounds_checks;
mod cfg;
mod check;
mod dataflow;
mod decode;
mod instruction;
mod lower;
mod merge_branches;
mod parser;

use cfg::Cfg;
use parser::ParsedListing;
use portcullis_core::diagnostics::too_long;
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, MAX_SOURCE_BYTES, Source};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_core::stack::run_on_large_stack;

pub use instruction::{Instruction, SCRATCH_WORDS, disassemble};

/// Maximum length of a program, in instructions: the range of `struct sock_fprog`'s length.
///
/// Linux itself takes at most 4,096 (`BPF_MAXINSNS`), but libpcap generates longer programs, which
/// `tcpdump -r` runs.
pub const MAX_INSTRUCTIONS: usize = 65_535;

/// Parses a program listing in the format of `tcpdump -ddd`, `tcpdump -dd` or `bpf_asm`, without
/// decoding its instructions.
///
/// # Errors
/// All syntax errors, with their places.
pub fn parse(source: &Source) -> Result<Vec<Instruction>, Diagnostics> {
    Ok(parse_listing(source)?.program)
}

fn parse_listing(source: &Source) -> Result<ParsedListing, Diagnostics> {
    if source.text.len() > MAX_SOURCE_BYTES {
        return Err(Diagnostics::one(source, too_long()));
    }
    parser::parse(source)
}

/// Parses and compiles a program listing, on a thread with a stack of
/// [`COMPILE_STACK_BYTES`](portcullis_core::stack::COMPILE_STACK_BYTES) bytes.
///
/// # Errors
/// All errors of the listing, with their places.
pub fn compile(source: &Source, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    let listing = parse_listing(source)?;
    run_on_large_stack(source, || compile_here(source, &listing, options))?
}

/// Compiles a program that was not parsed from `source`, for example libpcap's output for the
/// expression in `source`. Diagnostics name instructions by number instead of by place.
///
/// # Errors
/// All errors of the program.
pub fn compile_program(
    source: &Source,
    program: &[Instruction],
    options: &ProgramOptions,
) -> Result<Program, Diagnostics> {
    let listing = ParsedListing { program: program.to_vec(), spans: Vec::new() };
    run_on_large_stack(source, || compile_here(source, &listing, options))?
}

/// Compiles on the current thread's stack.
fn compile_here(source: &Source, listing: &ParsedListing, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    let rejected = |errors| Diagnostics { source: source.clone(), errors };
    let checked = check::check(listing).map_err(rejected)?;
    if !options.parameters.is_empty() {
        let no_parameter = |(name, _): &(String, String)| {
            let error = Diagnostic::new(format!("the filter has no parameter `{name}`")).with_parameter(name);
            error.note("classic BPF programs have no parameters")
        };
        return Err(rejected(options.parameters.iter().map(no_parameter).collect()));
    }
    let cfg = merge_branches::merge_branches(bounds_checks::insert_checks(&Cfg::from_instructions(&checked)));
    let module = lower::lower(&cfg, listing)
        .map_err(|_| Diagnostics::one(source, Diagnostic::new("loops nest deeper than devices support")))?;
    Program::new(source, module, Vec::new(), options)
}

fn too_many_instructions() -> Diagnostic {
    Diagnostic::new(format!("a program has at most {MAX_INSTRUCTIONS} instructions"))
}

#[cfg(test)]
mod tests;
