//! Measures filters with state on two threads against one: `cargo bench --bench scaling`.
//!
//! Packets of 64 bytes belong to 60,000 clients, evenly, by Zipf's law with exponent 1.1, or half
//! of them to a single one. Both sides run in turn over the same packets, each with a session of
//! its own whose maps have all clients. The calling thread is one of the threads.

mod support;

use std::sync::Arc;

use portcullis::packet_io::synth::Random;
use portcullis::stock::wgsl;
use portcullis_core::device::{Device, Session};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;
use portcullis_cpu::Cpu;

use support::{
    ACK, ReusedBatch, SYN, Table, compile, fill_map, is_test_run, record_bar, threads, time_in_turn, write_segment,
    written_batch,
};

const CLIENTS: u32 = 60_000;

/// The stock filters, and the TCP flags of the packets to measure with.
const FILTERS: [(&str, u8); 5] =
    [("flow_stats", ACK), ("conntrack_fw", ACK), ("syn_flood", SYN), ("policer", ACK), ("token_bucket", ACK)];

/// How packets are distributed among clients, and the least ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distribution {
    Even,
    Zipf,
    HalfOfOne,
}

impl Distribution {
    const ALL: [(Distribution, &str, f64); 3] = [
        (Distribution::Even, "even", 1.7),
        (Distribution::Zipf, "Zipf 1.1", 1.7),
        (Distribution::HalfOfOne, "half of one", 1.3),
    ];

    /// Clients of `count` packets in random order.
    fn clients(self, count: usize) -> Vec<u32> {
        let mut random = Random::new(0, 0);
        // Cumulative weights.
        let mut sum = 0.0;
        let weights: Vec<f64> = (1..=CLIENTS)
            .map(|rank| {
                sum += if self == Distribution::Zipf { f64::from(rank).powf(-1.1) } else { 1.0 };
                sum
            })
            .collect();
        let client = |_| {
            if self == Distribution::HalfOfOne && random.one_in(2) {
                return 0;
            }
            let at = f64::from(random.u32()) / f64::from(u32::MAX) * sum;
            weights.partition_point(|weight| *weight < at).min(CLIENTS as usize - 1) as u32
        };
        (0..count).map(client).collect()
    }
}

/// A session that has seen every client, with profiles and limits for all where the filter has any.
fn session(name: &str, program: &Arc<Program>, count: usize) -> Box<dyn Session> {
    let mut session = Cpu::new().load(program, &threads(count)).expect("the CPU loads every stock filter");
    let default_limits: Option<&[u32]> = match name {
        "policer" => Some(&[1_000_000, 100_000, 2_000_000, 200_000]),
        "token_bucket" => Some(&[1_000_000, 1_000_000]),
        _ => None,
    };
    if let Some(value) = default_limits {
        fill_map(&mut *session, program, 0, [([0; 4], value)]);
    }
    // Only connections need an answer.
    let opening = [(true, SYN), (false, SYN | ACK)];
    for (from_client, flags) in opening.into_iter().take(if name == "conntrack_fw" { 2 } else { 1 }) {
        let write_opening = |index: usize, slot: &mut [u8]| write_segment(slot, index as u32, from_client, flags);
        session.run(written_batch(CLIENTS as usize, write_opening)).expect("the CPU does not fail");
    }
    session
}

fn batch(clients: &[u32], flags: u8) -> Batch {
    written_batch(clients.len(), |index, slot| write_segment(slot, clients[index], true, flags))
}

fn main() {
    support::restore_sigpipe();
    let (sizes, rounds): (&[usize], _) = if is_test_run() { (&[1000], 1) } else { (&[1 << 14, 1 << 16, 1 << 20], 21) };
    let mut table = Table::new("filters with state", "2 threads", "1 thread");
    for (distribution, distributed, least) in Distribution::ALL {
        let mut ratios = Vec::new();
        for (name, flags) in FILTERS {
            let program = compile(name, wgsl(name).expect("a stock filter"));
            let [mut two, mut one] = [2, 1].map(|count| session(name, &program, count));
            for &packets in sizes {
                let batch = ReusedBatch::new(batch(&distribution.clients(packets), flags));
                let rounds = rounds * ((1 << 18) / packets).clamp(1, 8);
                let pair = time_in_turn(rounds, || batch.run(&mut *two), || batch.run(&mut *one));
                let label = format!("{name}, {distributed}, {packets} packets");
                table.rates(&label, packets, pair);
                ratios.push((label, pair.ratio()));
            }
        }
        let what = format!("CPU, two threads, filters with state, packets {distributed}");
        record_bar(&what, "one thread, same run", least, "cargo bench --bench scaling", &ratios);
        let met = ratios.iter().filter(|(_, ratio)| *ratio >= least).count();
        println!("{what}: {met} of {} reach {least}", ratios.len());
    }
    table.print();
}
