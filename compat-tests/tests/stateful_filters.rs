//! Every stock filter with maps, in both languages × every device × several batch sizes and thread counts gives what the
//! filter's model gives: verdicts, packets, and what is in the maps in the end.

use std::collections::BTreeMap;

use portcullis_compat_tests::devices;
use portcullis_compat_tests::stateful::{self, Model, Outcomes, Phase, gtpu_decap};
use portcullis_compat_tests::traffic::{Packet, Spec, traffic};

/// Holds a filter to its model on every device.
fn check(name: &str, parameters: &[(&str, &str)], phases: &[Phase], model: &mut dyn Model) -> Outcomes {
    let want = stateful::expected(model, phases);
    let programs = stateful::programs(name, parameters);
    devices::on_each(&format!("{name} and its model"), |device| {
        for program in &programs {
            stateful::check(device, program, phases, &want);
        }
    });
    want
}

/// The traffic reaches every verdict so often, or it would prove little.
fn assert_verdicts(outcomes: &Outcomes, least: &[(&str, usize)]) {
    let mut counts = BTreeMap::new();
    for outcome in &outcomes.packets {
        *counts.entry(outcome.verdict.action().name()).or_insert(0) += 1;
    }
    assert!(counts.keys().all(|action| least.iter().any(|(known, _)| known == action)), "{counts:?}");
    for (action, least) in least {
        assert!(counts.get(action).is_some_and(|count| count >= least), "{action}: {counts:?}");
    }
}

fn packets(seed: u64) -> Vec<Packet> {
    traffic(&Spec { seed, ..Spec::default() })
}

#[test]
fn gtpu_decap() {
    let phases = [Phase { writes: gtpu_decap::writes(), packets: gtpu_decap::tunnelled(&packets(1), 1) }];
    let outcomes = check("gtpu_decap", &[], &phases, &mut gtpu_decap::GtpuDecap::default());
    assert_verdicts(&outcomes, &[("redirect", 1000), ("drop", 500), ("pass", 1000)]);
}
