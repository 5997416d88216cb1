//! Device time of each stage of a chunk, measured by timestamp queries.

use std::time::Duration;

use portcullis_core::device::{DeviceError, StageTimes};
use wgpu::{BufferUsages, CommandEncoder, MapMode, QuerySet};

use crate::driver::gpu::Gpu;

/// Maximum number of timestamps of a chunk: one at its start, two for each launch, one at its end.
/// A chunk with more launches has no times.
const MAX_TIMESTAMPS: u32 = 256;

const BUFFER_SIZE: u64 = MAX_TIMESTAMPS as u64 * 8;

/// Records the timestamps of one chunk.
pub(crate) struct StageTimer {
    queries: QuerySet,
    /// Where the device resolves the queries, and where the host reads them.
    resolved: wgpu::Buffer,
    read: wgpu::Buffer,
    /// Nanoseconds in a tick.
    period: f64,
    /// Number of timestamps so far, which may exceed [`MAX_TIMESTAMPS`].
    count: u32,
    /// Whether `read` is mapped, or about to be.
    is_requested: bool,
}

impl StageTimer {
    pub fn new(gpu: &Gpu) -> StageTimer {
        StageTimer {
            queries: gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("clock"),
                ty: wgpu::QueryType::Timestamp,
                count: MAX_TIMESTAMPS,
            }),
            resolved: gpu.buffer("clock", BUFFER_SIZE, BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC, false),
            read: gpu.buffer("timestamps", BUFFER_SIZE, BufferUsages::COPY_DST | BufferUsages::MAP_READ, false),
            period: gpu.queue.get_timestamp_period().into(),
            count: 0,
            is_requested: false,
        }
    }

    /// Starts over, for the next chunk.
    pub fn reset(&mut self) {
        if std::mem::take(&mut self.is_requested) {
            // The previous chunk's times were never read.
            self.read.unmap();
        }
        self.count = 0;
    }

    /// Encodes a timestamp after the commands encoded before.
    pub fn write(&mut self, encoder: &mut CommandEncoder) {
        if self.count < MAX_TIMESTAMPS {
            encoder.write_timestamp(&self.queries, self.count);
        }
        self.count += 1;
    }

    /// Encodes the download of the timestamps, after the last of a chunk.
    pub fn resolve(&self, encoder: &mut CommandEncoder) {
        if self.count <= MAX_TIMESTAMPS {
            let size = u64::from(self.count) * 8;
            encoder.resolve_query_set(&self.queries, 0..self.count, &self.resolved, 0);
            encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.read, 0, size);
        }
    }

    /// Requests the timestamps, once the download is submitted.
    pub fn request(&mut self) {
        if self.count <= MAX_TIMESTAMPS {
            Gpu::request_mapping(&self.read, MapMode::Read, u64::from(self.count) * 8);
            self.is_requested = true;
        }
    }

    /// Sums up the times by stage, once the device is done with the chunk.
    pub fn times(&mut self, gpu: &Gpu) -> Result<Option<StageTimes>, DeviceError> {
        if !std::mem::take(&mut self.is_requested) {
            return Ok(None);
        }
        let size = u64::from(self.count) * 8;
        let timestamps = self.read.get_mapped_range(..size).map(|view| {
            let timestamp = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            view.chunks_exact(8).map(timestamp).collect::<Vec<u64>>()
        });
        // Unmap even after an error: the next chunk copies into the buffer.
        self.read.unmap();
        let timestamps = timestamps.map_err(|error| gpu.failure(error.to_string()))?;
        Ok(stage_times(&timestamps, self.period))
    }
}

/// Sums up the times between timestamps: one at the start, two for each launch, one at the end.
/// `None` if there are not that many, or the clock ran backwards.
fn stage_times(timestamps: &[u64], period: f64) -> Option<StageTimes> {
    let (&first, rest) = timestamps.split_first()?;
    let (&last, launches) = rest.split_last()?;
    let (launches, odd) = launches.as_chunks::<2>();
    if launches.is_empty() || !odd.is_empty() {
        return None;
    }
    let between = |from: u64, to: u64| Some(Duration::from_nanos((to.checked_sub(from)? as f64 * period) as u64));
    let kernel = launches.iter().map(|&[from, to]| between(from, to)).sum::<Option<Duration>>()?;
    let upload = between(first, launches[0][0])?;
    Some(StageTimes { upload, kernel, download: between(launches[launches.len() - 1][1], last)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_launches_counts_for_no_stage() {
        let ns = Duration::from_nanos;
        let times = |upload, kernel, download| {
            Some(StageTimes { upload: ns(upload), kernel: ns(kernel), download: ns(download) })
        };
        assert_eq!(stage_times(&[10, 13, 20, 24], 1.0), times(3, 7, 4));
        assert_eq!(stage_times(&[10, 13, 20, 100, 105, 106], 2.0), times(6, 24, 2));
        for timestamps in [&[][..], &[1], &[1, 2], &[1, 2, 3], &[1, 2, 3, 4, 5], &[10, 9, 20, 24], &[10, 13, 12, 24]] {
            assert_eq!(stage_times(timestamps, 1.0), None, "{timestamps:?}");
        }
    }
}
