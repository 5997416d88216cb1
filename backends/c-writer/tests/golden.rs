//! Golden files: stock filters in OpenCL C (`golden/NAME.cl`) and in CUDA C++ (`golden/NAME.cu`),
//! those without maps and two with maps. `golden/NAME.lanes.cl` is the vectorisable variant for
//! CPUs, or the same as the first if there is none.
//!
//! With `UPDATE_GOLDEN=1` the files are written instead; review the difference before committing
//! it.

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
        "lanes.cl" => Options { packet_access: PacketAccess::Vectorizable, ..Options::new(Language::OpenCl) },
        _ => {
            Options { group_size: Some(256), packet_access: PacketAccess::AlignedWords, ..Options::new(Language::Cuda) }
        }
    }
}

#[test]
fn sources_are_golden() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    for (name, program) in filters() {
        for extension in ["cl", "lanes.cl", "cu"] {
            let kernel = write(&program, &options(extension)).unwrap_or_else(|e| panic!("{name}: {e}"));
            let golden = folder("tests/golden").join(format!("{name}.{extension}"));
            if update {
                fs::write(&golden, &kernel.source).unwrap();
            } else {
                let want = fs::read_to_string(&golden).unwrap_or_default();
                assert_eq!(kernel.source, want, "{} differs; UPDATE_GOLDEN=1 rewrites it", golden.display());
            }
        }
    }
}
