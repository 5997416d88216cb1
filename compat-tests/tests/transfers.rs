//! Host–device transfers: with every transfer method, stock filters give their models' results on
//! every device, or the device refuses the method with a reason. The numbers of bytes and transfers
//! that sessions report match those computed by hand.

use std::sync::Arc;
use std::time::Instant;

use portcullis_compat_tests::corpora::{self, Corpus};
use portcullis_compat_tests::models::{self, Outcome};
use portcullis_compat_tests::texts::in_wgsl;
use portcullis_compat_tests::{devices, layouts, stock};
use portcullis_core::device::{
    Clock, Device, DeviceError, DeviceKind, Dispatch, InPlaceReads, LoadOptions, MeasureOptions, Session, Transfer,
    TransferCounts,
};
use portcullis_core::packet::{Batch, ResizeRoom};
use portcullis_core::program::Program;

/// Packets per batch: not a power of two, so that batches end within a tile of rows.
const BATCH: usize = 1003;

/// Runs `check` on every device, and on OpenCL and wgpu devices also with host memory treated as
/// separate.
fn on_each_with_discrete_variants(suite: &str, mut check: impl FnMut(&Arc<dyn Device>)) {
    devices::on_each(suite, |device| check(device));
    for device in portcullis::backend::opencl::probe().unwrap_or_default() {
        check(&(Arc::new(device.as_discrete()) as Arc<dyn Device>));
    }
    for device in portcullis::backend::wgpu::probe().unwrap_or_default() {
        check(&(Arc::new(device.as_discrete()) as Arc<dyn Device>));
    }
}

/// Loads a filter with a transfer method. Returns `None` if the device refuses the method, after
/// checking the reason.
fn load(device: &Arc<dyn Device>, program: &Arc<Program>, transfer: Transfer) -> Option<Box<dyn Session>> {
    let options =
        LoadOptions::default().with_transfer(transfer).with_measure(MeasureOptions::default().with_record_stages(true));
    match device.load(program, &options) {
        Ok(session) => Some(session),
        Err(DeviceError::Unsupported { reason, .. }) if transfer != Transfer::Auto => {
            let asked = format!("the transfer `{transfer}` was requested, but ");
            assert!(reason.starts_with(&asked) && reason.contains("use `"), "{reason}");
            None
        }
        Err(error) => panic!("{}: {error}", device.info().id),
    }
}

/// Runs a batch. Returns `None` if it is refused because its packets are not where the transfer
/// method needs them.
fn run(session: &mut dyn Session, batch: Batch, transfer: Transfer) -> Option<Vec<Outcome>> {
    match session.run(batch) {
        Ok(done) => Some(models::outcomes(&done).collect()),
        Err(DeviceError::Refused(reason)) if transfer == Transfer::Imported => {
            assert!(reason.starts_with("the transfer `imported` was requested, but "), "{reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Whether the session reports that every batch used the transfer method.
fn used_transfer(taken: TransferCounts, transfer: Transfer, batches: u64) -> bool {
    let by = |count: u64| count + taken.unseen == batches;
    match transfer {
        Transfer::Auto => true,
        Transfer::Whole => by(taken.whole),
        // If a filter may read all of a packet, the whole packet is transferred.
        Transfer::Window => by(taken.window + taken.whole),
        Transfer::Imported => by(taken.imported + taken.resident),
    }
}

fn check(device: &Arc<dyn Device>, corpus: &Corpus) {
    let mut had = [0; 4];
    for (name, program) in stock::in_wgsl(stock::FILTERS) {
        let want: Vec<Outcome> = corpus.packets.iter().map(|packet| models::outcome(name, packet)).collect();
        for (transfer, had) in Transfer::ALL.into_iter().zip(&mut had) {
            let Some(mut session) = load(device, &program, transfer) else { continue };
            let mut count = 0;
            let mut compare = |at: usize, batch: Batch| {
                let size = batch.len();
                let Some(got) = run(&mut *session, batch, transfer) else { return };
                count += 1;
                for (index, (got, want)) in got.iter().zip(&want[at..at + size]).enumerate() {
                    let (id, packet) = (&device.info().id, &corpus.packets[at + index]);
                    assert!(
                        got == want,
                        "{name} on {id}, {transfer}: packet {index} of {size}, {packet:02x?}\n  got  {got:02x?}\n  want {want:02x?}"
                    );
                }
            };
            let rooms: &[ResizeRoom] = if program.facts().changes_length {
                &[ResizeRoom::Both]
            } else {
                &[ResizeRoom::None, ResizeRoom::Both]
            };
            for &room in rooms {
                let (batches, guarded) = layouts::batches(&corpus.packets, BATCH, room);
                for (number, batch) in batches.into_iter().enumerate() {
                    compare(number * BATCH, batch);
                }
                assert_eq!(
                    guarded.stray_write(),
                    None,
                    "{name}, {transfer}: a byte that belongs to no packet was written to"
                );
            }
            // Each packet is in a frame of its own, with unused frames between.
            for (number, packets) in corpus.packets.chunks(BATCH).enumerate().take(2) {
                compare(number * BATCH, Batch::in_frames(packets).unwrap());
            }
            *had += usize::from(count > 0);
            let stages = session.stages().expect("measurements were requested");
            assert!(
                stages.batches == count && used_transfer(stages.transfers, transfer, count),
                "{name}, {transfer}: {stages:?}"
            );
        }
    }
    println!("{}: filters by transfer {:?}: {had:?}", device.info().id, Transfer::ALL.map(Transfer::name));
    let [auto, whole, window, imported] = had;
    assert_eq!(auto, stock::FILTERS.len());
    if needs_transfers(device) {
        assert_eq!((whole, window), (auto, auto), "packets can be copied, whole or in part");
    } else {
        assert_eq!((whole, window, imported), (0, 0, auto), "packets are filtered in place");
    }
}

/// Whether the device's dispatch method moves packets through slots that kernels read: packets in
/// host memory that the device does not reach are gathered, anew for each run, and only the host's
/// clock times stages.
fn has_slots(device: &Arc<dyn Device>) -> bool {
    matches!(device.info().dispatch[0], Dispatch::Persistent | Dispatch::WaitValue | Dispatch::Graph)
}

/// Whether packets are transferred to the device, unlike a CPU device, which filters them in place.
fn needs_transfers(device: &Arc<dyn Device>) -> bool {
    ["wgpu", "opencl", "cuda"].iter().any(|backend| device.info().id.starts_with(backend))
}

#[test]
fn every_transfer_gives_the_models_verdicts_and_packets() {
    // The generator's packets, including long ones, and packets with contradictory headers.
    let mut corpus = corpora::hostile();
    corpus.packets.truncate(2500);
    corpus.packets.extend(corpora::synthetic().packets.into_iter().rev().take(700));
    on_each_with_discrete_variants("transfers, stock filters", |device| check(device, &corpus));
}

/// 100 packets of 1,500 bytes, each with 128 bytes of room on both sides. The filter reads 24 bytes
/// of each and writes none.
#[test]
fn transferred_bytes_are_counted() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { return select(XDP_DROP, XDP_PASS, load_be32(pkt, 20u) == 7u); }";
    let program = in_wgsl("reads_24", text);
    let packets = vec![vec![0; 1500]; 100];
    // Bytes from the first packet's start to the last packet's end.
    let extent = 99 * (128 + 1500 + 128) + 1500;
    on_each_with_discrete_variants("transfers, counts", |device| {
        if device.info().kind == DeviceKind::Reference {
            return;
        }
        let mut had = Vec::new();
        let whole = if has_slots(device) { 100 * 1500 } else { extent };
        for (transfer, bytes) in [(Transfer::Whole, whole), (Transfer::Window, 2_400), (Transfer::Imported, 0)] {
            let Some(mut session) = load(device, &program, transfer) else { continue };
            let began = Instant::now();
            for _ in 0..3 {
                assert!(run(&mut *session, Batch::from_packets(&packets).unwrap(), transfer).is_some());
            }
            let stages = session.stages().unwrap();
            let id = &device.info().id;
            assert_eq!((stages.batches, stages.packets), (3, 300), "{id} {transfer}");
            // Descriptors, 8 bytes a packet, are transferred as well unless the device reads them
            // in place.
            let moved = [3 * bytes, 3 * (bytes + 800)];
            assert!(moved.contains(&stages.bytes_to_device), "{id} {transfer}: {stages:?}");
            // Verdicts are bytes, or words if the device writes them to host memory, or are not
            // transferred at all. In slots, four verdicts have 8 bytes.
            let in_place = device.info().in_place_reads() == InPlaceReads::Always;
            let returned: &[u64] = match in_place {
                true => &[0, 300, 1200],
                false if has_slots(device) => &[600],
                false => &[300],
            };
            assert!(returned.contains(&stages.bytes_to_host), "{id} {transfer}: {stages:?}");
            let own = stages.upload + stages.kernel + stages.download;
            // All CUDA drivers have device clocks, as have software devices of the other backends.
            if has_slots(device) {
                assert_eq!(stages.clock, Clock::Host, "{id} {transfer}");
            } else if id.starts_with("cuda") || needs_transfers(device) && device.info().kind == DeviceKind::Software {
                assert_eq!(stages.clock, Clock::Device, "{id} {transfer}");
                // Each batch was submitted after the previous one had completed, so their times
                // cannot overlap.
                assert!(own <= began.elapsed(), "{id} {transfer}: {stages:?}");
            }
            assert!(stages.kernel.as_nanos() > 0, "{id} {transfer}: {stages:?}");
            assert_eq!(stages.gather.is_zero(), bytes == 0, "{id} {transfer}: {stages:?}");
            had.push(transfer);
        }
        if needs_transfers(device) {
            assert!(had.contains(&Transfer::Whole) && had.contains(&Transfer::Window), "{had:?}");
        }
        let mut without_measurements = device.load(&program, &LoadOptions::default()).unwrap();
        without_measurements.run(Batch::from_packets(&packets).unwrap()).unwrap();
        assert_eq!(without_measurements.stages(), None, "measurements were not requested");
    });
}

/// Loads a filter for packets resident in device memory. Returns `None` if the filter or the device
/// does not support them, after checking the reason.
fn load_resident(device: &Arc<dyn Device>, name: &str, program: &Arc<Program>) -> Option<Box<dyn Session>> {
    match device.load(
        program,
        &LoadOptions::default().with_measure(MeasureOptions::default().with_resident(true).with_record_stages(true)),
    ) {
        Ok(session) => Some(session),
        Err(DeviceError::Unsupported { reason, .. }) => {
            let facts = program.facts();
            let changes = facts.writes.max_bytes() > 0 || facts.changes_length;
            let unseen = facts.reads.max_bytes() == 0;
            let depends_on_more = changes || facts.uses_metadata || unseen || !program.maps().is_empty();
            assert!(depends_on_more || has_slots(device), "{name}: {reason}");
            assert!(reason.starts_with("packets cannot stay resident"), "{reason}");
            None
        }
        Err(error) => panic!("{}: {error}", device.info().id),
    }
}

#[test]
fn resident_packets_are_filtered_on_the_device() {
    let corpus = corpora::hostile();
    on_each_with_discrete_variants("packets that stay at the device", |device| {
        let mut had = 0;
        for (name, program) in stock::in_wgsl(stock::FILTERS).filter(|_| needs_transfers(device)) {
            let Some(mut session) = load_resident(device, name, &program) else { continue };
            had += 1;
            let want: Vec<Outcome> = corpus.packets.iter().map(|packet| models::outcome(name, packet)).collect();
            let mut batches: Vec<Batch> =
                corpus.packets.chunks(BATCH).map(|packets| Batch::from_packets(packets).unwrap()).collect();
            let mut brought = 0;
            for time in 0..3 {
                for (batch, want) in batches.iter_mut().zip(want.chunks(BATCH)) {
                    let done =
                        session.run(std::mem::replace(batch, Batch::from_packets(&[[0; 0]; 0]).unwrap())).unwrap();
                    let got: Vec<_> = done.verdicts.iter().collect();
                    let want: Vec<_> = want.iter().map(|outcome| outcome.verdict).collect();
                    assert_eq!(got, want, "{name} on {}, time {time}", device.info().id);
                    *batch = done.batch;
                    let stages = session.stages().expect("measurements were requested");
                    if time == 0 {
                        assert!(stages.bytes_to_device > brought, "{name}: {stages:?}");
                        brought = stages.bytes_to_device;
                    }
                    // Later runs transfer no packets.
                    assert_eq!(stages.bytes_to_device, brought, "{name}, time {time}");
                    // The device must not read these host bytes again.
                    (0..batch.len()).for_each(|index| batch.packet_mut(index).fill(0xa5));
                }
            }
        }
        println!("{}: {had} filters support resident packets", device.info().id);
        if has_slots(device) {
            assert_eq!(had, 0, "packets are gathered for each run");
        } else {
            assert!(had > 3 || !needs_transfers(device), "only {had} of the stock filters support resident packets");
        }
    });
}
