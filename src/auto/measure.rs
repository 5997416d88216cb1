//! Measuring what batches cost on a device.
//!
//! As they are filtered later: as many in flight as the session takes, with made-up traffic, which is on no network, so that
//! nobody's packets wait for it. Each size has a few rounds, the median of which counts; a device gets [`BUDGET`] for all of
//! them, so that a slow filter is measured at few sizes and seldom.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::{DeviceError, DeviceKind, Session};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;
use portcullis_core::program::facts::Window;
use portcullis_io::{self as io, SourceOptions};

use super::costs::LENGTHS;
use super::curve::Curve;

/// Time that a device has for all classes, beside what it takes to compile and to filter its first batch.
pub const BUDGET: Duration = Duration::from_millis(300);

/// Sizes that are measured, as far as the time lasts.
pub const SIZES: [u32; 6] = [64, 256, 1024, 4096, 16_384, 65_536];

/// Packets that there are in all, and bytes that they may take.
pub const PACKETS: usize = 1 << 18;
const BYTES: usize = 32 << 20;

/// Rounds of a size, at most.
const ROUNDS: usize = 7;

/// Batches of a round: so many packets in all, but not so few batches that a queue does not fill.
const ROUND: usize = 1 << 14;
const LEAST_BATCHES: usize = 8;
const MOST_BATCHES: usize = 64;

/// How much more a packet may cost in larger batches before that is looked at again, and how often.
const ODD: f64 = 1.5;
const LOOKS: usize = 12;

/// What the time is.
pub trait Clock: Send + Sync {
    /// Time since some moment.
    fn now(&self) -> Duration;
}

/// The machine's own.
#[derive(Debug)]
pub struct Monotonic(Instant);

impl Default for Monotonic {
    fn default() -> Self {
        Monotonic(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Packets to measure with, of one class.
pub struct Traffic {
    text: String,
    options: SourceOptions,
    /// Whether the filter leaves packets other than it found them.
    is_changed: bool,
    /// All of them in one batch; gone with a device that failed.
    batch: Option<Batch>,
    /// As they were.
    pristine: Vec<u8>,
}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traffic").field("text", &self.text).finish_non_exhaustive()
    }
}

impl Traffic {
    /// Of a class of lengths, for a filter; so many packets at most.
    pub fn new(program: &Program, class: usize, most: usize) -> Traffic {
        let length = LENGTHS[class];
        let options = crate::pipeline::source_options(program, DeviceKind::Cpu, false);
        let facts = program.facts();
        let packets = most.min(BYTES / length as usize);
        Traffic {
            text: format!("synth:packets={packets},seed=1,size={length}"),
            options: SourceOptions { max_packets: packets, block_size: BYTES, ..options },
            is_changed: facts.changes_length || facts.writes != Window::Nothing,
            batch: None,
            pristine: Vec::new(),
        }
    }

    fn take(&mut self) -> Result<Batch, DeviceError> {
        let missing = |what: String| DeviceError::Refused(format!("no traffic to measure with: {what}"));
        let mut batch = match self.batch.take() {
            Some(batch) => batch,
            None => {
                let mut source = io::open(&self.text, &self.options).map_err(|error| missing(error.to_string()))?;
                let batch = source.next_batch().map_err(|error| missing(error.to_string()))?;
                let batch = batch.ok_or_else(|| missing("there is none".into()))?;
                if self.is_changed {
                    self.pristine.clear();
                    batch.packets().for_each(|packet| self.pristine.extend_from_slice(packet));
                }
                return Ok(batch);
            }
        };
        if self.is_changed {
            let original = batch.original().to_vec();
            batch.resize(original).map_err(|error| missing(error.to_string()))?;
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

    /// The costs of batches from `from` packets on, in `time`. The session is idle before, and after.
    ///
    /// # Errors
    /// Those of the session, after which it is of no more use.
    pub fn measure(
        &mut self,
        session: &mut dyn Session,
        clock: &dyn Clock,
        from: u32,
        time: Duration,
    ) -> Result<Option<Curve>, DeviceError> {
        session.finish_background_work();
        let sizes: Vec<u32> = SIZES.into_iter().filter(|&size| size >= from).collect();
        let mut points: Vec<(u32, f64)> = Vec::new();
        let mut begun = None;
        for (number, &size) in sizes.iter().enumerate() {
            let left = |begun: Option<Duration>| {
                begun.map_or(time, |begun| time.saturating_sub(clock.now().saturating_sub(begun)))
            };
            // What one size leaves, the larger ones may use.
            let share = left(begun) / (sizes.len() - number) as u32;
            let until = clock.now() + share;
            // What a batch takes is known, or guessed from the size before.
            let mut known = points.last().map(|last| last.1 * f64::from(size) / f64::from(last.0));
            let mut taken: Vec<f64> = Vec::new();
            // The first round fills caches and queues; what drivers put off until the very first one is no cost of a batch.
            for round in 0..=ROUNDS {
                let batches = match known {
                    Some(ns) if round > 0 => {
                        let fitting = share.as_secs_f64() * 1e9 / ns / ROUNDS as f64;
                        (fitting as usize)
                            .clamp(LEAST_BATCHES, (ROUND / size as usize).clamp(LEAST_BATCHES, MOST_BATCHES))
                    }
                    _ => LEAST_BATCHES,
                };
                let expected = Duration::from_nanos((known.unwrap_or(0.0) * batches as f64) as u64);
                let fits = match (round, taken.is_empty()) {
                    // The smallest size is measured in any case: there would be nothing to go by.
                    _ if number == 0 && taken.is_empty() => true,
                    (_, true) => expected * 2 <= left(begun),
                    _ => clock.now() + expected <= until,
                };
                if !fits {
                    break;
                }
                let Some(ns) = self.round(session, clock, size as usize, batches)? else { break };
                if round > 0 {
                    taken.push(ns);
                    known = Some(ns);
                }
                begun.get_or_insert_with(|| clock.now());
            }
            match median(&mut taken) {
                Some(ns) => points.push((size, ns.max(1.0))),
                None => break,
            }
        }
        self.look_again(session, clock, &mut points, time / 2)?;
        Ok(Curve::new(points).ok())
    }

    /// Measures sizes again of which a packet costs clearly more than of smaller ones: mostly something else had the machine
    /// meanwhile. The lesser counts.
    fn look_again(
        &mut self,
        session: &mut dyn Session,
        clock: &dyn Clock,
        points: &mut [(u32, f64)],
        time: Duration,
    ) -> Result<(), DeviceError> {
        let until = clock.now() + time;
        for at in 1..points.len() {
            let packet = |(size, ns): (u32, f64)| ns / f64::from(size);
            for _ in 0..LOOKS {
                let (size, ns) = points[at];
                if packet(points[at]) <= packet(points[at - 1]) * ODD {
                    break;
                }
                // As long as before, at worst, for the queue as well.
                let expected = Duration::from_nanos((ns * LEAST_BATCHES as f64) as u64);
                if clock.now() + expected > until {
                    return Ok(());
                }
                let Some(again) = self.round(session, clock, size as usize, LEAST_BATCHES)? else { break };
                points[at].1 = ns.min(again.max(1.0));
            }
        }
        Ok(())
    }

    /// Filters some batches of a size; nanoseconds each, or nothing where there are not so many packets.
    fn round(
        &mut self,
        session: &mut dyn Session,
        clock: &dyn Clock,
        size: usize,
        batches: usize,
    ) -> Result<Option<f64>, DeviceError> {
        let mut whole = self.take()?;
        let batches = batches.min(whole.len() / size);
        if batches == 0 {
            self.batch = Some(whole);
            return Ok(None);
        }
        let rest = whole.split_off(batches * size);
        let mut parts: Vec<Batch> = (1..batches).rev().map(|part| whole.split_off(part * size)).collect();
        parts.push(whole);
        let mut back = Vec::with_capacity(batches);
        let begun = clock.now();
        while let Some(part) = parts.pop() {
            if session.in_flight() >= session.depth() {
                back.extend(session.complete()?.map(|done| done.batch));
            }
            session.submit(part).map_err(|refused| refused.error)?;
        }
        while let Some(done) = session.complete()? {
            back.push(done.batch);
        }
        let taken = clock.now().saturating_sub(begun);
        let mut back = back.into_iter();
        if let Some(mut whole) = back.next() {
            back.for_each(|part| whole.join(part));
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

/// Measures a device for all classes; `None` for a class whose first batch was too much.
///
/// # Errors
/// Those of the session.
pub fn measure(
    traffic: &mut [Traffic; LENGTHS.len()],
    session: &mut dyn Session,
    clock: &Arc<dyn Clock>,
) -> Result<Option<[Curve; LENGTHS.len()]>, DeviceError> {
    let mut curves = Vec::with_capacity(LENGTHS.len());
    for traffic in traffic {
        curves.extend(traffic.measure(session, &**clock, 0, BUDGET / LENGTHS.len() as u32)?);
    }
    Ok(curves.try_into().ok())
}
