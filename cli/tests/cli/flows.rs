//! Filters with flows: their results do not depend on device, batch size or threads.

use crate::support::{Place, has_device, sample, stock};

#[test]
fn a_firewall_gives_the_same_results_on_every_device_and_batch_size() {
    let place = Place::new();
    let run = |filter: &str, options: &[&str]| {
        let (capture, filter) = (sample(), stock(filter));
        let mut args = vec!["run", &filter, "--read", &capture, "--dump-map", "connections=c.csv", "--write", "w.pcap"];
        args.extend(options);
        place.run(&args).assert_success();
        (place.read("c.csv"), place.read("w.pcap"))
    };
    let wanted = run("conntrack_fw", &["--device", "interp"]);
    let rows = wanted.0.iter().filter(|byte| **byte == b'\n').count();
    assert!(rows > 20, "{rows} lines, too few connections");
    for device in ["cpu", "wgpu", "opencl"].into_iter().filter(|device| has_device(device)) {
        for options in [&["--batch", "1000"][..], &["--batch", "37"], &["--threads", "1"], &[]] {
            let options = [&["--device", device][..], options].concat();
            assert!(run("conntrack_fw", &options) == wanted, "{options:?}");
        }
    }
}

#[test]
fn check_reports_flows() {
    let place = Place::new();
    let checked = place.run(&["check", &stock("conntrack_fw")]).assert_success();
    assert!(checked.out.contains("in order, by `xdp_flow`"), "{}", checked.out);
    let json = |filter: &str| place.run(&["check", "--json", &stock(filter)]).assert_success().parse_json();
    let has_flows = |filter: &str| json(filter).to_string().contains(r#""has_flows":true"#);
    assert!(has_flows("conntrack_fw") && !has_flows("minimal"));
}
