//! `portcullis run --af-xdp` between two namespaces.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;

use portcullis_live_tests::frames::{swapped, udp};
use portcullis_live_tests::{End, Namespace, PacketSocket, Suite, Veth, ping, tcp_echo};

use crate::support::{QUIET_TIME, Running, TIMEOUT, command, count, run_to_end};

/// Returns whether the kernel shows an XDP program at an interface.
pub fn has_program(end: &End) -> bool {
    end.namespace().ip(&["link", "show", "dev", end.name()]).contains("xdp")
}

/// Two namespaces and a link between them; the tested program runs in the right one.
pub struct Net {
    pub veth: Veth,
    pub left: Namespace,
    pub right: Namespace,
    pub _suite: Suite,
}

pub fn net(queues: u32) -> Option<Net> {
    net_with(queues, &[])
}

/// Sets up a [`Net`] for tests that need these programs.
pub fn net_with(queues: u32, programs: &[&str]) -> Option<Net> {
    let suite = Suite::begin("run --af-xdp", "af-xdp", &[&["ethtool"], programs].concat())?;
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).queues(queues).make();
    Some(Net { veth, left, right, _suite: suite })
}

#[test]
fn frames_are_rewritten_and_sent_back_until_a_signal_ends_the_run() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    for (signal, dispatch) in [("INT", "inline"), ("TERM", "pipelined")] {
        let mut peer = PacketSocket::at(&veth.left);
        let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/9", "--dispatch", dispatch];
        let running = Running::start(command(&right, "mac_swap", &arguments));
        assert!(running.log.contains("native mode, copied"), "{}", running.log);
        for number in 0..200_u32 {
            let sent = udp(&veth, 9, &number.to_be_bytes().repeat(number as usize % 300));
            peer.send(&sent);
            let back = swapped(sent);
            assert!(peer.receive_where(TIMEOUT, |frame| frame.bytes == back).is_some(), "{number} does not come back");
        }
        assert!(has_program(&veth.right));
        running.signal(signal);
        let json = running.wait().assert_success().parse_json();
        assert_eq!((&json["packets"], &json["carried_out"]["tx"]), (&200.into(), &200.into()), "{json}");
        assert!(!has_program(&veth.right));
    }
}

#[test]
fn sigint_ends_a_run_that_inherits_it_ignored_and_an_ignored_sighup_stays_ignored() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let mut peer = PacketSocket::at(&veth.left);
    let mut command = command(&right, "mac_swap", &["--af-xdp", veth.right.name(), "--only", "udp/9"]);
    // SAFETY: between fork and exec the closure only sets signal dispositions.
    #[expect(unsafe_code, reason = "std has no safe way to set signal dispositions in a child")]
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_IGN);
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        });
    }
    let running = Running::start(command);
    running.signal("HUP");
    // By then a run that reacts to SIGHUP has ended.
    std::thread::sleep(QUIET_TIME);
    let sent = udp(&veth, 9, &[1; 20]);
    peer.send(&sent);
    let back = swapped(sent);
    assert!(peer.receive_where(TIMEOUT, |frame| frame.bytes == back).is_some(), "the run ended on SIGHUP");
    running.stop();
}

#[test]
fn only_packets_that_match_the_rules_are_taken_from_the_kernel() {
    let Some(Net { veth, left, right, _suite }) = net(1) else { return };
    let mut seen = PacketSocket::at(&veth.right);
    let peer = PacketSocket::at(&veth.left);
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/9,tcp/80", "--stack", "none"];
    let running = Running::start(command(&right, "minimal", &arguments));
    let (taken, other) = (udp(&veth, 9, b"taken"), udp(&veth, 10, b"other"));
    peer.send(&taken);
    peer.send(&other);
    assert!(seen.receive_where(TIMEOUT, |frame| frame.bytes == other).is_some());
    assert!(seen.receive_where(QUIET_TIME, |frame| frame.bytes == taken).is_none());
    // ARP and ICMP stay with the kernel.
    assert!(ping(&left, veth.right.ipv4().into(), TIMEOUT));
    let json = running.stop().parse_json();
    // `minimal` passes everything, and there is no stack to pass it to.
    assert_eq!((&json["packets"], &json["lost"]["no_stack"]), (&1.into(), &1.into()), "{json}");
}

/// Packets that pass reach the kernel, which answers as if the program were not there: a transfer
/// over an allowed port works, and over another it does not.
#[test]
fn packets_that_pass_reach_the_kernels_stack() {
    let Some(Net { veth, left, right, _suite }) = net(1) else { return };
    for (stack, mode) in [("veth", "native"), ("tap", "native"), ("auto", "native"), ("veth", "skb")] {
        if mode == "skb" {
            // In SKB mode the program receives unsegmented packets, which no frame can hold; it
            // warns of that.
            veth.left.ethtool(&["-K", "tso off gso off"]);
        }
        let arguments = ["--af-xdp", veth.right.name(), "--stack", stack, "--xdp-mode", mode];
        let running = Running::start(command(&right, "http_only", &arguments));
        assert!(right.ip(&["link"]).contains("back into the kernel"), "the run created an interface");
        let addresses: [IpAddr; 2] = [veth.right.ipv4().into(), veth.right.ipv6().into()];
        for address in addresses {
            let refused = right.run(|| TcpListener::bind((address, 8080))).unwrap();
            tcp_echo(&left, &right, (address, 80), 1_000_000, TIMEOUT)
                .unwrap_or_else(|e| panic!("{stack}, {mode}, {address}: {e}"));
            assert!(left.run(|| TcpStream::connect_timeout(&(address, 8080).into(), QUIET_TIME)).is_err(), "{address}");
            drop(refused);
        }
        let json = running.stop().parse_json();
        assert!(count(&json["carried_out"]["pass"]) > 500, "{json}");
        assert_eq!(count(&json["verdicts"]["pass"]), count(&json["carried_out"]["pass"]), "{json}");
        // The sender leaves checksums to a network card that does not exist.
        assert!(count(&json["checksums_completed"]) > 0, "{json}");
        let links = right.ip(&["link"]);
        assert!(!links.contains("back into the kernel"), "{links}");
    }
}

#[test]
fn queues_share_the_state_of_a_filter_with_maps() {
    let Some(Net { veth, right, _suite, .. }) = net(2) else { return };
    let peer = PacketSocket::at(&veth.left);
    let dump = tempfile::tempdir().unwrap();
    let flows = dump.path().join("flows.csv");
    let dumped = format!("flows={}", flows.display());
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/9", "--dump-map", &dumped];
    let running = Running::start(command(&right, "flow_stats", &arguments));
    assert!(running.log.contains("queues 0,1"), "{}", running.log);
    for _ in 0..100 {
        peer.send(&udp(&veth, 9, b"abc"));
    }
    std::thread::sleep(QUIET_TIME);
    let ended = running.stop();
    assert_eq!(ended.parse_json()["packets"], 100, "{}", ended.out);
    let text = std::fs::read_to_string(flows).unwrap();
    let row = text.lines().nth(1).unwrap_or_else(|| panic!("no flow: {text}"));
    assert!(row.contains(",12345,9,17,100,3100,"), "{text}");
}

#[test]
fn invalid_arguments_are_refused_before_the_interface_is_touched() {
    let Some(Net { veth, right, _suite, .. }) = net(2) else { return };
    let name = veth.right.name();
    let twice = format!("{name}:0");
    let listener = right.run(|| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let taken = listener.local_addr().unwrap().to_string();
    let zero_copy_refused = "no zero-copy mode where the XDP program runs in SKB mode";
    for (arguments, code, message) in [
        (&["--af-xdp", "no_such_if"][..], 1, "there is no interface `no_such_if`"),
        (&["--af-xdp", &format!("{name}:5")], 1, "has 2 receive queues, and no queue 5"),
        (&["--af-xdp", "a/b"], 2, "not an interface name"),
        (&["--af-xdp", name, "--af-xdp", &twice], 2, "given twice"),
        (&["--af-xdp", name, "--only", "tcp/http"], 2, "--only"),
        (&["--af-xdp", name, "--only", "tcp/80", "--all"], 2, "cannot be used with"),
        (&["--af-xdp", name, "--redirect", "3"], 2, "3=eth1"),
        (&["--af-xdp", name, "--redirect", "3=none"], 1, "there is no interface `none`"),
        (&["--af-xdp", name, "--zero-copy"], 1, "the driver has no zero-copy mode"),
        (&["--af-xdp", name, "--zero-copy", "--xdp-mode", "skb"], 1, zero_copy_refused),
        (&["--af-xdp", name, "--dispatch", "graph"], 1, "no dispatch method `graph`"),
        (&["--af-xdp", name, "--read", "x.pcap"], 2, "cannot be used with"),
        (&["--af-xdp", name, "--duration", "5"], 2, "a time with its unit"),
        (&["--af-xdp", name, "--pin", "60000"], 2, "no processor 60000"),
        (&["--af-xdp", name, "--metrics", &taken], 1, "in use"),
        (&["--nfqueue", "0", "--stack", "tap"], 2, "cannot be used with"),
        (&["--duration", "1s"], 2, "--af-xdp"),
    ] {
        let ended = run_to_end(command(&right, "minimal", arguments)).assert_failure(code, &[message]);
        assert!(!has_program(&veth.right), "{arguments:?}");
        assert!(!ended.err.contains("native mode"), "attached nevertheless: {arguments:?}: {}", ended.err);
    }
    // Map files are read before the interface is opened.
    let file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    std::fs::write(file.path(), "key,value\nno number,1\n").unwrap();
    let rows = format!("blocked_v4={}", file.path().display());
    let ended =
        run_to_end(command(&right, "blacklist", &["--af-xdp", name, "--map", &rows])).assert_failure(1, &[".csv"]);
    assert!(!ended.err.contains("native mode"), "{}", ended.err);
    // Another run holds the interface.
    let running = Running::start(command(&right, "minimal", &["--af-xdp", name]));
    let holder = format!("process {} (portcullis)", running.pid());
    run_to_end(command(&right, "minimal", &["--af-xdp", name])).assert_failure(1, &[name, &holder]);
    running.stop();
}

#[test]
fn missing_capabilities_are_named() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    // Root without capabilities: an ordinary user may be unable to read the program.
    let whole = command(&right, "minimal", &["--af-xdp", veth.right.name(), "--duration", "100ms"]);
    let with = |capabilities: &str| {
        let mut command = right.command("setpriv");
        command.args(["--bounding-set", &format!("-all{capabilities}"), "--inh-caps", "-all", "--"]);
        // The arguments after `ip netns exec NAME`.
        command.args(whole.get_args().skip(3));
        run_to_end(command)
    };
    for (capabilities, missing) in [
        ("", "CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON are missing"),
        (",+net_raw,+bpf,+perfmon,+ipc_lock", "CAP_NET_ADMIN"),
        (",+net_admin,+bpf,+perfmon,+ipc_lock", "CAP_NET_RAW"),
        (",+net_admin,+net_raw,+perfmon,+ipc_lock", "CAP_BPF is missing"),
        (",+net_admin,+net_raw,+bpf,+ipc_lock", "CAP_PERFMON is missing"),
    ] {
        let err = with(capabilities).assert_failure(1, &[missing]).err;
        assert!(err.lines().count() < 3, "{capabilities}: {err}");
        assert!(!err.contains("no memory") && !err.contains("another place"), "{capabilities}: {err}");
    }
    with(",+net_admin,+net_raw,+bpf,+perfmon,+ipc_lock").assert_success();
}

/// Returns the bytes of free memory in huge pages, as proc(5) describes.
fn huge_memory() -> u64 {
    let all = std::fs::read_to_string("/proc/meminfo").unwrap();
    let field = |name: &str| {
        let line = all.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    field("HugePages_Free:") * field("Hugepagesize:") * 1024
}

#[test]
fn busy_polling_and_huge_pages_work() {
    let Some(Net { veth, left, right, _suite }) = net(1) else { return };
    for option in ["--busy-poll", "--huge-pages"] {
        let command = command(&right, "http_only", &["--af-xdp", veth.right.name(), option][..]);
        if option == "--huge-pages" && huge_memory() < 64 << 20 {
            println!("no huge pages are reserved (vm.nr_hugepages): only the error message is tested");
            run_to_end(command).assert_failure(1, &["vm.nr_hugepages"]);
            continue;
        }
        let running = Running::start(command);
        tcp_echo(&left, &right, (IpAddr::from(veth.right.ipv4()), 80), 1_000_000, TIMEOUT)
            .unwrap_or_else(|e| panic!("{option}: {e}"));
        let json = running.stop().parse_json();
        assert!(json["carried_out"]["pass"].as_u64().unwrap() > 10, "{json}");
    }
}

#[test]
fn duration_ends_a_run() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let arguments = ["--af-xdp", veth.right.name(), "--duration", "200ms"];
    Running::start(command(&right, "minimal", &arguments)).wait().assert_success();
}
