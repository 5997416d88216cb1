//! The command line: parse, run, exit code.

#[path = "../cli/src/main.rs"]
mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
