//! Reads a filter's counters and changes its maps between two batches: `cargo run --example maps`.

use std::net::Ipv4Addr;
use std::sync::Arc;

use portcullis::device::LoadOptions;
use portcullis::diagnostics;
use portcullis::frontend::wgsl;
use portcullis::io::{self, Source, SourceOptions};
use portcullis::map::{MapHandle, UpdateError};
use portcullis::packet::VerdictCounts;
use portcullis::pipeline;
use portcullis::program::ProgramOptions;

/// Counts packets and bytes by IPv4 source, and drops those of blocked sources.
const FILTER: &str = "
    //! map sources: hash key=1 value=3 entries=65536
    //! map blocked: hash key=1 value=0 entries=1000
    fn xdp_filter(pkt: u32) -> u32 {
        if load_be16(pkt, 12u) != ETH_P_IP { return XDP_PASS; }
        let address = load_be32(pkt, 26u);
        if blocked_find(address) != MAP_NONE { return XDP_DROP; }
        let source = sources_insert(address);
        let before = sources_add(source, 0u, pkt_len(pkt));
        if before + pkt_len(pkt) < before { sources_add(source, 1u, 1u); }
        sources_add(source, 2u, 1u);
        return XDP_PASS;
    }";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let program = Arc::new(wgsl::compile(&diagnostics::Source::new("maps.wgsl", FILTER), &ProgramOptions::default())?);
    let device = portcullis::devices::open_auto()?;
    let mut session = device.load(&program, &LoadOptions::default())?;

    // Typed access to keys and values: an address; bytes and packets. The types must have the
    // declared sizes.
    let sources = MapHandle::<Ipv4Addr, (u64, u32)>::open(&program, "sources")?;
    let blocked = MapHandle::<Ipv4Addr, ()>::open(&program, "blocked")?;

    let batches =
        SourceOptions { max_packets: 10_000, ..pipeline::source_options(&program, device.info().kind, false) };
    let mut source = io::open("synth:packets=50000,flows=100", &batches)?;
    while let Some(batch) = source.next_batch()? {
        let done = session.run(batch)?;
        let VerdictCounts { drop: dropped, pass: passed, .. } = done.verdicts.counts();
        // Block the source with the most packets from the next batch on, and reset the counters.
        // Each map is replaced as a whole or not at all.
        let most = sources.update(&mut *session, |rows| {
            let most = rows.iter().max_by_key(|(_, (bytes, _))| *bytes);
            for (address, _) in rows.iter() {
                rows.remove(&address);
            }
            Ok::<_, UpdateError>(most)
        })?;
        let Some((address, (bytes, packets))) = most else { break };
        blocked.set(&mut *session, &address, &())?;
        println!("{passed} pass, {dropped} are dropped; {address} sent {bytes} bytes in {packets} packets: blocked");
    }
    println!("{} addresses are blocked", blocked.snapshot(&mut *session)?.iter().count());
    Ok(())
}
