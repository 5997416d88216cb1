//! Measures the cost of flow ordering: `cargo bench --bench flows`, with `--features opencl` on
//! OpenCL devices as well.
//!
//! Compares `conntrack_fw` with the same source without `xdp_flow`, over a million packets of open
//! connections in random order: on the CPU with a million connections, one thread and two; and on
//! every device with sixty thousand. Also compares nine of ten packets on one connection with an
//! even distribution: the cost when one lane or thread must process all of these.

mod support;

use std::sync::Arc;

use portcullis::packet_io::synth::Random;
use portcullis_core::device::{Device, Session};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;
use portcullis_cpu::Cpu;

use support::{
    ACK, ReusedBatch, SYN, Table, compile, is_test_run, threads, time_in_turn, write_segment, written_batch,
};

/// Packets per batch for the tables of all devices.
const BATCH: usize = 1 << 17;

/// The stock filter with this map capacity; unless `ordered`, its packets may be filtered in any
/// order.
fn program(connections: u32, ordered: bool) -> Arc<Program> {
    let text = include_str!("../shaders/conntrack_fw.wgsl").replace("entries=65536", &format!("entries={connections}"));
    let text = if ordered { text } else { text.replace("fn xdp_flow(", "fn no_flow(") };
    let program = compile("conntrack_fw", text);
    assert_eq!(program.has_flows(), ordered);
    assert!(program.maps()[0].entries == connections, "the source declares the number of entries");
    program
}

/// Segments of open connections in random order, of which `skew` percent belong to a single one.
fn open(packets: usize, connections: u32, skew: u32) -> Batch {
    let mut random = Random::new(0, 0);
    written_batch(packets, |_, slot| {
        let connection = if random.below(100) < skew { 0 } else { random.below(connections) };
        write_segment(slot, connection, random.one_in(2), ACK);
    })
}

/// A session in which these connections are open, on this number of threads, 0 for all.
fn session(device: &dyn Device, program: &Arc<Program>, connections: u32, count: usize) -> Box<dyn Session> {
    let mut session = device.load(program, &threads(count)).unwrap_or_else(|error| panic!("{error}"));
    for first in (0..connections).step_by(1 << 16) {
        let packets = (connections - first).min(1 << 16) as usize;
        for (from_client, flags) in [(true, SYN), (false, SYN | ACK)] {
            let opening =
                written_batch(packets, |index, slot| write_segment(slot, first + index as u32, from_client, flags));
            let done = session.run(opening).expect("the device does not fail");
            assert!(done.verdicts.actions().iter().all(|action| *action == 2), "each connection is opened");
        }
    }
    session
}

/// Filters a batch whose packets all pass.
fn round(session: &mut dyn Session, batch: &ReusedBatch) {
    let verdicts = batch.run(session);
    assert!(verdicts.actions().iter().all(|action| *action == 2), "every packet belongs to an open connection");
}

fn on_the_cpu(table: &mut Table) {
    let (connections, packets, rounds) = if is_test_run() { (1 << 10, 1000, 1) } else { (1 << 20, 1 << 20, 15) };
    let traffic = ReusedBatch::new(open(packets, connections, 0));
    for threads in [1, 2] {
        let [mut ordered, mut any] =
            [true, false].map(|ordered| session(&Cpu::new(), &program(connections, ordered), connections, threads));
        let pair = time_in_turn(rounds, || round(&mut *ordered, &traffic), || round(&mut *any, &traffic));
        table.rates(&format!("cpu, {threads} threads, {connections} connections"), packets, pair);
    }
}

fn on_each_device(order: &mut Table, elephants: &mut Table) {
    let (connections, packets, rounds) = if is_test_run() { (1 << 8, 1000, 1) } else { (60_000, BATCH, 7) };
    for backend in portcullis::devices::backends().iter().filter(|backend| !["noop", "interp"].contains(&backend.name))
    {
        for device in backend.probe().unwrap_or_default() {
            let id = &device.info().id;
            let [mut ordered, mut any] =
                [true, false].map(|ordered| session(&*device, &program(1 << 16, ordered), connections, 0));
            let spread = ReusedBatch::new(open(packets, connections, 0));
            let pair = time_in_turn(rounds, || round(&mut *ordered, &spread), || round(&mut *any, &spread));
            order.rates(id, packets, pair);
            let elephant = ReusedBatch::new(open(packets, connections, 90));
            let mut twin = session(&*device, &program(1 << 16, true), connections, 0);
            let pair = time_in_turn(rounds, || round(&mut *ordered, &elephant), || round(&mut *twin, &spread));
            elephants.rates(id, packets, pair);
        }
    }
}

fn main() {
    support::restore_sigpipe();
    let mut order = Table::new("conntrack_fw", "in order", "in any");
    let mut elephants = Table::new("conntrack_fw, 90 % of one flow", "skewed", "even");
    on_the_cpu(&mut order);
    on_each_device(&mut order, &mut elephants);
    order.print();
    elephants.print();
}
