//! Maps of XDP objects beyond what the kernel's test run shows: concurrent packets, entries set by
//! the host, and declarations that are refused.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use portcullis_compat_tests::{corpora, devices, layouts, objects, oracle};
use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::map::Table;
use portcullis_core::packet::{ResizeRoom, Verdict};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_xdp::{self as xdp, Object};

/// Compiles one of the sources and returns one of its programs.
fn program(stem: &str, name: &str) -> Arc<Program> {
    objects::program(stem, &objects::object(stem), name, &ProgramOptions::default())
}

/// Compiles a program from text.
fn compile_text(text: &str) -> Result<Arc<Program>, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("text.c");
    std::fs::write(&source, format!("#include \"{}/parse.h\"\n{text}", objects::folder().display())).expect("written");
    let bytes = objects::compile(&source, "v3").unwrap_or_else(|error| panic!("{error}"));
    let program = xdp::compile("text.o", &bytes, None, &ProgramOptions::default());
    program.map(Arc::new).map_err(|errors| errors.render())
}

fn is_absent() -> bool {
    objects::is_missing("maps of objects")
}

fn load(device: &dyn Device, program: &Arc<Program>) -> Box<dyn Session> {
    device.load(program, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn number_of(program: &Program, name: &str) -> usize {
    program.maps().iter().position(|map| map.name == name).unwrap_or_else(|| panic!("no map {name}"))
}

fn table(session: &mut dyn Session, program: &Program, name: &str) -> Table {
    let number = number_of(program, name);
    let words = session.map_words(number).unwrap_or_else(|error| panic!("{error}"));
    Table::new(&program.maps()[number], words)
}

/// Hundreds of concurrent packets insert more keys than fit: the map never exceeds its maximum, and
/// is nearly full in the end.
#[test]
fn full_hashes_accept_no_more_keys() {
    if is_absent() {
        return;
    }
    let mut packets = corpora::synthetic().packets;
    packets.truncate(500);
    packets.extend(corpora::hostile().packets.into_iter().filter(|packet| packet.len() > 14).take(1500));
    let programs = [("hash_updates", "updates_full", "few", 8), ("hash_full", "full_twenty", "twenty", 20)];
    let programs = programs.map(|(stem, name, map, most)| (program(stem, name), map, most));
    devices::on_each("full hashes", |device| {
        for (program, map, most) in &programs {
            let mut session = load(&**device, program);
            let (batches, _) = layouts::batches(&packets, 700, ResizeRoom::Both);
            for batch in batches {
                session.run(batch).unwrap_or_else(|error| panic!("{error}"));
                let entries = table(&mut *session, program, map).rows().len();
                assert!(entries <= *most, "{map} has {entries} entries, more than {most}");
            }
            let entries = table(&mut *session, program, map).rows().len();
            assert!(entries > most / 2, "{map} has only {entries} entries");
        }
    });
}

const HOST: &str = r#"
struct inner {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u32);
};
struct inner first SEC(".maps"), second SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 5);
    __type(key, __u32);
    __type(value, __u32);
} another SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
    __uint(max_entries, 8);
    __type(key, __u64);
    __array(values, struct inner);
} outer SEC(".maps");
SEC("xdp") int hold(struct xdp_md *ctx)
{
    __u64 key = 0x100000007ull;
    __u32 index = 2, *value;
    void *map = bpf_map_lookup_elem(&outer, &key);
    if (!map)
        return XDP_DROP;
    value = bpf_map_lookup_elem(map, &index);
    if (!value)
        return XDP_ABORTED;
    *value += 1;
    return bpf_map_lookup_elem(&another, &index) ? XDP_TX : XDP_PASS;
}
"#;

/// Counters that are only added to become atomic additions, whatever pointer leads to them and in
/// whichever block it was loaded.
#[test]
fn additions_to_counters_are_atomic() {
    if is_absent() {
        return;
    }
    let source = objects::folder().join("counters_anywhere.c");
    let mut count = 0;
    for (processor, level) in objects::FORMS {
        let bytes =
            objects::compile_with(&source, processor, &[level.into()]).unwrap_or_else(|error| panic!("{error}"));
        let object = Object::read("counters_anywhere", &bytes).unwrap();
        for function in object.programs() {
            let program = objects::program("counters_anywhere", &bytes, &function.name, &ProgramOptions::default());
            let lost_updates = &portcullis_xdp::ObjectInfo::of(&program).unwrap().lost_updates;
            assert!(lost_updates.is_empty(), "{} ({processor} {level}): {lost_updates:?}", function.name);
            assert!(oracle::only_adds(&program), "{} ({processor} {level})", function.name);
            count += 1;
        }
    }
    assert!(count > 20, "only {count} programs");
}

/// If an update depends on the previous value, it must not become an atomic addition: concurrent
/// packets might subtract more than is there.
#[test]
fn additions_that_depend_on_the_old_value_are_not_atomic() {
    if is_absent() {
        return;
    }
    for (change, lost_updates) in [
        ("if (*v) *v -= 1;", 1),
        ("if (*v < 100) *v += ctx->rx_queue_index + 1;", 1),
        // Stores the value that was read.
        ("__u64 was = *(volatile __u64 *)v; *(volatile __u64 *)v = was; if (was) *v = was - 1;", 1),
        // The addend depends on it.
        ("__u64 was = *(volatile __u64 *)v; bpf_barrier(); *v = was + (was < 100 ? length : 3);", 1),
        // The value stored before decides.
        ("__u64 now = ++*v; bpf_barrier(); if (now > 100) *v = now - 100;", 1),
        // The value is also written to the packet.
        ("__u64 was = *v; if (length > 99) { *v = was + 1; *(volatile __u64 *)data = was; }", 0),
    ] {
        let text = DECIDES.replace("CHANGE", change);
        let program = compile_text(&text).unwrap_or_else(|error| panic!("{change}: {error}"));
        let reported = &portcullis_xdp::ObjectInfo::of(&program).expect("compiled from an object").lost_updates;
        assert_eq!(reported.len(), lost_updates, "{change}: {reported:?}");
        assert_eq!(oracle::only_adds(&program), lost_updates == 0, "{change}");
    }
}

const DECIDES: &str = r#"
#define bpf_barrier() asm volatile("" ::: "memory")
char LICENSE[] SEC("license") = "GPL";
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u64);
} all SEC(".maps");
SEC("xdp") int decides(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (data + 14 > end)
        return XDP_DROP;
    __u32 length = end - data, key = *(__u8 *)data & 3;
    __u64 *v = bpf_map_lookup_elem(&all, &key);
    if (!v)
        return XDP_DROP;
    CHANGE
    return XDP_PASS;
}
"#;

/// A map of maps that names no inner map accepts any map of the right shape from the host, and the
/// host may replace it.
#[test]
fn the_host_sets_inner_maps() {
    if is_absent() {
        return;
    }
    let program = compile_text(HOST).unwrap_or_else(|error| panic!("{error}"));
    let inner_maps = &portcullis_xdp::ObjectInfo::of(&program).expect("compiled from an object").inner_maps;
    let slot = |name: &str| 1 + inner_maps.iter().position(|it| it == name).expect("an inner map") as u32;
    let names = ["first", "second", "another"];
    // For each content of the slot: the verdict, and how often each map was counted in. A map of
    // another shape is not accepted.
    let steps = [
        (0, Verdict::Drop, [0, 0, 0]),
        (slot("first"), Verdict::Tx, [1, 0, 0]),
        (slot("second"), Verdict::Tx, [1, 1, 0]),
        (slot("another"), Verdict::Drop, [1, 1, 0]),
        (slot("second"), Verdict::Tx, [1, 2, 0]),
    ];
    devices::on_each("maps of maps", |device| {
        let mut session = load(&**device, &program);
        for (slot, verdict, counts) in steps {
            let number = number_of(&program, "outer");
            let mut outer = table(&mut *session, &program, "outer");
            outer.set(&[7, 1], &[slot]).expect("the slot exists");
            let (at, words) = outer.changes();
            session.set_map_words(number, at, words).unwrap_or_else(|error| panic!("{error}"));
            let (batches, _) = layouts::batches(&[[0_u8; 60]], 1, ResizeRoom::None);
            for batch in batches {
                let done = session.run(batch).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(objects::of_ours(done.verdicts.get(0)), objects::of_ours(verdict), "slot {slot}");
            }
            let got = names.map(|name| table(&mut *session, &program, name).get(&[2]).map_or(0, |value| value[0]));
            assert_eq!(got, counts, "slot {slot}");
        }
    });
}

/// Unsupported declarations are refused with the reason.
#[test]
fn unsupported_maps_are_refused_with_the_reason() {
    if is_absent() {
        return;
    }
    let hash = "struct value { struct bpf_spin_lock lock; __u32 count; };
        struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct value); }
            values SEC(\".maps\");";
    let outer = "struct inner { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32);
            __type(value, __u32); };
        struct inner one SEC(\".maps\");
        struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, 1); __type(key, __u32);
            __array(values, struct inner); } outer SEC(\".maps\") = { .values = { [0] = &one } };";
    let trie =
        "struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 9); __uint(map_flags, BPF_F_NO_PREALLOC);
            __uint(key_size, 68); __uint(value_size, 4); } trie SEC(\".maps\");";
    let cases = [
        (
            hash,
            "__u32 key = 0; struct value *value = bpf_map_lookup_elem(&values, &key); if (!value) return 0;
                bpf_spin_lock(&value->lock); value->count++; bpf_spin_unlock(&value->lock);",
            ["bpf_spin_lock is called", "none can wait for another"],
        ),
        (
            outer,
            "__u32 key = 0, value = 1; bpf_map_update_elem(&outer, &key, &value, 0);",
            ["only the host can change", "bpf_map_update_elem(&outer"],
        ),
        (
            outer,
            "__u32 key = 0; bpf_map_delete_elem(&outer, &key);",
            ["only the host can change", "bpf_map_delete_elem(&outer"],
        ),
        (
            trie,
            "__u8 key[68] = { 64 }; if (bpf_map_lookup_elem(&trie, key)) return 1;",
            ["the map `trie` has keys of 68 bytes", "have 5 to 64"],
        ),
        (
            "static long none(void *map, __u32 *key, void *value, void *own) { return 0; }
            struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 9); __uint(map_flags, BPF_F_NO_PREALLOC);
            __uint(key_size, 8); __uint(value_size, 4); } trie SEC(\".maps\");",
            "bpf_for_each_map_elem(&trie, none, 0, 0);",
            [
                "bpf_for_each_map_elem takes arrays and hashes, not a map of type lpm_trie",
                "bpf_for_each_map_elem(&trie",
            ],
        ),
        (
            "",
            "__u32 *meta; if (bpf_xdp_adjust_meta(ctx, -4)) return 0; meta = (void *)(long)ctx->data_meta;
                if ((void *)(meta + 1) > (void *)(long)ctx->data) return 0; meta[1] = 7;",
            ["the packet's metadata has 4 bytes at most here", "meta[1] = 7"],
        ),
    ];
    for (before, body, said) in cases {
        let text = format!("{before}\nSEC(\"xdp\") int refused(struct xdp_md *ctx)\n{{ {body}\nreturn XDP_PASS; }}");
        let Err(errors) = compile_text(&text) else { panic!("accepted: {text}") };
        for part in said {
            assert!(errors.contains(part), "{part:?} is missing from\n{errors}");
        }
    }
}
