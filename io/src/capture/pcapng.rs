//! pcapng: draft-ietf-opsawg-pcapng.
//!
//! Blocks are framed here by their lengths, and the parser only gets whole blocks: it reports
//! "incomplete" both for truncated blocks and for blocks whose inner lengths exceed the block,
//! which more bytes cannot repair. Packet blocks are decoded here too, because the parser allocates
//! a list of each packet's options.

use pcap_parser::nom::IResult;
use pcap_parser::pcapng::{
    InterfaceDescriptionBlock, OptionCode, parse_interfacedescriptionblock_be, parse_interfacedescriptionblock_le,
    parse_sectionheaderblock,
};
use portcullis_core::packet::Metadata;

use super::reader::{Fault, Format, Step};
use super::{LinkType, MAX_PACKET};
use crate::source::{CaptureFormat, Interface, Resolution};

/// Maximum length in bytes of a block that is read as a whole (libpcap's limit); longer blocks
/// without packets are skipped.
const MAX_BLOCK: u32 = 16 << 20;

/// Maximum number of interfaces in a capture, which bounds memory.
const MAX_INTERFACES: usize = 65_536;

// Block types, section 11.1.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
/// Obsolete, appendix A.
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// The properties of an interface that reading its packets requires.
#[derive(Debug)]
struct InterfaceInfo {
    link_type: LinkType,
    /// Snapshot length in bytes; 0 for unlimited.
    snap_length: u32,
    clock: Clock,
    name: Option<String>,
    fcs_words: Option<u8>,
}

/// Timestamp scale of an interface: section 4.2, if_tsresol and if_tsoffset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Clock {
    /// Units per second.
    per_second: TimeUnit,
    /// Offset in seconds.
    offset: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimeUnit {
    /// 10^exponent units per second, exponent at most 127.
    Decimal(u8),
    /// 2^exponent units per second, exponent at most 127.
    Binary(u8),
}

impl Clock {
    /// Converts to nanoseconds since the epoch, saturating.
    #[inline]
    fn nanoseconds(self, time: u64) -> u64 {
        match self {
            Clock { per_second: TimeUnit::Decimal(6), offset: 0 } => time.saturating_mul(1000),
            Clock { per_second: TimeUnit::Decimal(9), offset: 0 } => time,
            other => other.any_nanoseconds(time),
        }
    }

    fn any_nanoseconds(self, time: u64) -> u64 {
        let since = match self.per_second {
            TimeUnit::Decimal(9) => u128::from(time),
            TimeUnit::Decimal(e @ 0..9) => u128::from(time) * 10u128.pow(u32::from(9 - e)),
            TimeUnit::Decimal(e) => match 10u128.checked_pow(u32::from(e - 9)) {
                Some(units) => u128::from(time) / units,
                None => 0,
            },
            // The product is below 2^94 and fits; a shift by 127 yields 0.
            TimeUnit::Binary(e) => (u128::from(time) * 1_000_000_000) >> e,
        };
        let offset = i128::from(self.offset) * 1_000_000_000;
        (since as i128).saturating_add(offset).clamp(0, i128::from(u64::MAX)) as u64
    }

    /// Whether timestamps are finer than microseconds.
    fn is_fine(self) -> bool {
        match self.per_second {
            TimeUnit::Decimal(e) => e > 6,
            // 2^-1 to 2^-6 seconds are whole numbers of microseconds.
            TimeUnit::Binary(e) => e > 6,
        }
    }
}

/// Parser state.
pub(super) struct Pcapng {
    big_endian: bool,
    /// Interfaces of all sections so far.
    interfaces: Vec<InterfaceInfo>,
    /// Index of this section's first interface.
    section: usize,
    /// The resolution announced by [`Format::describe`].
    announced: Option<Resolution>,
    finer: Option<usize>,
}

impl Pcapng {
    pub fn new() -> Pcapng {
        Pcapng { big_endian: false, interfaces: Vec::new(), section: 0, announced: None, finer: None }
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
        let interface = InterfaceInfo {
            // On some paths the parser sign-extends the field, which has 16 bits.
            link_type: LinkType(block.linktype.0 as u32 & 0xffff),
            snap_length: block.snaplen,
            clock: clock(&block, self.big_endian),
            name: option(&block, OptionCode::IfName).map(|name| String::from_utf8_lossy(name).into_owned()),
            // if_fcslen is in bits.
            fcs_words: option(&block, OptionCode(13)).and_then(|bits| bits.first().map(|bits| bits / 16)),
        };
        if self.announced == Some(Resolution::Micro) && interface.clock.is_fine() {
            self.finer.get_or_insert(self.interfaces.len());
        }
        self.interfaces.push(interface);
        Ok(())
    }

    /// Returns interface `number` of this section, with its index in the whole capture.
    #[inline]
    fn interface(&self, number: u32) -> Result<(u32, &InterfaceInfo), Fault> {
        match self.interfaces.get(self.section + number as usize) {
            Some(interface) if interface.link_type == LinkType::ETHERNET => {
                Ok((self.section as u32 + number, interface))
            }
            Some(InterfaceInfo { link_type, name, .. }) => Err(Fault::NotEthernet {
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

    /// Decodes a packet block that begins with `bytes` and has `total` bytes.
    #[inline]
    fn packet(&self, bytes: &[u8], kind: u32, total: u32) -> Result<Step, Fault> {
        // Bytes before the packet; the trailing length takes 4 more.
        let start = if kind == SIMPLE_PACKET { 12 } else { 28 };
        if (total as usize) < start + 4 {
            return Err(Fault::Malformed(format!("a packet block of {total} bytes, too short for its header")));
        }
        if bytes.len() < start {
            return Ok(Step::More(start));
        }
        let (number, time, captured, wire) = match kind {
            // Section 4.4: a simple packet block has no time and no interface number, only the
            // original length.
            SIMPLE_PACKET => {
                let wire = self.u32(bytes, 8);
                let (_, interface) = self.interface(0)?;
                let kept = if interface.snap_length == 0 { wire } else { wire.min(interface.snap_length) };
                (0, 0, kept, wire)
            }
            // Section 4.3; in the obsolete block of appendix A the interface number has 16 bits.
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

    /// Checks that the block's length is repeated at its end: section 3.1.
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
        // The shortest block has 12 bytes, and so many are needed for a section header's byte-order
        // magic.
        if bytes.len() < 12 {
            return Ok(Step::More(12));
        }
        // A section header's type is a palindrome: it reads the same in either byte order.
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
            return Err(Fault::Malformed(format!("a block of {total} bytes; lengths are multiples of 4, at least 12")));
        }
        let known = matches!(kind, SECTION_HEADER | INTERFACE_DESCRIPTION | PACKET | SIMPLE_PACKET | ENHANCED_PACKET);
        if !known {
            return Ok(Step::Skip(u64::from(total)));
        }
        if total > MAX_BLOCK {
            return Err(Fault::Malformed(format!("a block of {total} bytes; at most {MAX_BLOCK} are supported")));
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
        self.announced = Some(resolution);
        let interfaces = self.interfaces.iter().map(|interface| Interface { name: interface.name.clone() }).collect();
        let fcs_words = self.interfaces.first().and_then(|interface| interface.fcs_words);
        CaptureFormat { resolution, interfaces, fcs_words }
    }

    fn finer_interface(&mut self) -> Option<usize> {
        let finer = self.finer.take()?;
        // Warn once.
        self.announced = None;
        Some(finer)
    }
}

/// Returns the parser's result for a whole block.
fn parsed<'a, B>(result: IResult<&'a [u8], B, pcap_parser::PcapError<&'a [u8]>>, what: &str) -> Result<B, Fault> {
    match result {
        Ok((_, block)) => Ok(block),
        Err(_) => Err(Fault::Malformed(format!("the {what} block cannot be read"))),
    }
}

/// Returns the first option `code` of an interface, without padding.
fn option<'a>(block: &'a InterfaceDescriptionBlock, code: OptionCode) -> Option<&'a [u8]> {
    block.options.iter().find(|option| option.code == code)?.as_bytes().ok()
}

/// Returns an interface's clock. Decoded here because the parser reads if_tsoffset as little-endian
/// always, and does not support binary if_tsresol.
fn clock(block: &InterfaceDescriptionBlock, big_endian: bool) -> Clock {
    let per_second = match option(block, OptionCode::IfTsresol) {
        Some(&[value]) if value & 0x80 != 0 => TimeUnit::Binary(value & 0x7f),
        Some(&[value]) => TimeUnit::Decimal(value),
        _ => TimeUnit::Decimal(6),
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
    fn timestamps_convert_to_nanoseconds() {
        let clock = |per_second, offset| Clock { per_second, offset };
        for (clock, time, nanoseconds) in [
            (clock(TimeUnit::Decimal(6), 0), 1_700_000_000_123_456, 1_700_000_000_123_456_000),
            (clock(TimeUnit::Decimal(9), 0), 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
            (clock(TimeUnit::Decimal(0), 0), 7, 7_000_000_000),
            (clock(TimeUnit::Decimal(3), 0), 7, 7_000_000),
            (clock(TimeUnit::Decimal(12), 0), 7_999, 7),
            (clock(TimeUnit::Decimal(127), 0), u64::MAX, 0),
            (clock(TimeUnit::Binary(10), 0), 1024 + 512, 1_500_000_000),
            (clock(TimeUnit::Binary(0), 0), 3, 3_000_000_000),
            (clock(TimeUnit::Binary(127), 0), u64::MAX, 0),
            (clock(TimeUnit::Decimal(6), 100), 1, 100_000_001_000),
            (clock(TimeUnit::Decimal(6), -1), 2_000_000, 1_000_000_000),
            (clock(TimeUnit::Decimal(6), -5), 0, 0),
            (clock(TimeUnit::Decimal(0), i64::MAX), u64::MAX, u64::MAX),
            (clock(TimeUnit::Decimal(0), i64::MIN), 0, 0),
        ] {
            assert_eq!(clock.any_nanoseconds(time), nanoseconds, "{clock:?} {time}");
            assert_eq!(clock.nanoseconds(time), nanoseconds, "{clock:?} {time}");
        }
    }
}
