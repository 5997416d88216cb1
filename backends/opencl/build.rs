//! Lets programs link on a machine without OpenCL.
//!
//! The crate `cl-sys` makes the linker look for `-lOpenCL`. Its functions are defined by this crate
//! (`src/driver/loader.rs`), so that the library must exist but may be empty: an archive without
//! members. The linker searches this folder before those of the system, where a `libOpenCL.so`
//! would become a dependency of the program.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |key: &str| env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    // On macOS OpenCL is a system framework, and there is no such thing as an empty framework.
    if target("OS") == "macos" {
        return;
    }
    let name = if target("ENV") == "msvc" { "OpenCL.lib" } else { "libOpenCL.a" };
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(folder.join(name), "!<arch>\n").expect("OUT_DIR can be written to");
    println!("cargo::rustc-link-search=native={}", folder.display());
}
