//! State shared by a queue's receiver, its executor and the batches between them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::NfqueueError;
use super::message::{self, Config, KernelAck, Message, Verdict};
use super::socket::Socket;
use super::verdict_datagram::VerdictDatagram;
use crate::live::{LiveError, OwnerProcess};

/// Number of attempts to send a datagram while the kernel is out of memory, and the pause between
/// them.
const SEND_ATTEMPTS: usize = 20;
const SEND_RETRY_DELAY: Duration = Duration::from_millis(5);

/// Time limit for draining the kernel's error reports after unbinding.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Added to the last packet ID to accept all waiting packets: far more than can be waiting, and
/// little enough that the kernel's signed comparison still sees a greater ID.
const ACCEPT_ALL_AHEAD: u32 = 1 << 30;

/// A bound queue; unbound when dropped.
#[derive(Debug)]
pub(super) struct Queue {
    socket: Socket,
    number: u16,
    /// The verdict on packets that the filter did not judge.
    fallback: Verdict,
    /// Batches whose packets still wait for verdicts.
    open: Mutex<OpenBatches>,
    /// Packets that got the fallback verdict.
    fallbacks: AtomicU64,
    /// Packets that the kernel no longer had when they were accepted.
    gone: AtomicU64,
    /// ID of the last packet received.
    last_id: AtomicU32,
    /// Set once the kernel refuses verdicts from this socket.
    is_lost: AtomicBool,
    /// Set once the queue has been unbound.
    is_unbound: AtomicBool,
}

#[derive(Debug, Default)]
struct OpenBatches {
    next: u64,
    batches: BTreeSet<u64>,
}

impl Queue {
    /// Binds the queue with this number.
    pub fn bind(number: u16, config: &Config, receive_buffer: usize) -> Result<Queue, NfqueueError> {
        let failed = |what| move |error| NfqueueError::System { queue: number, what, error };
        let socket = Socket::open().map_err(|error| match error.raw_os_error() {
            Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => NfqueueError::NoSupport { queue: number },
            _ => failed("opening a netlink socket")(error),
        })?;
        // A datagram contains at most two of the longest packets.
        socket.set_buffers(receive_buffer, 1 << 20).map_err(failed("setting the sizes of its buffers"))?;
        let mut bytes = Vec::new();
        message::config(&mut bytes, number, 0, config);
        socket.send(&[IoSlice::new(&bytes)]).map_err(failed("binding it"))?;
        match read_answer(&socket).map_err(failed("reading the kernel's answer"))? {
            0 => {}
            // The kernel also reports EPERM for a queue that another socket has bound.
            libc::EPERM => {
                let owner = read_table().and_then(|table| Row::find(&table, number));
                return Err(match owner {
                    Some(row) => NfqueueError::Busy {
                        queue: number,
                        port_id: Some(row.port_id),
                        holder: OwnerProcess::of_netlink(libc::NETLINK_NETFILTER, row.port_id),
                    },
                    None => NfqueueError::NotPermitted { queue: number },
                });
            }
            libc::EBUSY => return Err(NfqueueError::Busy { queue: number, port_id: None, holder: None }),
            // The kernel does not know the message type.
            libc::EINVAL => return Err(NfqueueError::NoSupport { queue: number }),
            libc::EOPNOTSUPP => return Err(NfqueueError::OldKernel { queue: number }),
            other => return Err(failed("binding it")(io::Error::from_raw_os_error(other))),
        }
        Ok(Queue {
            socket,
            number,
            fallback: if config.fail_open { Verdict::Accept } else { Verdict::Drop },
            open: Mutex::default(),
            fallbacks: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            last_id: AtomicU32::new(0),
            is_lost: AtomicBool::new(false),
            is_unbound: AtomicBool::new(false),
        })
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    pub fn fallbacks(&self) -> u64 {
        self.fallbacks.load(Relaxed)
    }

    /// Takes the number of packets that were gone when accepted, since the last call.
    pub fn take_gone(&self) -> u64 {
        self.gone.swap(0, Relaxed)
    }

    /// Records the ID of the last packet received.
    pub fn set_last_id(&self, id: u32) {
        self.last_id.store(id, Relaxed);
    }

    fn open(&self) -> MutexGuard<'_, OpenBatches> {
        // The set is valid at all times, so a panic elsewhere does not spoil it.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a batch whose packets arrived after those of all earlier batches; returns its
    /// number.
    pub fn register_batch(&self) -> u64 {
        let mut open = self.open();
        let batch = open.next;
        open.next += 1;
        open.batches.insert(batch);
        batch
    }

    /// Whether no packet of an earlier batch is waiting. Once true, this stays true.
    pub fn is_oldest(&self, batch: u64) -> bool {
        self.open().batches.first() == Some(&batch)
    }

    /// Unregisters a batch whose packets all have verdicts.
    pub fn unregister_batch(&self, batch: u64) {
        self.open().batches.remove(&batch);
    }

    /// Gives packets the fallback verdict, in order of arrival. `is_oldest`: no other waiting
    /// packet arrived before the last of them. Errors are ignored: if the kernel accepts no
    /// verdicts, it drops the packets when the socket is closed.
    pub fn give_fallback_verdict(&self, ids: impl Iterator<Item = u32>, is_oldest: bool) {
        let mut datagram = VerdictDatagram::new(self.number, is_oldest);
        let mut packets = 0;
        for id in ids {
            packets += 1;
            datagram.push_uncounted(self.fallback, id);
            if datagram.is_full() {
                let _ = self.send(&mut datagram, &[]);
            }
        }
        let _ = self.send(&mut datagram, &[]);
        self.fallbacks.fetch_add(packets, Relaxed);
    }

    /// Sends the collected verdicts; `arena` holds the bytes of changed packets.
    pub fn send(&self, datagram: &mut VerdictDatagram, arena: &[u8]) -> io::Result<()> {
        let result = datagram.with_datagram(arena, |parts| {
            for _ in 1..SEND_ATTEMPTS {
                match self.socket.send(parts) {
                    Err(error) if is_transient(&error) => std::thread::sleep(SEND_RETRY_DELAY),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    result => return result,
                }
            }
            self.socket.send(parts)
        });
        datagram.clear();
        result
    }

    /// Records an acknowledgement from the kernel.
    pub fn record_ack(&self, read_answer: KernelAck) {
        if read_answer.error == 0 {
            return;
        }
        if let libc::EPERM | libc::ENODEV = read_answer.error {
            self.is_lost.store(true, Relaxed);
        }
        self.gone.fetch_add(u64::from(VerdictDatagram::accepted_by(read_answer.sequence)), Relaxed);
    }

    /// Fails if the kernel refuses verdicts.
    pub fn check(&self) -> Result<(), LiveError> {
        if !self.is_lost.load(Relaxed) {
            return Ok(());
        }
        let words = "the kernel refuses verdicts from this process; it has to keep the capability CAP_NET_ADMIN \
                     while the queue is bound";
        Err(self.error("giving verdicts", io::Error::new(io::ErrorKind::PermissionDenied, words)))
    }

    /// Wraps an error of the running queue.
    pub fn error(&self, what: &str, error: io::Error) -> LiveError {
        LiveError::System { what: format!("netfilter queue {}: {what}", self.number), error }
    }

    /// Unbinds the queue and reads the kernel's remaining error reports, skipping packets that
    /// nobody will filter.
    pub fn finish(&self) {
        self.unbind();
        let mut bytes = [0; 256];
        // After unbinding nothing new arrives, unless unbinding was refused.
        let until = Instant::now() + DRAIN_TIMEOUT;
        while Instant::now() < until {
            match self.socket.receive_one(&mut bytes) {
                Ok(length) => {
                    if let Ok(Message::Ack(read_answer)) = message::decode(&bytes[..length]) {
                        self.record_ack(read_answer);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                // The socket's queue is empty.
                Err(_) => return,
            }
        }
    }

    /// Unbinds the queue, once.
    fn unbind(&self) {
        if self.is_unbound.swap(true, Relaxed) {
            return;
        }
        let mut bytes = Vec::new();
        if self.fallback == Verdict::Accept {
            // On unbinding, the kernel drops waiting packets. With fail-open, accept all of them
            // first.
            let last = self.last_id.load(Relaxed).wrapping_add(ACCEPT_ALL_AHEAD);
            message::verdict_batch(&mut bytes, self.number, 0, Verdict::Accept, last);
        }
        // Closing the socket is not always enough: a child process between fork and exec may still
        // hold it.
        message::release(&mut bytes, self.number, 0);
        let _ = self.socket.send(&[IoSlice::new(&bytes)]);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.unbind();
    }
}

/// Whether the error is transient, out of memory, so that trying again may help.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN))
}

/// Reads the error in the kernel's answer to the first message; 0 for success. The kernel has
/// answered before the send returned, so if the first datagram is a packet, there was no error; the
/// packet stays in the queue.
fn read_answer(socket: &Socket) -> io::Result<i32> {
    let mut bytes = [0; 256];
    let length = loop {
        match socket.peek(&mut bytes) {
            Ok(length) => break length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
            // So many packets arrived that some were dropped already.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    };
    match message::decode(&bytes[..length]) {
        Ok(Message::Ack(read_answer)) => Ok(read_answer.error),
        _ => Ok(0),
    }
}

/// Opens the kernel's table of queues, of the calling thread's network namespace.
pub(super) fn open_table() -> io::Result<File> {
    File::open("/proc/thread-self/net/netfilter/nfnetlink_queue")
}

fn read_table() -> Option<String> {
    read(&open_table().ok()?)
}

/// Reads all of an open table.
pub(super) fn read(table: &File) -> Option<String> {
    let mut bytes = vec![0; 4096];
    let mut length = 0;
    loop {
        match table.read_at(&mut bytes[length..], length as u64).ok()? {
            0 => break,
            more => length += more,
        }
        if length == bytes.len() {
            bytes.resize(length * 2, 0);
        }
    }
    bytes.truncate(length);
    String::from_utf8(bytes).ok()
}

/// A line of the kernel's table of queues: `seq_show`, `net/netfilter/nfnetlink_queue.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub port_id: u32,
    /// Packets dropped because the queue was full, and because the socket's buffer was full; modulo
    /// 2^32 each.
    pub dropped: [u32; 2],
    /// ID of the last packet.
    pub last_id: u32,
}

impl Row {
    /// Finds the line of a queue.
    pub fn find(table: &str, queue: u16) -> Option<Row> {
        table.lines().find_map(|line| {
            // Queue number, port ID, queue length, copy mode, copy range, dropped by the queue,
            // dropped by the socket, last ID, 1.
            let fields: Vec<u32> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
            match fields[..] {
                [number, port_id, _, _, _, queue_dropped, user_dropped, last_id, ..] if number == u32::from(queue) => {
                    Some(Row { port_id, dropped: [queue_dropped, user_dropped], last_id })
                }
                _ => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_by_queue_number() {
        let table = "    3   4097     0 2 65531     7     9      120  1\n   13 4294963199     2 2   100     0     0        2  1\n";
        assert_eq!(Row::find(table, 3), Some(Row { port_id: 4097, dropped: [7, 9], last_id: 120 }));
        assert_eq!(Row::find(table, 13), Some(Row { port_id: 4_294_963_199, dropped: [0, 0], last_id: 2 }));
        assert_eq!(Row::find(table, 1), None);
        assert_eq!(Row::find("", 0), None);
        assert_eq!(Row::find("3 1\nx y z\n\n3 1 2 3 4 5 6 -1 1", 3), None);
    }
}
