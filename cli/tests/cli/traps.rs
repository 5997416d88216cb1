//! Accesses that the analysis cannot prove are checked at run time: `check` lists the places, and a
//! run reports where packets were aborted.

use serde_json::{Value, json};

use crate::clang;
use crate::objects::{compile, place};
use crate::support::{Place, pcap_of};

/// A program with two unproved places and an event ring; byte 60 of a packet is the key of the
/// lookup.
const UNPROVED: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4); __type(key, __u32); __type(value, __u32); } seen SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } told SEC(".maps");
SEC("xdp") int unproved(struct xdp_md *ctx)
{
    unsigned char *data = (void *)(long)ctx->data;
    __u32 kind = data[60];
    __u32 *value = bpf_map_lookup_elem(&seen, &kind);
    bpf_ringbuf_output(&told, &kind, sizeof(kind), 0);
    return *value == 7 ? XDP_DROP : XDP_PASS;
}
char LICENSE[] SEC("license") = "GPL";
"#;

/// Lines of the unproved places.
const LINES: [u32; 2] = [9, 12];
const REASONS: [&str; 2] = ["the packet is not so long", "the pointer to a map's value is NULL"];

/// Prepares the object and a capture: three packets are too short, and two of the other seven have
/// a key beyond the map's four entries.
fn unproved() -> Option<Place> {
    let place = place(&[])?;
    compile(&place, UNPROVED, &["-g"]).unwrap();
    let packets = [58, 59, 60].map(|length| vec![0; length]).into_iter();
    let packets: Vec<Vec<u8>> = packets.chain([0_u8, 4, 1, 255, 2, 3, 0].map(|kind| vec![kind; 64])).collect();
    place.file("in.pcap", pcap_of(&packets));
    Some(place)
}

/// Returns the arguments of the run, followed by these.
fn run<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["run", "prog.o", "--read", "in.pcap", "--json"], arguments].concat()
}

fn counts(traps: &Value) -> Vec<(u64, u64, String)> {
    let traps = traps.as_array().unwrap_or_else(|| panic!("{traps}")).iter();
    let one = |it: &Value| Some((it["count"].as_u64()?, it["line"].as_u64()?, it["reason"].as_str()?.to_owned()));
    traps.map(|it| one(it).unwrap_or_else(|| panic!("{it}"))).collect()
}

#[test]
fn places_of_aborted_packets_are_reported() {
    let Some(place) = unproved() else { return };
    for device in ["interp", "cpu"] {
        let ran = place.run(&run(&["--device", device])).assert_success().parse_json();
        assert_eq!(ran["verdicts"]["aborted"], 5);
        let [short, null] = REASONS.map(str::to_owned);
        assert_eq!(counts(&ran["traps"]), [(3, LINES[0].into(), short), (2, LINES[1].into(), null)], "{device}");
        assert_eq!(ran["traps"][0]["function"], "unproved");
    }
    place.run(&["run", "prog.o", "--read", "in.pcap"]).assert_success().assert_stdout_contains(&[
        "\n3 aborted at instruction",
        "of `unproved`",
        "prog.c:9: the packet is not so long\n",
    ]);
    // Without aborted packets nothing is reported.
    let packets = [vec![1; 64], vec![2; 64]];
    place.file("in.pcap", pcap_of(&packets));
    assert_eq!(place.run(&run(&["--device", "interp"])).assert_success().parse_json()["traps"], Value::Null);
}

/// If clang knows no line for an instruction it writes 0, which is none.
#[test]
fn every_place_has_a_source_line() {
    let place = Place::new();
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../compat-tests/xdp/gateway.c");
    let Some(()) = clang::require_clang(clang::to_file(&source, &["-mcpu=v3"], &place.path("gateway.o"))) else {
        return;
    };
    let json = place.run(&["check", "gateway.o", "--json"]).assert_success().parse_json();
    let traps = json["object"]["traps"].as_array().unwrap();
    assert!(!traps.is_empty(), "{json}");
    for trap in traps {
        // The object has BTF and line information, so each place has a line.
        assert!(trap["line"].as_u64() > Some(0) && trap["file"].is_string(), "{trap}");
    }
    let ran = place.run(&["check", "gateway.o"]).assert_success();
    assert!(ran.out.contains(".c:") && !ran.out.contains(".c:0:"), "{}", ran.out);
}

/// Packets out of fuel are not counted as such; they are the ABORTED packets without a place,
/// unless the filter returns ABORTED itself.
#[test]
fn packets_out_of_fuel_are_reported() {
    let Some(place) = place(&["-g"]) else { return };
    let loops = |verdict: &str| {
        let source = format!(
            "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nSEC(\"xdp\") int loops(struct xdp_md *ctx)\n{{
                unsigned char *data = (void *)(long)ctx->data;
                if ((void *)(data + 2) > (void *)(long)ctx->data_end) return XDP_DROP;
                for (int i = 0; i < data[0]; i++) asm volatile(\"\");
                return {verdict};
            }}\n"
        );
        compile(&place, &source, &["-g"]).unwrap();
    };
    // Number of iterations, and whether the filter returns ABORTED.
    let packets: Vec<Vec<u8>> = [(3_u8, 0_u8), (40, 0), (9, 1), (200, 1), (41, 0)].map(|(a, b)| vec![a, b, 0]).into();
    place.file("in.pcap", pcap_of(&packets));
    let fuel = ["--device", "interp", "--fuel", "16"];
    loops("XDP_PASS");
    let ran = place.run(&run(&fuel)).assert_success().parse_json();
    assert_eq!(ran["verdicts"]["aborted"], 3);
    assert_eq!(ran["out_of_fuel"], json!({"at_least": 3, "at_most": 3}), "{ran}");
    let text = place.run(&[&["run", "prog.o", "--read", "in.pcap"], &fuel[..]].concat()).assert_success().out;
    assert!(text.ends_with("\n3 aborted for lack of fuel: see --fuel\n"), "{text}");
    // With enough fuel there are none.
    assert_eq!(place.run(&run(&["--device", "interp"])).assert_success().parse_json()["out_of_fuel"], Value::Null);
    // One more by the filter's own verdict.
    loops("data[1] ? XDP_ABORTED : XDP_PASS");
    let ran = place.run(&run(&fuel)).assert_success().parse_json();
    assert_eq!((&ran["verdicts"]["aborted"], &ran["out_of_fuel"]), (&4.into(), &json!({"at_least": 0, "at_most": 4})));
    let text = place.run(&[&["run", "prog.o", "--read", "in.pcap"], &fuel[..]].concat()).assert_success().out;
    assert!(text.ends_with("\n4 aborted for lack of fuel or by the filter itself: see --fuel\n"), "{text}");
}

/// `noop` runs no filter, so nothing is aborted or reported.
#[test]
fn noop_accepts_unproved_programs() {
    let Some(place) = unproved() else { return };
    let ran = place.run(&run(&["--device", "noop"])).assert_success().parse_json();
    assert_eq!((&ran["verdicts"]["pass"], &ran["verdicts"]["aborted"]), (&10.into(), &0.into()), "{ran}");
    assert_eq!((&ran["events"], &ran["traps"]), (&json!({"count": 0, "lost": 0}), &Value::Null), "{ran}");
    let refused = place.run(&run(&["--device", "noop", "--events", "out.jsonl"]));
    refused.assert_failure(2, &["--events out.jsonl: noop runs no filter", "choose another device"]);
    assert!(!place.has("out.jsonl"));
}

#[test]
fn check_lists_places_checked_at_run_time() {
    let Some(place) = unproved() else { return };
    place.run(&["check", "prog.o"]).assert_success().assert_stdout_contains(&[
        "checked          2 places, where a packet is ABORTED and counted in the map `traps`\n",
        "prog.c:9: the packet is not so long\n",
        "prog.c:12: the pointer to a map's value is NULL\n",
        "CSV    index,sum,function,instruction,file,line,reason\n",
    ]);
    let json = place.run(&["check", "prog.o", "--json"]).assert_success().parse_json();
    let traps = json["object"]["traps"].as_array().unwrap();
    let found: Vec<_> = traps.iter().map(|it| (it["line"].as_u64().unwrap() as u32, it["reason"].as_str())).collect();
    assert_eq!(found, [(LINES[0], Some(REASONS[0])), (LINES[1], Some(REASONS[1]))]);
    // A program in which everything is proved.
    let proved = UNPROVED
        .replace(
            "__u32 kind = data",
            "if ((void *)(data + 61) > (void *)(long)ctx->data_end) return XDP_DROP;\n__u32 kind = data",
        )
        .replace("return *value", "if (!value) return XDP_DROP;\nreturn *value");
    compile(&place, &proved, &["-g"]).unwrap();
    place
        .run(&["check", "prog.o"])
        .assert_success()
        .assert_stdout_contains(&["checked          nothing: every operation is proved valid"]);
    assert_eq!(place.run(&["check", "prog.o", "--json"]).assert_success().parse_json()["object"]["traps"], json!([]));
    // One line for each of several programs.
    let two = UNPROVED.to_owned()
        + "SEC(\"xdp\") int drops(struct xdp_md *ctx) { return XDP_DROP; }\n"
        + "SEC(\"xdp\") int many(struct xdp_md *ctx) {\nunsigned char *data = (void *)(long)ctx->data; int sum = 0;\n"
        + &(0..9).map(|at| format!("sum += data[{}];\n", 100 * at)).collect::<String>()
        + "return sum & 3; }\n";
    compile(&place, &two, &["-g"]).unwrap();
    place.run(&["check", "prog.o"]).assert_success().assert_stdout_contains(&[
        "\n               checked  2 places at run time: ",
        "prog.c:9, ",
        "checked  9 places at run time: ",
        ", 3 more\n",
    ]);
    let json = place.run(&["check", "prog.o", "--json"]).assert_success().parse_json();
    let counts: Vec<_> =
        json["programs"].as_array().unwrap().iter().map(|it| it["traps"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [2, 0, 9], "{json}");
}

#[test]
fn the_traps_map_names_its_places_and_can_be_read_again() {
    let Some(place) = unproved() else { return };
    let dumps = ["--dump-map", "traps=a.json", "--dump-map", "traps=a.csv", "--device", "interp"];
    place.run(&run(&dumps)).assert_success();
    let rows: Value = serde_json::from_slice(&place.read("a.json")).unwrap();
    for (index, (sum, row)) in [3, 2].into_iter().zip(rows.as_array().unwrap()).enumerate() {
        assert_eq!(
            (&row["index"], &row["sum"], &row["line"]),
            (&json!(index), &json!(sum), &json!(LINES[index])),
            "{row}"
        );
        assert_eq!((&row["function"], &row["reason"]), (&json!("unproved"), &json!(REASONS[index])), "{row}");
        assert!(row["instruction"].as_str().unwrap().contains(" of `unproved`: "), "{row}");
    }
    let csv = place.text("a.csv");
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "index,sum,function,instruction,file,line,reason");
    assert!(
        lines[1].starts_with("0,3,unproved,instruction ") && lines[1].ends_with("prog.c,9,the packet is not so long"),
        "{csv}"
    );
    // Both files continue the counts, and the run reports only its own packets.
    for file in ["traps=a.json", "traps=a.csv"] {
        let ran = place.run(&run(&["--map", file, "--dump-map", "traps=b.csv", "--device", "interp"])).assert_success();
        assert_eq!(ran.parse_json()["traps"][0]["count"], 3, "{file}");
        let csv = place.text("b.csv");
        assert!(csv.contains("\n0,6,unproved") && csv.contains("\n1,4,unproved"), "{file}: {csv}");
    }
    // As users would write them.
    for (name, text) in
        [("c.csv", "1,40\n"), ("c.csv", "index,sum\n1,40\n"), ("c.json", r#"[{"index": 1, "sum": 40}]"#)]
    {
        place.file(name, text);
        place
            .run(&run(&["--map", &format!("traps={name}"), "--dump-map", "traps=d.csv", "--device", "interp"]))
            .assert_success();
        assert!(place.text("d.csv").contains("\n1,42,unproved"), "{text}");
    }
    for (name, text, words) in [
        ("e.csv", "1,40,unproved\n", "one cell too many"),
        ("e.csv", "2,40\n", "has no entry 2"),
        ("e.json", r#"[{"index": 1, "sum": 40, "reasons": 1}]"#, ": unknown field `reasons`; expected"),
        ("e.json", r#"[{"index": 1, "sum": 40, "sum": 41}]"#, "duplicate field `sum`"),
    ] {
        place.file(name, text);
        place.run(&run(&["--map", &format!("traps={name}")])).assert_failure(1, &[words]);
    }
}

#[test]
fn event_rings_have_no_entries() {
    let Some(place) = unproved() else { return };
    for arguments in [
        ["--map", "told=x.csv"],
        ["--dump-map", "told=x.json"],
        ["--watch-map", "told=x.csv"],
        ["--from-pin", "told=/x"],
    ] {
        let words = [arguments[0], "`told` is an event ring, which has no entries", "--events FILE"];
        place.run(&run(&arguments)).assert_failure(2, &words);
        assert!(!place.path("x.json").exists());
    }
    place.run(&run(&["--dump-map", "none=x.csv"])).assert_failure(2, &["no map `none`; it has `seen`, `traps`\n"]);
    let ran = place.run(&["check", "prog.o"]).assert_success();
    let words = "told: ringbuf of 4 096 bytes, read by `run --events`, room for 131 072 records of at most 4 bytes, ";
    ran.assert_stdout_contains(&[words]);
    assert!(!ran.out.contains("told: array"), "{}", ran.out);
    let json = place.run(&["check", "prog.o", "--json"]).assert_success().parse_json();
    let ring = json["maps"].as_array().unwrap().iter().find(|it| it["name"] == "told").unwrap();
    let shape = (&ring["kind"], &ring["record_bytes"], &ring["object"]);
    assert_eq!(shape, (&json!("ring"), &json!(4), &json!({"type": "ringbuf", "max_entries": 4096})));
    // State files hold neither events nor counts of aborted packets, so they fit the program after
    // it is rebuilt.
    place.run(&run(&["--state", "state", "--device", "interp"])).assert_success();
    let proved = UNPROVED.replace("return *value", "if (!value) return XDP_DROP;\nreturn *value");
    compile(&place, &proved.replace("4096", "8192"), &["-g"]).unwrap();
    place.run(&run(&["--state", "state", "--device", "interp"])).assert_success();
    assert!(place.read("state").len() < 1000);
}

/// An atomic addition, and three that are not: its old value is used, it is at an odd offset, or it
/// is in a packed structure.
const LOSSY: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct packed { __u8 kind; __u32 count; } __attribute__((packed));
struct cells { __u64 tokens; __u32 packets; __u32 words[4]; struct packed packed; };
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4); __type(key, __u32); __type(value, struct cells); } all SEC(".maps");
SEC("xdp") int lossy(struct xdp_md *ctx)
{
    __u32 kind = ctx->rx_queue_index;
    struct cells *cells = bpf_map_lookup_elem(&all, &kind);
    if (!cells)
        return XDP_DROP;
    cells->packets++;
    if (cells->tokens)
        cells->tokens--;
    __u32 *odd = (void *)cells + 13;
    ++*odd;
    cells->packed.count++;
    return XDP_PASS;
}
char LICENSE[] SEC("license") = "GPL";
"#;

#[test]
fn check_reports_additions_that_may_be_lost() {
    let Some(place) = place(&[]) else { return };
    compile(&place, LOSSY, &["-g"]).unwrap();
    let ran = place.run(&["check", "prog.o"]).assert_success();
    let row = "lossy            3 places, where an addition to a map value is not atomic and may be lost\n";
    ran.assert_stdout_contains(&[row]);
    let losses = place.run(&["check", "prog.o", "--json"]).parse_json()["object"]["losses"].take();
    let reported: Vec<_> = losses.as_array().unwrap().iter().map(|it| (&it["line"], &it["reason"])).collect();
    let [decides, odd, packed] = [
        "the loaded value is used for more than the addition",
        "its offset is not known to be a multiple of its size",
        "it is loaded and stored in parts, like a member of a packed structure",
    ]
    .map(Value::from);
    assert_eq!(reported, [(&15.into(), &decides), (&17.into(), &odd), (&18.into(), &packed)], "{losses}");
    // Without them nothing is reported.
    compile(
        &place,
        &LOSSY.replace("if (cells->tokens)", "").replace("++*odd;", "").replace("cells->packed.count++;", ""),
        &["-g"],
    )
    .unwrap();
    let ran = place.run(&["check", "prog.o"]).assert_success();
    assert!(!ran.out.contains("lossy  "), "{}", ran.out);
    assert_eq!(place.run(&["check", "prog.o", "--json"]).parse_json()["object"]["losses"], json!([]));
}

/// A per-CPU value that is written and read again, and a sum, which is unaffected.
const PER_CPU_VALUE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct room { __u32 kind, other; __u64 packets; __u8 all[8]; };
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct room); } rooms SEC(".maps");
SEC("xdp") int own(struct xdp_md *ctx)
{
    __u32 none = 0, at = ctx->rx_queue_index;
    struct room *room = bpf_map_lookup_elem(&rooms, &none);
    if (!room)
        return XDP_DROP;
    room->kind = ctx->ingress_ifindex;
    room->packets++;
    asm volatile("" ::: "memory");
    return room->kind > 1 ? XDP_TX : XDP_PASS;
}
char LICENSE[] SEC("license") = "GPL";
"#;

#[test]
fn check_reports_values_that_each_packet_copies() {
    let Some(place) = place(&[]) else { return };
    let check = |source: &str| {
        compile(&place, source, &["-g"]).unwrap();
        let out = place.run(&["check", "prog.o"]).assert_success().out;
        (out, place.run(&["check", "prog.o", "--json"]).parse_json()["object"]["copies"].take())
    };
    let (out, json) = check(PER_CPU_VALUE);
    assert!(out.contains("private copies   4 bytes of the value of `rooms` are private to each packet\n"), "{out}");
    assert_eq!(json, json!([{"map": "rooms", "bytes": 4, "filled": 0}]));
    // Only the packet decides which bytes are used.
    let anywhere = "room->all[bpf_get_prandom_u32() & 7] = 1; return room->all[at & 7] ? ";
    let (out, json) = check(&PER_CPU_VALUE.replace("return room->kind > 1 ? ", anywhere));
    let row = "private copies   8 bytes of the value of `rooms` are private to each packet, 8 of them copied from the map at its start\n";
    assert!(out.contains(row), "{out}");
    assert_eq!(json, json!([{"map": "rooms", "bytes": 8, "filled": 8}]));
    let (out, json) = check(&PER_CPU_VALUE.replace("room->kind > 1", "at"));
    assert!(!out.contains("private copies"), "{out}");
    assert_eq!(json, json!([]));
}
