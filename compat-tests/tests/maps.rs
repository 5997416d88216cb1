//! Map operations on every device: packets one by one give the interpreter's results, and packets
//! that run concurrently give those of some sequential order.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis::packet_io::synth::Random;
use portcullis_compat_tests::devices;
use portcullis_compat_tests::texts::{self, wgsl_key};
use portcullis_core::device::{Device, DeviceError, LoadOptions, Session};
use portcullis_core::interp::InterpDevice;
use portcullis_core::map::declaration::MAX_MAPS;
use portcullis_core::map::{Row, Table, rows};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

fn load(device: &Arc<dyn Device>, program: &Arc<Program>) -> Box<dyn Session> {
    device.load(program, &LoadOptions::default()).unwrap_or_else(|error| panic!("{}: {error}", device.info().id))
}

fn batch(packets: &[Vec<u32>]) -> Batch {
    let bytes = |words: &Vec<u32>| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    Batch::from_packets(&packets.iter().map(bytes).collect::<Vec<_>>()).unwrap()
}

fn all_rows(program: &Program, session: &mut dyn Session) -> Vec<Vec<Row>> {
    let maps = program.maps().iter().enumerate();
    maps.map(|(number, map)| rows(map, &session.map_words(number).unwrap())).collect()
}

/// Returns a filter with every map operation, selected by the packet's first word; keys have
/// `words` words, each with few distinct values.
fn every_operation(words: u32) -> String {
    let key = |i| format!("load_le32(pkt, {}u) & 0x80000001u", 4 + 4 * i);
    let key = wgsl_key(&(0..words).map(key).collect::<Vec<_>>());
    format!(
        "//! map flows: hash key={words} value=2 entries=300
         //! map ports: array value=1 entries=16
         //! map bytes: counter entries=5
         fn xdp_filter(pkt: u32) -> u32 {{
             let call = load_le32(pkt, 0u);
             let key = {key};
             bytes_add(call, 0xf0000000u);
             ports_write(call, 0u, ports_read(call, 0u) * 3u + 1u);
             if call % 5u == 0u {{ return select(XDP_DROP, XDP_PASS, flows_remove(key)); }}
             var flow = flows_find(key);
             if flow == MAP_NONE && call % 5u != 1u {{
                 flow = flows_insert(key);
                 if flow == MAP_FULL {{ return XDP_TX; }}
                 if map_is_new(flow) {{ flows_write(flow, 0u, call); }}
             }}
             let before = flows_add(flow, 1u, call | 1u);
             let was = flows_compare_exchange(flow, 0u, call, call + 1u);
             store_le32(pkt, 0u, before ^ was * 5u);
             return 1u + (before & 1u);
         }}"
    )
}

/// Runs a filter packet by packet, and `twin` in the interpreter, and asserts that both agree.
fn assert_agrees_with_interpreter(device: &Arc<dyn Device>, program: &Arc<Program>, twin: &Arc<Program>, words: u32) {
    let mut session = load(device, program);
    let mut reference = InterpDevice::new().load(twin, &LoadOptions::default()).unwrap();
    let mut random = Random::new(u64::from(words), 0);
    for _ in 0..120 {
        let packet = (0..=words).map(|i| if i == 0 { random.below(20) } else { random.u32() }).collect();
        let packets = [packet];
        let (done, want) = (session.run(batch(&packets)).unwrap(), reference.run(batch(&packets)).unwrap());
        assert_eq!(done.verdicts, want.verdicts, "{packets:?}");
        assert!(done.batch.packets().eq(want.batch.packets()), "{packets:?}");
    }
    assert_eq!(all_rows(program, &mut *session), all_rows(twin, &mut *reference), "{words} words");
}

#[test]
fn packets_one_by_one_agree_with_the_interpreter() {
    devices::on_each("maps, packet by packet", |device| {
        for words in [1, 3, 10] {
            let program = texts::in_wgsl("maps.wgsl", &every_operation(words));
            assert_agrees_with_interpreter(device, &program, &program, words);
        }
    });
}

/// Returns a filter with `count` maps, of each kind in turn.
fn many(count: usize) -> String {
    let (mut lines, mut body) = (String::new(), String::new());
    for number in 0..count {
        let (kind, call) = match number % 3 {
            0 => ("counter entries=7", format!("m{number}_add(first % 7u, {number}u);")),
            1 => ("array value=2 entries=7", format!("sum += m{number}_add(first % 8u, 1u, {number}u);")),
            _ => ("hash key=1 value=1 entries=30", format!("sum += m{number}_add(m{number}_insert(first), 0u, sum);")),
        };
        lines += &format!("//! map m{number}: {kind}\n");
        body += &format!("    {call}\n");
    }
    format!(
        "{lines}fn xdp_filter(pkt: u32) -> u32 {{
             let first = load_le32(pkt, 0u);
             var sum = 1u;
{body}
             store_le32(pkt, 4u, sum + pkt_port(pkt));
             return redirect(sum & 0xffu);
         }}"
    )
}

#[test]
fn the_maximum_number_of_maps_agrees_with_the_interpreter() {
    devices::on_each("the maximum number of maps", |device| {
        // Every device supports the first count.
        for count in [24, MAX_MAPS] {
            let program = texts::in_wgsl("many.wgsl", &many(count));
            assert_eq!(program.maps().len(), count);
            let few = |error: &DeviceError| error.to_string().contains("storage buffers, 64 of them for its maps");
            let mut session = match device.load(&program, &LoadOptions::default()) {
                Ok(session) => session,
                Err(error) if count == MAX_MAPS && device.info().id.starts_with("wgpu") && few(&error) => {
                    return println!("skipped on {} with {count} maps: {error}", device.info().id);
                }
                Err(error) => panic!("{error}"),
            };
            let mut reference = InterpDevice::new().load(&program, &LoadOptions::default()).unwrap();
            let mut random = Random::new(64, 0);
            for _ in 0..40 {
                let packets = [vec![random.below(20), 0, 0, 0]];
                let (done, want) = (session.run(batch(&packets)).unwrap(), reference.run(batch(&packets)).unwrap());
                assert!(done.batch.packets().eq(want.batch.packets()), "{packets:?}");
            }
            assert_eq!(all_rows(&program, &mut *session), all_rows(&program, &mut *reference));
        }
    });
}

/// Keys share all but the last word, so that concurrent packets compare and write the same slot.
const CONTENDED: &str = "
    //! map seen: hash key=10 value=1 entries=3000
    //! map sum: counter entries=1
    fn xdp_filter(pkt: u32) -> u32 {
        var key: array<u32, 10>;
        key[9] = load_le32(pkt, 0u);
        sum_add(0u, 0xffffffffu);
        let entry = seen_insert(key);
        if entry == MAP_FULL { return XDP_ABORTED; }
        seen_add(entry, 0u, 1u);
        return select(XDP_DROP, XDP_PASS, map_is_new(entry));
    }";

#[test]
fn concurrent_packets_insert_a_key_once() {
    const PACKETS: u32 = 20_000;
    devices::on_each("maps, concurrent packets", |device| {
        let program = texts::in_wgsl("maps.wgsl", CONTENDED);
        for keys in [1, 2, 100, 3000] {
            let mut session = load(device, &program);
            let mut random = Random::new(5, 0);
            let packets: Vec<Vec<u32>> = (0..PACKETS).map(|_| vec![random.below(keys), 0, 0, 0]).collect();
            let done = session.run(batch(&packets)).unwrap();
            let wanted: BTreeSet<u32> = packets.iter().map(|packet| packet[0]).collect();
            let made = done.verdicts.actions().iter().filter(|action| **action == 2).count();
            assert_eq!(made, wanted.len(), "{keys} keys, each inserted by one packet");
            assert!(!done.verdicts.actions().contains(&0), "{keys} keys, all of which fit");
            let [seen, sum] = &all_rows(&program, &mut *session)[..] else { panic!("two maps") };
            assert!(seen.iter().map(|row| row.key[9]).eq(wanted), "{keys} keys");
            let total: u64 = seen.iter().map(|row| u64::from(row.value[0])).sum();
            assert_eq!(total, u64::from(PACKETS), "{keys} keys: no update is lost");
            let sum = &sum[0].value;
            assert_eq!(u64::from(sum[0]) | u64::from(sum[1]) << 32, u64::from(PACKETS) * 0xffff_ffff);
        }
    });
}

/// Each accumulation has words of its own; the smallest number begins at the largest.
const ACCUMULATING: &str = "
    //! map m: hash key=1 value=7 entries=100
    fn xdp_filter(pkt: u32) -> u32 {
        let entry = m_insert(load_le32(pkt, 0u));
        let value = load_le32(pkt, 4u);
        m_add64(entry, 0u, value);
        m_add_sat(entry, 2u, value >> 8u);
        m_min(entry, 3u, value);
        m_min_nonzero(entry, 4u, value & 0xffffu);
        m_max(entry, 5u, value);
        m_or(entry, 6u, 1u << (value & 15u));
        return XDP_PASS;
    }";

const ACCUMULATING_IN_OPENCL_C: &str = "
    //! map m: hash key=1 value=7 entries=100
    uint xdp_filter(__global uchar *pkt, uint len) {
        uint entry = m_insert(load_le32(pkt, 0)), value = load_le32(pkt, 4);
        m_add64(entry, 0, value);
        m_add_sat(entry, 2, value >> 8);
        m_min(entry, 3, value);
        m_min_nonzero(entry, 4, value & 0xffff);
        m_max(entry, 5, value);
        m_or(entry, 6, 1 << (value & 15));
        return XDP_PASS;
    }";

#[test]
fn concurrent_packets_accumulate() {
    const PACKETS: u32 = 20_000;
    let programs = [texts::in_wgsl("maps.wgsl", ACCUMULATING), texts::in_opencl_c("maps.cl", ACCUMULATING_IN_OPENCL_C)];
    devices::on_each("maps, accumulations", |device| {
        for (keys, program) in [1, 3, 100].into_iter().flat_map(|keys| programs.iter().map(move |it| (keys, it))) {
            let mut session = load(device, program);
            let mut random = Random::new(9, 0);
            let mut table = Table::new(&program.maps()[0], Vec::new());
            (0..keys).for_each(|key| table.set(&[key], &[0, 0, 0, u32::MAX, 0, 0, 0]).unwrap());
            let (at, words) = table.changes();
            session.set_map_words(0, at, words).unwrap();
            let packets: Vec<Vec<u32>> =
                (0..PACKETS).map(|_| vec![random.below(keys), random.u32() >> (random.below(4) * 8), 0, 0]).collect();
            session.run(batch(&packets)).unwrap();
            let rows = &all_rows(program, &mut *session)[0];
            assert_eq!(rows.len(), keys as usize);
            for row in rows {
                let values = || packets.iter().filter(|packet| packet[0] == row.key[0]).map(|packet| packet[1]);
                let sum: u64 = values().map(u64::from).sum();
                let expected = [
                    sum as u32,
                    (sum >> 32) as u32,
                    values().fold(0, |sum, value| sum.saturating_add(value >> 8)),
                    values().min().unwrap(),
                    values().map(|value| value & 0xffff).filter(|&value| value > 0).min().unwrap(),
                    values().max().unwrap(),
                    values().fold(0, |bits, value| bits | 1 << (value & 15)),
                ];
                assert_eq!(row.value, expected, "{keys} keys, on {}", device.info().id);
            }
        }
    });
}

/// Returns [`every_operation`] in OpenCL C. Keys use the type natural for their length: a number, a
/// structure, an array.
fn every_operation_in_opencl_c(words: u32) -> String {
    let word = |i| format!("load_le32(pkt, {}) & 0x80000001u", 4 + 4 * i);
    let words_of_it = (0..words).map(word).collect::<Vec<_>>().join(", ");
    let (key, given) = match words {
        1 => (format!("uint key = {words_of_it};"), "key"),
        2..=4 => (format!("struct {{ uint w[{words}]; }} key = {{{{{words_of_it}}}}};"), "(const uint *)&key"),
        _ => (format!("uint key[{words}] = {{{words_of_it}}};"), "key"),
    };
    format!(
        "//! map flows: hash key={words} value=2 entries=300
         //! map ports: array value=1 entries=16
         //! map bytes: counter entries=5
         uint xdp_filter(__global uchar *pkt, uint len) {{
             uint call = load_le32(pkt, 0);
             {key}
             bytes_add(call, 0xf0000000);
             ports_write(call, 0, ports_read(call, 0) * 3 + 1);
             if (call % 5 == 0) return flows_remove({given}) ? XDP_PASS : XDP_DROP;
             uint flow = flows_find({given});
             if (flow == MAP_NONE && call % 5 != 1) {{
                 flow = flows_insert({given});
                 if (flow == MAP_FULL) return XDP_TX;
                 if (map_is_new(flow)) flows_write(flow, 0, call);
             }}
             uint before = flows_add(flow, 1, call | 1);
             uint was = flows_compare_exchange(flow, 0, call, call + 1);
             store_le32(pkt, 0, before ^ was * 5);
             return 1 + (before & 1);
         }}"
    )
}

#[test]
fn opencl_c_maps_agree_with_wgsl() {
    devices::on_each("maps in OpenCL C, packet by packet", |device| {
        for words in [1, 3, 10] {
            let twin = texts::in_wgsl("maps.wgsl", &every_operation(words));
            let program = texts::in_opencl_c("maps.cl", &every_operation_in_opencl_c(words));
            assert!(program.maps().iter().map(|map| &map.name).eq(twin.maps().iter().map(|map| &map.name)));
            assert_agrees_with_interpreter(device, &program, &twin, words);
        }
    });
}

/// [`CONTENDED`] in OpenCL C.
const CONTENDED_IN_OPENCL_C: &str = "
    //! map seen: hash key=10 value=1 entries=3000
    //! map sum: counter entries=1
    uint xdp_filter(__global uchar *pkt, uint len) {
        uint key[10];
        key[9] = load_le32(pkt, 0);
        sum_add(0, 0xffffffff);
        uint entry = seen_insert(key);
        if (entry == MAP_FULL) return XDP_ABORTED;
        seen_add(entry, 0, 1);
        return map_is_new(entry) ? XDP_PASS : XDP_DROP;
    }";

/// Which packet inserts an entry is unspecified; the number of insertions and the final maps are
/// not.
#[test]
fn concurrent_packets_insert_a_key_once_in_opencl_c() {
    let twin = texts::in_wgsl("maps.wgsl", CONTENDED);
    let program = texts::in_opencl_c("maps.cl", CONTENDED_IN_OPENCL_C);
    let outcome = |program: &Arc<Program>, session: &mut dyn Session, packets: &[Vec<u32>]| {
        let done = session.run(batch(packets)).unwrap();
        let mut actions = done.verdicts.actions().to_vec();
        actions.sort_unstable();
        let bytes: Vec<Vec<u8>> = done.batch.packets().map(<[u8]>::to_vec).collect();
        (actions, bytes, all_rows(program, session))
    };
    let each = [1, 100, 3000].map(|keys| {
        let mut random = Random::new(6, 0);
        let packets: Vec<Vec<u32>> = (0..5_000).map(|_| vec![random.below(keys), 0, 0, 0]).collect();
        let mut reference = InterpDevice::new().load(&twin, &LoadOptions::default()).unwrap();
        let wanted = outcome(&twin, &mut *reference, &packets);
        (keys, packets, wanted)
    });
    devices::on_each("maps in OpenCL C, concurrent packets", |device| {
        for (keys, packets, wanted) in &each {
            let mut session = load(device, &program);
            let found = outcome(&program, &mut *session, packets);
            assert_eq!(found.0, wanted.0, "{keys} keys, each inserted by one packet");
            assert_eq!(found.1, wanted.1, "{keys} keys: the packets");
            assert_eq!(found.2, wanted.2, "{keys} keys: the maps");
        }
    });
}
