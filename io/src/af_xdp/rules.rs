//! Which frames come to user space; the kernel's stack has all others.
//!
//! | | comes to user space |
//! |---|---|
//! | [`Steering::Default`] | IPv4 and IPv6 |
//! | [`Steering::Only`] | what a [`Rule`] names |
//! | [`Steering::All`] | every frame |
//!
//! **Neighbour discovery** (ICMPv6 types 133 to 137, RFC 4861) stays with the kernel unless all frames are taken,
//! also where `ethertype/0x86dd` or `proto/58` would take it: without it no neighbour finds the machine. ARP has an
//! EtherType of its own, and stays with the kernel unless that is named.
//!
//! **VLAN tags**, up to two (802.1Q, 802.1ad), are looked through. Most network cards take the outer tag off and hand
//! it over beside the frame, where XDP has no place for it: neither this program nor user space sees that there was
//! one, until `ethtool -K IFACE rxvlan off`. Of a veth pair it is the sender who leaves the tag beside the frame,
//! until `ethtool -K PEER txvlan off`.
//!
//! **Fragments**: the first has ports, later ones have none (RFC 791, section 3.1; RFC 8200, section 4.5), so no rule
//! with ports names them. They stay with the kernel, which never completes a datagram whose first fragment was
//! dropped. Where all of a datagram is to come, name the protocol without ports: `udp`.
//!
//! **IPv6 extension headers**: hop-by-hop options, routing, fragment and destination options are looked through, up to
//! [`MAX_EXTENSION_HEADERS`]; a rule names the protocol behind them. Behind the headers of AH and ESP nothing is looked
//! for: their protocols are 51 and 50, in IPv4 and IPv6 alike.
//!
//! Only the first buffer of a frame is looked at, which has all its headers in practice. A frame that ends before a
//! field is not named by a rule that asks for that field, and nor is one whose header gives another version of IP
//! than its EtherType, or a length below the shortest.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// How many IPv6 extension headers are looked through. Real packets have one or two.
pub const MAX_EXTENSION_HEADERS: usize = 8;

/// Which frames come to user space.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Steering {
    /// IPv4 and IPv6.
    #[default]
    Default,
    /// Every frame.
    All,
    /// What these rules name.
    Only(Rules),
}

impl fmt::Display for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Steering::Default => f.write_str("IPv4 and IPv6"),
            Steering::All => f.write_str("every frame"),
            Steering::Only(rules) => rules.fmt(f),
        }
    }
}

/// One to [`Rules::MAX`] rules; a frame that one of them names comes to user space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Each rule costs every frame some instructions, and the kernel takes programs up to a length.
    pub const MAX: usize = 64;

    /// # Errors
    /// No rule, more than [`Rules::MAX`], or one that could never name a frame.
    pub fn new(rules: Vec<Rule>) -> Result<Rules, RulesError> {
        if rules.is_empty() {
            return Err(RulesError(format!("nothing is named; {TERMS}")));
        }
        if rules.len() > Self::MAX {
            return Err(RulesError(format!("{} terms are too many; there may be {}", rules.len(), Self::MAX)));
        }
        rules.iter().try_for_each(Rule::check)?;
        Ok(Rules(rules))
    }

    /// The rules.
    pub fn as_slice(&self) -> &[Rule] {
        &self.0
    }
}

/// What a frame must have to be named.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Rule {
    /// `ethertype/0x86dd`: the EtherType behind up to two VLAN tags.
    EtherType(u16),
    /// `proto/47`: IPv4's Protocol or the last Next Header of IPv6, in every fragment.
    Protocol(u8),
    /// `tcp/80`, `tcp/8000-8099`: a destination port.
    Port(Transport, RangeInclusive<u16>),
}

impl Rule {
    /// Whether a frame can be named by it.
    fn check(&self) -> Result<(), RulesError> {
        let wrong = |why: &str| Err(RulesError(format!("\"{self}\": {why}")));
        match self {
            Rule::EtherType(0x8100 | 0x88a8) => {
                wrong("VLAN tags are looked through; name the EtherType behind them, or take all frames")
            }
            Rule::EtherType(..0x0600) => {
                wrong("an EtherType is 0x0600 or more; what is below is a length (IEEE 802.3)")
            }
            // RFC 8200, section 4.
            Rule::Protocol(0 | 43 | 44 | 60) => {
                wrong("it is an extension header of IPv6, which are looked through; name the protocol behind it")
            }
            Rule::Port(_, ports) if ports.is_empty() => wrong("the range is empty"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::EtherType(value) => write!(f, "ethertype/{value:#06x}"),
            Rule::Protocol(value) => match Transport::ALL.iter().find(|transport| transport.protocol() == *value) {
                Some(transport) => f.write_str(transport.name()),
                None => write!(f, "proto/{value}"),
            },
            Rule::Port(transport, ports) if ports.start() == ports.end() => {
                write!(f, "{}/{}", transport.name(), ports.start())
            }
            Rule::Port(transport, ports) => write!(f, "{}/{}-{}", transport.name(), ports.start(), ports.end()),
        }
    }
}

/// A protocol with ports; all have the destination port in the third and fourth byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
    /// RFC 9260.
    Sctp,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 3] = [Transport::Tcp, Transport::Udp, Transport::Sctp];

    /// `tcp`.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Sctp => "sctp",
        }
    }

    /// Its number in IPv4's field Protocol and IPv6's Next Header.
    pub fn protocol(self) -> u8 {
        match self {
            Transport::Tcp => 6,
            Transport::Udp => 17,
            Transport::Sctp => 132,
        }
    }
}

/// What is wrong with rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RulesError(String);

const TERMS: &str = "terms are tcp, udp and sctp, each alone or with destination ports (tcp/80, tcp/8000-8099), \
                     proto/NUMBER and ethertype/NUMBER";

impl FromStr for Rules {
    type Err = RulesError;

    /// Reads terms separated by commas: `tcp/80,udp/5000-5999,sctp,proto/47,ethertype/0x86dd`.
    fn from_str(text: &str) -> Result<Rules, RulesError> {
        if text.trim().is_empty() {
            return Rules::new(Vec::new());
        }
        Rules::new(text.split(',').map(|term| term.trim().parse()).collect::<Result<_, _>>()?)
    }
}

impl FromStr for Rule {
    type Err = RulesError;

    fn from_str(term: &str) -> Result<Rule, RulesError> {
        let (name, value) = match term.split_once('/') {
            Some((name, value)) => (name, Some(value)),
            None => (term, None),
        };
        let rule = match (Transport::ALL.iter().find(|transport| transport.name() == name), name, value) {
            (Some(transport), _, None) => Rule::Protocol(transport.protocol()),
            (Some(transport), _, Some(value)) => {
                let (first, last) = value.split_once('-').unwrap_or((value, value));
                Rule::Port(*transport, number(term, first)?..=number(term, last)?)
            }
            (None, "proto", Some(value)) => Rule::Protocol(number(term, value)?),
            (None, "ethertype", Some(value)) => Rule::EtherType(number(term, value)?),
            (None, "proto" | "ethertype", None) => {
                return Err(RulesError(format!("\"{term}\": the number is missing: {name}/NUMBER")));
            }
            _ => return Err(RulesError(format!("\"{}\" is no term; {TERMS}", term.escape_debug()))),
        };
        rule.check()?;
        Ok(rule)
    }
}

/// A decimal or hexadecimal number.
fn number<T: TryFrom<u32>>(term: &str, text: &str) -> Result<T, RulesError> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // A sign is no digit, though the parser takes it.
    let value = if digits.starts_with('+') { None } else { u32::from_str_radix(digits, radix).ok() };
    value.and_then(|value| T::try_from(value).ok()).ok_or_else(|| {
        let most = (1u64 << (8 * size_of::<T>())) - 1;
        let (term, text) = (term.escape_debug(), text.escape_debug());
        RulesError(format!("\"{term}\": \"{text}\" is no number from 0 to {most}"))
    })
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, rule) in self.0.iter().enumerate() {
            write!(f, "{}{rule}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_mean_what_they_say() {
        let rules: Rules =
            "tcp/80, udp/5000-5999,sctp/0x10,udp,proto/47,ethertype/34525,ethertype/0x0806".parse().unwrap();
        assert_eq!(
            rules.as_slice(),
            [
                Rule::Port(Transport::Tcp, 80..=80),
                Rule::Port(Transport::Udp, 5000..=5999),
                Rule::Port(Transport::Sctp, 16..=16),
                Rule::Protocol(17),
                Rule::Protocol(47),
                Rule::EtherType(0x86dd),
                Rule::EtherType(0x0806),
            ]
        );
    }

    #[test]
    fn text_and_rules_are_each_others_inverse() {
        let text = "tcp,udp/0-65535,sctp/132,proto/255,ethertype/0xffff,ethertype/0x0600,tcp/8000-8099";
        assert_eq!(text.parse::<Rules>().unwrap().to_string(), text);
    }

    #[test]
    fn errors_say_what_and_what_else() {
        for (text, wanted) in [
            ("", "nothing is named; terms are tcp, udp"),
            (" ", "nothing is named; terms are"),
            ("tcp/80,", "\"\" is no term; terms are tcp, udp and sctp, each alone or with destination ports"),
            ("tpc/80", "\"tpc/80\" is no term; terms are"),
            ("TCP/80", "\"TCP/80\" is no term"),
            ("ip/6", "\"ip/6\" is no term"),
            ("\u{1b}[2J", "\"\\u{1b}[2J\" is no term"),
            ("tcp/", "\"tcp/\": \"\" is no number from 0 to 65535"),
            ("tcp/65536", "\"tcp/65536\": \"65536\" is no number from 0 to 65535"),
            ("tcp/+80", "\"tcp/+80\": \"+80\" is no number"),
            ("tcp/0x+80", "\"tcp/0x+80\": \"0x+80\" is no number"),
            ("tcp/-80", "\"tcp/-80\": \"\" is no number"),
            ("tcp/80-", "\"tcp/80-\": \"\" is no number"),
            ("tcp/80-90-100", "\"tcp/80-90-100\": \"90-100\" is no number"),
            ("udp/90-80", "\"udp/90-80\": the range is empty"),
            ("udp/http", "\"udp/http\": \"http\" is no number"),
            ("proto", "\"proto\": the number is missing: proto/NUMBER"),
            ("proto/256", "\"proto/256\": \"256\" is no number from 0 to 255"),
            ("proto/44", "\"proto/44\": it is an extension header of IPv6"),
            ("ethertype", "\"ethertype\": the number is missing"),
            ("ethertype/0x10000", "\"ethertype/0x10000\": \"0x10000\" is no number from 0 to 65535"),
            ("ethertype/0x8100", "\"ethertype/0x8100\": VLAN tags are looked through"),
            ("ethertype/1500", "\"ethertype/0x05dc\": an EtherType is 0x0600 or more"),
        ] {
            let error = text.parse::<Rules>().unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{text}: {error}");
        }
        let many = vec!["tcp/80"; Rules::MAX + 1].join(",");
        assert_eq!(many.parse::<Rules>().unwrap_err().to_string(), "65 terms are too many; there may be 64");
        #[expect(clippy::reversed_empty_ranges, reason = "that it is refused is the test")]
        let empty = Rule::Port(Transport::Tcp, 2..=1);
        assert!(Rules::new(vec![empty]).is_err());
    }
}
