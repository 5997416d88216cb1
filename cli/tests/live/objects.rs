//! An unmodified XDP object in the kernel of one namespace and in the program in another: the same
//! traffic must give the same results.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use portcullis_live_tests::frames::{swapped, udp};
use portcullis_live_tests::{End, Namespace, PacketSocket, Suite, Veth};
use portcullis_xdp::Object;
use serde_json::Value;

use crate::clang;
use crate::kernel::{self, KernelProgram};
use crate::program::pcap_of;
use crate::support::{Running, TIMEOUT, program};

/// Ports: the first is reflected, the next two are closed, the last two are open.
const PORTS: [u16; 5] = [9, 10, 19, 80, 4789];
const OPEN: [u16; 2] = [80, 4789];

/// Number of frames sent.
const FRAMES: u32 = 400;

/// Frames sent back, and frames received at each open port, in order.
#[derive(Debug, PartialEq, Eq)]
struct ObservedFrames {
    back: Vec<Vec<u8>>,
    passed: BTreeMap<u16, Vec<Vec<u8>>>,
}

/// Packets and bytes by port, and packets by verdict.
type Counters = (BTreeMap<u16, (u64, u64)>, Vec<u64>);

/// Compiles a source with clang.
pub fn compile(source: &Path, object: &Path) -> Result<(), String> {
    clang::to_file(source, &["-mcpu=v3"], object)
}

struct Link {
    _left: Namespace,
    right: Namespace,
    veth: Veth,
}

impl Link {
    fn new() -> Link {
        let (left, right) = (Namespace::new(), Namespace::new());
        let veth = Veth::between(&left, &right).without_ipv6().make();
        Link { _left: left, right, veth }
    }

    /// Sends all frames, and returns what came back and what arrived.
    fn send(&self) -> ObservedFrames {
        let bind = |port: u16| {
            let socket = self.right.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            (port, socket)
        };
        let sockets: Vec<(u16, UdpSocket)> = OPEN.map(bind).into();
        let mut peer = PacketSocket::at(&self.veth.left);
        let mut seen = ObservedFrames { back: Vec::new(), passed: OPEN.map(|port| (port, Vec::new())).into() };
        for number in 0..FRAMES {
            let (port, frame) = self.frame(number);
            peer.send(&frame);
            // One at a time, so that none is lost and the order is known.
            if port == PORTS[0] {
                let back = swapped(frame.clone());
                let got = peer.receive_where(TIMEOUT, |got| got.bytes == back);
                seen.back.push(got.unwrap_or_else(|| panic!("frame {number} does not come back")).bytes);
            }
            if let Some((_, socket)) = sockets.iter().find(|(open, _)| *open == port) {
                let mut buffer = vec![0; 2000];
                let length =
                    socket.recv(&mut buffer).unwrap_or_else(|error| panic!("frame {number} does not pass: {error}"));
                seen.passed.entry(port).or_default().push(buffer[..length].to_vec());
            }
        }
        // Nothing else arrives.
        for (port, socket) in &sockets {
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            assert!(socket.recv(&mut [0; 2000]).is_err(), "port {port} received more than was sent");
        }
        let is_ours = |frame: &portcullis_live_tests::Frame| {
            frame.bytes.get(36..38).is_some_and(|port| PORTS.iter().any(|it| it.to_be_bytes() == port))
        };
        let more = peer.receive_where(Duration::from_millis(100), is_ours);
        assert!(more.is_none(), "more frames came back than were sent");
        seen
    }

    fn frame(&self, number: u32) -> (u16, Vec<u8>) {
        let port = PORTS[(number.wrapping_mul(0x9e37_79b1) >> 16) as usize % PORTS.len()];
        (port, udp(&self.veth, port, &number.to_be_bytes().repeat(8 + number as usize % 40)))
    }
}

/// Returns the index of an interface of this thread's namespace.
fn interface_index(end: &End) -> u32 {
    let name = std::ffi::CString::new(end.name()).unwrap();
    // SAFETY: a NUL-terminated string that outlives the call.
    #[expect(unsafe_code, reason = "if_nametoindex(3)")]
    unsafe {
        libc::if_nametoindex(name.as_ptr())
    }
}

/// Runs the object in the kernel, in native mode.
fn by_kernel(object: &Object) -> (ObservedFrames, Counters) {
    let link = Link::new();
    let program = KernelProgram::load(object, "port_traffic").unwrap_or_else(|error| panic!("{error}"));
    let (near, far) = (&link.veth.left, &link.veth.right);
    let passes = near.namespace().run(|| kernel::pass(interface_index(near)).unwrap_or_else(|error| panic!("{error}")));
    let attached = far.namespace().run(|| program.attach(interface_index(far)));
    let attached = attached.unwrap_or_else(|error| panic!("the kernel attaches no program: {error}"));
    let seen = link.send();
    drop((attached, passes));
    let entries = |name: &str| {
        let number = object.maps.iter().position(|map| map.name == name).expect("the object has the map");
        program.entries(number).unwrap().expect("the map has entries")
    };
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let ports = entries("ports").into_iter();
    let ports =
        ports.map(|(key, value)| (u16::from_be_bytes([key[0], key[1]]), (word(&value[..8]), word(&value[8..]))));
    (seen, (ports.collect(), entries("actions").values().map(|value| word(value)).collect()))
}

/// Reads the counters that `--dump-map` wrote.
fn dumped(folder: &Path) -> Counters {
    let read =
        |name: &str| -> Vec<Value> { serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap() };
    let ports = read("ports.json").into_iter().map(|row| {
        let (port, value) = (row["key"]["port"].as_u64().unwrap() as u16, &row["value"]);
        (port.swap_bytes(), (value["packets"].as_u64().unwrap(), value["bytes"].as_u64().unwrap()))
    });
    (ports.collect(), read("actions.json").iter().map(|row| row["value"].as_u64().unwrap()).collect())
}

fn dumps(folder: &Path) -> [String; 4] {
    let file = |name: &str| format!("{name}={}/{name}.json", folder.display());
    ["--dump-map".into(), file("ports"), "--dump-map".into(), file("actions")]
}

/// Runs the object in the program, over AF_XDP.
fn by_portcullis(object: &Path, folder: &Path, device: &str) -> (ObservedFrames, Counters) {
    let link = Link::new();
    // Frames for other ports bypass the program, which would not count them.
    let arguments = ["run", "--af-xdp", link.veth.right.name(), "--device", device, "--json"];
    let mut command = program(&link.right, &arguments);
    command.arg(object).args(dumps(folder));
    let running = Running::start(command);
    let seen = link.send();
    running.stop();
    (seen, dumped(folder))
}

/// Runs the object in the program, over a capture of the same frames.
fn over_a_capture(object: &Path, folder: &Path, device: &str) -> Counters {
    let link = Link::new();
    let file: PathBuf = folder.join("in.pcap");
    let frames: Vec<Vec<u8>> = (0..FRAMES).map(|number| link.frame(number).1).collect();
    std::fs::write(&file, pcap_of(&frames)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.arg("run").arg(object).arg("--read").arg(&file).args(["--device", device, "--json"]).args(dumps(folder));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    dumped(folder)
}

#[test]
fn an_object_gives_the_kernels_results() {
    let Some(suite) = Suite::begin("an object, in the kernel and here", "af-xdp", &[]) else { return };
    if let Some(reason) = kernel::missing() {
        suite.lacks("kernel-bpf", &reason);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("port_traffic.o");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compat-tests/xdp/port_traffic.c");
    if let Err(reason) = compile(&source, &file) {
        suite.lacks("clang-bpf", reason.lines().next().unwrap_or_default());
        return;
    }
    let object = Object::read("port_traffic.o", &std::fs::read(&file).unwrap()).unwrap();
    let (expected, counted) = by_kernel(&object);
    assert!(expected.back.len() > 40 && expected.passed.values().all(|payloads| payloads.len() > 40), "{expected:?}");
    assert_eq!(counted.1.iter().sum::<u64>(), u64::from(FRAMES), "{counted:?}");
    for device in ["cpu", "interp"] {
        let (observed, counters) = by_portcullis(&file, folder.path(), device);
        assert_eq!((&observed, &counters), (&expected, &counted), "{device}");
        assert_eq!(over_a_capture(&file, folder.path(), device), counted, "{device}, over a capture");
    }
    println!(
        "{FRAMES} frames: {} came back, {} passed, and all counters are the kernel's: {counted:?}",
        expected.back.len(),
        expected.passed.values().map(Vec::len).sum::<usize>()
    );
}

/// The commands of docs/guide/xdp-objects.md work as they are printed.
#[test]
fn the_ten_commands_of_the_xdp_objects_page_work() {
    let Some(suite) = Suite::begin("ten lines of shell", "af-xdp", &[]) else { return };
    let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = tempfile::tempdir().unwrap();
    if let Err(reason) = compile(&root.join("compat-tests/xdp/port_traffic.c"), &folder.path().join("probe.o")) {
        suite.lacks("clang-bpf", reason.lines().next().unwrap_or_default());
        return;
    }
    let page = include_str!("../../../docs/guide/xdp-objects.md");
    let (_, section) = page.split_once("\n## An existing project, in ten lines of shell\n").unwrap();
    let lines: Vec<&str> = section.lines().skip_while(|line| !line.starts_with("    ")).collect();
    let lines: Vec<&str> = lines.iter().map_while(|line| line.strip_prefix("    ")).collect();
    assert_eq!(lines.len(), 10, "{lines:?}");
    // The checkout's folders, beside files of the test's own.
    for name in ["compat-tests", "samples"] {
        std::os::unix::fs::symlink(root.join(name), folder.path().join(name)).unwrap();
    }
    let link = Link::new();
    let name = link.veth.right.name();
    link.right.ip(&["link", "set", name, "down"]);
    link.right.ip(&["link", "set", name, "name", "eth0", "up"]);
    let programs = Path::new(env!("CARGO_BIN_EXE_portcullis")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = link.right.command("sh");
    command.args(["-e", "-c", &lines.join("\n")]).current_dir(folder.path()).env("PATH", path);
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    let columns = "key.port,key.reserved,value.packets,value.bytes";
    for part in ["`port_traffic` of prog.o", columns, "prog.o has replaced the filter"] {
        assert!(stdout.contains(part), "{part}: {stdout}{stderr}");
    }
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert!(read("passed.pcap").len() > 1000 && read("back.pcap").len() > 100);
    // The sample was filtered twice.
    let csv = String::from_utf8(read("ports.csv")).unwrap();
    let counts = csv.lines().skip(1).map(|line| line.split(',').nth(2).and_then(|it| it.parse::<u64>().ok()).unwrap());
    let counts: Vec<u64> = counts.collect();
    assert!(counts.len() > 3 && counts.iter().all(|count| *count > 0 && count % 2 == 0), "{csv}");
}
