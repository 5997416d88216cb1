//! XDP objects on the command line: setting global variables, the output of `check`, and maps with
//! BTF names.

use serde_json::{Value, json};

use crate::clang;
use crate::support::{Place, RunOutput, pcap};

/// Two accepted programs and a rejected one; variables of every type, and maps with and without
/// types.
const SOURCE: &str = r#"
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/in6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
char LICENSE[] SEC("license") = "GPL";
enum what { WHAT_DROP = 1, WHAT_PASS = 2, WHAT_TX = 3 };
struct key { __be32 address; __be16 port; __u16 pad; };
struct stats {
    __u64 packets; __s32 balance; __u16 ports[3]; __u8 mac[6]; char name[12]; bool seen;
    enum what what; union { __u32 word; __u8 bytes[4]; } either; __u32 low : 4, high : 28; struct in6_addr six;
};
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 8); __type(key, struct key); __type(value, struct stats); } table SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u64); } counts SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 0); __uint(key_size, 4); __uint(value_size, 12); } sized SEC(".maps");

const volatile __be16 closed = bpf_htons(9);
const volatile enum what otherwise = WHAT_PASS;
const volatile struct { __u8 on; struct { __s16 least; __u64 most; } bounds[2]; } config;
volatile __s64 counter = -5;
char label[8] = "abc";
__u32 total;

SEC("xdp") int ports(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    __be16 *port = data + 36;
    if ((void *)(port + 1) > end)
        return XDP_ABORTED;
    total++;
    counter += config.bounds[1].least;
    struct key key = { .address = *(__be32 *)(data + 26), .port = *port };
    struct stats *stats = bpf_map_lookup_elem(&table, &key);
    if (stats) {
        stats->packets++;
        stats->balance--;
        stats->name[0] = label[0];
    }
    __u32 zero = 0;
    __u64 *count = bpf_map_lookup_elem(&counts, &zero);
    if (count)
        ++*count;
    if (config.on && (__u64)*port < config.bounds[0].most)
        return XDP_TX;
    return *port == closed ? XDP_DROP : otherwise;
}

SEC("xdp/second") int second(struct xdp_md *ctx)
{
    __u32 key = 3;
    return bpf_map_lookup_elem(&sized, &key) ? XDP_PASS : XDP_DROP;
}

SEC("xdp/third") int third(struct xdp_md *ctx)
{
    return bpf_get_stackid(ctx, &counts, 0) > 0 ? XDP_PASS : XDP_DROP;
}
SEC("tc") int other(struct __sk_buff *skb) { return 0; }
"#;

/// Compiles a source to `prog.o`, without BTF unless the arguments ask for it.
///
/// # Errors
/// Clang's messages.
pub fn compile(place: &Place, source: &str, arguments: &[&str]) -> Result<(), String> {
    place.file("prog.c", source);
    let options = [&["-g0"], arguments].concat();
    clang::to_file(&place.path("prog.c"), &options, &place.path("prog.o"))
}

/// Creates a folder with the object and a capture of three packets from 10.0.0.1 to the UDP ports
/// 9, 80 and 443; `None` if clang cannot compile BPF.
pub fn place(arguments: &[&str]) -> Option<Place> {
    let place = Place::new();
    clang::require_clang(compile(&place, SOURCE, arguments))?;
    let packet = |port: u16| {
        let mut packet = [0_u8; 60];
        packet[26..30].copy_from_slice(&[10, 0, 0, 1]);
        packet[36..38].copy_from_slice(&port.to_be_bytes());
        packet
    };
    place.file("in.pcap", pcap(&[&packet(9), &packet(80), &packet(443)]));
    Some(place)
}

fn run(place: &Place, arguments: &[&str]) -> RunOutput {
    let all = ["run", "prog.o:ports", "--read", "in.pcap", "--device", "interp", "--json"];
    place.run(&[&all, arguments].concat())
}

fn verdicts(ran: &RunOutput) -> [u64; 3] {
    let json = ran.parse_json();
    ["drop", "pass", "tx"].map(|verdict| json["verdicts"][verdict].as_u64().unwrap_or_else(|| panic!("{json}")))
}

#[test]
fn set_constants_change_the_verdicts() {
    let Some(place) = place(&["-g"]) else { return };
    let of = |set: &[&str]| {
        let arguments: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        verdicts(&run(&place, &arguments).assert_success())
    };
    assert_eq!(of(&[]), [1, 2, 0]);
    // In network byte order, as the type says.
    assert_eq!(of(&["closed=443", "otherwise=WHAT_TX"]), [1, 0, 2]);
    assert_eq!(of(&["closed=0x2bc", "otherwise=1"]), [3, 0, 0]);
    // In the processor's byte order 9 is 0x0900, 80 is 0x5000, and 443 is 0xbb01.
    assert_eq!(of(&["config.on=1", "config.bounds[0].most=0x5000"]), [0, 2, 1]);
    assert_eq!(of(&["config.on=1", "config.bounds[0].most=18446744073709551615"]), [0, 0, 3]);
}

#[test]
fn set_variables_are_initial_values_and_can_be_dumped() {
    let Some(place) = place(&["-g"]) else { return };
    let set = ["--set", "counter=-9223372036854775808", "--set", "config.bounds[1].least=-300", "--set", "label=xyz"];
    let files = ["--dump-map", ".data=data.json", "--dump-map", "bss=bss.csv", "--dump-map", ".data=data.csv"];
    run(&place, &[&set[..], &files].concat()).assert_success();
    let data: Value = serde_json::from_slice(&place.read("data.json")).unwrap();
    // Three packets, and the counter wraps.
    let counter = i64::MIN.wrapping_sub(900);
    assert_eq!(data, json!([{"key": 0, "value": {".data": [{"counter": counter}, {"label": "xyz"}]}}]));
    assert_eq!(place.text("bss.csv"), "key,value.total\n0,3\n");
    assert_eq!(place.text("data.csv"), format!("key,value.counter,value.label\n0,{counter},xyz\n"));
}

#[test]
fn invalid_settings_are_refused_with_the_alternatives() {
    let Some(place) = place(&["-g"]) else { return };
    for (set, words) in [
        (
            "closd=1",
            &["--set closd: the object has no variable `closd`", "did you mean `closed`?", "`table.max_entries`"][..],
        ),
        ("closed=65536", &["--set closed: `65536` is not in __be16: 0 to 65535", "`closed` is __be16, in .rodata"]),
        ("closed=http", &["`http` is no number"]),
        ("otherwise=WHAT_PAS", &["did you mean `WHAT_PASS`?"]),
        ("config=1", &["has members: NAME.on"]),
        ("config.of=1", &["has no member `of`", "bounds"]),
        ("config.bouds=1", &["struct has no member `bouds` (it has on, bounds); did you mean `bounds`?\n"]),
        ("config.bounds[2].least=1", &["`[2]` is none of the 2 elements"]),
        ("config.bounds.least=1", &["has no members"]),
        ("config.bounds[0].least=40000", &["`40000` is not in __s16: -32768 to 32767"]),
        ("label=123456789", &["longer than char[8]"]),
        ("table.max_entries=none", &["`none` is not a number of entries"]),
        ("table.max_entries=010", &["`010` is not a number of entries"]),
        ("closed=010", &["`010`: expected a number without leading zeros, which C reads as octal"]),
        ("table.flags=1", &["`table.max_entries`"]),
        ("random_seed=-1", &["random numbers"]),
    ] {
        run(&place, &["--set", set]).assert_failure(2, words);
    }
    run(&place, &["--set", "closed=1", "--set", "closed=2"]).assert_failure(2, &["`closed` is given twice"]);
}

#[test]
fn without_types_variables_are_numbers() {
    let Some(place) = place(&["-g0", "-DNONE"]) else { return };
    // Maps in `.maps` need BTF.
    run(&place, &[]).assert_failure(1, &["build with -g"]);
    let plain: String = SOURCE.lines().filter(|line| !line.contains(".maps")).collect::<Vec<_>>().join("\n");
    let program = plain.split("SEC(\"xdp\") int ports").next().unwrap().to_owned()
        + "SEC(\"xdp\") int ports(struct xdp_md *ctx) { total++; return closed == bpf_htons(9) ? otherwise : XDP_DROP; }\n";
    compile(&place, &program, &[]).unwrap();
    assert_eq!(verdicts(&run(&place, &[]).assert_success()), [0, 3, 0]);
    assert_eq!(verdicts(&run(&place, &["--set", "otherwise=3"]).assert_success()), [0, 0, 3]);
    // Without BTF nothing says that the variable is in network byte order.
    assert_eq!(verdicts(&run(&place, &["--set", "closed=9"]).assert_success()), [3, 0, 0]);
    assert_eq!(verdicts(&run(&place, &["--set", "closed=0x0900", "--set", "otherwise=1"]).assert_success()), [3, 0, 0]);
    run(&place, &["--set", "otherwise=WHAT_TX"]).assert_failure(2, &["`otherwise` is __u32", "has no types"]);
}

#[test]
fn json_and_csv_rows_round_trip() {
    let Some(place) = place(&["-g"]) else { return };
    let json = r#"[
{"key": {"address": 16777226, "port": 20480, "pad": 0}, "value": {"packets": 18446744073709551615, "balance": -7, "ports": [1, 2, 65535],
 "mac": [2, 0, 0, 0, 0, 255], "name": "b,\"c", "seen": true, "what": "WHAT_TX", "either": {"word": 67305985}, "low": "0xf", "high": 1,
 "six": "2001:db8::1"}},
{"key": ["0x0a","0x00","0x00","0x02","0x00","0x09","0x00","0x00"], "value": {"name": "", "what": 7}}
]"#;
    place.file("in.json", json);
    let dumps = ["--dump-map", "table=a.json", "--dump-map", "table=a.csv"];
    run(&place, &[&["--map", "table=in.json"], &dumps[..]].concat()).assert_success();
    let got: Value = serde_json::from_slice(&place.read("a.json")).unwrap();
    let none = json!([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let six = |bytes: Value, halves: Value, words: Value| json!({"in6_u": {"u6_addr8": bytes, "u6_addr16": halves, "u6_addr32": words}});
    let of = |key: Value| {
        got.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{got}"))["value"].clone()
    };
    assert_eq!(
        of(json!({"address": 16777226, "port": 20480, "pad": 0})),
        // One packet was counted.
        json!({"packets": 0, "balance": -8, "ports": [1, 2, 65535], "mac": [2, 0, 0, 0, 0, 255], "name": "a,\"c", "seen": true,
               "what": "WHAT_TX", "either": {"word": 67305985, "bytes": [1, 2, 3, 4]}, "low": "0xf", "high": "0x1",
               "six": six(json!([32, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), json!([288, 47117, 0, 0, 0, 0, 0, 256]),
                          json!([3087860000_u32, 0, 0, 16777216]))})
    );
    assert_eq!(
        of(json!({"address": 33554442, "port": 2304, "pad": 0})),
        json!({"packets": 0, "balance": 0, "ports": [0, 0, 0], "mac": [0, 0, 0, 0, 0, 0], "name": "", "seen": false, "what": 7,
               "either": {"word": 0, "bytes": [0, 0, 0, 0]}, "low": "0x0", "high": "0x0",
               "six": six(none, json!([0, 0, 0, 0, 0, 0, 0, 0]), json!([0, 0, 0, 0]))})
    );
    let csv = place.text("a.csv");
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(
        lines[0],
        "key.address,key.port,key.pad,value.packets,value.balance,value.ports[0],value.ports[1],value.ports[2],value.mac,value.name,\
         value.seen,value.what,value.either.word,value.either.bytes,value.low,value.high,value.six"
    );
    let row = "167772161,80,0,0,-8,1,2,65535,02:00:00:00:00:ff,\"a,\"\"c\",true,WHAT_TX,67305985,01:02:03:04,15,1,2001:db8::1";
    assert!(lines.contains(&row), "{csv}");
    // Both dumps again, over no packets.
    for file in ["a.json", "a.csv"] {
        let map = format!("table={file}");
        let again = ["--map", &map, "--limit", "0", "--dump-map", "table=b.json", "--dump-map", "table=b.csv"];
        run(&place, &again).assert_success();
        assert_eq!((place.read("b.json"), place.read("b.csv")), (place.read("a.json"), place.read("a.csv")), "{file}");
    }
}

#[test]
fn invalid_rows_are_reported_by_file_line_and_member() {
    let Some(place) = place(&["-g"]) else { return };
    let header = "key.address,key.port,key.pad";
    for (name, content, words) in [
        (
            "a.json",
            r#"[{"key": {"adress": 1}, "value": {}}]"#.to_owned(),
            &["a.json:1: `key`", "did you mean `address`?"][..],
        ),
        (
            "a.json",
            "[\n{\"key\": {}, \"value\":\n {\"balance\": 3000000000}}]".into(),
            &["a.json:3: `value.balance`", "__s32"],
        ),
        ("a.json", r#"[{"key": {}, "value": {"ports": [1,2,3,4]}}]"#.into(), &["has 3 elements, and here are 4"]),
        ("a.json", r#"[{"key": {}, "value": {"mac": [256]}}]"#.into(), &["__u8[6] has 6 elements, and here are 1"]),
        (
            "a.json",
            r#"[{"key": {}, "value": {"mac": [256, 0, 0, 0, 0, 0]}}]"#.into(),
            &["`value.mac[0]`: `256` is not in __u8"],
        ),
        ("a.json", r#"[{"key": {}, "value": 5}]"#.into(), &["`value`: `5` is one value, and struct stats has members"]),
        ("a.json", r#"[{"key": {}}]"#.into(), &["the row has no `value`"]),
        ("a.json", r#"[{"key": {}, "value": {}, "more": 1}]"#.into(), &["more"]),
        ("a.csv", format!("{header}\n1,2"), &["a.csv:2: the row ends after 2 of 17 cells"]),
        ("a.csv", format!("{header}\n10.0.0.1,70000,0"), &["column 2 (key.port)", "is not in __be16"]),
        (
            "a.csv",
            "10.0.0.1,80,0,1,1,1,1,1,02:00:00:00:00:01,n,true,WHAT_TX,1,00:00:00:02,1,1,::1".into(),
            &["`value.either.bytes`", "leave one of them empty"],
        ),
    ] {
        place.file(name, content);
        run(&place, &["--map", &format!("table={name}")]).assert_failure(1, words);
    }
    place.file("c.csv", "0,1\n2,1\n");
    run(&place, &["--map", "counts=c.csv"]).assert_failure(1, &["c.csv:2", "the map `counts` has no entry 2"]);
    // Values of the kernel's processors are summed.
    place.file("c.json", r#"[{"key": 1, "values": [{"cpu": 0, "value": 3}, {"cpu": 1, "value": 4}]}]"#);
    run(&place, &["--map", "counts=c.json", "--dump-map", "counts=d.csv"]).assert_success();
    assert_eq!(place.text("d.csv"), "key,value\n0,3\n1,7\n");
}

/// The kernel too refuses a ninth key of eight: E2BIG.
#[test]
fn a_file_may_have_as_many_keys_as_the_hash_has_entries() {
    let Some(place) = place(&["-g"]) else { return };
    let rows = |count: u32| {
        let rows: Vec<String> =
            (0..count).map(|key| format!("{{\"key\": {{\"address\": {key}}}, \"value\": {{}}}}")).collect();
        format!("[\n{}\n]", rows.join(",\n"))
    };
    place.file("eight.json", rows(8));
    place.file("nine.json", rows(9));
    let message = "nine.json:10: there is no room in the map `table` for this row and those behind it (entries=8): --set table.max_entries=9";
    run(&place, &["--map", "table=nine.json"]).assert_failure(1, &[message]);
    run(&place, &["--map", "table=eight.json"]).assert_success();
    run(&place, &["--map", "table=nine.json", "--set", "table.max_entries=9"]).assert_success();
}

#[test]
fn check_lists_programs_maps_and_variables() {
    let Some(place) = place(&["-g"]) else { return };
    place.run(&["check", "prog.o", "--set", "label=set"]).assert_exit(1, &[]).assert_stdout_contains(&[
        "prog.o: 3 XDP programs, 1 accepted",
        "ports (xdp): accepted",
        "helpers  bpf_map_lookup_elem",
        "second (xdp/second): rejected: ",
        "prog.c:52: the map `sized` has no entries",
        "third (xdp/third): rejected: ",
        "prog.c:57: ",
        "tc",
        "table: hash, keys struct key (8 bytes), values struct stats (",
        "counts: percpu_array, keys __u32 (4 bytes), values __u64 (8 bytes), 2 entries",
        "sized: array, keys __u32 (4 bytes), values __u8[12] (12 bytes), no max_entries: --set sized.max_entries=N",
        "closed: __be16 = 9 (.rodata)",
        "label: char[8] = set (.data, set)",
        "total: __u32 = 0 (.bss)",
    ]);
    let json = place.run(&["check", "prog.o", "--json", "--set", "sized.max_entries=4"]).parse_json();
    let taken: Vec<_> = json["programs"].as_array().unwrap().iter().map(|it| (&it["name"], &it["ok"])).collect();
    let (yes, no) = (Value::Bool(true), Value::Bool(false));
    assert_eq!(taken, [(&json!("ports"), &yes), (&json!("second"), &yes), (&json!("third"), &no)], "{json}");
    assert!(json["programs"][2]["errors"][0]["line"].as_u64() > Some(0), "{json}");
    assert_eq!(json["maps"][2]["max_entries"], 4);
    let otherwise = json["variables"].as_array().unwrap().iter().find(|it| it["name"] == "otherwise").unwrap();
    assert_eq!((&otherwise["value"], &otherwise["type"]), (&json!("WHAT_PASS"), &json!("enum what")));
    // One program in full.
    place.run(&["check", "prog.o:ports"]).assert_success().assert_stdout_contains(&[
        "program          `ports` of prog.o",
        "helpers          bpf_map_lookup_elem",
        "verdicts",
        "key.address (__be32), key.port (__be16), key.pad (__u16)",
        "value.packets (__u64)",
    ]);
    let json = place.run(&["check", "prog.o:ports", "--json"]).assert_success().parse_json();
    assert_eq!(json["object"]["program"], "ports");
    let table = json["maps"].as_array().unwrap().iter().find(|it| it["name"] == "table").unwrap();
    assert_eq!((&table["object"]["type"], &table["object"]["key_type"]), (&json!("hash"), &json!("struct key")));
}

/// Elements and members are printed as `--set` takes them; JSON has the processor's byte order,
/// like bpftool.
#[test]
fn check_prints_variables_in_the_syntax_of_set() {
    let Some(place) = place(&["-g"]) else { return };
    let source = r#"
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/in6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
const volatile __be16 reflected = bpf_htons(9), closed[2] = { bpf_htons(10), bpf_htons(19) };
enum mode { MODE_OFF, MODE_ON };
const volatile struct settings {
    __be32 ip; union { __u16 word; __be16 port; }; bool on; char name[6]; __u8 mac[6];
    struct { enum mode mode; __s32 low : 4, high : 28; } each[2]; struct in6_addr six;
} cfg = {
    .ip = bpf_htonl(0x0a000001), .port = bpf_htons(80), .on = true, .name = "eth0", .mac = { 2, 0, 0, 0, 0, 10 },
    .each = { { MODE_ON, -3, 7 }, { 9, 0, -1 } }, .six = { { { 0x20, 1, 0xd, 0xb8, [15] = 1 } } },
};
SEC("xdp") int all(struct xdp_md *ctx)
{
    return reflected + closed[0] + cfg.ip + cfg.each[1].low ? XDP_PASS : XDP_DROP;
}
"#;
    compile(&place, source, &["-g"]).unwrap();
    let of = "{ip: 167772161, word: 20480, port: 80, on: true, name: eth0, mac: 02:00:00:00:00:0a, \
              each: [{mode: MODE_ON, low: -3, high: 7}, {mode: 9, low: 0, high: -1}], six: 2001:db8::1}";
    let shown: String = of.chars().take(60).collect();
    place.run(&["check", "prog.o"]).assert_success().assert_stdout_contains(&[
        "reflected: __be16 = 9 (.rodata)",
        "closed: __be16[2] = [10, 19] (.rodata)",
        &format!("cfg: struct settings = {shown}… (.rodata)"),
    ]);
    // Setting what is printed gives the same values.
    let parts = "reflected=9 closed[0]=10 closed[1]=19 cfg.ip=167772161 cfg.port=80 cfg.on=true cfg.name=eth0 cfg.mac=02:00:00:00:00:0a \
                 cfg.each[0].mode=MODE_ON cfg.each[0].low=-3 cfg.each[0].high=7 cfg.each[1].mode=9 cfg.each[1].high=-1 cfg.six=2001:db8::1";
    let set: Vec<&str> = parts.split_whitespace().flat_map(|part| ["--set", part]).collect();
    let zeros = source.split_once(" cfg = {").unwrap().0.replace("= { bpf_htons(10), bpf_htons(19) }", "= {}");
    let zeros = zeros.replace("bpf_htons(9)", "0")
        + " cfg = {};\n"
        + &source.split_once("\n};\nSEC").map(|(_, rest)| format!("SEC{rest}")).unwrap();
    let json = |arguments: &[&str]| {
        let ran = place.run(&[&["check", "prog.o", "--json"], arguments].concat()).assert_success().parse_json();
        let all = ran["object"]["variables"].as_array().unwrap_or_else(|| panic!("{ran}")).clone();
        all.into_iter().map(|it| (it["name"].clone(), it["value"].clone())).collect::<Vec<_>>()
    };
    let before = json(&[]);
    assert_eq!(before[1], (json!("closed"), json!([2560, 4864])));
    compile(&place, &zeros, &["-g"]).unwrap();
    assert_eq!(json(&set), before);
}

#[test]
fn max_entries_can_be_set() {
    let Some(place) = place(&["-g"]) else { return };
    let second = |set: &[&str]| {
        let all = ["run", "prog.o:second", "--read", "in.pcap", "--device", "interp", "--json"];
        place.run(&[&all, set].concat())
    };
    second(&[]).assert_failure(1, &["`sized` has no entries", "--set sized.max_entries=N"]);
    assert_eq!(verdicts(&second(&["--set", "sized.max_entries=3"]).assert_success()), [3, 0, 0]);
    assert_eq!(verdicts(&second(&["--set", "sized.max_entries=4"]).assert_success()), [0, 3, 0]);
    assert_eq!(verdicts(&second(&["--set", "sized.max_entries=0x10"]).assert_success()), [0, 3, 0]);
    second(&["--set", "sized.max_entries=-0x1"]).assert_failure(2, &["`-0x1` is not a number of entries"]);
    second(&["--set", "sized.max_entries=99999999"]).assert_failure(2, &["`99999999` is not a number of entries"]);
    // A map whose object declares too many entries.
    compile(&place, &SOURCE.replace("max_entries, 0", "max_entries, 4000000000"), &["-g"]).unwrap();
    let words = ["`sized` has 4000000000 entries; the limit is ", ": set fewer with `--set sized.max_entries=N`"];
    second(&[]).assert_failure(1, &words);
    assert_eq!(verdicts(&second(&["--set", "sized.max_entries=4"]).assert_success()), [0, 3, 0]);
}

#[test]
fn the_random_seed_can_be_set() {
    let Some(place) = place(&["-g"]) else { return };
    let of = |source: &str, set: &[&str]| {
        let head = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n";
        compile(&place, &format!("{head}{source}"), &["-g"]).unwrap();
        let all = [
            "run",
            "prog.o",
            "--read",
            "synth:packets=400,seed=5",
            "--device",
            "interp",
            "--write",
            "passed.pcap",
            "--json",
        ];
        let drawn = verdicts(&place.run(&[&all, set].concat()).assert_success());
        (drawn, place.read("passed.pcap"))
    };
    let draw = "SEC(\"xdp\") int draw(struct xdp_md *ctx) { return bpf_get_prandom_u32() & 4 ? XDP_PASS : XDP_DROP; }";
    let [first, same, other] =
        [&[][..], &["--set", "random_seed=0"], &["--set", "random_seed=7"]].map(|set| of(draw, set));
    assert!((150..250).contains(&first.0[0]), "{first:?}");
    assert_eq!(first, same);
    assert_ne!(first.1, other.1);
    // A variable of this name in the object takes precedence.
    let own = "const volatile __u32 random_seed = 1; SEC(\"xdp\") int own(struct xdp_md *ctx) { return random_seed; }";
    assert_eq!(of(own, &["--set", "random_seed=2"]).0, [0, 400, 0]);
}

/// XDP programs alone in a section, two in one, in sections that libbpf does not load by default,
/// and in iproute2's; and a program for another hook.
const HOOKS: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
static __attribute__((noinline)) int of_text(struct xdp_md *ctx) { return ctx->rx_queue_index ? XDP_TX : XDP_DROP; }
SEC("xdp") int alone(struct xdp_md *ctx) { return of_text(ctx) == XDP_DROP ? XDP_PASS : XDP_DROP; }
SEC("xdp/two") int drops(struct xdp_md *ctx) { return XDP_DROP; }
SEC("xdp/two") int passes(struct xdp_md *ctx) { return XDP_PASS; }
SEC("?xdp") int later(struct xdp_md *ctx) { return XDP_TX; }
SEC("?xdp/late") int latest(struct xdp_md *ctx) { return XDP_DROP; }
SEC("prog") int old(struct xdp_md *ctx) { return XDP_TX; }
SEC("tc") int shapes(struct __sk_buff *skb) { return 1; }
"#;

#[test]
fn only_xdp_programs_can_be_chosen() {
    let Some(place) = place(&["-g"]) else { return };
    compile(&place, HOOKS, &["-g"]).unwrap();
    let of = |program: &str| {
        let file = format!("prog.o:{program}");
        place.run(&["run", &file, "--read", "in.pcap", "--device", "interp", "--json"])
    };
    let [drop, pass, tx] = [[3, 0, 0], [0, 3, 0], [0, 0, 3]];
    for (program, wanted) in [
        ("alone", pass),
        ("xdp", pass),
        ("drops", drop),
        ("passes", pass),
        ("later", tx),
        ("?xdp", tx),
        ("latest", drop),
        ("?xdp/late", drop),
        ("old", tx),
        ("prog", tx),
    ] {
        assert_eq!(verdicts(&of(program).assert_success()), wanted, "{program}");
    }
    let all = "its XDP programs: `alone`, `drops`, `passes`, `later`, `latest`";
    of("shapes").assert_failure(1, &["`shapes` is in the section `tc`, for another hook", all]);
    of("tc").assert_failure(1, &["the section `tc` has no program for XDP", all]);
    of("of_text").assert_failure(1, &["`of_text` is in the section `.text`, a function that programs call", all]);
    of(".text").assert_failure(1, &["the section `.text` has no program for XDP", all]);
    of("xdp/two")
        .assert_failure(1, &["the section `xdp/two` has 2 programs, `drops`, `passes`: say which", "prog.o:drops"]);
    of("none").assert_failure(1, &["the object has no program `none`\n", all]);
    of("pases").assert_failure(1, &["the object has no program `pases`; did you mean `passes`?", all]);
    of("").assert_failure(1, &["there is no program name after the colon", all]);
    // A section `prog` may be for another hook, so the program must be named.
    let source = "__attribute__((section(\"prog\"))) int old(void *ctx) { return 3; }";
    compile(&place, source, &[]).unwrap();
    place
        .run(&["run", "prog.o", "--read", "in.pcap"])
        .assert_failure(1, &["no programs for XDP", "`prog`", "prog.o:old"]);
    assert_eq!(verdicts(&of("old").assert_success()), tx);
}

#[test]
fn check_of_one_program_lists_the_rest_of_the_object() {
    let Some(place) = place(&["-g"]) else { return };
    let map = |name: &str| {
        format!(
            "struct {{ __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4); __type(key, __u32); __type(value, __u32); }} {name} SEC(\".maps\");\n"
        )
    };
    let source = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n".to_owned()
        + &map("mine")
        + &map("theirs")
        + r#"
int spare = 7;
static __u32 *entry(void *map) { __u32 key = 0; return bpf_map_lookup_elem(map, &key); }
SEC("xdp") int only(struct xdp_md *ctx) { return entry(&mine) ? XDP_PASS : XDP_DROP; }
SEC("tc") int shapes(struct __sk_buff *skb) { return entry(&theirs) ? spare : 1; }
"#;
    compile(&place, &source, &["-g"]).unwrap();
    place.run(&["check", "prog.o"]).assert_success().assert_stdout_contains(&[
        "`only` of prog.o",
        "spare: int = 7 (.data)",
        "mine: array, keys __u32 (4 bytes), values __u32 (4 bytes), 4 entries, ",
        "unused maps      theirs: array, keys __u32 (4 bytes), values __u32 (4 bytes), 4 entries\n",
        "other hooks      tc\n",
    ]);
    let json = place.run(&["check", "prog.o", "--json"]).assert_success().parse_json();
    assert_eq!((&json["object"]["other_sections"], &json["object"]["program"]), (&json!(["tc"]), &json!("only")));
    let unused = json["object"]["unused_maps"].as_array().unwrap();
    assert_eq!(unused.iter().map(|it| &it["name"]).collect::<Vec<_>>(), ["theirs"], "{json}");
}

#[test]
fn objects_with_other_extensions_need_the_language_option() {
    let Some(place) = place(&["-g"]) else { return };
    compile(
        &place,
        "#include <linux/bpf.h>\n__attribute__((section(\"xdp\"))) int all(void *ctx) { return XDP_TX; }",
        &[],
    )
    .unwrap();
    place.file("nat.bin", place.read("prog.o"));
    let run = |arguments: &[&str]| {
        place.run(&[&["run"], arguments, &["--read", "in.pcap", "--device", "interp", "--json"]].concat())
    };
    for arguments in [&["nat.bin"][..], &["nat.bin", "--language", "bpf"], &["prog.o", "--language", "bpf"]] {
        let words = [arguments[0], "this is an ELF object", "--language xdp", ".o"];
        run(arguments).assert_failure(1, &words);
    }
    assert_eq!(verdicts(&run(&["nat.bin", "--language", "xdp"]).assert_success()), [0, 0, 3]);
}

/// The program's name is not part of its file's name.
#[test]
fn outputs_may_not_overwrite_an_object_named_with_a_program() {
    let Some(place) = place(&["-g"]) else { return };
    let tells = r#"SEC("xdp/tells") int tells(struct xdp_md *ctx) { bpf_printk("here"); return XDP_DROP; }"#;
    compile(&place, &format!("{SOURCE}{tells}\n"), &["-g"]).unwrap();
    let object = place.read("prog.o");
    // Under other names, which need `--language`.
    place.file("prog", &object);
    place.file("3.pcap", &object);
    let links = [("hard.json", "prog.o"), ("soft.json", "prog.o"), ("hard.csv", "prog"), ("soft.csv", "prog")];
    for (link, of) in links {
        #[cfg(unix)]
        if link.starts_with("soft") {
            std::os::unix::fs::symlink(of, place.path(link)).unwrap();
            continue;
        }
        std::fs::hard_link(place.path(of), place.path(link)).unwrap();
    }
    let run = |program: &str, arguments: &[&str]| {
        place.run(&[&["run", program, "--read", "in.pcap", "--device", "interp"], arguments].concat())
    };
    let with_language = ["--language", "xdp"];
    for (file, language, names) in [
        ("prog.o", &[][..], ["./prog.o", "hard.json", "soft.json"]),
        ("prog", &with_language, ["prog", "hard.csv", "soft.csv"]),
    ] {
        for name in names {
            // The extension selects the format of a dump.
            let dump = format!("table={name}");
            let is_dump = name.ends_with(".json") || name.ends_with(".csv");
            let dump = is_dump.then_some(("ports", "--dump-map", &*dump));
            let others = [("ports", "--write"), ("ports", "--write-tx"), ("tells", "--events")];
            let others = others.map(|(program, option)| (program, option, name));
            for (program, option, to) in others.into_iter().chain(dump) {
                let ran = run(&format!("{file}:{program}"), &[language, &[option, to]].concat());
                ran.assert_failure(2, &[&format!("error: {option} {to}: this is the filter;")]);
                assert!(["prog.o", "prog"].iter().all(|file| place.read(file) == object), "{file} {option} {to}");
            }
            // The state file is read first, and is not one.
            let state = run(&format!("{file}:ports"), &[language, &["--state", name]].concat());
            assert!(state.code != 0 && place.read(name) == object, "{state:?}");
        }
    }
    let words = ["error: --write-redirect .: the filter, 3.pcap, lies in this folder"];
    run("3.pcap:ports", &["--language", "xdp", "--write-redirect", "."]).assert_failure(2, &words);
    assert_eq!(place.read("3.pcap"), object);
}

#[test]
fn programs_can_be_named_in_objects_of_any_name() {
    let Some(place) = place(&["-g"]) else { return };
    compile(&place, HOOKS, &["-g"]).unwrap();
    let object = place.read("prog.o");
    for name in ["plain", "nat.bin", "a:b", "whole:drops"] {
        place.file(name, &object);
    }
    let rest = ["--language", "xdp", "--read", "in.pcap", "--device", "interp", "--json"];
    let run = |file: &str| place.run(&[&["run", file], &rest[..]].concat());
    let [drop, pass, tx] = [[3, 0, 0], [0, 3, 0], [0, 0, 3]];
    for (named, wanted) in [
        ("plain:drops", drop),
        ("plain:xdp", pass),
        ("nat.bin:?xdp/late", drop),
        ("a:b:later", tx),
        ("prog.o:passes", pass),
        ("whole:drops:passes", pass),
    ] {
        assert_eq!(verdicts(&run(named).assert_success()), wanted, "{named}");
    }
    run("a:b").assert_failure(1, &["error: a:b: the object has 5 programs: say which, as in a:b:alone"]);
    // A file of this name exists, so the colon does not name a program.
    run("whole:drops").assert_failure(1, &["the object has 5 programs: say which, as in whole:drops:alone"]);
    run("none:drops").assert_failure(1, &["error: none: No such file or directory"]);
    // Without `--language` the extension decides.
    place
        .run(&["run", "plain:drops", "--read", "in.pcap"])
        .assert_failure(1, &["error: plain:drops: No such file or directory"]);
    // From standard input, as the error suggests.
    let stdin = |file: &str| place.run_with(&[&["run"], &rest[..], &["--", file]].concat(), &object);
    stdin("-").assert_failure(1, &["error: <stdin>: the object has 5 programs: say which, as in /dev/stdin:alone"]);
    stdin("-:xdp/two").assert_failure(1, &["say which, as in /dev/stdin:drops"]);
    for (named, wanted) in [("/dev/stdin:alone", pass), ("/dev/stdin:?xdp/late", drop), ("-:drops", drop)] {
        assert_eq!(verdicts(&stdin(named).assert_success()), wanted, "{named}");
    }
    assert_eq!(stdin("/dev/stdin:drops").parse_json()["filter"], "<stdin>:drops");
    let check = place.run_with(&["check", "/dev/stdin:later", "--language", "xdp"], &object).assert_success();
    assert!(check.out.contains("`later` of <stdin>"), "{}", check.out);
    let both = ["run", "/dev/stdin:drops", "--language", "xdp", "--read", "-"];
    place.run_with(&both, &object).assert_failure(2, &["both be standard input"]);
}
