//! Calibration: measures the cost of batches on a device.
//!
//! Conditions are as in later runs, with as many batches in flight as the session allows, but with
//! synthetic traffic from no network, so that no real packets wait. The result for a size is the
//! median of a few rounds. A device gets [`BUDGET`] for all sizes, so a slow filter is measured at
//! few sizes and with few rounds.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::{DeviceError, DeviceKind, Session};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;
use portcullis_core::program::facts::Window;
use portcullis_io::{self as io, SourceOptions};

use super::costs::LENGTH_CLASSES;
use super::curve::CostCurve;

/// Time for calibrating one device for all length classes, without compiling and the first batch.
pub const BUDGET: Duration = Duration::from_millis(300);

/// Batch sizes to measure, as far as the time allows.
pub const SIZES: [u32; 6] = [64, 256, 1024, 4096, 16_384, 65_536];

/// Maximum number of synthetic packets, and of their bytes.
pub const MAX_PACKETS: usize = 1 << 18;
const MAX_BYTES: usize = 32 << 20;

/// Maximum number of rounds per size.
const MAX_ROUNDS: usize = 7;

/// Packets per round, and limits of the number of batches: at least enough to fill the queue.
const ROUND_PACKETS: usize = 1 << 14;
const MIN_BATCHES: usize = 8;
const MAX_BATCHES: usize = 64;

/// A size whose cost per packet exceeds that of the next smaller one by this factor is measured
/// again, at most this many times.
const OUTLIER_RATIO: f64 = 1.5;
const MAX_REPEATS: usize = 12;

/// A source of time, which tests replace.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary start.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock.
#[derive(Debug)]
pub struct MonotonicClock(Instant);

impl Default for MonotonicClock {
    fn default() -> Self {
        MonotonicClock(Instant::now())
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Synthetic packets of one length class to measure with.
pub struct SyntheticTraffic {
    text: String,
    options: SourceOptions,
    /// Whether the filter modifies packets, so that they are restored before each round.
    modifies_packets: bool,
    /// All packets in one batch; lost with a device that failed.
    batch: Option<Batch>,
    /// Content of the packets before the filter changed them.
    pristine: Vec<u8>,
}

impl fmt::Debug for SyntheticTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyntheticTraffic").field("text", &self.text).finish_non_exhaustive()
    }
}

impl SyntheticTraffic {
    /// Creates traffic of a length class for a filter, with at most `max_packets` packets.
    pub fn new(program: &Program, class: usize, max_packets: usize) -> SyntheticTraffic {
        let length = LENGTH_CLASSES[class];
        let options = crate::pipeline::source_options(program, DeviceKind::Cpu, false);
        let facts = program.facts();
        let packets = max_packets.min(MAX_BYTES / length as usize);
        SyntheticTraffic {
            text: format!("synth:packets={packets},seed=1,size={length}"),
            options: options.with_max_packets(packets).with_block_size(MAX_BYTES),
            modifies_packets: facts.changes_length || facts.writes != Window::Nothing,
            batch: None,
            pristine: Vec::new(),
        }
    }

    fn take_batch(&mut self) -> Result<Batch, DeviceError> {
        let no_traffic =
            |what: String| DeviceError::Refused(format!("cannot generate traffic for calibration: {what}"));
        let mut batch = match self.batch.take() {
            Some(batch) => batch,
            None => {
                let mut source = io::open(&self.text, &self.options).map_err(|error| no_traffic(error.to_string()))?;
                let batch = source.next_batch().map_err(|error| no_traffic(error.to_string()))?;
                let batch = batch.ok_or_else(|| no_traffic("the source is empty".into()))?;
                if self.modifies_packets {
                    self.pristine.clear();
                    batch.packets().for_each(|packet| self.pristine.extend_from_slice(packet));
                }
                return Ok(batch);
            }
        };
        if self.modifies_packets {
            let original = batch.original().to_vec();
            batch.resize(original).map_err(|error| no_traffic(error.to_string()))?;
            let mut rest = &self.pristine[..];
            for index in 0..batch.len() {
                let packet = batch.packet_mut(index);
                let (bytes, others) = rest.split_at(packet.len());
                packet.copy_from_slice(bytes);
                rest = others;
            }
        }
        Ok(batch)
    }

    /// Measures the cost of batches of at least `from` packets, within `time`. The session must be
    /// idle and is idle afterwards.
    ///
    /// # Errors
    /// Errors of the session, which must not be used any more.
    pub fn measure(
        &mut self,
        session: &mut dyn Session,
        clock: &dyn Clock,
        from: u32,
        time: Duration,
    ) -> Result<Option<CostCurve>, DeviceError> {
        session.finish_background_work();
        let sizes: Vec<u32> = SIZES.into_iter().filter(|&size| size >= from).collect();
        let mut points: Vec<(u32, f64)> = Vec::new();
        let mut start = None;
        for (number, &size) in sizes.iter().enumerate() {
            let left = |start: Option<Duration>| {
                start.map_or(time, |start| time.saturating_sub(clock.now().saturating_sub(start)))
            };
            // Sizes share the remaining time, so larger ones may use what a smaller one left.
            let share = left(start) / (sizes.len() - number) as u32;
            let until = clock.now() + share;
            // Expected time of a batch: measured, or extrapolated from the previous size.
            let mut known = points.last().map(|last| last.1 * f64::from(size) / f64::from(last.0));
            let mut taken: Vec<f64> = Vec::new();
            // Round 0 warms up caches and queues, and absorbs one-time work of drivers; it does not
            // count.
            for round in 0..=MAX_ROUNDS {
                let batches = match known {
                    Some(ns) if round > 0 => {
                        let fitting = share.as_secs_f64() * 1e9 / ns / MAX_ROUNDS as f64;
                        (fitting as usize)
                            .clamp(MIN_BATCHES, (ROUND_PACKETS / size as usize).clamp(MIN_BATCHES, MAX_BATCHES))
                    }
                    _ => MIN_BATCHES,
                };
                let expected = Duration::from_nanos((known.unwrap_or(0.0) * batches as f64) as u64);
                let fits = match (round, taken.is_empty()) {
                    // The smallest size is always measured, as without it there is no result.
                    _ if number == 0 && taken.is_empty() => true,
                    (_, true) => expected * 2 <= left(start),
                    _ => clock.now() + expected <= until,
                };
                if !fits {
                    break;
                }
                let Some(ns) = self.run_round(session, clock, size as usize, batches)? else { break };
                if round > 0 {
                    taken.push(ns);
                    known = Some(ns);
                }
                start.get_or_insert_with(|| clock.now());
            }
            match median(&mut taken) {
                Some(ns) => points.push((size, ns.max(1.0))),
                None => break,
            }
        }
        self.repeat_outliers(session, clock, &mut points, time / 2)?;
        Ok(CostCurve::new(points).ok())
    }

    /// Repeats sizes whose cost per packet is clearly above that of smaller ones, which usually
    /// comes from other load on the machine. The minimum counts.
    fn repeat_outliers(
        &mut self,
        session: &mut dyn Session,
        clock: &dyn Clock,
        points: &mut [(u32, f64)],
        time: Duration,
    ) -> Result<(), DeviceError> {
        let until = clock.now() + time;
        for at in 1..points.len() {
            let packet = |(size, ns): (u32, f64)| ns / f64::from(size);
            for _ in 0..MAX_REPEATS {
                let (size, ns) = points[at];
                if packet(points[at]) <= packet(points[at - 1]) * OUTLIER_RATIO {
                    break;
                }
                // Assume that the repetition takes as long again.
                let expected = Duration::from_nanos((ns * MIN_BATCHES as f64) as u64);
                if clock.now() + expected > until {
                    return Ok(());
                }
                let Some(again) = self.run_round(session, clock, size as usize, MIN_BATCHES)? else { break };
                points[at].1 = ns.min(again.max(1.0));
            }
        }
        Ok(())
    }

    /// Filters some batches of a size. Returns nanoseconds per batch, or `None` if there are too
    /// few packets.
    fn run_round(
        &mut self,
        session: &mut dyn Session,
        clock: &dyn Clock,
        size: usize,
        batches: usize,
    ) -> Result<Option<f64>, DeviceError> {
        let mut whole = self.take_batch()?;
        let batches = batches.min(whole.len() / size);
        if batches == 0 {
            self.batch = Some(whole);
            return Ok(None);
        }
        let rest = whole.split_off(batches * size);
        let mut parts: Vec<Batch> = (1..batches).rev().map(|part| whole.split_off(part * size)).collect();
        parts.push(whole);
        let mut completed = Vec::with_capacity(batches);
        let start = clock.now();
        while let Some(part) = parts.pop() {
            if session.in_flight() >= session.depth() {
                completed.extend(session.complete()?.map(|done| done.batch));
            }
            session.submit(part).map_err(|refused| refused.error)?;
        }
        while let Some(done) = session.complete()? {
            completed.push(done.batch);
        }
        let taken = clock.now().saturating_sub(start);
        let mut completed = completed.into_iter();
        if let Some(mut whole) = completed.next() {
            completed.for_each(|part| whole.join(part));
            whole.join(rest);
            self.batch = Some(whole);
        }
        Ok(Some(taken.as_secs_f64() * 1e9 / batches as f64))
    }
}

fn median(taken: &mut [f64]) -> Option<f64> {
    taken.sort_by(f64::total_cmp);
    taken.get(taken.len() / 2).copied()
}

/// Calibrates a device for all length classes. Returns `None` if a class could not be measured.
///
/// # Errors
/// Errors of the session.
pub fn measure(
    traffic: &mut [SyntheticTraffic; LENGTH_CLASSES.len()],
    session: &mut dyn Session,
    clock: &Arc<dyn Clock>,
) -> Result<Option<[CostCurve; LENGTH_CLASSES.len()]>, DeviceError> {
    let mut curves = Vec::with_capacity(LENGTH_CLASSES.len());
    for traffic in traffic {
        curves.extend(traffic.measure(session, &**clock, 0, BUDGET / LENGTH_CLASSES.len() as u32)?);
    }
    Ok(curves.try_into().ok())
}
