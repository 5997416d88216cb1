//! `portcullis check`: diagnostics, facts, and generated code.

use crate::support::{PASS, Place, stock};

#[test]
fn a_valid_filter_shows_its_facts() {
    let place = Place::new();
    place.run(&["check", &stock("http_only")]).assert_success().assert_stdout_contains(&[
        "no errors",
        "reads",
        "writes",
        "loops",
        "drop, pass",
    ]);
    let line = place.run(&["check", &stock("mac_swap"), "--json"]).assert_success().parse_json();
    assert_eq!(line["ok"], true);
    let facts = &line["facts"];
    // Both addresses, of 6 bytes each; shorter packets are dropped.
    assert_eq!((&facts["reads_bytes"], &facts["writes_bytes"]), (&12.into(), &12.into()));
    assert_eq!(facts["verdicts"], serde_json::json!(["drop", "tx"]));
    assert!(facts["changes_length"] == false && facts["fuel"] == 32_768);
}

#[test]
fn errors_have_line_and_column() {
    let place = Place::new();
    let bad = place.file("bad.wgsl", "fn xdp_filter(pkt: u32) -> u32 {\n    return nonsense;\n}\n");
    let ran = place.run(&["check", bad]).assert_failure(1, &["error", "bad.wgsl:2:12", "nonsense"]);
    assert!(!ran.err.contains('\u{1b}'), "no colour without a terminal");
    let ran = place.run(&["check", bad, "--json"]);
    assert_eq!(ran.code, 1);
    let line = ran.parse_json();
    assert_eq!(
        (&line["ok"], &line["errors"][0]["line"], &line["errors"][0]["column"]),
        (&false.into(), &2.into(), &12.into())
    );
    place.run(&["check", "none.wgsl"]).assert_failure(1, &["none.wgsl: No such file or directory (os error 2)"]);
    place.run(&["check", place.file("empty.wgsl", "")]).assert_failure(1, &["xdp_filter"]);
    place.run_with(&["check", "-"], b"fn f() {}").assert_failure(1, &["<stdin>", "xdp_filter"]);
}

#[test]
fn generated_code_is_printed_in_each_form() {
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    assert!(place.run(&["check", filter, "--emit", "wgsl"]).assert_success().out.contains("fn xdp_filter"));
    if cfg!(feature = "wgpu") {
        // Magic number of SPIR-V, section 2.3 of its specification.
        assert_eq!(
            place.run(&["check", filter, "--emit", "spirv"]).assert_success().bytes[..4],
            [0x03, 0x02, 0x23, 0x07]
        );
    }
    if cfg!(feature = "cpu") {
        assert!(place.run(&["check", filter, "--emit", "clif"]).assert_success().out.contains("function"));
        assert_eq!(place.run(&["check", filter, "--emit", "lanes"]).assert_success().out, "verdict 2\n");
        let flows = format!("fn xdp_flow(pkt: u32) -> u32 {{ return 1u; }}\n{PASS}");
        let flows = place.file("flows.wgsl", &flows);
        place.run(&["check", flows, "--emit", "lanes"]).assert_failure(1, &["not vectorised", "flow"]);
    }
    let c = |language| place.run(&["check", filter, "--emit", language]).assert_success().out;
    assert!(c("opencl").contains("__kernel void xdp_kernel("));
    assert!(c("cuda").contains("extern \"C\" __global__ void xdp_kernel("));
    place.run(&["check", filter, "--emit", "asm"]).assert_failure(2, &["asm"]);
}

#[test]
fn a_name_ending_in_cl_is_opencl_c() {
    let place = Place::new();
    std::fs::create_dir(place.path("parts")).unwrap();
    let filter = "#include \"parts/ports.h\"\n#ifndef PORT\n#define PORT 80\n#endif\n\
                  uint xdp_filter(__global uchar *pkt, uint len) { return port(pkt) == PORT ? XDP_PASS : XDP_DROP; }\n";
    let filter = place.file("f.cl", filter);
    place.file("parts/ports.h", "uint port(__global uchar *p) { return load_be16(p, 36); }\n");
    let line = place.run(&["check", filter, "--json", "--set", "PORT=443"]).assert_success().parse_json();
    assert_eq!(line["facts"]["reads_bytes"], 38);
    place.run(&["check", filter, "--set", "OTHER=1"]).assert_failure(2, &["OTHER"]);
    for (set, message) in
        [("XDP_PASS=1", "belongs to the prelude"), ("pkt=1", "no parameter `pkt`"), ("PROT=1", "did you mean `PORT`")]
    {
        place
            .run(&["check", filter, "--set", set])
            .assert_failure(2, &[&format!("--set {}", &set[..3]), message, "parameter"]);
    }
    place.file("parts/ports.h", "uint port(__global uchar *p) { return wrong; }\n");
    place.run(&["check", filter]).assert_failure(1, &["parts/ports.h:1:39", "`wrong` is not declared"]);
    let line = place.run(&["check", filter, "--json"]).parse_json();
    assert_eq!((&line["errors"][0]["file"], &line["errors"][0]["line"]), (&"parts/ports.h".into(), &1.into()));
    std::fs::remove_file(place.path("parts/ports.h")).unwrap();
    place.run(&["check", filter]).assert_failure(1, &["f.cl:1:", "parts/ports.h"]);
    std::fs::create_dir(place.path("parts/ports.h")).unwrap();
    place.run(&["check", filter]).assert_failure(1, &["not a regular file"]);
}

#[cfg(unix)]
#[test]
fn includes_may_not_leave_the_filters_folder() {
    use std::os::unix::fs::symlink;
    let place = Place::new();
    for folder in ["in", "in/sub", "input"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    let include = |name: &str| {
        let filter = format!("#include \"{name}\"\nuint xdp_filter(__global uchar *pkt, uint len) {{ return ONE; }}\n");
        place.run(&["check", place.file("in/f.cl", filter)])
    };
    place.file("input/one.h", "#define ONE 1\n");
    place.file("in/sub/one.h", "#define ONE 1\n");
    symlink("sub/one.h", place.path("in/within.h")).unwrap();
    symlink("../input/one.h", place.path("in/out.h")).unwrap();
    symlink(place.path("input"), place.path("in/folder")).unwrap();
    include("sub/one.h").assert_success();
    include("within.h").assert_success();
    for out in ["out.h", "folder/one.h"] {
        include(out).assert_failure(1, &["in/f.cl:1:10", &format!("\"in/{out}\""), "leads out of the filter's folder"]);
    }
    // The filter's folder itself may be reached through a link.
    symlink("in", place.path("link")).unwrap();
    include("sub/one.h").assert_success();
    place.run(&["check", "link/f.cl"]).assert_success();
    // Files in the folder are named relative to the working directory.
    place.file("in/sub/one.h", "\n#define ONE wrong\nuint f(uint a) { return ONE; }\n");
    place.run(&["check", "in/f.cl"]).assert_failure(1, &["in/sub/one.h:3:25"]);
}

#[test]
fn the_language_option_overrides_the_file_name() {
    let place = Place::new();
    let in_c = "uint xdp_filter(__global uchar *pkt, uint len) { return XDP_PASS; }\n";
    place.run_with(&["check", "-", "--language", "opencl-c"], in_c.as_bytes()).assert_success();
    place.run_with(&["check", "-", "--language", "wgsl"], PASS.as_bytes()).assert_success();
    place.run_with(&["check", "-"], PASS.as_bytes()).assert_success();
    place.run_with(&["check", "-"], in_c.as_bytes()).assert_failure(1, &["<stdin>", "--language opencl-c"]);
    place.run_with(&["check", "-", "--language", "opencl-c"], b"#include \"x.h\"\n").assert_failure(1, &["no folder"]);
    let odd = place.file("filter.c", in_c);
    place.run(&["check", odd]).assert_failure(2, &["filter.c", ".wgsl, .cl, .bpf or .o", "--language opencl-c"]);
    place.run(&["check", odd, "--language", "opencl-c"]).assert_success();
    place.run(&["check", place.file("bare", PASS), "--language", "wgsl"]).assert_success();
    place.run(&["check", place.file("F.CL", in_c)]).assert_success();
    place.run(&["check", odd, "--language", "c"]).assert_failure(2, &["opencl-c", "wgsl"]);
}

#[test]
fn parameters_are_listed() {
    let place = Place::new();
    let in_c = "#ifndef PORT\n#define PORT 80\n#endif\n#ifndef WORKERS\n#define WORKERS 8u\n#endif\n\
                uint xdp_filter(__global uchar *pkt, uint len) { return len == PORT ? redirect(WORKERS) : XDP_PASS; }\n";
    let in_c = place.file("f.cl", in_c);
    let shown = |args: &[&str]| place.run(args).assert_success().out;
    assert!(shown(&["check", in_c]).contains("parameters       PORT=80, WORKERS=8\n"));
    assert!(shown(&["check", in_c, "--set", "WORKERS=4"]).contains("parameters       PORT=80, WORKERS=4 (set)\n"));
    let line = place.run(&["check", in_c, "--json", "--set", "PORT=81"]).assert_success().parse_json();
    let wanted = serde_json::json!([
        {"name": "PORT", "value": 81, "default": false},
        {"name": "WORKERS", "value": 8, "default": true},
    ]);
    assert_eq!(line["parameters"], wanted);
    place.run(&["check", in_c, "--set", "PROT=1"]).assert_failure(2, &["no parameter `PROT`", "`PORT`, `WORKERS`"]);
    place
        .run(&["check", in_c, "--set", "PORT=4294967296"])
        .assert_failure(2, &["--set PORT", "-2147483648 to 4294967295"]);
    place.run(&["check", in_c, "--set", "PORT=http"]).assert_failure(2, &["--set PORT", "expected a number"]);
    let in_wgsl = shown(&["check", &stock("http_only")]);
    assert!(in_wgsl.contains("parameters       http=80, https=443\n"), "{in_wgsl}");
    assert!(shown(&["check", &stock("minimal")]).contains("parameters       no\n"));
}

#[test]
fn maps_are_listed() {
    let place = Place::new();
    let filter = format!(
        "//! map flows: hash key=4 value=6 entries=700\n//! map ports: array value=1 entries=65536\n\
         //! map sum: counter entries=1\n\
         //! map seen: hash key=1 value=0 entries=5 fields=source:ipv4\n{PASS}"
    );
    let filter = place.file("f.wgsl", filter);
    // By docs/reference/map-memory.md: a header of 16 words; 1024 slots of 5 words for key and
    // state and 6 for the value; 65536 words; 2 words; 8 slots of 2 + 1 words.
    let bytes = [4 * (16 + 1024 * 12), 4 * (16 + 65536), 4 * (16 + 2), 4 * (16 + 8 * 3)];
    let fields = |fields: &[&str]| -> Vec<_> {
        let field = |field: &&str| {
            let (name, form) = field.split_once(':').unwrap();
            serde_json::json!({"name": name, "form": form})
        };
        fields.iter().map(field).collect()
    };
    let map = |name, kind, [key, value, entries]: [u32; 3], bytes: u32, [keys, values]: [&[&str]; 2], header: &str| {
        serde_json::json!({
            "name": name, "kind": kind, "key_words": key, "value_words": value, "entries": entries, "bytes": bytes,
            "key": fields(keys), "value": fields(values), "csv_header": header,
        })
    };
    let flows: [&[&str]; 2] = [
        &["key0:u32", "key1:u32", "key2:u32", "key3:u32"],
        &["value0:u32", "value1:u32", "value2:u32", "value3:u32", "value4:u32", "value5:u32"],
    ];
    let header = "key0,key1,key2,key3,value0,value1,value2,value3,value4,value5";
    let wanted = serde_json::json!([
        map("flows", "hash", [4, 6, 700], bytes[0], flows, header),
        map("ports", "array", [1, 1, 65536], bytes[1], [&["index:u32"], &["value0:u32"]], "index,value0"),
        map("sum", "counter", [1, 2, 1], bytes[2], [&["index:u32"], &["sum:u64"]], "index,sum"),
        map("seen", "hash", [1, 0, 5], bytes[3], [&["source:ipv4"], &[]], "source"),
    ]);
    assert_eq!(place.run(&["check", filter, "--json"]).assert_success().parse_json()["maps"], wanted);
    let ran = place.run(&["check", filter]).assert_success();
    let (_, shown) = ran.out.split_once("  maps             ").unwrap_or_else(|| panic!("{}", ran.out));
    let shown: Vec<&str> = shown.lines().map(|line| line.strip_prefix("                   ").unwrap_or(line)).collect();
    let wanted = [
        "flows: hash, keys of 4 words, values of 6 words, 700 entries, 49 216 bytes of memory",
        "  key    key0 (u32), key1 (u32), key2 (u32), key3 (u32)",
        "  value  value0 (u32), value1 (u32), value2 (u32), value3 (u32), value4 (u32), value5 (u32)",
        "  CSV    key0,key1,key2,key3,value0,value1,value2,value3,value4,value5",
        "ports: array, values of 1 word, 65 536 entries, 262 208 bytes of memory",
        "  key    index (u32)",
        "  value  value0 (u32)",
        "  CSV    index,value0",
        "sum: counter, sums of 64 bits, 1 entry, 72 bytes of memory",
        "  key    index (u32)",
        "  value  sum (u64)",
        "  CSV    index,sum",
        "seen: hash, keys of 1 word, values of 0 words, 5 entries, 160 bytes of memory",
        "  key    source (ipv4)",
        "  value  nothing",
        "  CSV    source",
    ];
    assert_eq!(shown, wanted);
    // Unnamed words are listed as a range, named ones each.
    let shown = place.run(&["check", &stock("syn_flood")]).assert_success().out;
    for line in ["value  value0 to value63 (u32)", "CSV    index,value0,…,value63", "value  begun (u32), side (u32)"]
    {
        assert!(shown.lines().any(|it| it.trim_start() == line), "{shown}");
    }
    // The header that is shown is the first line of dumps.
    for (filter, map, key, header) in [
        ("blacklist", "blocked_v6", "prefix (prefix)", "prefix,packets"),
        ("router_v4", "routes", "prefix (prefix)", "prefix,next_hop"),
        ("flow_stats", "missed", "index (u32)", "index,sum"),
        ("syn_flood", "dropped", "group (u32)", "group,packets"),
    ] {
        let shown = place.run(&["check", &stock(filter)]).assert_success().out;
        let (_, map_shown) = shown.split_once(&format!("{map}: ")).unwrap_or_else(|| panic!("{shown}"));
        let lines: Vec<&str> = map_shown.lines().skip(1).map(str::trim_start).collect();
        assert_eq!((lines[0], lines[2]), (&*format!("key    {key}"), &*format!("CSV    {header}")), "{shown}");
        let dump = format!("{map}=-");
        let ran =
            place.run(&["run", &stock(filter), "--read", "synth:packets=1", "--device", "cpu", "--dump-map", &dump]);
        assert_eq!(ran.assert_success().out.lines().next(), Some(header));
    }
    assert_eq!(
        place.run(&["check", &stock("minimal"), "--json"]).assert_success().parse_json()["maps"],
        serde_json::json!([])
    );
    assert!(place.run(&["check", &stock("minimal")]).assert_success().out.contains("  maps             no\n"));
}

#[test]
fn the_header_is_printed() {
    let place = Place::new();
    let header = place.run(&["header"]).assert_success().out;
    for part in ["#ifndef PORTCULLIS_H", "uint load_be16(", "#define XDP_PASS 2u"] {
        assert!(header.contains(part), "{part}");
    }
}
