//! Writes the capture that comes with the project, the same to the byte every time: `sample FILE`. `cargo xtask samples` runs it.

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
