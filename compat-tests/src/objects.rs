//! The XDP programs in `compat-tests/xdp`, compiled by clang, and the initial contents of their
//! maps.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis_core::map::{Declaration, MapKind, Table};
use portcullis_core::packet::Verdict;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_xdp::MapDefinition;

use crate::kernel::Entries;
use crate::{clang, devices, kernel};

/// Instruction sets and optimisation levels to compile with. v1 and v2 have no 32-bit jumps or
/// arithmetic; v3 has both, and fetching atomics. The last is the usual choice.
pub const FORMS: [(&str, &str); 3] = [("v1", "-O3"), ("v2", "-O1"), ("v3", "-O2")];

/// Returns the folder of the sources.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("xdp")
}

/// Returns the folder of the sources that look up routes, which need a network namespace.
pub fn folder_of_routes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("xdp-routes")
}

/// Returns the sources in order of their names, or only those that `PORTCULLIS_XDP_SOURCES` names,
/// separated by commas.
///
/// # Panics
/// If there are none.
pub fn sources() -> Vec<PathBuf> {
    let mut files = c_files([folder()]);
    if let Ok(wanted) = std::env::var("PORTCULLIS_XDP_SOURCES") {
        files.retain(|file| file.file_stem().is_some_and(|stem| wanted.split(',').any(|name| *stem == *name)));
    }
    assert!(!files.is_empty());
    files
}

/// Returns all sources, including those that look up routes.
///
/// # Panics
/// If a folder is missing.
pub fn all_sources() -> Vec<PathBuf> {
    c_files([folder(), folder_of_routes()])
}

fn c_files(folders: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let of = |folder: PathBuf| std::fs::read_dir(folder).expect("the folder of the sources");
    let files = folders.into_iter().flat_map(of).map(|file| file.expect("a file").path());
    let mut files: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|ending| ending == "c")).collect();
    files.sort();
    files
}

/// Compiles the program `gateway` with enough rules and options for 2,500 instructions, more than
/// the kernel's verifier explores, to test the limits of devices and their compilers.
///
/// # Errors
/// As [`compile`].
///
/// # Panics
/// If the file cannot be written.
pub fn large() -> Result<Vec<u8>, String> {
    let folder = tempfile::tempdir().expect("a folder for the source");
    let (source, inner) = (folder.path().join("large.c"), self::folder().join("gateway.c"));
    let text = format!("#define RULES 100\n#define OPTIONS 24\n#include \"{}\"\n", inner.display());
    std::fs::write(&source, text).expect("the source is written");
    compile(&source, "v3")
}

/// Returns why sources cannot be compiled, or `None` if they can.
pub fn missing() -> Option<String> {
    let folder = tempfile::tempdir().ok()?;
    let source = folder.path().join("probe.c");
    let text = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nSEC(\"xdp\") int probe(struct xdp_md *ctx) { return 2; }\n";
    std::fs::write(&source, text).ok()?;
    let said = compile(&source, "v3").err()?;
    Some(format!("clang and libbpf's headers make no programs for BPF: {}", said.lines().next().unwrap_or_default()))
}

/// Returns whether sources cannot be compiled, and records that the suite is skipped then.
///
/// # Panics
/// If the compiler is required.
pub fn is_missing(suite: &str) -> bool {
    missing().inspect(|reason| devices::record_skip(suite, clang::NAME, reason)).is_some()
}

/// Returns whether the kernel cannot be used as a reference, and records that the suite is skipped
/// then.
///
/// # Panics
/// If the kernel is required.
pub fn is_kernel_missing(suite: &str) -> bool {
    kernel::missing().inspect(|reason| devices::record_skip(suite, "kernel-bpf", reason)).is_some()
}

/// Compiles one of the sources, given its name without `.c`, for the usual instruction set.
///
/// # Panics
/// If clang refuses it.
pub fn object(stem: &str) -> Vec<u8> {
    compile(&folder().join(stem).with_extension("c"), "v3").unwrap_or_else(|error| panic!("{stem}: {error}"))
}

/// Translates a program of an object.
///
/// # Panics
/// With the diagnostics, if it is refused.
pub fn program(stem: &str, object: &[u8], name: &str, options: &ProgramOptions) -> Arc<Program> {
    let program = portcullis_xdp::compile(stem, object, Some(name), options);
    Arc::new(program.unwrap_or_else(|errors| panic!("{stem}:{name}: {}", errors.render())))
}

/// Compiles a source with clang.
///
/// # Errors
/// If clang is missing, or its output: some sources need a newer instruction set.
pub fn compile(source: &Path, processor: &str) -> Result<Vec<u8>, String> {
    compile_with(source, processor, &[])
}

/// Compiles with additional options for clang.
///
/// # Errors
/// See [`compile`].
pub fn compile_with(source: &Path, processor: &str, options: &[String]) -> Result<Vec<u8>, String> {
    let processor = format!("-mcpu={processor}");
    let options: Vec<&str> = options.iter().map(String::as_str).chain([processor.as_str()]).collect();
    clang::object(source, &options)
}

/// Returns the initial map contents of a source from `compat-tests/xdp/presets.json`: map, key and
/// value.
///
/// # Panics
/// If the file is malformed.
pub fn presets(source: &str) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let text = std::fs::read(folder().join("presets.json")).expect("the file of presets");
    let all: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    for of in all.as_object().expect("sources").keys() {
        assert!(folder().join(of).with_extension("c").exists(), "presets.json: no source `{of}`");
    }
    let bytes = |entry: &serde_json::Value, member: &str| -> Vec<u8> {
        let digits = entry[member].as_str().expect("bytes in hexadecimal");
        let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
        pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
    };
    let Some(maps) = all[source].as_object() else { return Vec::new() };
    let entries =
        maps.iter().flat_map(|(map, entries)| entries.as_array().into_iter().flatten().map(move |it| (map, it)));
    entries.map(|(map, entry)| (map.clone(), bytes(entry, "key"), bytes(entry, "value"))).collect()
}

/// Converts a map's contents to the kernel's layout, with bytes in place of words.
pub fn entries(map: &Declaration, definition: &MapDefinition, table: &Table) -> Entries {
    let bytes = |words: &[u32], length: u32| -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(length as usize);
        bytes
    };
    let rows = table.rows().into_iter();
    rows.map(|row| {
        let key = match map.kind {
            // The prefix length comes first, then the address in network byte order.
            MapKind::Lpm => {
                let (length, address) = row.key.split_last().expect("a prefix has a length");
                let address = address.iter().flat_map(|word| word.to_be_bytes());
                length.to_le_bytes().into_iter().chain(address).collect()
            }
            _ => bytes(&row.key, definition.key_size),
        };
        (key, bytes(&row.value, definition.value_size))
    })
    // A redirect map has no entry for a slot that is zero.
    .filter(|(_, value)| !definition.ty.holds_redirect_targets() || value.iter().any(|byte| *byte != 0))
    .collect()
}

/// Converts a key from the kernel's layout to words.
pub fn key(map: &Declaration, key: &[u8]) -> Vec<u32> {
    let words = words(key);
    match map.kind {
        MapKind::Lpm => words[1..].iter().map(|word| word.swap_bytes()).chain([words[0]]).collect(),
        _ => words,
    }
}

/// Packs bytes into words, padded with zeros.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
    bytes.chunks(4).map(word).collect()
}

/// Converts a program's return value to the kernel's verdict: redirect targets are not part of it,
/// and an invalid value counts as XDP_ABORTED.
pub fn of_kernel(returned: u32) -> u8 {
    if returned <= 4 { returned as u8 } else { 0 }
}

/// Returns the kernel's number of a Portcullis verdict.
pub fn of_ours(verdict: Verdict) -> u8 {
    (verdict.to_return() & 0xff) as u8
}
