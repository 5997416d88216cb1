//! Differential test of the OpenCL C front end: random programs give the same bytes through the
//! front end and the interpreter as through the system's C compiler (`CC`, or `cc`), clang and the
//! compilers of OpenCL devices. Every device must give those bytes too.

use std::collections::HashSet;
use std::sync::Arc;

use portcullis::backend::opencl::OpenClDevice;
use portcullis::device::Device;
use portcullis_compat_tests::c_programs::{self, packet};
use portcullis_compat_tests::generator::Maps;
use portcullis_compat_tests::harness::MismatchKind;
use portcullis_compat_tests::host::clang;
use portcullis_compat_tests::witness::native::{self, As};
use portcullis_compat_tests::witness::{Answer, Unavailable, Unit, opencl};
use portcullis_compat_tests::{cl_programs, devices, harness, texts, with_maps};
use portcullis_core::device::DeviceError;
use portcullis_core::interp::Interpreter;
use portcullis_core::packet::Metadata;
use portcullis_core::program::Program;
use rand::SeedableRng;
use rand_pcg::Pcg64;

/// Environment variable with the number of programs, [`PROGRAMS`] by default.
const COUNT: &str = "PORTCULLIS_RANDOM_PROGRAMS";

/// Programs per run.
const PROGRAMS: u64 = 200;

/// Number of programs that each OpenCL device's compiler compiles.
const BY_DEVICES: u64 = 50;

/// Number of programs that every device runs; fewer, because that takes longer.
const ON_DEVICES: u64 = 15;

/// Number of these programs that a device with a slow compiler runs.
const SHARE: usize = 10;

/// Number of programs with maps that every device runs.
const WITH_MAPS: u64 = 32;

/// Number of these programs that a device with a slow compiler runs.
const SHARE_WITH_MAPS: usize = 4;

/// Packets per program.
const PACKETS: usize = 40;

fn seeds(count: u64) -> std::ops::Range<u64> {
    devices::seeds(COUNT, count)
}

fn packets(seed: u64) -> Vec<Vec<u8>> {
    let mut random = Pcg64::seed_from_u64(seed);
    (0..PACKETS).map(|_| packet(&mut random)).collect()
}

fn compile(text: &str) -> Arc<Program> {
    texts::in_opencl_c("program.cl", text)
}

/// Compares the answers of another compiler with the interpreter's, and records the outcome of the
/// suite. `seeds` are those of the programs.
///
/// # Panics
/// If an answer differs, or the compiler fails.
fn compare_answers(
    suite: &str,
    name: &str,
    seeds: impl IntoIterator<Item = u64>,
    programs: &[Unit],
    packets: &[Vec<u8>],
    theirs: Result<Vec<Vec<Answer>>, Unavailable>,
) {
    let theirs = match theirs {
        Ok(theirs) => theirs,
        Err(Unavailable::Missing(reason)) => return devices::record(suite, name, "skipped", &reason),
        Err(Unavailable::Failed(reason)) => panic!("{suite}: {name}: {reason}"),
    };
    let mut answers = HashSet::new();
    for ((seed, program), theirs) in seeds.into_iter().zip(programs).zip(theirs) {
        let interpreter = Interpreter::new(&compile(&program.text)).unwrap();
        assert_eq!(theirs.len(), packets.len());
        for (packet, want) in packets.iter().zip(theirs) {
            let outcome = interpreter.run(packet, &Metadata::default()).unwrap();
            let got = Answer { value: outcome.verdict.to_return(), packet: outcome.packet };
            assert!(
                got == want,
                "{name}, program {seed}\n{}\npacket {packet:02x?}\ngot    {got:02x?}\nwant   {want:02x?}",
                program.text
            );
            answers.insert(got.packet);
        }
    }
    // Programs without effect would prove little.
    assert!(answers.len() > packets.len() * programs.len() / 2, "only {} distinct answers", answers.len());
    devices::record(suite, name, "passed", &format!("{} programs", programs.len()));
}

fn compare_with_native_compiler(
    suite: &str,
    compiler: Option<String>,
    language: As,
    count: u64,
    program: fn(u64) -> Unit,
) {
    let Some(compiler) = compiler else {
        return devices::record(suite, "clang", "skipped", "no clang on this machine");
    };
    let (seeds, packets) = (seeds(count), packets(1));
    let programs: Vec<Unit> = seeds.clone().map(program).collect();
    let theirs = native::answers(&compiler, language, &programs, &packets);
    compare_answers(suite, &native::version(&compiler).unwrap_or(compiler), seeds, &programs, &packets, theirs);
}

#[test]
fn devices_agree_with_the_interpreter() {
    let packets = packets(2);
    let case = |program: Unit| harness::Case::new(compile(&program.text), packets.clone());
    let programs: Vec<(u64, harness::Case)> = seeds(ON_DEVICES)
        .flat_map(|seed| [c_programs::program(seed), cl_programs::program(seed, true)].map(|unit| (seed, case(unit))))
        .collect();
    devices::on_each("random C programs", |device| {
        for (seed, case) in devices::share(device, &programs, SHARE) {
            match case.compare(&**device, &[packets.len(), 7]) {
                Ok(()) => {}
                Err(mismatch) if matches!(mismatch.kind, MismatchKind::Device(DeviceError::Unsupported { .. })) => {
                    println!("{mismatch}");
                }
                Err(mismatch) => panic!("program {seed}: {mismatch}"),
            }
        }
    });
}

/// Returns programs with maps, alternating between packets one by one and packets in flows.
fn programs_with_maps() -> Vec<(u64, Maps, Arc<Program>)> {
    let one = |seed| {
        let maps = if seed % 2 == 0 { Maps::OneByOne } else { Maps::Flows };
        (seed, maps, compile(&c_programs::with_maps(seed, maps)))
    };
    seeds(WITH_MAPS).map(one).collect()
}

#[test]
fn maps_agree_with_the_interpreter() {
    let packets = packets(4);
    let programs = programs_with_maps();
    devices::on_each("random C programs with maps", |device| {
        for (seed, maps, program) in devices::share(device, &programs, SHARE_WITH_MAPS) {
            println!("program {seed}");
            with_maps::check(device, program, *maps, &packets);
        }
    });
    with_maps::all_are_used(programs.iter().map(|(_, _, program)| (program, &packets[..])));
}

#[test]
fn the_c_compiler_agrees_with_the_interpreter() {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    compare_with_native_compiler("C against the C compiler", Some(compiler), As::C, PROGRAMS, c_programs::program);
}

#[test]
fn clang_agrees_with_the_interpreter() {
    compare_with_native_compiler("C against clang", clang(), As::C, PROGRAMS, c_programs::program);
    compare_with_native_compiler("C as OpenCL C against clang", clang(), As::OpenClC, PROGRAMS, c_programs::program);
}

#[test]
fn clang_agrees_about_vectors() {
    compare_with_native_compiler("vectors against clang", clang(), As::OpenClC, PROGRAMS, |seed| {
        cl_programs::program(seed, false)
    });
}

#[test]
fn opencl_compilers_agree_about_vectors_and_built_in_functions() {
    let suite = "OpenCL C against devices' compilers";
    let found = match opencl::devices() {
        Ok(devices) => devices,
        Err(missing) => return devices::record_skip(suite, "opencl", &format!("{missing:?}")),
    };
    let packets = packets(3);
    let laid_out: Vec<opencl::Packet<'_>> =
        packets.iter().map(|bytes| opencl::Packet { bytes, metadata: Metadata::default(), fill: 0 }).collect();
    for device in found {
        let programs = seeds(BY_DEVICES).map(|seed| (seed, cl_programs::program(seed, true)));
        let is_reliable =
            |program: &Unit| !miscompiled_function(&device).is_some_and(|name| program.text.contains(name));
        let (seeds, programs): (Vec<u64>, Vec<Unit>) = programs.filter(|(_, program)| is_reliable(program)).unzip();
        let theirs = opencl::answers(&device, &programs, &laid_out);
        compare_answers(suite, &device.info().id, seeds, &programs, &packets, theirs);
    }
}

/// Returns the name of a built-in function that a device's compiler gets wrong; programs that call
/// it are left out.
///
/// Intel's (2026.22.10) `mad_sat` of `uint` wraps: 0xffffffde, 0xffff8000, 0xffff8000 give
/// 0x00108000, where "a * b + c saturated" (the OpenCL C specification, 6.12.3) is 0xffffffff.
fn miscompiled_function(device: &OpenClDevice) -> Option<&'static str> {
    device.info().driver.starts_with("Intel(R) OpenCL").then_some("mad_sat(")
}
