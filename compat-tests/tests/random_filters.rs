//! Random valid filters on random packets: every device against the reference interpreter.

use std::sync::Arc;

use portcullis_compat_tests::generator::{self, Config, Maps};
use portcullis_compat_tests::harness::{Mismatch, MismatchKind};
use portcullis_compat_tests::{devices, harness, shrink, with_maps};
use portcullis_core::device::{Device, DeviceError};
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::Verdict;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_wgsl as wgsl;

/// Environment variable with the number of filters, [`FILTERS`] by default.
const COUNT: &str = "PORTCULLIS_RANDOM_FILTERS";

const FILTERS: u64 = 150;

/// Number of filters that a device with a slow compiler runs.
const SHARE: usize = 30;

fn seeds() -> std::ops::Range<u64> {
    devices::seeds(COUNT, FILTERS)
}

/// Returns how a filter uses maps, or `None` for the filters without. One in five of every share
/// has maps.
fn maps(seed: u64) -> Option<Maps> {
    (seed / 5 % 5 == 4).then_some(if (seed / 25).is_multiple_of(2) { Maps::Flows } else { Maps::OneByOne })
}

/// A filter and its packets. With maps, the order of the packets matters, so they run in a session
/// of their own.
enum Case {
    Plain(harness::Case),
    WithMaps(Maps, Arc<Program>, Vec<Vec<u8>>),
}

fn case(seed: u64) -> (u64, Case) {
    let case = match maps(seed) {
        Some(maps) => Case::WithMaps(maps, generator::program(seed, Some(maps)), generator::packets(seed, 60)),
        None => Case::Plain(harness::Case::new(generator::program(seed, None), generator::packets(seed, 40))),
    };
    (seed, case)
}

fn check(device: &Arc<dyn Device>, cases: &[(u64, Case)]) {
    let mut refused = 0;
    let share = devices::share(device, cases, SHARE / 2);
    for (seed, case) in share.clone() {
        let case = match case {
            Case::Plain(case) => case,
            Case::WithMaps(maps, program, packets) => {
                with_maps::check(device, program, *maps, packets);
                continue;
            }
        };
        match case.compare(&**device, &[case.packets().len(), 7]) {
            Ok(()) => {}
            // A device may refuse a filter that exceeds its limits, but few filters come near them.
            Err(mismatch) if matches!(mismatch.kind, MismatchKind::Device(DeviceError::Unsupported { .. })) => {
                println!("{mismatch}");
                refused += 1;
            }
            Err(mismatch) => panic!("{}", reduce(device, *seed, case.program(), *mismatch)),
        }
    }
    let count = share.count();
    assert!(refused * 100 <= count, "{} refuses {refused} of {count} filters", device.info().id);
}

/// Reduces the filter, and the packets to one, while the mismatch stays of the same kind.
fn reduce(device: &Arc<dyn Device>, seed: u64, program: &Program, mismatch: Mismatch) -> Mismatch {
    let MismatchKind::Packet { ref packet, .. } = mismatch.kind else { return mismatch };
    let packets = std::slice::from_ref(packet);
    // A reduced source may lack the declarations of parameters that are set.
    let retry = |text: &str| {
        let source = Source::new(program.source().name.clone(), text);
        let parameters = generator::filter(seed, &Config::varied(seed)).parameters;
        let mut options = ProgramOptions::default().with_parameters(parameters).with_fuel(generator::FUEL);
        options.parameters.retain(|(name, _)| text.contains(&format!("override {name}:")));
        let program = wgsl::compile(&source, &options).ok()?;
        let mismatch = harness::compare(&Arc::new(program), &**device, packets, &[1]).err()?;
        matches!(mismatch.kind, MismatchKind::Packet { .. }).then_some(*mismatch)
    };
    let small = shrink::shrink(&program.source().text, |text| retry(text).is_some());
    retry(&small).unwrap_or(mismatch)
}

/// Tests half of the filters, so that two tests run concurrently.
fn every_device_agrees(half: usize) {
    let seeds: Vec<u64> = seeds().collect();
    let (first, second) = seeds.split_at(seeds.len() / 2);
    let cases: Vec<_> = [first, second][half].iter().map(|&seed| case(seed)).collect();
    devices::on_each("random filters", |device| check(device, &cases));
}

#[test]
fn every_device_agrees_with_the_reference() {
    every_device_agrees(0);
}

#[test]
fn every_device_agrees_with_the_reference_on_the_other_half() {
    every_device_agrees(1);
}

/// Whatever share of the filters a slow device runs, every optional feature is present in some of
/// them and absent from others.
#[test]
fn every_share_has_every_kind_of_filter() {
    let step = (FILTERS as usize).div_ceil(SHARE);
    for first in 0..step as u64 {
        let mut seen = [[false; 2]; 8];
        for seed in (first..FILTERS).step_by(step) {
            let c = Config::varied(seed);
            let has =
                [c.int64, c.stores, c.wild_offsets, c.length_changes, c.metadata, c.loops, c.redirects, c.overrides];
            seen.iter_mut().zip(has).for_each(|(seen, has)| seen[usize::from(has)] = true);
        }
        assert_eq!(seen, [[true; 2]; 8], "share {first}");
    }
}

/// Enough of the filters that run by default have a load that must stay behind the branch that
/// proves it. Some of these write nothing, so that a compiler may assume that every load can be
/// moved.
#[test]
fn some_filters_prove_a_load_in_a_loop() {
    let holding: Vec<_> = (0..FILTERS)
        .map(|seed| generator::program(seed, None))
        .filter(|p| p.source().text.contains("let far"))
        .collect();
    let readers = holding.iter().filter(|program| !program.facts().rewrites()).count();
    println!("{} of {FILTERS} filters, {readers} of which write nothing", holding.len());
    assert!(holding.len() >= 40 && readers >= 10, "{} filters, {readers} of which write nothing", holding.len());
}

/// The facts agree with the interpreter's trace of each run.
#[test]
fn facts_hold_for_every_run() {
    use portcullis_core::interp::Interpreter;
    use portcullis_core::packet::Metadata;
    use portcullis_core::program::facts::Window;

    let within = |window: Window, end: Option<u32>| match (window, end) {
        (_, None) | (Window::WholePacket, _) => true,
        (Window::Nothing, Some(_)) => false,
        (Window::Bytes(n), Some(end)) => end <= n,
    };
    // Numbers of filters with a bounded read window, and with a bounded number of iterations.
    let (mut bounded, mut counted) = (0, 0);
    for seed in seeds() {
        let program = generator::program(seed, None);
        let facts = program.facts().clone();
        bounded += u64::from(matches!(facts.reads, Window::Bytes(_)));
        counted += u64::from(facts.max_iterations.is_some_and(|most| most > 0));
        let reference = Interpreter::new(&program).unwrap_or_else(|e| panic!("{e}"));
        for packet in generator::packets(seed, 40) {
            let outcome = reference.run(&packet, &Metadata::new(77, 1, 1 << 40)).unwrap_or_else(|e| panic!("{e}"));
            let trace = outcome.trace;
            let context = || format!("seed {seed}: {facts:?}\n{outcome:?}\n{}", program.source().text);
            assert!(within(facts.reads, trace.read_end), "reads: {}", context());
            assert!(within(facts.writes, trace.written_end), "writes: {}", context());
            assert!(facts.changes_length || outcome.packet.len() == packet.len(), "length: {}", context());
            assert!(facts.rewrites() || outcome.packet == packet, "bytes: {}", context());
            assert!(facts.verdicts.contains(outcome.verdict.action()), "verdicts: {}", context());
            assert!(facts.redirects || !matches!(outcome.verdict, Verdict::Redirect(_)), "redirects: {}", context());
            if let Some(most) = facts.max_iterations {
                assert!(trace.iterations <= u64::from(most), "iterations: {}", context());
            }
            if !facts.uses_metadata {
                let other = reference.run(&packet, &Metadata::new(78, 2, 1 << 50)).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(outcome, other, "metadata: {}", context());
            }
        }
    }
    let all = seeds().end - seeds().start;
    println!("of {all} filters {bounded} have a bounded read window, {counted} a bounded number of iterations");
    // Facts without bounds hold trivially.
    assert!(all < 100 || (bounded > all / 10 && counted > all / 20), "too few facts have bounds");
}

/// An incorrect device is detected, and the reported filter is small.
#[test]
fn mismatches_are_reduced() {
    let device: Arc<dyn Device> = Arc::new(portcullis::device::noop::NoopDevice::new());
    let seed = 4;
    let program = generator::program(seed, None);
    let packets = generator::packets(seed, 40);
    let mismatch = *harness::compare(&program, &*device, &packets, &[40]).expect_err("noop passes every packet");
    let small = reduce(&device, seed, &program, mismatch);
    let (before, after) = (program.source().text.lines().count(), small.filter.lines().count());
    assert!(before > 20 && after < 9, "{before} lines became {after}:\n{small}");
}

/// Every share has filters with maps for packets one by one and in flows, and they use the maps.
#[test]
fn every_share_has_filters_with_maps() {
    let step = (FILTERS as usize).div_ceil(SHARE);
    for first in 0..step as u64 {
        let kinds: Vec<Maps> = (first..FILTERS).step_by(step).filter_map(maps).collect();
        assert!(kinds.contains(&Maps::Flows) && kinds.contains(&Maps::OneByOne), "share {first}: {kinds:?}");
    }
    let seeds = (0..FILTERS).filter_map(|seed| Some((seed, maps(seed)?)));
    let filters: Vec<_> =
        seeds.map(|(seed, maps)| (generator::program(seed, Some(maps)), generator::packets(seed, 60))).collect();
    with_maps::all_are_used(filters.iter().map(|(program, packets)| (program, &packets[..])));
}
