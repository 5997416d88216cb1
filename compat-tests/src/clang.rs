//! Compiles XDP programs with clang. Tests and fuzz targets of other crates include this file as a
//! module of their own.

use std::path::Path;
use std::process::{Command, Stdio};

/// Name in `PORTCULLIS_REQUIRE` of a clang with libbpf's headers.
pub const NAME: &str = "clang-bpf";

/// Compiles a source to an object, with BTF and line information unless the options include `-g0`.
///
/// # Errors
/// If clang is missing, or with its output: some sources need a newer instruction set (`-mcpu=v3`).
pub fn object(source: &Path, options: &[&str]) -> Result<Vec<u8>, String> {
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-Wall", "-target", "bpf"]);
    // Debian keeps the target-dependent headers in a directory of their own.
    clang.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    clang.args(options).args(["-c", "-o", "-"]).arg(source).stdin(Stdio::null());
    let output = clang.output().map_err(|error| format!("clang: {error}"))?;
    if output.status.success() { Ok(output.stdout) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Compiles a source to an object file.
///
/// # Errors
/// As [`object`], and if the file cannot be written.
pub fn to_file(source: &Path, options: &[&str], file: &Path) -> Result<(), String> {
    std::fs::write(file, object(source, options)?).map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns the object, or prints why the test is skipped and returns `None`.
///
/// # Panics
/// If compilation failed and `PORTCULLIS_REQUIRE` names clang.
pub fn require_clang<T>(compiled: Result<T, String>) -> Option<T> {
    compiled
        .map_err(|said| {
            let required = std::env::var("PORTCULLIS_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name.trim() == NAME), "{NAME} is required: {said}");
            println!("skipped: clang and libbpf's headers make no programs for BPF: {said}");
        })
        .ok()
}
