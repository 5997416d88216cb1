//! Choices in a world in which time is what the test says.

use super::*;

/// What a piece takes beside its packets, which nobody measures: the time between its neighbours and itself.
const BETWEEN: f64 = 100.0;

/// What a piece takes beside its packets, and is measured.
const CALL: f64 = 30.0;

/// Packets given to pieces of code, and nanoseconds.
struct Ran {
    shares: Vec<usize>,
    nanos: f64,
}

/// Runs so many packets in batches of a length through code that costs so much each, by its number and the packets before.
fn run_in(choice: &mut Choice, batch: usize, packets: usize, mut cost: impl FnMut(usize, usize) -> f64) -> Ran {
    let mut ran = Ran { shares: vec![0; choice.due.len()], nanos: 0.0 };
    let mut done = 0;
    while done < packets {
        let end = packets.min(done + batch);
        while done < end {
            let turn = choice.next();
            assert!(turn.most > 0);
            let piece = turn.most.min(end - done);
            let nanos = CALL + cost(turn.code, done) * piece as f64;
            choice.took(turn, piece, Duration::from_nanos(nanos as u64));
            ran.shares[turn.code] += piece;
            ran.nanos += nanos + BETWEEN;
            done += piece;
        }
    }
    ran
}

fn run(choice: &mut Choice, packets: usize, cost: impl FnMut(usize, usize) -> f64) -> Vec<usize> {
    run_in(choice, 16_384, packets, cost).shares
}

/// The share of all time that trials have cost: what was spent beyond the fastest code alone.
fn lost(ran: &Ran, batch: usize, fastest: f64) -> f64 {
    let packets = ran.shares.iter().sum::<usize>() as f64;
    let alone = packets * fastest + packets / batch as f64 * (CALL + BETWEEN);
    ran.nanos / alone - 1.0
}

/// Numbers that nobody could foresee, the same each time.
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
fn the_fastest_gets_nearly_everything() {
    for costs in [[3.0, 5.0, 9.0], [5.0, 9.0, 3.0], [9.0, 3.0, 5.0]] {
        let mut choice = Choice::new(3);
        let shares = run(&mut choice, MANY, |code, _| costs[code]);
        let fastest = costs.iter().position(|&cost| cost == 3.0).unwrap();
        assert!(shares[fastest] > MANY / 1000 * 995, "{costs:?}: {shares:?}");
        assert!(shares.iter().all(|&share| share > 0), "{shares:?}");
    }
}

/// However far the others are behind, and however many there are; packets that take a nanosecond and ones that take 100.
#[test]
fn trials_cost_less_than_one_in_a_hundred() {
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
                let mut choice = Choice::new(slower.len());
                // Until all have been tried for the first time.
                run_in(&mut choice, batch, 1 << 16, |code, _| scale * slower[code]);
                let ran = run_in(&mut choice, batch, 4 * MANY, |code, _| scale * slower[code]);
                let lost = lost(&ran, batch, scale);
                assert!(lost < 0.01, "{scale} ns, {slower:?}, {batch} a batch: {lost}, {:?}", ran.shares);
            }
        }
    }
}

#[test]
fn times_that_vary_cost_little_more() {
    for slower in [[1.0, 1.01, 0.99, 1.0], [1.0, 1.3, 2.0, 5.0], [2.0, 1.0, 1.05, 3.0]] {
        let mut choice = Choice::new(4);
        let mut random = noise();
        // A fifth more or less from piece to piece, and one piece in twenty takes twice as long or ten times: the same for all.
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
        run(&mut choice, 1 << 17, |code, _| 2.0 * slower[code] * varies());
        // What was lost is counted without the noise, which is nobody's fault.
        let mut spent = 0.0;
        let shares = run(&mut choice, 4 * MANY, |code, _| 2.0 * slower[code] * varies());
        for (share, cost) in shares.iter().zip(slower) {
            spent += *share as f64 * cost;
        }
        let lost = spent / (4 * MANY) as f64 / slower.into_iter().fold(f64::MAX, f64::min) - 1.0;
        assert!(lost < 0.015, "{slower:?}: {lost}, {shares:?}");
    }
}

#[test]
fn it_follows_the_traffic() {
    for (before, after) in [
        ([1.5, 1.8, 2.2, 4.0], [4.0, 3.0, 2.2, 1.5]),
        ([1.5, 9.0, 9.0, 9.0], [9.0, 9.0, 9.0, 1.5]),
        ([3.0, 3.0, 3.0, 4.0], [3.0, 2.0, 3.0, 3.0]),
    ] {
        let mut choice = Choice::new(4);
        run(&mut choice, 2 * MANY, |code, _| before[code]);
        // Some milliseconds of such traffic.
        let meanwhile = run(&mut choice, MANY / 2, |code, _| after[code]);
        let shares = run(&mut choice, MANY, |code, _| after[code]);
        let fastest = (0..4).min_by(|a, b| after[*a].total_cmp(&after[*b])).unwrap();
        assert!(shares[fastest] > MANY / 100 * 98, "{before:?}, {after:?}: {meanwhile:?}, {shares:?}");
    }
}

#[test]
fn an_interruption_does_not_mislead_it_for_long() {
    let mut choice = Choice::new(2);
    // Now and then the thread has to wait for its processor, whatever it runs.
    let mut pieces = 0;
    let shares = run(&mut choice, MANY, |code, _| {
        pieces += 1;
        [3.0, 4.0][code] + if pieces % 7 == 0 { 300.0 } else { 0.0 }
    });
    assert!(shares[0] > shares[1] * 50, "{shares:?}");
    // Or for longer than a whole trial.
    let mut choice = Choice::new(2);
    let shares = run(&mut choice, MANY, |code, done| [3.0, 4.0][code] + if done < 4096 { 3000.0 } else { 0.0 });
    assert!(shares[0] > shares[1] * 50, "{shares:?}");
}

#[test]
fn one_piece_of_code_needs_no_trials() {
    let mut choice = Choice::new(1);
    assert_eq!(choice.next(), Turn::of(0));
    choice.took(Turn::of(0), 100, Duration::from_secs(1));
    assert_eq!(choice.next(), Turn::of(0));
}

#[test]
fn one_packet_at_a_time_works_too() {
    let mut choice = Choice::new(2);
    let shares = run_in(&mut choice, 1, 1 << 20, |code, _| [300.0, 100.0][code]).shares;
    assert!(shares[1] > shares[0] * 100, "{shares:?}");
}

#[test]
fn code_that_comes_later_is_tried_at_once() {
    for (late, fastest) in [([3.0, 4.0, 2.0, 2.5], 2), ([3.0, 4.0, 5.0, 6.0], 0)] {
        let mut choice = Choice::new(2);
        run(&mut choice, MANY, |code, _| late[code]);
        choice.grow(4);
        // What is no more than before changes nothing.
        choice.grow(2);
        let soon = run(&mut choice, 1 << 16, |code, _| late[code]);
        assert!(soon[2] > 0 && soon[3] > 0 && soon[fastest] > 1 << 15, "{soon:?}");
        let shares = run(&mut choice, MANY, |code, _| late[code]);
        assert!(shares[fastest] > MANY / 100 * 98, "{shares:?}");
    }
}

#[test]
fn code_may_come_to_one_that_was_alone() {
    let mut choice = Choice::new(1);
    run(&mut choice, 100_000, |_, _| 3.0);
    choice.grow(2);
    let shares = run(&mut choice, MANY, |code, _| [3.0, 2.0][code]);
    assert!(shares[1] > shares[0] * 50, "{shares:?}");
}

/// Threads that come while others have a sample's packets get the code in use.
#[test]
fn a_sample_is_no_larger_for_many_threads() {
    let mut choice = Choice::new(2);
    let mut worse = 0;
    for _ in 0..1 << 12 {
        let turns: Vec<Turn> = (0..64).map(|_| choice.next()).collect();
        for turn in turns {
            let packets = turn.most.min(2048);
            worse += if turn.code == 1 { packets } else { 0 };
            choice.took(turn, packets, Duration::from_nanos(packets as u64 * [2, 8][turn.code]));
        }
    }
    // 64 threads at 2,048 packets each go on meanwhile.
    assert!(worse > 0 && worse < ((64 * 2048) << 12) / 1000, "{worse}");
}

/// A thread may find that no packets are left.
#[test]
fn a_turn_that_found_no_packets_is_given_again() {
    let mut choice = Choice::new(2);
    let turn = choice.next();
    choice.took(turn, 0, Duration::ZERO);
    assert_eq!(choice.next(), turn);
    choice.took(turn, 100, Duration::from_nanos(300));
    assert_eq!(choice.next(), Turn { most: turn.most - 100, ..turn });
}

#[test]
fn a_clock_that_stands_still_is_no_harm() {
    let mut choice = Choice::new(3);
    for _ in 0..1 << 16 {
        let turn = choice.next();
        choice.took(turn, turn.most.min(64), Duration::ZERO);
    }
}

/// Whoever wins by so much shows that the traffic is another: what was hopeless before may be the fastest now.
#[test]
fn a_change_of_the_traffic_has_all_others_tried_at_once() {
    let mut choice = Choice::new(3);
    // The second one is so far behind that it is not due again for millions of packets; the third one is sooner.
    run(&mut choice, 3 << 20, |code, _| [1.0, 40.0, 9.0][code]);
    let after = |code: usize, _| [9.0, 1.0, 4.0][code];
    run(&mut choice, 1 << 20, after);
    let shares = run(&mut choice, 1 << 18, after);
    assert!(shares[1] > (1 << 18) / 10 * 9, "{shares:?}");
}

/// All samples of a trial may be hit on one side.
#[test]
fn one_trial_alone_changes_nothing() {
    let mut choice = Choice::new(2);
    let trial = 2 * SAMPLES as usize * SAMPLE;
    let shares =
        run(&mut choice, 1 << 16, |code, done| if code == 0 && done < trial { 30.0 } else { [3.0, 4.0][code] });
    assert!(shares[1] <= 2 * trial, "{shares:?}");
}

#[test]
fn what_was_hopeless_is_tried_again_at_last() {
    let mut choice = Choice::new(2);
    run(&mut choice, 1 << 16, |code, _| [1.0, 1000.0][code]);
    let after = |code: usize, _| [1.0, 0.5][code];
    run(&mut choice, MANY, after);
    let shares = run(&mut choice, 1 << 16, after);
    assert!(shares[1] > (1 << 16) / 10 * 9, "{shares:?}");
}
