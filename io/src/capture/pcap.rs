//! Classic pcap: draft-ietf-opsawg-pcap.
//!
//! The header's snap length is not looked at: a record that is longer is kept whole, as Wireshark
//! does (libpcap cuts it).

use pcap_parser::nom::Err as Parse;
use pcap_parser::pcap::{parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};
use portcullis_core::packet::Metadata;

use super::reader::{Fault, Format, Step};
use super::{LinkType, MAX_PACKET};
use crate::source::{CaptureFormat, Interface, Resolution};

/// Length of a record's header: section 5.
const RECORD: usize = 16;

/// The state of reading: what the file's header says.
pub(super) struct Pcap {
    big_endian: bool,
    resolution: Resolution,
    fcs_words: Option<u8>,
}

impl Pcap {
    /// Reads the file's header, which has one of the known magic numbers.
    pub fn new(header: &[u8]) -> Result<Pcap, Fault> {
        let (_, header) =
            parse_pcap_header(header).map_err(|_| Fault::Malformed("the pcap header cannot be read".into()))?;
        // Before 2.4 the two lengths of a record were the other way round, in some files.
        if (header.version_major, header.version_minor) != (2, 4) {
            return Err(Fault::Malformed(format!(
                "pcap version {}.{} is not read here, only 2.4; convert it with editcap -F pcap",
                header.version_major, header.version_minor
            )));
        }
        // Section 4, "LinkType and additional information": the length of the frame check sequence
        // is in the highest four bits, and counts when bit 26 is set.
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
                Step::Packet { start: RECORD, length, end: RECORD + length, metadata }
            }
            Ok((_, record)) => Step::Fault(Fault::TooLong(u64::from(record.caplen))),
            // "Incomplete" does not say whether it ever can be complete.
            Err(Parse::Incomplete(_)) => match captured_length(bytes, self.big_endian) {
                None => Step::More(RECORD),
                Some(length) if length as usize > MAX_PACKET => Step::Fault(Fault::TooLong(u64::from(length))),
                Some(length) => Step::More(RECORD + length as usize),
            },
            Err(_) => Step::Fault(Fault::Malformed("the record cannot be read".into())),
        }
    }

    fn describe(&mut self) -> CaptureFormat {
        CaptureFormat { resolution: self.resolution, interfaces: vec![Interface::default()], fcs_words: self.fcs_words }
    }
}

/// The captured length that a record's header gives, if there is a whole header.
fn captured_length(bytes: &[u8], big_endian: bool) -> Option<u32> {
    let field = bytes.get(..RECORD)?[8..12].try_into().ok()?;
    Some(if big_endian { u32::from_be_bytes(field) } else { u32::from_le_bytes(field) })
}
