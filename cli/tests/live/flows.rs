//! A filter that sees a flow's packets in their order (`xdp_flow`), replaced while connections go
//! on.

use std::io::{Error, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use portcullis::device::Dispatch;
use portcullis_live_tests::{Namespace, Suite, tcp_echo};

use crate::desk::Desk;
use crate::devices::on_each;
use crate::support::{NOTHING, SOON};
use crate::topology::{Hosts, hosts};

/// A connection, by both its ends.
struct Connection([TcpStream; 2]);

impl Connection {
    fn between(left: &Namespace, right: &Namespace, address: IpAddr) -> Connection {
        let listener = right.run(|| TcpListener::bind((address, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let stream = left.run(|| TcpStream::connect_timeout(&address, SOON)).expect("a SYN opens it");
        let (other, _) = listener.accept().unwrap();
        Connection([stream, other])
    }

    /// The left end's.
    fn port(&self) -> u16 {
        self.0[0].local_addr().unwrap().port()
    }

    /// Says something in both directions; an error where it does not come in time.
    fn speaks(&self, most: Duration) -> Result<(), Error> {
        let [left, right] = &self.0;
        for (mut from, mut to) in [(left, right), (right, left)] {
            from.write_all(b"still there")?;
            to.set_read_timeout(Some(most))?;
            let mut heard = [0; 11];
            to.read_exact(&mut heard)?;
            assert_eq!(&heard, b"still there");
        }
        Ok(())
    }
}

/// `conntrack_fw` at both interfaces of a router, which drops what belongs to no connection that it
/// knows.
#[test]
fn connections_go_on_through_filters_of_every_device_that_take_over_with_their_maps() {
    let Some(suite) = Suite::begin("live packets through conntrack_fw", "af-xdp", &["ethtool"]) else { return };
    let Some(hosts) = hosts(&[]) else { return };
    hosts.route();
    let Hosts { left, between, right, near, far, .. } = &hosts;
    between.sysctl("net.ipv4.ip_forward", "1");
    let beyond: IpAddr = far.right.ipv4().into();
    let stock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders/conntrack_fw.wgsl");
    let text = std::fs::read_to_string(&stock).unwrap();
    let stock = stock.to_str().unwrap();
    let desk = Desk::new();
    desk.filter("smaller", &text.replace("entries=65536", "entries=4096"));
    let socket = desk.socket();
    let arguments = ["--af-xdp", near.right.name(), "--af-xdp", far.left.name(), "--control", &socket];
    on_each(&suite, |by| {
        let (id, dispatch) = (by.id(), by.dispatch());
        if !matches!(dispatch, Dispatch::Inline | Dispatch::Pipelined) {
            println!("skipped by {dispatch}: it keeps no flows in order");
            return;
        }
        let running = by.start(between, "conntrack_fw", &arguments);
        let connection = Connection::between(left, right, beyond);
        connection.speaks(SOON).unwrap();
        // While another one carries what it can.
        std::thread::scope(|scope| {
            let transfer = scope.spawn(|| tcp_echo(left, right, (beyond, 0), 4 << 20, SOON));
            for seconds in ["100", "200", "300"] {
                let told = desk.done(&["reload", stock, "--set", &format!("transitory={seconds}")]);
                assert!(told.contains("maps carried over: connections\n"), "{id} {dispatch}: {told}");
                connection.speaks(SOON).unwrap_or_else(|e| panic!("{id} {dispatch}: {e}"));
            }
            transfer.join().unwrap().unwrap_or_else(|e| panic!("{id} {dispatch}: {e}"));
        });
        let (known, port) = (desk.done(&["map", "get", "connections"]), connection.port());
        assert!(known.lines().any(|row| row.contains(&format!(",{port},"))), "{id} {dispatch}: {port}: {known}");
        // A map of another size begins empty: nobody is known any more, and others come.
        let told = desk.done(&["reload", &desk.text("smaller.wgsl")]);
        assert!(told.contains("maps that begin empty: connections\n"), "{id} {dispatch}: {told}");
        assert!(connection.speaks(NOTHING).is_err(), "{id} {dispatch}: it is of no connection");
        tcp_echo(left, right, (beyond, 0), 100_000, SOON).unwrap_or_else(|e| panic!("{id} {dispatch}: {e}"));

        running.signal("INT");
        let ended = running.end();
        assert!(ended.status.success(), "{id} {dispatch}: {}", ended.stderr);
        let json = ended.json();
        assert_eq!(json["lanes"].as_array().map(Vec::len), Some(1), "one, as it has maps: {json}");
        assert_eq!(json["verdicts"], json["carried_out"], "{id} {dispatch}: {json}");
        assert!(json["verdicts"]["drop"].as_u64() > Some(0), "{id} {dispatch}: {json}");
    });
}
