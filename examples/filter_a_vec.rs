//! Filters a `Vec` of packets: `cargo run --example filter_a_vec`.

use std::sync::Arc;

use portcullis::device::LoadOptions;
use portcullis::diagnostics::Source;
use portcullis::frontend::wgsl;
use portcullis::packet::Batch;
use portcullis::program::ProgramOptions;

/// Drops packets that are not IPv4.
const FILTER: &str = "fn xdp_filter(pkt: u32) -> u32 {
    if load_be16(pkt, 12u) != ETH_P_IP { return XDP_DROP; }
    return XDP_PASS;
}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut ipv4 = vec![0u8; 60];
    ipv4[12..14].copy_from_slice(&[0x08, 0x00]);
    let mut arp = vec![0u8; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);

    let program = Arc::new(wgsl::compile(&Source::new("ipv4.wgsl", FILTER), &ProgramOptions::default())?);
    let mut session = portcullis::devices::open_auto()?.load(&program, &LoadOptions::default())?;
    let done = session.run(Batch::from_packets(&[ipv4, arp])?)?;
    for (packet, verdict) in done.batch.packets().zip(done.verdicts.iter()) {
        println!("{} bytes: {verdict}", packet.len());
    }
    Ok(())
}
