//! Placement of variables: in Cranelift variables, which become registers, or in memory.

use naga::{AddressSpace, Expression, TypeInner};
use portcullis_core::program::Program;

use crate::compile::types;

/// Maximum number of scalars of a variable outside memory.
const MAX_REGISTER_SCALARS: u64 = 32;

/// Whether any function of the filter has a variable that needs memory: one that is large or
/// indexed by a value known only at run time.
pub(super) fn uses_dynamic_indexing(program: &Program) -> bool {
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
    types::count(module, inner).is_ok_and(|n| n > MAX_REGISTER_SCALARS)
}

/// Whether a variable of this type lives outside memory. `indexed` is the result of
/// [`uses_dynamic_indexing`] for the filter.
pub(super) fn in_registers(module: &naga::Module, inner: &TypeInner, indexed: bool) -> bool {
    !is_large(module, inner) && (!indexed || matches!(inner, TypeInner::Scalar(_)))
}
