//! Tests of the modules that the pass produces. `differential` tests their behaviour, on the
//! filters of `corpus` and on `random` ones.

mod corpus;
mod differential;
mod random;

use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{Expression, Function, Literal, Module, Statement, SwitchCase, SwitchValue, TypeInner};

use super::super::FunctionMap;
use super::library;
use crate::program::child_blocks;
use crate::testing::program;

/// Runs the pass and checks the properties of every lowered module.
fn run(module: &mut Module, text: &str) -> Option<FunctionMap> {
    let moved = super::run(module).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let dump = format!("{module:?}");
    for rest in ["U64(", "I64(", "width: 8", "convert: Some(8)"] {
        assert!(!dump.contains(rest), "{rest} is left of\n{text}");
    }
    let info = Validator::new(ValidationFlags::all(), Capabilities::empty())
        .validate(module)
        .unwrap_or_else(|e| panic!("{}\n{text}", e.emit_to_string("")));
    // A valid module may still be rejected by a writer.
    naga::back::spv::write_vec(module, &info, &naga::back::spv::Options::default(), None)
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    moved
}

fn lowered(text: &str) -> Module {
    let mut module = program(text).module().clone();
    run(&mut module, text);
    module
}

/// Function names in the module's order.
fn names(module: &Module) -> Vec<&str> {
    module.functions.iter().filter_map(|(_, f)| f.name.as_deref()).collect()
}

/// A filter that evaluates one expression of type `ty`. Variables of every type for it to use come
/// from the packet's first bytes: x at 0, y at 8, w at 16, f at 20. The value is stored from byte
/// 24 on.
fn filter_of(ty: &str, expression: &str) -> String {
    let (count, scalar) = match ty.strip_prefix("vec") {
        Some(rest) => (rest[..1].parse().expect("a size"), rest[2..].trim_end_matches('>')),
        None => (1, ty),
    };
    let puts: String = (0..count)
        .map(|i| {
            let element = if ty == scalar { "r".into() } else { format!("r[{i}]") };
            let value = match scalar {
                "bool" => format!("select(0lu, 1lu, {element})"),
                "f32" => format!("u64(bitcast<u32>({element}))"),
                _ => format!("u64({element})"),
            };
            format!("put(pkt, {}u, {value}); ", 24 + 8 * i)
        })
        .collect();
    format!(
        "struct P {{ wide: u64, pair: vec2<u64>, narrow: vec2<i64> }}
        fn take(pkt: u32, at: u32) -> u64 {{
            return u64(load_le32(pkt, at)) | (u64(load_le32(pkt, at + 4u)) << 32u);
        }}
        fn put(pkt: u32, at: u32, v: u64) {{ store_le32(pkt, at, u32(v)); store_le32(pkt, at + 4u, u32(v >> 32u)); }}
        fn xdp_filter(pkt: u32) -> u32 {{
            let x = take(pkt, 0u); let y = take(pkt, 8u);
            let w = load_le32(pkt, 16u); let s = i32(w); let b = (w & 1u) == 1u; let w64 = i64(w);
            let f = bitcast<f32>(load_le32(pkt, 20u));
            let i = i64(x); let j = i64(y);
            var v = vec2<u64>(x, y); var q = vec4<i64>(i, j, -i, i ^ j); var t = vec3<u64>(x, y, x * y);
            var c = vec2<u32>(w, 3u); var m = vec2<bool>(b, !b);
            var p = P(x, v, vec2<i64>(j, i)); var a = array<P, 3>(p, P(), P(y, v.yx, q.xy));
            let r = {expression};
            {puts}
            return XDP_PASS;
        }}"
    )
}

#[test]
fn the_corpus_is_lowered() {
    for text in corpus::FILTERS {
        lowered(text);
    }
}

#[test]
fn every_operation_is_lowered() {
    for (ty, expression) in corpus::expressions() {
        lowered(&filter_of(ty, expression));
    }
}

#[test]
fn a_module_without_64_bit_integers_is_left_alone() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u); }";
    let mut module = program(text).module().clone();
    let before = format!("{module:?}");
    assert_eq!(run(&mut module, text), None);
    assert_eq!(format!("{module:?}"), before);
}

#[test]
fn only_called_library_functions_are_added() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { var a = i64(i32(pkt_len(pkt))); a = a + max(a, 9li); return u32(a); }";
    let before = program(text);
    let after = lowered(text);
    let added = names(&after).len() - names(before.module()).len();
    // Functions that max calls precede it.
    assert_eq!(names(&after)[..added], ["pc_u64_add", "pc_i64_less", "pc_i64_max", "pc_i64_from_i32"]);
    assert_eq!(names(&after)[added..], names(before.module()));
}

#[test]
fn functions_keep_their_order_and_variables_their_handles() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { return u32(u64(load_u8(pkt, 0u)) / 3lu); }";
    let program = program(text);
    let mut module = program.module().clone();
    let moved = run(&mut module, text).expect("the filter has 64-bit integers");
    let (old, new) = (&program.module().functions, &module.functions);
    assert_eq!(moved.len(), old.len());
    for (handle, function) in old.iter() {
        assert_eq!(new[moved[&handle]].name, function.name);
    }
    for (handle, variable) in program.module().global_variables.iter() {
        assert_eq!(module.global_variables[handle].name, variable.name);
    }
}

/// The prelude uses 32-bit values only, so its functions must stay the same except for handles and
/// for how expressions are grouped in `Emit`s.
#[test]
fn the_prelude_is_unchanged() {
    fn parts(function: &Function) -> Vec<String> {
        let mut parts: Vec<String> = Vec::new();
        let mut blocks = vec![&function.body];
        while let Some(block) = blocks.pop() {
            for statement in block.iter() {
                if !matches!(statement, Statement::Emit(_)) {
                    parts.push(format!("{:?}", std::mem::discriminant(statement)));
                }
                blocks.extend(child_blocks(statement));
            }
        }
        // Expressions that need no emitting may be in any order.
        let from = parts.len();
        parts.extend(function.expressions.iter().map(|(_, expression)| match expression {
            Expression::Literal(literal) => format!("{literal:?}"),
            Expression::Binary { op, .. } => format!("{op:?}"),
            Expression::Unary { op, .. } => format!("{op:?}"),
            Expression::GlobalVariable(variable) => format!("{variable:?}"),
            Expression::FunctionArgument(index) => format!("argument {index}"),
            other => format!("{:?}", std::mem::discriminant(other)),
        }));
        parts[from..].sort();
        parts
    }
    let text = &filter_of("u64", "x * y");
    let program = program(text);
    let mut module = program.module().clone();
    let moved = run(&mut module, text).expect("the filter has 64-bit integers");
    for (handle, old) in program.module().functions.iter().filter(|&(h, _)| program.is_prelude(h)) {
        assert_eq!(parts(&module.functions[moved[&handle]]), parts(old), "{:?}", old.name);
    }
}

/// Checks the order of the words of a literal.
#[test]
fn literals_become_low_and_high_word() {
    let module = lowered(&filter_of("u64", "x ^ 0x1122334455667788lu"));
    let words: Vec<u32> = module
        .global_expressions
        .iter()
        .filter_map(|(_, e)| if let Expression::Literal(Literal::U32(word)) = *e { Some(word) } else { None })
        .collect();
    assert!(words.windows(2).any(|pair| pair == [0x5566_7788, 0x1122_3344]), "{words:x?}");
}

/// WGSL has no switch on a 64-bit integer, but the validator accepts one.
#[test]
fn a_switch_on_64_bits_is_lowered() {
    for (text, value) in
        [(filter_of("u64", "x + 1lu"), SwitchValue::U32(0)), (filter_of("i64", "i + 1li"), SwitchValue::I32(-1))]
    {
        let program = program(&text);
        let mut module = program.module().clone();
        let function = module.functions.get_mut(program.filter());
        let selector = *function.named_expressions.iter().find(|(_, name)| *name == "r").expect("r is named").0;
        let case = |value| SwitchCase { value, body: Default::default(), fall_through: false };
        let switch = Statement::Switch { selector, cases: vec![case(value), case(SwitchValue::Default)] };
        let before_return = function.body.len() - 1;
        function.body.splice(before_return..before_return, naga::Block::from_vec(vec![switch]));
        run(&mut module, &text);
    }
}

/// Checks the library's rules, without which copying its functions alone would lose something.
#[test]
fn the_library_keeps_its_rules() {
    let module = library::module();
    assert!(module.constants.is_empty() && module.global_variables.is_empty() && module.overrides.is_empty());
    assert!(!super::uses_int64(module));
    for (_, function) in module.functions.iter() {
        let name = function.name.as_deref().unwrap_or_default();
        assert!(name.starts_with("pc_u64_") || name.starts_with("pc_i64_"), "{name}");
        assert!(function.result.is_some(), "{name}");
        // Loop counting may ignore functions without loops.
        assert!(!format!("{:?}", function.body).contains("Loop"), "{name}");
    }
}

/// Layout is preserved, so that memory shared with the host may contain 64-bit integers.
#[test]
fn layout_is_preserved() {
    let text = "struct S { a: u32, b: u64, c: vec3<u64>, d: array<vec3<i64>, 2>, e: i64 }
        var<private> s: S;
        fn xdp_filter(pkt: u32) -> u32 { s.b = 1lu; return u32(s.e); }";
    let of = |module: &Module| {
        let (_, ty) = module.types.iter().find(|(_, ty)| ty.name.as_deref() == Some("S")).expect("S is there");
        let TypeInner::Struct { ref members, span } = ty.inner else { panic!("S is a struct") };
        (members.iter().map(|m| m.offset).collect::<Vec<_>>(), span)
    };
    // WGSL's rules for a 64-bit scalar of size and alignment 8: vec3 has size 24 and alignment 32.
    let expected = (vec![0, 8, 32, 64, 128], 160);
    assert_eq!(of(program(text).module()), expected);
    assert_eq!(of(&lowered(text)), expected);
}

/// Filters that nest nearly as deep as naga accepts.
#[test]
fn deep_nesting_is_lowered() {
    let body = |body: String| {
        lowered(&format!("fn xdp_filter(pkt: u32) -> u32 {{ var a = u64(load_u8(pkt, 0u)); {body} return u32(a); }}"))
    };
    let nested = |open: &str, close: &str| body(format!("{} a += 1lu; {}", open.repeat(60), close.repeat(60)));
    nested("if a < 9lu {", "}");
    nested("loop {", "break; }");
    body(format!(
        "{} {} {{ a += 1lu; }} {}",
        "for (; a < 9lu;) {".repeat(100),
        "if a < 9lu { a *= 3lu; } else ".repeat(150),
        "}".repeat(100)
    ));
    nested("switch u32(a) { case 1u: { a *= 3lu; } default: {", "} }");
    body(format!("{} {{ a += 1lu; }}", "if a < 9lu { a *= 3lu; } else ".repeat(250)));
    body(format!("a = {} a {};", "(a * ".repeat(60), ")".repeat(60)));
}
