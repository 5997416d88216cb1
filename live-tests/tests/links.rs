//! Interfaces of a run's own, and the way back into the kernel's stack, in real kernels' networks.
#![cfg(all(target_os = "linux", feature = "af-xdp"))]

use std::io::Write;
use std::net::IpAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use portcullis_io::af_xdp::xdp::Mode;
use portcullis_io::live::checksum;
use portcullis_io::live::link::{
    InjectionPoint, Interface, LinkError, LinkState, LinkWatch, StackDevice, StackInjector, Tap, VethPair,
};
use portcullis_live_tests::{Child, Namespace, PacketSocket, Suite, Veth, ping, tcp_echo, wait_until};

const SOON: Duration = Duration::from_secs(20);
const NOTHING: Duration = Duration::from_millis(300);

fn begin() -> Option<Suite> {
    Suite::begin("interfaces of a run's own", "af-xdp", &["ethtool", "setpriv"])
}

/// What `ip` says of an interface; nothing where there is none.
fn shown(namespace: &Namespace, name: &str) -> String {
    let output = namespace.command("ip").args(["-details", "link", "show", "dev", name]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_facts_of_an_interface_are_those_that_others_tell() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).queues(3).mtu(2345).make();
    let find = || right.run(|| Interface::find(veth.right.name()));
    let found = find().unwrap();
    let says = shown(&right, veth.right.name());
    assert!(says.starts_with(&format!("{}: {}@", found.index, found.name)), "{says}");
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
    // Those in use, not those that the driver has memory for.
    veth.right.ethtool(&["-L", "rx 2 tx 1"]);
    assert_eq!(find().unwrap(), Interface { receive_queues: 2, send_queues: 1, ..expected.clone() });
    veth.left.down();
    assert_eq!(find().unwrap(), Interface { has_link: false, receive_queues: 2, send_queues: 1, ..expected });
    veth.right.down();
    assert!(!find().unwrap().is_up);
    // It is another namespace's.
    let error = left.run(|| Interface::find(veth.right.name()).unwrap_err());
    assert!(matches!(error, LinkError::NoInterface { .. }), "{error}");
}

#[test]
fn a_pair_is_made_as_asked_and_goes() {
    let Some(_suite) = begin() else { return };
    let namespace = Namespace::new();
    let (mut pair, other) = namespace.run(|| (VethPair::new(3000, 4).unwrap(), VethPair::new(1500, 1).unwrap()));
    pair.set_up().unwrap();
    for (end, peer) in [(pair.near(), pair.far()), (pair.far(), pair.near())] {
        let says = shown(&namespace, &end.name);
        for part in [
            &format!("{}: {}@{}: ", end.index, end.name, peer.name),
            "LOWER_UP",
            "mtu 3000",
            "veth",
            "numtxqueues 4",
            "numrxqueues 4",
        ] {
            assert!(says.contains(part), "{part}: {says}");
        }
    }
    // What is sent comes in, also right away.
    let (near, mut far) =
        (PacketSocket::open(&namespace, &pair.near().name), PacketSocket::open(&namespace, &pair.far().name));
    let frame: Vec<u8> = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5][..], &[7; 3000]].concat();
    near.send(&frame);
    assert_eq!(far.receive_where(SOON, |it| it.ether_type() == 0x88b5).unwrap().bytes, frame);

    let names = [pair.near().name.clone(), pair.far().name.clone()];
    // Here, where the thread is in another namespace.
    drop(pair);
    assert_eq!(names.map(|name| shown(&namespace, &name)), ["", ""]);
    assert_ne!(shown(&namespace, &other.near().name), "");
    // One that is gone already is no trouble.
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
    assert!(tap.write(&frame).is_err(), "it is down");
    namespace.sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1");
    tap.set_up().unwrap();
    let mut socket = PacketSocket::open(&namespace, &name);
    tap.write(&frame).unwrap();
    assert_eq!(socket.receive(SOON).unwrap().bytes, frame);
    assert!(tap.write(&frame[..5]).is_err(), "no header");

    let mut read = [0; 2000];
    assert_eq!(tap.read(&mut read).unwrap(), None);
    socket.send(&frame);
    assert_eq!(tap.read(&mut read).unwrap(), Some(frame.len()));
    assert_eq!(read[..frame.len()], frame);
    drop(tap);
    assert_eq!(shown(&namespace, &name), "");
}

#[test]
fn a_watch_sees_an_interface_come_and_go() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    let name = veth.right.name();
    let index = right.run(|| Interface::find(name)).unwrap().index;
    let mut watch = right.run(|| LinkWatch::new(name).unwrap());
    let mut becomes = |state| {
        wait_until(&format!("it is {state:?}"), SOON, || watch.poll().unwrap() == state);
        assert_eq!(watch.state(), state);
    };
    becomes(LinkState::Up);
    veth.left.down();
    becomes(LinkState::Down);
    veth.left.up();
    becomes(LinkState::Up);
    veth.right.down();
    becomes(LinkState::Down);
    // Others' doings are none of its.
    right.ip(&["link", "set", "lo", "down"]);
    right.ip(&["link", "set", "lo", "up"]);
    becomes(LinkState::Down);
    veth.right.up();
    becomes(LinkState::Up);
    // It has gone where it is nobody's here; and one that has its number is not it.
    right.ip(&["link", "set", name, "netns", left.name()]);
    becomes(LinkState::Gone);
    right.ip(&["link", "add", "name", name, "index", &index.to_string(), "type", "veth"]);
    becomes(LinkState::Gone);
    assert!(matches!(right.run(|| LinkWatch::new("none")).unwrap_err(), LinkError::NoInterface { .. }));
}

/// A watch that overflows loses the oldest changes' details and reports the current state.
#[test]
fn a_watch_that_nobody_looked_at_for_long_sees_what_is_so_now() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).without_ipv6().make();
    let name = veth.right.name();
    let up_and_down = format!("link set {name} down\nlink set {name} up\n").repeat(400);
    // The last event that there is room for is another one each time.
    for (number, (end, state)) in [("", LinkState::Up), ("down", LinkState::Down)].repeat(3).into_iter().enumerate() {
        let others: String = (0..number).map(|mtu| format!("link set {name} mtu {}\n", 1400 + number + mtu)).collect();
        let mut watch = right.run(|| LinkWatch::new(name).unwrap());
        let last = if end.is_empty() { String::new() } else { format!("link set {name} {end}\n") };
        let mut ip = right.command("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        ip.stdin.take().unwrap().write_all((others + &up_and_down + &last).as_bytes()).unwrap();
        assert!(ip.wait().unwrap().success());
        // And nothing old comes after it.
        assert_eq!([watch.poll().unwrap(), watch.poll().unwrap()], [state; 2]);
    }
}

/// What the next test runs, without rights.
#[test]
fn child_without_rights() {
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
fn the_right_that_is_missing_is_named() {
    let Some(_suite) = begin() else { return };
    let namespace = Namespace::new();
    let output = namespace
        .command("setpriv")
        .args(["--bounding-set", "-all", "--inh-caps", "-all"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_without_rights", "--nocapture"])
        .env("PORTCULLIS_TEST_CHILD", "yes")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let needs = "needs the capability CAP_NET_ADMIN; run as root, or grant it to the program with setcap";
    for (line, part) in [
        ("pair: pc0-", &format!("a: creating a veth pair {needs}")[..]),
        ("tap: pc0-", &format!("t: creating a TAP interface {needs}")),
        ("stack: pc0-", needs),
        ("none: ", "there is no interface `none` here; `ip link` lists those that there are"),
        ("found: ", "lo"),
    ] {
        assert!(said.lines().any(|it| it.starts_with(line) && it.contains(part)), "{line}: {said}");
    }
}

/// What the next test runs, and kills.
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
fn what_a_killed_run_left_is_removed_by_the_next_and_nothing_else() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    let (child, made) = Child::start(&veth.right, "child_that_holds_interfaces");
    let [pair, tap, "mirred", "tcx"] = made.split(' ').collect::<Vec<_>>()[..] else { panic!("{made}") };
    // Names that look like them, and one like theirs that somebody else has given.
    for name in ["pc0-1x", "pcx-1a", "pc7-1a"] {
        right.ip(&["link", "add", "name", name, "type", "veth"]);
    }
    let mine = right.run(|| VethPair::new(1500, 1).unwrap());
    // While it is alive, nobody takes its interfaces away, though many come and go.
    drop(right.run(|| StackInjector::open(veth.right.name(), StackDevice::Auto).unwrap()));
    assert!(!shown(&right, pair).is_empty() && !shown(&right, tap).is_empty());

    child.kill();
    wait_until("the TAP interface has gone with its process", SOON, || shown(&right, tap).is_empty());
    assert!(!shown(&right, pair).is_empty(), "a pair stays");
    let next = right.run(|| StackInjector::open(veth.right.name(), StackDevice::Auto).unwrap());
    assert_eq!(shown(&right, pair), "");
    for name in [veth.right.name(), "pc0-1x", "pcx-1a", "pc7-1a", &mine.near().name, &next.exit().name] {
        assert_ne!(shown(&right, name), "", "{name}");
    }
    drop((next, mine));
    let says = right.ip(&["link"]);
    assert!(!says.contains("pc0-") || says.contains("pc0-1x"), "{says}");
}

/// Networks on the left and right between which nobody carries anything but this test: from the
/// left to the right, only what belongs to finding neighbours goes by the link, and all else
/// through the stack's entrance.
struct Divided {
    left: Namespace,
    right: Namespace,
    _between: Namespace,
    interface: String,
    ends: [PacketSocket; 2],
}

/// Of the right.
fn addresses() -> [IpAddr; 2] {
    ["10.77.0.2".parse().unwrap(), "fd77::2".parse().unwrap()]
}

impl Divided {
    fn new() -> Divided {
        let (left, between, right) = (Namespace::new(), Namespace::new(), Namespace::new());
        let near = Veth::between(&left, &between).make();
        let far = Veth::between(&between, &right).make();
        for end in [&near.left, &far.right] {
            end.ethtool(&["-K", "tso off gso off"]);
        }
        between.ip(&["address", "flush", "dev", near.right.name()]);
        between.ip(&["address", "flush", "dev", far.left.name()]);
        let ends = [PacketSocket::at(&near.right), PacketSocket::at(&far.left)];
        Divided { left, right, _between: between, interface: far.right.name().to_owned(), ends }
    }

    /// Carries frames while something else runs. Gives how many were put into the entrance.
    fn carry(&mut self, put: impl Fn(&[u8]) + Send, while_this: impl FnOnce(&Namespace, &Namespace)) -> usize {
        /// Also when what is run panics.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let (is_done, count) = (AtomicBool::new(false), AtomicUsize::new(0));
        let [near, far] = &mut self.ends;
        std::thread::scope(|scope| {
            let (is_done, count) = (&is_done, &count);
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    while let Some(mut frame) = near.receive(Duration::from_millis(1)) {
                        checksum::complete(&mut frame.bytes);
                        if is_for_neighbours(&frame.bytes) {
                            far.send(&frame.bytes);
                        } else {
                            count.fetch_add(1, Ordering::Relaxed);
                            put(&frame.bytes);
                        }
                    }
                    while let Some(mut frame) = far.receive(Duration::from_millis(1)) {
                        checksum::complete(&mut frame.bytes);
                        near.send(&frame.bytes);
                    }
                }
            });
            let _done = Done(is_done);
            while_this(&self.left, &self.right);
        });
        count.into_inner()
    }
}

/// ARP, and ICMPv6 of the types 133 to 137.
fn is_for_neighbours(frame: &[u8]) -> bool {
    match frame[12..14] {
        [0x08, 0x06] => true,
        [0x86, 0xdd] => frame[20] == 58 && (133..=137).contains(&frame[54]),
        _ => false,
    }
}

#[test]
fn frames_that_pass_reach_the_stack_by_each_way() {
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
        let mut divided = Divided::new();
        let (right, interface) = (divided.right.clone(), divided.interface.clone());
        let mut stack = right.run(|| StackInjector::open(&interface, kind)).unwrap();
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

        // Nothing gets through before.
        divided.carry(
            |frame| put(&stack, frame),
            |left, _| {
                for address in addresses() {
                    assert!(!ping(left, address, NOTHING), "{what}: {address}");
                }
            },
        );
        let joined = right.run(|| match mode {
            Some(mode) => stack.connect(mode).unwrap().name(),
            None => stack.connect_direct().unwrap().name(),
        });
        assert_eq!(joined, way);
        let packets = divided.carry(
            |frame| put(&stack, frame),
            |left, right| {
                for address in addresses() {
                    assert!(ping(left, address, SOON), "{what}: {address}");
                    tcp_echo(left, right, (address, 0), 50_000, SOON)
                        .unwrap_or_else(|e| panic!("{what}: {address}: {e}"));
                }
            },
        );
        assert!(packets > 80, "{packets}");

        // The kernel has kept silent in there.
        if let Some(mut socket) = socket {
            assert_eq!(socket.receive(Duration::ZERO), None, "{what}");
        }
        assert!(shown(&right, &exit).contains("alias portcullis"), "{}", shown(&right, &exit));
        drop(stack);
        assert_eq!(shown(&right, &exit), "");
        let says = right.ip(&["link"]);
        assert!(!says.contains("pc0-"), "{says}");
    }
}

#[test]
fn beside_its_interface_nothing_gets_past_a_reverse_path_filter() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    right.sysctl("net.ipv4.conf.all.rp_filter", "1");
    let mut stack = right.run(|| StackInjector::open(veth.right.name(), StackDevice::Auto)).unwrap();
    let error = right.run(|| stack.connect_direct().map(|way| way.name()).unwrap_err().to_string());
    assert!(error.contains("net.ipv4.conf.all.rp_filter is 1; set it to 0"), "{error}");
    assert!(stack.delivery().is_none());
}
