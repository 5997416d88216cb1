//! Runs kernels on memory of their own, for test devices: copies packets in, launches the kernel,
//! copies the results back and checks them.

use portcullis_core::packet::{Action, READABLE_PAST_END, RESIZE_ROOM, ResizeRoom};
use portcullis_cpu::vector::interp::{Outcome, Packet};

use crate::synchronous::Execute;

/// Fill byte outside packets.
const FILL: u8 = 0xa5;

/// Offset given to packets without bytes, far outside every arena; the ABI allows any.
const OUT_OF_BOUNDS: usize = 0xffff_fff0;

/// A kernel's inputs and outputs, as in `docs/reference/abi.md`.
#[derive(Debug)]
pub struct Memory {
    /// The packets' bytes, and the padding that may be read past their end.
    pub arena: Vec<u8>,
    /// Two words per packet: offset and length.
    pub descriptors: Vec<u32>,
    /// Five words per packet.
    pub metadata: Vec<u32>,
    /// One byte per packet, initially non-zero.
    pub verdicts: Vec<u8>,
    /// One word per packet.
    pub targets: Vec<u32>,
    /// Words of each of the filter's maps.
    pub maps: Vec<Vec<u32>>,
}

/// Function that runs the kernel over all packets, or returns a description of the failure.
type Launch = Box<dyn FnMut(&mut Memory) -> Result<(), String> + Send>;

/// Executes batches by launching a kernel for each.
pub struct Launcher {
    launch: Launch,
    /// Set if each packet with bytes must start at a multiple of a word.
    pub is_aligned: bool,
    /// Set to place packets without bytes outside the arena: a kernel may read nothing but their
    /// length.
    pub places_empty_packets_out_of_bounds: bool,
}

impl Launcher {
    /// Creates an executor from a function that runs the kernel over all packets, or returns a
    /// description of the failure.
    pub fn new(launch: impl FnMut(&mut Memory) -> Result<(), String> + Send + 'static) -> Launcher {
        Launcher { launch: Box::new(launch), is_aligned: false, places_empty_packets_out_of_bounds: false }
    }
}

impl Execute for Launcher {
    fn execute(
        &mut self,
        packets: &[Packet<'_>],
        room: ResizeRoom,
        maps: &mut [Vec<u32>],
    ) -> Result<Vec<Outcome>, String> {
        // Give each packet separate memory, and keep its offset within a word.
        let margin = if room == ResizeRoom::Both { RESIZE_ROOM as usize } else { 0 };
        let (mut arena, mut offsets, mut owned) = (Vec::new(), Vec::new(), Vec::new());
        for (packet, _) in packets {
            let shift = if self.is_aligned && !packet.is_empty() { 0 } else { packet.as_ptr().addr() % 4 };
            if self.places_empty_packets_out_of_bounds && packet.is_empty() && room == ResizeRoom::None {
                offsets.push((OUT_OF_BOUNDS + shift) as u32);
                continue;
            }
            let offset = (arena.len() + margin).next_multiple_of(4) + shift;
            arena.resize(offset, FILL);
            arena.extend_from_slice(packet);
            owned.push(offset - margin..arena.len() + margin);
            arena.resize(arena.len() + margin, FILL);
            offsets.push(offset as u32);
        }
        arena.resize(arena.len() + READABLE_PAST_END, FILL);

        let places = offsets.iter().zip(packets).flat_map(|(offset, (packet, _))| [*offset, packet.len() as u32]);
        let metadata = packets.iter().flat_map(|(_, m)| [m.wire_length, m.port, m.time_low, m.time_high, m.time_ms]);
        let mut memory = Memory {
            arena,
            descriptors: places.collect(),
            metadata: metadata.collect(),
            verdicts: vec![0xee; packets.len()],
            targets: vec![0; packets.len()],
            maps: maps.iter_mut().map(std::mem::take).collect(),
        };
        (self.launch)(&mut memory)?;
        let Memory { arena: after, descriptors: places, verdicts, targets, maps: words, .. } = memory;
        maps.iter_mut().zip(words).for_each(|(map, words)| *map = words);

        let mut from = 0;
        for range in owned.into_iter().chain(std::iter::once(after.len()..after.len())) {
            if let Some(at) = (from..range.start).find(|&at| after[at] != FILL) {
                return Err(format!("byte {at} of the arena belongs to no packet and was written to"));
            }
            from = range.end;
        }
        let outcome = |(index, &[offset, length]): (usize, &[u32; 2])| {
            if verdicts[index] > Action::Redirect as u8 {
                return Err(format!("packet {index} has the verdict {:#x}", verdicts[index]));
            }
            let bytes = match length {
                0 => Some(&[][..]),
                _ => after.get(offset as usize..).and_then(|bytes| bytes.get(..length as usize)),
            };
            Ok(Outcome {
                verdict: u32::from(verdicts[index]) | targets[index] << 8,
                packet: bytes.ok_or_else(|| format!("packet {index} has left the arena"))?.to_vec(),
                start: offset.wrapping_sub(offsets[index]).cast_signed(),
            })
        };
        places.as_chunks().0.iter().enumerate().map(outcome).collect()
    }
}
