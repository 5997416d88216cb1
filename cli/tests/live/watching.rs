//! Metrics, statistics and logs of a run.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use portcullis_live_tests::frames::{swapped, udp};
use portcullis_live_tests::{Namespace, PacketSocket, wait_until};
use serde_json::{Value, json};

use crate::af_xdp::{Net, has_program, net};
use crate::ctl::CtlFolder;
use crate::support::{Running, TIMEOUT, command, run_to_end};

pub const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Sends `count` datagrams, each after the one before has come back.
pub fn exchange_datagrams(net: &Net, count: u32) {
    let mut peer = PacketSocket::at(&net.veth.left);
    for number in 0..count {
        let sent = udp(&net.veth, 9, &number.to_be_bytes());
        peer.send(&sent);
        let back = swapped(sent);
        assert!(peer.receive_where(TIMEOUT, |frame| frame.bytes == back).is_some(), "{number} does not come back");
    }
}

fn connect(namespace: &Namespace, address: SocketAddr) -> TcpStream {
    let stream = namespace.run(|| TcpStream::connect_timeout(&address, TIMEOUT)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

pub fn ask(mut stream: impl Read + Write, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Parses the samples of a metrics response, by name and labels.
pub fn series(answer: &str) -> BTreeMap<String, f64> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.into(), value.parse().unwrap()))
        .collect()
}

/// Returns the address at which a run serves its metrics, from its output.
fn metrics_address(output: &str) -> SocketAddr {
    let line = output.lines().find_map(|line| line.strip_prefix("metrics: http://")?.strip_suffix("/metrics"));
    line.unwrap_or_else(|| panic!("no address: {output}")).parse().unwrap()
}

#[test]
fn metrics_and_intervals_agree_with_the_totals() {
    let Some(net) = net(1) else { return };
    let name = net.veth.right.name();
    let arguments = ["--af-xdp", name, "--only", "udp/9", "--metrics", "0", "--stats", "100ms"];
    let mut running = Running::start(command(&net.right, "mac_swap", &arguments));
    running.wait_for("metrics: ");
    let address = metrics_address(&running.log);
    // Clients that send nothing, too little, garbage, or too much.
    let silent: Vec<_> = (0..40).map(|_| connect(&net.right, address)).collect();
    connect(&net.right, address).write_all(b"GET /met").unwrap();
    assert!(ask(connect(&net.right, address), b"\0\x01\xff\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(ask(connect(&net.right, address), &[b'G'; 1 << 20]).starts_with("HTTP/1.1 "));
    exchange_datagrams(&net, 100);
    // Wait for an interval that has counted some of the packets, then send more.
    let mut lines: Vec<Value> = Vec::new();
    let packets = |line: &Value, of: &str| line[of]["packets"].as_u64().unwrap();
    let mut until = |count, running: &mut Running| {
        while lines.last().is_none_or(|line| packets(line, "total") < count) {
            lines.push(serde_json::from_str(&running.read_line()).unwrap());
        }
    };
    until(1, &mut running);
    exchange_datagrams(&net, 50);
    until(150, &mut running);
    let mut all = BTreeMap::new();
    let received = format!("portcullis_received_packets_total{{lane=\"{name}:0\"}}");
    wait_until("all packets are counted", TIMEOUT, || {
        all = series(&ask(connect(&net.right, address), REQUEST));
        all[&received] == 150.0
    });
    drop(silent);
    let ended = running.stop();

    lines.extend(ended.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()));
    let totals = lines.pop().unwrap();
    assert_eq!((&totals["packets"], &totals["lanes"][0]["lane"]), (&150.into(), &format!("{name}:0").into()));
    let of = |key: &str| all[&format!("portcullis_{key}")];
    let lane = format!("lane=\"{name}:0\"");
    for (key, total) in [
        (format!("received_bytes_total{{{lane}}}"), &totals["bytes"]),
        (format!("kernel_dropped_packets_total{{{lane}}}"), &totals["dropped_by_kernel"]),
        (format!("verdicts_total{{{lane},verdict=\"tx\"}}"), &totals["verdicts"]["tx"]),
        (format!("carried_out_packets_total{{{lane},verdict=\"tx\"}}"), &totals["carried_out"]["tx"]),
        (format!("carried_out_bytes_total{{{lane},verdict=\"tx\"}}"), &totals["bytes_out"]),
        (format!("batches_total{{{lane}}}"), &totals["batches"]),
        (format!("batch_latency_seconds_count{{{lane}}}"), &totals["packets"]),
    ] {
        assert_eq!(Some(of(&key)), total.as_f64(), "{key}");
    }
    let mut sum = 0;
    for line in &lines {
        sum += packets(line, "interval");
        assert_eq!(packets(line, "total"), sum, "intervals add up to the totals");
    }
    assert_eq!(sum, 150);
}

#[test]
fn a_unix_socket_serves_metrics_to_its_owner_only() {
    let Some(net) = net(1) else { return };
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("metrics");
    let at = format!("unix:{}", path.display());
    let mut running =
        Running::start(command(&net.right, "minimal", &["--af-xdp", net.veth.right.name(), "--metrics", &at]));
    running.wait_for("metrics: unix:");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!series(&ask(UnixStream::connect(&path).unwrap(), REQUEST)).is_empty());
    running.stop();
    assert!(!path.exists());
}

#[test]
fn invalid_metrics_stats_and_log_options_are_refused() {
    let Some(net) = net(1) else { return };
    let name = net.veth.right.name();
    let taken = net.right.run(|| TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (arguments, code, message) in [
        (&["--metrics", "0.0.0.0:9100"][..], 2, "use a proxy or ssh"),
        (&["--metrics", "[::]:9100"], 2, "served only on this machine"),
        (&["--metrics", "example.org:9100"], 2, "is not an address to listen at"),
        (&["--metrics", "unix:/no/such/place"], 1, "/no/such/place: "),
        (&["--metrics", &port], 1, "--metrics: 127.0.0.1:"),
        (&["--stats", "5"], 2, "a time with its unit"),
        (&["--stats", "1ms"], 2, "100ms or more"),
        (&["--log", "xml"], 2, "xml"),
        (&["--log-level", "loud"], 2, "--log-level loud: expected a level"),
        (&["--log-level", "portcullis=loud"], 2, "expected a level"),
    ] {
        let arguments = [&["--af-xdp", name], arguments].concat();
        run_to_end(command(&net.right, "minimal", &arguments)).assert_failure(code, &[message]);
        assert!(!has_program(&net.veth.right), "{arguments:?}");
    }
}

#[test]
fn log_json_replaces_all_messages_by_events() {
    let Some(net) = net(1) else { return };
    let name = net.veth.right.name();
    // Packets that pass are lost, as there is no stack.
    let arguments = ["--af-xdp", name, "--only", "udp/9", "--stack", "none", "--log", "json"];
    let mut running = Running::start(command(&net.right, "minimal", &arguments));
    running.wait_for("lane started");
    PacketSocket::at(&net.veth.left).send(&udp(&net.veth, 9, b"lost"));
    running.wait_for("no_stack");
    net.veth.right.down();
    running.wait_for("the link is down");
    net.veth.right.up();
    running.wait_for("the link is up again");
    let ended = running.stop();
    let events: Vec<Value> =
        ended.err.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect();
    let event = |message: &str| {
        let found: Vec<_> =
            events.iter().filter(|event| event["message"].as_str().unwrap().contains(message)).collect();
        assert_eq!(found.len(), 1, "{message} is not logged once: {}", ended.err);
        found[0]
    };
    let opened = event("native mode, copied");
    assert_eq!((&opened["interface"], &opened["zero_copy"]), (&name.into(), &false.into()));
    let lost = event("packets lost: ");
    assert_eq!((&lost["level"], &lost["reason"], &lost["packets"]), (&"WARN".into(), &"no_stack".into(), &1.into()));
    assert_eq!(lost["lane"], format!("{name}:0"));
    assert_eq!(event("the link is down")["interface"], name);
    assert_eq!(event("lane ended")["packets"], 1);
    // Spans say where an event happened: events of a lane's threads, and events about the lane, are
    // in both spans.
    let run = json!({"name": "run", "device": "cpu", "dispatch": "inline"});
    let lane = json!({"name": "lane", "lane": format!("{name}:0")});
    for message in ["lane started", "packets lost: ", "lane ended"] {
        assert_eq!(event(message)["spans"], json!([run, lane]), "{message}");
    }
    for message in ["native mode, copied", "the link is down"] {
        assert_eq!(event(message)["spans"], json!([run]), "{message}");
    }
}

#[test]
fn the_log_records_accepted_and_refused_reloads() {
    let Some(net) = net(1) else { return };
    let ctl = CtlFolder::new();
    let good = ctl.filter("good", "fn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }") + ".wgsl";
    let wrong = ctl.filter("wrong", "fn xdp_filter(pkt: u32) -> u32 { return XDP_DORP; }") + ".wgsl";
    let (name, socket) = (net.veth.right.name(), ctl.socket());
    let arguments = ["--af-xdp", name, "--control", &socket, "--log", "json", "--dispatch", "pipelined"];
    let mut running = Running::start(command(&net.right, "minimal", &arguments));
    running.wait_for("lane started");
    ctl.assert_failure(1, &["reload", &wrong], &[]);
    ctl.run_successfully(&["reload", &good]);
    running.wait_for("has replaced the filter");
    let ended = running.stop();
    for (message, filter) in [("is refused", &wrong), ("has replaced the filter", &good)] {
        let event = ended.err.lines().find(|line| line.contains(message));
        let event: Value = serde_json::from_str(event.unwrap_or_else(|| panic!("{}", ended.err))).unwrap();
        let run = json!({"name": "run", "device": "cpu", "dispatch": "pipelined"});
        assert_eq!(event["spans"], json!([run, {"name": "reload", "filter": filter}]), "{event}");
        let names_mistake = event["error"].as_str().is_some_and(|error| error.contains("XDP_DORP"));
        assert_eq!(names_mistake, *filter == wrong, "{event}");
    }
}

#[test]
fn without_log_warnings_are_plain_lines() {
    let Some(net) = net(1) else { return };
    let name = net.veth.right.name();
    let mut running = Running::start(command(&net.right, "minimal", &["--af-xdp", name]));
    net.veth.right.down();
    running.wait_for("link is down");
    let ended = running.stop();
    assert!(ended.err.contains(&format!("\nwarning: the link is down interface={name}\n")), "{}", ended.err);
    assert!(!ended.err.contains("lane started"), "only warnings are printed without --log: {}", ended.err);
}
