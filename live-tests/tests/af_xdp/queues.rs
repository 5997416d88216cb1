//! Several queues, and more packets than a queue has room for.

use std::collections::BTreeSet;
use std::time::Duration;

use portcullis_core::device::{Completion, StageTimes};
use portcullis_core::packet::{Action, Batch, Verdicts};
use portcullis_io::af_xdp::{self, LaneLayout};
use portcullis_io::live::{Lane, Receiver};
use portcullis_live_tests::frames::{number, numbered, swapped, udp};
use portcullis_live_tests::{PacketSocket, Veth, create_link_with, lane_options, run_lanes, wait_until};

use crate::{TIMEOUT, all, begin, swap_all_addresses};

/// A veth distributes packets over its queues by flow. Each lane serves its own queue, and each
/// packet leaves through the queue that it came from.
#[test]
fn traffic_is_spread_over_all_queues_and_returns_on_its_own() {
    let Some(_suite) = begin("AF_XDP queues") else { return };
    let (_, right, veth) = create_link_with(|link| link.queues(4).without_ipv6());
    let mut peer = PacketSocket::at(&veth.left);
    let filter = |batch: &mut Batch| {
        swap_all_addresses(batch);
        vec![Action::Tx as u32; batch.len()]
    };
    let ports: Vec<u16> = (1000..1400).collect();
    for lanes in [LaneLayout::PerQueue, LaneLayout::Shared] {
        let options = lane_options(&[veth.right.name()])
            .with_lanes(lanes)
            .with_steer("udp".parse().map(portcullis_io::af_xdp::Steering::Only).unwrap());
        let (received, ended) = run_lanes(&right, &options, filter, |opened| {
            assert_eq!(opened[0].queues, [0, 1, 2, 3]);
            let mut received = BTreeSet::new();
            // At most as many in flight as the link has room for.
            for some in ports.chunks(50) {
                for port in some {
                    peer.send(&udp(&veth, *port, &port.to_be_bytes()));
                }
                for _ in some {
                    received.insert(peer.receive(TIMEOUT).expect("the packet comes back").bytes);
                }
            }
            received
        });
        let wanted = ports.iter().map(|port| swapped(udp(&veth, *port, &port.to_be_bytes())));
        assert!(received == wanted.collect(), "{lanes:?}: received {} packets, or wrong ones", received.len());
        let shares: Vec<u64> = ended.received.iter().map(|it| it.packets).collect();
        println!("{lanes:?}: {shares:?}");
        assert_eq!(shares.iter().sum::<u64>(), ports.len() as u64);
        match lanes {
            // About a fourth each.
            LaneLayout::PerQueue => assert!(shares.len() == 4 && shares.iter().all(|share| *share >= 10), "{shares:?}"),
            LaneLayout::Shared => assert_eq!(shares.len(), 1),
        }
    }
}

/// Returns how many packets sent into the left end found no room at the right, as the link counts
/// them.
fn refused_by_link(veth: &Veth) -> u64 {
    let output = veth.left.namespace().ip(&["-statistics", "-oneline", "link", "show", "dev", veth.left.name()]);
    // `... \ TX: bytes packets errors dropped carrier collsns \ 1 2 3 4 5 6`
    let numbers = output.rsplit('\\').next().unwrap();
    numbers.split_whitespace().nth(3).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{output}"))
}

/// A filter slower than its traffic loses packets, and each loss is counted once: by the kernel if
/// the socket has no room, by the link if the packet does not reach the socket.
#[test]
fn every_packet_lost_to_a_full_queue_is_counted_once() {
    let Some(_suite) = begin("AF_XDP queues") else { return };
    let (_, right, veth) = create_link_with(|link| link.without_ipv4().without_ipv6());
    let peer = PacketSocket::at(&veth.left);
    let seen = std::sync::Mutex::new(Vec::new());
    let slow = |batch: &mut Batch| {
        seen.lock().unwrap().extend(batch.packets().map(number));
        std::thread::sleep(Duration::from_millis(5));
        all(Action::Drop)(batch)
    };
    let sent = 5000;
    let before = refused_by_link(&veth);
    let options = lane_options(&[veth.right.name()]).with_frames(256);
    let ((), ended) = run_lanes(&right, &options, slow, |_| {
        for number in 0..sent {
            peer.offer(&numbered(&veth, number, 60)).unwrap();
        }
    });
    let (received, dropped) = (ended.packets(), ended.received[0].dropped_by_kernel);
    let refused = refused_by_link(&veth) - before;
    println!("{sent} sent, {received} received, {dropped} dropped by the kernel, {refused} refused by the link");
    assert_eq!(received + dropped + refused, u64::from(sent));
    assert!(dropped > 0 && received > 0, "nothing overflowed");
    // In order, each once.
    let seen = seen.into_inner().unwrap();
    assert!(seen.len() as u64 == received && seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    assert_eq!(ended.of(Action::Drop), received);
}

/// Half of a lane's frames are kept for packets that arrive while a batch is being filtered.
#[test]
fn a_receiver_is_full_at_half_of_its_frames_until_its_batch_is_taken() {
    let Some(_suite) = begin("AF_XDP queues") else { return };
    let (_, right, veth) = create_link_with(|link| link.without_ipv4().without_ipv6());
    let peer = PacketSocket::at(&veth.left);
    let options = lane_options(&[veth.right.name()]).with_frames(256);
    right.run(|| {
        let mut run = af_xdp::open(&options).unwrap_or_else(|error| panic!("{error}"));
        let half = run.frame_audit.frames().total / 2;
        let Lane { receiver, executor, .. } = &mut run.lanes[0];
        let mut sent = 0;
        let mut receive_one = |receiver: &mut dyn Receiver| {
            peer.send(&numbered(&veth, sent, 60));
            sent += 1;
            wait_until("the packet is received", TIMEOUT, || {
                receiver.wait(Duration::from_millis(50)).unwrap();
                receiver.receive(1).unwrap() == 1
            });
        };
        for gathered in 0..half {
            assert!(!receiver.is_full(), "{gathered} of {half}");
            receive_one(&mut **receiver);
        }
        assert!(receiver.is_full(), "{half}");
        let first = receiver.take_batch().unwrap();
        assert!(!receiver.is_full(), "nothing is gathered");
        // The first batch is still in flight, and the kernel has frames for more packets.
        (0..20).for_each(|_| receive_one(&mut **receiver));
        assert!(!receiver.is_full());
        let second = receiver.take_batch().unwrap();
        assert_eq!((first.len(), second.len()), (half, 20));
        let numbers: Vec<u32> = first.packets().chain(second.packets()).map(number).collect();
        assert!(numbers.iter().copied().eq(0..sent), "{numbers:?}");
        for batch in [first, second] {
            let verdicts = Verdicts::from_returns(&vec![Action::Drop as u32; batch.len()], true);
            executor.execute(Completion { batch, verdicts, times: StageTimes::default() }).unwrap();
        }
        assert_eq!(receiver.received().dropped_by_kernel, 0);
        assert_eq!(run.frame_audit.frames().in_batches(), 0);
    });
}
