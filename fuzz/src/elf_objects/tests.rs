//! Damaged objects of the XDP programs in compat-tests, compiled by clang.

use std::path::{Path, PathBuf};

use portcullis_xdp::Object;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::damage::damaged;
use super::elf::Elf;
use super::run;
use crate::mutate::{A_SECOND, Corpus, mutation, run_over};

#[path = "../../../compat-tests/src/clang.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod clang;

/// Programs that between them use every feature: all kinds of maps, variables, calls, tail calls,
/// loops, events, types.
const SEED_PROGRAMS: [&str; 8] =
    ["counters_struct", "events_print", "for_each", "globals", "legacy_maps", "lpm_router", "map_in_map", "tail_calls"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../compat-tests/xdp")
}

/// Compiles the sources; empty if clang is not installed.
fn objects(names: impl IntoIterator<Item = PathBuf>) -> Vec<Vec<u8>> {
    names.into_iter().map_while(|source| clang::require_clang(clang::object(&source, &["-mcpu=v3"]))).collect()
}

fn sources() -> Vec<PathBuf> {
    let files =
        std::fs::read_dir(folder()).expect("the folder of the sources").map(|file| file.expect("a file").path());
    let mut files: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|ending| ending == "c")).collect();
    files.sort();
    files
}

/// Mutates a random object: usually by structure, in one of eight cases as plain bytes.
fn input(objects: &[Vec<u8>], number: u64) -> Vec<u8> {
    let mut rng = Pcg64::seed_from_u64(number);
    let object = objects.choose(&mut rng).expect("an object");
    if rng.random_range(0..8u32) == 0 {
        let seeds: Vec<&[u8]> = objects.iter().map(Vec::as_slice).collect();
        return mutation(Corpus { seeds: &seeds, ..Corpus::default() }, number);
    }
    damaged(object, number).expect("clang makes ELF")
}

#[test]
fn mutated_seeds_never_panic() {
    let objects = objects(SEED_PROGRAMS.map(|name| folder().join(format!("{name}.c"))));
    if objects.is_empty() {
        return;
    }
    println!("{} objects", run_over(A_SECOND, "elf_objects", 0, |number| input(&objects, number), run));
}

/// Runs every object with several mutations; `PORTCULLIS_DAMAGED_OBJECTS` sets the number per
/// object.
#[test]
fn each_mutated_object_is_read_or_refused() {
    let times = std::env::var("PORTCULLIS_DAMAGED_OBJECTS").ok().and_then(|times| times.parse().ok()).unwrap_or(8);
    let first = std::env::var("PORTCULLIS_RANDOM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let (mut read, mut all) = (0, 0);
    for object in objects(sources()) {
        run(&object);
        for number in first..first + times {
            let damaged = damaged(&object, number).expect("clang makes ELF");
            read += u64::from(Object::read("damaged.o", &damaged).is_ok());
            all += 1;
            run(&damaged);
        }
    }
    println!("{read} of {all} can be read");
    assert!(all == 0 || (all / 3..all - all / 50).contains(&read), "{read} of {all}");
}

#[test]
fn an_object_survives_parsing_and_writing() {
    for object in objects(SEED_PROGRAMS.map(|name| folder().join(format!("{name}.c")))) {
        let elf = Elf::read(&object).expect("clang makes ELF");
        let again = elf.write();
        assert_eq!(Elf::read(&again).expect("the written object parses").sections.len(), elf.sections.len());
        let read = |bytes: &[u8]| format!("{:?}", Object::read("object", bytes).expect("the object is valid"));
        assert!(read(&again) == read(&object), "the object has changed");
    }
}

#[test]
fn malformed_bytes_never_panic() {
    let header = [&b"\x7fELF\x02\x01\x01"[..], &[0; 57]].concat();
    for data in [&b""[..], b"\0", b"\x7fELF", &header, &[0xff; 64]] {
        run(data);
    }
    assert!(damaged(b"", 0).is_none() && damaged(&header, 0).is_some());
}
