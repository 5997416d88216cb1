//! GPU memory, lists and flags with the software driver. All tests share the process's EAL.

use std::ptr::NonNull;
use std::sync::Arc;

use super::driver::{DriverError, GpuDriver, GpuProperties};
use super::ledger::Block;
use super::list::CommList;
use super::*;
use crate::dpdk::eal::{Eal, EalOptions};
use crate::dpdk::error::DpdkError;
use crate::dpdk::memory::{BufferLocation, Mbuf, Mbufs, Memory};
use portcullis_dpdk_sys as sys;

const PAGE: usize = 64 << 10;

fn eal() -> &'static Eal {
    Eal::start(&EalOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn open(driver: impl GpuDriver + 'static) -> Arc<Gpu> {
    Gpu::open(eal(), &GpuSpec::Driver(Arc::new(driver))).unwrap_or_else(|error| panic!("{error}"))
}

fn software() -> SoftwareGpu {
    SoftwareGpu::new(64 << 20)
}

fn nothing() -> Option<GpuMemoryUsage> {
    Some(GpuMemoryUsage::default())
}

#[test]
fn an_in_process_driver_is_a_dpdk_gpu_until_dropped() {
    let (first, second) = (open(software()), open(software()));
    let info = first.info().clone();
    assert!(info.name.starts_with("portcullis_gpu_") && info.name != second.info().name, "{info:?}");
    let known = |number: i16| Gpu::all(eal()).into_iter().find(|it| it.number == number);
    let seen = known(info.number).unwrap();
    // DPDK reports the driver's properties.
    let GpuProperties { memory, page, node, .. } = seen.properties;
    assert_eq!((&seen.name, memory, page, node), (&info.name, 64 << 20, PAGE, None));
    drop(first);
    assert!(known(info.number).is_none_or(|it| it.name != info.name));
    assert!(known(second.info().number).is_some_and(|it| it.name == second.info().name));
}

#[test]
fn memory_is_freed_on_drop_and_limited_by_the_gpu() {
    let gpu = open(SoftwareGpu::new(4 * PAGE));
    let memory = GpuMemory::new(&gpu, 2 * PAGE + 1).unwrap();
    assert_eq!((memory.len(), memory.address() % PAGE as u64), (3 * PAGE, 0));
    assert_eq!(gpu.memory_usage(), Some(GpuMemoryUsage { blocks: 1, bytes: 3 * PAGE, ..GpuMemoryUsage::default() }));
    let error = GpuMemory::new(&gpu, 2 * PAGE).unwrap_err().to_string();
    assert!(error.starts_with("software: ") && error.contains("no memory for 131072 bytes"), "{error}");
    drop(memory);
    assert_eq!(gpu.memory_usage(), nothing());
    GpuMemory::new(&gpu, 4 * PAGE).unwrap();
}

#[test]
fn the_cpu_accesses_memory_through_a_mapping() {
    for driver in [software(), software().with_separate_memory()] {
        let gpu = open(driver);
        let memory = Arc::new(GpuMemory::new(&gpu, PAGE).unwrap());
        let mapping = CpuMapping::new(&memory).unwrap();
        let is_separate = gpu.info().properties.device.is_some();
        assert_eq!(mapping.view().as_ptr() as u64 != memory.address(), is_separate);
        // SAFETY: the mapping has this size, and nothing else uses it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(mapping.view().as_ptr(), memory.len()) };
        bytes.fill(7);
        assert!(CpuMapping::new(&memory).unwrap_err().to_string().contains("mapped already"));
        assert_eq!(gpu.memory_usage().unwrap().mapped, 1);
        drop(mapping);
        // Another mapping of the same bytes.
        let mapping = CpuMapping::new(&memory).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { *mapping.view().as_ptr().add(PAGE - 1) }, 7);
        drop(mapping);
        drop(memory);
        assert_eq!(gpu.memory_usage(), nothing());
    }
    let gpu = open(software().without_mappings());
    let memory = Arc::new(GpuMemory::new(&gpu, PAGE).unwrap());
    let error = CpuMapping::new(&memory).unwrap_err().to_string();
    assert!(error.contains("the CPU cannot access"), "{error}");
}

#[test]
fn host_memory_is_registered_until_dropped() {
    let gpu = open(software().with_registration_limit(1));
    let show = |bytes: Box<[u8; 4096]>| {
        let start = NonNull::from(&*bytes).cast();
        // SAFETY: the box has this size, and is the owner.
        unsafe { RegisteredMemory::new(&gpu, start, 4096, bytes) }
    };
    let shown = show(Box::new([0; 4096])).unwrap();
    assert_eq!(gpu.memory_usage().unwrap().registered, 1);
    let error = show(Box::new([0; 4096])).unwrap_err().to_string();
    assert!(error.contains("cannot register more memory"), "{error}");
    drop(shown);
    assert_eq!(gpu.memory_usage(), nothing());
    show(Box::new([0; 4096])).unwrap();
}

#[test]
fn a_flag_is_visible_at_the_gpu_address() {
    let gpu = open(software());
    let flag = CommFlag::new(&gpu).unwrap();
    assert_eq!((flag.get(), gpu.memory_usage().unwrap().registered), (0, 1));
    flag.set(0xdead_beef);
    // SAFETY: the GPU's memory is host memory.
    assert_eq!((flag.get(), unsafe { *(flag.address() as *const u32) }), (0xdead_beef, 0xdead_beef));
    drop(flag);
    assert_eq!(gpu.memory_usage(), nothing());
    let refusing = open(software().with_registration_limit(0));
    assert!(CommFlag::new(&refusing).unwrap_err().to_string().contains("cannot register more memory"));
    assert_eq!(refusing.memory_usage(), nothing());
}

#[test]
fn a_list_that_cannot_be_created_leaks_nothing() {
    // Registered are the list, each item's packet array, and the status words unless they are in
    // GPU memory.
    for max in 0..5 {
        let gpu = open(software().with_registration_limit(max));
        let error = CommList::new(&gpu, 8, 0, false).unwrap_err().to_string();
        assert!(error.contains("a communication list of 8 items"), "{error}");
        assert_eq!(gpu.memory_usage(), nothing(), "{max}");
    }
    let gpu = open(software());
    assert!(matches!(CommList::new(&gpu, 0, 0, false), Err(DpdkError::Gpu { .. })));
    assert_eq!(gpu.memory_usage(), nothing());
}

#[test]
fn status_words_are_in_gpu_memory_if_the_cpu_can_access_it() {
    for (driver, blocks, mapped, registered) in
        [(software(), 1, 1, 9), (software().with_separate_memory(), 1, 1, 9), (software().without_mappings(), 0, 0, 10)]
    {
        let gpu = open(driver);
        let list = CommList::new(&gpu, 8, 0, false).unwrap();
        let memory_usage = gpu.memory_usage().unwrap();
        assert_eq!((memory_usage.blocks, memory_usage.mapped, memory_usage.registered), (blocks, mapped, registered));
        assert_eq!(list.free(), 8);
        drop(list);
        assert_eq!(gpu.memory_usage(), nothing());
    }
}

/// A driver that fails in every possible way.
#[derive(Debug)]
struct Broken;

impl GpuDriver for Broken {
    fn properties(&self) -> GpuProperties {
        GpuProperties { page: 4096, ..GpuProperties::default() }
    }

    fn allocate(&self, _size: usize, _align: usize) -> Result<u64, DriverError> {
        panic!("no")
    }

    unsafe fn free(&self, _block: Block) -> Result<(), DriverError> {
        unreachable!("nothing was allocated")
    }

    unsafe fn register(&self, _start: NonNull<u8>, _size: usize) -> Result<u64, DriverError> {
        Err(DriverError::Other("the cable is loose".into()))
    }

    unsafe fn unregister(&self, _start: NonNull<u8>, _size: usize) -> Result<(), DriverError> {
        unreachable!("nothing was registered")
    }

    fn cpu_map(&self, _address: u64, _size: usize) -> Result<NonNull<u8>, DriverError> {
        unreachable!("nothing was allocated")
    }

    unsafe fn cpu_unmap(&self, _address: u64, _size: usize, _view: NonNull<u8>) -> Result<(), DriverError> {
        unreachable!("nothing was mapped")
    }

    fn check_nic_access(&self) -> Result<(), DriverError> {
        Err(DriverError::Unsupported("no module".into()))
    }

    fn barrier(&self) -> Result<(), DriverError> {
        Err(DriverError::Other("it is asleep".into()))
    }
}

#[test]
fn a_driver_that_fails_or_panics_is_an_error() {
    let gpu = open(Broken);
    let error = GpuMemory::new(&gpu, 1).unwrap_err().to_string();
    assert!(error.contains("its driver has panicked"), "{error}");
    assert!(gpu.barrier().unwrap_err().to_string().contains("it is asleep"));
    assert!(CommFlag::new(&gpu).unwrap_err().to_string().contains("the cable is loose"));
    let error = gpu.check_cards().unwrap_err().to_string();
    assert!(error.contains("no module") && error.contains("--mempool host"), "{error}");
    // DPDK's own functions with an address that the driver never returned. SAFETY: an unknown
    // address is refused without being accessed.
    let free = unsafe { sys::rte_gpu_mem_free(gpu.info().number, 0x1000 as *mut _) };
    assert!(free < 0);
}

#[test]
fn an_unknown_gpu_number_is_an_error() {
    let error = Gpu::open(eal(), &GpuSpec::Detected { number: 31, properties: |_| None }).unwrap_err().to_string();
    assert!(error.contains("31") && error.contains("cuda:0"), "{error}");
}

/// Allocates `count` packets of `bytes` bytes each.
fn take(memory: &Memory, count: usize, bytes: u32) -> Mbufs {
    let mut mbufs = Mbufs::default();
    // SAFETY: there is room for `count` mbufs; all are allocated, or the test fails.
    unsafe {
        mbufs.extend(count, |room| {
            assert_eq!(sys::pc_take(memory.pool(), room, count), 0);
            for index in 0..count {
                assert!(!sys::pc_begin(*room.add(index), bytes).is_null());
            }
            count
        });
    }
    mbufs
}

/// Returns an item as the GPU sees it: the status, and addresses and lengths of packets.
fn seen(list: &CommList, index: u32) -> (u32, Vec<(u64, usize)>) {
    // SAFETY: the item exists as DPDK describes it, and this GPU's memory is host memory.
    unsafe {
        let item = &*list.item(index);
        let packets = std::slice::from_raw_parts(item.pkt_list, item.num_pkts as usize);
        (*item.status_d, packets.iter().map(|it| (it.addr as u64, it.size)).collect())
    }
}

const FREE: u32 = sys::rte_gpu_comm_list_status::RTE_GPU_COMM_LIST_FREE;
const READY: u32 = sys::rte_gpu_comm_list_status::RTE_GPU_COMM_LIST_READY;
const DONE: u32 = sys::rte_gpu_comm_list_status::RTE_GPU_COMM_LIST_DONE;
const ERROR: u32 = sys::rte_gpu_comm_list_status::RTE_GPU_COMM_LIST_ERROR;

#[test]
fn an_item_cycles_through_free_ready_and_done() {
    let gpu = open(software());
    let memory = Memory::new(eal(), 2048, &BufferLocation::Gpu(gpu.clone()), &processor(), None).unwrap();
    for gpu_offset in [0, 1 << 20] {
        let list = CommList::new(&gpu, 2, gpu_offset, false).unwrap();
        assert_eq!((seen(&list, 0), seen(&list, 1)), ((FREE, vec![]), (FREE, vec![])));
        let (mut first, mut second, mut third) = (take(&memory, 3, 60), take(&memory, 1024, 70), take(&memory, 1, 80));
        let ready = list.populate(&mut first).unwrap().unwrap();
        let (state, packets) = seen(&list, 0);
        let start = memory.span.as_ptr() as u64;
        assert_eq!((state, packets.len(), list.free()), (READY, 3, 1));
        assert!(packets.iter().all(|(address, size)| {
            let at = address.wrapping_sub(gpu_offset as u64).wrapping_sub(start);
            at < memory.span.len() as u64 && *size == 60
        }));
        let other = list.populate(&mut second).unwrap().unwrap();
        assert_eq!((seen(&list, 1).1.len(), list.free()), (1024, 0));
        // No item is FREE, and the packet is still owned here.
        assert!(list.populate(&mut third).unwrap().is_none());
        assert_eq!(third.len(), 1);
        let done = ready.finish(true);
        assert_eq!((seen(&list, 0).0, list.free()), (DONE, 0));
        done.cleanup();
        assert_eq!((seen(&list, 0), list.free()), ((FREE, vec![]), 1));
        let error = other.finish(false);
        assert_eq!(seen(&list, 1).0, ERROR);
        drop(error);
        // Cancelled without being finished.
        drop(list.populate(&mut third).unwrap());
        assert_eq!((seen(&list, 0), seen(&list, 1), list.free()), ((FREE, vec![]), (FREE, vec![]), 2));
    }
    let (all, home) = memory.mbuf_counts();
    assert_eq!(all, home, "an mbuf is missing");
    drop(memory);
    assert_eq!(gpu.memory_usage(), nothing());
}

#[test]
fn a_refused_batch_leaves_the_item_free() {
    let gpu = open(software());
    let memory = Memory::new(eal(), 2048, &BufferLocation::Gpu(gpu.clone()), &processor(), None).unwrap();
    for gpu_offset in [0, 4096] {
        let list = CommList::new(&gpu, 1, gpu_offset, false).unwrap();
        let error = list.populate(&mut take(&memory, 1025, 60)).unwrap_err().to_string();
        assert!(error.contains("1025 packets"), "{error}");
        // A packet with two segments.
        let mut two = Mbufs::default();
        two.push(in_two_pieces(&memory));
        assert!(list.populate(&mut two).is_err());
        assert_eq!((seen(&list, 0), list.free()), ((FREE, vec![]), 1));
        drop(list);
        // A list for heads accepts it.
        let list = CommList::new(&gpu, 1, gpu_offset, true).unwrap();
        let ready = list.populate(&mut two).unwrap().unwrap();
        assert_eq!(seen(&list, 0).1.iter().map(|(_, size)| *size).collect::<Vec<_>>(), [60]);
        ready.finish(true).cleanup();
    }
    let (all, home) = memory.mbuf_counts();
    assert_eq!(all, home, "an mbuf is missing");
}

/// Builds a packet with two segments of 60 bytes.
fn in_two_pieces(memory: &Memory) -> Mbuf {
    let mut first = take(memory, 1, 60);
    let second = take(memory, 1, 60).drain().next().unwrap();
    // SAFETY: both mbufs are owned, and the second passes to the first.
    unsafe { sys::pc_add(*first.as_mut_ptr(), second.into_raw()) };
    first.drain().next().unwrap()
}

fn processor() -> PacketWriters {
    PacketWriters::Cpu { port: "net_null0".into(), driver: "net_null".into() }
}

#[test]
fn a_list_has_the_gpu_addresses_of_packets() {
    let gpu = open(software().with_separate_memory());
    let memory = Memory::new(eal(), 1024, &BufferLocation::Gpu(gpu.clone()), &processor(), None).unwrap();
    let (view, host) = (memory.span.device_view().unwrap().clone(), memory.span.as_ptr() as u64);
    assert_ne!(view.address, host);
    let list = CommList::new(&gpu, 1, memory.gpu_offset, false).unwrap();
    let mut mbufs = take(&memory, 8, 60);
    let ready = list.populate(&mut mbufs).unwrap().unwrap();
    // SAFETY: the item exists, and its packet array is in host memory.
    let addresses = unsafe { std::slice::from_raw_parts((*list.item(0)).pkt_list, 8) }.iter().map(|it| it.addr as u64);
    for (address, mut mbuf) in addresses.zip(mbufs.drain()) {
        // SAFETY: the mbuf is owned.
        let at = unsafe { sys::pc_begin(mbuf.as_ptr(), 60) } as u64;
        assert_eq!(address - view.address, at - host);
    }
    ready.finish(true).cleanup();
}

#[test]
fn memory_for_cards_is_only_accessed_by_the_gpu() {
    let gpu = open(software().with_separate_memory().without_mappings());
    // The memory is not accessible: any access by the CPU would crash.
    let memory = Memory::new(eal(), 2048, &BufferLocation::Gpu(gpu.clone()), &PacketWriters::CardDma, None).unwrap();
    let view = memory.span.device_view().unwrap().clone();
    assert!(!memory.span.is_on_host() && memory.gpu_offset == 0);
    let shim = memory.to_shim(portcullis_core::packet::ResizeRoom::None);
    assert_eq!((shim.base as u64, shim.length), (view.address, memory.span.len()));
    let mbufs = take(&memory, 2048, 60);
    assert_eq!(memory.mbuf_counts(), (2048, 0));
    drop(mbufs);
    assert_eq!(memory.mbuf_counts(), (2048, 2048));
    // With header split, heads are in host memory all the same.
    let split = Memory::new(eal(), 1024, &BufferLocation::Gpu(gpu.clone()), &PacketWriters::CardDma, Some(64)).unwrap();
    assert!(split.span.is_on_host() && split.buffers().is_some_and(|buffers| !buffers.is_on_host()));
    assert_eq!(split.mbuf_counts(), (2048, 2048));
    drop((memory, split));
    assert_eq!(gpu.memory_usage(), nothing());
}
