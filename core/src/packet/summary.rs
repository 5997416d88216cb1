//! Properties of a batch's descriptors as a whole, which decide how they travel to a device.

use super::Descriptor;

/// Properties of the descriptors of a batch, established in the pass that checks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorSummary {
    /// Whether every packet with bytes starts at a multiple of 4 bytes.
    pub is_word_aligned: bool,
    /// Distance in bytes from each packet's first byte to the next one's, if it is the same for
    /// all; 0 for fewer than two packets.
    pub stride: Option<u32>,
    /// Length of the shortest packet in bytes.
    pub min_length: u32,
    /// Length of the longest packet in bytes.
    pub max_length: u32,
    /// Sum of the lengths in bytes.
    pub total_length: u64,
}

impl DescriptorSummary {
    /// The summary of these descriptors.
    pub fn of(descriptors: &[Descriptor]) -> DescriptorSummary {
        let mut accumulator = SummaryAccumulator::default();
        descriptors.iter().for_each(|descriptor| accumulator.add(descriptor));
        accumulator.finish(descriptors)
    }

    /// The length in bytes, if it is the same for all packets.
    pub fn length(&self) -> Option<u32> {
        (self.min_length == self.max_length).then_some(self.min_length)
    }

    /// The summary of `packets` consecutive packets of the same batch, if it follows from this one.
    pub(super) fn of_part(&self, packets: usize) -> Option<DescriptorSummary> {
        let (length, stride) = (self.length()?, self.stride?);
        let (length, stride) = if packets == 0 { (0, 0) } else { (length, if packets == 1 { 0 } else { stride }) };
        Some(DescriptorSummary {
            stride: Some(stride),
            min_length: length,
            max_length: length,
            total_length: packets as u64 * u64::from(length),
            ..*self
        })
    }

    /// Sum of the packets' first `window` bytes, of all bytes of shorter packets. Estimated from a
    /// sample of the packets, unless it follows from the other properties.
    pub fn window_bytes(&self, descriptors: &[Descriptor], window: u32) -> u64 {
        /// Packets in the sample.
        const SAMPLE: usize = 1024;
        if self.max_length <= window {
            return self.total_length;
        }
        if self.min_length >= window {
            return descriptors.len() as u64 * u64::from(window);
        }
        // Odd, so that packets of two kinds in turn are both in the sample.
        let step = descriptors.len().div_ceil(SAMPLE) | 1;
        let sampled = descriptors.iter().step_by(step);
        let (count, sum) = sampled.fold((0, 0), |(count, sum), d| (count + 1, sum + u64::from(d.length.min(window))));
        sum * descriptors.len() as u64 / count
    }
}

/// Accumulates a [`DescriptorSummary`] packet by packet, without branches.
#[derive(Debug, Clone, Copy)]
pub(super) struct SummaryAccumulator {
    /// Bits that are set in the offset of any packet with bytes.
    offset_bits: u32,
    /// Bits in which two distances differ.
    stride_differences: u32,
    previous_offset: u32,
    stride: u32,
    count: usize,
    min_length: u32,
    max_length: u32,
    total_length: u64,
}

impl Default for SummaryAccumulator {
    fn default() -> SummaryAccumulator {
        SummaryAccumulator {
            offset_bits: 0,
            stride_differences: 0,
            previous_offset: 0,
            stride: 0,
            count: 0,
            min_length: u32::MAX,
            max_length: 0,
            total_length: 0,
        }
    }
}

impl SummaryAccumulator {
    #[inline]
    pub fn add(&mut self, d: &Descriptor) {
        let distance = d.offset.wrapping_sub(self.previous_offset);
        self.stride = if self.count == 1 { distance } else { self.stride };
        self.stride_differences |= if self.count > 0 { distance ^ self.stride } else { 0 };
        self.previous_offset = d.offset;
        self.count += 1;
        self.offset_bits |= if d.length > 0 { d.offset } else { 0 };
        self.min_length = self.min_length.min(d.length);
        self.max_length = self.max_length.max(d.length);
        self.total_length += u64::from(d.length);
    }

    /// The summary of the descriptors added, which are all of these.
    pub fn finish(self, descriptors: &[Descriptor]) -> DescriptorSummary {
        debug_assert_eq!(self.count, descriptors.len());
        DescriptorSummary {
            is_word_aligned: self.offset_bits.is_multiple_of(4),
            stride: (self.stride_differences == 0).then_some(self.stride),
            min_length: if self.count == 0 { 0 } else { self.min_length },
            max_length: self.max_length,
            total_length: self.total_length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptors(all: &[(u32, u32)]) -> Vec<Descriptor> {
        all.iter().map(|&(offset, length)| Descriptor { offset, length }).collect()
    }

    fn summary(all: &[(u32, u32)]) -> DescriptorSummary {
        DescriptorSummary::of(&descriptors(all))
    }

    #[test]
    fn uniform_packets_are_found() {
        let uniform = summary(&[(8, 60), (72, 60), (136, 60)]);
        let expected = DescriptorSummary {
            is_word_aligned: true,
            stride: Some(64),
            min_length: 60,
            max_length: 60,
            total_length: 180,
        };
        assert_eq!((uniform, uniform.length()), (expected, Some(60)));
        assert_eq!(uniform.of_part(2), Some(summary(&[(72, 60), (136, 60)])));
        assert_eq!(uniform.of_part(1), Some(summary(&[(72, 60)])));
        assert_eq!(uniform.of_part(0), Some(summary(&[])));
        for other in [[(8, 60), (72, 60), (140, 60)], [(8, 60), (76, 60), (140, 60)], [(12, 60), (72, 60), (136, 60)]] {
            assert_eq!(summary(&other).stride, None, "{other:?}");
            assert_eq!(summary(&other).of_part(2), None);
        }
        // Frames in descending order have a stride, modulo 2^32.
        assert_eq!(summary(&[(4096, 60), (2048, 60), (0, 60)]).stride, Some(2048_u32.wrapping_neg()));
    }

    #[test]
    fn lengths_and_alignment_are_found() {
        let mixed = summary(&[(0, 60), (64, 1500), (1564, 0), (3, 0)]);
        assert_eq!((mixed.min_length, mixed.max_length, mixed.total_length), (0, 1500, 1560));
        assert!(mixed.is_word_aligned, "an empty packet may have any offset");
        assert!(!summary(&[(0, 60), (65, 1)]).is_word_aligned);
        assert_eq!((summary(&[]).length(), summary(&[]).stride), (Some(0), Some(0)));
        assert_eq!((summary(&[(5, 7)]).length(), summary(&[(5, 7)]).stride), (Some(7), Some(0)));
    }

    #[test]
    fn the_sum_of_windows_is_exact_for_equal_packets_and_near_for_others() {
        let all: Vec<_> = (0..10_000).map(|i| (i * 100, if i % 3 == 0 { 30 } else { 90 })).collect();
        let (packets, summary) = (descriptors(&all), summary(&all));
        assert_eq!(summary.window_bytes(&packets, 20), 200_000);
        assert_eq!(summary.window_bytes(&packets, 90), summary.total_length);
        let exact = 3334 * 30 + 6666 * 60;
        assert!(summary.window_bytes(&packets, 60).abs_diff(exact) < exact / 20);
        let alternating: Vec<_> = (0..2048).map(|i| (i * 100, if i % 2 == 0 { 30 } else { 90 })).collect();
        let estimate = DescriptorSummary::of(&descriptors(&alternating)).window_bytes(&descriptors(&alternating), 60);
        assert!(estimate.abs_diff(2048 * 45) < 2048 * 3, "{estimate}");
    }
}
