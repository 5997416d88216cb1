//! Sends as fast as possible for a while, and checks that every packet is accounted for and that
//! memory does not grow.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis_live_tests::frames::udp;
use portcullis_live_tests::{End, Namespace, PacketSocket, Suite, Veth};

use crate::support::{Running, command, count, sum};

/// Environment variable with the duration, in seconds.
const SECONDS: &str = "PORTCULLIS_SOAK_SECONDS";

/// Permitted growth of resident memory between a sixth of the duration and its end, in bytes.
const GROWTH: u64 = 1 << 20;

/// A filter that, by the destination port, returns PASS, TX, DROP or REDIRECT to target 1, a fourth
/// each.
const MIXED_VERDICTS: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        switch load_be16(pkt, 36u) & 3u {
            case 0u: { return XDP_PASS; }
            case 1u: { return XDP_TX; }
            case 2u: { return XDP_DROP; }
            default: { return redirect(1u); }
        }
    }";

/// Returns the packets received at an interface, and the packets dropped on sending, as the kernel
/// counts them.
fn counts(end: &End) -> [u64; 2] {
    let output = end.namespace().ip(&["-statistics", "-oneline", "link", "show", "dev", end.name()]);
    // `... \ RX: bytes packets ... \ 1 2 ... \ TX: bytes packets errors dropped ... \ 1 2 3 4 ...`
    let lines: Vec<&str> = output.split('\\').collect();
    let number = |from_end: usize, word: usize| {
        let line = lines.len().checked_sub(from_end).map_or("", |at| lines[at]);
        line.split_whitespace().nth(word).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{output}"))
    };
    [number(3, 1), number(1, 3)]
}

/// Returns the resident memory of a process, in bytes: proc(5).
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_else(|| panic!("{status}"));
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn every_packet_is_accounted_for_and_memory_does_not_grow() {
    let Some(_suite) = Suite::begin("soak", "af-xdp", &["ethtool"]) else { return };
    let seconds = std::env::var(SECONDS).map_or(3, |text| text.parse().expect("a number of seconds"));
    let time = Duration::from_secs(seconds);
    let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
    // Without IP the kernels send no frames of their own.
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().queues(2).make();
    let beyond = Veth::between(&other, &right).subnet(2).without_ipv4().without_ipv6().make();
    let folder = tempfile::tempdir().unwrap();
    let mix = folder.path().join("mix");
    std::fs::write(mix.with_extension("wgsl"), MIXED_VERDICTS).unwrap();
    let redirect = format!("1={}", beyond.right.name());
    let arguments = ["--af-xdp", veth.right.name(), "--only", "udp", "--redirect", &redirect];
    let mut command = command(&right, mix.to_str().unwrap(), &arguments);
    command.arg("--frames").arg("4096");
    let before = [counts(&veth.left), counts(&beyond.left)];
    let running = Running::start(command);

    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut memory = [0; 2];
    std::thread::scope(|scope| {
        for sender in 0..2 {
            let socket = PacketSocket::at(&veth.left);
            // Flows of all lengths, which the link distributes over its queues.
            let frames: Vec<_> =
                (0..64).map(|number| udp(&veth, 1000 + number, &[7; 1400][..usize::from(number) * 22])).collect();
            let (stop, sent) = (&stop, &sent);
            scope.spawn(move || {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    for frame in &frames {
                        socket.offer(frame).expect("the link is up");
                    }
                    count += frames.len() as u64;
                }
                println!("sender {sender}: {count}");
                sent.fetch_add(count, Ordering::Relaxed);
            });
        }
        let begun = Instant::now();
        std::thread::sleep(time / 6);
        memory[0] = resident(running.pid());
        std::thread::sleep(time.saturating_sub(begun.elapsed()));
        memory[1] = resident(running.pid());
        stop.store(true, Ordering::Relaxed);
    });
    let ended = running.stop();
    let after = [counts(&veth.left), counts(&beyond.left)];

    let json = ended.parse_json();
    let sent = sent.into_inner();
    let refused_by_link = after[0][1] - before[0][1];
    let [back, beyond] = [after[0][0] - before[0][0], after[1][0] - before[1][0]];
    println!(
        "{seconds} s: {sent} sent, {refused_by_link} refused by the link, {back} sent back, {beyond} redirected; memory {memory:?}; {json}"
    );
    assert_eq!(sent, refused_by_link + count(&json["dropped_by_kernel"]) + count(&json["packets"]));
    assert_eq!((&json["frames"]["missing"], &json["frames"]["sending"]), (&0.into(), &0.into()), "{json}");
    // Each packet has a verdict, which is executed or counted as lost.
    assert_eq!(sum(&json["verdicts"]), count(&json["packets"]), "{json}");
    assert_eq!(sum(&json["carried_out"]) + sum(&json["lost"]), count(&json["packets"]), "{json}");
    for verdict in ["pass", "tx", "drop", "redirect"] {
        assert!(count(&json["carried_out"][verdict]) > 1000, "{json}");
    }
    let lanes = json["lanes"].as_array().unwrap();
    assert!(lanes.len() == 2 && lanes.iter().all(|lane| count(&lane["packets"]) > 1000), "{json}");
    // The peers received what was sent to them.
    assert_eq!((back, beyond), (count(&json["carried_out"]["tx"]), count(&json["carried_out"]["redirect"])), "{json}");
    assert!(memory[1] < memory[0] + GROWTH, "memory has grown: {memory:?}");
}
