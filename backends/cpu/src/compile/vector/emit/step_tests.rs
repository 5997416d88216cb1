//! Generated code against the interpreter of lane IR, for steps: effects, regions, loops.

use super::super::ir::*;
use super::super::testing::mixed;
use super::tests::{Random, Traffic, assert_agrees, checked, traffic};

/// Builds a filter with steps.
struct StepBuilder {
    dag: Dag,
    regions: Vec<Region>,
    effects: u32,
    at: RegionId,
}

impl StepBuilder {
    fn new() -> StepBuilder {
        StepBuilder { dag: Dag::new(), regions: vec![Region::default()], effects: 0, at: RegionId::ROOT }
    }

    fn effect(&mut self, mask: Node, effect: Effect) -> Option<Node> {
        let id = EffectId(self.effects);
        self.effects += 1;
        let gives = effect.has_result();
        let range = match effect {
            Effect::LoadPacket { size, .. } => Range::of_bytes(size),
            _ => Range::ALL,
        };
        self.regions[self.at.index()].steps.push(Step::Effect { id, mask, effect });
        gives.then(|| self.dag.result(id, self.at, range))
    }

    fn open_region(&mut self) -> RegionId {
        let body = self.dag.new_region(self.at);
        self.regions.push(Region { parent: Some(self.at), steps: Vec::new() });
        self.at = body;
        body
    }

    fn close_region(&mut self, body: RegionId, step: Step) {
        self.at = self.regions[body.index()].parent.expect("a region has a parent");
        self.regions[self.at.index()].steps.push(step);
    }

    fn lanes(self, verdict: Node, arrays: &[u32], tables: &[Vec<u32>], writes: bool) -> LaneIr {
        let StepBuilder { dag, regions, .. } = self;
        LaneIr { dag, regions, arrays: arrays.to_vec(), tables: tables.to_vec(), verdict, ends: None, writes }
    }
}

/// A mask that is set in some lanes, by a byte of the packet.
fn byte_mask(dag: &mut Dag, at: u32, bit: u32) -> Node {
    let byte = checked(dag, None, at, 1);
    let bit = dag.and(byte, bit);
    dag.nonzero_mask(bit)
}

/// A mask that is set in some lanes, by the packet's length, for filters that write to packets.
fn length_mask(dag: &mut Dag, bit: u32) -> Node {
    let length = dag.length();
    let bit = dag.and(length, bit);
    dag.nonzero_mask(bit)
}

#[test]
fn packets_are_written_in_active_lanes_only() {
    let traffic = traffic(64, 40);
    for size in [1, 2, 4] {
        let mut builder = StepBuilder::new();
        let mut sums = Vec::new();
        for (at, bit) in [(0, 1), (5, 2), (9, 4), (2, 1)] {
            let length = builder.dag.length();
            let inside = builder.dag.at_least(length, at + size);
            let bit = length_mask(&mut builder.dag, bit);
            let mask = builder.dag.mask_and(inside, bit);
            let offset = builder.dag.constant(at);
            let place = PacketAddress { start: None, offset };
            let before = builder.effect(inside, Effect::LoadPacket { at: place, size }).unwrap();
            let factor = builder.dag.constant(0x0103_0507);
            let value = builder.dag.binary(Binary::Multiply, before, factor);
            let value = builder.dag.unary(Unary::Invert, value);
            builder.effect(mask, Effect::StorePacket { at: place, size, value });
            let after = builder.effect(inside, Effect::LoadPacket { at: place, size }).unwrap();
            let zero = builder.dag.constant(0);
            sums.extend([before, after].map(|node| builder.dag.select(inside, node, zero)));
        }
        let verdict = mixed(&mut builder.dag, &sums);
        assert_agrees(&builder.lanes(verdict, &[], &[], true), &traffic, &[], &format!("{size} bytes written"));
    }
}

#[test]
fn packets_can_grow_and_shrink() {
    let traffic = traffic(64, 40);
    let mut builder = StepBuilder::new();
    let length = builder.dag.length();
    let long = builder.dag.at_least(length, 20);
    let odd = length_mask(&mut builder.dag, 1);
    // Grow by eight bytes in front if the length is odd, shrink by four if it is even.
    let grow = builder.dag.mask_and(long, odd);
    let even = builder.dag.mask_not(odd);
    let shrink = builder.dag.mask_and(long, even);
    let (zero, minus, four) =
        (builder.dag.constant(0), builder.dag.constant(8_u32.wrapping_neg()), builder.dag.constant(4));
    let start = builder.dag.select(shrink, four, zero);
    let start = builder.dag.select(grow, minus, start);
    let eight = builder.dag.constant(8);
    let place = PacketAddress { start: Some(start), offset: zero };
    let count = builder.dag.select(grow, eight, zero);
    builder.effect(grow, Effect::ClearPacket { at: place, count });
    let value = builder.dag.constant(0x0a0b_0c0d);
    let place = PacketAddress { start: Some(start), offset: four };
    builder.effect(long, Effect::StorePacket { at: place, size: 2, value });
    let loaded = builder.effect(long, Effect::LoadPacket { at: place, size: 4 }).unwrap();
    let verdict = builder.dag.select(long, loaded, zero);
    let longer = builder.dag.binary(Binary::Subtract, length, start);
    let mut lanes = builder.lanes(verdict, &[], &[], true);
    lanes.ends = Some((start, longer));
    assert_agrees(&lanes, &traffic, &[], "packets that grow and shrink");
}

#[test]
fn lanes_access_the_same_map_word_in_order() {
    let traffic = traffic(128, 16);
    let maps = [vec![7; 16], (0..64).collect::<Vec<u32>>()];
    let mut builder = StepBuilder::new();
    let (mask, other) = (byte_mask(&mut builder.dag, 0, 1), byte_mask(&mut builder.dag, 1, 2));
    let byte = checked(&mut builder.dag, None, 2, 1);
    // Few words, so that lanes access the same one.
    let (few, more) = (builder.dag.and(byte, 3), builder.dag.and(byte, 0x3f));
    let value = checked(&mut builder.dag, None, 3, 4);
    let (zero, one) = (builder.dag.constant(0), builder.dag.constant(1));
    let always = builder.dag.flag(true);
    let mut sums = Vec::new();
    let atomics = [
        (mask, 0, few, Atomic::Add(one)),
        (always, 0, few, Atomic::Add(value)),
        (mask, 0, few, Atomic::Min(value)),
        (always, 0, few, Atomic::Max(byte)),
        (other, 0, few, Atomic::Or(one)),
        (other, 0, few, Atomic::Exchange(value)),
        (mask, 1, more, Atomic::Load),
        (other, 1, more, Atomic::Store(value)),
        (always, 1, more, Atomic::Load),
        (always, 0, few, Atomic::CompareExchange { expected: value, value: byte }),
        (mask, 0, few, Atomic::CompareExchange { expected: byte, value: one }),
        (mask, 0, few, Atomic::Load),
    ];
    for (mask, map, word, atomic) in atomics {
        if let Some(result) = builder.effect(mask, Effect::Map { map, word, atomic }) {
            sums.push(builder.dag.select(mask, result, zero));
        }
    }
    let verdict = mixed(&mut builder.dag, &sums);
    assert_agrees(&builder.lanes(verdict, &[], &[], false), &traffic, &maps, "maps");
}

#[test]
fn inactive_lanes_do_not_access_maps() {
    let traffic = traffic(64, 16);
    let mut builder = StepBuilder::new();
    let mask = byte_mask(&mut builder.dag, 0, 1);
    // In inactive lanes the index is far out of range.
    let (three, far, zero) = (builder.dag.constant(3), builder.dag.constant(0x7fff_0000), builder.dag.constant(0));
    let word = builder.dag.select(mask, three, far);
    let value = checked(&mut builder.dag, None, 0, 4);
    let atomics = [Atomic::Load, Atomic::Store(value), Atomic::Add(value), Atomic::Exchange(value), Atomic::Load];
    let results = atomics.map(|atomic| builder.effect(mask, Effect::Map { map: 0, word, atomic }));
    let sums: Vec<_> = results.into_iter().flatten().map(|node| builder.dag.select(mask, node, zero)).collect();
    let verdict = mixed(&mut builder.dag, &sums);
    assert_agrees(&builder.lanes(verdict, &[], &[], false), &traffic, &[vec![5; 4]], "words outside");
}

#[test]
fn arrays_are_private_to_a_lane_and_tables_are_shared() {
    let traffic = traffic(64, 24);
    for words in [4, 16, 40] {
        let mut builder = StepBuilder::new();
        let (mask, other) = (byte_mask(&mut builder.dag, 0, 1), byte_mask(&mut builder.dag, 1, 2));
        let always = builder.dag.flag(true);
        let value = checked(&mut builder.dag, None, 4, 4);
        let byte = checked(&mut builder.dag, None, 2, 1);
        let size = builder.dag.constant(words);
        let index = builder.dag.binary(Binary::Modulo, byte, size);
        let (first, nine) = (builder.dag.constant(1), builder.dag.constant(9));
        let array = 1;
        let effects = [
            (always, Effect::ArrayFill { array, value: nine }),
            (mask, Effect::ArrayFill { array, value }),
            (other, Effect::ArrayStore { array, index, value: byte }),
            (mask, Effect::ArrayStore { array, index: first, value: nine }),
            (always, Effect::ArrayStore { array: 0, index: first, value }),
            (always, Effect::ArrayStore { array, index, value: index }),
        ];
        for (mask, effect) in effects {
            builder.effect(mask, effect);
        }
        let mut sums = Vec::new();
        for (array, index) in [(1, index), (1, first), (0, first)] {
            sums.push(builder.effect(always, Effect::ArrayLoad { array, index }).unwrap());
        }
        for place in 0..words {
            let index = builder.dag.constant(place);
            sums.push(builder.effect(always, Effect::ArrayLoad { array, index }).unwrap());
        }
        let table = [vec![1, 2, 3], (0..words).map(|i| i * i + 5).collect()];
        sums.push(builder.dag.table(1, index, Range::ALL));
        let verdict = mixed(&mut builder.dag, &sums);
        assert_agrees(&builder.lanes(verdict, &[2, words], &table, false), &traffic, &[], &format!("{words} words"));
    }
}

#[test]
fn a_region_without_active_lanes_is_skipped() {
    // Groups in which all lanes are active, in which none is, and mixed ones.
    let mut random = Random(5);
    let mut packets = traffic(128, 24);
    for (i, packet) in packets.packets.iter_mut().enumerate() {
        if let Some(byte) = packet.first_mut() {
            *byte = [0, 1, random.next() as u8][i / 4 % 3];
        }
    }
    let mut builder = StepBuilder::new();
    let mask = byte_mask(&mut builder.dag, 0, 1);
    let (one, zero) = (builder.dag.constant(1), builder.dag.constant(0));
    let value = checked(&mut builder.dag, None, 4, 4);
    let body = builder.open_region();
    let before = builder.effect(mask, Effect::Map { map: 0, word: one, atomic: Atomic::Add(value) }).unwrap();
    let sum = builder.dag.binary(Binary::Add, before, value);
    // A range without zero: the output of a skipped region has to be in it all the same.
    let index = builder.dag.and(value, 3);
    let index = builder.dag.add_constant(index, 5);
    let bit = byte_mask(&mut builder.dag, 5, 1);
    let range = builder.dag.range(index);
    builder.close_region(body, Step::When { mask, body, outs: vec![sum, index, bit] });
    let around = builder.at;
    let sum = builder.dag.out(body, 0, ValueKind::Word, around, Range::ALL);
    let index = builder.dag.out(body, 1, ValueKind::Word, around, range);
    let bit = builder.dag.out(body, 2, ValueKind::Mask, around, Range::ALL);
    let index = builder.dag.add_constant(index, 5_u32.wrapping_neg());
    let from_table = builder.dag.table(0, index, Range::ALL);
    let bit = builder.dag.word_from_mask(bit);
    let all: Vec<_> = [sum, from_table, bit].map(|node| builder.dag.select(mask, node, zero)).into();
    let verdict = mixed(&mut builder.dag, &all);
    assert_agrees(
        &builder.lanes(verdict, &[], &[vec![10, 11, 12, 13]], false),
        &packets,
        &[vec![0; 3]],
        "a body left out",
    );
}

#[test]
fn lanes_leave_loops_independently() {
    let Traffic { mut packets, metadata } = traffic(128, 24);
    for (i, packet) in packets.iter_mut().enumerate() {
        if let Some(byte) = packet.first_mut() {
            *byte = (i * 7 % 23) as u8;
        }
    }
    let mut builder = StepBuilder::new();
    let most = checked(&mut builder.dag, None, 0, 1);
    let seed = checked(&mut builder.dag, None, 4, 4);
    let (zero, one) = (builder.dag.constant(0), builder.dag.constant(1));
    let first_live = builder.dag.nonzero_mask(most);
    let body = builder.open_region();
    let live = builder.dag.live(body);
    let count = builder.dag.loop_carried(body, 0, ValueKind::Word);
    let value = builder.dag.loop_carried(body, 1, ValueKind::Word);
    let flag = builder.dag.loop_carried(body, 2, ValueKind::Mask);
    builder.effect(live, Effect::Map { map: 0, word: zero, atomic: Atomic::Add(one) });
    // An inner loop, of the lanes whose flag is set.
    let inner_live = builder.dag.mask_and(live, flag);
    let three = builder.dag.constant(3);
    let inner = builder.open_region();
    let inner_count = builder.dag.loop_carried(inner, 0, ValueKind::Word);
    let inner_is_live = builder.dag.live(inner);
    builder.effect(inner_is_live, Effect::Map { map: 0, word: one, atomic: Atomic::Add(seed) });
    let next = builder.dag.add_constant(inner_count, 1);
    let goes_on = builder.dag.compare(Compare::Less, next, three);
    let inner_lives = LoopMask { initial: inner_live, next: goes_on };
    let carried = vec![LoopCarried { initial: count, next, on_exit: next }];
    builder.close_region(inner, Step::Loop { live: inner_lives, carried, body: inner });
    let around = builder.at;
    let inner_out = builder.dag.out(inner, 0, ValueKind::Word, around, Range::ALL);
    let factor = builder.dag.constant(0x0001_0193);
    let next_value = builder.dag.binary(Binary::Multiply, value, factor);
    let next_value = builder.dag.binary(Binary::Xor, next_value, inner_out);
    let next_count = builder.dag.add_constant(count, 1);
    let goes_on = builder.dag.compare(Compare::Less, next_count, most);
    let bit = builder.dag.and(next_value, 1);
    let next_flag = builder.dag.nonzero_mask(bit);
    let carried = vec![
        LoopCarried { initial: zero, next: next_count, on_exit: count },
        LoopCarried { initial: seed, next: next_value, on_exit: next_count },
        LoopCarried { initial: first_live, next: next_flag, on_exit: next_flag },
    ];
    let live = LoopMask { initial: first_live, next: goes_on };
    builder.close_region(body, Step::Loop { live, carried, body });
    let around = builder.at;
    let outs = [0, 1].map(|index| builder.dag.out(body, index, ValueKind::Word, around, Range::ALL));
    let flag = builder.dag.out(body, 2, ValueKind::Mask, around, Range::ALL);
    let flag = builder.dag.word_from_mask(flag);
    let verdict = mixed(&mut builder.dag, &[outs[0], outs[1], flag]);
    assert_agrees(&builder.lanes(verdict, &[], &[], false), &Traffic { packets, metadata }, &[vec![0; 2]], "loops");
}
