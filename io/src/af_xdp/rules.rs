//! Rules for which frames are redirected to user space; all others stay with the kernel's stack.
//!
//! | | redirected to user space |
//! |---|---|
//! | [`Steering::Default`] | IPv4 and IPv6 |
//! | [`Steering::Only`] | frames that match a [`Rule`] |
//! | [`Steering::All`] | every frame |
//!
//! **Neighbour discovery** (ICMPv6 types 133 to 137, RFC 4861) stays with the kernel unless all
//! frames are redirected, even if `ethertype/0x86dd` or `proto/58` matches: without it, no
//! neighbour finds the machine. ARP has an EtherType of its own and stays with the kernel unless
//! that is listed.
//!
//! **VLAN tags**, up to two (802.1Q, 802.1ad), are skipped. Most network cards strip the outer tag
//! and pass it in frame metadata that XDP does not see: neither this program nor user space can
//! tell that there was one, until `ethtool -K IFACE rxvlan off`. With veth the sender leaves the
//! tag in metadata, until `ethtool -K PEER txvlan off`.
//!
//! **Fragments**: the first one has ports, later ones have none (RFC 791, section 3.1; RFC 8200,
//! section 4.5), so rules with ports do not match them. They stay with the kernel, which never
//! completes a datagram whose first fragment is missing. To redirect whole datagrams, list the
//! protocol without ports: `udp`.
//!
//! **IPv6 extension headers**: hop-by-hop options, routing, fragment and destination options
//! headers are skipped, up to [`MAX_EXTENSION_HEADERS`]; a rule matches the protocol after them. AH
//! and ESP headers are not skipped: their protocols are 51 and 50, in IPv4 and IPv6 alike.
//!
//! Only the first buffer of a frame is examined, which in practice contains all headers. A frame
//! that ends before a field does not match rules on that field, and neither does one whose header
//! has another IP version than its EtherType, or a length below the minimum.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Maximum number of IPv6 extension headers that are skipped. Real packets have one or two.
pub const MAX_EXTENSION_HEADERS: usize = 8;

/// Which frames are redirected to user space.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Steering {
    /// IPv4 and IPv6.
    #[default]
    Default,
    /// Every frame.
    All,
    /// Frames that match these rules.
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

/// One to [`Rules::MAX`] rules; a frame is redirected if it matches any of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Maximum number of rules: each costs instructions for every frame, and the kernel limits the
    /// length of programs.
    pub const MAX: usize = 64;

    /// Creates a list of rules.
    ///
    /// # Errors
    /// If there is no rule, more than [`Rules::MAX`], or one that can never match.
    pub fn new(rules: Vec<Rule>) -> Result<Rules, RulesError> {
        if rules.is_empty() {
            return Err(RulesError(format!("no term is given; {TERMS}")));
        }
        if rules.len() > Self::MAX {
            return Err(RulesError(format!("{} terms are too many; the maximum is {}", rules.len(), Self::MAX)));
        }
        rules.iter().try_for_each(Rule::check)?;
        Ok(Rules(rules))
    }

    /// The rules.
    pub fn as_slice(&self) -> &[Rule] {
        &self.0
    }
}

/// A condition on a frame's headers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Rule {
    /// `ethertype/0x86dd`: the EtherType after up to two VLAN tags.
    EtherType(u16),
    /// `proto/47`: IPv4's Protocol or IPv6's last Next Header, in every fragment.
    Protocol(u8),
    /// `tcp/80`, `tcp/8000-8099`: a destination port.
    Port(Transport, RangeInclusive<u16>),
}

impl Rule {
    /// Checks that a frame can match.
    fn check(&self) -> Result<(), RulesError> {
        let wrong = |why: &str| Err(RulesError(format!("\"{self}\": {why}")));
        match self {
            Rule::EtherType(0x8100 | 0x88a8) => {
                wrong("VLAN tags are skipped; give the EtherType after them, or take all frames")
            }
            Rule::EtherType(..0x0600) => {
                wrong("an EtherType is 0x0600 or more; smaller values are lengths (IEEE 802.3)")
            }
            // RFC 8200, section 4.
            Rule::Protocol(0 | 43 | 44 | 60) => {
                wrong("it is an IPv6 extension header, which is skipped; give the protocol after it")
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

/// A transport protocol with ports; all have the destination port in bytes 2 and 3.
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
    /// All transport protocols.
    pub const ALL: [Transport; 3] = [Transport::Tcp, Transport::Udp, Transport::Sctp];

    /// Name in rules, for example `tcp`.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Sctp => "sctp",
        }
    }

    /// Protocol number in IPv4's Protocol and IPv6's Next Header fields.
    pub fn protocol(self) -> u8 {
        match self {
            Transport::Tcp => 6,
            Transport::Udp => 17,
            Transport::Sctp => 132,
        }
    }
}

/// Why rules are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RulesError(String);

const TERMS: &str = "terms are tcp, udp and sctp, each alone or with destination ports (tcp/80, tcp/8000-8099), \
                     proto/NUMBER and ethertype/NUMBER";

impl FromStr for Rules {
    type Err = RulesError;

    /// Parses comma-separated terms: `tcp/80,udp/5000-5999,sctp,proto/47,ethertype/0x86dd`.
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
            _ => return Err(RulesError(format!("\"{}\" is not a term; {TERMS}", term.escape_debug()))),
        };
        rule.check()?;
        Ok(rule)
    }
}

/// Parses a decimal or hexadecimal number.
fn number<T: TryFrom<u32>>(term: &str, text: &str) -> Result<T, RulesError> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // The standard parser accepts a sign.
    let value = if digits.starts_with('+') { None } else { u32::from_str_radix(digits, radix).ok() };
    value.and_then(|value| T::try_from(value).ok()).ok_or_else(|| {
        let max = (1u64 << (8 * size_of::<T>())) - 1;
        let (term, text) = (term.escape_debug(), text.escape_debug());
        RulesError(format!("\"{term}\": \"{text}\" is not a number from 0 to {max}"))
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
    fn terms_parse_to_rules() {
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
    fn rules_and_text_round_trip() {
        let text = "tcp,udp/0-65535,sctp/132,proto/255,ethertype/0xffff,ethertype/0x0600,tcp/8000-8099";
        assert_eq!(text.parse::<Rules>().unwrap().to_string(), text);
    }

    #[test]
    fn errors_name_the_invalid_term_and_the_alternatives() {
        for (text, wanted) in [
            ("", "no term is given; terms are tcp, udp"),
            (" ", "no term is given; terms are"),
            ("tcp/80,", "\"\" is not a term; terms are tcp, udp and sctp, each alone or with destination ports"),
            ("tpc/80", "\"tpc/80\" is not a term; terms are"),
            ("TCP/80", "\"TCP/80\" is not a term"),
            ("ip/6", "\"ip/6\" is not a term"),
            ("\u{1b}[2J", "\"\\u{1b}[2J\" is not a term"),
            ("tcp/", "\"tcp/\": \"\" is not a number from 0 to 65535"),
            ("tcp/65536", "\"tcp/65536\": \"65536\" is not a number from 0 to 65535"),
            ("tcp/+80", "\"tcp/+80\": \"+80\" is not a number"),
            ("tcp/0x+80", "\"tcp/0x+80\": \"0x+80\" is not a number"),
            ("tcp/-80", "\"tcp/-80\": \"\" is not a number"),
            ("tcp/80-", "\"tcp/80-\": \"\" is not a number"),
            ("tcp/80-90-100", "\"tcp/80-90-100\": \"90-100\" is not a number"),
            ("udp/90-80", "\"udp/90-80\": the range is empty"),
            ("udp/http", "\"udp/http\": \"http\" is not a number"),
            ("proto", "\"proto\": the number is missing: proto/NUMBER"),
            ("proto/256", "\"proto/256\": \"256\" is not a number from 0 to 255"),
            ("proto/44", "\"proto/44\": it is an IPv6 extension header"),
            ("ethertype", "\"ethertype\": the number is missing"),
            ("ethertype/0x10000", "\"ethertype/0x10000\": \"0x10000\" is not a number from 0 to 65535"),
            ("ethertype/0x8100", "\"ethertype/0x8100\": VLAN tags are skipped"),
            ("ethertype/1500", "\"ethertype/0x05dc\": an EtherType is 0x0600 or more"),
        ] {
            let error = text.parse::<Rules>().unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{text}: {error}");
        }
        let many = vec!["tcp/80"; Rules::MAX + 1].join(",");
        assert_eq!(many.parse::<Rules>().unwrap_err().to_string(), "65 terms are too many; the maximum is 64");
        #[expect(clippy::reversed_empty_ranges, reason = "that it is refused is the test")]
        let empty = Rule::Port(Transport::Tcp, 2..=1);
        assert!(Rules::new(vec![empty]).is_err());
    }
}
