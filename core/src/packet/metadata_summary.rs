//! Properties of a batch's metadata as a whole, which decide how it travels to a device.

use super::Metadata;

/// A set of the fields of [`Metadata`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MetadataFields {
    /// The length on the wire.
    pub wire_length: bool,
    /// The ingress port.
    pub port: bool,
    /// The receive time in nanoseconds.
    pub time: bool,
    /// The receive time in milliseconds.
    pub time_ms: bool,
}

impl MetadataFields {
    /// Whether the set has no field.
    pub fn is_empty(self) -> bool {
        self == MetadataFields::default()
    }
}

/// Properties of the metadata of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetadataSummary {
    /// The fields that may differ between two packets. For a part of a batch these are at most the
    /// batch's.
    pub varying: MetadataFields,
    /// Whether a wire length may differ from the captured length.
    pub varies_from_captured_length: bool,
}

impl MetadataSummary {
    /// The summary of packets' metadata with their captured lengths in bytes.
    pub fn of(packets: impl IntoIterator<Item = (Metadata, u32)>) -> MetadataSummary {
        let mut accumulator = MetadataAccumulator::default();
        packets.into_iter().for_each(|(metadata, length)| accumulator.add(&metadata, length));
        accumulator.summary()
    }
}

/// Accumulates a [`MetadataSummary`] packet by packet where the metadata is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetadataAccumulator {
    first: Option<Metadata>,
    /// Bits in which any packet's words differ from the first packet's.
    differences: Metadata,
    /// Bits in which any wire length differs from the captured length.
    length_differences: u32,
}

impl MetadataAccumulator {
    /// Adds a packet with its captured length in bytes.
    #[inline]
    pub fn add(&mut self, metadata: &Metadata, captured_length: u32) {
        let (first, differences) = (self.first.get_or_insert(*metadata), &mut self.differences);
        differences.wire_length |= first.wire_length ^ metadata.wire_length;
        differences.port |= first.port ^ metadata.port;
        differences.time_low |= first.time_low ^ metadata.time_low;
        differences.time_high |= first.time_high ^ metadata.time_high;
        differences.time_ms |= first.time_ms ^ metadata.time_ms;
        self.length_differences |= metadata.wire_length ^ captured_length;
    }

    /// The summary of the packets so far.
    pub fn summary(&self) -> MetadataSummary {
        let Metadata { wire_length, port, time_low, time_high, time_ms } = self.differences;
        MetadataSummary {
            varying: MetadataFields {
                wire_length: wire_length != 0,
                port: port != 0,
                time: time_low | time_high != 0,
                time_ms: time_ms != 0,
            },
            varies_from_captured_length: self.length_differences != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: MetadataFields = MetadataFields { wire_length: false, port: false, time: false, time_ms: false };

    fn summary(packets: &[(u32, u32, u64, u32)]) -> MetadataSummary {
        MetadataSummary::of(packets.iter().map(|&(wire, port, time, length)| (Metadata::new(wire, port, time), length)))
    }

    #[test]
    fn fields_vary_if_any_packet_differs_from_another() {
        let same = (60, 1, 5_000_000_000, 60);
        let varying = |other| summary(&[same, same, other, same]).varying;
        assert_eq!(varying(same), NONE);
        assert_eq!(varying((61, 1, 5_000_000_000, 60)), MetadataFields { wire_length: true, ..NONE });
        assert_eq!(varying((60, 2, 5_000_000_000, 60)), MetadataFields { port: true, ..NONE });
        assert_eq!(varying((60, 1, 5_000_000_001, 60)), MetadataFields { time: true, ..NONE });
        // 2^32 milliseconds later, which is a multiple of 2^32 nanoseconds.
        assert_eq!(varying((60, 1, 5_000_000_000 + (1_000_000 << 32), 60)), MetadataFields { time: true, ..NONE });
        assert_eq!(varying((60, 1, 5_001_000_000, 60)), MetadataFields { time: true, time_ms: true, ..NONE });
        assert!(summary(&[]).varying.is_empty() && summary(&[same]).varying.is_empty());
    }

    #[test]
    fn wire_lengths_are_compared_with_captured_ones() {
        assert!(!summary(&[]).varies_from_captured_length);
        assert!(!summary(&[(60, 0, 0, 60), (1500, 0, 0, 1500), (0, 0, 0, 0)]).varies_from_captured_length);
        assert!(summary(&[(60, 0, 0, 60), (1500, 0, 0, 96)]).varies_from_captured_length);
    }
}
