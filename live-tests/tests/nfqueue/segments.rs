//! TCP and UDP segments longer than the link's MTU, with all offloads on.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portcullis_core::packet::{Action, Batch, ResizeRoom};
use portcullis_core::program::facts::Window;
use portcullis_io::live::Loss;
use portcullis_io::nfqueue::QueueOptions;

use crate::lane::{Lane, Link, QUIET_TIME, TIMEOUT, all, begin, rule, transport};

/// Bytes of a transfer: more than socket buffers hold, and not a round number.
const LENGTH: usize = 5_000_003;

/// Longest frame of the link, Ethernet header included.
const MAX_LINK_FRAME: usize = 1514;

fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

/// Transfers a few megabytes from left to right and a few bytes back, and checks them.
fn transfer(link: &Link, address: IpAddr, listen: u16, connect: u16) {
    let listener = link.right.run(|| TcpListener::bind((address, listen)).unwrap());
    let port = if connect == 0 { listener.local_addr().unwrap().port() } else { connect };
    let mut sender = link.left.run(|| TcpStream::connect_timeout(&SocketAddr::new(address, port), TIMEOUT).unwrap());
    let (mut receiver, _) = listener.accept().unwrap();
    for stream in [&sender, &receiver] {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    }
    let receiver = std::thread::spawn(move || {
        let mut bytes = vec![0; LENGTH];
        receiver.read_exact(&mut bytes).unwrap();
        receiver.write_all(b"thank you").unwrap();
        assert_eq!(receiver.read(&mut [0]).unwrap(), 0);
        bytes
    });
    let bytes: Vec<u8> = (0..LENGTH).map(byte).collect();
    sender.write_all(&bytes).unwrap();
    let mut thanks = [0; 9];
    sender.read_exact(&mut thanks).unwrap();
    drop(sender);
    assert!(receiver.join().unwrap() == bytes, "the wrong bytes arrived");
    assert_eq!(&thanks, b"thank you");
}

#[test]
fn unsegmented_packets_pass_unchanged() {
    let Some(_suite) = begin("nfqueue: segments") else { return };
    for chain in ["OUTPUT", "INPUT"] {
        let link = Link::new();
        let end = if chain == "OUTPUT" { &link.left } else { &link.right };
        rule(end, &format!("{chain} -p tcp -j NFQUEUE --queue-num 0"));
        let addresses: [IpAddr; 2] = [link.veth.right.ipv4().into(), link.veth.right.ipv6().into()];
        for (address, options, is_long) in [
            (0, QueueOptions::default().with_writes(Window::Nothing), true),
            (1, QueueOptions::default().with_writes(Window::Nothing).with_batch(3), true),
            (0, QueueOptions::default(), true),
            (1, QueueOptions::default().with_writes(Window::Bytes(54)), true),
            (0, QueueOptions::default().with_gso(false), false),
            (1, QueueOptions::default().with_room(ResizeRoom::Both), false),
        ] {
            let lane = Lane::start(end, options, all(Action::Pass));
            transfer(&link, addresses[address], 0, 0);
            let outcome = lane.stop();
            assert_eq!(outcome.longest > MAX_LINK_FRAME, is_long, "{chain}: {outcome:?}");
            assert_eq!(outcome.received.reassembled > 0, is_long, "{chain}: {outcome:?}");
            assert_eq!(outcome.executed.losses.all(), 0);
            // All data went through the queue, and were not retransmitted several times.
            let bytes = outcome.executed.bytes[Action::Pass as usize] as usize;
            assert!((LENGTH..LENGTH * 3 / 2).contains(&bytes), "{bytes}");
        }
    }
}

/// Replaces a 16-bit word, and updates a checksum incrementally (RFC 1624, equation 3).
fn replace(packet: &mut [u8], at: usize, checksum: usize, new: u16) {
    let word = |packet: &[u8], at: usize| u32::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let sum = (!word(packet, checksum) & 0xffff) + (!word(packet, at) & 0xffff) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    packet[at..at + 2].copy_from_slice(&new.to_be_bytes());
    packet[checksum..checksum + 2].copy_from_slice(&(!sum as u16).to_be_bytes());
}

/// Redirects a client that connects to port 7001 to port 7000, as an XDP program would. `checksum`
/// is the checksum's offset in the transport header.
fn translate(batch: &mut Batch, checksum: usize) -> Vec<u8> {
    for index in 0..batch.len() {
        let packet = batch.packet_mut(index);
        let at = transport(packet);
        let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let (from, to) = (port(at), port(at + 2));
        if to == 7001 {
            replace(packet, at + 2, at + checksum, 7000);
        } else if from == 7000 {
            replace(packet, at, at + checksum, 7001);
        }
    }
    vec![Action::Pass as u8; batch.len()]
}

#[test]
fn outgoing_segments_can_be_rewritten() {
    let Some(_suite) = begin("nfqueue: segments rewritten") else { return };
    for room in [ResizeRoom::None, ResizeRoom::Both] {
        let link = Link::new();
        rule(&link.left, "OUTPUT -p tcp -j NFQUEUE --queue-num 9");
        rule(&link.left, "INPUT -p tcp -j NFQUEUE --queue-num 9");
        let addresses: [IpAddr; 2] = [link.veth.right.ipv4().into(), link.veth.right.ipv6().into()];
        for address in addresses {
            let writes = Window::Bytes(14 + 40 + 18);
            let options = QueueOptions::default().with_queue(9).with_room(room).with_writes(writes);
            let lane = Lane::start(&link.left, options, |batch| translate(batch, 16));
            transfer(&link, address, 7000, 7001);
            let outcome = lane.stop();
            assert_eq!(outcome.longest > MAX_LINK_FRAME, room == ResizeRoom::None, "{outcome:?}");
            assert_eq!(outcome.executed.losses.all(), 0, "{outcome:?}");
            // The kernel completes the checksums of packets that it segments.
            assert_eq!(outcome.received.checksums > 0, room == ResizeRoom::None, "{outcome:?}");
        }
    }
}

#[test]
fn incoming_segments_can_be_rewritten() {
    let Some(_suite) = begin("nfqueue: incoming segments rewritten") else { return };
    let link = Link::new();
    rule(&link.right, "OUTPUT -p tcp -j NFQUEUE --queue-num 9");
    rule(&link.right, "INPUT -p tcp -j NFQUEUE --queue-num 9");
    let addresses: [IpAddr; 2] = [link.veth.right.ipv4().into(), link.veth.right.ipv6().into()];
    for address in addresses {
        let options = QueueOptions::default().with_queue(9);
        let lane = Lane::start(&link.right, options, |batch| translate(batch, 16));
        transfer(&link, address, 7000, 7001);
        let outcome = lane.stop();
        assert!(outcome.longest > MAX_LINK_FRAME && outcome.executed.losses.all() == 0, "{outcome:?}");
    }
}

#[test]
fn packets_copied_in_part_cannot_be_rewritten() {
    let Some(_suite) = begin("nfqueue: packets in part") else { return };
    let link = Link::new();
    rule(&link.left, "OUTPUT -p tcp -j NFQUEUE --queue-num 0");
    // Headers only, which a filter that does not write can do with.
    let options = QueueOptions::default().with_copy_range(60);
    let longest = Arc::new(AtomicUsize::new(0));
    let longest_on_wire = longest.clone();
    let lane = Lane::start(&link.left, options, move |batch| {
        for index in 0..batch.len() {
            let (length, wire) = (batch.packet(index).len(), batch.metadata_of(index).wire_length as usize);
            assert!(length <= 14 + 60 && (wire == length || length == 14 + 60), "{length} of {wire}");
            longest_on_wire.fetch_max(wire, Ordering::Relaxed);
        }
        vec![Action::Pass as u8; batch.len()]
    });
    transfer(&link, link.veth.right.ipv4().into(), 0, 0);
    let outcome = lane.stop();
    assert_eq!((outcome.longest, outcome.received.reassembled), (74, 0));
    assert!(longest.load(Ordering::Relaxed) > MAX_LINK_FRAME, "{longest:?}");

    // A second queue, so that late packets of the connection do not count.
    rule(&link.left, "OUTPUT -p udp -j NFQUEUE --queue-num 1");
    let lane = Lane::start(&link.left, options.with_queue(1), |batch| {
        for index in 0..batch.len() {
            let last = batch.packet_mut(index).last_mut().unwrap();
            *last ^= 1;
        }
        vec![Action::Pass as u8; batch.len()]
    });
    let sender = link.left.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    for _ in 0..5 {
        sender.send_to(&[7; 100], (link.veth.right.ipv4(), 9)).unwrap();
    }
    std::thread::sleep(QUIET_TIME);
    let outcome = lane.stop();
    assert_eq!(outcome.executed.losses.of(Loss::TooLong), 5);
    assert_eq!(outcome.executed.all(), 5);
}

#[test]
fn datagrams_that_the_kernel_segments_can_be_rewritten() {
    let Some(_suite) = begin("nfqueue: datagrams cut by the kernel") else { return };
    for (chain, address, gso) in
        [("OUTPUT", 0, true), ("OUTPUT", 1, true), ("INPUT", 0, false), ("INPUT", 1, false), ("INPUT", 0, true)]
    {
        let link = Link::new();
        let end = if chain == "OUTPUT" { &link.left } else { &link.right };
        let addresses: [IpAddr; 2] = [link.veth.right.ipv4().into(), link.veth.right.ipv6().into()];
        let address = addresses[address];
        rule(end, &format!("{chain} -p udp -j NFQUEUE --queue-num 0"));
        let receiver = link.right.run(|| UdpSocket::bind((address, 7000)).unwrap());
        let any: IpAddr = if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let sender = link.left.run(|| UdpSocket::bind((any, 0)).unwrap());
        let (size, length) = (500 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: an int that outlives the call, with its length. UDP_SEGMENT of linux/udp.h.
        let set = unsafe { libc::setsockopt(sender.as_raw_fd(), libc::SOL_UDP, 103, (&raw const size).cast(), length) };
        assert_eq!(set, 0);
        let lane = Lane::start(end, QueueOptions::default().with_gso(gso), |batch| translate(batch, 6));
        let message: Vec<u8> = (0..20_100).map(byte).collect();
        sender.send_to(&message, (address, 7001)).unwrap();
        let is_delivered = chain == "OUTPUT" || !gso;
        let mut bytes = [0; 2000];
        if is_delivered {
            receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
            for wanted in message.chunks(500) {
                let length = receiver.recv(&mut bytes).unwrap_or_else(|e| panic!("{chain}, {address}: {e}"));
                assert!(bytes[..length] == *wanted, "{chain}, {address}: {length} bytes");
            }
        } else {
            // Refused, as the kernel would lose the datagrams silently.
            receiver.set_read_timeout(Some(QUIET_TIME)).unwrap();
            receiver.recv(&mut bytes).unwrap_err();
        }
        let outcome = lane.stop();
        assert_eq!(outcome.longest > MAX_LINK_FRAME, gso);
        assert_eq!(outcome.executed.losses.of(Loss::Refused), u64::from(!is_delivered));
        assert_eq!(outcome.executed.losses.all(), u64::from(!is_delivered));
    }
}
