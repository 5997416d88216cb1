//! Fuzz target: arbitrary bytes as an OpenCL C filter.

use portcullis_opencl_c as opencl_c;
use portcullis_opencl_c::files::NoIncludes;

use crate::mutate::Corpus;

/// Seed filters.
pub const CORPUS: Corpus = Corpus {
    seeds: &[
        include_bytes!("../../shaders/complex_filter.cl"),
        include_bytes!("../../shaders/dscp_mark.cl"),
        include_bytes!("../../shaders/hash_lb.cl"),
        include_bytes!("../../shaders/http_only.cl"),
        include_bytes!("../../shaders/mac_swap.cl"),
        include_bytes!("../seeds/language.cl"),
    ],
    pieces: &[
        b"(",
        b")",
        b"{",
        b"}",
        b"[",
        b"]",
        b"<",
        b">",
        b",",
        b";",
        b":",
        b".",
        b"?",
        b"->",
        b"-",
        b"!",
        b"~",
        b"&",
        b"*",
        b"&&",
        b"||",
        b"<<",
        b">>",
        b"<=",
        b"==",
        b"=",
        b"+=",
        b">>=",
        b"++",
        b"--",
        b"%",
        b"^",
        b"/",
        b"0",
        b"1",
        b"1u",
        b"-1",
        b"0xffffffffu",
        b"2147483648",
        b"1ul",
        b"1.5f",
        b"1e38f",
        b"'a'",
        b"\"s\"",
        b"struct ",
        b"typedef ",
        b"enum ",
        b"const ",
        b"__constant ",
        b"__global ",
        b"__private ",
        b"return ",
        b"if ",
        b"else ",
        b"while ",
        b"for ",
        b"do ",
        b"switch ",
        b"case 1:",
        b"default:",
        b"break;",
        b"continue;",
        b"goto x;",
        b"sizeof ",
        b"(uint)",
        b"(uchar)",
        b"(__global uint *)",
        b"(uint4)",
        b"uint",
        b"int",
        b"char",
        b"ulong",
        b"long",
        b"bool",
        b"float",
        b"uchar4",
        b"int2",
        b"void",
        b"pkt",
        b"len",
        b"o",
        b"o.v",
        b".xy",
        b".lo",
        b"a[i]",
        b"&a",
        b"*p",
        b"p",
        b"q",
        b"xdp_filter",
        b"load_u8(pkt, 0)",
        b"store_be16(pkt, 0, 1)",
        b"adjust_head(pkt, 4)",
        b"redirect(1)",
        b"pkt_time(pkt)",
        b"min(1, 2)",
        b"mul_hi(wide, wide)",
        b"clz(len)",
        b"select(1, 2, 3)",
        b"any(o.v)",
        b"convert_uchar4_sat(o.v)",
        b"as_float(len)",
        b"__attribute__((packed))",
        b"#define X ",
        b"#if ",
        b"#endif\n",
        b"#include \"x\"\n",
        b"##",
        b"\\\n",
        b"//",
        b"/*",
        b"*/",
        b"\0",
        b"\xff",
        b"\x1b[0m",
        b"\r\n",
        "é".as_bytes(),
    ],
};

/// Compiles the bytes as a filter; an accepted filter also runs on a few packets, is lowered, and
/// is compiled to native code.
///
/// # Panics
/// If the compiler panics, or accepts what a device cannot run.
pub fn run(data: &[u8]) {
    crate::filter::run(data, |source, options| opencl_c::compile(source, options, &mut NoIncludes));
}

#[cfg(test)]
mod tests {
    use portcullis_core::diagnostics::Source;
    use portcullis_core::program::ProgramOptions;

    use super::*;
    use crate::mutate::{A_SECOND, check_seeds, run_for, run_malformed};

    #[test]
    fn mutated_seeds_never_panic() {
        println!("{} texts", run_for(A_SECOND, "opencl_c_text", CORPUS, 0, run));
    }

    #[test]
    fn seeds_and_some_mutations_are_valid_filters() {
        check_seeds(CORPUS, run, (200, 2), |data| {
            let source = Source::from_bytes("f", data)?;
            opencl_c::compile(&source, &ProgramOptions::default(), &mut NoIncludes).map(drop)
        });
    }

    #[test]
    fn malformed_bytes_never_panic() {
        run_malformed(run);
    }
}
