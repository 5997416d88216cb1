//! Formats in which descriptors travel to a kernel, more compact than a table of two words each
//! (`docs/reference/abi.md`, "Descriptor formats").

#![allow(unsafe_code)]

use super::chunk::{AccessNeeds, Chunk, PacketLayout};
use crate::packet::{Batch, Descriptor, gather};

/// Packets that share a base offset in [`DescriptorFormat::Grouped`]: a warp.
pub const GROUP_PACKETS: usize = 32;

/// How a kernel finds a packet's offset and length. The numbers are those of [`DescriptorRule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum DescriptorFormat {
    /// A table of offset and length, a word each.
    Table = 0,
    /// A word per [`GROUP_PACKETS`] packets, the lowest offset among them in units of 4 bytes; then
    /// a word per packet: in its low half the distance from that offset, in units of 4 bytes, and
    /// in its high half the length in bytes.
    Grouped = 1,
    /// A table of 16-bit lengths; packets start at equal distances.
    Lengths = 2,
    /// No table: packets start at equal distances, and have equal lengths.
    Uniform = 3,
}

/// What a kernel needs to find descriptors, as it reads it: four words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct DescriptorRule {
    /// The number of a [`DescriptorFormat`].
    pub format: u32,
    /// Offset of packet 0 in bytes, if packets start at equal distances.
    pub first: u32,
    /// Distance from packet to packet in bytes, modulo 2^32, if it is the same for all; for
    /// [`DescriptorFormat::Grouped`], the number of groups.
    pub stride: u32,
    /// Length of each packet in bytes, if it is the same for all.
    pub length: u32,
}

impl DescriptorRule {
    /// The rule for a table of offsets and lengths.
    pub const TABLE: DescriptorRule =
        DescriptorRule { format: DescriptorFormat::Table as u32, first: 0, stride: 0, length: 0 };

    /// The rule for tables in these groups.
    fn grouped(packets: usize) -> DescriptorRule {
        let groups = packets.div_ceil(GROUP_PACKETS) as u32;
        DescriptorRule { format: DescriptorFormat::Grouped as u32, stride: groups, ..DescriptorRule::TABLE }
    }

    /// The rule for packets at equal distances, with a table of their lengths if they have no
    /// common one.
    fn strided(first: u32, stride: u32, length: Option<u32>) -> DescriptorRule {
        let format = if length.is_some() { DescriptorFormat::Uniform } else { DescriptorFormat::Lengths };
        DescriptorRule { format: format as u32, first, stride, length: length.unwrap_or(0) }
    }

    /// Size in bytes of the tables of `packets` packets.
    pub fn table_size(&self, packets: usize) -> usize {
        match self.format {
            format if format == DescriptorFormat::Uniform as u32 => 0,
            format if format == DescriptorFormat::Lengths as u32 => packets * 2,
            format if format == DescriptorFormat::Grouped as u32 => (packets.div_ceil(GROUP_PACKETS) + packets) * 4,
            _ => packets * size_of::<Descriptor>(),
        }
    }

    /// The most compact rule for the packets of a chunk. Offsets count from where those of the
    /// batch do, or from the start of a packed or row layout. If it is
    /// [`DescriptorFormat::Grouped`], some packets may still be too far apart for it
    /// ([`write_grouped`]).
    pub(super) fn of_chunk(batch: &Batch, chunk: &Chunk, layout: PacketLayout, needs: AccessNeeds) -> DescriptorRule {
        let summary = batch.summary();
        let (length, has_short_lengths) = (summary.length(), summary.max_length <= u32::from(u16::MAX));
        let room = needs.room_bytes() as u32;
        let strided = |first, stride| match length.is_some() || has_short_lengths {
            true => DescriptorRule::strided(first, stride, length),
            false => DescriptorRule::TABLE,
        };
        match (layout, length, summary.stride) {
            (PacketLayout::NoAccess, ..) => strided(0, 0),
            (PacketLayout::Rows, ..) => strided(0, gather::stride(needs.window) as u32),
            (PacketLayout::Packed, Some(length), _) => strided(room, (needs.copied_len(length) + 2 * room + 3) & !3),
            (PacketLayout::Packed, None, _) => DescriptorRule::TABLE,
            // An empty packet may lie outside the chunk, and its offset has to be replaced, unless
            // the kernel accesses all of the batch's memory.
            (PacketLayout::InPlace | PacketLayout::Copied, _, Some(stride))
                if summary.min_length > 0
                    || layout == PacketLayout::InPlace && chunk.bytes == (0..batch.span().len() as u64) =>
            {
                let first = batch.descriptors()[chunk.packets.clone()].first().map_or(0, |first| first.offset);
                strided(first, stride)
            }
            _ if has_short_lengths && summary.is_word_aligned => DescriptorRule::grouped(chunk.packets.len()),
            _ => DescriptorRule::TABLE,
        }
    }
}

/// Writes the low halves of lengths, which have no more bits.
pub(super) fn write_lengths(descriptors: &[Descriptor], to: &mut [u8]) {
    for (to, d) in to.as_chunks_mut::<2>().0.iter_mut().zip(descriptors) {
        *to = (d.length as u16).to_le_bytes();
    }
}

/// Writes offsets, which count from `origin` on, and lengths. Empty packets, which may lie
/// anywhere, get the offset `empty`.
pub(super) fn write_table(descriptors: &[Descriptor], empty: u32, origin: u32, to: &mut [u8]) {
    for (to, d) in to.as_chunks_mut::<8>().0.iter_mut().zip(descriptors) {
        let offset = (if d.length > 0 { d.offset } else { empty }).wrapping_sub(origin);
        *to = (u64::from(offset) | u64::from(d.length) << 32).to_le_bytes();
    }
}

/// The order of the packets in memory, as far as [`write_grouped`] depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketOrder {
    /// No packet is empty, and each lies behind the one before.
    Ascending,
    /// Packets lie in any order. Empty ones get the offset of their group's lowest, or this one if
    /// the group has no other.
    Any {
        /// The offset of a group of empty packets.
        empty: u32,
    },
}

impl PacketOrder {
    /// The order of a batch's packets; `empty` is an offset at which kernels may read.
    pub fn of_batch(batch: &Batch, empty: u32) -> PacketOrder {
        match !batch.is_scattered() && batch.summary().min_length > 0 {
            true => PacketOrder::Ascending,
            false => PacketOrder::Any { empty },
        }
    }
}

/// Writes the base offsets, which count from `origin` on, and the words of whole groups, the last
/// of which may be shorter. Returns whether all packets of each group are close enough together.
/// Offsets are multiples of 4, except those of empty packets.
pub(super) fn write_grouped(
    descriptors: &[Descriptor],
    order: PacketOrder,
    origin: u32,
    bases: &mut [u8],
    words: &mut [u8],
) -> bool {
    let (bases, words) = (bases.as_chunks_mut::<4>().0, words.as_chunks_mut::<4>().0);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature.
        return unsafe { write_groups_avx2(descriptors, order, origin, bases, words) };
    }
    write_groups(descriptors, order, origin, bases, words)
}

/// [`write_groups`] compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn write_groups_avx2(
    descriptors: &[Descriptor],
    order: PacketOrder,
    origin: u32,
    bases: &mut [[u8; 4]],
    words: &mut [[u8; 4]],
) -> bool {
    write_groups(descriptors, order, origin, bases, words)
}

#[inline(always)]
fn write_groups(
    descriptors: &[Descriptor],
    order: PacketOrder,
    origin: u32,
    bases: &mut [[u8; 4]],
    words: &mut [[u8; 4]],
) -> bool {
    let mut excess = 0;
    let mut write_words = |group: &[Descriptor], base: u32, words: &mut [[u8; 4]], has_empty: bool| {
        for (word, d) in words.iter_mut().zip(group) {
            let distance = d.offset.wrapping_sub(base) / 4;
            let distance = if has_empty && d.length == 0 { 0 } else { distance };
            excess |= distance >> 16;
            *word = (distance & 0xffff | d.length << 16).to_le_bytes();
        }
    };
    let groups = descriptors.chunks(GROUP_PACKETS).zip(bases).zip(words.chunks_mut(GROUP_PACKETS));
    match order {
        PacketOrder::Ascending => {
            for ((group, base), words) in groups {
                *base = (group[0].offset.wrapping_sub(origin) / 4).to_le_bytes();
                write_words(group, group[0].offset, words, false);
            }
        }
        PacketOrder::Any { empty } => {
            for ((group, base), words) in groups {
                let (mut lowest, mut has_empty) = (u32::MAX, false);
                for d in group {
                    lowest = lowest.min(if d.length > 0 { d.offset } else { u32::MAX });
                    has_empty |= d.length == 0;
                }
                lowest = if lowest == u32::MAX { empty } else { lowest };
                *base = (lowest.wrapping_sub(origin) / 4).to_le_bytes();
                write_words(group, lowest, words, has_empty);
            }
        }
    }
    excess == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Arena, BatchCutter, ResizeRoom};

    const WHOLE: AccessNeeds = AccessNeeds { window: u32::MAX, room: false };

    fn batch(descriptors: &[(u32, u32)]) -> Batch {
        let descriptors = descriptors.iter().map(|&(offset, length)| Descriptor { offset, length }).collect();
        BatchCutter::new(Arena::new(1 << 20).unwrap(), None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()
    }

    fn rule(batch: &Batch, layout: PacketLayout, needs: AccessNeeds) -> DescriptorRule {
        DescriptorRule::of_chunk(batch, &Chunk { packets: 1..batch.len(), bytes: 0..1 << 20 }, layout, needs)
    }

    #[test]
    fn the_most_compact_rule_is_chosen() {
        let window = AccessNeeds { window: 54, room: false };
        let uniform = batch(&[(0, 60), (64, 60), (128, 60), (192, 60)]);
        let strided = |first, stride, length| DescriptorRule::strided(first, stride, length);
        assert_eq!(rule(&uniform, PacketLayout::Copied, WHOLE), strided(64, 64, Some(60)));
        assert_eq!(rule(&uniform, PacketLayout::Rows, window), strided(0, 56, Some(60)));
        assert_eq!(
            rule(&uniform, PacketLayout::Packed, AccessNeeds { room: true, ..WHOLE }),
            strided(128, 316, Some(60))
        );
        assert_eq!(rule(&uniform, PacketLayout::NoAccess, window), strided(0, 0, Some(60)));
        let slots = batch(&[(0, 60), (2112, 1500), (4224, 64)]);
        assert_eq!(rule(&slots, PacketLayout::InPlace, WHOLE), strided(2112, 2112, None));
        assert_eq!(rule(&slots, PacketLayout::Packed, WHOLE), DescriptorRule::TABLE);
        let irregular = batch(&[(0, 60), (64, 60), (132, 60), (200, 70)]);
        let grouped = rule(&irregular, PacketLayout::Copied, WHOLE);
        assert_eq!((grouped, grouped.table_size(3)), (DescriptorRule::grouped(3), 16));
        assert_eq!(rule(&irregular, PacketLayout::Rows, window), strided(0, 56, None));
        // An empty packet in slots: its place may not be copied.
        let empty = batch(&[(0, 60), (2112, 0), (4224, 0)]);
        assert_eq!(rule(&empty, PacketLayout::InPlace, WHOLE), strided(2112, 2112, None));
        assert_eq!(rule(&empty, PacketLayout::Copied, WHOLE), DescriptorRule::grouped(2));
        // Too long for 16 bits, or not aligned.
        assert_eq!(rule(&batch(&[(0, 60), (64, 70_000)]), PacketLayout::InPlace, WHOLE), DescriptorRule::TABLE);
        assert_eq!(rule(&batch(&[(0, 60), (65, 60), (200, 60)]), PacketLayout::Copied, WHOLE), DescriptorRule::TABLE);
    }

    /// What a kernel makes of a grouped table (`docs/reference/abi.md`).
    fn read_grouped(bases: &[u8], words: &[u8], packet: usize) -> (u32, u32) {
        let word = |from: &[u8], at: usize| u32::from_le_bytes(from[at * 4..][..4].try_into().unwrap());
        let (base, word) = (word(bases, packet / GROUP_PACKETS), word(words, packet));
        ((base + (word & 0xffff)) * 4, word >> 16)
    }

    #[test]
    fn grouped_tables_hold_every_offset_and_length() {
        let (mut random, mut ascending) = (crate::testing::Random(3), 0);
        for packets in [1_usize, 31, 32, 33, 1000] {
            let mut at = 4 * random.below(1 << 20) as u32;
            let all: Vec<Descriptor> = (0..packets)
                .map(|_| {
                    let d = Descriptor { offset: at, length: random.below(1 << 12) as u32 };
                    at += (d.length + 3) & !3;
                    // An empty packet may have any offset.
                    if d.length == 0 { Descriptor { offset: random.below(1 << 32) as u32, length: 0 } } else { d }
                })
                .collect();
            for reversed in [false, true] {
                let all: Vec<_> = if reversed { all.iter().rev().copied().collect() } else { all.clone() };
                let (mut bases, mut words) = (vec![0; packets.div_ceil(32) * 4], vec![0; packets * 4]);
                assert!(write_grouped(&all, PacketOrder::Any { empty: 0 }, 0, &mut bases, &mut words));
                let ascends = !reversed && all.iter().all(|d| d.length > 0);
                if ascends {
                    let (mut same_bases, mut same_words) = (bases.clone(), vec![0; words.len()]);
                    assert!(write_grouped(&all, PacketOrder::Ascending, 0, &mut same_bases, &mut same_words));
                    assert_eq!((&same_bases, &same_words), (&bases, &words));
                    ascending += 1;
                }
                for (index, d) in all.iter().enumerate().filter(|(_, d)| d.length > 0) {
                    assert_eq!(read_grouped(&bases, &words, index), (d.offset, d.length));
                }
            }
        }
        assert!(ascending > 0);
        let empty = [(77, 0), (1, 0)].map(|(offset, length)| Descriptor { offset, length });
        let (mut bases, mut words) = ([0xff; 4], [0xff; 8]);
        assert!(write_grouped(&empty, PacketOrder::Any { empty: 4096 }, 0, &mut bases, &mut words));
        assert_eq!([0, 1].map(|packet| read_grouped(&bases, &words, packet)), [(4096, 0); 2]);
        let far = [(0, 60), (4 * 0xffff, 60), (4 * 0x1_0000, 60)].map(|(offset, length)| Descriptor { offset, length });
        assert!(write_grouped(&far[..2], PacketOrder::Ascending, 0, &mut [0; 4], &mut [0; 8]));
        assert!(!write_grouped(&far, PacketOrder::Ascending, 0, &mut [0; 4], &mut [0; 12]));
    }
}
