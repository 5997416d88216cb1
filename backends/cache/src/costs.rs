//! Transfer costs of this machine: host copies, and each device's bus, measured once and cached.
//!
//! The entries are in the folder of `--device auto`'s calibrations, under the same rules: one for
//! the processor, one for each device and driver. An entry that cannot be read, or holds an
//! impossible cost, is measured again.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use portcullis_core::device::TransferCosts;
use portcullis_core::device::transfer_planner::CostSource;

use crate::Cache;

/// Counts the changes to what is measured, and how.
const GENERATION: u32 = 1;

/// The folder in the user's cache.
const KIND: &str = "auto";

/// Costs that a machine can have: nanoseconds, or bytes in one.
const POSSIBLE: std::ops::Range<f64> = 1e-3..1e5;

/// Bytes that a bus is measured with: far more than starting a copy takes, and a fraction of a
/// millisecond's worth.
pub const BUS_COPY_BYTES: usize = 4 << 20;

static ANEW: AtomicBool = AtomicBool::new(false);

/// Has what is asked for from now on, and was not yet, measured again in place of what was kept.
pub fn force_remeasurement() {
    ANEW.store(true, Ordering::Relaxed);
}

/// What the host's share costs; the bus is that of [`TransferCosts::GEN4`]. Looked up, or measured,
/// once a process.
pub fn host_costs() -> TransferCosts {
    static HOST: OnceLock<TransferCosts> = OnceLock::new();
    *HOST.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let measure = || {
            let costs = TransferCosts::measure();
            (costs.host_source == CostSource::Measured).then_some([
                costs.copy_bytes_per_ns,
                costs.gather_packed_ns,
                costs.gather_slots_ns,
            ])
        };
        let cache = Cache::open(KIND);
        match kept(cache.as_ref(), &format!("processor {processors} {}", processor()), measure) {
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
pub fn device_costs(about: &str, copy: impl FnMut() -> Option<Duration>) -> TransferCosts {
    static BUSES: Mutex<Option<HashMap<String, (f64, CostSource)>>> = Mutex::new(None);
    // Others wait: two at once would slow each other.
    let mut buses = BUSES.lock().unwrap_or_else(PoisonError::into_inner);
    let found = buses.get_or_insert_default().entry(about.into());
    let (bus_bytes_per_ns, bus) = *found.or_insert_with(|| of_bus(Cache::open(KIND).as_ref(), about, copy));
    TransferCosts { bus_bytes_per_ns, bus_source: bus, ..host_costs() }
}

fn of_bus(cache: Option<&Cache>, about: &str, mut copy: impl FnMut() -> Option<Duration>) -> (f64, CostSource) {
    let measure = || {
        // The first touches pages. Others' work only adds to the time.
        let quietest = (0..4).map(|_| copy()).collect::<Option<Vec<_>>>()?.into_iter().skip(1).min()?;
        Some([BUS_COPY_BYTES as f64 / quietest.as_nanos().max(1) as f64])
    };
    let found = kept(cache, &format!("bus {about}"), measure);
    found.map_or((TransferCosts::GEN4.bus_bytes_per_ns, CostSource::Assumed), |([bus], known)| (bus, known))
}

/// Returns the cached measurement, measuring and caching it on a miss.
fn kept<const N: usize>(
    cache: Option<&Cache>,
    about: &str,
    measure: impl FnOnce() -> Option<[f64; N]>,
) -> Option<([f64; N], CostSource)> {
    let key = format!("transfer {GENERATION} portcullis {} {about}", env!("CARGO_PKG_VERSION"));
    let known = || decode(&cache?.get(key.as_bytes())?);
    if let Some(costs) = (!ANEW.load(Ordering::Relaxed)).then(known).flatten() {
        return Some((costs, CostSource::Cached));
    }
    let costs = measure().filter(|costs| costs.iter().all(|cost| POSSIBLE.contains(cost)))?;
    if let Some(cache) = cache {
        let mut text = String::new();
        costs.iter().for_each(|cost| {
            let _ = writeln!(text, "{cost:?}");
        });
        cache.put(key.as_bytes(), text.as_bytes());
    }
    Some((costs, CostSource::Measured))
}

/// A number a line, each a possible cost.
fn decode<const N: usize>(bytes: &[u8]) -> Option<[f64; N]> {
    let numbers = std::str::from_utf8(bytes).ok()?.lines().map(|line| line.parse().ok());
    let numbers: Vec<f64> = numbers.collect::<Option<_>>()?;
    numbers.try_into().ok().filter(|costs: &[f64; N]| costs.iter().all(|cost| POSSIBLE.contains(cost)))
}

/// The processor's name, where the system tells.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(String::new, |(_, name)| name.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_kept_and_what_is_impossible_is_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join(KIND), 1 << 20).unwrap();
        let look = |about: &str, measured: Option<[f64; 2]>| kept(Some(&cache), about, || measured);
        let third = 1.0 / 3.0;
        assert_eq!(look("a", None), None);
        assert_eq!(look("a", Some([third, 8.0])), Some(([third, 8.0], CostSource::Measured)));
        assert_eq!(look("a", Some([1.0, 1.0])), Some(([third, 8.0], CostSource::Cached)));
        assert_eq!(look("b", Some([2.0, 1.0])), Some(([2.0, 1.0], CostSource::Measured)), "another's");
        // Nothing of the kind is kept.
        for impossible in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert_eq!(look("c", Some([1.0, impossible])), None);
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
        assert_eq!(kept(None, "a", || Some([7.0])), Some(([7.0], CostSource::Measured)), "without a folder");
    }

    #[test]
    fn a_bus_is_as_fast_as_its_quietest_copy() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join(KIND), 1 << 20).unwrap();
        // The first does not count, nor what others added.
        let mut times = [1, 4, 2, 3].into_iter().map(Duration::from_millis);
        let measured = BUS_COPY_BYTES as f64 / 2e6;
        assert_eq!(of_bus(Some(&cache), "a", || times.next()), (measured, CostSource::Measured));
        assert_eq!(of_bus(Some(&cache), "a", || panic!("it was measured")), (measured, CostSource::Cached));
        let mut fails = [1, 4, 2].into_iter().map(Duration::from_millis);
        assert_eq!(of_bus(Some(&cache), "b", || fails.next()), (25.0, CostSource::Assumed));
    }
}
