//! Measures front ends from source to program: the stock filters in OpenCL C compared with their
//! WGSL counterparts, and a long filter in OpenCL C. `cargo bench --bench front_end`.
//!
//! Includes validation and analysis, but not loading on a device, which other benches measure.

mod support;

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use portcullis::stock::STATELESS_WGSL;
use portcullis_core::diagnostics::Source;
use portcullis_core::program::ProgramOptions;
use portcullis_opencl_c::files::NoIncludes;
use portcullis_opencl_c::{self as opencl_c, preprocessor};
use portcullis_wgsl as wgsl;

use support::{Table, is_test_run, time_alone, time_in_turn};

const GATEWAY: &str = include_str!("filters/gateway.cl");

fn in_wgsl(source: &Source) {
    let program = wgsl::compile(source, &ProgramOptions::default()).unwrap_or_else(|e| panic!("{}", e.render()));
    black_box(program);
}

fn in_c(source: &Source) {
    let program = opencl_c::compile(source, &ProgramOptions::default(), &mut NoIncludes);
    black_box(program.unwrap_or_else(|e| panic!("{}", e.render())));
}

/// Compares the stock filters in OpenCL C with their WGSL counterparts.
fn compare_languages(rounds: usize) {
    let mut table = Table::new("to a program", "OpenCL C", "WGSL");
    for &(name, text) in STATELESS_WGSL {
        let theirs = Source::new(format!("{name}.wgsl"), text);
        let path = format!("{}/shaders/{name}.cl", env!("CARGO_MANIFEST_DIR"));
        let ours = Source::new(
            path.as_str(),
            std::fs::read_to_string(&path).expect("each stock filter exists in both languages"),
        );
        let pair = time_in_turn(rounds, || in_c(&ours), || in_wgsl(&theirs));
        table.row(name, pair, |time| format!("{time:.2?}"));
    }
    table.print();
}

/// Times the long filter: to tokens, and to a program.
fn time_gateway(rounds: usize) {
    let source = Source::new("gateway.cl", GATEWAY);
    let lines = GATEWAY.lines().count();
    println!("\ngateway.cl, {lines} lines: median, minimum, median CPU time (of {rounds} rounds)");
    let times = |what: &str, work: &dyn Fn()| {
        let times = time_alone(rounds, work);
        println!("{what:<16} {:>9.2?} {:>9.2?} {:>9.2?}", times.median, times.best, times.processor);
    };
    times("to a program", &|| in_c(&source));
    times("to tokens", &|| {
        let tokens = preprocessor::preprocess(&source, &[], &mut NoIncludes);
        black_box(tokens.unwrap_or_else(|e| panic!("{}", e.render())));
    });
}

/// The long filter under criterion, which keeps a history and reports regressions.
fn record(criterion: &mut Criterion) {
    let source = Source::new("gateway.cl", GATEWAY);
    let mut group = criterion.benchmark_group("front end");
    group.throughput(Throughput::Bytes(GATEWAY.len() as u64));
    group.bench_function("gateway.cl", |b| b.iter(|| in_c(&source)));
    group.finish();
}

fn main() {
    support::restore_sigpipe();
    let rounds = if is_test_run() { 1 } else { 201 };
    compare_languages(rounds);
    time_gateway(rounds);
    let mut criterion = Criterion::default().configure_from_args();
    record(&mut criterion);
    criterion.final_summary();
}
