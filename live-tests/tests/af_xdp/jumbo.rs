//! Packets longer than one frame: received in fragments, reassembled, and sent in fragments again.

use portcullis_core::packet::{Action, Batch};
use portcullis_io::af_xdp::StackDevice;
use portcullis_io::af_xdp::xdp::Mode;
use portcullis_live_tests::frames::{number, numbered};
use portcullis_live_tests::{Frame, Namespace, PacketSocket, Veth, create_link_with, lane_options, run_lanes};

use crate::{TIMEOUT, begin, receive, redirect};

/// Packet lengths around the capacity of one frame (4,096 bytes less 256 for headroom and
/// tailroom), with room to grow (128) and without, around that of two frames, and up to the link's
/// limit.
const LENGTHS: [usize; 10] = [3500, 3712, 3713, 3840, 3841, 5000, 7680, 7681, 9000, 9014];

/// How many of these lengths stay in their frame, because it has room for any change of length.
const IN_ONE_FRAME: usize = 2;

/// The filter's change to a packet, behind the number that identifies it. The filter may also move
/// the packet's ends.
fn flip_bytes(packet: &mut [u8]) {
    let last = packet.len() - 1;
    for at in [18, 3000, 3490, last] {
        packet[at] ^= 0x5a;
    }
}

/// Rewrites each packet, moves the ends of some, and gives a third of them each verdict.
fn filter(batch: &mut Batch) -> Vec<u32> {
    let numbers: Vec<u32> = batch.packets().map(number).collect();
    for index in 0..batch.len() {
        flip_bytes(batch.packet_mut(index));
    }
    let moved = batch.descriptors().iter().zip(&numbers).map(|(now, number)| {
        let mut now = *now;
        match number / 3 % 4 {
            1 => (now.offset, now.length) = (now.offset + 4, now.length - 4),
            2 => now.length -= 100,
            // Grows at both ends, together by a VLAN tag: what a link accepts beyond its MTU.
            3 => (now.offset, now.length) = (now.offset - 2, now.length + 2 + 2),
            _ => {}
        }
        now
    });
    batch.resize(moved.collect()).unwrap();
    numbers.iter().map(|number| [Action::Tx as u32, redirect(5), Action::Pass as u32][*number as usize % 3]).collect()
}

/// Returns whether the filter made `received` of the frame with this number.
fn is_rewritten(received: &Frame, sent: &[u8], number: u32) -> bool {
    let mut made = sent.to_vec();
    flip_bytes(&mut made);
    match number / 3 % 4 {
        1 => received.bytes == made[4..],
        2 => received.bytes == made[..made.len() - 100],
        // The bytes gained before and behind are unspecified.
        3 => received.bytes.len() == made.len() + 4 && received.bytes[2..][..made.len()] == made,
        _ => received.bytes == made,
    }
}

#[test]
fn multi_frame_packets_take_every_verdict_with_rewritten_bytes_and_lengths() {
    let Some(_suite) = begin("AF_XDP jumbo frames") else { return };
    for (stack, mode) in [(StackDevice::Veth, Mode::Native), (StackDevice::Tap, Mode::Native)] {
        let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
        // Without IP the kernels send no frames of their own.
        let veth = Veth::between(&left, &right).mtu(9000).without_ipv4().without_ipv6().make();
        let beyond = Veth::between(&other, &right).mtu(9000).subnet(2).without_ipv4().without_ipv6().make();
        let ends = [&veth.left, &beyond.left, &veth.right];
        // The last socket sees what is passed to the kernel's stack.
        let mut ends = ends.map(PacketSocket::at);
        let options = lane_options(&[&format!("{}:0", veth.right.name())])
            .with_stack(stack)
            .with_mode(mode)
            .with_redirect(vec![(5, beyond.right.name().into())]);
        let rounds = 12;
        let ((), ended) = run_lanes(&right, &options, filter, |ports| {
            assert!(ports[0].multi_buffer, "{ports:?}");
            for number in 0..LENGTHS.len() as u32 * rounds {
                let sent = numbered(&veth, number, LENGTHS[number as usize / rounds as usize]);
                ends[0].send(&sent);
                let received = ends[number as usize % 3].receive(TIMEOUT);
                let received =
                    received.unwrap_or_else(|| panic!("{stack:?}: {number}, {} bytes, was lost", sent.len()));
                let (way, bytes) = (["TX", "REDIRECT", "PASS"][number as usize % 3], received.bytes.len());
                assert!(
                    is_rewritten(&received, &sent, number),
                    "{stack:?}: {way} of {}: received {bytes} bytes",
                    sent.len()
                );
            }
        });
        let of_each = LENGTHS.len() as u64 * u64::from(rounds) / 3;
        let carried = [Action::Tx, Action::Redirect, Action::Pass].map(|action| ended.of(action));
        assert_eq!((carried, ended.lost(|it| it.all())), ([of_each; 3], 0), "{stack:?}");
        let reassembled = (LENGTHS.len() - IN_ONE_FRAME) as u64 * u64::from(rounds);
        assert_eq!(ended.received[0].reassembled, reassembled, "{stack:?}");
    }
}

/// A packet that outgrows its link is counted, and neither sent nor truncated.
#[test]
fn packets_that_outgrow_the_mtu_are_not_sent_and_counted() {
    let Some(_suite) = begin("AF_XDP jumbo frames") else { return };
    let (_, right, veth) = create_link_with(|link| link.mtu(9000).without_ipv4().without_ipv6());
    let mut peer = PacketSocket::at(&veth.left);
    let grow = |batch: &mut Batch| {
        let grown = batch.descriptors().iter().map(|now| {
            let mut now = *now;
            now.length += 100;
            now
        });
        batch.resize(grown.collect()).unwrap();
        vec![Action::Tx as u32; batch.len()]
    };
    let ((), ended) = run_lanes(&right, &lane_options(&[veth.right.name()]), grow, |_| {
        peer.send(&numbered(&veth, 1, 9014));
        // One byte more than MTU and VLAN tag, and exactly both.
        peer.send(&numbered(&veth, 2, 8919));
        peer.send(&numbered(&veth, 3, 8918));
        let received = receive(&mut peer, TIMEOUT).expect("the packet that fits");
        assert_eq!((number(&received), received.len()), (3, 9018));
    });
    assert_eq!((ended.of(Action::Tx), ended.lost(|it| it.of(portcullis_io::live::Loss::TooLong))), (1, 2));
}
