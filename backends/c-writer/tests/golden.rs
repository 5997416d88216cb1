//! Golden files: stock filters in OpenCL C (`golden/NAME.cl`) and in CUDA C++ (`golden/NAME.cu`),
//! those without maps and two with maps. Declarations that several filters have are in
//! `golden/shared.cl` and `golden/shared.cu`, once. `NAME.lanes.cl` and `shared.lanes.cl` have the
//! declarations in which the vectorisable variant for CPUs differs. Each `NAME` begins with the
//! list of all the filter's declarations in their order.
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
        // As the CUDA backend compiles kernels for `pipelined`.
        _ => Options::new(Language::Cuda)
            .with_group_size(256)
            .with_packet_access(PacketAccess::AlignedWords)
            .with_descriptor_rules()
            .with_metadata_rules(),
    }
}

/// Splits a source into declarations, which blank lines separate.
fn declarations(source: &str) -> Vec<&str> {
    source.split("\n\n").map(|declaration| declaration.trim_matches('\n')).collect()
}

/// Where the declaration is: its file, and its number there.
type Place = (String, usize);

/// Returns a file's list of declarations: a comment line for each in the source's order, with its
/// first line up to a parenthesis or brace, and its place if that is another file.
fn list(file: &str, source: &[(String, Place)]) -> String {
    let line = |(at, (text, (place, number))): (usize, &(String, Place))| {
        let first = text.lines().next().unwrap_or_default();
        let first = first.split(['(', '{']).next().unwrap_or_default().trim_end();
        let place = if place == file { String::new() } else { format!(", {place} {number}") };
        format!("// {}. {first}{place}\n", at + 1)
    };
    source.iter().enumerate().map(line).collect()
}

/// Returns the golden files' texts by name.
fn golden_texts() -> BTreeMap<String, String> {
    let filters = filters();
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut lists = BTreeMap::new();
    // Each filter's declarations in OpenCL C with their places.
    let mut scalar: Vec<Vec<(String, Place)>> = vec![Vec::new(); filters.len()];
    for extension in ["cl", "lanes.cl", "cu"] {
        let sources: Vec<Vec<String>> = filters
            .iter()
            .map(|(name, program)| {
                let kernel = write(program, &options(extension)).unwrap_or_else(|e| panic!("{name}: {e}"));
                declarations(&kernel.source).into_iter().map(str::to_owned).collect()
            })
            .collect();
        for (number, (name, _)) in filters.iter().enumerate() {
            let others = || sources.iter().enumerate().filter(|(other, _)| *other != number);
            let mut place = |text: &String| -> Place {
                let known = scalar[number].iter().find(|(known, _)| extension == "lanes.cl" && known == text);
                if let Some((_, place)) = known {
                    return place.clone();
                }
                let is_shared = others().any(|(_, source)| source.contains(text));
                let file = format!("{}.{extension}", if is_shared { "shared" } else { name });
                let all = files.entry(file.clone()).or_default();
                let at = all.iter().position(|known| known == text).unwrap_or_else(|| {
                    all.push(text.clone());
                    all.len() - 1
                });
                (file, at + 1)
            };
            let placed: Vec<(String, Place)> = sources[number].iter().map(|text| (text.clone(), place(text))).collect();
            if extension != "lanes.cl" || placed != scalar[number] {
                let file = format!("{name}.{extension}");
                lists.insert(file.clone(), list(&file, &placed));
            }
            if extension == "cl" {
                scalar[number] = placed;
            }
        }
    }
    let names: BTreeSet<String> = files.keys().chain(lists.keys()).cloned().collect();
    let text = |name: String| {
        let list = lists.get(&name).cloned();
        let parts: Vec<String> =
            list.into_iter().chain(files.get(&name).into_iter().flatten().map(|t| format!("{t}\n"))).collect();
        (name, parts.join("\n"))
    };
    names.into_iter().map(text).collect()
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
