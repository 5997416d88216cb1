//! A pass over the module ahead of tracing.

use std::collections::HashSet;

use naga::{Expression, Function, GlobalVariable, Handle, LocalVariable, Module, Statement, TypeInner};
use portcullis_core::program::child_blocks;
use portcullis_core::program::prelude::Intrinsic;

use super::module::LoweredModule;
use crate::compile::types;

/// The variable that a pointer is derived from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PointerRoot {
    Local(Handle<LocalVariable>),
    Argument(u32),
    Global(Handle<GlobalVariable>),
}

/// Side effects of a function and of the functions that it calls.
#[derive(Debug, Clone, Default)]
pub(super) struct FunctionEffects {
    /// Whether the function stores to the packet.
    pub stores: bool,
    /// Whether the function changes the packet's start or length.
    pub moves: bool,
    /// Whether the function has a loop.
    pub loops: bool,
    /// Private variables that it stores to.
    pub globals: HashSet<Handle<GlobalVariable>>,
}

/// Facts about each function.
#[derive(Debug)]
pub(super) struct ModuleScan {
    effects: Vec<FunctionEffects>,
    /// For each function, the variables that it indexes by values known only at run time.
    indexed: Vec<HashSet<PointerRoot>>,
    indexed_globals: HashSet<Handle<GlobalVariable>>,
}

impl ModuleScan {
    pub fn of(code: &LoweredModule) -> ModuleScan {
        let module = &code.module;
        let n = module.functions.len();
        let mut scan = ModuleScan {
            effects: Vec::with_capacity(n),
            indexed: Vec::with_capacity(n),
            indexed_globals: HashSet::new(),
        };
        // Callees precede their callers in the arena.
        for (handle, _) in module.functions.iter() {
            let (mut effects, mut indexed) = (FunctionEffects::default(), HashSet::new());
            match code.intrinsics.get(&handle) {
                Some(Intrinsic::Store { .. }) => effects.stores = true,
                Some(Intrinsic::AdjustHead | Intrinsic::AdjustTail) => effects.moves = true,
                Some(intrinsic) if intrinsic.takes_packet() => {}
                _ => {
                    scan.function(module, handle, code, &mut effects, &mut indexed);
                    for root in &indexed {
                        if let PointerRoot::Global(global) = root {
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
        code: &LoweredModule,
        effects: &mut FunctionEffects,
        indexed: &mut HashSet<PointerRoot>,
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
                        if let Some(PointerRoot::Global(global)) = root_of(function, *pointer) {
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
                            if self.indexed[callee.index()].contains(&PointerRoot::Argument(number)) {
                                indexed.insert(root);
                            }
                            if let PointerRoot::Global(global) = root {
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

    pub fn effects(&self, function: Handle<Function>) -> &FunctionEffects {
        &self.effects[function.index()]
    }

    pub fn is_indexed(&self, function: Handle<Function>, local: Handle<LocalVariable>) -> bool {
        self.indexed[function.index()].contains(&PointerRoot::Local(local))
    }

    pub fn is_indexed_global(&self, global: Handle<GlobalVariable>) -> bool {
        self.indexed_globals.contains(&global)
    }
}

/// Returns the variable that a pointer is derived from.
pub(super) fn root_of(function: &Function, mut pointer: Handle<Expression>) -> Option<PointerRoot> {
    loop {
        match function.expressions[pointer] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => pointer = base,
            Expression::LocalVariable(local) => return Some(PointerRoot::Local(local)),
            Expression::FunctionArgument(number) => return Some(PointerRoot::Argument(number)),
            Expression::GlobalVariable(global) => return Some(PointerRoot::Global(global)),
            _ => return None,
        }
    }
}

/// Returns the variable that an expression is derived from if it is a pointer, otherwise `None`.
pub(super) fn pointer_root(
    module: &Module,
    info: &naga::valid::FunctionInfo,
    function: &Function,
    expression: Handle<Expression>,
) -> Option<PointerRoot> {
    let inner = info[expression].ty.inner_with(&module.types);
    matches!(inner, TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. })
        .then(|| root_of(function, expression))
        .flatten()
}
