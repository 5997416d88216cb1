//! eBPF instructions, each by itself and in random programs: the Linux kernel, the model and every
//! device give the same results.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};

use portcullis::device::DeviceKind;
use portcullis_compat_tests::harness;
use portcullis_compat_tests::instructions::model::arbitrary;
use portcullis_compat_tests::instructions::model::compare::{self, STEPS, compile};
use portcullis_compat_tests::instructions::model::reference::{Ending, Machine};
use portcullis_compat_tests::instructions::model::shrink::shrink;
use portcullis_compat_tests::instructions::model::table::{self, Case};
use portcullis_compat_tests::instructions::model::{Code, Random, op};
use portcullis_compat_tests::kernel::{self, KernelProgram};
use portcullis_compat_tests::{devices, layouts, objects};
use portcullis_core::device::{Device, DeviceError, LoadOptions};
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Metadata, ResizeRoom};

fn tables() -> Vec<Case> {
    let all = [table::of_arithmetic(), table::of_jumps(), table::of_memory(), table::of_atomics()];
    all.into_iter().flatten().collect()
}

/// Whether a kernel that runs XDP programs is available; records that the suite is skipped if not.
fn has_kernel(suite: &str) -> bool {
    kernel::on_first_processor();
    !objects::is_kernel_missing(suite)
}

/// Interface index of packets in the kernel's test run.
const LOOPBACK: u32 = 1;

/// Instructions are printed as the kernel's verifier prints them, since errors and abort sites
/// quote them.
#[test]
fn instructions_are_printed_as_the_verifier_prints_them() {
    let suite = "instructions as the verifier shows them";
    if !has_kernel(suite) {
        return;
    }
    let (mut seen, mut kinds) = (0, BTreeSet::new());
    for Case { name, code, .. } in tables().iter().filter(|case| case.for_kernel) {
        let object = code.object();
        let shown = KernelProgram::shown(&object, "program").unwrap_or_else(|error| panic!("{name}: {error}"));
        for (number, text) in shown {
            let instruction = object.sections[0].instructions[number];
            // The verifier prints a 64-bit load, which takes two instructions, in another form.
            if instruction.code == 0x18 {
                continue;
            }
            assert_eq!(instruction.to_string(), text, "{name}: instruction {number}");
            seen += 1;
            kinds.insert(instruction.code);
        }
    }
    println!("{seen} instructions printed as the verifier prints them");
    assert!(kinds.len() > 80, "only {} opcodes: {kinds:02x?}", kinds.len());
}

#[test]
fn the_kernel_agrees_with_the_model_on_every_instruction() {
    let suite = "instructions in the kernel";
    if !has_kernel(suite) {
        return;
    }
    let (mut programs, mut packets) = (0, 0);
    for Case { name, code, packets: of, .. } in tables().iter().filter(|case| case.for_kernel) {
        let there = KernelProgram::load(&code.object(), "program").unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut machine = Machine::new(code);
        for packet in of {
            let (ending, want) = machine.run(packet, LOOPBACK, STEPS);
            let ran = there.run(packet).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(ending, Ending::Exit(ran.verdict.into()), "{name}");
            if let Some(at) = ran.packet.iter().zip(&want).position(|(got, want)| got != want) {
                let (got, want) = (&ran.packet[at..at + 8], &want[at..at + 8]);
                let part = table::part(code, at);
                panic!("{name}, {:02x?}: the kernel {got:02x?}, the model {want:02x?}\n{part}", &packet[..24]);
            }
            packets += 1;
        }
        programs += 1;
    }
    devices::record(suite, "kernel", "passed", &format!("{programs} programs, {packets} packets"));
}

/// The helpers that we report as unavailable to XDP programs are those that the kernel refuses to
/// them with any arguments.
#[test]
fn the_kernel_refuses_helpers_reported_as_unavailable_to_xdp() {
    let suite = "helpers in the kernel";
    if !has_kernel(suite) {
        return;
    }
    let mut others = 0;
    for helper in 1..=209 {
        let instructions = vec![op(0x85, 0, 0, 0, helper), op(0xb7, 0, 0, 0, 2), op(0x95, 0, 0, 0, 0)];
        let code = Code { instructions, functions: vec![0], maps: Vec::new() };
        let Err(said) = compile(&code) else { continue };
        if said.contains("hooks other than XDP") {
            others += 1;
            let there = KernelProgram::load(&code.object(), "program").map(drop);
            let why = there.expect_err(&said);
            assert!(
                ["cannot use helper", "unknown func", "invalid func"].iter().any(|it| why.contains(it)),
                "{said}\n{why}"
            );
        }
    }
    assert!(others > 80, "only {others} helpers");
    devices::record(suite, "kernel", "passed", &format!("{others} helpers are for other hooks"));
}

/// Devices with a slow compiler run a sample of the programs, another one for each share.
#[test]
fn devices_agree_on_every_instruction() {
    let cases: Vec<harness::Case> = tables()
        .into_iter()
        .filter(|case| !case.is_constant)
        .map(|case| {
            let program = compile(&case.code).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            // Every packet is compared by itself, as if it were the first to use the maps.
            let packets = case.packets.into_iter().step_by(3).collect();
            harness::Case::new(program, packets)
        })
        .collect();
    println!("{} programs", cases.len());
    devices::on_each("instructions of eBPF", |device| {
        let is_slow = device.info().kind != DeviceKind::Cpu && device.info().kind != DeviceKind::Reference;
        // A prime step, so that operations and operand kinds alternate.
        let step = match device.info().kind {
            DeviceKind::Software if is_slow => 17,
            _ if is_slow => 5,
            _ => 1,
        };
        let (mut ran, mut too_large) = (0, 0);
        for case in devices::share(device, &cases, 8).step_by(step) {
            // Software drivers compile fewer 64-bit divisions in one program than some cases have.
            if device.info().kind == DeviceKind::Software
                && let Err(DeviceError::Unsupported { reason, .. }) =
                    device.load(case.program(), &LoadOptions::default())
            {
                println!("{}: skipped: {reason}", device.info().id);
                too_large += 1;
                continue;
            }
            ran += 1;
            // Each packet sets a map entry before it uses it, so packets must run one by one.
            let batch = if case.program().maps().is_empty() { case.packets().len() } else { 1 };
            case.compare(&**device, &[batch]).unwrap_or_else(|mismatch| panic!("{mismatch}"));
        }
        assert!(ran > 5 * too_large, "{ran} programs ran, {too_large} were skipped");
    });
}

/// Result of running a program on both sides.
#[derive(Debug)]
enum Comparison {
    /// One side refuses the program, or its behaviour is undefined: reason and detail.
    Skipped(&'static str, String),
    /// Both sides agree.
    Same,
    Differs(String),
}

fn compare_with_kernel(code: &Code, packets: &[Vec<u8>]) -> Comparison {
    let first = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    // Skip programs with undefined behaviour, and those that run too long.
    let mut machine = Machine::new(code);
    for packet in packets {
        match machine.run(packet, LOOPBACK, STEPS).0 {
            Ending::Exit(value) if compare::verdict(value, machine.target).is_some() => {}
            other => return Comparison::Skipped("undefined in the model", format!("{other:?}")),
        }
    }
    let object = code.object();
    let here = compile(code);
    let there = KernelProgram::load(&object, "program");
    let (program, there) = match (here, there) {
        (Ok(here), Ok(there)) => (here, there),
        (Err(why), Ok(_)) => return Comparison::Skipped("refused here, accepted by the kernel", first(&why)),
        (_, Err(why)) => {
            let last =
                why.lines().rev().find(|line| !line.starts_with("processed") && !line.starts_with("verification"));
            return Comparison::Skipped(
                "refused by the kernel",
                last.unwrap_or_default().chars().filter(|c| !c.is_numeric()).collect(),
            );
        }
    };
    let mut session =
        InterpDevice::new().load(&program, &LoadOptions::default()).expect("the interpreter accepts every program");
    let mut machine = Machine::new(code);
    for packet in packets {
        let ran = match there.run(packet) {
            Ok(ran) => ran,
            Err(error) => return Comparison::Differs(format!("the kernel fails to run it: {error}")),
        };
        let (ending, model) = machine.run(packet, LOOPBACK, STEPS);
        let Ending::Exit(returned) = ending else { unreachable!("the same run returned before") };
        if (ran.verdict, &ran.packet) != (returned as u32, &model) {
            return Comparison::Differs(format!(
                "{packet:02x?}: the kernel {} {:02x?}\nthe model {} {model:02x?}",
                ran.verdict, ran.packet, returned as u32
            ));
        }
        let metadata = |_| Metadata { port: LOOPBACK, ..Metadata::default() };
        let batch = layouts::batches_with(&[packet], 1, ResizeRoom::Both, metadata).0.remove(0);
        let done = session.run(batch).expect("the interpreter does not fail");
        let got = (objects::of_ours(done.verdicts.get(0)), done.batch.packet(0));
        let want = (objects::of_kernel(ran.verdict), ran.packet.as_slice());
        if got != want {
            return Comparison::Differs(format!("{packet:02x?}: here {got:02x?}\nthe kernel {want:02x?}"));
        }
    }
    for (number, &map) in code.maps.iter().enumerate() {
        let ours = compare::entries(&program, number, map, |ours| session.map_words(ours).unwrap_or_default());
        let theirs = there.entries(number).expect("the kernel's maps can be read").unwrap_or_default();
        let theirs: Vec<_> = theirs.into_iter().collect();
        if ours.as_ref().is_some_and(|ours| *ours != theirs) {
            return Comparison::Differs(format!("map {number}: here {ours:02x?}\nthe kernel {theirs:02x?}"));
        }
    }
    Comparison::Same
}

/// Runs `PORTCULLIS_RANDOM_OBJECTS` programs from seed `PORTCULLIS_RANDOM_SEED` on: as generated,
/// and mutated.
#[test]
fn random_programs_agree_with_the_kernel() {
    let suite = "programs of instructions, kernel";
    if !has_kernel(suite) {
        return;
    }
    let (first, count) = (devices::number(devices::SEED, 1), devices::number("PORTCULLIS_RANDOM_OBJECTS", 250));
    let mut apart: BTreeMap<(&str, String), u32> = BTreeMap::new();
    let (mut same, mut whole) = (0, 0);
    for seed in first..first + count {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let budget = 2 + random.below(30);
        let code = arbitrary::program(&mut random, budget);
        let packets = arbitrary::packets(&mut random, 12);
        let damaged = arbitrary::damaged(&mut random, &code);
        for (code, is_whole) in [(code, true), (damaged, false)] {
            match compare_with_kernel(&code, &packets) {
                Comparison::Same => (same, whole) = (same + 1, whole + u64::from(is_whole)),
                Comparison::Skipped(what, why) => *apart.entry((what, why)).or_default() += 1,
                Comparison::Differs(what) => {
                    let small =
                        shrink(&code, |code| matches!(compare_with_kernel(code, &packets), Comparison::Differs(_)));
                    let small_what = compare_with_kernel(&small, &packets);
                    panic!("seed {seed}: {what}\n{}\n{small_what:?}\n{}", code.listing(), small.listing());
                }
            }
        }
    }
    for ((what, why), count) in &apart {
        println!("{count:5} {what}: {why}");
    }
    // Both sides accept most of the programs.
    assert!(whole * 10 > count * 6, "{whole} of {count} programs were compared");
    devices::record(suite, "kernel", "passed", &format!("{same} programs of {}", 2 * count));
}
