//! Map contents of the self-test's filters. Before each run the maps are reset to their initial
//! contents and a few entries.

use portcullis_core::device::{DeviceError, Session};
use portcullis_core::map::layout::Layout;
use portcullis_core::map::{Row, Table, rows};
use portcullis_core::program::Program;

/// An initial map entry: the map's name, a key and a value.
pub type Entry = (&'static str, Vec<u32>, Vec<u32>);

/// Returns the initial map entries of a stock filter, some of which match packets of the corpora.
pub fn entries(filter: &str) -> Vec<Entry> {
    // An IPv4 address of the corpora in an IPv6 key (IPv4-mapped: RFC 4291, section 2.5.5.2).
    let mapped = |address: u32| vec![0, 0, 0xffff, address];
    let host = 0xc0a8_0001;
    // Networks of the corpora's IPv6 addresses, in 2001:db8::/32.
    let v6 = |low: u32, length: u32| vec![0x2001_0db8, 0, 0, low, length];
    let next_hop = |number: u32| ("next_hops", vec![number], vec![number + 100, 0x0200, number, 0x0202, number]);
    match filter {
        "blacklist" => vec![
            ("blocked_v4", vec![0xc0a8_0000, 16], vec![0]),
            ("blocked_v4", vec![0x0a00_0000, 9], vec![0]),
            ("blocked_v4", vec![0x8000_0000, 2], vec![0]),
            ("blocked_v6", v6(0xc0a8_0001, 128), vec![0]),
            ("blocked_v6", v6(0x8000_0000, 97), vec![0]),
        ],
        "maglev_lb" => {
            let backend = |number| vec![u32::from(number != 2), 0x0a0a_0000 | number, 0x0200, number, 20 + number];
            let table = (0..65_537).step_by(16).map(|place| ("table", vec![place], vec![place / 16 % 3 + 1]));
            let vips = (0..256).map(|host| ("vips", vec![0xcb00_7100 | host], vec![]));
            let backends = (1..=3).map(|number| ("backends", vec![number], backend(number)));
            table.chain(vips).chain(backends).collect()
        }
        "policer" => vec![
            ("profiles", vec![0; 4], vec![200, 1500, 400, 2500]),
            ("profiles", mapped(host), vec![0, 0, 1000, 1000]),
        ],
        "router_v4" => {
            let routes = [(0, 1, 0), (0x8000_0000, 2, 1), (0x0a00_0000, 8, 2), (0xcb00_7100, 25, 3)];
            let routes = routes.map(|(address, length, hop)| ("routes", vec![address, length], vec![hop]));
            routes.into_iter().chain((0..4).map(next_hop)).collect()
        }
        "router_v6" => {
            let routes = [(0, 97, 0), (0x8000_0000, 98, 1), (0x0a00_0000, 104, 2), (0xcb00_7100, 121, 3)];
            let routes = routes.map(|(low, length, hop)| ("routes", v6(low, length), vec![hop]));
            routes.into_iter().chain((0..4).map(next_hop)).collect()
        }
        "token_bucket" => vec![("limits", vec![0; 4], vec![3, 2]), ("limits", mapped(host), vec![1, 5])],
        _ => Vec::new(),
    }
}

/// Resets the maps to their state before a run.
pub fn reset(session: &mut dyn Session, program: &Program, entries: &[Entry]) -> Result<(), DeviceError> {
    for (number, map) in program.maps().iter().enumerate() {
        session.set_map_words(number, 0, &vec![0; Layout::of(map).words()])?;
        for initial in program.initial_map_words().iter().filter(|initial| initial.map == number) {
            session.set_map_words(number, initial.offset, &initial.words)?;
        }
        let mut own = entries.iter().filter(|(name, ..)| *name == map.name).peekable();
        if own.peek().is_none() {
            continue;
        }
        let mut table = Table::new(map, Vec::new());
        for (_, key, value) in own {
            table.set(key, value).map_err(|error| DeviceError::Refused(format!("`{}`: {error}", map.name)))?;
        }
        let (at, words) = table.changes();
        session.set_map_words(number, at, words)?;
    }
    Ok(())
}

/// Returns the entries of all maps; none of rings, whose order of records depends on that of the
/// packets.
pub fn read(session: &mut dyn Session, program: &Program) -> Result<Vec<Vec<Row>>, DeviceError> {
    let maps = program.maps().iter().enumerate();
    maps.map(|(number, map)| match map.is_ring {
        true => Ok(Vec::new()),
        false => Ok(rows(map, &session.map_words(number)?)),
    })
    .collect()
}
