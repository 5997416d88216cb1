//! Rejected objects: errors name the instruction, the source line and the missing feature, and
//! `check` lists the contents nevertheless.

use serde_json::json;

use crate::objects::{compile, place};

/// Programs that the kernel would accept, given what they need; for each the error, and the missing
/// feature.
const REFUSED: [(&str, &str, &str); 9] = [
    ("locks", "bpf_spin_lock is called", "spin locks (bpf_spin_lock)"),
    ("pushes", "bpf_map_push_elem is called", "queues, stacks and Bloom filters (bpf_map_push_elem)"),
    ("sockets", "the map `socks` is of type sockmap, which is not supported", "maps of type sockmap"),
    (
        "future",
        "the map `later` is of type 77, which is not supported",
        "maps of a type beyond those of linux/bpf.h that are known here (up to 33, arena)",
    ),
    (
        "unknown",
        "helper 999 is called",
        "helpers beyond those of linux/bpf.h that are known here (up to 209, bpf_user_ringbuf_drain)",
    ),
    ("node", "bpf_get_numa_node_id is called", "bpf_get_numa_node_id"),
    ("looks_up", "bpf_sk_lookup_tcp is called", "kernel sockets (bpf_sk_lookup_tcp)"),
    (
        "of_tc",
        "bpf_skb_store_bytes is called",
        "programs for hooks other than XDP, which alone may call it (bpf_skb_store_bytes)",
    ),
    (
        "egress",
        "egress_ifindex is read, which exists only in devmap programs",
        "programs in the entries of devmaps and cpumaps",
    ),
];

const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
char LICENSE[] SEC("license") = "GPL";
struct value { struct bpf_spin_lock lock; __u64 count; };
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct value); } locked SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_STACK); __uint(max_entries, 8); __type(value, __u64); } stack SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_SOCKMAP); __uint(max_entries, 8); __type(key, __u32); __type(value, __u32); } socks SEC(".maps");
struct { __uint(type, 77); __uint(max_entries, 8); __type(key, __u32); __type(value, __u64); } later SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 8); __type(key, __u32); __type(value, __u64); } plain SEC(".maps");
static int (*unnamed)(void *) = (void *)999;
static struct value *entry(void) { __u32 key = 0; return bpf_map_lookup_elem(&locked, &key); }
SEC("xdp") int locks(struct xdp_md *ctx) { struct value *it = entry(); if (!it) return 0;
    bpf_spin_lock(&it->lock); /* locks */
    it->count++; bpf_spin_unlock(&it->lock); return XDP_PASS; }
SEC("xdp") int pushes(struct xdp_md *ctx) { __u64 value = 1; return bpf_map_push_elem(&stack, &value, 0) ? 1 : 2; /* pushes */ }
SEC("xdp") int sockets(struct xdp_md *ctx) { __u32 key = 1; return bpf_map_lookup_elem(&socks, &key) ? 1 : 2; /* sockets */ }
SEC("xdp") int future(struct xdp_md *ctx) { __u32 key = 1; return bpf_map_lookup_elem(&later, &key) ? 1 : 2; /* future */ }
SEC("xdp") int unknown(struct xdp_md *ctx) { return unnamed(ctx); /* unknown */ }
SEC("xdp") int node(struct xdp_md *ctx) { return bpf_get_numa_node_id(); /* node */ }
SEC("xdp") int looks_up(struct xdp_md *ctx) { struct bpf_sock_tuple it = {}; return !bpf_sk_lookup_tcp(ctx, &it, 12, 0, 0); /* looks_up */ }
SEC("xdp") int of_tc(struct xdp_md *ctx) { return bpf_skb_store_bytes((void *)ctx, 0, "a", 1, 0); /* of_tc */ }
SEC("xdp/devmap") int egress(struct xdp_md *ctx) { return ctx->egress_ifindex; /* egress */ }
SEC("xdp") int fine(struct xdp_md *ctx) { return XDP_PASS; }
"#;

/// Returns the line at which a program is rejected.
fn line_of(program: &str) -> usize {
    let mark = format!("/* {program} */");
    1 + SOURCE.lines().position(|line| line.contains(&mark)).unwrap_or_else(|| panic!("{program}"))
}

#[test]
fn errors_name_the_instruction_the_line_and_the_missing_feature() {
    let Some(place) = place(&[]) else { return };
    compile(&place, SOURCE, &["-g"]).unwrap();
    let list = place.run(&["check", "prog.o"]);
    assert_eq!(list.code, 1);
    assert!(list.out.contains("10 XDP programs, 1 accepted\n"), "{}", list.out);
    let all = place.run(&["check", "prog.o", "--json"]);
    assert_eq!(all.code, 1);
    let all = all.parse_json();
    for (program, message, missing) in REFUSED {
        let (line, missing) = (line_of(program), format!("missing feature: {missing}"));
        let file = format!("prog.o:{program}");
        let words = [
            &format!("error: {message}\n"),
            &format!("prog.c:{line}:"),
            "= instruction ",
            &format!(" of `{program}`: "),
            &format!("= {missing}\n"),
        ];
        place.run(&["run", &file, "--read", "in.pcap"]).assert_failure(1, &words);
        place.run(&["check", &file]).assert_failure(1, &words);
        let words = format!("rejected: prog.c:{line}: {message}; {missing}\n");
        assert!(list.out.contains(&words), "{words}: {}", list.out);
        let json = place.run(&["check", &file, "--json"]).parse_json();
        let in_all = all["programs"].as_array().unwrap().iter().find(|it| it["name"] == program).unwrap();
        for error in [&json["errors"][0], &in_all["errors"][0]] {
            assert_eq!((&error["message"], &error["line"]), (&json!(message), &json!(line)), "{error}");
            assert!(error["notes"].as_array().unwrap().contains(&json!(missing)), "{error}");
        }
    }
    // Maps too, but only those that are unsupported.
    for (map, words) in [
        (
            "stack: stack, ",
            "cannot be used: it is of type stack, which is not supported; missing feature: maps of type stack\n",
        ),
        (
            "later: type 77, ",
            "cannot be used: it is of type 77, which is not supported; missing feature: maps of a type",
        ),
    ] {
        let line =
            list.out.lines().position(|line| line.contains(map)).unwrap_or_else(|| panic!("{map}: {}", list.out));
        let next = list.out.lines().nth(line + 1).unwrap();
        assert!(format!("{next}\n").contains(words), "{words}: {next}");
    }
    assert_eq!(list.out.matches("cannot be used").count(), 3, "{}", list.out);
    // A hint how to see more of the accepted program.
    assert!(list.out.ends_with("`portcullis check prog.o:fine` shows one program in detail.\n"), "{}", list.out);
}

#[test]
fn an_object_without_accepted_programs_is_listed() {
    let Some(place) = place(&[]) else { return };
    let source = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 8); __type(key, __u32); __type(value, __u64); } table SEC(".maps");
int spare = 3;
SEC("xdp") int node(struct xdp_md *ctx) { return bpf_get_numa_node_id(); }
SEC("tc") int shapes(struct __sk_buff *skb) { __u32 key = spare; return bpf_map_lookup_elem(&table, &key) ? 1 : 0; }
"#;
    compile(&place, source, &["-g"]).unwrap();
    let listed = [
        "other hooks  tc\n",
        "table: hash, keys __u32 (4 bytes), values __u64 (8 bytes), 8 entries\n",
        "spare: int = 3 (.data)\n",
    ];
    let check = |head: &str, error: &str| {
        let ran = place.run(&["check", "prog.o"]);
        assert_eq!(ran.code, 1);
        assert!(ran.out.starts_with(head) && ran.err.contains(error), "{}{}", ran.out, ran.err);
        for words in listed {
            assert!(ran.out.contains(words), "{words}: {}", ran.out);
        }
        let json = place.run(&["check", "prog.o", "--json"]).parse_json();
        assert_eq!((&json["ok"], &json["errors"].as_array().map(Vec::len)), (&json!(false), &Some(1)), "{json}");
        let object = &json["object"];
        assert_eq!((&object["other_sections"], &object["maps"][0]["name"]), (&json!(["tc"]), &json!("table")));
        assert_eq!(object["variables"][0]["value"], 3, "{json}");
        json
    };
    let json = check("prog.o: 1 XDP program, 0 accepted\n", "error: bpf_get_numa_node_id is called");
    assert_eq!((&json["errors"][0]["line"], &json["object"]["programs"][0]["ok"]), (&json!(6), &json!(false)));
    // The same without any XDP program.
    let source: String =
        source.lines().filter(|line| !line.contains("SEC(\"xdp\")")).map(|line| line.to_owned() + "\n").collect();
    compile(&place, &source, &["-g"]).unwrap();
    check("prog.o: no XDP programs\n", "error: prog.o: the object has no programs for XDP");
}

/// One line for each of many programs.
#[test]
fn a_list_of_many_programs_stays_short() {
    let Some(place) = place(&[]) else { return };
    let program = |number: u32| match number % 3 {
        0 => format!("SEC(\"xdp\") int p{number}(struct xdp_md *ctx) {{ return bpf_get_prandom_u32() & 1; }}\n"),
        1 => format!("SEC(\"xdp\") int p{number}(struct xdp_md *ctx) {{ return *(__u8 *)(long)ctx->data; }}\n"),
        _ => format!("SEC(\"xdp\") int p{number}(struct xdp_md *ctx) {{ return bpf_get_numa_node_id(); }}\n"),
    };
    let source = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n".to_owned();
    compile(&place, &(source + &(0..30).map(program).collect::<String>()), &["-g"]).unwrap();
    let ran = place.run(&["check", "prog.o"]);
    assert_eq!(ran.code, 1);
    // Headline, programs, helpers, maps, variables, and the hint.
    assert_eq!(ran.out.lines().count(), 1 + 30 + 4, "{}", ran.out);
    ran.assert_stdout_contains(&[
        "30 XDP programs, 20 accepted\n",
        " p0 (xdp): accepted\n",
        " p1 (xdp): accepted, checked at 1 place at run time\n",
        " p2 (xdp): rejected: prog.c:5: bpf_get_numa_node_id is called; missing feature: bpf_get_numa_node_id\n",
        "\n  helpers    bpf_get_numa_node_id, bpf_get_prandom_u32\n",
    ]);
}

/// Files that clang would not produce, and files that are not objects.
#[test]
fn invalid_objects_are_reported() {
    let Some(place) = place(&["-g"]) else { return };
    let whole = place.read("prog.o");
    place.file("none.o", "");
    place.file("text.o", "int main;");
    place.file("short.o", &whole[..whole.len() / 2]);
    let mut foreign = whole.clone();
    // EM_X86_64 instead of EM_BPF.
    foreign[18..20].copy_from_slice(&62_u16.to_le_bytes());
    place.file("foreign.o", &foreign);
    std::fs::create_dir(place.path("folder.o")).unwrap();
    for (file, words) in [
        ("gone.o", "gone.o: "),
        ("folder.o", "folder.o: "),
        ("none.o", "none.o"),
        ("text.o", "text.o"),
        ("short.o", "short.o"),
        ("foreign.o", "foreign.o"),
    ] {
        for program in ["", ":ports"] {
            let named = format!("{file}{program}");
            place.run(&["check", &named]).assert_failure(1, &["error: ", words]);
            place.run(&["run", &named, "--read", "in.pcap"]).assert_failure(1, &["error: ", words]);
            let ran = place.run(&["check", &named, "--json"]);
            assert_eq!(ran.code, 1, "{named}: {}{}", ran.out, ran.err);
        }
    }
    // The section header table is at the end of the file.
    place
        .run(&["check", "short.o"])
        .assert_failure(1, &["short.o: this is not a complete ELF object; the file may be truncated: "]);
    // Any changed byte gives an error or a valid program.
    let check = |at: usize| {
        let mut broken = whole.clone();
        broken[at] ^= 0x55;
        place.file("broken.o", &broken);
        let ran = place.run(&["check", "broken.o", "--json"]);
        assert!(ran.code <= 1 && !ran.err.contains("panicked"), "byte {at}: {} {}", ran.code, ran.err);
    };
    (0..whole.len()).step_by(whole.len() / 40).for_each(check);
}
