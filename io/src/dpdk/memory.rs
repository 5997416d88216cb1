//! The memory that packets lie in, and packets' descriptions, which only their owner has.

use std::any::Any;
use std::ffi::CString;
use std::io;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use portcullis_core::packet::{Descriptor, DeviceView, Metadata, READABLE_PAST_END, RESIZE_ROOM, ResizeRoom, Span};
use portcullis_dpdk_sys as sys;

use super::eal::Eal;
use super::error::{DpdkError, last, negative};
use super::gpudev::{Buffers, Gpu, Ready, RegisteredMemory, Writers};

/// Bytes before a packet in its buffer, where its driver leaves them free (`RTE_PKTMBUF_HEADROOM`).
pub(super) const HEADROOM: usize = sys::RTE_PKTMBUF_HEADROOM as usize;

/// Bytes of the longest packet that comes in one buffer.
pub const DATA: usize = 2048;

/// Bytes of a buffer. With a packet's description before it, and what DPDK adds so that not all packets begin at the same lines of a
/// cache, it is as far to the next one as no power of two is.
const BUFFER: usize = HEADROOM + DATA + RESIZE_ROOM as usize;

/// Bytes from one buffer to the next where descriptions lie elsewhere: as little a power of two.
const STRIDE: usize = BUFFER.next_multiple_of(64) + 64;

/// Bytes of a long buffer, in which packets are put together: those of the longest one that a description has room for.
const LONG_BUFFER: usize = 65536 - 64;

/// Fewest and most buffers of that length.
const LONG: RangeInclusive<usize> = 64..=512;

/// Packets that a processor keeps for itself: the most that there may be (`RTE_MEMPOOL_CACHE_MAX_SIZE`). Batches larger than that come and go
/// by way of a ring that all processors share.
const CACHE: u32 = 512;

/// `SOCKET_ID_ANY` (`rte_memory.h`).
const ANY_NODE: i32 = -1;

/// Packets' buffers in one piece of memory, and the pools that they are taken from.
#[derive(Debug)]
pub(super) struct Memory {
    pub span: Arc<Span>,
    pool: Pool,
    /// For packets that came in several buffers, or somewhere else; none where the processor cannot put them together, or packets are
    /// split.
    long: Option<Pool>,
    /// What comes behind the head of a packet that is split.
    rest: Option<Rest>,
    /// Bytes from where ports' drivers have packets of `pool` to where the GPU has them.
    pub shift: isize,
    buffers: Option<Arc<Buffers>>,
    lists: Mutex<Vec<Lists>>,
}

/// What becomes of a packet that is to be put together.
#[derive(Debug)]
pub(super) enum Together {
    /// It lies there, in one piece.
    Whole(Mbuf, Descriptor),
    /// Here it is again: all buffers for it are with others now.
    Later(Mbuf),
    /// It is gone: there are no such buffers, it is too long for them, or it has less than it says.
    Never,
}

/// Where packets' buffers are.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// In the host's memory.
    Host,
    /// There, and shown to this GPU.
    Pinned(Arc<Gpu>),
    /// In this GPU's memory.
    Gpu(Arc<Gpu>),
}

impl Place {
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match self {
            Place::Host => None,
            Place::Pinned(gpu) | Place::Gpu(gpu) => Some(gpu),
        }
    }
}

/// The rests of packets that are split.
#[derive(Debug)]
struct Rest {
    pool: Pool,
    /// Bytes of a packet that come before.
    head: u16,
}

/// Packets' buffers somewhere.
struct Part {
    span: Arc<Span>,
    pool: Pool,
    long: Option<Pool>,
    shift: isize,
    /// GPU memory that they are in.
    buffers: Option<Arc<Buffers>>,
}

/// A pool of packets without contents.
///
/// DPDK has two kinds. Where a packet's description and its buffer lie side by side, a packet is taken and given back with the fewest lines
/// of the cache: [`Pool::embedded`], in memory that is the host's. Buffers in any other memory are [`Pool::external`], with descriptions
/// elsewhere, which say more and have to be asked more.
#[derive(Debug)]
struct Pool {
    pool: NonNull<sys::rte_mempool>,
    size: usize,
    /// Where packets lie.
    span: Arc<Span>,
}

// SAFETY: DPDK's pools are made to be used by several threads at a time.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// A pool of packets that are to lie side by side with their buffers, and have no memory yet.
struct Empty(NonNull<sys::rte_mempool>);

impl Drop for Empty {
    fn drop(&mut self) {
        // SAFETY: nobody has any of its packets.
        unsafe { sys::rte_mempool_free(self.0.as_ptr()) }
    }
}

impl Empty {
    /// For `count` packets with buffers of so many bytes.
    fn new(eal: &Eal, buffer: usize, count: usize) -> Result<Empty, DpdkError> {
        let (name, cache, node) = (Pool::name(), Pool::cache(count), Pool::node());
        // SAFETY: the name ends with a zero byte.
        let pool = unsafe { sys::pc_pool(name.as_ptr(), count as u32, cache, buffer as u16, node) };
        NonNull::new(pool).map(Empty).ok_or_else(|| Pool::error(eal, count, buffer * count, last()))
    }

    /// Bytes of memory that it needs.
    fn bytes(&self) -> usize {
        // SAFETY: the pool is there.
        unsafe { sys::pc_pool_bytes(self.0.as_ptr()) }
    }
}

impl Pool {
    /// Of packets that lie side by side with their buffers, from byte `at` of the span on.
    ///
    /// # Safety
    /// The bytes ([`Empty::bytes`]) are the span's and nobody's yet, and the span is of DPDK's own memory.
    unsafe fn embedded(eal: &Eal, empty: Empty, count: usize, span: &Arc<Span>, at: usize) -> Result<Pool, DpdkError> {
        let bytes = empty.bytes();
        // SAFETY: the bytes are the span's, and the pool's from now on; the pool keeps the span.
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

    /// Of packets whose descriptions lie elsewhere, with buffers of so many bytes in these pieces of memory, one after the other.
    ///
    /// # Safety
    /// The pieces are the span's, described as they are, and nobody's yet.
    unsafe fn external(
        eal: &Eal,
        buffer: usize,
        count: usize,
        span: &Arc<Span>,
        pieces: &[sys::rte_pktmbuf_extmem],
    ) -> Result<Pool, DpdkError> {
        let (name, cache, node) = (Pool::name(), Pool::cache(count), Pool::node());
        // SAFETY: the name ends with a zero byte, the pieces are as they are described, and the pool keeps the span.
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

    /// What some threads keep is not to be what others lack: each may keep one and a half times as many.
    fn cache(count: usize) -> u32 {
        CACHE.min(count as u32 / 8)
    }

    fn node() -> i32 {
        // SAFETY: DPDK has begun.
        unsafe { sys::rte_socket_id() as i32 }
    }

    fn error(eal: &Eal, packets: usize, bytes: usize, error: io::Error) -> DpdkError {
        DpdkError::Pool { packets, bytes, error, said: eal.said() }
    }

    fn available(&self) -> usize {
        // SAFETY: the pool is there.
        unsafe { sys::rte_mempool_avail_count(self.pool.as_ptr()) as usize }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.available() == self.size {
            // SAFETY: nobody has any of its packets.
            unsafe { sys::rte_mempool_free(self.pool.as_ptr()) }
        } else {
            // Somebody has a packet yet: the pool stays, and so does its memory.
            std::mem::forget(self.span.clone());
        }
    }
}

/// Gives memory that DPDK has allocated back.
struct Allocated(NonNull<u8>);

// SAFETY: DPDK's heap may be used by several threads.
unsafe impl Send for Allocated {}
// SAFETY: as above.
unsafe impl Sync for Allocated {}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: it came from `rte_malloc_socket`, and nobody has it any more.
        unsafe { sys::rte_free(self.0.as_ptr().cast()) }
    }
}

impl Part {
    /// In the host's memory, which a GPU may be shown.
    fn on_host(eal: &Eal, packets: usize, long: usize, gpu: Option<&Arc<Gpu>>) -> Result<Part, DpdkError> {
        const PAGE: usize = 4096;
        let pool = Empty::new(eal, BUFFER, packets)?;
        let long_pool = if long > 0 { Some(Empty::new(eal, LONG_BUFFER, long)?) } else { None };
        let short = pool.bytes();
        let length = short + long_pool.as_ref().map_or(0, Empty::bytes);
        let allocated = (length + READABLE_PAST_END).next_multiple_of(PAGE);
        // SAFETY: there are no bytes to be read: the size and the alignment are numbers, and the type's name may be null.
        let block = unsafe { sys::rte_malloc_socket(std::ptr::null(), allocated, PAGE as u32, ANY_NODE) };
        let start = NonNull::new(block.cast::<u8>())
            .ok_or_else(|| Pool::error(eal, packets, allocated, io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let owner = Box::new(Allocated(start));
        // SAFETY: the block is that long. Batches may be read before anybody has written to it.
        unsafe { start.as_ptr().write_bytes(0, allocated) };
        let (owner, device, shift): (Box<dyn Any + Send + Sync>, _, _) = match gpu {
            None => (owner, None, 0),
            Some(gpu) => {
                // SAFETY: there are so many bytes, as long as their owner is there.
                let shown = unsafe { RegisteredMemory::new(gpu, start, allocated, owner) }?;
                let address = shown.address();
                let device = gpu.info().properties.shown.clone().map(|device| DeviceView { device, address });
                (Box::new(shown), device, address.wrapping_sub(start.as_ptr() as u64) as isize)
            }
        };
        // SAFETY: it was just allocated, and is aligned to a page and written. Packets lie in it with room between that nobody looks at
        // but DPDK, which has their descriptions there.
        let span = unsafe { Span::from_views(Some(start), device, length, allocated, owner) };
        let span = span.map_err(|error| DpdkError::TooMuchMemory { error })?;
        // SAFETY: the bytes follow each other, and the block is DPDK's.
        let (pool, long) = unsafe {
            let pool = Pool::embedded(eal, pool, packets, &span, 0)?;
            let made = long_pool.map(|it| Pool::embedded(eal, it, long, &span, short));
            (pool, made.transpose()?)
        };
        Ok(Part { span, pool, long, shift, buffers: None })
    }

    /// In a GPU's memory.
    fn on_gpu(eal: &Eal, packets: usize, long: usize, gpu: &Arc<Gpu>, writers: &Writers) -> Result<Part, DpdkError> {
        // Packets are put together by the processor.
        let long = if matches!(writers, Writers::Processor { .. }) { long } else { 0 };
        let short = packets * STRIDE;
        let length = short + long * LONG_BUFFER;
        let buffers = Arc::new(Buffers::new(eal, gpu, length, writers)?);
        let span = buffers.span(length)?;
        let pool = |at, stride, count| {
            let piece = buffers.piece(at, stride, count);
            // SAFETY: the piece is of the span's memory, and there is nothing else there.
            unsafe { Pool::external(eal, stride, count, &span, &[piece]) }
        };
        let (pool, long) =
            (pool(0, STRIDE, packets)?, if long > 0 { Some(pool(short, LONG_BUFFER, long)?) } else { None });
        Ok(Part { span, pool, long, shift: buffers.shift(), buffers: Some(buffers) })
    }
}

impl Memory {
    /// Bytes that so many packets take of DPDK's memory on the host, at most.
    pub fn bytes(packets: usize) -> usize {
        // With descriptions, and what pools have beside packets.
        packets * (STRIDE + 512) + Memory::long(packets) * (LONG_BUFFER + 512) + (8 << 20)
    }

    /// Long buffers beside so many others: some, for where all packets are long a batch has no more of them.
    fn long(packets: usize) -> usize {
        (packets / 16).clamp(*LONG.start(), *LONG.end())
    }

    /// Has something made with so many long buffers beside so many others, or with fewer where there is no memory for them.
    fn with_long(packets: usize, make: impl Fn(usize) -> Result<Part, DpdkError>) -> Result<Part, DpdkError> {
        let mut long = Memory::long(packets);
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

    /// For `packets` packets, which may come in at the same time or be on their way. `split`: so many bytes of each are in the host's
    /// memory, in any case.
    pub fn new(
        eal: &Eal,
        packets: usize,
        place: &Place,
        writers: &Writers,
        split: Option<u16>,
    ) -> Result<Arc<Memory>, DpdkError> {
        let (part, rest) = match (split, place) {
            (None, Place::Gpu(gpu)) => {
                (Memory::with_long(packets, |long| Part::on_gpu(eal, packets, long, gpu, writers))?, None)
            }
            (None, _) => (Memory::with_long(packets, |long| Part::on_host(eal, packets, long, place.gpu()))?, None),
            (Some(head), _) => {
                let rest = match place {
                    Place::Gpu(gpu) => Part::on_gpu(eal, packets, 0, gpu, writers)?,
                    _ => Part::on_host(eal, packets, 0, None)?,
                };
                (Part::on_host(eal, packets, 0, place.gpu())?, Some((head, rest)))
            }
        };
        let buffers = part.buffers.or_else(|| rest.as_ref().and_then(|(_, rest)| rest.buffers.clone()));
        let rest = rest.map(|(head, Part { pool, .. })| Rest { pool, head });
        let Part { span, pool, long, shift, .. } = part;
        Ok(Arc::new(Memory { span, pool, long, rest, shift, buffers, lists: Mutex::default() }))
    }

    /// GPU memory that packets are in, or their rests.
    pub fn buffers(&self) -> Option<&Arc<Buffers>> {
        self.buffers.as_ref()
    }

    /// For queues that split packets: where their rests go, and how many bytes come before.
    pub fn rest(&self) -> Option<(*mut sys::rte_mempool, u16)> {
        self.rest.as_ref().map(|rest| (rest.pool.pool.as_ptr(), rest.head))
    }

    /// For queues to receive into.
    pub fn pool(&self) -> *mut sys::rte_mempool {
        self.pool.pool.as_ptr()
    }

    /// The memory as the shim has it.
    pub fn shim(&self, room: ResizeRoom) -> sys::pc_memory {
        let room = if room == ResizeRoom::Both { RESIZE_ROOM } else { 0 };
        sys::pc_memory { base: self.base(), length: self.span.len(), room }
    }

    /// Where ports' drivers have the first byte.
    fn base(&self) -> *mut u8 {
        match &self.buffers {
            Some(buffers) if self.rest.is_none() => buffers.start().as_ptr(),
            _ => self.span.as_ptr(),
        }
    }

    /// Packets there are in all, and those that nobody has now.
    pub fn count(&self) -> (usize, usize) {
        let pools = [Some(&self.pool), self.long.as_ref(), self.rest.as_ref().map(|rest| &rest.pool)];
        let pools = pools.into_iter().flatten();
        pools.fold((0, 0), |(all, home), pool| (all + pool.size, home + pool.available()))
    }

    /// Puts a packet together that came in pieces, or somewhere else: `length` bytes.
    pub fn linearize(&self, mut mbuf: Mbuf, length: usize) -> Together {
        let Some(pool) = self.long.as_ref().filter(|_| length <= LONG_BUFFER - HEADROOM - RESIZE_ROOM as usize) else {
            return Together::Never;
        };
        let mut made = [std::ptr::null_mut()];
        // SAFETY: there is room for one.
        if unsafe { sys::pc_take(pool.pool.as_ptr(), made.as_mut_ptr(), 1) } != 0 {
            return Together::Later(mbuf);
        }
        let long = Mbuf(made[0]);
        // SAFETY: both are ours. The place has room for as many bytes as are asked for.
        let (at, copied) = unsafe {
            let at = sys::pc_begin(long.0, length as u32);
            if at.is_null() {
                return Together::Never;
            }
            (at, sys::pc_copy(mbuf.as_ptr(), at, length as u32))
        };
        let offset = at as usize - self.base() as usize;
        // Where its pieces are less than it says, nobody knows what is missing.
        match copied as usize == length {
            true => Together::Whole(long, Descriptor { offset: offset as u32, length: copied }),
            false => Together::Never,
        }
    }

    /// Lists with nothing in them.
    pub fn take_lists(&self) -> Lists {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Takes lists for the next batch; packets in them go back to their pools.
    pub fn put_lists(&self, mut lists: Lists) {
        lists.held.listed = None;
        lists.held.mbufs.free();
        lists.held.queues.clear();
        lists.held.memory = None;
        lists.descriptors.clear();
        lists.metadata.clear();
        self.lists.lock().unwrap_or_else(PoisonError::into_inner).push(lists);
    }
}

/// A packet that is ours.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Mbuf(*mut sys::rte_mbuf);

// SAFETY: whoever has it has it alone.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// For DPDK, whose it is from now on.
    #[cfg(test)]
    pub fn into_raw(self) -> *mut sys::rte_mbuf {
        let mbuf = self.0;
        std::mem::forget(self);
        mbuf
    }

    /// For DPDK, while it is borrowed.
    pub fn as_ptr(&mut self) -> *mut sys::rte_mbuf {
        self.0
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: it is ours, and gone.
        unsafe { sys::pc_free(&raw mut self.0, 1) }
    }
}

/// Packets that are ours, one after the other as DPDK wants them.
#[derive(Debug, Default)]
pub(super) struct Mbufs(Vec<*mut sys::rte_mbuf>);

// SAFETY: whoever has them has them alone.
unsafe impl Send for Mbufs {}
// SAFETY: who looks at them sees how many there are.
unsafe impl Sync for Mbufs {}

impl Mbufs {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds packets that `fill` writes, which gives their number: at most `most`.
    ///
    /// # Safety
    /// As many as it says are written, and are nobody else's.
    pub unsafe fn extend(&mut self, most: usize, fill: impl FnOnce(*mut *mut sys::rte_mbuf) -> usize) -> usize {
        self.0.reserve(most);
        let count = fill(self.0.spare_capacity_mut().as_mut_ptr().cast());
        debug_assert!(count <= most);
        // SAFETY: so many were reserved, and are written.
        unsafe { self.0.set_len(self.0.len() + count) };
        count
    }

    pub fn push(&mut self, mbuf: Mbuf) {
        self.0.push(mbuf.0);
        std::mem::forget(mbuf);
    }

    /// Takes all packets out, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Mbuf> + '_ {
        self.0.drain(..).map(Mbuf)
    }

    /// Takes packets out, from the `first` on.
    pub fn drain_from(&mut self, first: usize) -> Vec<Mbuf> {
        self.0.drain(first..).map(Mbuf).collect()
    }

    /// For DPDK, which may read the list, and take packets from its beginning ([`Mbufs::taken`]).
    pub fn as_mut_ptr(&mut self) -> *mut *mut sys::rte_mbuf {
        self.0.as_mut_ptr()
    }

    /// Forgets the first packets.
    ///
    /// # Safety
    /// They are somebody else's now.
    pub unsafe fn taken(&mut self, count: usize) {
        self.0.drain(..count);
    }

    /// Their bytes.
    pub fn bytes(&mut self) -> u64 {
        // SAFETY: they are ours.
        unsafe { sys::pc_bytes(self.0.as_mut_ptr(), self.0.len()) }
    }

    /// Gives all of them back to their pools.
    pub fn free(&mut self) {
        if !self.0.is_empty() {
            // SAFETY: they are ours, and forgotten.
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

/// What batches are made of: from the receiver to the executor, and back.
#[derive(Debug, Default)]
pub(super) struct Lists {
    pub held: Box<Held>,
    pub descriptors: Vec<Descriptor>,
    pub metadata: Vec<Metadata>,
}

/// The packets of a batch: its companion. Dropped with it, they go back to their pools.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// How a GPU knows of the packets. It goes before they do.
    pub listed: Option<Ready>,
    pub mbufs: Mbufs,
    /// By which of the lane's queues each packet came; empty where there is one.
    pub queues: Vec<u16>,
    /// Pools outlive their packets: in a batch it is there.
    pub memory: Option<Arc<Memory>>,
}
