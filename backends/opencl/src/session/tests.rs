//! Sessions seen from the inside.

use std::sync::mpsc::{RecvTimeoutError, channel};

use portcullis_core::device::Session;
use portcullis_core::device::{CancelToken, Device};
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::{Arena, BatchCutter, Descriptor, ResizeRoom};
use portcullis_core::program::ProgramOptions;
use portcullis_wgsl as wgsl;

use super::*;
use crate::{OpenClDevice, probe};

/// Far more than giving up a device takes, far less than the device below is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The devices that there are. Where there are none, the test is left out, but for `PORTCULLIS_REQUIRE=opencl`.
fn devices() -> Vec<OpenClDevice> {
    let devices = probe().unwrap_or_else(|error| {
        println!("skipped: {error}");
        Vec::new()
    });
    let required = std::env::var("PORTCULLIS_REQUIRE").unwrap_or_default();
    assert!(!devices.is_empty() || !required.split(',').any(|name| name == "opencl"), "opencl is required");
    devices
}

#[test]
fn a_busy_device_is_left_behind() {
    let text = "
        fn xdp_filter(pkt: u32) -> u32 {
            var x = load_le32(pkt, 0u);
            loop { x = x * 1664525u + 1013904223u; if x == load_le32(pkt, 4u) + 0x80000000u { break; } }
            return select(XDP_PASS, XDP_DROP, x == 7u);
        }";
    let program = wgsl::compile(&Source::new("burn.wgsl", text), &ProgramOptions::default());
    let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
    let devices = devices();
    for device in devices {
        if device.info().kind != DeviceKind::Cpu {
            println!("skipped on {}: a launch this long would be killed", device.info().id);
            continue;
        }
        let program = program.clone();
        let (done, outcome) = channel();
        // A thread of its own: a session that waits for the device does so for a long time.
        let thread = std::thread::spawn(move || {
            leave_busy(&device, &program);
            let _ = done.send(());
        });
        match outcome.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => panic!("a busy device is waited for: {PATIENCE:?} and no end"),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        }
    }
}

/// Keeps a device busy, cancels, and sees to it that nobody waits for the device and that it finds its
/// memory where it was.
fn leave_busy(device: &OpenClDevice, program: &Arc<Program>) {
    const PACKETS: u32 = 1 << 20;
    let cancel = CancelToken::new();
    let options = LoadOptions { cancel: cancel.clone(), ..LoadOptions::default() };
    // A batch in one launch keeps the device busy for minutes, as a driver that compiles does.
    let mut session = open(device, program, &options).unwrap().with_unlimited_launches();
    let descriptors = (0..PACKETS).map(|i| Descriptor { offset: i * 8, length: 8 }).collect();
    let arena = Arena::new(PACKETS as usize * 8).unwrap();
    let span = Arc::downgrade(arena.span());
    session.submit(BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()).unwrap();
    cancel.cancel();
    let began = Instant::now();
    assert_eq!(session.complete().unwrap_err(), DeviceError::Cancelled);
    assert_eq!(session.in_flight(), 0);
    drop(session);
    // Nobody has waited for it, and what it reads is still there.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(span.upgrade().is_some());
}

#[test]
fn what_a_kernel_answers_becomes_verdicts() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { return redirect(load_u8(pkt, 0u)); }";
    let program = wgsl::compile(&Source::new("answers.wgsl", text), &ProgramOptions::default());
    let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
    // Bytes among them that are no actions.
    let kernel = "
        __kernel void answer(__global const uchar *arena, __global const uint2 *places, __global uchar *verdicts,
                             __global uint *targets, uint base, uint count)
        {
            uint i = get_global_id(0);
            if (i < count) {
                verdicts[base + i] = (uchar)(base + i);
                targets[base + i] = 3 * (base + i);
            }
        }";
    let devices = devices();
    // Written in place, and brought back by copies.
    for device in devices.iter().flat_map(|device| [device.clone(), device.clone().as_discrete()]) {
        let mut session = open_text(&device, &program, kernel, "answer").unwrap();
        for packets in [1, 1000, 7, 100_000] {
            let done = session.run(Batch::from_packets(&vec![[0; 4]; packets]).unwrap()).unwrap();
            let actions: Vec<u8> = (0..packets).map(|i| if i as u8 > 4 { 0 } else { i as u8 }).collect();
            let targets: Vec<u32> = (0..packets as u32).map(|i| 3 * i).collect();
            assert_eq!((done.verdicts.actions(), done.verdicts.targets()), (&*actions, &*targets));
        }
    }
}

#[test]
fn packets_of_a_ring_are_filtered_where_they_are() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { store_u8(pkt, 0u, load_u8(pkt, pkt_len(pkt) - 1u)); return XDP_TX; }";
    let program = wgsl::compile(&Source::new("writes.wgsl", text), &ProgramOptions::default());
    let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
    let devices = devices();
    for device in devices.iter().flat_map(|device| [device.clone(), device.clone().as_discrete()]) {
        let mut session = open(&device, &program, &LoadOptions::default()).unwrap();
        let batch = Batch::in_frames(&vec![vec![7; 60]; 100]).unwrap();
        let look = |_: &mut OpenCl, parts: &mut [(ChunkView<'_>, &mut Buffers)]| {
            Ok(parts.iter().map(|(part, _)| (part.layout(), part.import().is_some())).collect::<Vec<_>>())
        };
        let (parts, _) = session.with_uploaded(batch, look).unwrap();
        let wanted = if device.shares_memory() { (PacketLayout::InPlace, true) } else { (PacketLayout::Packed, false) };
        assert_eq!(parts, [wanted], "{}", device.info().id);
    }
}
