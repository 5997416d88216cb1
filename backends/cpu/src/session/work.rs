//! Work that is made up, for benches ([`LoadOptions::synthetic_work`](portcullis_core::device::LoadOptions)).

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// What each packet takes beside the filter.
#[derive(Debug)]
pub(super) struct Work {
    each: Duration,
    /// Packets that it was done for.
    #[cfg(test)]
    pub packets: std::sync::atomic::AtomicUsize,
}

impl Work {
    /// Of so many nanoseconds a packet.
    pub fn new(nanos: NonZeroU64) -> Work {
        Work {
            each: Duration::from_nanos(nanos.get()),
            #[cfg(test)]
            packets: Default::default(),
        }
    }

    /// Keeps the thread for so many packets.
    pub fn keep(&self, packets: usize) {
        #[cfg(test)]
        self.packets.fetch_add(packets, std::sync::atomic::Ordering::Relaxed);
        spin(self.each.saturating_mul(u32::try_from(packets).unwrap_or(u32::MAX)), Instant::now);
    }
}

/// Looks at a clock until so much time has passed by it.
fn spin(time: Duration, clock: impl Fn() -> Instant) {
    let began = clock();
    while clock().saturating_duration_since(began) < time {
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
    use portcullis_core::lang::{Source, wgsl};
    use portcullis_core::packet::Batch;
    use portcullis_core::program::{Program, ProgramOptions};

    use super::super::CpuSession;
    use super::*;
    use crate::memory::When;
    use crate::{Processor, Styles, compiled};

    #[test]
    fn every_packet_takes_it_once_however_they_are_shared_out() {
        let plain = "fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u) % 5u; }";
        let flows = "fn xdp_flow(pkt: u32) -> u32 { return load_be32(pkt, 0u); }";
        let maps = "//! map m: array value=1 entries=2\n";
        for text in [plain.to_owned(), format!("{flows}\n{plain}"), format!("{maps}{plain}")] {
            let program = wgsl::compile(&Source::new("f.wgsl", text.as_str()), &ProgramOptions::default());
            let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
            for threads in [1, 3] {
                let code =
                    |program: &Program| compiled(program, Styles::All, When::WhereFaster, Processor::Host).unwrap();
                let options = LoadOptions { threads: NonZeroUsize::new(threads), ..LoadOptions::default() };
                let numbering = program.flow_program().map(|flows| code(&flows));
                let work = NonZeroU64::new(1);
                let session = CpuSession::new(program.clone(), code(&program), numbering, work, &options);
                let mut session = session.unwrap();
                let shared = session.shared.clone();
                let mut all = 0;
                // The last is worth waking all threads, and has several tiles.
                for packets in [0, 1, 100, 5000, 100_000_usize] {
                    let bytes = |number: usize| (number as u32 * 7).to_be_bytes();
                    let packets: Vec<_> = (0..packets).map(|number| [&bytes(number)[..], &[0; 16]].concat()).collect();
                    all += packets.len();
                    assert_eq!(
                        session.run(Batch::from_packets(&packets).unwrap()).unwrap().verdicts.len(),
                        packets.len()
                    );
                    let kept = shared.work.as_ref().unwrap().packets.load(Ordering::Relaxed);
                    assert_eq!(kept, all, "{text}, {threads} threads");
                }
            }
        }
    }

    #[test]
    fn a_piece_is_no_longer_than_anybody_waits_to_cancel() {
        let text = "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
        let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
        let program = program.unwrap_or_else(|e| panic!("{}", e.render()));
        let piece = |nanos| super::super::piece(&program, 10, nanos);
        assert_eq!((piece(0), piece(1_000_000), piece(20_000_000)), (super::super::MAX_PIECE, 999, 49));
    }

    #[test]
    fn the_clock_is_looked_at_until_the_time_is_over() {
        let looks = |nanos| {
            let (start, count) = (Instant::now(), Cell::new(0));
            spin(Duration::from_nanos(nanos), || {
                count.set(count.get() + 1);
                // A look takes 10 ns.
                start + Duration::from_nanos(10 * count.get())
            });
            count.get()
        };
        assert_eq!([0, 1, 10, 11, 1000].map(looks), [2, 2, 2, 3, 101]);
    }
}
