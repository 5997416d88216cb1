//! `run --map`: entries of maps read from files.

use crate::support::{PASS, Place, has_device, packets, pcap, pcap_of};

/// A filter that passes packets by source MAC or IPv6 source, and sends them back by IPv4 source to
/// the route's address; it counts each.
const LOOK_UP: &str = "
    //! map stations: hash key=2 value=0 entries=10
    //! map hosts: hash key=4 value=1 entries=10
    //! map routes: hash key=1 value=2 entries=3
    //! map settings: array value=2 entries=3
    //! map counts: counter entries=3
    fn xdp_filter(pkt: u32) -> u32 {
        if stations_find(vec2<u32>(load_be16(pkt, 6u), load_be32(pkt, 8u))) != MAP_NONE {
            counts_add(0u, 1u);
            return XDP_PASS;
        }
        let source = vec4<u32>(load_be32(pkt, 22u), load_be32(pkt, 26u), load_be32(pkt, 30u), load_be32(pkt, 34u));
        let host = hosts_find(source);
        if host != MAP_NONE && hosts_read(host, 0u) == settings_read(1u, 0u) {
            counts_add(1u, 1u);
            return XDP_PASS;
        }
        let route = routes_find(load_be32(pkt, 26u));
        if route == MAP_NONE { return XDP_DROP; }
        counts_add(2u, 1u);
        store_be16(pkt, 0u, routes_read(route, 0u));
        store_be32(pkt, 2u, routes_read(route, 1u));
        return XDP_TX;
    }";

const STATIONS: &str = "# known stations\nmac\n02:00:00:00:00:01\nAA-BB-CC-DD-EE-FF\n";
const HOSTS: &str = r#"[
    {"key": ["2001:db8::7"], "value": [443]},
    {"key": "2001:db8::8", "value": "0x50"}
]"#;
const ROUTES: &str = "address,gateway\n10.0.0.1,02:12:34:56:78:9a\n";

fn packet(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[at..at + bytes.len()].copy_from_slice(bytes);
    packet
}

fn capture() -> Vec<u8> {
    let host = |last| [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let all = [
        packet(6, &[2, 0, 0, 0, 0, 1]),
        packet(6, &[0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]),
        packet(6, &[0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xfe]),
        packet(22, &host(7)),
        packet(22, &host(8)),
        packet(26, &[10, 0, 0, 1]),
        packet(26, &[10, 0, 0, 2]),
    ];
    pcap_of(&all)
}

#[test]
fn entries_are_inserted_before_the_first_packet() {
    let place = Place::new();
    let filter = place.file("f.wgsl", LOOK_UP);
    let capture = place.file("c.pcap", capture());
    place.file("stations.csv", STATIONS);
    place.file("hosts.json", HOSTS);
    place.file("routes.csv", ROUTES);
    place.file("settings.csv", "1,443,0");
    place.file("counts.json", r#"[{"index": 0, "sum": 4294967295}]"#);
    for device in ["cpu", "interp", "wgpu", "opencl"] {
        if !has_device(device) {
            continue;
        }
        let mut args = vec!["run", filter, "--read", capture, "--device", device, "--json", "--write-tx", "tx.pcap"];
        for file in ["stations=stations.csv", "hosts=hosts.json", "routes=routes.csv", "settings=settings.csv"] {
            args.extend(["--map", file]);
        }
        args.extend(["--map", "counts=counts.json", "--batch", "2", "--dump-map", "counts=counts.csv"]);
        let ran = place.run(&args).assert_success();
        let verdicts = &ran.parse_json()["verdicts"];
        assert_eq!([&verdicts["pass"], &verdicts["tx"], &verdicts["drop"]], [3, 1, 3], "{device}");
        let mut sent = packet(26, &[10, 0, 0, 1]);
        sent[..6].copy_from_slice(&[2, 0x12, 0x34, 0x56, 0x78, 0x9a]);
        assert_eq!(packets(&place.read("tx.pcap")), [sent]);
        assert_eq!(place.text("counts.csv"), "index,sum\n0,4294967297\n1,1\n2,1\n");
    }
}

#[test]
fn dumps_can_be_read_and_dumped_again() {
    let place = Place::new();
    let filter = place.file("f.wgsl", LOOK_UP);
    let none = place.file("none.pcap", pcap(&[]));
    place.file("stations.csv", STATIONS);
    place.file("hosts.json", HOSTS);
    place.file("routes.csv", ROUTES);
    place.file("settings.csv", "0,1,2\n2,0xffffffff,0");
    place.file("counts.csv", "1,18446744073709551615");
    let names = ["stations", "hosts", "routes", "settings", "counts"];
    let run = |from: &dyn Fn(&str) -> String, to: &dyn Fn(&str) -> String| {
        let arguments = |option: &str, file: &dyn Fn(&str) -> String| -> Vec<String> {
            names.iter().flat_map(|name| [option.to_owned(), format!("{name}={}", file(name))]).collect()
        };
        let mut args: Vec<String> = ["run", filter, "--read", none].map(String::from).to_vec();
        args.extend(arguments("--map", from));
        args.extend(arguments("--dump-map", to));
        place.run(&args).assert_success();
        names.map(|name| place.text(&to(name)))
    };
    let given = |name: &str| format!("{name}.{}", if name == "hosts" { "json" } else { "csv" });
    let csv = run(&given, &|name| format!("a-{name}.csv"));
    assert_eq!(csv[0], "key0,key1\n512,1\n43707,3437096703\n");
    assert_eq!(csv[1], "key0,key1,key2,key3,value0\n536939960,0,0,7,443\n536939960,0,0,8,80\n");
    assert_eq!(csv[2], "key0,value0,value1\n167772161,530,878082202\n");
    assert_eq!(csv[3], "index,value0,value1\n0,1,2\n1,0,0\n2,4294967295,0\n");
    assert_eq!(csv[4], "index,sum\n0,0\n1,18446744073709551615\n2,0\n");
    let json = run(&|name| format!("a-{name}.csv"), &|name| format!("b-{name}.json"));
    assert_eq!(run(&|name| format!("b-{name}.json"), &|name| format!("c-{name}.csv")), csv);
    assert_eq!(run(&|name| format!("c-{name}.csv"), &|name| format!("d-{name}.json")), json);
}

#[test]
fn later_files_override_earlier_ones_and_the_state() {
    let place = Place::new();
    let filter = place.file("f.wgsl", LOOK_UP);
    let none = place.file("none.pcap", pcap(&[]));
    place.file("a.csv", "10.0.0.1,1,1\n10.0.0.2,1,2\n");
    place.file("b.csv", "10.0.0.2,2,2\n10.0.0.3,2,3\n");
    let run = |args: &[&str]| {
        place.run(&[&["run", filter, "--read", none, "--dump-map", "routes=o.csv"], args].concat()).assert_success();
        place.text("o.csv")
    };
    let rows = |rows: [[u32; 2]; 3]| {
        let rows = rows.iter().zip(167_772_161..).map(|([a, b], address)| format!("{address},{a},{b}\n"));
        "key0,value0,value1\n".to_owned() + &rows.collect::<String>()
    };
    assert_eq!(run(&["--map", "routes=a.csv", "--map", "routes=b.csv"]), rows([[1, 1], [2, 2], [2, 3]]));
    assert_eq!(run(&["--map", "routes=b.csv", "--map", "routes=a.csv"]), rows([[1, 1], [1, 2], [2, 3]]));
    run(&["--state", "s", "--map", "routes=a.csv"]);
    assert_eq!(run(&["--map", "routes=b.csv", "--state", "s"]), rows([[1, 1], [2, 2], [2, 3]]));
    assert_eq!(run(&["--state", "s"]), rows([[1, 1], [2, 2], [2, 3]]), "the state kept the rows");
}

#[test]
fn invalid_rows_are_reported_by_line_before_the_run() {
    let place = Place::new();
    let filter = place.file("f.wgsl", LOOK_UP);
    let capture = place.file("c.pcap", capture());
    let refused = |map: &str, content: &str, wanted: &str| {
        place.file("r.csv", content);
        let ran = place.run(&["run", filter, "--read", capture, "--write", "o.pcap", "--state", "s", "--map", map]);
        assert_eq!(ran.assert_failure(1, &[]).err, format!("error: {wanted}\n"));
        assert_eq!(place.names(), ["c.pcap", "f.wgsl", "r.csv"]);
    };
    let row = "a row is a key of 1 word and a value of 2 words";
    let cell = "expected a number (80, 0x50) or an IPv4 address, a MAC";
    refused(
        "routes=r.csv",
        "10.0.0.1,1,2\n10.0.0.2,1\n",
        &format!("r.csv:2: the row ends after 1 of 2 words of its value; {row}"),
    );
    refused(
        "routes=r.csv",
        "from,to\n10.0.0.1,1,2\n10.0.0.2,02:1:2:3:4:5\n10.0.0.2,y,z\n10.0.0.3,4294967296,z\n",
        &format!(
            "r.csv:3: column 2 (to): `02:1:2:3:4:5` is neither an IPv6 address nor a MAC; {cell}\n\
             r.csv:4: column 2 (to): `y` is neither a number nor an address; {cell}\n\
             r.csv:5: column 2 (to): `4294967296` is more than 32 bits can hold; {cell}"
        ),
    );
    refused("routes=r.csv", "1,1,2\n2,2,2\n1,1,2\n", "r.csv:3: its key is the same as in line 1; keys must be unique");
    refused("settings=r.csv", "3,1,2", "r.csv:1: column 1: the map `settings` has no entry 3: its entries are 0 to 2");
    // Eight slots, of which seven tenths can be used.
    let rows: String = (0..9).map(|n| format!("{n},0,0\n")).collect();
    refused(
        "routes=r.csv",
        &format!("a,b,c\n{rows}"),
        "r.csv:7: there is no room in the map `routes` for this row and those behind it (entries=3)",
    );
    let commas = |line, cell: &str| format!("r.csv:{line}: column 1: `{cell}` is one cell; separate cells by commas");
    refused(
        "routes=r.csv",
        "from;to\n10.0.0.1\t1\t2\n10.0.0.2 1 2\n",
        &[commas(1, "from;to"), commas(2, "10.0.0.1\\t1\\t2"), commas(3, "10.0.0.2 1 2")].join("\n"),
    );
    let json = "this is JSON, but CSV is expected; JSON files must have names that end in .json";
    refused("routes=r.csv", "\n[{\"key\": 1, \"value\": [1, 2]}]", &format!("r.csv:2: column 1: {json}"));
    refused("routes=none.csv", "", "none.csv: No such file or directory (os error 2)");
    refused("routes=f.wgsl/a.csv", "", "f.wgsl/a.csv: Not a directory (os error 20)");
}

/// A file that cannot be meant is not read to its end, as it may have none.
#[cfg(target_os = "linux")]
#[test]
fn oversized_files_are_refused() {
    let place = Place::new();
    let filter = place.file("f.wgsl", LOOK_UP);
    let capture = place.file("c.pcap", capture());
    std::os::unix::fs::symlink("/dev/zero", place.path("zero.json")).unwrap();
    std::fs::File::create(place.path("sparse.csv")).unwrap().set_len(1 << 40).unwrap();
    let why = "larger than all rows of the map `routes` could be (entries=3); is this the right file?";
    for (option, file) in [("--map", "zero.json"), ("--map", "sparse.csv"), ("--watch-map", "sparse.csv")] {
        let ran = place.run(&["run", filter, "--read", capture, option, &format!("routes={file}")]);
        assert_eq!(ran.assert_failure(1, &[]).err, format!("error: {file}: {why}\n"));
    }
}

#[test]
fn wrong_usage_is_refused_before_the_run() {
    let place = Place::new();
    let filter = place.file("f.wgsl", LOOK_UP);
    let none = place.file("none.wgsl", PASS);
    let capture = place.file("c.pcap", capture());
    place.file("r.csv", ROUTES);
    let run = |args: &[&str]| place.run(&[&["run", "--read", capture], args].concat());
    for bad in ["routes", "=r.csv", "routes="] {
        run(&[filter, "--map", bad]).assert_failure(2, &["expected NAME=FILE, for example --map blocked=blocked.csv"]);
    }
    for bad in ["routes=r.txt", "routes=-", "routes=/dev/stdin"] {
        run(&[filter, "--map", bad])
            .assert_failure(2, &["the file name must end in .csv or .json, which selects the format"]);
    }
    let maps = "it has `stations`, `hosts`, `routes`, `settings`, `counts`; did you mean `routes`?";
    let ran = run(&[filter, "--map", "route=r.csv"]);
    assert_eq!(
        ran.assert_failure(2, &[]).err,
        format!("error: --map route=r.csv: the filter has no map `route`; {maps}\n")
    );
    run(&[none, "--map", "a=r.csv"]).assert_failure(2, &["the filter has no map `a`; it has no maps"]);
    run(&[filter, "--map", "routes=r.csv", "--device", "noop"]).assert_failure(2, &["noop runs no filter"]);
    run(&[filter, "--map", "routes=r.csv", "--dump-map", "routes=./r.csv"])
        .assert_failure(2, &["--dump-map routes=./r.csv: this is the input of --map; choose another name"]);
    assert_eq!(place.read("r.csv"), ROUTES.as_bytes());
}
