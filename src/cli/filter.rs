//! Reading a filter's text: the arguments that `run` and `check` share.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use portcullis::io::reason;
use portcullis::lang::{MAX_SOURCE, Source, wgsl};
use portcullis::program::{DEFAULT_FUEL, Program, ProgramOptions};

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
        let text = self.text()?;
        Ok(wgsl::compile(&Source::new(self.name(), text), &options)?)
    }

    fn text(&self) -> Result<String, Failure> {
        let failed = |error: &io::Error| Failure::Wrong(format!("{}: {}", self.name(), reason(error)));
        let mut bytes = Vec::new();
        // One byte past the limit is enough for the front end to refuse it; the rest may be endless.
        let limit = MAX_SOURCE as u64 + 1;
        if self.is_stdin() {
            io::stdin().lock().take(limit).read_to_end(&mut bytes)
        } else {
            File::open(&self.filter).and_then(|file| file.take(limit).read_to_end(&mut bytes))
        }
        .map_err(|error| failed(&error))?;
        decode(bytes).map_err(|why| Failure::Wrong(format!("{}: {why}", self.name())))
    }
}

/// The bytes as text, or what else they are.
fn decode(bytes: Vec<u8>) -> Result<String, String> {
    let capture = [[0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0xc3, 0xd4], [0x0a, 0x0d, 0x0d, 0x0a]];
    if bytes.first_chunk().is_some_and(|magic| capture.contains(magic)) {
        return Err("this is a capture, not a filter; captures are given to --read".into());
    }
    String::from_utf8(bytes).or_else(|error| {
        let at = error.utf8_error().valid_up_to();
        let bytes = error.into_bytes();
        if bytes.len() > MAX_SOURCE {
            // The cut may have gone through a character; the front end has the words for its length.
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        Err(format!("not a text: byte {at} ({:#04x}) is no UTF-8; a filter is WGSL source", bytes[at]))
    })
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

    #[test]
    fn what_is_no_text_is_named() {
        assert!(decode(vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0]).unwrap_err().contains("capture"));
        assert!(decode(vec![b'f', b'n', 0xff]).unwrap_err().contains("byte 2 (0xff)"));
        assert_eq!(decode(b"fn".to_vec()).unwrap(), "fn");
    }
}
