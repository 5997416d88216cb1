//! Packets from port to port.

use crate::support::{PASS, Place, packets, sample};
use crate::{pcap_port, run};

/// A ring gives back what is sent into it.
#[test]
fn what_comes_from_where_packets_pass_to_goes_out_of_the_first_port() {
    let place = Place::new();
    place.file("f.wgsl", PASS);
    let first = pcap_port(0, &format!("rx_pcap={},tx_pcap=out.pcap", sample()));
    let ran = run(&place, "f.wgsl", &first, &["--pass-to", "net_ring0", "--batch", "64"]).done();
    let (json, want) = (ran.json(), packets(&std::fs::read(sample()).unwrap()));
    assert_eq!(json["carried_out"]["pass"], want.len(), "{json}");
    assert_eq!(json["from_stack"], want.len(), "{json}");
    assert_eq!(json["verdicts"]["tx"], 0, "they are past the filter");
    assert_eq!(packets(&place.read("out.pcap")), want);
    assert_eq!(json["frames"]["missing"], 0, "{json}");
}
