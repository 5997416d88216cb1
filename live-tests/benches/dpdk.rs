//! DPDK's ports: packets from a device that makes them (net_null) by the program's own pipeline, on
//! one processor, against `dpdk-testpmd` on the same device, and against a bare loop.
//!
//! `cargo bench -p portcullis-live-tests --features bench,dpdk --bench dpdk`, with Debian's
//! packages libdpdk-dev and dpdk-dev; behind `--` some of its parts: `io` and `mac` (as testpmd's
//! modes of these names), `build` (what a batch costs beside receiving and freeing its packets),
//! `batches` (batches of other sizes).

mod support;

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use portcullis::device::{CancelToken, Completion, Dispatch, StageTimes};
use portcullis::packet::{Action, ResizeRoom, Verdicts};
use portcullis::pipeline::live::{BatchPolicy, LaneStats, LiveOptions};
use portcullis_dpdk_sys as sys;
use portcullis_io::dpdk::{Dpdk, Mempool, Options, open};
use portcullis_io::live::Lane;
use portcullis_live_tests::on_processor;
use support::testpmd::Testpmd;
use support::{Side, compare, is_wanted, rate, say};

const ROUNDS: usize = 7;

/// Packets that are received at a time.
const BURST: usize = 64;

/// The processor that forwards, on either side.
const PROCESSOR: usize = 1;

/// Sends every packet back as it is: what testpmd's `io` does, where `minimal` has packets pass,
/// which are dropped here.
const BACK: &str = "fn xdp_filter(pkt: u32) -> u32 { return XDP_TX; }";

fn main() {
    if !support::begin() {
        return;
    }
    let burst = BatchPolicy::fixed(BURST, Duration::ZERO);
    if is_wanted("io") {
        let mut sides = [
            Side::new("testpmd io", || testpmd("io")),
            Side::new("minimal", || ours(&support::stock("minimal"), burst)),
            Side::new("sends all back", || ours(BACK, burst)),
        ];
        compare("packets of 64 bytes", ROUNDS, 1, &mut sides);
    }
    if is_wanted("mac") {
        let mut sides = [
            Side::new("testpmd mac", || testpmd("mac")),
            Side::new("mac_swap", || ours(&support::stock("mac_swap"), burst)),
        ];
        compare("packets of 64 bytes", ROUNDS, 1, &mut sides);
    }
    if is_wanted("build") {
        build();
    }
    if is_wanted("batches") {
        batches();
    }
}

/// Times building batches of packets and taking them apart, without a filter.
fn build() {
    let mut sides = [Side::new("bare loop", || alone(bare)), Side::new("batches, dropped", || alone(dropped))];
    if let Some(rates) = compare("received and freed, 64 at a time", ROUNDS, 1, &mut sides) {
        let [bare, batches] = [1e9 / rates[0], 1e9 / rates[1]];
        let difference = batches - bare;
        say(format_args!("ns a packet: {bare:.1} bare, {batches:.1} in batches, {difference:.1} between\n\n"));
    }
}

fn batches() {
    let back = support::stock("mac_swap");
    let at = |size| BatchPolicy::fixed(size, Duration::ZERO);
    let mut sides = vec![Side::new("64", || ours(&back, at(64)))];
    for (name, size) in [("16", 16), ("32", 32), ("128", 128), ("256", 256), ("512", 512), ("1024", 1024)] {
        let back = &back;
        sides.push(Side::new(name, move || ours(back, at(size))));
    }
    sides.push(Side::new("which find their size", || ours(&back, BatchPolicy::adaptive())));
    compare("mac_swap, packets a batch", ROUNDS, 1, &mut sides);
}

fn testpmd(forward: &str) -> f64 {
    let testpmd = Testpmd::at(Command::new("stdbuf"), "net_null0", forward, BURST as u16);
    let mut testpmd = testpmd.unwrap_or_else(|error| panic!("{error}"));
    rate(&mut || testpmd.received())
}

/// A port that is open, of a device that was never there before.
fn port() -> Dpdk {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let port = format!("net_null{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let options = Options {
        ports: vec![port.parse().expect("a port")],
        queues: 1,
        one_lane: false,
        redirect: vec![],
        pass_to: None,
        eal: vec![],
        room: ResizeRoom::None,
        metadata: false,
        rewrites: false,
        packets: Options::PACKETS,
        mempool: Mempool::Host,
        split: None,
        later: 0,
        items: Options::ITEMS,
    };
    open(&options).unwrap_or_else(|error| panic!("{error}"))
}

fn close(run: Dpdk) {
    let packets = run.close();
    assert_eq!(packets.total, packets.free, "a packet is missing");
}

/// The program's own pipeline.
fn ours(filter: &str, closing: BatchPolicy) -> f64 {
    let session = support::session_of(filter, Dispatch::Inline);
    let stats = Arc::new(LaneStats::default());
    let stop = CancelToken::new();
    let live = LiveOptions { processors: vec![PROCESSOR], ..LiveOptions::new(closing, Dispatch::Inline) };
    let mut run = port();
    let lane = run.lanes.remove(0);
    let rate = std::thread::scope(|scope| {
        let (stop, stats) = (&stop, &stats);
        let ran = scope.spawn(move || support::drive(lane, session, &live, stats, stop, || ()));
        let rate = rate(&mut || stats.snapshot().executed.all());
        stop.cancel();
        ran.join().unwrap();
        rate
    });
    close(run);
    rate
}

/// Has a loop turn over a lane and its port's number, on a thread of its own. A turn gives how many
/// packets it took.
fn alone(turn: fn(&mut Lane, u16) -> u64) -> f64 {
    let mut run = port();
    let (mut lane, number) = (run.lanes.remove(0), run.info[0].number);
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let rate = std::thread::scope(|scope| {
        let (is_over, count) = (&is_over, &count);
        let ran = scope.spawn(move || {
            on_processor(PROCESSOR);
            // DPDK's pools are faster for threads that it knows, which the first look of a receiver
            // sees to.
            let mut all = dropped(&mut lane, number);
            while !is_over.load(Ordering::Relaxed) {
                all += turn(&mut lane, number);
                count.store(all, Ordering::Relaxed);
            }
            drop(lane);
        });
        let rate = rate(&mut || count.load(Ordering::Relaxed));
        is_over.store(true, Ordering::Relaxed);
        ran.join().unwrap();
        rate
    });
    close(run);
    rate
}

/// What a filter gives for each packet, on both sides: it is none of what a batch costs.
fn drop_all(count: usize) -> Vec<u8> {
    black_box(vec![Action::Drop as u8; count])
}

/// Receives packets and frees them.
fn bare(_: &mut Lane, number: u16) -> u64 {
    let mut mbufs = [std::ptr::null_mut(); BURST];
    // SAFETY: nobody else has the queue, and there is room for so many packets, which are ours
    // until they are freed.
    #[expect(unsafe_code, reason = "DPDK's")]
    unsafe {
        let came = sys::pc_burst(number, 0, mbufs.as_mut_ptr(), BURST as u16);
        drop(drop_all(came.into()));
        sys::pc_free(mbufs.as_mut_ptr(), came.into());
        came.into()
    }
}

/// Receives packets, makes a batch of them, and drops them all by their verdicts.
fn dropped(lane: &mut Lane, _: u16) -> u64 {
    lane.receiver.receive(BURST).expect("the port is there");
    let Some(batch) = lane.receiver.take_batch() else { return 0 };
    let count = batch.len();
    let verdicts = Verdicts::from_columns(drop_all(count), Vec::new());
    let done = Completion { batch: black_box(batch), verdicts, times: StageTimes::default() };
    lane.executor.execute(done).expect("the port is there");
    count as u64
}
