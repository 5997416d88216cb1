//! Effects: what is done lane by lane, in the lanes of a mask.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AtomicRmwOp, InstBuilder, MemFlagsData, Value, types as clif};

use super::emitter::{Emit, LANES};
use crate::compile::abi::context_offset;
use crate::compile::errors::Result;
use crate::compile::lowered::constant_memory;
use crate::compile::vector::ir::{Atomic, Effect, Node, Place};

/// Words of an array up to which each is written by an instruction of its own.
const FEW_WORDS: u32 = 16;

/// Memory that is read and written: packets, maps and arrays. All of it is there.
fn memory() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// The lanes of a mask, each as a condition.
#[derive(Clone, Copy)]
enum On {
    All,
    /// In these bits.
    Bits(Value),
}

impl Emit<'_, '_> {
    /// Makes an effect; what it gives, if anything.
    pub(super) fn effect(&mut self, mask: Node, effect: &Effect) -> Result<Option<Value>> {
        let on = match self.dag().as_flag(mask) {
            Some(true) => On::All,
            Some(false) => return Ok(effect.gives().then(|| self.splat(0))),
            None => {
                let mask = self.value(mask)?;
                On::Bits(self.b.ins().vhigh_bits(clif::I32, mask))
            }
        };
        match *effect {
            Effect::LoadPacket { at, size } => {
                let starts = self.packets().starts;
                let value = self.gather(memory(), size, |emit, lane| {
                    let there = emit.place(at, lane)?;
                    Ok((emit.either(on, lane, there, starts[lane]), 0))
                })?;
                return Ok(Some(value));
            }
            Effect::StorePacket { at, size, value } => {
                for lane in 0..LANES {
                    let there = self.place(at, lane)?;
                    let word = self.word(value, lane)?;
                    let to = self.or_nowhere(on, lane, there);
                    match size {
                        1 => self.b.ins().istore8(memory(), word, to, 0),
                        2 => self.b.ins().istore16(memory(), word, to, 0),
                        _ => self.b.ins().store(memory(), word, to, 0),
                    };
                }
            }
            Effect::ClearPacket { at, count } => {
                for lane in 0..LANES {
                    self.clear(on, at, count, lane)?;
                }
            }
            Effect::Map { map, word, atomic } => return self.map(on, map, word, atomic),
            Effect::ArrayLoad { array, index } => return Ok(Some(self.array_load(array, index)?)),
            Effect::ArrayStore { array, index, value } => self.array_store(mask, on, array, index, value)?,
            Effect::ArrayFill { array, value } => self.array_fill(mask, on, array, value)?,
        }
        Ok(None)
    }

    /// Whether a lane is on.
    fn is_on(&mut self, on: On, lane: usize) -> Option<Value> {
        match on {
            On::All => None,
            On::Bits(bits) => Some(self.b.ins().band_imm_u(bits, 1 << lane)),
        }
    }

    fn either(&mut self, on: On, lane: usize, there: Value, else_there: Value) -> Value {
        match self.is_on(on, lane) {
            None => there,
            Some(condition) => self.b.ins().select(condition, there, else_there),
        }
    }

    /// Where a store goes that is to be made in lanes that are on alone.
    fn or_nowhere(&mut self, on: On, lane: usize, there: Value) -> Value {
        let scratch = self.scratch.expect("it is there in filters with effects");
        self.either(on, lane, there, scratch)
    }

    /// A place in a packet that is written to.
    fn place(&mut self, at: Place, lane: usize) -> Result<Value> {
        let mut address = self.packets().starts[lane];
        if let Some(start) = at.start {
            let start = self.word(start, lane)?;
            let start = self.b.ins().sextend(clif::I64, start);
            address = self.b.ins().iadd(address, start);
        }
        let offset = self.wide(at.offset, lane)?;
        Ok(self.b.ins().iadd(address, offset))
    }

    /// Zeros, byte by byte: they are few, and seldom written.
    fn clear(&mut self, on: On, at: Place, count: Node, lane: usize) -> Result<()> {
        let (mut address, count) = (self.place(at, lane)?, self.wide(count, lane)?);
        let none = self.b.ins().iconst(clif::I64, 0);
        let count = self.either(on, lane, count, none);
        let (one, behind) = (self.b.create_block(), self.b.create_block());
        let done = self.b.ins().iconst(clif::I64, 0);
        self.b.ins().brif(count, one, &[done.into()], behind, &[]);

        let done = self.b.append_block_param(one, clif::I64);
        self.b.switch_to_block(one);
        address = self.b.ins().iadd(address, done);
        let zero = self.b.ins().iconst(clif::I8, 0);
        self.b.ins().store(memory(), zero, address, 0);
        let next = self.b.ins().iadd_imm_u(done, 1);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, next, count);
        self.b.ins().brif(more, one, &[next.into()], behind, &[]);
        self.b.switch_to_block(behind);
        Ok(())
    }

    fn map(&mut self, on: On, map: u32, word: Node, atomic: Atomic) -> Result<Option<Value>> {
        let maps = self.field(context_offset::MAPS);
        let base = self.b.ins().load(clif::I64, constant_memory(), maps, 8 * map as i32);
        let there = |emit: &mut Self, lane| -> Result<Value> {
            let word = emit.wide(word, lane)?;
            let scaled = emit.b.ins().ishl_imm_u(word, 2);
            Ok(emit.b.ins().iadd(base, scaled))
        };
        match atomic {
            Atomic::Load => {
                let value = self.gather(memory(), 4, |emit, lane| {
                    let at = there(emit, lane)?;
                    Ok((emit.either(on, lane, at, base), 0))
                })?;
                Ok(Some(value))
            }
            Atomic::Store(value) => {
                for lane in 0..LANES {
                    let at = there(self, lane)?;
                    let to = self.or_nowhere(on, lane, at);
                    let word = self.word(value, lane)?;
                    self.b.ins().store(memory(), word, to, 0);
                }
                Ok(None)
            }
            Atomic::Add(_) | Atomic::Exchange(_) | Atomic::CompareExchange { .. } => {
                let value = self.each_lane(|emit, lane| {
                    let at = there(emit, lane)?;
                    emit.where_on(on, lane, |emit| emit.modify(atomic, at, lane))
                })?;
                Ok(Some(value))
            }
        }
    }

    /// Reads and writes a word in one lane.
    fn modify(&mut self, atomic: Atomic, at: Value, lane: usize) -> Result<Value> {
        // Aligned, and there.
        let flags = MemFlagsData::trusted();
        Ok(match atomic {
            Atomic::Add(value) => {
                let value = self.word(value, lane)?;
                self.b.ins().atomic_rmw(clif::I32, flags, AtomicRmwOp::Add, at, value)
            }
            Atomic::Exchange(value) => {
                let value = self.word(value, lane)?;
                self.b.ins().atomic_rmw(clif::I32, flags, AtomicRmwOp::Xchg, at, value)
            }
            Atomic::CompareExchange { expected, value } => {
                let (expected, value) = (self.word(expected, lane)?, self.word(value, lane)?);
                self.b.ins().atomic_cas(flags, at, expected, value)
            }
            Atomic::Load | Atomic::Store(_) => unreachable!("made elsewhere"),
        })
    }

    /// Executes something in a lane that is on; gives 0 where it is off.
    fn where_on(&mut self, on: On, lane: usize, make: impl FnOnce(&mut Self) -> Result<Value>) -> Result<Value> {
        let Some(condition) = self.is_on(on, lane) else { return make(self) };
        let (within, behind) = (self.b.create_block(), self.b.create_block());
        let zero = self.b.ins().iconst(clif::I32, 0);
        self.b.ins().brif(condition, within, &[], behind, &[zero.into()]);
        self.b.switch_to_block(within);
        let mark = self.enter();
        let value = make(self)?;
        self.leave(mark);
        self.b.ins().jump(behind, &[value.into()]);
        self.b.switch_to_block(behind);
        Ok(self.b.append_block_param(behind, clif::I32))
    }

    /// The words of a place in an array, a lane after the other, if it is the same in all lanes.
    fn constant_place(&mut self, array: u32, index: Node) -> Option<Value> {
        let index = self.dag().as_constant(index)?;
        let slot = self.arrays[array as usize];
        Some(self.b.ins().stack_addr(clif::I64, slot, (index * 4 * LANES as u32) as i32))
    }

    /// The word of a lane at a place in an array.
    fn own_place(&mut self, array: u32, index: Node, lane: usize) -> Result<Value> {
        let slot = self.arrays[array as usize];
        let base = self.b.ins().stack_addr(clif::I64, slot, 4 * lane as i32);
        let index = self.wide(index, lane)?;
        let scaled = self.b.ins().imul_imm_u(index, 4 * LANES as i64);
        Ok(self.b.ins().iadd(base, scaled))
    }

    fn array_load(&mut self, array: u32, index: Node) -> Result<Value> {
        match self.constant_place(array, index) {
            Some(at) => Ok(self.b.ins().load(clif::I32X4, memory(), at, 0)),
            None => self.gather(memory(), 4, |emit, lane| Ok((emit.own_place(array, index, lane)?, 0))),
        }
    }

    fn array_store(&mut self, mask: Node, on: On, array: u32, index: Node, value: Node) -> Result<()> {
        if let Some(at) = self.constant_place(array, index) {
            let value = self.value(value)?;
            return self.blend(mask, on, at, value);
        }
        for lane in 0..LANES {
            let at = self.own_place(array, index, lane)?;
            let to = self.or_nowhere(on, lane, at);
            let word = self.word(value, lane)?;
            self.b.ins().store(memory(), word, to, 0);
        }
        Ok(())
    }

    /// Writes the lanes that are on of four words.
    fn blend(&mut self, mask: Node, on: On, at: Value, value: Value) -> Result<()> {
        let value = match on {
            On::All => value,
            On::Bits(_) => {
                let mask = self.value(mask)?;
                let before = self.b.ins().load(clif::I32X4, memory(), at, 0);
                self.choose(mask, value, before)
            }
        };
        self.b.ins().store(memory(), value, at, 0);
        Ok(())
    }

    fn array_fill(&mut self, mask: Node, on: On, array: u32, value: Node) -> Result<()> {
        let (slot, words) = (self.arrays[array as usize], self.lanes.arrays[array as usize]);
        let value = self.value(value)?;
        if words <= FEW_WORDS {
            for word in 0..words {
                let at = self.b.ins().stack_addr(clif::I64, slot, (word * 4 * LANES as u32) as i32);
                self.blend(mask, on, at, value)?;
            }
            return Ok(());
        }
        let begin = self.b.ins().stack_addr(clif::I64, slot, 0);
        let end = self.b.ins().iadd_imm_u(begin, i64::from(words) * 4 * LANES as i64);
        if let On::Bits(_) = on {
            // It is made here, and not in the loop.
            self.value(mask)?;
        }
        let (one, behind) = (self.b.create_block(), self.b.create_block());
        self.b.ins().jump(one, &[begin.into()]);
        let at = self.b.append_block_param(one, clif::I64);
        self.b.switch_to_block(one);
        self.blend(mask, on, at, value)?;
        let next = self.b.ins().iadd_imm_u(at, 4 * LANES as i64);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, next, end);
        self.b.ins().brif(more, one, &[next.into()], behind, &[]);
        self.b.switch_to_block(behind);
        Ok(())
    }
}
