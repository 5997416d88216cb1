//! Live packets on every available device, with each of its dispatch methods.

use std::sync::Arc;

use portcullis::device::{Device, Dispatch, InPlaceReads};
use portcullis_live_tests::frames::udp;
use portcullis_live_tests::{Namespace, PacketSocket, Suite, Veth};

use crate::ctl::{CtlFolder, check_reload_under_load};
use crate::each_device;
use crate::support::{RunOutput, Running, TIMEOUT, command_on, count};

/// Part of the note that a run prints if packets are not filtered in place.
const COPIES: &str = "works on copies of the packet bytes that the filter needs";

/// A device with one of its dispatch methods.
pub struct DeviceUnderTest {
    device: Arc<dyn Device>,
    backend: &'static str,
    dispatch: Dispatch,
}

/// Runs a test on each device with each of its dispatch methods.
pub fn on_each(suite: &Suite, test: impl Fn(&DeviceUnderTest)) {
    each_device::on_each(suite, |backend, device, dispatch| {
        test(&DeviceUnderTest { device: device.clone(), backend, dispatch })
    });
}

impl DeviceUnderTest {
    pub fn id(&self) -> &str {
        &self.device.info().id
    }

    pub fn dispatch(&self) -> Dispatch {
        self.dispatch
    }

    /// Starts the program on the device.
    pub fn start(&self, namespace: &Namespace, filter: &str, arguments: &[&str]) -> Running {
        let arguments = [arguments, &["--dispatch", self.dispatch.name()]].concat();
        let mut command = command_on(namespace, self.id(), filter, &arguments);
        command.env("PORTCULLIS_EMULATED_CUDA", "report");
        Running::start(command)
    }

    /// Returns whether the host copies no packets for a filter that writes them, or resizes them:
    /// the table in docs/guide/af-xdp.md.
    fn is_in_place(&self, resizes: bool) -> bool {
        match self.backend {
            "cuda" => !resizes || self.copies_by_driver(),
            "wgpu" => false,
            _ => self.device.info().in_place_reads() == InPlaceReads::Always,
        }
    }

    /// Whether a CUDA device's driver copies descriptors and verdicts; the kernels of the other
    /// methods do so themselves.
    fn copies_by_driver(&self) -> bool {
        matches!(self.dispatch, Dispatch::Inline | Dispatch::Pipelined)
    }

    /// Checks that a run of `bytes` bytes, all of which the filter read, filtered packets in place,
    /// or printed the note about copies once for each session.
    fn check_copies(&self, bytes: u64, sessions: u32, resizes: bool, ended: &RunOutput) {
        let (id, stderr) = (self.id(), &ended.err);
        let copies = if self.is_in_place(resizes) { 0 } else { sessions as usize };
        assert_eq!(stderr.matches(COPIES).count(), copies, "{id} {}: {stderr}", self.dispatch);
        // Only the emulated driver reports what it copied.
        if self.device.info().name.starts_with("emulated CUDA device") && self.is_in_place(resizes) {
            let report = stderr.lines().find_map(|line| line.strip_prefix("emulated CUDA driver: copied "));
            let report = report.unwrap_or_else(|| panic!("{id} {}: no report: {stderr}", self.dispatch));
            let moved: Vec<u64> = report.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            // Descriptors and verdicts only.
            let by_driver = if self.copies_by_driver() { 1..bytes / 4 } else { 0..1 };
            assert!(moved.len() == 2 && moved.iter().all(|moved| by_driver.contains(moved)), "{bytes}: {report}");
        }
    }
}

/// Number of frames sent, and how many of them before any is received.
const FRAMES: u32 = 360;
const FRAMES_IN_FLIGHT: u32 = 60;

/// Offset that filters write to, and offset of the fill bytes.
const WRITTEN: usize = 46;
const FILL: usize = 50;

/// Builds a frame whose length depends on its number.
fn frame(veth: &Veth, number: u32) -> Vec<u8> {
    let fill = (0..200 + number * 37 % 1230).map(|at| (at ^ at >> 8 ^ number) as u8);
    udp(veth, 9, &[&number.to_be_bytes()[..], &[0; 4]].concat().into_iter().chain(fill).collect::<Vec<u8>>())
}

/// A filter with every verdict in turn, which reads the whole packet and writes the sum of the fill
/// bytes.
const EACH_VERDICT: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        var sum = 0u;
        for (var at = 50u; at < pkt_len(pkt); at++) { sum += load_u8(pkt, at); }
        store_be32(pkt, 46u, sum);
        switch load_be32(pkt, 42u) % 6u {
            case 0u: { return XDP_TX; }
            case 1u: { return XDP_PASS; }
            case 2u: { return redirect(3u); }
            case 3u: { return XDP_DROP; }
            case 4u: { return XDP_ABORTED; }
            default: { return redirect(9u); }
        }
    }";

/// Returns a frame as that filter changes it.
fn summed(mut frame: Vec<u8>) -> Vec<u8> {
    let sum: u32 = frame[FILL..].iter().map(|&byte| u32::from(byte)).sum();
    frame[WRITTEN..FILL].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A filter that sends every packet back, shortened or lengthened at either end.
const EACH_LENGTH: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        let length = pkt_len(pkt);
        var is_done = false;
        switch load_be32(pkt, 42u) % 4u {
            case 0u: { is_done = adjust_head(pkt, 4i); }
            case 1u: { is_done = adjust_head(pkt, -6i); store_be32(pkt, 0u, 0x0a0b0c0du); store_be16(pkt, 4u, 0x0e0fu); }
            case 2u: { is_done = adjust_tail(pkt, -10i); }
            default: { is_done = adjust_tail(pkt, 3i); store_be16(pkt, length, 0x0a0bu); store_u8(pkt, length + 2u, 0x0cu); }
        }
        return select(XDP_ABORTED, XDP_TX, is_done);
    }";

fn resized(frame: &[u8], number: u32) -> Vec<u8> {
    match number % 4 {
        0 => frame[4..].to_vec(),
        1 => [&[10, 11, 12, 13, 14, 15], frame].concat(),
        2 => frame[..frame.len() - 10].to_vec(),
        _ => [frame, &[10, 11, 12]].concat(),
    }
}

#[test]
fn verdicts_of_every_device_reach_the_peers_byte_for_byte() {
    let Some(suite) = Suite::begin("live packets by AF_XDP", "af-xdp", &["ethtool"]) else { return };
    let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
    // Without IP the kernels send no frames of their own.
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let redirect_link = Veth::between(&other, &right).subnet(2).without_ipv4().without_ipv6().make();
    let ctl = CtlFolder::new();
    let (verdicts, lengths) = (ctl.filter("verdicts", EACH_VERDICT), ctl.filter("lengths", EACH_LENGTH));
    let redirect = format!("3={}", redirect_link.right.name());
    let socket = ctl.socket();
    let arguments = ["--af-xdp", veth.right.name(), "--redirect", &redirect, "--control", &socket];
    let bytes: u64 = (0..FRAMES).map(|number| frame(&veth, number).len() as u64).sum();
    on_each(&suite, |tested| {
        let [mut peer, mut stack, mut far] = [&veth.left, &veth.right, &redirect_link.left].map(PacketSocket::at);
        let (id, dispatch) = (tested.id(), tested.dispatch());
        // First a filter that reads no packet, then sessions that share the memory for packets.
        let running = tested.start(&right, "minimal", &arguments);
        for first in (0..FRAMES).step_by(FRAMES_IN_FLIGHT as usize) {
            ctl.run_successfully(&["reload", &format!("{verdicts}.wgsl")]);
            let numbers = first..first + FRAMES_IN_FLIGHT;
            numbers.clone().for_each(|number| peer.send(&frame(&veth, number)));
            for number in numbers.filter(|number| number % 6 < 3) {
                let received = [&mut peer, &mut stack, &mut far][number as usize % 6].receive(TIMEOUT);
                let received = received.unwrap_or_else(|| panic!("{id} {dispatch}: {number} does not arrive")).bytes;
                assert_eq!(received, summed(frame(&veth, number)), "{id} {dispatch}: {number}");
            }
        }
        let ended = running.stop();
        let json = ended.parse_json();
        assert_eq!((&json["packets"], &json["bytes"]), (&FRAMES.into(), &bytes.into()), "{json}");
        let sixth = u64::from(FRAMES / 6);
        for verdict in ["tx", "pass", "redirect", "drop"] {
            assert_eq!(count(&json["carried_out"][verdict]), sixth, "{id} {dispatch}: {verdict}: {json}");
        }
        assert_eq!((count(&json["lost"]["aborted"]), count(&json["lost"]["no_target"])), (sixth, sixth), "{json}");
        tested.check_copies(bytes, FRAMES / FRAMES_IN_FLIGHT, false, &ended);

        let running = tested.start(&right, &lengths, &arguments);
        for first in (0..FRAMES).step_by(FRAMES_IN_FLIGHT as usize) {
            let numbers = first..first + FRAMES_IN_FLIGHT;
            numbers.clone().for_each(|number| peer.send(&frame(&veth, number)));
            for number in numbers {
                let received =
                    peer.receive(TIMEOUT).unwrap_or_else(|| panic!("{id} {dispatch}: {number} does not arrive")).bytes;
                assert_eq!(received, resized(&frame(&veth, number), number), "{id} {dispatch}: {number}");
            }
        }
        running.signal("TERM");
        let ended = running.wait().assert_success();
        let json = ended.parse_json();
        assert_eq!((&json["packets"], &json["carried_out"]["tx"]), (&FRAMES.into(), &FRAMES.into()), "{json}");
        tested.check_copies(bytes, 1, true, &ended);
    });
}

#[test]
fn filters_of_every_device_are_reloaded_under_load() {
    let Some(suite) = Suite::begin("reload under load", "af-xdp", &["ethtool"]) else { return };
    on_each(&suite, |tested| check_reload_under_load(1, tested.id(), tested.dispatch().name()));
}
