//! DPDK in a bundle: the libraries of the DPDK build, and drivers of devices without hardware, for
//! a machine without DPDK.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{copy, io_error};

/// DPDK drivers in a bundle: packet buffers and virtual devices.
const DRIVERS: [&str; 4] = ["mempool_ring", "bus_vdev", "net_null", "net_pcap"];

/// Libraries that every system has, in versions matching its own C library and compiler.
const SYSTEM_LIBRARIES: [&str; 8] =
    ["ld-linux", "libc.so", "libm.so", "libgcc_s", "libpthread", "libdl", "librt.so", "linux-vdso"];

/// Adds what a program needs of DPDK: libraries and drivers in `lib/dpdk`, and their licences.
pub fn add_to_bundle(program: &Path, bundle: &Path) -> Result<(), String> {
    let folder = bundle.join("lib/dpdk");
    std::fs::create_dir_all(&folder).map_err(|e| io_error(&folder, &e))?;
    let mut needed: BTreeSet<PathBuf> = linked_libraries(program)?.into_iter().collect();
    for driver in DRIVERS {
        let found = find_driver(driver)?;
        needed.extend(linked_libraries(&found)?);
        // A driver that others link to is listed again under another folder; copy it once.
        if !needed.iter().any(|known| known.file_name() == found.file_name()) {
            needed.insert(found);
        }
    }
    for library in &needed {
        copy(library, &folder.join(library.file_name().expect("a file")))?;
    }
    for package in packages(&needed)? {
        let licence = format!("/usr/share/doc/{package}/copyright");
        copy(Path::new(&licence), &bundle.join("licences").join(package))?;
    }
    Ok(())
}

/// Returns the file of a driver in the folder of this release of DPDK.
fn find_driver(driver: &str) -> Result<PathBuf, String> {
    let output = Command::new("pkg-config").args(["--variable=libdir", "libdpdk"]).output();
    let output = output.map_err(|error| format!("pkg-config does not start: {error}"))?;
    let folder = Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("dpdk");
    // By the name that others link to, `librte_net_null.so.23`; `librte_net_null.so.23.0` is the
    // same file.
    let start = format!("librte_{driver}.so.");
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries(&folder)
        .filter(|path| path.is_dir())
        .flat_map(|releases| entries(&releases).collect::<Vec<_>>())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start)))
        .collect();
    found.sort();
    found.into_iter().next().ok_or_else(|| format!("{}: DPDK's driver {driver} is missing", folder.display()))
}

/// Returns the libraries that a program or library links to, directly or not, except the system's.
fn linked_libraries(file: &Path) -> Result<Vec<PathBuf>, String> {
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

    #[test]
    fn drivers_are_bundled_with_their_libraries_and_licences() {
        if !crate::test::can_build_dpdk() {
            println!("skipped: DPDK is not installed (Debian's package libdpdk-dev)");
            return;
        }
        let bundle = std::env::temp_dir().join(format!("portcullis-dpdk-bundle-{}", std::process::id()));
        std::fs::create_dir_all(bundle.join("licences")).unwrap();
        // A driver stands for the program.
        add_to_bundle(&find_driver("net_null").unwrap(), &bundle).unwrap();
        let names = |folder: &str| -> Vec<String> {
            let entries = std::fs::read_dir(bundle.join(folder)).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let (libraries, licences) = (names("lib/dpdk"), names("licences"));
        for part in ["eal", "ethdev", "mempool_ring", "bus_vdev", "net_null", "net_pcap"] {
            let start = format!("librte_{part}.so.");
            assert_eq!(libraries.iter().filter(|name| name.starts_with(&start)).count(), 1, "{part}: {libraries:?}");
        }
        assert!(libraries.iter().any(|name| name.starts_with("libpcap.so")), "{libraries:?}");
        assert!(!libraries.iter().any(|name| name.starts_with("libc.so")), "{libraries:?}");
        assert!(licences.iter().any(|name| name.starts_with("librte-eal")), "{licences:?}");
        assert!(licences.iter().any(|name| name.starts_with("libpcap")), "{licences:?}");
        std::fs::remove_dir_all(&bundle).unwrap();
    }
}
