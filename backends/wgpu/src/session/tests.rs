//! Tests of sessions that need access to their internals.

use std::sync::mpsc::{RecvTimeoutError, channel};

use portcullis_core::device::{CancelToken, Device, DeviceKind, Instrumented, Session, Transfer};
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::{Arena, BatchCutter, ResizeRoom, Verdict};
use portcullis_core::program::ProgramOptions;
use portcullis_wgsl as wgsl;

use super::*;
use crate::device::WgpuDevice;
use crate::driver::calls;
use crate::probe;

/// Far longer than abandoning a device takes, far shorter than the device below is busy.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn a_busy_device_is_abandoned() {
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
        // In a thread of its own, so that a session that waits for the device cannot block the
        // test.
        let thread = std::thread::spawn(move || {
            cancel_while_the_device_is_busy(&device, &program);
            let _ = done.send(());
        });
        match outcome.recv_timeout(TEST_TIMEOUT) {
            Err(RecvTimeoutError::Timeout) => panic!("a busy device is waited for: {TEST_TIMEOUT:?} and no end"),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        }
    }
}

/// Keeps a device busy, cancels, and checks that nothing waits for the device.
fn cancel_while_the_device_is_busy(device: &WgpuDevice, program: &Arc<Program>) {
    const PACKETS: u32 = 4 << 20;
    let cancel = CancelToken::new();
    let options = LoadOptions::default().with_cancel(cancel.clone());
    // A batch in one launch keeps the device busy for minutes, like a driver that compiles.
    let mut session = open(device.properties(), program, &options).unwrap().with_unlimited_launches();
    let descriptors = (0..PACKETS).map(|i| Descriptor { offset: i * 8, length: 8 }).collect();
    let arena = Arena::new(PACKETS as usize * 8).unwrap();
    session.submit(BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()).unwrap();
    cancel.cancel();
    assert_eq!(session.complete().unwrap_err(), DeviceError::Cancelled);
    assert_eq!(session.in_flight(), 0);
    let (gpu, queue) = (session.launcher().gpu.device.clone(), session.launcher().gpu.queue.clone());
    drop(session);
    // Dropping did not wait.
    let wait = wgpu::PollType::Wait { submission_index: None, timeout: Some(Duration::ZERO) };
    assert!(matches!(gpu.poll(wait), Err(wgpu::PollError::Timeout)));
    drop((gpu, queue));
}

/// All devices, each also as one with memory of its own; none, with a message, if there are none.
fn devices() -> impl Iterator<Item = WgpuDevice> {
    let devices = probe().unwrap_or_else(|error| {
        println!("skipped: {error}");
        Vec::new()
    });
    devices.into_iter().flat_map(|device| [device.clone(), device.as_discrete()])
}

fn compiled(text: &str) -> Arc<Program> {
    let program = wgsl::compile(&Source::new("filter.wgsl", text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())))
}

/// A device that is lost in mid-batch returns no verdicts: the error names it, and a batch that it
/// does not take comes back as it was.
#[test]
fn batches_of_a_lost_device_come_back_unfiltered() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { store_u8(pkt, 0u, load_u8(pkt, 0u) + 1u); return XDP_TX; }";
    let program = compiled(text);
    for device in devices() {
        let mut session = open(device.properties(), &program, &LoadOptions::default()).unwrap();
        let batch = || Batch::from_packets(&vec![[7; 60]; 1000]).unwrap();
        assert!(session.run(batch()).is_ok());
        let in_flight = batch();
        let span = in_flight.span().clone();
        session.submit(in_flight).unwrap_or_else(|refused| panic!("{}", refused.error));
        session.launcher().gpu.device.destroy();
        let lost = |error: DeviceError| {
            let text = error.to_string();
            assert!(text.starts_with(&format!("{}: ", device.info().id)), "{text}");
        };
        lost(session.complete().unwrap_err());
        assert_eq!(session.in_flight(), 0);
        let refused = session.submit(batch()).unwrap_err();
        lost(refused.error);
        assert!(refused.batch.packets().all(|packet| packet == [7; 60]));
        drop(session);
        // A thread may be waiting for the device first.
        let began = Instant::now();
        while Arc::strong_count(&span) > 1 {
            assert!(began.elapsed() < TEST_TIMEOUT, "the memory is not its owner's again");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// In steady state a batch is one submission and one poll, nothing is created, and the mappings are
/// those of the data: descriptors, packets unless they are filtered in place, and verdicts.
#[test]
fn batches_in_steady_state_take_few_calls() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { return select(XDP_DROP, XDP_PASS, load_u8(pkt, 0u) == 1u); }";
    let program = compiled(text);
    for device in devices() {
        let mut session = open(device.properties(), &program, &LoadOptions::default()).unwrap();
        for packets in [1000, 500, 1000] {
            let mut batch = Batch::from_packets(&vec![[1; 60]; packets]).unwrap();
            for _ in 0..4 {
                batch = session.run(batch).unwrap().batch;
            }
            calls::take();
            for _ in 0..10 {
                let done = session.run(batch).unwrap();
                assert_eq!(done.verdicts.counts().pass, packets as u64);
                batch = done.batch;
            }
            let mut counts = calls::take();
            // A device that filters packets in place has bind groups with the batch's memory.
            let is_in_place = session.transfer_plan().unwrap().layout == PacketLayout::InPlace;
            assert_eq!(counts.remove("create_bind_group"), is_in_place.then_some(10), "{}", device.info().id);
            let mappings = if is_in_place { 20 } else { 30 };
            assert_eq!(counts, [("map_async", mappings), ("poll", 10), ("submit", 10)].into());
        }
    }
}

/// Every format of descriptors, and packets in frames, of which some are empty.
#[test]
fn kernels_find_descriptors_in_every_format() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { return redirect(pkt_len(pkt) << 8u | load_u8(pkt, 0u)); }";
    let program = compiled(text);
    const PACKETS: u32 = 1000;
    let layouts: [fn(u32) -> (u32, u32); 5] = [
        |i| (301 * i + i % 2, 60 + i % 90),
        |i| (200 * i + 4 * (i % 3), 60 + i % 90),
        |i| (200 * i + 400, 60 + i % 90),
        |i| (64 * i + 128, 60),
        |i| (2048 * i, if i % 7 == 6 || i < 3 { 0 } else { 60 }),
    ];
    for device in devices() {
        for (transfer, (number, layout)) in
            Transfer::ALL.into_iter().flat_map(|transfer| layouts.iter().enumerate().map(move |it| (transfer, it)))
        {
            let options = LoadOptions::default().with_transfer(transfer);
            let Ok(mut session) = open(device.properties(), &program, &options) else { continue };
            let descriptors: Vec<_> = (0..PACKETS).map(layout).collect();
            let mut arena = Arena::new(4 << 20).unwrap();
            for (i, &(offset, _)) in descriptors.iter().enumerate().filter(|(_, (_, length))| *length > 0) {
                arena[offset as usize] = i as u8;
            }
            let want = descriptors.iter().enumerate().map(|(i, (_, length))| match length {
                0 => Verdict::Redirect(0),
                _ => Verdict::Redirect(length << 8 | i as u32 & 0xff),
            });
            let table = descriptors.iter().map(|&(offset, length)| Descriptor { offset, length }).collect();
            let batch = BatchCutter::new(arena, None).cut_batch(table, vec![], ResizeRoom::None).unwrap();
            let done = match session.run(batch) {
                Err(DeviceError::Refused(_)) if transfer == Transfer::Imported => continue,
                done => done.unwrap(),
            };
            assert!(done.verdicts.iter().eq(want), "{}, {transfer}, {number}", device.info().id);
        }
    }
}
