//! Keeps two batches in flight, so that the device works on one while the next is read: `cargo run
//! --example two_in_flight`. (A CPU may run small batches only on completion.)
//!
//! [`portcullis::Pipeline`] does the same with threads for reading and writing.

use portcullis::device::LoadOptions;
use portcullis::packet::VerdictCounts;
use portcullis::packet_io::{self, Source};
use portcullis::{Device, Filter, pipeline};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let program = Filter::stock("port_filter")?.compile()?;
    let device = Device::auto()?;
    let options = LoadOptions::default().with_depth(2);
    let mut session = device.as_dyn().load(&program, &options)?;

    // 100,000 synthetic packets in batches of 10,000; a path to a capture works as well. The filter
    // determines what else batches need: headroom and tailroom, or metadata.
    let batches = pipeline::source_options(&program, device.info().kind, false).with_max_packets(10_000);
    let mut source = packet_io::open("synth:packets=100000,size=64..300", &batches)?;

    let mut totals = VerdictCounts::default();
    let mut more = true;
    loop {
        // Fill the queue: `submit` does not block.
        while more && session.in_flight() < session.depth() {
            match source.next_batch()? {
                Some(batch) => session.submit(batch)?,
                None => more = false,
            }
        }
        // Batches complete in the order of submission. Dropping one returns its memory to the
        // source.
        let Some(done) = session.complete()? else { break };
        totals += done.verdicts.counts();
    }
    println!("on {}: {} pass, {} are dropped", device.info().name, totals.pass, totals.drop);
    Ok(())
}
