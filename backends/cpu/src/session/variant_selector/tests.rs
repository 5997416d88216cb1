//! Simulations in which the test says how long packets take.

use super::*;

/// Time between two chunks, in nanoseconds, which is not part of what the session measures.
const BETWEEN_CHUNKS: f64 = 100.0;

/// Measured time of a chunk besides its packets, in nanoseconds.
const CALL_NANOS: f64 = 30.0;

/// Result of a simulation.
struct Simulated {
    /// Packets per variant.
    shares: Vec<usize>,
    nanos: f64,
}

/// Simulates `packets` packets in batches of `batch`. `cost` is the time per packet in nanoseconds,
/// given the variant and the number of packets before.
fn simulate(
    selector: &mut VariantSelector,
    batch: usize,
    packets: usize,
    mut cost: impl FnMut(usize, usize) -> f64,
) -> Simulated {
    let mut simulated = Simulated { shares: vec![0; selector.trial_due.len()], nanos: 0.0 };
    let mut done = 0;
    while done < packets {
        let end = packets.min(done + batch);
        while done < end {
            let assignment = selector.next_assignment();
            assert!(assignment.max_packets > 0);
            let chunk = assignment.max_packets.min(end - done);
            let nanos = CALL_NANOS + cost(assignment.variant, done) * chunk as f64;
            selector.record(assignment, chunk, Duration::from_nanos(nanos as u64));
            simulated.shares[assignment.variant] += chunk;
            simulated.nanos += nanos + BETWEEN_CHUNKS;
            done += chunk;
        }
    }
    simulated
}

/// Simulates batches of 16,384 packets; returns the packets per variant.
fn run(selector: &mut VariantSelector, packets: usize, cost: impl FnMut(usize, usize) -> f64) -> Vec<usize> {
    simulate(selector, 16_384, packets, cost).shares
}

/// Share of time that trials cost, relative to running the fastest variant alone.
fn trial_cost(simulated: &Simulated, batch: usize, fastest: f64) -> f64 {
    let packets = simulated.shares.iter().sum::<usize>() as f64;
    let alone = packets * fastest + packets / batch as f64 * (CALL_NANOS + BETWEEN_CHUNKS);
    simulated.nanos / alone - 1.0
}

/// Deterministic noise in [0, 1) (xorshift).
fn noise() -> impl FnMut() -> f64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f64 / (1 << 24) as f64
    }
}

const MANY: usize = 1 << 23;

#[test]
fn the_fastest_variant_gets_at_least_99_5_percent() {
    for costs in [[3.0, 5.0, 9.0], [5.0, 9.0, 3.0], [9.0, 3.0, 5.0]] {
        let mut selector = VariantSelector::new(3);
        let shares = run(&mut selector, MANY, |variant, _| costs[variant]);
        let fastest = costs.iter().position(|&cost| cost == 3.0).unwrap();
        assert!(shares[fastest] > MANY / 1000 * 995, "{costs:?}: {shares:?}");
        assert!(shares.iter().all(|&share| share > 0), "{shares:?}");
    }
}

/// However many other variants there are and however slow they are, for packets that take from a
/// nanosecond to a hundred.
#[test]
fn trials_cost_less_than_one_percent() {
    for scale in [1.2, 5.0, 100.0] {
        for batch in [64, 1000, 16_384] {
            for slower in [
                &[1.0, 1.0][..],
                &[1.0, 1.02, 1.05, 1.1],
                &[1.0, 1.2, 2.0, 3.0],
                &[1.0, 10.0, 10.0, 10.0],
                &[1.0, 40.0],
                &[1.0, 1.3, 1.6, 1.1, 2.0, 2.2, 4.0, 4.4, 4.8, 5.0, 5.5, 9.0],
            ] {
                let mut selector = VariantSelector::new(slower.len());
                // Warm up until each variant has had its first trial.
                simulate(&mut selector, batch, 1 << 16, |variant, _| scale * slower[variant]);
                let simulated = simulate(&mut selector, batch, 4 * MANY, |variant, _| scale * slower[variant]);
                let lost = trial_cost(&simulated, batch, scale);
                assert!(lost < 0.01, "{scale} ns, {slower:?}, {batch} a batch: {lost}, {:?}", simulated.shares);
            }
        }
    }
}

#[test]
fn noisy_times_cost_less_than_1_5_percent() {
    for slower in [[1.0, 1.01, 0.99, 1.0], [1.0, 1.3, 2.0, 5.0], [2.0, 1.0, 1.05, 3.0]] {
        let mut selector = VariantSelector::new(4);
        let mut random = noise();
        // Each chunk varies by 10 % either way; 4 % of chunks take twice as long and 1 % ten times.
        let mut varies = || {
            let usual = 0.9 + 0.2 * random();
            let rare = random();
            if rare < 0.01 {
                10.0 * usual
            } else if rare < 0.05 {
                2.0 * usual
            } else {
                usual
            }
        };
        run(&mut selector, 1 << 17, |variant, _| 2.0 * slower[variant] * varies());
        // The cost is computed without the noise, which is the same for any selector.
        let mut spent = 0.0;
        let shares = run(&mut selector, 4 * MANY, |variant, _| 2.0 * slower[variant] * varies());
        for (share, cost) in shares.iter().zip(slower) {
            spent += *share as f64 * cost;
        }
        let lost = spent / (4 * MANY) as f64 / slower.into_iter().fold(f64::MAX, f64::min) - 1.0;
        assert!(lost < 0.015, "{slower:?}: {lost}, {shares:?}");
    }
}

#[test]
fn the_selection_follows_a_change_of_traffic() {
    for (before, after) in [
        ([1.5, 1.8, 2.2, 4.0], [4.0, 3.0, 2.2, 1.5]),
        ([1.5, 9.0, 9.0, 9.0], [9.0, 9.0, 9.0, 1.5]),
        ([3.0, 3.0, 3.0, 4.0], [3.0, 2.0, 3.0, 3.0]),
    ] {
        let mut selector = VariantSelector::new(4);
        run(&mut selector, 2 * MANY, |variant, _| before[variant]);
        // A few milliseconds of the new traffic.
        let meanwhile = run(&mut selector, MANY / 2, |variant, _| after[variant]);
        let shares = run(&mut selector, MANY, |variant, _| after[variant]);
        let fastest = (0..4).min_by(|a, b| after[*a].total_cmp(&after[*b])).unwrap();
        assert!(shares[fastest] > MANY / 100 * 98, "{before:?}, {after:?}: {meanwhile:?}, {shares:?}");
    }
}

#[test]
fn interruptions_do_not_mislead_the_selection_for_long() {
    let mut selector = VariantSelector::new(2);
    // Every seventh chunk is interrupted, whatever it runs.
    let mut chunks = 0;
    let shares = run(&mut selector, MANY, |variant, _| {
        chunks += 1;
        [3.0, 4.0][variant] + if chunks % 7 == 0 { 300.0 } else { 0.0 }
    });
    assert!(shares[0] > shares[1] * 50, "{shares:?}");
    // An interruption longer than a whole trial.
    let mut selector = VariantSelector::new(2);
    let shares = run(&mut selector, MANY, |variant, done| [3.0, 4.0][variant] + if done < 4096 { 3000.0 } else { 0.0 });
    assert!(shares[0] > shares[1] * 50, "{shares:?}");
}

#[test]
fn a_single_variant_has_no_trials() {
    let mut selector = VariantSelector::new(1);
    assert_eq!(selector.next_assignment(), Assignment::unsampled(0));
    selector.record(Assignment::unsampled(0), 100, Duration::from_secs(1));
    assert_eq!(selector.next_assignment(), Assignment::unsampled(0));
}

#[test]
fn batches_of_one_packet_are_sampled_too() {
    let mut selector = VariantSelector::new(2);
    let shares = simulate(&mut selector, 1, 1 << 20, |variant, _| [300.0, 100.0][variant]).shares;
    assert!(shares[1] > shares[0] * 100, "{shares:?}");
}

#[test]
fn added_variants_have_a_trial_at_once() {
    for (late, fastest) in [([3.0, 4.0, 2.0, 2.5], 2), ([3.0, 4.0, 5.0, 6.0], 0)] {
        let mut selector = VariantSelector::new(2);
        run(&mut selector, MANY, |variant, _| late[variant]);
        selector.add_variants(4);
        // A smaller number changes nothing.
        selector.add_variants(2);
        let soon = run(&mut selector, 1 << 16, |variant, _| late[variant]);
        assert!(soon[2] > 0 && soon[3] > 0 && soon[fastest] > 1 << 15, "{soon:?}");
        let shares = run(&mut selector, MANY, |variant, _| late[variant]);
        assert!(shares[fastest] > MANY / 100 * 98, "{shares:?}");
    }
}

#[test]
fn a_variant_can_be_added_to_a_single_one() {
    let mut selector = VariantSelector::new(1);
    run(&mut selector, 100_000, |_, _| 3.0);
    selector.add_variants(2);
    let shares = run(&mut selector, MANY, |variant, _| [3.0, 2.0][variant]);
    assert!(shares[1] > shares[0] * 50, "{shares:?}");
}

/// Threads that ask while others have all packets of a sample get the variant in use.
#[test]
fn samples_do_not_grow_with_the_number_of_threads() {
    let mut selector = VariantSelector::new(2);
    let mut worse = 0;
    for _ in 0..1 << 12 {
        let assignments: Vec<Assignment> = (0..64).map(|_| selector.next_assignment()).collect();
        for assignment in assignments {
            let packets = assignment.max_packets.min(2048);
            worse += if assignment.variant == 1 { packets } else { 0 };
            selector.record(assignment, packets, Duration::from_nanos(packets as u64 * [2, 8][assignment.variant]));
        }
    }
    // Meanwhile 64 threads filter 2,048 packets each.
    assert!(worse > 0 && worse < ((64 * 2048) << 12) / 1000, "{worse}");
}

/// A thread may find that no packets are left for its assignment.
#[test]
fn an_assignment_without_packets_is_given_out_again() {
    let mut selector = VariantSelector::new(2);
    let assignment = selector.next_assignment();
    selector.record(assignment, 0, Duration::ZERO);
    assert_eq!(selector.next_assignment(), assignment);
    selector.record(assignment, 100, Duration::from_nanos(300));
    assert_eq!(selector.next_assignment(), Assignment { max_packets: assignment.max_packets - 100, ..assignment });
}

#[test]
fn a_clock_that_stands_still_does_no_harm() {
    let mut selector = VariantSelector::new(3);
    for _ in 0..1 << 16 {
        let assignment = selector.next_assignment();
        selector.record(assignment, assignment.max_packets.min(64), Duration::ZERO);
    }
}

/// A win by a large margin means that the traffic has changed, so a variant that used to be
/// hopeless may be the fastest now.
#[test]
fn a_change_of_traffic_makes_all_variants_due_at_once() {
    let mut selector = VariantSelector::new(3);
    // Variant 1 is so slow that it is not due for millions of packets; variant 2 is due sooner.
    run(&mut selector, 3 << 20, |variant, _| [1.0, 40.0, 9.0][variant]);
    let after = |variant: usize, _| [9.0, 1.0, 4.0][variant];
    run(&mut selector, 1 << 20, after);
    let shares = run(&mut selector, 1 << 18, after);
    assert!(shares[1] > (1 << 18) / 10 * 9, "{shares:?}");
}

/// Interference may hit all samples of one side of a trial.
#[test]
fn winning_a_single_trial_changes_nothing() {
    let mut selector = VariantSelector::new(2);
    let trial = 2 * SAMPLES_PER_SIDE as usize * SAMPLE_PACKETS;
    let shares = run(
        &mut selector,
        1 << 16,
        |variant, done| if variant == 0 && done < trial { 30.0 } else { [3.0, 4.0][variant] },
    );
    assert!(shares[1] <= 2 * trial, "{shares:?}");
}

#[test]
fn the_slowest_variant_is_tried_again_eventually() {
    let mut selector = VariantSelector::new(2);
    run(&mut selector, 1 << 16, |variant, _| [1.0, 1000.0][variant]);
    let after = |variant: usize, _| [1.0, 0.5][variant];
    run(&mut selector, MANY, after);
    let shares = run(&mut selector, 1 << 16, after);
    assert!(shares[1] > (1 << 16) / 10 * 9, "{shares:?}");
}
