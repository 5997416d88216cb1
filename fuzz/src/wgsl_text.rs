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
    tokens: "
        ( ) { } [ ] < > , ; : . @ /* */ // -> - ! ~ & * && || << >> <= == = += ++ % ^ 0 1 1u -1i
        0xffffffffu 2147483648 1lu 1.5 1e38f 1h fn␣ struct␣ const␣ override␣ alias␣ var␣
        var<private>␣ let␣ return␣ if␣ else␣ else␣if␣ loop␣ while␣ for␣ switch␣ case␣ default break
        continue continuing␣ break␣if␣ discard const_assert␣ enable␣f16; diagnostic(off,a.b);
        @id(1)␣ @must_use␣ @compute␣@workgroup_size(1)␣ @align(16)␣ @size(32)␣ u32 i32 bool f32 u64
        i64 vec2<u32> vec4 mat2x2<f32> array<u32,␣4> array ptr<function,␣u32> atomic<u32> pkt
        pc_length xdp_filter load_u8(pkt,␣0u) store_u8(pkt,␣0u,␣1u) adjust_head(pkt,␣4i)
        redirect(1u) select(1u,␣2u,␣true) dot(vec2(1),␣vec2(2)) bitcast<u32> extractBits unpack4xU8
        modf(1.5) frexp(2.0) workgroupBarrier() textureLoad subgroupAdd(1u) é
    ",
    pieces: &["\u{202e}".as_bytes(), b"\0", b"\xff", b"\x1b[0m", b"\r\n"],
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
    use crate::mutate::{A_SECOND, check_seeds, run_for};

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
}
