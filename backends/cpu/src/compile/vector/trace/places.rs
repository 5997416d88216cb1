//! Variables, and the places that pointers point to.
//!
//! A variable is a row of state slots, one per scalar. A variable that is indexed by a value known
//! only at run time is an array instead: memory that each lane has to itself.

use naga::{AddressSpace, Expression, GlobalVariable, Handle, Literal, ScalarKind, TypeInner};
use portcullis_core::map::BIND_GROUP;

use super::tracer::{Frame, Operand, Place, Tracer, VariableLocation};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::types::{self, Leaf};
use crate::compile::vector::ir::{Atomic, Binary, Compare, Effect, Node, Range, ValueKind};

/// Maximum size of the constant tables, in words.
const MAX_TABLE_WORDS: usize = 4 << 20;
/// Maximum number of scalars that are copied at once between an array and the state.
const MAX_COPIED_SCALARS: usize = 256;

/// Returns the kind of lane IR value for a scalar type.
pub(super) fn kind_of(leaf: Leaf) -> Result<ValueKind> {
    match (leaf.0.kind, leaf.0.width) {
        (ScalarKind::Bool, _) => Ok(ValueKind::Mask),
        (ScalarKind::Uint | ScalarKind::Sint, 4) => Ok(ValueKind::Word),
        (ScalarKind::Float, _) => Err(Unsupported("floating point".into())),
        (kind, width) => Err(Unsupported(format!("{kind:?} numbers of {width} bytes"))),
    }
}

impl<'a> Tracer<'a> {
    /// Allocates a variable.
    fn allocate_variable(&mut self, inner: &TypeInner, indexed: bool) -> Result<VariableLocation> {
        let leaves = types::leaves(self.module, inner)?;
        self.count_executed(leaves.len())?;
        if indexed {
            self.arrays.push(leaves.len() as u32);
            return Ok(VariableLocation::Array(self.arrays.len() as u32 - 1));
        }
        let first = self.state.len();
        for leaf in &leaves {
            let zero = kind_of(*leaf).map(|kind| self.zero(kind))?;
            self.state.push(zero);
        }
        Ok(VariableLocation::Slots { first, count: leaves.len() })
    }

    /// Initialises a variable, with zeros by default.
    fn init_variable(&mut self, home: VariableLocation, value: Option<Vec<Node>>) -> Result<()> {
        match (home, value) {
            (VariableLocation::Slots { first, count }, Some(value)) => {
                self.state[first..first + count].copy_from_slice(&value);
                Ok(())
            }
            (VariableLocation::Slots { .. }, None) => Ok(()),
            (VariableLocation::Array(array), value) => {
                let zero = self.dag.constant(0);
                let effect = Effect::ArrayFill { array, value: zero };
                self.push_effect(self.active, effect, Range::ALL);
                let index = zero;
                match value {
                    Some(value) => self.store(Place::Array { array, index }, &value),
                    None => Ok(()),
                }
            }
        }
    }

    /// Allocates and initialises the filter's private variables.
    pub(super) fn init_globals(&mut self) -> Result<()> {
        for (handle, global) in self.module.global_variables.iter() {
            let machinery = global.name.as_deref().is_some_and(|n| n.starts_with("pc_"));
            if global.space != AddressSpace::Private || machinery {
                continue;
            }
            let home =
                self.allocate_variable(types::inner(self.module, global.ty), self.scan.is_indexed_global(handle))?;
            self.globals.insert(handle, home);
            let value = global.init.map(|init| self.materialise(init)).transpose()?;
            self.init_variable(home, value)?;
        }
        Ok(())
    }

    /// Allocates and initialises the local variables of a call.
    pub(super) fn init_locals(&mut self, frame: &mut Frame<'a>) -> Result<()> {
        for (handle, local) in frame.code.local_variables.iter() {
            let indexed = self.scan.is_indexed(frame.handle, handle);
            let home = self.allocate_variable(types::inner(self.module, local.ty), indexed)?;
            frame.locals.push(home);
            let value = match local.init {
                Some(init) => Some(self.value(frame, init)?),
                None => None,
            };
            self.init_variable(home, value)?;
        }
        Ok(())
    }

    pub(super) fn place_of(&mut self, home: VariableLocation) -> Place {
        match home {
            VariableLocation::Slots { first, .. } => Place::Slots(first),
            VariableLocation::Array(array) => Place::Array { array, index: self.dag.constant(0) },
        }
    }

    pub(super) fn global_place(&mut self, global: Handle<GlobalVariable>) -> Result<Place> {
        let binding = self.module.global_variables[global].binding;
        if let Some(binding) = binding.filter(|binding| binding.group == BIND_GROUP) {
            return Ok(Place::Map { map: binding.binding, index: self.dag.constant(0) });
        }
        match self.globals.get(&global).copied() {
            Some(home) => Ok(self.place_of(home)),
            None => Err(Unsupported("a variable outside the filter's own memory".into())),
        }
    }

    /// Returns the place `leaves` scalars further on.
    pub(super) fn subplace(&mut self, place: Place, leaves: u32) -> Place {
        match place {
            Place::Slots(first) => Place::Slots(first + leaves as usize),
            Place::Array { array, index } => Place::Array { array, index: self.dag.add_constant(index, leaves) },
            Place::Map { map, index } => Place::Map { map, index: self.dag.add_constant(index, leaves) },
        }
    }

    /// Returns the place of an element, of `n`, by an index known only at run time.
    pub(super) fn element_place(&mut self, place: Place, stride: u32, n: u32, at: Node) -> Result<Place> {
        let at = if n == types::UNBOUNDED { at } else { self.clamp_index(at, n) };
        let stride_node = self.dag.constant(stride);
        let words = self.dag.binary(Binary::Multiply, at, stride_node);
        Ok(match place {
            Place::Slots(first) => match self.dag.as_constant(words) {
                Some(words) => Place::Slots(first + words as usize),
                None => return Err(Unsupported("a dynamic index into a variable that is not in memory".into())),
            },
            Place::Array { array, index } => Place::Array { array, index: self.dag.binary(Binary::Add, index, words) },
            Place::Map { map, index } => Place::Map { map, index: self.dag.binary(Binary::Add, index, words) },
        })
    }

    /// `min(index, n - 1)`
    pub(super) fn clamp_index(&mut self, index: Node, n: u32) -> Node {
        let last = self.dag.constant(n - 1);
        self.dag.binary(Binary::Min, index, last)
    }

    /// Loads the scalars at a place.
    pub(super) fn load_place(&mut self, place: Place, inner: &TypeInner) -> Result<Vec<Node>> {
        let leaves = types::leaves(self.module, inner)?;
        self.count_executed(leaves.len())?;
        match place {
            Place::Slots(first) => Ok(self.state[first..first + leaves.len()].to_vec()),
            Place::Array { array, index } => {
                check_copied(leaves.len())?;
                let mut values = Vec::with_capacity(leaves.len());
                for (offset, leaf) in (0..).zip(&leaves) {
                    let index = self.dag.add_constant(index, offset);
                    let word = self.push_effect(self.active, Effect::ArrayLoad { array, index }, Range::ALL);
                    values.push(match kind_of(*leaf)? {
                        ValueKind::Word => word,
                        ValueKind::Mask => self.dag.nonzero_mask(word),
                    });
                }
                Ok(values)
            }
            Place::Map { map, index } => {
                let effect = Effect::Map { map, word: index, atomic: Atomic::Load };
                Ok(vec![self.push_effect(self.active, effect, Range::ALL)])
            }
        }
    }

    /// Stores scalars at a place.
    pub(super) fn store(&mut self, place: Place, value: &[Node]) -> Result<()> {
        self.count_executed(value.len())?;
        match place {
            Place::Slots(first) => self.state[first..first + value.len()].copy_from_slice(value),
            Place::Array { array, index } => {
                check_copied(value.len())?;
                for (offset, &node) in (0..).zip(value) {
                    let index = self.dag.add_constant(index, offset);
                    let value = self.as_word(node);
                    self.push_effect(self.active, Effect::ArrayStore { array, index, value }, Range::ALL);
                }
            }
            Place::Map { map, index } => {
                let effect = Effect::Map { map, word: index, atomic: Atomic::Store(value[0]) };
                self.push_effect(self.active, effect, Range::ALL);
            }
        }
        Ok(())
    }

    /// Converts a mask to 1 or 0, its form in memory.
    pub(super) fn as_word(&mut self, node: Node) -> Node {
        match self.dag.kind(node) {
            ValueKind::Word => node,
            ValueKind::Mask => self.dag.word_from_mask(node),
        }
    }

    /// Returns the part of a value that an index known only at run time selects.
    pub(super) fn value_element(
        &mut self,
        frame: &mut Frame<'a>,
        base: Handle<Expression>,
        inner: &TypeInner,
        index: Node,
    ) -> Result<Vec<Node>> {
        let (part, n) = types::uniform_part(self.module, inner)?;
        let leaves = types::leaves(self.module, &part.inner)?;
        let index = self.clamp_index(index, n);
        if let Operand::Constant(constant) = self.operand(frame, base)?
            && self.dag.as_constant(index).is_none()
        {
            return self.table_element(constant, &leaves, index);
        }
        let value = self.value(frame, base)?;
        self.count_executed(value.len())?;
        let mut chosen = value[..leaves.len()].to_vec();
        for i in 1..n {
            let number = self.dag.constant(i);
            let here = self.dag.compare(Compare::Equal, index, number);
            for (leaf, chosen) in chosen.iter_mut().enumerate() {
                *chosen = self.dag.select(here, value[i as usize * leaves.len() + leaf], *chosen);
            }
        }
        Ok(chosen)
    }

    fn table_element(&mut self, constant: Handle<Expression>, leaves: &[Leaf], index: Node) -> Result<Vec<Node>> {
        let table = match self.table_of.get(&constant) {
            Some(&table) => table,
            None => {
                let mut words = Vec::new();
                self.table_words(constant, &mut words)?;
                self.tables.push(words);
                let table = self.tables.len() as u32 - 1;
                self.table_of.insert(constant, table);
                table
            }
        };
        let words = self.tables[table as usize].iter().copied();
        let range = words.map(Range::exactly).reduce(Range::union).unwrap_or(Range::ALL);
        let stride = self.dag.constant(leaves.len() as u32);
        let first = self.dag.binary(Binary::Multiply, index, stride);
        let mut values = Vec::new();
        for (offset, leaf) in (0..).zip(leaves) {
            let at = self.dag.add_constant(first, offset);
            let word = self.dag.table(table, at, range);
            values.push(match kind_of(*leaf)? {
                ValueKind::Word => word,
                ValueKind::Mask => self.dag.nonzero_mask(word),
            });
        }
        Ok(values)
    }

    /// Appends the scalars of a constant to a table.
    fn table_words(&self, constant: Handle<Expression>, into: &mut Vec<u32>) -> Result<()> {
        match self.module.global_expressions[constant] {
            Expression::Literal(literal) => into.push(number(literal)?),
            Expression::Constant(constant) => self.table_words(self.module.constants[constant].init, into)?,
            Expression::ZeroValue(ty) => {
                let count = types::leaves(self.module, types::inner(self.module, ty))?.len();
                into.resize(into.len() + count, 0);
            }
            Expression::Compose { ref components, .. } => {
                for &component in components {
                    self.table_words(component, into)?;
                }
            }
            Expression::Splat { size, value } => {
                for _ in 0..size as u32 {
                    self.table_words(value, into)?;
                }
            }
            ref other => return Err(Unsupported(format!("the constant expression {other:?}"))),
        }
        let all: usize = self.tables.iter().map(Vec::len).sum();
        if all + into.len() > MAX_TABLE_WORDS {
            return Err(Unsupported(format!("constant tables of more than {MAX_TABLE_WORDS} words")));
        }
        Ok(())
    }
}

/// Returns the bits of a 32-bit literal.
pub(super) fn number(literal: Literal) -> Result<u32> {
    Ok(match literal {
        Literal::U32(v) => v,
        Literal::I32(v) => v as u32,
        Literal::Bool(v) => v.into(),
        Literal::F32(_) | Literal::F64(_) => return Err(Unsupported("floating point".into())),
        other => return Err(Unsupported(format!("the literal {other:?}"))),
    })
}

fn check_copied(scalars: usize) -> Result<()> {
    if scalars > MAX_COPIED_SCALARS {
        return Err(Unsupported(format!("copying an array of {scalars} scalars (at most {MAX_COPIED_SCALARS})")));
    }
    Ok(())
}
