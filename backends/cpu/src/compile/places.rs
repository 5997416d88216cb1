//! Variables and what pointers point to.
//!
//! A variable is a row of Cranelift variables, one a scalar, where every access names its part. One
//! that is indexed by a number known only at run time, or that is large, lies on the stack.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, StackSlot, StackSlotData, StackSlotKind, Value, types as clif};
use cranelift_frontend::Variable;
use naga::{AddressSpace, Expression, GlobalVariable, Handle, TypeInner};
use portcullis_core::map::BIND_GROUP;
use portcullis_core::program::Program;

use super::types::{self, Leaf};
use super::{Codegen, Frame, Home, Operand, Place, Result, Unsupported, constant_memory};

/// The most scalars that a variable may have outside memory.
const MAX_IN_REGISTERS: u64 = 32;

/// Bytes up to which a variable on the stack is cleared by straight code.
const CLEAR_UNROLLED: u32 = 256;

/// The memory of the variables that are not in registers. Calls stack up in it as they would with
/// real calls, so that it is no larger than the deepest chain of them, which the verifier bounds.
#[derive(Debug, Default)]
pub(super) struct Stack {
    slot: Option<StackSlot>,
    /// Bytes in use by the calls that the code is in.
    pub top: u32,
    /// Bytes in use at the most.
    size: u32,
}

impl Stack {
    /// Where the next so many bytes are.
    fn reserve(&mut self, bytes: u32) -> u32 {
        self.size = self.size.max(self.top + bytes);
        self.top
    }
}

/// Whether any function of the filter indexes a variable by a number known only at run time. If
/// none does, no variable need be in memory for it.
pub(super) fn indexes_through_pointers(program: &Program) -> bool {
    let module = program.module();
    module.functions.iter().filter(|(handle, _)| !program.is_prelude(*handle)).any(|(handle, function)| {
        let info = &program.info()[handle];
        function.local_variables.iter().any(|(_, local)| is_large(module, &module.types[local.ty].inner))
            || function.expressions.iter().any(|(_, expression)| match *expression {
                Expression::Access { base, .. } => {
                    types::pointee(module, info[base].ty.inner_with(&module.types)).is_some()
                }
                _ => false,
            })
    }) || module
        .global_variables
        .iter()
        .any(|(_, g)| g.space == AddressSpace::Private && is_large(module, &module.types[g.ty].inner))
}

fn is_large(module: &naga::Module, inner: &TypeInner) -> bool {
    types::count(module, inner).is_ok_and(|n| n > MAX_IN_REGISTERS)
}

impl<'a> Codegen<'a, '_> {
    /// Makes room for a variable of this type.
    fn home(&mut self, inner: &TypeInner) -> Result<Home> {
        let leaves = types::leaves(self.module, inner)?;
        if in_registers(self.module, inner, self.costs.in_memory) {
            let mut first = None;
            for leaf in &leaves {
                let variable = self.b.declare_var(leaf.clif());
                first.get_or_insert(variable);
            }
            return Ok(Home::Variables(first.map_or(0, Variable::as_u32)));
        }
        let size = leaves.iter().map(|l| l.size()).sum::<u32>().next_multiple_of(8);
        let offset = self.stack.reserve(size);
        self.stack.top += size;
        Ok(Home::Stack(offset))
    }

    fn place_of(&mut self, home: Home) -> Place {
        match home {
            Home::Variables(first) => Place::Variables(first),
            Home::Stack(offset) => Place::Memory { address: self.stack_address(), offset },
        }
    }

    /// The stack's first byte.
    fn stack_address(&mut self) -> Value {
        let slot = match self.stack.slot {
            Some(slot) => slot,
            None => {
                // Its size is set when it is known: `fit_stack`.
                let data = StackSlotData::new(StackSlotKind::ExplicitSlot, 0, 3);
                *self.stack.slot.insert(self.b.create_sized_stack_slot(data))
            }
        };
        self.b.ins().stack_addr(clif::I64, slot, 0)
    }

    /// Makes the stack as large as it was found to be needed.
    pub(super) fn fit_stack(&mut self) {
        if let Some(slot) = self.stack.slot {
            self.b.func.sized_stack_slots[slot].size = self.stack.size;
        }
    }

    /// Gives the private variables of the filter their initial values, as each packet finds them.
    pub(super) fn init_globals(&mut self) -> Result<()> {
        for (handle, global) in self.module.global_variables.iter() {
            let machinery = global.name.as_deref().is_some_and(|n| n.starts_with("pc_"));
            if global.space != AddressSpace::Private || machinery {
                continue;
            }
            let inner = types::inner(self.module, global.ty);
            let home = self.home(inner)?;
            self.globals.insert(handle, home);
            let place = self.place_of(home);
            match global.init {
                Some(init) => {
                    let value = self.materialise(init)?;
                    self.store(place, &value)?;
                }
                None => self.clear(place, inner)?,
            }
        }
        Ok(())
    }

    /// Gives the variables of a function their initial values, as each call finds them.
    pub(super) fn init_locals(&mut self, frame: &mut Frame<'a>) -> Result<()> {
        for (handle, local) in frame.code.local_variables.iter() {
            let inner = types::inner(self.module, local.ty);
            let home = match self.locals.get(&(frame.function, handle)) {
                // A function is never active twice, so its variables can be used again.
                Some(&home @ Home::Variables(_)) => home,
                // On the stack they lie above those of whoever calls it this time.
                _ => {
                    let home = self.home(inner)?;
                    self.locals.insert((frame.function, handle), home);
                    home
                }
            };
            let place = self.place_of(home);
            match local.init {
                Some(init) => {
                    let value = self.value(frame, init)?;
                    self.store_initial(place, &value)?;
                }
                None => self.clear(place, inner)?,
            }
        }
        Ok(())
    }

    /// The place of a variable.
    pub(super) fn variable(&mut self, home: Option<Home>) -> Result<Place> {
        match home {
            Some(home) => Ok(self.place_of(home)),
            None => Err(Unsupported("a variable outside the filter's own memory".into())),
        }
    }

    /// Part `index` of what is at `place`.
    pub(super) fn part_of(&mut self, place: Place, inner: &TypeInner, index: u32) -> Result<Place> {
        let (_, leaves, bytes) = types::part(self.module, inner, index)?;
        Ok(match place {
            Place::Variables(first) => Place::Variables(first + leaves),
            Place::Memory { address, offset } => Place::Memory { address, offset: offset + bytes },
        })
    }

    /// Part `index`, known only at run time. The index is clamped to the last part, which is what
    /// makes every access through it lie in the variable.
    pub(super) fn element_address(&mut self, place: Place, inner: &TypeInner, index: Value) -> Result<Place> {
        let Place::Memory { address, offset } = place else {
            return Err(Unsupported("a dynamic index into a variable that is not in memory".into()));
        };
        let (part, n) = types::uniform_part(self.module, inner)?;
        // Into a map's words the prelude gives no index that lies outside, whatever the filter says.
        let index = if n == types::UNBOUNDED { index } else { self.clamp_index(index, n) };
        let wide = self.b.ins().uextend(clif::I64, index);
        let scaled = self.b.ins().imul_imm_u(wide, i64::from(part.size));
        let address = self.b.ins().iadd(address, scaled);
        Ok(Place::Memory { address, offset })
    }

    /// min(index, n - 1), unsigned.
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

    /// The words of a map, if that is what a variable is.
    pub(super) fn map(&mut self, global: Handle<GlobalVariable>) -> Option<Place> {
        let binding = self.module.global_variables[global].binding.filter(|binding| binding.group == BIND_GROUP)?;
        Some(Place::Memory { address: self.map_words(binding.binding), offset: 0 })
    }

    /// The address of a map's first word.
    pub(super) fn map_words(&mut self, number: u32) -> Value {
        let maps = self.field(crate::memory::context_offset::MAPS);
        self.b.ins().load(clif::I64, constant_memory(), maps, 8 * number as i32)
    }

    /// The scalars at a place.
    pub(super) fn load_place(&mut self, place: Place, inner: &TypeInner) -> Result<Vec<Value>> {
        let leaves = types::leaves(self.module, inner)?;
        self.spend(leaves.len())?;
        Ok(match place {
            Place::Variables(first) => {
                (0..leaves.len() as u32).map(|i| self.b.use_var(Variable::from_u32(first + i))).collect()
            }
            Place::Memory { address, offset } => self.load_leaves(address, offset, &leaves, stack_memory()),
        })
    }

    /// Scalars that follow one another in memory.
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

    /// Writes scalars to a place.
    pub(super) fn store(&mut self, place: Place, value: &[Value]) -> Result<()> {
        self.spend(value.len())?;
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

    /// Writes scalars to a variable that had no value before: nothing to remember.
    fn store_initial(&mut self, place: Place, value: &[Value]) -> Result<()> {
        if let Place::Variables(first) = place {
            for (i, &v) in value.iter().enumerate() {
                self.b.def_var(Variable::from_u32(first + i as u32), v);
            }
            return Ok(());
        }
        self.store(place, value)
    }

    /// Writes zeros to a variable that had no value before.
    fn clear(&mut self, place: Place, inner: &TypeInner) -> Result<()> {
        let leaves = types::leaves(self.module, inner)?;
        let Place::Memory { address, offset } = place else {
            let zeros: Vec<Value> = leaves.iter().map(|leaf| self.zero(*leaf)).collect();
            return self.store_initial(place, &zeros);
        };
        let size = leaves.iter().map(|l| l.size()).sum::<u32>().next_multiple_of(8);
        let zero = self.b.ins().iconst(clif::I64, 0);
        if size <= CLEAR_UNROLLED {
            for at in (0..size).step_by(8) {
                self.b.ins().store(stack_memory(), zero, address, (offset + at) as i32);
            }
            return Ok(());
        }
        let (round, behind) = (self.b.create_block(), self.b.create_block());
        let at = self.b.append_block_param(round, clif::I64);
        let first = self.b.ins().iadd_imm_u(address, i64::from(offset));
        let end = self.b.ins().iadd_imm_u(first, i64::from(size));
        self.b.ins().jump(round, &[first.into()]);
        self.b.switch_to_block(round);
        self.b.ins().store(stack_memory(), zero, at, 0);
        let next = self.b.ins().iadd_imm_u(at, 8);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, next, end);
        self.b.ins().brif(more, round, &[next.into()], behind, &[]);
        self.b.seal_block(round);
        self.enter(behind);
        Ok(())
    }

    /// Zero of a scalar type.
    pub(super) fn zero(&mut self, leaf: Leaf) -> Value {
        match leaf.clif() {
            clif::F32 => self.b.ins().f32const(0.0),
            clif::F64 => self.b.ins().f64const(0.0),
            clif::I8 => self.boolean(false),
            clif::I32 => self.constant(0),
            other => self.b.ins().iconst(other, 0),
        }
    }

    /// A part of a value, by an index known only at run time.
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
            let tables = self.field(crate::memory::context_offset::TABLES);
            let wide = self.b.ins().uextend(clif::I64, index);
            let scaled = self.b.ins().imul_imm_u(wide, i64::from(part.size));
            let address = self.b.ins().iadd(tables, scaled);
            return Ok(self.load_leaves(address, table, &leaves, constant_memory()));
        }
        let value = self.value(frame, base)?;
        let index = self.clamp_index(index, n);
        if n <= 4 {
            // Chosen one against the other: cheaper than a way through memory.
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
        // Written, read and forgotten at once: the space is free for whoever needs it next.
        let place = Place::Memory { offset: self.stack.reserve(bytes), address: self.stack_address() };
        self.store(place, &value)?;
        let Place::Memory { address, offset } = self.element_address(place, inner, index)? else {
            unreachable!("an element of memory is in memory")
        };
        Ok(self.load_leaves(address, offset, &leaves, stack_memory()))
    }
}

/// Whether a variable of this type lives outside memory; `indexed` is what
/// [`indexes_through_pointers`] says of the filter.
pub(super) fn in_registers(module: &naga::Module, inner: &TypeInner, indexed: bool) -> bool {
    !is_large(module, inner) && (!indexed || matches!(inner, TypeInner::Scalar(_)))
}

/// The filter's own stack: always there, written by the filter.
fn stack_memory() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}
