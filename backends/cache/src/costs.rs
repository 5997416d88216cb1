//! Transfer costs of this machine: host copies, and each device's bus, measured once and cached.
//!
//! The entries are in the folder of `--device auto`'s calibrations, under the same rules: one for
//! the processor, one for each device and driver. An entry that cannot be read, or holds an
//! implausible cost, is measured again.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use portcullis_core::device::TransferCosts;
use portcullis_core::device::transfer_planner::CostSource;

use crate::Cache;

/// Version of the cached measurements; increase it when what is measured changes.
const GENERATION: u32 = 2;

/// The folder in the user's cache.
const KIND: &str = "auto";

/// Range of plausible costs, in nanoseconds or bytes per nanosecond; others are measured again.
const PLAUSIBLE_COSTS: std::ops::Range<f64> = 1e-3..1e5;

/// Size of the copy that measures a bus: large enough to hide the cost of starting it, and done in
/// a fraction of a millisecond.
pub const BUS_COPY_BYTES: usize = 4 << 20;

static FORCE_REMEASUREMENT: AtomicBool = AtomicBool::new(false);

/// Makes later calls of this process measure again instead of reading the cache; costs that the
/// process has looked up already stay.
pub fn force_remeasurement() {
    FORCE_REMEASUREMENT.store(true, Ordering::Relaxed);
}

/// Returns the costs of copying and gathering with `threads` threads of the host, cached, or
/// measured once per process; the bus is that of [`TransferCosts::GEN4`].
pub fn host_costs(threads: NonZeroUsize) -> TransferCosts {
    static HOST: Mutex<BTreeMap<NonZeroUsize, TransferCosts>> = Mutex::new(BTreeMap::new());
    // Hold the lock while measuring: two measurements at once would slow each other.
    let mut known = HOST.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(threads).or_insert_with(|| {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let measure = || {
            let costs = TransferCosts::measure(threads);
            (costs.host_source == CostSource::Measured).then_some([
                costs.copy_bytes_per_ns,
                costs.gather_packed_ns,
                costs.gather_slots_ns,
            ])
        };
        let cache = Cache::open(KIND);
        match cached_or_measure(
            cache.as_ref(),
            &format!("processor {processors} threads {threads} {}", processor()),
            measure,
        ) {
            Some(([copy_bytes_per_ns, gather_packed_ns, gather_slots_ns], host)) => TransferCosts {
                copy_bytes_per_ns,
                gather_packed_ns,
                gather_slots_ns,
                host_source: host,
                ..TransferCosts::GEN4
            },
            None => TransferCosts::GEN4,
        }
    })
}

/// Returns [`host_costs`] with the bus bandwidth of a device, cached, or measured once per process
/// and device. `about` identifies the device; `copy` transfers [`BUS_COPY_BYTES`] and returns how
/// long that took. If it fails, the bandwidth is [assumed](CostSource::Assumed).
pub fn device_costs(about: &str, threads: NonZeroUsize, copy: impl FnMut() -> Option<Duration>) -> TransferCosts {
    static BUSES: Mutex<Option<HashMap<String, (f64, CostSource)>>> = Mutex::new(None);
    // Hold the lock while measuring: two measurements at once would slow each other.
    let mut buses = BUSES.lock().unwrap_or_else(PoisonError::into_inner);
    let found = buses.get_or_insert_default().entry(about.into());
    let (bus_bytes_per_ns, bus) = *found.or_insert_with(|| bus_bandwidth(Cache::open(KIND).as_ref(), about, copy));
    TransferCosts { bus_bytes_per_ns, bus_source: bus, ..host_costs(threads) }
}

fn bus_bandwidth(cache: Option<&Cache>, about: &str, mut copy: impl FnMut() -> Option<Duration>) -> (f64, CostSource) {
    let measure = || {
        // Skip the first copy, which faults pages in, and take the minimum: other load only adds
        // time.
        let shortest = (0..4).map(|_| copy()).collect::<Option<Vec<_>>>()?.into_iter().skip(1).min()?;
        Some([BUS_COPY_BYTES as f64 / shortest.as_nanos().max(1) as f64])
    };
    let found = cached_or_measure(cache, &format!("bus {about}"), measure);
    found.map_or((TransferCosts::GEN4.bus_bytes_per_ns, CostSource::Assumed), |([bus], known)| (bus, known))
}

/// Returns the cached measurement, measuring and caching it on a miss.
fn cached_or_measure<const N: usize>(
    cache: Option<&Cache>,
    about: &str,
    measure: impl FnOnce() -> Option<[f64; N]>,
) -> Option<([f64; N], CostSource)> {
    let key = format!("transfer {GENERATION} portcullis {} {about}", env!("CARGO_PKG_VERSION"));
    let known = || decode(&cache?.get(key.as_bytes())?);
    if let Some(costs) = (!FORCE_REMEASUREMENT.load(Ordering::Relaxed)).then(known).flatten() {
        return Some((costs, CostSource::Cached));
    }
    let costs = measure().filter(|costs| costs.iter().all(|cost| PLAUSIBLE_COSTS.contains(cost)))?;
    if let Some(cache) = cache {
        let mut text = String::new();
        costs.iter().for_each(|cost| {
            let _ = writeln!(text, "{cost:?}");
        });
        cache.put(key.as_bytes(), text.as_bytes());
    }
    Some((costs, CostSource::Measured))
}

/// Parses one number per line; `None` if a cost is implausible.
fn decode<const N: usize>(bytes: &[u8]) -> Option<[f64; N]> {
    let numbers = std::str::from_utf8(bytes).ok()?.lines().map(|line| line.parse().ok());
    let numbers: Vec<f64> = numbers.collect::<Option<_>>()?;
    numbers.try_into().ok().filter(|costs: &[f64; N]| costs.iter().all(|cost| PLAUSIBLE_COSTS.contains(cost)))
}

/// The processor's model name on Linux; empty elsewhere.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(String::new, |(_, name)| name.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_cached_and_implausible_ones_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join(KIND), 1 << 20).unwrap();
        let look = |about: &str, measured: Option<[f64; 2]>| cached_or_measure(Some(&cache), about, || measured);
        let third = 1.0 / 3.0;
        assert_eq!(look("a", None), None);
        assert_eq!(look("a", Some([third, 8.0])), Some(([third, 8.0], CostSource::Measured)));
        assert_eq!(look("a", Some([1.0, 1.0])), Some(([third, 8.0], CostSource::Cached)));
        assert_eq!(look("b", Some([2.0, 1.0])), Some(([2.0, 1.0], CostSource::Measured)), "another's");
        // Implausible costs are not cached.
        for implausible in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert_eq!(look("c", Some([1.0, implausible])), None);
        }
        let key = format!("transfer {GENERATION} portcullis {} d", env!("CARGO_PKG_VERSION"));
        for bad in [
            &b""[..],
            b"1.0\n",
            b"1.0\n2.0\n3.0\n",
            b"1.0\nx\n",
            b"1.0\n-2.0\n",
            b"1.0\nNaN\n",
            b"1.0\ninf\n",
            b"\xff\n1.0\n",
        ] {
            assert!(cache.put(key.as_bytes(), bad));
            assert_eq!(look("d", Some([3.0, 4.0])), Some(([3.0, 4.0], CostSource::Measured)), "{bad:?}");
            assert_eq!(look("d", None), Some(([3.0, 4.0], CostSource::Cached)));
        }
        // Files that were cut off.
        for file in std::fs::read_dir(folder.path().join(KIND)).unwrap() {
            let path = file.unwrap().path();
            let whole = std::fs::read(&path).unwrap();
            std::fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        }
        assert_eq!(look("a", Some([5.0, 6.0])), Some(([5.0, 6.0], CostSource::Measured)));
        assert_eq!(
            cached_or_measure(None, "a", || Some([7.0])),
            Some(([7.0], CostSource::Measured)),
            "without a folder"
        );
    }

    #[test]
    fn a_bus_is_as_fast_as_its_quietest_copy() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join(KIND), 1 << 20).unwrap();
        // The first copy is skipped, and the shortest of the others counts.
        let mut times = [1, 4, 2, 3].into_iter().map(Duration::from_millis);
        let measured = BUS_COPY_BYTES as f64 / 2e6;
        assert_eq!(bus_bandwidth(Some(&cache), "a", || times.next()), (measured, CostSource::Measured));
        assert_eq!(bus_bandwidth(Some(&cache), "a", || panic!("it was measured")), (measured, CostSource::Cached));
        let mut fails = [1, 4, 2].into_iter().map(Duration::from_millis);
        assert_eq!(bus_bandwidth(Some(&cache), "b", || fails.next()), (25.0, CostSource::Assumed));
    }
}
