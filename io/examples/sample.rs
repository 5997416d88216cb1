//! Writes the project's sample capture, identical to the byte each time: `sample FILE`. Run by
//! `cargo xtask samples`.

use std::path::Path;
use std::process::ExitCode;

use portcullis_io::synth::sample;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [file] = &arguments[..] else {
        eprintln!("Usage: sample FILE");
        return ExitCode::from(2);
    };
    let file = Path::new(file);
    match sample::write(&sample::sample(), file) {
        Ok(written) => {
            println!("{}: {} packets", file.display(), written.packets);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sample: {error}");
            ExitCode::FAILURE
        }
    }
}
