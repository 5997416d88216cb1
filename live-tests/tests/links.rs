//! Interfaces that a run creates, and delivery into the kernel's stack, in real kernels' networks.
#![cfg(all(target_os = "linux", feature = "af-xdp"))]

use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use portcullis_io::af_xdp::xdp::Mode;
use portcullis_io::af_xdp::{InjectionPoint, StackDevice, StackInjector};
use portcullis_io::live::checksum;
use portcullis_io::live::link::{Interface, LinkError, LinkState, LinkWatch, Tap, VethPair};
use portcullis_live_tests::{
    Bridge, Child, Frame, Namespace, PacketSocket, QUIET_TIME, Suite, TIMEOUT, create_link, create_link_with, ping,
    tcp_echo, wait_until,
};

fn begin() -> Option<Suite> {
    Suite::begin("interfaces of a run's own", "af-xdp", &["ethtool", "setpriv"])
}

/// Returns what `ip` prints about an interface; empty if there is none.
fn ip_link_show(namespace: &Namespace, name: &str) -> String {
    let output = namespace.command("ip").args(["-details", "link", "show", "dev", name]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_interface_is_described_as_ip_and_ethtool_describe_it() {
    let Some(_suite) = begin() else { return };
    let (left, right, veth) = create_link_with(|link| link.queues(3).mtu(2345));
    let find = || right.run(|| Interface::find(veth.right.name()));
    let found = find().unwrap();
    let output = ip_link_show(&right, veth.right.name());
    assert!(output.starts_with(&format!("{}: {}@", found.index, found.name)), "{output}");
    let expected = Interface {
        index: found.index,
        name: veth.right.name().into(),
        mac: Some(veth.right.mac()),
        mtu: 2345,
        is_up: true,
        has_link: true,
        receive_queues: 3,
        send_queues: 3,
        driver: Some("veth".into()),
        rx_vlan_offload: true,
    };
    assert_eq!(found, expected);
    veth.right.ethtool(&["-K", "rxvlan off"]);
    assert!(!find().unwrap().rx_vlan_offload);
    veth.right.ethtool(&["-K", "rxvlan on"]);
    // The queues in use, not those that the driver has allocated.
    veth.right.ethtool(&["-L", "rx 2 tx 1"]);
    assert_eq!(find().unwrap(), Interface { receive_queues: 2, send_queues: 1, ..expected.clone() });
    veth.left.down();
    assert_eq!(find().unwrap(), Interface { has_link: false, receive_queues: 2, send_queues: 1, ..expected });
    veth.right.down();
    assert!(!find().unwrap().is_up);
    // It belongs to another namespace.
    let error = left.run(|| Interface::find(veth.right.name()).unwrap_err());
    assert!(matches!(error, LinkError::NoInterface { .. }), "{error}");
}

#[test]
fn a_veth_pair_has_the_requested_mtu_and_queues_and_is_deleted_on_drop() {
    let Some(_suite) = begin() else { return };
    let namespace = Namespace::new();
    let (mut pair, other) = namespace.run(|| (VethPair::new(3000, 4).unwrap(), VethPair::new(1500, 1).unwrap()));
    pair.set_up().unwrap();
    for (end, peer) in [(pair.near(), pair.far()), (pair.far(), pair.near())] {
        let output = ip_link_show(&namespace, &end.name);
        for part in [
            &format!("{}: {}@{}: ", end.index, end.name, peer.name),
            "LOWER_UP",
            "mtu 3000",
            "veth",
            "numtxqueues 4",
            "numrxqueues 4",
        ] {
            assert!(output.contains(part), "{part}: {output}");
        }
    }
    // A frame sent right after creation arrives.
    let (near, mut far) =
        (PacketSocket::open(&namespace, &pair.near().name), PacketSocket::open(&namespace, &pair.far().name));
    let frame: Vec<u8> = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5][..], &[7; 3000]].concat();
    near.send(&frame);
    assert_eq!(far.receive_where(TIMEOUT, |it| it.ether_type() == 0x88b5).unwrap().bytes, frame);

    let names = [pair.near().name.clone(), pair.far().name.clone()];
    // Deleted in its own namespace, although this thread is in another.
    drop(pair);
    assert_eq!(names.map(|name| ip_link_show(&namespace, &name)), ["", ""]);
    assert_ne!(ip_link_show(&namespace, &other.near().name), "");
    // Dropping a pair that is gone already does nothing.
    namespace.ip(&["link", "delete", &other.far().name]);
    drop(other);
}

#[test]
fn frames_go_through_a_tap_both_ways() {
    let Some(_suite) = begin() else { return };
    let namespace = Namespace::new();
    let mut tap = namespace.run(|| Tap::new().unwrap());
    let name = tap.interface().name.clone();
    let frame = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, 1, 2, 3];
    assert!(tap.write(&frame).is_err(), "the interface is down");
    namespace.sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1");
    tap.set_up().unwrap();
    let mut socket = PacketSocket::open(&namespace, &name);
    tap.write(&frame).unwrap();
    assert_eq!(socket.receive(TIMEOUT).unwrap().bytes, frame);
    assert!(tap.write(&frame[..5]).is_err(), "the frame has no header");

    let mut read = [0; 2000];
    assert_eq!(tap.read(&mut read).unwrap(), None);
    socket.send(&frame);
    assert_eq!(tap.read(&mut read).unwrap(), Some(frame.len()));
    assert_eq!(read[..frame.len()], frame);
    drop(tap);
    assert_eq!(ip_link_show(&namespace, &name), "");
}

#[test]
fn a_watch_follows_an_interface_up_down_and_gone() {
    let Some(_suite) = begin() else { return };
    let (left, right, veth) = create_link();
    let name = veth.right.name();
    let index = right.run(|| Interface::find(name)).unwrap().index;
    let mut watch = right.run(|| LinkWatch::new(name).unwrap());
    let mut expect_state = |state| {
        wait_until(&format!("the link is {state:?}"), TIMEOUT, || watch.poll().unwrap() == state);
        assert_eq!(watch.state(), state);
    };
    expect_state(LinkState::Up);
    veth.left.down();
    expect_state(LinkState::Down);
    veth.left.up();
    expect_state(LinkState::Up);
    veth.right.down();
    expect_state(LinkState::Down);
    // Changes of other interfaces are ignored.
    right.ip(&["link", "set", "lo", "down"]);
    right.ip(&["link", "set", "lo", "up"]);
    expect_state(LinkState::Down);
    veth.right.up();
    expect_state(LinkState::Up);
    // Moved to another namespace, it is gone here; an interface that reuses its index is not the
    // same.
    right.ip(&["link", "set", name, "netns", left.name()]);
    expect_state(LinkState::Gone);
    right.ip(&["link", "add", "name", name, "index", &index.to_string(), "type", "veth"]);
    expect_state(LinkState::Gone);
    assert!(matches!(right.run(|| LinkWatch::new("none")).unwrap_err(), LinkError::NoInterface { .. }));
}

/// After an overflow, a watch reports the current state instead of the lost changes.
#[test]
fn a_watch_that_overflowed_reports_the_current_state() {
    let Some(_suite) = begin() else { return };
    let (_, right, veth) = create_link_with(|link| link.without_ipv6());
    let name = veth.right.name();
    let up_and_down = format!("link set {name} down\nlink set {name} up\n").repeat(400);
    // Vary the number of events before, so that the overflow falls on a different event each time.
    for (number, (end, state)) in [("", LinkState::Up), ("down", LinkState::Down)].repeat(3).into_iter().enumerate() {
        let others: String = (0..number).map(|mtu| format!("link set {name} mtu {}\n", 1400 + number + mtu)).collect();
        let mut watch = right.run(|| LinkWatch::new(name).unwrap());
        let last = if end.is_empty() { String::new() } else { format!("link set {name} {end}\n") };
        let mut ip = right.command("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        ip.stdin.take().unwrap().write_all((others + &up_and_down + &last).as_bytes()).unwrap();
        assert!(ip.wait().unwrap().success());
        // Two polls: no old event follows the first.
        assert_eq!([watch.poll().unwrap(), watch.poll().unwrap()], [state; 2]);
    }
}

/// Run by the next test, without capabilities.
#[test]
fn child_without_capabilities() {
    if std::env::var_os("PORTCULLIS_TEST_CHILD").is_none() {
        return;
    }
    println!("\npair: {}", VethPair::new(1500, 1).unwrap_err());
    println!("tap: {}", Tap::new().unwrap_err());
    println!("stack: {}", StackInjector::open("lo", StackDevice::Auto).unwrap_err());
    println!("none: {}", StackInjector::open("none", StackDevice::Auto).unwrap_err());
    println!("found: {:?}", Interface::find("lo").unwrap().name);
}

#[test]
fn errors_name_the_missing_capability() {
    let Some(_suite) = begin() else { return };
    let namespace = Namespace::new();
    let output = namespace
        .command("setpriv")
        .args(["--bounding-set", "-all", "--inh-caps", "-all"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_without_capabilities", "--nocapture"])
        .env("PORTCULLIS_TEST_CHILD", "yes")
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let needs = "needs the capability CAP_NET_ADMIN; run as root, or grant it to the program with setcap";
    for (line, part) in [
        ("pair: pc0-", &format!("a: creating a veth pair {needs}")[..]),
        ("tap: pc0-", &format!("t: creating a TAP interface {needs}")),
        ("stack: pc0-", needs),
        ("none: ", "there is no interface `none` here; `ip link` lists the interfaces"),
        ("found: ", "lo"),
    ] {
        assert!(stdout.lines().any(|it| it.starts_with(line) && it.contains(part)), "{line}: {stdout}");
    }
}

/// Run by the next test, and killed.
#[test]
fn child_that_holds_interfaces() {
    let Some(interface) = Child::interface() else { return };
    let mut stack = StackInjector::open(&interface, StackDevice::Veth).unwrap();
    let mirred = stack.connect(Mode::Skb).unwrap().name();
    let mut other = StackInjector::open(&interface, StackDevice::Tap).unwrap();
    let tcx = other.connect(Mode::Native).unwrap().name();
    Child::hold(&format!("{} {} {mirred} {tcx}", stack.exit().name, other.exit().name));
}

#[test]
fn the_next_run_removes_only_what_a_killed_run_left() {
    let Some(_suite) = begin() else { return };
    let (_, right, veth) = create_link();
    let (child, made) = Child::start(&veth.right, "child_that_holds_interfaces");
    let [pair, tap, "mirred", "tcx"] = made.split(' ').collect::<Vec<_>>()[..] else { panic!("{made}") };
    // Names that resemble the run's, one of them in the same format but given by someone else.
    for name in ["pc0-1x", "pcx-1a", "pc7-1a"] {
        right.ip(&["link", "add", "name", name, "type", "veth"]);
    }
    let mine = right.run(|| VethPair::new(1500, 1).unwrap());
    // While the process lives, no other run removes its interfaces.
    drop(right.run(|| StackInjector::open(veth.right.name(), StackDevice::Auto).unwrap()));
    assert!(!ip_link_show(&right, pair).is_empty() && !ip_link_show(&right, tap).is_empty());

    child.kill();
    wait_until("the TAP interface has gone with its process", TIMEOUT, || ip_link_show(&right, tap).is_empty());
    assert!(!ip_link_show(&right, pair).is_empty(), "the pair is still there");
    let next = right.run(|| StackInjector::open(veth.right.name(), StackDevice::Auto).unwrap());
    assert_eq!(ip_link_show(&right, pair), "");
    for name in [veth.right.name(), "pc0-1x", "pcx-1a", "pc7-1a", &mine.near().name, &next.exit().name] {
        assert_ne!(ip_link_show(&right, name), "", "{name}");
    }
    drop((next, mine));
    let output = right.ip(&["link"]);
    let names = output.split_whitespace().filter(|word| word.starts_with("pc"));
    let names: Vec<&str> = names.map(|name| name.trim_end_matches(':').split('@').next().unwrap()).collect();
    assert_eq!(names, ["pc0-1x", "pcx-1a", "pc7-1a"], "{output}");
}

/// Carries frames while `while_this` runs: from left to right, neighbour discovery goes over the
/// bridge, and all else through the stack injector. Returns how many frames the latter are.
fn carry(bridge: &mut Bridge, put: impl Fn(&[u8]) + Sync, while_this: impl FnOnce(&Namespace, &Namespace)) -> usize {
    let count = AtomicUsize::new(0);
    let forward = |mut frame: Frame, from_left: bool, to: &PacketSocket| {
        checksum::complete(&mut frame.bytes);
        if !from_left || is_neighbour_discovery(&frame.bytes) {
            to.send(&frame.bytes);
        } else {
            count.fetch_add(1, Ordering::Relaxed);
            put(&frame.bytes);
        }
    };
    bridge.carry(forward, while_this);
    count.into_inner()
}

/// Returns whether a frame is ARP or ICMPv6 neighbour discovery (types 133 to 137).
fn is_neighbour_discovery(frame: &[u8]) -> bool {
    match frame[12..14] {
        [0x08, 0x06] => true,
        [0x86, 0xdd] => frame[20] == 58 && (133..=137).contains(&frame[54]),
        _ => false,
    }
}

#[test]
fn frames_reach_the_stack_by_each_delivery_method() {
    let Some(_suite) = begin() else { return };
    for (kind, mode, way) in [
        (StackDevice::Auto, Some(Mode::Native), "tcx"),
        (StackDevice::Veth, Some(Mode::Skb), "mirred"),
        (StackDevice::Veth, None, "beside"),
        (StackDevice::Tap, Some(Mode::Native), "tcx"),
        (StackDevice::Tap, Some(Mode::Skb), "mirred"),
        (StackDevice::Tap, None, "beside"),
    ] {
        let what = format!("{kind:?}, {way}");
        let mut bridge = Bridge::new();
        let (right, addresses) = (bridge.right().namespace().clone(), bridge.addresses().map(|[_, right]| right));
        let mut stack = right.run(|| StackInjector::open(bridge.right().name(), kind)).unwrap();
        assert!(stack.delivery().is_none());
        let (name, exit) = match stack.injection_point() {
            InjectionPoint::Veth(near) => (near.name.clone(), stack.exit().name.clone()),
            InjectionPoint::Tap(_) => (String::new(), stack.exit().name.clone()),
        };
        assert_eq!(name.is_empty(), kind == StackDevice::Tap);
        let socket = (!name.is_empty()).then(|| PacketSocket::open(&right, &name));
        let put = |stack: &StackInjector, frame: &[u8]| match (stack.injection_point(), &socket) {
            (InjectionPoint::Veth(_), Some(socket)) => socket.send(frame),
            (InjectionPoint::Tap(tap), _) => tap.write(frame).unwrap(),
            _ => unreachable!(),
        };

        // Nothing is delivered before the injector is connected.
        carry(
            &mut bridge,
            |frame| put(&stack, frame),
            |left, _| {
                for address in addresses {
                    assert!(!ping(left, address, QUIET_TIME), "{what}: {address}");
                }
            },
        );
        let joined = right.run(|| match mode {
            Some(mode) => stack.connect(mode).unwrap().name(),
            None => stack.connect_direct().unwrap().name(),
        });
        assert_eq!(joined, way);
        let packets = carry(
            &mut bridge,
            |frame| put(&stack, frame),
            |left, right| {
                for address in addresses {
                    assert!(ping(left, address, TIMEOUT), "{what}: {address}");
                    tcp_echo(left, right, (address, 0), 50_000, TIMEOUT)
                        .unwrap_or_else(|e| panic!("{what}: {address}: {e}"));
                }
            },
        );
        assert!(packets > 80, "{packets}");

        // The kernel sends no frames of its own into the pair.
        if let Some(mut socket) = socket {
            assert_eq!(socket.receive(Duration::ZERO), None, "{what}");
        }
        assert!(ip_link_show(&right, &exit).contains("alias portcullis"), "{}", ip_link_show(&right, &exit));
        drop(stack);
        assert_eq!(ip_link_show(&right, &exit), "");
        let output = right.ip(&["link"]);
        assert!(!output.contains("pc0-"), "{output}");
    }
}

#[test]
fn direct_delivery_is_refused_under_a_reverse_path_filter() {
    let Some(_suite) = begin() else { return };
    let (_, right, veth) = create_link();
    right.sysctl("net.ipv4.conf.all.rp_filter", "1");
    let mut stack = right.run(|| StackInjector::open(veth.right.name(), StackDevice::Auto)).unwrap();
    let error = right.run(|| stack.connect_direct().map(|way| way.name()).unwrap_err().to_string());
    assert!(error.contains("net.ipv4.conf.all.rp_filter is 1; set it to 0"), "{error}");
    assert!(stack.delivery().is_none());
}
