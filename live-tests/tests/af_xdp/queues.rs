//! Several queues, and more than a queue has room for.

use std::collections::BTreeSet;
use std::time::Duration;

use portcullis_core::device::{Completion, StageTimes};
use portcullis_core::packet::{Action, Batch, Verdicts};
use portcullis_io::af_xdp::{self, LaneLayout, Options};
use portcullis_io::live::{Lane, Receiver};
use portcullis_live_tests::frames::{number, numbered, swapped, udp};
use portcullis_live_tests::{Namespace, PacketSocket, Veth, lane_options, run_lanes, wait_until};

use crate::{SOON, all, begin};

/// A link deals packets to its queues by their flows. Each queue has its own, and each packet goes
/// back out of its queue.
#[test]
fn every_queue_has_its_share_of_the_traffic() {
    let Some(_suite) = begin("AF_XDP queues") else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).queues(4).without_ipv6().make();
    let mut peer = PacketSocket::at(&veth.left);
    let filter = |batch: &mut Batch| {
        for index in 0..batch.len() {
            let (to, from) = batch.packet_mut(index).split_at_mut(6);
            to.swap_with_slice(&mut from[..6]);
        }
        vec![Action::Tx as u32; batch.len()]
    };
    let ports: Vec<u16> = (1000..1400).collect();
    for lanes in [LaneLayout::PerQueue, LaneLayout::Shared] {
        let options = Options {
            lanes,
            steer: "udp".parse().map(portcullis_io::af_xdp::Steering::Only).unwrap(),
            ..lane_options(&[veth.right.name()])
        };
        let (came, ended) = run_lanes(&right, &options, filter, |got| {
            assert_eq!(got[0].queues, [0, 1, 2, 3]);
            let mut came = BTreeSet::new();
            // No more at once than the link has room for.
            for some in ports.chunks(50) {
                for port in some {
                    peer.send(&udp(&veth, *port, &port.to_be_bytes()));
                }
                for _ in some {
                    came.insert(peer.receive(SOON).expect("it comes back").bytes);
                }
            }
            came
        });
        let wanted = ports.iter().map(|port| swapped(udp(&veth, *port, &port.to_be_bytes())));
        assert!(came == wanted.collect(), "{lanes:?}: {} came back, or others", came.len());
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

/// Packets that were sent into an end of a link and found no room at the other, as the link counts
/// them.
fn refused_by_the_link(veth: &Veth) -> u64 {
    let says = veth.left.namespace().ip(&["-statistics", "-oneline", "link", "show", "dev", veth.left.name()]);
    // `... \ TX: bytes packets errors dropped carrier collsns \ 1 2 3 4 5 6`
    let numbers = says.rsplit('\\').next().unwrap();
    numbers.split_whitespace().nth(3).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{says}"))
}

/// A filter that is slower than its packets come loses some, of which every one is counted once:
/// those that the socket has no room for by the kernel, and those that do not even get there by the
/// link.
#[test]
fn what_a_full_queue_loses_is_counted() {
    let Some(_suite) = begin("AF_XDP queues") else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let peer = PacketSocket::at(&veth.left);
    let seen = std::sync::Mutex::new(Vec::new());
    let slow = |batch: &mut Batch| {
        seen.lock().unwrap().extend(batch.packets().map(number));
        std::thread::sleep(Duration::from_millis(5));
        all(Action::Drop)(batch)
    };
    let sent = 5000;
    let before = refused_by_the_link(&veth);
    let options = Options { frames: 256, ..lane_options(&[veth.right.name()]) };
    let ((), ended) = run_lanes(&right, &options, slow, |_| {
        for number in 0..sent {
            peer.offer(&numbered(&veth, number, 60)).unwrap();
        }
    });
    let (received, dropped) = (ended.packets(), ended.received[0].dropped_by_kernel);
    let refused = refused_by_the_link(&veth) - before;
    println!("{sent} sent, {received} received, {dropped} dropped by the kernel, {refused} refused by the link");
    assert_eq!(received + dropped + refused, u64::from(sent));
    assert!(dropped > 0 && received > 0, "nothing overflowed");
    // In order, each once.
    let seen = seen.into_inner().unwrap();
    assert!(seen.len() as u64 == received && seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    assert_eq!(ended.of(Action::Drop), received);
}

/// Half of a lane's frames are for packets that come while a batch is filtered.
#[test]
fn a_receiver_is_full_when_it_has_half_of_its_frames_and_goes_on_when_the_batch_is_closed() {
    let Some(_suite) = begin("AF_XDP queues") else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let peer = PacketSocket::at(&veth.left);
    let options = Options { frames: 256, ..lane_options(&[veth.right.name()]) };
    right.run(|| {
        let mut run = af_xdp::open(&options).unwrap_or_else(|error| panic!("{error}"));
        let half = run.frame_audit.frames().total / 2;
        let Lane { receiver, executor, .. } = &mut run.lanes[0];
        let mut sent = 0;
        let mut comes = |receiver: &mut dyn Receiver| {
            peer.send(&numbered(&veth, sent, 60));
            sent += 1;
            wait_until("it comes", SOON, || {
                receiver.wait(Duration::from_millis(50)).unwrap();
                receiver.receive(1).unwrap() == 1
            });
        };
        for gathered in 0..half {
            assert!(!receiver.is_full(), "{gathered} of {half}");
            comes(&mut **receiver);
        }
        assert!(receiver.is_full(), "{half}");
        let first = receiver.take_batch().unwrap();
        assert!(!receiver.is_full(), "nothing is gathered");
        // The batch is still on its way, and the kernel has frames to go on with.
        (0..20).for_each(|_| comes(&mut **receiver));
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
