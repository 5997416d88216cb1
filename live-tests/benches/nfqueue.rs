//! Benchmarks of netfilter queues: verdicts a second, compared with a loop over the crate `nfq`,
//! which receives one packet and sends one verdict per call. All packets are accepted and end at a
//! full socket. The first part (`waiting`) measures packets that are queued already; the second
//! (`sent`) measures packets sent at full rate, as verdicts per second of processor time, because
//! every side keeps up.
//!
//! `cargo bench -p portcullis-live-tests --features bench --bench nfqueue`, as root, with
//! `iptables-legacy`; arguments after `--` select parts.
#![allow(unsafe_code)]

mod support;

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::os::fd::RawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portcullis::device::{CancelToken, Completion, Dispatch};
use portcullis::packet_io::live::{ExecutedCounts, Executor, Lane, LiveError};
use portcullis::packet_io::nfqueue::{QueueExecutor, QueueOptions, open};
use portcullis::pipeline::live::{BatchPolicy, LaneStats, LiveOptions};
use portcullis::program::facts::Window;
use portcullis_live_tests::{Namespace, Veth, create_link, pin_to_processor, wait_until};
use support::Side;

/// Packets queued when the clock starts: about as many as fit into 200 MiB of kernel memory.
const WAITING: u64 = 20_000;

const ROUNDS: usize = 7;

/// Time for which packets are sent at full rate.
const FLOOD: Duration = Duration::from_secs(1);

const RECEIVE_BUFFER: usize = 256 << 20;

/// Maximum number of packets in the queue.
const MAX_LENGTH: u32 = 1 << 16;

fn main() {
    if !support::prepare() {
        return;
    }
    let bench = Bench::new();
    let waiting = |accept: &Accept<'_>| {
        let started = std::cell::Cell::new(Instant::now());
        let ready = || {
            bench.fill();
            started.set(Instant::now());
        };
        let ended = accept(&ready, &Arc::default(), WAITING).1;
        WAITING as f64 / (ended - started.get()).as_secs_f64()
    };
    let flood = |accept: &Accept<'_>| {
        let is_over = Arc::new(AtomicBool::new(false));
        let before = processor_time(libc::RUSAGE_SELF);
        let (count, sending) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                pin_to_processor(0);
                let started = Instant::now();
                while started.elapsed() < FLOOD {
                    // A receiver without room drops the packet.
                    (0..64).for_each(|_| _ = bench.sender.send(&[0; 22]));
                }
                is_over.store(true, Ordering::Relaxed);
                processor_time(libc::RUSAGE_THREAD)
            });
            let count = accept(&|| {}, &is_over, u64::MAX).0;
            (count, sender.join().unwrap())
        });
        count as f64 / (processor_time(libc::RUSAGE_SELF) - before - sending).as_secs_f64()
    };
    let inline = |ready: &dyn Fn(), is_over: &Arc<AtomicBool>, packets| {
        bench.ours(Dispatch::Inline, Duration::ZERO, ready, is_over, packets)
    };
    let pipelined = |ready: &dyn Fn(), is_over: &Arc<AtomicBool>, packets| {
        bench.ours(Dispatch::Pipelined, Duration::ZERO, ready, is_over, packets)
    };
    let gathered = |ready: &dyn Fn(), is_over: &Arc<AtomicBool>, packets| {
        bench.ours(Dispatch::Pipelined, Duration::from_millis(1), ready, is_over, packets)
    };
    let theirs = |ready: &dyn Fn(), is_over: &Arc<AtomicBool>, packets| bench.theirs(ready, is_over, packets);
    let sides: [(_, &Accept<'_>); 4] = [
        ("crate nfq", &theirs),
        ("minimal, cpu, inline", &inline),
        ("minimal, cpu, pipelined", &pipelined),
        ("minimal, cpu, pipelined, 1 ms", &gathered),
    ];
    let compare = |measure: &dyn Fn(&Accept<'_>) -> f64, what| {
        let mut sides: Vec<_> = sides.iter().map(|&(name, side)| Side::new(name, move || measure(side))).collect();
        support::compare(what, ROUNDS, 1, &mut sides);
    };
    if support::is_wanted("waiting") {
        compare(&waiting, "packets queued already");
    }
    if support::is_wanted("sent") {
        compare(&flood, "sent at full rate, by CPU time");
    }
}

/// Takes the queue, calls its first argument, and accepts packets until the flag is set or the
/// number of packets is reached. Returns the number of packets and when the last verdict was sent.
type Accept<'a> = dyn Fn(&dyn Fn(), &Arc<AtomicBool>, u64) -> (u64, Instant) + 'a;

/// Two namespaces and a link whose incoming packets are queued.
struct Bench {
    right: Namespace,
    sender: UdpSocket,
    _sink: UdpSocket,
    _left: Namespace,
    _veth: Veth,
}

impl Bench {
    fn new() -> Bench {
        let (left, right, veth) = create_link();
        let mut rule: Command = right.command("iptables-legacy");
        let output = rule.args("-w -A INPUT -p udp -j NFQUEUE --queue-num 0".split(' ')).output().expect("iptables");
        assert!(output.status.success(), "iptables-legacy: {}", String::from_utf8_lossy(&output.stderr));
        let sink = right.run(|| UdpSocket::bind((veth.right.ipv4(), 0)).unwrap());
        let sender = left.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        sender.connect(sink.local_addr().unwrap()).unwrap();
        Bench { right, sender, _sink: sink, _left: left, _veth: veth }
    }

    /// Fills the queue with [`WAITING`] packets.
    fn fill(&self) {
        (0..WAITING).for_each(|_| _ = self.sender.send(&[0; 22]).unwrap());
        wait_until("all packets wait", Duration::from_secs(20), || {
            let table = self.right.run(|| std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue"));
            table.unwrap().split_whitespace().nth(2).is_some_and(|waiting| waiting == WAITING.to_string())
        });
    }

    /// Accepts packets with the crate `nfq`, one at a time.
    fn theirs(&self, ready: &dyn Fn(), is_over: &Arc<AtomicBool>, packets: u64) -> (u64, Instant) {
        let before = descriptors();
        let mut queue = self.right.run(|| nfq::Queue::open().unwrap());
        // The crate does not expose its socket, whose options must match ours.
        let socket = *descriptors().difference(&before).next().expect("it has opened a socket");
        queue.bind(0).unwrap();
        queue.set_queue_max_len(0, MAX_LENGTH).unwrap();
        queue.set_recv_gso(0, true).unwrap();
        let time = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
        let size = RECEIVE_BUFFER as libc::c_int;
        for (option, at, length) in [
            (libc::SO_RCVTIMEO, (&raw const time).cast(), size_of_val(&time)),
            (libc::SO_RCVBUFFORCE, (&raw const size).cast(), size_of_val(&size)),
        ] {
            // SAFETY: a value that outlives the call, with its length.
            let set = unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, option, at, length as libc::socklen_t) };
            assert_eq!(set, 0);
        }
        ready();
        on_new_thread(|| {
            pin_to_processor(1);
            let mut count = 0;
            while count < packets && !is_over.load(Ordering::Relaxed) {
                let Ok(mut message) = queue.recv() else { continue };
                message.set_verdict(nfq::Verdict::Accept);
                queue.verdict(message).unwrap();
                count += 1;
            }
            (count, Instant::now())
        })
    }

    /// Accepts packets through the pipeline.
    fn ours(
        &self,
        dispatch: Dispatch,
        delay: Duration,
        ready: &dyn Fn(),
        is_over: &Arc<AtomicBool>,
        packets: u64,
    ) -> (u64, Instant) {
        let closing = BatchPolicy::fixed(BatchPolicy::default().max_packets, delay);
        let queue = QueueOptions::default()
            .with_batch(closing.max_packets)
            .with_writes(Window::Nothing)
            .with_max_length(MAX_LENGTH)
            .with_receive_buffer(RECEIVE_BUFFER)
            .with_metadata(false);
        let session = support::session("minimal", dispatch);
        let (receiver, executor) = self.right.run(|| open(&queue)).unwrap();
        ready();
        let (stop, ended) = (CancelToken::new(), Arc::default());
        let executor = CountingExecutor {
            inner: executor,
            is_over: is_over.clone(),
            packets,
            count: 0,
            stop: stop.clone(),
            ended: Arc::clone(&ended),
        };
        let processors = if dispatch == Dispatch::Inline { vec![1] } else { vec![] };
        let options = LiveOptions::new(closing, dispatch).with_processors(processors);
        let lane =
            Lane { name: "queue 0".into(), memory: None, receiver: Box::new(receiver), executor: Box::new(executor) };
        on_new_thread(|| support::drive(lane, session, &options, &Arc::new(LaneStats::default()), &stop, || ()));
        let ended = ended.lock().unwrap();
        ended.expect("the end was recorded")
    }
}

/// Runs a function on a new thread, so that pinning it does not affect the caller.
fn on_new_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns the processor time of this process or of this thread.
fn processor_time(whose: libc::c_int) -> Duration {
    // SAFETY: a zeroed `rusage` is valid and outlives the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(whose, &raw mut usage), 0);
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Returns the open file descriptors of this process.
fn descriptors() -> BTreeSet<RawFd> {
    let names = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.file_name());
    let all: Vec<RawFd> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    // The descriptor of the folder itself is closed by now.
    all.into_iter().filter(|number| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok()).collect()
}

/// Counts verdicts until the end, and then stops the run. Verdicts sent while the run ends are not
/// counted.
struct CountingExecutor {
    inner: QueueExecutor,
    is_over: Arc<AtomicBool>,
    packets: u64,
    count: u64,
    stop: CancelToken,
    ended: Arc<Mutex<Option<(u64, Instant)>>>,
}

impl CountingExecutor {
    fn stop_if_done(&mut self) {
        let mut ended = self.ended.lock().unwrap();
        if ended.is_none() && (self.count >= self.packets || self.is_over.load(Ordering::Relaxed)) {
            *ended = Some((self.count, Instant::now()));
            self.stop.cancel();
        }
    }
}

impl Executor for CountingExecutor {
    fn execute(&mut self, done: Completion) -> Result<(), LiveError> {
        let packets = done.batch.len() as u64;
        self.inner.execute(done)?;
        self.count += packets;
        self.stop_if_done();
        Ok(())
    }

    fn poll(&mut self) -> Result<(), LiveError> {
        self.stop_if_done();
        self.inner.poll()
    }

    fn is_busy(&self) -> bool {
        self.inner.is_busy()
    }

    fn executed(&self) -> &ExecutedCounts {
        self.inner.executed()
    }
}
