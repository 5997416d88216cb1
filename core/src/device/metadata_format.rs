//! Formats in which metadata travels to a kernel: a column for each field that the kernel reads, of
//! four bytes per packet or fewer where the values allow it (`docs/reference/abi.md`, "Metadata
//! formats").

use rayon::prelude::*;

use super::descriptor_format::GROUP_PACKETS;
use super::host_threads::{HostThreads, PART_PACKETS};
use crate::packet::{Metadata, MetadataFields, MetadataSummary};

/// How a kernel finds a field of a packet. The numbers are those of [`MetadataColumn`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ColumnFormat {
    /// A table of values: a word each, two for nanoseconds.
    Table = 0,
    /// A table of the lowest value among each [`GROUP_PACKETS`] packets, and one of the distances
    /// from it, half as wide as values.
    Grouped = 1,
    /// No table: all packets have the same value.
    Uniform = 2,
    /// No table: the value is the packet's captured length.
    CapturedLength = 3,
}

/// How a kernel finds a field, as it reads it: five words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct MetadataColumn {
    /// The number of a [`ColumnFormat`].
    pub format: u32,
    /// Where the table of values, or of lowest values, begins among all tables, in words.
    pub table: u32,
    /// Where the table of distances begins, in words.
    pub distances: u32,
    /// The value of all packets, low word.
    pub low: u32,
    /// The value of all packets, high word.
    pub high: u32,
}

impl MetadataColumn {
    fn uniform(value: u64) -> MetadataColumn {
        let (low, high) = (value as u32, (value >> 32) as u32);
        MetadataColumn { format: ColumnFormat::Uniform as u32, low, high, ..MetadataColumn::default() }
    }
}

/// What a kernel needs to find metadata, as it reads it: four columns. Those of fields that it does
/// not read are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct MetadataRule {
    /// Lengths on the wire.
    pub wire_length: MetadataColumn,
    /// Ingress ports.
    pub port: MetadataColumn,
    /// Receive times in nanoseconds.
    pub time: MetadataColumn,
    /// Receive times in milliseconds.
    pub time_ms: MetadataColumn,
}

/// Metadata that was written for a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WrittenMetadata {
    /// How the kernel finds it.
    pub rule: MetadataRule,
    /// Size of the tables in bytes, a multiple of 4; 0 if there are none.
    pub size: usize,
}

/// Upper bound on the size in bytes of the tables of `packets` packets.
pub(super) fn capacity(fields: MetadataFields, summary: MetadataSummary, packets: usize) -> usize {
    let varying = summary.varying;
    let words = usize::from(fields.wire_length && varying.wire_length && summary.varies_from_captured_length)
        + usize::from(fields.port && varying.port)
        + 2 * usize::from(fields.time && varying.time)
        + usize::from(fields.time_ms && varying.time_ms);
    words * packets * 4
}

/// Writes the fields of `packets` packets, at least one, to the start of a buffer of [`capacity`]
/// bytes, each in the most compact format. `metadata` returns that of a packet of the chunk.
pub(super) fn write(
    fields: MetadataFields,
    summary: MetadataSummary,
    packets: usize,
    metadata: impl Fn(usize) -> Metadata + Sync,
    threads: &HostThreads,
    to: &mut [u8],
) -> WrittenMetadata {
    let (varying, mut rule) = (summary.varying, MetadataRule::default());
    let mut writer = TableWriter { packets, threads, to, size: 0 };
    if fields.wire_length {
        rule.wire_length = match summary.varies_from_captured_length {
            false => MetadataColumn { format: ColumnFormat::CapturedLength as u32, ..MetadataColumn::default() },
            true => writer.column::<4, 2>(varying.wire_length, |packet| metadata(packet).wire_length.into()),
        };
    }
    if fields.port {
        rule.port = writer.column::<4, 2>(varying.port, |packet| metadata(packet).port.into());
    }
    if fields.time {
        rule.time = writer.column::<8, 4>(varying.time, |packet| metadata(packet).time_ns());
    }
    if fields.time_ms {
        rule.time_ms = writer.column::<4, 2>(varying.time_ms, |packet| metadata(packet).time_ms.into());
    }
    WrittenMetadata { rule, size: writer.size }
}

/// Writes tables one behind the other.
struct TableWriter<'a> {
    packets: usize,
    threads: &'a HostThreads,
    to: &'a mut [u8],
    /// Size in bytes of the tables so far.
    size: usize,
}

impl TableWriter<'_> {
    /// Writes the tables of a field whose values have `VALUE` bytes, and distances `DISTANCE`.
    fn column<const VALUE: usize, const DISTANCE: usize>(
        &mut self,
        is_varying: bool,
        value: impl Fn(usize) -> u64 + Sync,
    ) -> MetadataColumn {
        if !is_varying {
            return MetadataColumn::uniform(value(0));
        }
        let (packets, parts) = (self.packets, self.packets / PART_PACKETS);
        let (bases_size, table_size) = (packets.div_ceil(GROUP_PACKETS) * VALUE, packets * VALUE);
        let grouped_size = bases_size + (packets * DISTANCE).next_multiple_of(4);
        let start = self.size;
        let column = MetadataColumn { table: (start / 4) as u32, ..MetadataColumn::default() };
        let part = |number: usize| number * PART_PACKETS..packets.min((number + 1) * PART_PACKETS);
        let (bases, distances) = self.to[start..start + table_size].split_at_mut(bases_size.min(table_size));
        let fits = grouped_size < table_size
            && self.threads.run(parts, |has_threads| {
                let distances = &mut distances[..packets * DISTANCE];
                if !has_threads {
                    return write_groups::<VALUE, DISTANCE>(0..packets, &value, bases, distances);
                }
                let bases = bases.par_chunks_mut(PART_PACKETS / GROUP_PACKETS * VALUE);
                let parts = bases.zip(distances.par_chunks_mut(PART_PACKETS * DISTANCE)).enumerate();
                parts.all(|(number, (bases, distances))| {
                    write_groups::<VALUE, DISTANCE>(part(number), &value, bases, distances)
                })
            });
        if fits {
            self.size += grouped_size;
            let distances = ((start + bases_size) / 4) as u32;
            return MetadataColumn { format: ColumnFormat::Grouped as u32, distances, ..column };
        }
        let table = &mut self.to[start..start + table_size];
        self.threads.run(parts, |has_threads| {
            if !has_threads {
                return write_table::<VALUE>(0..packets, &value, table);
            }
            let parts = table.par_chunks_mut(PART_PACKETS * VALUE).enumerate();
            parts.for_each(|(number, table)| write_table::<VALUE>(part(number), &value, table));
        });
        self.size += table_size;
        column
    }
}

/// The low bytes of a word, in the order in which kernels read them.
fn low_bytes<const N: usize>(value: u64) -> [u8; N] {
    std::array::from_fn(|index| (value >> (8 * index)) as u8)
}

fn write_table<const VALUE: usize>(packets: std::ops::Range<usize>, value: impl Fn(usize) -> u64, to: &mut [u8]) {
    for (to, packet) in to.as_chunks_mut::<VALUE>().0.iter_mut().zip(packets) {
        *to = low_bytes(value(packet));
    }
}

/// Writes the lowest values and the distances of whole groups, the last of which may be shorter.
/// Returns whether every distance fits.
fn write_groups<const VALUE: usize, const DISTANCE: usize>(
    packets: std::ops::Range<usize>,
    value: impl Fn(usize) -> u64,
    bases: &mut [u8],
    distances: &mut [u8],
) -> bool {
    let groups = packets.clone().step_by(GROUP_PACKETS);
    let distances = distances.as_chunks_mut::<DISTANCE>().0.chunks_mut(GROUP_PACKETS);
    for ((first, base), distances) in groups.zip(bases.as_chunks_mut::<VALUE>().0).zip(distances) {
        let group = first..packets.end.min(first + GROUP_PACKETS);
        let lowest = group.clone().fold(u64::MAX, |lowest, packet| lowest.min(value(packet)));
        *base = low_bytes(lowest);
        let mut excess = 0;
        for (to, packet) in distances.iter_mut().zip(group) {
            let distance = value(packet) - lowest;
            excess |= distance >> (8 * DISTANCE);
            *to = low_bytes(distance);
        }
        // Values too far apart often are so from the first group on.
        if excess != 0 {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::testing::Random;

    const ALL: MetadataFields = MetadataFields { wire_length: true, port: true, time: true, time_ms: true };
    const TIME: MetadataFields = MetadataFields { wire_length: false, port: false, time: true, time_ms: false };

    /// What a kernel makes of a column (`docs/reference/abi.md`).
    fn read(column: &MetadataColumn, tables: &[u8], packet: usize, words_per_value: usize, length: u32) -> u64 {
        let word = |at: usize| u64::from(u32::from_le_bytes(tables[at * 4..][..4].try_into().unwrap()));
        let value = |at: usize| match words_per_value {
            1 => word(at),
            _ => word(at) + (word(at + 1) << 32),
        };
        match column.format {
            0 => value(column.table as usize + packet * words_per_value),
            1 => {
                let base = value(column.table as usize + packet / 32 * words_per_value);
                let distances = column.distances as usize;
                base + match words_per_value {
                    1 => word(distances + packet / 2) >> (packet % 2 * 16) & 0xffff,
                    _ => word(distances + packet),
                }
            }
            2 => u64::from(column.low) + (u64::from(column.high) << 32),
            3 => u64::from(length),
            format => panic!("no format {format}"),
        }
    }

    /// Writes with one and with several threads, and reads every packet.
    fn check(fields: MetadataFields, all: &[Metadata], lengths: &[u32]) -> WrittenMetadata {
        let summary = MetadataSummary::of(all.iter().copied().zip(lengths.iter().copied()));
        let write = |threads| {
            let mut tables = vec![0xa5; capacity(fields, summary, all.len())];
            let threads = HostThreads::new(NonZeroUsize::new(threads));
            let written = write(fields, summary, all.len(), |packet| all[packet], &threads, &mut tables);
            assert!(written.size <= tables.len() && written.size.is_multiple_of(4));
            tables.truncate(written.size);
            for (packet, (metadata, &length)) in all.iter().zip(lengths).enumerate() {
                let rule = &written.rule;
                for (is_read, column, words, expected) in [
                    (fields.wire_length, &rule.wire_length, 1, u64::from(metadata.wire_length)),
                    (fields.port, &rule.port, 1, u64::from(metadata.port)),
                    (fields.time, &rule.time, 2, metadata.time_ns()),
                    (fields.time_ms, &rule.time_ms, 1, u64::from(metadata.time_ms)),
                ] {
                    let value = || read(column, &tables, packet, words, length);
                    assert!(!is_read || value() == expected, "packet {packet}: {} for {expected}", value());
                }
            }
            written
        };
        let written = write(1);
        if all.len() > 2 * PART_PACKETS {
            assert_eq!(write(3), written);
        }
        written
    }

    fn check_times(times: impl IntoIterator<Item = u64>) -> WrittenMetadata {
        let all: Vec<_> = times.into_iter().map(|time| Metadata::new(60, 0, time)).collect();
        check(TIME, &all, &vec![60; all.len()])
    }

    fn formats(rule: &MetadataRule) -> [u32; 4] {
        [&rule.wire_length, &rule.port, &rule.time, &rule.time_ms].map(|column| column.format)
    }

    #[test]
    fn fields_that_are_equal_or_not_read_take_no_bytes() {
        for packets in [1, 33] {
            let all = vec![Metadata::new(1500, 7, u64::MAX - 5); packets];
            let written = check(ALL, &all, &vec![60; packets]);
            assert_eq!((written.size, formats(&written.rule)), (0, [2; 4]));
        }
        let rising: Vec<_> = (0..100).map(|i| Metadata::new(60 + i, i, u64::from(i) << 21)).collect();
        let lengths: Vec<u32> = rising.iter().map(|metadata| metadata.wire_length).collect();
        let port = MetadataFields { port: true, ..MetadataFields::default() };
        assert_eq!(check(port, &rising, &lengths).size, 4 * 4 + 100 * 2);
        let length = MetadataFields { wire_length: true, ..MetadataFields::default() };
        let captured = check(length, &rising, &lengths);
        assert_eq!((captured.size, captured.rule.wire_length.format), (0, ColumnFormat::CapturedLength as u32));
        let truncated = check(length, &rising, &[60; 100]);
        assert_eq!((truncated.size, truncated.rule.wire_length.format), (4 * 4 + 100 * 2, 1));
    }

    #[test]
    fn times_that_are_near_each_other_take_a_word() {
        let grouped = |packets: usize| packets.div_ceil(32) * 8 + packets * 4;
        for packets in [3_usize, 31, 32, 33, 1000, 20_011] {
            let rising = check_times((0..packets as u64).map(|i| 1_700_000_000_000_000_000 + i * 100_000_000));
            assert_eq!((rising.size, rising.rule.time.format), (grouped(packets), 1));
        }
        // Across a multiple of 2^32, falling, and up to the last time.
        let start = (5 << 32) - 20;
        assert_eq!(check_times(start..start + 40).size, grouped(40));
        assert_eq!(check_times((start..start + 40).rev()).size, grouped(40));
        assert_eq!(check_times(u64::MAX - 39..=u64::MAX).size, grouped(40));
        // The largest distance that fits, and the smallest that does not.
        let apart = |distance| check_times((0..40).map(|i| if i == 17 { distance } else { 0 })).rule.time.format;
        assert_eq!((apart(u64::from(u32::MAX)), apart(1 << 32), apart(u64::MAX)), (1, 0, 0));
        // Two packets: groups would not be smaller.
        assert_eq!((check_times([1, 2]).size, check_times([1, 2]).rule.time.format), (16, 0));
    }

    #[test]
    fn one_packet_far_off_makes_the_column_a_table() {
        for at in [0, 8_191, 8_192, 20_000] {
            let all: Vec<_> =
                (0..20_002).map(|i| Metadata::new(if i == at { 70_000 } else { 60 }, i as u32 % 3, i)).collect();
            let written = check(ALL, &all, &vec![1; all.len()]);
            assert_eq!(formats(&written.rule), [0, 1, 1, 2]);
        }
    }

    #[test]
    fn random_metadata_is_read_as_it_was_written() {
        let mut random = Random(11);
        for round in 0..300 {
            let packets = 1 + random.below(if round % 50 == 0 { 40_000 } else { 200 }) as usize;
            // Bits of each field.
            let bits = [0; 5].map(|_: u32| random.below(33));
            let (mut all, mut lengths) = (Vec::new(), Vec::new());
            for _ in 0..packets {
                let [wire_length, port, time_low, time_high, time_ms] = bits.map(|bits| random.below(1 << bits) as u32);
                // Consistent with the nanoseconds or not.
                all.push(Metadata { wire_length, port, time_low, time_high, time_ms });
                lengths.push(if round % 3 == 0 { wire_length } else { random.below(1 << 16) as u32 });
            }
            let fields = random.below(15) + 1;
            let [wire_length, port, time, time_ms] = [1, 2, 4, 8].map(|bit| fields & bit > 0);
            check(MetadataFields { wire_length, port, time, time_ms }, &all, &lengths);
        }
    }
}
