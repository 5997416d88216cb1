//! XDP programs that look up routes in the kernel's tables (`--kernel-routes`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use portcullis_live_tests::frames::udp;
use portcullis_live_tests::{Namespace, ping, wait_until};

use crate::af_xdp::{Net, net_with};
use crate::clang;
use crate::program::pcap;
use crate::support::{self, Running, TIMEOUT, run_to_end};
use crate::topology::hosts;

/// Time to wait for an answer; short, as some never come.
const ANSWER: Duration = Duration::from_millis(200);

/// Compiles a program of the tests that compare with the kernel.
pub fn compiled(folder: &Path, source: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(source);
    let object = folder.join("program.o");
    clang::to_file(&source, &["-mcpu=v3"], &object).unwrap_or_else(|error| panic!("{error}"));
    object
}

/// Returns the command `portcullis run OBJECT:PROGRAM` in a namespace.
pub fn command(namespace: &Namespace, object: &Path, program: &str, arguments: &[&str]) -> Command {
    let filter = format!("{}:{program}", object.display());
    support::program(namespace, &[&["run", &filter, "--device", "cpu", "--json"], arguments].concat())
}

/// Returns an interface's index.
pub fn number(namespace: &Namespace, interface: &str) -> String {
    let shown = namespace.ip(&["-oneline", "link", "show", interface]);
    shown.split(':').next().unwrap_or_default().to_owned()
}

#[test]
fn a_router_follows_changes_of_the_kernels_routes() {
    let Some(hosts) = hosts(&["clang"]) else { return };
    let (between, near, far) = (&hosts.between, hosts.near.right.name(), hosts.far.left.name());
    hosts.route();
    between.sysctl("net.ipv4.ip_forward", "1");
    let folder = tempfile::tempdir().unwrap();
    let object = compiled(folder.path(), "compat-tests/xdp-routes/forward.c");
    let routes = folder.path().join("routes.csv");
    let dump = format!("fib_v4={}", routes.display());
    let arguments = ["--af-xdp", near, "--af-xdp", far, "--kernel-routes", "--dump-map", &dump];
    let running = Running::start(command(between, &object, "forward_v4", &arguments));
    let (host, blackhole) = (hosts.far.right.ipv4(), hosts.far.right.ipv4().to_string() + "/32");
    let answers = || ping(&hosts.left, host.into(), ANSWER);
    // The first packets pass to the kernel, which resolves the neighbours and forwards them.
    wait_until("the host behind the router answers", TIMEOUT, answers);
    between.ip(&["route", "add", "blackhole", &blackhole]);
    wait_until("the host is unreachable", TIMEOUT, || !answers());
    between.ip(&["route", "delete", "blackhole", &blackhole]);
    wait_until("the host answers again", TIMEOUT, answers);
    wait_until("the program forwards every packet itself", TIMEOUT, || (0..20).all(|_| answers()));
    let json = running.stop().parse_json();
    // Both ways, by the kernel's interface indices.
    assert!(json["carried_out"]["redirect"].as_u64() >= Some(20), "{json}");
    assert!(json["lost"]["no_target"].as_u64().unwrap_or(0) == 0, "{json}");
    let rows = std::fs::read_to_string(routes).unwrap();
    let interface = number(between, far);
    let row = format!("10.77.2.0/24,1,254,{interface},");
    assert!(rows.starts_with("prefix,type,table,interface,metric,") && rows.contains(&row), "{row}: {rows}");
}

#[test]
fn a_capture_is_routed_as_if_received_at_the_given_interface() {
    let Some(Net { veth, right, _suite, .. }) = net_with(1, &["clang"]) else { return };
    right.sysctl("net.ipv4.ip_forward", "1");
    let interface = veth.right.name();
    right.ip(&["route", "add", "192.0.2.0/24", "via", "10.77.0.1"]);
    right.ip(&["neigh", "replace", "10.77.0.1", "lladdr", "02:aa:00:00:00:01", "dev", interface, "nud", "permanent"]);
    let folder = tempfile::tempdir().unwrap();
    let object = compiled(folder.path(), "compat-tests/xdp-routes/forward.c");
    let mut frame = udp(&veth, 9, &[7; 30]);
    frame[30..34].copy_from_slice(&[192, 0, 2, 9]);
    let input = folder.path().join("in.pcap");
    std::fs::write(&input, pcap(&[&frame])).unwrap();
    let sent = folder.path().join("sent");
    let run = |routes: &str| {
        let arguments = ["--read", input.to_str().unwrap(), "--write-redirect", sent.to_str().unwrap(), routes];
        run_to_end(command(&right, &object, "forward_both", &arguments))
    };
    // Without an ingress interface the program's lookup fails, and the packet passes.
    assert_eq!(run("--kernel-routes").assert_success().parse_json()["verdicts"]["pass"], 1);
    let json = run(&format!("--kernel-routes={interface}")).assert_success().parse_json();
    assert_eq!(json["verdicts"]["redirect"], 1, "{json}");
    let written = std::fs::read(sent.join(format!("{}.pcap", number(&right, interface)))).unwrap();
    let mac = [0x02, 0xaa, 0, 0, 0, 1];
    assert_eq!((&written[40..46], &written[46..52]), (&mac[..], &veth.right.mac()[..]));
    run("--kernel-routes=nosuchthing").assert_failure(1, &["--kernel-routes: there is no interface `nosuchthing`"]);
    let file = format!("fib_v4={}", folder.path().join("routes.csv").display());
    let both = ["--read", input.to_str().unwrap(), "--kernel-routes", "--map", &file];
    let ended = run_to_end(command(&right, &object, "forward_both", &both));
    ended.assert_failure(2, &["the map `fib_v4` follows the kernel's routes"]);
}
