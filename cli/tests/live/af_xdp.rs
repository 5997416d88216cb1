//! AF_XDP sockets.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use portcullis_live_tests::frames::{swapped, udp};
use portcullis_live_tests::{End, Namespace, PacketSocket, Suite, Veth, ping, tcp_echo};

use crate::support::{ExitedRun, NOTHING, Running, SOON, command, ends};

/// The program of an interface, as the kernel knows it.
pub fn has_program(end: &End) -> bool {
    end.namespace().ip(&["link", "show", "dev", end.name()]).contains("xdp")
}

/// Two namespaces with a link between them, of which the right one runs the program.
pub struct Net {
    pub veth: Veth,
    pub left: Namespace,
    pub right: Namespace,
    pub _suite: Suite,
}

pub fn net(queues: u32) -> Option<Net> {
    net_with(queues, &[])
}

/// For tests that need these programs.
pub fn net_with(queues: u32, programs: &[&str]) -> Option<Net> {
    let suite = Suite::begin("run --af-xdp", "af-xdp", &[&["ethtool"], programs].concat())?;
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).queues(queues).make();
    Some(Net { veth, left, right, _suite: suite })
}

#[test]
fn frames_go_back_rewritten_until_a_signal_ends_it_in_order() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    for (signal, dispatch) in [("INT", "inline"), ("TERM", "pipelined")] {
        let mut peer = PacketSocket::at(&veth.left);
        let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/9", "--dispatch", dispatch];
        let running = Running::start(command(&right, "mac_swap", &arguments));
        assert!(running.said.contains("native mode, copied"), "{}", running.said);
        for number in 0..200_u32 {
            let sent = udp(&veth, 9, &number.to_be_bytes().repeat(number as usize % 300));
            peer.send(&sent);
            let back = swapped(sent);
            assert!(peer.receive_where(SOON, |frame| frame.bytes == back).is_some(), "{number} comes back");
        }
        assert!(has_program(&veth.right));
        running.signal(signal);
        let ended = running.end();
        assert!(ended.status.success(), "{}", ended.stderr);
        let json = ended.json();
        assert_eq!((&json["packets"], &json["carried_out"]["tx"]), (&200.into(), &200.into()), "{json}");
        assert!(!has_program(&veth.right));
    }
}

#[test]
fn an_interrupt_ends_it_though_whoever_started_it_ignores_interrupts_and_nohup_has_its_way() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let mut peer = PacketSocket::at(&veth.left);
    let mut command = command(&right, "mac_swap", &["--af-xdp", veth.right.name(), "--only", "udp/9"]);
    // SAFETY: between fork and exec it only sets what signals do.
    #[expect(unsafe_code, reason = "there is no safe way to pass on what is ignored")]
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_IGN);
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        });
    }
    let running = Running::start(command);
    running.signal("HUP");
    // By then a run that hears it has ended.
    std::thread::sleep(NOTHING);
    let sent = udp(&veth, 9, &[1; 20]);
    peer.send(&sent);
    let back = swapped(sent);
    assert!(peer.receive_where(SOON, |frame| frame.bytes == back).is_some(), "it has gone");
    running.signal("INT");
    assert!(running.end().status.success());
}

#[test]
fn only_what_the_rules_name_is_taken_and_the_kernel_has_the_rest() {
    let Some(Net { veth, left, right, _suite }) = net(1) else { return };
    let mut seen = PacketSocket::at(&veth.right);
    let peer = PacketSocket::at(&veth.left);
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/9,tcp/80", "--stack", "none"];
    let running = Running::start(command(&right, "minimal", &arguments));
    let (taken, left_alone) = (udp(&veth, 9, b"taken"), udp(&veth, 10, b"left alone"));
    peer.send(&taken);
    peer.send(&left_alone);
    assert!(seen.receive_where(SOON, |frame| frame.bytes == left_alone).is_some());
    assert!(seen.receive_where(NOTHING, |frame| frame.bytes == taken).is_none());
    // ARP and ICMP are the kernel's.
    assert!(ping(&left, veth.right.ipv4().into(), SOON));
    running.signal("INT");
    let json = running.end().json();
    // `minimal` passes everything, and there is no way into the stack.
    assert_eq!((&json["packets"], &json["lost"]["no_stack"]), (&1.into(), &1.into()), "{json}");
}

/// The way into the kernel, which answers there as if nobody stood between: a transfer over a port
/// that is allowed, and none over another.
#[test]
fn what_passes_is_the_kernels() {
    let Some(Net { veth, left, right, _suite }) = net(1) else { return };
    for (stack, mode) in [("veth", "native"), ("tap", "native"), ("auto", "native"), ("veth", "skb")] {
        if mode == "skb" {
            // There the program gets what the sender has not cut, which no frame has room for (the
            // program says so).
            veth.left.ethtool(&["-K", "tso off gso off"]);
        }
        let arguments = ["--af-xdp", veth.right.name(), "--stack", stack, "--xdp-mode", mode];
        let running = Running::start(command(&right, "http_only", &arguments));
        assert!(right.ip(&["link"]).contains("back into the kernel"), "there is an interface for it");
        let addresses: [IpAddr; 2] = [veth.right.ipv4().into(), veth.right.ipv6().into()];
        for address in addresses {
            let refused = right.run(|| TcpListener::bind((address, 8080))).unwrap();
            tcp_echo(&left, &right, (address, 80), 1_000_000, SOON)
                .unwrap_or_else(|e| panic!("{stack}, {mode}, {address}: {e}"));
            assert!(left.run(|| TcpStream::connect_timeout(&(address, 8080).into(), NOTHING)).is_err(), "{address}");
            drop(refused);
        }
        running.signal("INT");
        let ended = running.end();
        assert!(ended.status.success(), "{}", ended.stderr);
        let json = ended.json();
        let count = |of: &serde_json::Value| of.as_u64().unwrap();
        assert!(count(&json["carried_out"]["pass"]) > 500, "{json}");
        assert_eq!(count(&json["verdicts"]["pass"]), count(&json["carried_out"]["pass"]), "{json}");
        // The sender leaves its checksums to a network card that there is not.
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
    assert!(running.said.contains("queues 0,1"), "{}", running.said);
    for _ in 0..100 {
        peer.send(&udp(&veth, 9, b"abc"));
    }
    std::thread::sleep(NOTHING);
    running.signal("INT");
    let ended = running.end();
    assert_eq!(ended.json()["packets"], 100, "{}", ended.stdout);
    let text = std::fs::read_to_string(flows).unwrap();
    let row = text.lines().nth(1).unwrap_or_else(|| panic!("a flow: {text}"));
    assert!(row.contains(",12345,9,17,100,3100,"), "{text}");
}

#[test]
fn what_is_wrong_is_said_before_anything_is_touched() {
    let Some(Net { veth, right, _suite, .. }) = net(2) else { return };
    let name = veth.right.name();
    let twice = format!("{name}:0");
    let listener = right.run(|| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let taken = listener.local_addr().unwrap().to_string();
    for (arguments, code, said) in [
        (&["--af-xdp", "no_such_if"][..], 1, "there is no interface `no_such_if`"),
        (&["--af-xdp", &format!("{name}:5")], 1, "has 2 receive queues, and no queue 5"),
        (&["--af-xdp", "a/b"], 2, "not an interface name"),
        (&["--af-xdp", name, "--af-xdp", &twice], 2, "given twice"),
        (&["--af-xdp", name, "--only", "tcp/http"], 2, "--only"),
        (&["--af-xdp", name, "--only", "tcp/80", "--all"], 2, "cannot be used with"),
        (&["--af-xdp", name, "--redirect", "3"], 2, "3=eth1"),
        (&["--af-xdp", name, "--redirect", "3=none"], 1, "there is no interface `none`"),
        (&["--af-xdp", name, "--zero-copy"], 1, "the driver has no zero-copy mode"),
        (
            &["--af-xdp", name, "--zero-copy", "--xdp-mode", "skb"],
            1,
            "no zero-copy mode where the XDP program runs in SKB mode",
        ),
        (&["--af-xdp", name, "--dispatch", "graph"], 1, "no dispatch method `graph`"),
        (&["--af-xdp", name, "--read", "x.pcap"], 2, "cannot be used with"),
        (&["--af-xdp", name, "--duration", "5"], 2, "a time with its unit"),
        (&["--af-xdp", name, "--pin", "60000"], 2, "no processor 60000"),
        (&["--af-xdp", name, "--metrics", &taken], 1, "in use"),
        (&["--nfqueue", "0", "--stack", "tap"], 2, "cannot be used with"),
        (&["--duration", "1s"], 2, "--af-xdp"),
    ] {
        let ExitedRun { status, stderr, .. } = ends(command(&right, "minimal", arguments));
        assert_eq!(status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
        assert!(!has_program(&veth.right), "{arguments:?}");
        assert!(!stderr.contains("native mode"), "attached before: {arguments:?}: {stderr}");
    }
    // Files, too, are read before.
    let file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    std::fs::write(file.path(), "key,value\nno number,1\n").unwrap();
    let rows = format!("blocked_v4={}", file.path().display());
    let ended = ends(command(&right, "blacklist", &["--af-xdp", name, "--map", &rows]));
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(!ended.stderr.contains("native mode") && ended.stderr.contains(".csv"), "{}", ended.stderr);
    // Somebody else has the interface.
    let running = Running::start(command(&right, "minimal", &["--af-xdp", name]));
    let ended = ends(command(&right, "minimal", &["--af-xdp", name]));
    assert_eq!(ended.status.code(), Some(1));
    let holder = format!("process {} (portcullis)", running.process());
    assert!(ended.stderr.contains(name) && ended.stderr.contains(&holder), "{}", ended.stderr);
    running.signal("INT");
    assert!(running.end().status.success());
}

#[test]
fn who_may_not_is_told_what_is_missing() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    // As root without capabilities: an ordinary user may not even be able to read the program here.
    let whole = command(&right, "minimal", &["--af-xdp", veth.right.name(), "--duration", "100ms"]);
    let with = |capabilities: &str| {
        let mut command = right.command("setpriv");
        command.args(["--bounding-set", &format!("-all{capabilities}"), "--inh-caps", "-all", "--"]);
        // Behind `ip netns exec NAME`.
        command.args(whole.get_args().skip(3));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        ends(command)
    };
    for (capabilities, missing) in [
        ("", "CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON are missing"),
        (",+net_raw,+bpf,+perfmon,+ipc_lock", "CAP_NET_ADMIN"),
        (",+net_admin,+bpf,+perfmon,+ipc_lock", "CAP_NET_RAW"),
        (",+net_admin,+net_raw,+perfmon,+ipc_lock", "CAP_BPF is missing"),
        (",+net_admin,+net_raw,+bpf,+ipc_lock", "CAP_PERFMON is missing"),
    ] {
        let ExitedRun { status, stderr, .. } = with(capabilities);
        assert_eq!(status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(missing) && stderr.lines().count() < 3, "{capabilities}: {stderr}");
        assert!(!stderr.contains("no memory") && !stderr.contains("another place"), "{capabilities}: {stderr}");
    }
    let ExitedRun { status, stderr, .. } = with(",+net_admin,+net_raw,+bpf,+perfmon,+ipc_lock");
    assert!(status.success(), "{stderr}");
}

/// Bytes of memory in huge pages that nobody has, as proc(5) tells.
fn huge_memory() -> u64 {
    let all = std::fs::read_to_string("/proc/meminfo").unwrap();
    let field = |name: &str| {
        let line = all.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    field("HugePages_Free:") * field("Hugepagesize:") * 1024
}

#[test]
fn the_kernel_may_poll_and_pages_may_be_huge() {
    let Some(Net { veth, left, right, _suite }) = net(1) else { return };
    for option in ["--busy-poll", "--huge-pages"] {
        let command = command(&right, "http_only", &["--af-xdp", veth.right.name(), option][..]);
        if option == "--huge-pages" && huge_memory() < 64 << 20 {
            println!(
                "no huge pages are set aside here (vm.nr_hugepages): what is said then is all that is tested of them"
            );
            let ended = ends(command);
            assert!(ended.status.code() == Some(1) && ended.stderr.contains("vm.nr_hugepages"), "{}", ended.stderr);
            continue;
        }
        let running = Running::start(command);
        tcp_echo(&left, &right, (IpAddr::from(veth.right.ipv4()), 80), 1_000_000, SOON)
            .unwrap_or_else(|e| panic!("{option}: {e}"));
        running.signal("INT");
        let ended = running.end();
        assert!(ended.status.success(), "{option}: {}", ended.stderr);
        let json = ended.json();
        assert!(json["carried_out"]["pass"].as_u64().unwrap() > 10, "{json}");
        assert_eq!(json["frames"]["missing"], 0, "{json}");
    }
}

#[test]
fn a_run_ends_after_its_time() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let arguments = ["--af-xdp", veth.right.name(), "--duration", "200ms"];
    assert!(Running::start(command(&right, "minimal", &arguments)).end().status.success());
}
