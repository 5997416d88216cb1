//! Verdicts carried out, seen from the other side of the link.

use portcullis_core::packet::{Action, Batch};
use portcullis_io::live::Loss;
use portcullis_live_tests::frames::{EXPERIMENT, number, numbered, swapped};
use portcullis_live_tests::{Frame, Namespace, PacketSocket, Veth, lane_options, run_lanes};

use crate::{NOTHING, SOON, begin, redirect};

const ABORTED: u32 = Action::Aborted as u32;
const DROP: u32 = Action::Drop as u32;
const PASS: u32 = Action::Pass as u32;
const TX: u32 = Action::Tx as u32;

#[test]
fn a_verdict_of_tx_sends_a_frame_back_as_the_filter_has_left_it() {
    let Some(_suite) = begin("AF_XDP verdicts") else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    // Their kernels keep silent.
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let mut peer = PacketSocket::at(&veth.left);
    // Each frame goes back with its addresses swapped, cut at its front, at its end, or grown on
    // both.
    let filter = |batch: &mut Batch| {
        for index in 0..batch.len() {
            let (to, from) = batch.packet_mut(index).split_at_mut(6);
            to.swap_with_slice(&mut from[..6]);
        }
        let moved = batch.descriptors().iter().enumerate().map(|(index, now)| {
            let number = number(batch.packet(index));
            let mut now = *now;
            match number % 4 {
                1 => (now.offset, now.length) = (now.offset + 4, now.length - 4),
                2 => now.length -= 10,
                3 => (now.offset, now.length) = (now.offset - 2, now.length + 2 + 1),
                _ => {}
            }
            now
        });
        let moved = moved.collect();
        batch.resize(moved).unwrap();
        vec![TX; batch.len()]
    };
    let lengths = [60, 61, 128, 700, 1513, 1514];
    let (came, ended) = run_lanes(&right, &lane_options(&[&format!("{}:0", veth.right.name())]), filter, |_| {
        let mut came = Vec::new();
        for number in 0..600 {
            peer.send(&numbered(&veth, number, lengths[number as usize % 6]));
            came.push(peer.receive(SOON).expect("it comes back").bytes);
        }
        came
    });
    for (number, came) in (0..).zip(came) {
        let want = swapped(numbered(&veth, number, lengths[number as usize % 6]));
        match number % 4 {
            1 => assert_eq!(came, want[4..], "{number}"),
            2 => assert_eq!(came, want[..want.len() - 10], "{number}"),
            // What was before and behind it is anybody's.
            3 => assert_eq!((&came[2..2 + want.len()], came.len()), (&want[..], want.len() + 3), "{number}"),
            _ => assert_eq!(came, want, "{number}"),
        }
    }
    assert_eq!((ended.received[0].packets, ended.of(Action::Tx)), (600, 600));
}

#[test]
fn frames_are_redirected_to_other_ports_dropped_or_lost_for_a_reason() {
    let Some(_suite) = begin("AF_XDP verdicts") else { return };
    let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    let beyond = Veth::between(&other, &right).subnet(2).make();
    let mut peer = PacketSocket::at(&veth.left);
    let mut far = PacketSocket::at(&beyond.left);
    let filter = |batch: &mut Batch| {
        let verdict = |number| [DROP, redirect(3), PASS, redirect(9), ABORTED, TX][number as usize % 6];
        (0..batch.len()).map(|index| verdict(number(batch.packet(index)))).collect()
    };
    let mut options = lane_options(&[&format!("{}:0", veth.right.name())]);
    options.redirect.push((3, beyond.right.name().into()));
    let ((), ended) = run_lanes(&right, &options, filter, |_| {
        for number in 0..3000 {
            peer.send(&numbered(&veth, number, 60 + number as usize % 1000));
            match number % 6 {
                1 => {
                    let came =
                        far.receive_where(SOON, |frame| frame.ether_type() == EXPERIMENT).expect("it is redirected");
                    assert_eq!(came.bytes, numbered(&veth, number, 60 + number as usize % 1000));
                }
                5 => {
                    let came =
                        peer.receive_where(SOON, |frame| frame.ether_type() == EXPERIMENT).expect("it comes back");
                    assert_eq!(came.bytes, numbered(&veth, number, 60 + number as usize % 1000));
                }
                _ => {}
            }
        }
        assert!(far.receive_where(NOTHING, |frame| frame.ether_type() == EXPERIMENT).is_none());
        assert!(peer.receive_where(NOTHING, |frame| frame.ether_type() == EXPERIMENT).is_none());
    });
    assert_eq!(ended.received[0].packets, 3000);
    assert_eq!(ended.carried[0].packets, [0, 500, 0, 500, 500]);
    let losses = ended.carried[0].losses;
    let lost = [Loss::NoStack, Loss::NoTarget, Loss::Aborted].map(|loss| losses.of(loss));
    assert_eq!((lost, losses.all()), ([500, 500, 500], 1500));
}

/// A redirect's target goes down, comes back, and is deleted; what has nothing to do with it goes
/// on.
#[test]
fn a_target_that_is_down_or_gone_keeps_nobody_else_waiting() {
    let Some(_suite) = begin("AF_XDP verdicts: a target that is down") else { return };
    let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let beyond = Veth::between(&other, &right).subnet(2).without_ipv4().without_ipv6().make();
    let mut peer = PacketSocket::at(&veth.left);
    let mut far = PacketSocket::at(&beyond.left);
    let filter = |batch: &mut Batch| {
        let verdict = |number| if number % 2 == 0 { redirect(3) } else { TX };
        (0..batch.len()).map(|index| verdict(number(batch.packet(index)))).collect()
    };
    let mut options = lane_options(&[&format!("{}:0", veth.right.name())]);
    options.redirect.push((3, beyond.right.name().into()));
    /// More than a ring takes.
    const MANY: u32 = 1200;
    let ((), ended) = run_lanes(&right, &options, filter, |_| {
        // One that is redirected, and one that comes back when that has been done.
        let pair = |peer: &mut PacketSocket, pair: u32| {
            for number in [2 * pair, 2 * pair + 1] {
                peer.send(&numbered(&veth, number, 60));
            }
            let came = peer.receive_where(SOON, |frame| frame.ether_type() == EXPERIMENT).expect("it comes back");
            assert_eq!(number(&came.bytes), 2 * pair + 1);
        };
        let wanted = |wanted| move |frame: &Frame| frame.ether_type() == EXPERIMENT && number(&frame.bytes) == wanted;
        pair(&mut peer, 0);
        assert!(far.receive_where(SOON, wanted(0)).is_some());
        beyond.right.down();
        (1..=MANY).for_each(|number| pair(&mut peer, number));
        beyond.right.up();
        beyond.right.wait_until_running();
        beyond.left.wait_until_running();
        pair(&mut peer, MANY + 1);
        assert!(far.receive_where(SOON, wanted(2 * (MANY + 1))).is_some(), "it goes on");
        beyond.delete();
        (MANY + 2..=2 * MANY).for_each(|number| pair(&mut peer, number));
    });
    assert_eq!(ended.of(Action::Tx), u64::from(2 * MANY + 1));
    // The first after each end was in the ring before anybody knew, perhaps with another that came
    // with it.
    let (down, all) = (ended.lost(|it| it.of(Loss::Down)), ended.lost(|it| it.all()));
    let lost = u64::from(2 * MANY - 1);
    assert!((lost - 4..lost).contains(&down), "{down} of {lost}");
    assert_eq!(down, all);
}

#[test]
fn an_interface_is_the_same_by_any_of_its_names() {
    let Some(_suite) = begin("AF_XDP verdicts") else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    right.ip(&["link", "property", "add", "dev", veth.right.name(), "altname", "uplink"]);
    let mut peer = PacketSocket::at(&veth.left);
    // The port by one name, and the way back out of it by another.
    for (port, target) in [(veth.right.name(), "uplink"), ("uplink", veth.right.name())] {
        let mut options = lane_options(&[port]);
        options.redirect = vec![(7, target.into())];
        let (came, ended) = run_lanes(
            &right,
            &options,
            |batch| vec![redirect(7); batch.len()],
            |_| {
                peer.send(&numbered(&veth, 1, 60));
                peer.receive(SOON).expect("it comes back").bytes
            },
        );
        assert_eq!(came, numbered(&veth, 1, 60), "{port}, {target}");
        assert_eq!(ended.of(Action::Redirect), 1);
    }
}
