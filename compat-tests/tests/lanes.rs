//! The CPU's vector form of filters ([`lanes`]): which filters have one, and that its results are
//! those of the reference interpreter.

use std::sync::Arc;

use portcullis_compat_tests::corpora::{self, Corpus};
use portcullis_compat_tests::generator::{self, Maps};
use portcullis_compat_tests::harness::{Case, MismatchKind};
use portcullis_compat_tests::lanes::Lanes;
use portcullis_compat_tests::traffic::{Spec, traffic};
use portcullis_compat_tests::{devices, operators, stock, texts, with_maps};
use portcullis_core::device::{Device, DeviceError};
use portcullis_core::program::Program;
use portcullis_cpu::vector::LaneProgram;

/// Returns every stock filter.
fn stock_filters() -> impl Iterator<Item = Arc<Program>> {
    let in_wgsl = stock::in_wgsl(stock::FILTERS).chain(stock::in_wgsl(stock::STATEFUL_WGSL));
    let in_c = stock::in_opencl_c(stock::FILTERS_IN_C).chain(stock::in_opencl_c(stock::STATEFUL_OPENCL_C));
    in_wgsl.chain(in_c).map(|(_, program)| program)
}

/// Filters without a vector form, because packets of a flow must run in order.
const SCALAR_ONLY: [&str; 4] = ["conntrack_fw", "policer", "syn_flood", "token_bucket"];

#[test]
fn stock_filters_without_flows_have_a_vector_form() {
    let mut scalar_only = Vec::new();
    for program in stock_filters() {
        let name = program.source().name.clone();
        match LaneProgram::trace(&program) {
            Ok(traced) => println!("{name:22} {:5} operations", traced.operations()),
            Err(reason) => {
                println!("{name:22} has no vector form: {reason}");
                assert!(program.has_flows(), "{name}: {reason}");
                scalar_only.push(name);
            }
        }
    }
    let expected: Vec<String> =
        SCALAR_ONLY.iter().flat_map(|name| ["cl", "wgsl"].map(|ending| format!("{name}.{ending}"))).collect();
    scalar_only.sort();
    assert_eq!(scalar_only, expected);
}

/// Compares a filter without maps, in full and partial groups of packets.
fn compare(program: &Arc<Program>, corpus: &Corpus) {
    let name = &program.source().name;
    let case = Case::new(program.clone(), corpus.packets.clone());
    case.compare(&Lanes::new(), &[1003]).unwrap_or_else(|m| panic!("{name} over {}: {m}", corpus.name));
}

fn corpora() -> [Corpus; 2] {
    let mut synthetic = corpora::synthetic();
    // One packet in five, of every length.
    synthetic.packets = synthetic.packets.into_iter().step_by(5).collect();
    [corpora::hostile(), synthetic]
}

#[test]
fn stock_filters_agree_with_the_interpreter() {
    let corpora = corpora();
    let packets: Vec<Vec<u8>> = traffic(&Spec::default()).into_iter().map(|packet| packet.bytes).take(1200).collect();
    let device: Arc<dyn Device> = Arc::new(Lanes::new());
    for program in stock_filters().filter(|program| !program.has_flows()) {
        if program.maps().is_empty() {
            corpora.iter().for_each(|corpus| compare(&program, corpus));
        } else {
            with_maps::check(&device, &program, Maps::OneByOne, &packets);
            with_maps::check(&device, &program, Maps::OneByOne, &corpora[0].packets);
        }
    }
}

#[test]
fn hand_written_filters_agree_with_the_interpreter() {
    let corpora = corpora();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/filters");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{folder}: {e}")) {
        let path = entry.unwrap_or_else(|e| panic!("{folder}: {e}")).path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        let program = texts::in_opencl_c(&name, &text);
        if program.facts().uses_float {
            // Identical results are not promised for floating point.
            let error = LaneProgram::trace(&program).unwrap_err();
            assert_eq!(error.to_string(), "floating point", "{name}");
            println!("{name} has no vector form: floating point");
            continue;
        }
        corpora.iter().for_each(|corpus| compare(&program, corpus));
        count += 1;
    }
    assert!(count >= 5, "{count} filters");
}

#[test]
fn operators_agree_with_the_interpreter() {
    let device: Arc<dyn Device> = Arc::new(Lanes::new());
    operators::check(&device, &operators::cases(&operators::TYPES));
}

/// Environment variable with the number of filters, [`FILTERS`] by default.
const COUNT: &str = "PORTCULLIS_RANDOM_FILTERS";

const FILTERS: u64 = 150;

#[test]
fn random_filters_agree_with_the_interpreter() {
    let mut scalar_only = Vec::new();
    let count = devices::number(COUNT, FILTERS);
    for seed in 0..count {
        let program = generator::program(seed, None);
        let packets = generator::packets(seed, 43);
        match Case::new(program, packets).compare(&Lanes::new(), &[43, 7]) {
            Ok(()) => {}
            Err(mismatch) => match mismatch.kind {
                MismatchKind::Device(DeviceError::Unsupported { ref reason, .. }) => {
                    scalar_only.push(format!("{seed}: {reason}"))
                }
                _ => panic!("seed {seed}: {mismatch}"),
            },
        }
    }
    println!("{} of {count} random filters have no vector form\n{}", scalar_only.len(), scalar_only.join("\n"));
    assert!(scalar_only.len() as u64 * 10 <= count, "{}", scalar_only.join("\n"));
}

#[test]
fn random_filters_with_maps_agree_with_the_interpreter() {
    let device: Arc<dyn Device> = Arc::new(Lanes::new());
    let (mut fit, mut scalar_only) = (0, Vec::new());
    for seed in 0..40 {
        let program = generator::program(seed, Some(Maps::OneByOne));
        match LaneProgram::trace(&program) {
            Ok(_) => {
                with_maps::check(&device, &program, Maps::OneByOne, &generator::packets(seed, 60));
                fit += 1;
            }
            Err(reason) => scalar_only.push(format!("{seed}: {reason}")),
        }
    }
    println!("{} random filters with maps have no vector form\n{}", scalar_only.len(), scalar_only.join("\n"));
    assert!(fit >= 36, "{}", scalar_only.join("\n"));
}
