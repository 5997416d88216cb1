//! Packets of a benchmark: a pool of distinct packets, and batches in which they repeat.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use portcullis_core::packet::{
    Arena, ArenaError, Batch, BatchCutter, BatchError, Descriptor, Metadata, READABLE_PAST_END, RESIZE_ROOM, ResizeRoom,
};
use portcullis_core::program::Program;
use portcullis_io::synth::{Generator, Kind, Mix, Size, Spec};

/// Number of distinct packets: too many for branch predictors to learn, few enough for the
/// interpreter to answer each.
pub const POOL: usize = 8192;

/// Minimum number of packets in rotation, so that consecutive small batches differ.
pub const RING: usize = 1 << 16;

/// Minimum number of batches in rotation, if memory suffices: one is prepared while others are in
/// flight.
const BATCHES: usize = 4;

/// Packet sizes: bytes of the Ethernet frame that a filter sees, without check sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packets {
    /// All packets of this size.
    Bytes(u32),
    /// Simple IMIX: 64, 594 and 1518 bytes, 7 : 4 : 1. They are IP packets of 40, 576 and 1500
    /// bytes as Ethernet frames.
    Imix,
}

impl Packets {
    /// Packet sizes of a full benchmark.
    pub const ALL: [Packets; 4] = [Packets::Bytes(64), Packets::Bytes(512), Packets::Bytes(1500), Packets::Imix];
}

impl fmt::Display for Packets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Packets::Bytes(bytes) => write!(f, "{bytes}"),
            Packets::Imix => f.write_str("imix"),
        }
    }
}

/// Error for the name of packets that are not generated.
#[derive(Debug, thiserror::Error)]
#[error("packets are of {} to {} bytes, or `imix`", Size::LIMITS.0, Size::LIMITS.1)]
pub struct UnknownPackets;

impl FromStr for Packets {
    type Err = UnknownPackets;

    fn from_str(text: &str) -> Result<Packets, UnknownPackets> {
        let (least, most) = Size::LIMITS;
        if text == "imix" {
            return Ok(Packets::Imix);
        }
        let bytes = text.parse().ok().filter(|bytes| (least..=most).contains(bytes));
        bytes.map(Packets::Bytes).ok_or(UnknownPackets)
    }
}

/// The distinct packets of a benchmark.
#[derive(Debug)]
pub struct Pool {
    /// Sizes of the packets.
    pub packets: Packets,
    bytes: Vec<Vec<u8>>,
    metadata: Vec<Metadata>,
}

impl Pool {
    /// Generates `count` packets of 10,000 flows, the same in every run: TCP, UDP and ICMP over
    /// IPv4, which fit into the smallest frame.
    pub fn new(packets: Packets, count: usize) -> Pool {
        let mix = Mix::new(&[(Kind::Tcp4, 70), (Kind::Udp4, 25), (Kind::Icmp4, 5)]);
        let size = match packets {
            Packets::Bytes(bytes) => Size::Range(bytes, bytes),
            Packets::Imix => Size::Imix,
        };
        let mix = mix.expect("weights above 0");
        let mut generator = Generator::new(&Spec { packets: count as u64, seed: 7, size, flows: 10_000, mix });
        let mut buffer = vec![0; Generator::MAX_PACKET];
        let mut pool = Pool { packets, bytes: Vec::with_capacity(count), metadata: Vec::with_capacity(count) };
        for _ in 0..count {
            let (length, metadata) = generator.next_packet(&mut buffer);
            pool.bytes.push(buffer[..length].to_vec());
            pool.metadata.push(metadata);
        }
        pool
    }

    /// Returns the pool in reverse order.
    pub fn reversed(&self) -> Pool {
        Pool {
            packets: self.packets,
            bytes: self.bytes.iter().rev().cloned().collect(),
            metadata: self.metadata.iter().rev().copied().collect(),
        }
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the pool is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns a packet; indices wrap around.
    pub fn packet(&self, index: usize) -> &[u8] {
        &self.bytes[index % self.bytes.len()]
    }

    /// Mean packet length, in bytes.
    pub fn mean(&self) -> f64 {
        self.mean_of(|length| length as u64)
    }

    /// Mean of a function of the packet length.
    pub fn mean_of(&self, of: impl Fn(usize) -> u64) -> f64 {
        self.bytes.iter().map(|packet| of(packet.len())).sum::<u64>() as f64 / self.len().max(1) as f64
    }
}

/// Error of [`Ring::lay_out`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// One batch alone exceeds the limit of memory.
    #[error("it would take {gigabytes:.1} GB of memory, and {limit:.1} GB may be taken")]
    TooLarge {
        /// Memory that one batch takes, in GB.
        gigabytes: f64,
        /// Maximum memory, in GB.
        limit: f64,
    },
    /// The memory cannot be allocated.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The packets do not make a batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

/// Batches that are sent in rotation.
#[derive(Debug)]
pub struct Ring {
    /// The batches, each with the number of its first packet.
    pub batches: VecDeque<(usize, Batch)>,
    /// Packets per batch.
    pub batch: usize,
    /// Number of batches when none is in flight.
    pub count: usize,
    /// Whether the filter writes packets, which then have to be restored.
    writes: bool,
}

impl Ring {
    /// Lays out contiguous batches of `batch` packets, about `rotation` packets in all, with
    /// headroom and metadata if the filter needs them. There are at least four batches, or fewer
    /// if memory does not suffice.
    ///
    /// # Errors
    /// One batch needs more than `max_bytes` bytes, or the memory cannot be allocated.
    pub fn lay_out(
        pool: &Pool,
        program: &Program,
        batch: usize,
        rotation: usize,
        max_bytes: u64,
    ) -> Result<Ring, RingError> {
        let facts = program.facts();
        let room = if facts.changes_length { ResizeRoom::Both } else { ResizeRoom::None };
        let margin = if room == ResizeRoom::Both { RESIZE_ROOM as usize } else { 0 };
        let place = |length: usize| (length + 2 * margin).next_multiple_of(4);
        // Bytes of one pass over the pool.
        let cycle: u64 = (0..pool.len()).map(|i| place(pool.packet(i).len()) as u64).sum();
        let bytes = |packets: usize| -> u64 {
            let rest: u64 = (0..packets % pool.len()).map(|i| place(pool.packet(i).len()) as u64).sum();
            // Packet sizes differ along the pool, so a partial pass takes up to one cycle more.
            (packets / pool.len()) as u64 * cycle + rest.min(cycle) + if rest > 0 { cycle } else { 0 }
        };
        let aside = size_of::<Descriptor>() * 2 + if facts.uses_metadata { size_of::<Metadata>() } else { 0 } + 16;
        let taken = |count: usize| bytes(batch * count) + (batch * count * aside) as u64;
        let limit = u64::from(u32::MAX) - READABLE_PAST_END as u64 - 8192;
        let fits = |count: &usize| taken(*count) <= max_bytes && bytes(batch * count) <= limit;
        let wanted = (rotation / batch.max(1)).max(BATCHES);
        let count = [wanted, BATCHES, 2, 1].into_iter().find(fits).ok_or_else(|| RingError::TooLarge {
            gigabytes: taken(1) as f64 / 1e9,
            limit: max_bytes.min(limit) as f64 / 1e9,
        })?;

        let mut arena = Arena::new(bytes(batch * count) as usize + 8)?;
        let (mut at, mut descriptors) = (0, Vec::with_capacity(batch * count));
        for index in 0..batch * count {
            let packet = pool.packet(index);
            let offset = at + margin;
            arena[offset..offset + packet.len()].copy_from_slice(packet);
            descriptors.push(Descriptor { offset: offset as u32, length: packet.len() as u32 });
            at += place(packet.len());
        }
        let mut cutter = BatchCutter::new(arena, None);
        let mut batches = VecDeque::with_capacity(count);
        for (number, descriptors) in descriptors.chunks(batch).enumerate() {
            let first = number * batch;
            let metadata = if facts.uses_metadata {
                (first..first + batch).map(|index| pool.metadata[index % pool.len()]).collect()
            } else {
                Vec::new()
            };
            let batch = cutter.cut_batch(descriptors.to_vec(), metadata, room)?;
            batches.push_back((first, batch));
        }
        Ok(Ring { batches, batch, count, writes: facts.writes.max_bytes() > 0 || facts.changes_length })
    }

    /// Whether batches were lost with a failed device.
    pub fn is_broken(&self) -> bool {
        self.batches.len() != self.count
    }

    /// Restores the packets that a filter has written.
    pub fn restore(&mut self, pool: &Pool) {
        if !self.writes {
            return;
        }
        for (first, batch) in &mut self.batches {
            let original = batch.original().to_vec();
            // The original offsets and lengths are valid, because each packet kept its room.
            batch.resize(original).expect("packets have the room that they came with");
            for index in 0..batch.len() {
                batch.packet_mut(index).copy_from_slice(pool.packet(*first + index));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_conformance::filters;

    fn program(name: &str) -> std::sync::Arc<Program> {
        let case = filters::cases().into_iter().find(|case| case.name == name).unwrap();
        case.compile().unwrap()
    }

    #[test]
    fn packet_lengths_match_their_names() {
        for bytes in [64, 512, 1500] {
            let pool = Pool::new(Packets::Bytes(bytes), 500);
            assert!((0..500).all(|i| pool.packet(i).len() == bytes as usize));
            assert_eq!(pool.mean(), f64::from(bytes));
        }
        // 7 : 4 : 1 of 64, 594 and 1518.
        let mean = Pool::new(Packets::Imix, 20_000).mean();
        assert!((mean / (4342.0 / 12.0) - 1.0).abs() < 0.03, "{mean}");
        for text in ["64", "1500", "imix"] {
            assert_eq!(text.parse::<Packets>().unwrap().to_string(), text);
        }
        for text in ["", "63", "9001", "IMIX", "-64", "64 "] {
            assert!(text.parse::<Packets>().unwrap_err().to_string().contains("64 to 9000 bytes"));
        }
    }

    #[test]
    fn batches_repeat_the_pool_and_are_restored() {
        let pool = Pool::new(Packets::Imix, 100);
        for name in ["port_filter", "mac_swap", "vlan_pop"] {
            let mut ring = Ring::lay_out(&pool, &program(name), 33, RING, 1 << 30).unwrap();
            assert_eq!(ring.count, RING / 33);
            assert!(!ring.is_broken());
            let same = |ring: &Ring| {
                ring.batches.iter().all(|(first, batch)| (0..33).all(|i| batch.packet(i) == pool.packet(first + i)))
            };
            assert!(same(&ring), "{name}");
            if name == "port_filter" {
                continue;
            }
            ring.batches[1].1.packet_mut(3).fill(0xee);
            assert!(!same(&ring));
            if name == "vlan_pop" {
                let mut moved = ring.batches[2].1.descriptors().to_vec();
                moved[0].offset += 4;
                moved[0].length -= 4;
                ring.batches[2].1.resize(moved).unwrap();
            }
            ring.restore(&pool);
            assert!(same(&ring), "{name}");
        }
    }

    #[test]
    fn there_is_a_limit_to_memory() {
        let pool = Pool::new(Packets::Bytes(1500), 100);
        let program = program("port_filter");
        let error = Ring::lay_out(&pool, &program, 10_000_000, RING, 1 << 33).unwrap_err();
        assert!(error.to_string().contains("15.") && error.to_string().contains("4.3 GB"), "{error}");
        assert_eq!(Ring::lay_out(&pool, &program, 100_000, RING, 400_000_000).unwrap().count, 2);
        assert!(Ring::lay_out(&pool, &program, 100_000, RING, 100_000_000).is_err());
    }
}
