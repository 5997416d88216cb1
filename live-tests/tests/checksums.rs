//! Completion of checksums that a sender left to its network card, checked by two kernels. A bridge
//! between their networks copies frames from one packet socket to another, so that nothing but the
//! frame's bytes is carried over.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use portcullis_io::live::checksum;
use portcullis_live_tests::{Checksum, Frame, Namespace, PacketSocket, SetOnDrop, Suite, Veth, tcp_echo};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Networks on the left and right, and a bridge between them.
struct Bridged {
    left: Namespace,
    right: Namespace,
    _between: Namespace,
    /// The bridge's ends.
    ends: [PacketSocket; 2],
}

/// Addresses of the left and of the right host.
type Pair = [IpAddr; 2];

impl Bridged {
    /// Senders cut segments themselves; all other offloads stay on.
    fn new() -> Bridged {
        let (left, between, right) = (Namespace::new(), Namespace::new(), Namespace::new());
        let near = Veth::between(&left, &between).without_ipv4().make();
        let far = Veth::between(&between, &right).without_ipv4().make();
        for (end, [ipv4, ipv6]) in [(&near.left, addresses(1)), (&far.right, addresses(2))] {
            end.ethtool(&["-K", "tso off gso off"]);
            end.namespace().ip(&["address", "add", &format!("{ipv4}/24"), "dev", end.name()]);
            end.namespace().ip(&["address", "replace", &format!("{ipv6}/64"), "dev", end.name(), "nodad"]);
        }
        let ends = [PacketSocket::at(&near.right), PacketSocket::at(&far.left)];
        Bridged { left, right, _between: between, ends }
    }

    /// Copies frames both ways, changing each, while `while_this` runs.
    fn carry<T>(
        &mut self,
        change: impl Fn(&mut Frame) + Sync,
        while_this: impl FnOnce(&Namespace, &Namespace) -> T,
    ) -> T {
        let is_done = AtomicBool::new(false);
        let [a, b] = &mut self.ends;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    // Alternate with short timeouts, so that neither direction waits long.
                    for turn in [true, false] {
                        let (from, to) = if turn { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
                        while let Some(mut frame) = from.receive(Duration::from_millis(1)) {
                            change(&mut frame);
                            to.send(&frame.bytes);
                        }
                    }
                }
            });
            let _done = SetOnDrop(&is_done);
            while_this(&self.left, &self.right)
        })
    }

    /// Returns how many packets both kernels counted as corrupt.
    fn corrupt(&self) -> u64 {
        [&self.left, &self.right].map(|namespace| namespace.run(corrupt)).iter().sum()
    }
}

/// Returns the IPv4 and the IPv6 address of a host.
fn addresses(host: u8) -> [IpAddr; 2] {
    let ipv6 = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host.into());
    [Ipv4Addr::new(10, 77, 0, host).into(), ipv6.into()]
}

fn pairs() -> [Pair; 2] {
    let ([a, b], [c, d]) = (addresses(1), addresses(2));
    [[a, c], [b, d]]
}

/// Returns how many packets this thread's network counted as corrupt.
fn corrupt() -> u64 {
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
    let mut bridged = Bridged::new();
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
    bridged.carry(complete, |left, right| {
        for pair in pairs() {
            for with_options in [false, true] {
                assert!(datagrams(left, right, pair, with_options, TIMEOUT), "{pair:?} {with_options}");
            }
            tcp_echo(left, right, (pair[1], 0), 300_000, TIMEOUT).unwrap_or_else(|e| panic!("{pair:?}: {e}"));
        }
    });
    let [completed, correct_by_chance, whole] = counts.into_inner().unwrap();
    println!("{completed} completed, {correct_by_chance} correct by chance, {whole} complete before");
    assert!(completed > 1000 && correct_by_chance < 5 && whole > 0);
    assert_eq!(bridged.corrupt(), 0);
}

/// Proves that the test above can fail: without completion the peer drops the frames.
#[test]
fn another_kernel_drops_frames_with_incomplete_checksums() {
    let Some(_suite) = Suite::begin("checksums left to a card", "af-xdp", &["ethtool"]) else { return };
    let mut bridged = Bridged::new();
    bridged.carry(
        |_| (),
        |left, right| {
            for pair in pairs() {
                let timeout = Duration::from_millis(300);
                assert!(!datagrams(left, right, pair, false, timeout), "{pair:?}");
                assert!(tcp_echo(left, right, (pair[1], 0), 1, timeout).is_err(), "{pair:?}");
            }
        },
    );
    assert!(bridged.corrupt() >= 4, "{}", bridged.corrupt());
}
