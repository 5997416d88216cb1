//! Maps, many packets to a batch: one thread gives what the interpreter gives. Several threads, as all devices on which
//! packets meet, are for compat-tests.

use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::interp::Interp;
use portcullis_core::lang::{Source, wgsl};
use portcullis_core::map::rows;
use portcullis_core::packet::Batch;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_cpu::Cpu;

fn program(text: &str) -> Arc<Program> {
    let program = wgsl::compile(&Source::new("maps.wgsl", text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|errors| panic!("{}", errors.render())))
}

fn cpu(program: &Arc<Program>, threads: usize) -> Box<dyn Session> {
    let options = LoadOptions { threads: NonZeroUsize::new(threads), ..LoadOptions::default() };
    Cpu::new().load(program, &options).unwrap()
}

fn batch(packets: &[Vec<u32>]) -> Batch {
    let bytes = |words: &Vec<u32>| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    Batch::from_packets(&packets.iter().map(bytes).collect::<Vec<_>>()).unwrap()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
}

const EVERYTHING: &str = "
    //! map flows: hash key=3 value=2 entries=300
    //! map ports: array value=1 entries=16
    //! map bytes: counter entries=5
    fn xdp_filter(pkt: u32) -> u32 {
        let call = load_le32(pkt, 0u);
        let key = vec3<u32>(load_le32(pkt, 4u), load_le32(pkt, 8u) & 3u, load_le32(pkt, 12u) & 7u);
        bytes_add(call, 0xf0000000u);
        ports_write(call, 0u, ports_read(call, 0u) * 3u + 1u);
        if call % 5u == 0u { return select(XDP_DROP, XDP_PASS, flows_remove(key)); }
        var flow = flows_find(key);
        if flow == MAP_NONE && call % 5u != 1u {
            flow = flows_insert(key);
            if flow == MAP_FULL { return XDP_TX; }
            if map_is_new(flow) { flows_write(flow, 0u, call); }
        }
        let before = flows_add(flow, 1u, key.x | 1u);
        let was = flows_compare_exchange(flow, 0u, call, call + 1u);
        store_le32(pkt, 0u, before ^ was * 5u);
        return 1u + (before & 1u);
    }";

#[test]
fn one_thread_is_the_interpreter() {
    let program = program(EVERYTHING);
    let mut random = Random(3);
    let (mut ours, mut reference) = (cpu(&program, 1), Interp::new().load(&program, &LoadOptions::default()).unwrap());
    for round in 0..10 {
        let packets: Vec<Vec<u32>> = (0..500)
            .map(|_| {
                vec![random.next() % 20, (random.next() % 40).wrapping_mul(0x4000_0001), random.next(), random.next()]
            })
            .collect();
        let (done, want) = (ours.run(batch(&packets)).unwrap(), reference.run(batch(&packets)).unwrap());
        assert_eq!(done.verdicts, want.verdicts, "round {round}");
        assert!(done.batch.packets().eq(want.batch.packets()), "round {round}");
        for (number, map) in program.maps().iter().enumerate() {
            let [done, want] =
                [&mut ours, &mut reference].map(|session| rows(map, &session.map_words(number).unwrap()));
            assert_eq!(done, want, "{} in round {round}", map.name);
        }
    }
}
