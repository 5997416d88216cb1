//! Passes the commit to release builds, for reports: `PORTCULLIS_COMMIT`, or the checkout's HEAD.
//! Debug builds get none, so that they are not rebuilt after every commit.

#[path = "src/commit.rs"]
mod commit;

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/commit.rs");
    println!("cargo:rerun-if-env-changed=PORTCULLIS_COMMIT");
    let said = std::env::var("PORTCULLIS_COMMIT").ok().filter(|commit| !commit.is_empty());
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let found = match std::env::var_os("CARGO_MANIFEST_DIR") {
        // A packaged release inside another checkout finds no `.git` here.
        Some(folder) if is_release && said.is_none() => commit::read_commit(&Path::new(&folder).join("../.git")),
        _ => None,
    };
    for path in found.iter().flat_map(|found| &found.sources) {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    if let Some(commit) = said.or(found.map(|found| found.commit)) {
        println!("cargo:rustc-env=PORTCULLIS_COMMIT={}", commit.lines().next().unwrap_or_default());
    }
}
