//! Effects, emitted lane by lane for the lanes of a mask.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AtomicRmwOp, InstBuilder, MemFlagsData, Value, types as clif};

use super::emitter::{Emitter, LANES};
use crate::compile::abi::context_offset;
use crate::compile::errors::Result;
use crate::compile::lowered::constant_memory;
use crate::compile::vector::ir::{Atomic, Effect, Node, PacketAddress};

/// Maximum number of words of an array that is filled without a loop.
const MAX_UNROLLED_FILL: u32 = 16;

/// Flags for memory that is read and written: packets, maps and arrays. It is always mapped.
fn memory() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// Active lanes of an effect.
#[derive(Clone, Copy)]
enum ActiveLanes {
    All,
    /// The lanes whose bit is set in this value.
    Bits(Value),
}

impl Emitter<'_, '_> {
    /// Emits an effect; returns its result if it has one.
    pub(super) fn emit_effect(&mut self, mask: Node, effect: &Effect) -> Result<Option<Value>> {
        let on = match self.dag().as_flag(mask) {
            Some(true) => ActiveLanes::All,
            Some(false) => return Ok(effect.has_result().then(|| self.splat(0))),
            None => {
                let mask = self.value(mask)?;
                ActiveLanes::Bits(self.b.ins().vhigh_bits(clif::I32, mask))
            }
        };
        match *effect {
            Effect::LoadPacket { at, size } => {
                let starts = self.group().starts;
                let value = self.gather(memory(), size, |emit, lane| {
                    let address = emit.address(at, lane)?;
                    Ok((emit.select_if_active(on, lane, address, starts[lane]), 0))
                })?;
                return Ok(Some(value));
            }
            Effect::StorePacket { at, size, value } => {
                for lane in 0..LANES {
                    let address = self.address(at, lane)?;
                    let word = self.lane_word(value, lane)?;
                    let to = self.or_scratch(on, lane, address);
                    match size {
                        1 => self.b.ins().istore8(memory(), word, to, 0),
                        2 => self.b.ins().istore16(memory(), word, to, 0),
                        _ => self.b.ins().store(memory(), word, to, 0),
                    };
                }
            }
            Effect::ClearPacket { at, count } => {
                for lane in 0..LANES {
                    self.clear_bytes(on, at, count, lane)?;
                }
            }
            Effect::Map { map, word, atomic } => return self.emit_map_access(on, map, word, atomic),
            Effect::ArrayLoad { array, index } => return Ok(Some(self.array_load(array, index)?)),
            Effect::ArrayStore { array, index, value } => self.array_store(mask, on, array, index, value)?,
            Effect::ArrayFill { array, value } => self.array_fill(mask, on, array, value)?,
        }
        Ok(None)
    }

    /// Emits the condition that a lane is active; `None` if all are.
    fn lane_condition(&mut self, on: ActiveLanes, lane: usize) -> Option<Value> {
        match on {
            ActiveLanes::All => None,
            ActiveLanes::Bits(bits) => Some(self.b.ins().band_imm_u(bits, 1 << lane)),
        }
    }

    fn select_if_active(&mut self, on: ActiveLanes, lane: usize, address: Value, otherwise: Value) -> Value {
        match self.lane_condition(on, lane) {
            None => address,
            Some(condition) => self.b.ins().select(condition, address, otherwise),
        }
    }

    /// Emits the address of a store: `address` in active lanes, the scratch slot in others.
    fn or_scratch(&mut self, on: ActiveLanes, lane: usize, address: Value) -> Value {
        let scratch = self.scratch.expect("filters with effects have a scratch slot");
        self.select_if_active(on, lane, address, scratch)
    }

    /// Emits an address in a packet that the filter may write to.
    fn address(&mut self, at: PacketAddress, lane: usize) -> Result<Value> {
        let mut address = self.group().starts[lane];
        if let Some(start) = at.start {
            let start = self.lane_word(start, lane)?;
            let start = self.b.ins().sextend(clif::I64, start);
            address = self.b.ins().iadd(address, start);
        }
        let offset = self.lane_as_u64(at.offset, lane)?;
        Ok(self.b.ins().iadd(address, offset))
    }

    /// Zeroes bytes one by one: they are few, and this is rare.
    fn clear_bytes(&mut self, on: ActiveLanes, at: PacketAddress, count: Node, lane: usize) -> Result<()> {
        let (mut address, count) = (self.address(at, lane)?, self.lane_as_u64(count, lane)?);
        let none = self.b.ins().iconst(clif::I64, 0);
        let count = self.select_if_active(on, lane, count, none);
        let (body, exit) = (self.b.create_block(), self.b.create_block());
        let done = self.b.ins().iconst(clif::I64, 0);
        self.b.ins().brif(count, body, &[done.into()], exit, &[]);

        let done = self.b.append_block_param(body, clif::I64);
        self.b.switch_to_block(body);
        address = self.b.ins().iadd(address, done);
        let zero = self.b.ins().iconst(clif::I8, 0);
        self.b.ins().store(memory(), zero, address, 0);
        let next = self.b.ins().iadd_imm_u(done, 1);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, next, count);
        self.b.ins().brif(more, body, &[next.into()], exit, &[]);
        self.b.switch_to_block(exit);
        Ok(())
    }

    fn emit_map_access(&mut self, on: ActiveLanes, map: u32, word: Node, atomic: Atomic) -> Result<Option<Value>> {
        let maps = self.context_field(context_offset::MAPS);
        let base = self.b.ins().load(clif::I64, constant_memory(), maps, 8 * map as i32);
        let address = |emit: &mut Self, lane| -> Result<Value> {
            let word = emit.lane_as_u64(word, lane)?;
            let scaled = emit.b.ins().ishl_imm_u(word, 2);
            Ok(emit.b.ins().iadd(base, scaled))
        };
        match atomic {
            Atomic::Load => {
                let value = self.gather(memory(), 4, |emit, lane| {
                    let at = address(emit, lane)?;
                    Ok((emit.select_if_active(on, lane, at, base), 0))
                })?;
                Ok(Some(value))
            }
            Atomic::Store(value) => {
                for lane in 0..LANES {
                    let at = address(self, lane)?;
                    let to = self.or_scratch(on, lane, at);
                    let word = self.lane_word(value, lane)?;
                    self.b.ins().store(memory(), word, to, 0);
                }
                Ok(None)
            }
            _ => {
                let value = self.each_lane(|emit, lane| {
                    let at = address(emit, lane)?;
                    emit.if_active(on, lane, |emit| emit.emit_atomic(atomic, at, lane))
                })?;
                Ok(Some(value))
            }
        }
    }

    /// Emits an atomic operation in one lane.
    fn emit_atomic(&mut self, atomic: Atomic, at: Value, lane: usize) -> Result<Value> {
        // Map words are aligned and mapped.
        let flags = MemFlagsData::trusted();
        let (operation, value) = match atomic {
            Atomic::Add(value) => (AtomicRmwOp::Add, value),
            Atomic::Min(value) => (AtomicRmwOp::Umin, value),
            Atomic::Max(value) => (AtomicRmwOp::Umax, value),
            Atomic::Or(value) => (AtomicRmwOp::Or, value),
            Atomic::Exchange(value) => (AtomicRmwOp::Xchg, value),
            Atomic::CompareExchange { expected, value } => {
                let (expected, value) = (self.lane_word(expected, lane)?, self.lane_word(value, lane)?);
                return Ok(self.b.ins().atomic_cas(flags, at, expected, value));
            }
            Atomic::Load | Atomic::Store(_) => unreachable!("loads and stores are emitted without a read-modify-write"),
        };
        let value = self.lane_word(value, lane)?;
        Ok(self.b.ins().atomic_rmw(clif::I32, flags, operation, at, value))
    }

    /// Emits code that is skipped in inactive lanes, whose result is then 0.
    fn if_active(
        &mut self,
        on: ActiveLanes,
        lane: usize,
        make: impl FnOnce(&mut Self) -> Result<Value>,
    ) -> Result<Value> {
        let Some(condition) = self.lane_condition(on, lane) else { return make(self) };
        let (body, exit) = (self.b.create_block(), self.b.create_block());
        let zero = self.b.ins().iconst(clif::I32, 0);
        self.b.ins().brif(condition, body, &[], exit, &[zero.into()]);
        self.b.switch_to_block(body);
        let mark = self.begin_scope();
        let value = make(self)?;
        self.end_scope(mark);
        self.b.ins().jump(exit, &[value.into()]);
        self.b.switch_to_block(exit);
        Ok(self.b.append_block_param(exit, clif::I32))
    }

    /// Emits the address of an array's words for all lanes, if the index is a constant.
    fn uniform_slot(&mut self, array: u32, index: Node) -> Option<Value> {
        let index = self.dag().as_constant(index)?;
        let slot = self.arrays[array as usize];
        Some(self.b.ins().stack_addr(clif::I64, slot, (index * 4 * LANES as u32) as i32))
    }

    /// Emits the address of one lane's word in an array.
    fn lane_slot(&mut self, array: u32, index: Node, lane: usize) -> Result<Value> {
        let slot = self.arrays[array as usize];
        let base = self.b.ins().stack_addr(clif::I64, slot, 4 * lane as i32);
        let index = self.lane_as_u64(index, lane)?;
        let scaled = self.b.ins().imul_imm_u(index, 4 * LANES as i64);
        Ok(self.b.ins().iadd(base, scaled))
    }

    fn array_load(&mut self, array: u32, index: Node) -> Result<Value> {
        match self.uniform_slot(array, index) {
            Some(at) => Ok(self.b.ins().load(clif::I32X4, memory(), at, 0)),
            None => self.gather(memory(), 4, |emit, lane| Ok((emit.lane_slot(array, index, lane)?, 0))),
        }
    }

    fn array_store(&mut self, mask: Node, on: ActiveLanes, array: u32, index: Node, value: Node) -> Result<()> {
        if let Some(at) = self.uniform_slot(array, index) {
            let value = self.value(value)?;
            return self.store_blended(mask, on, at, value);
        }
        for lane in 0..LANES {
            let at = self.lane_slot(array, index, lane)?;
            let to = self.or_scratch(on, lane, at);
            let word = self.lane_word(value, lane)?;
            self.b.ins().store(memory(), word, to, 0);
        }
        Ok(())
    }

    /// Stores a vector in memory, in active lanes only.
    fn store_blended(&mut self, mask: Node, on: ActiveLanes, at: Value, value: Value) -> Result<()> {
        let value = match on {
            ActiveLanes::All => value,
            ActiveLanes::Bits(_) => {
                let mask = self.value(mask)?;
                let before = self.b.ins().load(clif::I32X4, memory(), at, 0);
                self.select_lanes(mask, value, before)
            }
        };
        self.b.ins().store(memory(), value, at, 0);
        Ok(())
    }

    fn array_fill(&mut self, mask: Node, on: ActiveLanes, array: u32, value: Node) -> Result<()> {
        let (slot, words) = (self.arrays[array as usize], self.lanes.arrays[array as usize]);
        let value = self.value(value)?;
        if words <= MAX_UNROLLED_FILL {
            for word in 0..words {
                let at = self.b.ins().stack_addr(clif::I64, slot, (word * 4 * LANES as u32) as i32);
                self.store_blended(mask, on, at, value)?;
            }
            return Ok(());
        }
        let begin = self.b.ins().stack_addr(clif::I64, slot, 0);
        let end = self.b.ins().iadd_imm_u(begin, i64::from(words) * 4 * LANES as i64);
        if let ActiveLanes::Bits(_) = on {
            // Compute the mask here rather than in the loop.
            self.value(mask)?;
        }
        let (body, exit) = (self.b.create_block(), self.b.create_block());
        self.b.ins().jump(body, &[begin.into()]);
        let at = self.b.append_block_param(body, clif::I64);
        self.b.switch_to_block(body);
        self.store_blended(mask, on, at, value)?;
        let next = self.b.ins().iadd_imm_u(at, 4 * LANES as i64);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, next, end);
        self.b.ins().brif(more, body, &[next.into()], exit, &[]);
        self.b.switch_to_block(exit);
        Ok(())
    }
}
