//! Messages for wrong arguments.

use crate::support::{Place, numbered, run};

#[test]
fn invalid_arguments_are_refused() {
    let port = ["--dpdk", "net_null0"];
    for (arguments, part) in [
        (&["--burst", "0"][..], "8192"),
        (&["--burst", "8193"], "8192"),
        (&["--burst", "64,x"], "x"),
        (&["--workload", "kernel"], "none, cpu, inline, pipelined, persistent, waitvalue, graph or all"),
        (&["--pipelines", "0"], "pipelines"),
        (&["--flush", "5"], "50us"),
        (&["--frames", "100"], "power of two"),
        (&["--pin", "x"], "processors"),
        (&["--pin", "1000"], "no processor 1000"),
        (&["--dpdk", "net_null0,size=60"], "given twice"),
        (&["--dpdk", "eth0"], "net_pcap0,rx_pcap"),
        (&["--eal", "\"-l"], "quotation mark"),
        (&["--redirect", "1=net_null1"], "--filter"),
        (&["--overload", "quit"], "drop"),
        (&["--device", "gpu"], "cuda"),
        (&["--warm-up", "x"], "--warm-up"),
    ] {
        run(port.iter().chain(arguments)).assert_failure(2, &[part]);
    }
    run::<&str>([]).assert_failure(2, &["--dpdk"]);
}

#[test]
fn an_unavailable_mode_is_an_error_if_no_other_was_requested() {
    for (arguments, part) in [
        (&["--dpdk", "net_null0", "--device", "cpu", "--workload", "graph"][..], "no dispatch method `graph`"),
        (&["--dpdk", "net_nothing0", "--workload", "none"], "librte-net-nothing"),
        (&["--dpdk", "net_null0", "--filter", "/nowhere/f.wgsl"], "/nowhere/f.wgsl"),
    ] {
        run(arguments).assert_failure(1, &[part]);
    }
    // If all of several modes are unavailable, the table gives the reasons.
    let ran = run(["--dpdk", "net_null0", "--device", "cpu", "--workload", "graph,persistent"]);
    assert_eq!((ran.code, ran.out.matches("no dispatch method").count()), (1, 2), "{ran:?}");
}

#[test]
fn a_filter_with_maps_takes_one_pipeline() {
    let place = Place::new();
    let text = "//! map seen: counter entries=1\nfn xdp_filter(pkt: u32) -> u32 { seen_add(0u, 1u); return XDP_TX; }";
    let filter = place.path(place.file("count.wgsl", text));
    place.capture("in.pcap", &numbered(50));
    let (port, filter) = (place.port(0, "in.pcap", "out.pcap"), filter.to_str().unwrap());
    let arguments = ["--dpdk", &port, "--device", "cpu", "--filter", filter, "--packets", "50"];
    run(arguments.iter().chain(&["--pipelines", "2"])).assert_failure(2, &["has maps"]);
    let ran = run(arguments);
    assert_eq!((ran.code, place.packets("out.pcap").len()), (0, 50), "{ran:?}");
}
