//! The description of synthetic traffic and its text form.

use std::fmt;
use std::str::FromStr;

/// Kinds of generated packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// IPv4, TCP.
    Tcp4,
    /// IPv4, UDP.
    Udp4,
    /// IPv4, ICMP echo.
    Icmp4,
    /// IPv4 with options (a header of 24 to 60 bytes), TCP or UDP.
    Options4,
    /// IPv4, the first fragment of a TCP or UDP datagram.
    First4,
    /// IPv4, a later fragment.
    Later4,
    /// IPv6, TCP.
    Tcp6,
    /// IPv6, UDP.
    Udp6,
    /// IPv6, ICMPv6 echo or neighbour solicitation.
    Icmp6,
    /// IPv6 with 1 to 8 extension headers, TCP or UDP.
    Extension6,
    /// IPv6, the first fragment of a TCP or UDP datagram.
    First6,
    /// IPv6, a later fragment.
    Later6,
    /// ARP request or reply.
    Arp,
    /// One VLAN tag, then IPv4 or IPv6 with TCP or UDP.
    Vlan,
    /// Two VLAN tags (802.1ad, then 802.1Q), then IPv4 or IPv6 with TCP or UDP.
    QinQ,
    /// GTP-U over IPv4 and UDP, with IPv4 and TCP or UDP inside.
    GtpU,
    /// Uplink U-plane message of an O-RAN fronthaul over eCPRI and one VLAN tag: a cell's PRBs,
    /// shuffled, with losses and duplicates. A packet has as many PRBs of 28 bytes as its size
    /// allows. Not in the default mix.
    Ecpri,
    /// A packet of any other kind whose capture was truncated, possibly to 0 bytes.
    Short,
}

impl Kind {
    /// All kinds with their names and weights in the default mix.
    pub const ALL: [(Kind, &'static str, u32); 18] = [
        (Kind::Tcp4, "tcp4", 40),
        (Kind::Udp4, "udp4", 16),
        (Kind::Icmp4, "icmp4", 3),
        (Kind::Options4, "options4", 3),
        (Kind::First4, "first4", 2),
        (Kind::Later4, "later4", 2),
        (Kind::Tcp6, "tcp6", 10),
        (Kind::Udp6, "udp6", 4),
        (Kind::Icmp6, "icmp6", 2),
        (Kind::Extension6, "extension6", 3),
        (Kind::First6, "first6", 1),
        (Kind::Later6, "later6", 1),
        (Kind::Arp, "arp", 2),
        (Kind::Vlan, "vlan", 5),
        (Kind::QinQ, "qinq", 2),
        (Kind::GtpU, "gtpu", 2),
        (Kind::Ecpri, "ecpri", 0),
        (Kind::Short, "short", 2),
    ];
}

/// Weights of packet kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix(Vec<(Kind, u32)>);

impl Mix {
    /// Maximum weight of a kind.
    pub const MAX_WEIGHT: u32 = 1_000_000;

    /// Creates a mix; kinds of weight 0 do not occur.
    ///
    /// # Errors
    /// If no weight is above 0, or one exceeds [`Mix::MAX_WEIGHT`].
    pub fn new(weights: &[(Kind, u32)]) -> Result<Mix, SpecError> {
        if let Some((_, weight)) = weights.iter().find(|(_, weight)| *weight > Self::MAX_WEIGHT) {
            return Err(SpecError(format!("mix: a weight is at most {}, not {weight}", Self::MAX_WEIGHT)));
        }
        let weights: Vec<_> = weights.iter().copied().filter(|&(_, weight)| weight > 0).collect();
        if weights.is_empty() {
            return Err(SpecError("mix: no kind of packet has a weight above 0".into()));
        }
        Ok(Mix(weights))
    }

    /// Kinds with their nonzero weights.
    pub fn weights(&self) -> &[(Kind, u32)] {
        &self.0
    }
}

impl Default for Mix {
    fn default() -> Self {
        let weights = Kind::ALL.iter().map(|&(kind, _, weight)| (kind, weight));
        Mix(weights.filter(|&(_, weight)| weight > 0).collect())
    }
}

/// Distribution of packet lengths in bytes, as captured (without frame check sequence). Packets
/// whose headers need more are longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Uniformly distributed in the range, both ends inclusive.
    Range(u32, u32),
    /// Simple IMIX: 64, 594 and 1518 bytes in proportions 7 : 4 : 1.
    Imix,
}

impl Size {
    /// Minimum and maximum length that can be requested.
    pub const LIMITS: (u32, u32) = (64, 9000);
}

/// A description of synthetic traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Number of packets.
    pub packets: u64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Distribution of packet lengths.
    pub size: Size,
    /// Number of flows (address and port pairs), 1 to [`Spec::MAX_FLOWS`].
    pub flows: u32,
    /// Weights of packet kinds.
    pub mix: Mix,
}

impl Spec {
    /// Maximum number of flows; each is kept in memory.
    pub const MAX_FLOWS: u32 = 1_000_000;
}

impl Default for Spec {
    fn default() -> Self {
        Spec { packets: 100_000, seed: 1, size: Size::Range(64, 1500), flows: 1000, mix: Mix::default() }
    }
}

/// An invalid text of a [`Spec`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(String);

impl FromStr for Spec {
    type Err = SpecError;

    /// Parses comma-separated `KEY=VALUE` pairs, any of them and in any order:
    ///
    /// - `packets=N`, `seed=N`, `flows=N`;
    /// - `size=N`, `size=LOW..HIGH` (inclusive) or `size=imix`;
    /// - `mix=KIND[:WEIGHT]+KIND[:WEIGHT]...` with the names of [`Kind::ALL`], or `mix=all`.
    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let mut spec = Spec::default();
        let mut seen = Vec::new();
        if text.trim().is_empty() {
            return Ok(spec);
        }
        for pair in text.split(',') {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(SpecError(format!("\"{pair}\" is no KEY=VALUE; {KEYS}")));
            };
            let (key, value) = (key.trim(), value.trim());
            if seen.contains(&key) {
                return Err(SpecError(format!("{key} is given twice")));
            }
            seen.push(key);
            match key {
                "packets" => spec.packets = number(key, value, 0, u64::MAX)?,
                "seed" => spec.seed = number(key, value, 0, u64::MAX)?,
                "flows" => spec.flows = number(key, value, 1, u64::from(Spec::MAX_FLOWS))? as u32,
                "size" => spec.size = size(value)?,
                "mix" => spec.mix = mix(value)?,
                _ => return Err(SpecError(format!("\"{key}\" is no key; {KEYS}"))),
            }
        }
        Ok(spec)
    }
}

const KEYS: &str = "keys are packets, seed, size, flows, mix";

fn number(key: &str, text: &str, low: u64, high: u64) -> Result<u64, SpecError> {
    match text.parse::<u64>() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        Ok(value) => Err(SpecError(format!("{key}: {value} is not in {low}..{high}"))),
        Err(_) => Err(SpecError(format!("{key}: \"{text}\" is no whole number below 2^64"))),
    }
}

fn size(text: &str) -> Result<Size, SpecError> {
    if text == "imix" {
        return Ok(Size::Imix);
    }
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    let limit = |text| number("size", text, u64::from(Size::LIMITS.0), u64::from(Size::LIMITS.1)).map(|n| n as u32);
    let (low, high) = (limit(low)?, limit(high)?);
    if low > high {
        return Err(SpecError(format!("size: {low}..{high} is empty")));
    }
    Ok(Size::Range(low, high))
}

fn mix(text: &str) -> Result<Mix, SpecError> {
    if text == "all" {
        return Ok(Mix::default());
    }
    let mut weights: Vec<(Kind, u32)> = Vec::new();
    for part in text.split('+') {
        let (name, weight) = part.split_once(':').unwrap_or((part, "1"));
        let Some(&(kind, ..)) = Kind::ALL.iter().find(|(_, known, _)| *known == name) else {
            let names: Vec<&str> = Kind::ALL.iter().map(|&(_, name, _)| name).collect();
            return Err(SpecError(format!("mix: \"{name}\" is no kind of packet; there are {}", names.join(", "))));
        };
        if weights.iter().any(|&(other, _)| other == kind) {
            return Err(SpecError(format!("mix: {name} is given twice")));
        }
        weights.push((kind, number("mix", weight, 0, u64::from(Mix::MAX_WEIGHT))? as u32));
    }
    Mix::new(&weights)
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "packets={},seed={},size=", self.packets, self.seed)?;
        match self.size {
            Size::Range(low, high) if low == high => write!(f, "{low}")?,
            Size::Range(low, high) => write!(f, "{low}..{high}")?,
            Size::Imix => f.write_str("imix")?,
        }
        write!(f, ",flows={},mix=", self.flows)?;
        if self.mix == Mix::default() {
            return f.write_str("all");
        }
        for (i, &(kind, weight)) in self.mix.weights().iter().enumerate() {
            let name = Kind::ALL.iter().find(|(known, ..)| *known == kind).map_or("", |&(_, name, _)| name);
            write!(f, "{}{name}:{weight}", if i == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_spec_round_trip() {
        for text in [
            "packets=100000,seed=7,size=64..1500,flows=1000,mix=all",
            "packets=0,seed=18446744073709551615,size=64,flows=1,mix=tcp4:1",
            "packets=5,seed=0,size=imix,flows=1000000,mix=udp6:3+arp:1000000",
        ] {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        }
        assert_eq!("".parse::<Spec>().unwrap(), Spec::default());
        assert_eq!("mix=tcp4".parse::<Spec>().unwrap().mix.weights(), [(Kind::Tcp4, 1)]);
        assert_eq!("size=9000".parse::<Spec>().unwrap().size, Size::Range(9000, 9000));
    }

    #[test]
    fn errors_name_the_invalid_part_and_the_alternatives() {
        for (text, wanted) in [
            ("packets", "\"packets\" is no KEY=VALUE; keys are"),
            ("packet=1", "\"packet\" is no key; keys are packets, seed, size, flows, mix"),
            ("packets=-1", "packets: \"-1\" is no whole number"),
            ("packets=1,packets=2", "packets is given twice"),
            ("flows=0", "flows: 0 is not in 1..1000000"),
            ("size=63", "size: 63 is not in 64..9000"),
            ("size=1500..64", "size: 1500..64 is empty"),
            ("size=64..9001", "size: 9001 is not in"),
            ("mix=tcp", "mix: \"tcp\" is no kind of packet; there are tcp4, udp4"),
            ("mix=tcp4:0", "mix: no kind of packet has a weight above 0"),
            ("mix=tcp4+tcp4", "mix: tcp4 is given twice"),
            ("mix=", "mix: \"\" is no kind of packet"),
            ("seed=1,", "\"\" is no KEY=VALUE"),
        ] {
            let error = text.parse::<Spec>().unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{text}: {error}");
        }
    }
}
