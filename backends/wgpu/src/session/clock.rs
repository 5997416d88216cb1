//! The device's own clock: when it began and ended what a part of a batch made it do.

use std::time::Duration;

use portcullis_core::device::DeviceError;
use portcullis_core::device::offload::DeviceTimes;
use wgpu::{BufferUsages, CommandEncoder, Features, MapMode, QuerySet};

use crate::device::Gpu;

/// What a device has to have for it: looks at its clock between any two commands.
pub(crate) const NEEDED: Features = Features::TIMESTAMP_QUERY.union(Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);

/// Looks that are taken of a part: one before all, two a launch, one behind all. Of a part that is cut into more launches nothing
/// is told.
const LOOKS: u32 = 256;

const SIZE: u64 = LOOKS as u64 * 8;

/// What a part's buffers have for it.
pub(crate) struct Clock {
    looks: QuerySet,
    /// Where the device brings them together, and where the host reads them.
    resolved: wgpu::Buffer,
    read: wgpu::Buffer,
    /// Nanoseconds in a unit of the clock.
    period: f64,
    taken: u32,
    /// All of them are on their way to the host.
    ended: bool,
}

impl Clock {
    pub fn new(gpu: &Gpu) -> Clock {
        Clock {
            looks: gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("clock"),
                ty: wgpu::QueryType::Timestamp,
                count: LOOKS,
            }),
            resolved: gpu.buffer("clock", SIZE, BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC, false),
            read: gpu.buffer("clock's looks", SIZE, BufferUsages::COPY_DST | BufferUsages::MAP_READ, false),
            period: gpu.queue.get_timestamp_period().into(),
            taken: 0,
            ended: false,
        }
    }

    /// Begins with a part.
    pub fn begin(&mut self) {
        if std::mem::take(&mut self.ended) {
            // Nobody has read the part before.
            self.read.unmap();
        }
        self.taken = 0;
    }

    /// Looks at the clock when what is encoded before has ended.
    pub fn look(&mut self, encoder: &mut CommandEncoder) {
        if self.taken < LOOKS {
            encoder.write_timestamp(&self.looks, self.taken);
        }
        self.taken += 1;
    }

    /// Has the looks brought to the host, behind the last of a part.
    pub fn end(&self, encoder: &mut CommandEncoder) {
        if self.taken <= LOOKS {
            let size = u64::from(self.taken) * 8;
            encoder.resolve_query_set(&self.looks, 0..self.taken, &self.resolved, 0);
            encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.read, 0, size);
        }
    }

    /// Asks for them, once that is submitted.
    pub fn submitted(&mut self) {
        if self.taken <= LOOKS {
            // A failure shows when they are read.
            self.read.map_async(MapMode::Read, ..u64::from(self.taken) * 8, |_| ());
            self.ended = true;
        }
    }

    /// What they say; the device is done with the part.
    pub fn times(&mut self, gpu: &Gpu) -> Result<Option<DeviceTimes>, DeviceError> {
        if !std::mem::take(&mut self.ended) {
            return Ok(None);
        }
        let size = u64::from(self.taken) * 8;
        let looks = self.read.get_mapped_range(..size).map(|view| {
            let look = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            view.chunks_exact(8).map(look).collect::<Vec<u64>>()
        });
        // Whether or not it could be read: the next part's copy must not find it mapped.
        self.read.unmap();
        let looks = looks.map_err(|error| gpu.failed(error.to_string()))?;
        Ok(times(&looks, self.period))
    }
}

/// The times between looks: the first before all, two a launch, the last behind all. `None` where there are not so many, or the
/// clock went backwards.
fn times(looks: &[u64], period: f64) -> Option<DeviceTimes> {
    let (&first, rest) = looks.split_first()?;
    let (&last, launches) = rest.split_last()?;
    let (launches, odd) = launches.as_chunks::<2>();
    if launches.is_empty() || !odd.is_empty() {
        return None;
    }
    let between = |from: u64, to: u64| Some(Duration::from_nanos((to.checked_sub(from)? as f64 * period) as u64));
    let kernel = launches.iter().map(|&[from, to]| between(from, to)).sum::<Option<Duration>>()?;
    let upload = between(first, launches[0][0])?;
    Some(DeviceTimes { upload, kernel, download: between(launches[launches.len() - 1][1], last)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_between_launches_is_nobodys() {
        let ns = Duration::from_nanos;
        let of = |upload, kernel, download| {
            Some(DeviceTimes { upload: ns(upload), kernel: ns(kernel), download: ns(download) })
        };
        assert_eq!(times(&[10, 13, 20, 24], 1.0), of(3, 7, 4));
        assert_eq!(times(&[10, 13, 20, 100, 105, 106], 2.0), of(6, 24, 2));
        for looks in [&[][..], &[1], &[1, 2], &[1, 2, 3], &[1, 2, 3, 4, 5], &[10, 9, 20, 24], &[10, 13, 12, 24]] {
            assert_eq!(times(looks, 1.0), None, "{looks:?}");
        }
    }
}
