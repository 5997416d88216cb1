//! Golden files: stock filters in OpenCL C (`golden/NAME.cl`) and in CUDA C++ (`golden/NAME.cu`),
//! those without maps and two with maps. Declarations that several filters have are in
//! `golden/shared.cl` and `golden/shared.cu`, once. `NAME.lanes.cl` and `shared.lanes.cl` have the
//! declarations in which the vectorisable variant for CPUs differs.
//!
//! With `UPDATE_GOLDEN=1` the files are written instead; review the difference before committing
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use portcullis_c_writer::{Language, Options, PacketAccess, write};
use portcullis_core::diagnostics::Source;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_wgsl as wgsl;

/// Filters with maps, whose text is mostly the prelude's and alike. One has long keys and a
/// counter, the other flows.
const WITH_MAPS: [&str; 2] = ["flow_stats", "token_bucket"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn filters() -> Vec<(String, Program)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder("../../shaders"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "wgsl"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 9, "the stock filters are gone");
    let compile = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = Source::new(format!("{name}.wgsl"), fs::read_to_string(&path).unwrap());
        (name, wgsl::compile(&source, &ProgramOptions::default()).unwrap_or_else(|e| panic!("{}", e.render())))
    };
    let is_wanted = |(name, program): &(String, Program)| program.maps().is_empty() || WITH_MAPS.contains(&&**name);
    paths.into_iter().map(compile).filter(is_wanted).collect()
}

/// Options as for a GPU in CUDA C++, and for CPUs in OpenCL C, vectorisable or not.
fn options(extension: &str) -> Options {
    match extension {
        "cl" => Options::new(Language::OpenCl),
        "lanes.cl" => Options::new(Language::OpenCl).with_packet_access(PacketAccess::Vectorizable),
        _ => Options::new(Language::Cuda).with_group_size(256).with_packet_access(PacketAccess::AlignedWords),
    }
}

/// Splits a source into declarations, which blank lines separate.
fn declarations(source: &str) -> Vec<&str> {
    source.split("\n\n").map(|declaration| declaration.trim_matches('\n')).collect()
}

/// Returns the golden files' texts by name.
fn golden_texts() -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    let filters = filters();
    let mut scalar: BTreeSet<(usize, String)> = BTreeSet::new();
    for extension in ["cl", "lanes.cl", "cu"] {
        let mut all: Vec<(usize, String)> = Vec::new();
        for (number, (name, program)) in filters.iter().enumerate() {
            let kernel = write(program, &options(extension)).unwrap_or_else(|e| panic!("{name}: {e}"));
            all.extend(declarations(&kernel.source).into_iter().map(|text| (number, text.to_owned())));
        }
        if extension == "lanes.cl" {
            all.retain(|declaration| !scalar.contains(declaration));
        } else {
            scalar = all.iter().cloned().collect();
        }
        for (number, text) in &all {
            let is_shared = all.iter().any(|(other, theirs)| other != number && theirs == text);
            let name = if is_shared { "shared" } else { &filters[*number].0 };
            let file: &mut String = texts.entry(format!("{name}.{extension}")).or_default();
            if !is_shared || !declarations(file).contains(&text.as_str()) {
                *file += &format!("{}{text}\n", if file.is_empty() { "" } else { "\n" });
            }
        }
    }
    texts
}

#[test]
fn sources_are_golden() {
    let golden = folder("tests/golden");
    let texts = golden_texts();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::remove_dir_all(&golden).unwrap();
        fs::create_dir(&golden).unwrap();
        texts.iter().for_each(|(name, text)| fs::write(golden.join(name), text).unwrap());
    }
    let files: BTreeSet<String> =
        fs::read_dir(&golden).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(texts.keys().eq(&files), "{files:?}; UPDATE_GOLDEN=1 rewrites {}", golden.display());
    for (name, text) in texts {
        let want = fs::read_to_string(golden.join(&name)).unwrap();
        assert_eq!(text, want, "{name} differs; UPDATE_GOLDEN=1 rewrites {}", golden.display());
    }
}
