//! What a filter sees of a packet, and traffic of several protocols.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use portcullis_core::packet::Action;
use portcullis_core::program::facts::Window;
use portcullis_io::live::Receiver;
use portcullis_io::nfqueue::{QueueOptions, QueueReceiver, open};
use portcullis_live_tests::{ping, wait_until};

use crate::lane::{Lane, Link, Numbered, QUIET_TIME, TIMEOUT, all, begin, pass_all, rule, rule_of};

#[test]
fn packets_get_an_ethernet_header_from_what_the_kernel_knows() {
    let Some(_suite) = begin("nfqueue: the Ethernet header") else { return };
    for (chain, ipv6) in [("OUTPUT", false), ("INPUT", false), ("INPUT", true)] {
        let (link, numbered) = Link::queued(chain, ipv6);
        let end = link.end(chain);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = seen.clone();
        let options = QueueOptions::default().with_port(5);
        let before = SystemTime::now();
        let lane = Lane::start(end, options, move |batch| {
            for index in 0..batch.len() {
                record.lock().unwrap().push((batch.packet(index).to_vec(), batch.metadata_of(index)));
                // A change of the Ethernet header has no effect, as the kernel has none.
                batch.packet_mut(index)[..14].fill(0xee);
            }
            vec![Action::Pass as u8; batch.len()]
        });
        let wanted = BTreeSet::from([1, 2, 3]);
        numbered.send(1..=3);
        assert_eq!(numbered.arrived(&wanted), wanted);
        assert_eq!(lane.stop().executed.losses.all(), 0);
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 3);
        for (packet, metadata) in &*seen {
            let sender = if chain == "OUTPUT" { [0; 6] } else { link.veth.left.mac() };
            assert_eq!((&packet[..6], &packet[6..12]), (&[0; 6][..], &sender[..]));
            assert_eq!(packet[12..15], if ipv6 { [0x86, 0xdd, 0x60] } else { [8, 0, 0x45] });
            assert_eq!(metadata.wire_length as usize, packet.len());
            assert_eq!(metadata.port, 5);
            let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(metadata.time_ns());
            assert!(time >= before - Duration::from_millis(10) && time <= SystemTime::now(), "{time:?}");
        }
    }
}

#[test]
fn echo_requests_are_answered_only_if_they_pass() {
    let Some(_suite) = begin("nfqueue: echoes") else { return };
    let link = Link::new();
    rule_of(&link.right, "iptables-legacy", "INPUT -p icmp -j NFQUEUE --queue-num 0");
    rule_of(&link.right, "ip6tables-legacy", "INPUT -p icmpv6 --icmpv6-type echo-request -j NFQUEUE --queue-num 0");
    let addresses: [IpAddr; 2] = [link.veth.right.ipv4().into(), link.veth.right.ipv6().into()];
    for writes in [Window::Nothing, Window::WholePacket] {
        for (action, answers) in [(Action::Pass, true), (Action::Drop, false), (Action::Aborted, false)] {
            let lane = Lane::start(&link.right, QueueOptions::default().with_writes(writes), all(action));
            for address in addresses {
                assert_eq!(ping(&link.left, address, if answers { TIMEOUT } else { QUIET_TIME }), answers, "{address}");
            }
            let outcome = lane.stop();
            assert!(outcome.received.packets >= 2);
        }
    }
}

#[test]
fn without_a_program_the_bypass_option_decides() {
    let Some(_suite) = begin("nfqueue: no program") else { return };
    let link = Link::new();
    let bypassed = Numbered::over(&link);
    let queued = Numbered::over(&link);
    let udp = |numbered: &Numbered| format!("OUTPUT -p udp --dport {} -j NFQUEUE", numbered.address().port());
    rule(&link.left, &format!("{} --queue-num 1 --queue-bypass", udp(&bypassed)));
    rule(&link.left, &format!("{} --queue-num 1", udp(&queued)));
    let wanted: BTreeSet<u32> = (0..50).collect();
    for round in 0..2 {
        bypassed.send(0..50);
        queued.send(0..50);
        assert_eq!(bypassed.arrived(&wanted), wanted, "{round}");
        assert_eq!(queued.arrived(&BTreeSet::new()), BTreeSet::new(), "{round}");
        // A program gets the packets of both rules, and leaves nothing behind.
        let lane = Lane::start(&link.left, QueueOptions::default().with_queue(1), all(Action::Drop));
        bypassed.send(0..50);
        assert_eq!(bypassed.arrived(&BTreeSet::new()), BTreeSet::new());
        let outcome = lane.stop();
        assert_eq!(outcome.executed.of(Action::Drop), 50);
    }
}

#[test]
fn a_receiver_is_full_when_its_memory_is_used_until_its_batch_is_taken() {
    let Some(_suite) = begin("nfqueue: a batch's memory") else { return };
    let (link, numbered) = Link::queued("INPUT", false);
    let options = QueueOptions::default().with_batch(16);
    let (mut receiver, mut executor) = link.right.run(|| open(&options)).unwrap();
    assert!(!receiver.is_full(), "nothing was received");
    numbered.send(0..24);
    let receive = |receiver: &mut QueueReceiver, most: usize, wanted: usize| {
        let mut got = 0;
        wait_until("packets are received", TIMEOUT, || {
            receiver.wait(Duration::from_millis(50)).unwrap();
            got += receiver.receive(most - got).unwrap();
            got >= wanted
        });
        assert_eq!(got, wanted);
    };
    receive(&mut receiver, 15, 15);
    assert!(!receiver.is_full() && receiver.backlog_capacity() > 0, "there is room for one more");
    receive(&mut receiver, 9, 1);
    assert!(receiver.is_full(), "no room for the waiting packets");
    assert_eq!((receiver.receive(100).unwrap(), receiver.backlog_capacity()), (0, 0));
    let first = receiver.take_batch().unwrap();
    assert!(!receiver.is_full(), "the next batch has memory of its own");
    receive(&mut receiver, 100, 8);
    assert!(!receiver.is_full());
    let second = receiver.take_batch().unwrap();
    assert_eq!((first.len(), second.len()), (16, 8));
    for batch in [first, second] {
        pass_all(&mut executor, batch);
    }
    let wanted = (0..24).collect();
    assert_eq!(numbered.arrived(&wanted), wanted);
}
