//! Packet memory: mempools, and exclusive ownership of mbufs.

use std::any::Any;
use std::ffi::CString;
use std::io;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use portcullis_core::packet::{
    Descriptor, DeviceView, Metadata, MetadataAccumulator, READABLE_PAST_END, RESIZE_ROOM, ResizeRoom, Span,
};
use portcullis_dpdk_sys as sys;

use super::eal::Eal;
use super::error::{DpdkError, last, negative};
use super::gpudev::{Buffers, Gpu, PacketWriters, ReadyItem, RegisteredMemory};

/// Headroom of a buffer in bytes, if the driver leaves it free (`RTE_PKTMBUF_HEADROOM`).
pub(super) const HEADROOM: usize = sys::RTE_PKTMBUF_HEADROOM as usize;

/// Maximum length in bytes of a packet in a single buffer.
pub const DATA: usize = 2048;

/// Size of a buffer in bytes. With the mbuf before it and DPDK's padding, the stride is not a power
/// of two, which spreads packets over the cache's sets.
const BUFFER: usize = HEADROOM + DATA + RESIZE_ROOM as usize;

/// Stride of buffers whose mbufs lie elsewhere; not a power of two either.
const STRIDE: usize = BUFFER.next_multiple_of(64) + 64;

/// Size in bytes of a long buffer, for linearised packets of the maximum length that an mbuf can
/// describe.
const LONG_BUFFER: usize = 65536 - 64;

/// Minimum and maximum number of long buffers.
const LONG: RangeInclusive<usize> = 64..=512;

/// Size of the mempool's per-lcore cache: the maximum (`RTE_MEMPOOL_CACHE_MAX_SIZE`). Bulk
/// operations beyond it go through a ring shared by all threads.
const CACHE: u32 = 512;

/// `SOCKET_ID_ANY` (`rte_memory.h`).
const ANY_NODE: i32 = -1;

/// The buffers of packets in contiguous memory, and the mempools they belong to.
#[derive(Debug)]
pub(super) struct Memory {
    pub span: Arc<Span>,
    pool: Pool,
    /// Buffers for linearised packets; `None` if the CPU cannot access packets, or with header
    /// split.
    long: Option<Pool>,
    /// Pool for the part of a packet after its head; `None` without header split.
    rest: Option<TailPool>,
    /// Offset in bytes from the address of `pool`'s packets for port drivers to their address for
    /// the GPU.
    pub gpu_offset: isize,
    buffers: Option<Arc<Buffers>>,
    recycled: Mutex<Vec<BatchBuffers>>,
}

/// Result of linearising a packet.
#[derive(Debug)]
pub(super) enum Linearized {
    /// The packet, now contiguous.
    Whole(Mbuf, Descriptor),
    /// All long buffers are in use; the packet is returned for a later attempt.
    Retry(Mbuf),
    /// The packet was dropped: there are no long buffers, it is too long, or its segments are
    /// shorter than it claims.
    Dropped,
}

/// Location of packet buffers.
#[derive(Debug, Clone)]
pub(super) enum BufferLocation {
    /// Host memory.
    Host,
    /// Host memory, registered with this GPU.
    Pinned(Arc<Gpu>),
    /// This GPU's memory.
    Gpu(Arc<Gpu>),
}

impl BufferLocation {
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match self {
            BufferLocation::Host => None,
            BufferLocation::Pinned(gpu) | BufferLocation::Gpu(gpu) => Some(gpu),
        }
    }
}

/// The tails of packets, with header split.
#[derive(Debug)]
struct TailPool {
    pool: Pool,
    /// Length of the head in bytes.
    head: u16,
}

/// Packet buffers in one kind of memory.
struct BufferRegion {
    span: Arc<Span>,
    pool: Pool,
    long: Option<Pool>,
    gpu_offset: isize,
    /// The GPU memory that they are in, if any.
    buffers: Option<Arc<Buffers>>,
}

/// A mempool of mbufs.
///
/// DPDK has two kinds. If mbuf and buffer are adjacent, allocating and freeing touches the fewest
/// cache lines: [`Pool::embedded`], in host memory. Buffers in other memory are external
/// ([`Pool::external`]), with mbufs elsewhere that need more fields set and checked.
#[derive(Debug)]
struct Pool {
    pool: NonNull<sys::rte_mempool>,
    size: usize,
    /// Memory of the buffers.
    span: Arc<Span>,
}

// SAFETY: mempools are thread-safe.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// A mempool without memory yet, for mbufs adjacent to their buffers.
struct UnpopulatedPool(NonNull<sys::rte_mempool>);

impl Drop for UnpopulatedPool {
    fn drop(&mut self) {
        // SAFETY: nothing has been allocated from it.
        unsafe { sys::rte_mempool_free(self.0.as_ptr()) }
    }
}

impl UnpopulatedPool {
    /// Creates a pool for `mbuf_counts` mbufs with buffers of `buffer` bytes.
    fn new(eal: &Eal, buffer: usize, count: usize) -> Result<UnpopulatedPool, DpdkError> {
        let (name, cache, node) = (Pool::name(), Pool::cache(count), Pool::node());
        // SAFETY: the name is zero-terminated.
        let pool = unsafe { sys::pc_pool(name.as_ptr(), count as u32, cache, buffer as u16, node) };
        NonNull::new(pool).map(UnpopulatedPool).ok_or_else(|| Pool::error(eal, count, buffer * count, last()))
    }

    /// Required memory in bytes.
    fn bytes(&self) -> usize {
        // SAFETY: the pool exists.
        unsafe { sys::pc_pool_bytes(self.0.as_ptr()) }
    }
}

impl Pool {
    /// Populates a pool of mbufs adjacent to their buffers, from byte `at` of the span on.
    ///
    /// # Safety
    /// [`UnpopulatedPool::bytes`] bytes of the span must be unused, and the span must be DPDK's own
    /// memory.
    unsafe fn embedded(
        eal: &Eal,
        empty: UnpopulatedPool,
        count: usize,
        span: &Arc<Span>,
        at: usize,
    ) -> Result<Pool, DpdkError> {
        let bytes = empty.bytes();
        // SAFETY: by the caller's promise; the pool keeps the span alive.
        let filled = unsafe { sys::pc_pool_fill(empty.0.as_ptr(), span.as_ptr().add(at), bytes) };
        match usize::try_from(filled) {
            Ok(filled) if filled == count => {}
            Ok(_) => return Err(Pool::error(eal, count, bytes, io::Error::from_raw_os_error(libc::ENOSPC))),
            Err(_) => return Err(Pool::error(eal, count, bytes, negative(filled))),
        }
        let pool = empty.0;
        std::mem::forget(empty);
        Ok(Pool { pool, size: count, span: span.clone() })
    }

    /// Creates a pool with external buffers of `buffer` bytes in these memory areas, in order.
    ///
    /// # Safety
    /// The areas must be described correctly, part of the span, and unused.
    unsafe fn external(
        eal: &Eal,
        buffer: usize,
        count: usize,
        span: &Arc<Span>,
        pieces: &[sys::rte_pktmbuf_extmem],
    ) -> Result<Pool, DpdkError> {
        let (name, cache, node) = (Pool::name(), Pool::cache(count), Pool::node());
        // SAFETY: the name is zero-terminated, the areas are as described, and the pool keeps the
        // span alive.
        let pool = unsafe {
            let (first, pieces) = (pieces.as_ptr(), pieces.len() as u32);
            let (count, buffer) = (count as u32, buffer as u16);
            sys::rte_pktmbuf_pool_create_extbuf(name.as_ptr(), count, cache, 0, buffer, node, first, pieces)
        };
        let pool = NonNull::new(pool).ok_or_else(|| Pool::error(eal, count, buffer * count, last()))?;
        Ok(Pool { pool, size: count, span: span.clone() })
    }

    fn name() -> CString {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        CString::new(format!("portcullis{}", NUMBER.fetch_add(1, Ordering::Relaxed))).expect("no zero byte")
    }

    /// Cached mbufs of some threads must not starve others: each may cache up to one and a half
    /// times as many.
    fn cache(count: usize) -> u32 {
        CACHE.min(count as u32 / 8)
    }

    fn node() -> i32 {
        // SAFETY: the EAL is initialised.
        unsafe { sys::rte_socket_id() as i32 }
    }

    fn error(eal: &Eal, packets: usize, bytes: usize, error: io::Error) -> DpdkError {
        DpdkError::Pool { packets, bytes, error, log_lines: eal.log_lines() }
    }

    fn available(&self) -> usize {
        // SAFETY: the pool exists.
        unsafe { sys::rte_mempool_avail_count(self.pool.as_ptr()) as usize }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.available() == self.size {
            // SAFETY: all mbufs are in the pool.
            unsafe { sys::rte_mempool_free(self.pool.as_ptr()) }
        } else {
            // An mbuf is still in use, so leak the pool and its memory.
            std::mem::forget(self.span.clone());
        }
    }
}

/// Frees memory of DPDK's heap on drop.
struct Allocated(NonNull<u8>);

// SAFETY: DPDK's heap is thread-safe.
unsafe impl Send for Allocated {}
// SAFETY: as above.
unsafe impl Sync for Allocated {}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: the memory came from `rte_malloc_socket`, and nothing uses it any more.
        unsafe { sys::rte_free(self.0.as_ptr().cast()) }
    }
}

impl BufferRegion {
    /// Allocates buffers in host memory, registered with `gpu` if given.
    fn on_host(eal: &Eal, packets: usize, long: usize, gpu: Option<&Arc<Gpu>>) -> Result<BufferRegion, DpdkError> {
        const PAGE: usize = 4096;
        let pool = UnpopulatedPool::new(eal, BUFFER, packets)?;
        let long_pool = if long > 0 { Some(UnpopulatedPool::new(eal, LONG_BUFFER, long)?) } else { None };
        let short = pool.bytes();
        let length = short + long_pool.as_ref().map_or(0, UnpopulatedPool::bytes);
        let allocated = (length + READABLE_PAST_END).next_multiple_of(PAGE);
        // SAFETY: a null type name is allowed.
        let block = unsafe { sys::rte_malloc_socket(std::ptr::null(), allocated, PAGE as u32, ANY_NODE) };
        let start = NonNull::new(block.cast::<u8>())
            .ok_or_else(|| Pool::error(eal, packets, allocated, io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let owner = Box::new(Allocated(start));
        // SAFETY: the block has this size. Zero it, because batches may be read before anything was
        // written.
        unsafe { start.as_ptr().write_bytes(0, allocated) };
        let (owner, device, gpu_offset): (Box<dyn Any + Send + Sync>, _, _) = match gpu {
            None => (owner, None, 0),
            Some(gpu) => {
                // SAFETY: the bytes exist for as long as their owner.
                let shown = unsafe { RegisteredMemory::new(gpu, start, allocated, owner) }?;
                let address = shown.address();
                let device = gpu.info().properties.shown.clone().map(|device| DeviceView { device, address });
                (Box::new(shown), device, address.wrapping_sub(start.as_ptr() as u64) as isize)
            }
        };
        // SAFETY: the block was just allocated, page-aligned and zeroed. The space between packets
        // contains mbufs, which only DPDK accesses.
        let span = unsafe { Span::from_views(Some(start), device, length, allocated, owner) };
        let span = span.map_err(|error| DpdkError::TooMuchMemory { error })?;
        // SAFETY: the ranges are disjoint, and the block is DPDK's.
        let (pool, long) = unsafe {
            let pool = Pool::embedded(eal, pool, packets, &span, 0)?;
            let made = long_pool.map(|it| Pool::embedded(eal, it, long, &span, short));
            (pool, made.transpose()?)
        };
        Ok(BufferRegion { span, pool, long, gpu_offset, buffers: None })
    }

    /// Allocates buffers in GPU memory.
    fn on_gpu(
        eal: &Eal,
        packets: usize,
        long: usize,
        gpu: &Arc<Gpu>,
        writers: &PacketWriters,
    ) -> Result<BufferRegion, DpdkError> {
        // Packets are linearised by the CPU.
        let long = if matches!(writers, PacketWriters::Cpu { .. }) { long } else { 0 };
        let short = packets * STRIDE;
        let length = short + long * LONG_BUFFER;
        let buffers = Arc::new(Buffers::new(eal, gpu, length, writers)?);
        let span = buffers.span(length)?;
        let pool = |at, stride, count| {
            let chunk = buffers.chunk(at, stride, count);
            // SAFETY: the area is part of the span and otherwise unused.
            unsafe { Pool::external(eal, stride, count, &span, &[chunk]) }
        };
        let (pool, long) =
            (pool(0, STRIDE, packets)?, if long > 0 { Some(pool(short, LONG_BUFFER, long)?) } else { None });
        Ok(BufferRegion { span, pool, long, gpu_offset: buffers.shift(), buffers: Some(buffers) })
    }
}

impl Memory {
    /// Upper bound in bytes of DPDK's host memory for `packets` packets.
    pub fn bytes(packets: usize) -> usize {
        // Includes mbufs and the pools' own data.
        packets * (STRIDE + 512) + Memory::long_buffer_count(packets) * (LONG_BUFFER + 512) + (8 << 20)
    }

    /// Number of long buffers besides `packets` others. A few are enough: a batch of long packets
    /// is no larger.
    fn long_buffer_count(packets: usize) -> usize {
        (packets / 16).clamp(*LONG.start(), *LONG.end())
    }

    /// Calls `make` with the number of long buffers, halving it while there is no memory.
    fn with_long_buffers(
        packets: usize,
        make: impl Fn(usize) -> Result<BufferRegion, DpdkError>,
    ) -> Result<BufferRegion, DpdkError> {
        let mut long = Memory::long_buffer_count(packets);
        loop {
            match make(long) {
                Err(DpdkError::Pool { .. } | DpdkError::TooMuchMemory { .. } | DpdkError::Gpu { .. })
                    if long > *LONG.start() =>
                {
                    long = (long / 2).max(*LONG.start());
                }
                made => return made,
            }
        }
    }

    /// Allocates memory for `packets` packets, received or in flight. With `split`, that many bytes
    /// of each are in host memory in any case.
    pub fn new(
        eal: &Eal,
        packets: usize,
        place: &BufferLocation,
        writers: &PacketWriters,
        split: Option<u16>,
    ) -> Result<Arc<Memory>, DpdkError> {
        let (part, rest) = match (split, place) {
            (None, BufferLocation::Gpu(gpu)) => (
                Memory::with_long_buffers(packets, |long| BufferRegion::on_gpu(eal, packets, long, gpu, writers))?,
                None,
            ),
            (None, _) => (
                Memory::with_long_buffers(packets, |long| BufferRegion::on_host(eal, packets, long, place.gpu()))?,
                None,
            ),
            (Some(head), _) => {
                let rest = match place {
                    BufferLocation::Gpu(gpu) => BufferRegion::on_gpu(eal, packets, 0, gpu, writers)?,
                    _ => BufferRegion::on_host(eal, packets, 0, None)?,
                };
                (BufferRegion::on_host(eal, packets, 0, place.gpu())?, Some((head, rest)))
            }
        };
        let buffers = part.buffers.or_else(|| rest.as_ref().and_then(|(_, rest)| rest.buffers.clone()));
        let rest = rest.map(|(head, BufferRegion { pool, .. })| TailPool { pool, head });
        let BufferRegion { span, pool, long, gpu_offset, .. } = part;
        Ok(Arc::new(Memory { span, pool, long, rest, gpu_offset, buffers, recycled: Mutex::default() }))
    }

    /// The GPU memory that packets or their tails are in, if any.
    pub fn buffers(&self) -> Option<&Arc<Buffers>> {
        self.buffers.as_ref()
    }

    /// Pool for tails and length of heads; `None` without header split.
    pub fn tail_pool(&self) -> Option<(*mut sys::rte_mempool, u16)> {
        self.rest.as_ref().map(|rest| (rest.pool.pool.as_ptr(), rest.head))
    }

    /// The mempool that queues receive into.
    pub fn pool(&self) -> *mut sys::rte_mempool {
        self.pool.pool.as_ptr()
    }

    /// Describes the memory for the C shim.
    pub fn to_shim(&self, room: ResizeRoom) -> sys::pc_memory {
        let room = if room == ResizeRoom::Both { RESIZE_ROOM } else { 0 };
        sys::pc_memory { base: self.base(), length: self.span.len(), room }
    }

    /// Address of the first byte for port drivers.
    fn base(&self) -> *mut u8 {
        match &self.buffers {
            Some(buffers) if self.rest.is_none() => buffers.start().as_ptr(),
            _ => self.span.as_ptr(),
        }
    }

    /// Total number of mbufs, and number of free ones.
    pub fn mbuf_counts(&self) -> (usize, usize) {
        let pools = [Some(&self.pool), self.long.as_ref(), self.rest.as_ref().map(|rest| &rest.pool)];
        let pools = pools.into_iter().flatten();
        pools.fold((0, 0), |(all, home), pool| (all + pool.size, home + pool.available()))
    }

    /// Copies a packet of `length` bytes, which has several segments or lies outside of the memory,
    /// into a contiguous buffer.
    pub fn linearize(&self, mut mbuf: Mbuf, length: usize) -> Linearized {
        let Some(pool) = self.long.as_ref().filter(|_| length <= LONG_BUFFER - HEADROOM - RESIZE_ROOM as usize) else {
            return Linearized::Dropped;
        };
        let mut made = [std::ptr::null_mut()];
        // SAFETY: the array has room for one mbuf.
        if unsafe { sys::pc_take(pool.pool.as_ptr(), made.as_mut_ptr(), 1) } != 0 {
            return Linearized::Retry(mbuf);
        }
        let long = Mbuf(made[0]);
        // SAFETY: both mbufs are owned here; `at` has room for `length` bytes.
        let (at, copied) = unsafe {
            let at = sys::pc_begin(long.0, length as u32);
            if at.is_null() {
                return Linearized::Dropped;
            }
            (at, sys::pc_copy(mbuf.as_ptr(), at, length as u32))
        };
        let offset = at as usize - self.base() as usize;
        // If the segments are shorter than the packet claims, its contents are unknown.
        match copied as usize == length {
            true => Linearized::Whole(long, Descriptor { offset: offset as u32, length: copied }),
            false => Linearized::Dropped,
        }
    }

    /// Takes empty batch buffers, recycled ones if there are any.
    pub fn take_batch_buffers(&self) -> BatchBuffers {
        self.recycled.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Recycles batch buffers; mbufs left in them are freed.
    pub fn recycle_batch_buffers(&self, mut recycled: BatchBuffers) {
        recycled.batch_mbufs.comm_list_item = None;
        recycled.batch_mbufs.mbufs.free();
        recycled.batch_mbufs.queues.clear();
        recycled.batch_mbufs.memory = None;
        recycled.descriptors.clear();
        recycled.metadata.clear();
        recycled.metadata_summary = MetadataAccumulator::default();
        self.recycled.lock().unwrap_or_else(PoisonError::into_inner).push(recycled);
    }
}

/// Exclusive ownership of an mbuf (chain), freed on drop.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Mbuf(*mut sys::rte_mbuf);

// SAFETY: the mbuf is owned exclusively.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Gives up ownership to DPDK.
    #[cfg(test)]
    pub fn into_raw(self) -> *mut sys::rte_mbuf {
        let mbuf = self.0;
        std::mem::forget(self);
        mbuf
    }

    /// Borrows the mbuf to DPDK.
    pub fn as_ptr(&mut self) -> *mut sys::rte_mbuf {
        self.0
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: the mbuf is owned, and not used any more.
        unsafe { sys::pc_free(&raw mut self.0, 1) }
    }
}

/// Exclusive ownership of mbufs, stored as the array that DPDK's functions take.
#[derive(Debug, Default)]
pub(super) struct Mbufs(Vec<*mut sys::rte_mbuf>);

// SAFETY: the mbufs are owned exclusively.
unsafe impl Send for Mbufs {}
// SAFETY: a shared reference only gives their number.
unsafe impl Sync for Mbufs {}

impl Mbufs {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the mbufs that `fill` writes; it returns their number, at most `max`.
    ///
    /// # Safety
    /// `fill` must have written as many mbufs as it returns, without another owner.
    pub unsafe fn extend(&mut self, max: usize, fill: impl FnOnce(*mut *mut sys::rte_mbuf) -> usize) -> usize {
        self.0.reserve(max);
        let count = fill(self.0.spare_capacity_mut().as_mut_ptr().cast());
        debug_assert!(count <= max);
        // SAFETY: the capacity was reserved, and `fill` has written `mbuf_counts` elements.
        unsafe { self.0.set_len(self.0.len() + count) };
        count
    }

    pub fn push(&mut self, mbuf: Mbuf) {
        self.0.push(mbuf.0);
        std::mem::forget(mbuf);
    }

    /// Takes all mbufs, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Mbuf> + '_ {
        self.0.drain(..).map(Mbuf)
    }

    /// Takes the mbufs from index `first` on.
    pub fn drain_from(&mut self, first: usize) -> Vec<Mbuf> {
        self.0.drain(first..).map(Mbuf).collect()
    }

    /// The array for DPDK, which may consume mbufs from its start ([`Mbufs::forget_first`]).
    pub fn as_mut_ptr(&mut self) -> *mut *mut sys::rte_mbuf {
        self.0.as_mut_ptr()
    }

    /// Removes the first mbufs without freeing them.
    ///
    /// # Safety
    /// Ownership of these mbufs must have passed to DPDK.
    pub unsafe fn forget_first(&mut self, count: usize) {
        self.0.drain(..count);
    }

    /// Total length of the packets in bytes.
    pub fn bytes(&mut self) -> u64 {
        // SAFETY: the mbufs are owned here.
        unsafe { sys::pc_bytes(self.0.as_mut_ptr(), self.0.len()) }
    }

    /// Frees all mbufs.
    pub fn free(&mut self) {
        if !self.0.is_empty() {
            // SAFETY: the mbufs are owned here and forgotten afterwards.
            unsafe { sys::pc_free(self.0.as_mut_ptr(), self.0.len()) };
            self.0.clear();
        }
    }
}

impl Drop for Mbufs {
    fn drop(&mut self) {
        self.free();
    }
}

/// The vectors that a batch is built from, recycled between receiver and executor.
#[derive(Debug, Default)]
pub(super) struct BatchBuffers {
    pub batch_mbufs: Box<BatchMbufs>,
    pub descriptors: Vec<Descriptor>,
    pub metadata: Vec<Metadata>,
    pub metadata_summary: MetadataAccumulator,
}

/// The mbufs of a batch, as its source data; freed on drop.
#[derive(Debug, Default)]
pub(super) struct BatchMbufs {
    /// The batch's item in the GPU's communication list. Dropped before the mbufs.
    pub comm_list_item: Option<ReadyItem>,
    pub mbufs: Mbufs,
    /// The RX queue of each packet; empty if the lane has a single queue.
    pub queues: Vec<u16>,
    /// Keeps the mempools alive; set while the batch is in flight.
    pub memory: Option<Arc<Memory>>,
}
