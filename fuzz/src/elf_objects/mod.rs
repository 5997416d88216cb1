//! Fuzz target: arbitrary bytes as an ELF object of XDP programs. The front end must reject the
//! object with a reason, or accept programs that inspect and run without a failure.

pub mod damage;
pub mod elf;

use std::io;
use std::sync::Arc;

use portcullis_core::map::layout::Layout;
use portcullis_core::map::{Format, dump};
use portcullis_core::program::ProgramOptions;
use portcullis_xdp::{self as xdp, Object};

use crate::filter;

/// Upper bound on a program's map memory, in words, for it to run: damage can turn an entry count
/// into millions.
const MAX_MAP_WORDS: usize = 1 << 20;

/// Upper bound on the size of a map, in words, for its contents to be printed.
const MAX_PRINTED_WORDS: usize = 1 << 12;

/// Reads the bytes as an object, inspects its programs and maps as `portcullis check` does, and
/// runs the programs that are accepted.
///
/// # Panics
/// If the front end panics, rejects without a reason, or accepts what a device cannot run.
pub fn run(data: &[u8]) {
    if let Err(error) = Object::read("fuzz", data) {
        assert!(!error.to_string().is_empty(), "refused without a reason");
        return;
    }
    let options = ProgramOptions::default().with_fuel(100);
    let report = match xdp::inspect("fuzz", data, &options) {
        Ok(report) => report,
        Err(errors) => return filter::check_rejected(&errors),
    };
    for map in &report.maps {
        map.typed.columns();
    }
    for inspected in report.programs {
        let program = match inspected.result {
            Ok(program) => Arc::new(program),
            Err(errors) => {
                filter::check_rejected(&errors);
                continue;
            }
        };
        // Printing must work whatever types the damaged BTF gives to keys and values.
        let words = program.maps().iter().map(|map| Layout::of(map).words());
        for (map, words) in program.maps().iter().zip(words.clone()).filter(|(_, words)| *words < MAX_PRINTED_WORDS) {
            for (_, format) in Format::ALL {
                dump(map, &vec![0; words], format, &mut io::sink()).expect("the sink accepts everything");
            }
        }
        if words.fold(0, usize::saturating_add) < MAX_MAP_WORDS {
            filter::check_accepted(&program);
        }
    }
}

#[cfg(test)]
mod tests;
