//! `--dump-map`: writes a map's entries as CSV or JSON after the run.

use std::io::{self, BufWriter, Write};

use portcullis::device::Session;
use portcullis::map::{self, Declaration, Format};
use portcullis::packet_io::SinkError;
use portcullis::program::Program;

use super::map_args::MapFile;
use super::replace::Destination;
use crate::failure::Failure;
use crate::out;

/// All maps to be written after a run, each with its destination.
pub struct Dumps {
    all: Vec<(MapFile, Destination)>,
}

impl Dumps {
    /// Checks that the files can be written.
    pub fn open(dumps: &[MapFile]) -> Result<Dumps, SinkError> {
        let one = |dump: &MapFile| Destination::new(&dump.file).map(|to| (dump.clone(), to));
        Ok(Dumps { all: dumps.iter().map(one).collect::<Result<_, _>>()? })
    }

    /// Writes all dumps, even if one fails; no batch may be in flight. Returns the first error.
    pub fn write(&self, program: &Program, session: &mut dyn Session) -> Result<(), Failure> {
        let mut result = Ok(());
        for (dump, to) in &self.all {
            let Some(number) = dump.number(program) else { continue };
            result = result.and(write_dump((number, &program.maps()[number]), dump.format, to, session));
        }
        result
    }
}

/// Writes the entries of one map.
fn write_dump(
    (number, map): (usize, &Declaration),
    format: Format,
    to: &Destination,
    session: &mut dyn Session,
) -> Result<(), Failure> {
    let words = session.map_words(number)?;
    let content = |out: &mut dyn Write| map::dump(map, &words, format, out);
    match to {
        Destination::Stdout => {
            let mut out = BufWriter::new(io::stdout().lock());
            content(&mut out).and_then(|()| out.flush()).map_err(|error| out::stdout_failed(&error))
        }
        Destination::File(file) => file.write(content).map_err(Failure::from),
    }
}
