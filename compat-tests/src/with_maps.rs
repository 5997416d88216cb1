//! Comparison of a random filter with maps on one device with the reference interpreter: verdicts,
//! packets, and final map contents.

use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis_core::device::{Completion, Device, DeviceError, LoadOptions, Session};
use portcullis_core::interp::InterpDevice;
use portcullis_core::map::{MapKind, Table, rows};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

use crate::generator::Maps;
use crate::layouts;

/// Inserts LPM prefixes that match the filter's addresses, each with its own value.
///
/// # Panics
/// If a prefix does not fit into its map.
pub fn fill(program: &Program, session: &mut dyn Session) {
    for (number, map) in program.maps().iter().enumerate().filter(|(_, map)| map.kind == MapKind::Lpm) {
        let mut table = Table::new(map, Vec::new());
        for i in 0..40_u32 {
            let mut prefix = vec![0; map.key as usize];
            let length = if map.key == 1 { [0, 8, 16, 30][i as usize % 4] } else { [0, 31, 32, 64][i as usize % 4] };
            prefix[0] = if map.key == 1 { (i & 15) << 24 | (i / 4) << 16 } else { (i / 4) & 3 };
            if length < 32 {
                prefix[0] &= !(u32::MAX >> length);
            }
            prefix.push(length);
            table.set(&prefix, &[i + 1, 0]).unwrap_or_else(|error| panic!("{prefix:x?}: {error}"));
        }
        let (at, words) = table.changes();
        session.set_map_words(number, at, words).unwrap();
    }
}

/// Runs the packets one by one, or in batches if the filter has flows, and compares the device with
/// the reference.
///
/// # Panics
/// If they differ.
pub fn check(device: &Arc<dyn Device>, program: &Arc<Program>, maps: Maps, packets: &[Vec<u8>]) {
    let options = LoadOptions::default().with_threads(NonZeroUsize::new(3));
    let mut session = match device.load(program, &options) {
        // Delivery modes that do not preserve order reject filters with flows.
        Err(error @ DeviceError::Unsupported { .. }) if maps == Maps::Flows => {
            return assert!(error.to_string().contains("take `pipelined` or `inline`"), "{error}");
        }
        loaded => loaded.unwrap_or_else(|error| panic!("{error}\n{}", program.source().text)),
    };
    let mut reference = InterpDevice::new().load(program, &LoadOptions::default()).unwrap();
    fill(program, &mut *session);
    fill(program, &mut *reference);
    let mut rest = packets;
    let mut sizes = if maps == Maps::Flows { [27, 5, 12] } else { [1; 3] }.into_iter().cycle();
    for number in 0.. {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
        rest = later;
        let batch = || layouts::batch(now, number);
        let (done, want) = (session.run(batch()).unwrap(), reference.run(batch()).unwrap());
        for (index, packet) in now.iter().enumerate() {
            let of = |done: &Completion| (done.verdicts.get(index), done.batch.packet(index).to_vec());
            let context = || format!("packet {packet:x?} of {}\n{}", now.len(), program.source().text);
            assert_eq!(of(&done), of(&want), "{}: {}", device.info().id, context());
        }
    }
    for (number, map) in program.maps().iter().enumerate() {
        let of = |session: &mut dyn Session| rows(map, &session.map_words(number).unwrap());
        let (found, wanted) = (of(&mut *session), of(&mut *reference));
        assert_eq!(found, wanted, "{}: `{}` of\n{}", device.info().id, map.name, program.source().text);
    }
}

/// Checks in the reference that the filters together use every map: counts the entries that they
/// insert and the prefixes that they hit.
///
/// # Panics
/// If any map is used fewer than 10 times.
pub fn all_are_used<'a>(filters: impl IntoIterator<Item = (&'a Arc<Program>, &'a [Vec<u8>])>) {
    let mut entries: Vec<usize> = Vec::new();
    for (program, packets) in filters {
        let mut session = InterpDevice::new().load(program, &LoadOptions::default()).unwrap();
        fill(program, &mut *session);
        session.run(Batch::from_packets(packets).unwrap()).unwrap();
        entries.resize(program.maps().len(), 0);
        for (number, (map, entries)) in program.maps().iter().zip(&mut entries).enumerate() {
            let rows = rows(map, &session.map_words(number).unwrap());
            // The host inserted the prefixes, so only those with hits count.
            *entries += rows.iter().filter(|row| map.kind != MapKind::Lpm || row.value[1] != 0).count();
        }
    }
    println!("entries by map: {entries:?}");
    assert!(entries.iter().all(|entries| *entries >= 10), "maps that filters leave alone: {entries:?}");
}
