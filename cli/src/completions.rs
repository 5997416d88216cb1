//! `portcullis completions`: prints a shell completion script.

use clap::CommandFactory;
use clap_complete::Shell;
use portcullis::stock;

use super::failure::Failure;
use super::{Cli, out};

/// Print a shell completion script
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell to complete for
    shell: Shell,
}

/// Generates the script and prints it.
pub fn run(args: Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "portcullis", &mut script);
    out::print(with_stock_filters(args.shell, String::from_utf8_lossy(&script).into_owned()))
}

/// Completes a filter's name both as a stock filter and as a file, where the generator offers only
/// one of them: zsh gets no files beside fixed values, and fish no values of positional arguments.
fn with_stock_filters(shell: Shell, script: String) -> String {
    let names = stock::filters().map(|filter| filter.name).collect::<Vec<_>>().join(" ");
    match shell {
        Shell::Zsh => script.replace(
            &format!(":({names})'"),
            &format!(":{{_alternative \"filters:stock filter:({names})\" \"files:file:_files\"}}'"),
        ),
        Shell::Fish => {
            let commands = "run check calibrate filters reload";
            script + &format!("complete -c portcullis -n \"__fish_seen_subcommand_from {commands}\" -a \"{names}\"\n")
        }
        _ => script,
    }
}
