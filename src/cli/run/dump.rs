//! `--dump-map`: a map's entries as text, after the run.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use portcullis::device::{DeviceInfo, Session};
use portcullis::io::SinkError;
use portcullis::map::{self, Format};
use portcullis::program::Program;

use super::replace::Replacement;
use super::stdout_by_any_name;
use crate::cli::failure::Failure;
use crate::cli::out;

/// What was asked for: `NAME=FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// The map.
    pub map: String,
    /// The file; `-` is standard output.
    pub file: String,
    format: Format,
}

impl Dump {
    /// Out of an argument.
    pub fn parse(text: &str) -> Result<Dump, String> {
        let expected = "expected NAME=FILE, for example --dump-map flows=flows.csv";
        let (map, file) = text.split_once('=').ok_or(expected)?;
        let (map, file) = (map.trim(), stdout_by_any_name(file));
        if map.is_empty() || file.is_empty() {
            return Err(expected.into());
        }
        let by_name = if file == "-" { Some(Format::Csv) } else { Format::of(Path::new(&file)) };
        let format = by_name.ok_or("files' names end in .csv or .json, which says what is written")?;
        Ok(Dump { map: map.into(), file, format })
    }
}

/// The dumps of a run.
pub struct Dumps<'a> {
    program: &'a Program,
    all: Vec<(usize, &'a Dump, To)>,
}

/// Where one goes.
enum To {
    Stdout,
    File(Replacement),
}

/// Refuses maps that the filter does not have, and devices that have none.
pub fn check(dumps: &[Dump], program: &Program, device: &DeviceInfo) -> Result<(), Failure> {
    for dump in dumps {
        let wrong = |what: String| Err(Failure::Usage(format!("--dump-map {}={}: {what}", dump.map, dump.file)));
        if program.maps().iter().all(|map| map.name != dump.map) {
            let names: Vec<String> = program.maps().iter().map(|map| format!("`{}`", map.name)).collect();
            let there = if names.is_empty() { "no maps".into() } else { names.join(", ") };
            return wrong(format!("the filter has no map `{}`; it has {there}", dump.map));
        }
        if device.id == "noop" {
            return wrong(format!("{} runs no filter, and has no maps; choose another device", device.id));
        }
    }
    Ok(())
}

impl<'a> Dumps<'a> {
    /// Sees whether the files can be written. The maps are there ([`check`]).
    pub fn open(dumps: &'a [Dump], program: &'a Program) -> Result<Dumps<'a>, SinkError> {
        let one = |dump: &'a Dump| {
            let number = program.maps().iter().position(|map| map.name == dump.map)?;
            let to = if dump.file == "-" { Ok(To::Stdout) } else { Replacement::new(&dump.file).map(To::File) };
            Some(to.map(|to| (number, dump, to)))
        };
        Ok(Dumps { program, all: dumps.iter().filter_map(one).collect::<Result<_, _>>()? })
    }

    /// Whether none was asked for.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Writes all of them, also where one fails; the first error is given. No batch is in flight.
    pub fn write(&self, session: &mut dyn Session) -> Result<(), Failure> {
        let mut result = Ok(());
        for (number, dump, to) in &self.all {
            result = result.and(self.one(*number, dump.format, to, session));
        }
        result
    }

    fn one(&self, number: usize, format: Format, to: &To, session: &mut dyn Session) -> Result<(), Failure> {
        let words = session.map_words(number)?;
        let content = |out: &mut dyn Write| map::dump(&self.program.maps()[number], &words, format, out);
        match to {
            To::Stdout => {
                let mut out = BufWriter::new(io::stdout().lock());
                content(&mut out).and_then(|()| out.flush()).map_err(|error| out::stdout_failed(&error))
            }
            To::File(file) => file.write(content).map_err(Failure::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_a_map_and_a_file() {
        let dump = |map: &str, file: &str, format| Ok(Dump { map: map.into(), file: file.into(), format });
        assert_eq!(Dump::parse("a=b.csv"), dump("a", "b.csv", Format::Csv));
        assert_eq!(Dump::parse("a=b=c/d.JSON"), dump("a", "b=c/d.JSON", Format::Json));
        assert_eq!(Dump::parse("a=-"), dump("a", "-", Format::Csv));
        assert_eq!(Dump::parse("a=/dev/stdout"), dump("a", "-", Format::Csv));
        for bad in ["", "a", "=", "a=", "=b.csv", " =b.csv"] {
            assert!(Dump::parse(bad).unwrap_err().starts_with("expected NAME=FILE"), "{bad:?}");
        }
        for bad in ["a=b", "a=csv", "a=b.txt", "a=.csv", "a=b.csv/x"] {
            assert!(Dump::parse(bad).unwrap_err().contains(".csv or .json"), "{bad:?}");
        }
    }
}
