//! Stock filters in OpenCL C, compared with their WGSL versions.

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

/// Each stock filter has the facts of its WGSL version, so that devices transfer equally little of
/// the packets.
#[test]
fn stock_filters_have_the_same_facts_in_both_languages() {
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
        let (mut facts, mut expected) = (program.facts().clone(), twin.facts().clone());
        if !program.maps().is_empty() {
            // Only C has 64-bit times, and each language searches keys with loops of its own:
            // compare whether the number of iterations is bounded.
            for facts in [&mut facts, &mut expected] {
                facts.max_iterations = facts.max_iterations.map(|_| 0);
                facts.uses_int64 = false;
            }
        }
        assert_eq!(format!("{facts:?}"), format!("{expected:?}"), "{}", path.display());
    }
    let twins = fs::read_dir(folder)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "wgsl"));
    assert_eq!(count, twins.count(), "every stock filter exists in both languages");
}
