//! clang, as it makes objects of XDP programs. Tests and fuzz targets elsewhere have this file as a module of theirs.

use std::path::Path;
use std::process::{Command, Stdio};

/// What `PORTCULLIS_REQUIRE` calls a clang with libbpf's headers.
pub const NAME: &str = "clang-bpf";

/// The object of a source, with types and lines unless the options say otherwise (`-g0`).
///
/// # Errors
/// There is no clang, or what it says: some sources need a later processor (`-mcpu=v3`).
pub fn object(source: &Path, options: &[&str]) -> Result<Vec<u8>, String> {
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-Wall", "-target", "bpf"]);
    // Debian has what the compiler's target decides apart.
    clang.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    clang.args(options).args(["-c", "-o", "-"]).arg(source).stdin(Stdio::null());
    let output = clang.output().map_err(|error| format!("clang: {error}"))?;
    if output.status.success() { Ok(output.stdout) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// The same in a file.
///
/// # Errors
/// As [`object`], and where the file cannot be written.
pub fn to_file(source: &Path, options: &[&str], file: &Path) -> Result<(), String> {
    std::fs::write(file, object(source, options)?).map_err(|error| format!("{}: {error}", file.display()))
}

/// What was made; `None` where that is nothing, which is printed.
///
/// # Panics
/// Where `PORTCULLIS_REQUIRE` demands that there be a clang that makes it.
pub fn made<T>(made: Result<T, String>) -> Option<T> {
    made.map_err(|said| {
        let required = std::env::var("PORTCULLIS_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|name| name.trim() == NAME), "{NAME} is required: {said}");
        println!("skipped: clang and libbpf's headers make no programs for BPF: {said}");
    })
    .ok()
}
