//! XDP programs that select the frames for user space, and programs that hand frames back, in a
//! real kernel.
#![cfg(all(target_os = "linux", feature = "af-xdp"))]
#![allow(unsafe_code)]

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use portcullis_io::af_xdp::reinject::{self, Reinjection};
use portcullis_io::af_xdp::xdp::{AttachedProgram, Mode, Options};
use portcullis_io::af_xdp::{BpfError, Steering};
use portcullis_live_tests::frames::udp;
use portcullis_live_tests::{
    Child, End, Namespace, PacketSocket, QUIET_TIME, Suite, TIMEOUT, Veth, create_link, create_link_with,
    drop_capabilities, wait_until,
};

mod socket;
use socket::XdpSocket;

fn begin() -> Option<Suite> {
    Suite::begin("XDP and tcx programs", "af-xdp", &["ethtool"])
}

fn options(mode: Option<Mode>) -> Options {
    Options::default().with_mode(mode)
}

/// Attaches a steering program to an end of a link.
fn attach(end: &End, steer: &Steering, options: &Options) -> Result<AttachedProgram, BpfError> {
    end.namespace().run(|| AttachedProgram::new(end.name(), 1, steer, options))
}

/// Returns what `ip` prints about an interface.
fn ip_link_show(end: &End) -> String {
    end.namespace().ip(&["-details", "link", "show", end.name()])
}

fn index(end: &End) -> u32 {
    ip_link_show(end).split(':').next().unwrap().parse().unwrap()
}

#[test]
fn a_program_is_attached_in_the_requested_mode_and_detached_on_drop() {
    let Some(_suite) = begin() else { return };
    let (_, _, veth) = create_link();
    // The modes in the words of `ip`.
    let (native, skb) = (" xdp qdisc", " xdpgeneric qdisc");
    for (wanted, got, shown) in
        [(None, Mode::Native, native), (Some(Mode::Native), Mode::Native, native), (Some(Mode::Skb), Mode::Skb, skb)]
    {
        for frags in [false, true] {
            let attached = attach(&veth.right, &Steering::Default, &options(wanted).with_frags(frags)).unwrap();
            assert_eq!(attached.mode(), got);
            assert!(attached.not_native().is_none() && attached.is_attached());
            let output = ip_link_show(&veth.right);
            let program = format!("prog/xdp id {} name portcullis_xdp", attached.program_id());
            assert!(output.contains(shown) && output.contains(&program), "{output}");
            drop(attached);
            assert!(!ip_link_show(&veth.right).contains("xdp"), "{}", ip_link_show(&veth.right));
        }
    }
}

#[test]
fn a_second_program_is_refused_naming_the_first() {
    let Some(_suite) = begin() else { return };
    let (_, _, veth) = create_link();
    for first in [Mode::Native, Mode::Skb] {
        let attached = attach(&veth.right, &Steering::Default, &options(Some(first))).unwrap();
        for mode in [None, Some(Mode::Native), Some(Mode::Skb)] {
            let error = attach(&veth.right, &Steering::All, &options(mode)).unwrap_err();
            let BpfError::Occupied { program, .. } = &error else { panic!("{error}") };
            assert_eq!(*program, Some(attached.program_id()), "{error}");
        }
        assert!(attached.is_attached());
        // The other end is another interface, and free.
        attach(&veth.left, &Steering::All, &options(None)).unwrap();
    }
}

#[test]
fn errors_name_the_missing_interface_mode_or_queue() {
    let Some(_suite) = begin() else { return };
    let (left, right, veth) = create_link_with(|link| link.mtu(9000));
    let text = |result: Result<AttachedProgram, BpfError>| result.unwrap_err().to_string();

    for name in ["none", "", "a/b", "\0", "a name that is longer than any"] {
        let error = right.run(|| AttachedProgram::new(name, 1, &Steering::All, &options(None)).unwrap_err());
        assert!(matches!(error, BpfError::NoInterface { .. }), "{error}");
    }
    // The interface is in the other namespace.
    let error = left.run(|| AttachedProgram::new(veth.right.name(), 1, &Steering::All, &options(None)).unwrap_err());
    assert!(matches!(error, BpfError::NoInterface { .. }), "{error}");

    // A frame longer than a page in one buffer: drivers refuse it, generic XDP accepts it.
    let error = text(attach(&veth.right, &Steering::All, &options(Some(Mode::Native))));
    assert!(error.contains("does not accept XDP programs in native mode"), "{error}");
    let attached = attach(&veth.right, &Steering::All, &options(None)).unwrap();
    assert_eq!(attached.mode(), Mode::Skb);
    assert_eq!(attached.not_native().unwrap().to_string(), error);
    drop(attached);
    let frags = options(Some(Mode::Native)).with_frags(true);
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
fn attaching_without_capabilities_names_the_missing_ones() {
    let Some(_suite) = begin() else { return };
    let namespace = Namespace::new();
    let error = namespace.run(|| {
        // Capabilities belong to the thread, which ends with this closure.
        drop_capabilities();
        AttachedProgram::new("lo", 1, &Steering::All, &options(None)).unwrap_err()
    });
    let BpfError::NotPermitted { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing, &["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON"]);
}

#[test]
fn a_program_is_detached_when_its_interface_is_deleted() {
    let Some(_suite) = begin() else { return };
    let (_, _, veth) = create_link();
    let attached = attach(&veth.right, &Steering::Default, &options(None)).unwrap();
    assert!(attached.is_attached());
    veth.delete();
    wait_until("the program is gone", TIMEOUT, || !attached.is_attached());
}

/// Run by the next test, and killed.
#[test]
fn child_that_holds_programs() {
    let Some(interface) = Child::interface() else { return };
    let attached = AttachedProgram::new(&interface, 1, &Steering::Default, &options(None)).unwrap();
    // The other interface is `lo`.
    let _link = reinject::tcx::attach(attached.interface_index(), 1).unwrap();
    Child::hold(&attached.program_id().to_string());
}

#[test]
fn programs_are_detached_when_their_process_is_killed() {
    let Some(_suite) = begin() else { return };
    let (_, _, veth) = create_link();
    let (child, id) = Child::start(&veth.right, "child_that_holds_programs");
    assert!(ip_link_show(&veth.right).contains(&format!("prog/xdp id {id} ")), "{}", ip_link_show(&veth.right));
    child.kill();
    wait_until("the program is detached", TIMEOUT, || !ip_link_show(&veth.right).contains("prog/xdp"));
    // The interface is free again.
    attach(&veth.right, &Steering::All, &options(None)).unwrap();
}

#[test]
fn sockets_get_the_selected_frames_and_the_stack_all_others() {
    let Some(_suite) = begin() else { return };
    for mode in [Mode::Native, Mode::Skb] {
        let (_, _, veth) = create_link_with(|link| link.without_ipv6());
        let sender = PacketSocket::at(&veth.left);
        let mut stack = PacketSocket::at(&veth.right);
        let attached = attach(&veth.right, &Steering::Only("udp/80".parse().unwrap()), &options(Some(mode))).unwrap();
        let [selected, other] = [80, 81].map(|port| udp(&veth, port, b"payload"));

        // Without a socket the stack gets all frames.
        sender.send(&selected);
        assert_eq!(stack.receive_where(TIMEOUT, |frame| frame.bytes == selected).unwrap().bytes, selected);

        let mut socket = XdpSocket::at(&veth.right);
        attached.set_socket(0, &socket).unwrap();
        sender.send(&selected);
        assert_eq!(socket.receive(TIMEOUT).as_ref(), Some(&selected), "{mode:?}");
        sender.send(&other);
        let first = stack.receive_where(TIMEOUT, |frame| frame.bytes == other || frame.bytes == selected).unwrap();
        assert!(first.bytes == other, "{mode:?}: the stack got the selected frame");
        assert_eq!(socket.receive(QUIET_TIME), None, "{mode:?}");

        // Without the socket the stack gets all frames again.
        drop(socket);
        wait_until("the stack has all frames", TIMEOUT, || {
            sender.send(&selected);
            stack.receive_where(QUIET_TIME, |frame| frame.bytes == selected).is_some()
        });
    }
}

#[test]
fn reinjected_frames_appear_to_come_from_the_interface() {
    let Some(_suite) = begin() else { return };
    for (mode, way) in [(Mode::Native, "tcx"), (Mode::Skb, "mirred"), (Mode::Native, "mirred")] {
        let (_, right, veth) = create_link_with(|link| link.without_ipv6());
        // Both ends are in one namespace: what the left end sends is handed on at the right.
        let back = Veth::between(&right, &right).subnet(1).without_ipv4().without_ipv6().make();
        let (from, to) = right.run(|| (index(&back.right), index(&veth.right)));
        let datagram = udp(&veth, 4000, b"once more");

        // A socket that receives from this interface alone.
        let listener = right.run(|| {
            let socket = UdpSocket::bind((veth.right.ipv4(), 4000)).unwrap();
            bind_to(&socket, veth.right.name());
            socket
        });
        let received_within = |timeout| {
            let mut received = [0; 100];
            listener.set_read_timeout(Some(timeout)).unwrap();
            let (length, from) = listener.recv_from(&mut received).ok()?;
            Some((received[..length].to_vec(), from.ip()))
        };
        let whole = Some((b"once more".to_vec(), veth.left.ipv4().into()));
        let sender = PacketSocket::at(&back.left);
        sender.send(&datagram);
        assert_eq!(received_within(QUIET_TIME), None);

        // The XDP program sends all frames of the interface to a socket.
        let attached = attach(&veth.right, &Steering::All, &options(Some(mode))).unwrap();
        let mut socket = XdpSocket::at(&veth.right);
        attached.set_socket(0, &socket).unwrap();
        PacketSocket::at(&veth.left).send(&datagram);
        assert_eq!(socket.receive(TIMEOUT).as_ref(), Some(&datagram), "{mode:?}");
        assert_eq!(received_within(QUIET_TIME), None);

        let reinjection = right.run(|| match mode {
            Mode::Native if way == "mirred" => reinject::mirred::attach(from, to).map(Reinjection::Mirred),
            mode => reinject::attach(from, to, mode),
        });
        let reinjection = reinjection.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(reinjection.name(), way);
        let mut seen = PacketSocket::at(&veth.right);
        sender.send(&datagram);
        assert_eq!(seen.receive_where(TIMEOUT, |frame| frame.bytes == datagram).unwrap().bytes, datagram);
        assert_eq!(received_within(TIMEOUT), whole, "{mode:?}, {way}");
        assert_eq!(socket.receive(QUIET_TIME), None, "{mode:?}, {way}: the XDP program took the reinjected frame");

        drop(reinjection);
        sender.send(&datagram);
        assert_eq!(received_within(QUIET_TIME), None);
        // It can be attached again.
        right.run(|| reinject::attach(from, to, mode)).unwrap();
    }
}

#[test]
fn reinjection_needs_two_different_existing_interfaces() {
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

/// Binds a socket to an interface: SO_BINDTODEVICE, socket(7).
fn bind_to(socket: &UdpSocket, interface: &str) {
    let (name, length) = (interface.as_ptr().cast(), interface.len() as libc::socklen_t);
    // SAFETY: pointer and length are those of a slice.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name, length) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
