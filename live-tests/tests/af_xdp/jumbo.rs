//! Packets that no single frame has room for: they come in several, are put together, and go out in
//! several again.

use portcullis_core::packet::{Action, Batch};
use portcullis_io::af_xdp::Options;
use portcullis_io::af_xdp::xdp::Mode;
use portcullis_io::live::link::StackDevice;
use portcullis_live_tests::frames::{EXPERIMENT, number, numbered};
use portcullis_live_tests::{Frame, Namespace, PacketSocket, Veth, lane_options, run_lanes};

use crate::{SOON, begin, redirect};

/// Around what one frame has room for (4,096 bytes, less 256), with room to grow (128) and without,
/// what two have, and as long as the link takes.
const LENGTHS: [usize; 10] = [3500, 3712, 3713, 3840, 3841, 5000, 7680, 7681, 9000, 9014];

/// How many of these stay in their frame, as it has room for what they may become.
const IN_PLACE: usize = 2;

/// What the filter makes of a packet with this number, in its bytes from the experiment's number
/// on. Its ends may be moved.
fn rewrite(packet: &mut [u8]) {
    let last = packet.len() - 1;
    for at in [18, 3000, 3490, last] {
        packet[at] ^= 0x5a;
    }
}

/// Rewrites each packet, moves the ends of some, and sends a third of them each way.
fn filter(batch: &mut Batch) -> Vec<u32> {
    let numbers: Vec<u32> = batch.packets().map(number).collect();
    for index in 0..batch.len() {
        rewrite(batch.packet_mut(index));
    }
    let moved = batch.descriptors().iter().zip(&numbers).map(|(now, number)| {
        let mut now = *now;
        match number / 3 % 4 {
            1 => (now.offset, now.length) = (now.offset + 4, now.length - 4),
            2 => now.length -= 100,
            // On both sides, by as much together as a link has room for beyond its MTU: a tag.
            3 => (now.offset, now.length) = (now.offset - 2, now.length + 2 + 2),
            _ => {}
        }
        now
    });
    batch.resize(moved.collect()).unwrap();
    numbers.iter().map(|number| [Action::Tx as u32, redirect(5), Action::Pass as u32][*number as usize % 3]).collect()
}

/// Whether that is what the filter has made of the frame with this number.
fn is_made_of(came: &Frame, sent: &[u8], number: u32) -> bool {
    let mut made = sent.to_vec();
    rewrite(&mut made);
    match number / 3 % 4 {
        1 => came.bytes == made[4..],
        2 => came.bytes == made[..made.len() - 100],
        // What was before and behind it is anybody's.
        3 => came.bytes.len() == made.len() + 4 && came.bytes[2..][..made.len()] == made,
        _ => came.bytes == made,
    }
}

#[test]
fn packets_in_several_frames_go_all_ways_rewritten_and_with_changed_lengths() {
    let Some(_suite) = begin("AF_XDP jumbo frames") else { return };
    for (stack, mode) in [(StackDevice::Veth, Mode::Native), (StackDevice::Tap, Mode::Native)] {
        let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
        // Their kernels keep silent.
        let veth = Veth::between(&left, &right).mtu(9000).without_ipv4().without_ipv6().make();
        let beyond = Veth::between(&other, &right).mtu(9000).subnet(2).without_ipv4().without_ipv6().make();
        let ends = [&veth.left, &beyond.left, &veth.right];
        // The last one stands where the kernel's stack does.
        let mut ends = ends.map(PacketSocket::at);
        let options = Options {
            stack: Some(stack),
            mode: Some(mode),
            redirect: vec![(5, beyond.right.name().into())],
            ..lane_options(&[&format!("{}:0", veth.right.name())])
        };
        let rounds = 12;
        let ((), ended) = run_lanes(&right, &options, filter, |ports| {
            assert!(ports[0].multi_buffer, "{ports:?}");
            for number in 0..LENGTHS.len() as u32 * rounds {
                let sent = numbered(&veth, number, LENGTHS[number as usize / rounds as usize]);
                ends[0].send(&sent);
                let came = ends[number as usize % 3].receive(SOON);
                let came = came.unwrap_or_else(|| panic!("{stack:?}: {number}, {} bytes, is lost", sent.len()));
                let (way, bytes) = (["TX", "REDIRECT", "PASS"][number as usize % 3], came.bytes.len());
                assert!(is_made_of(&came, &sent, number), "{stack:?}: {way} of {}: {bytes} bytes came", sent.len());
            }
        });
        let of_each = LENGTHS.len() as u64 * u64::from(rounds) / 3;
        let carried = [Action::Tx, Action::Redirect, Action::Pass].map(|action| ended.of(action));
        assert_eq!((carried, ended.lost(|it| it.all())), ([of_each; 3], 0), "{stack:?}");
        let moved = (LENGTHS.len() - IN_PLACE) as u64 * u64::from(rounds);
        assert_eq!(ended.received[0].reassembled, moved, "{stack:?}");
    }
}

/// A packet that has grown beyond what its link takes is not sent, nor is it cut.
#[test]
fn what_grows_beyond_the_link_is_counted() {
    let Some(_suite) = begin("AF_XDP jumbo frames") else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).mtu(9000).without_ipv4().without_ipv6().make();
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
        // A byte more than a tag beyond the MTU, and a tag.
        peer.send(&numbered(&veth, 2, 8919));
        peer.send(&numbered(&veth, 3, 8918));
        let came = peer.receive_where(SOON, |frame| frame.ether_type() == EXPERIMENT).expect("the shortest one");
        assert_eq!((number(&came.bytes), came.bytes.len()), (3, 9018));
    });
    assert_eq!((ended.of(Action::Tx), ended.lost(|it| it.of(portcullis_io::live::Loss::TooLong))), (1, 2));
}
