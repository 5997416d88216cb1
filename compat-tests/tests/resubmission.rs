//! Completed batches can be submitted again, with the results that a new batch of the same packets
//! would give. A batch is refused if the filter changes packet lengths and the room that its
//! packets have left does not suffice.

use std::sync::Arc;

use portcullis_compat_tests::{devices, texts};
use portcullis_core::device::{Device, DeviceError, LoadOptions, Session};
use portcullis_core::packet::{Batch, Verdict};

fn load(device: &Arc<dyn Device>, body: &str) -> Box<dyn Session> {
    let text = format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} }}");
    device.load(&texts::in_wgsl("test.wgsl", &text), &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn check(device: &Arc<dyn Device>) {
    let packets: Vec<Vec<u8>> = (1..6).map(|i| vec![i; 60]).collect();
    let mut shrink =
        load(device, "if adjust_head(pkt, 20) && adjust_tail(pkt, -20) { return XDP_PASS; } return XDP_DROP;");
    let mut grow =
        load(device, "if adjust_head(pkt, -128) && adjust_tail(pkt, 128) { return XDP_PASS; } return XDP_DROP;");
    let mut look = load(device, "return redirect(load_u8(pkt, 130u) + pkt_len(pkt));");

    let done = shrink.run(Batch::from_packets(&packets).unwrap()).unwrap();
    assert!(done.verdicts.iter().all(|verdict| verdict == Verdict::Pass));
    let done = grow.run(done.batch).unwrap();
    assert!(done.verdicts.iter().all(|verdict| verdict == Verdict::Pass));
    let grown: Vec<Vec<u8>> = packets.iter().map(|p| [&[0; 128], &p[..20], &[0; 128]].concat()).collect();
    assert!(done.batch.packets().eq(grown.iter().map(Vec::as_slice)));

    // Another 128 bytes would overlap the next packet's room or start before the arena.
    let refused = grow.submit(done.batch).unwrap_err();
    assert!(matches!(&refused.error, DeviceError::Refused(text) if text.contains("room")), "{}", refused.error);
    assert!(refused.batch.packets().eq(grown.iter().map(Vec::as_slice)));
    // A filter that does not change lengths needs no room.
    let done = look.run(*refused.batch).unwrap();
    let expected = (1..6).map(|i| Verdict::Redirect(i + 276));
    assert!(done.verdicts.iter().eq(expected), "{:?}", done.verdicts);
    // A new batch of the same packets has room again.
    let packets: Vec<&[u8]> = done.batch.packets().collect();
    let done = grow.run(Batch::from_packets(&packets).unwrap()).unwrap();
    assert!(done.verdicts.iter().all(|verdict| verdict == Verdict::Pass));
    assert!(done.batch.packets().all(|packet| packet.len() == 276 + 256));
}

#[test]
fn a_batch_can_be_submitted_again_while_it_has_room() {
    devices::on_each("batches submitted again", check);
}
