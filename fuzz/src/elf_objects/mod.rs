//! Any bytes as an object of XDP programs: it is refused with a reason, or looked at as `check` does, and what is taken of it runs.

pub mod damage;
pub mod elf;

use std::io;
use std::sync::Arc;

use portcullis_core::map::layout::Layout;
use portcullis_core::map::{Format, dump};
use portcullis_core::program::ProgramOptions;
use portcullis_xdp::{self as xdp, Object};

use crate::filter;

/// Words of a program's maps at most, where it is run: a number of entries may have become millions.
const MOST_WORDS: usize = 1 << 20;

/// Words of a map that is written down.
const MOST_WRITTEN: usize = 1 << 12;

/// Reads the bytes as an object, looks at its programs and maps, and runs what is taken.
///
/// # Panics
/// Where the front end failed, or let through what a device cannot take: faults of Portcullis.
pub fn run(data: &[u8]) {
    if let Err(wrong) = Object::read("fuzz", data) {
        assert!(!wrong.to_string().is_empty(), "refused without a reason");
        return;
    }
    let options = ProgramOptions { fuel: 100, ..ProgramOptions::default() };
    let report = match xdp::inspect("fuzz", data, &options) {
        Ok(report) => report,
        Err(errors) => return filter::refused(&errors),
    };
    for map in &report.maps {
        map.typed.columns();
    }
    for surveyed in report.programs {
        let program = match surveyed.result {
            Ok(program) => Arc::new(program),
            Err(errors) => {
                filter::refused(&errors);
                continue;
            }
        };
        // Types that say anything can be written down.
        let words = program.maps().iter().map(|map| Layout::of(map).words());
        for (map, words) in program.maps().iter().zip(words.clone()).filter(|(_, words)| *words < MOST_WRITTEN) {
            for (_, format) in Format::ALL {
                dump(map, &vec![0; words], format, &mut io::sink()).expect("nobody refuses it");
            }
        }
        if words.fold(0, usize::saturating_add) < MOST_WORDS {
            filter::taken(&program);
        }
    }
}

#[cfg(test)]
mod tests;
