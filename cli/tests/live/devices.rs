//! Live packets on every device that there is, by each of its dispatch methods.

use std::sync::Arc;

use portcullis::device::{Device, Dispatch, InPlaceReads};
use portcullis_live_tests::frames::udp;
use portcullis_live_tests::{Namespace, PacketSocket, Suite, Veth};
use serde_json::Value;

use crate::desk::{Desk, filters_take_over_under_load};
use crate::each_device;
use crate::support::{ExitedRun, Running, SOON, command_on};

/// What a run says where packets are not filtered where they are.
const COPIES: &str = "gets a copy of what the filter needs of each packet";

/// A device, by one of its methods.
pub struct By {
    device: Arc<dyn Device>,
    backend: &'static str,
    dispatch: Dispatch,
}

/// Runs a test on each device, by each of its methods.
pub fn on_each(suite: &Suite, test: impl Fn(&By)) {
    each_device::on_each(suite, |backend, device, dispatch| test(&By { device: device.clone(), backend, dispatch }));
}

impl By {
    pub fn id(&self) -> &str {
        &self.device.info().id
    }

    pub fn dispatch(&self) -> Dispatch {
        self.dispatch
    }

    /// Runs the program by it.
    pub fn start(&self, namespace: &Namespace, filter: &str, arguments: &[&str]) -> Running {
        let arguments = [arguments, &["--dispatch", self.dispatch.name()]].concat();
        let mut command = command_on(namespace, self.id(), filter, &arguments);
        command.env("PORTCULLIS_EMULATED_CUDA", "report");
        Running::start(command)
    }

    /// Whether a filter that writes to packets of a UMEM finds them there: the table in
    /// docs/guide/af-xdp.md.
    fn is_in_place(&self) -> bool {
        match self.backend {
            "cuda" => matches!(self.dispatch, Dispatch::Inline | Dispatch::Pipelined),
            "wgpu" => false,
            _ => self.device.info().in_place_reads() == InPlaceReads::Always,
        }
    }

    /// Sees to it that packets of so many bytes, all of which were read, were filtered where they
    /// were, or were copied for each of so many sessions, as it should be.
    fn has_moved(&self, bytes: u64, sessions: u32, ended: &ExitedRun) {
        let (id, said) = (self.id(), &ended.stderr);
        let copies = if self.is_in_place() { 0 } else { sessions as usize };
        assert_eq!(said.matches(COPIES).count(), copies, "{id} {}: {said}", self.dispatch);
        // What a driver has moved, only the emulated one tells.
        if self.device.info().name.starts_with("emulated CUDA device") && self.is_in_place() {
            let report = said.lines().find_map(|line| line.strip_prefix("emulated CUDA driver: copied "));
            let report = report.unwrap_or_else(|| panic!("{id} {}: no report: {said}", self.dispatch));
            let moved: Vec<u64> = report.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            // Descriptors and verdicts.
            assert!(moved.len() == 2 && moved.iter().all(|moved| (1..bytes / 4).contains(moved)), "{bytes}: {report}");
        }
    }
}

/// How many frames are sent, and how many of them before any is looked for.
const FRAMES: u32 = 360;
const AT_ONCE: u32 = 60;

/// Where filters write into a frame, and where what fills it begins.
const WRITTEN: usize = 46;
const FILL: usize = 50;

/// A frame of its number's length.
fn frame(veth: &Veth, number: u32) -> Vec<u8> {
    let fill = (0..200 + number * 37 % 1230).map(|at| (at ^ at >> 8 ^ number) as u8);
    udp(veth, 9, &[&number.to_be_bytes()[..], &[0; 4]].concat().into_iter().chain(fill).collect::<Vec<u8>>())
}

/// By the number each verdict in turn. Reads all of the packet, and writes the sum of what fills
/// it.
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

/// What comes of a frame by it.
fn summed(mut frame: Vec<u8>) -> Vec<u8> {
    let sum: u32 = frame[FILL..].iter().map(|&byte| u32::from(byte)).sum();
    frame[WRITTEN..FILL].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Sends all back, shorter and longer at either end.
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

fn count(of: &Value) -> u64 {
    of.as_u64().unwrap()
}

#[test]
fn verdicts_of_every_device_are_seen_from_the_other_side_byte_for_byte() {
    let Some(suite) = Suite::begin("live packets by AF_XDP", "af-xdp", &["ethtool"]) else { return };
    let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
    // Their kernels keep silent.
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let beyond = Veth::between(&other, &right).subnet(2).without_ipv4().without_ipv6().make();
    let desk = Desk::new();
    let (verdicts, lengths) = (desk.filter("verdicts", EACH_VERDICT), desk.filter("lengths", EACH_LENGTH));
    let redirect = format!("3={}", beyond.right.name());
    let socket = desk.socket();
    let arguments = ["--af-xdp", veth.right.name(), "--redirect", &redirect, "--control", &socket];
    let bytes: u64 = (0..FRAMES).map(|number| frame(&veth, number).len() as u64).sum();
    on_each(&suite, |by| {
        let [mut peer, mut stack, mut far] = [&veth.left, &veth.right, &beyond.left].map(PacketSocket::at);
        let (id, dispatch) = (by.id(), by.dispatch());
        // One that looks at no packet, and then sessions that share the memory which packets come
        // into.
        let running = by.start(&right, "minimal", &arguments);
        for first in (0..FRAMES).step_by(AT_ONCE as usize) {
            desk.done(&["reload", &format!("{verdicts}.wgsl")]);
            let numbers = first..first + AT_ONCE;
            numbers.clone().for_each(|number| peer.send(&frame(&veth, number)));
            for number in numbers.filter(|number| number % 6 < 3) {
                let came = [&mut peer, &mut stack, &mut far][number as usize % 6].receive(SOON);
                let came = came.unwrap_or_else(|| panic!("{id} {dispatch}: {number} comes")).bytes;
                assert_eq!(came, summed(frame(&veth, number)), "{id} {dispatch}: {number}");
            }
        }
        running.signal("INT");
        let ended = running.end();
        assert!(ended.status.success(), "{id} {dispatch}: {}", ended.stderr);
        let json = ended.json();
        assert_eq!((&json["packets"], &json["bytes"]), (&FRAMES.into(), &bytes.into()), "{json}");
        let sixth = u64::from(FRAMES / 6);
        for verdict in ["tx", "pass", "redirect", "drop"] {
            assert_eq!(count(&json["carried_out"][verdict]), sixth, "{id} {dispatch}: {verdict}: {json}");
        }
        assert_eq!((count(&json["lost"]["aborted"]), count(&json["lost"]["no_target"])), (sixth, sixth), "{json}");
        by.has_moved(bytes, FRAMES / AT_ONCE, &ended);

        let running = by.start(&right, &lengths, &arguments);
        for first in (0..FRAMES).step_by(AT_ONCE as usize) {
            let numbers = first..first + AT_ONCE;
            numbers.clone().for_each(|number| peer.send(&frame(&veth, number)));
            for number in numbers {
                let came = peer.receive(SOON).unwrap_or_else(|| panic!("{id} {dispatch}: {number} comes")).bytes;
                assert_eq!(came, resized(&frame(&veth, number), number), "{id} {dispatch}: {number}");
            }
        }
        running.signal("TERM");
        let ended = running.end();
        assert!(ended.status.success(), "{id} {dispatch}: {}", ended.stderr);
        let json = ended.json();
        assert_eq!((&json["packets"], &json["carried_out"]["tx"]), (&FRAMES.into(), &FRAMES.into()), "{json}");
        by.has_moved(bytes, 1, &ended);
    });
}

#[test]
fn filters_of_every_device_take_over_under_load() {
    let Some(suite) = Suite::begin("reload under load", "af-xdp", &["ethtool"]) else { return };
    on_each(&suite, |by| filters_take_over_under_load(1, by.id(), by.dispatch().name()));
}
