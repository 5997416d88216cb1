//! Filters packets in memory: `cargo run --example filter_a_vec`.

use portcullis::{Device, Error, Filter};

/// Drops packets that are not IPv4.
const FILTER: &str = "fn xdp_filter(pkt: u32) -> u32 {
    if load_be16(pkt, 12u) != ETH_P_IP { return XDP_DROP; }
    return XDP_PASS;
}";

pub(crate) fn main() -> Result<(), Error> {
    let mut ipv4 = vec![0u8; 60];
    ipv4[12..14].copy_from_slice(&[0x08, 0x00]);
    let mut arp = vec![0u8; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);

    let mut run = Filter::wgsl(FILTER).load(&Device::auto()?)?;
    for (packet, verdict) in run.filter(&[ipv4, arp])? {
        println!("{} bytes: {verdict}", packet.len());
    }
    Ok(())
}
