//! Two batches in flight: a device can work on one while the next is read. `cargo run --example
//! two_in_flight`. (It need not: a processor filters small batches when they are asked for.)
//!
//! [`portcullis::pipeline`] does the same with threads for reading and writing; this is what it
//! looks like underneath.

use std::sync::Arc;

use portcullis::device::LoadOptions;
use portcullis::diagnostics;
use portcullis::frontend::wgsl;
use portcullis::io::{self, Source, SourceOptions};
use portcullis::packet::VerdictCounts;
use portcullis::pipeline;
use portcullis::program::ProgramOptions;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = include_str!("../shaders/port_filter.wgsl");
    let filter = diagnostics::Source::new("port_filter.wgsl", text);
    let program = Arc::new(wgsl::compile(&filter, &ProgramOptions::default())?);

    let device = portcullis::devices::open_auto()?;
    let options = LoadOptions { depth: 2, ..LoadOptions::default() };
    let mut session = device.load(&program, &options)?;

    // A hundred thousand made-up packets, in batches of ten thousand. A path would do as well. What
    // the filter does decides what else batches need: room around packets, metadata.
    let batches =
        SourceOptions { max_packets: 10_000, ..pipeline::source_options(&program, device.info().kind, false) };
    let mut source = io::open("synth:packets=100000,size=64..300", &batches)?;

    let mut totals = VerdictCounts::default();
    let mut more = true;
    loop {
        // Fill the queue: submitting does not wait.
        while more && session.in_flight() < session.depth() {
            match source.next_batch()? {
                Some(batch) => session.submit(batch)?,
                None => more = false,
            }
        }
        // Batches come back in the order in which they went. Dropping one gives its memory back to
        // the source.
        let Some(done) = session.complete()? else { break };
        for (total, count) in totals.iter_mut().zip(done.verdicts.counts()) {
            *total += count;
        }
    }
    println!("on {}: {} pass, {} are dropped", device.info().name, totals[2], totals[1]);
    Ok(())
}
