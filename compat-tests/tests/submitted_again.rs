//! A batch that comes back is a batch to submit: what a filter makes of its packets is what it
//! would make of them laid out anew. One whose packets have used up some of their room is refused
//! where that could not be.

use std::sync::Arc;

use portcullis_compat_tests::devices;
use portcullis_core::device::{Device, DeviceError, LoadOptions, Session};
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::{Batch, Verdict};
use portcullis_core::program::ProgramOptions;
use portcullis_wgsl as wgsl;

fn load(device: &Arc<dyn Device>, body: &str) -> Box<dyn Session> {
    let text = format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} }}");
    let program = wgsl::compile(&Source::new("test.wgsl", text), &ProgramOptions::default());
    let program = program.unwrap_or_else(|e| panic!("{}", e.render()));
    device.load(&Arc::new(program), &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"))
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

    // Another 128 bytes would lie in the next packet's room, or before the arena.
    let refused = grow.submit(done.batch).unwrap_err();
    assert!(matches!(&refused.error, DeviceError::Refused(text) if text.contains("room")), "{}", refused.error);
    assert!(refused.batch.packets().eq(grown.iter().map(Vec::as_slice)));
    // A filter that leaves the ends where they are wants no room.
    let done = look.run(*refused.batch).unwrap();
    let expected = (1..6).map(|i| Verdict::Redirect(i + 276));
    assert!(done.verdicts.iter().eq(expected), "{:?}", done.verdicts);
    // Laid out anew they have room again.
    let packets: Vec<&[u8]> = done.batch.packets().collect();
    let done = grow.run(Batch::from_packets(&packets).unwrap()).unwrap();
    assert!(done.verdicts.iter().all(|verdict| verdict == Verdict::Pass));
    assert!(done.batch.packets().all(|packet| packet.len() == 276 + 256));
}

#[test]
fn a_batch_can_be_submitted_again_while_it_has_room() {
    devices::on_each("batches submitted again", check);
}
