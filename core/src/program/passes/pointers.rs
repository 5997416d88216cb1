//! Specialisation of functions by the shape of their pointer arguments.
//!
//! WGSL lets a call pass a pointer to a part of a variable (`bump(&table.flows[i])`). SPIR-V
//! requires a pointer to the whole variable, and naga's writer has no workaround. So this pass
//! clones a function for each shape of pointer it is called with: the clone takes the whole
//! variable and the indices of the part, and computes the pointer itself. A private global needs no
//! argument.
//!
//! There are at most as many clones as calls in the filter with all helpers inlined, which the
//! verifier bounds. No data moves, so a callee that accesses the same variable in another way sees
//! the same values as before.

use std::collections::HashMap;

use naga::front::Typifier;
use naga::proc::{ResolveContext, ResolveError};
use naga::{
    AddressSpace, Arena, Block, Expression, Function, FunctionArgument, GlobalVariable, Handle, Module, Range, Span,
    Statement, Type, TypeInner,
};

use super::FunctionMap;
use super::rewrite::{child_blocks_mut, rebuild, remap_calls};

/// The variable that a pointer argument points into.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum PathRoot {
    Global(Handle<GlobalVariable>),
    /// A variable of the caller, passed by a pointer of this type.
    Argument(Handle<Type>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum PathElement {
    /// A member or an element with a constant index.
    Fixed(u32),
    /// An element whose index, of this type, is passed.
    Index(Handle<Type>),
}

/// The shape of a pointer argument: its path to the pointee, without the values of the indices.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PointeePath {
    root: PathRoot,
    elements: Vec<PathElement>,
}

/// A [`PathElement`] with its index as an expression of the function that evaluates it.
#[derive(Debug, Clone, Copy)]
enum ElementAccess {
    Fixed(u32),
    Index(Handle<Expression>),
}

/// Types of the expressions that are used as an index.
type IndexTypes = HashMap<Handle<Expression>, Handle<Type>>;

/// Identifies a specialisation: the function and, for each argument, its path if it points to a
/// part of a variable.
type Key = (Handle<Function>, Vec<Option<PointeePath>>);

/// Rewrites every call that passes a pointer to a part of a variable. Returns the functions' new
/// handles, or `None` if there is no such call.
pub(super) fn run(module: &mut Module) -> Result<Option<FunctionMap>, ResolveError> {
    // Has the original functions' handles; those of specialisations follow.
    let provisional = module.functions.clone();
    let groups = module.functions.iter().map(|(handle, function)| vec![(handle, function.clone())]).collect();
    let mut pass = Pass { module, provisional, groups, specializations: HashMap::new() };
    // A function is called by later ones only. Going from the last to the first, all
    // specialisations of a function exist before its own calls are rewritten.
    for group in (0..pass.groups.len()).rev() {
        for member in 0..pass.groups[group].len() {
            let mut function = std::mem::take(&mut pass.groups[group][member].1);
            pass.rewrite_calls(&mut function)?;
            pass.groups[group][member].1 = function;
        }
    }
    let Pass { module, groups, specializations, .. } = pass;
    if specializations.is_empty() {
        return Ok(None);
    }
    let mut new_handles = FunctionMap::new();
    let mut functions = Arena::new();
    for (group, (original, _)) in groups.into_iter().zip(module.functions.iter()) {
        for (handle, function) in group {
            new_handles.insert(handle, functions.append(function, module.functions.get_span(original)));
        }
    }
    for (_, function) in functions.iter_mut() {
        remap_calls(function, &new_handles);
    }
    new_handles.retain(|&handle, _| module.functions.try_get(handle).is_ok());
    module.functions = functions;
    Ok(Some(new_handles))
}

struct Pass<'a> {
    /// The original module, but for added types.
    module: &'a mut Module,
    /// Allocates handles for specialisations.
    provisional: Arena<Function>,
    /// Each function with its specialisations, by provisional handle.
    groups: Vec<Vec<(Handle<Function>, Function)>>,
    specializations: HashMap<Key, Handle<Function>>,
}

impl Pass<'_> {
    fn rewrite_calls(&mut self, function: &mut Function) -> Result<(), ResolveError> {
        let mut body = std::mem::take(&mut function.body);
        let mut index_types = None;
        let mut blocks = vec![&mut body];
        while let Some(block) = blocks.pop() {
            for statement in block.iter_mut() {
                if let Statement::Call { function: callee, arguments, result } = statement
                    && arguments.iter().any(|&argument| self.pointee_path(function, argument).is_some())
                {
                    let types = match &mut index_types {
                        Some(types) => types,
                        none => none.insert(self.index_types(function)?),
                    };
                    let mut new_arguments = Vec::new();
                    let parts =
                        arguments.iter().map(|&a| self.pointee(function, types, a, &mut new_arguments)).collect();
                    *callee = self.specialization(*callee, parts);
                    *arguments = new_arguments;
                    if let Some(result) = *result {
                        *function.expressions.get_mut(result) = Expression::CallResult(*callee);
                    }
                }
                blocks.extend(child_blocks_mut(statement));
            }
        }
        function.body = body;
        Ok(())
    }

    /// Types of all expressions of a function that are used as an index.
    fn index_types(&mut self, function: &Function) -> Result<IndexTypes, ResolveError> {
        let mut typifier = Typifier::new();
        let context = ResolveContext::with_locals(self.module, &function.local_variables, &function.arguments);
        for (handle, _) in function.expressions.iter() {
            typifier.grow(handle, &function.expressions, &context)?;
        }
        let mut types = IndexTypes::new();
        for (_, expression) in function.expressions.iter() {
            if let Expression::Access { index, .. } = *expression {
                types.insert(index, typifier.register_type(index, &mut self.module.types));
            }
        }
        Ok(types)
    }

    /// The variable that an argument points into, and the path from there. `None` if the argument
    /// is not a pointer or points to a whole variable.
    fn pointee_path(
        &self,
        function: &Function,
        argument: Handle<Expression>,
    ) -> Option<(Handle<Expression>, Vec<ElementAccess>)> {
        let mut accesses = Vec::new();
        let mut at = argument;
        loop {
            at = match function.expressions[at] {
                Expression::Access { base, index } => {
                    accesses.push(ElementAccess::Index(index));
                    base
                }
                Expression::AccessIndex { base, index } => {
                    accesses.push(ElementAccess::Fixed(index));
                    base
                }
                _ => break,
            };
        }
        let pointer = match function.expressions[at] {
            Expression::LocalVariable(_) => true,
            Expression::GlobalVariable(variable) => {
                self.module.global_variables[variable].space == AddressSpace::Private
            }
            Expression::FunctionArgument(index) => {
                let ty = function.arguments[index as usize].ty;
                matches!(self.module.types[ty].inner, TypeInner::Pointer { .. })
            }
            _ => false,
        };
        accesses.reverse();
        (pointer && !accesses.is_empty()).then_some((at, accesses))
    }

    /// The path of an argument that points to a part of a variable. Appends to `new_arguments` what
    /// the specialisation gets instead of it, or the argument itself.
    fn pointee(
        &mut self,
        function: &Function,
        types: &IndexTypes,
        argument: Handle<Expression>,
        new_arguments: &mut Vec<Handle<Expression>>,
    ) -> Option<PointeePath> {
        let Some((variable, accesses)) = self.pointee_path(function, argument) else {
            new_arguments.push(argument);
            return None;
        };
        let root = match function.expressions[variable] {
            Expression::GlobalVariable(variable) => PathRoot::Global(variable),
            Expression::LocalVariable(local) => {
                let inner =
                    TypeInner::Pointer { base: function.local_variables[local].ty, space: AddressSpace::Function };
                PathRoot::Argument(self.module.types.insert(Type { name: None, inner }, Span::UNDEFINED))
            }
            Expression::FunctionArgument(index) => PathRoot::Argument(function.arguments[index as usize].ty),
            _ => return None,
        };
        if let PathRoot::Argument(_) = root {
            new_arguments.push(variable);
        }
        let element = |access| match access {
            ElementAccess::Fixed(index) => PathElement::Fixed(index),
            ElementAccess::Index(index) => {
                new_arguments.push(index);
                PathElement::Index(types[&index])
            }
        };
        Some(PointeePath { root, elements: accesses.into_iter().map(element).collect() })
    }

    /// The specialisation of `callee` for arguments that point to `parts`.
    fn specialization(&mut self, callee: Handle<Function>, parts: Vec<Option<PointeePath>>) -> Handle<Function> {
        let key = (callee, parts);
        if let Some(&existing) = self.specializations.get(&key) {
            return existing;
        }
        let function = specialize(self.module.functions[callee].clone(), &key.1);
        let handle = self.provisional.append(Function::default(), Span::UNDEFINED);
        self.groups[callee.index()].push((handle, function));
        self.specializations.insert(key, handle);
        handle
    }
}

/// Rewrites a function to compute the pointers to `parts` itself, from what [`Pass::pointee`]
/// passes.
fn specialize(mut function: Function, parts: &[Option<PointeePath>]) -> Function {
    // For each old argument, the index of its first new one.
    let mut first = Vec::new();
    let mut arguments = Vec::new();
    for (old, part) in std::mem::take(&mut function.arguments).into_iter().zip(parts) {
        first.push(arguments.len() as u32);
        let Some(part) = part else {
            arguments.push(old);
            continue;
        };
        if let PathRoot::Argument(ty) = part.root {
            arguments.push(FunctionArgument { ty, ..old.clone() });
        }
        let index = |element: &PathElement| match *element {
            PathElement::Index(ty) => Some(FunctionArgument { name: None, ty, binding: None }),
            PathElement::Fixed(_) => None,
        };
        arguments.extend(part.elements.iter().filter_map(index));
    }
    function.arguments = arguments;

    // The pointers are computed where the function begins.
    let mut emitted = Vec::new();
    rebuild(
        &mut function,
        |_| (),
        |(), arena, _, expression, span| {
            let Expression::FunctionArgument(old) = *expression else { return };
            let mut next = first[old as usize];
            *expression = Expression::FunctionArgument(next);
            let Some(part) = &parts[old as usize] else { return };
            let mut argument = |arena: &mut Arena<Expression>| {
                next += 1;
                arena.append(Expression::FunctionArgument(next - 1), span)
            };
            let mut base = match part.root {
                PathRoot::Global(variable) => arena.append(Expression::GlobalVariable(variable), span),
                PathRoot::Argument(_) => argument(arena),
            };
            let accesses: Vec<ElementAccess> = part
                .elements
                .iter()
                .map(|element| match *element {
                    PathElement::Fixed(index) => ElementAccess::Fixed(index),
                    PathElement::Index(_) => ElementAccess::Index(argument(arena)),
                })
                .collect();
            let from = arena.len() as u32;
            for (n, access) in accesses.iter().enumerate() {
                let access = match *access {
                    ElementAccess::Fixed(index) => Expression::AccessIndex { base, index },
                    ElementAccess::Index(index) => Expression::Access { base, index },
                };
                if n + 1 == accesses.len() {
                    // `rebuild` appends the last access.
                    *expression = access;
                } else {
                    base = arena.append(access, span);
                }
            }
            emitted.push(from..arena.len() as u32 + 1);
        },
    );
    let emits = emitted.into_iter().map(|range| Statement::Emit(Range::from_index_range(range, &function.expressions)));
    let emits = Block::from_vec(emits.collect());
    function.body.splice(0..0, emits);
    function
}

#[cfg(test)]
mod tests {
    use naga::valid::{Capabilities, ValidationFlags, Validator};

    use super::super::testing::Pair;
    use super::super::{Lowering, lower};
    use super::*;
    use crate::packet::Verdict;
    use crate::testing::program;

    fn whole_pointers() -> Lowering {
        Lowering { whole_pointers: true, ..Lowering::default() }
    }

    /// The verdict before and after lowering; checks that the SPIR-V writer accepts the result.
    fn verdict(text: &str, packet: &[u8]) -> Verdict {
        let lowered = lower(&program(text), whole_pointers()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let info = Validator::new(ValidationFlags::all(), Capabilities::SHADER_INT64).validate(&lowered.module);
        naga::back::spv::write_vec(&lowered.module, &info.unwrap(), &naga::back::spv::Options::default(), None)
            .unwrap_or_else(|e| panic!("{e}\n{text}"));
        Pair::new(text, whole_pointers()).run(packet).verdict
    }

    fn functions(text: &str) -> Vec<String> {
        let program = program(text);
        let lowered = lower(&program, whole_pointers()).unwrap();
        let own = lowered.module.functions.iter().filter(|(f, _)| !lowered.prelude.contains(f));
        own.filter_map(|(_, f)| f.name.clone()).collect()
    }

    const TYPES: &str = "struct In { a: u32, b: array<u32, 4> } struct Out { one: In, all: array<In, 3> }
        var<private> g: Out;\n";

    #[test]
    fn pointers_to_parts_of_private_and_local_variables_work() {
        let text = &format!(
            "{TYPES}
            fn put(at: ptr<private, u32>, v: u32) {{ *at = v; }}
            fn add(at: ptr<function, u32>, v: u32) -> u32 {{ let old = *at; *at += v; return old; }}
            fn xdp_filter(pkt: u32) -> u32 {{
                let i = load_u8(pkt, 0u);
                put(&g.one.a, 3u);                        // 3
                put(&g.all[i].b[i + 1u], 5u);             // 5 at [1].b[2]
                var o: Out;
                let first = add(&o.all[2].a, 7u);         // 0
                let second = add(&o.all[2].a, 1u);        // 7
                var n = 1u;
                let third = add(&n, 4u);                  // 1
                return redirect(g.one.a + g.all[1].b[2] * 16u + first + second * 256u + third * 4096u
                    + o.all[2].a * 65536u + n * 0x100000u);
            }}"
        );
        assert_eq!(verdict(text, &[1]), Verdict::Redirect(0x0058_1753));
    }

    #[test]
    fn pointers_are_computed_once_at_entry() {
        // The index changes after the pointer was taken, and again inside the callee.
        let text = &format!(
            "{TYPES}
            var<private> at: u32;
            fn write(p: ptr<private, In>) {{ at = 2u; (*p).a = 9u; (*p).b[at] = 4u; }}
            fn xdp_filter(pkt: u32) -> u32 {{
                at = load_u8(pkt, 0u);
                let p = &g.all[at];
                at = 0u;
                write(p);
                return redirect(g.all[0].a * 4096u + g.all[2].a * 256u + g.all[1].a * 16u + g.all[1].b[2]);
            }}"
        );
        assert_eq!(verdict(text, &[1]), Verdict::Redirect(0x94));
    }

    #[test]
    fn pointers_can_be_passed_on() {
        let text = &format!(
            "{TYPES}
            fn leaf(p: ptr<function, u32>, q: ptr<function, u32>) {{ *p += 1u; *q += *p; }}
            fn middle(p: ptr<function, In>, k: u32) {{ leaf(&(*p).a, &(*p).b[k]); leaf(&(*p).b[k], &(*p).b[0]); }}
            fn top(p: ptr<function, Out>) {{ middle(&(*p).one, 1u); middle(&(*p).all[1], 2u); }}
            fn xdp_filter(pkt: u32) -> u32 {{
                var o: Out;
                o.one.a = 2u; o.all[1].b[2] = 5u;
                top(&o);
                middle(&o.one, load_u8(pkt, 0u));
                return redirect(o.one.a + o.one.b[0] * 16u + o.one.b[1] * 256u + o.all[1].a * 4096u
                    + o.all[1].b[2] * 65536u + o.all[1].b[0] * 0x100000u);
            }}"
        );
        // one: a 3, b[1] 3; then b[1] 4, b[0] 4; with k = 1 again: a 4, b[1] 8; b[1] 9, b[0] 13.
        // all[1]: a 1, b[2] 6; b[2] 7, b[0] 7.
        assert_eq!(verdict(text, &[1]), Verdict::Redirect(0x0077_19d4));
    }

    #[test]
    fn functions_are_specialised_once_per_shape() {
        let text = &format!(
            "{TYPES}
            fn put(at: ptr<private, u32>) {{ *at = 1u; }}
            fn xdp_filter(pkt: u32) -> u32 {{
                let i = load_u8(pkt, 0u);
                put(&g.all[i].a); put(&g.all[i + 1u].a); put(&g.one.a); put(&g.all[2].a);
                return XDP_PASS;
            }}"
        );
        assert_eq!(functions(text), ["put", "put", "put", "put", "xdp_filter"]);
        assert_eq!(verdict(text, &[0]), Verdict::Pass);
    }

    #[test]
    fn whole_variables_are_left_alone() {
        let text = "fn assign(p: ptr<function, u32>, q: array<u32, 2>) -> u32 { *p = q[1]; return 1u; }
            fn xdp_filter(pkt: u32) -> u32 { var n: u32; var a: array<array<u32, 2>, 2>; return assign(&n, a[1]); }";
        assert_eq!(functions(text), ["assign", "xdp_filter"]);
        let mut module = program(text).module().clone();
        assert!(matches!(run(&mut module), Ok(None)));
    }
}
