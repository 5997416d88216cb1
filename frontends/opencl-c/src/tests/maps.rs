//! Maps: how keys are composed, and errors.

use std::path::Path;
use std::sync::Arc;

use super::{compile_text, errors, filter};
use crate::compile;
use crate::files::NoIncludes;
use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::interp::InterpDevice;
use portcullis_core::map::{Row, rows};
use portcullis_core::packet::Batch;
use portcullis_core::program::{Program, ProgramOptions};

/// Runs a filter on packets one after the other; returns the packets and the contents of its maps.
fn run(text: &str, packets: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<Vec<Row>>) {
    let program = Arc::new(compile_text(text, &[]).unwrap_or_else(|errors| panic!("{}\n{text}", errors.render())));
    let mut session = InterpDevice::new().load(&program, &LoadOptions::default()).unwrap();
    let done = session.run(Batch::from_packets(packets).unwrap()).unwrap();
    let maps = program.maps().iter().enumerate();
    let maps = maps.map(|(number, map)| rows(map, &session.map_words(number).unwrap())).collect();
    (done.batch.packets().map(<[u8]>::to_vec).collect(), maps)
}

const KEYS: &str = "
    struct flow { uint source, destination; ushort from, to; uint protocol; };
    struct odd { uchar a; uint b; ushort c; uchar d; } __attribute__((packed));
    struct late { uchar a[3]; uint b; uchar c; } __attribute__((packed));
    struct inner { char a; bool b; ushort c; };
    struct outer { struct inner in[2]; float f; uchar rest[4]; };
    struct wide { ulong a; long b; uint c, d; } __attribute__((packed));
    __constant uint table[6] = {9, 8, 7, 6, 5, 4};
";

const HELPERS: &str = "
    uint through(const struct flow *flow) { return m_insert(flow); }
    uint words_at(const uint *key) { return m_insert(key); }
";

#[test]
fn keys_are_packed_from_memory() {
    const FLOW: [u32; 4] = [0x0a00_0001, 0x0a00_0002, 0xffff_0050, 6];
    const SET_FLOW: &str = "struct flow f = {0x0a000001, 0x0a000002, 80, 0xffff, 6};";
    for (before, key, words) in [
        ("", "7 + zero", &[7][..]),
        ("char c = -1;", "c", &[0xffff_ffff]),
        ("uint x = 5, *p = &x;", "*p", &[5]),
        ("uint k[2] = {1, 2};", "k", &[1, 2]),
        ("uint k[5] = {1, 2, 3, 4, 5};", "k + 2", &[3, 4, 5]),
        ("uint k[5] = {1, 2, 3, 4, 5};", "&k[one]", &[2, 3, 4]),
        // An index out of range selects the array's last element (docs/guide/opencl-c.md).
        ("uint k[3] = {1, 2, 3};", "&k[one]", &[2, 3, 3]),
        ("uint k[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};", "k[one]", &[5, 6, 7, 8]),
        ("const uint k[4] = {1, 2, 3, 4}; const uint *p = k;", "p", &[1, 2, 3, 4]),
        ("", "table + 1", &[8, 7, 6, 5, 4]),
        ("uint2 v = (uint2)(one, 2);", "v", &[1, 2]),
        ("uint4 v = (uint4)(one, 2, 3, 4);", "v.wzy", &[4, 3, 2]),
        ("uint4 v = (uint4)(one, 2, 3, 4);", "v", &[1, 2, 3, 4]),
        ("uint4 v = (uint4)(one, 2, 3, 4);", "(const uint *)&v", &[1, 2, 3, 4]),
        (SET_FLOW, "&f", &FLOW),
        (SET_FLOW, "(const uint *)&f", &FLOW),
        (SET_FLOW, "(uint *)(void *)&f", &FLOW),
        ("struct flow fs[2] = {{0}, {0x0a000001, 0x0a000002, 80, 0xffff, 6}};", "&fs[one]", &FLOW),
        ("struct { uint k[4]; } s[2] = {{{1, 2, 3, 4}}, {{5, 6, 7, 8}}};", "s[one].k", &[5, 6, 7, 8]),
        ("int k[2] = {-1, 2};", "(uint *)k", &[0xffff_ffff, 2]),
        ("uchar k[8] = {1, 2, 3, 4, 5, 6, 7, 255};", "(const uint *)k", &[0x0403_0201, 0xff07_0605]),
        ("short k[4] = {-2, 1, 0, -1};", "(uint *)k", &[0x0001_fffe, 0xffff_0000]),
        ("ulong k[2] = {0x100000002, 3};", "(uint *)k", &[2, 1, 3, 0]),
        ("struct odd o = {0x11, 0x55443322, 0x7766, 0x88};", "(uint *)&o", &[0x4433_2211, 0x8877_6655]),
        ("struct late l = {{1, 2, 3}, 0x77665544, 8};", "(uint *)&l", &[0x4403_0201, 0x0877_6655]),
        (
            "struct outer o = {{{-1, 5, 0x1234}, {1, 0, 2}}, 1.0f, {1, 2, 3, 4}};",
            "&o",
            &[0x1234_01ff, 0x0002_0001, 0x3f80_0000, 0x0403_0201],
        ),
        (
            "struct wide w = {0x1122334455667788, -2, 3, 4};",
            "&w",
            &[0x5566_7788, 0x1122_3344, 0xffff_fffe, 0xffff_ffff, 3, 4],
        ),
        ("uint k[16] = {1, [15] = 16};", "k", &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16]),
    ] {
        let inside = format!("int zero = pkt[0], one = pkt[1]; {before} m_insert({key});");
        let map = format!("//! map m: hash key={} value=0 entries=10\n", words.len());
        let (_, maps) = run(&filter(&format!("{map}{KEYS}"), &inside), &[&[0, 1]]);
        let found: Vec<&[u32]> = maps[0].iter().map(|row| &row.key[..]).collect();
        assert_eq!(found, [words], "{before} {key}");
    }
    // The pointer is passed through a function.
    for (before, call) in [
        (SET_FLOW, "through(&f)"),
        (SET_FLOW, "through((struct flow *)&f)"),
        ("uint k[5] = {0, 0x0a000001, 0x0a000002, 0xffff0050, 6};", "words_at(k + 1)"),
        ("uint k[2][4] = {{0}, {0x0a000001, 0x0a000002, 0xffff0050, 6}};", "words_at(k[1])"),
    ] {
        let map = "//! map m: hash key=4 value=0 entries=10\n";
        let (_, maps) = run(&filter(&format!("{map}{KEYS}{HELPERS}"), &format!("{before} {call};")), &[&[0, 1]]);
        let found: Vec<&[u32]> = maps[0].iter().map(|row| &row.key[..]).collect();
        assert_eq!(found, [FLOW], "{before} {call}");
    }
}

#[test]
fn map_functions_work() {
    let text = "
        //! map flows: hash key=2 value=2 entries=10
        //! map ports: array value=1 entries=4
        //! map sums: counter entries=2
        uint xdp_filter(__global uchar *pkt, uint len) {
            uint key[2] = {load_le32(pkt, 0), 5};
            __global uint *out = (__global uint *)pkt;
            out[1] = flows_find(key) == MAP_NONE;
            uint entry = flows_insert(key);
            bool fresh = map_is_new(entry);
            out[2] = entry == MAP_FULL ? 9 : fresh;
            out[3] = flows_add(entry, 1, 7);
            flows_write(entry, 0, 40);
            out[4] = flows_read(entry, 0) + flows_read(MAP_NONE, 0);
            out[5] = flows_compare_exchange(entry, 0, 40, 50) * 100 + flows_compare_exchange(entry, 0, 40, 60);
            if (key[0] == 3) out[6] = flows_remove(key) + 2 * flows_remove(key);
            ports_write(key[0], 0, ports_read(key[0], 0) + 1);
            sums_add(key[0] & 1, 0xffffffff);
            return map_is_new(flows_find(key)) ? XDP_DROP : XDP_PASS;
        }";
    let mut packet = [0u8; 28];
    let mut packets = Vec::new();
    for first in [1, 3, 1] {
        packet[0] = first;
        packets.push(packet);
    }
    let packets: Vec<&[u8]> = packets.iter().map(|packet| &packet[..]).collect();
    let (packets, maps) = run(text, &packets);
    let words = |packet: &Vec<u8>| -> Vec<u32> {
        packet.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    assert_eq!(
        packets.iter().map(words).collect::<Vec<_>>(),
        [[1, 1, 1, 0, 40, 4050, 0], [3, 1, 1, 0, 40, 4050, 1], [1, 0, 0, 7, 40, 4050, 0],]
    );
    let [flows, ports, sums] = &maps[..] else { panic!("three maps") };
    assert_eq!(
        flows.iter().map(|row| (&row.key[..], &row.value[..])).collect::<Vec<_>>(),
        [(&[1, 5][..], &[50, 14][..])]
    );
    assert_eq!(ports.iter().map(|row| row.value[0]).collect::<Vec<_>>(), [0, 2, 0, 1]);
    assert_eq!(sums[1].value, [0u32.wrapping_sub(3), 2]);
}

const MAPS: &str = "//! map m: hash key=4 value=1 entries=10
//! map one: hash key=1 value=1 entries=10
//! map two: hash key=2 value=0 entries=10
//! map n: array value=2 entries=10
//! map c: counter entries=10
struct five { uint a, b, c, d, e; }; struct padded { uint a; uchar b; uint c, d; };
";

#[test]
fn invalid_calls_are_explained() {
    for (inside, pointed, expected) in [
        ("m_find(pkt);", "pkt", "a key of `m` cannot lie in the packet"),
        ("m_find((const uint *)(pkt + 26));", "(const uint *)(pkt + 26)", "{load_le32(pkt, 26), ...}"),
        ("uchar *p = pkt; m_find((uint *)p);", "(uint *)p", "a key of `m` cannot lie in the packet"),
        ("uint k[3]; m_find(k);", "k", "a key of `m` has 4 words, but this has 3 `uint`s"),
        ("uint k[3]; m_insert(k);", "k", "use an array: `uint key[4]`"),
        ("uint k[8]; m_find(k + 5);", "k + 5", "this has 3 `uint`s"),
        ("uint k; m_find(&k);", "&k", "this has 1 `uint`"),
        ("ulong k[1]; m_remove((uint *)k);", "(uint *)k", "this has 1 `ulong`"),
        ("int k[4]; m_find(k);", "k", "cast it: `(const uint *)`"),
        ("m_find(5);", "5", "is a pointer to 4 words, `const uint *`, but this is a `int`"),
        ("m_find((uint2)(1));", "(uint2)(1)", "but this is a `uint2`"),
        ("m_find((int4)(1));", "(int4)(1)", "but this is a `int4`"),
        ("struct five k; m_find(k);", "k", "pass its address: `&key`"),
        ("struct five k; m_find(&k);", "&k", "has 4 words (16 bytes), but this has 20 bytes"),
        ("struct five k; m_find((uint *)&k);", "(uint *)&k", "has 4 words (16 bytes), but this has 20 bytes"),
        ("struct padded k; m_find(&k);", "&k", "cannot contain padding, but this has 3 bytes of it"),
        ("uint3 k; m_find((uint *)&k);", "(uint *)&k", "cannot contain padding, but this has 4 bytes of it"),
        ("uint k[4]; one_find(k);", "k", "a key of `one` is a `uint`, but this is a `uint *`"),
        ("one_find((uint2)(1));", "(uint2)(1)", "a key of `one` is a `uint2`, expected a `uint`"),
        ("uint k[4]; m_find(k, 4);", "m_find(k, 4)", "`m_find` takes 1 argument, found 2"),
        ("m_read(1);", "m_read(1)", "`m_read` takes 2 arguments, found 1"),
        ("m_write(1, 2);", "m_write(1, 2)", "`m_write` takes 3 arguments, found 2"),
        ("m_add(1, 2);", "m_add(1, 2)", "`m_add` takes 3 arguments, found 2"),
        ("m_compare_exchange(1, 2, 3);", "m_compare_exchange(1, 2, 3)", "takes 4 arguments"),
        ("c_add(1, 2, 3);", "c_add(1, 2, 3)", "`c_add` takes 2 arguments, found 3"),
        ("map_is_new();", "map_is_new()", "`map_is_new` takes 1 argument, found 0"),
        ("m_read(pkt, 1);", "pkt", "argument 1 of `m_read` is a"),
        ("uint x = m_write(1, 0, 2);", "m_write(1, 0, 2)", "this has no value"),
        ("n_find(1);", "n_find", "`n` is of kind `array`, with `n_read`, `n_write`"),
        ("c_read(1);", "c_read", "`c` is of kind `counter`, with `c_add`"),
        ("two_read(1, 0);", "two_read", "with `two_find`, `two_insert`, `two_remove`"),
        ("two_insret((uint2)(1));", "two_insret", "did you mean `two_insert`?"),
        ("map_is_gnu(1);", "map_is_gnu", "did you mean `map_is_new`?"),
        ("len = MAP_NON;", "MAP_NON", "did you mean `MAP_NONE`?"),
        ("len = m_find;", "m_find", "a function can only be called"),
        ("atomic_add(pkt, 1);", "atomic_add(pkt, 1)", "`NAME_or` and `NAME_compare_exchange`"),
        ("bpf_map_lookup_elem(1, 2);", "bpf_map_lookup_elem", "`flows_find(key)`"),
    ] {
        let text = filter(MAPS, inside);
        let Err(errors) = compile_text(&text, &[]) else { panic!("accepted:\n{text}") };
        let shown = errors.render();
        assert!(shown.contains(expected), "{inside}: {shown}");
        assert_eq!(errors.errors.len(), 1, "{inside} is reported once: {shown}");
        let range = errors.errors[0].labels[0].range.clone();
        assert_eq!(&text[range], pointed, "{inside}: {shown}");
    }
}

#[test]
fn map_names_need_a_declared_map() {
    for inside in ["flows_find(1);", "map_is_new(1);", "len = MAP_NONE;", "len = MAP_FULL;", "hits_add(1, 2);"] {
        let (messages, shown) = errors(&filter("", inside));
        assert!(messages.len() == 1 && shown.contains("`//! map flows: hash"), "{inside}: {shown}");
    }
    let (_, shown) = errors(&filter("uint total_add(uint a) { return a; }", "totl_add(1);"));
    assert!(shown.contains("did you mean `total_add`?"), "{shown}");
    // Then a filter may declare these names itself.
    let own =
        "uint map_is_new(uint a) { return a; } __constant uint MAP_NONE[2] = {1, 2}; uint f_find(uint a) { return a; }";
    let text = filter(own, "return f_find(map_is_new(MAP_NONE[len & 1]));");
    compile_text(&text, &[]).unwrap_or_else(|errors| panic!("{}", errors.render()));
}

#[test]
fn map_function_names_cannot_be_redeclared() {
    for outside in ["uint m_find(uint a) { return a; }", "uint m_add(uint a);", "__constant uint m_read[2] = {1, 2};"] {
        let text = filter(&format!("{MAPS}{outside}"), "");
        let Err(errors) = compile_text(&text, &[]) else { panic!("accepted:\n{text}") };
        let shown = errors.render();
        let [error] = &errors.errors[..] else { panic!("{shown}") };
        assert!(error.message.starts_with("`m_") && error.message.ends_with("` cannot be declared"), "{shown}");
        let places: Vec<&str> = error.labels.iter().map(|label| &text[label.range.clone()]).collect();
        assert!(places[0].starts_with("m_") && places[0].len() < 8, "{shown}");
        assert_eq!(places[1], "//! map m: hash key=4 value=1 entries=10", "{shown}");
    }
    for outside in ["uint map_is_new(uint a) { return a; }", "__constant uint MAP_FULL = 3;"] {
        let (_, shown) = errors(&filter(&format!("{MAPS}{outside}"), ""));
        assert!(shown.contains("cannot be declared") && shown.contains("the prelude already declares it"), "{shown}");
    }
    let set = compile_text(&filter(MAPS, ""), &[("m_find", "3")]).map(drop).unwrap_err().render();
    assert!(set.contains("`m_find` belongs to the prelude and cannot be set"), "{set}");
}

#[test]
fn uncalled_functions_are_not_rejected_for_guessed_targets() {
    let outside = "
        uint words_at(const uint *key) { return m_find(key); }
        uint own(__private uint *key) { return m_find(key); }
        uint member(struct five *it) { return m_find(&it->a); }
        uint by(__private uint key[4]) { return words_at(key); }
    ";
    let text = filter(&format!("{MAPS}{outside}"), "");
    compile_text(&text, &[]).unwrap_or_else(|errors| panic!("{}", errors.render()));
    // Errors that do not depend on the arguments are reported.
    let (_, shown) = errors(&filter(&format!("{MAPS} uint f(void) {{ uint k[2]; return m_find(k); }}"), ""));
    assert!(shown.contains("this has 2 `uint`s"), "{shown}");
}

fn with_file(text: &str, file: &str) -> Result<Program, Diagnostics> {
    let mut includes = |_: &Path| Ok::<_, String>(file.as_bytes().to_vec());
    compile(&Source::new("filters/f.cl", text), &ProgramOptions::default(), &mut includes)
}

#[test]
fn included_files_must_not_declare_maps() {
    let text = filter("//! map m: hash key=1 value=1 entries=10\n#include \"it.h\"", "helper(1);");
    let helper = "uint helper(uint a) { return m_find(a); }\n";
    with_file(&text, helper).unwrap_or_else(|errors| panic!("{}", errors.render()));
    let errors = with_file(&text, &format!("{helper}  //! map n: nonsense\n")).map(drop).unwrap_err();
    let shown = errors.render();
    assert_eq!(errors.errors.len(), 1, "{shown}");
    for part in [
        "an included file declares a map",
        "filters/it.h:2:3",
        "maps must be declared in the filter's own file: move this line to `filters/f.cl`",
        "included from filters/f.cl:2:10",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn map_declarations_ignore_conditionals() {
    let text = filter("#define hash array\n#if 0\n//! map m: hash key=1 value=1 entries=10\n#endif", "m_find(1);");
    let program = compile_text(&text, &[]).unwrap_or_else(|errors| panic!("{}", errors.render()));
    let [map] = program.maps() else { panic!("one map") };
    assert_eq!(&program.source().text[map.source_range.clone()], "//! map m: hash key=1 value=1 entries=10");
    // Errors in map declarations are reported together with those of directives.
    let (messages, shown) = errors(&filter("//! map m: hsah key=1 value=1 entries=10\n#nonsense", ""));
    assert_eq!(messages.len(), 2, "{shown}");
    assert!(shown.contains("did you mean `hash`?") && shown.contains("test.cl:1:12"), "{shown}");
    // The other entry point: no folder, no options.
    assert!(compile(&Source::new("f.cl", text), &ProgramOptions::default(), &mut NoIncludes).is_ok());
}
