//! Rejects declarations of entry points, resources and unsupported types, and checks the filter's
//! signature.

use std::ops::Range;

use naga::{AddressSpace, ArraySize, EntryPoint, Handle, Literal, Module, Scalar, ScalarKind, Type, TypeInner};

use super::{Errors, VerifierInput, name_range, text_range};
use crate::diagnostics::Source;
use crate::program::{FILTER_FUNCTION, FLOW_FUNCTION};

pub(super) fn check(input: &VerifierInput, errors: &mut Errors) {
    let module = input.module;
    check_entry_points(input, errors);
    check_signature(input, errors);
    let rejected = rejected_types(module);
    let reason_of = |ty: Handle<Type>| rejected[ty.index()];
    for (handle, variable) in module.global_variables.iter() {
        let name = variable.name.as_deref().unwrap_or_default();
        let Some(at) = name_range(input.source, module.global_variables.get_span(handle), name) else { continue };
        let (what, note) = match variable.space {
            AddressSpace::Private | AddressSpace::Function => match reason_of(variable.ty) {
                Some(reason) => (reason, ""),
                None => continue,
            },
            AddressSpace::WorkGroup => (
                "workgroup memory is not for filters",
                "packets of a batch run in any order: what one leaves there, no other may rely on; use `var<private>`",
            ),
            AddressSpace::Handle => ("textures and samplers are not for filters", RESOURCES),
            AddressSpace::Uniform => ("a filter declares no resources", UNIFORMS),
            AddressSpace::Immediate => ("a filter declares no immediate data", UNIFORMS),
            _ => ("a filter declares no resources", RESOURCES),
        };
        errors.add(Some(at), what, "", note);
    }
    for (handle, ty) in module.types.iter() {
        if let (Some(reason), Some(name)) = (reason_of(handle), ty.name.as_deref())
            && let Some(at) = name_range(input.source, module.types.get_span(handle), name)
        {
            errors.add(Some(at), reason, "", "");
        }
    }
    for (handle, function) in input.own_functions() {
        let signature = function.arguments.iter().map(|a| a.ty).chain(function.result.iter().map(|r| r.ty));
        for reason in signature.filter_map(reason_of) {
            errors.add(input.name_of(handle), reason, "in this function's signature", "");
        }
        for (local, variable) in function.local_variables.iter() {
            if let Some(reason) = reason_of(variable.ty) {
                errors.add(text_range(input.source, function.local_variables.get_span(local)), reason, "", "");
            }
        }
        for (expression, value) in function.expressions.iter() {
            let reason = match *value {
                naga::Expression::Compose { ty, .. } | naga::Expression::ZeroValue(ty) => reason_of(ty),
                naga::Expression::As { kind: ScalarKind::Float, convert: Some(2 | 8), .. }
                | naga::Expression::Literal(Literal::F16(_) | Literal::F64(_)) => Some(UNSUPPORTED_FLOATS),
                _ => None,
            };
            if let Some(reason) = reason {
                errors.add(text_range(input.source, function.expressions.get_span(expression)), reason, "", "");
            }
        }
    }
}

const UNSUPPORTED_FLOATS: &str = "filters have no f16 and no f64";
const RESOURCES: &str = "a filter reaches its packet through the prelude's functions (`load_u8`, `store_be16`, ...)";
const UNIFORMS: &str = "a filter's parameters are `override`s, set by name when it is loaded";

fn check_entry_points(input: &VerifierInput, errors: &mut Errors) {
    for entry in &input.module.entry_points {
        let message = format!("`{}` is an entry point", entry.name);
        let note =
            format!("a filter is the plain function `{FILTER_FUNCTION}`: each device adds an entry point of its own");
        errors.add(entry_point_name_range(input.source, entry), message, "", &note);
    }
}

/// Source range of an entry point's name. naga keeps no span for entry points: it is the last `fn
/// NAME` before the function's first statement.
pub(super) fn entry_point_name_range(source: &Source, entry: &EntryPoint) -> Option<Range<usize>> {
    let first = entry.function.body.span_iter().find_map(|(_, span)| text_range(source, *span));
    let before = source.text.get(..first.as_ref()?.start)?;
    let is_name = |at: &usize| {
        let (left, right) = (before[..*at].trim_end(), &before[at + entry.name.len()..]);
        left.len() < *at && left.ends_with("fn") && right.trim_start().starts_with('(')
    };
    let name = before.match_indices(entry.name.as_str()).map(|(at, _)| at).filter(is_name).last();
    name.map(|at| at..at + entry.name.len()).or(first)
}

fn check_signature(input: &VerifierInput, errors: &mut Errors) {
    let is_u32 = |ty: Handle<Type>| input.module.types[ty].inner == TypeInner::Scalar(Scalar::U32);
    for root in input.roots() {
        let function = &input.module.functions[root];
        let arguments = matches!(function.arguments.as_slice(), [pkt] if is_u32(pkt.ty) && pkt.binding.is_none());
        let result = function.result.as_ref().is_some_and(|r| is_u32(r.ty) && r.binding.is_none());
        if arguments && result {
            continue;
        }
        let (name, note) = match root == input.filter {
            true => {
                (FILTER_FUNCTION, format!("a filter is `fn {FILTER_FUNCTION}(pkt: u32) -> u32`, and returns a verdict"))
            }
            false => (
                FLOW_FUNCTION,
                format!("a packet's flow is `fn {FLOW_FUNCTION}(pkt: u32) -> u32`, equal for packets of one flow"),
            ),
        };
        errors.add(input.name_of(root), format!("`{name}` has the wrong signature"), "", &note);
    }
}

/// The reason why each type is rejected, if it is, by the handle's index. A type refers to earlier
/// types only.
fn rejected_types(module: &Module) -> Vec<Option<&'static str>> {
    let mut rejected: Vec<Option<&'static str>> = Vec::with_capacity(module.types.len());
    for (_, ty) in module.types.iter() {
        let of = |handle: Handle<Type>| rejected.get(handle.index()).copied().flatten();
        let scalar = |scalar: Scalar| match (scalar.kind, scalar.width) {
            (ScalarKind::Float, 2 | 8) => Some(UNSUPPORTED_FLOATS),
            (ScalarKind::Sint | ScalarKind::Uint, 1 | 2) => Some("filters have no 16-bit integers"),
            _ => None,
        };
        rejected.push(match ty.inner {
            TypeInner::Scalar(s) | TypeInner::Vector { scalar: s, .. } | TypeInner::Matrix { scalar: s, .. } => {
                scalar(s)
            }
            TypeInner::Atomic(_) => Some("atomics are not for filters: no memory is shared between packets"),
            TypeInner::Pointer { base, space } => match space {
                AddressSpace::Function | AddressSpace::Private => of(base),
                _ => Some("a filter has pointers to its own variables only"),
            },
            TypeInner::ValuePointer { scalar: s, space, .. } => match space {
                AddressSpace::Function | AddressSpace::Private => scalar(s),
                _ => Some("a filter has pointers to its own variables only"),
            },
            // The prelude's buffers have such types, but no variable of a filter may.
            TypeInner::Array { size: ArraySize::Dynamic, .. } => Some("arrays of filters have a fixed size"),
            TypeInner::Array { base, size: ArraySize::Constant(_), .. } => of(base),
            TypeInner::Array { size: ArraySize::Pending(_), .. } => {
                Some("an array's size is a constant, not an `override`")
            }
            TypeInner::Struct { ref members, .. } => members.iter().find_map(|m| of(m.ty)),
            TypeInner::Image { .. } | TypeInner::Sampler { .. } => Some("textures and samplers are not for filters"),
            TypeInner::AccelerationStructure { .. } | TypeInner::RayQuery { .. } => {
                Some("ray queries are not for filters")
            }
            TypeInner::BindingArray { .. } => Some("a filter declares no resources"),
            TypeInner::CooperativeMatrix { .. } => Some("cooperative matrices are not for filters"),
        });
    }
    rejected
}
