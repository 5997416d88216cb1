//! DPDK ports with packets in a software GPU's memory, and with header split. All tests share the
//! process's EAL, without huge pages.
#![cfg(all(target_os = "linux", feature = "dpdk"))]
#![allow(unsafe_code)]

mod support;

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use portcullis_core::packet::{Action, Batch, ResizeRoom};
use portcullis_io::dpdk::gpudev::{Block, DriverError, GpuDriver, GpuProperties, GpuSpec, SoftwareGpu};
use portcullis_io::dpdk::{HeaderSplit, Mempool, Options, open};
use portcullis_io::live::Loss;
use support::{capture, close_and_check, drive, drive_once, numbered, options, packets, write_mixed_capture};

/// A driver that tracks what it has handed out.
#[derive(Debug)]
struct Watched {
    driver: SoftwareGpu,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    blocks: Vec<Block>,
    views: Vec<(u64, u64, usize)>,
    registered: Vec<(u64, usize)>,
    /// Sizes of all allocations ever made.
    allocated: Vec<usize>,
    barriers: usize,
    /// Set to make the GPU fail.
    has_failed: bool,
}

impl Watched {
    fn new(driver: SoftwareGpu) -> Arc<Watched> {
        Arc::new(Watched { driver, state: Mutex::default() })
    }

    fn gpu(self: &Arc<Self>) -> GpuSpec {
        GpuSpec::Driver(self.clone())
    }

    /// Whether a range of GPU addresses is allocated.
    fn has(&self, address: u64, len: usize) -> bool {
        let state = self.state.lock().unwrap();
        state
            .blocks
            .iter()
            .any(|block| address >= block.address && address + len as u64 <= block.address + block.size as u64)
    }

    /// Whether a range of host memory is registered.
    fn is_shown(&self, address: u64, len: usize) -> bool {
        let state = self.state.lock().unwrap();
        state.registered.iter().any(|(start, size)| address >= *start && address + len as u64 <= start + *size as u64)
    }

    /// Whether a range of host addresses is mapped GPU memory.
    fn is_seen(&self, address: u64, len: usize) -> bool {
        let state = self.state.lock().unwrap();
        state.views.iter().any(|(_, view, size)| address >= *view && address + len as u64 <= view + *size as u64)
    }

    /// Whether GPU memory contains these bytes at the possible start of a buffer.
    fn holds(&self, bytes: &[u8]) -> bool {
        let state = self.state.lock().unwrap();
        state.views.iter().any(|(_, view, size)| {
            // SAFETY: the view exists while it is in the list, and nothing writes to it meanwhile.
            let all = unsafe { std::slice::from_raw_parts(*view as *const u8, *size) };
            (0..*size).step_by(64).any(|at| all[at..].starts_with(bytes))
        })
    }

    /// Whether everything was released.
    fn is_empty(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.blocks.is_empty() && state.views.is_empty() && state.registered.is_empty()
    }
}

impl GpuDriver for Watched {
    fn properties(&self) -> GpuProperties {
        self.driver.properties()
    }

    fn allocate(&self, size: usize, align: usize) -> Result<u64, DriverError> {
        let address = self.driver.allocate(size, align)?;
        assert!(address.is_multiple_of(align as u64));
        let mut state = self.state.lock().unwrap();
        state.blocks.push(Block { address, size, align });
        state.allocated.push(size);
        Ok(address)
    }

    unsafe fn free(&self, block: Block) -> Result<(), DriverError> {
        let mut state = self.state.lock().unwrap();
        let at = state.blocks.iter().position(|it| *it == block).unwrap();
        state.blocks.remove(at);
        assert!(!state.views.iter().any(|(address, ..)| *address == block.address), "freed while mapped");
        // SAFETY: by the caller's promise.
        unsafe { self.driver.free(block) }
    }

    unsafe fn register(&self, start: NonNull<u8>, size: usize) -> Result<u64, DriverError> {
        // SAFETY: by the caller's promise.
        let found = unsafe { self.driver.register(start, size) }?;
        self.state.lock().unwrap().registered.push((start.as_ptr() as u64, size));
        Ok(found)
    }

    unsafe fn unregister(&self, start: NonNull<u8>, size: usize) -> Result<(), DriverError> {
        let mut state = self.state.lock().unwrap();
        let at = state.registered.iter().position(|it| *it == (start.as_ptr() as u64, size)).unwrap();
        state.registered.remove(at);
        // SAFETY: by the caller's promise.
        unsafe { self.driver.unregister(start, size) }
    }

    fn cpu_map(&self, address: u64, size: usize) -> Result<NonNull<u8>, DriverError> {
        let view = self.driver.cpu_map(address, size)?;
        self.state.lock().unwrap().views.push((address, view.as_ptr() as u64, size));
        Ok(view)
    }

    unsafe fn cpu_unmap(&self, address: u64, size: usize, view: NonNull<u8>) -> Result<(), DriverError> {
        let mut state = self.state.lock().unwrap();
        let at = state.views.iter().position(|it| *it == (address, view.as_ptr() as u64, size)).unwrap();
        state.views.remove(at);
        // SAFETY: by the caller's promise.
        unsafe { self.driver.cpu_unmap(address, size, view) }
    }

    fn barrier(&self) -> Result<(), DriverError> {
        let mut state = self.state.lock().unwrap();
        state.barriers += 1;
        if state.has_failed {
            return Err(DriverError::Other("it has fallen off the bus".into()));
        }
        self.driver.barrier()
    }
}

fn memory() -> SoftwareGpu {
    SoftwareGpu::new(256 << 20)
}

/// GPU address, host address and length of each packet of a batch.
fn places(batch: &Batch) -> Vec<(Option<u64>, u64, usize)> {
    let (host, device) = (batch.span().as_ptr() as u64, batch.span().device_view().map(|view| view.address));
    let of = |offset: u32| (device.map(|start| start + u64::from(offset)), host + u64::from(offset));
    batch.descriptors().iter().map(|it| (of(it.offset).0, of(it.offset).1, it.length as usize)).collect()
}

fn transmit(batch: &Batch) -> Vec<u32> {
    vec![Action::Tx as u32; batch.len()]
}

#[test]
fn packets_pass_through_gpu_memory_unchanged() {
    let inputs = tempfile::tempdir().unwrap();
    let mixed = inputs.path().join("mixed.pcap");
    write_mixed_capture(&mixed);
    let want = packets(&mixed);
    for (number, driver) in [memory(), memory().with_separate_memory()].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out.pcap");
        let gpu = Watched::new(driver);
        let port = format!("net_pcap{},rx_pcap={},tx_pcap={}", 20 + number, mixed.display(), out.display());
        let options = options(&[&port]).with_mempool(Mempool::Gpu(gpu.gpu()));
        let mut seen = 0;
        let ended = drive(&options, want.len() as u64, |_, batch| {
            for (device, host, len) in places(batch) {
                // The host address is a mapping of the same bytes, distinct from the GPU address if
                // the memory is separate.
                assert!(gpu.is_seen(host, len));
                assert!(gpu.has(device.unwrap_or(host), len));
                assert_eq!(device.is_some_and(|device| device != host), number == 1);
                seen += 1;
            }
            transmit(batch)
        });
        assert_eq!(seen, want.len());
        assert_eq!((ended.of(Action::Tx), ended.lost(Loss::Overload)), (want.len() as u64, 0));
        assert_eq!(packets(&out), want);
        assert!(gpu.is_empty(), "{gpu:?}");
        // Each filling of the communication list ends with a barrier.
        assert!(gpu.state.lock().unwrap().barriers > 0);
    }
}

#[test]
fn packets_are_resized_and_linearised_in_gpu_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sent = numbered([60, 9018, 1514, 65000, 100]);
    capture(&file("in.pcap"), &sent);
    let gpu = Watched::new(memory().with_separate_memory());
    let port = format!("net_pcap22,rx_pcap={},tx_pcap={}", file("in.pcap").display(), file("out.pcap").display());
    let options = options(&[&port]).with_mempool(Mempool::Gpu(gpu.gpu()));
    let ended = drive(&options, 5, |_, batch| {
        assert!(places(batch).iter().all(|(device, _, len)| gpu.has(device.unwrap(), *len)));
        let shorter = batch.descriptors().iter().map(|it| (it.offset + 20, it.length - 20));
        let shorter: Vec<_> =
            shorter.map(|(offset, length)| portcullis_core::packet::Descriptor { offset, length }).collect();
        batch.resize(shorter).unwrap();
        transmit(batch)
    });
    assert_eq!(ended.received[0].reassembled, 2);
    let want: Vec<Vec<u8>> = sent.iter().map(|packet| packet[20..].to_vec()).collect();
    assert_eq!(packets(&file("out.pcap")), want);
    assert!(gpu.is_empty(), "{gpu:?}");
}

#[test]
fn more_long_packets_than_long_buffers_pass_through_gpu_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sent = numbered((0..1500).map(|number| if number % 3 == 0 { 60 + number } else { 4000 + number }));
    capture(&file("in.pcap"), &sent);
    let gpu = Watched::new(memory().with_separate_memory());
    let port = format!("net_pcap29,rx_pcap={},tx_pcap={}", file("in.pcap").display(), file("out.pcap").display());
    let options = options(&[&port]).with_mempool(Mempool::Gpu(gpu.gpu()));
    let ended = support::drive_pipelined(&options, 1500);
    assert_eq!((ended.received[0].reassembled, ended.received[0].refused, ended.lost(Loss::Overload)), (1000, 0, 0));
    assert_eq!(packets(&file("out.pcap")), sent);
    assert!(gpu.is_empty(), "{gpu:?}");
}

#[test]
fn host_memory_is_registered_with_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let mixed = folder.path().join("mixed.pcap");
    write_mixed_capture(&mixed);
    let want = packets(&mixed);
    let out = folder.path().join("out.pcap");
    let gpu = Watched::new(memory());
    let port = format!("net_pcap23,rx_pcap={},tx_pcap={}", mixed.display(), out.display());
    let options = options(&[&port]).with_mempool(Mempool::Pinned(gpu.gpu()));
    drive(&options, want.len() as u64, |_, batch| {
        assert!(places(batch).iter().all(|(device, host, len)| device.is_none() && gpu.is_shown(*host, *len)));
        transmit(batch)
    });
    assert_eq!(packets(&out), want);
    assert!(gpu.is_empty(), "{gpu:?}");
}

#[test]
fn a_batch_fits_an_item_of_the_communication_list() {
    let gpu = Watched::new(memory());
    let options = options(&["net_null20"]).with_mempool(Mempool::Gpu(gpu.gpu())).with_packets(8192);
    let mut run = open(&options).unwrap_or_else(|error| panic!("{error}"));
    let receiver = &mut run.lanes[0].receiver;
    for _ in 0..16 {
        assert!(receiver.receive(4096).unwrap() <= 1024);
    }
    assert!(receiver.is_full());
    let batch = receiver.take_batch().unwrap();
    assert_eq!(batch.len(), 1024);
    drop(batch);
    close_and_check(run);
    assert!(gpu.is_empty(), "{gpu:?}");
}

#[test]
fn packets_are_dropped_and_counted_without_a_free_item() {
    let gpu = Watched::new(memory());
    let options = options(&["net_null21"]).with_mempool(Mempool::Gpu(gpu.gpu())).with_items(2);
    let mut run = open(&options).unwrap_or_else(|error| panic!("{error}"));
    let lane = &mut run.lanes[0];
    let mut gather = |count: usize| {
        assert_eq!(lane.receiver.receive(count).unwrap(), count);
        lane.receiver.take_batch()
    };
    let (first, second) = (gather(10).unwrap(), gather(20).unwrap());
    assert!(gather(30).is_none() && gather(40).is_none());
    // Dropping a batch frees its item.
    drop(first);
    let third = gather(50).unwrap();
    assert!(gather(60).is_none());
    drop((second, third));
    assert_eq!(lane.receiver.received().packets, 210);
    lane.executor.poll().unwrap();
    assert_eq!(lane.executor.executed().losses.of(Loss::Overload), 130);
    drive_once(lane, |batch| transmit(batch));
    assert_eq!(lane.executor.executed().of(Action::Tx), 64);
    close_and_check(run);
    assert!(gpu.is_empty(), "{gpu:?}");
}

#[test]
fn untouched_packets_need_no_cpu_mapping() {
    // Any access by the CPU would crash.
    let gpu = Watched::new(memory().with_separate_memory().without_mappings());
    let options = options(&["net_null30"]).with_mempool(Mempool::Gpu(gpu.gpu()));
    let mut run = open(&options).unwrap_or_else(|error| panic!("{error}"));
    let lane = &mut run.lanes[0];
    assert_eq!(lane.receiver.receive(300).unwrap(), 300);
    let batch = lane.receiver.take_batch().unwrap();
    let view = batch.span().device_view().unwrap().clone();
    assert!(!batch.span().is_on_host());
    for it in batch.descriptors() {
        assert!(gpu.has(view.address + u64::from(it.offset), it.length as usize));
    }
    drop(batch);
    assert_eq!(lane.receiver.receive(200).unwrap(), 200);
    drive_once(lane, |batch| transmit(batch));
    assert_eq!(lane.executor.executed().of(Action::Tx), 264);
    close_and_check(run);
    assert!(gpu.is_empty(), "{gpu:?}");
}

#[test]
fn a_failing_gpu_ends_the_lane() {
    let gpu = Watched::new(memory().with_separate_memory());
    let options = options(&["net_null31"]).with_mempool(Mempool::Gpu(gpu.gpu()));
    let mut run = open(&options).unwrap_or_else(|error| panic!("{error}"));
    let lane = &mut run.lanes[0];
    gpu.state.lock().unwrap().has_failed = true;
    assert_eq!(lane.receiver.receive(10).unwrap(), 10);
    assert!(lane.receiver.take_batch().is_none());
    let error = lane.receiver.receive(10).unwrap_err().to_string();
    assert!(error.contains("fallen off the bus"), "{error}");
    lane.executor.finish().unwrap();
    assert_eq!(lane.executor.executed().losses.of(Loss::Overload), 10);
    close_and_check(run);
    assert!(gpu.is_empty(), "{gpu:?}");
}

#[test]
fn a_failure_to_open_releases_everything() {
    let said = |driver: SoftwareGpu, mempool: fn(GpuSpec) -> Mempool, port: &str| {
        let gpu = Watched::new(driver);
        let error = match open(&options(&[port]).with_mempool(mempool(gpu.gpu()))) {
            Ok(_) => panic!("{port} opens"),
            Err(error) => error.to_string(),
        };
        assert!(gpu.is_empty(), "{gpu:?}");
        error
    };
    let error = said(SoftwareGpu::new(1 << 20), Mempool::Gpu, "net_null22");
    assert!(error.contains("allocating") && error.contains("no memory for"), "{error}");
    let error = said(memory().with_separate_memory().without_mappings(), Mempool::Gpu, "net_null23,copy=1");
    assert!(error.contains("net_null writes packets with the CPU") && error.contains("--mempool host"), "{error}");
    for max in [0, 1, 5] {
        let error = said(memory().with_registration_limit(max), Mempool::Pinned, "net_null24");
        assert!(error.contains("cannot register more memory"), "{error}");
    }
    let error = said(memory().with_registration_limit(3), Mempool::Gpu, "net_null25");
    assert!(error.contains("communication list"), "{error}");
    // The port was closed and can be opened again.
    let run = open(&options(&["net_null25"])).unwrap_or_else(|error| panic!("{error}"));
    close_and_check(run);
}

#[test]
fn split_packets_are_transmitted_whole() {
    const HEAD: usize = 54;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    // Shorter than a head, of its length, longer, of the maximum length, and beyond.
    let sent = numbered([20, 53, 54, 55, 60, 1514, 2048, 3000, 9018, 64]);
    capture(&file("in.pcap"), &sent);
    for (number, driver) in [None, Some(memory()), Some(memory().with_separate_memory())].into_iter().enumerate() {
        let out = file(&format!("out{number}.pcap"));
        let port = format!("net_pcap{},rx_pcap={},tx_pcap={}", 24 + number, file("in.pcap").display(), out.display());
        let gpu = driver.map(Watched::new);
        let mempool = gpu.as_ref().map_or(Mempool::Host, |gpu| Mempool::Gpu(gpu.gpu()));
        let options = options(&[&port]).with_mempool(mempool).with_split(Some(HEAD as u16)).with_room(ResizeRoom::None);
        let run = open(&options).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(run.info[0].splitting, Some(HeaderSplit::Software));
        let mut at = 0;
        let kept: Vec<&Vec<u8>> = sent.iter().filter(|packet| packet.len() <= 2048).collect();
        let ended = support::drive_run(run, kept.len() as u64, |_, batch| {
            for (index, (device, host, _)) in places(batch).into_iter().enumerate() {
                // Heads are in host memory, registered with the GPU.
                assert!(gpu.as_ref().is_none_or(|gpu| gpu.is_shown(host, HEAD) && !gpu.is_seen(host, 1)));
                assert_eq!(device, None);
                assert_eq!(batch.descriptors()[index].length as usize, kept[at].len());
                let packet = batch.packet_mut(index);
                let head = packet.len().min(HEAD);
                assert_eq!(packet[..head], kept[at][..head]);
                // Tails are in GPU memory, if there is a GPU.
                let rest = &kept[at][head..];
                assert!(gpu.as_ref().is_none_or(|gpu| rest.is_empty() || gpu.holds(rest)), "packet {at}");
                packet[..head].reverse();
                // The tail is elsewhere: writes after the head have no effect.
                packet[head..].fill(0xee);
                at += 1;
            }
            transmit(batch)
        });
        assert_eq!(ended.received[0].refused, 2);
        let want = kept.iter().map(|packet| {
            let (head, rest) = packet.split_at(packet.len().min(HEAD));
            head.iter().rev().chain(rest).copied().collect::<Vec<u8>>()
        });
        let want: Vec<Vec<u8>> = want.collect();
        assert_eq!(packets(&out), want);
        if let Some(gpu) = gpu {
            assert!(gpu.is_empty(), "{gpu:?}");
            // GPU memory has room for the tails of all packets.
            assert!(gpu.state.lock().unwrap().allocated.iter().any(|size| *size >= 4096 * 2048));
        }
    }
}

#[test]
fn header_split_is_refused_if_packets_must_be_contiguous() {
    let said = |options: Options| match open(&options) {
        Ok(_) => panic!("{options:?} opens"),
        Err(error) => error.to_string(),
    };
    let error = said(options(&["net_null26"]).with_split(Some(64)).with_room(ResizeRoom::Both));
    assert!(error.contains("header split at 64 bytes") && error.contains("contiguous"), "{error}");
}

#[test]
fn ports_share_gpu_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sent = numbered((0..500).map(|number| 60 + number));
    capture(&file("in.pcap"), &sent);
    let gpu = Watched::new(memory().with_separate_memory());
    // A ring returns what is sent into it: the same packets, in the same memory.
    let first = format!("net_pcap27,rx_pcap={}", file("in.pcap").display());
    let last = format!("net_pcap28,tx_pcap={}", file("out.pcap").display());
    let ports = options(&[&first, "net_ring20"]);
    let redirect = vec![(1, "net_ring20".parse().unwrap()), (2, last.parse().unwrap())];
    let options = ports.with_redirect(redirect).with_mempool(Mempool::Gpu(gpu.gpu()));
    let ended = drive(&options, 1000, |lane, batch| {
        assert!(places(batch).iter().all(|(device, _, len)| gpu.has(device.unwrap(), *len)));
        vec![support::redirect(lane as u32 + 1); batch.len()]
    });
    assert_eq!(ended.received[0].reassembled + ended.received[1].reassembled, 0);
    assert_eq!(packets(&file("out.pcap")), sent);
    assert!(gpu.is_empty(), "{gpu:?}");
}
