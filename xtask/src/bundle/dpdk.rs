//! DPDK in a bundle: libraries that the program takes which has it, and drivers of devices that
//! need no hardware, for a machine without DPDK.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{at, copy};

/// Drivers of DPDK: where packets' buffers come from, and devices that DPDK makes.
const DRIVERS: [&str; 4] = ["mempool_ring", "bus_vdev", "net_null", "net_pcap"];

/// What every system has, of its own C library's and compiler's version.
const OF_THE_SYSTEM: [&str; 8] =
    ["ld-linux", "libc.so", "libm.so", "libgcc_s", "libpthread", "libdl", "librt.so", "linux-vdso"];

/// Puts in what a program needs of DPDK: libraries and drivers into `lib/dpdk`, and the licences of
/// all of them.
pub fn put_in(program: &Path, bundle: &Path) -> Result<(), String> {
    let folder = bundle.join("lib/dpdk");
    std::fs::create_dir_all(&folder).map_err(|e| at(&folder, &e))?;
    let mut needed: BTreeSet<PathBuf> = needs(program)?.into_iter().collect();
    for driver in DRIVERS {
        let found = find(driver)?;
        needed.extend(needs(&found)?);
        // What other drivers are linked to is listed from another folder, and is to be there once.
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

/// The file of a driver, where this release of DPDK has its own.
fn find(driver: &str) -> Result<PathBuf, String> {
    let output = Command::new("pkg-config").args(["--variable=libdir", "libdpdk"]).output();
    let output = output.map_err(|error| format!("pkg-config does not start: {error}"))?;
    let folder = Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("dpdk");
    // By the name that others are linked to: `librte_net_null.so.23`, and not
    // `librte_net_null.so.23.0`, which is the same.
    let start = format!("librte_{driver}.so.");
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries(&folder)
        .filter(|path| path.is_dir())
        .flat_map(|releases| entries(&releases).collect::<Vec<_>>())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start)))
        .collect();
    found.sort();
    found.into_iter().next().ok_or_else(|| format!("{}: no driver {driver} of DPDK is there", folder.display()))
}

/// Libraries that a program or a library is linked to, and those that they are, but for the
/// system's.
fn needs(file: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd").arg(file).output().map_err(|error| format!("ldd does not start: {error}"))?;
    listed(&String::from_utf8_lossy(&output.stdout)).map_err(|missing| format!("{}: {missing}", file.display()))
}

/// What ldd lists: `libelf.so.1 => /lib/x86_64-linux-gnu/libelf.so.1 (0x00007f5851ee2000)`.
fn listed(text: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((name, place)) = line.trim().split_once(" => ") else { continue };
        if OF_THE_SYSTEM.iter().any(|of_the_system| name.starts_with(of_the_system)) {
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

/// Debian's packages that have these files.
fn packages(files: &BTreeSet<PathBuf>) -> Result<BTreeSet<String>, String> {
    // By name: what is in /lib is in /usr/lib as well, and packages have it in the one or the
    // other.
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
    fn what_is_the_systems_stays_there() {
        let text = "\tlinux-vdso.so.1 (0x00007f58)\n\tlibrte_eal.so.23 => /lib/x/librte_eal.so.23 (0x0000)\n\
                    \tlibc.so.6 => /lib/x/libc.so.6 (0x0000)\n\t/lib64/ld-linux-x86-64.so.2 (0x0000)\n\
                    \tlibpcap.so.0.8 => /usr/lib/x/libpcap.so.0.8 (0x1)\n";
        assert_eq!(
            listed(text),
            Ok(vec![PathBuf::from("/lib/x/librte_eal.so.23"), PathBuf::from("/usr/lib/x/libpcap.so.0.8")])
        );
        assert!(listed("\tlibrte_eal.so.23 => not found\n").unwrap_err().contains("librte_eal.so.23"));
    }

    #[test]
    fn drivers_come_with_what_they_are_linked_to_and_licences() {
        if !crate::test::can_build_dpdk() {
            println!("not tested: there is no DPDK here (Debian's package libdpdk-dev)");
            return;
        }
        let bundle = std::env::temp_dir().join(format!("portcullis-dpdk-bundle-{}", std::process::id()));
        std::fs::create_dir_all(bundle.join("licences")).unwrap();
        // One of the drivers in the program's place.
        put_in(&find("net_null").unwrap(), &bundle).unwrap();
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
