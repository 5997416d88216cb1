//! Failures during a run: links that go down, interfaces that are deleted, kills; and connections
//! beside it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use portcullis_live_tests::frames::{swapped, udp};
use portcullis_live_tests::{Namespace, PacketSocket, wait_until};

use crate::af_xdp::{Net, has_program, net};
use crate::program::Place;
use crate::support::{QUIET_TIME, RunOutput, Running, TIMEOUT, command, command_on};

/// Loops on every packet until the fuel is used up.
const ENDLESS: &str = "
    //! map seen: counter entries=1
    fn xdp_filter(pkt: u32) -> u32 {
        seen_add(0u, 1u);
        var x = load_u8(pkt, 0u);
        loop { if x == 256u { break; } x = (x * 7u) & 255u; }
        return XDP_PASS;
    }";

/// Returns the processor time of a process in ticks of a hundredth of a second: utime and stime of
/// proc(5).
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // Behind the name, which may contain spaces.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11..13].iter().map(|number| number.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_device_that_does_not_finish_in_time_is_cancelled() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let peer = PacketSocket::at(&veth.left);
    let place = Place::new();
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    place.file("endless.wgsl", ENDLESS);
    let dump = format!("seen={}", path("seen.csv"));
    let arguments = ["--af-xdp", veth.right.name(), "--fuel", "16777216", "--dump-map", &dump];
    let mut running = Running::start(command_on(&right, "interp", &path("endless"), &arguments));
    running.wait_for("capabilities");
    let before = ticks(running.pid());
    for _ in 0..64 {
        peer.send(&udp(&veth, 9, &[7; 100]));
    }
    wait_until("the device is working", TIMEOUT, || ticks(running.pid()) > before + 50);
    running.signal("INT");
    let RunOutput { out, err, .. } = running.wait().assert_exit(130, &["abandoned", "no map is written"]);
    assert!(!err.contains("error: "), "{err}");
    let line: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(line["packets"].as_u64() > Some(0) && line["lost"]["failed"] == line["packets"], "{line}");
    assert!(!place.has("seen.csv"));
}

#[test]
fn a_state_that_cannot_be_written_is_reported_even_without_standard_output() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let place = Place::new();
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    place.file("endless.wgsl", ENDLESS);
    std::fs::create_dir(path("folder")).unwrap();
    let state = path("folder/state");
    let whole = command(&right, &path("endless"), &["--af-xdp", veth.right.name(), "--state", &state]);
    let mut command = right.command("sh");
    command.args(["-c", "exec \"$@\" > /dev/full", "sh"]).args(whole.get_args().skip(3));
    let mut running = Running::start(command);
    running.wait_for("capabilities");
    std::fs::remove_dir_all(path("folder")).unwrap();
    running.signal("INT");
    running.wait().assert_failure(1, &[&state]);
}

/// Returns the number of interfaces that runs have created.
fn created_interfaces(namespace: &Namespace) -> usize {
    namespace.ip(&["-oneline", "link"]).matches("back into the kernel").count()
}

#[test]
fn traffic_resumes_after_either_end_of_a_link_was_down() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let mut peer = PacketSocket::at(&veth.left);
    let running = Running::start(command(&right, "mac_swap", &["--af-xdp", veth.right.name(), "--only", "udp/9"]));
    for round in 0..5_u8 {
        let sent = udp(&veth, 9, &[round; 20]);
        // A socket reports once that its interface was down, on any call.
        wait_until("the frame can be sent", TIMEOUT, || peer.try_send(&sent).is_ok());
        let back = swapped(sent);
        wait_until(
            "the frame comes back",
            TIMEOUT,
            || matches!(peer.try_receive(QUIET_TIME), Ok(Some(frame)) if frame.bytes == back),
        );
        let end = if round % 2 == 0 { &veth.right } else { &veth.left };
        end.down();
        end.up();
        veth.left.wait_until_running();
        veth.right.wait_until_running();
    }
    assert!(has_program(&veth.right));
    assert_eq!(running.stop().parse_json()["carried_out"]["tx"], 5);
}

#[test]
fn deleting_the_interface_ends_the_run_with_an_error_and_totals() {
    let Some(Net { veth, left, right, _suite }) = net(2) else { return };
    let name = veth.right.name().to_owned();
    for dispatch in ["inline", "pipelined"] {
        let veth = portcullis_live_tests::Veth::between(&left, &right).queues(2).subnet(7).make();
        let name = veth.right.name().to_owned();
        let arguments = ["--af-xdp", &name, "--dispatch", dispatch];
        let running = Running::start(command(&right, "minimal", &arguments));
        assert_eq!(created_interfaces(&right), 2, "both ends of a pair");
        // Under traffic, which continues after the interface is gone.
        let (stop, frame) = (AtomicBool::new(false), udp(&veth, 9, &[7; 100]));
        let ended = std::thread::scope(|scope| {
            let sockets = [(); 2].map(|()| PacketSocket::at(&veth.left));
            for socket in sockets {
                let (frame, stop) = (&frame, &stop);
                scope.spawn(move || while !stop.load(Ordering::Relaxed) && socket.offer(frame).is_ok() {});
            }
            let packets = || right.ip(&["-statistics", "-oneline", "link", "show", "dev", &name]);
            let before = packets();
            wait_until("packets are received", TIMEOUT, || packets() != before);
            std::thread::sleep(QUIET_TIME);
            left.ip(&["link", "delete", veth.left.name()]);
            let ended = running.wait();
            stop.store(true, Ordering::Relaxed);
            ended
        });
        let json = ended.assert_exit(1, &[&format!("error: {name}: the interface is gone")]).parse_json();
        assert!(json["packets"].as_u64().unwrap() > 0, "{json}");
        assert_eq!(created_interfaces(&right), 0, "{}", right.ip(&["link"]));
    }
    // Without traffic.
    let running = Running::start(command(&right, "minimal", &["--af-xdp", &name]));
    veth.delete();
    let ended = running.wait().assert_exit(1, &[&format!("error: {name}: the interface is gone")]);
    assert_eq!(ended.parse_json()["packets"], 0);
}

#[test]
fn interfaces_of_a_killed_run_are_removed_by_the_next() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let start = || Running::start(command(&right, "minimal", &["--af-xdp", veth.right.name(), "--stack", "veth"]));
    for _ in 0..2 {
        let running = start();
        // The interfaces of the run before are gone.
        assert_eq!(created_interfaces(&right), 2, "both ends of a pair");
        assert!(has_program(&veth.right));
        running.kill();
        wait_until("the program is gone", TIMEOUT, || !has_program(&veth.right));
        assert_eq!(created_interfaces(&right), 2, "the pair is still there");
    }
    let running = start();
    assert_eq!(created_interfaces(&right), 2);
    running.stop();
    assert_eq!(created_interfaces(&right), 0);
}

/// Returns whether a text passes between the ends of a connection in both directions.
fn exchange(one: &mut TcpStream, other: &mut TcpStream, text: &str) -> bool {
    let go = |from: &mut TcpStream, to: &mut TcpStream| {
        let mut received = vec![0; text.len()];
        from.write_all(text.as_bytes()).is_ok() && to.read_exact(&mut received).is_ok() && received == text.as_bytes()
    };
    go(one, other) && go(other, one)
}

/// The connection is like that of an administrator who is logged in over the interface.
#[test]
fn connections_outside_the_rules_survive_a_run() {
    let Some(Net { veth, left, right, _suite }) = net(1) else { return };
    let listener = right.run(|| TcpListener::bind((veth.right.ipv4(), 22))).unwrap();
    let mut client = left.run(|| TcpStream::connect_timeout(&(veth.right.ipv4(), 22).into(), TIMEOUT)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    }
    let peer = PacketSocket::at(&veth.left);
    assert!(exchange(&mut client, &mut server, "before"));
    // Packets taken by the run are lost, so none of the connection's were taken.
    let narrow = ["--af-xdp", veth.right.name(), "--only", "udp/9,tcp/80", "--stack", "none"];
    let running = Running::start(command(&right, "minimal", &narrow));
    for _ in 0..100 {
        peer.send(&udp(&veth, 9, b"taken"));
        assert!(exchange(&mut client, &mut server, "meanwhile"));
    }
    let ended = running.stop();
    assert_eq!(ended.parse_json()["packets"], 100, "{}", ended.out);
    assert!(exchange(&mut client, &mut server, "afterwards"));
    // Without rules the run takes all packets; the connection resumes when it ends.
    let running = Running::start(command(&right, "minimal", &["--af-xdp", veth.right.name(), "--stack", "none"]));
    server.set_read_timeout(Some(QUIET_TIME)).unwrap();
    client.write_all(b"late").unwrap();
    let mut received = [0; 4];
    assert!(server.read_exact(&mut received).is_err(), "the packet is taken by the run");
    running.stop();
    server.set_read_timeout(Some(TIMEOUT)).unwrap();
    server.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"late");
}
