//! Checks the hand-written filters that benches use as a baseline against the models, so that both
//! sides of a benchmark do the same work.

#[path = "../../benches/hand_written/mod.rs"]
mod hand_written;

use portcullis_compat_tests::{corpora, models};

type Filter = fn(&[u8]) -> u32;

#[test]
fn hand_written_filters_agree_with_the_models() {
    let filters: [(&str, Filter); 4] = [
        ("simple_filter", |p| u32::from(hand_written::simple_filter(p))),
        ("port_filter", |p| u32::from(hand_written::port_filter(p))),
        ("http_only", |p| u32::from(hand_written::http_only(p))),
        ("hash_lb", hand_written::hash_lb),
    ];
    for packet in corpora::hostile().packets {
        for (name, filter) in filters {
            let want = models::outcome(name, &packet).verdict.to_return();
            assert_eq!(filter(&packet), want, "{name}: {packet:02x?}");
        }
    }
}
