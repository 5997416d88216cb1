//! Classic pcap: draft-ietf-opsawg-pcap.
//!
//! The header's snapshot length is ignored: longer records are kept whole, as in Wireshark (libpcap
//! truncates them).

use pcap_parser::nom::Err as Parse;
use pcap_parser::pcap::{parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};
use portcullis_core::packet::Metadata;

use super::reader::{Fault, Format, Step};
use super::{LinkType, MAX_PACKET};
use crate::source::{CaptureFormat, Interface, Resolution};

/// Length of a record header in bytes: section 5.
const RECORD_HEADER: usize = 16;

/// Parser state: properties from the file header.
pub(super) struct Pcap {
    big_endian: bool,
    resolution: Resolution,
    fcs_words: Option<u8>,
}

impl Pcap {
    /// Parses a file header with one of the known magic numbers.
    pub fn new(header: &[u8]) -> Result<Pcap, Fault> {
        let (_, header) =
            parse_pcap_header(header).map_err(|_| Fault::Malformed("the pcap header cannot be read".into()))?;
        // Some files of versions before 2.4 have a record's two lengths in reverse order.
        if (header.version_major, header.version_minor) != (2, 4) {
            return Err(Fault::Malformed(format!(
                "pcap version {}.{} is not read here, only 2.4; convert it with editcap -F pcap",
                header.version_major, header.version_minor
            )));
        }
        // Section 4, "LinkType and additional information": the length of the frame check sequence
        // is in the upper four bits and valid if bit 26 is set.
        let network = header.network.0 as u32;
        let link_type = LinkType(network & 0x03ff_ffff);
        if link_type != LinkType::ETHERNET {
            return Err(Fault::NotEthernet { what: "the capture".into(), link_type });
        }
        let fcs_words = (network & 0x0400_0000 != 0).then_some((network >> 28) as u8);
        let resolution = if header.is_nanosecond_precision() { Resolution::Nano } else { Resolution::Micro };
        Ok(Pcap { big_endian: header.is_bigendian(), resolution, fcs_words })
    }
}

impl Format for Pcap {
    #[inline]
    fn step(&mut self, bytes: &[u8]) -> Step {
        let parsed = if self.big_endian { parse_pcap_frame_be(bytes) } else { parse_pcap_frame(bytes) };
        match parsed {
            Ok((_, record)) if record.data.len() <= MAX_PACKET => {
                let time = u64::from(record.ts_sec) * 1_000_000_000
                    + u64::from(record.ts_usec) * self.resolution.nanoseconds();
                let length = record.data.len();
                let metadata = Metadata::new(record.origlen, 0, time);
                Step::Packet { start: RECORD_HEADER, length, end: RECORD_HEADER + length, metadata }
            }
            Ok((_, record)) => Step::Fault(Fault::TooLong(u64::from(record.caplen))),
            // The parser's "incomplete" does not tell whether more bytes would help: check the
            // length.
            Err(Parse::Incomplete(_)) => match captured_length(bytes, self.big_endian) {
                None => Step::More(RECORD_HEADER),
                Some(length) if length as usize > MAX_PACKET => Step::Fault(Fault::TooLong(u64::from(length))),
                Some(length) => Step::More(RECORD_HEADER + length as usize),
            },
            Err(_) => Step::Fault(Fault::Malformed("the record cannot be read".into())),
        }
    }

    fn describe(&mut self) -> CaptureFormat {
        CaptureFormat { resolution: self.resolution, interfaces: vec![Interface::default()], fcs_words: self.fcs_words }
    }
}

/// Captured length in a record header, if the header is complete.
fn captured_length(bytes: &[u8], big_endian: bool) -> Option<u32> {
    let field = bytes.get(..RECORD_HEADER)?[8..12].try_into().ok()?;
    Some(if big_endian { u32::from_be_bytes(field) } else { u32::from_le_bytes(field) })
}
