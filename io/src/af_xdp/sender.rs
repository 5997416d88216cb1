//! Sockets that only send, out of the memory of a UMEM, and are bound as they need it.
//!
//! All sockets of a UMEM are bound as its first one was (`xp_assign_dev_shared`, `net/xdp/xsk_buff_pool.c`). Once a driver puts
//! frames into it without a copy, an interface whose driver cannot (veth: the way into the kernel's stack) is refused; and one
//! whose driver can would look for frames to receive into where packets only go out, and its queue would receive no more. So
//! these sockets have copies sent, of memory that is registered with the kernel a second time. To the kernel that is another UMEM
//! of the same pages; whose a frame is, is known here alone, as before.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use xsk_rs::umem::frame::FrameDesc;

use super::socket;
use super::umem::Umem;

/// Entries of the fill ring, which has to be there, and from which nobody takes.
const FILL: u32 = 2;

/// A socket that has copies sent of a UMEM's frames.
#[derive(Debug)]
pub(crate) struct Sender {
    tx: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    socket: Arc<OwnedFd>,
    umem: Arc<Umem>,
}

impl Sender {
    /// On a queue of an interface, by its number; `first` is the first one of the same UMEM, where there is one. Rings have this
    /// many entries, a power of two.
    ///
    /// # Errors
    /// The system's; EBUSY where somebody has the queue, or has just given it up ([`socket::once_free`]).
    pub fn open(
        umem: &Arc<Umem>,
        first: Option<&OwnedFd>,
        (interface, queue): (u32, u32),
        entries: u32,
        multi_buffer: bool,
    ) -> io::Result<Sender> {
        // SAFETY: it takes no memory.
        let made = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just made, and is nobody else's.
        let made = unsafe { OwnedFd::from_raw_fd(made) };
        let fd = made.as_raw_fd();
        if first.is_none() {
            let memory = libc::xdp_umem_reg {
                addr: umem.span().as_ptr() as u64,
                len: umem.span().len() as u64,
                chunk_size: umem.frame_size() as u32,
                headroom: 0,
                flags: 0,
                tx_metadata_len: 0,
            };
            socket::set(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &memory)?;
        }
        socket::set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_FILL_RING, FILL)?;
        socket::set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, entries)?;
        socket::set_option(fd, libc::SOL_XDP, libc::XDP_TX_RING, entries)?;
        let none = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
        let mut at = libc::xdp_mmap_offsets { rx: none, tx: none, fr: none, cr: none };
        socket::get(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut at)?;
        let tx = Ring::map(fd, libc::XDP_PGOFF_TX_RING, &at.tx, entries)?;
        let completion = Ring::map(fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t, &at.cr, entries)?;
        // What the first one has, the others get.
        let (flags, shared) = match first {
            Some(first) => (libc::XDP_SHARED_UMEM, first.as_raw_fd() as u32),
            None => {
                let several = if multi_buffer { libc::XDP_USE_SG } else { 0 };
                (libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP | several, 0)
            }
        };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared,
        };
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: pointer and length are those of a structure that lives, the one that the family has.
        if unsafe { libc::bind(fd, (&raw const address).cast(), length) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Sender { tx, completion, socket: Arc::new(made), umem: umem.clone() })
    }

    /// For waking the kernel up.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// For those that come after the first one.
    pub fn socket(&self) -> Arc<OwnedFd> {
        self.socket.clone()
    }

    /// Frames that there is room for.
    pub fn free(&self) -> usize {
        (self.tx.size - self.tx.used()) as usize
    }

    /// Whether the kernel sends only when it is told to.
    pub fn needs_wakeup(&self) -> bool {
        self.tx.flags() & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Gives frames to the ring, as many as there is room for; gives how many.
    ///
    /// # Safety
    /// They are frames of the UMEM, and nobody's but the ring's from now on.
    pub unsafe fn produce(&mut self, descs: &[FrameDesc]) -> usize {
        let count = self.free().min(descs.len());
        let begin = self.tx.produced();
        for (at, desc) in descs[..count].iter().enumerate() {
            let (addr, len) = (desc.addr() as u64, desc.lengths().data() as u32);
            self.tx.write(begin.wrapping_add(at as u32), libc::xdp_desc { addr, len, options: desc.options() });
        }
        self.tx.produce(count as u32);
        count
    }

    /// Takes frames that were sent; gives how many.
    pub fn completed(&mut self, into: &mut [FrameDesc]) -> usize {
        let count = (self.completion.used() as usize).min(into.len());
        let begin = self.completion.consumed();
        for (at, desc) in into[..count].iter_mut().enumerate() {
            let address = self.completion.read(begin.wrapping_add(at as u32));
            *desc = self.umem.original(address as usize);
        }
        self.completion.consume(count as u32);
        count
    }
}

/// A ring that is shared with the kernel, which is at its other end: `struct xdp_ring` of `net/xdp/xsk_queue.h`.
#[derive(Debug)]
struct Ring<T> {
    memory: NonNull<u8>,
    length: usize,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    _of: PhantomData<T>,
}

// SAFETY: the mapping belongs to it alone, and the kernel does not ask which thread it is that looks.
unsafe impl<T> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    fn map(fd: RawFd, which: libc::off_t, at: &libc::xdp_ring_offset, size: u32) -> io::Result<Ring<T>> {
        let length = at.desc as usize + size as usize * size_of::<T>();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a mapping of its own, wherever the system likes.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, which) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring {
            memory: NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            length,
            producer: at.producer as usize,
            consumer: at.consumer as usize,
            flags: at.flags as usize,
            entries: at.desc as usize,
            size,
            _of: PhantomData,
        })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: one of the words that the kernel says are there, as long as the mapping is; both ends use it as an atomic.
        unsafe { self.memory.add(at).cast().as_ref() }
    }

    fn produced(&self) -> u32 {
        self.word(self.producer).load(Ordering::Acquire)
    }

    fn consumed(&self) -> u32 {
        self.word(self.consumer).load(Ordering::Acquire)
    }

    fn flags(&self) -> u32 {
        self.word(self.flags).load(Ordering::Relaxed)
    }

    /// Entries that were produced and not consumed.
    fn used(&self) -> u32 {
        self.produced().wrapping_sub(self.consumed())
    }

    fn entry(&self, number: u32) -> NonNull<T> {
        let at = (number & (self.size - 1)) as usize;
        // SAFETY: the mapping has that many entries.
        unsafe { self.memory.add(self.entries).cast::<T>().add(at) }
    }

    /// Writes an entry that is not produced yet.
    fn write(&mut self, number: u32, entry: T) {
        // SAFETY: it lies in the mapping, and the kernel does not look at it before it is produced.
        unsafe { self.entry(number).write(entry) }
    }

    /// An entry that the kernel has produced, and that is not consumed yet.
    fn read(&self, number: u32) -> T {
        // SAFETY: it lies in the mapping, and the kernel does not write to it before it is consumed.
        unsafe { self.entry(number).read() }
    }

    /// Lets the kernel have what was written.
    fn produce(&mut self, count: u32) {
        self.word(self.producer).store(self.produced().wrapping_add(count), Ordering::Release);
    }

    /// Lets the kernel have the place of what was read.
    fn consume(&mut self, count: u32) {
        self.word(self.consumer).store(self.consumed().wrapping_add(count), Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: `mmap` gave these pages, and nobody has them any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.length) };
    }
}
