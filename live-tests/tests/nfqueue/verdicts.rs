//! Each packet gets exactly its own verdict.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use portcullis_core::packet::Action;
use portcullis_io::live::{Executor, Loss, Receiver};
use portcullis_io::nfqueue::{QueueOptions, open};
use portcullis_io::synth::Random;

use crate::lane::{Lane, Link, Numbered, begin, completion, number, rule, take};

/// Returns random verdicts in runs of varied lengths.
fn verdicts(seed: u64, count: u32) -> Vec<u8> {
    let mut random = Random::new(seed, 0);
    let mut verdicts = Vec::new();
    while verdicts.len() < count as usize {
        // Mostly PASS and DROP.
        let verdict = random.pick(&[2, 1, 2, 1, 2, 1, 0, 3, 4]);
        let run = if random.below(3) == 0 { random.below(60) } else { random.below(3) } + 1;
        verdicts.extend(vec![verdict; run as usize]);
    }
    verdicts.truncate(count as usize);
    verdicts
}

fn passed(verdicts: &[u8]) -> BTreeSet<u32> {
    (0..).zip(verdicts).filter(|&(_, &verdict)| verdict == Action::Pass as u8).map(|(number, _)| number).collect()
}

#[test]
fn mixed_verdicts_reach_their_own_packets() {
    let Some(_suite) = begin("nfqueue: mixed verdicts") else { return };
    let link = Link::new();
    rule(&link.left, "OUTPUT -p udp -j NFQUEUE --queue-num 3");
    let numbered = Numbered::over(&link);
    for (seed, batch) in [(1, 1), (2, 7), (3, 64), (4, 1024), (5, 200)] {
        let wanted = verdicts(seed, 400);
        let options = QueueOptions::default().with_queue(3).with_batch(batch);
        let filter = wanted.clone();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = seen.clone();
        let lane = Lane::start(&link.left, options, move |batch| {
            let numbers: Vec<u32> = batch.packets().map(number).collect();
            record.lock().unwrap().extend(numbers.iter().copied());
            numbers.iter().map(|&number| filter[number as usize]).collect()
        });
        numbered.send(0..400);
        assert_eq!(numbered.arrived(&passed(&wanted)), passed(&wanted), "batches of {batch}");
        let outcome = lane.stop();
        assert!(seen.lock().unwrap().iter().copied().eq(0..400), "packets are in order");
        let count = |action: Action| wanted.iter().filter(|&&verdict| verdict == action as u8).count() as u64;
        assert_eq!(outcome.executed.of(Action::Pass), count(Action::Pass));
        assert_eq!(outcome.executed.of(Action::Drop), count(Action::Drop));
        assert_eq!(outcome.executed.losses.of(Loss::Aborted), count(Action::Aborted));
        assert_eq!(outcome.executed.losses.of(Loss::CannotTransmit), count(Action::Tx) + count(Action::Redirect));
        assert_eq!((outcome.received.dropped_by_kernel, outcome.received.refused, outcome.fallen_back), (0, 0, 0));
        // Ethernet, IPv4, UDP, and the number.
        assert_eq!(outcome.received.bytes, 400 * (14 + 20 + 8 + 4));
    }
}

#[test]
fn batches_may_complete_in_any_order_or_never() {
    let Some(_suite) = begin("nfqueue: batches in any order") else { return };
    let link = Link::new();
    rule(&link.left, "OUTPUT -p udp -j NFQUEUE --queue-num 3");
    let numbered = Numbered::over(&link);
    for seed in 0..12 {
        let mut random = Random::new(seed, 1);
        let fail_open = seed % 2 == 1;
        let options = QueueOptions::default().with_queue(3).with_fail_open(fail_open);
        let (mut receiver, mut executor) = link.left.run(|| open(&options)).unwrap();
        // As many as may wait before a sender blocks.
        let mut wanted = verdicts(seed + 100, 180);
        numbered.send(0..180);
        let mut batches: Vec<_> = (0..6).map(|_| take(&mut receiver, 30)).collect();
        let mut fallen_back = 0;
        while !batches.is_empty() {
            let mut batch = batches.remove(random.below(batches.len() as u32) as usize);
            let numbers: Vec<u32> = batch.packets().map(number).collect();
            let (mut settled, fallback) = (numbers.len(), if fail_open { Action::Pass } else { Action::Drop });
            match random.below(4) {
                0 => {
                    drop(batch);
                    settled = 0;
                }
                what => {
                    if what == 1 {
                        // A shortened batch, as wrappers with a packet limit produce.
                        settled = random.below(30) as usize;
                        batch.truncate(settled);
                    }
                    let verdicts = numbers[..settled].iter().map(|&number| wanted[number as usize]).collect();
                    executor.execute(completion(batch, verdicts)).unwrap();
                }
            }
            for &number in &numbers[settled..] {
                wanted[number as usize] = fallback as u8;
                fallen_back += 1;
            }
        }
        assert_eq!(numbered.arrived(&passed(&wanted)), passed(&wanted), "{seed}");
        assert_eq!(executor.fallback_count(), fallen_back);
        executor.poll().unwrap();
        assert_eq!(executor.executed().all() + fallen_back, receiver.received().packets);
    }
}

#[test]
fn two_queues_keep_their_packets_apart() {
    let Some(_suite) = begin("nfqueue: two queues") else { return };
    let link = Link::new();
    let (first, second) = (Numbered::over(&link), Numbered::over(&link));
    rule(&link.left, &format!("OUTPUT -p udp --dport {} -j NFQUEUE --queue-num 0", first.address().port()));
    rule(&link.left, &format!("OUTPUT -p udp --dport {} -j NFQUEUE --queue-num 65535", second.address().port()));
    let lanes = [(0, 1), (u16::MAX, 0)].map(|(queue, odd)| {
        Lane::start(&link.left, QueueOptions::default().with_queue(queue).with_batch(16), move |batch| {
            batch.packets().map(|packet| if number(packet) % 2 == odd { 2 } else { 1 }).collect()
        })
    });
    for hundred in 0..5 {
        first.send(hundred * 100..(hundred + 1) * 100);
        second.send(hundred * 100..(hundred + 1) * 100);
    }
    for (numbered, odd) in [(first, 1), (second, 0)] {
        let wanted = (0..500).filter(|number| number % 2 == odd).collect();
        assert_eq!(numbered.arrived(&wanted), wanted);
    }
    for outcome in lanes.map(Lane::stop) {
        assert_eq!((outcome.received.packets, outcome.executed.of(Action::Pass)), (500, 250));
    }
}
