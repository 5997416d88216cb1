//! Sessions seen from the inside.

use std::sync::mpsc::{RecvTimeoutError, channel};

use portcullis_core::device::{CancelToken, Device, DeviceKind, Session};
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::{Arena, BatchCutter, ResizeRoom};
use portcullis_core::program::ProgramOptions;
use portcullis_wgsl as wgsl;

use super::*;
use crate::probe;

/// Far more than giving up a device takes, far less than the device below is busy.
const PATIENCE: Duration = Duration::from_secs(60);

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
    let devices = match probe() {
        Ok(devices) => devices,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    for device in devices {
        if device.info().kind != DeviceKind::Software {
            println!("skipped on {}: a launch this long would be killed", device.info().id);
            continue;
        }
        let program = program.clone();
        let (done, outcome) = channel();
        // A thread of its own: a session that waits for the device does so for minutes.
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

/// Keeps a device busy, cancels, and sees to it that nobody waits for the device.
fn leave_busy(device: &WgpuDevice, program: &Arc<Program>) {
    const PACKETS: u32 = 4 << 20;
    let cancel = CancelToken::new();
    let options = LoadOptions { cancel: cancel.clone(), ..LoadOptions::default() };
    // A batch in one launch keeps the device busy for minutes, as a driver that compiles does.
    let mut session = open(device, program, &options).unwrap().with_unlimited_launches();
    let descriptors = (0..PACKETS).map(|i| Descriptor { offset: i * 8, length: 8 }).collect();
    let arena = Arena::new(PACKETS as usize * 8).unwrap();
    session.submit(BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()).unwrap();
    cancel.cancel();
    assert_eq!(session.complete().unwrap_err(), DeviceError::Cancelled);
    assert_eq!(session.in_flight(), 0);
    let (gpu, queue) = (session.launcher().gpu.device.clone(), session.launcher().gpu.queue.clone());
    drop(session);
    // Nobody has waited for it.
    let wait = wgpu::PollType::Wait { submission_index: None, timeout: Some(Duration::ZERO) };
    assert!(matches!(gpu.poll(wait), Err(wgpu::PollError::Timeout)));
    drop((gpu, queue));
}
