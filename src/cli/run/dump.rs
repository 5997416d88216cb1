//! `--dump-map`: a map's entries as text, after the run.

use std::io::{self, BufWriter, Write};

use portcullis::device::Session;
use portcullis::io::SinkError;
use portcullis::map::{self, Format};
use portcullis::program::Program;

use super::maps::MapFile;
use super::replace::Replacement;
use crate::cli::failure::Failure;
use crate::cli::out;

/// The dumps of a run.
pub struct Dumps<'a> {
    program: &'a Program,
    all: Vec<(usize, Format, To)>,
}

/// Where one goes.
enum To {
    Stdout,
    File(Replacement),
}

impl<'a> Dumps<'a> {
    /// Sees whether the files can be written.
    pub fn open(dumps: &[MapFile], program: &'a Program) -> Result<Dumps<'a>, SinkError> {
        let one = |dump: &MapFile| {
            let to = if dump.file == "-" { Ok(To::Stdout) } else { Replacement::new(&dump.file).map(To::File) };
            to.map(|to| dump.number(program).map(|number| (number, dump.format, to)))
        };
        let all: Result<Vec<_>, _> = dumps.iter().map(one).collect();
        Ok(Dumps { program, all: all?.into_iter().flatten().collect() })
    }

    /// Writes all of them, also where one fails; the first error is given. No batch is in flight.
    pub fn write(&self, session: &mut dyn Session) -> Result<(), Failure> {
        let mut result = Ok(());
        for (number, format, to) in &self.all {
            result = result.and(self.one(*number, *format, to, session));
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
            To::File(file) => file.write(content).map(drop).map_err(Failure::from),
        }
    }
}
