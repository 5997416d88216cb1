//! What a queue's receiver, its executor and the batches between them have in common.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::answers::Answers;
use super::error::NfqueueError;
use super::message::{self, Config, KernelAck, Message, Verdict};
use super::socket::Socket;
use crate::live::{LiveError, OwnerProcess};

/// How often a datagram is offered that the kernel has no memory for, and how long it is waited in between.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// For how long the kernel's last words are listened to, where they do not end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Far more packets than can be waiting, and few enough for the kernel to see that their numbers are greater.
const AHEAD: u32 = 1 << 30;

/// A queue that is ours, until nobody holds this any more.
#[derive(Debug)]
pub(super) struct Queue {
    socket: Socket,
    number: u16,
    /// What packets get that nobody has a verdict on.
    fallback: Verdict,
    /// Which batches' packets may wait for verdicts yet.
    open: Mutex<Open>,
    /// Packets that got the fallback verdict.
    fell_back: AtomicU64,
    /// Packets that were gone when they were to be accepted.
    gone: AtomicU64,
    /// The number of the packet that was taken last.
    last_id: AtomicU32,
    /// Whether the kernel takes no verdicts of ours any more.
    is_lost: AtomicBool,
    /// Whether we have given it up.
    is_given_up: AtomicBool,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    batches: BTreeSet<u64>,
}

impl Queue {
    /// Takes the queue with this number.
    pub fn take(number: u16, config: &Config, receive_buffer: usize) -> Result<Queue, NfqueueError> {
        let failed = |what| move |error| NfqueueError::System { queue: number, what, error };
        let socket = Socket::open().map_err(|error| match error.raw_os_error() {
            Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => NfqueueError::NoSupport { queue: number },
            _ => failed("opening a netlink socket")(error),
        })?;
        // What is sent at once has two of the longest packets at the most.
        socket.set_buffers(receive_buffer, 1 << 20).map_err(failed("setting the length of its buffers"))?;
        let mut bytes = Vec::new();
        message::config(&mut bytes, number, 0, config);
        socket.send(&[IoSlice::new(&bytes)]).map_err(failed("asking for it"))?;
        match answer(&socket).map_err(failed("reading the kernel's answer"))? {
            0 => {}
            // A queue that somebody has, too, is not permitted to be taken.
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
            // Nobody knows the message's type.
            libc::EINVAL => return Err(NfqueueError::NoSupport { queue: number }),
            libc::EOPNOTSUPP => return Err(NfqueueError::OldKernel { queue: number }),
            other => return Err(failed("taking it")(io::Error::from_raw_os_error(other))),
        }
        Ok(Queue {
            socket,
            number,
            fallback: if config.fail_open { Verdict::Accept } else { Verdict::Drop },
            open: Mutex::default(),
            fell_back: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            last_id: AtomicU32::new(0),
            is_lost: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
        })
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    pub fn fell_back(&self) -> u64 {
        self.fell_back.load(Relaxed)
    }

    /// Packets that were gone when they were to be accepted, since this was asked last.
    pub fn take_gone(&self) -> u64 {
        self.gone.swap(0, Relaxed)
    }

    /// Notes that packets up to this one were taken.
    pub fn took(&self, id: u32) {
        self.last_id.store(id, Relaxed);
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Whoever panicked with it left numbers that are right.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a batch is on its way, whose packets came behind those of all batches before; gives its number.
    pub fn opened(&self) -> u64 {
        let mut open = self.open();
        let batch = open.next;
        open.next += 1;
        open.batches.insert(batch);
        batch
    }

    /// Whether no packet waits that came before those of this batch. That stays so.
    pub fn is_oldest(&self, batch: u64) -> bool {
        self.open().batches.first() == Some(&batch)
    }

    /// Notes that all packets of a batch have verdicts.
    pub fn settled(&self, batch: u64) {
        self.open().batches.remove(&batch);
    }

    /// Gives packets the fallback verdict, in the order in which they came. `is_oldest`: no other packet waits that came
    /// before the last of them. Where the kernel takes no verdicts, it has given up the queue or will when the socket is
    /// closed, and drops them.
    pub fn fall_back(&self, ids: impl Iterator<Item = u32>, is_oldest: bool) {
        let mut answers = Answers::new(self.number, is_oldest);
        let mut packets = 0;
        for id in ids {
            packets += 1;
            answers.uncounted(self.fallback, id);
            if answers.is_full() {
                let _ = self.send(&mut answers, &[]);
            }
        }
        let _ = self.send(&mut answers, &[]);
        self.fell_back.fetch_add(packets, Relaxed);
    }

    /// Sends what has been gathered; packets' own bytes are in `arena`.
    pub fn send(&self, answers: &mut Answers, arena: &[u8]) -> io::Result<()> {
        let result = answers.with_datagram(arena, |pieces| {
            for _ in 1..ATTEMPTS {
                match self.socket.send(pieces) {
                    Err(error) if is_passing(&error) => std::thread::sleep(PAUSE),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    result => return result,
                }
            }
            self.socket.send(pieces)
        });
        answers.clear();
        result
    }

    /// Notes what the kernel said to a message.
    pub fn answered(&self, answer: KernelAck) {
        if answer.error == 0 {
            return;
        }
        if let libc::EPERM | libc::ENODEV = answer.error {
            self.is_lost.store(true, Relaxed);
        }
        self.gone.fetch_add(u64::from(Answers::accepted(answer.sequence)), Relaxed);
    }

    /// An error where the kernel takes no verdicts any more.
    pub fn check(&self) -> Result<(), LiveError> {
        if !self.is_lost.load(Relaxed) {
            return Ok(());
        }
        let words = "the kernel takes no verdicts from this program any more; it has to keep the capability CAP_NET_ADMIN \
                     for as long as it has the queue";
        Err(self.error("giving verdicts", io::Error::new(io::ErrorKind::PermissionDenied, words)))
    }

    /// What goes wrong with the queue later.
    pub fn error(&self, what: &str, error: io::Error) -> LiveError {
        LiveError::System { what: format!("netfilter queue {}: {what}", self.number), error }
    }

    /// Gives the queue up, and notes what the kernel has said to messages of ours until then: its words lie behind packets,
    /// which nobody will filter any more.
    pub fn finish(&self) {
        self.give_up();
        let mut bytes = [0; 256];
        // Nothing new comes, unless it was refused.
        let until = Instant::now() + LAST_WORDS;
        while Instant::now() < until {
            match self.socket.next(&mut bytes) {
                Ok(length) => {
                    if let Ok(Message::Ack(answer)) = message::decode(&bytes[..length]) {
                        self.answered(answer);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                // There is nothing more.
                Err(_) => return,
            }
        }
    }

    /// Has the kernel end it, once.
    fn give_up(&self) {
        if self.is_given_up.swap(true, Relaxed) {
            return;
        }
        let mut bytes = Vec::new();
        if self.fallback == Verdict::Accept {
            // The kernel drops what waits when the queue is given up. So that it does not, accept first what came up to now.
            let last = self.last_id.load(Relaxed).wrapping_add(AHEAD);
            message::verdict_batch(&mut bytes, self.number, 0, Verdict::Accept, last);
        }
        // Closing the socket would do, but a child process has it, too, for as long as it has not begun its program.
        message::release(&mut bytes, self.number, 0);
        let _ = self.socket.send(&[IoSlice::new(&bytes)]);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Whether it is worth trying again: there was no memory.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN))
}

/// The number of the error that the kernel answered the first message with; 0 for none. It has answered when the message was
/// sent, and what comes first otherwise is a packet, which stays there.
fn answer(socket: &Socket) -> io::Result<i32> {
    let mut bytes = [0; 256];
    let length = loop {
        match socket.look(&mut bytes) {
            Ok(length) => break length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
            // So many packets that some are lost already.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    };
    match message::decode(&bytes[..length]) {
        Ok(Message::Ack(answer)) => Ok(answer.error),
        _ => Ok(0),
    }
}

/// The kernel's table of queues, of the network namespace that this thread is in. It stays that of this namespace.
pub(super) fn open_table() -> io::Result<File> {
    File::open("/proc/thread-self/net/netfilter/nfnetlink_queue")
}

fn read_table() -> Option<String> {
    read(&open_table().ok()?)
}

/// All of an open table.
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

/// A line of the kernel's table: `seq_show` of `net/netfilter/nfnetlink_queue.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub port_id: u32,
    /// Packets dropped because the queue was full, and because its program had no room for them; modulo 2^32 each.
    pub dropped: [u32; 2],
    /// The number that the last packet got.
    pub last_id: u32,
}

impl Row {
    /// The line of the queue with this number.
    pub fn find(table: &str, queue: u16) -> Option<Row> {
        table.lines().find_map(|line| {
            // Number, port, length, copy mode, copy range, dropped by the queue, dropped by the program, last number, 1.
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
    fn a_row_is_found_by_its_number() {
        let table = "    3   4097     0 2 65531     7     9      120  1\n   13 4294963199     2 2   100     0     0        2  1\n";
        assert_eq!(Row::find(table, 3), Some(Row { port_id: 4097, dropped: [7, 9], last_id: 120 }));
        assert_eq!(Row::find(table, 13), Some(Row { port_id: 4_294_963_199, dropped: [0, 0], last_id: 2 }));
        assert_eq!(Row::find(table, 1), None);
        assert_eq!(Row::find("", 0), None);
        assert_eq!(Row::find("3 1\nx y z\n\n3 1 2 3 4 5 6 -1 1", 3), None);
    }
}
