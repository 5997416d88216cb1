//! From the checked tree to a naga module.
//!
//! A *pointer* is a place known when the filter is compiled, and numbers that are not ([`pointers`]): into
//! the packet a byte offset, into a variable or table the indices on the way. So a function with
//! pointers among its parameters is lowered once for each kind of place that it is called with
//! ([`functions`]). `char` and `short` live in `i32` and `u32`, always with a value that they can have
//! ([`convert`]). An access of the packet is a call of the prelude for each scalar ([`packet`]).
//!
//! Keys of maps are read from where they lie word by word ([`maps`]).
//!
//! Operands are evaluated from left to right.

mod arithmetic;
mod builtins;
mod convert;
mod expressions;
mod functions;
mod maps;
mod packet;
mod pointers;
mod statements;
mod switch;
mod types;

use std::collections::{BTreeMap, HashMap};

use naga::proc::Layouter;
use naga::{Constant, Expression, Function, Handle, Literal, Module, Scalar as NagaScalar};

use super::errors::Errors;
use super::files::{Files, Span};
use super::library;
use super::token::Names;
use super::tree::{ExprKind, Filter, FunctionId, TableId};
use super::types::{Scalar, Type};
use functions::{Key, Lowered};
use portcullis_core::map::Declaration;

/// What was wrong has been said.
struct Stop;

type Result<T> = std::result::Result<T, Stop>;

/// Functions that a filter may become, one with pointers counting as often as it is lowered.
const MAX_FUNCTIONS: usize = 4_096;

/// Lowers a filter; `None` where something is wrong, which is then in `errors`.
pub(super) fn lower(
    filter: &Filter,
    names: &Names,
    files: &Files,
    maps: &[Declaration],
    errors: &mut Errors,
) -> Option<Module> {
    // A device may have no integers of 64 bits: the functions for them are there only if they are needed.
    let module = library::module(maps, filter.wide);
    let named = module.functions.iter().filter_map(|(handle, f)| Some((f.name.clone()?, handle))).collect();
    let mut lowering = Lowering {
        filter,
        names,
        files,
        maps,
        errors,
        module,
        named,
        layouter: Layouter::default(),
        structs: HashMap::new(),
        tables: BTreeMap::new(),
        lowered: HashMap::new(),
        expressions: 0,
        alone: false,
    };
    let done = lowering.filter().and_then(|()| lowering.unused());
    let Lowering { module, errors, .. } = lowering;
    debug_assert!(done.is_ok() || !errors.is_empty(), "it stops at errors only");
    (done.is_ok() && errors.is_empty()).then_some(module)
}

struct Lowering<'a> {
    filter: &'a Filter,
    names: &'a Names,
    files: &'a Files,
    maps: &'a [Declaration],
    errors: &'a mut Errors,
    module: Module,
    /// The functions behind the filter, by name.
    named: HashMap<String, Handle<Function>>,
    layouter: Layouter,
    structs: HashMap<u32, Handle<naga::Type>>,
    tables: BTreeMap<u32, Handle<Constant>>,
    lowered: HashMap<Key, Lowered>,
    /// Expressions of all functions so far: what is too much is not built.
    expressions: u64,
    /// Whether the function under way is one that nothing calls: what its parameters point to is a guess.
    alone: bool,
}

impl Lowering<'_> {
    /// A place in the text that diagnostics point into.
    fn span(&self, span: Span) -> naga::Span {
        let range = self.files.range(span);
        naga::Span::new(range.start as u32, range.end as u32)
    }

    fn fail<T>(&mut self, span: Span, message: impl Into<String>, note: &str) -> Result<T> {
        self.errors.add(span, message, "", note);
        Err(Stop)
    }

    /// Lowers what nothing calls as well, for what is wrong with it; then it is dropped.
    fn unused(&mut self) -> Result<()> {
        let before = self.module.clone();
        for (i, function) in self.filter.functions.iter().enumerate() {
            let id = FunctionId(i as u32);
            let called = self.lowered.keys().any(|key| key.function == id);
            if !called && function.body.is_some() && !self.errors.is_full() {
                self.alone(id);
            }
        }
        self.module = before;
        Ok(())
    }

    /// A table as a constant of the module.
    fn table(&mut self, id: TableId) -> Handle<Constant> {
        if let Some(&handle) = self.tables.get(&id.0) {
            return handle;
        }
        let filter = self.filter;
        let table = &filter.tables[id.0 as usize];
        let span = self.span(table.span);
        let mut values = table.values.iter().copied();
        let init = self.composed(&table.ty, &mut values);
        let ty = self.ty(&table.ty);
        let constant = Constant { name: Some(table.name.clone()), ty, init };
        let handle = self.module.constants.append(constant, span);
        self.tables.insert(id.0, handle);
        handle
    }

    /// A constant expression of a type, of the scalars in its order.
    fn composed(&mut self, ty: &Type, values: &mut impl Iterator<Item = u64>) -> Handle<Expression> {
        let parts: Vec<Type> = match ty {
            Type::Scalar(scalar) => {
                let literal = literal(*scalar, values.next().unwrap_or_default());
                return self.module.global_expressions.append(Expression::Literal(literal), naga::Span::UNDEFINED);
            }
            Type::Vector(scalar, size) => vec![Type::Scalar(*scalar); usize::from(*size)],
            Type::Array(of, count) => vec![(**of).clone(); *count as usize],
            Type::Struct(id) => {
                self.filter.structs.get(*id).fields.iter().flatten().map(|field| field.ty.clone()).collect()
            }
            Type::Void | Type::Pointer(_) | Type::Wrong => Vec::new(),
        };
        let components = parts.iter().map(|part| self.composed(part, values)).collect();
        let ty = self.ty(ty);
        self.module.global_expressions.append(Expression::Compose { ty, components }, naga::Span::UNDEFINED)
    }
}

/// A scalar's value as naga has it.
fn literal(scalar: Scalar, bits: u64) -> Literal {
    let value = scalar.wrap(i128::from(bits));
    match scalar {
        Scalar::Bool => Literal::Bool(value != 0),
        Scalar::Char | Scalar::Short | Scalar::Int => Literal::I32(value as i32),
        Scalar::UChar | Scalar::UShort | Scalar::UInt => Literal::U32(value as u32),
        Scalar::Long => Literal::I64(value as i64),
        Scalar::ULong => Literal::U64(value as u64),
        Scalar::Float => Literal::F32(f32::from_bits(bits as u32)),
    }
}

/// The type that a scalar lives in.
fn home(scalar: Scalar) -> NagaScalar {
    match scalar {
        Scalar::Bool => NagaScalar::BOOL,
        Scalar::Char | Scalar::Short | Scalar::Int => NagaScalar::I32,
        Scalar::UChar | Scalar::UShort | Scalar::UInt => NagaScalar::U32,
        Scalar::Long => NagaScalar::I64,
        Scalar::ULong => NagaScalar::U64,
        Scalar::Float => NagaScalar::F32,
    }
}

/// Whether an expression is an integer that is known to be this.
fn is_integer(kind: &ExprKind, value: u64) -> bool {
    matches!(kind, ExprKind::Integer(bits) if *bits == value)
}
