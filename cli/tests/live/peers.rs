//! Independent programs at both ends of a run: `curl` through `http_only`, `iperf3` through
//! `router_v4` and through `mac_swap`. As usual on veth, senders leave checksums to a network card
//! that does not exist.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use portcullis_live_tests::{Namespace, Suite, Veth, ping, wait_until};
use serde_json::Value;

use crate::af_xdp::{Net, net_with};
use crate::support::{QUIET_TIME, Running, TIMEOUT, command, count};
use crate::topology::{Hosts, Router, hosts};

/// `CURLE_OPERATION_TIMEDOUT` of libcurl-errors(3).
const TIMED_OUT: i32 = 28;

/// Returns the page that servers send: larger than a TCP window.
fn page() -> Vec<u8> {
    (0..300_000_u32).map(|at| b'a' + (at.wrapping_mul(0x9e37_79b9) >> 24) as u8 % 26).collect()
}

/// Serves the page at these addresses until the test program ends.
fn serve(on: &Namespace, addresses: &[IpAddr], port: u16) {
    for address in addresses {
        let listener = on.run(|| TcpListener::bind((*address, port))).unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let request = BufReader::new(stream.try_clone().unwrap());
                // RFC 9112: an empty line ends the head of a request.
                for line in request.lines().map_while(Result::ok) {
                    if line.is_empty() {
                        break;
                    }
                }
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", page().len());
                // Ignore errors: the client may be gone.
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&page()));
            }
        });
    }
}

/// Fetches the page, with a time limit.
fn curl(from: &Namespace, address: IpAddr, port: u16, seconds: u64) -> Output {
    let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
    let mut command = from.command("curl");
    command.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", &seconds.to_string()]);
    command.arg(format!("http://{host}:{port}/page")).stdin(Stdio::null());
    command.output().expect("the program starts")
}

/// Checks that `curl` gets the page from port 80 and times out at port 8080 while `http_only` runs
/// on a source of packets, and that the server answers at both ports without it. Returns the run's
/// totals.
fn run_between_curl_and_server(Net { veth, left, right, .. }: &Net, source: &[&str]) -> Value {
    let addresses: [IpAddr; 2] = [veth.right.ipv4().into(), veth.right.ipv6().into()];
    let seconds = TIMEOUT.as_secs();
    for port in [80, 8080] {
        serve(right, &addresses, port);
        assert!(curl(left, addresses[0], port, seconds).status.success(), "the server answers without the filter");
    }
    let running = Running::start(command(right, "http_only", source));
    for address in &addresses {
        let allowed = curl(left, *address, 80, seconds);
        assert!(allowed.status.success(), "{address}: {}", String::from_utf8_lossy(&allowed.stderr));
        assert!(allowed.stdout == page(), "{address}: received {} bytes, or wrong ones", allowed.stdout.len());
        let refused = curl(left, *address, 8080, 1);
        let end = (refused.status.code(), refused.stdout.len());
        assert_eq!(end, (Some(TIMED_OUT), 0), "{address}: {}", String::from_utf8_lossy(&refused.stderr));
    }
    let json = running.stop().parse_json();
    assert!(count(&json["carried_out"]["pass"]) > 10 && count(&json["carried_out"]["drop"]) >= 2, "{json}");
    assert!(curl(left, addresses[1], 8080, seconds).status.success(), "the server answers after the run");
    json
}

#[test]
fn curl_is_answered_on_port_80_and_not_on_8080_with_af_xdp() {
    let Some(net) = net_with(1, &["curl"]) else { return };
    let json = run_between_curl_and_server(&net, &["--af-xdp", net.veth.right.name()]);
    assert!(count(&json["checksums_completed"]) > 0, "the sender leaves checksums to a card: {json}");
}

#[cfg(feature = "nfqueue")]
#[test]
fn curl_is_answered_on_port_80_and_not_on_8080_with_nfqueue() {
    let rule = "-A INPUT -p tcp -j NFQUEUE --queue-num 3 --queue-bypass";
    let Some(net) = crate::nfqueue::net_with(&[rule], &["curl"]) else { return };
    run_between_curl_and_server(&net, &["--nfqueue", "3"]);
}

/// Bytes of a transfer.
const TRANSFER: u64 = 16 << 20;

/// Options of iperf3: TCP in both directions, and UDP, which loses datagrams when buffers are full.
const TRANSFERS: [&[&str]; 3] = [&[], &["--reverse"], &["--udp", "--bitrate", "100M", "--length", "1400"]];

/// An iperf3 server for one test.
struct Server(Child);

impl Server {
    fn start(on: &Namespace, address: Ipv4Addr) -> Server {
        let mut command: Command = on.command("iperf3");
        command.args(["--server", "--one-off", "--bind", &address.to_string()]).stdin(Stdio::null());
        Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Transfers [`TRANSFER`] bytes with iperf3 between two namespaces, and returns how many arrived by
/// its count.
fn iperf3((from, to): (&Namespace, &Namespace), address: Ipv4Addr, options: &[&str]) -> u64 {
    let _server = Server::start(to, address);
    let mut received = None;
    // The server does not tell when it is ready: retry.
    wait_until(&format!("the iperf3 server {options:?} is ready"), TIMEOUT, || {
        let mut command = from.command("timeout");
        command.args([&TIMEOUT.as_secs().to_string(), "iperf3", "--json", "--client", &address.to_string()]);
        command.args(["--bytes", &TRANSFER.to_string()]).args(options).stdin(Stdio::null());
        let output = command.output().expect("the program starts");
        let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
        let json: Value =
            serde_json::from_str(&output_text).unwrap_or_else(|e| panic!("{options:?}: {e}: {output_text}"));
        if let Some(error) = json["error"].as_str() {
            assert!(error.contains("Connection refused"), "{options:?}: {error}");
            return false;
        }
        received = Some(count(&json["end"]["sum_received"]["bytes"]));
        true
    });
    received.expect("the server answered")
}

/// Runs all of [`TRANSFERS`], and returns the bytes that arrived.
fn carry(between: (&Namespace, &Namespace), address: Ipv4Addr) -> u64 {
    let transfers = TRANSFERS.iter().map(|options| {
        let received = iperf3(between, address, options);
        // The end of a transfer may still be in buffers when the server counts.
        assert!(received > TRANSFER / 2, "{options:?}: received {received} of {TRANSFER} bytes");
        received
    });
    transfers.sum()
}

#[test]
fn iperf3_transfers_pass_router_v4() {
    let Some(hosts) = hosts(&["iperf3"]) else { return };
    let router = Router::new(&hosts);
    let Hosts { left, right, far, .. } = &hosts;
    let running = router.start(&hosts, &[]);
    let received = carry((left, right), far.right.ipv4());
    let json = running.stop().parse_json();
    assert!(count(&json["bytes_out"]) > received, "{json}");
    assert!(count(&json["checksums_completed"]) > 0, "the senders leave checksums to a card: {json}");
}

/// `mac_swap` beside a router: the router sends each packet to the filter first, which returns it
/// from its own MAC address to the router's; then the router forwards it.
#[test]
fn iperf3_transfers_pass_mac_swap_beside_a_router() {
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
    // Returned packets do not come from their sender's direction.
    for of in ["all", aside.left.name()] {
        router.sysctl(&format!("net/ipv4/conf/{of}/rp_filter"), "0");
    }
    assert!(!ping(&left, far.right.ipv4().into(), QUIET_TIME), "the route leads to a missing filter");

    let running = Running::start(command(&side, "mac_swap", &["--af-xdp", aside.right.name()]));
    assert!(ping(&left, far.right.ipv4().into(), TIMEOUT));
    let received = carry((&left, &right), far.right.ipv4());
    let json = running.stop().parse_json();
    assert!(count(&json["bytes_out"]) > received, "{json}");
    assert_eq!(json["packets"], json["verdicts"]["tx"], "{json}");
    assert!(count(&json["checksums_completed"]) > 0, "the senders leave checksums to a card: {json}");
    drop(suite);
}
