//! OpenCL C through the whole front end, in the interpreter.

use std::fs;
use std::path::Path;

use portcullis_core::diagnostics::Source;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_opencl_c::{self as opencl_c, files::NoIncludes};
use portcullis_wgsl as wgsl;

fn compile(name: &str, text: &str) -> Program {
    let source = Source::new(name, text);
    opencl_c::compile(&source, &ProgramOptions::default(), &mut NoIncludes).unwrap_or_else(|e| panic!("{}", e.render()))
}

/// Each stock filter is known to do what its twin in WGSL does, and no more: devices send as little of
/// the packets, whichever of the two it is.
#[test]
fn the_stock_filters_have_the_facts_of_their_twins() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shaders");
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
            // Times have 64 bits in C alone, and keys are gone through by each language's own loops: known to end in one
            // where they are in the other.
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
    assert_eq!(count, twins.count(), "every filter is there in both languages");
}
