//! Random valid filters on random packets: every device against the reference interpreter.

use std::sync::Arc;

use portcullis_compat_tests::generator::{self, Config};
use portcullis_compat_tests::{devices, harness};
use portcullis_core::device::Device;
use portcullis_core::lang::{Source, wgsl};
use portcullis_core::packet::Verdict;
use portcullis_core::program::{Program, ProgramOptions};

/// How many filters, where somebody wants more (or fewer) than [`FILTERS`].
const COUNT: &str = "PORTCULLIS_RANDOM_FILTERS";

/// The first seed, for looking at one failure: `PORTCULLIS_RANDOM_SEED=17 PORTCULLIS_RANDOM_FILTERS=1`.
const SEED: &str = "PORTCULLIS_RANDOM_SEED";

const FILTERS: u64 = 150;

/// So little that some filters run out of it.
const FUEL: u32 = 300;

fn seeds() -> std::ops::Range<u64> {
    let number = |name, otherwise| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => otherwise,
    };
    let first = number(SEED, 0);
    first..first + number(COUNT, FILTERS)
}

fn program(seed: u64) -> Arc<Program> {
    let filter = generator::filter(seed, &Config::varied(seed));
    let options = ProgramOptions { parameters: filter.parameters, fuel: FUEL };
    let source = Source::new(format!("random filter {seed}"), filter.text);
    Arc::new(wgsl::compile(&source, &options).unwrap_or_else(|e| panic!("{}\n{}", e.render(), source.text)))
}

fn check(device: &Arc<dyn Device>) {
    for seed in seeds() {
        let packets = generator::packets(seed, 40);
        if let Err(mismatch) = harness::compare(&program(seed), &**device, &packets, &[packets.len(), 7]) {
            panic!("{mismatch}");
        }
    }
}

#[test]
fn every_device_agrees_with_the_reference() {
    devices::on_each("random filters", check);
}

/// The facts hold for what the reference saw happen.
#[test]
fn facts_are_true() {
    use portcullis_core::interp::Interpreter;
    use portcullis_core::packet::Metadata;
    use portcullis_core::program::facts::Window;

    let within = |window: Window, end: Option<u32>| match (window, end) {
        (_, None) | (Window::WholePacket, _) => true,
        (Window::Nothing, Some(_)) => false,
        (Window::Bytes(n), Some(end)) => end <= n,
    };
    for seed in seeds() {
        let program = program(seed);
        let facts = program.facts().clone();
        let reference = Interpreter::new(&program).unwrap_or_else(|e| panic!("{e}"));
        for packet in generator::packets(seed, 40) {
            let outcome = reference.run(&packet, &Metadata::new(77, 1, 1 << 40)).unwrap_or_else(|e| panic!("{e}"));
            let trace = outcome.trace;
            let context = || format!("seed {seed}: {facts:?}\n{outcome:?}\n{}", program.source().text);
            assert!(within(facts.reads, trace.read_end), "reads: {}", context());
            assert!(within(facts.writes, trace.written_end), "writes: {}", context());
            assert!(facts.changes_length || outcome.packet.len() == packet.len(), "length: {}", context());
            assert!(facts.rewrites() || outcome.packet == packet, "bytes: {}", context());
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
}
