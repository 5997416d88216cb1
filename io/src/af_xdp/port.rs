//! Parsing which queues of which interfaces to use.

use std::fmt;
use std::str::FromStr;

use super::XdpError;
use crate::live::link::Interface;

/// An interface and some of its receive queues: `eth0`, `eth0:2`, `eth0:0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSpec {
    /// The interface's name.
    pub interface: String,
    /// Receive queue numbers, ascending; `None` for all queues.
    pub queues: Option<Vec<u32>>,
}

/// Why a text is not a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortSpecError {
    /// The interface name is missing or invalid.
    #[error(
        "`{name}` is not an interface name (1 to 15 characters, without spaces, `/` and `:`); a port is written eth0, eth0:2 or eth0:0-3,8"
    )]
    Name {
        /// The text before the colon.
        name: String,
    },
    /// The text after the colon is not a list of queues.
    #[error(
        "`{queues}` is not a list of queues; a port is written eth0, eth0:2 or eth0:0-3,8, with queues counted from 0"
    )]
    Queues {
        /// The text after the colon.
        queues: String,
    },
    /// A queue is named twice.
    #[error("queue {queue} is named twice")]
    Twice {
        /// The queue.
        queue: u32,
    },
}

/// Upper bound on queue numbers, far above what any driver supports.
const MAX_QUEUES: u32 = 4096;

impl FromStr for PortSpec {
    type Err = PortSpecError;

    fn from_str(text: &str) -> Result<PortSpec, PortSpecError> {
        // A colon occurs only in names of alias interfaces, which have no queues.
        let (name, queues) = text.split_once(':').map_or((text, None), |(name, queues)| (name, Some(queues)));
        // As `dev_valid_name`, `net/core/dev.c`.
        let is_name = (1..=15).contains(&name.len())
            && ![".", ".."].contains(&name)
            && !name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
        if !is_name {
            return Err(PortSpecError::Name { name: name.escape_debug().to_string() });
        }
        let queues = queues.map(numbers).transpose()?;
        Ok(PortSpec { interface: name.into(), queues })
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.interface)?;
        for (index, queue) in self.queues.iter().flatten().enumerate() {
            write!(f, "{}{queue}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

/// Parses a list of numbers and ranges such as `0-3,8`.
fn numbers(text: &str) -> Result<Vec<u32>, PortSpecError> {
    let wrong = || PortSpecError::Queues { queues: text.escape_debug().to_string() };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|number| digits && *number < MAX_QUEUES).ok_or_else(wrong)
    };
    let mut queues = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(wrong());
        }
        queues.extend(first..=last);
    }
    queues.sort_unstable();
    match queues.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(PortSpecError::Twice { queue: pair[0] }),
        None => Ok(queues),
    }
}

/// Returns the queues that a port selects, checked against the interface.
pub(crate) fn queues(spec: &PortSpec, facts: &Interface) -> Result<Vec<u32>, XdpError> {
    let queues = spec.queues.clone().unwrap_or_else(|| (0..facts.receive_queues).collect());
    match queues.iter().find(|queue| **queue >= facts.receive_queues) {
        Some(asked) => {
            Err(XdpError::NoQueue { interface: spec.interface.clone(), asked: *asked, queues: facts.receive_queues })
        }
        None => Ok(queues),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_parse_and_print() {
        let port = |interface: &str, queues: Option<&[u32]>| {
            Ok(PortSpec { interface: interface.into(), queues: queues.map(<[u32]>::to_vec) })
        };
        for (text, read, shown) in [
            ("eth0", port("eth0", None), "eth0"),
            ("eth0:2", port("eth0", Some(&[2])), "eth0:2"),
            ("en-p1s0.7:0-3,8", port("en-p1s0.7", Some(&[0, 1, 2, 3, 8])), "en-p1s0.7:0,1,2,3,8"),
            ("a:8,0-1", port("a", Some(&[0, 1, 8])), "a:0,1,8"),
        ] {
            let spec = text.parse::<PortSpec>();
            assert_eq!(spec, read, "{text}");
            assert_eq!(spec.unwrap().to_string(), shown);
        }
        for text in ["", ":0", "a b", "a/b", "..", "sixteen_letters_", "a\n"] {
            assert!(matches!(text.parse::<PortSpec>(), Err(PortSpecError::Name { .. })), "{text:?}");
        }
        for text in ["a:", "a:,", "a:0,", "a:-1", "a:1-", "a:3-2", "a:+1", "a:x", "a:4096", "a:99999999999", "a:0:1"] {
            assert!(matches!(text.parse::<PortSpec>(), Err(PortSpecError::Queues { .. })), "{text:?}");
        }
        assert_eq!("a:1,0-2".parse::<PortSpec>(), Err(PortSpecError::Twice { queue: 1 }));
    }

    #[test]
    fn queues_are_checked_against_the_interface() {
        let facts = Interface {
            index: 7,
            name: "lo".into(),
            mac: None,
            mtu: 1500,
            is_up: true,
            has_link: true,
            receive_queues: 3,
            send_queues: 1,
            driver: None,
            rx_vlan_offload: false,
        };
        assert_eq!(queues(&"lo".parse().unwrap(), &facts).unwrap(), [0, 1, 2]);
        assert_eq!(queues(&"lo:2,0".parse().unwrap(), &facts).unwrap(), [0, 2]);
        let error = queues(&"lo:0,5".parse().unwrap(), &facts).unwrap_err();
        assert_eq!(error.to_string(), "lo has 3 receive queues, and no queue 5");
    }
}
