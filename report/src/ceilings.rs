//! Copy bandwidth of memory and buses: the ceilings that throughput is compared with.

use std::hint::black_box;
use std::time::{Duration, Instant};

use portcullis_core::packet::Arena;

use super::results::{Ceiling, Estimate};
use super::statistics::median;

/// Copy within host memory by all threads.
pub const MEMORY: &str = "memory copy";
/// Copy within host memory by one thread.
pub const MEMORY_ONE_THREAD: &str = "memory copy, 1 thread";
/// Copy from host memory to a device over its bus.
pub const BUS: &str = "bus copy to the device";
/// Copy within a device's own memory.
pub const DEVICE_MEMORY: &str = "copy in the device's memory";

/// Bytes that a copy reads and again writes; more than caches hold.
const BYTES: usize = 128 << 20;

/// Minimum and maximum number of copies.
const COPIES: std::ops::Range<usize> = 10..40;

/// Measures copies within host memory, by all threads and by one, for about `time` in all. The
/// bytes of a copy count twice, as it reads and writes them. Without memory there are none.
pub fn host(confidence: f64, time: Duration, stopped: &dyn Fn() -> bool) -> Vec<Ceiling> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // In pages of the size that packets have, which decides how fast a copy is.
    let (Ok(mut from), Ok(mut to)) = (Arena::new(BYTES), Arena::new(BYTES)) else { return Vec::new() };
    from.fill(1);
    let kinds = [(MEMORY, threads), (MEMORY_ONE_THREAD, 1)];
    let mut all = Vec::new();
    for (name, threads) in kinds {
        let copy = || {
            let part = BYTES.div_ceil(threads);
            let began = Instant::now();
            std::thread::scope(|scope| {
                for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                    scope.spawn(move || black_box(to).copy_from_slice(black_box(from)));
                }
            });
            Ok::<_, ()>(began.elapsed())
        };
        let estimate = rate(2 * BYTES, confidence, time / 2, stopped, copy);
        all.extend(estimate.map(|bytes_per_second| Ceiling { name: name.into(), device: None, bytes_per_second }));
    }
    all
}

/// Returns the bytes per second of a repeated copy; `None` if it fails or is stopped before there
/// is an interval.
fn rate<E>(
    bytes: usize,
    confidence: f64,
    time: Duration,
    stopped: &dyn Fn() -> bool,
    mut copy: impl FnMut() -> Result<Duration, E>,
) -> Option<Estimate> {
    let mut samples = Vec::new();
    // The first copy faults the pages in.
    copy().ok()?;
    let began = Instant::now();
    while samples.len() < COPIES.start || samples.len() < COPIES.end && began.elapsed() < time {
        if stopped() {
            break;
        }
        samples.push(copy().ok()?.as_secs_f64());
    }
    Some(median(&samples, confidence)?.under(bytes as f64))
}

/// Measures the bus and the memory of a CUDA device, for about `time` in all. Other backends cannot
/// measure them, so for their devices the result is empty.
pub fn of_device(id: &str, confidence: f64, time: Duration, stopped: &dyn Fn() -> bool) -> Vec<Ceiling> {
    #[cfg(feature = "cuda")]
    if id.starts_with("cuda") {
        use portcullis_core::device::Device;
        use portcullis_cuda::measure::{time_device_copy, time_upload};
        let Some(device) = portcullis_cuda::probe().ok().and_then(|all| all.into_iter().find(|it| it.info().id == id))
        else {
            return Vec::new();
        };
        // Each call allocates its buffers, warms the device up and returns the mean of its rounds.
        let copies = COPIES.start as u32;
        let bus = rate(BYTES, confidence, time / 2, stopped, || time_upload(&device, BYTES, copies));
        let own = rate(2 * BYTES, confidence, time / 2, stopped, || time_device_copy(&device, BYTES, copies));
        let ceiling =
            |name: &str, bytes_per_second| Ceiling { name: name.into(), device: Some(id.into()), bytes_per_second };
        let bus = bus.map(|estimate| ceiling(BUS, estimate));
        return bus.into_iter().chain(own.map(|estimate| ceiling(DEVICE_MEMORY, estimate))).collect();
    }
    let _ = (id, confidence, time, stopped);
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bytes_by_time() {
        let never = || false;
        let found = rate(1000, 0.95, Duration::ZERO, &never, || Ok::<_, ()>(Duration::from_micros(1))).unwrap();
        assert!((found.median / 1e9 - 1.0).abs() < 1e-9 && found.low == found.high);
        assert_eq!(rate(1000, 0.95, Duration::ZERO, &never, || Err(())), None);
        assert_eq!(rate(1000, 0.95, Duration::ZERO, &|| true, || Ok::<_, ()>(Duration::from_micros(1))), None);
    }
}
