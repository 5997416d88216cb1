//! The programs that decide which frames come to user space, and that hand frames back, in a real
//! kernel.
#![cfg(all(target_os = "linux", feature = "af-xdp"))]
#![allow(unsafe_code)]

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use portcullis_io::af_xdp::reinject::{self, Reinjection};
use portcullis_io::af_xdp::xdp::{AttachedProgram, Mode, Options};
use portcullis_io::af_xdp::{BpfError, Steering};
use portcullis_live_tests::frames::udp;
use portcullis_live_tests::{Child, End, Namespace, PacketSocket, Suite, Veth, wait_until};

mod socket;
use socket::XdpSocket;

/// Long enough for whatever is to happen, on a busy machine, too.
const SOON: Duration = Duration::from_secs(20);

/// Long enough to see that nothing happens.
const NOTHING: Duration = Duration::from_millis(300);

fn begin() -> Option<Suite> {
    Suite::begin("XDP and tcx programs", "af-xdp", &["ethtool"])
}

fn options(mode: Option<Mode>) -> Options {
    Options { mode, ..Options::default() }
}

/// Attaches a program to an end of a link.
fn attach(end: &End, steer: &Steering, options: &Options) -> Result<AttachedProgram, BpfError> {
    end.namespace().run(|| AttachedProgram::new(end.name(), 1, steer, options))
}

/// What `ip` says of an interface.
fn link(end: &End) -> String {
    end.namespace().ip(&["-details", "link", "show", end.name()])
}

fn index(end: &End) -> u32 {
    link(end).split(':').next().unwrap().parse().unwrap()
}

#[test]
fn a_program_comes_and_goes() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    // How `ip` calls the modes.
    let (native, skb) = (" xdp qdisc", " xdpgeneric qdisc");
    for (wanted, got, shown) in
        [(None, Mode::Native, native), (Some(Mode::Native), Mode::Native, native), (Some(Mode::Skb), Mode::Skb, skb)]
    {
        for frags in [false, true] {
            let attached = attach(&veth.right, &Steering::Default, &Options { mode: wanted, frags }).unwrap();
            assert_eq!(attached.mode(), got);
            assert!(attached.not_native().is_none() && attached.is_attached());
            let shows = link(&veth.right);
            let program = format!("prog/xdp id {} name portcullis_xdp", attached.program_id());
            assert!(shows.contains(shown) && shows.contains(&program), "{shows}");
            drop(attached);
            assert!(!link(&veth.right).contains("xdp"), "{}", link(&veth.right));
        }
    }
}

#[test]
fn a_second_program_is_refused_and_the_first_is_named() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    for first in [Mode::Native, Mode::Skb] {
        let attached = attach(&veth.right, &Steering::Default, &options(Some(first))).unwrap();
        for mode in [None, Some(Mode::Native), Some(Mode::Skb)] {
            let error = attach(&veth.right, &Steering::All, &options(mode)).unwrap_err();
            let BpfError::Occupied { program, .. } = &error else { panic!("{error}") };
            assert_eq!(*program, Some(attached.program_id()), "{error}");
        }
        assert!(attached.is_attached());
        // The other end is another interface.
        attach(&veth.left, &Steering::All, &options(None)).unwrap();
    }
}

#[test]
fn what_is_missing_is_named() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).mtu(9000).make();
    let text = |result: Result<AttachedProgram, BpfError>| result.unwrap_err().to_string();

    for name in ["none", "", "a/b", "\0", "a name that is longer than any"] {
        let error = right.run(|| AttachedProgram::new(name, 1, &Steering::All, &options(None)).unwrap_err());
        assert!(matches!(error, BpfError::NoInterface { .. }), "{error}");
    }
    // It is in the other namespace.
    let error = left.run(|| AttachedProgram::new(veth.right.name(), 1, &Steering::All, &options(None)).unwrap_err());
    assert!(matches!(error, BpfError::NoInterface { .. }), "{error}");

    // Longer than a page, and in one buffer: the driver does not take it, the stack does.
    let error = text(attach(&veth.right, &Steering::All, &options(Some(Mode::Native))));
    assert!(error.contains("does not accept XDP programs in native mode"), "{error}");
    let attached = attach(&veth.right, &Steering::All, &options(None)).unwrap();
    assert_eq!(attached.mode(), Mode::Skb);
    assert_eq!(attached.not_native().unwrap().to_string(), error);
    drop(attached);
    let frags = Options { mode: Some(Mode::Native), frags: true };
    attach(&veth.right, &Steering::All, &frags).unwrap();

    let attached = attach(&veth.right, &Steering::All, &options(None)).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let error = attached.set_socket(0, &socket).unwrap_err().to_string();
    assert!(error.contains("queue 0: redirecting its frames to a socket"), "{error}");
    let error = attached.set_socket(1, &socket).unwrap_err().to_string();
    assert!(
        error.contains("queue 1: redirecting its frames to a socket: the map has room for the first 1 queues"),
        "{error}"
    );
}

#[test]
fn a_program_without_the_right_is_refused_with_the_capability_that_is_missing() {
    let Some(_suite) = begin() else { return };
    let namespace = Namespace::new();
    let error = namespace.run(|| {
        // The thread's own: it goes with it.
        drop_capabilities();
        AttachedProgram::new("lo", 1, &Steering::All, &options(None)).unwrap_err()
    });
    let BpfError::NotPermitted { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing, &["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON"]);
}

/// Gives up this thread's capabilities: capset(2), of which libc has no structures.
fn drop_capabilities() {
    // `struct __user_cap_header_struct` with _LINUX_CAPABILITY_VERSION_3, and twice `struct
    // __user_cap_data_struct`.
    let (header, data) = ([0x2008_0522u32, 0], [0u32; 6]);
    // SAFETY: both are as long as that version has them.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_program_goes_with_its_interface() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    let attached = attach(&veth.right, &Steering::Default, &options(None)).unwrap();
    assert!(attached.is_attached());
    veth.delete();
    wait_until("the program is gone", SOON, || !attached.is_attached());
}

/// What the next test runs and kills.
#[test]
fn child_that_holds_programs() {
    let Some(interface) = Child::interface() else { return };
    let attached = AttachedProgram::new(&interface, 1, &Steering::Default, &options(None)).unwrap();
    // The other interface is `lo`.
    let _link = reinject::tcx::attach(attached.interface_index(), 1).unwrap();
    Child::hold(&attached.program_id().to_string());
}

#[test]
fn programs_go_when_their_process_is_killed() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    let (child, id) = Child::start(&veth.right, "child_that_holds_programs");
    assert!(link(&veth.right).contains(&format!("prog/xdp id {id} ")), "{}", link(&veth.right));
    child.kill();
    wait_until("the program is detached", SOON, || !link(&veth.right).contains("prog/xdp"));
    // And the way is free.
    attach(&veth.right, &Steering::All, &options(None)).unwrap();
}

#[test]
fn sockets_get_what_is_named_and_the_stack_all_else() {
    let Some(_suite) = begin() else { return };
    for mode in [Mode::Native, Mode::Skb] {
        let (left, right) = (Namespace::new(), Namespace::new());
        let veth = Veth::between(&left, &right).without_ipv6().make();
        let sender = PacketSocket::at(&veth.left);
        let mut stack = PacketSocket::at(&veth.right);
        let attached = attach(&veth.right, &Steering::Only("udp/80".parse().unwrap()), &options(Some(mode))).unwrap();
        let [named, other] = [80, 81].map(|port| udp(&veth, port, b"payload"));

        // No socket: all of it.
        sender.send(&named);
        assert_eq!(stack.receive_where(SOON, |frame| frame.bytes == named).unwrap().bytes, named);

        let mut socket = XdpSocket::at(&veth.right);
        attached.set_socket(0, &socket).unwrap();
        sender.send(&named);
        assert_eq!(socket.receive(SOON).as_ref(), Some(&named), "{mode:?}");
        sender.send(&other);
        let first = stack.receive_where(SOON, |frame| frame.bytes == other || frame.bytes == named).unwrap();
        assert!(first.bytes == other, "{mode:?}: the stack got what was named");
        assert_eq!(socket.receive(NOTHING), None, "{mode:?}");

        // The socket is gone: all of it again.
        drop(socket);
        wait_until("the stack has all frames", SOON, || {
            sender.send(&named);
            stack.receive_where(NOTHING, |frame| frame.bytes == named).is_some()
        });
    }
}

#[test]
fn frames_come_back_as_if_they_came_from_the_interface() {
    let Some(_suite) = begin() else { return };
    for (mode, way) in [(Mode::Native, "tcx"), (Mode::Skb, "mirred"), (Mode::Native, "mirred")] {
        let (left, right) = (Namespace::new(), Namespace::new());
        let veth = Veth::between(&left, &right).without_ipv6().make();
        // Both ends in one namespace: what is sent on the left is handed on where it comes in.
        let back = Veth::between(&right, &right).subnet(1).without_ipv4().without_ipv6().make();
        let (from, to) = right.run(|| (index(&back.right), index(&veth.right)));
        let datagram = udp(&veth, 4000, b"once more");

        // A socket that hears this interface alone.
        let listener = right.run(|| {
            let socket = UdpSocket::bind((veth.right.ipv4(), 4000)).unwrap();
            bind_to(&socket, veth.right.name());
            socket
        });
        let heard = |most| {
            let mut received = [0; 100];
            listener.set_read_timeout(Some(most)).unwrap();
            let (length, from) = listener.recv_from(&mut received).ok()?;
            Some((received[..length].to_vec(), from.ip()))
        };
        let whole = Some((b"once more".to_vec(), veth.left.ipv4().into()));
        let sender = PacketSocket::at(&back.left);
        sender.send(&datagram);
        assert_eq!(heard(NOTHING), None);

        // All that comes in at the interface goes to a socket.
        let attached = attach(&veth.right, &Steering::All, &options(Some(mode))).unwrap();
        let mut socket = XdpSocket::at(&veth.right);
        attached.set_socket(0, &socket).unwrap();
        PacketSocket::at(&veth.left).send(&datagram);
        assert_eq!(socket.receive(SOON).as_ref(), Some(&datagram), "{mode:?}");
        assert_eq!(heard(NOTHING), None);

        let reinjection = right.run(|| match mode {
            Mode::Native if way == "mirred" => reinject::mirred::attach(from, to).map(Reinjection::Mirred),
            mode => reinject::attach(from, to, mode),
        });
        let reinjection = reinjection.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(reinjection.name(), way);
        let mut seen = PacketSocket::at(&veth.right);
        sender.send(&datagram);
        assert_eq!(seen.receive_where(SOON, |frame| frame.bytes == datagram).unwrap().bytes, datagram);
        assert_eq!(heard(SOON), whole, "{mode:?}, {way}");
        assert_eq!(socket.receive(NOTHING), None, "{mode:?}, {way}: the XDP program took it again");

        drop(reinjection);
        sender.send(&datagram);
        assert_eq!(heard(NOTHING), None);
        // And it can be done once more.
        right.run(|| reinject::attach(from, to, mode)).unwrap();
    }
}

#[test]
fn the_way_back_needs_both_interfaces() {
    let Some(_suite) = begin() else { return };
    let namespace = Namespace::new();
    for mode in [Mode::Native, Mode::Skb] {
        for (from, to) in [(1, 999), (999, 1), (1, u32::MAX), (0, 1)] {
            let error = namespace.run(|| reinject::attach(from, to, mode)).unwrap_err();
            assert!(matches!(error, BpfError::NoInterface { .. }), "{error}");
        }
        let error = namespace.run(|| reinject::attach(1, 1, mode)).unwrap_err().to_string();
        assert!(error.contains("from lo to itself: its frames would loop forever"), "{error}");
    }
}

/// SO_BINDTODEVICE, socket(7).
fn bind_to(socket: &UdpSocket, interface: &str) {
    let (name, length) = (interface.as_ptr().cast(), interface.len() as libc::socklen_t);
    // SAFETY: pointer and length are those of a slice.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name, length) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
