//! Shared by the benches of GPU and OpenCL devices: traffic cut into batches, and a round of them
//! through a session.

use std::hint::black_box;
use std::sync::Arc;

use portcullis::stock::STATELESS_WGSL;
use portcullis_core::device::Session;
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, ResizeRoom};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_wgsl as wgsl;

use super::{LENGTH, Traffic};

/// Number of batches that the end-to-end side divides its packets into.
const BATCHES: usize = 4;

/// Number of batches in flight.
pub const DEPTH: usize = 3;

/// The stock filters that need no headroom or tailroom.
pub const FILTERS: [&str; 8] =
    ["minimal", "simple_filter", "port_filter", "complex_filter", "http_only", "hash_lb", "mac_swap", "dscp_mark"];

/// Loads a stock filter.
pub fn stock(name: &str) -> Arc<Program> {
    let (_, text) = STATELESS_WGSL.iter().find(|(stock, _)| *stock == name).expect("a stock filter");
    let source = Source::new(format!("{name}.wgsl"), *text);
    Arc::new(wgsl::compile(&source, &ProgramOptions::default()).unwrap_or_else(|e| panic!("{}", e.render())))
}

/// The packets of [`super::batch`], as several batches of one arena.
pub fn batches(count: usize) -> Vec<Batch> {
    let whole = super::batch(Traffic::Mixed, count, LENGTH);
    let mut arena = Arena::new(count * LENGTH).expect("memory for the packets");
    for (slot, packet) in arena.chunks_exact_mut(LENGTH).zip(whole.packets()) {
        slot.copy_from_slice(packet);
    }
    let mut cutter = BatchCutter::new(arena, None);
    let descriptors: Vec<Descriptor> = whole.descriptors().to_vec();
    let parts = descriptors.chunks(count / BATCHES);
    parts
        .map(|part| cutter.cut_batch(part.to_vec(), Vec::new(), ResizeRoom::None).expect("slots do not overlap"))
        .collect()
}

/// Filters all batches once, with as many in flight as the session allows.
pub fn round(session: &mut dyn Session, batches: &mut Vec<Batch>) {
    let mut back = Vec::with_capacity(batches.len());
    let mut complete = |session: &mut dyn Session| {
        let done = session.complete().expect("the device does not fail").expect("a batch is in flight");
        black_box(&done.verdicts);
        back.push(done.batch);
    };
    for batch in batches.drain(..) {
        if session.in_flight() == session.depth() {
            complete(session);
        }
        session.submit(batch).expect("the queue has capacity");
    }
    while session.in_flight() > 0 {
        complete(session);
    }
    *batches = back;
}
