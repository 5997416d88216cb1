//! Programs that know nothing of this one, at both ends of a run: `curl` through `http_only`,
//! `iperf3` through `router_v4` and through `mac_swap`. Senders leave their checksums to network
//! cards that there are not, as they always do.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use portcullis_live_tests::{Namespace, Suite, Veth, ping, wait_until};
use serde_json::Value;

use crate::af_xdp::{Net, net_with};
use crate::support::{NOTHING, Running, SOON, command};
use crate::topology::{Hosts, Router, hosts};

/// `CURLE_OPERATION_TIMEDOUT` of libcurl-errors(3).
const TIMED_OUT: i32 = 28;

/// What a web server gives: more than a window of TCP.
fn page() -> Vec<u8> {
    (0..300_000_u32).map(|at| b'a' + (at.wrapping_mul(0x9e37_79b9) >> 24) as u8 % 26).collect()
}

/// Gives everybody the page at these addresses, until the test program ends.
fn serve(on: &Namespace, addresses: &[IpAddr], port: u16) {
    for address in addresses {
        let listener = on.run(|| TcpListener::bind((*address, port))).unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let request = BufReader::new(stream.try_clone().unwrap());
                // RFC 9112: the head of a request ends with an empty line.
                for line in request.lines().map_while(Result::ok) {
                    if line.is_empty() {
                        break;
                    }
                }
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", page().len());
                // Whoever asked may be gone.
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&page()));
            }
        });
    }
}

/// Asks for the page, for this many seconds at most.
fn curl(from: &Namespace, address: IpAddr, port: u16, seconds: u64) -> Output {
    let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
    let mut command = from.command("curl");
    command.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", &seconds.to_string()]);
    command.arg(format!("http://{host}:{port}/page")).stdin(Stdio::null());
    command.output().expect("it starts")
}

/// Whether `curl` gets the page from one port and runs out of time at the other.
fn is_allowed_on_80_and_refused_on_8080(from: &Namespace, addresses: &[IpAddr], how: &str) {
    for address in addresses {
        let allowed = curl(from, *address, 80, SOON.as_secs());
        assert!(allowed.status.success(), "{how}, {address}: {}", String::from_utf8_lossy(&allowed.stderr));
        assert!(allowed.stdout == page(), "{how}, {address}: {} bytes came, or others", allowed.stdout.len());
        let refused = curl(from, *address, 8080, 1);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(TIMED_OUT), 0), "{how}, {address}: {said}");
    }
}

/// What the run counted, which ends it.
fn end(running: Running) -> Value {
    running.signal("INT");
    let ended = running.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    ended.json()
}

fn count(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("{of} is no count"))
}

#[test]
fn curl_is_answered_on_port_80_and_not_on_8080_by_af_xdp() {
    let Some(Net { veth, left, right, _suite }) = net_with(1, &["curl"]) else { return };
    let addresses: [IpAddr; 2] = [veth.right.ipv4().into(), veth.right.ipv6().into()];
    for port in [80, 8080] {
        serve(&right, &addresses, port);
        assert!(curl(&left, addresses[0], port, SOON.as_secs()).status.success(), "nothing is in the way yet");
    }
    let running = Running::start(command(&right, "http_only", &["--af-xdp", veth.right.name()]));
    is_allowed_on_80_and_refused_on_8080(&left, &addresses, "AF_XDP");
    let json = end(running);
    assert!(count(&json["carried_out"]["pass"]) > 10 && count(&json["carried_out"]["drop"]) >= 2, "{json}");
    assert!(count(&json["checksums_completed"]) > 0, "the sender leaves them to a card: {json}");
    assert!(curl(&left, addresses[1], 8080, SOON.as_secs()).status.success(), "nothing is in the way any more");
}

#[cfg(feature = "nfqueue")]
#[test]
fn curl_is_answered_on_port_80_and_not_on_8080_by_a_netfilter_queue() {
    use crate::nfqueue::{Net, net_with};

    let rule = "-A INPUT -p tcp -j NFQUEUE --queue-num 3 --queue-bypass";
    let Some(Net { veth, left, right, _suite }) = net_with(&[rule], &["curl"]) else { return };
    let addresses: [IpAddr; 2] = [veth.right.ipv4().into(), veth.right.ipv6().into()];
    for port in [80, 8080] {
        serve(&right, &addresses, port);
        assert!(curl(&left, addresses[0], port, SOON.as_secs()).status.success(), "nobody has the queue yet");
    }
    let running = Running::start(command(&right, "http_only", &["--nfqueue", "3"]));
    is_allowed_on_80_and_refused_on_8080(&left, &addresses, "NFQUEUE");
    let json = end(running);
    assert!(count(&json["carried_out"]["pass"]) > 10 && count(&json["carried_out"]["drop"]) >= 2, "{json}");
    assert!(curl(&left, addresses[1], 8080, SOON.as_secs()).status.success(), "nobody has the queue any more");
}

/// Bytes of a transfer.
const TRANSFER: u64 = 16 << 20;

/// iperf3 transfers: TCP in both directions, and UDP, which loses datagrams for lack of room.
const TRANSFERS: [&[&str]; 3] = [&[], &["--reverse"], &["--udp", "--bitrate", "100M", "--length", "1400"]];

/// A server of `iperf3`'s for one test.
struct Server(Child);

impl Server {
    fn start(on: &Namespace, address: Ipv4Addr) -> Server {
        let mut command: Command = on.command("iperf3");
        command.args(["--server", "--one-off", "--bind", &address.to_string()]).stdin(Stdio::null());
        Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has `iperf3` carry [`TRANSFER`] bytes between one namespace and an address of another, and gives
/// how many came by its count.
fn iperf3((from, to): (&Namespace, &Namespace), address: Ipv4Addr, options: &[&str]) -> u64 {
    let _server = Server::start(to, address);
    let mut received = None;
    // Nobody says when the server is there.
    wait_until(&format!("the server of iperf3 {options:?} is there"), SOON, || {
        let mut command = from.command("timeout");
        command.args([&SOON.as_secs().to_string(), "iperf3", "--json", "--client", &address.to_string()]);
        command.args(["--bytes", &TRANSFER.to_string()]).args(options).stdin(Stdio::null());
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let json: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{options:?}: {e}: {said}"));
        if let Some(error) = json["error"].as_str() {
            assert!(error.contains("Connection refused"), "{options:?}: {error}");
            return false;
        }
        received = Some(count(&json["end"]["sum_received"]["bytes"]));
        true
    });
    received.expect("it was there")
}

/// Carries all of [`TRANSFERS`], and gives how many bytes came.
fn carry(between: (&Namespace, &Namespace), address: Ipv4Addr) -> u64 {
    let transfers = TRANSFERS.iter().map(|options| {
        let received = iperf3(between, address, options);
        // The end of a connection is still in buffers when the server counts.
        assert!(received > TRANSFER / 2, "{options:?}: {received} of {TRANSFER} bytes came");
        received
    });
    transfers.sum()
}

#[test]
fn iperf3_goes_through_router_v4() {
    let Some(hosts) = hosts(&["iperf3"]) else { return };
    let router = Router::new(&hosts);
    let Hosts { left, right, far, .. } = &hosts;
    let running = router.start(&hosts, &[]);
    let came = carry((left, right), far.right.ipv4());
    let json = end(running);
    assert!(count(&json["bytes_out"]) > came, "{json}");
    assert!(count(&json["checksums_completed"]) > 0, "the senders leave them to a card: {json}");
}

/// `mac_swap` at a router's side: what the router has for the one host it sends to the filter
/// first, whose answer is the same packet, from the filter's MAC address to the router's; this time
/// the router sends it on.
#[test]
fn iperf3_goes_through_mac_swap_at_a_routers_side() {
    let Some(suite) = Suite::begin("run --af-xdp", "af-xdp", &["ethtool", "iperf3"]) else { return };
    let (left, router, right, side) = (Namespace::new(), Namespace::new(), Namespace::new(), Namespace::new());
    router.sysctl("net.ipv4.ip_forward", "1");
    side.sysctl("net.ipv4.ip_forward", "0");
    let near = Veth::between(&left, &router).subnet(1).make();
    let far = Veth::between(&router, &right).subnet(2).make();
    let aside = Veth::between(&router, &side).subnet(3).make();
    left.ip(&["route", "add", "10.77.2.0/24", "via", "10.77.1.2"]);
    right.ip(&["route", "add", "10.77.1.0/24", "via", "10.77.2.1"]);
    router.ip(&["route", "add", "default", "via", "10.77.3.2", "table", "77"]);
    for end in [&near.right, &far.left] {
        router.ip(&["rule", "add", "iif", end.name(), "lookup", "77"]);
    }
    // What comes back is not from where its sender is.
    for of in ["all", aside.left.name()] {
        router.sysctl(&format!("net/ipv4/conf/{of}/rp_filter"), "0");
    }
    assert!(!ping(&left, far.right.ipv4().into(), NOTHING), "the filter is not there yet");

    let running = Running::start(command(&side, "mac_swap", &["--af-xdp", aside.right.name()]));
    assert!(ping(&left, far.right.ipv4().into(), SOON));
    let came = carry((&left, &right), far.right.ipv4());
    let json = end(running);
    assert!(count(&json["bytes_out"]) > came, "{json}");
    assert_eq!(json["packets"], json["verdicts"]["tx"], "{json}");
    assert!(count(&json["checksums_completed"]) > 0, "the senders leave them to a card: {json}");
    drop(suite);
}
