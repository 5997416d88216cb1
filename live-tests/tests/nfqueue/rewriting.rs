//! Filters that change packets.

use std::collections::BTreeSet;

use portcullis_core::packet::{Action, Batch, Descriptor, ResizeRoom};
use portcullis_core::program::facts::Window;
use portcullis_io::live::Loss;
use portcullis_io::nfqueue::QueueOptions;

use crate::lane::{Lane, Link, QUIET_TIME, begin, number, transport};

/// Returns the checksum of RFC 1071 over the concatenation of these parts.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let mut sum = 0u32;
    for pair in parts.concat().chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!sum as u16).to_be_bytes()
}

/// Recomputes lengths and checksums of a datagram.
fn fix_lengths_and_checksums(packet: &mut [u8]) {
    let at = transport(packet);
    let length = (packet.len() - at) as u16;
    packet[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
    packet[at + 6..at + 8].fill(0);
    let whole = (packet.len() - 14) as u16;
    let addresses = if packet[12] == 8 {
        packet[16..18].copy_from_slice(&whole.to_be_bytes());
        packet[24..26].fill(0);
        let sum = checksum(&[&packet[14..at]]);
        packet[24..26].copy_from_slice(&sum);
        26..34
    } else {
        packet[18..20].copy_from_slice(&(whole - 40).to_be_bytes());
        22..54
    };
    let sum = checksum(&[&packet[addresses], &[0, 17], &length.to_be_bytes(), &packet[at..]]);
    packet[at + 6..at + 8].copy_from_slice(&sum);
}

fn set_number(packet: &mut [u8], number: u32) {
    let at = transport(packet) + 8;
    packet[at..at + 4].copy_from_slice(&number.to_be_bytes());
}

/// Adds 1,000 to odd numbers, drops multiples of 7, and leaves other packets unchanged.
fn add_to_odd(batch: &mut Batch) -> Vec<u8> {
    let packets = batch.len();
    let verdict = |index| {
        let packet = batch.packet_mut(index);
        let number = number(packet);
        if number % 2 == 1 {
            set_number(packet, number + 1000);
            fix_lengths_and_checksums(packet);
        }
        // Dropped whether changed or not.
        if number.is_multiple_of(7) { Action::Drop as u8 } else { Action::Pass as u8 }
    };
    (0..packets).map(verdict).collect()
}

#[test]
fn rewritten_packets_arrive_rewritten_and_others_unchanged() {
    let Some(_suite) = begin("nfqueue: rewriting") else { return };
    for (chain, room, batch, ipv6) in [
        ("OUTPUT", ResizeRoom::None, 64, false),
        ("OUTPUT", ResizeRoom::Both, 1, true),
        ("INPUT", ResizeRoom::None, 1024, true),
        ("INPUT", ResizeRoom::Both, 5, false),
    ] {
        let (link, numbered) = Link::queued(chain, ipv6);
        let end = link.end(chain);
        let wanted: BTreeSet<u32> =
            (0..300u32).filter(|n| n % 7 != 0).map(|n| if n % 2 == 1 { n + 1000 } else { n }).collect();
        for writes in [Window::WholePacket, Window::Bytes(14 + 40 + 8 + 4)] {
            let options = QueueOptions::default().with_room(room).with_batch(batch).with_writes(writes);
            let lane = Lane::start(end, options, add_to_odd);
            numbered.send(0..300);
            assert_eq!(numbered.arrived(&wanted), wanted, "{chain} {writes:?}");
            let outcome = lane.stop();
            assert_eq!(outcome.executed.of(Action::Pass), wanted.len() as u64);
            assert_eq!(outcome.executed.losses.all(), 0);
            // With resize room, segmentation is left to the kernel, which then completes checksums.
            assert_eq!(
                outcome.received.checksums,
                if options.gso && room == ResizeRoom::None { 300 } else { 0 },
                "{chain}"
            );
        }
    }
}

/// Moves the ends of a packet, as a device does.
fn resize(batch: &mut Batch, index: usize, head: i32, tail: i32) {
    let Descriptor { offset, length } = batch.descriptors()[index];
    let offset = offset.checked_add_signed(-head).unwrap();
    let length = length.checked_add_signed(head + tail).unwrap();
    batch.resize_from(index, &[Descriptor { offset, length }]).unwrap();
}

#[test]
fn packets_can_grow_and_shrink() {
    let Some(_suite) = begin("nfqueue: lengths") else { return };
    for (chain, ipv6) in [("OUTPUT", false), ("INPUT", false), ("OUTPUT", true), ("INPUT", true)] {
        let (link, numbered) = Link::queued(chain, ipv6);
        let end = link.end(chain);
        let options =
            QueueOptions::default().with_room(ResizeRoom::Both).with_batch(32).with_writes(Window::WholePacket);
        let lane = Lane::start(end, options, move |batch| {
            for index in 0..batch.len() {
                let number = number(batch.packet(index));
                match number % 4 {
                    // All of the room behind the packet.
                    1 => {
                        resize(batch, index, 0, 128);
                        let packet = batch.packet_mut(index);
                        let end = packet.len();
                        packet[end - 128..].fill(number as u8);
                        fix_lengths_and_checksums(packet);
                    }
                    // Removes the payload; such a datagram has no number to identify it.
                    2 => {
                        resize(batch, index, 0, -4);
                        fix_lengths_and_checksums(batch.packet_mut(index));
                    }
                    // Adds an IP option of 4 bytes: No Operation, RFC 791. Not on INPUT, where the
                    // kernel has already computed the header's length.
                    3 if !ipv6 && chain == "OUTPUT" => {
                        resize(batch, index, 4, 0);
                        let packet = batch.packet_mut(index);
                        packet.copy_within(4..38, 0);
                        packet[34..38].fill(1);
                        packet[14] = 0x46;
                        fix_lengths_and_checksums(packet);
                    }
                    _ => {}
                }
            }
            vec![Action::Pass as u8; batch.len()]
        });
        // Leave out packets whose number is cut off.
        let sent: BTreeSet<u32> = (0..200).filter(|number| number % 4 != 2).collect();
        numbered.send(sent.iter().copied());
        assert_eq!(numbered.arrived(&sent), sent, "{chain} {ipv6}");
        let lengths = numbered.lengths([1, 2, 3, 4]);
        assert_eq!(lengths, [132, 0, 4, 4], "{chain} {ipv6}");
        let outcome = lane.stop();
        assert_eq!(outcome.executed.losses.all(), 0);
    }
}

#[test]
fn packets_cut_below_an_ip_header_are_refused() {
    let Some(_suite) = begin("nfqueue: nothing left") else { return };
    let (link, numbered) = Link::queued("OUTPUT", false);
    let options = QueueOptions::default().with_room(ResizeRoom::Both);
    let lane = Lane::start(&link.left, options, |batch| {
        for index in 0..batch.len() {
            let length = batch.packet(index).len() as i32;
            // Cut to the Ethernet header, or to less than an IP header behind it.
            let left = [14, 15, 33][number(batch.packet(index)) as usize % 3];
            resize(batch, index, 0, left - length);
        }
        vec![Action::Pass as u8; batch.len()]
    });
    numbered.send(0..10);
    assert_eq!(numbered.arrived(&BTreeSet::new()), BTreeSet::new());
    std::thread::sleep(QUIET_TIME);
    let outcome = lane.stop();
    assert_eq!((outcome.executed.losses.of(Loss::Refused), outcome.executed.all()), (10, 10));
}
