//! `--control` and `portcullis ctl`.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use portcullis_live_tests::{PacketSocket, wait_until};
use serde_json::Value;

use crate::af_xdp::{Net, net};
use crate::desk::{
    Desk, MARK, NUMBER, accounts, count, filters_take_over_under_load, marking, numbered, under_load, wait_for_more,
};
use crate::events::object;
use crate::support::{Running, SOON, command, ends};

/// With one lane: `devices.rs`.
#[test]
fn another_filter_takes_over_in_all_lanes_and_no_packet_is_without_a_verdict() {
    for dispatch in ["inline", "pipelined"] {
        filters_take_over_under_load(2, "cpu", dispatch);
    }
}

#[test]
fn a_filter_that_does_not_compile_changes_nothing() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let mut peer = PacketSocket::at(&veth.left);
    let desk = Desk::new();
    let a = desk.filter("a", &marking('A'));
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--control", &desk.socket()];
    let running = Running::start(command(&right, &a, &arguments));
    desk.filter("wrong", "fn xdp_filter(pkt: u32) -> u32 {\n    return XDP_DORP;\n}");
    let said = desk.refused(1, &["reload", &desk.text("wrong.wgsl")]);
    assert!(said.contains("XDP_DORP") && said.contains("wrong.wgsl:2:12"), "{said}");
    let good = a.clone() + ".wgsl";
    assert!(desk.refused(2, &["reload", &good, "--set", "x=1"]).contains("--set x"));
    assert!(desk.refused(1, &["reload", &desk.text("none.wgsl")]).contains("none.wgsl: "));
    assert!(desk.refused(1, &["reload", &desk.text(""), "--language", "wgsl"]).contains("this is no file"));
    assert!(desk.refused(2, &["reload", "-"]).contains("needs a file"));
    assert!(desk.refused(2, &["reload", &desk.text("a.txt")]).contains("--language"));
    let pipe = desk.text("pipe.wgsl");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(desk.refused(1, &["reload", &pipe]).contains("this is no file"));
    peer.send(&numbered(&veth, 0));
    assert!(peer.receive_where(SOON, |frame| frame.bytes.get(MARK) == Some(&b'A')).is_some());
    // Parameters are set anew, and nobody need send anything for it.
    let set = "override mark: u32 = 67u;\n".to_owned() + &marking('A').replace("65u", "mark");
    desk.filter("set", &set);
    for (arguments, mark) in [(&["--set", "mark=68"][..], b'D'), (&[], b'C')] {
        desk.done(&[&["reload", &desk.text("set.wgsl")], arguments].concat());
        peer.send(&numbered(&veth, 0));
        let back = peer.receive_where(SOON, |frame| frame.bytes.get(MARK).is_some_and(|mark| *mark > 0)).unwrap();
        assert_eq!(back.bytes[MARK], mark);
    }
    let stats: Value = serde_json::from_str(&desk.done(&["stats", "--json"])).unwrap();
    assert_eq!((&stats["filter"], count(&stats["verdicts"]["tx"])), (&desk.text("set.wgsl").into(), 3), "{stats}");
    let stats = desk.done(&["stats"]);
    assert!(stats.contains("set.wgsl, on cpu") && stats.contains("tx"), "{stats}");
    let batches = format!("  at {}:0 ", veth.right.name());
    assert!(stats.contains(&batches), "what --batch auto has found: {stats}");
    running.signal("INT");
    assert!(running.end().status.success());
}

/// Two programs of a file.
const PROGRAMS: &str = r#"
SEC("xdp") int back(struct xdp_md *ctx) { return XDP_TX; }
SEC("xdp/drop") int none(struct xdp_md *ctx) { return XDP_DROP; }
"#;

#[test]
fn a_program_that_is_named_in_an_object_takes_over() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let desk = Desk::new();
    let Some(object) = object(&desk, "programs", PROGRAMS) else { return };
    let plain = desk.text("programs");
    std::fs::copy(&object, &plain).unwrap();
    let a = desk.filter("a", &marking('A'));
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--control", &desk.socket()];
    let running = Running::start(command(&right, &a, &arguments));
    let peer = PacketSocket::at(&veth.left);
    let mut sent = 0;
    for (filter, verdict) in [
        (&[&*(object.clone() + ":none")][..], "drop"),
        (&[&*(object.clone() + ":xdp")], "tx"),
        (&[&*(plain.clone() + ":xdp/drop"), "--language", "xdp"], "drop"),
        (&[&*(plain.clone() + ":back"), "--language", "xdp"], "tx"),
    ] {
        let told = desk.done(&[&["reload"], filter].concat());
        assert!(told.contains(&format!("{} has taken over", filter[0])), "{told}");
        let stats = || -> Value { serde_json::from_str(&desk.done(&["stats", "--json"])).unwrap() };
        let before = count(&stats()["verdicts"][verdict]);
        (0..8).for_each(|number| peer.send(&numbered(&veth, number)));
        sent += 8;
        wait_until("they have come", SOON, || count(&stats()["packets"]) == sent);
        let now = stats();
        assert_eq!((count(&now["verdicts"][verdict]), &now["filter"]), (before + 8, &filter[0].into()), "{now}");
    }
    for (filter, words) in [
        (&[&*object][..], "the object has 2 programs: say which"),
        (&[&*(object.clone() + ":nine")], "the object has no program `nine`"),
        (&[&*desk.text("none.o:back")], "none.o:back: "),
        (&[&*(desk.text("") + ":back"), "--language", "xdp"], "this is no file"),
    ] {
        let said = desk.refused(1, &[&["reload"], filter].concat());
        assert!(said.contains(words), "{said}");
    }
    assert!(desk.refused(2, &["reload", "/dev/stdin:back", "--language", "xdp"]).contains("needs a file"));
    running.signal("INT");
    assert!(running.end().status.success());
}

const COUNTING: &str = "//! map seen: counter entries=4
//! map named: hash key=1 value=1 entries=16
fn xdp_filter(pkt: u32) -> u32 {
    seen_add(0u, 1u);
    return XDP_DROP;
}";

#[test]
fn maps_of_the_same_name_and_shape_go_on() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let peer = PacketSocket::at(&veth.left);
    let desk = Desk::new();
    let first = desk.filter("first", COUNTING);
    // `named` is larger, `other` is new, and each packet counts ten times.
    let second = COUNTING.replace("entries=16", "entries=32").replace("1u);", "10u);");
    desk.filter("second", &("//! map other: array value=2 entries=3\n".to_owned() + &second));
    std::fs::write(desk.path("named.csv"), "5,50\n").unwrap();
    let (seen, named) = (format!("seen={}", desk.text("seen.csv")), format!("named={}", desk.text("named.csv")));
    let socket = desk.socket();
    let mut arguments = vec!["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--control", &socket];
    arguments.extend(["--dump-map", &seen, "--watch-map", &named]);
    let state = desk.text("state");
    arguments.extend(["--state", &state]);
    let running = Running::start(command(&right, &first, &arguments));
    let send = |count: u32| (0..count).for_each(|number| peer.send(&numbered(&veth, number)));
    let is = |wanted: u64| {
        let wanted = format!("index,sum\n0,{wanted}\n");
        wait_until("they are counted", SOON, || desk.done(&["map", "get", "seen", "0"]) == wanted);
    };
    send(7);
    is(7);
    assert_eq!(desk.done(&["map", "get", "named"]), "key0,value0\n5,50\n");
    let told = desk.done(&["reload", &desk.text("second.wgsl")]);
    assert!(told.contains("maps carried over: seen\nmaps that begin empty: other, named\n"), "{told}");
    assert!(told.contains("maps of the old filter that are gone: named\n"), "{told}");
    send(2);
    is(27);
    // The file is followed there, too.
    assert_eq!(desk.done(&["map", "get", "named"]), "key0,value0\n5,50\n");
    std::fs::write(desk.path("named.csv"), "5,50\n6,60\n").unwrap();
    wait_until("the map follows", SOON, || desk.done(&["map", "get", "named"]) == "key0,value0\n5,50\n6,60\n");
    // Without the maps that the run's files are of, it would not have begun.
    desk.filter("none", "fn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }");
    assert!(desk.refused(2, &["reload", &desk.text("none.wgsl")]).contains("--state"));
    desk.filter("other", "//! map seen: counter entries=4\nfn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }");
    assert!(
        desk.refused(2, &["reload", &desk.text("other.wgsl")]).contains("the filter has no map `named`; it has `seen`")
    );
    // A file that is wrong for the new filter's map: nothing changes.
    std::fs::write(desk.path("named.csv"), "5,50,500\n").unwrap();
    assert!(desk.refused(1, &["reload", &desk.text("second.wgsl")]).contains("named.csv:1: "));
    is(27);
    // Back: what was carried over once is again.
    std::fs::write(desk.path("named.csv"), "5,50\n").unwrap();
    let told = desk.done(&["reload", &(first.clone() + ".wgsl")]);
    assert!(told.contains("maps carried over: seen\nmaps that begin empty: named\n"), "{told}");
    send(3);
    is(30);
    running.signal("INT");
    let ended = running.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(desk.path("seen.csv")).unwrap(), "index,sum\n0,30\n1,0\n2,0\n3,0\n");
    // And the state is the last filter's.
    let running = Running::start(command(&right, &first, &arguments));
    is(30);
    running.signal("INT");
    assert!(running.end().status.success());
}

#[test]
fn maps_are_read_and_written_under_load() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let desk = Desk::new();
    let text = "//! map blocked: hash key=1 value=1 entries=20 fields=number:u32,why:u32
//! map routes: lpm key=1 value=1 entries=8
"
    .to_owned()
        + &marking('A').replace(
            "    store_u8",
            &format!("    if blocked_find(load_be32(pkt, {NUMBER}u) & 65535u) != MAP_NONE {{ return XDP_DROP; }}\n    store_u8"),
        );
    let filter = desk.filter("blocking", &text);
    for dispatch in ["inline", "pipelined"] {
        let arguments = [
            "--af-xdp",
            veth.right.name(),
            "--only",
            "udp/1000-1063",
            "--control",
            &desk.socket(),
            "--dispatch",
            dispatch,
        ];
        let running = Running::start(command(&right, &filter, &arguments));
        let (sent, back) = under_load(&veth, |sent| {
            for round in 0..20 {
                desk.done(&["map", "set", "blocked", &format!("{}", 1000 + round), "7"]);
                wait_for_more(sent, 200);
            }
            // A map has room for at least as many as it says.
            let more = (2000..).take_while(|key| {
                let ended = desk.ctl(&["map", "set", "blocked", &key.to_string(), "7"]);
                let is_full =
                    ended.stderr.contains("there is no room in the map `blocked` for this entry (entries=20)");
                assert_eq!(ended.status.code(), Some(i32::from(is_full)), "{}", ended.stderr);
                !is_full
            });
            let more = more.count();
            desk.done(&["map", "set", "blocked", "1000", "0x10"]);
            assert_eq!(desk.done(&["map", "get", "blocked", "1000"]), "number,why\n1000,16\n");
            desk.done(&["map", "del", "blocked", "1001"]);
            let all = desk.done(&["map", "get", "blocked"]);
            assert_eq!(all.lines().count(), 1 + 19 + more, "{all}");
            let all: Value = serde_json::from_str(&desk.done(&["map", "get", "blocked", "--json"])).unwrap();
            assert_eq!(all[0], serde_json::json!({"key": [1000], "value": [16]}));
            desk.done(&["map", "set", "routes", "10.0.0.0/8", "10.0.0.1"]);
            desk.done(&["map", "set", "routes", "10.1.0.0/16", "2"]);
            desk.done(&["map", "del", "routes", "10.0.0.0/8"]);
            assert_eq!(desk.done(&["map", "get", "routes"]), "prefix,value0\n10.1.0.0/16,2\n");
            for (arguments, said) in [
                (&["get", "nothing"][..], "the filter has no map `nothing`; it has `blocked`, `routes`"),
                (&["get", "blocked", "4"], "the map `blocked` has no entry 4"),
                (&["del", "blocked", "1001"], "the map `blocked` has no entry 1001"),
                (&["set", "blocked", "x", "1"], "`x` is neither a number nor an address"),
                (&["set", "blocked", "1", "2", "3"], "`3` is one cell too many"),
                (&["set", "blocked", "1"], "the row ends after 0 of 1 words of its value"),
                (&["set", "blocked", "1,2", "3"], "`2` is one cell too many"),
                (&["get", "routes", "10.0.0.0/99"], "is not a prefix"),
            ] {
                let said_so = desk.refused(1, &[&["map"], arguments].concat());
                assert!(said_so.contains(said), "{arguments:?}: {said_so}");
            }
        });
        running.signal("INT");
        let ended = running.end();
        assert!(ended.status.success(), "{}", ended.stderr);
        accounts(&ended.json(), sent, &back);
    }
}

#[test]
fn lanes_are_for_filters_without_maps_unless_there_is_one() {
    let Some(Net { veth, right, _suite, .. }) = net(2) else { return };
    let desk = Desk::new();
    let plain = desk.filter("plain", &marking('A'));
    desk.filter("counting", COUNTING);
    let socket = desk.socket();
    let arguments = ["--af-xdp", veth.right.name(), "--control", &socket];
    let running = Running::start(command(&right, &plain, &arguments));
    assert!(desk.refused(1, &["reload", &desk.text("counting.wgsl")]).contains("start it with --lanes one"));
    // Lengths, metadata and what is written: the run is ready for each.
    let shaders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders");
    for name in ["vlan_pop", "sampler", "mac_swap"] {
        desk.done(&["reload", shaders.join(format!("{name}.wgsl")).to_str().unwrap()]);
    }
    running.signal("INT");
    assert!(running.end().status.success());

    let running = Running::start(command(&right, &plain, &[&arguments[..], &["--lanes", "one"]].concat()));
    let told = desk.done(&["reload", &desk.text("counting.wgsl")]);
    assert!(told.contains("maps that begin empty: seen, named"), "{told}");
    running.signal("INT");
    assert!(running.end().status.success());
    let ended = ends(command(&right, &desk.text("counting"), &[&arguments[..], &["--lanes", "each"]].concat()));
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.stderr.contains("--lanes each: the filter has maps"), "{}", ended.stderr);
}

#[test]
fn who_asks_badly_gets_an_answer_or_nothing_and_packets_go_on() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let desk = Desk::new();
    let filter = desk.filter("a", &marking('A'));
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--control", &desk.socket()];
    let running = Running::start(command(&right, &filter, &arguments));
    let socket = desk.path("control");
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let (sent, back) = under_load(&veth, |_| {
        let asked = |bytes: &[u8]| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            // It may have hung up by the time all is written.
            let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        };
        for (request, said) in [
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
            assert!(answer.contains(said) && answer.ends_with("}\n"), "{}: {answer}", request.escape_ascii());
            assert_eq!(answer.lines().count(), 1);
        }
        assert!(asked(&vec![b'x'; 1 << 20]).contains("more than 65536 bytes"));
        // One says nothing, one hangs up at once, one asks and does not listen; behind them
        // somebody is answered.
        let silent = UnixStream::connect(&socket).unwrap();
        drop(UnixStream::connect(&socket).unwrap());
        let mut deaf = UnixStream::connect(&socket).unwrap();
        deaf.write_all(b"{\"version\":1,\"request\":\"stats\"}\n").unwrap();
        drop(deaf);
        assert!(desk.done(&["stats"]).contains("a.wgsl"));
        drop(silent);
    });
    // Somebody who never asks does not keep the run from ending.
    let silent = UnixStream::connect(&socket).unwrap();
    running.signal("INT");
    let ended = running.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    accounts(&ended.json(), sent, &back);
    drop(silent);
}

#[test]
fn a_socket_is_one_runs() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let desk = Desk::new();
    let socket = desk.socket();
    let arguments = ["--af-xdp", veth.right.name(), "--control", &socket];
    let refused = |what: &str| {
        let ended = ends(command(&right, "minimal", &arguments));
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains(what), "{}", ended.stderr);
    };
    let running = Running::start(command(&right, "minimal", &arguments));
    refused("another run listens here");
    running.signal("KILL");
    running.end();
    assert!(desk.refused(1, &["stats"]).contains("nobody listens there: the run has ended"));
    // What a killed run left is replaced.
    let running = Running::start(command(&right, "minimal", &arguments));
    desk.done(&["stats"]);
    running.signal("INT");
    assert!(running.end().status.success());
    assert!(desk.refused(1, &["stats"]).contains("there is no socket"));
    std::fs::write(&socket, "mine").unwrap();
    refused("exists and is not a socket");
    assert_eq!(std::fs::read(&socket).unwrap(), b"mine");
    assert!(desk.refused(1, &["stats"]).contains("this is no socket"));
    std::fs::remove_file(&socket).unwrap();
    // Somebody who answers nothing.
    let other = UnixListener::bind(&socket).unwrap();
    let answering = std::thread::spawn(move || drop(other.accept()));
    assert!(desk.refused(1, &["stats"]).contains("hung up without an answer"));
    answering.join().unwrap();
}

/// The capabilities of each thread of a process that may be used, by the threads' names.
fn effective(process: u32) -> Vec<(String, u64)> {
    let of_thread = |status: String| {
        let line =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
        assert!(line("Name:") == "ctrl-c" || line("NoNewPrivs:") == "1", "{status}");
        (line("Name:"), u64::from_str_radix(&line("CapEff:"), 16).unwrap())
    };
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let statuses = threads.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("status")).ok());
    statuses.map(of_thread).collect()
}

const NET_ADMIN: u64 = 1 << 12;
const DAC_OVERRIDE: u64 = 1 << 1;

#[test]
fn what_is_not_needed_any_more_is_given_up() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let desk = Desk::new();
    let counting = desk.filter("counting", COUNTING);
    // A folder of another user's, in which root may write by its privileges alone.
    let folder = desk.path("theirs");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&folder, Some(65534), Some(65534)).unwrap();
    let state = folder.join("state").to_str().unwrap().to_owned();
    let socket = desk.socket();
    for (more, files) in [(&[][..], 0), (&["--state", &state, "--state-every", "1"][..], DAC_OVERRIDE)] {
        let arguments = [&["--af-xdp", veth.right.name(), "--control", &socket][..], more].concat();
        let running = Running::start(command(&right, &counting, &arguments));
        // Once it answers, all threads are there.
        desk.done(&["stats"]);
        let mut threads = effective(running.process());
        threads.retain(|(name, _)| name != "ctrl-c");
        let of_main = threads.iter().position(|(name, _)| name == "portcullis").expect("the first thread");
        assert_eq!(threads.remove(of_main).1, NET_ADMIN | files, "for the end");
        assert!(
            threads.iter().any(|(name, _)| name == "control") && threads.iter().any(|(name, _)| name == "run"),
            "{threads:?}"
        );
        for (name, capabilities) in threads {
            assert_eq!(capabilities, files, "{name}");
        }
        // Only root may read this one.
        let private = desk.path("counting.wgsl");
        std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o600)).unwrap();
        desk.done(&["reload", private.to_str().unwrap()]);
        if files != 0 {
            wait_until("the state is written", SOON, || Path::new(&state).exists());
        }
        running.signal("INT");
        let ended = running.end();
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(ended.stderr.contains("capabilities: all given up but CAP_NET_ADMIN"), "{}", ended.stderr);
        let links = right.ip(&["link"]);
        assert!(!links.contains("back into the kernel"), "{links}");
    }
    assert!(Path::new(&state).exists());
    // Nothing is to be removed in the end, and nothing is kept.
    let running = Running::start(command(
        &right,
        "minimal",
        &["--af-xdp", veth.right.name(), "--stack", "none", "--control", &socket],
    ));
    desk.done(&["stats"]);
    assert!(effective(running.process()).iter().all(|(name, capabilities)| name == "ctrl-c" || *capabilities == 0));
    running.signal("INT");
    assert!(running.end().stderr.contains("capabilities: all given up\n"));
}

#[cfg(feature = "nfqueue")]
#[test]
fn a_queues_filter_is_replaced_while_packets_wait_for_it() {
    use portcullis_live_tests::ping;
    let Some(crate::nfqueue::Net { veth, left, right, .. }) =
        crate::nfqueue::net(&["-A INPUT -j NFQUEUE --queue-num 5"])
    else {
        return;
    };
    let desk = Desk::new();
    let running = Running::start(command(&right, "minimal", &["--nfqueue", "5", "--control", &desk.socket()]));
    let address = veth.right.ipv4().into();
    assert!(ping(&left, address, SOON));
    let threads = effective_of(&desk, &running);
    assert!(
        threads.iter().all(|(name, capabilities)| match name.as_str() {
            "control" => *capabilities == 0,
            _ => *capabilities == NET_ADMIN,
        }),
        "{threads:?}"
    );
    desk.filter("none", "fn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }");
    desk.done(&["reload", &desk.text("none.wgsl")]);
    assert!(!ping(&left, address, crate::support::NOTHING));
    // One with maps: there is one queue.
    desk.filter("counting", &COUNTING.replace("XDP_DROP", "XDP_PASS"));
    desk.done(&["reload", &desk.text("counting.wgsl")]);
    assert!(ping(&left, address, SOON));
    assert_ne!(desk.done(&["map", "get", "seen", "0"]), "index,sum\n0,0\n");
    running.signal("INT");
    let ended = running.end();
    assert!(ended.status.success(), "{}", ended.stderr);
}

#[cfg(feature = "nfqueue")]
fn effective_of(desk: &Desk, running: &Running) -> Vec<(String, u64)> {
    desk.done(&["stats"]);
    let mut threads = effective(running.process());
    threads.retain(|(name, _)| name != "ctrl-c");
    threads
}
