//! What to do about what DPDK refuses.

use std::fs;
use std::io::Error;
use std::path::Path;

use super::eal::{release, version};
use super::spec::PortSpec;
use crate::live::capabilities;

/// Where the kernel lists what is at the PCI bus.
const PCI: &str = "/sys/bus/pci/devices";

/// DPDK's options, as it documents them.
pub(super) const OPTIONS: &str = "https://doc.dpdk.org/guides/linux_gsg/linux_eal_parameters.html";

/// include/uapi/linux/capability.h
pub(super) const CAP_NET_ADMIN: u32 = 12;
const CAP_IPC_LOCK: u32 = 14;

/// Its drivers and what they are told.
const DRIVERS: &str = "https://doc.dpdk.org/guides/nics/";

/// Whether this thread has a capability.
pub(super) fn has_capability(number: u32) -> bool {
    capabilities::effective() >> number & 1 == 1
}

/// What to do where DPDK does not begin, by what it has said.
pub(super) fn begin(said: &[String]) -> Option<String> {
    let says = |part: &str| said.iter().any(|line| line.contains(part));
    Some(if says("another primary process") || says("Cannot create lock") {
        "another program with DPDK has files of this name: --eal '--file-prefix NAME' keeps the two apart".into()
    } else if says("hugepage") || says("huge page") {
        "reserve huge pages (echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages), or do without: --eal --no-huge"
            .into()
    } else if says("init memory") || says("memseg") {
        "it may have less memory: --eal '-m 512' (MiB)".into()
    } else if says("option") || says("core") || says("invalid") || says("Invalid") {
        format!("what --eal may have is DPDK's: {OPTIONS}")
    } else {
        return None;
    })
}

/// Why there is no port, and what to do, by what DPDK has said.
pub(super) fn probe(spec: &PortSpec, error: &Error, said: &[String]) -> (String, Option<String>) {
    let has_no_driver = said.iter().any(|line| line.contains("failed to parse device"));
    let reason = portcullis_core::reason(error);
    match spec {
        PortSpec::Made(_) if has_no_driver => {
            let driver = spec.driver().unwrap_or_default();
            let hint = format!("is it installed? On Debian it is in the package {}", package(driver));
            (format!("DPDK has no driver {driver}"), Some(hint))
        }
        PortSpec::Made(_) => {
            let hint = said.is_empty().then(|| format!("are its arguments right? {DRIVERS} has them"));
            // A driver that gives no reason.
            let is_known = error.raw_os_error().is_some();
            (if is_known { format!("its driver refuses: {reason}") } else { reason }, hint)
        }
        PortSpec::Card(_) => ("DPDK does not get this network card".into(), Some(card(Path::new(PCI), spec.name()))),
        PortSpec::Number(_) => ("DPDK has no port of this number".into(), None),
    }
}

/// Debian's package with a driver, of the release that is there: `librte-net-pcap23` of 22.11.
pub(super) fn package(driver: &str) -> String {
    let driver = match driver {
        "net_virtio_user" => "net_virtio",
        "eth_vhost" => "net_vhost",
        driver => driver,
    };
    let name = driver.replace('_', "-");
    let dash = if name.ends_with(|last: char| last.is_ascii_digit()) { "-" } else { "" };
    format!("librte-{name}{dash}{}", interface(&version()))
}

/// The number that libraries of a release have in their names: 23 of `DPDK 22.11.11` and of `DPDK 23.07.0`. It counts up with each
/// November's (doc/guides/contributing/abi_policy.rst).
fn interface(version: &str) -> String {
    release(version).map_or_else(String::new, |(year, month)| (year + u32::from(month >= 11)).to_string())
}

/// What to do about a network card that DPDK does not get.
fn card(devices: &Path, address: &str) -> String {
    let device = devices.join(address);
    if !device.exists() {
        return format!("there is none at {address} (`lspci -D` lists those that there are)");
    }
    let bind = format!("modprobe vfio-pci; dpdk-devbind.py --bind=vfio-pci {address}");
    let driver = fs::read_link(device.join("driver")).ok();
    let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    match driver.as_deref() {
        None => format!("it has no driver; bind it to one that DPDK knows: {bind}"),
        Some(driver @ ("vfio-pci" | "igb_uio" | "uio_pci_generic")) => format!(
            "it is bound to {driver}: is DPDK's driver for it installed (on Debian librte-meta-net has all), and may this user open \
             it (/dev/vfio)?"
        ),
        Some(driver @ ("mlx4_core" | "mlx5_core")) => format!(
            "{driver} stays its driver: is DPDK's installed (on Debian {}), and does this user have CAP_NET_RAW?",
            package(&driver.replace("_core", "").replace("mlx", "net_mlx"))
        ),
        Some(driver) => {
            let names = fs::read_dir(device.join("net")).into_iter().flatten().flatten();
            let names: Vec<String> = names.map(|name| name.file_name().to_string_lossy().into_owned()).collect();
            let interface = if names.is_empty() { String::new() } else { format!(", as {}", names.join(", ")) };
            format!(
                "the kernel has it ({driver}{interface}); bind it to a driver that DPDK knows, which takes it away there: {bind}"
            )
        }
    }
}

/// What to do where memory cannot be locked that a driver has locked, if that is what this is about.
pub(super) fn locked_memory(error: &Error, said: &[String]) -> Option<String> {
    let about_memory = matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::ENOBUFS))
        || said.iter().any(|line| ["DMA", "memlock", "UMEM", "umem"].iter().any(|part| line.contains(part)));
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is written, and no further.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    if !about_memory || !known || limit.rlim_cur == libc::RLIM_INFINITY || has_capability(CAP_IPC_LOCK) {
        return None;
    }
    Some(format!(
        "this process may lock {} KiB of memory, and packets' memory is more: raise the limit (`ulimit -l unlimited`, \
         LimitMEMLOCK=infinity of a unit of systemd)",
        limit.rlim_cur / 1024
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_the_number_of_their_release() {
        for (version, number) in [
            ("DPDK 22.11.11", "23"),
            ("DPDK 23.07.0", "23"),
            ("DPDK 23.11.2", "24"),
            ("DPDK 26.07.0-rc1", "26"),
            ("", ""),
        ] {
            assert_eq!(interface(version), number, "{version}");
        }
        let number = interface(&version());
        assert_eq!(package("net_pcap"), format!("librte-net-pcap{number}"));
        assert_eq!(package("net_mlx5"), format!("librte-net-mlx5-{number}"));
        assert_eq!(package("net_virtio_user"), format!("librte-net-virtio{number}"));
    }

    #[test]
    fn a_card_is_told_of_by_who_has_it() {
        let devices = tempfile::tempdir().unwrap();
        let make = |address: &str, driver: Option<&str>, interface: Option<&str>| {
            let device = devices.path().join(address);
            fs::create_dir(&device).unwrap();
            if let Some(driver) = driver {
                std::os::unix::fs::symlink(format!("../../../bus/pci/drivers/{driver}"), device.join("driver"))
                    .unwrap();
            }
            if let Some(interface) = interface {
                fs::create_dir_all(device.join("net").join(interface)).unwrap();
            }
            card(devices.path(), address)
        };
        let bind = "dpdk-devbind.py --bind=vfio-pci 0000:01:00.0";
        let said = make("0000:01:00.0", Some("e1000e"), Some("eth0"));
        assert!(said.contains("the kernel has it (e1000e, as eth0)") && said.contains(bind), "{said}");
        assert!(make("0000:01:00.1", None, None).contains("it has no driver; bind it"));
        assert!(make("0000:01:00.2", Some("vfio-pci"), None).contains("bound to vfio-pci: is DPDK's driver"));
        let said = make("0000:01:00.3", Some("mlx5_core"), Some("eth1"));
        assert!(
            said.contains("mlx5_core stays") && said.contains("librte-net-mlx5-") && !said.contains("devbind"),
            "{said}"
        );
        assert!(card(devices.path(), "0000:09:00.0").contains("there is none at 0000:09:00.0"));
    }

    #[test]
    fn what_to_do_depends_on_what_was_said() {
        for (said, part) in [
            ("portcullis: unrecognized option '--x'", OPTIONS),
            ("Cannot create lock on '/run/dpdk/rte/config'. Is another primary process running?", "--file-prefix"),
            ("Cannot get hugepage information.", "--no-huge"),
            ("Cannot allocate memseg list: Invalid argument", "-m 512"),
        ] {
            let hint = begin(&[said.to_owned()]).unwrap();
            assert!(hint.contains(part), "{said}: {hint}");
        }
        assert_eq!(begin(&["all is well".to_owned()]), None);
    }
}
