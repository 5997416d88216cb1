//! More packets than there is room for, and packets that nobody has a verdict on.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portcullis_core::packet::Action;
use portcullis_io::live::{Executor, Loss, Receiver};
use portcullis_io::nfqueue::{QueueOptions, open};
use portcullis_live_tests::{Namespace, wait_until};

use crate::lane::{Lane, Link, Numbered, SOON, all, begin, done, number, rule, take};

#[test]
fn a_full_queue_is_counted_and_goes_on() {
    let Some(_suite) = begin("nfqueue: a full queue") else { return };
    for fail_open in [false, true] {
        let link = Link::new();
        // On the way in: a sender would have to wait.
        rule(&link.right, "INPUT -p udp -j NFQUEUE --queue-num 0");
        let numbered = Numbered::over(&link);
        let options = QueueOptions { max_length: 10, fail_open, ..QueueOptions::default() };
        let (mut receiver, mut executor) = link.right.run(|| open(&options)).unwrap();
        for round in 0..3u32 {
            let first = round * 100;
            numbered.send(first..first + 100);
            let mut wanted: BTreeSet<u32> = BTreeSet::new();
            if fail_open {
                // What found no room is there already.
                wanted.extend(first + 10..first + 100);
                assert_eq!(numbered.arrived(&wanted), wanted);
            } else {
                let dropped = (u64::from(round) + 1) * 90;
                wait_until("the queue is full", SOON, || receiver.received().dropped_by_kernel == dropped);
            }
            let batch = take(&mut receiver, 10);
            assert!(batch.packets().map(number).eq(first..first + 10));
            executor.execute(done(batch, vec![Action::Pass as u8; 10])).unwrap();
            wanted = (first..first + 10).collect();
            assert_eq!(numbered.arrived(&wanted), wanted);
        }
        let received = receiver.received();
        assert_eq!((received.packets, received.dropped_by_kernel), (30, if fail_open { 0 } else { 270 }));
    }
}

#[test]
fn a_full_receive_buffer_is_counted_and_goes_on() {
    let Some(_suite) = begin("nfqueue: a full receive buffer") else { return };
    let link = Link::new();
    rule(&link.right, "INPUT -p udp -j NFQUEUE --queue-num 0");
    let numbered = Numbered::over(&link);
    let options = QueueOptions { receive_buffer: 40_000, ..QueueOptions::default() };
    let (mut receiver, mut executor) = link.right.run(|| open(&options)).unwrap();
    for round in 1..4 {
        numbered.send(0..2000);
        let mut taken = BTreeSet::new();
        wait_until("every packet is taken or counted", SOON, || {
            receiver.receive(usize::MAX).unwrap();
            if let Some(batch) = receiver.take_batch() {
                taken.extend(batch.packets().map(number));
                let verdicts = vec![Action::Pass as u8; batch.len()];
                executor.execute(done(batch, verdicts)).unwrap();
            }
            let received = receiver.received();
            received.packets + received.dropped_by_kernel == round * 2000
        });
        assert!(!taken.is_empty() && taken.len() < 2000, "{}", taken.len());
        let arrived = numbered.arrived(&taken);
        assert!(arrived.is_subset(&taken) && arrived.len() > taken.len() / 2, "{} of {}", arrived.len(), taken.len());
    }
}

#[test]
fn a_batch_that_is_full_does_not_wait() {
    let Some(_suite) = begin("nfqueue: a full batch") else { return };
    let link = Link::new();
    rule(&link.right, "INPUT -p udp -j NFQUEUE --queue-num 0");
    let numbered = Numbered::over(&link);
    let (mut receiver, mut executor) =
        link.right.run(|| open(&QueueOptions { batch: 8, ..QueueOptions::default() })).unwrap();
    numbered.send(0..20);
    for packets in [8, 8, 4] {
        let mut got = 0;
        wait_until("packets come", SOON, || {
            // It waits for hours, but for packets.
            receiver.wait(Duration::from_secs(10_000)).unwrap();
            got += receiver.receive(usize::MAX).unwrap();
            got == packets
        });
        if packets == 8 {
            receiver.wait(Duration::from_secs(10_000)).unwrap();
            assert_eq!(receiver.receive(usize::MAX).unwrap(), 0);
        }
        let batch = receiver.take_batch().unwrap();
        assert!(receiver.take_batch().is_none());
        executor.execute(done(batch, vec![Action::Pass as u8; packets])).unwrap();
    }
    let wanted = (0..20).collect();
    assert_eq!(numbered.arrived(&wanted), wanted);
}

#[test]
fn what_waits_when_the_queue_is_given_up_gets_the_fallback_verdict() {
    let Some(_suite) = begin("nfqueue: giving up") else { return };
    for fail_open in [false, true] {
        let link = Link::new();
        rule(&link.left, "OUTPUT -p udp -j NFQUEUE --queue-num 0 --queue-bypass");
        let numbered = Numbered::over(&link);
        let options = QueueOptions { fail_open, ..QueueOptions::default() };
        let (mut receiver, executor) = link.left.run(|| open(&options)).unwrap();
        numbered.send(0..30);
        let on_its_way = take(&mut receiver, 10);
        // Some are gathered, and the others were not even received.
        receiver.receive(10).unwrap();
        drop(receiver);
        drop(executor);
        let wanted = if fail_open { (10..20).collect() } else { BTreeSet::new() };
        assert_eq!(numbered.arrived(&wanted), wanted);
        // The queue is held as long as a batch is on its way.
        drop(on_its_way);
        let wanted = if fail_open { (0..10).chain(20..30).collect() } else { BTreeSet::new() };
        assert_eq!(numbered.arrived(&wanted), wanted);
        // And not any longer.
        let wanted = (100..110).collect();
        numbered.send(100..110);
        assert_eq!(numbered.arrived(&wanted), wanted);
    }
}

#[test]
fn a_queue_may_be_taken_while_packets_come() {
    let Some(_suite) = begin("nfqueue: taken under load") else { return };
    let link = Link::new();
    rule(&link.right, "INPUT -p udp -j NFQUEUE --queue-num 0 --queue-bypass");
    let numbered = Numbered::over(&link);
    let mut first = 0;
    for _ in 0..10 {
        let is_over = AtomicBool::new(false);
        first = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let sent = (first..).take_while(|_| !is_over.load(Ordering::Relaxed));
                sent.inspect(|&number| numbered.send([number])).last().unwrap()
            });
            std::thread::sleep(Duration::from_millis(20));
            let lane = Lane::start(&link.right, QueueOptions::default(), all(Action::Pass));
            wait_until("packets are handed over", SOON, || handed_over(&link.right) > 100);
            is_over.store(true, Ordering::Relaxed);
            let last = sender.join().unwrap();
            wait_until("nothing waits", SOON, || waiting(&link.right) == 0);
            let outcome = lane.stop();
            assert!(outcome.received.packets > 0 && outcome.fallen_back == 0);
            let wanted = (first..=last).collect();
            let missing = &wanted - &numbered.arrived(&wanted);
            // Between the queue's beginning and its being set up, which are one message, the kernel
            // drops packets; later only where the queue is full, and counts them.
            let at_once = missing.iter().zip(missing.first().copied().unwrap_or(0)..).take_while(|(a, b)| **a == *b);
            let later = missing.len() - at_once.count();
            let dropped = outcome.received.dropped_by_kernel;
            assert!(later as u64 <= dropped, "{later} not lost at once, {dropped} counted: {missing:?}");
            last + 1
        });
    }
}

/// The packets that wait in queue 0.
fn waiting(namespace: &Namespace) -> u32 {
    queue_0(namespace, 2)
}

/// The packets that were sent to whoever has queue 0.
fn handed_over(namespace: &Namespace) -> u32 {
    queue_0(namespace, 7)
}

/// A field of what the kernel says of queue 0 (`seq_show`, `net/netfilter/nfnetlink_queue.c`), 0
/// where nobody has it.
fn queue_0(namespace: &Namespace, field: usize) -> u32 {
    let table = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue").unwrap());
    table.split_whitespace().nth(field).map_or(0, |number| number.parse().unwrap())
}

#[test]
fn packets_of_an_interface_that_went_down_are_gone() {
    let Some(_suite) = begin("nfqueue: an interface that goes down") else { return };
    let link = Link::new();
    rule(&link.right, "INPUT -p udp -j NFQUEUE --queue-num 0");
    let numbered = Numbered::over(&link);
    let (mut receiver, mut executor) = link.right.run(|| open(&QueueOptions::default())).unwrap();
    numbered.send(0..30);
    let batch = take(&mut receiver, 30);
    link.veth.right.down();
    let mut verdicts = vec![Action::Pass as u8; 30];
    verdicts[10..15].fill(Action::Drop as u8);
    executor.execute(done(batch, verdicts)).unwrap();
    // The kernel's answers are received like packets.
    receiver.wait(SOON).unwrap();
    assert_eq!(receiver.receive(100).unwrap(), 0);
    assert!(receiver.take_batch().is_none());
    executor.poll().unwrap();
    assert_eq!(executor.executed().losses.of(Loss::Refused), 25);
    assert_eq!((executor.executed().of(Action::Pass), executor.executed().of(Action::Drop)), (0, 5));
    assert_eq!(executor.executed().bytes[Action::Pass as usize], 0);
    // And all is well again.
    link.veth.right.up();
    link.veth.right.wait_until_running();
    link.veth.left.wait_until_running();
    numbered.send(30..40);
    let batch = take(&mut receiver, 10);
    executor.execute(done(batch, vec![Action::Pass as u8; 10])).unwrap();
    let wanted = (30..40).collect();
    assert_eq!(numbered.arrived(&wanted), wanted);
}

/// Counters that only grow, and come out right in the end, though the kernel's refusals are seen
/// late.
#[test]
fn an_accepted_packet_that_was_counted_is_not_taken_back() {
    let Some(_suite) = begin("nfqueue: refusals that are seen late") else { return };
    let link = Link::new();
    rule(&link.right, "INPUT -p udp -j NFQUEUE --queue-num 0");
    let numbered = Numbered::over(&link);
    let (mut receiver, mut executor) = link.right.run(|| open(&QueueOptions::default())).unwrap();
    numbered.send(0..30);
    let batch = take(&mut receiver, 30);
    let length = u64::from(batch.descriptors()[0].length);
    link.veth.right.down();
    executor.execute(done(batch, vec![Action::Pass as u8; 30])).unwrap();
    // Nobody has received yet what the kernel has answered.
    executor.poll().unwrap();
    let before = *executor.executed();
    assert_eq!(before.of(Action::Pass), 30);
    receiver.wait(SOON).unwrap();
    assert_eq!(receiver.receive(100).unwrap(), 0);
    executor.poll().unwrap();
    assert_eq!(*executor.executed(), before, "nothing is taken back");
    link.veth.right.up();
    link.veth.right.wait_until_running();
    link.veth.left.wait_until_running();
    numbered.send(30..80);
    let batch = take(&mut receiver, 50);
    executor.execute(done(batch, vec![Action::Pass as u8; 50])).unwrap();
    executor.poll().unwrap();
    let carried = executor.executed();
    assert_eq!((carried.of(Action::Pass), carried.losses.of(Loss::Refused), carried.all()), (50, 30, 80));
    assert_eq!(carried.bytes[Action::Pass as usize], 50 * length);
}

/// Nobody receives any more, and no later packet can be counted for those that are gone.
#[test]
fn a_refusal_that_comes_last_is_counted_in_the_end() {
    let Some(_suite) = begin("nfqueue: refusals at the end") else { return };
    for seen in [false, true] {
        let link = Link::new();
        rule(&link.right, "INPUT -p udp -j NFQUEUE --queue-num 0");
        let numbered = Numbered::over(&link);
        let (mut receiver, mut executor) = link.right.run(|| open(&QueueOptions::default())).unwrap();
        numbered.send(0..10);
        let batch = take(&mut receiver, 10);
        let length = u64::from(batch.descriptors()[0].length);
        executor.execute(done(batch, vec![Action::Pass as u8; 10])).unwrap();
        numbered.send(10..40);
        let batch = take(&mut receiver, 30);
        // The kernel's word lies behind packets that nobody takes.
        numbered.send(40..50);
        wait_until("they are handed over", SOON, || handed_over(&link.right) >= 50);
        link.veth.right.down();
        executor.execute(done(batch, vec![Action::Pass as u8; 30])).unwrap();
        if seen {
            executor.poll().unwrap();
            assert_eq!(executor.executed().of(Action::Pass), 40, "nobody has heard of it");
        }
        executor.finish().unwrap();
        let carried = executor.executed();
        assert_eq!((carried.of(Action::Pass), carried.losses.of(Loss::Refused), carried.all()), (10, 30, 40), "{seen}");
        assert_eq!(carried.bytes[Action::Pass as usize], 10 * length);
        // The queue is given up, once.
        assert_eq!(queue_0(&link.right, 7), 0);
        let again = link.right.run(|| open(&QueueOptions::default())).unwrap();
        drop((receiver, executor));
        assert!(is_taken(&link.right), "it is another's");
        drop(again);
    }
}

/// Whether somebody has queue 0.
fn is_taken(namespace: &Namespace) -> bool {
    queue_0(namespace, 1) != 0
}
