//! Tests of sessions that need access to their internals.

use std::sync::mpsc::{RecvTimeoutError, channel};

use portcullis_core::device::{CancelToken, Device, Instrumented, MeasureOptions, Session, Transfer};
use portcullis_core::diagnostics::Source;
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Arena, BatchCutter, Descriptor, ResizeRoom, Verdict};
use portcullis_core::program::ProgramOptions;
use portcullis_wgsl as wgsl;

use super::*;
use crate::driver::loader::calls;
use crate::{OpenClDevice, probe};

/// Far longer than abandoning a device takes, far shorter than the device below is busy.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The devices of this machine. Without any the tests are skipped, unless `PORTCULLIS_REQUIRE`
/// lists `opencl`.
fn devices() -> Vec<OpenClDevice> {
    let devices = probe().unwrap_or_else(|error| {
        println!("skipped: {error}");
        Vec::new()
    });
    let required = std::env::var("PORTCULLIS_REQUIRE").unwrap_or_default();
    assert!(!devices.is_empty() || !required.split(',').any(|name| name == "opencl"), "opencl is required");
    devices
}

/// `CL_OUT_OF_RESOURCES`, which drivers return for a lost device.
const OUT_OF_RESOURCES: i32 = -5;

/// Environment variable that is set in the processes of the test below: how the session ends.
const CHILD: &str = "PORTCULLIS_TEST_BUSY_DEVICE";

/// What these processes print when all checks have passed.
const ABANDONED: &str = "all devices are abandoned";

#[test]
fn a_busy_device_is_abandoned() {
    if let Ok(end) = std::env::var(CHILD) {
        abandon_busy_devices(&end);
        println!("{ABANDONED}");
        // Its handlers of `exit` destroy objects with which the driver still compiles.
        #[cfg(unix)]
        // SAFETY: ends the process, without running any code of it.
        unsafe {
            libc::_exit(0)
        }
        #[cfg(not(unix))]
        return;
    }
    // In processes of their own: other tests would wait for the device, which stays busy.
    for end in ["cancelled", "failed"] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "session::tests::a_busy_device_is_abandoned", "--nocapture"]).env(CHILD, end);
        let child = child.output().unwrap();
        let [out, err] = [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(child.status.success() && out.contains(ABANDONED), "{end}, {}: {out}{err}", child.status);
    }
}

fn abandon_busy_devices(end: &str) {
    let program = compile(
        "fn xdp_filter(pkt: u32) -> u32 {
            var x = load_le32(pkt, 0u);
            loop { x = x * 1664525u + 1013904223u; if x == load_le32(pkt, 4u) + 0x80000000u { break; } }
            return select(XDP_PASS, XDP_DROP, x == 7u);
        }",
    );
    for device in devices() {
        if device.info().kind != DeviceKind::Cpu {
            println!("skipped on {}: a launch this long would be killed", device.info().id);
            continue;
        }
        let (program, fails) = (program.clone(), end == "failed");
        let (done, outcome) = channel();
        // In a thread of its own, so that a session that waits for the device cannot block the
        // test.
        let thread = std::thread::spawn(move || {
            // Only on discrete devices is completion polled, and can a query of it fail.
            let device = if fails { device.as_discrete() } else { device };
            end_while_the_device_is_busy(&device, &program, fails);
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

/// Keeps a device busy, cancels or lets the query for completion fail, and checks that nothing
/// waits for the device and that the memory of the batch, into which it may write, stays allocated.
fn end_while_the_device_is_busy(device: &OpenClDevice, program: &Arc<Program>, fails: bool) {
    const PACKETS: u32 = 1 << 20;
    let cancel = CancelToken::new();
    let options = LoadOptions::default().with_cancel(cancel.clone());
    // A batch in one launch keeps the device busy for minutes, like a driver that compiles.
    let mut session = open(device.properties(), program, &options).unwrap().with_unlimited_launches();
    let descriptors = (0..PACKETS).map(|i| Descriptor { offset: i * 8, length: 8 }).collect();
    let arena = Arena::new(PACKETS as usize * 8).unwrap();
    let span = Arc::downgrade(arena.span());
    session.submit(BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()).unwrap();
    if fails {
        calls::set_fault(Some(("clGetEventInfo", OUT_OF_RESOURCES)));
    } else {
        cancel.cancel();
    }
    let began = Instant::now();
    let error = session.complete().unwrap_err();
    if fails {
        assert_eq!(error.to_string(), format!("{}: a command failed: CL_OUT_OF_RESOURCES", device.info().id));
    } else {
        assert_eq!(error, DeviceError::Cancelled);
    }
    assert_eq!(session.in_flight(), 0);
    drop(session);
    // Dropping did not wait, and the batch still exists.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(span.upgrade().is_some() && offload::has_abandoned_work());
}

#[test]
fn kernel_output_becomes_verdicts() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { return redirect(load_u8(pkt, 0u)); }";
    let program = wgsl::compile(&Source::new("answers.wgsl", text), &ProgramOptions::default());
    let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
    // Some of the bytes are not actions.
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
    // Written in place, and downloaded.
    for device in devices.iter().flat_map(|device| [device.clone(), device.clone().as_discrete()]) {
        let mut session = open_source(device.properties(), &program, kernel, "answer").unwrap();
        for packets in [1, 1000, 7, 100_000] {
            let done = session.run(Batch::from_packets(&vec![[0; 4]; packets]).unwrap()).unwrap();
            let verdict = |i: u32| match i as u8 {
                1 => Verdict::Drop,
                2 => Verdict::Pass,
                3 => Verdict::Tx,
                4 => Verdict::Redirect(3 * i),
                _ => Verdict::Aborted,
            };
            assert!(done.verdicts.iter().eq((0..packets as u32).map(verdict)), "{packets}: {:?}", done.verdicts);
            assert!(done.verdicts.targets().iter().copied().eq((0..packets as u32).map(|i| 3 * i)));
            let counts = done.verdicts.counts();
            assert_eq!(counts.total(), packets as u64);
            assert_eq!(counts.drop, (0..packets).filter(|i| *i as u8 == 1).count() as u64);
        }
    }
}

#[test]
fn packets_in_frames_are_filtered_in_place() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { store_u8(pkt, 0u, load_u8(pkt, pkt_len(pkt) - 1u)); return XDP_TX; }";
    let program = wgsl::compile(&Source::new("writes.wgsl", text), &ProgramOptions::default());
    let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
    let devices = devices();
    for device in devices.iter().flat_map(|device| [device.clone(), device.clone().as_discrete()]) {
        let mut session = open(device.properties(), &program, &LoadOptions::default()).unwrap();
        let batch = Batch::in_frames(&vec![vec![7; 60]; 100]).unwrap();
        let look = |_: &mut OpenClLauncher, chunks: &mut [(ChunkView<'_>, &mut Buffers)]| {
            Ok(chunks.iter().map(|(chunk, _)| (chunk.layout(), chunk.import().is_some())).collect::<Vec<_>>())
        };
        let (chunks, _) = session.with_uploaded(batch, look).unwrap();
        let wanted = if device.properties().shares_memory {
            (PacketLayout::InPlace, true)
        } else {
            (PacketLayout::Packed, false)
        };
        assert_eq!(chunks, [wanted], "{}", device.info().id);
    }
}

/// Compiles a filter in WGSL.
fn compile(text: &str) -> Arc<Program> {
    let program = wgsl::compile(&Source::new("test.wgsl", text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())))
}

/// Checks a batch's verdicts against the interpreter's, and returns the number of bytes that the
/// session has copied to the device.
fn check(session: &mut OpenClSession, program: &Arc<Program>, batch: impl Fn() -> Batch) -> u64 {
    let before = session.stages().unwrap().bytes_to_device;
    let mut reference = InterpDevice::default().load(program, &LoadOptions::default()).unwrap();
    let (done, expected) = (session.run(batch()).unwrap(), reference.run(batch()).unwrap());
    assert_eq!(done.verdicts, expected.verdicts);
    session.stages().unwrap().bytes_to_device - before
}

fn measured() -> LoadOptions {
    LoadOptions::default().with_measure(MeasureOptions::default().with_record_stages(true))
}

/// Packets at `offset(i)` of an arena, with `length(i)` bytes.
fn batch_of(packets: usize, place: impl Fn(u32) -> (u32, u32)) -> Batch {
    let descriptors: Vec<_> =
        (0..packets as u32).map(place).map(|(offset, length)| Descriptor { offset, length }).collect();
    let end = descriptors.iter().map(|packet| packet.offset + packet.length).max().unwrap_or(0);
    let mut arena = Arena::new(end as usize).unwrap();
    (0_u32..).zip(&mut arena[..]).for_each(|(i, byte)| *byte = (i.wrapping_mul(2_654_435_761) >> 24) as u8);
    BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()
}

/// Kernels that gather, and kernels with a loop for loads, find descriptors by a rule or read the
/// batch's own; neither is copied.
#[test]
fn packets_in_shared_memory_are_found_in_place() {
    let program = compile("fn xdp_filter(pkt: u32) -> u32 { return redirect(load_le32(pkt, 1u) ^ pkt_len(pkt)); }");
    let devices = devices().into_iter().filter(|device| device.properties().shares_memory);
    for device in devices.flat_map(|device| [true, false].map(|gathers| device.clone().with_fast_gather(gathers))) {
        let mut session = open(device.properties(), &program, &measured()).unwrap();
        for packets in [1, 15, 16, 17, 5000] {
            let equal = check(&mut session, &program, || batch_of(packets, |i| (100 + i * 64, 60)));
            let mixed = check(&mut session, &program, || batch_of(packets, |i| (i * 70 + i % 3, i * i % 67)));
            assert_eq!([equal, mixed], [0, 0], "{packets}");
        }
        // A copy begins with the first packet, far into the memory.
        for transfer in [Transfer::Whole, Transfer::Window] {
            let mut session = open(device.properties(), &program, &measured().with_transfer(transfer)).unwrap();
            for stride in [64, 67] {
                let bytes = check(&mut session, &program, || batch_of(1000, |i| ((1 << 20) + i * stride, 60)));
                assert!((8000..100_000).contains(&bytes), "{transfer}, {stride}: {bytes}");
            }
        }
    }
}

/// A discrete device gets only the metadata that differs from packet to packet.
#[test]
fn equal_metadata_is_not_copied_to_discrete_devices() {
    let program = compile(
        "fn xdp_filter(pkt: u32) -> u32 { return redirect((pkt_time(pkt).x ^ pkt_port(pkt) ^ pkt_wire_len(pkt)) & 0xffffu); }",
    );
    const PACKETS: usize = 1000;
    let batch = |step: u64| {
        let descriptors = (0..PACKETS as u32).map(|i| Descriptor { offset: i * 64, length: 60 }).collect();
        let metadata = (0..PACKETS as u64).map(|i| Metadata::new(60, 3, (1 << 60) + i * step)).collect();
        let arena = Arena::new(PACKETS * 64).unwrap();
        BatchCutter::new(arena, None).cut_batch(descriptors, metadata, ResizeRoom::None).unwrap()
    };
    for device in devices().into_iter().map(OpenClDevice::as_discrete) {
        let mut session = open(device.properties(), &program, &measured()).unwrap();
        assert_eq!(check(&mut session, &program, || batch(0)), 0);
        let rising = check(&mut session, &program, || batch(1000));
        assert!((4000..5000).contains(&rising), "{rising}");
    }
}

/// If the driver pins no memory, copies go through pageable memory, and one warning says so.
#[test]
fn memory_that_cannot_be_pinned_is_copied() {
    let program =
        compile("fn xdp_filter(pkt: u32) -> u32 { store_u8(pkt, 0u, 9u); return redirect(load_u8(pkt, 1u)); }");
    const OUT_OF_HOST_MEMORY: i32 = -6;
    for device in devices().into_iter().map(OpenClDevice::as_discrete) {
        let mut session = open(device.properties(), &program, &measured()).unwrap();
        calls::set_fault(Some(("clEnqueueMapBuffer", OUT_OF_HOST_MEMORY)));
        let mut warnings = Vec::new();
        for packets in [10, 3000, 100] {
            let batch = Batch::from_packets(&vec![[7; 60]; packets]).unwrap();
            let done = session.run(batch).unwrap();
            assert!(done.verdicts.iter().all(|verdict| verdict == Verdict::Redirect(7)));
            assert!(done.batch.packets().all(|packet| packet[..2] == [9, 7]));
            warnings.extend(session.take_warnings());
        }
        calls::set_fault(None);
        let [warning] = &warnings[..] else { panic!("not one warning: {warnings:?}") };
        let expected = format!("{}: host memory cannot be pinned", device.info().id);
        assert!(warning.starts_with(&expected) && warning.contains("CL_OUT_OF_HOST_MEMORY"), "{warning}");
    }
}

/// In steady state nothing is allocated, created or mapped on a discrete device, and only tables of
/// descriptors that no rule replaces are copied.
#[test]
fn batches_on_discrete_devices_take_few_calls() {
    let program = compile("fn xdp_filter(pkt: u32) -> u32 { return redirect(load_le32(pkt, 0u)); }");
    for device in devices().into_iter().map(OpenClDevice::as_discrete) {
        let mut session = open(device.properties(), &program, &LoadOptions::default()).unwrap();
        // Packets, and lengths if they differ.
        for (lengths, writes) in [([60, 60], 1), ([60, 90], 2)] {
            let packets: Vec<Vec<u8>> = (0..5000).map(|i| vec![i as u8; lengths[i % 7 / 6]]).collect();
            let mut batch = Batch::from_packets(&packets).unwrap();
            for _ in 0..8 {
                batch = session.run(batch).unwrap().batch;
            }
            calls::take();
            for _ in 0..10 {
                batch = session.run(batch).unwrap().batch;
            }
            let mut counts = calls::take();
            // Until the events have completed.
            assert!(counts.remove("clGetEventInfo") >= Some(10));
            // An event each for uploads, the kernel, actions and targets.
            assert_eq!(counts.remove("clReleaseEvent"), Some(10 * (writes + 3)));
            let expected = [
                ("clEnqueueNDRangeKernel", 1),
                ("clEnqueueReadBuffer", 2),
                ("clEnqueueWriteBuffer", writes),
                ("clFlush", 3),
                ("clSetKernelArg", 7),
            ];
            assert_eq!(counts, expected.map(|(call, count)| (call, 10 * count)).into(), "{lengths:?}");
        }
    }
}

/// A large batch is cut into chunks whose verdicts all arrive in the memory that is handed out.
#[test]
fn chunks_of_a_large_batch_fill_one_column() {
    let program = compile(
        "fn xdp_filter(pkt: u32) -> u32 { return select(XDP_DROP, redirect(load_le32(pkt, 0u)), pkt_len(pkt) > 8u); }",
    );
    const PACKETS: usize = 300_000;
    let length = |i: usize| 8 + i * i % 5;
    let packets: Vec<Vec<u8>> =
        (0..PACKETS).map(|i| [(i as u32).to_le_bytes().as_slice(), &vec![0; length(i) - 4]].concat()).collect();
    for device in devices().into_iter().map(OpenClDevice::as_discrete) {
        for (transfer, chunks) in [(Transfer::Window, 3), (Transfer::Whole, 2)] {
            let options = LoadOptions::default().with_transfer(transfer);
            let mut session = open(device.properties(), &program, &options).unwrap();
            let count = |_: &mut OpenClLauncher, chunks: &mut [(ChunkView<'_>, &mut Buffers)]| Ok(chunks.len());
            let (counted, mut batch) = session.with_uploaded(Batch::from_packets(&packets).unwrap(), count).unwrap();
            assert_eq!(counted, chunks, "{transfer}");
            let mut column = None;
            for _ in 0..3 {
                let done = session.run(batch).unwrap();
                let verdict = |i: usize| match length(i) {
                    8 => Verdict::Drop,
                    _ => Verdict::Redirect(i as u32 & 0xff_ffff),
                };
                assert!(done.verdicts.iter().eq((0..PACKETS).map(verdict)), "{transfer}");
                // The memory is reused once the verdicts are dropped.
                let at = done.verdicts.actions().as_ptr();
                assert_eq!(*column.get_or_insert(at), at);
                batch = done.batch;
            }
            // Verdicts may outlive the session.
            let done = session.run(batch).unwrap();
            drop(session);
            assert_eq!(done.verdicts.counts().drop, (0..PACKETS).filter(|i| length(*i) == 8).count() as u64);
        }
    }
}

/// A device that is lost in mid-batch returns no verdicts: the error names it, and a batch that it
/// does not take comes back as it was.
#[test]
fn batches_of_a_lost_device_come_back_unfiltered() {
    let program =
        compile("fn xdp_filter(pkt: u32) -> u32 { store_u8(pkt, 0u, load_u8(pkt, 0u) + 1u); return XDP_TX; }");
    for device in devices().into_iter().flat_map(|device| [device.clone(), device.as_discrete()]) {
        let mut session = open(device.properties(), &program, &LoadOptions::default()).unwrap();
        let lost = |error: &DeviceError, what: &str| {
            let text = error.to_string();
            assert_eq!(text, format!("{}: {what}: CL_OUT_OF_RESOURCES", device.info().id));
        };
        let batch = || Batch::from_packets(&vec![[7; 60]; 1000]).unwrap();
        assert!(session.run(batch()).is_ok());
        let spans: Vec<_> = (0..2)
            .map(|number| {
                let batch = batch();
                let span = batch.span().clone();
                calls::set_fault((number == 1).then_some(("clEnqueueNDRangeKernel", OUT_OF_RESOURCES)));
                session.submit(batch).unwrap_or_else(|refused| panic!("{}", refused.error));
                span
            })
            .collect();
        // The first batch was launched before the device was lost.
        let done = session.complete().unwrap().unwrap();
        assert!(done.verdicts.iter().all(|verdict| verdict == Verdict::Tx));
        drop(done);
        lost(&session.complete().unwrap_err(), "launching the filter failed");
        assert_eq!(session.in_flight(), 0);
        calls::set_fault(Some(("clFlush", OUT_OF_RESOURCES)));
        let refused = session.submit(batch()).unwrap_err();
        lost(&refused.error, "queuing commands failed");
        assert!(refused.batch.packets().all(|packet| packet == [7; 60]));
        calls::set_fault(None);
        drop(session);
        if !device.properties().shares_memory {
            // A command that fails once it runs, of which polling learns.
            let mut session = open(device.properties(), &program, &LoadOptions::default()).unwrap();
            session.submit(batch()).unwrap_or_else(|refused| panic!("{}", refused.error));
            calls::set_fault(Some(("clGetEventInfo", OUT_OF_RESOURCES)));
            lost(&session.complete().unwrap_err(), "a command failed");
            assert_eq!(session.in_flight(), 0);
            calls::set_fault(None);
        }
        // A thread may be waiting for the device first.
        let began = Instant::now();
        while spans.iter().any(|span| Arc::strong_count(span) > 1) {
            assert!(began.elapsed() < TEST_TIMEOUT, "the memory is not its owner's again");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
