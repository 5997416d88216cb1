//! Packets of a flow run in order: whatever the device, the batch sizes and the number of threads,
//! each finds the state that the packets before it left.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portcullis::packet_io::synth::Random;
use portcullis_compat_tests::{devices, layouts, texts};
use portcullis_core::device::{Device, DeviceError, DeviceInfo, Dispatch, LoadOptions, Session};
use portcullis_core::interp::InterpDevice;
use portcullis_core::map::{Row, rows};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;
use portcullis_cpu::Cpu;

/// Test filter. A packet has a flow and a sequence number; it passes if the number is the next one,
/// and the filter writes the number of packets seen before into it. Results that do not depend on
/// order are shared between flows.
const IN_WGSL: &str = "
    //! map flows: hash key=2 value=3 entries=4096
    //! map sums: counter entries=2
    var<private> seen: u32 = 5u;
    fn xdp_flow(pkt: u32) -> u32 { return load_le32(pkt, 0u) ^ (load_le32(pkt, 4u) << 16u); }
    fn xdp_filter(pkt: u32) -> u32 {
        let flow = flows_insert(vec2<u32>(load_le32(pkt, 0u), load_le32(pkt, 4u)));
        if flow == MAP_FULL { return XDP_ABORTED; }
        let before = flows_read(flow, 0u);
        let number = load_le32(pkt, 8u);
        flows_write(flow, 0u, before + 1u);
        flows_write(flow, 1u, flows_read(flow, 1u) * 31u + number);
        seen += before;
        sums_add(0u, seen);
        store_le32(pkt, 12u, seen);
        if number == 77u { return redirect(before); }
        return select(XDP_DROP, XDP_PASS, before == number);
    }";

/// OpenCL C version, which also resizes packets depending on those before.
const IN_C: &str = "
    //! map flows: hash key=2 value=3 entries=4096
    //! map sums: counter entries=2
    struct packet { uint key[2]; uint number, before; } __attribute__((packed));
    uint xdp_flow(__global uchar *pkt, uint len) {
        __global struct packet *p = (__global struct packet *)pkt;
        return p->key[0] ^ (p->key[1] << 16);
    }
    uint xdp_filter(__global uchar *pkt, uint len) {
        __global struct packet *p = (__global struct packet *)pkt;
        uint key[2] = {p->key[0], p->key[1]};
        uint flow = flows_insert(key);
        if (flow == MAP_FULL) return XDP_ABORTED;
        uint before = flows_read(flow, 0), number = p->number;
        flows_write(flow, 0, before + 1);
        flows_write(flow, 1, flows_read(flow, 1) * 31 + number);
        p->before = before + 5;
        if (before % 3 == 1) adjust_head(pkt, -4);
        for (uint i = 0; i < number % 9; i++) sums_add(1, before);
        return before == number ? XDP_PASS : XDP_DROP;
    }";

/// Returns packets of `flows` flows. On average one in `large` packets belongs to flow 0; some have
/// a wrong sequence number.
fn packets(count: usize, flows: u32, large: u32, seed: u64) -> Vec<Vec<u8>> {
    let (mut random, mut numbers) = (Random::new(seed, 0), HashMap::<u32, u32>::new());
    let mut packet = || {
        let flow = if random.one_in(large) { 0 } else { random.below(flows) };
        let number = numbers.entry(flow).or_default();
        let sequence = if random.one_in(50) { 77 } else { *number };
        *number += 1;
        let words = [flow, flow.wrapping_mul(0x9e37_79b9), sequence, 0];
        let length = 16 + random.below(50) as usize;
        words.iter().flat_map(|word| word.to_le_bytes()).chain([7; 50]).take(length).collect()
    };
    (0..count).map(|_| packet()).collect()
}

/// Results of a run: return values, packets, rows of each map.
type Outcome = (Vec<u32>, Vec<Vec<u8>>, Vec<Vec<Row>>);

/// Submits packets in batches whose sizes cycle through `sizes`, up to the session's depth, and
/// returns the results.
fn outcome(session: &mut dyn Session, program: &Program, packets: &[Vec<u8>], sizes: &[usize]) -> Outcome {
    let (mut verdicts, mut left) = (Vec::new(), Vec::new());
    let mut collect = |session: &mut dyn Session| {
        let done = session.complete().unwrap().expect("a batch is in flight");
        verdicts.extend((0..done.batch.len()).map(|index| done.verdicts.get(index).to_return()));
        left.extend(done.batch.packets().map(<[u8]>::to_vec));
    };
    let (mut rest, mut sizes) = (packets, sizes.iter().cycle());
    for number in 0.. {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
        rest = later;
        if session.in_flight() == session.depth() {
            collect(session);
        }
        session.submit(layouts::batch(now, number)).unwrap();
    }
    while session.in_flight() > 0 {
        collect(session);
    }
    let maps = program.maps().iter().enumerate();
    let maps = maps.map(|(number, map)| rows(map, &session.map_words(number).unwrap())).collect();
    (verdicts, left, maps)
}

fn options(threads: usize) -> LoadOptions {
    LoadOptions::default().with_threads(NonZeroUsize::new(threads))
}

/// Dispatch methods that filter packets concurrently and therefore refuse filters with flows.
const CONCURRENT: [Option<Dispatch>; 3] =
    [Some(Dispatch::Persistent), Some(Dispatch::WaitValue), Some(Dispatch::Graph)];

/// Loads a filter with flows. Returns `None` if the device's first dispatch method is one of
/// [`CONCURRENT`], after checking that the error names the alternatives.
fn load(device: &Arc<dyn Device>, program: &Arc<Program>, options: &LoadOptions) -> Option<Box<dyn Session>> {
    let loaded = device.load(program, options);
    if !CONCURRENT.contains(&device.info().dispatch.first().copied()) {
        return Some(loaded.unwrap_or_else(|error| panic!("{}: {error}", device.info().id)));
    }
    let error = loaded.err().expect("concurrent dispatch methods refuse filters with flows");
    assert!(error.to_string().contains("take `pipelined` or `inline`"), "{error}");
    println!("skipped on {}: {error}", device.info().id);
    None
}

#[test]
fn packets_of_a_flow_keep_their_order() {
    // The last case is a single flow, with more packets and loop iterations than llvmpipe allows
    // one lane.
    let cases = [
        (texts::in_wgsl("flows.wgsl", IN_WGSL), 6000, 2000, 1 << 31),
        (texts::in_wgsl("flows.wgsl", IN_WGSL), 6000, 300, 2),
        (texts::in_opencl_c("flows.cl", IN_C), 6000, 3000, 20),
        (texts::in_opencl_c("flows.cl", IN_C), 16_000, 1, 1),
    ];
    let cases = cases.map(|(program, count, flows, large)| {
        let packets = packets(count, flows, large, u64::from(flows));
        let mut reference = InterpDevice::new().load(&program, &options(1)).unwrap();
        let wanted = outcome(&mut *reference, &program, &packets, &[packets.len()]);
        let passed = wanted.0.iter().filter(|verdict| **verdict == 2).count();
        assert!(passed > packets.len() / 2, "only {passed} packets in order");
        (program, packets, wanted, flows)
    });
    devices::on_each("flows in order", |device: &Arc<dyn Device>| {
        for (program, packets, wanted, flows) in &cases {
            for (threads, sizes) in
                [(2, &[packets.len()][..]), (2, &[1500, 1, 70, 2500]), (1, &[2000, 2, 0]), (5, &[1250])]
            {
                // The interpreter ignores the number of threads.
                if device.info().id == "interp" && threads > 1 {
                    continue;
                }
                let Some(mut session) = load(device, program, &options(threads)) else { return };
                let found = outcome(&mut *session, program, packets, sizes);
                let what = format!("{} threads, batches of {sizes:?}, {flows} flows", threads);
                let differs = (0..packets.len()).find(|&i| found.0[i] != wanted.0[i] || found.1[i] != wanted.1[i]);
                if let Some(i) = differs {
                    let (found, wanted) = ((found.0[i], &found.1[i]), (wanted.0[i], &wanted.1[i]));
                    panic!("packet {i}: got {found:?}, expected {wanted:?}: {what}");
                }
                assert_eq!(found.2, wanted.2, "{what}");
            }
        }
    });
}

/// The CPU device with a count of its loads.
struct CountingDevice(Cpu, AtomicUsize);

impl Device for CountingDevice {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.load(program, options)
    }
}

/// Batches dominated by one flow run on the CPU, which takes the maps over; they return to the
/// device when such batches end.
#[test]
fn batches_dominated_by_one_flow_move_to_another_device() {
    let program = texts::in_wgsl("flows.wgsl", IN_WGSL);
    // Batches have 2,000 packets: five of many flows, six dominated by one, seven of many.
    let mut all = packets(10_000, 800, 1 << 31, 1);
    all.extend(packets(12_000, 3, 2, 2));
    all.extend(packets(14_000, 800, 1 << 31, 3));
    let mut reference = InterpDevice::new().load(&program, &options(1)).unwrap();
    let wanted = outcome(&mut *reference, &program, &all, &[all.len()]);
    devices::on_each("batches dominated by one flow", |device: &Arc<dyn Device>| {
        if device.info().id == "interp" {
            return println!("skipped on interp, the reference");
        }
        let counting = Arc::new(CountingDevice(Cpu::new(), AtomicUsize::new(0)));
        let options = options(2).with_elephant_flow_device(counting.clone() as Arc<dyn Device>);
        let Some(mut session) = load(device, &program, &options) else { return };
        let found = outcome(&mut *session, &program, &all, &[2000]);
        assert!(found == wanted, "results differ");
        let looks = !device.info().id.starts_with("cpu");
        assert_eq!(counting.1.load(Ordering::Relaxed), usize::from(looks), "loads on the other device");
    });
}

/// A batch in flight sees the values that the host wrote before the batch was submitted, and no
/// later ones.
#[test]
fn host_writes_take_effect_between_batches() {
    let text = "
        //! map a: array value=1 entries=100000
        fn xdp_filter(pkt: u32) -> u32 {
            let at = load_le32(pkt, 0u);
            store_le32(pkt, 4u, a_read(at, 0u));
            a_add(at, 0u, 1u);
            return XDP_PASS;
        }";
    const HEADER: usize = 16;
    const PACKETS: u32 = 20_000;
    devices::on_each("host writes between batches", |device: &Arc<dyn Device>| {
        let program = texts::in_wgsl("flows.wgsl", text);
        let mut session = device.load(&program, &LoadOptions::default()).unwrap();
        let packets: Vec<Vec<u8>> =
            (0..PACKETS).map(|at| [at, 0, 0, 0].iter().flat_map(|word: &u32| word.to_le_bytes()).collect()).collect();
        let mut wanted = Vec::new();
        let check = |session: &mut dyn Session, wanted: &mut Vec<u32>| {
            let done = session.complete().unwrap().expect("a batch is in flight");
            let wanted = wanted.remove(0);
            for packet in done.batch.packets() {
                assert_eq!(u32::from_le_bytes(packet[4..8].try_into().unwrap()), wanted);
            }
        };
        let mut value = 0;
        for round in 0..12 {
            if session.in_flight() == session.depth() {
                check(&mut *session, &mut wanted);
            }
            wanted.push(value);
            session.submit(Batch::from_packets(&packets).unwrap()).unwrap();
            value += 1;
            if round % 3 != 2 {
                value = round * 1000;
                session.set_map_words(0, HEADER, &vec![value; PACKETS as usize]).unwrap();
            }
            let word = session.map_words_at(0, HEADER + 5, 1).unwrap();
            assert_eq!(word, [value]);
        }
        while session.in_flight() > 0 {
            check(&mut *session, &mut wanted);
        }
    });
}

/// Inserts and removes far more keys than the map has entries.
#[test]
fn removed_keys_make_room_between_batches() {
    let text = "
        //! map m: hash key=1 value=1 entries=1000
        fn xdp_filter(pkt: u32) -> u32 {
            let key = load_le32(pkt, 0u);
            if key >= 300u && !m_remove(key - 300u) { return XDP_TX; }
            let entry = m_insert(key);
            if entry == MAP_FULL { return XDP_ABORTED; }
            m_write(entry, 0u, key * 3u);
            return XDP_PASS;
        }";
    devices::on_each("room for new keys", |device: &Arc<dyn Device>| {
        let program = texts::in_wgsl("flows.wgsl", text);
        let mut session = device.load(&program, &LoadOptions::default()).unwrap();
        for round in 0..40 {
            let packets: Vec<Vec<u8>> = (round * 300..round * 300 + 300)
                .map(|key: u32| [key, 0, 0, 0].map(u32::to_le_bytes).concat())
                .collect();
            let done = session.run(Batch::from_packets(&packets).unwrap()).unwrap();
            assert!(done.verdicts.actions().iter().all(|action| *action == 2), "round {round}");
        }
        let rows = rows(&program.maps()[0], &session.map_words(0).unwrap());
        let wanted = (39 * 300..40 * 300).map(|key| Row { key: vec![key], value: vec![key * 3] });
        assert!(rows.into_iter().eq(wanted));
    });
}

/// Inserts 15,000 keys into an `lru_hash` of 1,000 entries, batch by batch. A hundred keys occur in
/// every batch and must never be evicted; nor may keys of the last batches.
#[test]
fn the_least_recently_used_keys_are_evicted() {
    let text = "
        //! map m: lru_hash key=1 value=1 entries=1000
        fn xdp_filter(pkt: u32) -> u32 {
            let key = load_le32(pkt, 0u);
            var entry = m_find(key);
            if entry == MAP_NONE { entry = m_insert(key); }
            if entry == MAP_FULL { return XDP_ABORTED; }
            m_add(entry, 0u, 1u);
            return XDP_PASS;
        }";
    const ROUNDS: u32 = 50;
    devices::on_each("lru_hash", |device: &Arc<dyn Device>| {
        let program = texts::in_wgsl("flows.wgsl", text);
        let mut session = device.load(&program, &LoadOptions::default()).unwrap();
        for round in 0..ROUNDS {
            let fresh = (0..300).map(|i| 1000 + round * 300 + i);
            let packets: Vec<Vec<u8>> =
                (0..100).chain(fresh).map(|key: u32| [key, 0, 0, 0].map(u32::to_le_bytes).concat()).collect();
            let done = session.run(Batch::from_packets(&packets).unwrap()).unwrap();
            assert!(done.verdicts.actions().iter().all(|action| *action == 2), "round {round}");
        }
        let rows = rows(&program.maps()[0], &session.map_words(0).unwrap());
        assert!(rows.len() < 2500, "{} keys are in the map", rows.len());
        for key in 0..100 {
            assert!(rows.contains(&Row { key: vec![key], value: vec![ROUNDS] }), "{key} was in every batch");
        }
        let last = 1000 + (ROUNDS - 3) * 300..1000 + ROUNDS * 300;
        let kept = rows.iter().filter(|row| last.contains(&row.key[0])).count();
        assert_eq!(kept, last.len(), "keys of the last batches");
    });
}
