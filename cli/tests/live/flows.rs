//! A filter that sees each flow's packets in order (`xdp_flow`), reloaded while connections are
//! open.

use std::io::{Error, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use portcullis::device::Dispatch;
use portcullis_live_tests::{Namespace, Suite, tcp_echo};

use crate::ctl::CtlFolder;
use crate::devices::on_each;
use crate::support::{QUIET_TIME, TIMEOUT};
use crate::topology::{Hosts, hosts};

/// Both ends of a TCP connection.
struct Connection([TcpStream; 2]);

impl Connection {
    fn between(left: &Namespace, right: &Namespace, address: IpAddr) -> Connection {
        let listener = right.run(|| TcpListener::bind((address, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let stream = left.run(|| TcpStream::connect_timeout(&address, TIMEOUT)).expect("the connection is established");
        let (other, _) = listener.accept().unwrap();
        Connection([stream, other])
    }

    /// Returns the left end's port.
    fn port(&self) -> u16 {
        self.0[0].local_addr().unwrap().port()
    }

    /// Exchanges data in both directions.
    fn exchange(&self, timeout: Duration) -> Result<(), Error> {
        let [left, right] = &self.0;
        for (mut from, mut to) in [(left, right), (right, left)] {
            from.write_all(b"still there")?;
            to.set_read_timeout(Some(timeout))?;
            let mut heard = [0; 11];
            to.read_exact(&mut heard)?;
            assert_eq!(&heard, b"still there");
        }
        Ok(())
    }
}

/// `conntrack_fw` at both interfaces of a router drops packets of connections that it does not
/// know.
#[test]
fn connections_survive_reloads_that_keep_maps_on_every_device() {
    let Some(suite) = Suite::begin("live packets through conntrack_fw", "af-xdp", &["ethtool"]) else { return };
    let Some(hosts) = hosts(&[]) else { return };
    hosts.route();
    let Hosts { left, between, right, near, far, .. } = &hosts;
    between.sysctl("net.ipv4.ip_forward", "1");
    let far_address: IpAddr = far.right.ipv4().into();
    let stock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders/conntrack_fw.wgsl");
    let text = std::fs::read_to_string(&stock).unwrap();
    let stock = stock.to_str().unwrap();
    let ctl = CtlFolder::new();
    ctl.filter("smaller", &text.replace("entries=65536", "entries=4096"));
    let socket = ctl.socket();
    let arguments = ["--af-xdp", near.right.name(), "--af-xdp", far.left.name(), "--control", &socket];
    on_each(&suite, |tested| {
        let (id, dispatch) = (tested.id(), tested.dispatch());
        if !matches!(dispatch, Dispatch::Inline | Dispatch::Pipelined) {
            println!("skipped: {dispatch} does not keep flows in order");
            return;
        }
        let running = tested.start(between, "conntrack_fw", &arguments);
        let connection = Connection::between(left, right, far_address);
        connection.exchange(TIMEOUT).unwrap();
        // Meanwhile another connection transfers data.
        std::thread::scope(|scope| {
            let transfer = scope.spawn(|| tcp_echo(left, right, (far_address, 0), 4 << 20, TIMEOUT));
            for seconds in ["100", "200", "300"] {
                let output = ctl.run_successfully(&["reload", stock, "--set", &format!("transitory={seconds}")]);
                assert!(output.contains("maps carried over: connections\n"), "{id} {dispatch}: {output}");
                connection.exchange(TIMEOUT).unwrap_or_else(|e| panic!("{id} {dispatch}: {e}"));
            }
            transfer.join().unwrap().unwrap_or_else(|e| panic!("{id} {dispatch}: {e}"));
        });
        let (connections, port) = (ctl.run_successfully(&["map", "get", "connections"]), connection.port());
        assert!(
            connections.lines().any(|row| row.contains(&format!(",{port},"))),
            "{id} {dispatch}: {port}: {connections}"
        );
        // A map of another size starts empty: existing connections are unknown, and new ones work.
        let output = ctl.run_successfully(&["reload", &ctl.text("smaller.wgsl")]);
        assert!(output.contains("maps that start empty: connections\n"), "{id} {dispatch}: {output}");
        assert!(connection.exchange(QUIET_TIME).is_err(), "{id} {dispatch}: the connection is unknown");
        tcp_echo(left, right, (far_address, 0), 100_000, TIMEOUT).unwrap_or_else(|e| panic!("{id} {dispatch}: {e}"));

        let json = running.stop().parse_json();
        assert_eq!(json["lanes"].as_array().map(Vec::len), Some(1), "a filter with maps has one lane: {json}");
        assert_eq!(json["verdicts"], json["carried_out"], "{id} {dispatch}: {json}");
        assert!(json["verdicts"]["drop"].as_u64() > Some(0), "{id} {dispatch}: {json}");
    });
}
