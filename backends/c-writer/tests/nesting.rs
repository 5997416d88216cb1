//! Tests of the limit on nested blocks in generated OpenCL C, whose compilers bound the nesting
//! depth (docs/reference/semantics.md, "What is refused"). Generated CUDA C++ may nest deeper.

use portcullis_c_writer::{Language, Options, write};
use portcullis_core::diagnostics::Source;
use portcullis_core::program::ProgramOptions;
use portcullis_opencl_c::{self as opencl_c, files::NoIncludes};

/// Greatest nesting depth that OpenCL C compilers accept, as documented.
const MAX_NESTING: usize = 185;

/// The result of writing a filter with these statements.
fn written(statements: &str, language: Language) -> Result<String, String> {
    let text =
        format!("uint xdp_filter(__global uchar *pkt, uint len) {{ uint x = 0; {statements} pkt[0] = x; return 1; }}");
    let program = opencl_c::compile(&Source::new("f.cl", text), &ProgramOptions::default(), &mut NoIncludes)
        .unwrap_or_else(|errors| panic!("{}", errors.render()));
    write(&program, &Options::new(language)).map(|kernel| kernel.source).map_err(|error| error.to_string())
}

#[test]
fn blocks_nest_as_deep_as_opencl_c_compilers_allow() {
    let branches = |n: usize| (0..n).map(|i| format!("if (len > {i}) ")).collect::<String>() + "x = 1;";
    let loops = |n: usize| (0..n).map(|i| format!("while (x < {i}) ")).collect::<String>() + "x++;";
    for nested in [&branches as &dyn Fn(usize) -> String, &loops] {
        assert!(written(&nested(MAX_NESTING), Language::OpenCl).is_ok());
        let said = written(&nested(MAX_NESTING + 1), Language::OpenCl).unwrap_err();
        assert!(said.contains("186 blocks in each other") && said.contains("at most 185"), "{said}");
        assert!(written(&nested(MAX_NESTING + 1), Language::Cuda).is_ok());
    }
}

#[test]
fn a_chain_of_else_ifs_is_not_nested() {
    let chain = |condition: &dyn Fn(usize) -> String| {
        let link = |i| format!("if ({}) x = {i};", condition(i));
        (0..MAX_NESTING + 60).map(link).collect::<Vec<_>>().join(" else ")
    };
    for condition in [&(|i: usize| format!("load_be16(pkt, {i}) == {i}")) as &dyn Fn(usize) -> String, &|i| {
        format!("len > {i} && pkt[{i}] == {i}")
    }] {
        let source = written(&chain(condition), Language::OpenCl).unwrap();
        assert!(source.matches("} else if (").count() > MAX_NESTING, "{source}");
    }
    // Whatever is evaluated before a condition has to be in the `else` block.
    assert!(written(&chain(&|i| format!("(x = load_be16(pkt, {i})) == {i}")), Language::OpenCl).is_err());
}
