use std::sync::Arc;

use portcullis_core::map::typed::*;
use portcullis_core::map::{Declaration, MapKind};
use portcullis_core::map::{Format, Row, dump_rows};

use crate::object::Btf;
use crate::object::tests::btf as section;

/// Parses a section `.BTF` with these types, whose names are offsets into `strings`.
fn btf(strings: &[u8], types: &[u32]) -> Btf {
    Btf::read(&section(types, strings)).unwrap_or_else(|error| panic!("{error}"))
}

const STRUCT: u32 = 4 << 24;
const ARRAY: u32 = 3 << 24;
const INT: u32 = 1 << 24;
const TYPEDEF: u32 = 8 << 24;

#[test]
fn inconsistent_types_are_rejected() {
    // 1: a structure that contains itself. 2: an array of itself. 3: a typedef of itself.
    let itself = btf(b"\0a\0", &[1, STRUCT | 1, 4, 1, 1, 0, 0, ARRAY, 0, 2, 0, 3, 1, TYPEDEF, 3]);
    assert_eq!([1, 2, 3, 4, u32::MAX].map(|ty| itself.c_type(ty)), [None, None, None, None, None]);
    // 1: an empty structure. 2: a huge array of it, which takes no room. 3 to 60: each a pair of
    // the one before.
    let mut types = vec![1, STRUCT, 0, 0, ARRAY, 0, 1, 0, u32::MAX];
    (3..=60_u32).for_each(|number| types.extend([1, STRUCT | 2, 0, 1, number - 1, 0, 1, number - 1, 0]));
    let many = btf(b"\0a\0", &types);
    assert!(many.c_type(1).is_some());
    assert_eq!(many.c_type(2), None, "four thousand million parts");
    let mut types = vec![1, STRUCT, 0];
    (2..=60_u32).for_each(|number| types.extend([1, STRUCT | 2, 0, 1, number - 1, 0, 1, number - 1, 0]));
    let doubled = btf(b"\0a\0", &types);
    assert!(doubled.c_type(10).is_some());
    assert_eq!(doubled.c_type(60), None, "two to the power of sixty parts");
    // A member beyond the end, and one that does not start at a byte.
    for at in [8, 33, u32::MAX] {
        let beyond = btf(b"\0a\0", &[1, INT, 4, 32, 1, STRUCT | 1, 4, 1, 1, at]);
        assert_eq!(beyond.c_type(2), None, "{at}");
    }
}

/// The result does not depend on which types were resolved before.
#[test]
fn types_beyond_the_limits_are_rejected() {
    // 1: a number. From 2 on, each is a structure of the one before; writing one recurses as deep.
    let mut types = vec![1, INT, 4, 32];
    (2..=100_u32).for_each(|number| types.extend([1, STRUCT | 1, 4, 1, number - 1, 0]));
    let deep = btf(b"\0a\0", &types);
    let from_below: Vec<bool> = (1..=100).map(|ty| deep.c_type(ty).is_some()).collect();
    let deep = btf(b"\0a\0", &types);
    let mut from_above: Vec<bool> = (1..=100).rev().map(|ty| deep.c_type(ty).is_some()).collect();
    from_above.reverse();
    assert_eq!(from_below, from_above);
    assert!(from_below[20] && !from_below[60]);
    // Shared types are shared in memory.
    let part = deep.c_type(10).and_then(|ty| match &ty.kind {
        CKind::Members(members) => Some(members[0].ty.clone()),
        _ => None,
    });
    assert!(Arc::ptr_eq(&part.expect("a member"), &deep.c_type(9).expect("a type")));
    // 2: an array of 1,000 structures with a member name of 5,000 characters. 3: of 100.
    let strings = format!("\0{}\0", "n".repeat(5000));
    let types = [1, INT, 4, 32, 1, STRUCT | 1, 4, 1, 1, 0, 0, ARRAY, 0, 2, 1, 1000, 0, ARRAY, 0, 2, 1, 100];
    let long = btf(strings.as_bytes(), &types);
    assert_eq!([2, 3, 4].map(|ty| long.c_type(ty).is_some()), [true, false, true]);
    // Overlapping variables share the budget for names of parts.
    let hundred = long.c_type(4).expect("a type");
    let section = CType::section("data", 400, (0..100).map(|_| ("v".to_owned(), 0, hundred.clone())));
    let letters: usize = scalar_fields(&section, "").iter().map(|leaf| leaf.name.len()).sum();
    assert!((1 << 21..1 << 23).contains(&letters), "{letters}");
}

#[test]
fn arrays_are_named_from_the_outermost_dimension() {
    // 1: `int`; 2: `int[3]`; 3: two of those.
    let types = btf(b"\0int\0", &[1, INT, 4, 1 << 24 | 32, 0, ARRAY, 0, 1, 1, 3, 0, ARRAY, 0, 2, 1, 2]);
    let ty = types.c_type(3).expect("a type");
    assert_eq!((ty.name.as_str(), ty.size), ("int[2][3]", 24));
    let bytes: Vec<u8> = (1..=6_i32).flat_map(|number| (-number).to_le_bytes()).collect();
    assert_eq!(json(&ty, &bytes), "[[-1,-2,-3],[-4,-5,-6]]");
    assert_eq!(resolve_path(&ty, "[1][2]").map(|place| place.text(&bytes)), Ok("-6".into()));
    assert_eq!(FieldLocation::whole(&ty).text(&bytes), "[[-1, -2, -3], [-4, -5, -6]]");
}

#[test]
fn names_with_dots_match_as_a_whole() {
    let inner =
        CType::section("s", 8, [("loc".to_owned(), 0, CType::unknown(4)), ("x".to_owned(), 4, CType::unknown(4))]);
    let ty = CType::section(
        ".bss",
        24,
        [
            ("a".to_owned(), 0, inner),
            ("a.loc".to_owned(), 8, CType::unknown(3)),
            ("b.c.d".to_owned(), 16, CType::unknown(4)),
        ],
    );
    let at = |path: &str| resolve_path(&ty, path).map(|place| place.at);
    assert_eq!([at(".a"), at(".a.x"), at(".a.loc"), at(".a.loc[2]"), at(".b.c.d")], [0, 4, 8, 10, 16].map(Ok));
    assert!(at(".b.c").unwrap_err().to_string().contains("no member `b`"), "{:?}", at(".b.c"));
    let whole = |name: &str| find_member(&ty, name).map(|place| place.at);
    assert_eq!([whole("a"), whole("a.loc"), whole("b.c.d")], [0, 8, 16].map(Ok));
    assert!(whole("a.x").is_err() && whole("a.loc[2]").is_err(), "a JSON key names a single member");
}

#[test]
fn hexadecimal_examples_have_the_expected_length() {
    let said = |size| {
        let ty = CType::unknown(size);
        parse_into(&FieldLocation::whole(&ty), "zz", NumberStyle::Human, &mut vec![0; size as usize])
            .unwrap_err()
            .to_string()
    };
    assert!(said(6).ends_with("expected 6 bytes in hexadecimal, as 1a:1a:1a:1a:1a:1a"), "{}", said(6));
    assert!(said(24).ends_with("expected 24 bytes in hexadecimal, as 1a:1a:1a:1a:1a:1a:… to the last"), "{}", said(24));
}

/// A structure of a number, a signed bit field of five bits, and bytes.
fn mixed() -> Arc<CType> {
    // 1: `int`; 2: `char`; 3: `char[6]`; 4: the structure, whose members give their width.
    let strings = b"\0int\0char\0count\0bits\0name\0mixed\0";
    let members = [[10, 1, 0], [16, 1, 5 << 24 | 35], [21, 3, 40]].concat();
    let types = [
        &[1, INT, 4, 1 << 24 | 32, 5, INT, 1, 1 << 24 | 8, 0, ARRAY, 0, 2, 1, 6, 26, 1 << 31 | STRUCT | 3, 12][..],
        &members,
    ]
    .concat();
    btf(strings, &types).c_type(4).expect("a type")
}

#[test]
fn parsed_values_change_only_their_own_part() {
    let ty = mixed();
    let parse_all = |cells: [&str; 3]| {
        let mut bytes = vec![0; 12];
        let all = scalar_fields(&ty, "value");
        for (leaf, text) in all.iter().zip(cells) {
            parse_into(&leaf.place(), text, NumberStyle::Human, &mut bytes)
                .map_err(|what| format!("{} {what}", leaf.name))?;
        }
        let texts: Vec<String> = all.iter().map(|leaf| leaf.text(&bytes)).collect();
        Ok::<_, String>((bytes, texts.join(" ")))
    };
    let (bytes, texts) = parse_all(["-2", "-16", "abc"]).expect("they fit");
    assert_eq!(bytes, [0xfe, 0xff, 0xff, 0xff, 0b1000_0000, b'a', b'b', b'c', 0, 0, 0, 0]);
    assert_eq!(texts, "-2 -16 abc");
    assert_eq!(json(&ty, &bytes), r#"{"count":-2,"bits":"0x10","name":"abc"}"#);
    assert_eq!(FieldLocation::whole(&ty).text(&bytes), "{count: -2, bits: -16, name: abc}");
    // Bytes that are not text, or would not parse back to themselves, are written in hexadecimal.
    for text in ["ff:00:01:02:03:04", "61:00:62:00:00:00", "20:61:00:00:00:00", "23:61:00:00:00:00", "abcdef"] {
        let shown = if text == "abcdef" { "61:62:63:64:65:66" } else { text };
        assert_eq!(parse_all(["0", "0", text]).expect("it fits").1, format!("0 0 {shown}"));
    }
    for (cells, wrong) in [
        (["2147483648", "0", ""], "value.count is not in int: -2147483648 to 2147483647"),
        (["0x", "0", ""], "value.count is no number"),
        (["1", "32", ""], "value.bits is not in a bit field of 5 bits: -16 to 31"),
        (["1", "0", "abcdefg"], "value.name is longer than char[6] has room for"),
    ] {
        assert_eq!(parse_all(cells).unwrap_err(), wrong);
    }
}

#[test]
fn per_cpu_numbers_are_summed() {
    let ty = mixed();
    let value = |count: i32, bits: u8, name: &[u8; 6]| {
        let mut bytes = count.to_le_bytes().to_vec();
        bytes.push(bits << 3);
        bytes.extend(name);
        bytes.push(0);
        bytes
    };
    let all = [value(5, 0, b"\0\0\0\0\0\0"), value(-7, 3, b"ab\0\0\0\0"), value(i32::MAX, 4, b"cd\0\0\0\0")];
    let sum = sum_per_cpu(&scalar_fields(&ty, "value"), ty.size, &all);
    assert_eq!(sum, value(i32::MAX - 2, 3, b"ab\0\0\0\0"));
    assert_eq!(sum_per_cpu(&scalar_fields(&ty, "value"), ty.size, &[]), vec![0; 12]);
    // A value that is too short counts as none.
    assert_eq!(sum_per_cpu(&scalar_fields(&ty, "value"), ty.size, &[vec![1, 2]]), vec![0; 12]);
}

#[test]
fn names_and_texts_are_quoted_in_either_form() {
    let section = CType::section("a\"b", 4, [("x,\n".to_owned(), 0, CType::unknown(4))]);
    let typed = TypeInfo {
        name: "m".into(),
        map_type: "array".into(),
        map_type_number: 2,
        key: CType::unknown(4),
        value: section,
        constant: false,
    };
    let map = Declaration { typed: Some(Arc::new(typed)), ..Declaration::new("m", MapKind::Array, 1, 1, 1) };
    let dumped = |format| {
        let mut out = Vec::new();
        dump_rows(&map, [Row { key: vec![0], value: vec![7] }], format, &mut out).expect("memory has room");
        String::from_utf8(out).expect("text")
    };
    assert_eq!(dumped(Format::Json), "[\n{\"key\":0,\"value\":{\"a\\\"b\":[{\"x,\\u000a\":7}]}}\n]\n");
    assert_eq!(dumped(Format::Csv), "key,\"value.x,\n\"\n0,7\n");
}

#[test]
fn bits_beyond_a_prefix_length_are_cleared() {
    let trie = |kind, key: u32, bytes: u32| {
        let typed = TypeInfo {
            name: "t".into(),
            map_type: "lpm_trie".into(),
            map_type_number: 11,
            key: CType::unknown(bytes),
            value: CType::unknown(4),
            constant: false,
        };
        let typed = Some(Arc::new(typed));
        Declaration { typed, ..Declaration::new("t", kind, key, 1, 4) }
    };
    let kernel = [12, 0, 0, 0, 10, 0xff, 0xff, 0xff];
    let lpm = trie(MapKind::Lpm, 1, 8);
    assert_eq!(lpm.key_from_bytes(&kernel), [0x0af0_0000, 12]);
    assert_eq!(lpm.key_bytes(&[0x0af0_0000, 12]), [12, 0, 0, 0, 10, 0xf0, 0, 0]);
    // In a hash map, the bytes are as in the kernel.
    let hash = trie(MapKind::Hash, 2, 8);
    assert_eq!(hash.key_from_bytes(&kernel), [12, 0x0000_f00a]);
    assert_eq!(hash.key_bytes(&[12, 0x0000_f00a]), [12, 0, 0, 0, 10, 0xf0, 0, 0]);
    let check =
        |map: &Declaration, length: u8| map.typed.as_ref().expect("types").check_key(&[length, 0, 0, 0, 1, 2, 3, 4]);
    assert!(check(&lpm, 32).is_ok() && check(&hash, 33).unwrap_err().to_string().contains("a prefix is of 33 bits"));
}
