//! NVRTC and ptxas accept the sources that the cuda backend generates, for three GPU generations,
//! and stock filters spill no registers. No GPU is needed.

use std::path::{Path, PathBuf};

use portcullis::backend::cuda::{CubinSource, cubins};
use portcullis::device::Dispatch;
use portcullis_compat_tests::generator;
use portcullis_compat_tests::nvidia::{ARCHITECTURES, PTXAS, Usage, assemble};
use portcullis_compat_tests::{devices, stateful, texts};
use portcullis_conformance::filters::{self, Case, Language};
use portcullis_core::program::Program;

const SUITE: &str = "NVRTC and ptxas";

/// Number of random filters; each is compiled for one of the architectures.
const RANDOM_FILTERS: u64 = 60;

/// Returns the path of ptxas, or `None` unless NVRTC is present as well.
fn compilers() -> Option<PathBuf> {
    let ptxas = std::env::var_os(PTXAS).map(PathBuf::from);
    let skip = |reason: &str| {
        devices::record_skip(SUITE, "nvrtc", reason);
        None
    };
    match (portcullis::backend::cuda::nvrtc_version(), ptxas) {
        (Ok(_), Some(ptxas)) => Some(ptxas),
        (Err(error), _) => skip(&error.to_string()),
        (Ok(_), None) => skip(&format!("no ptxas ({PTXAS}), which `cargo xtask test` fetches")),
    }
}

fn passed(remark: &str) {
    let (major, minor) = portcullis::backend::cuda::nvrtc_version().unwrap();
    devices::record(SUITE, "nvrtc", "passed", &format!("NVRTC {major}.{minor}, {remark}"));
}

/// Compiles a source to machine code, as the backend does, and to PTX for ptxas.
fn compile(ptxas: &Path, cubin: &CubinSource, arch: u32) -> Usage {
    let fail = |reason: String| -> ! { panic!("{reason}\n{}, sm_{arch}\n{}", cubin.dispatch, cubin.source) };
    let image = cubin.compile().unwrap_or_else(|error| fail(error.to_string()));
    assert!(image.starts_with(b"\x7fELF"), "not an ELF file");
    let ptx = cubin.ptx().unwrap_or_else(|error| fail(error.to_string()));
    assemble(ptxas, &ptx, arch).unwrap_or_else(|reason| fail(reason))
}

fn sources(program: &Program, arch: u32) -> Vec<CubinSource> {
    cubins(program, arch).unwrap_or_else(|e| panic!("{e}\n{}", program.source().text))
}

/// Compiles every stock filter for every dispatch method.
fn compile_stock_filters(language: Language) {
    let Some(ptxas) = compilers() else { return };
    let mut most = 0;
    let is_stock = |case: &&Case| portcullis::stock::STATELESS_WGSL.iter().any(|(name, _)| *name == case.name);
    for case in filters::cases().iter().filter(is_stock).filter(|case| case.language == language) {
        let program = case.compile().unwrap_or_else(|e| panic!("{}", e.render()));
        for arch in ARCHITECTURES {
            for cubin in sources(&program, arch) {
                let usage = compile(&ptxas, &cubin, arch);
                let what = format!("{} in {}, {}, sm_{arch}", case.name, language.name(), cubin.dispatch);
                println!("{what}: {} registers, {} bytes of stack", usage.registers, usage.stack);
                assert_eq!(usage.spills, 0, "{what} spills\n{}", cubin.source);
                most = most.max(usage.registers);
            }
        }
    }
    passed(&format!("stock filters in {}, at most {most} registers", language.name()));
}

#[test]
fn wgsl_stock_filters_compile_without_spills() {
    compile_stock_filters(Language::Wgsl);
}

#[test]
fn opencl_c_stock_filters_compile_without_spills() {
    compile_stock_filters(Language::OpenClC);
}

/// Persistent kernels must not load through the constant cache: a network card may have written
/// device memory since the kernel started, and that cache does not see it (`slot.cu`).
#[test]
fn persistent_kernels_do_not_load_through_the_constant_cache() {
    let Some(_) = compilers() else { return };
    let (mut constants, mut answering) = (0, 0);
    for name in ["port_filter", "dscp_mark", "vlan_pop"] {
        let case = filters::cases().into_iter().find(|case| case.name == name && case.language == Language::Wgsl);
        let program = case.unwrap().compile().unwrap_or_else(|e| panic!("{}", e.render()));
        for arch in ARCHITECTURES {
            for cubin in sources(&program, arch) {
                let ptx = String::from_utf8(cubin.ptx().unwrap()).unwrap();
                let found = ptx.matches("ld.global.nc").count();
                match cubin.dispatch {
                    // A kernel launched after the packets were written may use the constant cache;
                    // that it does proves that the search pattern is right.
                    Dispatch::Pipelined => constants += found,
                    dispatch => {
                        assert_eq!(found, 0, "{name}, {dispatch}, sm_{arch}\n{ptx}");
                        answering += ptx.matches("ld.global").count();
                    }
                }
            }
        }
    }
    assert!(constants > 0 && answering > 0, "{constants} constant loads, {answering} other loads");
    passed("no constant loads in persistent kernels");
}

/// Filters with maps, flows and prefixes in both languages; each pair is compiled for one
/// architecture.
#[test]
fn stateful_filters_compile() {
    let Some(ptxas) = compilers() else { return };
    let mut most = 0;
    for (number, (name, _)) in portcullis::stock::STATEFUL_WGSL.iter().enumerate() {
        for program in stateful::programs(name, &[]) {
            let arch = ARCHITECTURES[number % ARCHITECTURES.len()];
            let Usage { registers, spills, .. } = pipelined(&ptxas, &program, &[arch]);
            println!("{}, sm_{arch}: {registers} registers, {spills} bytes spilled", program.source().name);
            most = most.max(registers);
        }
    }
    passed(&format!("stateful filters, at most {most} registers"));
}

/// Maps of every kind with keys of several lengths, for every dispatch method.
#[test]
fn map_operations_compile() {
    const FILTER: &str = "
        //! map flows: hash key=4 value=6 entries=1000000
        //! map long: hash key=10 value=2 entries=1000
        //! map ports: array value=1 entries=65536
        //! map bytes: counter entries=4
        fn xdp_filter(pkt: u32) -> u32 {
            let key = vec4<u32>(load_be32(pkt, 26u), load_be32(pkt, 30u), load_be32(pkt, 34u), load_u8(pkt, 23u));
            bytes_add(0u, pkt_len(pkt));
            ports_add(key.z & 0xffffu, 0u, 1u);
            var words: array<u32, 10>;
            words[9] = key.x;
            if long_remove(words) { return XDP_DROP; }
            let flow = flows_insert(key);
            if flow == MAP_FULL { return XDP_ABORTED; }
            if map_is_new(flow) { flows_write(flow, 5u, key.y); }
            if flows_compare_exchange(flow, 0u, 0u, 1u) == flows_read(flow, 1u) { long_insert(words); }
            return XDP_PASS;
        }";
    let Some(ptxas) = compilers() else { return };
    let program = texts::in_wgsl("maps.wgsl", FILTER);
    let mut most = 0;
    for arch in ARCHITECTURES {
        for cubin in sources(&program, arch) {
            let Usage { registers, spills, .. } = compile(&ptxas, &cubin, arch);
            println!("{}, sm_{arch}: {registers} registers, {spills} bytes spilled", cubin.dispatch);
            most = most.max(registers);
        }
    }
    passed(&format!("maps, at most {most} registers"));
}

fn pipelined(ptxas: &Path, program: &Program, architectures: &[u32]) -> Usage {
    let mut worst = Usage::default();
    for &arch in architectures {
        for cubin in sources(program, arch).iter().filter(|cubin| cubin.dispatch == Dispatch::Pipelined) {
            let usage = compile(ptxas, cubin, arch);
            worst.registers = worst.registers.max(usage.registers);
            worst.spills = worst.spills.max(usage.spills);
        }
    }
    worst
}

#[test]
fn probes_compile() {
    let Some(ptxas) = compilers() else { return };
    for case in filters::cases().iter().filter(|case| filters::PROBES.iter().any(|(name, _)| *name == case.name)) {
        let program = case.compile().unwrap_or_else(|e| panic!("{}", e.render()));
        let Usage { registers, spills, .. } = pipelined(&ptxas, &program, &ARCHITECTURES);
        println!("{}: {registers} registers, {spills} bytes spilled", case.name);
    }
    passed("probes");
}

#[test]
fn random_filters_compile() {
    let Some(ptxas) = compilers() else { return };
    for seed in 0..RANDOM_FILTERS {
        let program = generator::program(seed, None);
        pipelined(&ptxas, &program, &[ARCHITECTURES[seed as usize % ARCHITECTURES.len()]]);
    }
    passed("random filters");
}

/// The checks can fail: invalid source is refused, and spills are detected.
#[test]
fn invalid_source_is_refused_and_spills_are_detected() {
    let Some(ptxas) = compilers() else { return };
    let case = &filters::cases()[0];
    let program = case.compile().unwrap();
    let cubin = sources(&program, 90).remove(0);
    let broken = CubinSource { source: cubin.source.replacen("uint", "unit", 1), ..cubin.clone() };
    let reason = broken.compile().unwrap_err().to_string();
    assert!(reason.contains("error: identifier \"uint\" is undefined"), "{reason}");
    // More live values than a thread has registers, given this limit.
    let values: String = (0..128).map(|i| format!("float v{i} = p[{i}];\n")).collect();
    let sums: String =
        (0..128).map(|i| format!("p[{i}] = v{i} * v{} + v{};\n", (i + 37) % 128, (i + 91) % 128)).collect();
    let hungry = format!(
        "extern \"C\" __global__ void __launch_bounds__(1024, 2) xdp_kernel(float *p)\n{{\n{values}__syncthreads();\n{sums}}}\n"
    );
    let usage = compile(&ptxas, &CubinSource { source: hungry, ..cubin }, 90);
    assert!(usage.spills > 0, "{usage:?}");
}
