//! The whole backend on the emulated driver: every dispatch method compared with the reference
//! interpreter, and drivers and compilers that are missing, old or new.
//!
//! Each test runs again in a child process that finds the emulated libraries in place of the
//! driver.

use std::time::{Duration, Instant};

use portcullis_core::device::record_kernel::{HostMemory, RecordKernel};
use portcullis_core::device::{
    Clock, Device, DeviceError, Dispatch, Imported, LoadOptions, MeasureOptions, Session, Transfer,
};
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, ResizeRoom};
use portcullis_cuda::measure::CudaRecords;

mod child;
use child::batches::{FILTERS, batch, bytes, options};
use child::{
    CHILD, child_passes, child_passes_with_cache, child_succeeds, compiled, device, is_child, program, reference,
    report, reported, run_child, run_child_without,
};

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
