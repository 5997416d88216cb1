//! Benchmarks of DPDK ports: packets that the driver net_null generates, through the pipeline on
//! one processor, compared with `dpdk-testpmd` on the same device and with a bare loop.
//!
//! `cargo bench -p portcullis-live-tests --features bench,dpdk --bench dpdk`, with Debian's
//! packages libdpdk-dev and dpdk-dev; arguments after `--` select parts: `io` and `mac` (testpmd's
//! modes of these names), `build` (the cost of a batch beyond receiving and freeing its packets),
//! `batches` (other batch sizes).

mod support;

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use portcullis::device::{CancelToken, Completion, Dispatch, StageTimes};
use portcullis::packet::{Action, Verdicts};
use portcullis::pipeline::live::{BatchPolicy, LaneStats, LiveOptions};
use portcullis_dpdk_sys as sys;
use portcullis_io::dpdk::{Dpdk, Options, open};
use portcullis_io::live::Lane;
use portcullis_live_tests::pin_to_processor;
use support::testpmd::Testpmd;
use support::{Side, compare, is_wanted, rate, say};

const ROUNDS: usize = 7;

/// Number of packets received at a time.
const BURST: usize = 64;

/// Processor that forwards, on either side.
const PROCESSOR: usize = 1;

/// Sends every packet back unchanged, as testpmd's `io` does. `minimal` passes packets, which are
/// dropped here because there is no stack to pass them to.
const SEND_BACK: &str = "fn xdp_filter(pkt: u32) -> u32 { return XDP_TX; }";

fn main() {
    if !support::prepare() {
        return;
    }
    let burst = BatchPolicy::fixed(BURST, Duration::ZERO);
    if is_wanted("io") {
        let mut sides = [
            Side::new("testpmd io", || testpmd("io")),
            Side::new("minimal", || ours(&support::stock("minimal"), burst)),
            Side::new("sends all back", || ours(SEND_BACK, burst)),
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

/// Times building batches of packets and releasing them, without a filter.
fn build() {
    let mut sides =
        [Side::new("bare loop", || measure_loop(bare)), Side::new("batches, dropped", || measure_loop(dropped))];
    if let Some(rates) = compare("received and freed, 64 at a time", ROUNDS, 1, &mut sides) {
        let [bare, batches] = [1e9 / rates[0], 1e9 / rates[1]];
        let difference = batches - bare;
        say(format_args!(
            "ns a packet: {bare:.1} bare, {batches:.1} in batches, {difference:.1} for building batches\n\n"
        ));
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
    sides.push(Side::new("adaptive", || ours(&back, BatchPolicy::adaptive())));
    compare("mac_swap, packets a batch", ROUNDS, 1, &mut sides);
}

fn testpmd(forward: &str) -> f64 {
    let testpmd = Testpmd::at(Command::new("stdbuf"), "net_null0", forward, BURST as u16);
    let mut testpmd = testpmd.unwrap_or_else(|error| panic!("{error}"));
    rate(&mut || testpmd.received())
}

/// Opens a port of a device that no earlier call used.
fn port() -> Dpdk {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let port = format!("net_null{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let options = Options::new(vec![port.parse().expect("a port")]);
    open(&options).unwrap_or_else(|error| panic!("{error}"))
}

fn close(run: Dpdk) {
    let packets = run.close();
    assert_eq!(packets.total, packets.free, "a packet is missing");
}

/// Measures the pipeline with a filter.
fn ours(filter: &str, closing: BatchPolicy) -> f64 {
    let session = support::session_of(filter, Dispatch::Inline);
    let stats = Arc::new(LaneStats::default());
    let stop = CancelToken::new();
    let live = LiveOptions::new(closing, Dispatch::Inline).with_processors(vec![PROCESSOR]);
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

/// Repeats a step with a lane and its port's number on a thread of its own, and returns packets a
/// second. A step returns the number of packets that it took.
fn measure_loop(step: fn(&mut Lane, u16) -> u64) -> f64 {
    let mut run = port();
    let (mut lane, number) = (run.lanes.remove(0), run.info[0].number);
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let rate = std::thread::scope(|scope| {
        let (is_over, count) = (&is_over, &count);
        let ran = scope.spawn(move || {
            pin_to_processor(PROCESSOR);
            // DPDK's mempools are faster for registered threads; a receiver registers its thread
            // when it first polls.
            let mut all = dropped(&mut lane, number);
            while !is_over.load(Ordering::Relaxed) {
                all += step(&mut lane, number);
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

/// Builds the verdicts of a batch. Both sides do so, so that it does not count as a batch's cost.
fn drop_all(count: usize) -> Vec<u8> {
    black_box(vec![Action::Drop as u8; count])
}

/// Receives packets and frees them.
fn bare(_: &mut Lane, number: u16) -> u64 {
    let mut mbufs = [std::ptr::null_mut(); BURST];
    // SAFETY: nothing else uses the queue, and the array has room for BURST packets, which are ours
    // until they are freed.
    #[expect(unsafe_code, reason = "DPDK's C functions")]
    unsafe {
        let count = sys::pc_burst(number, 0, mbufs.as_mut_ptr(), BURST as u16);
        drop(drop_all(count.into()));
        sys::pc_free(mbufs.as_mut_ptr(), count.into());
        count.into()
    }
}

/// Receives packets, makes a batch of them, and executes a DROP verdict for each.
fn dropped(lane: &mut Lane, _: u16) -> u64 {
    lane.receiver.receive(BURST).expect("the port is open");
    let Some(batch) = lane.receiver.take_batch() else { return 0 };
    let count = batch.len();
    let verdicts = Verdicts::from_columns(drop_all(count), Vec::new());
    let done = Completion { batch: black_box(batch), verdicts, times: StageTimes::default() };
    lane.executor.execute(done).expect("the port is open");
    count as u64
}
