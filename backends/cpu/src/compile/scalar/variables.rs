//! Variables, and the places that pointers point to.
//!
//! A variable is a row of Cranelift variables, one per scalar, if every access names its part. A
//! variable that is indexed by a value known only at run time, or that is large, is in a stack
//! slot.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, StackSlotData, StackSlotKind, Value, types as clif};
use cranelift_frontend::Variable;
use naga::{AddressSpace, Expression, GlobalVariable, Handle, TypeInner};
use portcullis_core::map::BIND_GROUP;

use super::codegen::{Codegen, Frame, Operand, Place, VariableLocation};
use super::placement::in_registers;
use crate::compile::abi::context_offset;
use crate::compile::errors::{Result, Unsupported};
use crate::compile::lowered::constant_memory;
use crate::compile::types::{self, Leaf};

/// Maximum size in bytes of a stack variable that is cleared without a loop.
const MAX_UNROLLED_CLEAR_BYTES: u32 = 256;

impl<'a> Codegen<'a, '_> {
    /// Allocates a variable of a type.
    fn allocate_variable(&mut self, inner: &TypeInner) -> Result<VariableLocation> {
        let leaves = types::leaves(self.module, inner)?;
        if in_registers(self.module, inner, self.costs.uses_dynamic_indexing) {
            let mut first = None;
            for leaf in &leaves {
                let variable = self.b.declare_var(leaf.clif());
                first.get_or_insert(variable);
            }
            return Ok(VariableLocation::Variables(first.map_or(0, Variable::as_u32)));
        }
        let size = leaves.iter().map(|l| l.size()).sum::<u32>().next_multiple_of(8);
        let offset = self.stack.reserve(size);
        self.stack.top += size;
        Ok(VariableLocation::Stack(offset))
    }

    fn place_of(&mut self, location: VariableLocation) -> Place {
        match location {
            VariableLocation::Variables(first) => Place::Variables(first),
            VariableLocation::Stack(offset) => Place::Memory { address: self.stack_address(), offset },
        }
    }

    /// Emits the address of the stack slot.
    fn stack_address(&mut self) -> Value {
        let slot = match self.stack.slot {
            Some(slot) => slot,
            None => {
                // The size is set at the end: `set_stack_size`.
                let data = StackSlotData::new(StackSlotKind::ExplicitSlot, 0, 3);
                *self.stack.slot.insert(self.b.create_sized_stack_slot(data))
            }
        };
        self.b.ins().stack_addr(clif::I64, slot, 0)
    }

    /// Sets the size of the stack slot to what was needed.
    pub(super) fn set_stack_size(&mut self) {
        if let Some(slot) = self.stack.slot {
            self.b.func.sized_stack_slots[slot].size = self.stack.size;
        }
    }

    /// Initialises the filter's private variables, for every packet anew.
    pub(super) fn init_globals(&mut self) -> Result<()> {
        for (handle, global) in self.module.global_variables.iter() {
            let machinery = global.name.as_deref().is_some_and(|n| n.starts_with("pc_"));
            if global.space != AddressSpace::Private || machinery {
                continue;
            }
            let inner = types::inner(self.module, global.ty);
            let location = self.allocate_variable(inner)?;
            self.globals.insert(handle, location);
            let place = self.place_of(location);
            match global.init {
                Some(init) => {
                    let value = self.materialise(init)?;
                    self.store(place, &value)?;
                }
                None => self.store_zeros(place, inner)?,
            }
        }
        Ok(())
    }

    /// Initialises the local variables of a function, for every call anew.
    pub(super) fn init_locals(&mut self, frame: &mut Frame<'a>) -> Result<()> {
        for (handle, local) in frame.code.local_variables.iter() {
            let inner = types::inner(self.module, local.ty);
            let location = match self.locals.get(&(frame.function, handle)) {
                // Recursion is not possible, so another call can reuse the variables.
                Some(&location @ VariableLocation::Variables(_)) => location,
                // Stack variables lie above those of this call's callers.
                _ => {
                    let location = self.allocate_variable(inner)?;
                    self.locals.insert((frame.function, handle), location);
                    location
                }
            };
            let place = self.place_of(location);
            match local.init {
                Some(init) => {
                    let value = self.value(frame, init)?;
                    self.store_initial(place, &value)?;
                }
                None => self.store_zeros(place, inner)?,
            }
        }
        Ok(())
    }

    /// Returns the place of a variable.
    pub(super) fn variable_place(&mut self, location: Option<VariableLocation>) -> Result<Place> {
        match location {
            Some(location) => Ok(self.place_of(location)),
            None => Err(Unsupported("a variable outside the filter's own memory".into())),
        }
    }

    /// Returns the place of part `index` of the value at `place`.
    pub(super) fn subplace(&mut self, place: Place, inner: &TypeInner, index: u32) -> Result<Place> {
        let (_, leaves, bytes) = types::part(self.module, inner, index)?;
        Ok(match place {
            Place::Variables(first) => Place::Variables(first + leaves),
            Place::Memory { address, offset } => Place::Memory { address, offset: offset + bytes },
        })
    }

    /// Returns the place of an element by an index known only at run time. The index is clamped to
    /// the last element, so every access through the place stays in the variable.
    pub(super) fn element_address(&mut self, place: Place, inner: &TypeInner, index: Value) -> Result<Place> {
        let Place::Memory { address, offset } = place else {
            return Err(Unsupported("a dynamic index into a variable that is not in memory".into()));
        };
        let (part, n) = types::uniform_part(self.module, inner)?;
        // Map words are not clamped: the prelude's code never passes an index outside the map.
        let index = if n == types::UNBOUNDED { index } else { self.clamp_index(index, n) };
        let wide = self.b.ins().uextend(clif::I64, index);
        let scaled = self.b.ins().imul_imm_u(wide, i64::from(part.size));
        let address = self.b.ins().iadd(address, scaled);
        Ok(Place::Memory { address, offset })
    }

    /// Emits `min(index, n - 1)`, unsigned.
    pub(super) fn clamp_index(&mut self, index: Value, n: u32) -> Value {
        if self.known.range(index).1 < n {
            return index;
        }
        let last = self.constant(n - 1);
        let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, index, last);
        let clamped = self.b.ins().select(inside, index, last);
        self.known.set_range(clamped, 0, n - 1);
        clamped
    }

    /// Returns the words of a map if that is what a global variable stands for.
    pub(super) fn map_place(&mut self, global: Handle<GlobalVariable>) -> Option<Place> {
        let binding = self.module.global_variables[global].binding.filter(|binding| binding.group == BIND_GROUP)?;
        Some(Place::Memory { address: self.map_address(binding.binding), offset: 0 })
    }

    /// Emits the address of a map's first word.
    pub(super) fn map_address(&mut self, number: u32) -> Value {
        let maps = self.context_field(context_offset::MAPS);
        self.b.ins().load(clif::I64, constant_memory(), maps, 8 * number as i32)
    }

    /// Loads the scalars at a place.
    pub(super) fn load_place(&mut self, place: Place, inner: &TypeInner) -> Result<Vec<Value>> {
        let leaves = types::leaves(self.module, inner)?;
        self.count_operations(leaves.len())?;
        Ok(match place {
            Place::Variables(first) => {
                (0..leaves.len() as u32).map(|i| self.b.use_var(Variable::from_u32(first + i))).collect()
            }
            Place::Memory { address, offset } => self.load_leaves(address, offset, &leaves, stack_memory()),
        })
    }

    /// Loads consecutive scalars from memory.
    pub(super) fn load_leaves(
        &mut self,
        address: Value,
        offset: u32,
        leaves: &[Leaf],
        flags: MemFlagsData,
    ) -> Vec<Value> {
        let mut at = offset;
        leaves
            .iter()
            .map(|leaf| {
                let value = self.b.ins().load(leaf.clif(), flags, address, at as i32);
                at += leaf.size();
                value
            })
            .collect()
    }

    /// Stores scalars at a place.
    pub(super) fn store(&mut self, place: Place, value: &[Value]) -> Result<()> {
        self.count_operations(value.len())?;
        match place {
            Place::Variables(first) => {
                for (i, &v) in value.iter().enumerate() {
                    self.assign(Variable::from_u32(first + i as u32), v);
                }
            }
            Place::Memory { address, offset } => {
                let mut at = offset;
                for &v in value {
                    self.b.ins().store(stack_memory(), v, address, at as i32);
                    at += self.b.func.dfg.value_type(v).bytes();
                }
            }
        }
        Ok(())
    }

    /// Stores scalars in a variable that had no value before, so there is nothing to log for
    /// undoing.
    fn store_initial(&mut self, place: Place, value: &[Value]) -> Result<()> {
        if let Place::Variables(first) = place {
            for (i, &v) in value.iter().enumerate() {
                self.b.def_var(Variable::from_u32(first + i as u32), v);
            }
            return Ok(());
        }
        self.store(place, value)
    }

    /// Zeroes a variable that had no value before.
    fn store_zeros(&mut self, place: Place, inner: &TypeInner) -> Result<()> {
        let leaves = types::leaves(self.module, inner)?;
        let Place::Memory { address, offset } = place else {
            let zeros: Vec<Value> = leaves.iter().map(|leaf| self.zero(*leaf)).collect();
            return self.store_initial(place, &zeros);
        };
        let size = leaves.iter().map(|l| l.size()).sum::<u32>().next_multiple_of(8);
        let zero = self.b.ins().iconst(clif::I64, 0);
        if size <= MAX_UNROLLED_CLEAR_BYTES {
            for at in (0..size).step_by(8) {
                self.b.ins().store(stack_memory(), zero, address, (offset + at) as i32);
            }
            return Ok(());
        }
        let (body, exit) = (self.b.create_block(), self.b.create_block());
        let at = self.b.append_block_param(body, clif::I64);
        let first = self.b.ins().iadd_imm_u(address, i64::from(offset));
        let end = self.b.ins().iadd_imm_u(first, i64::from(size));
        self.b.ins().jump(body, &[first.into()]);
        self.b.switch_to_block(body);
        self.b.ins().store(stack_memory(), zero, at, 0);
        let next = self.b.ins().iadd_imm_u(at, 8);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, next, end);
        self.b.ins().brif(more, body, &[next.into()], exit, &[]);
        self.b.seal_block(body);
        self.switch_to_sealed(exit);
        Ok(())
    }

    /// Emits the zero of a scalar type.
    pub(super) fn zero(&mut self, leaf: Leaf) -> Value {
        match leaf.clif() {
            clif::F32 => self.b.ins().f32const(0.0),
            clif::F64 => self.b.ins().f64const(0.0),
            clif::I8 => self.boolean(false),
            clif::I32 => self.constant(0),
            other => self.b.ins().iconst(other, 0),
        }
    }

    /// Emits the part of a value that an index known only at run time selects.
    pub(super) fn value_element(
        &mut self,
        frame: &mut Frame<'a>,
        base: Handle<Expression>,
        inner: &TypeInner,
        index: Value,
    ) -> Result<Vec<Value>> {
        let (part, n) = types::uniform_part(self.module, inner)?;
        let leaves = types::leaves(self.module, &part.inner)?;
        if let Operand::Constant(constant) = self.operand(frame, base)? {
            let table = self.table(constant)?;
            let index = self.clamp_index(index, n);
            let tables = self.context_field(context_offset::TABLES);
            let wide = self.b.ins().uextend(clif::I64, index);
            let scaled = self.b.ins().imul_imm_u(wide, i64::from(part.size));
            let address = self.b.ins().iadd(tables, scaled);
            return Ok(self.load_leaves(address, table, &leaves, constant_memory()));
        }
        let value = self.value(frame, base)?;
        let index = self.clamp_index(index, n);
        if n <= 4 {
            // A chain of selects is cheaper than a store and a load.
            let mut chosen = value[..leaves.len()].to_vec();
            for i in 1..n {
                let here = self.b.ins().icmp_imm_u(IntCC::Equal, index, i64::from(i));
                for (leaf, chosen) in chosen.iter_mut().enumerate() {
                    *chosen = self.b.ins().select(here, value[i as usize * leaves.len() + leaf], *chosen);
                }
            }
            return Ok(chosen);
        }
        let bytes = (part.size * n).next_multiple_of(8);
        // The array is dead after the load, so its stack space is not reserved beyond it.
        let place = Place::Memory { offset: self.stack.reserve(bytes), address: self.stack_address() };
        self.store(place, &value)?;
        let Place::Memory { address, offset } = self.element_address(place, inner, index)? else {
            unreachable!("an element of memory is in memory")
        };
        Ok(self.load_leaves(address, offset, &leaves, stack_memory()))
    }
}

/// Flags for the filter's own stack variables.
fn stack_memory() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}
