//! What the README shows is what happens.

use crate::support::{Place, sample};

#[test]
fn the_readmes_filter_has_the_readmes_output() {
    let readme = include_str!("../../README.md");
    let indented: String = readme.lines().filter_map(|l| l.strip_prefix("    ")).map(|l| format!("{l}\n")).collect();
    let start = indented.find("override server").unwrap();
    let end = indented.find("    $ portcullis run").or(indented.find("$ portcullis run")).unwrap();
    let place = Place::new();
    place.file("dns.wgsl", &indented[start..end]);
    let ran =
        place.run(&["run", "dns.wgsl", "--read", &sample(), "--write", "rest.pcap", "--write-redirect", "out"]).done();
    // Up to the times, which differ.
    let counts: Vec<_> = ran.out.lines().skip(1).take_while(|line| !line.starts_with("time")).collect();
    assert!(counts.len() >= 8, "{}", ran.out);
    for line in counts {
        assert!(indented.lines().any(|shown| shown == line), "not in the README: {line}");
    }
    assert!(place.has("out/7.pcap"));
}
