//! Records of what ran where. The tests of live traffic include this file as a module of their own.

use std::io::Write;
use std::path::Path;

/// Environment variable with the devices, tools and features whose absence fails the tests,
/// separated by commas: `cpu,wgpu`.
pub const REQUIRE: &str = "PORTCULLIS_REQUIRE";

/// Environment variable with a folder for records of what ran where; `cargo xtask test` makes a
/// table of them.
pub const RECORDS: &str = "PORTCULLIS_TEST_RECORDS";

/// Returns whether [`REQUIRE`] has this name.
pub fn is_required(name: &str) -> bool {
    std::env::var(REQUIRE).unwrap_or_default().split(',').any(|required| required.trim() == name)
}

/// Records that a suite is skipped because something is missing.
///
/// # Panics
/// If it is required.
pub fn record_skip(suite: &str, what: &str, reason: &str) {
    let required = is_required(what);
    record(suite, what, if required { "failed" } else { "skipped" }, reason);
    assert!(!required, "{what} is required and missing for {suite}: {reason}");
}

/// Prints and records how a suite ended with a device or feature (`passed`, `failed` or `skipped`).
pub fn record(suite: &str, what: &str, outcome: &str, remark: &str) {
    println!("{suite}: {what}: {outcome} ({remark})");
    let Some(folder) = std::env::var_os(RECORDS) else { return };
    let line = format!("{suite}\t{what}\t{outcome}\t{}\n", remark.replace(['\t', '\n', '\r'], " "));
    let file = Path::new(&folder).join(format!("{}.tsv", std::process::id()));
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(&file);
    // One write per line, as tests of a process run on several threads. No panic here: one may be
    // unwinding.
    if let Err(error) = opened.and_then(|mut f| f.write_all(line.as_bytes())) {
        println!("{}: {error}", file.display());
    }
}
