//! Captures that ports read and write, found in the arguments of their driver.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::error::DpdkError;
use super::options::Options;
use super::pass_target::PassTarget;
use super::spec::PortSpec;
use crate::{SourceError, SourceOptions, Warning, capture, same_destination, same_file};

/// The driver for captures.
const DRIVER: &str = "net_pcap";

/// The captures that a port reads (`rx_pcap`) or writes (`tx_pcap`), one per queue.
pub(super) fn files(port: &PortSpec, key: &str) -> Vec<PathBuf> {
    match port {
        PortSpec::VirtualDevice(text) if port.driver() == Some(DRIVER) => {
            let values = text.split(',').filter_map(|argument| argument.strip_prefix(key)?.strip_prefix('='));
            values.map(PathBuf::from).collect()
        }
        _ => Vec::new(),
    }
}

/// All ports of a run without duplicates, those of `--vdev` included.
fn ports(options: &Options) -> Vec<PortSpec> {
    let named =
        options.eal.iter().enumerate().filter_map(|(index, argument)| match argument.strip_prefix("--vdev")? {
            "" => options.eal.get(index + 1)?.parse().ok(),
            value => value.strip_prefix('=')?.parse().ok(),
        });
    let pass_to = match &options.pass_to {
        Some(PassTarget::Port(port)) => Some(port),
        _ => None,
    };
    let redirect = options.redirect.iter().map(|(_, port)| port);
    let ports = named.chain(options.ports.iter().chain(redirect).chain(pass_to).cloned());
    // A second mention of a name means the same port.
    let mut known = BTreeSet::new();
    ports.filter(|port| known.insert(port.to_string())).collect()
}

/// Refuses captures that would overwrite one that is read, or each other. Call this before opening
/// any port.
pub(super) fn check(options: &Options) -> Result<(), DpdkError> {
    // libpcap takes `-` for a standard stream.
    let named = |path: PathBuf, stream: &str| if path == Path::new("-") { stream.into() } else { path };
    let ports = ports(options);
    let of = |key: &'static str, stream: &'static str| {
        ports.iter().flat_map(move |port| files(port, key).into_iter().map(move |file| (port, named(file, stream))))
    };
    let mut written: Vec<(&PortSpec, PathBuf)> = Vec::new();
    for (port, file) in of("tx_pcap", "/dev/stdout") {
        let refused = |other: &PortSpec, does| {
            let (port, file, other) = (port.to_string(), file.clone(), other.to_string());
            Err(DpdkError::SameFile { port, file, other, does })
        };
        if let Some((other, _)) = of("rx_pcap", "/dev/stdin").find(|(_, read)| same_file(read, &file)) {
            return refused(other, "reads");
        }
        if let Some((other, _)) = written.iter().find(|(_, other)| same_destination(other, &file)) {
            return refused(other, "writes");
        }
        written.push((port, file));
    }
    Ok(())
}

/// A defect of a capture that a port reads. DPDK reads the packets before it and reports nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureDamage {
    /// The capture ends inside a record.
    #[error("{0}")]
    CutOff(Warning),
    /// A record is malformed.
    #[error("{0}; the packets after it are not read")]
    Broken(SourceError),
}

/// Reads the captures of all ports once and returns their defects.
pub fn find_damaged_captures(options: &Options) -> Vec<CaptureDamage> {
    let mut found = Vec::new();
    for port in ports(options) {
        for file in files(&port, "rx_pcap").into_iter().take(options.queues.max(1).into()) {
            // Reading a pipe would consume it; unreadable files are reported by the driver.
            let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
            let Some(name) = file.to_str().filter(|_| is_file) else { continue };
            let options = SourceOptions { metadata: false, ..SourceOptions::default() };
            let Ok(mut source) = capture::open(name, &options) else { continue };
            let wrong = loop {
                match source.next_batch() {
                    Ok(Some(batch)) => drop(batch),
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            let cut = source.take_warnings().into_iter().filter(|warning| matches!(warning, Warning::Truncated { .. }));
            found.extend(cut.map(CaptureDamage::CutOff).chain(wrong.map(CaptureDamage::Broken)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options with these ports, the last of which is the destination for passed packets.
    fn options(ports: &[String]) -> Options {
        let (last, first) = ports.split_last().unwrap();
        let first = first.iter().map(|port| port.parse().unwrap()).collect();
        Options::new(first).with_pass_to(Some(last.parse().unwrap()))
    }

    #[test]
    fn captures_are_found_in_arguments_of_net_pcap_only() {
        let of = |port: &str, key| files(&port.parse().unwrap(), key);
        let port = "net_pcap0,rx_pcap=in.pcap,tx_pcap=a.pcap,tx_pcap=b.pcap";
        assert_eq!(of(port, "rx_pcap"), [Path::new("in.pcap")]);
        assert_eq!(of(port, "tx_pcap"), [Path::new("a.pcap"), Path::new("b.pcap")]);
        assert!(of("net_ring0,tx_pcap=x", "tx_pcap").is_empty());
    }

    #[test]
    fn overwriting_a_capture_in_use_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(at("in.pcap"), "x").unwrap();
        std::fs::hard_link(at("in.pcap"), at("link.pcap")).unwrap();
        let port = |number: u8, read: &str, write: &str| {
            format!("net_pcap{number},rx_pcap={},tx_pcap={}", at(read), at(write))
        };
        for (ports, log_lines) in [
            ([port(0, "in.pcap", "a.pcap"), port(1, "in.pcap", "b.pcap")], None),
            ([port(0, "in.pcap", "in.pcap"), port(1, "in.pcap", "b.pcap")], Some("net_pcap0 reads")),
            ([port(0, "in.pcap", "a.pcap"), port(1, "none.pcap", "link.pcap")], Some("net_pcap0 reads")),
            ([port(0, "none.pcap", "a.pcap"), port(1, "in.pcap", "./a.pcap")], Some("net_pcap0 writes")),
            ([port(0, "in.pcap", "a.pcap"), port(0, "in.pcap", "a.pcap")], None),
            ([port(0, "in.pcap", "/dev/null"), port(1, "in.pcap", "/dev/null")], None),
        ] {
            let checked = check(&options(&ports)).map_err(|error| error.to_string());
            match log_lines {
                None => assert_eq!(checked, Ok(()), "{ports:?}"),
                Some(log_lines) => assert!(checked.unwrap_err().contains(log_lines), "{ports:?}"),
            }
        }
        // Virtual devices among the EAL arguments.
        for eal in [
            vec!["--vdev".to_owned(), port(7, "in.pcap", "a.pcap")],
            vec![format!("--vdev={}", port(7, "in.pcap", "a.pcap"))],
        ] {
            let options = options(&[port(0, "in.pcap", "a.pcap"), "net_null0".to_owned()]).with_eal(eal);
            assert!(check(&options).unwrap_err().to_string().contains("net_pcap7 writes"));
        }
    }
}
