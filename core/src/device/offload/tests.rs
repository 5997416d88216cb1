//! The shared session over a launcher that works in host memory and can be told to fail.

use std::sync::Mutex;

use super::launcher::PARTS;
use super::*;
use crate::device::chunk::{ChunkLimits, OVERREAD_BYTES};
use crate::device::noop::NoopDevice;
use crate::device::transfer_planner::{BatchMemory, MemoryReach};
use crate::device::{Device, Dispatch, FlowSession, Imported, Session, WithFallback};
use crate::diagnostics::Source;
use crate::interp::InterpDevice;
use crate::packet::Span;
use crate::packet::gather::StorePolicy;
use crate::program::ProgramOptions;
use crate::testing as wgsl;

/// What was asked of the launcher, in order, and when it is to fail.
#[derive(Default)]
struct Script {
    calls: Vec<String>,
    /// Name of the call that fails.
    fails: Option<&'static str>,
    /// Whether launches never end.
    hangs: bool,
    /// Used by uploads.
    cancels: Option<CancelToken>,
    kept: usize,
    /// The device's own memory, where it has any.
    memory: Option<Vec<u8>>,
}

/// A device whose kernel gives a packet's first byte as the verdict, adds one to it, and, where it moves ends, has the
/// packet end a byte earlier.
struct Host {
    script: Arc<Mutex<Script>>,
    layout: PacketLayout,
    packets: usize,
    tickets: usize,
}

#[derive(Default)]
struct Buffers {
    packets: Vec<u8>,
    actions: Vec<u8>,
    ends: Vec<u8>,
    lent: bool,
}

impl Host {
    fn say(&self, call: impl Into<String>) -> Result<(), DeviceError> {
        let mut script = self.script.lock().unwrap();
        let call = call.into();
        let fails = script.fails.is_some_and(|name| call.starts_with(name));
        script.calls.push(call);
        if fails { Err(DeviceError::Failed { device: "host".into(), reason: "as told".into() }) } else { Ok(()) }
    }
}

impl Launcher for Host {
    type Buffers = Buffers;
    type Import = ();
    type Ticket = usize;

    fn id(&self) -> &str {
        "host"
    }

    fn can_reach(&self, span: &Span) -> bool {
        span.is_on_host() || self.script.lock().unwrap().memory.is_some()
    }

    fn import_span(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::Copied)
    }

    fn batch_memory(&mut self, _: &Batch, _: bool) -> BatchMemory<()> {
        let reach =
            if self.layout == PacketLayout::InPlace { MemoryReach::DeviceLocal } else { MemoryReach::Unreachable };
        BatchMemory { reach, import: None, word_aligned_only: false, gather_only: self.layout == PacketLayout::Packed }
    }

    /// Copying packets with what is between them costs nothing.
    fn transfer_costs(&self) -> TransferCosts {
        TransferCosts { copy_bytes_per_ns: f64::INFINITY, ..TransferCosts::GEN4.without_bus() }
    }

    fn chunk_limits(&self, _: PacketLayout) -> ChunkLimits {
        ChunkLimits { binding: 1 << 20, alignment: 4, packets: self.packets }
    }

    fn new_buffers(&self) -> Buffers {
        Buffers::default()
    }

    fn reserve_chunks(
        &mut self,
        _: &mut dyn Iterator<Item = ChunkView<'_, ()>>,
        _: KernelEffects,
        _: &mut [Buffers],
    ) -> Result<(), DeviceError> {
        // Of other devices it is nothing, and not told of.
        let fails = self.script.lock().unwrap().fails == Some("make room");
        if fails { self.say("make room") } else { Ok(()) }
    }

    fn upload(&mut self, part: &ChunkView<'_, ()>, _: KernelEffects, buffers: &mut Buffers) -> Result<(), DeviceError> {
        if let Some(cancel) = &self.script.lock().unwrap().cancels {
            cancel.cancel();
        }
        self.say(format!("upload {}", part.packets()))?;
        assert!(!buffers.lent, "a slot that no batch is in");
        buffers.lent = true;
        buffers.packets = vec![0xee; part.copy_size() as usize];
        if part.is_copied() {
            part.copy_into(&mut buffers.packets, StorePolicy::Streamed);
        }
        buffers.actions.clear();
        buffers.ends.clear();
        Ok(())
    }

    fn can_reuse_uploads(&self) -> bool {
        true
    }

    fn reuse_upload(
        &mut self,
        part: &ChunkView<'_, ()>,
        _: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        self.say(format!("again {}", part.packets()))?;
        assert!(buffers.lent, "a slot that has not been released");
        Ok(())
    }

    fn launch(
        &mut self,
        part: &ChunkView<'_, ()>,
        _: KernelEffects,
        buffers: &mut Buffers,
        first: usize,
        count: usize,
    ) -> Result<usize, DeviceError> {
        self.say(format!("launch {first}+{count}"))?;
        let mut script = self.script.lock().unwrap();
        let (packets, start) = match (part.layout(), &mut script.memory) {
            (PacketLayout::InPlace, Some(memory)) => (memory, part.bytes().start as usize),
            _ => (&mut buffers.packets, 0),
        };
        let bytes: Vec<_> = part.descriptor_bytes().collect();
        let of_kernel: Vec<_> = descriptors(bytes.as_flattened()).collect();
        buffers.actions.resize(part.packets(), 0xee);
        buffers.ends.resize(part.packets() * 8, 0xee);
        for lane in first..first + count {
            let taken = match part.is_ordered() {
                true => of_kernel[part.base(lane)],
                false => Descriptor { offset: lane as u32, length: 1 },
            };
            for index in (taken.offset as usize..).take(taken.length as usize) {
                let d = of_kernel[index];
                let byte = &mut packets[start + d.offset as usize];
                buffers.actions[index] = *byte;
                *byte = byte.wrapping_add(1);
                let end = [d.offset, d.length - 1].map(u32::to_le_bytes);
                buffers.ends[index * 8..][..8].copy_from_slice(end.as_flattened());
            }
        }
        self.tickets += 1;
        Ok(self.tickets)
    }

    fn wait(&mut self, ticket: &usize, cancel: &CancelToken) -> Result<(), DeviceError> {
        self.say(format!("wait {ticket}"))?;
        if cancel.is_cancelled() { Err(DeviceError::Cancelled) } else { Ok(()) }
    }

    fn read_verdicts(
        &mut self,
        packets: usize,
        buffers: &mut Buffers,
        columns: &mut VerdictColumns,
    ) -> Result<(), DeviceError> {
        assert_eq!(buffers.actions.len(), packets);
        columns.append(buffers.actions.iter().copied());
        Ok(())
    }

    fn read_descriptors(
        &mut self,
        _: usize,
        buffers: &mut Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        read(&buffers.ends);
        Ok(())
    }

    fn read_packets(
        &mut self,
        bytes: u64,
        buffers: &mut Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        assert_eq!(buffers.packets.len() as u64, bytes + OVERREAD_BYTES);
        read(&buffers.packets[..bytes as usize]);
        Ok(())
    }

    fn release(&mut self, buffers: &mut Buffers) {
        buffers.lent = false;
    }

    fn wait_idle(&mut self) {
        self.say("settle").unwrap();
    }

    fn try_drain(&mut self, tickets: &[&usize], torn: bool) -> bool {
        self.say(format!("settles {tickets:?} {torn}")).unwrap();
        !self.script.lock().unwrap().hangs
    }

    fn keep_alive(&mut self, kept: impl Send + 'static) {
        self.script.lock().unwrap().kept += 1;
        // The device is busy for ever.
        std::mem::forget(kept);
    }
}

fn session(
    layout: PacketLayout,
    packets: usize,
    paced: bool,
    options: &LoadOptions,
) -> (OffloadSession<Host>, Arc<Mutex<Script>>) {
    session_of(layout, packets, paced, false, options)
}

fn session_of(
    layout: PacketLayout,
    packets: usize,
    paced: bool,
    resizes_packets: bool,
    options: &LoadOptions,
) -> (OffloadSession<Host>, Arc<Mutex<Script>>) {
    let moves = if resizes_packets { "adjust_tail(pkt, -1);" } else { "" };
    let ends = if paced { "loop { if load_u8(pkt, 1u) == 1u { break; } }" } else { "" };
    let program = program(&format!(
        "fn xdp_filter(pkt: u32) -> u32 {{ {ends} {moves} let v = load_u8(pkt, 0u); store_u8(pkt, 0u, v + 1u); return v; }}"
    ));
    let script = Arc::<Mutex<Script>>::default();
    let effects = KernelEffects {
        accesses_packets: true,
        writes_packets: true,
        resizes_packets,
        metadata: false,
        redirects: false,
        size: if paced { 1 << 20 } else { 1 },
    };
    let launcher = Host { script: script.clone(), layout, packets, tickets: 0 };
    (OffloadSession::new(launcher, DeviceKind::Cpu, effects, &program, options).unwrap(), script)
}

fn program(text: &str) -> Arc<Program> {
    let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())))
}

/// A session for a filter whose flows are told by a packet's second byte.
fn in_order(layout: PacketLayout, resizes_packets: bool) -> (FlowSession<OffloadSession<Host>>, Arc<Mutex<Script>>) {
    let program = program(&format!(
        "fn xdp_flow(pkt: u32) -> u32 {{ return load_u8(pkt, 1u); }}
         fn xdp_filter(pkt: u32) -> u32 {{ {} store_u8(pkt, 0u, load_u8(pkt, 0u) + 1u); return load_u8(pkt, 0u) - 1u; }}",
        if resizes_packets { "adjust_tail(pkt, -1);" } else { "" },
    ));
    let effects = KernelEffects {
        accesses_packets: true,
        writes_packets: true,
        resizes_packets,
        metadata: false,
        redirects: false,
        size: 1,
    };
    let (script, options) = (Arc::<Mutex<Script>>::default(), LoadOptions::default());
    let launcher = Host { script: script.clone(), layout, packets: 5, tickets: 0 };
    let session = OffloadSession::new(launcher, DeviceKind::Cpu, effects, &program, &options).unwrap();
    let flows = FlowSession::new(&InterpDevice::new(), session, &program, &options).unwrap();
    (flows, script)
}

fn batch(verdicts: &[u8]) -> Batch {
    let packets: Vec<_> = verdicts.iter().map(|&v| vec![v, 1, 2, 3, 4]).collect();
    Batch::from_packets(&packets).unwrap()
}

fn calls(script: &Mutex<Script>) -> Vec<String> {
    std::mem::take(&mut script.lock().unwrap().calls)
}

#[test]
fn batches_are_cut_and_come_back_in_order_with_their_changes() {
    for layout in [PacketLayout::Copied, PacketLayout::Packed] {
        let (mut session, script) = session(layout, 2, false, &LoadOptions::default());
        session.submit(batch(&[1, 2, 3])).unwrap();
        session.submit(batch(&[])).unwrap();
        session.submit(batch(&[2])).unwrap();
        assert_eq!(calls(&script), ["upload 2", "launch 0+2", "upload 1", "launch 0+1", "upload 1", "launch 0+1"]);
        let refused = session.submit(batch(&[3])).unwrap_err();
        assert_eq!(refused.batch.packet(0)[0], 3);
        for verdicts in [&[1, 2, 3][..], &[], &[2]] {
            let done = session.complete().unwrap().unwrap();
            assert_eq!(done.verdicts.actions(), verdicts);
            for (packet, verdict) in done.batch.packets().zip(verdicts) {
                assert_eq!(packet, [verdict + 1, 1, 2, 3, 4]);
            }
        }
        assert!(session.complete().unwrap().is_none());
        assert_eq!(calls(&script), ["wait 1", "wait 2", "wait 3"]);
        // The slots are used again: `upload` checks that they were released.
        for _ in 0..4 {
            assert_eq!(session.run(batch(&[1, 1, 1])).unwrap().verdicts.len(), 3);
        }
    }
}

#[test]
fn batches_that_stay_at_the_device_are_brought_there_once() {
    let (options, script) = (LoadOptions { resident: true, ..LoadOptions::default() }, Arc::<Mutex<Script>>::default());
    let reads = KernelEffects { accesses_packets: true, size: 1, ..KernelEffects::default() };
    let load = |effects, text: &str| {
        let launcher = Host { script: script.clone(), layout: PacketLayout::Copied, packets: 2, tickets: 0 };
        OffloadSession::new(launcher, DeviceKind::Cpu, effects, &program(text), &options)
    };
    let text = "fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u); }";
    let mut session = load(reads, text).unwrap();
    let (mut one, mut other) = (batch(&[1, 2, 1]), batch(&[0]));
    // The launcher's kernel adds one to what it finds: it finds what the time before has left, and not what the host has.
    for time in 0..3 {
        session.submit(one).unwrap();
        session.submit(other).unwrap();
        let (first, second) = (session.complete().unwrap().unwrap(), session.complete().unwrap().unwrap());
        assert_eq!(first.verdicts.actions(), [1 + time, 2 + time, 1 + time]);
        assert_eq!(second.verdicts.actions(), [time]);
        (one, other) = (first.batch, second.batch);
        one.packet_mut(0).fill(9);
        let brought = if time == 0 { "upload" } else { "again" };
        let calls: Vec<_> = calls(&script).into_iter().filter(|call| !call.starts_with("wait")).collect();
        let wanted = [2, 1, 1].map(|packets| [format!("{brought} {packets}"), format!("launch 0+{packets}")]);
        assert_eq!(calls, wanted.concat());
    }
    // Another batch is not taken for one that is there.
    assert_eq!(session.run(batch(&[3])).unwrap().verdicts.actions(), [3]);

    for (effects, text, why) in [
        (KernelEffects { writes_packets: true, ..reads }, text, "it changes them"),
        (KernelEffects { metadata: true, ..reads }, text, "metadata"),
        (
            KernelEffects { accesses_packets: false, ..reads },
            "fn xdp_filter(pkt: u32) -> u32 { return 1u; }",
            "it looks at none",
        ),
    ] {
        let error = load(effects, text).err().expect("it is refused").to_string();
        assert!(error.contains("cannot stay at the device") && error.contains(why), "{error}");
    }
}

#[test]
fn a_lane_takes_a_flow_and_all_comes_back_where_it_was() {
    for resizes_packets in [false, true] {
        let (mut session, script) = in_order(PacketLayout::Packed, resizes_packets);
        // Three flows in a part of five packets, and one in another.
        let packets =
            [(1, 9), (2, 8), (3, 9), (4, 7), (1, 9), (2, 8)].map(|(v, flow)| [&[v, flow][..], &[5; 30]].concat());
        let done = session.run(Batch::from_packets(&packets).unwrap()).unwrap();
        assert_eq!(done.verdicts.actions(), [1, 2, 3, 4, 1, 2]);
        for (packet, mut was) in done.batch.packets().zip(packets) {
            was[0] += 1;
            assert_eq!(packet, &was[..was.len() - usize::from(resizes_packets)]);
        }
        let launches: Vec<_> = calls(&script).into_iter().filter(|call| call.starts_with("launch")).collect();
        assert_eq!(launches, ["launch 0+3", "launch 0+1"]);
    }
}

#[test]
fn a_batch_that_only_the_device_refuses_comes_back_before_its_flows_are_looked_for() {
    let (mut session, script) = in_order(PacketLayout::Copied, false);
    let large = [vec![1, 9, 2], vec![3; 2 << 20]];
    let refused = session.submit(Batch::from_packets(&large).unwrap()).unwrap_err();
    assert!(refused.error.to_string().contains("packet 1 has 2097152 bytes"), "{}", refused.error);
    assert!(refused.batch.packets().eq(large.iter().map(|packet| &packet[..])));
    assert_eq!((session.in_flight(), calls(&script).len()), (0, 0));
    assert!(session.run(Batch::from_packets(&large[..1]).unwrap()).is_ok(), "others are taken");
}

#[test]
fn a_byte_that_is_no_action_is_aborted() {
    let (mut session, _) = session(PacketLayout::Copied, 2, false, &LoadOptions::default());
    let done = session.run(batch(&[0, 4, 5, 200, 255, 3])).unwrap();
    assert_eq!(done.verdicts.actions(), [0, 4, 0, 0, 0, 3]);
}

#[test]
fn a_column_of_the_whole_batch_is_not_copied() {
    let mut columns = VerdictColumns { packets: 4, ..VerdictColumns::default() };
    let (actions, targets) = (vec![4, 5, 255, 3], vec![1, 2, 3, 4]);
    let (at, targets_at) = (actions.as_ptr(), targets.as_ptr());
    columns.adopt(actions);
    columns.adopt_targets(targets);
    assert_eq!((columns.actions.as_ptr(), columns.targets.as_ptr()), (at, targets_at));
    assert_eq!((columns.actions, columns.targets), (vec![4, 0, 0, 3], vec![1, 2, 3, 4]));

    let mut columns = VerdictColumns { packets: 4, ..VerdictColumns::default() };
    for (actions, targets) in [(vec![4, 5, 255], vec![1, 2, 3]), (vec![3], vec![4])] {
        columns.adopt(actions);
        columns.adopt_targets(targets);
    }
    assert_eq!((columns.actions, columns.targets), (vec![4, 0, 0, 3], vec![1, 2, 3, 4]));
}

#[test]
fn a_batch_of_many_parts_takes_the_memory_of_a_few() {
    for (layout, resizes_packets) in
        [(PacketLayout::Copied, false), (PacketLayout::Packed, true), (PacketLayout::Copied, true)]
    {
        let (mut session, script) = session_of(layout, 3, false, resizes_packets, &LoadOptions::default());
        let verdicts: Vec<u8> = (0..100).map(|i| i % 4).collect();
        // Longer than the shortest that there may be, so that their ends can be moved.
        let packets: Vec<Vec<u8>> = verdicts.iter().map(|&v| [&[v][..], &[v ^ 0x55; 30]].concat()).collect();
        for _ in 0..2 {
            session.submit(Batch::from_packets(&packets).unwrap()).unwrap();
            let uploads = |calls: Vec<String>| calls.iter().filter(|call| call.starts_with("upload")).count();
            assert_eq!(uploads(calls(&script)), PARTS);
            let done = session.complete().unwrap().unwrap();
            assert_eq!(uploads(calls(&script)), 34 - PARTS);
            assert_eq!(done.verdicts.actions(), verdicts);
            for (after, before) in done.batch.packets().zip(&packets) {
                let length = before.len() - usize::from(resizes_packets);
                assert_eq!(after, [&[before[0] + 1], &before[1..length]].concat());
            }
        }
    }
}

#[test]
fn filters_that_may_take_long_have_two_launches_queued() {
    let (mut session, script) = session(PacketLayout::Copied, 1 << 20, true, &LoadOptions::default());
    assert_eq!(session.launch_budget.max_launch_packets(), 1);
    session.submit(batch(&[1, 2, 3])).unwrap();
    assert_eq!(calls(&script), ["upload 3", "launch 0+1", "launch 1+1"]);
    let done = session.complete().unwrap().unwrap();
    assert_eq!(done.verdicts.actions(), [1, 2, 3]);
    // Each was quick, so the pace doubles after the first.
    assert_eq!(calls(&script), ["wait 1", "launch 2+1", "wait 2", "wait 3"]);
}

#[test]
fn a_batch_that_cannot_be_brought_to_the_device_comes_back_when_the_device_has_settled() {
    let (mut session, script) = session(PacketLayout::Copied, 1, false, &LoadOptions::default());
    script.lock().unwrap().fails = Some("upload");
    let refused = session.submit(batch(&[3, 2])).unwrap_err();
    assert_eq!(refused.batch.packet(0), [3, 1, 2, 3, 4]);
    assert_eq!(calls(&script), ["upload 1", "settle"]);
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn a_batch_that_the_device_has_no_room_for_comes_back_at_once() {
    let (mut session, script) = session(PacketLayout::Copied, 1, false, &LoadOptions::default());
    script.lock().unwrap().fails = Some("make room");
    let refused = session.submit(batch(&[3, 2])).unwrap_err();
    assert_eq!(refused.batch.packet(0), [3, 1, 2, 3, 4]);
    // Nothing of it is there that could be waited for.
    assert_eq!((calls(&script), session.in_flight()), (vec!["make room".to_owned()], 0));
    script.lock().unwrap().fails = None;
    assert_eq!(session.run(*refused.batch).unwrap().verdicts.actions(), [3, 2]);
}

#[test]
fn a_launch_that_fails_may_have_begun_so_that_completing_tells_of_it() {
    let (mut session, script) = session(PacketLayout::Copied, 1, false, &LoadOptions::default());
    session.submit(batch(&[1])).unwrap();
    script.lock().unwrap().fails = Some("launch");
    session.submit(batch(&[2, 2])).unwrap();
    assert_eq!(session.in_flight(), 2);
    assert_eq!(session.complete().unwrap().unwrap().verdicts.actions(), [1]);
    calls(&script);
    assert!(matches!(session.complete(), Err(DeviceError::Failed { .. })));
    // No ticket, and yet something may be queued.
    assert_eq!(calls(&script), ["settles [] true"]);
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn whoever_cancels_while_a_batch_is_brought_to_a_device_that_hangs_does_not_wait_for_it() {
    for (fails, hangs) in [(None, true), (Some("upload"), true), (None, false)] {
        let cancel = CancelToken::new();
        let options = LoadOptions { cancel: cancel.clone(), ..LoadOptions::default() };
        let (mut session, script) = session(PacketLayout::Copied, 4, false, &options);
        let batch = batch(&[1]);
        let span = Arc::downgrade(batch.span());
        {
            let mut script = script.lock().unwrap();
            (script.cancels, script.fails, script.hangs) = (Some(cancel), fails, hangs);
        }
        session.submit(batch).unwrap();
        assert_eq!(session.submit(self::batch(&[2])).unwrap_err().error, DeviceError::Cancelled);
        assert_eq!(session.complete().unwrap_err(), DeviceError::Cancelled);
        // The copy may be on its way still, and then its memory stays.
        assert_eq!(calls(&script), ["upload 1", "settles [] true"]);
        assert_eq!(script.lock().unwrap().kept, usize::from(hangs));
        assert_eq!((span.upgrade().is_some(), session.in_flight()), (hangs, 0));
    }
}

#[test]
fn a_batch_that_nothing_is_queued_of_comes_back_when_cancelled() {
    let cancel = CancelToken::new();
    let options = LoadOptions { cancel: cancel.clone(), ..LoadOptions::default() };
    let (mut session, script) = session(PacketLayout::Copied, 4, false, &options);
    cancel.cancel();
    let refused = session.submit(batch(&[1])).unwrap_err();
    assert_eq!((refused.error, refused.batch.len()), (DeviceError::Cancelled, 1));
    assert!(calls(&script).is_empty());
}

#[test]
fn what_a_busy_device_uses_outlives_the_session() {
    for cancels in [false, true] {
        let cancel = CancelToken::new();
        let options = LoadOptions { cancel: cancel.clone(), ..LoadOptions::default() };
        let (mut session, script) = session(PacketLayout::Copied, 4, false, &options);
        script.lock().unwrap().hangs = true;
        let batches = [batch(&[1]), batch(&[2])];
        let spans = batches.each_ref().map(|batch| Arc::downgrade(batch.span()));
        for batch in batches {
            session.submit(batch).unwrap();
        }
        if cancels {
            cancel.cancel();
            assert_eq!(session.complete().unwrap_err(), DeviceError::Cancelled);
            assert_eq!(session.in_flight(), 0);
        }
        drop(session);
        assert_eq!(calls(&script).last().unwrap(), "settles [1, 2] false");
        assert_eq!(script.lock().unwrap().kept, 1);
        assert!(spans.iter().all(|span| span.upgrade().is_some()));
    }
}

/// Packets of these first bytes in the device's own memory, a number of bytes apart.
fn of_device(script: &Mutex<Script>, verdicts: &[u8], apart: u32) -> Batch {
    let at = |index| Descriptor { offset: 128 + index * apart, length: 30 };
    let descriptors: Vec<_> = (0..verdicts.len() as u32).map(at).collect();
    let mut memory = vec![0xcc; 1 << 16];
    descriptors.iter().zip(verdicts).for_each(|(d, verdict)| memory[d.offset as usize] = *verdict);
    script.lock().unwrap().memory = Some(memory);
    Batch::out_of_reach("host", descriptors)
}

#[test]
fn packets_in_the_devices_own_memory_are_filtered_there() {
    let (mut session, script) = session_of(PacketLayout::InPlace, 2, false, true, &LoadOptions::default());
    let batch = of_device(&script, &[1, 2, 3], 400);
    let original = batch.descriptors().to_vec();
    let done = session.run(batch).unwrap();
    assert_eq!(done.verdicts.actions(), [1, 2, 3]);
    // Their ends have moved, and the batch knows; their bytes have changed, and it need not.
    assert!(
        done.batch
            .descriptors()
            .iter()
            .zip(&original)
            .all(|(now, was)| { (now.offset, now.length) == (was.offset, was.length - 1) })
    );
    let script = script.lock().unwrap();
    let memory = script.memory.as_ref().unwrap();
    let mut want = vec![0xcc; 1 << 16];
    original.iter().zip([2, 3, 4]).for_each(|(d, byte)| want[d.offset as usize] = byte);
    assert!(*memory == want);
}

#[test]
fn packets_that_a_device_would_have_to_copy_and_nobody_can_are_refused() {
    for (apart, why) in [(401, "packet 1 begins at byte 529 there, which is no multiple of 4"), (400, "need a copy")] {
        let (mut session, script) = session(PacketLayout::Packed, 2, false, &LoadOptions::default());
        let refused = session.submit(of_device(&script, &[1, 2, 3], apart)).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("in the memory of host, where host does not filter them") && text.contains(why),
            "{text}"
        );
        assert_eq!((refused.batch.len(), session.in_flight(), calls(&script).len()), (3, 0, 0));
    }
}

#[test]
fn packets_in_memory_that_a_session_does_not_reach_are_refused_with_what_to_do() {
    let batch = || Batch::out_of_reach("cuda:7", vec![Descriptor { offset: 128, length: 60 }]);
    let load = |device: &dyn Device| {
        device.load(&program("fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u); }"), &LoadOptions::default())
    };
    let relieved = WithFallback::new(Arc::new(InterpDevice::new()), Arc::new(NoopDevice::new()));
    let sessions: [Box<dyn Session>; 6] = [
        load(&InterpDevice::new()).unwrap(),
        load(&NoopDevice::new()).unwrap(),
        load(&relieved).unwrap(),
        Dispatch::Inline.wrap(session(PacketLayout::InPlace, 2, false, &LoadOptions::default()).0),
        Box::new(session(PacketLayout::InPlace, 2, false, &LoadOptions::default()).0),
        Box::new(in_order(PacketLayout::InPlace, false).0),
    ];
    for (number, mut session) in sessions.into_iter().enumerate() {
        let refused = session.submit(batch()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "batch refused: its packets are in the memory of cuda:7, which this device does not reach; run the filter on \
             cuda:7, or have packets in the host's memory",
            "session {number}"
        );
        assert_eq!((refused.batch.len(), session.in_flight()), (1, 0), "session {number}");
        assert!(session.complete().unwrap().is_none(), "session {number}");
    }
}

#[test]
fn a_filter_that_looks_at_no_packet_takes_them_wherever_they_are() {
    let (mut session, _) = session(PacketLayout::InPlace, 2, false, &LoadOptions::default());
    let batch = Batch::out_of_reach("cuda:7", vec![Descriptor { offset: 128, length: 60 }]);
    assert!(session.check_reach(batch.span()).is_err());
    session.effects.accesses_packets = false;
    assert!(session.check_reach(batch.span()).is_ok());
}
