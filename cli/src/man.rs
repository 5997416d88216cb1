//! `portcullis man`: writes the manual pages.

use std::path::PathBuf;

use clap::CommandFactory;
use clap::builder::PathBufValueParser;
use portcullis::reason;

use super::Cli;
use super::failure::Failure;

/// Write the manual pages, one per subcommand
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory for portcullis.1, portcullis-run.1 and so on; created if needed
    #[arg(value_parser = PathBufValueParser::new())]
    dir: PathBuf,
}

/// Creates the directory and writes the pages to it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let written = std::fs::create_dir_all(&args.dir).and_then(|()| clap_mangen::generate_to(Cli::command(), &args.dir));
    written.map_err(|error| {
        Failure::Error(format!("cannot write manual pages to {}: {}", args.dir.display(), reason(&error)))
    })
}
