//! Lets programs link on a machine without OpenCL.
//!
//! The crate `cl-sys` asks the linker for `-lOpenCL`. Its functions are defined by this crate
//! (`src/loader.rs`), so the library has to be there and may be empty: an archive without members.
//! The linker looks here before it looks in the system, where a `libOpenCL.so` would become a
//! library that the program does not start without.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |key: &str| env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    // macOS has OpenCL as a part of itself, and there is no such thing as an empty framework.
    if target("OS") == "macos" {
        return;
    }
    let name = if target("ENV") == "msvc" { "OpenCL.lib" } else { "libOpenCL.a" };
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(folder.join(name), "!<arch>\n").expect("OUT_DIR can be written to");
    println!("cargo::rustc-link-search=native={}", folder.display());
}
