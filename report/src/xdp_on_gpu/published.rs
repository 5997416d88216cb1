//! Figures that XDP-on-GPU publishes: `doc/benchmark_results_20250718_153209` of its repository,
//! means of 100 calls on a GPU and a processor that it does not name. Figures that do not time a
//! whole call are left out: its asynchronous rows end when the work is queued, and its
//! unified-memory rows move no data.

/// A number of records, and the nanoseconds that a call over them took.
pub type Published = (usize, f64);

/// Published figures for one workload.
#[derive(Debug)]
pub struct PublishedWorkload {
    /// Name of the workload, as [`super::workloads::Workload::name`].
    pub workload: &'static str,
    /// GPU times, including the copies to the device and back.
    pub gpu: &'static [Published],
    /// Times on one thread of the processor.
    pub processor: &'static [Published],
}

const US: f64 = 1e3;
const MS: f64 = 1e6;

/// Published table of devices against the CPU.
pub const WORKLOADS: [PublishedWorkload; 6] = [
    PublishedWorkload {
        workload: "simple filter",
        gpu: &[
            (100, 22.9 * US),
            (1_000, 37.9 * US),
            (10_000, 65.0 * US),
            (100_000, 210.0 * US),
            (1_000_000, 1.006 * MS),
            (10_000_000, 9.365 * MS),
        ],
        processor: &[
            (100, 59.0),
            (1_000, 565.0),
            (10_000, 6.85 * US),
            (100_000, 151.0 * US),
            (1_000_000, 1.350 * MS),
            (10_000_000, 24.69 * MS),
        ],
    },
    PublishedWorkload {
        workload: "port filter",
        gpu: &[(1_000_000, 0.989 * MS)],
        processor: &[(1_000_000, 1.348 * MS)],
    },
    PublishedWorkload {
        workload: "minimal filter",
        gpu: &[(1_000_000, 0.990 * MS)],
        processor: &[(1_000_000, 1.348 * MS)],
    },
    PublishedWorkload {
        workload: "complex filter",
        gpu: &[(1_000_000, 0.993 * MS)],
        processor: &[(1_000_000, 5.847 * MS)],
    },
    PublishedWorkload {
        workload: "hash load balancer",
        gpu: &[
            (1_000, 29.6 * US),
            (10_000, 43.5 * US),
            (100_000, 193.0 * US),
            (1_000_000, 0.990 * MS),
            (10_000_000, 9.361 * MS),
        ],
        processor: &[
            (1_000, 4.27 * US),
            (10_000, 42.2 * US),
            (100_000, 518.0 * US),
            (1_000_000, 6.119 * MS),
            (10_000_000, 127.8 * MS),
        ],
    },
    PublishedWorkload {
        workload: "batch hash load balancer",
        gpu: &[(1_000_000, 0.994 * MS), (10_000_000, 9.305 * MS)],
        processor: &[(1_000_000, 7.166 * MS), (10_000_000, 127.1 * MS)],
    },
];

/// Times of the simple filter by the kind of host memory.
pub const MEMORY: [(&str, &[Published]); 3] = [
    (
        "pageable",
        &[(100, 25.6 * US), (1_000, 46.8 * US), (10_000, 187.0 * US), (100_000, 1.29 * MS), (1_000_000, 10.2 * MS)],
    ),
    (
        "pinned",
        &[(100, 22.0 * US), (1_000, 37.8 * US), (10_000, 63.9 * US), (100_000, 212.0 * US), (1_000_000, 1.007 * MS)],
    ),
    (
        "imported",
        &[(100, 64.4 * US), (1_000, 60.9 * US), (10_000, 62.0 * US), (100_000, 293.0 * US), (1_000_000, 3.51 * MS)],
    ),
];

/// Times of the simple filter over a million pinned records, by chunk size.
pub const CHUNKS: &[Published] = &[
    (1_000, 10.1 * MS),
    (10_000, 1.99 * MS),
    (50_000, 1.03 * MS),
    (100_000, 0.993 * MS),
    (250_000, 1.04 * MS),
    (500_000, 1.17 * MS),
    (1_000_000, 1.48 * MS),
];

/// Time of a thousand calls of one record each.
pub const SINGLE_CALLS: Published = (1_000, 15.3 * MS);

#[cfg(test)]
mod tests {
    use super::super::workloads;
    use super::*;

    #[test]
    fn every_workload_has_published_figures() {
        for (published, workload) in WORKLOADS.iter().zip(&workloads::WORKLOADS) {
            assert_eq!(published.workload, workload.name);
        }
        // The rates that it states: 1,068 Mpps for ten million records, 405 on the processor.
        let rate = |of: &[Published]| of.last().map(|&(packets, nanos)| (packets as f64 / nanos * 1e3).round());
        assert_eq!((rate(WORKLOADS[0].gpu), rate(WORKLOADS[0].processor)), (Some(1068.0), Some(405.0)));
    }
}
