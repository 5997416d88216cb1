//! Runs every stock filter over captures that DPDK ports receive and send. Packets, their order,
//! verdicts and maps must equal those of the reference interpreter on the same capture.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::program::{Place, packets, sample};
use crate::running::sum;
use crate::{pcap_port, run};

/// A stock filter with the initial contents of its maps.
struct Case {
    filter: &'static str,
    /// Verdicts that must occur, so that the test proves something.
    verdicts: &'static [&'static str],
    set: &'static [&'static str],
    maps: Vec<(&'static str, String)>,
    /// Maps to compare, without these columns: times, which come from the capture in one run and
    /// from the clock in the other.
    dumps: &'static [(&'static str, &'static [&'static str])],
}

/// A filter without maps.
const fn plain(filter: &'static str, verdicts: &'static [&'static str]) -> Case {
    Case { filter, verdicts, set: &[], maps: Vec::new(), dumps: &[] }
}

/// Returns all cases. No result may depend on the duration of a run, so rates are 0 and windows are
/// days.
fn cases() -> Vec<Case> {
    const HOPS: &str = "port,destination,source\n";
    let hops = |first: &str| {
        let rows = (0..3).map(|hop| format!("{hop},{hop},02:00:00:00:00:0{hop},02:00:00:00:01:0{hop}\n"));
        format!("{first},{HOPS}{}", rows.collect::<String>())
    };
    vec![
        plain("complex_filter", &["drop", "pass"]),
        plain("dscp_mark", &["pass"]),
        plain("hash_lb", &["pass", "redirect"]),
        plain("http_only", &["drop", "pass"]),
        plain("mac_swap", &["drop", "tx"]),
        plain("minimal", &["pass"]),
        plain("port_filter", &["drop", "pass"]),
        plain("sampler", &["drop", "pass"]),
        plain("simple_filter", &["drop", "pass"]),
        plain("vlan_pop", &["pass"]),
        Case {
            maps: vec![
                ("blocked_v4", "prefix,packets\n10.0.0.0/8,0\n192.168.0.1/32,0\n".into()),
                ("blocked_v6", "prefix,packets\n2001:db8::/36,7\n".into()),
            ],
            dumps: &[("blocked_v4", &[]), ("blocked_v6", &[])],
            ..plain("blacklist", &["drop", "pass"])
        },
        Case { dumps: &[("connections", &["last"])], ..plain("conntrack_fw", &["drop", "pass"]) },
        Case {
            dumps: &[("claims", &[]), ("symbols", &[]), ("packets", &[]), ("events", &[])],
            ..plain("ecpri_reorder", &["drop", "pass"])
        },
        Case { dumps: &[("flows", &["first", "last"]), ("missed", &[])], ..plain("flow_stats", &["pass"]) },
        Case {
            maps: vec![("tunnels", "teid,slice\n2030064719,0\n1016066661,1\n3193315868,2\n2550180698,0\n355055075,1\n2141159902,2\n".into()), ("slices", hops("slice"))],
            dumps: &[("tunnels", &[]), ("slices", &[])],
            ..plain("gtpu_decap", &["pass", "redirect"])
        },
        Case {
            maps: vec![
                ("vips", "vip\n192.168.0.1\n203.0.113.80\n".into()),
                (
                    "table",
                    "place,backend\n".to_owned() + &(0..65_537).map(|at| format!("{at},{}\n", at % 2 + 1)).collect::<String>(),
                ),
                (
                    "backends",
                    "backend,healthy,address,mac,port\n1,1,10.9.0.1,02:00:00:00:00:01,1\n2,1,10.9.0.2,02:00:00:00:00:02,2\n".into(),
                ),
            ],
            dumps: &[("flows", &[])],
            ..plain("maglev_lb", &["pass", "redirect"])
        },
        Case {
            maps: vec![("profiles", "srcaddr,cir,cbs,pir,pbs\n::,0,500,0,1000\n".into())],
            dumps: &[("meters", &["last"])],
            ..plain("policer", &["drop", "pass"])
        },
        Case {
            maps: vec![
                ("routes", "prefix,next_hop\n0.0.0.0/1,0\n192.0.0.0/3,1\n192.168.0.0/16,2\n".into()),
                ("next_hops", hops("next_hop")),
            ],
            ..plain("router_v4", &["pass", "redirect"])
        },
        Case {
            maps: vec![
                ("routes", "prefix,next_hop\n2000::/3,0\n2001:db8::/36,2\n".into()),
                ("next_hops", hops("next_hop")),
            ],
            ..plain("router_v6", &["pass", "redirect"])
        },
        Case {
            set: &["window=1000000000", "limit=2"],
            dumps: &[("sketches", &[]), ("windows", &["begun"]), ("dropped", &[])],
            ..plain("syn_flood", &["drop", "pass"])
        },
        Case {
            maps: vec![("limits", "srcaddr,rate,burst\n::,0,3\n".into())],
            dumps: &[("buckets", &["last"])],
            ..plain("token_bucket", &["drop", "pass"])
        },
    ]
}

/// Builds a capture whose packets have one timestamp and are not truncated, as DPDK delivers whole
/// packets.
fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1] {
        file.extend(word.to_le_bytes());
    }
    for packet in packets {
        for word in [1_700_000_000, 0, packet.len() as u32, packet.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

/// Returns the sample, generated longer packets, messages of a fronthaul, and some packets that
/// exceed one buffer.
fn traffic() -> Vec<u8> {
    let place = Place::new();
    let mut all = packets(&std::fs::read(sample()).unwrap());
    let long: Vec<Vec<u8>> =
        all.iter().step_by(500).map(|packet| packet.repeat(9000_usize.div_ceil(packet.len()))).collect();
    for spec in ["packets=2000,seed=7,size=64..1500,flows=200", "packets=500,seed=8,size=64..1500,mix=ecpri"] {
        all.extend(place.synthetic(spec));
    }
    all.extend(long);
    capture(&all)
}

/// Result of running a filter on the capture.
#[derive(PartialEq)]
struct FilterResult {
    verdicts: Value,
    /// Packets by destination.
    packets: Vec<(String, Vec<Vec<u8>>)>,
    maps: Vec<(String, Vec<String>)>,
}

impl Case {
    fn arguments(&self, place: &Place, filter: &str, dumps: &str) -> Vec<String> {
        let mut arguments = Vec::new();
        for set in self.set {
            // Parameters are upper case in OpenCL C.
            let set = if filter.ends_with(".cl") { set.to_uppercase() } else { (*set).to_owned() };
            arguments.extend(["--set".to_owned(), set]);
        }
        for (map, text) in &self.maps {
            let file = format!("{map}-in.csv");
            place.file(&file, text);
            arguments.extend(["--map".to_owned(), format!("{map}={file}")]);
        }
        for (map, _) in self.dumps {
            arguments.extend(["--dump-map".to_owned(), format!("{map}={map}-{dumps}.csv")]);
        }
        arguments
    }

    /// Returns the dumped maps without the columns of times, sorted, as the order of rows is
    /// unspecified.
    fn maps(&self, place: &Place, dumps: &str) -> Vec<(String, Vec<String>)> {
        let read = |(map, without): &(&str, &[&str])| {
            let text = place.text(&format!("{map}-{dumps}.csv"));
            let mut rows = text.lines().map(|row| row.split(',').collect::<Vec<_>>());
            let columns: Vec<bool> = rows.next().unwrap().iter().map(|name| !without.contains(name)).collect();
            assert_eq!(columns.iter().filter(|kept| !**kept).count(), without.len(), "{map} has {without:?}");
            let keep = |row: Vec<&str>| {
                let cells = row.iter().zip(&columns).filter(|(_, kept)| **kept).map(|(cell, _)| *cell);
                cells.collect::<Vec<_>>().join(",")
            };
            let mut rows: Vec<String> = rows.map(keep).collect();
            rows.sort();
            ((*map).to_owned(), rows)
        };
        self.dumps.iter().map(read).collect()
    }

    fn by_the_interpreter(&self, place: &Place, filter: &str) -> (FilterResult, Vec<String>) {
        let more = self.arguments(place, filter, "read");
        let mut arguments = vec!["run", filter, "--read", "in.pcap", "--device", "interp", "--json"];
        arguments.extend(["--write", "pass.pcap", "--write-tx", "tx.pcap", "--write-redirect", "out"]);
        arguments.extend(more.iter().map(String::as_str));
        let json = place.run(&arguments).assert_success().parse_json();
        let targets: Vec<String> = json["redirect_targets"].as_object().unwrap().keys().cloned().collect();
        let mut sent = vec![
            ("pass".to_owned(), packets(&place.read("pass.pcap"))),
            ("tx".to_owned(), packets(&place.read("tx.pcap"))),
        ];
        sent.extend(targets.iter().map(|to| (to.clone(), packets(&place.read(&format!("out/{to}.pcap"))))));
        (FilterResult { verdicts: json["verdicts"].clone(), packets: sent, maps: self.maps(place, "read") }, targets)
    }

    fn by_dpdk(&self, place: &Place, filter: &str, targets: &[String]) -> FilterResult {
        let mut more = self.arguments(place, filter, "dpdk");
        for (number, target) in targets.iter().enumerate() {
            let port = pcap_port(number as u32 + 2, &format!("tx_pcap=to-{target}.pcap"));
            more.extend(["--redirect".to_owned(), format!("{target}={port}")]);
        }
        more.extend(["--pass-to".to_owned(), pcap_port(1, "tx_pcap=to-pass.pcap")]);
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let ran = run(place, filter, &pcap_port(0, "rx_pcap=in.pcap,tx_pcap=to-tx.pcap"), &more).assert_success();
        let json = ran.parse_json();
        assert_eq!(sum(&json["lost"]), json["verdicts"]["aborted"].as_u64().unwrap(), "{json}");
        let to = ["pass", "tx"].into_iter().chain(targets.iter().map(String::as_str));
        let sent = to.map(|to| (to.to_owned(), packets(&place.read(&format!("to-{to}.pcap")))));
        FilterResult { verdicts: json["verdicts"].clone(), packets: sent.collect(), maps: self.maps(place, "dpdk") }
    }

    fn check(&self, language: &str, traffic: &[u8]) {
        let place = Place::new();
        place.file("in.pcap", traffic);
        let name = format!("{}.{language}", self.filter);
        let filter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders").join(&name);
        let filter = filter.to_str().unwrap();
        let (want, targets) = self.by_the_interpreter(&place, filter);
        let is = self.by_dpdk(&place, filter, &targets);
        println!("{name}: {}, redirected to {}", want.verdicts, targets.len());
        for verdict in self.verdicts {
            assert!(want.verdicts[verdict].as_u64().unwrap() > 0, "{name} has no {verdict}: {}", want.verdicts);
        }
        assert_eq!(is.verdicts, want.verdicts, "{name}");
        for ((to, is), (_, want)) in is.packets.iter().zip(&want.packets) {
            assert_eq!(is.len(), want.len(), "{name}: packets to {to}");
            let differs = is.iter().zip(want).position(|(is, want)| is != want);
            assert_eq!(differs, None, "{name}: the first packet to {to} that differs");
        }
        for ((map, is), (_, want)) in is.maps.iter().zip(&want.maps) {
            assert!(!want.is_empty(), "{name}: {map} is empty");
            assert!(is == want, "{name}: {map} differs");
        }
        assert!(is == want, "{name}");
    }
}

/// Runs all cases, several at a time, as runs mostly wait for their idle time.
fn check_all(language: &str) {
    const PARALLEL_RUNS: usize = 4;
    let (cases, traffic, next) = (cases(), traffic(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL_RUNS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    case.check(language, &traffic);
                }
            });
        }
    });
}

#[test]
fn stock_filters_in_wgsl_match_the_interpreter() {
    check_all("wgsl");
}

#[test]
fn stock_filters_in_opencl_c_match_the_interpreter() {
    check_all("cl");
}

#[test]
fn every_stock_filter_has_a_case() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut shaders: Vec<String> = names.filter_map(|name| name.strip_suffix(".wgsl").map(str::to_owned)).collect();
    shaders.sort();
    let mut tested: Vec<String> = cases().iter().map(|case| case.filter.to_owned()).collect();
    tested.sort();
    assert_eq!(tested, shaders);
}
