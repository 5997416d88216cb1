//! Fuzz target: arbitrary bytes as rows of a map, and as a file of saved map state. Errors must be
//! printable, and what is read must survive writing and reading again.

use portcullis::map::layout::Layout;
use portcullis::map::{Declaration, Format, Table, dump};
use portcullis::map_file::{Entries, insert_entries, state, text};
use portcullis::program::map_declarations::{CommentSyntax, declarations};

/// Entries of each map.
const ENTRIES: u32 = 20;

/// Declares maps of every kind, with room for this many entries each.
pub(crate) fn maps(entries: u32) -> Vec<Declaration> {
    let lines = [
        "flows: hash key=2 value=3",
        "named: hash key=5 value=3 fields=from:ip,via:ipv4,bytes:u64,port",
        "recent: lru_hash key=1 value=0",
        "routes: lpm key=1 value=1",
        "hosts: lpm key=4 value=2",
        "settings: array value=2",
        "sums: counter",
    ];
    let text = lines.map(|line| format!("//! map {line} entries={entries}\n")).concat();
    declarations(&text, CommentSyntax::Wgsl).expect("the declarations are valid")
}

/// Reads the bytes as rows of a map or as saved state, and writes and reads what was accepted. The
/// first byte selects the map, or saved state; adding 8 selects JSON rows, or state with a
/// corrected checksum.
///
/// # Panics
/// If errors cannot be printed, or a second reading differs from the first.
pub fn run(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else { return };
    let maps = maps(ENTRIES);
    match maps.get(usize::from(how & 7)) {
        Some(map) => check_rows(map, if how & 8 == 0 { Format::Csv } else { Format::Json }, bytes),
        None if how & 8 == 0 => check_state(&maps, bytes),
        None => check_state(&maps, &with_checksum(bytes)),
    }
}

fn check_rows(map: &Declaration, format: Format, bytes: &[u8]) {
    let rows = match text::parse(map, format, bytes) {
        Ok(rows) => rows,
        Err(problems) => {
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
            assert!(!problems.first.is_empty());
            for (line, what) in &problems.first {
                assert!((1..=lines).contains(line) && is_printable(what), "{line} of {lines}: {what:?}");
            }
            return;
        }
    };
    assert_eq!(rows.lines.len(), rows.entries.len());
    assert!(rows.lines.is_sorted());
    let mut table = Table::new(map, Vec::new());
    if insert_entries(&mut table, &rows.entries).is_err() {
        return;
    }
    for (_, format) in Format::ALL {
        let mut dumped = Vec::new();
        dump(map, &memory(map, &table), format, &mut dumped).expect("memory takes everything");
        let again = text::parse(map, format, &dumped);
        let again = again.unwrap_or_else(|wrong| panic!("{wrong} of\n{}", String::from_utf8_lossy(&dumped)));
        let mut other = Table::new(map, Vec::new());
        insert_entries(&mut other, &again.entries).expect("the entries fit as before");
        assert_eq!(other.rows(), table.rows());
    }
}

fn check_state(maps: &[Declaration], bytes: &[u8]) {
    let all = match state::read(maps, bytes) {
        Ok(all) => all,
        Err(error) => return assert!(is_printable(&error.to_string()), "{error}"),
    };
    let mut again = Vec::new();
    let mut writer = state::Writer::new(&mut again, maps.len()).expect("memory takes everything");
    let mut memories = Vec::new();
    for (map, entries) in maps.iter().zip(&all) {
        let mut table = Table::new(map, Vec::new());
        if let Err(entry) = insert_entries(&mut table, entries) {
            return assert!(is_printable(&state::no_room_error(map, entries, entry).to_string()));
        }
        memories.push(memory(map, &table));
        writer.write_map(map, &memories[memories.len() - 1]).expect("memory takes everything");
    }
    writer.finish().expect("memory takes everything");
    let read = state::read(maps, &again).expect("the written state is valid");
    let wanted: Vec<Entries> =
        maps.iter().zip(&memories).map(|(map, memory)| Entries::in_memory(map, memory)).collect();
    assert_eq!(read, wanted);
}

/// Returns a table's words as they lie in a session's memory.
fn memory(map: &Declaration, table: &Table) -> Vec<u32> {
    let mut words = vec![0; Layout::of(map).words()];
    let (at, changed) = table.changes();
    words[at..at + changed.len()].copy_from_slice(changed);
    words
}

fn is_printable(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(char::is_control)
}

/// Replaces the last 8 bytes with the checksum that `docs/reference/map-memory.md` specifies.
fn with_checksum(bytes: &[u8]) -> Vec<u8> {
    let end = bytes.len().saturating_sub(8) / 4 * 4;
    let words = bytes[..end].chunks_exact(4).map(|word| word.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)));
    let sum = words.fold(0xcbf2_9ce4_8422_2325_u64, |sum, word| (sum ^ word).wrapping_mul(0x100_0000_01b3));
    [&bytes[..end], &sum.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::{A_SECOND, Corpus, run_for};

    /// First byte of inputs that are saved state; other inputs start with the map's number.
    const STATE: u8 = 7;

    /// Saved state with an entry in each map.
    fn some_state() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = state::Writer::new(&mut bytes, 7).unwrap();
        for map in maps(ENTRIES) {
            let mut table = Table::new(&map, Vec::new());
            let mut key = vec![0; map.key_words() as usize];
            key[0] = 1;
            if let Some(length) = key.get_mut(map.key as usize) {
                *length = 32;
            }
            table.set(&key, &[7, 8]).unwrap();
            writer.write_map(&map, &memory(&map, &table)).unwrap();
        }
        writer.finish().unwrap();
        assert!(state::read(&maps(ENTRIES), &bytes).is_ok());
        bytes
    }

    #[test]
    fn mutated_seeds_never_panic() {
        let state = [&[STATE + 8][..], &some_state()].concat();
        let intact = [&[STATE][..], &some_state()].concat();
        let seeds: [&[u8]; 12] = [
            b"\x00key0,key1,value0,value1,value2\n1,2,3,4,5\n10.0.0.1,0x50,02:00:00:00:00:01,7\n",
            b"\x08[\n{\"key\":[1,2],\"value\":[3,4,5]},\n{\"key\":[\"10.0.0.1\",\"0x50\"],\"value\":[\"02-00-00-00-00-01\",7]}\n]\n",
            b"\x01from,via,bytes,port\n10.0.0.19,10.0.0.1,34359738367,80\n2001:db8::7,1,2,3\n",
            b"\x09[{\"key\":[\"10.0.0.19\",\"10.0.0.1\"],\"value\":[34359738367,80]}]",
            b"\x02# comment\n\n1\n\"2\"\r\n3\n",
            b"\x03prefix,hop\n10.0.0.0/8,1\n10.0.0.1,2\n0,0,3\n",
            b"\x0b[{\"prefix\":\"10.0.0.0/8\",\"value\":1},{\"prefix\":[0,0],\"value\":[3]}]",
            b"\x04::/0,1,2\n2001:db8::/32,3,4\n",
            b"\x05index,value0,value1\n0,1,2\n8,3,4\n",
            b"\x0e[{\"index\":1,\"sum\":18446744073709551615},{\"index\":2,\"sum\":\"0x10\"}]",
            &state,
            &intact,
        ];
        let tokens = r#", ␤ " [ ] {"key": :: / 10.0.0.0/8 0x # \u001b"#;
        let corpus = Corpus { seeds: &seeds, tokens, pieces: &[b"\r\n", b"\xff\xff\xff\xff"] };
        for seed in seeds {
            run(seed);
        }
        run_for(A_SECOND, "map_files", corpus, 0, run);
    }
}
