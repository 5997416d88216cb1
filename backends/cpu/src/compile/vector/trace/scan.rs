//! What is found out of a module before it is traced.

use std::collections::HashSet;

use naga::{Expression, Function, GlobalVariable, Handle, LocalVariable, Module, Statement, TypeInner};
use portcullis_core::program::child_blocks;
use portcullis_core::program::prelude::Intrinsic;

use super::module::Code;
use crate::compile::types;

/// What a pointer leads back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Root {
    Local(Handle<LocalVariable>),
    Argument(u32),
    Global(Handle<GlobalVariable>),
}

/// What a function does, and those that it calls.
#[derive(Debug, Clone, Default)]
pub(super) struct Effects {
    /// Stores to the packet.
    pub stores: bool,
    /// Changes of the packet's ends.
    pub moves: bool,
    /// Loops.
    pub loops: bool,
    /// Private variables that are stored to.
    pub globals: HashSet<Handle<GlobalVariable>>,
}

/// What is known of each function.
#[derive(Debug)]
pub(super) struct Scan {
    effects: Vec<Effects>,
    /// Variables that are indexed by numbers known only at run time.
    indexed: Vec<HashSet<Root>>,
    indexed_globals: HashSet<Handle<GlobalVariable>>,
}

impl Scan {
    pub fn of(code: &Code) -> Scan {
        let module = &code.module;
        let n = module.functions.len();
        let mut scan =
            Scan { effects: Vec::with_capacity(n), indexed: Vec::with_capacity(n), indexed_globals: HashSet::new() };
        // A function stands behind those that it calls.
        for (handle, _) in module.functions.iter() {
            let (mut effects, mut indexed) = (Effects::default(), HashSet::new());
            match code.intrinsics.get(&handle) {
                Some(Intrinsic::Store { .. }) => effects.stores = true,
                Some(Intrinsic::AdjustHead | Intrinsic::AdjustTail) => effects.moves = true,
                Some(intrinsic) if intrinsic.takes_packet() => {}
                _ => {
                    scan.function(module, handle, code, &mut effects, &mut indexed);
                    for root in &indexed {
                        if let Root::Global(global) = root {
                            scan.indexed_globals.insert(*global);
                        }
                    }
                }
            }
            scan.effects.push(effects);
            scan.indexed.push(indexed);
        }
        scan
    }

    fn function(
        &self,
        module: &Module,
        handle: Handle<Function>,
        code: &Code,
        effects: &mut Effects,
        indexed: &mut HashSet<Root>,
    ) {
        let function = &module.functions[handle];
        let info = &code.info[handle];
        for (_, expression) in function.expressions.iter() {
            if let Expression::Access { base, .. } = *expression
                && types::pointee(module, info[base].ty.inner_with(&module.types)).is_some()
            {
                indexed.extend(root_of(function, base));
            }
        }
        let mut work = vec![&function.body];
        while let Some(block) = work.pop() {
            for statement in block {
                match statement {
                    Statement::Store { pointer, .. } => {
                        if let Some(Root::Global(global)) = root_of(function, *pointer) {
                            effects.globals.insert(global);
                        }
                    }
                    Statement::Loop { .. } => effects.loops = true,
                    Statement::Call { function: callee, arguments, .. } => {
                        let theirs = &self.effects[callee.index()];
                        effects.stores |= theirs.stores;
                        effects.moves |= theirs.moves;
                        effects.loops |= theirs.loops;
                        effects.globals.extend(&theirs.globals);
                        for (number, &argument) in (0..).zip(arguments) {
                            let Some(root) = pointer_root(module, info, function, argument) else { continue };
                            if self.indexed[callee.index()].contains(&Root::Argument(number)) {
                                indexed.insert(root);
                            }
                            if let Root::Global(global) = root {
                                effects.globals.insert(global);
                            }
                        }
                    }
                    _ => {}
                }
                work.extend(child_blocks(statement));
            }
        }
    }

    pub fn effects(&self, function: Handle<Function>) -> &Effects {
        &self.effects[function.index()]
    }

    pub fn is_indexed(&self, function: Handle<Function>, local: Handle<LocalVariable>) -> bool {
        self.indexed[function.index()].contains(&Root::Local(local))
    }

    pub fn is_indexed_global(&self, global: Handle<GlobalVariable>) -> bool {
        self.indexed_globals.contains(&global)
    }
}

/// The variable that a pointer points into.
pub(super) fn root_of(function: &Function, mut pointer: Handle<Expression>) -> Option<Root> {
    loop {
        match function.expressions[pointer] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => pointer = base,
            Expression::LocalVariable(local) => return Some(Root::Local(local)),
            Expression::FunctionArgument(number) => return Some(Root::Argument(number)),
            Expression::GlobalVariable(global) => return Some(Root::Global(global)),
            _ => return None,
        }
    }
}

/// The same of what may be no pointer.
pub(super) fn pointer_root(
    module: &Module,
    info: &naga::valid::FunctionInfo,
    function: &Function,
    expression: Handle<Expression>,
) -> Option<Root> {
    let inner = info[expression].ty.inner_with(&module.types);
    matches!(inner, TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. })
        .then(|| root_of(function, expression))
        .flatten()
}
