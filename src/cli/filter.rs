//! Reading a filter's text: the arguments that `run` and `check` share.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use portcullis::lang::{MAX_SOURCE, Source, wgsl};
use portcullis::program::{DEFAULT_FUEL, Program, ProgramOptions};
use portcullis::reason;

use super::failure::Failure;

/// What to filter with.
#[derive(Debug, clap::Args)]
pub struct FilterArgs {
    /// The filter, a WGSL file; `-` reads it from standard input
    pub filter: PathBuf,
    /// Set a parameter of the filter (an `override` in WGSL); may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = parameter)]
    set: Vec<(String, String)>,
    /// Loop iterations that the filter may spend on a packet; one that needs more is ABORTED
    ///
    /// At most 16777216, so that one packet cannot take longer than a Ctrl-C can wait for.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_FUEL, value_parser = clap::value_parser!(u32).range(..=1 << 24))]
    fuel: u32,
}

fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected NAME=VALUE, for example --set limit=10".into()),
    }
}

impl FilterArgs {
    /// Whether the text comes from standard input.
    pub fn is_stdin(&self) -> bool {
        self.filter == Path::new("-")
    }

    /// The name to show for the filter.
    pub fn name(&self) -> String {
        if self.is_stdin() { "<stdin>".into() } else { self.filter.display().to_string() }
    }

    /// Reads and compiles the filter.
    pub fn load(&self) -> Result<Program, Failure> {
        let options = ProgramOptions { parameters: self.set.clone(), fuel: self.fuel };
        let source = self.source()?;
        wgsl::compile(&source, &options).map_err(|mut diagnostics| {
            for error in &mut diagnostics.errors {
                if let Some(name) = &error.parameter {
                    error.message = format!("--set {name}: {}", error.message);
                }
            }
            diagnostics.into()
        })
    }

    fn source(&self) -> Result<Source, Failure> {
        let mut bytes = Vec::new();
        // One byte past the limit is enough to refuse it; the rest may be endless.
        let limit = MAX_SOURCE as u64 + 1;
        if self.is_stdin() {
            io::stdin().lock().take(limit).read_to_end(&mut bytes)
        } else {
            File::open(&self.filter).and_then(|file| file.take(limit).read_to_end(&mut bytes))
        }
        .map_err(|error| Failure::Wrong(format!("{}: {}", self.name(), reason(&error))))?;
        if is_capture(&bytes) {
            let what = "this is a capture, not a filter; captures are given to --read";
            return Err(Failure::Wrong(format!("{}: {what}", self.name())));
        }
        Ok(Source::from_bytes(self.name(), bytes)?)
    }
}

fn is_capture(bytes: &[u8]) -> bool {
    let magics = [[0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0xc3, 0xd4], [0x0a, 0x0d, 0x0d, 0x0a]];
    bytes.first_chunk().is_some_and(|magic| magics.contains(magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_need_a_name_and_a_value() {
        assert_eq!(parameter("a=1"), Ok(("a".into(), "1".into())));
        assert_eq!(parameter("a=b=c"), Ok(("a".into(), "b=c".into())));
        for bad in ["", "=", "a", "a=", "=1", " =1"] {
            assert!(parameter(bad).is_err(), "{bad:?}");
        }
    }
}
