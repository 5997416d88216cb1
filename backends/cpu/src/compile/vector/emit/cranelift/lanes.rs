//! Operations on vectors as a whole and on their lanes.

use cranelift_codegen::ir::{self, ConstantData, InstBuilder, MemFlagsData, Value, types as clif};

use super::emitter::{CacheKey, Emitter, LANES};
use crate::compile::errors::Result;
use crate::compile::vector::ir::Node;

/// Index of a byte for [`Emitter::shuffle_bytes`] that is zero.
pub(super) const ZERO: u8 = 0xff;

impl Emitter<'_, '_> {
    /// A constant vector with the same word in all lanes.
    pub(super) fn splat(&mut self, word: u32) -> Value {
        self.constants([word; LANES])
    }

    fn constants(&mut self, words: [u32; LANES]) -> Value {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let constant = self.b.func.dfg.constants.insert(ConstantData::from(&bytes[..]));
        self.b.ins().vconst(clif::I32X4, constant)
    }

    /// Reinterprets a vector as lanes of another size.
    pub(super) fn cast(&mut self, to: ir::Type, value: Value) -> Value {
        let little = MemFlagsData::new().with_endianness(ir::Endianness::Little);
        self.b.ins().bitcast(to, little, value)
    }

    /// Selects four of the eight words of two vectors.
    pub(super) fn shuffle_words(&mut self, first: Value, second: Value, words: [u8; LANES]) -> Value {
        let bytes: Vec<u8> = words.iter().flat_map(|word| (0..4).map(move |byte| 4 * word + byte)).collect();
        let mask = self.b.func.dfg.immediates.push(ConstantData::from(&bytes[..]));
        let (first, second) = (self.cast(clif::I8X16, first), self.cast(clif::I8X16, second));
        let shuffled = self.b.ins().shuffle(first, second, mask);
        self.cast(clif::I32X4, shuffled)
    }

    /// Selects sixteen bytes of a vector by index, or [`ZERO`].
    pub(super) fn shuffle_bytes(&mut self, value: Value, places: [u8; 16]) -> Value {
        let constant = self.b.func.dfg.constants.insert(ConstantData::from(&places[..]));
        let places = self.b.ins().vconst(clif::I8X16, constant);
        let bytes = self.cast(clif::I8X16, value);
        // Both result in zero if the highest bit of an index is set. The portable one costs an
        // instruction more on x86-64.
        let picked = match self.is_x64() {
            true => self.b.ins().x86_pshufb(bytes, places),
            false => self.b.ins().swizzle(bytes, places),
        };
        self.cast(clif::I32X4, picked)
    }

    /// Selects `size` bytes of each lane's word from `at` on, zero-extended; with `turned`, in
    /// reverse order.
    pub(super) fn shuffle_in_lanes(&mut self, value: Value, at: u32, size: u32, turned: bool) -> Value {
        let mut places = [ZERO; 16];
        for (lane, word) in places.chunks_exact_mut(4).enumerate() {
            for byte in 0..size {
                let from = if turned { at + size - 1 - byte } else { at + byte };
                word[byte as usize] = 4 * lane as u8 + from as u8;
            }
        }
        self.shuffle_bytes(value, places)
    }

    pub(super) fn shift_right(&mut self, value: Value, count: u32) -> Value {
        let count = self.b.ins().iconst(clif::I32, i64::from(count));
        self.b.ins().ushr(value, count)
    }

    pub(super) fn shift_left(&mut self, value: Value, count: u32) -> Value {
        let count = self.b.ins().iconst(clif::I32, i64::from(count));
        self.b.ins().ishl(value, count)
    }

    /// Selects `on` in lanes of the mask and `off` in the others.
    pub(super) fn select_lanes(&mut self, mask: Value, on: Value, off: Value) -> Value {
        self.b.ins().bitselect(mask, on, off)
    }

    /// Extracts a node's word in one lane, zero-extended to 64 bits.
    pub(super) fn lane_as_u64(&mut self, node: Node, lane: usize) -> Result<Value> {
        if let Some(&value) = self.cache.get(&CacheKey::Lane64(node, lane)) {
            return Ok(value);
        }
        let value = match self.dag().as_constant(node) {
            Some(constant) => self.b.ins().iconst(clif::I64, i64::from(constant)),
            None => {
                let vector = self.value(node)?;
                let word = self.b.ins().extractlane(vector, lane as u8);
                self.b.ins().uextend(clif::I64, word)
            }
        };
        Ok(self.remember(CacheKey::Lane64(node, lane), value))
    }

    /// Extracts a node's word in one lane.
    pub(super) fn lane_word(&mut self, node: Node, lane: usize) -> Result<Value> {
        Ok(match self.dag().as_constant(node) {
            Some(constant) => self.b.ins().iconst(clif::I32, i64::from(constant)),
            None => {
                let vector = self.value(node)?;
                self.b.ins().extractlane(vector, lane as u8)
            }
        })
    }

    /// Builds a vector lane by lane.
    pub(super) fn each_lane(&mut self, mut make: impl FnMut(&mut Self, usize) -> Result<Value>) -> Result<Value> {
        let first = make(self, 0)?;
        let mut all = self.b.ins().scalar_to_vector(clif::I32X4, first);
        for lane in 1..LANES {
            let word = make(self, lane)?;
            all = self.b.ins().insertlane(all, word, lane as u8);
        }
        Ok(all)
    }

    /// Loads bytes from an address per lane, zero-extended.
    pub(super) fn gather(
        &mut self,
        flags: MemFlagsData,
        size: u32,
        mut address: impl FnMut(&mut Self, usize) -> Result<(Value, i32)>,
    ) -> Result<Value> {
        let (element, vector) = match size {
            1 => (clif::I8, clif::I8X16),
            2 => (clif::I16, clif::I16X8),
            _ => {
                return self.each_lane(|emit, lane| {
                    let (at, displacement) = address(emit, lane)?;
                    Ok(emit.b.ins().load(clif::I32, flags, at, displacement))
                });
            }
        };
        let zero = self.splat(0);
        let mut all = self.cast(vector, zero);
        for lane in 0..LANES {
            let (at, displacement) = address(self, lane)?;
            let part = self.b.ins().load(element, flags, at, displacement);
            all = self.b.ins().insertlane(all, part, (lane as u32 * 4 / size) as u8);
        }
        Ok(self.cast(clif::I32X4, all))
    }

    pub(super) fn is_x64(&self) -> bool {
        self.isa.triple().architecture.to_string() == "x86_64"
    }
}
