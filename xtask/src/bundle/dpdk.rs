//! DPDK in a bundle: the libraries of the DPDK build, and drivers of devices without hardware, for
//! a machine without DPDK.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::libraries::{add_libraries, linked_libraries};

/// DPDK drivers in a bundle: packet buffers, and the virtual device that `gpu-check.sh` uses.
const DRIVERS: [&str; 3] = ["mempool_ring", "bus_vdev", "net_null"];

/// Adds what a program needs of DPDK: libraries and drivers in `lib/dpdk`, and their licences.
pub fn add_to_bundle(program: &Path, bundle: &Path) -> Result<(), String> {
    let mut needed: BTreeSet<PathBuf> = linked_libraries(program)?.into_iter().collect();
    for driver in DRIVERS {
        let found = find_driver(driver)?;
        needed.extend(linked_libraries(&found)?);
        // A driver that others link to is listed again under another folder; copy it once.
        if !needed.iter().any(|known| known.file_name() == found.file_name()) {
            needed.insert(found);
        }
    }
    add_libraries(&needed, "lib/dpdk", bundle)
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

#[cfg(test)]
mod tests {
    use super::*;

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
        for part in ["eal", "ethdev", "mempool_ring", "bus_vdev", "net_null"] {
            let start = format!("librte_{part}.so.");
            assert_eq!(libraries.iter().filter(|name| name.starts_with(&start)).count(), 1, "{part}: {libraries:?}");
        }
        assert!(libraries.iter().any(|name| name.starts_with("libnuma.so")), "{libraries:?}");
        assert!(!libraries.iter().any(|name| name.starts_with("libc.so")), "{libraries:?}");
        assert!(licences.iter().any(|name| name.starts_with("librte-eal")), "{licences:?}");
        assert!(licences.iter().any(|name| name.starts_with("libnuma")), "{licences:?}");
        std::fs::remove_dir_all(&bundle).unwrap();
    }
}
