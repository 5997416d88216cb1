//! Networks with the program in the middle, between hosts that are unaware of it.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream, UdpSocket};

use portcullis_live_tests::frames::{swapped, udp};
use portcullis_live_tests::{Namespace, PacketSocket, Suite, Veth, ping, tcp_echo};
use tempfile::TempDir;

use crate::af_xdp::{Net, net};
use crate::support::{QUIET_TIME, Running, TIMEOUT, command, count};

/// Two hosts, and a namespace between them that does not forward packets itself.
pub struct Hosts {
    pub left: Namespace,
    pub between: Namespace,
    pub right: Namespace,
    pub near: Veth,
    pub far: Veth,
    pub _suite: Suite,
}

/// Sets up [`Hosts`] for tests that need these programs.
pub fn hosts(programs: &[&str]) -> Option<Hosts> {
    let suite = Suite::begin("run --af-xdp", "af-xdp", &[&["ethtool"], programs].concat())?;
    let (left, between, right) = (Namespace::new(), Namespace::new(), Namespace::new());
    between.sysctl("net.ipv4.ip_forward", "0");
    let near = Veth::between(&left, &between).subnet(1).make();
    let far = Veth::between(&between, &right).subnet(2).make();
    Some(Hosts { left, between, right, near, far, _suite: suite })
}

impl Hosts {
    /// Adds routes so that each host reaches the other's network through the middle.
    pub fn route(&self) {
        self.left.ip(&["route", "add", "10.77.2.0/24", "via", "10.77.1.2"]);
        self.right.ip(&["route", "add", "10.77.1.0/24", "via", "10.77.2.1"]);
    }
}

/// Arguments of `router_v4`, with map files for the networks of two hosts.
pub struct Router {
    arguments: Vec<String>,
    _folder: TempDir,
}

impl Router {
    /// Adds the hosts' routes and writes the map files.
    pub fn new(hosts: &Hosts) -> Router {
        let Hosts { near, far, .. } = hosts;
        hosts.route();
        let folder = tempfile::tempdir().unwrap();
        let (routes, next_hops) = (folder.path().join("routes.csv"), folder.path().join("next_hops.csv"));
        // The router's own addresses have a next hop without MAC address: its own stack.
        let table = "prefix,next_hop\n10.77.1.0/24,0\n10.77.2.0/24,1\n10.77.1.2/32,2\n10.77.2.1/32,2\n";
        std::fs::write(&routes, table).unwrap();
        let row = |number, to, from| format!("{number},{number},{},{}\n", mac_text(to), mac_text(from));
        let rows = row(0, near.left.mac(), near.right.mac()) + &row(1, far.right.mac(), far.left.mac());
        std::fs::write(&next_hops, format!("next_hop,port,destination,source\n{rows}")).unwrap();
        let (near, far) = (near.right.name(), far.left.name());
        let maps = [format!("routes={}", routes.display()), format!("next_hops={}", next_hops.display())];
        let arguments = [
            &["--af-xdp", near, "--af-xdp", far, "--redirect", &format!("0={near}"), "--redirect", &format!("1={far}")],
            &["--map", &maps[0], "--map", &maps[1]][..],
        ];
        Router { arguments: arguments.concat().into_iter().map(str::to_owned).collect(), _folder: folder }
    }

    /// Starts the router between the hosts.
    pub fn start(&self, Hosts { between, .. }: &Hosts, more: &[&str]) -> Running {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Running::start(command(between, "router_v4", &arguments))
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// In SKB mode the program receives unsegmented packets, which no frame can hold; it warns of that.
fn segment_at_senders(ends: [&portcullis_live_tests::End; 2]) {
    for end in ends {
        end.ethtool(&["-K", "tso off gso off"]);
    }
}

#[test]
fn router_v4_forwards_between_two_networks() {
    let Some(hosts) = hosts(&[]) else { return };
    let router = Router::new(&hosts);
    let Hosts { left, right, near, far, .. } = &hosts;
    let (host, far_host): (IpAddr, IpAddr) = (near.left.ipv4().into(), far.right.ipv4().into());

    assert!(!ping(left, far_host, QUIET_TIME), "the middle does not forward");
    for mode in ["native", "skb"] {
        if mode == "skb" {
            segment_at_senders([&near.left, &far.right]);
        }
        let running = router.start(&hosts, &["--xdp-mode", mode]);
        assert!(ping(left, far_host, TIMEOUT) && ping(right, host, TIMEOUT), "{mode}");
        // The router answers for itself.
        assert!(ping(left, near.right.ipv4().into(), TIMEOUT), "{mode}");
        for (from, to, address) in [(left, right, far_host), (right, left, host)] {
            tcp_echo(from, to, (address, 0), 3 << 20, TIMEOUT).unwrap_or_else(|e| panic!("{mode}, {address}: {e}"));
        }
        // A forwarded packet is changed as by any router, and not otherwise.
        let mut arrives = PacketSocket::at(&far.right);
        let sender = left.run(|| UdpSocket::bind((near.left.ipv4(), 0))).unwrap();
        sender.send_to(b"through the router", (far.right.ipv4(), 9)).unwrap();
        let is_it = |frame: &portcullis_live_tests::Frame| frame.bytes.ends_with(b"through the router");
        let received = arrives.receive_where(TIMEOUT, is_it).expect("the datagram is forwarded").bytes;
        assert_eq!((&received[..6], &received[6..12]), (&far.right.mac()[..], &far.left.mac()[..]), "{mode}");
        assert_eq!(received[22], 63, "{mode}: the TTL is decremented");

        let json = running.stop().parse_json();
        // Twice 3 MiB in each direction.
        assert!(count(&json["carried_out"]["redirect"]) > 4 * (3 << 20) / 1500, "{json}");
        assert!(count(&json["checksums_completed"]) > 0, "{json}");
    }
    assert!(!ping(left, far_host, QUIET_TIME), "the middle does not forward after the run");
}

/// A wire through user space: packets of each port leave through the other, ARP included. Both
/// hosts are in one network.
#[test]
fn two_ports_redirect_to_each_other() {
    let Some(Hosts { left, between, right, near, far, _suite }) = hosts(&[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let wire = folder.path().join("wire");
    let text = "fn xdp_filter(pkt: u32) -> u32 { return redirect(1u - pkt_port(pkt)); }";
    std::fs::write(wire.with_extension("wgsl"), text).unwrap();
    for (host, end) in [(1, &near.left), (2, &far.right)] {
        end.namespace().ip(&["address", "add", &format!("10.78.0.{host}/24"), "dev", end.name()]);
        end.namespace().ip(&["address", "add", &format!("fd78::{host}/64"), "dev", end.name(), "nodad"]);
    }
    let addresses: [IpAddr; 2] = [Ipv4Addr::new(10, 78, 0, 2).into(), "fd78::2".parse().unwrap()];
    let targets = [format!("0={}", near.right.name()), format!("1={}", far.left.name())];
    for (dispatch, mode) in [("inline", "native"), ("pipelined", "skb")] {
        if mode == "skb" {
            segment_at_senders([&near.left, &far.right]);
        }
        let mut command = command(&between, wire.to_str().unwrap(), &["--all", "--xdp-mode", mode]);
        command.args(["--af-xdp", near.right.name(), "--af-xdp", far.left.name(), "--dispatch", dispatch]);
        command.args(["--redirect", &targets[0], "--redirect", &targets[1]]);
        let running = Running::start(command);
        for address in addresses {
            assert!(ping(&left, address, TIMEOUT), "{dispatch}: {address}");
            tcp_echo(&left, &right, (address, 0), 2 << 20, TIMEOUT)
                .unwrap_or_else(|e| panic!("{dispatch}: {address}: {e}"));
        }
        running.signal("TERM");
        let json = running.wait().assert_success().parse_json();
        assert_eq!(json["lanes"].as_array().map(Vec::len), Some(2), "{json}");
        assert_eq!(json["packets"], json["verdicts"]["redirect"], "{json}");
    }
}

/// A filter that swaps MAC addresses, IPv4 addresses and ports, so that a kernel takes the packet
/// for an answer.
const REFLECT: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        if pkt_len(pkt) < 42u || load_be16(pkt, 12u) != ETH_P_IP || load_u8(pkt, 14u) != 0x45u { return XDP_PASS; }
        let to = vec2<u32>(load_be16(pkt, 0u), load_be32(pkt, 2u));
        store_be16(pkt, 0u, load_be16(pkt, 6u));
        store_be32(pkt, 2u, load_be32(pkt, 8u));
        store_be16(pkt, 6u, to.x);
        store_be32(pkt, 8u, to.y);
        let source = load_be32(pkt, 26u);
        store_be32(pkt, 26u, load_be32(pkt, 30u));
        store_be32(pkt, 30u, source);
        let port = load_be16(pkt, 34u);
        store_be16(pkt, 34u, load_be16(pkt, 36u));
        store_be16(pkt, 36u, port);
        return XDP_TX;
    }";

/// Datagrams come back to the socket that sent them. So does a connection: its own SYN looks like a
/// simultaneous open by the peer (RFC 9293, section 3.5), and the kernel reads what it writes.
///
/// With MAC addresses swapped alone (`mac_swap`), a kernel gets back packets from its own address,
/// and drops them, so that only frames can be compared.
#[test]
fn reflected_datagrams_and_connections_reach_their_own_sockets() {
    let Some(Net { veth, left, right, _suite }) = net(1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let reflect = folder.path().join("reflect");
    std::fs::write(reflect.with_extension("wgsl"), REFLECT).unwrap();
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/7,tcp/7"];
    let running = Running::start(command(&right, reflect.to_str().unwrap(), &arguments));

    let socket = left.run(|| UdpSocket::bind((veth.left.ipv4(), 0))).unwrap();
    socket.connect((veth.right.ipv4(), 7)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    for length in (0..=1472_usize).step_by(16).chain([1, 1471]) {
        let sent: Vec<u8> = (0..length).map(|at| (at * 3 + length) as u8).collect();
        socket.send(&sent).unwrap();
        let mut received = [0; 1500];
        let count = socket.recv(&mut received).unwrap_or_else(|e| panic!("{length}: {e}"));
        assert!(received[..count] == sent, "{length}: received {count} bytes, or wrong ones");
    }

    let stream = left.run(|| TcpStream::connect_timeout(&(veth.right.ipv4(), 7).into(), TIMEOUT)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let sent: Vec<u8> = (0..2_000_000_u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        let (mut out, mut back, sent) = (stream.try_clone().unwrap(), stream, &sent);
        let writer = scope.spawn(move || out.write_all(sent).and_then(|()| out.shutdown(Shutdown::Write)));
        back.read_to_end(&mut received).unwrap();
        writer.join().unwrap().unwrap();
    });
    assert!(received == sent, "received {} of {} bytes, or wrong ones", received.len(), sent.len());

    let json = running.stop().parse_json();
    assert_eq!(json["packets"], json["carried_out"]["tx"], "{json}");
    assert!(json["checksums_completed"].as_u64().unwrap() > 90, "{json}");
}

#[test]
fn every_queue_is_served_by_a_lane_of_its_own() {
    let Some(Net { veth, right, _suite, .. }) = net(4) else { return };
    let mut peer = PacketSocket::at(&veth.left);
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp/1000-1399", "--dispatch", "pipelined"];
    let running = Running::start(command(&right, "mac_swap", &arguments));
    assert!(running.log.contains("queues 0,1,2,3"), "{}", running.log);
    let sent: Vec<_> = (1000..1400_u16).map(|port| udp(&veth, port, &port.to_be_bytes())).collect();
    let mut received = Vec::new();
    // At most as many in flight as the link has room for.
    for some in sent.chunks(50) {
        some.iter().for_each(|frame| peer.send(frame));
        let ours = |frame: &portcullis_live_tests::Frame| frame.ether_type() == 0x0800;
        received.extend(some.iter().map(|_| peer.receive_where(TIMEOUT, ours).expect("the frame comes back").bytes));
    }
    let mut wanted: Vec<_> = sent.into_iter().map(swapped).collect();
    received.sort();
    wanted.sort();
    assert!(received == wanted, "received {} frames, or wrong ones", received.len());
    let json = running.stop().parse_json();
    let lanes = json["lanes"].as_array().unwrap();
    // About a fourth each.
    assert!(lanes.len() == 4 && lanes.iter().all(|lane| lane["packets"].as_u64() > Some(10)), "{json}");
}
