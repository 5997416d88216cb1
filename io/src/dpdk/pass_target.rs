//! Destinations for passed packets.

use std::fmt;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::str::FromStr;

use portcullis_core::reason;

use super::advice::{CAP_NET_ADMIN, has_capability, package};
use super::error::DpdkError;
use super::spec::PortSpec;
use crate::live::tun;

/// Destination of passed packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PassTarget {
    /// The kernel, through a TAP interface of this name that DPDK creates (`net_tap`).
    Tap(String),
    /// The kernel, with fewer copies, through vhost-net (`net_virtio_user`).
    VirtioUser(String),
    /// A port.
    Port(PortSpec),
}

impl PassTarget {
    /// Returns the DPDK port. A kernel interface gets the MAC address of the ingress port, so that
    /// the kernel accepts the packets as its own.
    ///
    /// # Errors
    /// [`DpdkError::Kernel`] if such an interface cannot be created here.
    pub(super) fn port(&self, mac: [u8; 6]) -> Result<PortSpec, DpdkError> {
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        let spec = match self {
            PassTarget::Port(port) => return Ok(port.clone()),
            PassTarget::Tap(name) => {
                self.may_open(tun::DEVICE, "TAP interfaces", tun::MISSING)?;
                format!("net_tap_{name},iface={name},mac={mac}")
            }
            PassTarget::VirtioUser(name) => {
                self.may_open(tun::DEVICE, "TAP interfaces", tun::MISSING)?;
                let missing = "there is no /dev/vhost-net; load the module vhost_net (`modprobe vhost_net`), or give the container \
                               the device; tap:NAME does without";
                self.may_open("/dev/vhost-net", "vhost-net", missing)?;
                format!("net_virtio_user_{name},path=/dev/vhost-net,queues=1,queue_size=1024,iface={name},mac={mac}")
            }
        };
        if !has_capability(CAP_NET_ADMIN) {
            let what = "creating an interface needs the capability CAP_NET_ADMIN; run as root, or grant it to the program with setcap";
            return Err(self.kernel(what.into()));
        }
        Ok(PortSpec::VirtualDevice(spec))
    }

    fn may_open(&self, device: &str, what: &str, missing: &str) -> Result<(), DpdkError> {
        match OpenOptions::new().read(true).write(true).open(device) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(self.kernel(format!("this kernel cannot create {what}: {missing}")))
            }
            Err(error) => Err(self.kernel(format!(
                "{device} cannot be opened: {}; run as root, or have its owner grant this user access",
                reason(&error)
            ))),
        }
    }

    /// Explains DPDK's failure to create the interface.
    pub(super) fn explain_refusal(&self, error: DpdkError) -> DpdkError {
        let (name, driver) = match self {
            PassTarget::Port(_) => return error,
            PassTarget::Tap(name) => (name, "net_tap"),
            PassTarget::VirtioUser(name) => (name, "net_virtio_user"),
        };
        match error {
            DpdkError::Probe { log_lines, .. }
                if log_lines.iter().any(|line| line.contains("failed to parse device")) =>
            {
                self.kernel(format!("DPDK has no driver {driver}; on Debian it is in the package {}", package(driver)))
            }
            DpdkError::Probe { why, log_lines, .. } => {
                let what = format!("DPDK cannot create the interface: {why}; does one named {name} exist already?");
                self.kernel(what + &super::error::quote(&log_lines))
            }
            error => error,
        }
    }

    fn kernel(&self, why: String) -> DpdkError {
        DpdkError::Kernel { pass_to: self.to_string(), why }
    }
}

impl fmt::Display for PassTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PassTarget::Tap(name) => write!(f, "tap:{name}"),
            PassTarget::VirtioUser(name) => write!(f, "virtio_user:{name}"),
            PassTarget::Port(port) => port.fmt(f),
        }
    }
}

impl FromStr for PassTarget {
    type Err = DpdkError;

    fn from_str(text: &str) -> Result<PassTarget, DpdkError> {
        let name = |name: &str| match is_interface(name) {
            true => Ok(name.to_owned()),
            false => Err(DpdkError::Interface { text: name.to_owned() }),
        };
        if let Some(tap) = text.strip_prefix("tap:") {
            return name(tap).map(PassTarget::Tap);
        }
        if let Some(virtio) = text.strip_prefix("virtio_user:") {
            return name(virtio).map(PassTarget::VirtioUser);
        }
        text.parse().map(PassTarget::Port).map_err(|error| match error {
            DpdkError::Text { text, why } => DpdkError::PassTarget { text, why },
            error => error,
        })
    }
}

/// Whether `name` is a valid interface name for the kernel (`dev_valid_name`, net/core/dev.c) and
/// for DPDK: without characters special in its arguments, and without `%d`, for which the kernel
/// chooses a number.
fn is_interface(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
        && !matches!(name, "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_destination_comes_before_a_colon() {
        let read = |text: &str| text.parse::<PassTarget>().unwrap();
        assert_eq!(read("tap:pass0"), PassTarget::Tap("pass0".into()));
        assert_eq!(read("virtio_user:eth0.100"), PassTarget::VirtioUser("eth0.100".into()));
        assert_eq!(read("net_pcap3,tx_pcap=o.pcap"), PassTarget::Port("net_pcap3,tx_pcap=o.pcap".parse().unwrap()));
        for text in ["tap:pass0", "virtio_user:v", "net_ring0", "1"] {
            assert_eq!(read(text).to_string(), text);
        }
    }

    #[test]
    fn invalid_destinations_are_refused() {
        for (text, part) in [
            ("tap:", "from 1 to 15"),
            ("tap:a b", "`a b`"),
            ("tap:..", "`..`"),
            ("tap:x%d", "`x%d`"),
            ("tap:a,remote=eth0", "`a,remote=eth0`"),
            ("virtio_user:sixteen_letters_", "`sixteen_letters_`"),
            ("tun:x", "`tun:x`"),
            ("pass0", "tap:NAME"),
            ("", "tap:NAME"),
        ] {
            let error = text.parse::<PassTarget>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_kernel_interface_gets_the_ports_mac_address() {
        // The error is checked where no interface can be created.
        match PassTarget::Tap("x0".into()).port([2, 0, 0, 0, 0xab, 1]) {
            Ok(PortSpec::VirtualDevice(text)) => assert_eq!(text, "net_tap_x0,iface=x0,mac=02:00:00:00:ab:01"),
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(error.to_string().starts_with("tap:x0: "), "{error}"),
        }
    }
}
