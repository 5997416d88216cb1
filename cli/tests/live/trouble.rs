//! What may happen to a run: links that go down, interfaces that go away, kills; and the
//! connections beside it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use portcullis_live_tests::frames::{swapped, udp};
use portcullis_live_tests::{Namespace, PacketSocket, wait_until};

use crate::af_xdp::{Net, has_program, net};
use crate::support::{ExitedRun, NOTHING, Running, SOON, command, command_on};

/// Runs on every packet for as long as it may.
const ENDLESS: &str = "
    //! map seen: counter entries=1
    fn xdp_filter(pkt: u32) -> u32 {
        seen_add(0u, 1u);
        var x = load_u8(pkt, 0u);
        loop { if x == 256u { break; } x = (x * 7u) & 255u; }
        return XDP_PASS;
    }";

/// The time that a process has had on processors, in ticks of a hundredth of a second: utime and
/// stime of proc(5).
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // Behind its name, which may have spaces.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11..13].iter().map(|number| number.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_device_that_is_not_through_in_time_is_not_waited_for() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let peer = PacketSocket::at(&veth.left);
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("endless.wgsl"), ENDLESS).unwrap();
    let dump = format!("seen={}", path("seen.csv"));
    let arguments = ["--af-xdp", veth.right.name(), "--fuel", "16777216", "--dump-map", &dump];
    let mut running = Running::start(command_on(&right, "interp", &path("endless"), &arguments));
    running.hear("capabilities");
    let before = ticks(running.process());
    for _ in 0..64 {
        peer.send(&udp(&veth, 9, &[7; 100]));
    }
    wait_until("it is at work", SOON, || ticks(running.process()) > before + 50);
    running.signal("INT");
    let ExitedRun { status, stdout, stderr } = running.end();
    assert_eq!(status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("given up") && stderr.contains("no map is written"), "{stderr}");
    assert!(!stderr.contains("error: "), "{stderr}");
    let line: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert!(line["packets"].as_u64() > Some(0) && line["lost"]["failed"] == line["packets"], "{line}");
    assert!(!Path::new(&path("seen.csv")).exists());
}

#[test]
fn a_state_that_cannot_be_written_is_told_where_totals_cannot_be_printed() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("endless.wgsl"), ENDLESS).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    let state = path("folder/state");
    let whole = command(&right, &path("endless"), &["--af-xdp", veth.right.name(), "--state", &state]);
    let mut command = right.command("sh");
    command.args(["-c", "exec \"$@\" > /dev/full", "sh"]).args(whole.get_args().skip(3));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(command);
    running.hear("capabilities");
    std::fs::remove_dir_all(path("folder")).unwrap();
    running.signal("INT");
    let ExitedRun { status, stderr, .. } = running.end();
    assert!(status.code() == Some(1) && stderr.contains(&state), "{status}: {stderr}");
}

/// How many interfaces of a run's own there are.
fn made(namespace: &Namespace) -> usize {
    namespace.ip(&["-oneline", "link"]).matches("back into the kernel").count()
}

#[test]
fn traffic_goes_on_after_either_end_of_a_link_was_down() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let mut peer = PacketSocket::at(&veth.left);
    let running = Running::start(command(&right, "mac_swap", &["--af-xdp", veth.right.name(), "--only", "udp/9"]));
    for round in 0..5_u8 {
        let sent = udp(&veth, 9, &[round; 20]);
        // That the interface was down is told once, whatever is asked.
        wait_until("it can be sent", SOON, || peer.try_send(&sent).is_ok());
        let back = swapped(sent);
        wait_until(
            "it comes back",
            SOON,
            || matches!(peer.try_receive(NOTHING), Ok(Some(frame)) if frame.bytes == back),
        );
        let end = if round % 2 == 0 { &veth.right } else { &veth.left };
        end.down();
        end.up();
        veth.left.wait_until_running();
        veth.right.wait_until_running();
    }
    assert!(has_program(&veth.right));
    running.signal("INT");
    let ended = running.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(ended.json()["carried_out"]["tx"], 5);
}

#[test]
fn an_interface_that_is_removed_ends_the_run_with_a_sentence_and_the_totals() {
    let Some(Net { veth, left, right, _suite }) = net(2) else { return };
    let name = veth.right.name().to_owned();
    for dispatch in ["inline", "pipelined"] {
        let veth = portcullis_live_tests::Veth::between(&left, &right).queues(2).subnet(7).make();
        let name = veth.right.name().to_owned();
        let arguments = ["--af-xdp", &name, "--dispatch", dispatch];
        let running = Running::start(command(&right, "minimal", &arguments));
        assert_eq!(made(&right), 2, "both ends of a pair");
        // Under traffic, for which nobody is there in the end.
        let (stop, frame) = (AtomicBool::new(false), udp(&veth, 9, &[7; 100]));
        let ended = std::thread::scope(|scope| {
            let sockets = [(); 2].map(|()| PacketSocket::at(&veth.left));
            for socket in sockets {
                let (frame, stop) = (&frame, &stop);
                scope.spawn(move || while !stop.load(Ordering::Relaxed) && socket.offer(frame).is_ok() {});
            }
            let packets = || right.ip(&["-statistics", "-oneline", "link", "show", "dev", &name]);
            let before = packets();
            wait_until("packets come", SOON, || packets() != before);
            std::thread::sleep(NOTHING);
            left.ip(&["link", "delete", veth.left.name()]);
            let ended = running.end();
            stop.store(true, Ordering::Relaxed);
            ended
        });
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains(&format!("error: {name}: the interface is gone")), "{}", ended.stderr);
        let json = ended.json();
        assert!(json["packets"].as_u64().unwrap() > 0, "{json}");
        assert_eq!(made(&right), 0, "{}", right.ip(&["link"]));
    }
    // Without any.
    let running = Running::start(command(&right, "minimal", &["--af-xdp", &name]));
    veth.delete();
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("error: {name}: the interface is gone")), "{}", ended.stderr);
    assert_eq!(ended.json()["packets"], 0);
}

#[test]
fn what_a_killed_run_left_is_gone_after_the_next_one() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let start = || Running::start(command(&right, "minimal", &["--af-xdp", veth.right.name(), "--stack", "veth"]));
    for _ in 0..2 {
        let running = start();
        // Those of the run before are not there any more.
        assert_eq!(made(&right), 2, "both ends of a pair");
        assert!(has_program(&veth.right));
        running.signal("KILL");
        assert!(!running.end().status.success());
        wait_until("the program is gone", SOON, || !has_program(&veth.right));
        assert_eq!(made(&right), 2, "a pair stays");
    }
    let running = start();
    assert_eq!(made(&right), 2);
    running.signal("INT");
    assert!(running.end().status.success());
    assert_eq!(made(&right), 0);
}

/// Whether the two ends of a connection reach each other.
fn reach(one: &mut TcpStream, other: &mut TcpStream, text: &str) -> bool {
    let go = |from: &mut TcpStream, to: &mut TcpStream| {
        let mut came = vec![0; text.len()];
        from.write_all(text.as_bytes()).is_ok() && to.read_exact(&mut came).is_ok() && came == text.as_bytes()
    };
    go(one, other) && go(other, one)
}

/// As the administrator of a machine would have it, who is logged in over the interface.
#[test]
fn a_connection_over_the_interface_survives_a_run_that_does_not_take_it() {
    let Some(Net { veth, left, right, _suite }) = net(1) else { return };
    let listener = right.run(|| TcpListener::bind((veth.right.ipv4(), 22))).unwrap();
    let mut client = left.run(|| TcpStream::connect_timeout(&(veth.right.ipv4(), 22).into(), SOON)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(SOON)).unwrap();
    }
    let peer = PacketSocket::at(&veth.left);
    assert!(reach(&mut client, &mut server, "before"));
    // What is taken is lost, so that nothing of the connection can have been.
    let narrow = ["--af-xdp", veth.right.name(), "--only", "udp/9,tcp/80", "--stack", "none"];
    let running = Running::start(command(&right, "minimal", &narrow));
    for _ in 0..100 {
        peer.send(&udp(&veth, 9, b"taken"));
        assert!(reach(&mut client, &mut server, "meanwhile"));
    }
    running.signal("INT");
    let ended = running.end();
    assert_eq!(ended.json()["packets"], 100, "{}", ended.stdout);
    assert!(reach(&mut client, &mut server, "afterwards"));
    // Without rules, it is cut off; it is only late when the run has ended.
    let running = Running::start(command(&right, "minimal", &["--af-xdp", veth.right.name(), "--stack", "none"]));
    server.set_read_timeout(Some(NOTHING)).unwrap();
    client.write_all(b"late").unwrap();
    let mut came = [0; 4];
    assert!(server.read_exact(&mut came).is_err(), "it is taken");
    running.signal("INT");
    assert!(running.end().status.success());
    server.set_read_timeout(Some(SOON)).unwrap();
    server.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"late");
}
