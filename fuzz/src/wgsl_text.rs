//! Fuzz target: arbitrary bytes as a WGSL filter.

use portcullis_wgsl as wgsl;

use crate::mutate::Corpus;

/// Seed filters.
pub const CORPUS: Corpus = Corpus {
    seeds: &[
        include_bytes!("../../shaders/complex_filter.wgsl"),
        include_bytes!("../../shaders/dscp_mark.wgsl"),
        include_bytes!("../../shaders/hash_lb.wgsl"),
        include_bytes!("../../shaders/http_only.wgsl"),
        include_bytes!("../../shaders/vlan_pop.wgsl"),
        include_bytes!("../seeds/language.wgsl"),
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
        b"@",
        b"/*",
        b"*/",
        b"//",
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
        b"++",
        b"%",
        b"^",
        b"0",
        b"1",
        b"1u",
        b"-1i",
        b"0xffffffffu",
        b"2147483648",
        b"1lu",
        b"1.5",
        b"1e38f",
        b"1h",
        b"fn ",
        b"struct ",
        b"const ",
        b"override ",
        b"alias ",
        b"var ",
        b"var<private> ",
        b"let ",
        b"return ",
        b"if ",
        b"else ",
        b"else if ",
        b"loop ",
        b"while ",
        b"for ",
        b"switch ",
        b"case ",
        b"default",
        b"break",
        b"continue",
        b"continuing ",
        b"break if ",
        b"discard",
        b"const_assert ",
        b"enable f16;",
        b"diagnostic(off,a.b);",
        b"@id(1) ",
        b"@must_use ",
        b"@compute @workgroup_size(1) ",
        b"@align(16) ",
        b"@size(32) ",
        b"u32",
        b"i32",
        b"bool",
        b"f32",
        b"u64",
        b"i64",
        b"vec2<u32>",
        b"vec4",
        b"mat2x2<f32>",
        b"array<u32, 4>",
        b"array",
        b"ptr<function, u32>",
        b"atomic<u32>",
        b"pkt",
        b"pc_length",
        b"xdp_filter",
        b"load_u8(pkt, 0u)",
        b"store_u8(pkt, 0u, 1u)",
        b"adjust_head(pkt, 4i)",
        b"redirect(1u)",
        b"select(1u, 2u, true)",
        b"dot(vec2(1), vec2(2))",
        b"bitcast<u32>",
        b"extractBits",
        b"unpack4xU8",
        b"modf(1.5)",
        b"frexp(2.0)",
        b"workgroupBarrier()",
        b"textureLoad",
        b"subgroupAdd(1u)",
        "é".as_bytes(),
        "\u{202e}".as_bytes(),
        b"\0",
        b"\xff",
        b"\x1b[0m",
        b"\r\n",
    ],
};

/// Compiles the bytes as a filter; an accepted filter also runs on a few packets, is lowered, and
/// is compiled to native code.
///
/// # Panics
/// If the compiler panics, or accepts what a device cannot run.
pub fn run(data: &[u8]) {
    crate::filter::run(data, wgsl::compile);
}

#[cfg(test)]
mod tests {
    use portcullis_core::diagnostics::Source;
    use portcullis_core::program::ProgramOptions;

    use super::*;
    use crate::mutate::{A_SECOND, check_seeds, run_for, run_malformed};

    #[test]
    fn mutated_seeds_never_panic() {
        println!("{} texts", run_for(A_SECOND, "wgsl_text", CORPUS, 0, run));
    }

    #[test]
    fn seeds_and_some_mutations_are_valid_filters() {
        check_seeds(CORPUS, run, (200, 2), |data| {
            wgsl::compile(&Source::from_bytes("f", data)?, &ProgramOptions::default()).map(drop)
        });
    }

    #[test]
    fn malformed_bytes_never_panic() {
        run_malformed(run);
    }
}
