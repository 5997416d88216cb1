//! Lowers the typed tree to a naga module.
//!
//! A *pointer* is a place known at compile time plus indices known at run time ([`shapes`]): into
//! the packet a byte offset, into a variable or table the indices on the path to the target. A
//! function with pointer parameters is therefore specialised for each combination of places that it
//! is called with ([`functions`]). `char` and `short` are kept in `i32` and `u32`, always within
//! their range ([`convert`]). A packet access is a call of the prelude for each scalar
//! ([`packet`]). Keys of maps are read word by word ([`maps`]).
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
mod shapes;
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
use functions::{LoweredFunction, Specialization};
use portcullis_core::map::Declaration;

/// Marks an error that has been reported.
struct ErrorReported;

type Result<T> = std::result::Result<T, ErrorReported>;

/// Maximum number of lowered functions; each specialisation counts.
const MAX_FUNCTIONS: usize = 4_096;

/// Lowers a filter; returns `None` after reporting errors to `errors`.
pub(super) fn lower(
    filter: &Filter,
    names: &Names,
    files: &Files,
    maps: &[Declaration],
    errors: &mut Errors,
) -> Option<Module> {
    // 64-bit accesses are included only on demand: a device may lack 64-bit integers.
    let module = library::module(maps, filter.uses_wide);
    let prelude_functions = module.functions.iter().filter_map(|(handle, f)| Some((f.name.clone()?, handle))).collect();
    let mut lowering = Lowering {
        filter,
        names,
        files,
        maps,
        errors,
        module,
        prelude_functions,
        layouter: Layouter::default(),
        structs: HashMap::new(),
        tables: BTreeMap::new(),
        lowered: HashMap::new(),
        expressions: 0,
        is_uncalled: false,
    };
    let done = lowering.lower_entry_points().and_then(|()| lowering.check_uncalled());
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
    /// Functions of the prelude and of the maps, by name.
    prelude_functions: HashMap<String, Handle<Function>>,
    layouter: Layouter,
    structs: HashMap<u32, Handle<naga::Type>>,
    tables: BTreeMap<u32, Handle<Constant>>,
    lowered: HashMap<Specialization, LoweredFunction>,
    /// Number of expressions in all functions so far; bounds the work on oversized filters.
    expressions: u64,
    /// Whether the current function is never called, so that the targets of its parameters are
    /// guesses.
    is_uncalled: bool,
}

impl Lowering<'_> {
    /// Converts a place to a range of the text that diagnostics point into.
    fn span(&self, span: Span) -> naga::Span {
        let range = self.files.range(span);
        naga::Span::new(range.start as u32, range.end as u32)
    }

    fn fail<T>(&mut self, span: Span, message: impl Into<String>, note: &str) -> Result<T> {
        self.errors.add(span, message, "", note);
        Err(ErrorReported)
    }

    /// Lowers functions that are never called, to report their errors, and drops the result.
    fn check_uncalled(&mut self) -> Result<()> {
        let before = self.module.clone();
        for (i, function) in self.filter.functions.iter().enumerate() {
            let id = FunctionId(i as u32);
            let called = self.lowered.keys().any(|key| key.function == id);
            if !called && function.body.is_some() && !self.errors.is_full() {
                self.lower_uncalled(id);
            }
        }
        self.module = before;
        Ok(())
    }

    /// Returns a table as a constant of the module.
    fn table(&mut self, id: TableId) -> Handle<Constant> {
        if let Some(&handle) = self.tables.get(&id.0) {
            return handle;
        }
        let filter = self.filter;
        let table = &filter.tables[id.0 as usize];
        let span = self.span(table.span);
        let mut values = table.values.iter().copied();
        let init = self.compose(&table.ty, &mut values);
        let ty = self.ty(&table.ty);
        let constant = Constant { name: Some(table.name.clone()), ty, init };
        let handle = self.module.constants.append(constant, span);
        self.tables.insert(id.0, handle);
        handle
    }

    /// Builds a constant expression of a type from its scalars in memory order.
    fn compose(&mut self, ty: &Type, values: &mut impl Iterator<Item = u64>) -> Handle<Expression> {
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
            Type::Void | Type::Pointer(_) | Type::Error => Vec::new(),
        };
        let components = parts.iter().map(|part| self.compose(part, values)).collect();
        let ty = self.ty(ty);
        self.module.global_expressions.append(Expression::Compose { ty, components }, naga::Span::UNDEFINED)
    }
}

/// Converts a scalar constant to naga's literal.
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

/// The naga type that holds a scalar.
fn naga_scalar(scalar: Scalar) -> NagaScalar {
    match scalar {
        Scalar::Bool => NagaScalar::BOOL,
        Scalar::Char | Scalar::Short | Scalar::Int => NagaScalar::I32,
        Scalar::UChar | Scalar::UShort | Scalar::UInt => NagaScalar::U32,
        Scalar::Long => NagaScalar::I64,
        Scalar::ULong => NagaScalar::U64,
        Scalar::Float => NagaScalar::F32,
    }
}

/// Whether an expression is this integer constant.
fn is_integer(kind: &ExprKind, value: u64) -> bool {
    matches!(kind, ExprKind::Integer(bits) if *bits == value)
}
