//! Compares the C writer's source, compiled for this machine with sanitizers, with the reference
//! interpreter: every stock filter, probe and operator, and random filters. Prints that a language
//! is skipped if its compiler is missing.

use std::process::{Command, Stdio};
use std::sync::Arc;

use portcullis_c_writer::{Language, Options, PacketAccess, write};
use portcullis_compat_tests::generator;
use portcullis_compat_tests::host::{self, Host, Unavailable};
use portcullis_compat_tests::{c_programs, cl_programs, devices, floating_point, harness, operators, texts};
use portcullis_conformance::{self, corpora::Depth, filters};
use portcullis_core::device::Device;
use portcullis_core::program::{Program, ProgramOptions};
use rand::SeedableRng;
use rand_pcg::Pcg64;

/// Returns the device, or `None` if there is no compiler for its language.
fn device(suite: &str, options: &Options, programs: &[Arc<Program>]) -> Option<Arc<dyn Device>> {
    match Host::new(options, programs) {
        Ok(host) => Some(Arc::new(host)),
        Err(Unavailable::NoCompiler(reason)) => {
            devices::record(suite, &format!("c-writer:{:?}", options.language), "skipped", &reason);
            None
        }
        Err(Unavailable::Broken(reason)) => panic!("{reason}"),
    }
}

/// Compares a program on the device with the interpreter; panics with the C source on a mismatch.
fn compare(
    program: &Arc<Program>,
    options: &Options,
    device: &Arc<dyn Device>,
    packets: &[Vec<u8>],
    batches: &[usize],
) {
    if let Err(mismatch) = harness::compare(program, &**device, packets, batches) {
        let text = write(program, options).map_or_else(|e| e.to_string(), |kernel| kernel.source);
        panic!("{mismatch}\n{text}");
    }
}

fn passed(suite: &str, device: &Arc<dyn Device>) {
    devices::record(suite, &device.info().id, "passed", &device.info().name);
}

fn stock_and_probes(options: &Options) {
    let suite = "stock filters and probes in C";
    let cases = filters::cases();
    let programs: Vec<_> = cases.iter().map(|c| c.compile().unwrap_or_else(|e| panic!("{}", e.render()))).collect();
    let Some(device) = device(suite, options, &programs) else { return };
    let interp = portcullis::devices::open("interp").unwrap_or_else(|e| panic!("{e}"));
    let report = portcullis_conformance::run(
        std::slice::from_ref(&device),
        &*interp,
        &cases,
        &portcullis_conformance::corpora::corpora(Depth::Quick),
        &mut |_| {},
    );
    assert!(report.passed(), "{}", report.failures());
    passed(suite, &device);
}

/// Tests source that is difficult to express in C, and a condition with many terms.
fn hard_cases(options: &Options) {
    let suite = "hard cases in C";
    let any: Vec<String> = (0..200).map(|i| format!("load_u8(pkt, {i}u) == {}u", i ^ 0x55)).collect();
    let all: Vec<String> = (0..60).map(|i| format!("(load_u8(pkt, {i}u) != 7u || pkt_len(pkt) > {i}u)")).collect();
    let sum: Vec<String> = (0..250).map(|i| format!("(load_u8(pkt, {i}u) << {}u)", i % 32)).collect();
    let returns = |condition: String| format!("if {condition} {{ return XDP_DROP; }} return XDP_PASS;");
    let nested = (0..100).fold(String::from("n += 1u;"), |inner, i| {
        format!("if load_u8(pkt, {i}u) > 3u {{ {inner} }} else {{ n += {i}u; }}")
    });
    let elses = (0..200).map(|i| format!("if at == {i}u {{ n = {}u; }} else ", i * 3)).collect::<String>();
    let bodies = [
        returns(any.join(" || ")),
        returns(all.join(" && ")),
        format!("return redirect(({}) & 0xffffu);", sum.join(" + ")),
        format!("var n = 0u; {nested} return redirect(n);"),
        format!("var n = 0u; let at = load_u8(pkt, 0u); {elses} {{ n = 1u; }} return redirect(n);"),
    ];
    let texts = bodies.iter().map(|body| format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} }}"));
    let texts = std::iter::once(include_str!("../src/host/hard.wgsl").to_owned()).chain(texts);
    let compile = |(i, text): (usize, String)| {
        texts::in_wgsl_with(&format!("hard case {i}"), &text, &ProgramOptions::default().with_fuel(generator::FUEL))
    };
    let programs: Vec<_> = texts.enumerate().map(compile).collect();
    let Some(device) = device(suite, options, &programs) else { return };
    let packets: Vec<_> = (0..8).flat_map(|seed| generator::packets(seed, 40)).collect();
    programs.iter().for_each(|program| compare(program, options, &device, &packets, &[packets.len()]));
    passed(suite, &device);
}

/// Features of OpenCL C that WGSL lacks: cases that fall through, and pointers to vectors inside
/// other values.
const HARD_C: &str = "
struct lane { uint4 v[2]; uchar2 pair; };
void turn(uint4 *p, uint by) { p->z += by; (*p).s1 ^= p->x; p->even = p->odd; p[1].w = by; }
uint fall(uint at, uint n) {
    switch (n & 7) {
    case 0: at += 1;
    case 1: at *= 3; break;
    default: at ^= 5;
    case 2:
    case 3: if (at & 1) break; at += 7;
    case 6: at = rotate(at, 3u); return at;
    }
    return at + 1;
}
uint xdp_filter(__global uchar *pkt, uint len) {
    struct lane a[2] = {{.v = {(uint4)(1, 2, 3, 4)}, .pair = (uchar2)(250, 9)}};
    uint i = pkt[0] & 1, j = pkt[1] & 1, sum = 0;
    turn(a[i].v, pkt[2]);
    turn(&a[1].v[0], pkt[3]);
    uint4 *p = &a[j].v[i];
    p->w = fall(len, pkt[4]);
    a[i].v[j].yz += p->xw;
    a[j].pair.y += pkt[5];
    for (uint k = 0; k < 8; k++) {
        uint4 v = a[k & 1].v[k >> 2];
        sum = sum * 31 + (v.x ^ v.y ^ v.z ^ v.w) + fall(sum, k) + a[k & 1].pair.y;
    }
    *(__global uint *)(pkt + 8) = sum;
    return redirect(sum & 0xffff);
}
";

/// Runs random OpenCL C filters through the C writer.
fn opencl_c(options: &Options, seeds: std::ops::Range<u64>) {
    let suite = "OpenCL C in C";
    let compile = |text: String| {
        texts::in_opencl_c_with("program.cl", &text, &ProgramOptions::default().with_fuel(generator::FUEL))
    };
    let random = seeds.flat_map(|seed| [c_programs::program(seed).text, cl_programs::program(seed, true).text]);
    let programs: Vec<_> = random.chain([HARD_C.to_owned()]).map(compile).collect();
    let Some(device) = device(suite, options, &programs) else { return };
    let mut random = Pcg64::seed_from_u64(5);
    let packets: Vec<Vec<u8>> = (0..40).map(|_| c_programs::packet(&mut random)).collect();
    programs.iter().for_each(|program| compare(program, options, &device, &packets, &[packets.len()]));
    passed(suite, &device);
}

/// Tests each store by itself, at each alignment, at an offset known at compile time and up to the
/// packet's last byte. Guard bytes around the packet detect writes outside it; loads of another
/// width read the stored bytes together with their neighbours.
fn single_stores(options: &Options) {
    let suite = "stores in C";
    let stores = [("store_be16", 2), ("store_le16", 2), ("store_be32", 4), ("store_le32", 4)];
    let places = |size: u32| (0..4).map(|at| format!("{at}u")).chain([format!("pkt_len(pkt) - {size}u")]);
    let compile = |(store, at): (&str, String)| {
        let text = format!(
            "fn xdp_filter(pkt: u32) -> u32 {{
                let at = {at};
                let before = load_le32(pkt, at & 0xfffffffcu);
                {store}(pkt, at, before * 0x9e3779b1u + 0x81929394u);
                let after = load_le32(pkt, at & 0xfffffffcu);
                return redirect((before * 31u + (after ^ (after >> 8u))) & 0xffffffu);
            }}"
        );
        texts::in_wgsl(&format!("{store} at {at}"), &text)
    };
    let cases = stores.iter().flat_map(|&(store, size)| places(size).map(move |at| (store, at)));
    let programs: Vec<_> = cases.map(compile).collect();
    let Some(device) = device(suite, options, &programs) else { return };
    // The device keeps packets where they are: cover each length at each offset within a word.
    let packets: Vec<Vec<u8>> = (0..48u8).map(|i| (0..i / 4).map(|byte| i.wrapping_mul(29) ^ byte).collect()).collect();
    programs.iter().for_each(|program| compare(program, options, &device, &packets, &[packets.len()]));
    passed(suite, &device);
}

fn random_filters(options: &Options, seeds: std::ops::Range<u64>) {
    let suite = "random filters in C";
    let programs: Vec<_> = seeds.clone().map(|seed| generator::program(seed, None)).collect();
    let Some(device) = device(suite, options, &programs) else { return };
    for (seed, program) in seeds.zip(&programs) {
        let packets = generator::packets(seed, 40);
        compare(program, options, &device, &packets, &[packets.len(), 7]);
    }
    passed(suite, &device);
}

fn every_operator(options: &Options) {
    let suite = "operators in C";
    let (integers, floats) = (operators::cases(&operators::TYPES), floating_point::cases());
    let programs = integers.iter().map(|c| c.case.program().clone()).chain(floats.iter().map(|c| c.0.clone()));
    let Some(device) = device(suite, options, &programs.collect::<Vec<_>>()) else { return };
    operators::check(&device, &integers);
    floating_point::check(&device, &floats);
    passed(suite, &device);
}

fn cuda(packet_access: PacketAccess) -> Options {
    Options::new(Language::Cuda).with_packet_access(packet_access)
}

#[test]
fn cuda_stock_filters_and_probes() {
    stock_and_probes(&cuda(PacketAccess::Bytes));
}

#[test]
fn cuda_stock_filters_and_probes_with_word_access() {
    stock_and_probes(&cuda(PacketAccess::Words));
    stock_and_probes(&cuda(PacketAccess::AlignedWords).with_group_size(64).with_grid_stride());
}

#[test]
fn cuda_random_filters() {
    random_filters(&cuda(PacketAccess::Bytes), 0..200);
}

#[test]
fn cuda_random_filters_with_word_access() {
    random_filters(&cuda(PacketAccess::Words), 200..250);
    random_filters(&cuda(PacketAccess::AlignedWords).with_grid_stride(), 250..300);
}

#[test]
fn cuda_operators() {
    every_operator(&cuda(PacketAccess::Bytes));
}

#[test]
fn single_stores_in_both_languages() {
    single_stores(&cuda(PacketAccess::Words));
    single_stores(&cuda(PacketAccess::AlignedWords));
    single_stores(&Options::new(Language::OpenCl).with_packet_access(PacketAccess::Words));
}

#[test]
fn hard_cases_in_both_languages() {
    hard_cases(&cuda(PacketAccess::Bytes));
    hard_cases(&Options::new(Language::OpenCl));
}

#[test]
fn opencl_c_filters_in_both_languages() {
    opencl_c(&cuda(PacketAccess::Words), 0..40);
    opencl_c(&Options::new(Language::OpenCl), 40..50);
}

#[test]
fn opencl_stock_filters_and_probes() {
    stock_and_probes(&Options::new(Language::OpenCl));
}

#[test]
fn opencl_random_filters() {
    random_filters(&Options::new(Language::OpenCl).with_grid_stride(), 300..340);
}

#[test]
fn opencl_vectorizable_source() {
    let vectorizable = Options::new(Language::OpenCl).with_packet_access(PacketAccess::Vectorizable);
    stock_and_probes(&vectorizable);
    random_filters(&vectorizable, 340..400);
}

#[test]
fn opencl_loop_fission() {
    let fission = Options::new(Language::OpenCl).with_packet_access(PacketAccess::LoopFission);
    stock_and_probes(&fission);
    random_filters(&fission, 340..400);
}

/// Regression test: a constant stored in a vector of booleans was a byte of which clang assumed a
/// single bit, which ended the process.
#[test]
fn opencl_constants_in_vectors() {
    random_filters(&Options::new(Language::OpenCl), 399..400);
}

#[test]
fn opencl_operators() {
    every_operator(&Options::new(Language::OpenCl).with_packet_access(PacketAccess::Words));
}

/// The sanitizers report a misaligned access, which x86 would forgive.
#[test]
fn misaligned_accesses_end_the_process() {
    let program = texts::in_wgsl("f.wgsl", "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }");
    let access = |offset: u32| {
        let text = "{ uint words[3] = {0u, 0u, 0u}; *(uint *)((uchar *)words + @) = 1u; }";
        Some(text.replace('@', &offset.to_string()))
    };
    for language in [Language::Cuda, Language::OpenCl] {
        for offset in [4, 5, 6] {
            let options = Options::new(language).with_epilogue(access(offset));
            let Some(device) = device("misaligned accesses in C", &options, std::slice::from_ref(&program)) else {
                break;
            };
            match harness::compare(&program, &*device, &[vec![7; 60]], &[1]) {
                Ok(()) => assert_eq!(offset, 4, "{language}"),
                Err(mismatch) => {
                    let report = mismatch.to_string();
                    assert!(offset != 4 && report.contains("the process said"), "{language}: {report}");
                    assert!(language == Language::OpenCl || report.contains("misaligned address"), "{report}");
                }
            }
        }
    }
}

/// Compiles for a target with distinct address spaces, which clang then checks.
#[test]
fn clang_accepts_the_opencl_c_source() {
    let suite = "OpenCL C, syntax";
    let Some(clang) = host::clang() else {
        return devices::record(suite, "c-writer:opencl", "skipped", "no clang on this machine");
    };
    for case in filters::cases() {
        let program = case.compile().unwrap_or_else(|e| panic!("{}", e.render()));
        let options = Options::new(Language::OpenCl).with_group_size(64);
        let kernel = write(&program, &options).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("filter.cl");
        std::fs::write(&source, &kernel.source).unwrap();
        let mut command = Command::new(&clang);
        host::opencl_c(command.args(["-target", "spir64", "-fsyntax-only"]), &source).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), kernel.source);
    }
    devices::record(suite, "c-writer:opencl", "passed", &clang);
}
