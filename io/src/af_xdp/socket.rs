//! Creating an AF_XDP socket on a queue of an interface.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use xsk_rs::config::{BindFlags, Interface, LibxdpFlags, QueueSize, SocketConfig};
use xsk_rs::socket::{RxQueue, Socket, TxQueue};
use xsk_rs::umem::{CompQueue, FillQueue};

use super::XdpError;
use super::error::system;
use super::umem::Umem;

/// How long to retry while a previous socket on the queue is being released.
const BUSY_RETRY_TIME: Duration = Duration::from_secs(2);

/// How frames get from the driver into the UMEM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopyMode {
    /// Zero-copy if the driver supports it, otherwise copied by the kernel.
    #[default]
    Auto,
    /// Zero-copy only.
    ZeroCopy,
    /// Copied by the kernel.
    Copy,
}

/// Busy polling: the kernel polls the queue while the program waits for packets, with interrupts
/// disabled (`SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL`, `SO_BUSY_POLL_BUDGET`; Linux 5.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyPoll {
    /// Duration of one poll in microseconds.
    pub microseconds: u32,
    /// Maximum number of packets per poll.
    pub budget: u32,
}

/// Options of a socket.
#[derive(Debug, Clone)]
pub(crate) struct SocketOptions {
    pub copying: CopyMode,
    /// Whether packets may span several frames.
    pub multi_buffer: bool,
    pub rx_size: u32,
    pub tx_size: u32,
    pub busy_poll: Option<BusyPoll>,
}

/// The rings of a socket. Its fill and completion rings are not shared: no two sockets of a run use
/// one queue.
#[derive(Debug)]
pub(crate) struct Rings {
    pub rx: RxQueue,
    pub tx: TxQueue,
    pub fill: FillQueue,
    pub completion: CompQueue,
    /// Whether the socket was bound in zero-copy mode.
    pub is_zero_copy: bool,
}

/// Creates a socket and binds it to a queue.
pub(crate) fn open(umem: &Umem, interface: &str, queue: u32, options: &SocketOptions) -> Result<Rings, XdpError> {
    let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
    flags.set(BindFlags::XDP_COPY, options.copying == CopyMode::Copy);
    flags.set(BindFlags::XDP_ZEROCOPY, options.copying == CopyMode::ZeroCopy);
    flags.set(BindFlags::XDP_USE_SG, options.multi_buffer);
    let config = SocketConfig::builder()
        .rx_queue_size(size(options.rx_size))
        .tx_queue_size(size(options.tx_size))
        // This crate attaches its own XDP program.
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(flags)
        .build();
    let name = CString::new(interface).expect("the kernel knows it by this name");
    let made = retry_while_busy(|| {
        // SAFETY: no other socket of this process is bound to the queue, so the rings are not
        // shared.
        let made = unsafe { Socket::new(config, umem.inner(), &Interface::new(name.clone()), queue) };
        made.map_err(|error| system(&error))
    });
    let (tx, rx, rings) = made.map_err(|error| match error.raw_os_error() {
        // Also without --zero-copy: all sockets of a UMEM are bound in the mode of the first one.
        Some(libc::EOPNOTSUPP | libc::EINVAL) if options.copying != CopyMode::Copy => {
            XdpError::NoZeroCopy { interface: interface.into(), queue }
        }
        _ => XdpError::socket(interface, queue, &error),
    })?;
    let Some((fill, completion)) = rings else {
        return Err(XdpError::socket(interface, queue, &io::Error::from_raw_os_error(libc::EBUSY)));
    };
    let fd = rx.fd().as_raw_fd();
    if let Some(busy_poll) = options.busy_poll {
        set_busy_poll(fd, busy_poll).map_err(|error| XdpError::Option {
            interface: interface.into(),
            queue,
            what: "busy polling is refused",
            error,
        })?;
    }
    // Kernels without XDP_OPTIONS predate zero-copy drivers.
    let is_zero_copy =
        get_option(fd, libc::SOL_XDP, libc::XDP_OPTIONS).is_ok_and(|it| it & libc::XDP_OPTIONS_ZEROCOPY != 0);
    Ok(Rings { rx, tx, fill, completion, is_zero_copy })
}

/// Retries `open` for some time while the queue is busy: the kernel releases a closed socket's
/// queue asynchronously.
pub(super) fn retry_while_busy<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && begun.elapsed() < BUSY_RETRY_TIME => {
                sleep(Duration::from_millis(20));
            }
            ended => return ended,
        }
    }
}

// `asm-generic/socket.h`.
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;

fn size(entries: u32) -> QueueSize {
    QueueSize::new(entries).expect("rings have a power of two of entries")
}

fn set_busy_poll(fd: RawFd, busy_poll: BusyPoll) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, 1)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, busy_poll.microseconds)?;
    set_option(fd, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, busy_poll.budget)
}

/// Takes the socket's pending error (SO_ERROR).
pub(crate) fn pending_error(fd: RawFd) -> Option<i32> {
    get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR).ok().map(|error| error as i32).filter(|error| *error != 0)
}

/// Makes the kernel transmit from a socket's TX ring, as much as it does per call. Transient lack
/// of resources is not an error.
pub(crate) fn wake(fd: RawFd) -> io::Result<()> {
    // SAFETY: with length 0 and without an address nothing is read.
    let result = unsafe { libc::sendto(fd, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    if result >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOBUFS | libc::EAGAIN | libc::EBUSY | libc::EINTR) => Ok(()),
        _ => Err(error),
    }
}

/// Makes the kernel poll the queue once, if busy polling is enabled. Errors show when waiting for
/// the socket.
pub(crate) fn poll(fd: RawFd) {
    // SAFETY: with length 0 and without an address nothing is written.
    unsafe {
        libc::recvfrom(fd, std::ptr::null_mut(), 0, libc::MSG_DONTWAIT, std::ptr::null_mut(), std::ptr::null_mut())
    };
}

/// Sets a 32-bit socket option.
pub(super) fn set_option(fd: RawFd, level: i32, name: i32, value: u32) -> io::Result<()> {
    set(fd, level, name, &value)
}

/// Sets a socket option whose value is a structure of integers.
pub(super) fn set<T: Copy>(fd: RawFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the call reads `size` bytes of the live `value`.
    let result = unsafe { libc::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get_option(fd: RawFd, level: i32, name: i32) -> io::Result<u32> {
    let mut value = 0;
    get(fd, level, name, &mut value)?;
    Ok(value)
}

/// Reads a socket option whose value is a structure of integers.
pub(super) fn get<T: Copy>(fd: RawFd, level: i32, name: i32, value: &mut T) -> io::Result<()> {
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the call writes at most `size` bytes to the live `value`.
    let result = unsafe { libc::getsockopt(fd, level, name, std::ptr::from_mut(value).cast(), &raw mut size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
