use portcullis_core::map::MapKind;
use portcullis_core::map::{Table, dump};
use portcullis_core::program::map_declarations::{CommentSyntax, declarations};

use portcullis_io::synth::Random;

use super::super::insert_entries;
use super::*;

fn map(kind: MapKind, key: u32, value: u32, entries: u32) -> Declaration {
    Declaration::new("m", kind, key, value, entries)
}

fn csv(map: &Declaration, text: &str) -> Result<ParsedRows, RowErrors> {
    parse(map, Format::Csv, text.as_bytes())
}

fn json(map: &Declaration, text: &str) -> Result<ParsedRows, RowErrors> {
    parse(map, Format::Json, text.as_bytes())
}

fn entries(rows: &ParsedRows) -> Vec<(&[u32], &[u32])> {
    rows.entries.iter().collect()
}

/// Formats the only error.
fn only_error(read: Result<ParsedRows, RowErrors>) -> String {
    let errors = read.unwrap_err();
    assert_eq!((errors.first.len(), errors.more), (1, 0), "{errors}");
    errors.with_file_name("f")
}

#[test]
fn cells_fill_the_words_of_key_and_value() {
    // Key: an address and a port. Value: a MAC, an address and a number.
    let next = map(MapKind::Hash, 5, 4, 10);
    let text = "\u{feff}# next hops\naddress, port, mac, via, weight\n\n\
                2001:db8::1, 443, 02:00:00:00:00:01, 10.0.0.1, 0x10\r\n\r\n\
                # numbers do too\r\n0,0,0,0,7,\"1\",2,3,4";
    let rows = csv(&next, text).unwrap();
    let first: (&[u32], &[u32]) = (&[0x2001_0db8, 0, 0, 1, 443], &[0x0200, 1, 0x0a00_0001, 16]);
    let second: (&[u32], &[u32]) = (&[0, 0, 0, 0, 7], &[1, 2, 3, 4]);
    assert_eq!((entries(&rows), &rows.lines[..]), (vec![first, second], &[4, 7][..]));
    let text = "[\n{\"key\": [\"2001:db8::1\", 443], \"value\": [\"02:00:00:00:00:01\", \"10.0.0.1\", \"0x10\"]},\n\n\
                { \"value\":[1,2,3,4],\n\"key\":[0,0,0,0,\"\\u0037\"] }]";
    let rows = json(&next, text).unwrap();
    assert_eq!((entries(&rows), &rows.lines[..]), (vec![first, second], &[2, 4][..]));
}

#[test]
fn single_cell_keys_need_no_list() {
    let set = map(MapKind::Hash, 1, 0, 10);
    let wanted: Vec<(&[u32], &[u32])> = vec![(&[0x0a00_0001], &[]), (&[7], &[])];
    assert_eq!(entries(&json(&set, r#"[{"key": "10.0.0.1"}, {"key": [7], "value": []}]"#).unwrap()), wanted);
    assert_eq!(entries(&csv(&set, "10.0.0.1\n7").unwrap()), wanted);
    let rows = json(&map(MapKind::Array, 1, 1, 10), r#"[{"index": 3, "value": "10.0.0.1"}]"#).unwrap();
    assert_eq!(entries(&rows), [(&[3][..], &[0x0a00_0001][..])]);
}

#[test]
fn lpm_keys_are_prefixes() {
    let four = map(MapKind::Lpm, 1, 1, 10);
    let wanted: Vec<(&[u32], &[u32])> =
        vec![(&[0x0a00_0000, 8], &[1]), (&[0x0a00_0001, 32], &[2]), (&[0, 0], &[3]), (&[0x0a01_0000, 16], &[4])];
    assert_eq!(entries(&csv(&four, "10.0.0.0/8,1\n10.0.0.1,2\n0.0.0.0/0,3\n167837696,16,4").unwrap()), wanted);
    let text = r#"[{"prefix":"10.0.0.0/8","value":1},{"prefix":["10.0.0.1"],"value":[2]},{"prefix":[0,0],"value":[3]},
                   {"prefix":[167837696,16],"value":[4]}]"#;
    assert_eq!(entries(&json(&four, text).unwrap()), wanted);
    let six = map(MapKind::Lpm, 4, 1, 10);
    let wanted: Vec<(&[u32], &[u32])> = vec![(&[0x2001_0db8, 0, 0, 0, 32], &[1]), (&[0, 0, 0, 1, 128], &[2])];
    assert_eq!(entries(&csv(&six, "prefix,action\n2001:db8::/32,1\n::1,2\n").unwrap()), wanted);
    let words = "a row is a prefix and a value of 1 word";
    for (map, text, wanted) in [
        (&four, "10.0.0.1/8,1", "column 1: `10.0.0.1/8` has bits set beyond its length: did you mean `10.0.0.0/8`?"),
        (&four, "167772161,8,1", "column 2: `10.0.0.1/8` has bits set beyond its length: did you mean `10.0.0.0/8`?"),
        (&four, "0,33,1", "column 2: the prefix length 33 exceeds the 32 bits of an address"),
        (&four, "10.0.0.0,8,1", &format!("column 3: `1` is one cell too many; {words}")),
        (
            &four,
            "2001:db8::/32,1",
            "column 1: `2001:db8::/32` is of IPv6, but the keys of the map `m` are of IPv4 (key=1); expected a prefix (10.0.0.0/8)",
        ),
        (
            &six,
            "10.0.0.0/8,1",
            "column 1: `10.0.0.0/8` is of IPv4, but the keys of the map `m` are of IPv6 (key=4); expected a prefix (2001:db8::/32)",
        ),
        (
            &four,
            "10.0.0.0/40,1",
            "column 1: `10.0.0.0/40` is not a prefix: its length is a number from 0 to 32; expected a prefix (10.0.0.0/8)",
        ),
        (&four, "10.0.0.0/8,1\n10.0.0.0/8,2", "its key is the same as in line 1; keys must be unique"),
    ] {
        assert_eq!(only_error(csv(map, text)), format!("f:{}: {wanted}", text.lines().count()), "{text}");
    }
}

#[test]
fn named_fields_limit_their_cells() {
    let declared = |line: &str| declarations(line, CommentSyntax::Wgsl).unwrap().remove(0);
    let next = declared("//! map m: array value=4 entries=9 fields=next_hop,via:ipv4,mac:mac,port");
    let wanted: Vec<(&[u32], &[u32])> = vec![(&[3], &[0x0a00_0001, 0x0200, 1, 7])];
    assert_eq!(entries(&csv(&next, "3,10.0.0.1,02:00:00:00:00:01,7").unwrap()), wanted);
    assert_eq!(entries(&csv(&next, "3,167772161,512,1,7").unwrap()), wanted, "words in place of fields");
    let routes = declared("//! map m: lpm key=4 value=3 entries=9 fields=network,mac:mac,port");
    let wanted: Vec<(&[u32], &[u32])> = vec![(&[0x2001_0db8, 0, 0, 0, 32], &[0x0200, 1, 7])];
    assert_eq!(entries(&csv(&routes, "network,mac,port\n2001:db8::/32,02:00:00:00:00:01,7").unwrap()), wanted);
    let text = r#"[{"prefix":"2001:db8::/32","value":["02:00:00:00:00:01",7]}]"#;
    assert_eq!(entries(&json(&routes, text).unwrap()), wanted);
    let flows = declared("//! map m: hash key=4 value=2 entries=9 fields=source:ip,bytes:u64");
    for (map, text, wanted) in [
        // Swapped columns with the same total number of words.
        (
            &next,
            "3,02:00:00:00:00:01,10.0.0.1,7",
            "column 2: `02:00:00:00:00:01` is 2 words, and `via` has room for 1; \
             expected an IPv4 address (10.0.0.19) as `via`",
        ),
        (
            &next,
            "3,10.0.0.1,512,02:00:00:00:00:01",
            "column 4: `02:00:00:00:00:01` is 2 words, and `mac` has room for 1; \
             expected numbers for the rest of its words as `mac`",
        ),
        (
            &next,
            "3,10.0.0.1,aa,7",
            "column 3: `aa` is neither a number nor an address; expected a MAC (02:1a:2b:3c:4d:5e) as `mac`",
        ),
        (&next, "3,10.0.0.1", "the row ends after 1 of 4 words of its value; a row is next_hop,via,mac,port"),
        (
            &routes,
            "2001:db8::/32,02:00:00:00:00:01,eth0",
            "column 3: `eth0` is neither a number nor an address; expected a number (80, 0x50) as `port`",
        ),
        (
            &routes,
            "10.0.0.0/8,02:00:00:00:00:01,7",
            "column 1: `10.0.0.0/8` is of IPv4, but the keys of the map `m` are of IPv6 (key=4); expected a prefix (2001:db8::/32)",
        ),
        (
            &flows,
            "x,1",
            "column 1: `x` is neither a number nor an address; \
             expected an IPv6 or IPv4 address (2001:db8::7, 10.0.0.19) as `source`",
        ),
        (
            &flows,
            "::1,10k",
            "column 2: `10k` is neither a number nor an address; expected a number of up to 64 bits as `bytes`",
        ),
    ] {
        assert_eq!(only_error(csv(map, text)), format!("f:1: {wanted}"));
    }
}

#[test]
fn counter_sums_have_64_bits() {
    let sums = map(MapKind::Counter, 1, 2, 3);
    let wanted: Vec<(&[u32], &[u32])> = vec![(&[0], &[u32::MAX, u32::MAX]), (&[2], &[5, 1])];
    assert_eq!(entries(&csv(&sums, "0,18446744073709551615\n2,0x100000005").unwrap()), wanted);
    let text = r#"[{"index":0,"sum":18446744073709551615},{"index":2,"sum":"0x100000005"}]"#;
    assert_eq!(entries(&json(&sums, text).unwrap()), wanted);
    let most = "expected a number up to 18446744073709551615";
    for (text, wanted) in [
        ("3,1", "column 1: the map `m` has no entry 3: its entries are 0 to 2"),
        ("1,-1", &format!("column 2: `-1` is neither a number nor an address; {most}")),
        ("1,18446744073709551616", &format!("column 2: `18446744073709551616` is more than 64 bits can hold; {most}")),
        ("1", "the row ends after 0 of 2 words of its value; a row is a number and a sum"),
    ] {
        assert_eq!(only_error(csv(&sums, text)), format!("f:1: {wanted}"));
    }
}

#[test]
fn errors_have_line_and_column() {
    let flows = map(MapKind::Hash, 2, 3, 10);
    let whole = "a row is a key of 2 words and a value of 3 words";
    let cell = "expected a number (80, 0x50) or an IPv4 address";
    for (text, line, wanted) in [
        ("1,2,3,4", 1, format!("the row ends after 2 of 3 words of its value; {whole}")),
        ("\n# x\n1", 3, format!("the row ends after 1 of 2 words of its key; {whole}")),
        ("1,2,3,4,5,6", 1, format!("column 6: `6` is one cell too many; {whole}")),
        ("1,,3,4,5", 1, format!("column 2: `` is empty; {cell}")),
        ("a,b\n1,2,3,4,5\n1,x,3,4,5", 3, format!("column 2 (b): `x` is neither a number nor an address; {cell}")),
        (
            "1,02:00:00:00:00:01,4,5,6",
            1,
            format!("column 2: `02:00:00:00:00:01` is 2 words, and the key has room for 1; {cell}"),
        ),
        (
            "1,2,2001:db8::1",
            1,
            format!("column 3: `2001:db8::1` is 4 words, and the value has room for 3; {cell}, a MAC"),
        ),
        (
            "1,2,10.0.0.0/8,4,5",
            1,
            format!(
                "column 3: `10.0.0.0/8` is a prefix, which is valid only as the key of an `lpm` map; {cell}, a MAC"
            ),
        ),
        (
            "1,2,3,4,5\r\n7,2,3,4,5\r\n\r\n1,2,0,0,0\r\n",
            4,
            "its key is the same as in line 1; keys must be unique".into(),
        ),
        (
            "value0,key0,key1,value1,value2\n",
            1,
            "the columns are in another order; expected `key0,key1,value0,value1,value2`".into(),
        ),
        ("1,2,\u{1b}[2J,4,5", 1, format!("column 3: `\\u{{1b}}[2J` is neither a number nor an address; {cell}, a MAC")),
        ("10.0.0.300,2,3,4,5", 1, format!("column 1: `10.0.0.300` is not an IPv4 address; {cell}, a MAC")),
    ] {
        assert_eq!(only_error(csv(&flows, text)), format!("f:{line}: {wanted}"), "{text:?}");
    }
    let shape = r#"expected a row as {"key": [1, 1], "value": [1, 1, 1]}"#;
    let array = "expected an array of objects";
    for (text, line, wanted) in [
        ("", 1, "the file is empty; for a map without entries, write `[]`".into()),
        (" \n{}", 2, format!("it begins with `{{`; {array}, as [{{\"key\": [1, 1], \"value\": [1, 1, 1]}}]")),
        ("key0,key1\n1,2", 1, format!("it begins with `k`; {array}, as [{{\"key\": [1, 1], \"value\": [1, 1, 1]}}]")),
        ("[\n{},\n", 3, format!("column 1: EOF while parsing a value; {array}")),
        ("[\n\n7]", 3, format!("invalid type: integer `7`, expected a row; {shape}")),
        (
            "[\n{\"kee\":1}]",
            2,
            format!("unknown field `kee`, expected one of `index`, `key`, `prefix`, `value`, `sum`; {shape}"),
        ),
        ("[{\"key\":[1,2]}]", 1, format!("the row has no `value`; {shape}")),
        ("[{\"key\":[1,2],\"value\":[1,2,3],\"sum\":1}]", 1, shape.into()),
        ("[{\"key\":[1,2],\"key\":[1,2],\"value\":[1,2,3]}]", 1, format!("duplicate field `key`; {shape}")),
        ("[{\"key\":1,\"value\":[1,2,3]}]", 1, format!("the row ends after 1 of 2 words of its key; {whole}")),
        ("[{\"key\":[1,2],\"value\":1}]", 1, format!("the row ends after 1 of 3 words of its value; {whole}")),
        ("[\n{\"key\":[1,\n2.5],\"value\":1}]", 3, format!("item 2 of `key`: `2.5` is not an IPv4 address; {cell}")),
        (
            "[{\"key\":[1,null],\"value\":1}]",
            1,
            format!("item 2 of `key`: `null` is neither a number nor an address; {cell}"),
        ),
        ("[{\"key\":[1,[2]],\"value\":1}]", 1, "item 2 of `key`: `[2]` is neither a number nor a text".into()),
        ("[{\"key\":{},\"value\":1}]", 1, "`key`: `{}` is neither a number nor a text".into()),
        (
            "[{\"key\":[1,2],\n\"value\":[1,2,3]},\n{\"key\":[1,2],\"value\":[1,2,3]}]",
            3,
            "its key is the same as in line 1; keys must be unique".into(),
        ),
    ] {
        assert_eq!(only_error(json(&flows, text)), format!("f:{line}: {wanted}"), "{text:?}");
    }
    let not_text = parse(&flows, Format::Csv, b"1,2,3,4,5\n1,\xff");
    assert_eq!(only_error(not_text), "f:2: not valid UTF-8; save the file in that encoding");
    let array = csv(&map(MapKind::Array, 1, 1, 1), "1,1");
    assert_eq!(only_error(array), "f:1: column 1: the map `m` has no entry 1: its entries are 0 to 0");
}

#[test]
fn only_the_first_errors_are_reported() {
    let flows = map(MapKind::Hash, 1, 0, 10);
    let text: String = (0..20).map(|n| format!("x{n}.\n{n}\n")).collect();
    let errors = csv(&flows, &text).unwrap_err();
    assert_eq!((errors.first.len(), errors.more), (8, 12));
    let text = errors.with_file_name("f");
    assert!(text.starts_with("f:1: column 1: `x0.`") && text.ends_with("\nand 12 more rows are wrong"), "{text}");
    assert_eq!(text.lines().nth(7).unwrap().split(" is").next(), Some("f:15: column 1: `x7.`"));
    // A key that occurs three times is reported twice.
    assert_eq!(csv(&flows, "1\n2\n1\n1").unwrap_err().first.iter().map(|it| it.0).collect::<Vec<_>>(), [3, 4]);
}

fn dumped(map: &Declaration, table: &Table, format: Format) -> Vec<u8> {
    let mut words = vec![0; portcullis_core::map::layout::Layout::of(map).words()];
    let (at, changed) = table.changes();
    words[at..at + changed.len()].copy_from_slice(changed);
    let mut text = Vec::new();
    dump(map, &words, format, &mut text).unwrap();
    text
}

fn table_of(map: &Declaration, rows: &ParsedRows) -> Table {
    let mut table = Table::new(map, Vec::new());
    insert_entries(&mut table, &rows.entries).unwrap();
    table
}

fn maps() -> Vec<Declaration> {
    vec![
        map(MapKind::Hash, 1, 0, 40),
        map(MapKind::Hash, 3, 2, 40),
        map(MapKind::Hash, 16, 64, 10),
        map(MapKind::Array, 1, 3, 9),
        map(MapKind::Counter, 1, 2, 9),
        with_fields(),
        map(MapKind::Lpm, 1, 2, 40),
        map(MapKind::Lpm, 4, 1, 40),
    ]
}

fn with_fields() -> Declaration {
    let line = "//! map m: hash key=5 value=3 entries=40 fields=from:ip,via:ipv4,bytes:u64,port";
    declarations(line, CommentSyntax::Wgsl).unwrap().remove(0)
}

#[test]
fn field_types_determine_how_cells_are_parsed() {
    let wanted: (&[u32], &[u32]) = (&[0, 0, 0xffff, 0x0a00_0013, 0x0a00_0001], &[u32::MAX, 7, 80]);
    let text = "from,via,bytes,port\n10.0.0.19,10.0.0.1,34359738367,80\n";
    let rows = csv(&with_fields(), text).unwrap();
    assert_eq!(entries(&rows), [wanted]);
    assert_eq!(dumped(&with_fields(), &table_of(&with_fields(), &rows), Format::Csv), text.as_bytes());
    let text = r#"[{"key":["10.0.0.19","10.0.0.1"],"value":["0x7ffffffff",80]}]"#;
    assert_eq!(entries(&json(&with_fields(), text).unwrap()), [wanted]);
    // Fields may also be written as words, except for 64-bit numbers.
    let text = "0,0,0xffff,0x0a000013,0x0a000001,34359738367,80\n";
    assert_eq!(entries(&csv(&with_fields(), text).unwrap()), [wanted]);
}

fn random_table(map: &Declaration, random: &mut Random) -> Table {
    let mut table = Table::new(map, Vec::new());
    for _ in 0..map.entries {
        let mut word = || random.below(1 << 20) << 12 | random.below(1 << 12);
        let numbered = matches!(map.kind, MapKind::Array | MapKind::Counter);
        let mut key: Vec<u32> = (0..map.key).map(|_| if numbered { word() % map.entries } else { word() }).collect();
        if map.kind == MapKind::Lpm {
            // The length says how many bits of the first word are used.
            let length = word() % 33;
            key[0] &= u32::MAX.checked_shl(32 - length).unwrap_or(0);
            key[1..].fill(0);
            key.push(length);
        }
        let value: Vec<u32> = (0..map.value).map(|_| word()).collect();
        table.set(&key, &value).unwrap();
    }
    table
}

#[test]
fn dumps_can_be_parsed() {
    let mut random = Random::new(7, 0);
    for map in maps() {
        let table = random_table(&map, &mut random);
        for (_, format) in Format::ALL {
            let rows = parse(&map, format, &dumped(&map, &table, format)).unwrap();
            assert_eq!(table_of(&map, &rows).rows(), table.rows());
        }
    }
}

/// Damaged files are rejected or parsed as other rows, without a panic.
#[test]
fn damaged_files_do_not_panic() {
    let mut random = Random::new(11, 0);
    let pieces: [&[u8]; 12] =
        [b",", b"\n", b"\"", b"[", b"}", b"::", b"/", b"10.0.0.0/8", b"\xff", b"0x", b"#", b"99999999999999999999"];
    let (mut refused, mut taken) = (0, 0);
    for map in &maps() {
        for (_, format) in Format::ALL {
            let text = dumped(map, &random_table(map, &mut random), format);
            for _ in 0..400 {
                let mut text = text.clone();
                for _ in 0..1 + random.below(3) {
                    let at = random.below(text.len() as u32 + 1) as usize;
                    match random.below(4) {
                        0 => text.truncate(at),
                        1 => drop(text.splice(at..at, pieces[random.below(12) as usize].iter().copied())),
                        2 => text.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
                        _ => drop(text.drain(at..(at + random.below(20) as usize).min(text.len()))),
                    }
                }
                match parse(map, format, &text) {
                    Err(errors) => {
                        refused += 1;
                        assert!(errors.first.iter().all(|(line, what)| *line > 0 && !what.is_empty()));
                    }
                    Ok(rows) => {
                        taken += 1;
                        assert_eq!(rows.lines.len(), rows.entries.len());
                    }
                }
            }
        }
    }
    assert!(refused > 1000 && taken > 100, "{refused} refused, {taken} taken");
}
