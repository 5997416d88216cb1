//! Reads counters of a filter, and changes its maps between two batches: `cargo run --example
//! maps`.

use std::net::Ipv4Addr;

use portcullis::map::UpdateError;
use portcullis::{Device, Error, Filter};

/// Counts packets and bytes by IPv4 source, and drops those of blocked sources.
const FILTER: &str = "
    //! map sources: hash key=1 value=3 entries=65536
    //! map blocked: hash key=1 value=0 entries=1000
    fn xdp_filter(pkt: u32) -> u32 {
        if load_be16(pkt, 12u) != ETH_P_IP { return XDP_PASS; }
        let address = load_be32(pkt, 26u);
        if blocked_find(address) != MAP_NONE { return XDP_DROP; }
        let source = sources_insert(address);
        sources_add64(source, 0u, pkt_len(pkt));
        sources_add(source, 2u, 1u);
        return XDP_PASS;
    }";

/// Returns 1,000 IPv4 packets of ten sources; the later the source, the larger its packets.
fn packets() -> Vec<Vec<u8>> {
    let packet = |number: usize| {
        let source = number % 10;
        let mut packet = vec![0; 60 + 100 * source];
        packet[12..14].copy_from_slice(&[0x08, 0x00]);
        packet[26..30].copy_from_slice(&[192, 0, 2, source as u8]);
        packet
    };
    (0..1000).map(packet).collect()
}

pub(crate) fn main() -> Result<(), Error> {
    let mut run = Filter::wgsl(FILTER).load(&Device::auto()?)?;
    for _ in 0..3 {
        run.filter(&packets())?;
        // Typed access to keys and values: an address; bytes and packets. The types must have the
        // declared sizes. The map is replaced as a whole or not at all.
        let most = run.map::<Ipv4Addr, (u64, u32)>("sources")?.update(|rows| {
            let most = rows.iter().max_by_key(|(_, (bytes, _))| *bytes);
            for (address, _) in rows.iter() {
                rows.remove(&address);
            }
            Ok::<_, UpdateError>(most)
        })?;
        let Some((address, (bytes, packets))) = most else { break };
        // Takes effect with the next batch.
        run.map::<Ipv4Addr, ()>("blocked")?.set(&address, &())?;
        println!("{address} sent {bytes} bytes in {packets} packets: blocked");
    }
    println!("{} addresses are blocked", run.map::<Ipv4Addr, ()>("blocked")?.snapshot()?.iter().count());
    Ok(())
}
