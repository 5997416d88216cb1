//! Shared libraries in a bundle, with what they link to and their licences.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{copy, io_error};

/// Libraries that every system has, in versions matching its own C library and compiler.
const SYSTEM_LIBRARIES: [&str; 8] =
    ["ld-linux", "libc.so", "libm.so", "libgcc_s", "libpthread", "libdl", "librt.so", "linux-vdso"];

/// Copies libraries to a folder of the bundle, and the licences of their packages.
pub fn add_libraries(libraries: &BTreeSet<PathBuf>, folder: &str, bundle: &Path) -> Result<(), String> {
    let folder = bundle.join(folder);
    std::fs::create_dir_all(&folder).map_err(|e| io_error(&folder, &e))?;
    for library in libraries {
        copy(library, &folder.join(library.file_name().expect("a file")))?;
    }
    for package in packages(libraries)? {
        let licence = format!("/usr/share/doc/{package}/copyright");
        copy(Path::new(&licence), &bundle.join("licences").join(package))?;
    }
    Ok(())
}

/// Returns the libraries that a program or library links to, directly or not, except the system's.
pub fn linked_libraries(file: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd").arg(file).output().map_err(|error| format!("ldd does not start: {error}"))?;
    parse_ldd(&String::from_utf8_lossy(&output.stdout)).map_err(|missing| format!("{}: {missing}", file.display()))
}

/// Parses the output of ldd, such as `libelf.so.1 => /lib/x86_64-linux-gnu/libelf.so.1
/// (0x00007f5851ee2000)`.
fn parse_ldd(text: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((name, place)) = line.trim().split_once(" => ") else { continue };
        if SYSTEM_LIBRARIES.iter().any(|library| name.starts_with(library)) {
            continue;
        }
        let place = place.split(" (").next().unwrap_or_default();
        if place == "not found" {
            return Err(format!("{name} is not found"));
        }
        found.push(place.into());
    }
    Ok(found)
}

/// Returns Debian's packages that contain these files.
fn packages(files: &BTreeSet<PathBuf>) -> Result<BTreeSet<String>, String> {
    // By name: /lib is also /usr/lib, and packages list their files under either.
    let names = files.iter().map(|file| format!("*/{}", file.file_name().unwrap_or_default().to_string_lossy()));
    let output = Command::new("dpkg").arg("-S").args(names).output();
    let output = output.map_err(|error| format!("dpkg does not start: {error}"))?;
    // `librte-eal23:amd64: /usr/lib/x86_64-linux-gnu/librte_eal.so.23`
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.split([':', ',']).next()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_libraries_are_left_out() {
        let text = "\tlinux-vdso.so.1 (0x00007f58)\n\tlibrte_eal.so.23 => /lib/x/librte_eal.so.23 (0x0000)\n\
                    \tlibc.so.6 => /lib/x/libc.so.6 (0x0000)\n\t/lib64/ld-linux-x86-64.so.2 (0x0000)\n\
                    \tlibpcap.so.0.8 => /usr/lib/x/libpcap.so.0.8 (0x1)\n";
        assert_eq!(
            parse_ldd(text),
            Ok(vec![PathBuf::from("/lib/x/librte_eal.so.23"), PathBuf::from("/usr/lib/x/libpcap.so.0.8")])
        );
        assert!(parse_ldd("\tlibrte_eal.so.23 => not found\n").unwrap_err().contains("librte_eal.so.23"));
    }
}
