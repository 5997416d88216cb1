//! A netfilter queue's receiver and executor on two threads, with a closure as the filter.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Inbox, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use portcullis_core::device::{Completion, StageTimes};
use portcullis_core::packet::{Action, Batch, Verdicts};
use portcullis_io::live::{ExecutedCounts, Executor, ReceivedCounts, Receiver};
use portcullis_io::nfqueue::{QueueExecutor, QueueOptions, QueueReceiver, open};
use portcullis_live_tests::{Namespace, Suite, Veth, create_link};
pub use portcullis_live_tests::{QUIET_TIME, TIMEOUT};

/// Begins a suite, such as `nfqueue: verdicts`.
pub fn begin(name: &'static str) -> Option<Suite> {
    Suite::begin(name, "nfqueue", &["iptables-legacy", "ip6tables-legacy"])
}

/// Two namespaces and a link between them.
pub struct Link {
    pub left: Namespace,
    pub right: Namespace,
    pub veth: Veth,
}

impl Link {
    pub fn new() -> Link {
        let (left, right, veth) = create_link();
        Link { left, right, veth }
    }

    /// Creates a link whose datagrams go to queue 0, where they leave (`OUTPUT`, on the left) or
    /// where they arrive (`INPUT`, on the right), and sockets that send datagrams over it.
    pub fn queued(chain: &str, ipv6: bool) -> (Link, Numbered) {
        let link = Link::new();
        rule(link.end(chain), &format!("{chain} -p udp -j NFQUEUE --queue-num 0"));
        let right = &link.veth.right;
        let address = if ipv6 { right.ipv6().into() } else { right.ipv4().into() };
        let numbered = Numbered::between(&link.left, &link.right, address);
        (link, numbered)
    }

    /// Returns the namespace whose rules [`Link::queued`] sets for a chain.
    pub fn end(&self, chain: &str) -> &Namespace {
        if chain == "OUTPUT" { &self.left } else { &self.right }
    }
}

/// Adds a rule for IPv4 and IPv6, such as `OUTPUT -p udp -j NFQUEUE --queue-num 0`.
pub fn rule(namespace: &Namespace, rule: &str) {
    for program in ["iptables-legacy", "ip6tables-legacy"] {
        rule_of(namespace, program, rule);
    }
}

/// Adds a rule with `iptables-legacy` or `ip6tables-legacy`.
pub fn rule_of(namespace: &Namespace, program: &str, rule: &str) {
    let mut command: Command = namespace.command(program);
    let output = command.args(["-w", "-A"]).args(rule.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} -A {rule}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Counters of a finished lane.
#[derive(Debug)]
pub struct Outcome {
    pub received: ReceivedCounts,
    pub executed: ExecutedCounts,
    pub fallen_back: u64,
    /// Length of the longest packet.
    pub longest: usize,
}

/// A queue with a filter, on two threads.
pub struct Lane {
    stop: Arc<AtomicBool>,
    receiver: JoinHandle<ReceivedCounts>,
    executor: JoinHandle<(QueueExecutor, usize)>,
}

impl Lane {
    /// Opens a queue in a namespace. The filter returns one action for each packet.
    pub fn start(
        namespace: &Namespace,
        options: QueueOptions,
        filter: impl FnMut(&mut Batch) -> Vec<u8> + Send + 'static,
    ) -> Lane {
        let (mut receiver, executor) = namespace.run(|| open(&options)).unwrap_or_else(|e| panic!("{e}"));
        let stop = Arc::new(AtomicBool::new(false));
        let (batches, inbox) = channel();
        let is_stopped = stop.clone();
        let receiver = std::thread::spawn(move || {
            while !is_stopped.load(Ordering::Relaxed) {
                receiver.wait(Duration::from_millis(5)).unwrap();
                receiver.receive(options.batch).unwrap();
                if let Some(batch) = receiver.take_batch() {
                    batches.send(batch).unwrap();
                }
            }
            receiver.received()
        });
        let executor = std::thread::spawn(move || execute(executor, &inbox, filter));
        Lane { stop, receiver, executor }
    }

    /// Ends both threads, after every received packet has its verdict.
    pub fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        let received = self.receiver.join().unwrap();
        let (mut executor, longest) = self.executor.join().unwrap();
        executor.poll().unwrap();
        let (executed, fallen_back) = (*executor.executed(), executor.fallback_count());
        assert_eq!(executed.all(), received.packets, "every packet is counted once");
        Outcome { received, executed, fallen_back, longest }
    }
}

fn execute(
    mut executor: QueueExecutor,
    batches: &Inbox<Batch>,
    mut filter: impl FnMut(&mut Batch) -> Vec<u8>,
) -> (QueueExecutor, usize) {
    let mut longest = 0;
    for mut batch in batches {
        longest = batch.packets().map(<[u8]>::len).max().unwrap_or(0).max(longest);
        let actions = filter(&mut batch);
        executor.execute(completion(batch, actions)).unwrap();
    }
    (executor, longest)
}

/// Returns a batch with its verdicts, as a device completes it.
pub fn completion(batch: Batch, actions: Vec<u8>) -> Completion {
    Completion { batch, verdicts: Verdicts::new(actions, Vec::new()), times: StageTimes::default() }
}

/// Passes every packet of a batch.
pub fn pass_all(executor: &mut QueueExecutor, batch: Batch) {
    let actions = vec![Action::Pass as u8; batch.len()];
    executor.execute(completion(batch, actions)).unwrap();
}

/// Returns a filter with this verdict for every packet.
pub fn all(action: Action) -> impl FnMut(&mut Batch) -> Vec<u8> + Send + 'static {
    move |batch| vec![action as u8; batch.len()]
}

/// Receives exactly `packets` packets into one batch.
pub fn take(receiver: &mut QueueReceiver, packets: usize) -> Batch {
    let mut got = 0;
    let started = std::time::Instant::now();
    while got < packets {
        assert!(started.elapsed() < TIMEOUT, "{got} of {packets} packets were received");
        receiver.wait(Duration::from_millis(50)).unwrap();
        got += receiver.receive(packets - got).unwrap();
    }
    receiver.take_batch().unwrap()
}

/// Returns the offset of the transport header in an IP packet without extension headers.
pub fn transport(packet: &[u8]) -> usize {
    match packet[12..14] {
        [0x08, 0x00] => 14 + usize::from(packet[14] & 0xf) * 4,
        [0x86, 0xdd] => 14 + 40,
        _ => panic!("neither IPv4 nor IPv6: {packet:02x?}"),
    }
}

/// Returns the number in a datagram that [`Numbered`] sent.
pub fn number(packet: &[u8]) -> u32 {
    let at = transport(packet) + 8;
    u32::from_be_bytes(packet[at..at + 4].try_into().unwrap())
}

/// Sends numbered datagrams and tells which arrive.
pub struct Numbered {
    sender: UdpSocket,
    receiver: UdpSocket,
}

impl Numbered {
    /// Opens sockets from the left end of a link to the right one.
    pub fn over(link: &Link) -> Numbered {
        Numbered::between(&link.left, &link.right, link.veth.right.ipv4().into())
    }

    pub fn between(from: &Namespace, to: &Namespace, address: IpAddr) -> Numbered {
        let any: IpAddr =
            if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
        let receiver = to.run(|| UdpSocket::bind((address, 0)).unwrap());
        let (size, length): (libc::c_int, _) = (16 << 20, size_of::<libc::c_int>() as libc::socklen_t);
        let at = (&raw const size).cast();
        // SAFETY: an int that outlives the call, with its length.
        let set = unsafe { libc::setsockopt(receiver.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, at, length) };
        assert_eq!(set, 0, "the receive buffer cannot be enlarged");
        let sender = from.run(|| UdpSocket::bind((any, 0)).unwrap());
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        Numbered { sender, receiver }
    }

    /// Returns the address that the datagrams are sent to.
    pub fn address(&self) -> SocketAddr {
        self.receiver.local_addr().unwrap()
    }

    pub fn send(&self, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            // The queue may refuse a packet, and a sender in the same namespace gets the error.
            let _ = self.sender.send(&number.to_be_bytes());
        }
    }

    /// Sends these numbers one at a time, and returns the length of each datagram that arrives.
    pub fn lengths<const N: usize>(&self, numbers: [u32; N]) -> [usize; N] {
        self.receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
        numbers.map(|number| {
            self.send([number]);
            self.receiver.recv(&mut [0; 2048]).unwrap()
        })
    }

    /// Returns the numbers that arrive until all wanted ones have, or none arrives for a while.
    pub fn arrived(&self, wanted: &BTreeSet<u32>) -> BTreeSet<u32> {
        let mut arrived = BTreeSet::new();
        let mut bytes = [0; 2048];
        loop {
            let has_all = arrived.len() >= wanted.len();
            self.receiver.set_read_timeout(Some(if has_all { QUIET_TIME } else { TIMEOUT / 4 })).unwrap();
            match self.receiver.recv(&mut bytes) {
                Ok(length) => {
                    assert!(length >= 4);
                    let number = u32::from_be_bytes(bytes[..4].try_into().unwrap());
                    assert!(arrived.insert(number), "{number} arrived twice");
                }
                Err(_) => return arrived,
            }
        }
    }
}
