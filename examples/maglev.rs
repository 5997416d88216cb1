//! Load balancing over three backends, one of which fails: `cargo run --example maglev`.
//!
//! The first backend has twice the weight of the others. The maps are filled before the first
//! packet, and one backend's health is changed between two batches.

use std::net::Ipv4Addr;
use std::sync::Arc;

use portcullis::device::{LoadOptions, Session};
use portcullis::diagnostics::Source;
use portcullis::frontend::wgsl;
use portcullis::maglev::{self, Backend};
use portcullis::map::Table;
use portcullis::packet::{Batch, Verdict};
use portcullis::program::{Program, ProgramOptions};

const FILTER: &str = include_str!("../shaders/maglev_lb.wgsl");

const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Sets entries of a map, and writes the changed words to the session.
fn set(
    program: &Program,
    session: &mut dyn Session,
    map: &str,
    rows: &[(u32, Vec<u32>)],
) -> Result<(), Box<dyn std::error::Error>> {
    let number = program.maps().iter().position(|known| known.name == map).expect("the filter has the map");
    let mut table = Table::new(&program.maps()[number], session.map_words(number)?);
    for (key, value) in rows {
        table.set(&[*key], value)?;
    }
    let (at, words) = table.changes();
    Ok(session.set_map_words(number, at, words)?)
}

/// A UDP packet from a client to the virtual address.
fn packet(client: u32) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
    packet[23] = 17;
    packet[26..30].copy_from_slice(&(0x0a00_0000 | client).to_be_bytes());
    packet[30..34].copy_from_slice(&VIP.octets());
    packet
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let program = Arc::new(wgsl::compile(&Source::new("maglev_lb.wgsl", FILTER), &ProgramOptions::default())?);
    let mut session = portcullis::devices::open_auto()?.load(&program, &LoadOptions::default())?;

    let pool = [("10.9.0.1", 2), ("10.9.0.2", 1), ("10.9.0.3", 1)].map(|(name, weight)| Backend { name, weight });
    // Health, IP address, MAC address and output port of the backend.
    let backend = |number: u32, healthy| (number, vec![healthy, 0x0a09_0000 | number, 0x0200, number, 100 + number]);
    set(&program, &mut *session, "vips", &[(VIP.to_bits(), vec![])])?;
    set(&program, &mut *session, "backends", &[1, 2, 3].map(|number| backend(number, 1)))?;
    let table_entries: Vec<_> =
        (0..).zip(maglev::build_table(&pool, 65_537)?).map(|(entry, number)| (entry, vec![number])).collect();
    set(&program, &mut *session, "table", &table_entries)?;

    let packets: Vec<_> = (0..10_000).map(packet).collect();
    let mut ports = Vec::new();
    for (what, healthy) in [("all are healthy", 1), ("the second is not", 0)] {
        set(&program, &mut *session, "backends", &[backend(2, healthy)])?;
        let done = session.run(Batch::from_packets(&packets)?)?;
        let now: Vec<Verdict> = done.verdicts.iter().collect();
        let share = |port| now.iter().filter(|verdict| **verdict == Verdict::Redirect(port)).count();
        let moved = now.iter().zip(&ports).filter(|(now, before)| now != before).count();
        println!("{what}: {} + {} + {} packets, {moved} of them moved", share(101), share(102), share(103));
        ports = now;
    }
    Ok(())
}
