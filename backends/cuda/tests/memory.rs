//! GPU memory for packet sources, on the emulated driver and an emulated GDRCopy.
//!
//! Each test runs again in a child process that finds the emulated libraries in place of the
//! driver.
// Registering and mapping memory by address.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use portcullis_core::device::{Device, DeviceError, Dispatch, LoadOptions};
use portcullis_core::packet::{Arena, Batch, READABLE_PAST_END};
use portcullis_cuda::memory::{EVERY_DEVICE, Gpu};

mod child;
use child::{child_passes, compiled, is_child, program, reference, report, reported, run_child, run_child_without};

#[test]
fn a_gpu_describes_itself() {
    if !is_child() {
        return child_passes("a_gpu_describes_itself", "memory=123456789");
    }
    let gpu = Gpu::open(0).unwrap();
    let device = portcullis_cuda::probe().unwrap().remove(0);
    assert_eq!((gpu.id(), gpu.name()), ("cuda:0", device.info().name.as_str()));
    assert_eq!((gpu.total_memory(), gpu.multiprocessors()), (123_456_789, 4));
    // The emulated driver reports capitals, and the PCI domain does not exist here.
    assert_eq!((gpu.pci_address(), gpu.numa_node()), (Some("ffff:3b:00.0"), None));
    let text = Gpu::open(1).unwrap_err().to_string();
    assert_eq!(text, "there is no cuda:1: the CUDA driver gives 1, counted from 0");
}

#[test]
fn allocations_are_zeroed_aligned_and_bounds_checked() {
    if !is_child() {
        return child_passes("allocations_are_zeroed_aligned_and_bounds_checked", "");
    }
    let gpu = Gpu::open(0).unwrap();
    for (bytes, alignment) in [(1, 1), (65_536 - READABLE_PAST_END, 4096), (65_536, 65_536), (3_000_000, 1 << 20)] {
        let memory = gpu.allocate(bytes, alignment).unwrap();
        assert_eq!((memory.size(), memory.address() % alignment.max(65_536) as u64), (bytes, 0));
        assert!(memory.allocated() >= bytes + READABLE_PAST_END && memory.allocated().is_multiple_of(65_536));
        assert!(memory.allocated() < bytes + READABLE_PAST_END + 65_536);
        assert_eq!((memory.view().device.as_str(), memory.view().address), ("cuda:0", memory.address()));
        let mut read = vec![7; bytes];
        memory.read(0, &mut read).unwrap();
        assert!(read.iter().all(|&byte| byte == 0), "zeros at first");
        let written: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
        memory.write(0, &written).unwrap();
        memory.read(0, &mut read).unwrap();
        assert!(read == written);
        let at = bytes / 3;
        memory.write(at, &[1, 2, 3][..(bytes - at).min(3)]).unwrap();
        let mut few = vec![0; (bytes - at).min(4)];
        memory.read(at, &mut few).unwrap();
        assert!(few.iter().zip([1, 2, 3]).all(|(&byte, want)| byte == want));
        for (at, bytes) in [(bytes, 1), (bytes + 1, 0), (0, bytes + 1), (usize::MAX, 2)] {
            assert!(matches!(memory.write(at, &vec![0; bytes]), Err(DeviceError::Refused(_))), "{at}, {bytes}");
        }
    }
    for (bytes, alignment) in [(0, 1), (100, 0x1_8000), (usize::MAX, 1), (usize::MAX - 70_000, 1)] {
        assert!(matches!(gpu.allocate(bytes, alignment), Err(DeviceError::Refused(_))), "{bytes}, {alignment}");
    }
    let text = gpu.allocate(2 << 30, 1).unwrap_err().to_string();
    assert!(text.contains("no memory for 2147483648 bytes") && text.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{text}");
}

#[test]
fn mappings_and_device_copies_see_each_other_s_writes() {
    if !is_child() {
        return child_passes("mappings_and_device_copies_see_each_other_s_writes", "");
    }
    let gpu = Gpu::open(0).unwrap();
    let memories: Vec<_> = [100, 70_000, 500_000].iter().map(|&bytes| gpu.allocate(bytes, 1 << 18).unwrap()).collect();
    let mappings: Vec<_> = memories.iter().map(|memory| memory.map().unwrap()).collect();
    for (memory, mapping) in memories.iter().zip(&mappings) {
        // The emulated GDRCopy maps it at another address.
        assert_ne!(mapping.start().as_ptr() as u64, memory.address());
        memory.write(10, b"from the device").unwrap();
        // SAFETY: as many bytes are mapped, and nothing else uses them.
        let seen = unsafe { std::slice::from_raw_parts_mut(mapping.start().as_ptr(), memory.allocated()) };
        assert_eq!(&seen[10..25], b"from the device");
        seen[memory.size() - 9..memory.size()].copy_from_slice(b"processor");
        seen[memory.allocated() - 1] = 1;
        gpu.barrier().unwrap();
        let mut read = [0; 9];
        memory.read(memory.size() - 9, &mut read).unwrap();
        assert_eq!(&read, b"processor");
    }
    // The mapping keeps the memory allocated; the emulated driver aborts if pinned memory is freed.
    drop((memories, gpu));
    let start = mappings[2].start();
    // SAFETY: it is still mapped.
    assert_eq!(unsafe { start.add(10).read() }, b'f');
}

#[test]
fn memory_is_allocated_and_freed_beside_resident_kernels() {
    if !is_child() {
        return child_passes("memory_is_allocated_and_freed_beside_resident_kernels", "");
    }
    let program = program("return XDP_TX;");
    let load = |dispatch| {
        let device = portcullis_cuda::probe().unwrap().remove(0);
        device.load(&program, &LoadOptions::default().with_dispatch(dispatch)).unwrap()
    };
    let mut sessions = [load(Dispatch::Persistent), load(Dispatch::WaitValue)];
    let gpu = Gpu::open(0).unwrap();
    let arena = Arena::new(100_000).unwrap();
    let start = NonNull::new(arena.span().as_ptr()).unwrap();
    for _ in 0..3 {
        // The emulated driver aborts if one of these meets a kernel that waits for the host.
        let mut run = || {
            for session in &mut sessions {
                assert_eq!(session.run(Batch::from_packets(&[[0; 60]; 9]).unwrap()).unwrap().verdicts.len(), 9);
            }
        };
        run();
        let memory = gpu.allocate(100_000, 1).unwrap();
        run();
        // SAFETY: the arena outlives the registration.
        let registered = unsafe { gpu.register(start, arena.span().allocated()) }.unwrap();
        run();
        let mapping = memory.map().unwrap();
        memory.write(5, &[1]).unwrap();
        run();
        drop((mapping, memory));
        run();
        registered.unregister().unwrap();
    }
}

#[test]
fn host_memory_is_registered_once_for_every_device() {
    if !is_child() {
        return child_passes("host_memory_is_registered_once_for_every_device", "registered=300000");
    }
    let gpu = Gpu::open(0).unwrap();
    let arena = Arena::new(200_000).unwrap();
    let (start, bytes) = (NonNull::new(arena.span().as_ptr()).unwrap(), arena.span().allocated());
    // SAFETY: the arena outlives the registration; the same below.
    let register = |bytes| unsafe { gpu.register(start, bytes) };
    let registered = register(bytes).unwrap();
    assert_eq!((registered.start(), registered.size()), (start, bytes));
    assert_eq!((registered.view().device.as_str(), registered.view().address), (EVERY_DEVICE, registered.address()));
    let text = register(4096).unwrap_err().to_string();
    assert!(text.contains("registered already") && text.contains("have it registered once"), "{text}");
    let other = Arena::new(200_000).unwrap();
    // SAFETY: the arena outlives the registration.
    let more = unsafe { gpu.register(NonNull::new(other.span().as_ptr()).unwrap(), other.span().allocated()) };
    let text = more.unwrap_err().to_string();
    assert!(text.contains("cannot be pinned") && text.contains("ulimit -l"), "{text}");
    registered.unregister().unwrap();
    drop(register(bytes).unwrap());
    drop(register(bytes).unwrap());
}

#[test]
fn missing_features_are_explained() {
    if is_child() {
        let gpu = Gpu::open(0).unwrap();
        let mapped = gpu.allocate(100_000, 1).unwrap().map();
        let direct = gpu.gpudirect();
        return report(format_args!("{} / {}", describe(mapped), describe(direct)));
    }
    for (behaviour, without, hints) in [
        ("no-gpudirect", &[][..], ["Ok", "no GPUDirect RDMA"]),
        ("no-gdrcopy,dma-buf", &[], ["`modprobe gdrdrv`", "dma_buf: true"]),
        ("window=65536", &[], ["131072 bytes have to fit into what is left of its PCI window", ""]),
        ("", &["libgdrapi.so.2", "libgdrapi.so"], ["no GDRCopy on this machine (libgdrapi.so.2): install it", ""]),
        ("", &["gdr_map"], ["libgdrapi lacks gdr_map", "update it"]),
    ] {
        let Some(child) = run_child_without("missing_features_are_explained", behaviour, without, &[]) else { return };
        let text = reported(&child);
        assert!(hints.iter().all(|hint| text.contains(hint)), "{behaviour} {without:?}: {text}");
    }
}

fn describe<T: std::fmt::Debug>(result: Result<T, DeviceError>) -> String {
    result.map_or_else(|error| error.to_string(), |there| format!("Ok({there:?})"))
}

#[test]
fn unordered_remote_writes_are_flushed() {
    if is_child() {
        let gpu = Gpu::open(0).unwrap();
        (0..3).for_each(|_| gpu.barrier().unwrap());
        return report("done");
    }
    for (behaviour, times) in [("report", 0), ("report,unordered", 3)] {
        let Some(child) = run_child("unordered_remote_writes_are_flushed", behaviour) else { return };
        reported(&child);
        let error = String::from_utf8_lossy(&child.stderr);
        assert!(error.contains(&format!("flushed remote writes {times} times")), "{error}");
    }
}

#[test]
fn other_kernels_find_a_map_at_its_device_address() {
    if !is_child() {
        return child_passes("other_kernels_find_a_map_at_its_device_address", "");
    }
    let program = compiled(
        "//! map lengths: array value=1 entries=64
        fn xdp_filter(pkt: u32) -> u32 { lengths_write(load_u8(pkt, 0u), 0u, pkt_len(pkt)); return XDP_PASS; }",
    );
    let device = portcullis_cuda::probe().unwrap().remove(0);
    for &dispatch in device.info().dispatch {
        let mut session = device.load(&program, &LoadOptions::default().with_dispatch(dispatch)).unwrap();
        let packets: Vec<Vec<u8>> = (0..40).map(|index| vec![index; 14 + usize::from(index)]).collect();
        session.run(Batch::from_packets(&packets).unwrap()).unwrap();
        let view = session.map_device_view(0).unwrap().expect("CUDA has addresses");
        assert_eq!(view.device, "cuda:0");
        let words = session.map_words(0).unwrap();
        // SAFETY: the emulated device's memory is this process's, and no kernel runs.
        let seen = unsafe { std::slice::from_raw_parts(view.address as *const u32, words.len()) };
        assert_eq!(seen, words, "{dispatch}");
        assert!((14..54).all(|length| seen.contains(&length)), "{dispatch}");
        assert_eq!(session.map_device_view(1).unwrap(), None, "there is no such map");
    }
    let mut interpreter = reference(&program);
    assert_eq!(interpreter.map_device_view(0).unwrap(), None);
}
