//! pcapng: draft-ietf-opsawg-pcapng.
//!
//! Blocks are framed here, by their lengths, and only a whole block is given to the parser: it
//! answers "incomplete" both to a block that is cut and to one whose inner lengths reach beyond its
//! end, which no further byte can mend. Packet blocks are taken apart here too, since the parser
//! makes a list of each packet's options.

use pcap_parser::nom::IResult;
use pcap_parser::pcapng::{
    InterfaceDescriptionBlock, OptionCode, parse_interfacedescriptionblock_be, parse_interfacedescriptionblock_le,
    parse_sectionheaderblock,
};
use portcullis_core::packet::Metadata;

use super::reader::{Fault, Format, Step};
use super::{LinkType, MAX_PACKET};
use crate::source::{CaptureFormat, Interface, Resolution};

/// The longest block that is read as a whole; longer ones that hold no packet are passed over.
/// libpcap's limit.
const MAX_BLOCK: u32 = 16 << 20;

/// Interfaces in a capture, at most: each takes memory of ours.
const MAX_INTERFACES: usize = 65_536;

// Block types, section 11.1.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
/// Obsolete, appendix A.
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// An interface as far as reading its packets needs it.
#[derive(Debug)]
struct Described {
    link_type: LinkType,
    /// Bytes of a packet that are kept; 0 for all.
    snap_length: u32,
    clock: Clock,
    name: Option<String>,
    fcs_words: Option<u8>,
}

/// How an interface tells the time: section 4.2, if_tsresol and if_tsoffset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Clock {
    /// Units in a second.
    per_second: Unit,
    /// Seconds to add.
    offset: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// 10^exponent units make a second, at most 10^127.
    Decimal(u8),
    /// 2^exponent units make a second, at most 2^127.
    Binary(u8),
}

impl Clock {
    /// Nanoseconds since the epoch; what is out of range becomes the nearest that is in it.
    #[inline]
    fn nanoseconds(self, time: u64) -> u64 {
        match self {
            Clock { per_second: Unit::Decimal(6), offset: 0 } => time.saturating_mul(1000),
            Clock { per_second: Unit::Decimal(9), offset: 0 } => time,
            other => other.any_nanoseconds(time),
        }
    }

    fn any_nanoseconds(self, time: u64) -> u64 {
        let since = match self.per_second {
            Unit::Decimal(9) => u128::from(time),
            Unit::Decimal(e @ 0..9) => u128::from(time) * 10u128.pow(u32::from(9 - e)),
            Unit::Decimal(e) => match 10u128.checked_pow(u32::from(e - 9)) {
                Some(units) => u128::from(time) / units,
                None => 0,
            },
            // The product is below 2^94, so it fits; a shift of 127 leaves nothing.
            Unit::Binary(e) => (u128::from(time) * 1_000_000_000) >> e,
        };
        let offset = i128::from(self.offset) * 1_000_000_000;
        (since as i128).saturating_add(offset).clamp(0, i128::from(u64::MAX)) as u64
    }

    /// Whether microseconds cannot hold its times.
    fn is_fine(self) -> bool {
        match self.per_second {
            Unit::Decimal(e) => e > 6,
            // 2^-1 to 2^-6 seconds are whole microseconds.
            Unit::Binary(e) => e > 6,
        }
    }
}

/// The state of reading.
pub(super) struct Pcapng {
    big_endian: bool,
    /// Interfaces of all sections so far.
    interfaces: Vec<Described>,
    /// The first one of this section.
    section: usize,
    /// The unit of time that [`Format::describe`] told.
    promised: Option<Resolution>,
    finer: Option<usize>,
}

impl Pcapng {
    pub fn new() -> Pcapng {
        Pcapng { big_endian: false, interfaces: Vec::new(), section: 0, promised: None, finer: None }
    }

    #[inline]
    fn u32(&self, bytes: &[u8], at: usize) -> u32 {
        let field = bytes[at..at + 4].try_into().expect("four bytes");
        if self.big_endian { u32::from_be_bytes(field) } else { u32::from_le_bytes(field) }
    }

    fn section_header(&mut self, block: &[u8]) -> Result<(), Fault> {
        let header = parsed(parse_sectionheaderblock(block), "section header")?;
        if header.major_version != 1 || !matches!(header.minor_version, 0 | 2) {
            return Err(Fault::Malformed(format!(
                "pcapng version {}.{} is not read here, only 1.0 and 1.2",
                header.major_version, header.minor_version
            )));
        }
        self.section = self.interfaces.len();
        Ok(())
    }

    fn interface_description(&mut self, block: &[u8]) -> Result<(), Fault> {
        if self.interfaces.len() == MAX_INTERFACES {
            return Err(Fault::Malformed(format!("more than {MAX_INTERFACES} interfaces")));
        }
        let parse =
            if self.big_endian { parse_interfacedescriptionblock_be } else { parse_interfacedescriptionblock_le };
        let block = parsed(parse(block), "interface description")?;
        let interface = Described {
            // The parser widens the field with its sign on some paths: it has 16 bits.
            link_type: LinkType(block.linktype.0 as u32 & 0xffff),
            snap_length: block.snaplen,
            clock: clock(&block, self.big_endian),
            name: option(&block, OptionCode::IfName).map(|name| String::from_utf8_lossy(name).into_owned()),
            // if_fcslen is in bits.
            fcs_words: option(&block, OptionCode(13)).and_then(|bits| bits.first().map(|bits| bits / 16)),
        };
        if self.promised == Some(Resolution::Micro) && interface.clock.is_fine() {
            self.finer.get_or_insert(self.interfaces.len());
        }
        self.interfaces.push(interface);
        Ok(())
    }

    /// The interface `number` of this section, and its number in the whole capture.
    #[inline]
    fn interface(&self, number: u32) -> Result<(u32, &Described), Fault> {
        match self.interfaces.get(self.section + number as usize) {
            Some(interface) if interface.link_type == LinkType::ETHERNET => {
                Ok((self.section as u32 + number, interface))
            }
            Some(Described { link_type, name, .. }) => Err(Fault::NotEthernet {
                what: match name {
                    Some(name) => format!("interface {number} ({name}), which has packets,"),
                    None => format!("interface {number}, which has packets,"),
                },
                link_type: *link_type,
            }),
            None => Err(Fault::Malformed(format!(
                "a packet of interface {number}, and the section has described {} so far",
                self.interfaces.len() - self.section
            ))),
        }
    }

    /// A block that begins with `bytes` and holds a packet; `total` is its length.
    #[inline]
    fn packet(&self, bytes: &[u8], kind: u32, total: u32) -> Result<Step, Fault> {
        // Bytes of the block before the packet, the total lengths' 4 at its end not counted.
        let start = if kind == SIMPLE_PACKET { 12 } else { 28 };
        if (total as usize) < start + 4 {
            return Err(Fault::Malformed(format!("a packet block of {total} bytes, too short for its header")));
        }
        if bytes.len() < start {
            return Ok(Step::More(start));
        }
        let (number, time, captured, wire) = match kind {
            // Section 4.4: no time, no interface but the first, and only the original length.
            SIMPLE_PACKET => {
                let wire = self.u32(bytes, 8);
                let (_, interface) = self.interface(0)?;
                let kept = if interface.snap_length == 0 { wire } else { wire.min(interface.snap_length) };
                (0, 0, kept, wire)
            }
            // Section 4.3, and for the obsolete block appendix A: there the interface has 16 bits.
            _ => {
                let number = match kind {
                    PACKET if self.big_endian => self.u32(bytes, 8) >> 16,
                    PACKET => self.u32(bytes, 8) & 0xffff,
                    _ => self.u32(bytes, 8),
                };
                let time = u64::from(self.u32(bytes, 12)) << 32 | u64::from(self.u32(bytes, 16));
                (number, time, self.u32(bytes, 20), self.u32(bytes, 24))
            }
        };
        if captured as usize > MAX_PACKET {
            return Err(Fault::TooLong(u64::from(captured)));
        }
        let length = captured as usize;
        if start + length.next_multiple_of(4) + 4 > total as usize {
            return Err(Fault::Malformed(format!(
                "a packet of {captured} captured bytes does not fit into its block of {total}"
            )));
        }
        if bytes.len() < total as usize {
            return Ok(Step::More(total as usize));
        }
        self.check_trailer(bytes, total)?;
        let (port, interface) = self.interface(number)?;
        let time = if kind == SIMPLE_PACKET { 0 } else { interface.clock.nanoseconds(time) };
        let metadata = Metadata::new(wire, port, time);
        Ok(Step::Packet { start, length, end: total as usize, metadata })
    }

    /// A block's length stands at its end, too: section 3.1.
    #[inline]
    fn check_trailer(&self, bytes: &[u8], total: u32) -> Result<(), Fault> {
        let again = self.u32(bytes, total as usize - 4);
        if again != total {
            return Err(Fault::Malformed(format!("a block's length is {total} at its start and {again} at its end")));
        }
        Ok(())
    }

    #[inline]
    fn block(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        // The shortest block has 12 bytes, and a section header's byte order is known after 12.
        if bytes.len() < 12 {
            return Ok(Step::More(12));
        }
        // A section header's type reads the same in either byte order.
        let kind = self.u32(bytes, 0);
        if kind == SECTION_HEADER {
            // Section 4.1, byte-order magic.
            self.big_endian = match bytes[8..12] {
                [0x1a, 0x2b, 0x3c, 0x4d] => true,
                [0x4d, 0x3c, 0x2b, 0x1a] => false,
                _ => return Err(Fault::Malformed("a section header without byte-order magic".into())),
            };
        }
        let total = self.u32(bytes, 4);
        if total < 12 || !total.is_multiple_of(4) {
            return Err(Fault::Malformed(format!("a block of {total} bytes; a multiple of 4 from 12 on is possible")));
        }
        let known = matches!(kind, SECTION_HEADER | INTERFACE_DESCRIPTION | PACKET | SIMPLE_PACKET | ENHANCED_PACKET);
        if !known {
            return Ok(Step::Skip(u64::from(total)));
        }
        if total > MAX_BLOCK {
            return Err(Fault::Malformed(format!("a block of {total} bytes; more than {MAX_BLOCK} are not read")));
        }
        if !matches!(kind, SECTION_HEADER | INTERFACE_DESCRIPTION) {
            return self.packet(bytes, kind, total);
        }
        let Some(block) = bytes.get(..total as usize) else { return Ok(Step::More(total as usize)) };
        self.check_trailer(block, total)?;
        match kind {
            SECTION_HEADER => self.section_header(block)?,
            _ => self.interface_description(block)?,
        }
        Ok(Step::Skip(u64::from(total)))
    }
}

impl Format for Pcapng {
    #[inline]
    fn step(&mut self, bytes: &[u8]) -> Step {
        self.block(bytes).unwrap_or_else(Step::Fault)
    }

    fn describe(&mut self) -> CaptureFormat {
        let fine = self.interfaces.iter().any(|interface| interface.clock.is_fine());
        let resolution = if fine { Resolution::Nano } else { Resolution::Micro };
        self.promised = Some(resolution);
        let interfaces = self.interfaces.iter().map(|interface| Interface { name: interface.name.clone() }).collect();
        let fcs_words = self.interfaces.first().and_then(|interface| interface.fcs_words);
        CaptureFormat { resolution, interfaces, fcs_words }
    }

    fn finer_interface(&mut self) -> Option<usize> {
        let finer = self.finer.take()?;
        // One warning is enough.
        self.promised = None;
        Some(finer)
    }
}

/// What the parser made of a whole block.
fn parsed<'a, B>(result: IResult<&'a [u8], B, pcap_parser::PcapError<&'a [u8]>>, what: &str) -> Result<B, Fault> {
    match result {
        Ok((_, block)) => Ok(block),
        Err(_) => Err(Fault::Malformed(format!("the {what} block cannot be read"))),
    }
}

/// The first option `code` of an interface, without padding.
fn option<'a>(block: &'a InterfaceDescriptionBlock, code: OptionCode) -> Option<&'a [u8]> {
    block.options.iter().find(|option| option.code == code)?.as_bytes().ok()
}

/// An interface's clock, from its options: the parser reads if_tsoffset in little-endian order
/// always, and knows no binary if_tsresol.
fn clock(block: &InterfaceDescriptionBlock, big_endian: bool) -> Clock {
    let per_second = match option(block, OptionCode::IfTsresol) {
        Some(&[value]) if value & 0x80 != 0 => Unit::Binary(value & 0x7f),
        Some(&[value]) => Unit::Decimal(value),
        _ => Unit::Decimal(6),
    };
    let offset = match option(block, OptionCode::IfTsoffset).map(<[u8; 8]>::try_from) {
        Some(Ok(bytes)) if big_endian => i64::from_be_bytes(bytes),
        Some(Ok(bytes)) => i64::from_le_bytes(bytes),
        _ => 0,
    };
    Clock { per_second, offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_tell_nanoseconds() {
        let clock = |per_second, offset| Clock { per_second, offset };
        for (clock, time, nanoseconds) in [
            (clock(Unit::Decimal(6), 0), 1_700_000_000_123_456, 1_700_000_000_123_456_000),
            (clock(Unit::Decimal(9), 0), 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
            (clock(Unit::Decimal(0), 0), 7, 7_000_000_000),
            (clock(Unit::Decimal(3), 0), 7, 7_000_000),
            (clock(Unit::Decimal(12), 0), 7_999, 7),
            (clock(Unit::Decimal(127), 0), u64::MAX, 0),
            (clock(Unit::Binary(10), 0), 1024 + 512, 1_500_000_000),
            (clock(Unit::Binary(0), 0), 3, 3_000_000_000),
            (clock(Unit::Binary(127), 0), u64::MAX, 0),
            (clock(Unit::Decimal(6), 100), 1, 100_000_001_000),
            (clock(Unit::Decimal(6), -1), 2_000_000, 1_000_000_000),
            (clock(Unit::Decimal(6), -5), 0, 0),
            (clock(Unit::Decimal(0), i64::MAX), u64::MAX, u64::MAX),
            (clock(Unit::Decimal(0), i64::MIN), 0, 0),
        ] {
            assert_eq!(clock.any_nanoseconds(time), nanoseconds, "{clock:?} {time}");
            assert_eq!(clock.nanoseconds(time), nanoseconds, "{clock:?} {time}");
        }
    }
}
