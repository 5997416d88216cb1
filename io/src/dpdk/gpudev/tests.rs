//! GPUs' memory, lists and flags, with the driver that needs no GPU. All tests share the process's one DPDK.

use std::ptr::NonNull;
use std::sync::Arc;

use super::driver::{Block, DriverError, GpuDriver, GpuProperties};
use super::list::CommList;
use super::*;
use crate::dpdk::eal::{Eal, EalOptions};
use crate::dpdk::error::DpdkError;
use crate::dpdk::memory::{Mbuf, Mbufs, Memory, Place};
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
fn a_driver_of_this_process_is_one_of_dpdks_gpus_until_nobody_has_it() {
    let (first, second) = (open(software()), open(software()));
    let info = first.info().clone();
    assert!(info.name.starts_with("portcullis_gpu_") && info.name != second.info().name, "{info:?}");
    let known = |number: i16| Gpu::all(eal()).into_iter().find(|it| it.number == number);
    let seen = known(info.number).unwrap();
    // What DPDK tells is what the driver does.
    let GpuProperties { memory, page, node, .. } = seen.properties;
    assert_eq!((&seen.name, memory, page, node), (&info.name, 64 << 20, PAGE, None));
    drop(first);
    assert!(known(info.number).is_none_or(|it| it.name != info.name));
    assert!(known(second.info().number).is_some_and(|it| it.name == second.info().name));
}

#[test]
fn memory_is_given_back_and_no_more_than_there_is() {
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
fn the_host_reaches_memory_by_a_mapping() {
    for driver in [software(), software().with_separate_memory()] {
        let gpu = open(driver);
        let memory = Arc::new(GpuMemory::new(&gpu, PAGE).unwrap());
        let mapping = CpuMapping::new(&memory).unwrap();
        let is_apart = gpu.info().properties.device.is_some();
        assert_eq!(mapping.view().as_ptr() as u64 != memory.address(), is_apart);
        // SAFETY: there are so many bytes, and nobody else looks.
        let bytes = unsafe { std::slice::from_raw_parts_mut(mapping.view().as_ptr(), memory.len()) };
        bytes.fill(7);
        assert!(CpuMapping::new(&memory).unwrap_err().to_string().contains("mapped already"));
        assert_eq!(gpu.memory_usage().unwrap().mapped, 1);
        drop(mapping);
        // Another view of the same bytes.
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
    assert!(error.contains("cannot be made to reach"), "{error}");
}

#[test]
fn the_hosts_memory_is_shown_until_it_is_dropped() {
    let gpu = open(software().with_registration_limit(1));
    let show = |bytes: Box<[u8; 4096]>| {
        let start = NonNull::from(&*bytes).cast();
        // SAFETY: the box has so many bytes, and is the owner.
        unsafe { RegisteredMemory::new(&gpu, start, 4096, bytes) }
    };
    let shown = show(Box::new([0; 4096])).unwrap();
    assert_eq!(gpu.memory_usage().unwrap().registered, 1);
    let error = show(Box::new([0; 4096])).unwrap_err().to_string();
    assert!(error.contains("is shown no more memory"), "{error}");
    drop(shown);
    assert_eq!(gpu.memory_usage(), nothing());
    show(Box::new([0; 4096])).unwrap();
}

#[test]
fn a_flag_is_seen_where_the_gpu_has_it() {
    let gpu = open(software());
    let flag = CommFlag::new(&gpu).unwrap();
    assert_eq!((flag.get(), gpu.memory_usage().unwrap().registered), (0, 1));
    flag.set(0xdead_beef);
    // SAFETY: the GPU's memory is the host's.
    assert_eq!((flag.get(), unsafe { *(flag.address() as *const u32) }), (0xdead_beef, 0xdead_beef));
    drop(flag);
    assert_eq!(gpu.memory_usage(), nothing());
    let refusing = open(software().with_registration_limit(0));
    assert!(CommFlag::new(&refusing).unwrap_err().to_string().contains("is shown no more memory"));
    assert_eq!(refusing.memory_usage(), nothing());
}

#[test]
fn a_list_that_cannot_be_made_leaves_nothing_behind() {
    // The list, and for each item its packets; and states, where they are not in memory of the GPU.
    for most in 0..5 {
        let gpu = open(software().with_registration_limit(most));
        let error = CommList::new(&gpu, 8, 0, false).unwrap_err().to_string();
        assert!(error.contains("a communication list of 8 items"), "{error}");
        assert_eq!(gpu.memory_usage(), nothing(), "{most}");
    }
    let gpu = open(software());
    assert!(matches!(CommList::new(&gpu, 0, 0, false), Err(DpdkError::Gpu { .. })));
    assert_eq!(gpu.memory_usage(), nothing());
}

#[test]
fn states_are_in_memory_of_the_gpu_where_the_host_reaches_it() {
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

/// A driver that is wrong in every way there is.
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
    // DPDK's own functions with what the driver has never given.
    // SAFETY: what is not there is refused, and not touched.
    let free = unsafe { sys::rte_gpu_mem_free(gpu.info().number, 0x1000 as *mut _) };
    assert!(free < 0);
}

#[test]
fn a_gpu_that_dpdk_has_not_found_is_an_error() {
    let error = Gpu::open(eal(), &GpuSpec::Found { number: 31, properties: |_| None }).unwrap_err().to_string();
    assert!(error.contains("31") && error.contains("cuda:0"), "{error}");
}

/// So many packets, each of `bytes` bytes.
fn take(memory: &Memory, count: usize, bytes: u32) -> Mbufs {
    let mut mbufs = Mbufs::default();
    // SAFETY: there is room for so many; all are taken, or the test fails.
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

/// What the GPU sees of an item: its state, and where packets are and how long.
fn seen(list: &CommList, index: u32) -> (u32, Vec<(u64, usize)>) {
    // SAFETY: the item is there, as the library describes it, and memory of this GPU is the host's.
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
fn an_item_goes_from_free_to_ready_to_done_to_free() {
    let gpu = open(software());
    let memory = Memory::new(eal(), 2048, &Place::Gpu(gpu.clone()), &processor(), None).unwrap();
    for shift in [0, 1 << 20] {
        let list = CommList::new(&gpu, 2, shift, false).unwrap();
        assert_eq!((seen(&list, 0), seen(&list, 1)), ((FREE, vec![]), (FREE, vec![])));
        let (mut first, mut second, mut third) = (take(&memory, 3, 60), take(&memory, 1024, 70), take(&memory, 1, 80));
        let ready = list.populate(&mut first).unwrap().unwrap();
        let (state, packets) = seen(&list, 0);
        let start = memory.span.as_ptr() as u64;
        assert_eq!((state, packets.len(), list.free()), (READY, 3, 1));
        assert!(packets.iter().all(|(address, size)| {
            let at = address.wrapping_sub(shift as u64).wrapping_sub(start);
            at < memory.span.len() as u64 && *size == 60
        }));
        let other = list.populate(&mut second).unwrap().unwrap();
        assert_eq!((seen(&list, 1).1.len(), list.free()), (1024, 0));
        // None is FREE, and the packet is still ours.
        assert!(list.populate(&mut third).unwrap().is_none());
        assert_eq!(third.len(), 1);
        let done = ready.finish(true);
        assert_eq!((seen(&list, 0).0, list.free()), (DONE, 0));
        done.cleanup();
        assert_eq!((seen(&list, 0), list.free()), ((FREE, vec![]), 1));
        let error = other.finish(false);
        assert_eq!(seen(&list, 1).0, ERROR);
        drop(error);
        // One that nobody has waited for.
        drop(list.populate(&mut third).unwrap());
        assert_eq!((seen(&list, 0), seen(&list, 1), list.free()), ((FREE, vec![]), (FREE, vec![]), 2));
    }
    let (all, home) = memory.count();
    assert_eq!(all, home, "a packet is missing");
    drop(memory);
    assert_eq!(gpu.memory_usage(), nothing());
}

#[test]
fn what_an_item_does_not_take_leaves_it_free() {
    let gpu = open(software());
    let memory = Memory::new(eal(), 2048, &Place::Gpu(gpu.clone()), &processor(), None).unwrap();
    for shift in [0, 4096] {
        let list = CommList::new(&gpu, 1, shift, false).unwrap();
        let error = list.populate(&mut take(&memory, 1025, 60)).unwrap_err().to_string();
        assert!(error.contains("1025 packets"), "{error}");
        // In two pieces.
        let mut two = Mbufs::default();
        two.push(in_two_pieces(&memory));
        assert!(list.populate(&mut two).is_err());
        assert_eq!((seen(&list, 0), list.free()), ((FREE, vec![]), 1));
        drop(list);
        // Where their heads are meant it takes them.
        let list = CommList::new(&gpu, 1, shift, true).unwrap();
        let ready = list.populate(&mut two).unwrap().unwrap();
        assert_eq!(seen(&list, 0).1.iter().map(|(_, size)| *size).collect::<Vec<_>>(), [60]);
        ready.finish(true).cleanup();
    }
    let (all, home) = memory.count();
    assert_eq!(all, home, "a packet is missing");
}

/// A packet of 60 bytes with 60 more in a second buffer.
fn in_two_pieces(memory: &Memory) -> Mbuf {
    let mut first = take(memory, 1, 60);
    let second = take(memory, 1, 60).drain().next().unwrap();
    // SAFETY: both are ours, and the second one is the first one's from then on.
    unsafe { sys::pc_add(*first.as_mut_ptr(), second.into_raw()) };
    first.drain().next().unwrap()
}

fn processor() -> Writers {
    Writers::Processor { port: "net_null0".into(), driver: "net_null".into() }
}

#[test]
fn a_list_says_where_the_gpu_has_packets() {
    let gpu = open(software().with_separate_memory());
    let memory = Memory::new(eal(), 1024, &Place::Gpu(gpu.clone()), &processor(), None).unwrap();
    let (view, host) = (memory.span.device_view().unwrap().clone(), memory.span.as_ptr() as u64);
    assert_ne!(view.address, host);
    let list = CommList::new(&gpu, 1, memory.shift, false).unwrap();
    let mut mbufs = take(&memory, 8, 60);
    let ready = list.populate(&mut mbufs).unwrap().unwrap();
    // SAFETY: the item is there, and the library has its packets in the host's memory.
    let addresses = unsafe { std::slice::from_raw_parts((*list.item(0)).pkt_list, 8) }.iter().map(|it| it.addr as u64);
    for (address, mut mbuf) in addresses.zip(mbufs.drain()) {
        // SAFETY: the packet is ours.
        let at = unsafe { sys::pc_begin(mbuf.as_ptr(), 60) } as u64;
        assert_eq!(address - view.address, at - host);
    }
    ready.finish(true).cleanup();
}

#[test]
fn memory_for_cards_is_where_the_gpu_has_it_and_nobody_else() {
    let gpu = open(software().with_separate_memory().without_mappings());
    // Nothing can be read or written there: whoever did would end the process.
    let memory = Memory::new(eal(), 2048, &Place::Gpu(gpu.clone()), &Writers::Cards, None).unwrap();
    let view = memory.span.device_view().unwrap().clone();
    assert!(!memory.span.is_on_host() && memory.shift == 0);
    let shim = memory.shim(portcullis_core::packet::ResizeRoom::None);
    assert_eq!((shim.base as u64, shim.length), (view.address, memory.span.len()));
    let mbufs = take(&memory, 2048, 60);
    assert_eq!(memory.count(), (2048, 0));
    drop(mbufs);
    assert_eq!(memory.count(), (2048, 2048));
    // With header split heads are in the host's memory all the same.
    let split = Memory::new(eal(), 1024, &Place::Gpu(gpu.clone()), &Writers::Cards, Some(64)).unwrap();
    assert!(split.span.is_on_host() && split.buffers().is_some_and(|buffers| !buffers.is_on_host()));
    assert_eq!(split.count(), (2048, 2048));
    drop((memory, split));
    assert_eq!(gpu.memory_usage(), nothing());
}
