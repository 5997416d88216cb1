//! Synthetic work per packet, for benchmarks
//! ([`MeasureOptions::synthetic_work`](portcullis_core::device::MeasureOptions)).

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// Busy-waiting that stands for work on each packet besides the filter.
#[derive(Debug)]
pub(super) struct SyntheticWork {
    per_packet: Duration,
    /// Packets that the work was done for.
    #[cfg(test)]
    pub packets: std::sync::atomic::AtomicUsize,
    /// Whether to panic instead.
    #[cfg(test)]
    pub panics: std::sync::atomic::AtomicBool,
}

impl SyntheticWork {
    /// `nanos` nanoseconds per packet.
    pub fn new(nanos: NonZeroU64) -> SyntheticWork {
        SyntheticWork {
            per_packet: Duration::from_nanos(nanos.get()),
            #[cfg(test)]
            packets: Default::default(),
            #[cfg(test)]
            panics: Default::default(),
        }
    }

    /// Keeps the calling thread busy for as long as the work on `packets` packets takes.
    pub fn burn(&self, packets: usize) {
        #[cfg(test)]
        assert!(!self.panics.load(std::sync::atomic::Ordering::Relaxed), "a panic of this test's making");
        #[cfg(test)]
        self.packets.fetch_add(packets, std::sync::atomic::Ordering::Relaxed);
        spin_for(self.per_packet.saturating_mul(u32::try_from(packets).unwrap_or(u32::MAX)), Instant::now);
    }
}

/// Polls a clock until `time` has passed.
fn spin_for(time: Duration, clock: impl Fn() -> Instant) {
    let start = clock();
    while clock().saturating_duration_since(start) < time {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::num::NonZeroUsize;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use portcullis_core::device::{LoadOptions, Session};
    use portcullis_core::diagnostics::Source;
    use portcullis_core::packet::Batch;
    use portcullis_core::program::{Program, ProgramOptions};
    use portcullis_wgsl as wgsl;

    use super::super::CpuSession;
    use super::super::shared::{MAX_CHUNK, max_chunk};
    use super::*;
    use crate::compile::filter_code::PrefetchPolicy;
    use crate::compile::pipeline::{StyleSet, compile_filter};
    use crate::compile::processor::Processor;

    /// Filters whose batches are scheduled differently: in any order, in the order of flows, one
    /// batch at a time, and partitioned by search.
    const TEXTS: [&str; 4] = [
        "fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u) % 5u; }",
        "fn xdp_flow(pkt: u32) -> u32 { return load_be32(pkt, 0u); }
        fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u) % 5u; }",
        "//! map m: array value=1 entries=2
        fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u) % 5u; }",
        "//! map m: hash key=1 value=1 entries=200000
        fn xdp_filter(pkt: u32) -> u32 { m_add(m_insert(load_be32(pkt, 0u)), 0u, 1u); return XDP_PASS; }",
    ];

    /// A session with a nanosecond of work per packet.
    fn session(text: &str, threads: usize) -> CpuSession {
        let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
        let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
        let compile = |program: &Program| {
            compile_filter(program, StyleSet::All, PrefetchPolicy::Always, Processor::Host).unwrap()
        };
        let options = LoadOptions::default().with_threads(NonZeroUsize::new(threads));
        let flows = program.flow_program().map(|flows| compile(&flows));
        CpuSession::new(program.clone(), compile(&program), flows, NonZeroU64::new(1), false, &options).unwrap()
    }

    fn numbered(packets: usize) -> Batch {
        let packet = |number: usize| [&(number as u32 * 7).to_be_bytes()[..], &[0; 16]].concat();
        Batch::from_packets(&(0..packets).map(packet).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_work_is_done_once_per_packet_however_packets_are_scheduled() {
        for text in TEXTS {
            for threads in [1, 3] {
                let mut session = session(text, threads);
                let shared = session.shared.clone();
                let mut total = 0;
                // The last batch is worth waking all threads, and has several tiles.
                for packets in [0, 1, 100, 5000, 100_000] {
                    total += packets;
                    assert_eq!(session.run(numbered(packets)).unwrap().verdicts.len(), packets);
                    let burned = shared.synthetic_work.as_ref().unwrap().packets.load(Ordering::Relaxed);
                    assert_eq!(burned, total, "{text}, {threads} threads");
                }
            }
        }
    }

    #[test]
    fn a_panic_ends_its_batch_and_no_other() {
        for text in TEXTS {
            for threads in [1, 3] {
                let mut session = session(text, threads);
                let shared = session.shared.clone();
                let panics = &shared.synthetic_work.as_ref().unwrap().panics;
                for packets in [5000, 100_000] {
                    panics.store(true, Ordering::Relaxed);
                    let Err(error) = session.run(numbered(packets)) else { panic!("{text}: no error") };
                    assert!(error.to_string().contains("a panic of this test's making"), "{error}");
                    panics.store(false, Ordering::Relaxed);
                    assert_eq!(session.run(numbered(packets)).unwrap().verdicts.len(), packets);
                }
            }
        }
    }

    #[test]
    fn chunks_shrink_so_that_cancelling_takes_at_most_a_second() {
        let text = "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
        let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
        let program = program.unwrap_or_else(|e| panic!("{}", e.render()));
        let chunk = |nanos| max_chunk(&program, 10, nanos);
        assert_eq!((chunk(0), chunk(1_000_000), chunk(20_000_000)), (MAX_CHUNK, 999, 49));
    }

    #[test]
    fn spinning_polls_the_clock_until_the_time_is_over() {
        let polls = |nanos| {
            let (start, count) = (Instant::now(), Cell::new(0));
            spin_for(Duration::from_nanos(nanos), || {
                count.set(count.get() + 1);
                // Each poll takes 10 ns.
                start + Duration::from_nanos(10 * count.get())
            });
            count.get()
        };
        assert_eq!([0, 1, 10, 11, 1000].map(polls), [2, 2, 2, 3, 101]);
    }
}
