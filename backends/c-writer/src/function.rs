//! The state of writing one function, and the types of its expressions.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use naga::valid::FunctionInfo;
use naga::{Expression, Function, Handle, LocalVariable, Scalar, Statement, Type, TypeInner};

use crate::c_expr::CExpr;
use crate::scope::Scope;
use crate::types::unsupported_type;
use crate::{FISSION_PACKETS, Result, WriteError, Writer};

/// The loop of a kernel for [`PacketAccess::LoopFission`](crate::PacketAccess::LoopFission) that a
/// function is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FissionLoop {
    /// Loads words from packets, and stores them in arrays.
    Loads,
    /// Takes the words from the arrays.
    Verdicts,
}

/// Parameter of functions that load from packets, with loop fission: the words that they load.
pub(crate) const LOADED: &str = "loaded";

/// A condition `a && b` or `a || b` that replaces a variable.
pub(crate) struct Condition {
    pub text: CExpr,
    /// Depth of its text.
    pub depth: u32,
    /// Whether the one load of the variable was evaluated, and now is a pending read like others.
    pub loaded: bool,
}

/// Writes the body of one function.
pub(crate) struct FunctionWriter<'w, 'a> {
    pub writer: &'w mut Writer<'a>,
    pub function: &'a Function,
    pub info: &'a FunctionInfo,
    pub names: Scope,
    pub last_temporary: u32,
    pub last_label: u32,
    pub arguments: Vec<String>,
    pub locals: HashMap<Handle<LocalVariable>, String>,
    /// Local variables that the text uses, and that need a declaration.
    pub used_locals: HashSet<Handle<LocalVariable>>,
    pub state: Option<String>,
    /// Expressions that have a name.
    pub baked: HashMap<Handle<Expression>, String>,
    /// Named expressions that were declared before they are evaluated.
    pub hoisted: HashSet<Handle<Expression>>,
    /// Expressions that must get a name, because their text would be repeated.
    pub must_name: HashSet<Handle<Expression>>,
    /// Calls without side effects, to be written where their result is used.
    pub calls: HashMap<Handle<Expression>, CExpr>,
    /// Conditions by the variables that naga stores them in.
    pub conditions: HashMap<Handle<LocalVariable>, Condition>,
    /// Variables that hold `a && b` or `a || b`, if that can be written as an expression.
    pub short_circuits: HashSet<Handle<LocalVariable>>,
    /// Evaluated reads of memory that are not written yet, in order.
    pub pending_reads: Vec<Handle<Expression>>,
    /// Depth of the text of expressions without a name.
    pub depths: HashMap<Handle<Expression>, u32>,
    /// Whether atomic additions are combined with those of other threads; their results have no
    /// meaning then.
    pub combines_adds: bool,
    /// The loop that the function is written for, if it loads from packets and loops are split.
    pub fission: Option<FissionLoop>,
    /// Number of loads by the calls so far.
    pub loads: u32,
    pub out: String,
    /// Number of blocks around the current statement.
    pub block_depth: usize,
    /// For each enclosing loop, the label that `continue` jumps to, if it needs one.
    pub loops: Vec<Option<String>>,
}

impl<'w, 'a> FunctionWriter<'w, 'a> {
    pub(crate) fn new(
        writer: &'w mut Writer<'a>,
        handle: Handle<Function>,
        mut names: Scope,
        arguments: Vec<String>,
        state: Option<String>,
    ) -> FunctionWriter<'w, 'a> {
        let lowered = writer.lowered;
        let function = &lowered.module.functions[handle];
        let locals = function.local_variables.iter();
        let locals =
            locals.map(|(handle, local)| (handle, names.unique_name(local.name.as_deref().unwrap_or("v")))).collect();
        let mut body = FunctionWriter {
            writer,
            function,
            info: &lowered.info[handle],
            names,
            combines_adds: false,
            fission: None,
            loads: 0,
            last_temporary: 0,
            last_label: 0,
            arguments,
            locals,
            used_locals: HashSet::new(),
            state,
            baked: HashMap::new(),
            hoisted: HashSet::new(),
            must_name: HashSet::new(),
            calls: HashMap::new(),
            conditions: HashMap::new(),
            short_circuits: HashSet::new(),
            pending_reads: Vec::new(),
            depths: HashMap::new(),
            out: String::new(),
            block_depth: 1,
            loops: Vec::new(),
        };
        body.find_repeated_operands();
        body.find_short_circuits();
        body
    }

    /// Writes the body, with declarations of its local variables.
    pub(crate) fn write(mut self) -> Result<String> {
        let function = self.function;
        match function.body.split_last() {
            Some((Statement::Return { value: None }, before)) => {
                for statement in before {
                    self.statement(statement)?;
                }
            }
            _ => self.block(&function.body)?,
        }
        let text = std::mem::take(&mut self.out);
        for (handle, local) in function.local_variables.iter() {
            if self.used_locals.contains(&handle) {
                let ty = self.writer.type_name(local.ty)?;
                let init = match local.init {
                    Some(init) => self.expression(init)?.text,
                    None => self.writer.zero(local.ty)?,
                };
                let name = self.locals[&handle].clone();
                self.line(&format!("{ty} {name} = {init};"));
            }
        }
        Ok(self.out + &text)
    }

    /// Name of the pointer to the invocation's state.
    pub(crate) fn state(&self) -> Result<&str> {
        self.state.as_deref().ok_or_else(|| WriteError::internal("a function without its packet"))
    }

    /// Numbers the loads of a call, and returns the place of the first: elements of the array
    /// [`LOADED`] are [`FISSION_PACKETS`] apart, those of other packets are between.
    pub(crate) fn loaded_index(&mut self, loads: u32) -> String {
        let first = self.loads;
        self.loads += loads;
        format!("{}u", first * FISSION_PACKETS)
    }

    pub(crate) fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{:1$}{text}", "", self.block_depth * 4);
    }

    pub(crate) fn inner(&self, handle: Handle<Expression>) -> &'a TypeInner {
        self.info[handle].ty.inner_with(&self.writer.module.types)
    }

    /// The type that an expression points to, or that of its value if it is not a pointer.
    pub(crate) fn pointee(&self, handle: Handle<Expression>) -> (&'a TypeInner, Option<Handle<Type>>) {
        match self.inner(handle) {
            TypeInner::Pointer { base, .. } => (&self.writer.module.types[*base].inner, Some(*base)),
            other => (other, self.info[handle].ty.handle()),
        }
    }

    pub(crate) fn scalar(&self, handle: Handle<Expression>) -> Result<Scalar> {
        let inner = self.inner(handle);
        inner.scalar().ok_or_else(|| unsupported_type(inner))
    }

    pub(crate) fn vector_size(&self, handle: Handle<Expression>) -> Option<usize> {
        match *self.inner(handle) {
            TypeInner::Vector { size, .. } => Some(size as usize),
            _ => None,
        }
    }

    pub(crate) fn is_pointer(&self, handle: Handle<Expression>) -> bool {
        matches!(self.inner(handle), TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. })
    }
}
