//! A model of the rules, written independently from the RFCs and as simply as possible, to compare
//! the program with. It shares only the rules' types with the generator.

use crate::af_xdp::rules::{Rule, Steering};

/// Whether the frame should be redirected to user space.
pub fn is_redirected(steer: &Steering, frame: &[u8]) -> bool {
    let headers = Headers::of(frame);
    match steer {
        Steering::All => true,
        _ if headers.neighbour_discovery => false,
        Steering::Default => matches!(headers.ethertype, Some(0x0800 | 0x86dd)),
        Steering::Only(rules) => rules.as_slice().iter().any(|rule| headers.match_rule(rule)),
    }
}

/// Header fields of a frame; `None` if the frame ends before the field, or has no such field.
#[derive(Debug, Default)]
struct Headers {
    ethertype: Option<u16>,
    protocol: Option<u8>,
    port: Option<u16>,
    neighbour_discovery: bool,
}

impl Headers {
    fn of(frame: &[u8]) -> Headers {
        let mut headers = Headers::default();
        // IEEE 802.3: two addresses of six bytes.
        let Some((ethertype, rest)) = be16(frame.get(12..)) else { return headers };
        let Some((ethertype, packet)) = without_tags(ethertype, rest, 2) else { return headers };
        headers.ethertype = Some(ethertype);
        match ethertype {
            0x0800 => headers.ipv4(packet),
            0x86dd => headers.ipv6(packet),
            _ => None,
        };
        headers
    }

    /// RFC 791, section 3.1.
    fn ipv4(&mut self, packet: &[u8]) -> Option<()> {
        let fixed = packet.get(..20)?;
        let (version, words) = (fixed[0] / 16, usize::from(fixed[0] % 16));
        if version != 4 || words < 5 {
            return None;
        }
        let fragment_offset = u16::from_be_bytes([fixed[6], fixed[7]]) % 0x2000;
        self.payload(fixed[9], packet.get(words * 4..).unwrap_or_default(), fragment_offset > 0)
    }

    /// RFC 8200, section 3.
    fn ipv6(&mut self, packet: &[u8]) -> Option<()> {
        let (fixed, mut rest) = packet.split_at_checked(40)?;
        if fixed[0] / 16 != 6 {
            return None;
        }
        let mut next = fixed[6];
        for _ in 0..8 {
            let length = match next {
                // Hop-by-hop options, routing, destination options.
                0 | 43 | 60 => (usize::from(*rest.get(1)?) + 1) * 8,
                // Fragment.
                44 => 8,
                _ => break,
            };
            let (header, behind) = rest.split_at_checked(length)?;
            let later = next == 44 && u16::from_be_bytes([header[2], header[3]]) / 8 > 0;
            (next, rest) = (header[0], behind);
            if later {
                return self.payload(next, rest, true);
            }
        }
        self.neighbour_discovery = next == 58 && matches!(rest.first(), Some(133..=137));
        self.payload(next, rest, false)
    }

    fn payload(&mut self, protocol: u8, payload: &[u8], later_fragment: bool) -> Option<()> {
        self.protocol = Some(protocol);
        // TCP, UDP, SCTP.
        if [6, 17, 132].contains(&protocol) && !later_fragment {
            self.port = Some(be16(payload.get(2..))?.0);
        }
        Some(())
    }

    fn match_rule(&self, rule: &Rule) -> bool {
        match rule {
            Rule::EtherType(value) => self.ethertype == Some(*value),
            Rule::Protocol(value) => self.protocol == Some(*value),
            Rule::Port(transport, ports) => {
                self.protocol == Some(transport.protocol()) && self.port.is_some_and(|port| ports.contains(&port))
            }
        }
    }
}

/// Skips tags (IEEE 802.1Q): a tag protocol identifier, two bytes of tag, then an EtherType.
fn without_tags(ethertype: u16, rest: &[u8], max: u32) -> Option<(u16, &[u8])> {
    if max == 0 || ![0x8100, 0x88a8].contains(&ethertype) {
        return Some((ethertype, rest));
    }
    let (ethertype, rest) = be16(rest.get(2..))?;
    without_tags(ethertype, rest, max - 1)
}

fn be16(bytes: Option<&[u8]>) -> Option<(u16, &[u8])> {
    let (value, rest) = bytes?.split_first_chunk()?;
    Some((u16::from_be_bytes(*value), rest))
}
