//! Variables and what pointers point to.
//!
//! A variable is a row of slots of the state, one a scalar. One that is indexed by a number known
//! only at run time is an array: memory of each lane's own.

use naga::{AddressSpace, Expression, GlobalVariable, Handle, Literal, ScalarKind, TypeInner};
use portcullis_core::map::BIND_GROUP;

use super::tracer::{Frame, Home, Operand, Place, Trace};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::types::{self, Leaf};
use crate::compile::vector::ir::{Atomic, Binary, Compare, Effect, Kind, Node, Range};

/// Words of constant tables.
const MAX_TABLES: usize = 4 << 20;
/// Scalars that are moved between arrays and the state at once.
const MAX_MOVED: usize = 256;

/// What a scalar is in lanes.
pub(super) fn kind_of(leaf: Leaf) -> Result<Kind> {
    match (leaf.0.kind, leaf.0.width) {
        (ScalarKind::Bool, _) => Ok(Kind::Mask),
        (ScalarKind::Uint | ScalarKind::Sint, 4) => Ok(Kind::Word),
        (ScalarKind::Float, _) => Err(Unsupported("floating point".into())),
        (kind, width) => Err(Unsupported(format!("{kind:?} numbers of {width} bytes"))),
    }
}

impl<'a> Trace<'a> {
    /// Makes room for a variable.
    fn home(&mut self, inner: &TypeInner, indexed: bool) -> Result<Home> {
        let leaves = types::leaves(self.module, inner)?;
        self.spend(leaves.len())?;
        if indexed {
            self.arrays.push(leaves.len() as u32);
            return Ok(Home::Array(self.arrays.len() as u32 - 1));
        }
        let first = self.state.len();
        for leaf in &leaves {
            let zero = kind_of(*leaf).map(|kind| self.zero(kind))?;
            self.state.push(zero);
        }
        Ok(Home::Slots { first, count: leaves.len() })
    }

    /// Gives a new variable its value, zeros where there is none.
    fn init(&mut self, home: Home, value: Option<Vec<Node>>) -> Result<()> {
        match (home, value) {
            (Home::Slots { first, count }, Some(value)) => {
                self.state[first..first + count].copy_from_slice(&value);
                Ok(())
            }
            (Home::Slots { .. }, None) => Ok(()),
            (Home::Array(array), value) => {
                let zero = self.dag.constant(0);
                let effect = Effect::ArrayFill { array, value: zero };
                self.effect(self.here, effect, Range::ALL);
                let index = zero;
                match value {
                    Some(value) => self.store(Place::Array { array, index }, &value),
                    None => Ok(()),
                }
            }
        }
    }

    /// The private variables of the filter.
    pub(super) fn init_globals(&mut self) -> Result<()> {
        for (handle, global) in self.module.global_variables.iter() {
            let machinery = global.name.as_deref().is_some_and(|n| n.starts_with("pc_"));
            if global.space != AddressSpace::Private || machinery {
                continue;
            }
            let home = self.home(types::inner(self.module, global.ty), self.scan.is_indexed_global(handle))?;
            self.globals.insert(handle, home);
            let value = global.init.map(|init| self.materialise(init)).transpose()?;
            self.init(home, value)?;
        }
        Ok(())
    }

    /// The variables of a call.
    pub(super) fn init_locals(&mut self, frame: &mut Frame<'a>) -> Result<()> {
        for (handle, local) in frame.code.local_variables.iter() {
            let indexed = self.scan.is_indexed(frame.handle, handle);
            let home = self.home(types::inner(self.module, local.ty), indexed)?;
            frame.locals.push(home);
            let value = match local.init {
                Some(init) => Some(self.value(frame, init)?),
                None => None,
            };
            self.init(home, value)?;
        }
        Ok(())
    }

    pub(super) fn place_of(&mut self, home: Home) -> Place {
        match home {
            Home::Slots { first, .. } => Place::Slots(first),
            Home::Array(array) => Place::Array { array, index: self.dag.constant(0) },
        }
    }

    pub(super) fn global(&mut self, global: Handle<GlobalVariable>) -> Result<Place> {
        let binding = self.module.global_variables[global].binding;
        if let Some(binding) = binding.filter(|binding| binding.group == BIND_GROUP) {
            return Ok(Place::Map { map: binding.binding, index: self.dag.constant(0) });
        }
        match self.globals.get(&global).copied() {
            Some(home) => Ok(self.place_of(home)),
            None => Err(Unsupported("a variable outside the filter's own memory".into())),
        }
    }

    /// What is so many scalars further on.
    pub(super) fn part_of(&mut self, place: Place, leaves: u32) -> Place {
        match place {
            Place::Slots(first) => Place::Slots(first + leaves as usize),
            Place::Array { array, index } => Place::Array { array, index: self.dag.add_constant(index, leaves) },
            Place::Map { map, index } => Place::Map { map, index: self.dag.add_constant(index, leaves) },
        }
    }

    /// A part that is known only at run time, of `n`.
    pub(super) fn element(&mut self, place: Place, stride: u32, n: u32, at: Node) -> Result<Place> {
        let at = if n == types::UNBOUNDED { at } else { self.clamped(at, n) };
        let stride_node = self.dag.constant(stride);
        let words = self.dag.binary(Binary::Multiply, at, stride_node);
        Ok(match place {
            Place::Slots(first) => match self.dag.as_constant(words) {
                Some(words) => Place::Slots(first + words as usize),
                None => return Err(Unsupported("a dynamic index into what is not in memory".into())),
            },
            Place::Array { array, index } => Place::Array { array, index: self.dag.binary(Binary::Add, index, words) },
            Place::Map { map, index } => Place::Map { map, index: self.dag.binary(Binary::Add, index, words) },
        })
    }

    /// min(index, n - 1)
    pub(super) fn clamped(&mut self, index: Node, n: u32) -> Node {
        let last = self.dag.constant(n - 1);
        self.dag.binary(Binary::Min, index, last)
    }

    /// The scalars at a place.
    pub(super) fn load_place(&mut self, place: Place, inner: &TypeInner) -> Result<Vec<Node>> {
        let leaves = types::leaves(self.module, inner)?;
        self.spend(leaves.len())?;
        match place {
            Place::Slots(first) => Ok(self.state[first..first + leaves.len()].to_vec()),
            Place::Array { array, index } => {
                check_moved(leaves.len())?;
                let mut values = Vec::with_capacity(leaves.len());
                for (offset, leaf) in (0..).zip(&leaves) {
                    let index = self.dag.add_constant(index, offset);
                    let word = self.effect(self.here, Effect::ArrayLoad { array, index }, Range::ALL);
                    values.push(match kind_of(*leaf)? {
                        Kind::Word => word,
                        Kind::Mask => self.dag.not_zero(word),
                    });
                }
                Ok(values)
            }
            Place::Map { map, index } => {
                let effect = Effect::Map { map, word: index, atomic: Atomic::Load };
                Ok(vec![self.effect(self.here, effect, Range::ALL)])
            }
        }
    }

    /// Writes scalars to a place.
    pub(super) fn store(&mut self, place: Place, value: &[Node]) -> Result<()> {
        self.spend(value.len())?;
        match place {
            Place::Slots(first) => self.state[first..first + value.len()].copy_from_slice(value),
            Place::Array { array, index } => {
                check_moved(value.len())?;
                for (offset, &node) in (0..).zip(value) {
                    let index = self.dag.add_constant(index, offset);
                    let value = self.as_word(node);
                    self.effect(self.here, Effect::ArrayStore { array, index, value }, Range::ALL);
                }
            }
            Place::Map { map, index } => {
                let effect = Effect::Map { map, word: index, atomic: Atomic::Store(value[0]) };
                self.effect(self.here, effect, Range::ALL);
            }
        }
        Ok(())
    }

    /// Masks are 1 and 0 in memory.
    pub(super) fn as_word(&mut self, node: Node) -> Node {
        match self.dag.kind(node) {
            Kind::Word => node,
            Kind::Mask => self.dag.word_of(node),
        }
    }

    /// A part of a value, by an index known only at run time.
    pub(super) fn value_element(
        &mut self,
        frame: &mut Frame<'a>,
        base: Handle<Expression>,
        inner: &TypeInner,
        index: Node,
    ) -> Result<Vec<Node>> {
        let (part, n) = types::uniform_part(self.module, inner)?;
        let leaves = types::leaves(self.module, &part.inner)?;
        let index = self.clamped(index, n);
        if let Operand::Constant(constant) = self.operand(frame, base)?
            && self.dag.as_constant(index).is_none()
        {
            return self.table_element(constant, &leaves, index);
        }
        let value = self.value(frame, base)?;
        self.spend(value.len())?;
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
        let range = words.map(Range::of).reduce(Range::union).unwrap_or(Range::ALL);
        let stride = self.dag.constant(leaves.len() as u32);
        let first = self.dag.binary(Binary::Multiply, index, stride);
        let mut values = Vec::new();
        for (offset, leaf) in (0..).zip(leaves) {
            let at = self.dag.add_constant(first, offset);
            let word = self.dag.table(table, at, range);
            values.push(match kind_of(*leaf)? {
                Kind::Word => word,
                Kind::Mask => self.dag.not_zero(word),
            });
        }
        Ok(values)
    }

    /// A constant's scalars, as numbers.
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
        if all + into.len() > MAX_TABLES {
            return Err(Unsupported(format!("constant tables of more than {MAX_TABLES} words")));
        }
        Ok(())
    }
}

/// A literal as 32 bits.
pub(super) fn number(literal: Literal) -> Result<u32> {
    Ok(match literal {
        Literal::U32(v) => v,
        Literal::I32(v) => v as u32,
        Literal::Bool(v) => v.into(),
        Literal::F32(_) | Literal::F64(_) => return Err(Unsupported("floating point".into())),
        other => return Err(Unsupported(format!("the literal {other:?}"))),
    })
}

fn check_moved(scalars: usize) -> Result<()> {
    if scalars > MAX_MOVED {
        return Err(Unsupported(format!("an array of {scalars} numbers copied (at most {MAX_MOVED})")));
    }
    Ok(())
}
