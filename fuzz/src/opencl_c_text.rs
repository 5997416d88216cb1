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
    tokens: r#"
        ( ) { } [ ] < > , ; : . ? -> - ! ~ & * && || << >> <= == = += >>= ++ -- % ^ / 0 1 1u -1
        0xffffffffu 2147483648 1ul 1.5f 1e38f 'a' "s" struct␣ typedef␣ enum␣ const␣ __constant␣
        __global␣ __private␣ return␣ if␣ else␣ while␣ for␣ do␣ switch␣ case␣1: default: break;
        continue; goto␣x; sizeof␣ (uint) (uchar) (__global␣uint␣*) (uint4) uint int char ulong long
        bool float uchar4 int2 void pkt len o o.v .xy .lo a[i] &a *p p q xdp_filter load_u8(pkt,␣0)
        store_be16(pkt,␣0,␣1) adjust_head(pkt,␣4) redirect(1) pkt_time(pkt) min(1,␣2)
        mul_hi(wide,␣wide) clz(len) select(1,␣2,␣3) any(o.v) convert_uchar4_sat(o.v) as_float(len)
        __attribute__((packed)) #define␣X␣ #if␣ #endif␤ #include␣"x"␤ ## \␤ // /* */ é
    "#,
    pieces: &[b"\0", b"\xff", b"\x1b[0m", b"\r\n"],
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
    use crate::mutate::{A_SECOND, check_seeds, run_for};

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
}
