//! Runs the CPU backend's AArch64 code under an emulator ([`aarch64`]) and compares both scalar and
//! vector styles with the reference interpreter.

use std::sync::Arc;

use portcullis_compat_tests::aarch64::Aarch64;
use portcullis_compat_tests::generator::{self, Maps};
use portcullis_compat_tests::harness::Case;
use portcullis_compat_tests::traffic::{Spec, traffic};
use portcullis_compat_tests::{corpora, devices, operators, stock, with_maps};
use portcullis_core::device::{Device, DeviceError, LoadOptions};
use portcullis_core::map::layout::Layout;
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;
use portcullis_cpu::{Cpu, Style};

const STYLES: [Style; 4] = [Style::BranchFree, Style::Branching, Style::SpeculativeVector, Style::Vector];

/// Name of the emulator in `PORTCULLIS_REQUIRE`.
const TOOL: &str = "qemu-aarch64";

/// Runs a suite once per code style.
fn on_each_style(suite: &str, mut run: impl FnMut(Style, &Arc<dyn Device>)) {
    for style in STYLES {
        let Some(device) = Aarch64::find(style) else {
            return devices::record_skip(suite, TOOL, "qemu-aarch64 is not installed (Debian's qemu-user)");
        };
        let name = device.info().name.clone();
        run(style, &(Arc::new(device) as _));
        devices::record(suite, &format!("aarch64 ({})", style.name()), "passed", &name);
    }
}

/// Returns the name and program of every stock filter.
fn stock_filters() -> impl Iterator<Item = (&'static str, Arc<Program>)> {
    stock::in_wgsl(stock::FILTERS).chain(stock::in_wgsl(stock::STATEFUL_WGSL))
}

fn packets(most: usize) -> Vec<Vec<u8>> {
    traffic(&Spec::default()).into_iter().map(|packet| packet.bytes).take(most).collect()
}

/// Returns the number of batches to run: fewer for large maps, because every batch copies the maps
/// to the emulator and back.
fn batches(program: &Program) -> usize {
    let bytes: usize = program.maps().iter().map(|map| 4 * Layout::of(map).words()).sum();
    ((64 << 20) / bytes.max(1)).clamp(2, 60)
}

#[test]
fn stock_filters_agree_with_the_interpreter() {
    let hostile = corpora::hostile();
    on_each_style("stock filters", |style, device| {
        for (name, program) in stock_filters() {
            if !program.maps().is_empty() {
                // Vector code needs several packets at a time, and these packets run one by one.
                if !style.is_vector() {
                    let (maps, most) = if program.has_flows() { (Maps::Flows, 15) } else { (Maps::OneByOne, 1) };
                    with_maps::check(device, &program, maps, &packets(most * batches(&program)));
                }
            } else {
                let case = Case::new(program, hostile.packets.clone());
                case.compare(&**device, &[1003, 5]).unwrap_or_else(|m| panic!("{name}, {style:?}: {m}"));
            }
        }
    });
}

/// The order of the packets of a group is unspecified, but the code of both processors must choose
/// the same one.
#[test]
fn packet_groups_leave_the_same_maps_on_both_processors() {
    let packets = packets(400);
    on_each_style("groups and maps", |style, device| {
        if !style.is_vector() {
            return;
        }
        let with_maps = stock_filters().filter(|(_, program)| !program.maps().is_empty() && !program.has_flows());
        for (name, program) in with_maps.filter(|(_, program)| batches(program) > 2) {
            let here = Cpu::with_style(style);
            let options = LoadOptions::default().with_threads(std::num::NonZeroUsize::new(1));
            let mut sessions = [&here as &dyn Device, &**device].map(|device| device.load(&program, &options).unwrap());
            let mut outcomes = Vec::new();
            for session in &mut sessions {
                with_maps::fill(&program, &mut **session);
                let mut all = Vec::new();
                for part in packets.chunks(100) {
                    let done = session.run(Batch::from_packets(part).unwrap()).unwrap();
                    let verdicts: Vec<_> = done.verdicts.iter().collect();
                    all.push((verdicts, done.batch.packets().map(<[u8]>::to_vec).collect::<Vec<_>>()));
                }
                let maps: Vec<_> = (0..program.maps().len()).map(|map| session.map_words(map).unwrap()).collect();
                outcomes.push((all, maps));
            }
            assert!(outcomes[0] == outcomes[1], "{name}, {style:?}");
        }
    });
}

#[test]
fn operators_agree_with_the_interpreter() {
    let cases = operators::cases(&operators::TYPES);
    on_each_style("operators", |_, device| operators::check(device, &cases));
}

const FILTERS: u64 = 40;

#[test]
fn random_filters_agree_with_the_interpreter() {
    on_each_style("random filters", |style, device| {
        let mut refused = 0;
        for seed in 0..FILTERS {
            let program = generator::program(seed, None);
            let packets = generator::packets(seed, 43);
            if program.facts().uses_float {
                let error = device.load(&program, &LoadOptions::default()).err();
                assert!(matches!(error, Some(DeviceError::Unsupported { .. })), "{error:?}");
                refused += 1;
            } else {
                let case = Case::new(program, packets);
                case.compare(&**device, &[43, 7]).unwrap_or_else(|m| panic!("seed {seed}, {style:?}: {m}"));
            }
        }
        assert!(refused * 4 <= FILTERS, "{refused} with floating point");
    });
}
