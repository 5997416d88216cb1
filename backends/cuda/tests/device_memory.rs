//! Batches whose packets are in GPU memory, on the emulated driver: by every dispatch method,
//! compared with the reference interpreter on the same packets, and without copying any.
//!
//! Each test runs again in a child process that finds the emulated libraries in place of the
//! driver.
// Spans over device memory, whose owner answers for who accesses it.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, Completion, Device, DeviceError, Dispatch, Imported, LoadOptions, Session};
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{
    Arena, Batch, Descriptor, DeviceView, Metadata, READABLE_PAST_END, RESIZE_ROOM, ResizeRoom, Span,
};
use portcullis_core::program::Program;
use portcullis_cuda::memory::{DeviceBuffer, EVERY_DEVICE, Gpu};

mod child;
use child::{
    CHILD, child_passes, child_passes_with, child_passes_with_cache, child_succeeds, compiled, device, is_child,
    program, reference, report, reported, run_child, run_child_without,
};

/// Distance between frames in bytes.
const FRAME: u32 = 512;

/// Packets as a network card leaves them: each in a frame of its own, in any order, among other
/// bytes.
struct Packets {
    memory: Vec<u8>,
    descriptors: Vec<Descriptor>,
    metadata: Vec<Metadata>,
}

impl Packets {
    fn new(count: u32, seed: u32) -> Packets {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        let mut memory: Vec<u8> = (0..(count + 1) * FRAME).map(|_| next() as u8).collect();
        let (mut descriptors, mut metadata) = (Vec::new(), Vec::new());
        for number in 0..count {
            // A permutation of the frames: an odd factor modulo a power of two, or descending
            // order.
            let frame = if count.is_power_of_two() { number.wrapping_mul(77) % count } else { count - 1 - number };
            let start = frame * FRAME + RESIZE_ROOM;
            if number % 13 == 5 {
                // An empty packet may lie at any offset, the others at words.
                descriptors.push(Descriptor { offset: start + 1 + number % 3, length: 0 });
                metadata.push(Metadata::default());
                continue;
            }
            let d = Descriptor { offset: start, length: 14 + next() % 240 };
            let packet = &mut memory[d.offset as usize..][..d.length as usize];
            let ethertype = [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00]][next() as usize % 3];
            packet[12..14].copy_from_slice(&ethertype);
            if packet.len() >= 34 && ethertype == [0x08, 0x00] {
                packet[14] = 0x45;
                packet[20..22].fill(0);
                packet[23] = [6, 17, 1][next() as usize % 3];
                let ports = [80_u16, 443, 22, 53];
                packet.iter_mut().skip(36).zip(ports[next() as usize % 4].to_be_bytes()).for_each(|(to, b)| *to = b);
            }
            descriptors.push(d);
            metadata.push(Metadata::new(d.length + next() % 100, next() % 5, u64::from(next()) << 20));
        }
        Packets { memory, descriptors, metadata }
    }

    fn batch(&self, span: &Arc<Span>) -> Batch {
        // SAFETY: no two packets share a frame, and nobody else uses the memory before the batch is
        // back.
        let batch = unsafe {
            let (descriptors, metadata) = (self.descriptors.clone(), self.metadata.clone());
            Batch::from_frames(span.clone(), descriptors, metadata, ResizeRoom::Both, Box::new(()))
        };
        batch.unwrap()
    }

    /// Host memory with these packets in it.
    fn in_host(&self) -> Arena {
        let mut arena = Arena::new(self.memory.len()).unwrap();
        arena.copy_from_slice(&self.memory);
        arena
    }

    /// Filters the packets with the interpreter.
    fn filtered(&self, session: &mut Box<dyn Session>) -> Completion {
        session.run(self.batch(self.in_host().span())).unwrap()
    }
}

/// Device memory with these packets in it, and a span over it without a host view.
fn in_device(gpu: &Gpu, packets: &Packets) -> (Arc<DeviceBuffer>, Arc<Span>) {
    let memory = gpu.allocate(packets.memory.len(), 1).unwrap();
    memory.write(0, &packets.memory).unwrap();
    let (view, bytes, all) = (memory.view(), memory.size(), memory.allocated());
    // SAFETY: as many bytes are there, all of them initialised, as long as the owner is.
    let span = unsafe { Span::from_views(None, Some(view), bytes, all, Box::new(memory.clone())) }.unwrap();
    (memory, span)
}

fn options(dispatch: Dispatch) -> LoadOptions {
    LoadOptions::default().with_dispatch(dispatch)
}

fn stock(name: &str) -> Arc<Program> {
    let path = format!("{}/../../shaders/{name}.wgsl", env!("CARGO_MANIFEST_DIR"));
    compiled(&std::fs::read_to_string(&path).unwrap())
}

/// Uses a map and all metadata, redirects and rewrites.
const ALL: &str = "//! map seen: array value=1 entries=8
fn xdp_filter(pkt: u32) -> u32 {
    seen_add(pkt_len(pkt) % 8u, 0u, 1u);
    store_be32(pkt, 8u, load_be32(pkt, 2u) + pkt_time(pkt).x + pkt_wire_len(pkt));
    if pkt_port(pkt) % 2u == 0u { return redirect(load_be16(pkt, 12u)); }
    return pkt_time_ms(pkt) % 4u;
}";

/// Moves both ends of packets, and writes to the bytes added.
const MOVES: &str = "fn xdp_filter(pkt: u32) -> u32 {
    let d = i32(load_u8(pkt, 0u)) - 127;
    if adjust_head(pkt, d) { store_be32(pkt, 0u, 0x01020304u); }
    if adjust_tail(pkt, -d) { store_u8(pkt, pkt_len(pkt) - 1u, 9u); return XDP_TX; }
    return XDP_DROP;
}";

/// Asserts that the batch came back as the interpreter's did, with its bytes in device memory, and
/// that nothing else there has changed.
fn check(done: &Completion, memory: &DeviceBuffer, packets: &Packets, want: &Completion, what: &str) {
    assert_eq!(done.verdicts, want.verdicts, "{what}");
    assert_eq!(done.batch.descriptors(), want.batch.descriptors(), "{what}: ends");
    let mut now = vec![0; memory.size()];
    memory.read(0, &mut now).unwrap();
    let mut owned = vec![false; now.len()];
    for (number, (d, before)) in done.batch.descriptors().iter().zip(&packets.descriptors).enumerate() {
        let bytes = &now[d.offset as usize..][..d.length as usize];
        assert!(bytes == want.batch.packet(number), "{what}: packet {number}");
        // A filter that moves no end must not write to head- or tailrooms.
        let room = if want.batch.descriptors() == packets.descriptors { 0 } else { RESIZE_ROOM };
        owned[(before.offset - room) as usize..(before.offset + before.length + room) as usize].fill(true);
    }
    let untouched = (0..now.len()).all(|at| owned[at] || now[at] == packets.memory[at]);
    assert!(untouched, "{what}: bytes that are no packet's were written");
}

#[test]
fn every_method_filters_packets_in_place() {
    if !is_child() {
        return child_passes_with_cache("every_method_filters_packets_in_place");
    }
    let gpu = Gpu::open(0).unwrap();
    let mut stocks: Vec<_> = ["port_filter", "dscp_mark", "vlan_pop"].map(|name| (name, stock(name))).to_vec();
    stocks.extend([("all", compiled(ALL)), ("moves", compiled(MOVES))]);
    for (name, program) in stocks {
        for dispatch in Dispatch::ALL {
            let mut reference = reference(&program);
            let mut session = device().load(&program, &options(dispatch)).unwrap();
            // Sizes around those of a block and a request, and of several; all in one memory, as
            // frames are reused.
            let largest = Packets::new(8192, 5);
            let (memory, span) = in_device(&gpu, &largest);
            assert_eq!(session.import(&span).unwrap(), Imported::InPlace);
            for (count, seed) in [(0, 1), (1, 2), (257, 3), (1025, 4), (8192, 5), (1025, 6), (3, 7)] {
                let mut packets = Packets::new(count, seed);
                packets.memory.resize(largest.memory.len(), seed as u8);
                memory.write(0, &packets.memory).unwrap();
                let done = session.run(packets.batch(&span)).unwrap();
                let want = packets.filtered(&mut reference);
                check(&done, &memory, &packets, &want, &format!("{name}, {dispatch}, {count} packets"));
            }
            if !program.maps().is_empty() {
                assert_eq!(session.map_words(0).unwrap(), reference.map_words(0).unwrap(), "{dispatch}");
            }
        }
    }
}

#[test]
fn a_session_takes_batches_in_host_and_device_memory_in_turn() {
    if !is_child() {
        return child_passes_with_cache("a_session_takes_batches_in_host_and_device_memory_in_turn");
    }
    let (gpu, program) = (Gpu::open(0).unwrap(), compiled(ALL));
    for dispatch in Dispatch::ALL {
        let mut reference = reference(&program);
        let mut session = device().load(&program, &options(dispatch)).unwrap();
        for round in 0..4 {
            let packets: Vec<_> = (0..session.depth() as u32).map(|n| Packets::new(300 + 50 * n, round + n)).collect();
            let mut memories = Vec::new();
            for (number, packets) in packets.iter().enumerate() {
                if (number + round as usize).is_multiple_of(2) {
                    let (memory, span) = in_device(&gpu, packets);
                    memories.push(Some(memory));
                    session.submit(packets.batch(&span)).unwrap();
                } else {
                    memories.push(None);
                    session.submit(packets.batch(packets.in_host().span())).unwrap();
                }
            }
            for (packets, memory) in packets.iter().zip(memories) {
                let (done, want) = (session.complete().unwrap().unwrap(), packets.filtered(&mut reference));
                match memory {
                    Some(memory) => check(&done, &memory, packets, &want, &format!("{dispatch}, round {round}")),
                    None => assert!(done.verdicts == want.verdicts && done.batch.packets().eq(want.batch.packets())),
                }
            }
        }
    }
}

#[test]
fn no_packet_is_copied_and_remote_writes_are_flushed() {
    const TEST: &str = "no_packet_is_copied_and_remote_writes_are_flushed";
    const COUNT: u32 = 4096;
    const ROUNDS: u32 = 3;
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        for dispatch in Dispatch::ALL {
            let Some(child) = run_child_without(TEST, "report,unordered", &[], &[(CHILD, dispatch.name())]) else {
                return;
            };
            reported(&child);
            let error = String::from_utf8_lossy(&child.stderr).into_owned();
            let number = |before: &str| -> u64 {
                let rest = error.split_once(before).unwrap_or_else(|| panic!("{error}")).1;
                rest.split(' ').next().unwrap().parse().unwrap()
            };
            let (copied_in, copied_out) = (number("copied "), number("bytes to the device, "));
            // The test's own upload; then descriptors, headers and verdicts only.
            let own = u64::from((COUNT + 1) * FRAME);
            let most = u64::from(ROUNDS * COUNT) * 9 + 100_000;
            assert!((own..own + most).contains(&copied_in), "{dispatch}: {copied_in} bytes in");
            assert!(copied_out < most, "{dispatch}: {copied_out} bytes out");
            assert!(number("flushed remote writes ") >= u64::from(ROUNDS), "{dispatch}: {error}");
        }
        return;
    };
    // May read and write every byte.
    let program = program(
        "let sum = load_be32(pkt, 2u) + load_be32(pkt, load_u8(pkt, 0u)) + load_be32(pkt, pkt_len(pkt) - 4u);
         store_be32(pkt, load_u8(pkt, 1u), sum); return sum % 5u;",
    );
    let (gpu, mut packets) = (Gpu::open(0).unwrap(), Packets::new(COUNT, 3));
    let mut session = device().load(&program, &options(dispatch.parse().unwrap())).unwrap();
    let mut reference = reference(&program);
    let (_memory, span) = in_device(&gpu, &packets);
    for _ in 0..ROUNDS {
        let done = session.run(packets.batch(&span)).unwrap();
        let want = packets.filtered(&mut reference);
        // Each round sees what the previous one wrote.
        assert_eq!(done.verdicts, want.verdicts);
        for (number, d) in packets.descriptors.iter().enumerate() {
            packets.memory[d.offset as usize..][..d.length as usize].copy_from_slice(want.batch.packet(number));
        }
    }
    report("done");
}

#[test]
fn memory_with_a_host_and_a_device_view_is_filtered_in_place() {
    if !is_child() {
        return child_passes("memory_with_a_host_and_a_device_view_is_filtered_in_place", "");
    }
    let (gpu, program, packets) = (Gpu::open(0).unwrap(), compiled(MOVES), Packets::new(500, 9));
    let mut reference = reference(&program);
    let want = packets.filtered(&mut reference);
    for dispatch in Dispatch::ALL {
        let mut session = device().load(&program, &options(dispatch)).unwrap();
        // Device memory that the CPU has mapped (GDRCopy).
        let memory = gpu.allocate(packets.memory.len(), 1).unwrap();
        memory.write(0, &packets.memory).unwrap();
        let (mapping, view, all) = (memory.map().unwrap(), memory.view(), memory.allocated());
        // SAFETY: as many bytes are there in either view, as long as the mapping is.
        let span = unsafe {
            Span::from_views(Some(mapping.start()), Some(view), packets.memory.len(), all, Box::new(mapping)).unwrap()
        };
        let done = session.run(packets.batch(&span)).unwrap();
        check(&done, &memory, &packets, &want, &format!("{dispatch}, mapped"));
        assert!(done.batch.packets().eq(want.batch.packets()), "the processor sees the same");

        // Host memory registered beforehand: the session need not register it.
        let arena = packets.in_host();
        let (start, all) = (NonNull::new(arena.span().as_ptr()).unwrap(), arena.span().allocated());
        // SAFETY: the arena outlives the registration.
        let registered = unsafe { gpu.register(start, all) }.unwrap();
        let (view, owner) = (registered.view(), Box::new(arena));
        assert_eq!(view.device, EVERY_DEVICE);
        // SAFETY: as many bytes are there in either view, as long as the arena is.
        let span = unsafe { Span::from_views(Some(start), Some(view), packets.memory.len(), all, owner) }.unwrap();
        let reads = matches!(dispatch, Dispatch::Inline | Dispatch::Pipelined);
        let imported = if reads { Imported::InPlace } else { Imported::Copied };
        assert_eq!(session.import(&span).unwrap(), imported, "{dispatch}");
        let done = session.run(packets.batch(&span)).unwrap();
        assert!(done.verdicts == want.verdicts && done.batch.packets().eq(want.batch.packets()), "{dispatch}");
        drop(done);
        registered.unregister().unwrap();
    }
}

#[test]
fn inaccessible_or_misaligned_packets_are_refused() {
    if !is_child() {
        return child_passes("inaccessible_or_misaligned_packets_are_refused", "");
    }
    let (gpu, program, mut packets) = (Gpu::open(0).unwrap(), stock("dscp_mark"), Packets::new(10, 1));
    let (memory, span) = in_device(&gpu, &packets);
    let view = DeviceView { device: "cuda:1".into(), address: memory.address() };
    // SAFETY: nobody accesses it: its view says that it is on another device.
    let other = unsafe { Span::from_views(None, Some(view), 8192, 8192 + READABLE_PAST_END, Box::new(())) }.unwrap();
    for dispatch in Dispatch::ALL {
        let mut session = device().load(&program, &options(dispatch)).unwrap();
        let refused = session.submit(packets.batch(&other)).unwrap_err();
        assert!(refused.to_string().contains("in the memory of cuda:1, which this device does not reach"), "{refused}");
        packets.descriptors[3].offset += 2;
        let refused = session.submit(packets.batch(&span)).unwrap_err();
        let offset = packets.descriptors[3].offset;
        packets.descriptors[3].offset -= 2;
        let why = format!("packet 3 starts at byte {offset}, which is not a multiple of 4");
        assert!(refused.to_string().contains(&why), "{refused}");
        assert_eq!(session.run(*refused.batch).err().map(|error| error.to_string().contains(&why)), Some(true));
        assert_eq!(session.run(packets.batch(&span)).unwrap().verdicts.len(), 10, "{dispatch}");
    }
    // Filters that move packets accept any alignment.
    let program = compiled(MOVES);
    let mut reference = reference(&program);
    packets.descriptors.iter_mut().zip(0..).for_each(|(d, number)| d.offset += number % 4);
    for dispatch in Dispatch::ALL {
        memory.write(0, &packets.memory).unwrap();
        let done = device().load(&program, &options(dispatch)).unwrap().run(packets.batch(&span)).unwrap();
        check(&done, &memory, &packets, &packets.filtered(&mut reference), dispatch.name());
    }
}

#[test]
fn one_sided_batches_in_device_memory_stay_on_the_device() {
    if !is_child() {
        return child_passes("one_sided_batches_in_device_memory_stay_on_the_device", "");
    }
    // Each packet gets the number of earlier packets of its flow.
    let program = compiled(
        "//! map before: array value=1 entries=256
         fn xdp_flow(pkt: u32) -> u32 { return load_u8(pkt, 0u); }
         fn xdp_filter(pkt: u32) -> u32 {
             let n = before_read(load_u8(pkt, 0u), 0u);
             before_write(load_u8(pkt, 0u), 0u, n + 1u);
             store_be32(pkt, 4u, n);
             return XDP_TX;
         }",
    );
    let gpu = Gpu::open(0).unwrap();
    let mut reference = reference(&program);
    let elephant_flow_device: Arc<dyn Device> = Arc::new(InterpDevice::new());
    let options = options(Dispatch::Pipelined).with_elephant_flow_device(Some(elephant_flow_device));
    let mut session = device().load(&program, &options).unwrap();
    // Batches of one flow go to the other device if they are in host memory; in between come
    // batches that it cannot access.
    for (round, on_host) in [true, true, true, false, true, true, true, false, false, true].into_iter().enumerate() {
        let mut packets = Packets::new(1500, round as u32);
        for d in &packets.descriptors {
            packets.memory[d.offset as usize] = 7;
        }
        let want = packets.filtered(&mut reference);
        if on_host {
            let done = session.run(packets.batch(packets.in_host().span())).unwrap();
            assert!(done.batch.packets().eq(want.batch.packets()), "round {round}");
        } else {
            let (memory, span) = in_device(&gpu, &packets);
            let done = session.run(packets.batch(&span)).unwrap();
            check(&done, &memory, &packets, &want, &format!("round {round}"));
        }
    }
}

#[test]
fn a_failed_launch_ends_the_session_but_not_the_next_one() {
    const TEST: &str = "a_failed_launch_ends_the_session_but_not_the_next_one";
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        // The second launch is that of the first batch, or for `waitvalue` one of those queued
        // ahead.
        for dispatch in Dispatch::ALL {
            child_passes_with(TEST, "launch-fails=2", &[(CHILD, dispatch.name())]);
        }
        return;
    };
    let (program, packets, options) = (stock("dscp_mark"), Packets::new(300, 1), options(dispatch.parse().unwrap()));
    let run = || {
        let gpu = Gpu::open(0)?;
        let (memory, span) = in_device(&gpu, &packets);
        let mut session = device().load(&program, &options)?;
        let done = session.run(packets.batch(&span))?;
        let mut reference = reference(&program);
        check(&done, &memory, &packets, &packets.filtered(&mut reference), dispatch.as_str());
        Ok::<_, DeviceError>(())
    };
    let text = run().unwrap_err().to_string();
    assert!(text.starts_with("cuda:0: ") && text.contains("CUDA_ERROR_LAUNCH_FAILED"), "{text}");
    assert_eq!(run(), Ok(()));
}

#[test]
fn packets_of_a_hanging_kernel_stay_allocated() {
    const TEST: &str = "packets_of_a_hanging_kernel_stay_allocated";
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        for dispatch in Dispatch::ALL {
            child_succeeds(TEST, "hang=2,linger=200", &[(CHILD, dispatch.name())]);
        }
        return;
    };
    let (gpu, packets, cancel) = (Gpu::open(0).unwrap(), Packets::new(300, 1), CancelToken::new());
    let options = options(dispatch.parse().unwrap()).with_cancel(cancel.clone());
    let mut session = device().load(&stock("dscp_mark"), &options).unwrap();
    let (memory, span) = in_device(&gpu, &packets);
    let (weak, owner): (Weak<Span>, _) = (Arc::downgrade(&span), Arc::downgrade(&memory));
    let began = Instant::now();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        cancel.cancel();
    });
    session.submit(packets.batch(&span)).unwrap();
    drop((span, memory, gpu));
    assert_eq!(session.complete().err(), Some(DeviceError::Cancelled));
    drop(session);
    canceller.join().unwrap();
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(weak.upgrade().is_some() && owner.upgrade().is_some(), "a kernel may be at it still");
}

#[test]
fn a_cancelled_session_releases_packets_once_its_kernels_have_left() {
    if is_child() {
        let (gpu, packets, program) = (Gpu::open(0).unwrap(), Packets::new(8192, 1), stock("dscp_mark"));
        for dispatch in Dispatch::ALL {
            let cancel = CancelToken::new();
            let options = options(dispatch).with_cancel(cancel.clone());
            let mut session = device().load(&program, &options).unwrap();
            let (memory, span) = in_device(&gpu, &packets);
            let submitted = session.submit(packets.batch(&span));
            cancel.cancel();
            let ended = submitted.map_err(|refused| refused.error).and_then(|()| session.complete());
            assert!(matches!(ended, Ok(Some(_)) | Err(DeviceError::Cancelled)), "{dispatch}: {ended:?}");
            drop((ended, session));
            assert_eq!((Arc::strong_count(&span), Arc::strong_count(&memory)), (1, 2), "{dispatch}");
        }
        return report("done");
    }
    let Some(child) = run_child("a_cancelled_session_releases_packets_once_its_kernels_have_left", "") else { return };
    reported(&child);
}
