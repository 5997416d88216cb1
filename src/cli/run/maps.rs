//! What a run's maps begin with and where they go.

use std::path::Path;

use clap::builder::{NonEmptyStringValueParser, TypedValueParser};
use portcullis::device::{DeviceInfo, Session};
use portcullis::io::SinkError;
use portcullis::map::Format;
use portcullis::program::Program;

use super::dump::Dumps;
use super::state::State;
use super::stdout_by_any_name;
use crate::cli::failure::Failure;

/// The arguments about maps.
#[derive(Debug, clap::Args)]
pub struct MapArgs {
    /// Carry all maps from one run to the next: they begin with what this file has, if it is there, and are written to
    /// it after the run
    #[arg(long, value_name = "FILE", value_parser = NonEmptyStringValueParser::new())]
    pub state: Option<String>,
    /// Write a map's entries to this file after the run, in order of their keys: CSV or JSON, as its name ends;
    /// `-` is standard output, in CSV; may be given several times
    #[arg(long, value_name = "NAME=FILE", value_parser = output())]
    pub dump_map: Vec<MapFile>,
}

/// A map and a file: `NAME=FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapFile {
    /// The map.
    pub map: String,
    /// The file; `-` is standard output.
    pub file: String,
    /// What is in it.
    pub format: Format,
}

fn output() -> impl TypedValueParser<Value = MapFile> {
    clap::builder::StringValueParser::new().try_map(|text| MapFile::output(&text))
}

impl MapFile {
    /// An output, out of an argument.
    fn output(text: &str) -> Result<MapFile, String> {
        let expected = "expected NAME=FILE, for example --dump-map flows=flows.csv";
        let (map, file) = text.split_once('=').ok_or(expected)?;
        let (map, file) = (map.trim(), stdout_by_any_name(file));
        if map.is_empty() || file.is_empty() {
            return Err(expected.into());
        }
        let by_name = if file == "-" { Some(Format::Csv) } else { Format::of(Path::new(&file)) };
        let format = by_name.ok_or("files' names end in .csv or .json, which says what is written")?;
        Ok(MapFile { map: map.into(), file, format })
    }

    /// The map's number; the filter has it ([`MapArgs::check`]).
    pub fn number(&self, program: &Program) -> Option<usize> {
        program.maps().iter().position(|map| map.name == self.map)
    }
}

impl MapArgs {
    /// Whether standard output is taken.
    pub fn takes_stdout(&self) -> bool {
        self.dump_map.iter().any(|dump| dump.file == "-")
    }

    /// Refuses maps that the filter does not have, and devices that have none.
    pub fn check(&self, program: &Program, device: &DeviceInfo) -> Result<(), Failure> {
        let names: Vec<String> = program.maps().iter().map(|map| format!("`{}`", map.name)).collect();
        let state = self.state.iter().map(|file| (format!("--state {file}"), None));
        let files = self.dump_map.iter().map(|it| (format!("--dump-map {}={}", it.map, it.file), Some(it)));
        for (given, file) in state.chain(files) {
            let wrong = |what: String| Err(Failure::Usage(format!("{given}: {what}")));
            match file {
                Some(file) if file.number(program).is_none() => {
                    let there = if names.is_empty() { "no maps".into() } else { names.join(", ") };
                    return wrong(format!("the filter has no map `{}`; it has {there}", file.map));
                }
                None if names.is_empty() => return wrong("the filter has no maps".into()),
                _ if device.id == "noop" => {
                    return wrong(format!("{} runs no filter, and has no maps; choose another device", device.id));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The maps of a run.
pub struct Maps<'a> {
    args: &'a MapArgs,
    program: &'a Program,
    state: Option<State<'a>>,
    dumps: Option<Dumps<'a>>,
}

impl<'a> Maps<'a> {
    /// Brings what they begin with to the session.
    pub fn load(args: &'a MapArgs, program: &'a Program, session: &mut dyn Session) -> Result<Maps<'a>, Failure> {
        let mut state = args.state.as_deref().map(State::open).transpose()?;
        if let Some(state) = &mut state {
            state.load(program, session)?;
        }
        Ok(Maps { args, program, state, dumps: None })
    }

    /// Sees whether what is written after the run can be.
    pub fn open_outputs(&mut self) -> Result<(), SinkError> {
        self.dumps = Some(Dumps::open(&self.args.dump_map, self.program)?);
        Ok(())
    }

    /// Whether any is written after the run.
    pub fn writes(&self) -> bool {
        self.args.state.is_some() || !self.args.dump_map.is_empty()
    }

    /// Writes what is there now to all files, also where one fails; the first error is given.
    pub fn write(&self, session: &mut dyn Session) -> Result<(), Failure> {
        let saved = self.state.as_ref().map_or(Ok(()), |state| state.save(self.program, session));
        saved.and(self.dumps.as_ref().map_or(Ok(()), |dumps| dumps.write(session)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_a_map_and_a_file() {
        let file = |map: &str, file: &str, format| Ok(MapFile { map: map.into(), file: file.into(), format });
        assert_eq!(MapFile::output("a=b.csv"), file("a", "b.csv", Format::Csv));
        assert_eq!(MapFile::output("a=b=c/d.JSON"), file("a", "b=c/d.JSON", Format::Json));
        assert_eq!(MapFile::output("a=-"), file("a", "-", Format::Csv));
        assert_eq!(MapFile::output("a=/dev/stdout"), file("a", "-", Format::Csv));
        for bad in ["", "a", "=", "a=", "=b.csv", " =b.csv"] {
            assert!(MapFile::output(bad).unwrap_err().starts_with("expected NAME=FILE"), "{bad:?}");
        }
        for bad in ["a=b", "a=csv", "a=b.txt", "a=.csv", "a=b.csv/x"] {
            assert!(MapFile::output(bad).unwrap_err().contains(".csv or .json"), "{bad:?}");
        }
    }
}
