//! What a maintainer runs: `cargo xtask TASK`.

mod samples;
mod test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask TASK

Tasks:
  test [--require DEVICE,...]  everything that a change must pass: format, lints, documentation,
                               feature sets, all tests; in release the self-test, the README's first
                               command and the tests of the program and the CPU. A device named by --require
                               (cpu, wgpu) that is missing fails; others are listed with the reason.
                               On Debian it installs what the tests need, after naming it, when it may.
  samples                      writes samples/mixed.pcap anew
  package                      builds every published crate from what its package holds (slow)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["test"] => test::run(None),
        ["test", "--require", devices] => test::run(Some(devices)),
        ["samples"] => samples::write(),
        ["package"] => test::package(),
        ["help" | "--help" | "-h"] | [] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => {
            eprint!("xtask: cannot make sense of `{}`\n\n{USAGE}", arguments.join(" "));
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's root folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_owned()
}
