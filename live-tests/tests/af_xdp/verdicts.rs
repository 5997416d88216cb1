//! Execution of verdicts, as the other end of the link sees it.

use portcullis_core::packet::{Action, Batch};
use portcullis_io::live::Loss;
use portcullis_live_tests::frames::{EXPERIMENTAL_ETHERTYPE, number, numbered, swapped};
use portcullis_live_tests::{Frame, Namespace, PacketSocket, Veth, create_link_with, lane_options, run_lanes};

use crate::{QUIET_TIME, TIMEOUT, begin, receive, redirect, swap_all_addresses};

const ABORTED: u32 = Action::Aborted as u32;
const DROP: u32 = Action::Drop as u32;
const PASS: u32 = Action::Pass as u32;
const TX: u32 = Action::Tx as u32;

#[test]
fn tx_sends_a_frame_back_as_the_filter_left_it() {
    let Some(_suite) = begin("AF_XDP verdicts") else { return };
    // Without IP the kernels send no frames of their own.
    let (_, right, veth) = create_link_with(|link| link.without_ipv4().without_ipv6());
    let mut peer = PacketSocket::at(&veth.left);
    // Each frame goes back with its addresses swapped, and cut at the front, cut at the end, or
    // grown at both ends.
    let filter = |batch: &mut Batch| {
        swap_all_addresses(batch);
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
    let (received, ended) = run_lanes(&right, &lane_options(&[&format!("{}:0", veth.right.name())]), filter, |_| {
        let mut received = Vec::new();
        for number in 0..600 {
            peer.send(&numbered(&veth, number, lengths[number as usize % 6]));
            received.push(peer.receive(TIMEOUT).expect("the frame comes back").bytes);
        }
        received
    });
    for (number, received) in (0..).zip(received) {
        let want = swapped(numbered(&veth, number, lengths[number as usize % 6]));
        match number % 4 {
            1 => assert_eq!(received, want[4..], "{number}"),
            2 => assert_eq!(received, want[..want.len() - 10], "{number}"),
            // The bytes gained before and behind are unspecified.
            3 => assert_eq!((&received[2..2 + want.len()], received.len()), (&want[..], want.len() + 3), "{number}"),
            _ => assert_eq!(received, want, "{number}"),
        }
    }
    assert_eq!((ended.received[0].packets, ended.of(Action::Tx)), (600, 600));
}

#[test]
fn each_frame_is_redirected_dropped_or_counted_as_lost_by_reason() {
    let Some(_suite) = begin("AF_XDP verdicts") else { return };
    let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    let redirect_link = Veth::between(&other, &right).subnet(2).make();
    let mut peer = PacketSocket::at(&veth.left);
    let mut far = PacketSocket::at(&redirect_link.left);
    let filter = |batch: &mut Batch| {
        let verdict = |number| [DROP, redirect(3), PASS, redirect(9), ABORTED, TX][number as usize % 6];
        (0..batch.len()).map(|index| verdict(number(batch.packet(index)))).collect()
    };
    let mut options = lane_options(&[&format!("{}:0", veth.right.name())]);
    options.redirect.push((3, redirect_link.right.name().into()));
    let ((), ended) = run_lanes(&right, &options, filter, |_| {
        for number in 0..3000 {
            peer.send(&numbered(&veth, number, 60 + number as usize % 1000));
            match number % 6 {
                1 => {
                    let received = receive(&mut far, TIMEOUT).expect("the frame arrives");
                    assert_eq!(received, numbered(&veth, number, 60 + number as usize % 1000));
                }
                5 => {
                    let received = receive(&mut peer, TIMEOUT).expect("the frame arrives");
                    assert_eq!(received, numbered(&veth, number, 60 + number as usize % 1000));
                }
                _ => {}
            }
        }
        assert!(receive(&mut far, QUIET_TIME).is_none());
        assert!(receive(&mut peer, QUIET_TIME).is_none());
    });
    assert_eq!(ended.received[0].packets, 3000);
    assert_eq!(ended.executed[0].packets, [0, 500, 0, 500, 500]);
    let losses = ended.executed[0].losses;
    let lost = [Loss::NoStack, Loss::NoTarget, Loss::Aborted].map(|loss| losses.of(loss));
    assert_eq!((lost, losses.all()), ([500, 500, 500], 1500));
}

/// Redirecting to a target that goes down, comes back and is deleted does not affect other packets.
#[test]
fn a_redirect_target_that_is_down_or_deleted_does_not_delay_other_packets() {
    let Some(_suite) = begin("AF_XDP verdicts: a target that is down") else { return };
    let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let redirect_link = Veth::between(&other, &right).subnet(2).without_ipv4().without_ipv6().make();
    let mut peer = PacketSocket::at(&veth.left);
    let mut far = PacketSocket::at(&redirect_link.left);
    let filter = |batch: &mut Batch| {
        let verdict = |number| if number % 2 == 0 { redirect(3) } else { TX };
        (0..batch.len()).map(|index| verdict(number(batch.packet(index)))).collect()
    };
    let mut options = lane_options(&[&format!("{}:0", veth.right.name())]);
    options.redirect.push((3, redirect_link.right.name().into()));
    /// More than a TX ring holds.
    const MANY: u32 = 1200;
    let ((), ended) = run_lanes(&right, &options, filter, |_| {
        // Sends a packet that is redirected and one that comes back, and waits for the latter.
        let pair = |peer: &mut PacketSocket, pair: u32| {
            for number in [2 * pair, 2 * pair + 1] {
                peer.send(&numbered(&veth, number, 60));
            }
            let received = receive(peer, TIMEOUT).expect("the frame comes back");
            assert_eq!(number(&received), 2 * pair + 1);
        };
        let wanted = |wanted| {
            move |frame: &Frame| frame.ether_type() == EXPERIMENTAL_ETHERTYPE && number(&frame.bytes) == wanted
        };
        pair(&mut peer, 0);
        assert!(far.receive_where(TIMEOUT, wanted(0)).is_some());
        redirect_link.right.down();
        (1..=MANY).for_each(|number| pair(&mut peer, number));
        redirect_link.right.up();
        redirect_link.right.wait_until_running();
        redirect_link.left.wait_until_running();
        pair(&mut peer, MANY + 1);
        assert!(far.receive_where(TIMEOUT, wanted(2 * (MANY + 1))).is_some(), "redirecting resumes");
        redirect_link.delete();
        (MANY + 2..=2 * MANY).for_each(|number| pair(&mut peer, number));
    });
    assert_eq!(ended.of(Action::Tx), u64::from(2 * MANY + 1));
    // After each change, the packets already in the ring are still sent: one, or two that came
    // together.
    let (down, all) = (ended.lost(|it| it.of(Loss::Down)), ended.lost(|it| it.all()));
    let lost = u64::from(2 * MANY - 1);
    assert!((lost - 4..lost).contains(&down), "{down} of {lost}");
    assert_eq!(down, all);
}

#[test]
fn an_alternative_interface_name_names_the_same_port() {
    let Some(_suite) = begin("AF_XDP verdicts") else { return };
    let (_, right, veth) = create_link_with(|link| link.without_ipv4().without_ipv6());
    right.ip(&["link", "property", "add", "dev", veth.right.name(), "altname", "uplink"]);
    let mut peer = PacketSocket::at(&veth.left);
    // The port by one name, and the redirect target by the other.
    for (port, target) in [(veth.right.name(), "uplink"), ("uplink", veth.right.name())] {
        let mut options = lane_options(&[port]);
        options.redirect = vec![(7, target.into())];
        let (received, ended) = run_lanes(
            &right,
            &options,
            |batch| vec![redirect(7); batch.len()],
            |_| {
                peer.send(&numbered(&veth, 1, 60));
                peer.receive(TIMEOUT).expect("the frame comes back").bytes
            },
        );
        assert_eq!(received, numbered(&veth, 1, 60), "{port}, {target}");
        assert_eq!(ended.of(Action::Redirect), 1);
    }
}
