//! Memory that pointers refer to: the packet with its surroundings, private variables, and maps.

use std::hash::{Hash, Hasher};

use super::InterpError;
use super::value::{Pointer, Scalar, Space, Value};
use crate::packet::{Metadata, READABLE_PAST_END, RESIZE_ROOM};

/// Memory of one packet's invocation.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The packet with [`RESIZE_ROOM`] bytes on either side and the readable words behind, as an
    /// arena of its own.
    words: Vec<u32>,
    /// Offset and length, in bytes.
    pub(super) descriptor: [u32; 2],
    metadata: [u32; 5],
    /// The words of the filter's maps, which persist from packet to packet.
    pub(super) maps: Vec<Vec<u32>>,
    /// Private globals, then the locals of each active call.
    pub(super) slots: Vec<Scalar>,
}

/// Fills the arena around a packet: not zero, so that reading it would show.
const FILLER: u32 = 0xa5a5_a5a5;

impl Memory {
    pub(super) fn with_maps(maps: Vec<Vec<u32>>) -> Memory {
        Memory { maps, ..Memory::default() }
    }

    /// Lays out a packet that starts `misalignment` bytes (0 to 3) past a word boundary, and resets
    /// the private globals.
    pub(super) fn reset(&mut self, packet: &[u8], misalignment: usize, metadata: &Metadata, privates: &[Scalar]) {
        let offset = RESIZE_ROOM as usize + misalignment;
        let bytes = offset + packet.len() + RESIZE_ROOM as usize + READABLE_PAST_END;
        self.words.clear();
        self.words.resize(bytes.div_ceil(4), FILLER);
        for (at, byte) in (offset..).zip(packet) {
            let (word, shift) = (&mut self.words[at / 4], at % 4 * 8);
            *word = *word & !(0xff << shift) | u32::from(*byte) << shift;
        }
        self.descriptor = [offset as u32, packet.len() as u32];
        let m = metadata;
        self.metadata = [m.wire_length, m.port, m.time_low, m.time_high, m.time_ms];
        self.slots.clear();
        self.slots.extend_from_slice(privates);
    }

    /// Hashes everything but the maps.
    pub(super) fn hash(&self, hasher: &mut impl Hasher) {
        (&self.words, self.descriptor).hash(hasher);
        format!("{:?}", self.slots).hash(hasher);
    }

    /// The byte at `offset` of the packet's arena.
    pub(super) fn byte(&self, offset: usize) -> u8 {
        (self.words[offset / 4] >> (offset % 4 * 8)) as u8
    }

    /// The scalar that a pointer refers to.
    pub(super) fn scalar(&self, Pointer { space, slot }: Pointer) -> Result<Scalar, InterpError> {
        let word = |words: &[u32]| words.get(slot).copied().map(Scalar::U32);
        match space {
            Space::Memory => self.slots.get(slot).copied(),
            Space::Arena => word(&self.words),
            Space::Descriptor => word(&self.descriptor),
            Space::Metadata => word(&self.metadata),
            Space::Map(map) => self.maps.get(map).and_then(|words| word(words)),
        }
        .ok_or_else(|| outside(space, slot))
    }

    /// The `count` scalars from a pointer on.
    pub(super) fn composite(&self, pointer: Pointer, count: usize) -> Result<Value, InterpError> {
        let each = (0..count).map(|i| self.scalar(Pointer { slot: pointer.slot + i, ..pointer }));
        Ok(Value::Composite(each.collect::<Result<_, _>>()?))
    }

    pub(super) fn store(&mut self, pointer: Pointer, value: &Value) -> Result<(), InterpError> {
        let Pointer { space, slot } = pointer;
        for (slot, &scalar) in (slot..).zip(value.scalars()?) {
            match space {
                Space::Memory => *self.slots.get_mut(slot).ok_or_else(|| outside(space, slot))? = scalar,
                Space::Arena => *self.words.get_mut(slot).ok_or_else(|| outside(space, slot))? = scalar.as_u32()?,
                Space::Descriptor => {
                    *self.descriptor.get_mut(slot).ok_or_else(|| outside(space, slot))? = scalar.as_u32()?;
                }
                Space::Metadata => return Err(InterpError::internal("the metadata is read-only")),
                Space::Map(map) => {
                    let word = self.maps.get_mut(map).and_then(|words| words.get_mut(slot));
                    *word.ok_or_else(|| outside(space, slot))? = scalar.as_u32()?;
                }
            }
        }
        Ok(())
    }
}

fn outside(space: Space, slot: usize) -> InterpError {
    InterpError::internal(format!("slot {slot} is outside of {space:?}"))
}
