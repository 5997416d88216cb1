//! `--control` and `portcullis ctl`.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use portcullis_live_tests::{PacketSocket, wait_until};

use crate::af_xdp::{Net, net};
use crate::ctl::{
    CtlFolder, MARK, NUMBER, check_accounting, check_reload_under_load, marking_filter, numbered, under_load,
    wait_for_more,
};
use crate::events::object;
use crate::support::{Running, TIMEOUT, command, count, run_to_end};

/// Tests with one lane are in `devices.rs`.
#[test]
fn a_reload_switches_all_lanes_and_every_packet_gets_a_verdict() {
    for dispatch in ["inline", "pipelined"] {
        check_reload_under_load(2, "cpu", dispatch);
    }
}

#[test]
fn a_failed_reload_changes_nothing() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let mut peer = PacketSocket::at(&veth.left);
    let ctl = CtlFolder::new();
    let a = ctl.filter("a", &marking_filter('A'));
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--control", &ctl.socket()];
    let running = Running::start(command(&right, &a, &arguments));
    ctl.filter("wrong", "fn xdp_filter(pkt: u32) -> u32 {\n    return XDP_DORP;\n}");
    ctl.assert_failure(1, &["reload", &ctl.text("wrong.wgsl")], &["XDP_DORP", "wrong.wgsl:2:12"]);
    let good = a.clone() + ".wgsl";
    ctl.assert_failure(2, &["reload", &good, "--set", "x=1"], &["--set x"]);
    ctl.assert_failure(1, &["reload", &ctl.text("none.wgsl")], &["none.wgsl: "]);
    ctl.assert_failure(1, &["reload", &ctl.text(""), "--language", "wgsl"], &["not a regular file"]);
    ctl.assert_failure(2, &["reload", "-"], &["needs a file"]);
    ctl.assert_failure(2, &["reload", &ctl.text("a.txt")], &["--language"]);
    let pipe = ctl.text("pipe.wgsl");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    ctl.assert_failure(1, &["reload", &pipe], &["not a regular file"]);
    peer.send(&numbered(&veth, 0));
    assert!(peer.receive_where(TIMEOUT, |frame| frame.bytes.get(MARK) == Some(&b'A')).is_some());
    // A reload sets parameters afresh, and takes effect without traffic.
    let set = "override mark: u32 = 67u;\n".to_owned() + &marking_filter('A').replace("65u", "mark");
    ctl.filter("set", &set);
    for (arguments, mark) in [(&["--set", "mark=68"][..], b'D'), (&[], b'C')] {
        ctl.run_successfully(&[&["reload", &ctl.text("set.wgsl")], arguments].concat());
        peer.send(&numbered(&veth, 0));
        let back = peer.receive_where(TIMEOUT, |frame| frame.bytes.get(MARK).is_some_and(|mark| *mark > 0)).unwrap();
        assert_eq!(back.bytes[MARK], mark);
    }
    let stats = ctl.run_json(&["stats"]);
    assert_eq!((&stats["filter"], count(&stats["verdicts"]["tx"])), (&ctl.text("set.wgsl").into(), 3), "{stats}");
    let stats = ctl.run_successfully(&["stats"]);
    assert!(stats.contains("set.wgsl, on cpu") && stats.contains("tx"), "{stats}");
    let batches = format!("  at {}:0 ", veth.right.name());
    assert!(stats.contains(&batches), "no batch size of --batch auto: {stats}");
    // A stock filter needs no path, and has no file.
    assert!(ctl.run_successfully(&["reload", "minimal"]).starts_with("minimal has replaced the filter"));
    assert_eq!(ctl.run_json(&["stats"])["filter"], "minimal");
    running.stop();
}

/// An object with two programs.
const PROGRAMS: &str = r#"
SEC("xdp") int back(struct xdp_md *ctx) { return XDP_TX; }
SEC("xdp/drop") int none(struct xdp_md *ctx) { return XDP_DROP; }
"#;

#[test]
fn a_reload_can_name_a_program_of_an_object() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let ctl = CtlFolder::new();
    let Some(object) = object(&ctl, "programs", PROGRAMS) else { return };
    let plain = ctl.text("programs");
    std::fs::copy(&object, &plain).unwrap();
    let a = ctl.filter("a", &marking_filter('A'));
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--control", &ctl.socket()];
    let running = Running::start(command(&right, &a, &arguments));
    let peer = PacketSocket::at(&veth.left);
    let mut sent = 0;
    for (filter, verdict) in [
        (&[&*(object.clone() + ":none")][..], "drop"),
        (&[&*(object.clone() + ":xdp")], "tx"),
        (&[&*(plain.clone() + ":xdp/drop"), "--language", "xdp"], "drop"),
        (&[&*(plain.clone() + ":back"), "--language", "xdp"], "tx"),
    ] {
        let output = ctl.run_successfully(&[&["reload"], filter].concat());
        assert!(output.contains(&format!("{} has replaced the filter", filter[0])), "{output}");
        let stats = || ctl.run_json(&["stats"]);
        let before = count(&stats()["verdicts"][verdict]);
        (0..8).for_each(|number| peer.send(&numbered(&veth, number)));
        sent += 8;
        wait_until("the packets are received", TIMEOUT, || count(&stats()["packets"]) == sent);
        let now = stats();
        assert_eq!((count(&now["verdicts"][verdict]), &now["filter"]), (before + 8, &filter[0].into()), "{now}");
    }
    for (filter, words) in [
        (&[&*object][..], "the object has 2 programs: say which"),
        (&[&*(object.clone() + ":nine")], "the object has no program `nine`"),
        (&[&*ctl.text("none.o:back")], "none.o:back: "),
        (&[&*(ctl.text("") + ":back"), "--language", "xdp"], "not a regular file"),
    ] {
        ctl.assert_failure(1, &[&["reload"], filter].concat(), &[words]);
    }
    ctl.assert_failure(2, &["reload", "/dev/stdin:back", "--language", "xdp"], &["needs a file"]);
    running.stop();
}

const COUNTING: &str = "//! map seen: counter entries=4
//! map named: hash key=1 value=1 entries=16
fn xdp_filter(pkt: u32) -> u32 {
    seen_add(0u, 1u);
    return XDP_DROP;
}";

#[test]
fn a_reload_keeps_maps_of_the_same_name_and_shape() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let peer = PacketSocket::at(&veth.left);
    let ctl = CtlFolder::new();
    let first = ctl.filter("first", COUNTING);
    // `named` is larger, `other` is new, and each packet counts ten times.
    let second = COUNTING.replace("entries=16", "entries=32").replace("1u);", "10u);");
    ctl.filter("second", &("//! map other: array value=2 entries=3\n".to_owned() + &second));
    std::fs::write(ctl.path("named.csv"), "5,50\n").unwrap();
    let (seen, named) = (format!("seen={}", ctl.text("seen.csv")), format!("named={}", ctl.text("named.csv")));
    let socket = ctl.socket();
    let mut arguments = vec!["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--control", &socket];
    arguments.extend(["--dump-map", &seen, "--watch-map", &named]);
    let state = ctl.text("state");
    arguments.extend(["--state", &state]);
    let running = Running::start(command(&right, &first, &arguments));
    let send = |count: u32| (0..count).for_each(|number| peer.send(&numbered(&veth, number)));
    let expect_sum = |wanted: u64| {
        let wanted = format!("index,sum\n0,{wanted}\n");
        wait_until("the packets are counted", TIMEOUT, || ctl.run_successfully(&["map", "get", "seen", "0"]) == wanted);
    };
    send(7);
    expect_sum(7);
    assert_eq!(ctl.run_successfully(&["map", "get", "named"]), "key0,value0\n5,50\n");
    let output = ctl.run_successfully(&["reload", &ctl.text("second.wgsl")]);
    assert!(output.contains("maps carried over: seen\nmaps that start empty: other, named\n"), "{output}");
    assert!(output.contains("maps of the old filter that were dropped: named\n"), "{output}");
    send(2);
    expect_sum(27);
    // The new filter's map follows the file too.
    assert_eq!(ctl.run_successfully(&["map", "get", "named"]), "key0,value0\n5,50\n");
    std::fs::write(ctl.path("named.csv"), "5,50\n6,60\n").unwrap();
    wait_until("the map follows", TIMEOUT, || {
        ctl.run_successfully(&["map", "get", "named"]) == "key0,value0\n5,50\n6,60\n"
    });
    // A filter must have the maps that the run's files belong to.
    ctl.filter("none", "fn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }");
    ctl.assert_failure(2, &["reload", &ctl.text("none.wgsl")], &["--state"]);
    ctl.filter("other", "//! map seen: counter entries=4\nfn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }");
    ctl.assert_failure(2, &["reload", &ctl.text("other.wgsl")], &["the filter has no map `named`; it has `seen`"]);
    // If a file does not fit the new filter's map, the reload has no effect.
    std::fs::write(ctl.path("named.csv"), "5,50,500\n").unwrap();
    ctl.assert_failure(1, &["reload", &ctl.text("second.wgsl")], &["named.csv:1: "]);
    expect_sum(27);
    // Reloading the first filter carries the map over once more.
    std::fs::write(ctl.path("named.csv"), "5,50\n").unwrap();
    let output = ctl.run_successfully(&["reload", &(first.clone() + ".wgsl")]);
    assert!(output.contains("maps carried over: seen\nmaps that start empty: named\n"), "{output}");
    send(3);
    expect_sum(30);
    running.stop();
    assert_eq!(std::fs::read_to_string(ctl.path("seen.csv")).unwrap(), "index,sum\n0,30\n1,0\n2,0\n3,0\n");
    // The state file holds the last filter's state.
    let running = Running::start(command(&right, &first, &arguments));
    expect_sum(30);
    running.stop();
}

#[test]
fn maps_are_read_and_written_under_load() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let ctl = CtlFolder::new();
    let text = "//! map blocked: hash key=1 value=1 entries=20 fields=number:u32,why:u32
//! map routes: lpm key=1 value=1 entries=8
"
    .to_owned()
        + &marking_filter('A').replace(
            "    store_u8",
            &format!("    if blocked_find(load_be32(pkt, {NUMBER}u) & 65535u) != MAP_NONE {{ return XDP_DROP; }}\n    store_u8"),
        );
    let filter = ctl.filter("blocking", &text);
    for dispatch in ["inline", "pipelined"] {
        let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--control", &ctl.socket()];
        let running = Running::start(command(&right, &filter, &[&arguments[..], &["--dispatch", dispatch]].concat()));
        let (sent, back) = under_load(&veth, &ctl, |sent| {
            for round in 0..20 {
                ctl.run_successfully(&["map", "set", "blocked", &format!("{}", 1000 + round), "7"]);
                wait_for_more(sent, 200);
            }
            // A map holds at least as many entries as it declares.
            let more = (2000..).take_while(|key| {
                let ended = ctl.run(&["map", "set", "blocked", &key.to_string(), "7"]);
                let is_full = ended.err.contains("there is no room in the map `blocked` for this entry (entries=20)");
                assert_eq!(ended.code, i32::from(is_full), "{}", ended.err);
                !is_full
            });
            let more = more.count();
            ctl.run_successfully(&["map", "set", "blocked", "1000", "0x10"]);
            assert_eq!(ctl.run_successfully(&["map", "get", "blocked", "1000"]), "number,why\n1000,16\n");
            ctl.run_successfully(&["map", "del", "blocked", "1001"]);
            let all = ctl.run_successfully(&["map", "get", "blocked"]);
            assert_eq!(all.lines().count(), 1 + 19 + more, "{all}");
            let all = ctl.run_json(&["map", "get", "blocked"]);
            assert_eq!(all[0], serde_json::json!({"key": [1000], "value": [16]}));
            ctl.run_successfully(&["map", "set", "routes", "10.0.0.0/8", "10.0.0.1"]);
            ctl.run_successfully(&["map", "set", "routes", "10.1.0.0/16", "2"]);
            ctl.run_successfully(&["map", "del", "routes", "10.0.0.0/8"]);
            assert_eq!(ctl.run_successfully(&["map", "get", "routes"]), "prefix,value0\n10.1.0.0/16,2\n");
            for (arguments, message) in [
                (&["get", "nothing"][..], "the filter has no map `nothing`; it has `blocked`, `routes`"),
                (&["get", "blocked", "4"], "the map `blocked` has no entry 4"),
                (&["del", "blocked", "1001"], "the map `blocked` has no entry 1001"),
                (&["set", "blocked", "x", "1"], "`x` is neither a number nor an address"),
                (&["set", "blocked", "1", "2", "3"], "`3` is one cell too many"),
                (&["set", "blocked", "1"], "the row ends after 0 of 1 words of its value"),
                (&["set", "blocked", "1,2", "3"], "`2` is one cell too many"),
                (&["get", "routes", "10.0.0.0/99"], "is not a prefix"),
            ] {
                ctl.assert_failure(1, &[&["map"], arguments].concat(), &[message]);
            }
        });
        check_accounting(&running.stop().parse_json(), sent, &back);
    }
}

#[test]
fn a_filter_with_maps_is_refused_by_several_lanes() {
    let Some(Net { veth, right, _suite, .. }) = net(2) else { return };
    let ctl = CtlFolder::new();
    let plain = ctl.filter("plain", &marking_filter('A'));
    ctl.filter("counting", COUNTING);
    let socket = ctl.socket();
    let arguments = ["--af-xdp", veth.right.name(), "--control", &socket];
    let running = Running::start(command(&right, &plain, &arguments));
    ctl.assert_failure(1, &["reload", &ctl.text("counting.wgsl")], &["start it with --lanes one"]);
    // A run with --control is prepared for filters that change lengths, read metadata or write
    // packets.
    let shaders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders");
    for name in ["vlan_pop", "sampler", "mac_swap"] {
        ctl.run_successfully(&["reload", shaders.join(format!("{name}.wgsl")).to_str().unwrap()]);
    }
    running.stop();

    let running = Running::start(command(&right, &plain, &[&arguments[..], &["--lanes", "one"]].concat()));
    let output = ctl.run_successfully(&["reload", &ctl.text("counting.wgsl")]);
    assert!(output.contains("maps that start empty: seen, named"), "{output}");
    running.stop();
    run_to_end(command(&right, &ctl.text("counting"), &[&arguments[..], &["--lanes", "each"]].concat()))
        .assert_failure(2, &["--lanes each: the filter has maps"]);
}

#[test]
fn malformed_requests_do_not_disturb_the_traffic() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let ctl = CtlFolder::new();
    let filter = ctl.filter("a", &marking_filter('A'));
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--control", &ctl.socket()];
    let running = Running::start(command(&right, &filter, &arguments));
    let socket = ctl.path("control");
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let (sent, back) = under_load(&veth, &ctl, |_| {
        let asked = |bytes: &[u8]| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            // The run may have closed the connection before everything is written.
            let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        };
        for (request, message) in [
            (&b""[..], "not a line of JSON"),
            (b"\n", "not a line of JSON"),
            (b"hello\n", "not a line of JSON"),
            (b"\xff\xfe\n", "not a line of JSON"),
            (br#"{"version":2,"request":"stats"}"#, "has version 2"),
            (br#"{"version":1,"request":"stop"}"#, "unknown variant"),
            (br#"{"version":1,"request":{"reload":{"filter":"a.wgsl"}}}"#, "absolute"),
            (br#"{"version":1,"request":{"reload":{}}}"#, "but not both"),
            (br#"{"version":1,"request":{"reload":{"filter":"/a.wgsl","expr":"tcp"}}}"#, "but not both"),
            (br#"{"version":1,"request":{"reload":{"expr":"tcp port"}}}"#, "--expr"),
            (br#"{"version":1,"request":{"map-get":{"map":"m"}}}"#, "no map `m`"),
            (br#"{"version":1,"request":"stats"}"#, r#""stats":{"filter":"#),
        ] {
            let answer = asked(request);
            assert!(answer.contains(message) && answer.ends_with("}\n"), "{}: {answer}", request.escape_ascii());
            assert_eq!(answer.lines().count(), 1);
        }
        assert!(asked(&vec![b'x'; 1 << 20]).contains("more than 65536 bytes"));
        // One client sends nothing, one disconnects at once, one does not read its answer; a later
        // client is answered.
        let silent = UnixStream::connect(&socket).unwrap();
        drop(UnixStream::connect(&socket).unwrap());
        let mut unread = UnixStream::connect(&socket).unwrap();
        unread.write_all(b"{\"version\":1,\"request\":\"stats\"}\n").unwrap();
        drop(unread);
        assert!(ctl.run_successfully(&["stats"]).contains("a.wgsl"));
        drop(silent);
    });
    // A client that never sends does not delay the end of the run.
    let silent = UnixStream::connect(&socket).unwrap();
    check_accounting(&running.stop().parse_json(), sent, &back);
    drop(silent);
}

#[test]
fn a_control_socket_belongs_to_one_run() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let ctl = CtlFolder::new();
    let socket = ctl.socket();
    let arguments = ["--af-xdp", veth.right.name(), "--control", &socket];
    let refused = |what: &str| run_to_end(command(&right, "minimal", &arguments)).assert_failure(1, &[what]);
    let running = Running::start(command(&right, "minimal", &arguments));
    refused("another run listens here");
    running.kill();
    ctl.assert_failure(1, &["stats"], &["Connection refused (os error 111); the run has ended"]);
    // A killed run's socket is replaced.
    let running = Running::start(command(&right, "minimal", &arguments));
    ctl.run_successfully(&["stats"]);
    running.stop();
    ctl.assert_failure(1, &["stats"], &["No such file or directory (os error 2); give the path"]);
    std::fs::write(&socket, "mine").unwrap();
    refused("exists and is not a socket");
    assert_eq!(std::fs::read(&socket).unwrap(), b"mine");
    ctl.assert_failure(1, &["stats"], &["Connection refused (os error 111); it is not a socket"]);
    std::fs::remove_file(&socket).unwrap();
    // A listener that never answers.
    let other = UnixListener::bind(&socket).unwrap();
    let answering = std::thread::spawn(move || drop(other.accept()));
    ctl.assert_failure(1, &["stats"], &["closed the connection without an answer"]);
    answering.join().unwrap();
}

/// Returns the effective capabilities of a run's threads, with the threads' names.
fn effective(ctl: &CtlFolder, running: &Running) -> Vec<(String, u64)> {
    // All threads are running once the run answers.
    ctl.run_successfully(&["stats"]);
    let of_thread = |status: String| {
        let line =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
        assert!(line("Name:") == "ctrl-c" || line("NoNewPrivs:") == "1", "{status}");
        (line("Name:"), u64::from_str_radix(&line("CapEff:"), 16).unwrap())
    };
    let threads = std::fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
    let statuses = threads.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("status")).ok());
    statuses.map(of_thread).filter(|(name, _)| name != "ctrl-c").collect()
}

const NET_ADMIN: u64 = 1 << 12;
const DAC_OVERRIDE: u64 = 1 << 1;

#[test]
fn capabilities_are_dropped_once_they_are_not_needed() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let ctl = CtlFolder::new();
    let counting = ctl.filter("counting", COUNTING);
    // A folder of another user, in which root may write only by privilege.
    let folder = ctl.path("theirs");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&folder, Some(65534), Some(65534)).unwrap();
    let state = folder.join("state").to_str().unwrap().to_owned();
    let socket = ctl.socket();
    for (more, files) in [(&[][..], 0), (&["--state", &state, "--state-every", "1"][..], DAC_OVERRIDE)] {
        let arguments = [&["--af-xdp", veth.right.name(), "--control", &socket][..], more].concat();
        let running = Running::start(command(&right, &counting, &arguments));
        let mut threads = effective(&ctl, &running);
        let of_main = threads.iter().position(|(name, _)| name == "portcullis").expect("the main thread");
        assert_eq!(threads.remove(of_main).1, NET_ADMIN | files, "kept for removing interfaces");
        assert!(
            threads.iter().any(|(name, _)| name == "control") && threads.iter().any(|(name, _)| name == "run"),
            "{threads:?}"
        );
        for (name, capabilities) in threads {
            assert_eq!(capabilities, files, "{name}");
        }
        // A file that only root may read.
        let private = ctl.path("counting.wgsl");
        std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o600)).unwrap();
        ctl.run_successfully(&["reload", private.to_str().unwrap()]);
        if files != 0 {
            wait_until("the state is written", TIMEOUT, || Path::new(&state).exists());
        }
        let ended = running.stop();
        assert!(ended.err.contains("capabilities: all dropped except CAP_NET_ADMIN"), "{}", ended.err);
        let links = right.ip(&["link"]);
        assert!(!links.contains("back into the kernel"), "{links}");
    }
    assert!(Path::new(&state).exists());
    // With nothing to remove at the end, all capabilities are dropped.
    let running = Running::start(command(
        &right,
        "minimal",
        &["--af-xdp", veth.right.name(), "--stack", "none", "--control", &socket],
    ));
    assert!(effective(&ctl, &running).iter().all(|(_, capabilities)| *capabilities == 0));
    assert!(running.stop().err.contains("capabilities: all dropped\n"));
}

#[cfg(feature = "nfqueue")]
#[test]
fn a_reload_works_on_a_netfilter_queue() {
    use portcullis_live_tests::ping;
    let Some(crate::nfqueue::Net { veth, left, right, .. }) =
        crate::nfqueue::net(&["-A INPUT -j NFQUEUE --queue-num 5"])
    else {
        return;
    };
    let ctl = CtlFolder::new();
    let running = Running::start(command(&right, "minimal", &["--nfqueue", "5", "--control", &ctl.socket()]));
    let address = veth.right.ipv4().into();
    assert!(ping(&left, address, TIMEOUT));
    for (name, capabilities) in effective(&ctl, &running) {
        assert_eq!(capabilities, if name == "control" { 0 } else { NET_ADMIN }, "{name}");
    }
    ctl.filter("none", "fn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }");
    ctl.run_successfully(&["reload", &ctl.text("none.wgsl")]);
    assert!(!ping(&left, address, crate::support::QUIET_TIME));
    // A filter with maps is accepted, as there is one queue.
    ctl.filter("counting", &COUNTING.replace("XDP_DROP", "XDP_PASS"));
    ctl.run_successfully(&["reload", &ctl.text("counting.wgsl")]);
    assert!(ping(&left, address, TIMEOUT));
    assert_ne!(ctl.run_successfully(&["map", "get", "seen", "0"]), "index,sum\n0,0\n");
    running.stop();
}
