//! A load balancer, one of whose backends fails: `cargo run --example maglev`.
//!
//! Of three backends, one takes twice the share of the others. The maps are filled before the first
//! packet, and one entry is changed between two batches.

use std::net::Ipv4Addr;

use portcullis::maglev::{self, Backend};
use portcullis::{Device, Filter, Verdict};

const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Returns the row of a backend: whether it is healthy, its IP address, MAC address and port.
fn backend(number: u32, is_healthy: bool) -> [u32; 5] {
    [u32::from(is_healthy), 0x0a09_0000 | number, 0x0200, number, 100 + number]
}

/// Returns a UDP packet from a client to the virtual address.
fn packet(client: u32) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
    packet[23] = 17;
    packet[26..30].copy_from_slice(&(0x0a00_0000 | client).to_be_bytes());
    packet[30..34].copy_from_slice(&VIP.octets());
    packet
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut run = Filter::stock("maglev_lb")?.load(&Device::auto()?)?;

    let pool = [("10.9.0.1", 2), ("10.9.0.2", 1), ("10.9.0.3", 1)].map(|(name, weight)| Backend { name, weight });
    let table = maglev::build_table(&pool, 65_537)?;
    run.map::<Ipv4Addr, ()>("vips")?.set(&VIP, &())?;
    run.map::<u32, u32>("table")?
        .update(|rows| (0..).zip(&table).try_for_each(|(entry, number)| rows.set(&entry, number)))?;
    let mut backends = run.map::<u32, [u32; 5]>("backends")?;
    for number in 1..=3 {
        backends.set(&number, &backend(number, true))?;
    }

    let packets: Vec<_> = (0..10_000).map(packet).collect();
    let mut before = Vec::new();
    for (what, is_healthy) in [("all are healthy", true), ("the second is not", false)] {
        run.map::<u32, [u32; 5]>("backends")?.set(&2, &backend(2, is_healthy))?;
        let now: Vec<Verdict> = run.filter(&packets)?.iter().map(|(_, verdict)| verdict).collect();
        let share = |port| now.iter().filter(|verdict| **verdict == Verdict::Redirect(port)).count();
        let moved = now.iter().zip(&before).filter(|(now, before)| now != before).count();
        println!("{what}: {} + {} + {} packets, {moved} of them moved", share(101), share(102), share(103));
        before = now;
    }
    Ok(())
}
