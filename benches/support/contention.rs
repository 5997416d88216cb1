//! Counts, not times: what workers do to each other's cache lines. Packets run in the reference
//! interpreter, whose accesses to maps are answered one per worker in turn.

use std::collections::HashMap;
use std::sync::Arc;

use portcullis_core::interp::Interpreter;
use portcullis_core::interp::map_requests::{AtomicOp, MapReply, Progress};
use portcullis_core::map::MapKind;
use portcullis_core::packet::Metadata;
use portcullis_core::program::{FLOW_BITS, Program};

/// Words of a cache line.
const LINE_WORDS: usize = 16;

/// What a number of workers did in one batch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Contention {
    /// Compare-exchanges that failed.
    pub failed_exchanges: usize,
    /// Cache lines of maps that more than one worker wrote.
    pub shared_lines: usize,
    /// Cache lines of maps that any worker wrote.
    pub written_lines: usize,
}

/// How packets are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// The next packets to the next worker.
    ByPosition,
    /// As the CPU backend partitions: by flow number, or by where the first search begins.
    Partitioned,
}

/// A packet in progress.
struct Running<'a> {
    packet: &'a [u8],
    replies: Vec<MapReply>,
}

/// Filters packets by `workers` workers. Counters are left out, as each worker has copies of small
/// ones. `flow_numbers` are those of the packets if the filter has flows, `maps` the words of its
/// maps.
pub fn count(
    program: &Arc<Program>,
    packets: &[Vec<u8>],
    flow_numbers: &[u32],
    mut maps: Vec<Vec<u32>>,
    workers: usize,
    schedule: Schedule,
) -> Contention {
    let interpreter = Interpreter::new(program).expect("the interpreter runs every filter");
    let run = |packet: &[u8], replies: &[MapReply]| {
        interpreter.run_with_replies(packet, &Metadata::default(), replies).expect("the packet is small")
    };
    let partition = |number: usize, packet: &[u8]| {
        let fraction = match (flow_numbers.get(number), run(packet, &[])) {
            (Some(number), _) => f64::from(*number) / f64::from(1 << FLOW_BITS),
            (None, Progress::Blocked { request, .. }) => request.at as f64 / maps[request.map].len() as f64,
            (None, Progress::Finished(_)) => 0.0,
        };
        (fraction * (8 * workers) as f64) as usize
    };
    let mut queues: Vec<Vec<&[u8]>> = vec![Vec::new(); workers];
    for (number, packet) in packets.iter().enumerate() {
        let worker = match schedule {
            Schedule::ByPosition => number / 64,
            Schedule::Partitioned => partition(number, packet),
        };
        queues[worker % workers].push(packet);
    }
    let mut queues: Vec<_> = queues.into_iter().map(Vec::into_iter).collect();
    let mut running: Vec<Option<Running<'_>>> = (0..workers).map(|_| None).collect();
    // The last worker that wrote a line, and whether another one did before.
    let mut lines: HashMap<(usize, usize), (usize, bool)> = HashMap::new();
    let mut counted = Contention::default();
    loop {
        let mut is_idle = true;
        for worker in 0..workers {
            let Some(current) = running[worker]
                .take()
                .or_else(|| queues[worker].next().map(|packet| Running { packet, replies: Vec::new() }))
            else {
                continue;
            };
            is_idle = false;
            let Progress::Blocked { request, .. } = run(current.packet, &current.replies) else { continue };
            let word = &mut maps[request.map][request.at];
            let before = *word;
            let after = request.op.after(before);
            let is_exchange = matches!(request.op, AtomicOp::CompareExchange { .. });
            counted.failed_exchanges += usize::from(is_exchange && after.is_none());
            if let Some(after) = after {
                *word = after;
                if program.maps()[request.map].kind != MapKind::Counter {
                    let line = lines.entry((request.map, request.at / LINE_WORDS)).or_insert((worker, false));
                    *line = (worker, line.1 || line.0 != worker);
                }
            }
            let mut replies = current.replies;
            replies.push(MapReply { before, exchanged: after.is_some() });
            running[worker] = Some(Running { packet: current.packet, replies });
        }
        if is_idle {
            break;
        }
    }
    counted.written_lines = lines.len();
    counted.shared_lines = lines.values().filter(|(_, is_shared)| *is_shared).count();
    counted
}
