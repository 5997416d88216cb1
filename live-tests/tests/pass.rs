//! PASS: from an AF_XDP socket back into the kernel's stack, where a peer's echoes and connections are answered.
#![cfg(all(target_os = "linux", feature = "af-xdp"))]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use portcullis_core::device::{Done, StageTimes};
use portcullis_core::packet::{Action, Room, Verdicts};
use portcullis_io::af_xdp::xdp::Mode;
use portcullis_io::af_xdp::{self, Copying, Lanes, Options, Steer};
use portcullis_io::live::Carried;
use portcullis_io::live::link::Kind;
use portcullis_live_tests::{Namespace, Suite, Veth, ping};

const SOON: Duration = Duration::from_secs(20);
const NOTHING: Duration = Duration::from_millis(300);

/// Runs a port of a namespace where all packets pass, or none, while `meanwhile` happens.
fn run(
    namespace: &Namespace,
    port: &str,
    (kind, mode): (Kind, Mode),
    verdict: Action,
    meanwhile: impl FnOnce(&str),
) -> Vec<Carried> {
    let (ready, is_ready) = channel();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            namespace.run(|| {
                let options = Options {
                    ports: vec![port.parse().unwrap()],
                    redirect: Vec::new(),
                    stack: Some(kind),
                    lanes: Lanes::Each,
                    steer: Steer::Default,
                    mode: Some(mode),
                    copying: Copying::Auto,
                    busy_poll: None,
                    huge_pages: false,
                    room: Room::Both,
                    metadata: false,
                    rewrites: false,
                    frames: 512,
                };
                let mut run = af_xdp::open(&options).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(run.ports[0].mode, mode);
                ready.send(run.ports[0].stack.clone().unwrap()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let mut packets = 0;
                    for lane in &mut run.lanes {
                        packets += lane.receiver.receive(64).unwrap();
                        if let Some(batch) = lane.receiver.close() {
                            let verdicts = Verdicts::from_returns(&vec![verdict as u32; batch.len()], false);
                            lane.executor.carry_out(Done { batch, verdicts, times: StageTimes::default() }).unwrap();
                        }
                        lane.executor.tend().unwrap();
                    }
                    if packets == 0 {
                        run.lanes[0].receiver.wait(Duration::from_micros(500)).unwrap();
                    }
                }
                run.lanes.iter().map(|lane| *lane.executor.carried()).collect()
            })
        });
        let way = is_ready.recv_timeout(SOON).expect("the port is open");
        // Also when it panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let guard = Stop(&stop);
        meanwhile(&way);
        drop(guard);
        run.join().unwrap()
    })
}

/// A connection to the right that carries as much as takes many packets, there and back.
fn connection(left: &Namespace, right: &Namespace, to: IpAddr, patience: Duration) -> std::io::Result<()> {
    let listener = right.run(|| TcpListener::bind((to, 0)))?;
    let address = SocketAddr::new(to, listener.local_addr()?.port());
    let stream = left.run(|| TcpStream::connect_timeout(&address, patience))?;
    let (mut other, _) = listener.accept()?;
    let sent: Vec<u8> = (0..400_000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || std::io::copy(&mut other.try_clone()?, &mut other));
        let (mut out, mut back) = (stream.try_clone()?, stream);
        let sent = &sent;
        let writer = scope.spawn(move || {
            out.write_all(sent)?;
            out.shutdown(std::net::Shutdown::Write)
        });
        back.set_read_timeout(Some(SOON))?;
        let mut received = Vec::new();
        back.read_to_end(&mut received)?;
        writer.join().unwrap()?;
        echo.join().unwrap()?;
        assert!(&received == sent, "{} of {} bytes came back, or others", received.len(), sent.len());
        Ok(())
    })
}

#[test]
fn packets_that_pass_are_answered_by_the_stack() {
    let Some(_suite) = Suite::begin("AF_XDP PASS", "af-xdp", &["ethtool"]) else { return };
    for (kind, mode, expected) in [
        (Kind::Auto, Mode::Native, "tcx"),
        (Kind::Veth, Mode::Skb, "mirred"),
        (Kind::Tap, Mode::Native, "tap, tcx"),
        (Kind::Tap, Mode::Skb, "tap, mirred"),
    ] {
        let (left, right) = (Namespace::new(), Namespace::new());
        let veth = Veth::between(&left, &right).queues(2).make();
        // In native mode the kernel sees to it itself. Checksums are left to a card that is not there.
        veth.left.ethtool(&["-K", "tso off gso off"]);
        let addresses: [IpAddr; 2] = [veth.right.ipv4().into(), veth.right.ipv6().into()];
        let carried = run(&right, veth.right.name(), (kind, mode), Action::Pass, |way| {
            assert_eq!(way, expected);
            for address in addresses {
                assert!(ping(&left, address, SOON), "{expected}: {address}");
                connection(&left, &right, address, SOON).unwrap_or_else(|e| panic!("{expected}: {address}: {e}"));
            }
        });
        let sum = |of: fn(&Carried) -> u64| carried.iter().map(of).sum::<u64>();
        println!("{expected}: {carried:?}");
        // All of it came this way.
        assert!(sum(|it| it.of(Action::Pass)) > 2 * 400_000 / 1500 && sum(|it| it.checksums) > 500, "{carried:?}");
        assert!(!right.ip(&["link"]).contains("pc0-"));

        run(&right, veth.right.name(), (kind, mode), Action::Drop, |_| {
            for address in addresses {
                assert!(!ping(&left, address, NOTHING), "{expected}: {address}");
                assert!(connection(&left, &right, address, NOTHING).is_err(), "{expected}: {address}");
            }
        });
    }
}
