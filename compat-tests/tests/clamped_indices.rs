//! Checks that every dynamic index of a lowered module is in range. Devices do not check a filter's
//! indices (docs/reference/passes.md, "Indices"), so an index out of range could read or write
//! anywhere. The rules here are independent of the pass that clamps indices.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use naga::{
    AddressSpace, ArraySize, Expression, Function, Handle, Literal, MathFunction, ScalarKind, Statement, TypeInner,
};
use portcullis_compat_tests::{generator, texts};
use portcullis_conformance::filters;
use portcullis_core::program::{Lowered, Lowering, Program, lower};

const ALONE: Lowering = Lowering { clamp_indices: true, ..Lowering::NONE };

/// The passes of the wgpu backend.
const ALL: Lowering = Lowering::SPIRV;

const RANDOM_FILTERS: u64 = 300;

/// Dynamic indices into matrices, which no other filter here has.
const MATRICES: &str = "
    var<private> kept: mat2x3<f32>;
    fn xdp_filter(pkt: u32) -> u32 {
        let i = load_u8(pkt, 0u);
        let value = mat2x3<f32>(vec3<f32>(f32(i)), vec3<f32>(2.0));
        kept[i][i >> 1u] = 1.0;
        return u32(value[i].x + value[1][i] + kept[i].y);
    }";

/// A call: the callee and the caller's argument expressions.
type Call = (Handle<Function>, Vec<Handle<Expression>>);

struct Checker<'a> {
    lowered: &'a Lowered,
    /// Calls made by each function.
    calls: HashMap<Handle<Function>, Vec<Call>>,
    /// The call that each `CallResult` expression belongs to.
    results: HashMap<(Handle<Function>, Handle<Expression>), Call>,
}

/// Result of checking a module.
#[derive(Default)]
struct AccessCounts {
    /// Kinds of indexed values, such as `array in Private`.
    kinds: BTreeSet<String>,
    indices: usize,
    unproven: Vec<String>,
}

impl<'a> Checker<'a> {
    fn new(lowered: &'a Lowered) -> Checker<'a> {
        let mut checker = Checker { lowered, calls: HashMap::new(), results: HashMap::new() };
        for (caller, function) in lowered.module.functions.iter() {
            let mut blocks = vec![&function.body];
            while let Some(block) = blocks.pop() {
                for statement in block.iter() {
                    match statement {
                        Statement::Block(block) => blocks.push(block),
                        Statement::If { accept, reject, .. } => blocks.extend([accept, reject]),
                        Statement::Switch { cases, .. } => blocks.extend(cases.iter().map(|case| &case.body)),
                        Statement::Loop { body, continuing, .. } => blocks.extend([body, continuing]),
                        Statement::Call { function, arguments, result } => {
                            let call = (*function, arguments.clone());
                            checker.calls.entry(caller).or_default().push(call.clone());
                            if let Some(result) = result {
                                checker.results.insert((caller, *result), call);
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        checker
    }

    fn type_of(&self, function: Handle<Function>, expression: Handle<Expression>) -> &TypeInner {
        self.lowered.info[function][expression].ty.inner_with(&self.lowered.module.types)
    }

    /// Returns an upper bound of the unsigned value of `expression`, or `None` if none can be
    /// proved.
    fn upper_bound(&self, function: Handle<Function>, expression: Handle<Expression>) -> Option<u64> {
        let module = &self.lowered.module;
        let unsigned =
            |e| self.type_of(function, e).scalar().is_some_and(|scalar| scalar.kind == ScalarKind::Uint).then_some(e);
        match module.functions[function].expressions[expression] {
            Expression::Literal(literal) => number(literal),
            Expression::Constant(constant) => match module.global_expressions[module.constants[constant].init] {
                Expression::Literal(literal) => number(literal),
                _ => None,
            },
            // A signed minimum may be negative, which is large when taken as unsigned.
            Expression::Math { fun: MathFunction::Min, arg, arg1: Some(arg1), .. } => {
                [arg, arg1].into_iter().filter_map(|e| self.upper_bound(function, unsigned(e)?)).min()
            }
            Expression::As { expr, kind: ScalarKind::Uint, convert } => {
                let fits = |most: &u64| convert != Some(4) || *most <= u32::MAX.into();
                self.upper_bound(function, unsigned(expr)?).filter(fits)
            }
            // The maximum over all callers; a function without callers may get any argument.
            Expression::FunctionArgument(index) => {
                let calls = self.calls.iter().flat_map(|(caller, calls)| calls.iter().map(move |call| (*caller, call)));
                let given = calls.filter(|(_, (callee, _))| *callee == function);
                let each: Option<Vec<u64>> =
                    given.map(|(caller, (_, arguments))| self.upper_bound(caller, arguments[index as usize])).collect();
                each?.into_iter().max()
            }
            // The low word of the minimum of two word pairs that stand for 64-bit integers.
            Expression::AccessIndex { base, index: 0 } => {
                let (callee, arguments) = self.results.get(&(function, base))?;
                if module.functions[*callee].name.as_deref() != Some("pc_u64_min") {
                    return None;
                }
                arguments.iter().filter_map(|&argument| self.low_word(function, argument)).min()
            }
            _ => None,
        }
    }

    /// Returns the low word of a constant pair whose high word is zero.
    fn low_word(&self, function: Handle<Function>, pair: Handle<Expression>) -> Option<u64> {
        let module = &self.lowered.module;
        let Expression::Constant(constant) = module.functions[function].expressions[pair] else { return None };
        let Expression::Compose { ref components, .. } = module.global_expressions[module.constants[constant].init]
        else {
            return None;
        };
        let words = components.iter().map(|&word| match module.global_expressions[word] {
            Expression::Literal(literal) => number(literal),
            _ => None,
        });
        match words.collect::<Option<Vec<u64>>>()?[..] {
            [low, 0] => Some(low),
            _ => None,
        }
    }

    fn run(&self) -> AccessCounts {
        let mut found = AccessCounts::default();
        for (handle, function) in self.lowered.module.functions.iter() {
            for (access, expression) in function.expressions.iter() {
                let Expression::Access { base, index } = *expression else { continue };
                let (kind, space, length) = shape(self.lowered, self.type_of(handle, base));
                if !matches!(space, None | Some(AddressSpace::Function | AddressSpace::Private))
                    && self.lowered.prelude.contains(&handle)
                {
                    continue;
                }
                found.indices += 1;
                found.kinds.insert(match space {
                    Some(space) => format!("{kind} in {space:?}"),
                    None => format!("{kind} as a value"),
                });
                let most = self.upper_bound(handle, index);
                if length.is_none_or(|length| most.is_none_or(|most| most >= length.into())) {
                    let name = function.name.as_deref().unwrap_or("a nameless function");
                    found.unproven.push(format!(
                        "{name}: {access:?} into {kind} of {length:?} elements: index {:?}, at most {most:?}",
                        function.expressions[index]
                    ));
                }
            }
        }
        found
    }
}

/// Returns the kind of an indexed value, its address space if it is in memory, and its length.
fn shape(lowered: &Lowered, base: &TypeInner) -> (&'static str, Option<AddressSpace>, Option<u32>) {
    let of = |inner: &TypeInner| match *inner {
        TypeInner::Array { size: ArraySize::Constant(length), .. } => ("array", Some(length.get())),
        TypeInner::Array { .. } => ("array", None),
        TypeInner::Vector { size, .. } => ("vector", Some(size as u32)),
        TypeInner::Matrix { columns, .. } => ("matrix", Some(columns as u32)),
        ref other => panic!("unexpected index into {other:?}"),
    };
    match *base {
        TypeInner::Pointer { base, space } => {
            let (kind, length) = of(&lowered.module.types[base].inner);
            (kind, Some(space), length)
        }
        TypeInner::ValuePointer { size, space, .. } => ("vector", Some(space), size.map(|size| size as u32)),
        ref value => {
            let (kind, length) = of(value);
            (kind, None, length)
        }
    }
}

fn number(literal: Literal) -> Option<u64> {
    match literal {
        Literal::U32(value) => Some(value.into()),
        Literal::U64(value) => Some(value),
        Literal::I32(value) => value.try_into().ok(),
        Literal::I64(value) => value.try_into().ok(),
        _ => None,
    }
}

/// Returns stock filters, probes, inputs of the golden tests and random filters.
fn programs() -> Vec<Arc<Program>> {
    let cases = filters::cases();
    let compile = |case: &filters::Case| case.compile().expect("stock filters and probes compile");
    let mut programs: Vec<_> = cases.iter().map(compile).collect();
    programs.push(texts::in_wgsl("matrices", MATRICES));
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/golden");
    for entry in std::fs::read_dir(golden).expect("the golden lowerings") {
        let path = entry.expect("the golden lowerings").path();
        if path.is_file() && !path.to_string_lossy().ends_with(".lowered.wgsl") {
            let text = std::fs::read_to_string(&path).expect("a golden input");
            programs.push(texts::in_wgsl(&path.to_string_lossy(), &text));
        }
    }
    programs.extend((0..RANDOM_FILTERS).map(|seed| generator::program(seed, None)));
    programs
}

#[test]
fn no_dynamic_index_is_left_unbounded() {
    for lowering in [ALONE, ALL] {
        let (mut indices, mut kinds) = (0, BTreeSet::new());
        for program in programs() {
            let lowered = lower(&program, lowering).unwrap_or_else(|e| panic!("{}: {e}", program.source().name));
            let found = Checker::new(&lowered).run();
            assert!(
                found.unproven.is_empty(),
                "{} {lowering:?}\n{}\n{}",
                program.source().name,
                found.unproven.join("\n"),
                program.source().text
            );
            indices += found.indices;
            kinds.extend(found.kinds);
        }
        println!("{indices} indices, into {kinds:?}");
        assert!(indices > 1000, "{indices}");
        for kind in ["array", "vector", "matrix"] {
            for place in ["in Function", "in Private", "as a value"] {
                assert!(kinds.contains(&format!("{kind} {place}")), "no {kind} {place}: {kinds:?}");
            }
        }
    }
}

/// The check can fail: for an index without a bound, with a bound one too large, with a signed
/// bound, or with a bound in some callers only.
#[test]
fn an_unclamped_index_is_found() {
    let unproven = |body: &str| {
        let text = format!(
            "fn last(m: ptr<function, array<u32, 4>>, i: u32) -> u32 {{ return (*m)[i]; }}
            fn xdp_filter(pkt: u32) -> u32 {{
                let i = load_u8(pkt, 0u);
                var a: array<u32, 4>;
                _ = last(&a, 0u);
                {body}
            }}"
        );
        let program = texts::in_wgsl("x.wgsl", &text);
        let lowered =
            lower(&program, Lowering { clamp_indices: false, ..ALL }).expect("lowering succeeds without clamping");
        Checker::new(&lowered).run().unproven.len()
    };
    for (body, count) in [
        ("return a[i];", 1),
        ("return a[min(i, 3u)];", 0),
        ("return a[min(i, 4u)];", 1),
        ("return a[bitcast<u32>(min(bitcast<i32>(i), 3i))];", 1),
        ("return a[min(bitcast<i32>(i), 3i)];", 1),
        ("return a[u32(min(u64(i) << 40u, 3lu))];", 0),
        ("return a[min(u64(i) << 40u, 3lu)];", 1),
        ("return last(&a, min(i, 3u));", 0),
        ("return last(&a, min(i, 3u)) + last(&a, i);", 1),
    ] {
        assert_eq!(unproven(body), count, "{body}");
    }
}
