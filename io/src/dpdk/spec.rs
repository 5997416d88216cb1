//! Parsing port specifications.

use std::fmt;
use std::str::FromStr;

use super::error::DpdkError;

/// A port as specified by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortSpec {
    /// A network card by PCI address, with driver arguments (`0000:03:00.0,txq_inline_max=0`).
    Card(String),
    /// The port with this number, among those that DPDK probes itself or that `--eal '--vdev …'`
    /// creates.
    Number(u16),
    /// A virtual device, with driver arguments (`net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`).
    VirtualDevice(String),
}

impl PortSpec {
    /// Device name: the text before the first comma.
    pub fn name(&self) -> &str {
        let (PortSpec::Card(text) | PortSpec::VirtualDevice(text)) = self else { return "" };
        text.split(',').next().unwrap_or_default()
    }

    /// Driver of a virtual device: its name without trailing digits.
    pub fn driver(&self) -> Option<&str> {
        matches!(self, PortSpec::VirtualDevice(_)).then(|| self.name().trim_end_matches(|c: char| c.is_ascii_digit()))
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortSpec::Number(number) => write!(f, "{number}"),
            PortSpec::Card(_) | PortSpec::VirtualDevice(_) => f.write_str(self.name()),
        }
    }
}

impl FromStr for PortSpec {
    type Err = DpdkError;

    fn from_str(text: &str) -> Result<PortSpec, DpdkError> {
        let invalid = |why| DpdkError::Text { text: text.to_owned(), why };
        let name = text.split(',').next().unwrap_or_default();
        if name.is_empty() {
            return Err(invalid("it has no name"));
        }
        if text.contains('\0') {
            return Err(invalid("it contains a zero byte"));
        }
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            if name != text {
                return Err(invalid("a port number takes no arguments"));
            }
            return name.parse().map(PortSpec::Number).map_err(|_| invalid("the number exceeds DPDK's port numbers"));
        }
        if let Some(address) = pci(name) {
            return Ok(PortSpec::Card(address + &text[name.len()..]));
        }
        // DPDK also chooses the driver by the prefix of the name.
        if name.starts_with("net_") || name.starts_with("eth_") {
            return Ok(PortSpec::VirtualDevice(text.to_owned()));
        }
        Err(invalid("names of virtual devices begin with `net_`"))
    }
}

/// Normalises a PCI address, `0000:03:00.0` or `03:00.0` (`rte_pci_addr_parse`), to DPDK's form
/// (`rte_pci_device_name`).
pub(super) fn pci(text: &str) -> Option<String> {
    let (rest, function) = text.rsplit_once('.')?;
    let hex = |text: &str, max: usize| {
        let is_hex = (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| u32::from_str_radix(text, 16).ok())?
    };
    let parts: Vec<&str> = rest.split(':').collect();
    let (domain, bus, device) = match parts[..] {
        [bus, device] => (0, hex(bus, 2)?, hex(device, 2)?),
        [domain, bus, device] => (hex(domain, 8)?, hex(bus, 2)?, hex(device, 2)?),
        _ => return None,
    };
    let function = hex(function, 1).filter(|function| *function < 8)?;
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_parse_in_dpdk_syntax() {
        let read = |text: &str| text.parse::<PortSpec>().unwrap();
        assert_eq!(read("3"), PortSpec::Number(3));
        assert_eq!(read("0000:03:00.0"), PortSpec::Card("0000:03:00.0".into()));
        assert_eq!(read("81:00.1,txq_inline_max=0"), PortSpec::Card("0000:81:00.1,txq_inline_max=0".into()));
        assert_eq!(read("0:A:1.7").name(), "0000:0a:01.7");
        let pcap = read("net_pcap0,rx_pcap=a,b=c.pcap,tx_pcap=out.pcap");
        assert_eq!((pcap.name(), pcap.driver()), ("net_pcap0", Some("net_pcap")));
        assert_eq!(read("net_af_xdp12").driver(), Some("net_af_xdp"));
        assert_eq!(read("0000:03:00.0").driver(), None);
    }

    #[test]
    fn invalid_ports_are_refused_with_examples() {
        for text in ["", ",a=b", "70000", "3,a=b", "eth0", "pcap0", "03:00.9", "0:0:0:0.0", "net_\0"] {
            let error = text.parse::<PortSpec>().unwrap_err().to_string();
            assert!(error.contains("net_pcap0,rx_pcap"), "{text}: {error}");
        }
    }
}
