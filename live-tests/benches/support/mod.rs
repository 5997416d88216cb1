//! Shared parts of the benchmarks: alternating sides, and the pipeline as one of them.
#![allow(dead_code, reason = "no benchmark uses all of it")]

pub mod bare;
pub mod latency;
pub mod testpmd;

use std::fmt;
use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portcullis::device::{CancelToken, Device, Dispatch, LoadOptions, Session};
use portcullis::diagnostics::Source;
use portcullis::frontend::wgsl;
use portcullis::packet_io::live::Lane;
use portcullis::pipeline::Event;
use portcullis::pipeline::live::{LaneStats, LiveLane, LiveOptions, run_live};
use portcullis::program::{Program, ProgramOptions};

/// Set by Ctrl-C or a closed output, to end the run.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Prepares a run; returns false if nothing is to be measured (`--test`). From now on Ctrl-C ends
/// the run between two rounds, so that interfaces are removed. Threads and programs started later
/// inherit SCHED_FIFO, so that the machine's other work does not delay one side more than the
/// other.
pub fn prepare() -> bool {
    if std::env::args().any(|argument| argument == "--test") {
        return false;
    }
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure outlives the call.
    #[expect(unsafe_code, reason = "sched_setscheduler(2)")]
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
    if set != 0 {
        say(format_args!("without real-time priority: SCHED_FIFO is refused: {}\n", std::io::Error::last_os_error()));
    }
    ctrlc::set_handler(|| STOPPED.store(true, Ordering::Relaxed)).expect("the first handler");
    true
}

/// Returns whether a part is selected: named after `--`, or no part is named.
pub fn is_wanted(part: &str) -> bool {
    let mut names = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    !is_stopped() && (names.peek().is_none() || names.any(|name| name == part))
}

/// Returns whether the run is to end.
pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// Prints a text; if the reader has closed the pipe (`| head`), the run ends.
pub fn say(text: fmt::Arguments<'_>) {
    if std::io::stdout().lock().write_fmt(text).is_err() {
        STOPPED.store(true, Ordering::Relaxed);
    }
}

/// Duration of a count.
pub const ROUND: Duration = Duration::from_secs(1);

/// Time between the start of a side and its count.
const WARM_UP: Duration = Duration::from_millis(300);

/// Returns the rate of a counter, per second.
pub fn rate(count: &mut dyn FnMut() -> u64) -> f64 {
    std::thread::sleep(WARM_UP);
    let (before, begun) = (count(), Instant::now());
    std::thread::sleep(ROUND);
    let after = count();
    (after - before) as f64 / begun.elapsed().as_secs_f64()
}

/// One of the alternatives compared.
pub struct Side<'a> {
    pub name: &'static str,
    /// Returns packets a second, after a second or two.
    pub run: Box<dyn FnMut() -> f64 + 'a>,
}

impl<'a> Side<'a> {
    pub fn new(name: &'static str, run: impl FnMut() -> f64 + 'a) -> Side<'a> {
        Side { name, run: Box::new(run) }
    }
}

/// Measures all sides in turn, and prints medians of the rates, and of their ratios to the rates of
/// the first `bases` sides in the same round, with minimum and maximum. Returns the medians of the
/// rates; `None` if the run is to end.
pub fn compare(what: &str, rounds: usize, bases: usize, sides: &mut [Side<'_>]) -> Option<Vec<f64>> {
    let mut rates = vec![Vec::new(); sides.len()];
    for _ in 0..rounds {
        for (side, rates) in sides.iter_mut().zip(&mut rates) {
            if is_stopped() {
                return None;
            }
            rates.push((side.run)());
        }
    }
    say(format_args!("{what:<34} {:>8}", "Mpps"));
    sides[..bases].iter().for_each(|base| say(format_args!("  {:>20}", format!("to {}", base.name))));
    say(format_args!("\n"));
    for (side, side_rates) in sides.iter().zip(&rates) {
        say(format_args!("{:<34} {:>8.3}", side.name, median(side_rates.clone()) / 1e6));
        for base in &rates[..bases] {
            let mut ratios: Vec<f64> = side_rates.iter().zip(base).map(|(rate, base)| rate / base).collect();
            ratios.sort_by(f64::total_cmp);
            let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
            say(format_args!("  {:>20}", format!("{:.2} ({least:.2}-{most:.2})", median(ratios))));
        }
        say(format_args!("\n"));
    }
    say(format_args!("\n"));
    Some(rates.into_iter().map(median).collect())
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Loads a stock filter on the CPU.
pub fn session(filter: &str, dispatch: Dispatch) -> Box<dyn Session> {
    session_of(&stock(filter), dispatch)
}

/// Loads a filter, given its text, on the CPU.
pub fn session_of(filter: &str, dispatch: Dispatch) -> Box<dyn Session> {
    let load = LoadOptions::default().with_threads(NonZeroUsize::new(1)).with_dispatch(dispatch);
    let device = portcullis::devices::open("cpu").expect("the CPU device opens");
    let device: &dyn Device = &*device;
    device.load(&program(filter), &load).unwrap_or_else(|error| panic!("{filter}: {error}"))
}

/// Reads a stock filter's text.
pub fn stock(name: &str) -> String {
    let path = format!("{}/../shaders/{name}.wgsl", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).expect("a stock filter")
}

fn program(text: &str) -> Arc<Program> {
    let program = wgsl::compile(&Source::new("filter.wgsl", text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|error| panic!("{}", error.render())))
}

/// Runs one lane until `stop` is cancelled.
pub fn drive(
    lane: Lane,
    session: Box<dyn Session>,
    options: &LiveOptions,
    stats: &Arc<LaneStats>,
    stop: &CancelToken,
    at_stop: impl FnOnce() + Send,
) {
    let lanes = vec![LiveLane::new(lane, session)];
    let (_lanes, error) = run_live(lanes, std::slice::from_ref(stats), options, stop, at_stop, &mut |_: Event<'_>| {});
    assert!(error.is_none(), "{error:?}");
}
