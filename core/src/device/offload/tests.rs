//! Tests of the shared session with a launcher that runs in host memory and can be made to fail.

use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use super::launcher::MAX_CHUNKS_IN_FLIGHT;
use super::*;
use crate::device::chunk::{ChunkLimits, OVERREAD_BYTES};
use crate::device::descriptor_format::DescriptorRule;
use crate::device::noop::NoopDevice;
use crate::device::transfer_planner::{BatchMemory, MemoryReach};
use crate::device::{Device, Dispatch, FlowSession, Imported, MeasureOptions, Session, WithFallback};
use crate::interp::InterpDevice;
use crate::packet::Span;
use crate::packet::gather::StorePolicy;
use crate::testing::program;

/// Log of the calls to the launcher, and the failures to simulate.
#[derive(Default)]
struct Script {
    calls: Vec<String>,
    /// Prefix of the calls that fail.
    fails: Option<&'static str>,
    /// Whether launches never end.
    hangs: bool,
    /// Triggered by uploads.
    cancels: Option<CancelToken>,
    /// Number of values kept alive.
    kept_alive: usize,
    /// The device's own memory, if it has any.
    memory: Option<Vec<u8>>,
    /// Whether the launcher lends memory for verdicts, and what it has lent so far.
    lends: bool,
    lent: Vec<Arc<LentVerdicts>>,
}

/// Actions and targets.
struct LentVerdicts(Vec<AtomicU8>, Vec<AtomicU32>);

impl VerdictMemory for LentVerdicts {
    fn actions(&self) -> NonNull<u8> {
        NonNull::from(&*self.0).cast()
    }

    fn targets(&self) -> Option<NonNull<u32>> {
        Some(NonNull::from(&*self.1).cast())
    }
}

/// A launcher whose kernel returns a packet's first byte as the verdict, increments that byte, and,
/// if it resizes packets, shortens each by a byte.
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
    in_use: bool,
}

impl Host {
    fn log(&self, call: impl Into<String>) -> Result<(), DeviceError> {
        let mut script = self.script.lock().unwrap();
        let call = call.into();
        let fails = script.fails.is_some_and(|name| call.starts_with(name));
        script.calls.push(call);
        if fails { Err(DeviceError::Failed { device: "host".into(), reason: "simulated".into() }) } else { Ok(()) }
    }
}

impl Launcher for Host {
    type Buffers = Buffers;
    type Import = ();
    type Ticket = usize;
    type VerdictMemory = LentVerdicts;

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

    /// Copying packets together with the bytes between them costs nothing.
    fn transfer_costs(&self, _: std::num::NonZeroUsize) -> TransferCosts {
        TransferCosts { copy_bytes_per_ns: f64::INFINITY, ..TransferCosts::GEN4.without_bus() }
    }

    fn chunk_limits(&self, _: PacketLayout) -> ChunkLimits {
        ChunkLimits { binding: 1 << 20, alignment: 4, packets: self.packets }
    }

    /// Memory that nobody else has a reference to is lent again.
    fn lend_verdict_memory(
        &mut self,
        packets: usize,
        _: KernelEffects,
    ) -> Result<Option<Arc<LentVerdicts>>, DeviceError> {
        let mut script = self.script.lock().unwrap();
        if !script.lends {
            return Ok(None);
        }
        let fits = |memory: &&Arc<LentVerdicts>| Arc::strong_count(memory) == 1 && memory.0.len() >= packets;
        if let Some(free) = script.lent.iter().find(fits) {
            return Ok(Some(free.clone()));
        }
        let (actions, targets) = (0..packets).map(|_| (AtomicU8::new(0), AtomicU32::new(0))).unzip();
        script.lent.push(Arc::new(LentVerdicts(actions, targets)));
        Ok(script.lent.last().cloned())
    }

    fn new_buffers(&self) -> Buffers {
        Buffers::default()
    }

    fn reserve_chunks(
        &mut self,
        _: &mut dyn Iterator<Item = ChunkView<'_, (), LentVerdicts>>,
        _: KernelEffects,
        _: &mut [Buffers],
    ) -> Result<(), DeviceError> {
        // Not logged, because most launchers do nothing here.
        let fails = self.script.lock().unwrap().fails == Some("reserve");
        if fails { self.log("reserve") } else { Ok(()) }
    }

    fn upload(
        &mut self,
        chunk: &ChunkView<'_, (), LentVerdicts>,
        _: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        if let Some(cancel) = &self.script.lock().unwrap().cancels {
            cancel.cancel();
        }
        self.log(format!("upload {}", chunk.packets()))?;
        assert!(!buffers.in_use, "buffers are uploaded to only when free");
        buffers.in_use = true;
        buffers.packets = vec![0xee; chunk.copy_size() as usize];
        if chunk.is_copied() {
            chunk.copy_into(&mut buffers.packets, StorePolicy::Streamed);
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
        chunk: &ChunkView<'_, (), LentVerdicts>,
        _: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        self.log(format!("reuse {}", chunk.packets()))?;
        assert!(buffers.in_use, "buffers of a resident chunk are not released");
        Ok(())
    }

    fn launch(
        &mut self,
        chunk: &ChunkView<'_, (), LentVerdicts>,
        _: KernelEffects,
        buffers: &mut Buffers,
        first: usize,
        count: usize,
    ) -> Result<usize, DeviceError> {
        self.log(format!("launch {first}+{count}"))?;
        let mut script = self.script.lock().unwrap();
        let (packets, start) = match (chunk.layout(), &mut script.memory) {
            (PacketLayout::InPlace, Some(memory)) => (memory, chunk.bytes().start as usize),
            _ => (&mut buffers.packets, 0),
        };
        let bytes: Vec<_> = chunk.descriptor_bytes().collect();
        let of_kernel: Vec<_> = descriptors(bytes.as_flattened()).collect();
        let words: Vec<_> = le_words(bytes.as_flattened()).collect();
        buffers.actions.resize(chunk.packets(), 0xee);
        buffers.ends.resize(chunk.packets() * 8, 0xee);
        for invocation in first..first + count {
            let taken = match chunk.is_ordered() {
                true => of_kernel[chunk.base(invocation)],
                false => Descriptor { offset: invocation as u32, length: 1 },
            };
            for index in (taken.offset as usize..).take(taken.length as usize) {
                let index = if chunk.is_ordered() { words[index] as usize } else { index };
                let d = of_kernel[index];
                let byte = &mut packets[start + d.offset as usize];
                buffers.actions[index] = *byte;
                if let Some(lent) = chunk.verdict_memory() {
                    lent.0[chunk.first_packet() + index].store(*byte, Ordering::Relaxed);
                    lent.1[chunk.first_packet() + index].store(100 + u32::from(*byte), Ordering::Relaxed);
                }
                *byte = byte.wrapping_add(1);
                let end = [d.offset, d.length - 1].map(u32::to_le_bytes);
                buffers.ends[index * 8..][..8].copy_from_slice(end.as_flattened());
            }
        }
        self.tickets += 1;
        Ok(self.tickets)
    }

    fn wait(&mut self, ticket: &usize, cancel: &CancelToken) -> Result<(), DeviceError> {
        self.log(format!("wait {ticket}"))?;
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
        buffers.in_use = false;
    }

    fn wait_idle(&mut self) {
        self.log("wait idle").unwrap();
    }

    fn try_drain(&mut self, tickets: &[&usize], has_untracked_work: bool) -> bool {
        self.log(format!("drain {tickets:?} {has_untracked_work}")).unwrap();
        !self.script.lock().unwrap().hangs
    }

    fn keep_alive(&mut self, value: impl Send + 'static) {
        self.script.lock().unwrap().kept_alive += 1;
        // The simulated device never finishes.
        std::mem::forget(value);
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
    let effects = KernelEffects { resizes_packets, size: if paced { 1 << 20 } else { 1 }, ..WRITES };
    let launcher = Host { script: script.clone(), layout, packets, tickets: 0 };
    (OffloadSession::new(launcher, DeviceKind::Cpu, effects, &program, options).unwrap(), script)
}

const WRITES: KernelEffects = KernelEffects {
    accesses_packets: true,
    writes_packets: true,
    resizes_packets: false,
    metadata: false,
    redirects: false,
    size: 1,
};

/// A session for a filter whose flow is the packet's second byte.
fn flow_session(
    layout: PacketLayout,
    resizes_packets: bool,
) -> (FlowSession<OffloadSession<Host>>, Arc<Mutex<Script>>) {
    let program = program(&format!(
        "fn xdp_flow(pkt: u32) -> u32 {{ return load_u8(pkt, 1u); }}
         fn xdp_filter(pkt: u32) -> u32 {{ {} store_u8(pkt, 0u, load_u8(pkt, 0u) + 1u); return load_u8(pkt, 0u) - 1u; }}",
        if resizes_packets { "adjust_tail(pkt, -1);" } else { "" },
    ));
    let effects = KernelEffects { resizes_packets, ..WRITES };
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
fn batches_are_split_and_complete_in_order_with_their_changes() {
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
        // Buffers are reused: `upload` checks that they were released.
        for _ in 0..4 {
            assert_eq!(session.run(batch(&[1, 1, 1])).unwrap().verdicts.len(), 3);
        }
    }
}

#[test]
fn resident_batches_are_uploaded_once() {
    let (options, script) = (
        LoadOptions {
            measure: MeasureOptions { resident: true, ..MeasureOptions::default() },
            ..LoadOptions::default()
        },
        Arc::<Mutex<Script>>::default(),
    );
    let reads = KernelEffects { writes_packets: false, ..WRITES };
    let load = |effects, text: &str| {
        let launcher = Host { script: script.clone(), layout: PacketLayout::Copied, packets: 2, tickets: 0 };
        OffloadSession::new(launcher, DeviceKind::Cpu, effects, &program(text), &options)
    };
    let text = "fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u); }";
    let mut session = load(reads, text).unwrap();
    let (mut one, mut other) = (batch(&[1, 2, 1]), batch(&[0]));
    // The kernel increments the bytes that its previous run left, not those in host memory.
    for round in 0..3 {
        session.submit(one).unwrap();
        session.submit(other).unwrap();
        let (first, second) = (session.complete().unwrap().unwrap(), session.complete().unwrap().unwrap());
        assert_eq!(first.verdicts.actions(), [1 + round, 2 + round, 1 + round]);
        assert_eq!(second.verdicts.actions(), [round]);
        (one, other) = (first.batch, second.batch);
        one.packet_mut(0).fill(9);
        let upload = if round == 0 { "upload" } else { "reuse" };
        let calls: Vec<_> = calls(&script).into_iter().filter(|call| !call.starts_with("wait")).collect();
        let wanted = [2, 1, 1].map(|packets| [format!("{upload} {packets}"), format!("launch 0+{packets}")]);
        assert_eq!(calls, wanted.concat());
    }
    // A different batch is not mistaken for a resident one.
    assert_eq!(session.run(batch(&[3])).unwrap().verdicts.actions(), [3]);

    for (effects, text, why) in [
        (KernelEffects { writes_packets: true, ..reads }, text, "changes packets"),
        (KernelEffects { metadata: true, ..reads }, text, "metadata"),
        (
            KernelEffects { accesses_packets: false, ..reads },
            "fn xdp_filter(pkt: u32) -> u32 { return 1u; }",
            "accesses no packet bytes",
        ),
    ] {
        let error = load(effects, text).err().expect("it is refused").to_string();
        assert!(error.contains("cannot stay resident") && error.contains(why), "{error}");
    }
}

#[test]
fn one_lane_filters_a_flow_and_results_keep_the_batch_order() {
    for resizes_packets in [false, true] {
        let (mut session, script) = flow_session(PacketLayout::Packed, resizes_packets);
        // Three flows in a chunk of five packets, and one in the next chunk.
        let packets =
            [(1, 9), (2, 8), (3, 9), (4, 7), (1, 9), (2, 8)].map(|(v, flow)| [&[v, flow][..], &[5; 30]].concat());
        let done = session.run(Batch::from_packets(&packets).unwrap()).unwrap();
        assert_eq!(done.verdicts.actions(), [1, 2, 3, 4, 1, 2]);
        for (packet, mut before) in done.batch.packets().zip(packets) {
            before[0] += 1;
            assert_eq!(packet, &before[..before.len() - usize::from(resizes_packets)]);
        }
        let launches: Vec<_> = calls(&script).into_iter().filter(|call| call.starts_with("launch")).collect();
        assert_eq!(launches, ["launch 0+3", "launch 0+1"]);
    }
}

#[test]
fn batches_too_large_for_the_device_are_refused_before_classification() {
    let (mut session, script) = flow_session(PacketLayout::Copied, false);
    let large = [vec![1, 9, 2], vec![3; 2 << 20]];
    let refused = session.submit(Batch::from_packets(&large).unwrap()).unwrap_err();
    assert!(refused.error.to_string().contains("packet 1 has 2097152 bytes"), "{}", refused.error);
    assert!(refused.batch.packets().eq(large.iter().map(|packet| &packet[..])));
    assert_eq!((session.in_flight(), calls(&script).len()), (0, 0));
    assert!(session.run(Batch::from_packets(&large[..1]).unwrap()).is_ok(), "smaller batches are accepted");
}

#[test]
fn an_invalid_action_byte_becomes_aborted() {
    let (mut session, _) = session(PacketLayout::Copied, 2, false, &LoadOptions::default());
    let done = session.run(batch(&[0, 4, 5, 200, 255, 3])).unwrap();
    assert_eq!(done.verdicts.actions(), [0, 4, 0, 0, 0, 3]);
}

#[test]
fn appended_columns_are_reused_once_the_verdicts_are_dropped() {
    let mut pool = HostVerdictPool::default();
    let mut columns = |parts: &[(&[u8], &[u32])], redirects| {
        let packets = parts.iter().map(|(actions, _)| actions.len()).sum();
        let mut columns = VerdictColumns::appended(packets, pool.lend(packets, redirects));
        for (actions, targets) in parts {
            columns.append(actions.iter().copied());
            columns.append_targets(targets.iter().copied());
        }
        columns.into_verdicts()
    };
    let first = columns(&[(&[4, 5, 255], &[1, 2, 3]), (&[3], &[4])], true);
    assert_eq!((first.actions(), first.targets()), (&[4, 0, 0, 3][..], &[1, 2, 3, 4][..]));
    let second = columns(&[(&[1, 2], &[7, 8])], true);
    assert_eq!((second.actions(), second.targets()), (&[1, 2][..], &[7, 8][..]));
    assert_eq!(first.actions(), [4, 0, 0, 3]);
    let at = first.actions().as_ptr();
    drop(first);
    let third = columns(&[(&[2], &[9])], true);
    assert_eq!((third.actions(), third.actions().as_ptr()), (&[2][..], at));
    drop((second, third));
    // Without targets.
    let mut pool = HostVerdictPool::default();
    let mut columns = VerdictColumns::appended(2, pool.lend(2, false));
    columns.append([1, 4].into_iter());
    let verdicts = columns.into_verdicts();
    assert_eq!((verdicts.actions(), verdicts.targets()), (&[1, 4][..], &[][..]));
}

#[test]
fn lent_memory_is_handed_out_and_reused_once_the_verdicts_are_dropped() {
    let (mut session, script) = session(PacketLayout::Copied, 2, false, &LoadOptions::default());
    script.lock().unwrap().lends = true;
    let first = session.run(batch(&[1, 2, 3])).unwrap().verdicts;
    let second = session.run(batch(&[3, 2, 1])).unwrap().verdicts;
    assert_eq!((first.actions(), first.targets()), (&[1, 2, 3][..], &[101, 102, 103][..]));
    assert_eq!((second.actions(), second.targets()), (&[3, 2, 1][..], &[103, 102, 101][..]));
    let clone = first.clone();
    drop(first);
    assert_eq!(session.run(batch(&[4, 4])).unwrap().verdicts.actions(), [4, 4]);
    assert_eq!(clone.actions(), [1, 2, 3], "a clone keeps the memory");
    drop((clone, second));
    assert_eq!(session.run(batch(&[2, 1])).unwrap().verdicts.actions(), [2, 1]);
    assert_eq!(script.lock().unwrap().lent.len(), 3);
    // Nothing is lent for a batch without packets.
    assert!(session.run(batch(&[])).unwrap().verdicts.is_empty());
}

#[test]
fn lent_verdicts_of_flows_keep_the_batch_order() {
    let (mut session, script) = flow_session(PacketLayout::Copied, false);
    script.lock().unwrap().lends = true;
    let packets: Vec<_> = (0..12_u8).map(|index| vec![index % 5, index % 3, 2, 3, 4]).collect();
    let done = session.run(Batch::from_packets(&packets).unwrap()).unwrap();
    assert!(done.verdicts.actions().iter().zip(&packets).all(|(action, packet)| *action == packet[0]));
    assert!(done.verdicts.targets().iter().zip(&packets).all(|(target, packet)| *target == 100 + u32::from(packet[0])));
}

/// A chunk without import, lent memory and flow order.
fn view<'a>(
    batch: &'a Batch,
    chunk: &'a chunk::Chunk,
    layout: PacketLayout,
    needs: AccessNeeds,
    threads: &'a HostThreads,
) -> ChunkView<'a, (), NoVerdictMemory> {
    ChunkView {
        batch,
        chunk,
        layout,
        needs,
        import: None,
        verdict_memory: None,
        flow_order: None,
        threads,
        gather_time: Default::default(),
    }
}

/// Many packets, gathered by several threads, are those that one thread gathers.
#[test]
fn threads_gather_what_one_gathers() {
    let count = 3 * crate::device::host_threads::PART_PACKETS + 77;
    let mut random = crate::testing::Random(5);
    let packets: Vec<Vec<u8>> =
        (0..count).map(|_| (0..random.below(9)).map(|_| random.below(256) as u8).collect()).collect();
    let batch = Batch::from_packets(&packets).unwrap();
    for (layout, window, room) in [
        (PacketLayout::Rows, 6, false),
        (PacketLayout::Packed, 6, false),
        (PacketLayout::Packed, u32::MAX, true),
        (PacketLayout::Copied, u32::MAX, false),
    ] {
        let needs = AccessNeeds { window, room };
        let limits = ChunkLimits { binding: 1 << 30, alignment: 4, packets: usize::MAX };
        let mut chunks = Vec::new();
        chunk::split_batch(&batch, layout, needs, limits, &mut chunks).unwrap();
        let gather = |threads: usize| {
            let threads = HostThreads::new(std::num::NonZeroUsize::new(threads));
            let view = view(&batch, &chunks[0], layout, needs, &threads);
            let mut copy = vec![0; view.copy_size() as usize];
            view.copy_into(&mut copy, StorePolicy::Cached);
            let mut descriptors = vec![0; view.descriptor_capacity(WRITES)];
            let written = view.write_descriptors(WRITES, &mut descriptors);
            descriptors.truncate(written.size);
            (copy, descriptors, written)
        };
        let one = gather(1);
        for threads in [2, 3] {
            assert!(gather(threads) == one, "{layout:?}, {threads} threads");
        }
        // What one thread gathers is what the packets say.
        for (packet, d) in packets.iter().zip(chunk::kernel_descriptors(&batch, &chunks[0], layout, needs)) {
            let copied = needs.copied_len(d.length) as usize;
            assert_eq!(one.0[d.offset as usize..][..copied], packet[..copied]);
        }
    }
}

/// The rules of `docs/reference/abi.md`: the descriptor of a packet.
fn find_descriptor(rule: DescriptorRule, table: &[u8], packet: usize) -> Descriptor {
    let DescriptorRule { format, first, stride, length } = rule;
    let words: Vec<u32> = le_words(table).collect();
    let offset = first.wrapping_add((packet as u32).wrapping_mul(stride));
    match format {
        0 => Descriptor { offset: words[2 * packet], length: words[2 * packet + 1] },
        1 => {
            let word = words[stride as usize + packet];
            Descriptor { offset: 4 * (words[packet / 32] + (word & 0xffff)), length: word >> 16 }
        }
        2 => Descriptor { offset, length: u16::from_le_bytes([table[2 * packet], table[2 * packet + 1]]).into() },
        _ => Descriptor { offset, length },
    }
}

#[test]
fn rebased_descriptors_count_from_the_chunk() {
    const PACKETS: usize = 100;
    let batch = |descriptor: fn(u32) -> (u32, u32)| {
        let descriptors = (0..PACKETS as u32).map(|i| {
            let (offset, length) = descriptor(i);
            Descriptor { offset, length }
        });
        let arena = crate::packet::Arena::new(1 << 16).unwrap();
        let mut cutter = crate::packet::BatchCutter::new(arena, None);
        cutter.cut_batch(descriptors.collect(), vec![], crate::packet::ResizeRoom::None).unwrap()
    };
    let batches = [
        // A table: not at words.
        batch(|i| (400 + 301 * i + i % 2, 60 + i)),
        // Groups, in one of which a packet is empty.
        batch(|i| (400 + 200 * i + 4 * (i % 3), if i == 77 { 0 } else { 60 })),
        batch(|i| (400 + 200 * i, 60 + i)),
        batch(|i| (400 + 64 * i, 60)),
    ];
    // At equal distances, but empty ones may lie outside the chunk.
    let empty = batch(|i| (400 + 64 * i, if (3..97).contains(&i) { 60 } else { 0 }));
    let needs = AccessNeeds { window: u32::MAX, room: false };
    let threads = HostThreads::new(None);
    let cases = (0..).zip(&batches).chain([(1, &empty)]);
    for ((format, batch), layout) in cases.flat_map(|it| [PacketLayout::Copied, PacketLayout::InPlace].map(|l| (it, l)))
    {
        let limits = ChunkLimits { binding: 1 << 30, alignment: 4, packets: 64 };
        let mut chunks = Vec::new();
        chunk::split_batch(batch, layout, needs, limits, &mut chunks).unwrap();
        assert_eq!(chunks.len(), 2);
        for chunk in &chunks {
            let view = view(batch, chunk, layout, needs, &threads);
            let mut table = vec![0; view.descriptor_capacity(WRITES)];
            let written = view.write_rebased_descriptors(WRITES, &mut table);
            assert_eq!((written.rule.format, written.origin), (format, 0));
            let size = chunk.bytes.end - chunk.bytes.start;
            for (packet, expected) in view.kernel_descriptors().enumerate() {
                let found = find_descriptor(written.rule, &table[..written.size], packet);
                if expected.length > 0 {
                    assert_eq!(found, expected, "format {format}");
                }
                assert_eq!(found.length, expected.length);
                assert!(u64::from(found.offset) <= size, "an empty packet's offset may be read at");
            }
        }
    }
}

#[test]
fn chunks_in_flight_per_batch_are_limited() {
    for (layout, resizes_packets) in
        [(PacketLayout::Copied, false), (PacketLayout::Packed, true), (PacketLayout::Copied, true)]
    {
        let (mut session, script) = session_of(layout, 3, false, resizes_packets, &LoadOptions::default());
        let verdicts: Vec<u8> = (0..100).map(|i| i % 4).collect();
        // Longer than the minimum packet length, so that they can be shortened.
        let packets: Vec<Vec<u8>> = verdicts.iter().map(|&v| [&[v][..], &[v ^ 0x55; 30]].concat()).collect();
        for _ in 0..2 {
            session.submit(Batch::from_packets(&packets).unwrap()).unwrap();
            let uploads = |calls: Vec<String>| calls.iter().filter(|call| call.starts_with("upload")).count();
            assert_eq!(uploads(calls(&script)), MAX_CHUNKS_IN_FLIGHT);
            let done = session.complete().unwrap().unwrap();
            assert_eq!(uploads(calls(&script)), 34 - MAX_CHUNKS_IN_FLIGHT);
            assert_eq!(done.verdicts.actions(), verdicts);
            for (after, before) in done.batch.packets().zip(&packets) {
                let length = before.len() - usize::from(resizes_packets);
                assert_eq!(after, [&[before[0] + 1], &before[1..length]].concat());
            }
        }
    }
}

#[test]
fn expensive_filters_queue_at_most_two_launches() {
    let (mut session, script) = session(PacketLayout::Copied, 1 << 20, true, &LoadOptions::default());
    assert_eq!(session.launch_budget.max_launch_packets(), 1);
    session.submit(batch(&[1, 2, 3])).unwrap();
    assert_eq!(calls(&script), ["upload 3", "launch 0+1", "launch 1+1"]);
    let done = session.complete().unwrap().unwrap();
    assert_eq!(done.verdicts.actions(), [1, 2, 3]);
    // Each launch was fast, so the budget doubles after the first.
    assert_eq!(calls(&script), ["wait 1", "launch 2+1", "wait 2", "wait 3"]);
}

#[test]
fn a_failed_upload_returns_the_batch_once_the_device_is_idle() {
    let (mut session, script) = session(PacketLayout::Copied, 1, false, &LoadOptions::default());
    script.lock().unwrap().fails = Some("upload");
    let refused = session.submit(batch(&[3, 2])).unwrap_err();
    assert_eq!(refused.batch.packet(0), [3, 1, 2, 3, 4]);
    assert_eq!(calls(&script), ["upload 1", "wait idle"]);
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn a_failed_reservation_returns_the_batch_at_once() {
    let (mut session, script) = session(PacketLayout::Copied, 1, false, &LoadOptions::default());
    script.lock().unwrap().fails = Some("reserve");
    let refused = session.submit(batch(&[3, 2])).unwrap_err();
    assert_eq!(refused.batch.packet(0), [3, 1, 2, 3, 4]);
    // Nothing is queued, so nothing is waited for.
    assert_eq!((calls(&script), session.in_flight()), (vec!["reserve".to_owned()], 0));
    script.lock().unwrap().fails = None;
    assert_eq!(session.run(*refused.batch).unwrap().verdicts.actions(), [3, 2]);
}

#[test]
fn a_failed_launch_is_reported_by_complete() {
    let (mut session, script) = session(PacketLayout::Copied, 1, false, &LoadOptions::default());
    session.submit(batch(&[1])).unwrap();
    script.lock().unwrap().fails = Some("launch");
    session.submit(batch(&[2, 2])).unwrap();
    assert_eq!(session.in_flight(), 2);
    assert_eq!(session.complete().unwrap().unwrap().verdicts.actions(), [1]);
    calls(&script);
    assert!(matches!(session.complete(), Err(DeviceError::Failed { .. })));
    // There is no ticket, but work may be queued nevertheless.
    assert_eq!(calls(&script), ["drain [] true"]);
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn cancelling_during_an_upload_does_not_wait_for_a_hanging_device() {
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
        // The copy may still be running; then its memory is kept alive.
        assert_eq!(calls(&script), ["upload 1", "drain [] true"]);
        assert_eq!(script.lock().unwrap().kept_alive, usize::from(hangs));
        assert_eq!((span.upgrade().is_some(), session.in_flight()), (hangs, 0));
    }
}

#[test]
fn cancelling_returns_a_batch_of_which_nothing_is_queued() {
    let cancel = CancelToken::new();
    let options = LoadOptions { cancel: cancel.clone(), ..LoadOptions::default() };
    let (mut session, script) = session(PacketLayout::Copied, 4, false, &options);
    cancel.cancel();
    let refused = session.submit(batch(&[1])).unwrap_err();
    assert_eq!((refused.error, refused.batch.len()), (DeviceError::Cancelled, 1));
    assert!(calls(&script).is_empty());
}

#[test]
fn memory_in_use_by_the_device_outlives_the_session() {
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
        assert_eq!(calls(&script).last().unwrap(), "drain [1, 2] false");
        assert_eq!(script.lock().unwrap().kept_alive, 1);
        assert!(spans.iter().all(|span| span.upgrade().is_some()));
    }
}

/// Packets with these first bytes in the device's own memory, `apart` bytes apart.
fn device_batch(script: &Mutex<Script>, verdicts: &[u8], apart: u32) -> Batch {
    let at = |index| Descriptor { offset: 128 + index * apart, length: 30 };
    let descriptors: Vec<_> = (0..verdicts.len() as u32).map(at).collect();
    let mut memory = vec![0xcc; 1 << 16];
    descriptors.iter().zip(verdicts).for_each(|(d, verdict)| memory[d.offset as usize] = *verdict);
    script.lock().unwrap().memory = Some(memory);
    Batch::in_device_memory("host", descriptors)
}

#[test]
fn packets_in_device_memory_are_filtered_in_place() {
    let (mut session, script) = session_of(PacketLayout::InPlace, 2, false, true, &LoadOptions::default());
    let batch = device_batch(&script, &[1, 2, 3], 400);
    let original = batch.descriptors().to_vec();
    let done = session.run(batch).unwrap();
    assert_eq!(done.verdicts.actions(), [1, 2, 3]);
    // The batch has the new lengths; the changed bytes stay in device memory.
    assert!(
        done.batch
            .descriptors()
            .iter()
            .zip(&original)
            .all(|(now, before)| { (now.offset, now.length) == (before.offset, before.length - 1) })
    );
    let script = script.lock().unwrap();
    let memory = script.memory.as_ref().unwrap();
    let mut expected = vec![0xcc; 1 << 16];
    original.iter().zip([2, 3, 4]).for_each(|(d, byte)| expected[d.offset as usize] = byte);
    assert!(*memory == expected);
}

#[test]
fn packets_in_device_memory_that_need_a_copy_are_refused() {
    for (apart, why) in [(401, "packet 1 starts at byte 529, which is not a multiple of 4"), (400, "need a copy")] {
        let (mut session, script) = session(PacketLayout::Packed, 2, false, &LoadOptions::default());
        let refused = session.submit(device_batch(&script, &[1, 2, 3], apart)).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("in the memory of host, where host cannot filter them") && text.contains(why), "{text}");
        assert_eq!((refused.batch.len(), session.in_flight(), calls(&script).len()), (3, 0, 0));
    }
}

#[test]
fn unreachable_device_memory_is_refused_with_a_next_step() {
    let batch = || Batch::in_device_memory("cuda:7", vec![Descriptor { offset: 128, length: 60 }]);
    let reads = program("fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u); }");
    let load = |device: &dyn Device| device.load(&reads, &LoadOptions::default());
    let with_fallback = WithFallback::new(Arc::new(InterpDevice::new()), Arc::new(NoopDevice::new()));
    let sessions: [Box<dyn Session>; 6] = [
        load(&InterpDevice::new()).unwrap(),
        load(&NoopDevice::new()).unwrap(),
        Box::new(with_fallback.load(&reads, &LoadOptions::default()).unwrap()),
        Dispatch::Inline.wrap(session(PacketLayout::InPlace, 2, false, &LoadOptions::default()).0),
        Box::new(session(PacketLayout::InPlace, 2, false, &LoadOptions::default()).0),
        Box::new(flow_session(PacketLayout::InPlace, false).0),
    ];
    for (number, mut session) in sessions.into_iter().enumerate() {
        let refused = session.submit(batch()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "batch refused: its packets are in the memory of cuda:7, which this device does not reach; run the filter on \
             cuda:7, or receive packets into host memory",
            "session {number}"
        );
        assert_eq!((refused.batch.len(), session.in_flight()), (1, 0), "session {number}");
        assert!(session.complete().unwrap().is_none(), "session {number}");
    }
}

#[test]
fn filters_without_packet_access_accept_any_memory() {
    let (mut session, _) = session(PacketLayout::InPlace, 2, false, &LoadOptions::default());
    let batch = Batch::in_device_memory("cuda:7", vec![Descriptor { offset: 128, length: 60 }]);
    assert!(session.check_reach(batch.span()).is_err());
    session.effects.accesses_packets = false;
    assert!(session.check_reach(batch.span()).is_ok());
}
