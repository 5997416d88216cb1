//! `portcullis completions`

use clap::CommandFactory;
use clap_complete::Shell;

use super::failure::Failure;
use super::{Cli, out};

/// Print a shell completion script
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell to complete for
    shell: Shell,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "portcullis", &mut script);
    out::print(script)
}
