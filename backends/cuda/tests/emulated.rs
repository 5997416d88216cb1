//! The whole backend on the emulated driver: every dispatch method compared with the reference
//! interpreter, and the consequences of driver failures.
//!
//! Each test runs again in a child process that finds the emulated libraries in place of the
//! driver.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use portcullis_core::device::record_kernel::{HostMemory, RecordKernel};
use portcullis_core::device::{
    CancelToken, Clock, Device, DeviceError, Dispatch, Imported, LoadOptions, MeasureOptions, Session, Transfer,
};
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, ResizeRoom};
use portcullis_core::program::Program;
use portcullis_cuda::measure::CudaRecords;

mod child;
use child::{
    CHILD, child_passes, child_passes_with, child_passes_with_cache, child_succeeds, compiled, device, is_child,
    program, reference, report, reported, run_child, run_child_without,
};

/// Far longer than any test takes; a test that exceeds it hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Filters that together use every kind of buffer.
const FILTERS: [&str; 5] = [
    "return XDP_PASS;",
    "return select(XDP_PASS, XDP_DROP, load_be32(pkt, 2u) % 3u == 1u);",
    "if pkt_len(pkt) > 40u { return redirect(load_be16(pkt, 30u) & 0xffu); } return pkt_wire_len(pkt) % 5u;",
    "store_be32(pkt, 4u, load_be32(pkt, 8u) + 1u); store_u8(pkt, 19u, pkt_port(pkt)); return XDP_TX;",
    "let d = i32(load_u8(pkt, 0u) % 40u) - 20; if adjust_head(pkt, d) { store_u8(pkt, 0u, 7u); return XDP_TX; }
     if adjust_tail(pkt, -d) { return redirect(pkt_len(pkt)); } return XDP_DROP;",
];

/// A batch of packets of varying lengths, `stride` bytes apart or, for 0, as close as possible,
/// with head- and tailroom where there is space for it.
fn batch(packets: u32, stride: u32, seed: u32) -> Batch {
    let mut at = 128;
    let mut descriptors = Vec::new();
    for i in 0..packets {
        let length = 14 + (i.wrapping_mul(2_654_435_761) ^ seed) % 70;
        descriptors.push(Descriptor { offset: at, length });
        at += if stride > 0 { stride } else { (length + 256 + 3) & !3 };
    }
    let mut arena = Arena::new(at as usize + 256).unwrap();
    let mut state = seed | 1;
    for byte in arena.iter_mut() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    let room = if stride == 0 || stride >= 340 { ResizeRoom::Both } else { ResizeRoom::None };
    BatchCutter::new(arena, None).cut_batch(descriptors, vec![], room).unwrap()
}

fn bytes(batch: &Batch) -> Vec<Vec<u8>> {
    batch.packets().map(<[u8]>::to_vec).collect()
}

/// Reports why there is no device, or the first device's description.
fn report_devices() {
    match portcullis_cuda::probe() {
        Ok(devices) => {
            let info = devices[0].info();
            let limits: Vec<_> = info.limits.iter().map(|it| format!("{}: {}", it.name(), it.value())).collect();
            report(format_args!("{info:?}, {}", limits.join(", ")));
        }
        Err(DeviceError::Missing(reason)) => report(reason),
        Err(other) => panic!("{other:?}"),
    }
}

fn options(dispatch: Dispatch) -> LoadOptions {
    LoadOptions::default().with_dispatch(dispatch)
}

#[test]
fn every_method_agrees_with_the_interpreter() {
    if !is_child() {
        // `inline` and `pipelined` share a cache entry.
        return child_passes_with_cache("every_method_agrees_with_the_interpreter");
    }
    let device = device();
    assert_eq!(device.info().dispatch.len(), 5);
    for body in FILTERS {
        let program = program(body);
        let mut reference = reference(&program);
        for dispatch in device.info().dispatch {
            let mut session = device.load(&program, &options(*dispatch)).unwrap();
            // Sizes around those of a block, a request and a slot; the last is small again, when
            // every buffer has been used.
            let sizes =
                [(0, 0), (1, 0), (64, 0), (255, 400), (257, 0), (3000, 128), (3000, 2112), (17_000, 0), (300, 0)];
            // Packets are copied from where they lie, unless the filter needs room.
            let apart = |stride| if program.facts().changes_length && stride > 0 { 400 } else { stride };
            let depth = session.depth();
            for group in sizes.chunks(depth) {
                for &(packets, stride) in group {
                    session
                        .submit(batch(packets, apart(stride), packets + 1))
                        .unwrap_or_else(|e| panic!("{}", e.error));
                }
                for &(packets, stride) in group {
                    let done = session.complete().unwrap().unwrap();
                    let want = reference.run(batch(packets, apart(stride), packets + 1)).unwrap();
                    assert_eq!(done.verdicts, want.verdicts, "{dispatch}, {packets} packets: {body}");
                    assert_eq!(bytes(&done.batch), bytes(&want.batch), "{dispatch}, {packets} packets: {body}");
                }
            }
            assert!(session.complete().unwrap().is_none());
        }
    }
}

/// A batch of packets with these offsets, multiples of 4, and lengths, and without room.
fn placed(descriptors: Vec<Descriptor>) -> Batch {
    let end = descriptors.iter().map(|d| d.offset + d.length).max().unwrap_or(0);
    let mut arena = Arena::new(end as usize + 256).unwrap();
    arena.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at.wrapping_mul(0x9e37_79b9) >> 13) as u8);
    BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()
}

/// Batches of `packets` packets whose memory a device could read in place: close together, with and
/// without empty ones, far apart, and in separate frames.
fn places(packets: u32) -> Vec<(&'static str, Batch)> {
    let length = |index: u32| 14 + index.wrapping_mul(2_654_435_761) % 70;
    let close = |length: &dyn Fn(u32) -> u32, stride: &dyn Fn(u32) -> u32| {
        let mut at = 12;
        let descriptors = (0..packets).map(|index| {
            let offset = at;
            at += stride(index);
            Descriptor { offset, length: length(index) }
        });
        placed(descriptors.collect())
    };
    let or_none = |index: u32| if index % 5 == 3 { 0 } else { length(index) };
    let frames: Vec<Vec<u8>> =
        (0..packets).map(|index| (0..or_none(index)).map(|at| (at * 7 + index) as u8).collect()).collect();
    vec![
        ("equal", close(&|_| 60, &|_| 64)),
        ("equal distances", close(&length, &|_| 84)),
        ("irregular", close(&length, &|index| (length(index) + 3) & !3)),
        ("some empty", close(&or_none, &|_| 84)),
        ("irregular, some empty", close(&or_none, &|index| (or_none(index) + 3) & !3)),
        ("all empty", close(&|_| 0, &|_| 4)),
        ("the first empty", close(&|index| if index == 0 { 0 } else { 60 }, &|_| 256)),
        ("the first third empty", close(&|index| if index < packets / 3 { 0 } else { 60 }, &|_| 64)),
        ("the last third empty", close(&|index| if index > packets - packets / 3 { 0 } else { 60 }, &|_| 64)),
        ("far apart", close(&length, &|_| 320)),
        ("frames", Batch::in_frames(&frames).unwrap()),
    ]
}

#[test]
fn packets_in_pinned_memory_are_filtered_without_gathering() {
    if !is_child() {
        return child_passes_with_cache("packets_in_pinned_memory_are_filtered_without_gathering");
    }
    const SUM: &str = "var sum = 0u; for (var i = 0u; i < pkt_len(pkt); i++) { sum += load_u8(pkt, i); }
        store_u8(pkt, pkt_len(pkt) - 1u, sum & 0xffu); return sum % 5u;";
    for body in [FILTERS[0], FILTERS[1], FILTERS[2], FILTERS[3], SUM] {
        let program = program(body);
        let mut reference = reference(&program);
        for dispatch in [Dispatch::Persistent, Dispatch::WaitValue, Dispatch::Graph] {
            let measure = MeasureOptions::default().with_record_stages(true);
            let mut session = device().load(&program, &options(dispatch).with_measure(measure)).unwrap();
            let mut batches = 0;
            for packets in [1, 3, 64, 300, 1024, 9000] {
                for ((place, batch), (_, same)) in places(packets).into_iter().zip(places(packets)) {
                    assert_eq!(session.import(batch.span()).unwrap(), Imported::InPlace);
                    let (done, want) = (session.run(batch).unwrap(), reference.run(same).unwrap());
                    assert_eq!(done.verdicts, want.verdicts, "{dispatch}, {packets} packets, {place}: {body}");
                    assert_eq!(bytes(&done.batch), bytes(&want.batch), "{dispatch}, {packets}, {place}: {body}");
                    batches += 1;
                }
            }
            let stages = session.stages().unwrap();
            let unseen = if body == FILTERS[0] { batches } else { 0 };
            assert_eq!((stages.transfers.unseen, stages.transfers.imported), (unseen, batches - unseen), "{dispatch}");
            assert_eq!(stages.gather, Duration::ZERO, "{dispatch}: {body}");
        }
    }
}

/// Packets that add to one word at the same time do so by one atomic operation a warp, with the
/// same sums as one after the other.
#[test]
fn additions_of_a_warp_to_one_word_are_combined() {
    const TEST: &str = "additions_of_a_warp_to_one_word_are_combined";
    if is_child() {
        let program = compiled(
            "//! map words: array value=2 entries=64
            //! map sums: counter entries=64
            fn xdp_filter(pkt: u32) -> u32 {
                let at = load_u8(pkt, 0u);
                sums_add(at % 2u, 0xfffffff0u + at);
                if at < 3u { words_add(at, 1u, pkt_len(pkt)); }
                return XDP_PASS;
            }",
        );
        let (mut session, mut reference) =
            (device().load(&program, &LoadOptions::default()).unwrap(), reference(&program));
        for spread in [1, 5, 64] {
            let packets: Vec<Vec<u8>> = (0..256_u32).map(|index| vec![(index % spread) as u8; 60]).collect();
            for session in [&mut session, &mut reference] {
                session.run(Batch::from_packets(&packets).unwrap()).unwrap();
            }
        }
        for map in 0..2 {
            assert_eq!(session.map_words(map).unwrap(), reference.map_words(map).unwrap(), "map {map}");
        }
        return report("done");
    }
    let Some(child) = run_child_without(TEST, "report,count", &[], &[]) else { return };
    assert_eq!(reported(&child), "done");
    // Eight warps. All 32 threads agree in the first batch: 8 operations a map. In the second, 3 of
    // 5 entries and 2 counters: 24 and 16. In the third, 3 of 64 entries, which four warps have,
    // and 2 counters: 12 and 16.
    let error = String::from_utf8_lossy(&child.stderr);
    assert!(error.contains(&format!("{} atomic", 8 + 8 + 24 + 16 + 12 + 16)), "{error}");
}

#[test]
fn artificial_work_is_done_once_for_each_packet() {
    const TEST: &str = "artificial_work_is_done_once_for_each_packet";
    const SIZES: [u32; 4] = [1, 300, 3000, 0];
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        // The emulated clock has 2 GHz and advances by 100 cycles when read: once at the start,
        // then as often as the work takes.
        for (work, cycles) in [("", 0), ("1", 200), ("50", 200), ("51", 300), ("700", 1500)] {
            for dispatch in Dispatch::ALL {
                // Without work all methods are alike.
                if work != "700" && dispatch != Dispatch::Persistent {
                    continue;
                }
                let variables = [(CHILD, dispatch.name()), ("PORTCULLIS_TEST_WORK", work)];
                let Some(child) = run_child_without(TEST, "report", &[], &variables) else { return };
                reported(&child);
                let error = String::from_utf8_lossy(&child.stderr);
                let all = SIZES.iter().sum::<u32>() * cycles;
                assert!(
                    error.contains(&format!("looked at their clock for {all} cycles")),
                    "{dispatch}, {work}: {error}"
                );
            }
        }
        return;
    };
    let work = std::env::var("PORTCULLIS_TEST_WORK").unwrap().parse().ok().map(Duration::from_nanos);
    let program = program(FILTERS[4]);
    let mut session = device()
        .load(
            &program,
            &options(dispatch.parse().unwrap()).with_measure(MeasureOptions::default().with_synthetic_work(work)),
        )
        .unwrap();
    let mut reference = reference(&program);
    for packets in SIZES {
        let (done, want) = (session.run(batch(packets, 0, 1)).unwrap(), reference.run(batch(packets, 0, 1)).unwrap());
        assert_eq!((done.verdicts, bytes(&done.batch)), (want.verdicts, bytes(&want.batch)));
    }
    report("done");
}

#[test]
fn batches_with_more_parts_than_slots_reuse_slots() {
    if !is_child() {
        return child_passes("batches_with_more_parts_than_slots_reuse_slots", "");
    }
    let program = program(FILTERS[1]);
    // 37 parts of 16 Ki packets in 32 slots.
    let packets = || {
        let mut arena = Arena::new(600_000 * 16).unwrap();
        (0_u32..).zip(arena.chunks_exact_mut(4)).for_each(|(i, word)| word.copy_from_slice(&(i / 3).to_be_bytes()));
        let descriptors = (0..600_000).map(|i| Descriptor { offset: i * 16, length: 14 }).collect();
        BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()
    };
    let want = reference(&program).run(packets()).unwrap();
    for dispatch in [Dispatch::Graph, Dispatch::WaitValue] {
        let done = device().load(&program, &options(dispatch)).unwrap().run(packets()).unwrap();
        assert!(done.verdicts == want.verdicts, "{dispatch}");
    }
}

#[test]
fn growing_slots_do_not_overlap() {
    if !is_child() {
        return child_passes("growing_slots_do_not_overlap", "");
    }
    let program = program("store_u8(pkt, 0u, 9u); return redirect(load_u8(pkt, pkt_len(pkt) - 1u));");
    let mut reference = reference(&program);
    for dispatch in device().info().dispatch {
        let mut session = device().load(&program, &options(*dispatch)).unwrap();
        // A few long packets grow the buffers for bytes, then many short ones those for verdicts
        // and targets.
        for (packets, stride) in [(1000, 1500), (13_100, 64), (13_120, 64), (16_000, 64)] {
            let batch = || {
                let at = |i| Descriptor { offset: i * stride, length: stride.min(1000) };
                let arena = Arena::new((packets * stride) as usize).unwrap();
                BatchCutter::new(arena, None)
                    .cut_batch((0..packets).map(at).collect(), vec![], ResizeRoom::None)
                    .unwrap()
            };
            let (done, want) = (session.run(batch()).unwrap(), reference.run(batch()).unwrap());
            assert_eq!(done.verdicts, want.verdicts, "{dispatch}, {packets} packets");
            assert_eq!(bytes(&done.batch), bytes(&want.batch), "{dispatch}, {packets} packets");
        }
    }
}

#[test]
fn two_sessions_share_pinned_memory() {
    if !is_child() {
        return child_passes("two_sessions_share_pinned_memory", "");
    }
    let program = program(FILTERS[3]);
    let mut sessions = [0, 1].map(|_| device().load(&program, &LoadOptions::default()).unwrap());
    let packets = batch(500, 128, 1);
    let span = packets.span().clone();
    assert_eq!(sessions.each_mut().map(|session| session.import(&span).unwrap()), [Imported::InPlace; 2]);
    let [first, mut second] = sessions;
    // The span stays pinned after the session that pinned it is gone.
    drop(first);
    assert_eq!(second.run(packets).unwrap().verdicts.len(), 500);
}

#[test]
fn idle_resident_kernels_leave_and_return() {
    if !is_child() {
        return child_passes("idle_resident_kernels_leave_and_return", "");
    }
    let program = program(FILTERS[1]);
    let want = reference(&program).run(batch(700, 0, 1)).unwrap();
    let by = |dispatch| device().load(&program, &options(dispatch)).unwrap();
    let mut sessions = [by(Dispatch::Persistent), by(Dispatch::WaitValue)];
    for _ in 0..3 {
        for session in &mut sessions {
            assert_eq!(session.run(batch(700, 0, 1)).unwrap().verdicts, want.verdicts);
        }
        // Longer than the kernels' lifetime.
        std::thread::sleep(Duration::from_millis(1600));
    }
}

#[test]
fn sessions_open_and_close_beside_resident_kernels() {
    if !is_child() {
        return child_passes_with_cache("sessions_open_and_close_beside_resident_kernels");
    }
    let program = program(FILTERS[3]);
    let run = |session: &mut Box<dyn Session>, packets: u32| {
        let want = reference(&program).run(batch(packets, 128, packets)).unwrap();
        let done = session.run(batch(packets, 128, packets)).unwrap();
        assert_eq!((done.verdicts, bytes(&done.batch)), (want.verdicts, bytes(&want.batch)));
    };
    let load = |dispatch| device().load(&program, &options(dispatch)).unwrap();
    let mut stay = [load(Dispatch::Persistent), load(Dispatch::WaitValue)];
    // The emulated driver aborts if memory is allocated or freed, or code loaded, while a kernel
    // waits for the host: here first in turn, then concurrently.
    for (round, dispatch) in (1..).zip(Dispatch::ALL) {
        stay.iter_mut().for_each(|session| run(session, 50));
        let mut other = load(dispatch);
        stay.iter_mut().for_each(|session| run(session, 60));
        // The second batch is larger than any before.
        run(&mut other, 70);
        run(&mut other, 900 * round);
        stay.iter_mut().for_each(|session| run(session, 80));
        drop(other);
        stay.iter_mut().for_each(|session| run(session, 1000 * round));
    }
    std::thread::scope(|scope| {
        for mut session in stay {
            scope.spawn(move || (1..40).for_each(|round| run(&mut session, 30 * round)));
        }
        for dispatch in Dispatch::ALL {
            scope.spawn(move || (0..3).for_each(|_| run(&mut load(dispatch), 200)));
        }
    });
}

#[test]
fn pinning_is_retried_after_other_memory_was_unpinned() {
    if !is_child() {
        return child_passes("pinning_is_retried_after_other_memory_was_unpinned", "registered=200000");
    }
    let (program, packets) = (program(FILTERS[3]), [batch(1000, 128, 1), batch(1000, 128, 2)]);
    let spans = packets.each_ref().map(|packets| packets.span().clone());
    let [mut first, mut second] = [0, 1].map(|_| device().load(&program, &LoadOptions::default()).unwrap());
    assert_eq!(first.import(&spans[0]).unwrap(), Imported::InPlace);
    for _ in 0..2 {
        assert_eq!(second.import(&spans[1]).unwrap(), Imported::Copied, "there is not room for both");
    }
    drop(first);
    assert_eq!(second.import(&spans[1]).unwrap(), Imported::InPlace);
    for packets in packets {
        assert_eq!(second.run(packets).unwrap().verdicts.len(), 1000);
    }
}

#[test]
fn too_much_local_memory_is_an_error_at_load_time() {
    if !is_child() {
        return child_passes("too_much_local_memory_is_an_error_at_load_time", "local=300000");
    }
    for dispatch in device().info().dispatch {
        let text = device().load(&program(FILTERS[1]), &options(*dispatch)).err().unwrap().to_string();
        let parts = ["no memory for the filter's own arrays", "300000 bytes for each packet", "OUT_OF_MEMORY"];
        assert!(parts.iter().all(|part| text.contains(part)), "{dispatch}: {text}");
    }
}

#[test]
fn streams_time_stages_with_events() {
    if !is_child() {
        return child_passes("streams_time_stages_with_events", "");
    }
    // A filter that only reads, and one that writes; packets are copied as they lie.
    for body in [FILTERS[1], FILTERS[3]] {
        for dispatch in device().info().dispatch {
            let options = options(*dispatch)
                .with_measure(MeasureOptions::default().with_record_stages(true))
                .with_transfer(Transfer::Whole);
            let mut session = device().load(&program(body), &options).unwrap();
            let began = Instant::now();
            for seed in 0..3 {
                session.run(batch(5000, 128, seed)).unwrap();
            }
            let (stages, wall) = (session.stages().unwrap(), began.elapsed());
            assert_eq!((stages.batches, stages.packets), (3, 15_000));
            // The other methods have no place for events.
            let timed = matches!(dispatch, Dispatch::Inline | Dispatch::Pipelined);
            assert_eq!(stages.clock, if timed { Clock::Device } else { Clock::Host }, "{dispatch}");
            // Kernels write verdicts to host memory, so only changed packets are downloaded.
            let writes = body == FILTERS[3];
            let parts = [stages.upload, stages.kernel, stages.download];
            let is_zero = parts.map(|part| part.is_zero());
            assert!(!timed || is_zero == [false, false, !writes], "{dispatch}: {stages:?}");
            // Batches do not overlap.
            assert!(!timed || parts.iter().sum::<Duration>() <= wall, "{dispatch}: {stages:?} in {wall:?}");
            // A byte for each verdict; in slots, eight for four, unless packets come back too.
            let verdicts = if timed || writes { 15_000 } else { 30_000 };
            let back = if !writes { verdicts } else { verdicts + stages.bytes_to_device };
            assert!((verdicts..=back).contains(&stages.bytes_to_host), "{dispatch}: {stages:?}");
        }
    }
}

#[test]
fn the_emulated_driver_says_so_and_is_a_software_device() {
    if is_child() {
        return report_devices();
    }
    let Some(child) = run_child("the_emulated_driver_says_so_and_is_a_software_device", "") else { return };
    let text = reported(&child);
    for part in ["cuda:0", "emulated", "Software", "CUDA 12.4", "NVRTC 12.4, code for sm_90", "9.0", "1024 MiB"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn drivers_without_a_device_say_what_to_do() {
    const TEST: &str = "drivers_without_a_device_say_what_to_do";
    if is_child() {
        return report_devices();
    }
    for (behaviour, hints) in [
        ("no-device", ["CUDA_ERROR_NO_DEVICE", "nvidia-smi"]),
        ("init=803", ["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart the machine"]),
        ("init=12345", ["error 12345, for which the driver has no name", "nvidia-smi"]),
        ("prohibited", ["runs no filter", "nvidia-smi -c DEFAULT"]),
    ] {
        let Some(child) = run_child(TEST, behaviour) else { return };
        let text = reported(&child);
        assert!(hints.iter().all(|hint| text.contains(hint)), "{behaviour}: {text}");
    }
    let hidden = run_child_without(TEST, "", &[], &[("CUDA_VISIBLE_DEVICES", "")]).unwrap();
    assert!(reported(&hidden).contains("CUDA_VISIBLE_DEVICES is ``"), "{}", reported(&hidden));
}

#[test]
fn an_old_driver_is_an_error_not_a_panic() {
    const TEST: &str = "an_old_driver_is_an_error_not_a_panic";
    if is_child() {
        return report_devices();
    }
    let Some(child) = run_child_without(TEST, "", &["cuGraphInstantiateWithFlags"], &[]) else { return };
    let text = reported(&child);
    assert!(text.contains("lacks cuGraphInstantiateWithFlags") && text.contains("CUDA 11.4 or newer"), "{text}");
    // A function that a single dispatch method needs only disables that method.
    let child = run_child_without(TEST, "", &["cuStreamWaitValue32_v2"], &[]).unwrap();
    let text = reported(&child);
    assert!(text.contains("dispatch: [Pipelined, Inline, Persistent, Graph]"), "{text}");
}

#[test]
fn a_missing_compiler_is_explained() {
    const TEST: &str = "a_missing_compiler_is_explained";
    if is_child() {
        return report_devices();
    }
    let without = ["nvrtcVersion"];
    let Some(child) = run_child_without(TEST, "", &without, &[]) else { return };
    assert!(reported(&child).contains("lacks nvrtcVersion"), "{}", reported(&child));
    let child = run_child_without(TEST, "", &[], &[("PORTCULLIS_NVRTC", "/nonexistent/libnvrtc.so")]).unwrap();
    let text = reported(&child);
    assert!(text.contains("/nonexistent/libnvrtc.so, which cannot be loaded"), "{text}");
    assert!(text.contains("runs no filter") && text.contains("PORTCULLIS_CUBINS"), "{text}");
}

#[test]
fn gpus_newer_than_the_compiler_get_ptx() {
    const TEST: &str = "gpus_newer_than_the_compiler_get_ptx";
    if is_child() {
        let program = program(FILTERS[1]);
        let loaded = device().load(&program, &LoadOptions::default());
        return match loaded.and_then(|mut session| session.run(batch(100, 0, 1))) {
            Ok(done) => report(format_args!("{} verdicts, {:?}", done.verdicts.len(), device().info().limits)),
            Err(error) => report(error),
        };
    }
    let Some(child) = run_child(TEST, "arch=100,newest=90,version=12080,nvrtc=12080") else { return };
    let text = reported(&child);
    assert!(text.contains("100 verdicts") && text.contains("does not know sm_100"), "{text}");
    let text = reported(&run_child(TEST, "arch=100,newest=90,version=12040,nvrtc=12080").unwrap());
    assert!(text.contains("too new for the driver (CUDA 12.4)") && text.contains("update the driver"), "{text}");
}

#[test]
fn prebuilt_filters_need_no_compiler() {
    const TEST: &str = "prebuilt_filters_need_no_compiler";
    let program = program(FILTERS[3]);
    if is_child() {
        for dispatch in device().info().dispatch {
            let done = device().load(&program, &options(*dispatch)).and_then(|mut s| s.run(batch(700, 0, 3)));
            report(done.map_or_else(|error| error.to_string(), |done| format!("{:?}", done.verdicts.counts())));
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let variables = [("PORTCULLIS_NVRTC", "/nonexistent"), ("PORTCULLIS_CUBINS", path)];
    let Some(child) = run_child_without(TEST, "", &[], &variables) else { return };
    let cubins = portcullis_cuda::cubins(&program, 90).unwrap();
    assert!(reported(&child).contains(&cubins[0].file_name), "{}", reported(&child));
    // Compiled by NVRTC elsewhere; the cubins are in its cache.
    let cache = tempfile::tempdir().unwrap();
    child_succeeds(TEST, "", &[("PORTCULLIS_CACHE", cache.path().to_str().unwrap())]).unwrap();
    for file in std::fs::read_dir(cache.path().join("cuda")).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let object = bytes.windows(4).position(|window| window == b"\x7fELF").unwrap();
        let cubin = cubins.iter().find(|cubin| {
            let entry = ["xdp_kernel", "pc_persistent", "pc_queued"]
                .map(|entry| (entry, format!("{entry}(").into_bytes()))
                .into_iter()
                .find(|(_, entry)| bytes[..object].windows(entry.len()).any(|window| window == entry));
            cubin.source.contains(&format!("{}(", entry.unwrap().0))
        });
        std::fs::write(folder.path().join(&cubin.unwrap().file_name), &bytes[object..bytes.len() - 8]).unwrap();
    }
    let child = run_child_without(TEST, "", &[], &variables).unwrap();
    let text = String::from_utf8_lossy(&child.stderr).into_owned();
    assert_eq!(text.matches("drop: 0, pass: 0, tx: 700, redirect: 0 }>>").count(), 5, "{text}");
}

#[test]
fn out_of_memory_is_an_error_and_returns_the_batch() {
    if !is_child() {
        return child_passes("out_of_memory_is_an_error_and_returns_the_batch", "memory=200000");
    }
    let program = program(FILTERS[3]);
    for dispatch in device().info().dispatch {
        let mut session = device().load(&program, &options(*dispatch)).unwrap();
        let text = match session.submit(batch(30_000, 0, 1)) {
            Err(refused) => {
                assert_eq!(refused.batch.len(), 30_000);
                refused.to_string()
            }
            // If the first parts fit, completing the batch reports the error and ends the session.
            Ok(()) => {
                let error = session.complete().unwrap_err();
                session = device().load(&program, &options(*dispatch)).unwrap();
                error.to_string()
            }
        };
        assert!(text.contains("no memory for a batch") && text.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{text}");
        assert_eq!(session.run(batch(60, 0, 1)).unwrap().verdicts.len(), 60, "{dispatch}: smaller ones still go");
    }
}

#[test]
fn memory_that_cannot_be_pinned_is_copied() {
    if !is_child() {
        return child_passes("memory_that_cannot_be_pinned_is_copied", "no-registering");
    }
    let (program, [mut packets, mut want]) = (program(FILTERS[3]), [1, 1].map(|seed| batch(500, 128, seed)));
    let mut session = device().load(&program, &LoadOptions::default()).unwrap();
    assert_eq!(session.import(packets.span()).unwrap(), Imported::Copied);
    let mut warnings = Vec::new();
    for _ in 0..3 {
        packets = session.run(packets).unwrap().batch;
        want = reference(&program).run(want).unwrap().batch;
        assert_eq!(bytes(&packets), bytes(&want));
        warnings.extend(session.take_warnings());
    }
    assert_is_pinning_warning(&warnings);
}

/// Checks that the session has said once that memory cannot be pinned, and why.
fn assert_is_pinning_warning(warnings: &[String]) {
    let [warning] = warnings else { panic!("not one warning: {warnings:?}") };
    for part in ["cuda:0: host memory cannot be pinned", "CUDA_ERROR_OUT_OF_MEMORY", "`ulimit -l`"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
}

/// A batch for which slots get no pinned memory comes back, and another device may take it.
#[test]
fn batches_without_pinned_memory_are_refused_and_smaller_ones_go_on() {
    if !is_child() {
        let behaviour = "pinned=400000,no-registering";
        return child_passes("batches_without_pinned_memory_are_refused_and_smaller_ones_go_on", behaviour);
    }
    let program = program(FILTERS[3]);
    for dispatch in [Dispatch::Persistent, Dispatch::WaitValue, Dispatch::Graph] {
        let mut session = device().load(&program, &options(dispatch)).unwrap();
        for _ in 0..2 {
            let done = session.run(batch(60, 128, 1)).unwrap();
            assert_eq!(bytes(&done.batch), bytes(&reference(&program).run(batch(60, 128, 1)).unwrap().batch));
            let refused = session.submit(batch(30_000, 128, 1)).unwrap_err();
            let text = refused.error.to_string();
            assert!(matches!(refused.error, DeviceError::Refused(_)), "{dispatch}: {text}");
            assert!(text.contains("cuda:0") && text.contains("cannot be pinned"), "{dispatch}: {text}");
            assert_eq!(bytes(&refused.batch), bytes(&batch(30_000, 128, 1)));
        }
    }
}

/// Without any pinned memory `pipelined` and `inline` copy from and to pageable memory; the other
/// methods, whose kernels access host memory, say what to do.
#[test]
fn without_pinned_memory_filters_run_or_say_what_to_do() {
    if !is_child() {
        let behaviour = "no-pinned-memory,no-registering,pageable";
        return child_passes("without_pinned_memory_filters_run_or_say_what_to_do", behaviour);
    }
    let device = device();
    for (dispatch, body) in device.info().dispatch.iter().flat_map(|dispatch| FILTERS.map(|body| (*dispatch, body))) {
        let program = program(body);
        let mut warnings = Vec::new();
        let mut run = || -> Result<(), DeviceError> {
            let mut session = device.load(&program, &options(dispatch))?;
            for seed in 0..4 {
                let done = session.run(batch(3000, 0, seed))?;
                let want = reference(&program).run(batch(3000, 0, seed))?;
                assert_eq!(done.verdicts, want.verdicts, "{dispatch}: {body}");
                assert_eq!(bytes(&done.batch), bytes(&want.batch), "{dispatch}: {body}");
                warnings.extend(session.take_warnings());
            }
            Ok(())
        };
        match (dispatch, run()) {
            (Dispatch::Pipelined | Dispatch::Inline, ended) => {
                ended.unwrap();
                assert_is_pinning_warning(&warnings);
            }
            (_, ended) => {
                let text = ended.unwrap_err().to_string();
                for part in ["cuda:0: ", "cannot be pinned", "`ulimit -l`", "--dispatch pipelined"] {
                    assert!(text.contains(part), "{dispatch}, {part}: {text}");
                }
            }
        }
    }
    let counts = compiled(
        "//! map seen: array value=1 entries=4
        fn xdp_filter(pkt: u32) -> u32 { seen_add(load_u8(pkt, 0u) & 3u, 0u, 1u); return XDP_PASS; }",
    );
    let mut session = device.load(&counts, &LoadOptions::default()).unwrap();
    session.run(batch(500, 0, 1)).unwrap();
    let mut want = reference(&counts);
    want.run(batch(500, 0, 1)).unwrap();
    assert_eq!(session.map_words(0).unwrap(), want.map_words(0).unwrap());
    session.set_map_words(0, 0, &[7, 8]).unwrap();
    assert_eq!(session.map_words_at(0, 0, 2).unwrap(), [7, 8]);
}

/// A caller that keeps all verdicts uses up the pinned memory for them, also of packets that stay
/// at the device.
#[test]
fn verdicts_are_copied_while_callers_hold_too_many() {
    if !is_child() {
        return child_passes("verdicts_are_copied_while_callers_hold_too_many", "");
    }
    let redirects = "return redirect(load_be16(pkt, 2u));";
    for is_resident in [false, true] {
        let program = program(redirects);
        let options = LoadOptions::default().with_measure(MeasureOptions::default().with_resident(is_resident));
        let mut session = device().load(&program, &options).unwrap();
        let want = reference(&program).run(batch(300, 0, 1)).unwrap().verdicts;
        let (mut next, mut kept) = (batch(300, 0, 1), Vec::new());
        for _ in 0..40 {
            let done = session.run(next).unwrap();
            kept.push(done.verdicts);
            next = done.batch;
        }
        assert!(kept.iter().all(|verdicts| *verdicts == want), "resident: {is_resident}");
        // Verdicts outlive their session.
        drop(session);
        assert_eq!(kept.pop(), Some(want));
    }
}

#[test]
fn a_failed_launch_ends_only_its_session() {
    const TEST: &str = "a_failed_launch_ends_only_its_session";
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        // The first launch is that at load time; the others are of batches, or wait for one.
        for (dispatch, number) in Dispatch::ALL.into_iter().flat_map(|dispatch| (1..4).map(move |n| (dispatch, n))) {
            if (dispatch, number) != (Dispatch::Persistent, 3) {
                child_passes_with(TEST, &format!("launch-fails={number}"), &[(CHILD, dispatch.name())]);
            }
        }
        return;
    };
    let (program, options) = (program(FILTERS[3]), options(dispatch.parse().unwrap()));
    let run = || {
        let mut session = device().load(&program, &options)?;
        session.run(batch(300, 0, 1))?;
        session.run(batch(300, 0, 2)).map(|done| done.verdicts.len())
    };
    let began = Instant::now();
    let text = run().unwrap_err().to_string();
    assert!(text.starts_with("cuda:0: ") && text.contains("CUDA_ERROR_LAUNCH_FAILED"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(run(), Ok(300));
}

/// A device that is lost in mid-batch returns no verdicts. Batches in flight give their memory back
/// as it was, and so does a batch that is submitted afterwards.
#[test]
fn batches_of_a_lost_device_come_back_unfiltered() {
    const TEST: &str = "batches_of_a_lost_device_come_back_unfiltered";
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        for dispatch in Dispatch::ALL {
            // After the launch at load time, that of the first batch, which `persistent` kernels
            // wait for.
            child_passes_with(TEST, "launch-fails=2", &[(CHILD, dispatch.name())]);
        }
        return;
    };
    let program = program(FILTERS[3]);
    let mut session = device().load(&program, &options(dispatch.parse().unwrap())).unwrap();
    let mut in_flight = Vec::new();
    let mut refused = None;
    for seed in 1..=session.depth() as u32 {
        let next = batch(300, 0, seed);
        let span = next.span().clone();
        match session.submit(next) {
            Ok(()) => in_flight.push(span),
            Err(error) => refused = Some((seed, error)),
        }
    }
    let lost = |error: &DeviceError| {
        let text = error.to_string();
        assert!(text.starts_with("cuda:0: ") && text.contains("CUDA_ERROR_LAUNCH_FAILED"), "{text}");
    };
    let before = |seed: u32| bytes(&batch(300, 0, seed));
    if let Some((seed, error)) = refused {
        lost(&error.error);
        assert_eq!(bytes(&error.batch), before(seed));
    }
    lost(&session.complete().unwrap_err());
    assert_eq!(session.in_flight(), 0);
    assert_eq!(session.complete().unwrap().map(|done| done.verdicts), None, "nothing is in flight");
    let error = session.submit(batch(300, 0, 9)).unwrap_err();
    lost(&error.error);
    assert_eq!(bytes(&error.batch), before(9));
    drop(session);
    // A thread may be waiting for the device first.
    let began = Instant::now();
    while in_flight.iter().any(|span| Arc::strong_count(span) > 1) {
        assert!(began.elapsed() < TEST_TIMEOUT, "the memory is not its owner's again");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a test's body in a thread, and panics if it does not end in time.
fn with_timeout(work: impl FnOnce() + Send + 'static) {
    let (done, outcome) = channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match outcome.recv_timeout(TEST_TIMEOUT) {
        Err(RecvTimeoutError::Timeout) => panic!("a device that hangs is waited for"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
}

/// A token that is cancelled after a second.
fn cancel_after_a_second() -> CancelToken {
    let token = CancelToken::new();
    let used = token.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        used.cancel();
    });
    token
}

#[test]
fn a_hanging_session_blocks_no_other() {
    const TEST: &str = "a_hanging_session_blocks_no_other";
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        // The last check waits ten seconds, so the children run concurrently.
        std::thread::scope(|scope| {
            for dispatch in Dispatch::ALL {
                scope.spawn(move || {
                    // After three launches at load time, the launch of the first batch.
                    child_succeeds(TEST, "hang=4,linger=200", &[(CHILD, dispatch.name())]);
                });
            }
        });
        return;
    };
    with_timeout(move || {
        let program = program(FILTERS[3]);
        let others = [1, 2].map(|seed| {
            let mut other = device().load(&program, &LoadOptions::default()).unwrap();
            other.import(batch(3000, 128, seed).span()).unwrap();
            other
        });
        let cancel = CancelToken::new();
        let options = options(dispatch.parse().unwrap()).with_cancel(cancel.clone());
        let mut hangs = device().load(&program, &options).unwrap();
        let hanging = std::thread::spawn(move || hangs.run(batch(300, 0, 1)).err());
        std::thread::sleep(Duration::from_millis(100));
        let quickly = |began: Instant| assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        // Releases are deferred and block nobody, now and while the session is being abandoned.
        let [first, second] = others;
        let began = Instant::now();
        drop(first);
        quickly(began);
        // Work that needs a quiescent device is refused, or ends by its token.
        let began = Instant::now();
        let token = LoadOptions::default().with_cancel(cancel_after_a_second());
        assert_eq!(device().load(&program, &token).err(), Some(DeviceError::Cancelled));
        quickly(began);
        let began = Instant::now();
        let dropping = std::thread::spawn(move || drop(second));
        std::thread::sleep(Duration::from_millis(100));
        cancel.cancel();
        assert_eq!(hanging.join().unwrap(), Some(DeviceError::Cancelled));
        quickly(began);
        dropping.join().unwrap();
        quickly(began);
        let text = device().load(&program, &LoadOptions::default()).err().unwrap().to_string();
        assert!(text.contains("cannot be used") && text.contains("busy with a batch that was given up"), "{text}");
    });
}

#[test]
fn a_failed_quiescent_period_frees_nothing_beside_resident_kernels() {
    const TEST: &str = "a_failed_quiescent_period_frees_nothing_beside_resident_kernels";
    if !is_child() {
        // With the cache, loading the filter again takes no time.
        let cache = tempfile::tempdir().unwrap();
        child_succeeds(TEST, "hang=5,linger=200", &[("PORTCULLIS_CACHE", cache.path().to_str().unwrap())]);
        return;
    }
    with_timeout(|| {
        let program = program(FILTERS[3]);
        let load = |dispatch, cancel| device().load(&program, &options(dispatch).with_cancel(cancel));
        drop(load(Dispatch::Inline, CancelToken::new()).unwrap());
        let mut resident = load(Dispatch::Persistent, CancelToken::new()).unwrap();
        let cancel = CancelToken::new();
        let mut hangs = load(Dispatch::WaitValue, cancel.clone()).unwrap();
        resident.run(batch(50, 128, 1)).unwrap();
        hangs.submit(batch(300, 0, 1)).unwrap();
        std::thread::scope(|scope| {
            // Loading waits for all resident kernels to leave, until it is cancelled.
            let waiting = scope.spawn(|| load(Dispatch::Inline, cancel_after_a_second()).err());
            std::thread::sleep(Duration::from_millis(100));
            // Whoever waits has the last reference to these kernels now, and releases them.
            drop(resident);
            assert_eq!(waiting.join().unwrap(), Some(DeviceError::Cancelled));
        });
        cancel.cancel();
        assert_eq!(hangs.complete().err(), Some(DeviceError::Cancelled));
    });
}

#[test]
fn a_filter_that_hangs_at_load_time_blocks_no_other_session() {
    if !is_child() {
        child_succeeds("a_filter_that_hangs_at_load_time_blocks_no_other_session", "hang-plain", &[]);
        return;
    }
    with_timeout(|| {
        let program = program(FILTERS[3]);
        let mut session = device().load(&program, &options(Dispatch::Persistent)).unwrap();
        assert_eq!(session.run(batch(300, 0, 1)).unwrap().verdicts.len(), 300);
        let cancel = CancelToken::new();
        let load = || device().load(&program, &LoadOptions::default().with_cancel(cancel.clone())).err();
        std::thread::scope(|scope| {
            let loading = scope.spawn(load);
            // Compiling takes part of that time.
            for seed in 0..100 {
                let began = Instant::now();
                assert_eq!(session.run(batch(300, 0, seed)).unwrap().verdicts.len(), 300);
                assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
            cancel.cancel();
            assert_eq!(loading.join().unwrap(), Some(DeviceError::Cancelled));
        });
    });
}

#[test]
fn a_hanging_kernel_is_abandoned() {
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        // The first launch is that at load time, the later one that of the second batch;
        // `persistent` launches nothing for a batch, so there it is the first batch's, or that
        // queued after it.
        for (dispatch, later) in Dispatch::ALL.into_iter().flat_map(|dispatch| [(dispatch, false), (dispatch, true)]) {
            let number = if dispatch == Dispatch::Persistent { 2 } else { 3 };
            let behaviour = format!("hang={},linger=200", if later { number } else { 1 });
            child_succeeds("a_hanging_kernel_is_abandoned", &behaviour, &[(CHILD, dispatch.name())]);
        }
        // Copies to pageable memory block, but not before the kernel has ended.
        for dispatch in [Dispatch::Pipelined, Dispatch::Inline] {
            let behaviour = "hang=3,linger=200,no-pinned-memory,no-registering,pageable";
            child_succeeds("a_hanging_kernel_is_abandoned", behaviour, &[(CHILD, dispatch.name())]);
        }
        return;
    };
    with_timeout(move || cancel_while_a_kernel_hangs(dispatch.parse().unwrap(), &program(FILTERS[3])));
}

/// Cancels while a kernel hangs, and checks that nothing waits for it and that the packets' memory
/// stays allocated.
fn cancel_while_a_kernel_hangs(dispatch: Dispatch, program: &Arc<Program>) {
    let cancel = CancelToken::new();
    let options = options(dispatch).with_cancel(cancel.clone());
    let after = {
        let cancel = cancel.clone();
        move || {
            std::thread::sleep(Duration::from_secs(2));
            cancel.cancel();
        }
    };
    let began = Instant::now();
    let canceller = std::thread::spawn(after);
    let run = || -> Result<(), DeviceError> {
        let mut session = device().load(program, &options)?;
        // Close together, so that they are copied from where they lie.
        let mut pass = || {
            session.submit(batch(300, 128, 1)).map_err(|refused| refused.error)?;
            session.complete()
        };
        let ended = pass().and_then(|_| pass());
        assert_eq!(session.in_flight(), 0);
        drop(session);
        ended.map(|_| ())
    };
    assert_eq!(run(), Err(DeviceError::Cancelled), "{dispatch}");
    assert!(began.elapsed() < Duration::from_secs(15), "{dispatch}: {:?}", began.elapsed());
    canceller.join().unwrap();
}

/// Interfaces that benchmarks use besides sessions: a hand-written kernel over records
/// that go to the device and back.
#[test]
fn records_go_to_the_device_and_back() {
    if !is_child() {
        return child_passes("records_go_to_the_device_and_back", "pageable");
    }
    // Sets each record's second byte to its first plus 3; the other bytes stay.
    const TEXT: &str = "KERNEL void mark(GLOBAL unsigned char *records, unsigned int count) {
        for (unsigned int i = ITEM * 2; i < ITEM * 2 + 2 && i < count; i++) records[5 * i + 1] = records[5 * i] + 3;
    }";
    for memory in [HostMemory::Pageable, HostMemory::Pinned, HostMemory::Imported] {
        for chunk in [64, 100, 1000, 5000] {
            let mut records = CudaRecords::open(&device(), TEXT, "mark", memory, 1000, chunk, 5, 2).unwrap();
            for (number, byte) in records.host().iter_mut().enumerate() {
                *byte = number as u8;
            }
            // The last records are not sent.
            records.run(990, chunk).unwrap();
            for (number, &byte) in records.host().iter().enumerate() {
                let changed = number % 5 == 1 && number / 5 < 990;
                let want = if changed { ((number - 1) as u8).wrapping_add(3) } else { number as u8 };
                assert_eq!(byte, want, "{}, {chunk} at a time, byte {number}", memory.name());
            }
        }
    }
}
