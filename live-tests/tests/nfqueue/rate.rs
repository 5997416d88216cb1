//! How fast packets get their verdicts, against a loop that takes one packet with a call and gives one verdict with
//! another. It asserts nothing:
//!
//! ```text
//! cargo test --release -p portcullis-live-tests --features nfqueue --test nfqueue -- --ignored --nocapture rate
//! ```
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use portcullis_core::packet::{Action, Batch};
use portcullis_core::program::facts::Window;
use portcullis_io::live::{Executor, Receiver};
use portcullis_io::nfqueue::message::{self, Config, Message, Verdict};
use portcullis_io::nfqueue::{QueueOptions, open};
use portcullis_live_tests::wait_until;

use crate::lane::{Link, SOON, begin, done, rule};

/// Packets that wait when the clock is started: about as many as fit into 200 MiB of the kernel's.
const WAITING: u32 = 20_000;

const ROUNDS: usize = 7;

/// How long packets come as fast as they can be sent.
const FLOOD: Duration = Duration::from_secs(2);

/// Gives verdicts until told to stop, or on so many packets; says how many.
type Contestant = fn(&Link, &dyn Fn(), &(dyn Fn() -> bool + Sync), u32) -> u32;

fn options() -> QueueOptions {
    let (max_length, receive_buffer) = (1 << 16, 256 << 20);
    QueueOptions { writes: Window::Nothing, max_length, receive_buffer, batch: 256, ..QueueOptions::default() }
}

/// One packet, one verdict.
fn one_by_one(link: &Link, ready: &dyn Fn(), is_over: &(dyn Fn() -> bool + Sync), packets: u32) -> u32 {
    let mut socket = link.right.run(|| {
        // SAFETY: no memory is involved.
        let socket = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER) };
        assert!(socket >= 0);
        let time = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
        let size: libc::c_int = 256 << 20;
        for (level, option, at, length) in [
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), size_of_val(&time)),
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (&raw const size).cast(), size_of_val(&size)),
            // NETLINK_NO_ENOBUFS of linux/netlink.h, and any int but 0.
            (libc::SOL_NETLINK, 5, (&raw const size).cast(), size_of_val(&size)),
        ] {
            // SAFETY: a value, with its length, that outlives the call.
            let set = unsafe { libc::setsockopt(socket, level, option, at, length as libc::socklen_t) };
            assert_eq!(set, 0);
        }
        // SAFETY: it was just opened, and nobody else knows it.
        File::from(unsafe { OwnedFd::from_raw_fd(socket) })
    });
    let mut bytes = vec![0; 1 << 17];
    let mut verdict = Vec::new();
    let QueueOptions { max_length, .. } = options();
    message::config(&mut verdict, 0, 0, &Config { copy_range: 0, max_length, fail_open: false, gso: true });
    socket.write_all(&verdict).unwrap();
    ready();
    let mut count = 0;
    while count < packets && !is_over() {
        let Ok(length) = socket.read(&mut bytes) else { continue };
        if let Ok(Message::Packet(packet)) = message::decode(&bytes[..length]) {
            verdict.clear();
            message::verdict(&mut verdict, 0, 0, Verdict::Accept, packet.id);
            socket.write_all(&verdict).unwrap();
            count += 1;
        }
    }
    count
}

/// Ours, on one thread.
fn on_one_thread(link: &Link, ready: &dyn Fn(), is_over: &(dyn Fn() -> bool + Sync), packets: u32) -> u32 {
    let (mut receiver, mut executor) = link.right.run(|| open(&options())).unwrap();
    ready();
    let mut count = 0;
    while count < packets && !is_over() {
        if receiver.receive(options().batch).unwrap() == 0 {
            receiver.wait(Duration::from_millis(50)).unwrap();
        }
        if let Some(batch) = receiver.close() {
            count += batch.len() as u32;
            executor.carry_out(accept(batch)).unwrap();
        }
    }
    count
}

/// Ours, on two.
fn on_two_threads(link: &Link, ready: &dyn Fn(), is_over: &(dyn Fn() -> bool + Sync), packets: u32) -> u32 {
    two_threads(link, ready, is_over, packets, Duration::ZERO)
}

/// The same, where batches are gathered for a millisecond.
fn on_two_threads_with_delay(link: &Link, ready: &dyn Fn(), is_over: &(dyn Fn() -> bool + Sync), packets: u32) -> u32 {
    two_threads(link, ready, is_over, packets, Duration::from_millis(1))
}

fn two_threads(
    link: &Link,
    ready: &dyn Fn(),
    is_over: &(dyn Fn() -> bool + Sync),
    packets: u32,
    delay: Duration,
) -> u32 {
    let (mut receiver, mut executor) = link.right.run(|| open(&options())).unwrap();
    ready();
    std::thread::scope(|scope| {
        let (batches, inbox) = sync_channel(8);
        scope.spawn(move || {
            let mut count = 0;
            while count < packets && !is_over() {
                let got = receiver.receive(options().batch).unwrap();
                if got == 0 {
                    receiver.wait(Duration::from_millis(50)).unwrap();
                } else if got < options().batch && !delay.is_zero() {
                    std::thread::sleep(delay);
                    receiver.receive(options().batch - got).unwrap();
                }
                if let Some(batch) = receiver.close() {
                    count += batch.len() as u32;
                    batches.send(batch).unwrap();
                }
            }
        });
        let mut count = 0;
        for batch in inbox {
            count += batch.len() as u32;
            executor.carry_out(accept(batch)).unwrap();
        }
        count
    })
}

fn accept(batch: Batch) -> portcullis_core::device::Done {
    let verdicts = vec![Action::Pass as u8; batch.len()];
    done(batch, verdicts)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a measurement, of a minute"]
fn rate() {
    let Some(_suite) = begin("nfqueue: rate") else { return };
    let link = Link::new();
    rule(&link.right, "INPUT -p udp -j NFQUEUE --queue-num 0");
    // Accepted packets end at a socket that is full.
    let sink = link.right.run(|| UdpSocket::bind((link.veth.right.ipv4(), 0)).unwrap());
    let sender = link.left.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    sender.connect(sink.local_addr().unwrap()).unwrap();
    let contestants: [(&str, Contestant); 4] = [
        ("one by one", one_by_one),
        ("ours, one thread", on_one_thread),
        ("ours, two threads", on_two_threads),
        ("ours, two and 1 ms", on_two_threads_with_delay),
    ];
    let table =
        || link.right.run(|| std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue").unwrap());

    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        for ((_, contestant), rates) in contestants.iter().zip(&mut rates) {
            let started = std::cell::Cell::new(Instant::now());
            let ready = || {
                (0..WAITING).for_each(|_| _ = sender.send(&[0; 22]).unwrap());
                wait_until("all packets wait", SOON, || {
                    table().split_whitespace().nth(2).is_some_and(|waiting| waiting == WAITING.to_string())
                });
                started.set(Instant::now());
            };
            assert_eq!(contestant(&link, &ready, &|| false, WAITING), WAITING);
            rates.push(f64::from(WAITING) / started.get().elapsed().as_secs_f64());
        }
    }
    print("packets that wait already", &contestants, rates);

    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        for ((_, contestant), rates) in contestants.iter().zip(&mut rates) {
            let is_over = AtomicBool::new(false);
            let count = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let started = Instant::now();
                    while started.elapsed() < FLOOD {
                        (0..64).for_each(|_| _ = sender.send(&[0; 22]));
                    }
                    is_over.store(true, Ordering::Relaxed);
                });
                contestant(&link, &|| {}, &|| is_over.load(Ordering::Relaxed), u32::MAX)
            });
            rates.push(f64::from(count) / FLOOD.as_secs_f64());
        }
    }
    print("packets that one thread sends as fast as it can", &contestants, rates);
}

fn print(what: &str, contestants: &[(&str, Contestant); 4], rates: [Vec<f64>; 4]) {
    println!("{what}, thousands of verdicts a second, median of {ROUNDS} (least to most):");
    let medians = rates.clone().map(median);
    for (((name, _), rates), median) in contestants.iter().zip(&rates).zip(medians) {
        let (least, most) = rates.iter().fold((f64::MAX, 0f64), |(a, b), &rate| (a.min(rate), b.max(rate)));
        let ratio = median / medians[0];
        println!("  {name:20} {:6.0} ({:.0} to {:.0}), {ratio:.2} times", median / 1e3, least / 1e3, most / 1e3);
    }
}
