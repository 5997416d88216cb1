//! Completion of checksums that a sender left to its network card, checked by two kernels with a
//! bridge between their networks.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use portcullis_io::live::checksum;
use portcullis_live_tests::{Bridge, Checksum, Frame, Namespace, PacketSocket, Suite, TIMEOUT, tcp_echo};

/// Addresses of the left and of the right host.
type Pair = [IpAddr; 2];

/// Copies frames both ways, changing each, while `while_this` runs.
fn carry<T>(
    bridge: &mut Bridge,
    change: impl Fn(&mut Frame) + Sync,
    while_this: impl FnOnce(&Namespace, &Namespace) -> T,
) -> T {
    let forward = |mut frame: Frame, _, to: &PacketSocket| {
        change(&mut frame);
        to.send(&frame.bytes);
    };
    bridge.carry(forward, while_this)
}

/// Returns how many packets both kernels counted as corrupt.
fn corrupt(bridge: &Bridge) -> u64 {
    [bridge.left(), bridge.right()].map(|end| end.namespace().run(corrupt_here)).iter().sum()
}

/// Returns how many packets this thread's network counted as corrupt.
fn corrupt_here() -> u64 {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
    // The table alternates lines of names and of numbers.
    let snmp = read("snmp");
    let lines: Vec<Vec<&str>> = snmp.lines().map(|line| line.split(' ').collect()).collect();
    let pairs = lines.chunks(2).flat_map(|pair| pair[0].iter().copied().zip(pair[1].iter().copied()));
    let snmp6 = read("snmp6");
    let six = snmp6.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let errors = pairs.chain(six).filter(|(name, _)| name.ends_with("InCsumErrors"));
    let numbers: Vec<u64> = errors.map(|(_, number)| number.trim().parse().unwrap()).collect();
    // IPv4: ICMP, TCP, UDP, UDP-Lite; IPv6: ICMP, UDP, UDP-Lite.
    assert_eq!(numbers.len(), 7, "{snmp}{snmp6}");
    numbers.iter().sum()
}

/// Makes a sender put options or extension headers between the IP header and the datagram.
fn set_options(socket: impl AsFd, to: IpAddr) {
    // RFC 791: seven No Operation options and End of Option List. RFC 8200: a PadN option that
    // fills an extension header.
    let (options, kinds): ([u8; 8], _) = match to {
        IpAddr::V4(_) => ([1, 1, 1, 1, 1, 1, 1, 0], &[(libc::IPPROTO_IP, libc::IP_OPTIONS)][..]),
        IpAddr::V6(_) => (
            [0, 0, 1, 4, 0, 0, 0, 0],
            &[(libc::IPPROTO_IPV6, libc::IPV6_HOPOPTS), (libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS)][..],
        ),
    };
    for &(level, kind) in kinds {
        let length = options.len() as u32;
        // SAFETY: pointer and length are those of an array that outlives the call.
        let set = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, kind, options.as_ptr().cast(), length) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Sends datagrams of many lengths, and returns whether each arrived unchanged.
fn datagrams(left: &Namespace, right: &Namespace, [from, to]: Pair, with_options: bool, timeout: Duration) -> bool {
    let receiver = right.run(|| UdpSocket::bind((to, 0))).unwrap();
    receiver.set_read_timeout(Some(timeout)).unwrap();
    let sender = left.run(|| UdpSocket::bind((from, 0))).unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    if with_options {
        set_options(&sender, to);
    }
    (0..40).chain([255, 256, 1000, 1001, 1399]).all(|length| {
        let payload: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
        sender.send(&payload).unwrap();
        let mut received = [0; 1500];
        receiver.recv(&mut received).is_ok_and(|length| received[..length] == payload)
    })
}

#[test]
fn another_kernel_accepts_frames_with_completed_checksums() {
    let Some(_suite) = Suite::begin("checksums left to a card", "af-xdp", &["ethtool"]) else { return };
    let mut bridge = Bridge::new();
    let pairs = bridge.addresses();
    let counts = std::sync::Mutex::new([0u32; 3]);
    let frames = AtomicUsize::new(0);
    let complete = |frame: &mut Frame| {
        // Without a VLAN tag, with one, and with two.
        let tags = [0x88, 0xa8, 0, 5, 0x81, 0x00, 0, 6];
        let tags = &tags[frames.fetch_add(1, Ordering::Relaxed) % 3 * 4..];
        frame.bytes.splice(12..12, tags.iter().copied());
        let before = frame.bytes.clone();
        let completed = checksum::complete(&mut frame.bytes);
        assert_eq!(completed, frame.bytes != before);
        let partial = frame.checksum == Checksum::Partial;
        assert!(partial || !completed, "completed a checksum that was complete: {before:02x?}");
        frame.bytes.drain(12..12 + tags.len());
        let mut counts = counts.lock().unwrap();
        counts[0] += u32::from(completed);
        counts[1] += u32::from(partial && !completed);
        counts[2] += u32::from(!partial);
    };
    carry(&mut bridge, complete, |left, right| {
        for pair in pairs {
            for with_options in [false, true] {
                assert!(datagrams(left, right, pair, with_options, TIMEOUT), "{pair:?} {with_options}");
            }
            tcp_echo(left, right, (pair[1], 0), 300_000, TIMEOUT).unwrap_or_else(|e| panic!("{pair:?}: {e}"));
        }
    });
    let [completed, correct_by_chance, whole] = counts.into_inner().unwrap();
    println!("{completed} completed, {correct_by_chance} correct by chance, {whole} complete before");
    assert!(completed > 1000 && correct_by_chance < 5 && whole > 0);
    assert_eq!(corrupt(&bridge), 0);
}

/// Proves that the test above can fail: without completion the peer drops the frames.
#[test]
fn another_kernel_drops_frames_with_incomplete_checksums() {
    let Some(_suite) = Suite::begin("checksums left to a card", "af-xdp", &["ethtool"]) else { return };
    let mut bridge = Bridge::new();
    let pairs = bridge.addresses();
    carry(
        &mut bridge,
        |_| (),
        |left, right| {
            for pair in pairs {
                let timeout = Duration::from_millis(300);
                assert!(!datagrams(left, right, pair, false, timeout), "{pair:?}");
                assert!(tcp_echo(left, right, (pair[1], 0), 1, timeout).is_err(), "{pair:?}");
            }
        },
    );
    assert!(corrupt(&bridge) >= 4, "{}", corrupt(&bridge));
}
