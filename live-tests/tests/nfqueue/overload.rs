//! More packets than a queue or a buffer holds, and packets without a verdict.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portcullis_core::packet::Action;
use portcullis_io::live::{Executor, Loss, Receiver};
use portcullis_io::nfqueue::{QueueOptions, open};
use portcullis_live_tests::{Namespace, wait_until};

use crate::lane::{Lane, Link, Numbered, TIMEOUT, all, begin, completion, number, pass_all, rule, take};

#[test]
fn a_full_queue_counts_its_drops_and_resumes() {
    let Some(_suite) = begin("nfqueue: a full queue") else { return };
    for fail_open in [false, true] {
        // On INPUT: on OUTPUT the sender would block.
        let (link, numbered) = Link::queued("INPUT", false);
        let options = QueueOptions::default().with_max_length(10).with_fail_open(fail_open);
        let (mut receiver, mut executor) = link.right.run(|| open(&options)).unwrap();
        for round in 0..3u32 {
            let first = round * 100;
            numbered.send(first..first + 100);
            let mut wanted: BTreeSet<u32> = BTreeSet::new();
            if fail_open {
                // Packets without room have been accepted already.
                wanted.extend(first + 10..first + 100);
                assert_eq!(numbered.arrived(&wanted), wanted);
            } else {
                let dropped = (u64::from(round) + 1) * 90;
                wait_until("the queue is full", TIMEOUT, || receiver.received().dropped_by_kernel == dropped);
            }
            let batch = take(&mut receiver, 10);
            assert!(batch.packets().map(number).eq(first..first + 10));
            pass_all(&mut executor, batch);
            wanted = (first..first + 10).collect();
            assert_eq!(numbered.arrived(&wanted), wanted);
        }
        let received = receiver.received();
        assert_eq!((received.packets, received.dropped_by_kernel), (30, if fail_open { 0 } else { 270 }));
    }
}

#[test]
fn a_full_receive_buffer_counts_its_drops_and_resumes() {
    let Some(_suite) = begin("nfqueue: a full receive buffer") else { return };
    let (link, numbered) = Link::queued("INPUT", false);
    let options = QueueOptions::default().with_receive_buffer(40_000);
    let (mut receiver, mut executor) = link.right.run(|| open(&options)).unwrap();
    for round in 1..4 {
        numbered.send(0..2000);
        let mut taken = BTreeSet::new();
        wait_until("every packet is taken or counted", TIMEOUT, || {
            receiver.receive(usize::MAX).unwrap();
            if let Some(batch) = receiver.take_batch() {
                taken.extend(batch.packets().map(number));
                pass_all(&mut executor, batch);
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
fn waiting_with_a_full_batch_returns_at_once() {
    let Some(_suite) = begin("nfqueue: a full batch") else { return };
    let (link, numbered) = Link::queued("INPUT", false);
    let (mut receiver, mut executor) = link.right.run(|| open(&QueueOptions::default().with_batch(8))).unwrap();
    numbered.send(0..20);
    for packets in [8, 8, 4] {
        let mut got = 0;
        wait_until("packets are received", TIMEOUT, || {
            // The timeout is hours, so only packets can end the wait.
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
        pass_all(&mut executor, batch);
    }
    let wanted = (0..20).collect();
    assert_eq!(numbered.arrived(&wanted), wanted);
}

#[test]
fn packets_waiting_when_the_queue_is_closed_get_the_fallback_verdict() {
    let Some(_suite) = begin("nfqueue: giving up") else { return };
    for fail_open in [false, true] {
        let link = Link::new();
        rule(&link.left, "OUTPUT -p udp -j NFQUEUE --queue-num 0 --queue-bypass");
        let numbered = Numbered::over(&link);
        let options = QueueOptions::default().with_fail_open(fail_open);
        let (mut receiver, executor) = link.left.run(|| open(&options)).unwrap();
        numbered.send(0..30);
        let in_flight = take(&mut receiver, 10);
        // Some are gathered in a batch, and the others not yet received.
        receiver.receive(10).unwrap();
        drop(receiver);
        drop(executor);
        let wanted = if fail_open { (10..20).collect() } else { BTreeSet::new() };
        assert_eq!(numbered.arrived(&wanted), wanted);
        // A batch in flight keeps the queue open.
        drop(in_flight);
        let wanted = if fail_open { (0..10).chain(20..30).collect() } else { BTreeSet::new() };
        assert_eq!(numbered.arrived(&wanted), wanted);
        // Without it the queue is closed.
        let wanted = (100..110).collect();
        numbered.send(100..110);
        assert_eq!(numbered.arrived(&wanted), wanted);
    }
}

#[test]
fn a_queue_can_be_opened_while_packets_arrive() {
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
            wait_until("packets are handed over", TIMEOUT, || handed_over(&link.right) > 100);
            is_over.store(true, Ordering::Relaxed);
            let last = sender.join().unwrap();
            wait_until("no packet waits", TIMEOUT, || waiting(&link.right) == 0);
            let outcome = lane.stop();
            assert!(outcome.received.packets > 0 && outcome.fallen_back == 0);
            let wanted = (first..=last).collect();
            let missing = &wanted - &numbered.arrived(&wanted);
            // While the queue is bound and configured, which is one message, the kernel drops
            // packets without counting them. Later it drops packets only if the queue is full, and
            // counts them.
            let while_opening =
                missing.iter().zip(missing.first().copied().unwrap_or(0)..).take_while(|(a, b)| **a == *b);
            let later = missing.len() - while_opening.count();
            let dropped = outcome.received.dropped_by_kernel;
            assert!(later as u64 <= dropped, "{later} lost after opening, {dropped} counted: {missing:?}");
            last + 1
        });
    }
}

/// Number of packets waiting in queue 0.
fn waiting(namespace: &Namespace) -> u32 {
    queue_0_field(namespace, 2)
}

/// Number of packets sent to the process that holds queue 0.
fn handed_over(namespace: &Namespace) -> u32 {
    queue_0_field(namespace, 7)
}

/// A field of the kernel's line about queue 0 (`seqf_show`, `net/netfilter/nfnetlink_queue.c`); 0
/// if no process holds it.
fn queue_0_field(namespace: &Namespace, field: usize) -> u32 {
    let table = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue").unwrap());
    table.split_whitespace().nth(field).map_or(0, |number| number.parse().unwrap())
}

#[test]
fn packets_of_an_interface_that_went_down_are_counted_as_refused() {
    let Some(_suite) = begin("nfqueue: an interface that goes down") else { return };
    let (link, numbered) = Link::queued("INPUT", false);
    let (mut receiver, mut executor) = link.right.run(|| open(&QueueOptions::default())).unwrap();
    numbered.send(0..30);
    let batch = take(&mut receiver, 30);
    link.veth.right.down();
    let mut verdicts = vec![Action::Pass as u8; 30];
    verdicts[10..15].fill(Action::Drop as u8);
    executor.execute(completion(batch, verdicts)).unwrap();
    // The kernel's answers are received like packets.
    receiver.wait(TIMEOUT).unwrap();
    assert_eq!(receiver.receive(100).unwrap(), 0);
    assert!(receiver.take_batch().is_none());
    executor.poll().unwrap();
    assert_eq!(executor.executed().losses.of(Loss::Refused), 25);
    assert_eq!((executor.executed().of(Action::Pass), executor.executed().of(Action::Drop)), (0, 5));
    assert_eq!(executor.executed().bytes[Action::Pass as usize], 0);
    // The queue works again afterwards.
    link.veth.right.up();
    link.veth.right.wait_until_running();
    link.veth.left.wait_until_running();
    numbered.send(30..40);
    let batch = take(&mut receiver, 10);
    pass_all(&mut executor, batch);
    let wanted = (30..40).collect();
    assert_eq!(numbered.arrived(&wanted), wanted);
}

/// Counters never decrease and are right in the end, although the kernel's refusals arrive late.
#[test]
fn counters_do_not_decrease_when_refusals_arrive_late() {
    let Some(_suite) = begin("nfqueue: refusals that are seen late") else { return };
    let (link, numbered) = Link::queued("INPUT", false);
    let (mut receiver, mut executor) = link.right.run(|| open(&QueueOptions::default())).unwrap();
    numbered.send(0..30);
    let batch = take(&mut receiver, 30);
    let length = u64::from(batch.descriptors()[0].length);
    link.veth.right.down();
    pass_all(&mut executor, batch);
    // The kernel's answer has not been received yet.
    executor.poll().unwrap();
    let before = *executor.executed();
    assert_eq!(before.of(Action::Pass), 30);
    receiver.wait(TIMEOUT).unwrap();
    assert_eq!(receiver.receive(100).unwrap(), 0);
    executor.poll().unwrap();
    assert_eq!(*executor.executed(), before, "counters do not decrease");
    link.veth.right.up();
    link.veth.right.wait_until_running();
    link.veth.left.wait_until_running();
    numbered.send(30..80);
    let batch = take(&mut receiver, 50);
    pass_all(&mut executor, batch);
    executor.poll().unwrap();
    let executed = executor.executed();
    assert_eq!((executed.of(Action::Pass), executed.losses.of(Loss::Refused), executed.all()), (50, 30, 80));
    assert_eq!(executed.bytes[Action::Pass as usize], 50 * length);
}

/// Refusals that arrive after the last packet are still counted, although no later packet can make
/// up for them.
#[test]
fn refusals_after_the_last_packet_are_counted_by_finish() {
    let Some(_suite) = begin("nfqueue: refusals at the end") else { return };
    for seen in [false, true] {
        let (link, numbered) = Link::queued("INPUT", false);
        let (mut receiver, mut executor) = link.right.run(|| open(&QueueOptions::default())).unwrap();
        numbered.send(0..10);
        let batch = take(&mut receiver, 10);
        let length = u64::from(batch.descriptors()[0].length);
        pass_all(&mut executor, batch);
        numbered.send(10..40);
        let batch = take(&mut receiver, 30);
        // The kernel's answer is queued behind packets that are never received.
        numbered.send(40..50);
        wait_until("packets are handed over", TIMEOUT, || handed_over(&link.right) >= 50);
        link.veth.right.down();
        pass_all(&mut executor, batch);
        if seen {
            executor.poll().unwrap();
            assert_eq!(executor.executed().of(Action::Pass), 40, "the refusals have not been received");
        }
        executor.finish().unwrap();
        let executed = executor.executed();
        assert_eq!(
            (executed.of(Action::Pass), executed.losses.of(Loss::Refused), executed.all()),
            (10, 30, 40),
            "{seen}"
        );
        assert_eq!(executed.bytes[Action::Pass as usize], 10 * length);
        // The queue is closed once.
        assert_eq!(queue_0_field(&link.right, 7), 0);
        let again = link.right.run(|| open(&QueueOptions::default())).unwrap();
        drop((receiver, executor));
        assert!(is_held(&link.right), "the second open still holds the queue");
        drop(again);
    }
}

/// Returns whether a process holds queue 0.
fn is_held(namespace: &Namespace) -> bool {
    queue_0_field(namespace, 1) != 0
}
