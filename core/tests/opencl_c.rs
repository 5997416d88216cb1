//! Facts about filters in OpenCL C, compiled by the whole front end.

use std::fs;
use std::path::Path;

use portcullis_core::lang::opencl_c::{self, files::NoIncludes};
use portcullis_core::lang::{Source, wgsl};
use portcullis_core::program::{Program, ProgramOptions};

fn compile(name: &str, text: &str) -> Program {
    let source = Source::new(name, text);
    opencl_c::compile(&source, &ProgramOptions::default(), &mut NoIncludes).unwrap_or_else(|e| panic!("{}", e.render()))
}

/// Each stock filter in OpenCL C has the same facts as its WGSL version, so that devices upload as
/// little of the packets for either.
#[test]
fn stock_filters_have_the_same_facts_in_both_languages() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders");
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "cl") {
            continue;
        }
        count += 1;
        let program = compile(&path.display().to_string(), &fs::read_to_string(&path).unwrap());
        let twin = path.with_extension("wgsl");
        let twin = Source::new(twin.display().to_string(), fs::read_to_string(&twin).unwrap());
        let twin = wgsl::compile(&twin, &ProgramOptions::default()).unwrap();
        let (mut facts, mut wanted) = (program.facts().clone(), twin.facts().clone());
        if !program.maps().is_empty() {
            // Only in C, times have 64 bits; and keys are copied by loops of the language's own, so
            // the bounds differ, but both have one or neither has.
            for facts in [&mut facts, &mut wanted] {
                facts.max_iterations = facts.max_iterations.map(|_| 0);
                facts.uses_int64 = false;
            }
        }
        assert_eq!(format!("{facts:?}"), format!("{wanted:?}"), "{}", path.display());
    }
    let twins = fs::read_dir(folder)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "wgsl"));
    assert_eq!(count, twins.count(), "every filter exists in both languages");
}
