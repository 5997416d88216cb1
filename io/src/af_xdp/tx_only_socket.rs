//! Transmit-only sockets, in copy mode, on a second registration of the UMEM's memory.
//!
//! All sockets of a UMEM are bound in the mode of the first one (`xp_assign_dev_shared`,
//! `net/xdp/xsk_buff_pool.c`). Once that is zero-copy, an interface whose driver has no zero-copy
//! mode (such as veth, the path into the kernel's stack) would be refused; and a driver that has it
//! would look for frames to receive into although packets only leave there, so that its queue would
//! stop receiving. So these sockets transmit copies, from memory registered with the kernel a
//! second time. To the kernel this is another UMEM of the same pages; ownership of frames is
//! tracked in this process only, as for the first.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use xsk_rs::umem::frame::FrameDesc;

use super::socket;
use super::umem::Umem;

/// Entries of the fill ring, which is mandatory but unused.
const FILL: u32 = 2;

/// A socket that transmits copies of a UMEM's frames.
#[derive(Debug)]
pub(crate) struct TxOnlySocket {
    tx: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    socket: Arc<OwnedFd>,
    umem: Arc<Umem>,
}

impl TxOnlySocket {
    /// Opens a socket on a queue of an interface, given by index. `first` is the first
    /// transmit-only socket of the same UMEM, if there is one. The rings have `entries` entries, a
    /// power of two.
    ///
    /// # Errors
    /// The system's; EBUSY if the queue is in use or is being released
    /// ([`socket::retry_while_busy`]).
    pub fn open(
        umem: &Arc<Umem>,
        first: Option<&OwnedFd>,
        (interface, queue): (u32, u32),
        entries: u32,
        multi_buffer: bool,
    ) -> io::Result<TxOnlySocket> {
        // SAFETY: the call takes no pointers.
        let made = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created; nothing else owns it.
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
        // The other sockets inherit the flags of the first.
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
        // SAFETY: pointer and length describe a live `sockaddr_xdp`.
        if unsafe { libc::bind(fd, (&raw const address).cast(), length) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(TxOnlySocket { tx, completion, socket: Arc::new(made), umem: umem.clone() })
    }

    /// File descriptor for waking up the kernel.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The socket, for the sockets opened after the first.
    pub fn socket(&self) -> Arc<OwnedFd> {
        self.socket.clone()
    }

    /// Number of free entries of the TX ring.
    pub fn free(&self) -> usize {
        (self.tx.size - self.tx.used()) as usize
    }

    /// Whether the kernel transmits only when woken up.
    pub fn needs_wakeup(&self) -> bool {
        self.tx.flags() & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Puts frames into the TX ring, as many as fit; returns their number.
    ///
    /// # Safety
    /// The frames must belong to the UMEM, and the ring takes over those it accepts.
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

    /// Takes transmitted frames; returns their number.
    pub fn take_completed(&mut self, into: &mut [FrameDesc]) -> usize {
        let count = (self.completion.used() as usize).min(into.len());
        let begin = self.completion.consumed();
        for (at, desc) in into[..count].iter_mut().enumerate() {
            let address = self.completion.read(begin.wrapping_add(at as u32));
            *desc = self.umem.initial_descriptor(address as usize);
        }
        self.completion.consume(count as u32);
        count
    }
}

/// A single-producer, single-consumer ring shared with the kernel: `struct xdp_ring` of
/// `net/xdp/xsk_queue.h`.
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

// SAFETY: the ring owns the mapping, and the kernel accepts accesses from any thread.
unsafe impl<T> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    fn map(fd: RawFd, which: libc::off_t, at: &libc::xdp_ring_offset, size: u32) -> io::Result<Ring<T>> {
        let length = at.desc as usize + size as usize * size_of::<T>();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
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
        // SAFETY: `at` is an offset given by the kernel, valid while the mapping is; both sides
        // access the word atomically.
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

    /// Number of produced entries that are not consumed.
    fn used(&self) -> u32 {
        self.produced().wrapping_sub(self.consumed())
    }

    fn entry(&self, number: u32) -> NonNull<T> {
        let at = (number & (self.size - 1)) as usize;
        // SAFETY: the index is within the mapping's entries.
        unsafe { self.memory.add(self.entries).cast::<T>().add(at) }
    }

    /// Writes an entry that has not been produced yet.
    fn write(&mut self, number: u32, entry: T) {
        // SAFETY: the entry lies in the mapping, and the kernel does not read it before it is
        // produced.
        unsafe { self.entry(number).write(entry) }
    }

    /// Reads an entry that the kernel has produced and that has not been consumed yet.
    fn read(&self, number: u32) -> T {
        // SAFETY: the entry lies in the mapping, and the kernel does not write it before it is
        // consumed.
        unsafe { self.entry(number).read() }
    }

    /// Publishes written entries to the kernel.
    fn produce(&mut self, count: u32) {
        self.word(self.producer).store(self.produced().wrapping_add(count), Ordering::Release);
    }

    /// Returns read entries to the kernel.
    fn consume(&mut self, count: u32) {
        self.word(self.consumer).store(self.consumed().wrapping_add(count), Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: `mmap` returned this mapping, and nothing uses it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.length) };
    }
}
