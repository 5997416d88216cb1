//! Shared by the benches of GPU and OpenCL devices: traffic cut into batches, and a round of them
//! through a session.

use std::hint::black_box;

use portcullis_core::device::Session;
use portcullis_core::packet::Batch;

use super::{LENGTH, Traffic};

/// Number of batches that the end-to-end side divides its packets into.
const BATCHES: usize = 4;

/// Number of batches in flight.
pub const DEPTH: usize = 3;

/// The stock filters that need no headroom or tailroom.
pub const FILTERS: [&str; 8] =
    ["minimal", "simple_filter", "port_filter", "complex_filter", "http_only", "hash_lb", "mac_swap", "dscp_mark"];

/// The packets of [`super::batch`], as several batches of one arena.
pub fn batches(count: usize) -> Vec<Batch> {
    let mut first = super::batch(Traffic::Mixed, count, LENGTH);
    let rest: Vec<Batch> = (1..BATCHES).rev().map(|part| first.split_off(count * part / BATCHES)).collect();
    [first].into_iter().chain(rest.into_iter().rev()).collect()
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
