//! Advice for errors of DPDK.

use std::fs;
use std::io::Error;
use std::path::Path;

use super::spec::PortSpec;
use super::version::{release, version};
use crate::live::capabilities;

/// Where sysfs lists PCI devices.
const PCI: &str = "/sys/bus/pci/devices";

/// Documentation of the EAL options.
pub(super) const OPTIONS: &str = "https://doc.dpdk.org/guides/linux_gsg/linux_eal_parameters.html";

/// Capability numbers, include/uapi/linux/capability.h.
pub(super) const CAP_NET_ADMIN: u32 = 12;
const CAP_IPC_LOCK: u32 = 14;

/// Documentation of the drivers and their arguments.
const DRIVERS: &str = "https://doc.dpdk.org/guides/nics/";

/// Whether the calling thread has a capability.
pub(super) fn has_capability(number: u32) -> bool {
    capabilities::effective() >> number & 1 == 1
}

/// Advice for a failed initialisation, by the log messages.
pub(super) fn for_eal(log_lines: &[String]) -> Option<String> {
    let says = |part: &str| log_lines.iter().any(|line| line.contains(part));
    Some(if says("another primary process") || says("Cannot create lock") {
        "another DPDK process uses files of this name: --eal '--file-prefix NAME' separates the two".into()
    } else if says("hugepage") || says("huge page") {
        "reserve huge pages (echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages), or work without: --eal --no-huge"
            .into()
    } else if says("init memory") || says("memseg") {
        "try less memory: --eal '-m 512' (MiB)".into()
    } else if says("option") || says("core") || says("invalid") || says("Invalid") {
        format!("--eal accepts the options of DPDK's EAL: {OPTIONS}")
    } else {
        return None;
    })
}

/// The reason why a port cannot be opened, and advice, by the log messages.
pub(super) fn for_port(spec: &PortSpec, error: &Error, log_lines: &[String]) -> (String, Option<String>) {
    let has_no_driver = log_lines.iter().any(|line| line.contains("failed to parse device"));
    let reason = portcullis_core::reason(error);
    match spec {
        PortSpec::VirtualDevice(_) if has_no_driver => {
            let driver = spec.driver().unwrap_or_default();
            let hint = format!("is it installed? On Debian it is in the package {}", package(driver));
            (format!("DPDK has no driver {driver}"), Some(hint))
        }
        PortSpec::VirtualDevice(_) => {
            let hint = log_lines.is_empty().then(|| format!("are its arguments right? See {DRIVERS}"));
            // Some drivers give no reason.
            let is_known = error.raw_os_error().is_some();
            (if is_known { format!("its driver refuses: {reason}") } else { reason }, hint)
        }
        PortSpec::Card(_) => ("DPDK cannot use this network card".into(), Some(for_card(Path::new(PCI), spec.name()))),
        PortSpec::Number(_) => ("DPDK has no port with this number".into(), None),
    }
}

/// Debian's package of a driver, for the installed release: `librte-net-pcap23` for 22.11.
pub(super) fn package(driver: &str) -> String {
    let driver = match driver {
        "net_virtio_user" => "net_virtio",
        "eth_vhost" => "net_vhost",
        driver => driver,
    };
    let name = driver.replace('_', "-");
    let dash = if name.ends_with(|last: char| last.is_ascii_digit()) { "-" } else { "" };
    format!("librte-{name}{dash}{}", abi_version(&version()))
}

/// ABI version in the names of a release's libraries: 23 for `DPDK 22.11.11` and `DPDK 23.07.0`.
/// Increases with each November release (doc/guides/contributing/abi_policy.rst).
fn abi_version(version: &str) -> String {
    release(version).map_or_else(String::new, |(year, month)| (year + u32::from(month >= 11)).to_string())
}

/// Advice for a network card that DPDK cannot use.
fn for_card(devices: &Path, address: &str) -> String {
    let device = devices.join(address);
    if !device.exists() {
        return format!("there is none at {address} (`lspci -D` lists the existing ones)");
    }
    let bind = format!("modprobe vfio-pci; dpdk-devbind.py --bind=vfio-pci {address}");
    let driver = fs::read_link(device.join("driver")).ok();
    let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    match driver.as_deref() {
        None => format!("it has no driver; bind it to one that DPDK supports: {bind}"),
        Some(driver @ ("vfio-pci" | "igb_uio" | "uio_pci_generic")) => format!(
            "it is bound to {driver}: is DPDK's driver for it installed (on Debian, librte-meta-net has all of them), and may this user open \
             it (/dev/vfio)?"
        ),
        Some(driver @ ("mlx4_core" | "mlx5_core")) => format!(
            "{driver} remains its driver: is DPDK's driver installed (on Debian {}), and does this user have CAP_NET_RAW?",
            package(&driver.replace("_core", "").replace("mlx", "net_mlx"))
        ),
        Some(driver) => {
            let names = fs::read_dir(device.join("net")).into_iter().flatten().flatten();
            let names: Vec<String> = names.map(|name| name.file_name().to_string_lossy().into_owned()).collect();
            let interface = if names.is_empty() { String::new() } else { format!(", as {}", names.join(", ")) };
            format!(
                "the kernel uses it ({driver}{interface}); bind it to a driver that DPDK supports, which removes it from the kernel: {bind}"
            )
        }
    }
}

/// Advice if an error is about the limit of locked memory.
pub(super) fn locked_memory(error: &Error, log_lines: &[String]) -> Option<String> {
    let about_memory = matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::ENOBUFS))
        || log_lines.iter().any(|line| ["DMA", "memlock", "UMEM", "umem"].iter().any(|part| line.contains(part)));
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call only writes the structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    if !about_memory || !known || limit.rlim_cur == libc::RLIM_INFINITY || has_capability(CAP_IPC_LOCK) {
        return None;
    }
    Some(format!(
        "this process may lock only {} KiB of memory, less than the packets need: raise the limit (`ulimit -l unlimited`, \
         LimitMEMLOCK=infinity in a systemd unit)",
        limit.rlim_cur / 1024
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_names_contain_the_abi_version() {
        for (version, number) in [
            ("DPDK 22.11.11", "23"),
            ("DPDK 23.07.0", "23"),
            ("DPDK 23.11.2", "24"),
            ("DPDK 26.07.0-rc1", "26"),
            ("", ""),
        ] {
            assert_eq!(abi_version(version), number, "{version}");
        }
        let number = abi_version(&version());
        assert_eq!(package("net_pcap"), format!("librte-net-pcap{number}"));
        assert_eq!(package("net_mlx5"), format!("librte-net-mlx5-{number}"));
        assert_eq!(package("net_virtio_user"), format!("librte-net-virtio{number}"));
    }

    #[test]
    fn advice_for_a_card_depends_on_its_kernel_driver() {
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
            for_card(devices.path(), address)
        };
        let bind = "dpdk-devbind.py --bind=vfio-pci 0000:01:00.0";
        let log_lines = make("0000:01:00.0", Some("e1000e"), Some("eth0"));
        assert!(log_lines.contains("the kernel uses it (e1000e, as eth0)") && log_lines.contains(bind), "{log_lines}");
        assert!(make("0000:01:00.1", None, None).contains("it has no driver; bind it"));
        assert!(make("0000:01:00.2", Some("vfio-pci"), None).contains("bound to vfio-pci: is DPDK's driver"));
        let log_lines = make("0000:01:00.3", Some("mlx5_core"), Some("eth1"));
        assert!(
            log_lines.contains("mlx5_core remains")
                && log_lines.contains("librte-net-mlx5-")
                && !log_lines.contains("devbind"),
            "{log_lines}"
        );
        assert!(for_card(devices.path(), "0000:09:00.0").contains("there is none at 0000:09:00.0"));
    }

    #[test]
    fn advice_depends_on_the_log() {
        for (log_lines, part) in [
            ("portcullis: unrecognized option '--x'", OPTIONS),
            ("Cannot create lock on '/run/dpdk/rte/config'. Is another primary process running?", "--file-prefix"),
            ("Cannot get hugepage information.", "--no-huge"),
            ("Cannot allocate memseg list: Invalid argument", "-m 512"),
        ] {
            let hint = for_eal(&[log_lines.to_owned()]).unwrap();
            assert!(hint.contains(part), "{log_lines}: {hint}");
        }
        assert_eq!(for_eal(&["all is well".to_owned()]), None);
    }
}
