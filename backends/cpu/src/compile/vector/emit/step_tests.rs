//! The same for steps: effects, what is left out, loops.

use super::super::ir::*;
use super::super::testing::mixed;
use super::tests::{Random, Traffic, agree, checked, traffic};

/// Makes the steps of a filter, its regions in order.
struct Maker {
    dag: Dag,
    regions: Vec<Region>,
    effects: u32,
    at: RegionId,
}

impl Maker {
    fn new() -> Maker {
        Maker { dag: Dag::new(), regions: vec![Region::default()], effects: 0, at: RegionId::ROOT }
    }

    fn effect(&mut self, mask: Node, effect: Effect) -> Option<Node> {
        let id = EffectId(self.effects);
        self.effects += 1;
        let gives = effect.gives();
        let range = match effect {
            Effect::LoadPacket { size, .. } => Range::bytes(size),
            _ => Range::ALL,
        };
        self.regions[self.at.index()].steps.push(Step::Effect { id, mask, effect });
        gives.then(|| self.dag.result(id, self.at, range))
    }

    fn within(&mut self) -> RegionId {
        let body = self.dag.region(self.at);
        self.regions.push(Region { parent: Some(self.at), steps: Vec::new() });
        self.at = body;
        body
    }

    fn behind(&mut self, body: RegionId, step: Step) {
        self.at = self.regions[body.index()].parent.expect("a body is within something");
        self.regions[self.at.index()].steps.push(step);
    }

    fn lanes(self, verdict: Node, arrays: &[u32], tables: &[Vec<u32>], writes: bool) -> Lanes {
        let Maker { dag, regions, .. } = self;
        Lanes { dag, regions, arrays: arrays.to_vec(), tables: tables.to_vec(), verdict, ends: None, writes }
    }
}

/// A mask that is on in some lanes.
fn some(dag: &mut Dag, at: u32, bit: u32) -> Node {
    let byte = checked(dag, None, at, 1);
    let bit = dag.and(byte, bit);
    dag.not_zero(bit)
}

/// A mask that is on in some lanes, of a filter that writes to its packets.
fn some_by_length(dag: &mut Dag, bit: u32) -> Node {
    let length = dag.length();
    let bit = dag.and(length, bit);
    dag.not_zero(bit)
}

#[test]
fn packets_are_written_where_the_mask_is_on() {
    let traffic = traffic(64, 40);
    for size in [1, 2, 4] {
        let mut maker = Maker::new();
        let mut sums = Vec::new();
        for (at, bit) in [(0, 1), (5, 2), (9, 4), (2, 1)] {
            let length = maker.dag.length();
            let inside = maker.dag.at_least(length, at + size);
            let bit = some_by_length(&mut maker.dag, bit);
            let mask = maker.dag.both(inside, bit);
            let offset = maker.dag.constant(at);
            let place = Place { start: None, offset };
            let before = maker.effect(inside, Effect::LoadPacket { at: place, size }).unwrap();
            let factor = maker.dag.constant(0x0103_0507);
            let value = maker.dag.binary(Binary::Multiply, before, factor);
            let value = maker.dag.unary(Unary::Invert, value);
            maker.effect(mask, Effect::StorePacket { at: place, size, value });
            let after = maker.effect(inside, Effect::LoadPacket { at: place, size }).unwrap();
            let zero = maker.dag.constant(0);
            sums.extend([before, after].map(|node| maker.dag.select(inside, node, zero)));
        }
        let verdict = mixed(&mut maker.dag, &sums);
        agree(&maker.lanes(verdict, &[], &[], true), &traffic, &[], &format!("{size} bytes written"));
    }
}

#[test]
fn packets_grow_and_shrink() {
    let traffic = traffic(64, 40);
    let mut maker = Maker::new();
    let length = maker.dag.length();
    let long = maker.dag.at_least(length, 20);
    let odd = some_by_length(&mut maker.dag, 1);
    // Eight bytes more in front where the length is odd, four less where it is even.
    let grow = maker.dag.both(long, odd);
    let even = maker.dag.not(odd);
    let shrink = maker.dag.both(long, even);
    let (zero, minus, four) = (maker.dag.constant(0), maker.dag.constant(8_u32.wrapping_neg()), maker.dag.constant(4));
    let start = maker.dag.select(shrink, four, zero);
    let start = maker.dag.select(grow, minus, start);
    let eight = maker.dag.constant(8);
    let place = Place { start: Some(start), offset: zero };
    let count = maker.dag.select(grow, eight, zero);
    maker.effect(grow, Effect::ClearPacket { at: place, count });
    let value = maker.dag.constant(0x0a0b_0c0d);
    let place = Place { start: Some(start), offset: four };
    maker.effect(long, Effect::StorePacket { at: place, size: 2, value });
    let loaded = maker.effect(long, Effect::LoadPacket { at: place, size: 4 }).unwrap();
    let verdict = maker.dag.select(long, loaded, zero);
    let longer = maker.dag.binary(Binary::Subtract, length, start);
    let mut lanes = maker.lanes(verdict, &[], &[], true);
    lanes.ends = Some((start, longer));
    agree(&lanes, &traffic, &[], "packets that grow and shrink");
}

#[test]
fn lanes_that_meet_in_a_map_come_in_order() {
    let traffic = traffic(128, 16);
    let maps = [vec![7; 16], (0..64).collect::<Vec<u32>>()];
    let mut maker = Maker::new();
    let (mask, other) = (some(&mut maker.dag, 0, 1), some(&mut maker.dag, 1, 2));
    let byte = checked(&mut maker.dag, None, 2, 1);
    // So few words that lanes meet.
    let (few, more) = (maker.dag.and(byte, 3), maker.dag.and(byte, 0x3f));
    let value = checked(&mut maker.dag, None, 3, 4);
    let (zero, one) = (maker.dag.constant(0), maker.dag.constant(1));
    let always = maker.dag.flag(true);
    let mut sums = Vec::new();
    let atomics = [
        (mask, 0, few, Atomic::Add(one)),
        (always, 0, few, Atomic::Add(value)),
        (other, 0, few, Atomic::Exchange(value)),
        (mask, 1, more, Atomic::Load),
        (other, 1, more, Atomic::Store(value)),
        (always, 1, more, Atomic::Load),
        (always, 0, few, Atomic::CompareExchange { expected: value, value: byte }),
        (mask, 0, few, Atomic::CompareExchange { expected: byte, value: one }),
        (mask, 0, few, Atomic::Load),
    ];
    for (mask, map, word, atomic) in atomics {
        if let Some(result) = maker.effect(mask, Effect::Map { map, word, atomic }) {
            sums.push(maker.dag.select(mask, result, zero));
        }
    }
    let verdict = mixed(&mut maker.dag, &sums);
    agree(&maker.lanes(verdict, &[], &[], false), &traffic, &maps, "maps");
}

#[test]
fn words_out_of_a_map_are_asked_for_in_lanes_that_are_on_alone() {
    let traffic = traffic(64, 16);
    let mut maker = Maker::new();
    let mask = some(&mut maker.dag, 0, 1);
    // In lanes that are off the word is far outside.
    let (three, far, zero) = (maker.dag.constant(3), maker.dag.constant(0x7fff_0000), maker.dag.constant(0));
    let word = maker.dag.select(mask, three, far);
    let value = checked(&mut maker.dag, None, 0, 4);
    let atomics = [Atomic::Load, Atomic::Store(value), Atomic::Add(value), Atomic::Exchange(value), Atomic::Load];
    let results = atomics.map(|atomic| maker.effect(mask, Effect::Map { map: 0, word, atomic }));
    let sums: Vec<_> = results.into_iter().flatten().map(|node| maker.dag.select(mask, node, zero)).collect();
    let verdict = mixed(&mut maker.dag, &sums);
    agree(&maker.lanes(verdict, &[], &[], false), &traffic, &[vec![5; 4]], "words outside");
}

#[test]
fn arrays_are_each_lanes_own_and_tables_everybodys() {
    let traffic = traffic(64, 24);
    for words in [4, 16, 40] {
        let mut maker = Maker::new();
        let (mask, other) = (some(&mut maker.dag, 0, 1), some(&mut maker.dag, 1, 2));
        let always = maker.dag.flag(true);
        let value = checked(&mut maker.dag, None, 4, 4);
        let byte = checked(&mut maker.dag, None, 2, 1);
        let size = maker.dag.constant(words);
        let index = maker.dag.binary(Binary::Modulo, byte, size);
        let (first, nine) = (maker.dag.constant(1), maker.dag.constant(9));
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
            maker.effect(mask, effect);
        }
        let mut sums = Vec::new();
        for (array, index) in [(1, index), (1, first), (0, first)] {
            sums.push(maker.effect(always, Effect::ArrayLoad { array, index }).unwrap());
        }
        for place in 0..words {
            let index = maker.dag.constant(place);
            sums.push(maker.effect(always, Effect::ArrayLoad { array, index }).unwrap());
        }
        let table = [vec![1, 2, 3], (0..words).map(|i| i * i + 5).collect()];
        sums.push(maker.dag.table(1, index, Range::ALL));
        let verdict = mixed(&mut maker.dag, &sums);
        agree(&maker.lanes(verdict, &[2, words], &table, false), &traffic, &[], &format!("{words} words"));
    }
}

#[test]
fn what_no_lane_needs_is_left_out() {
    // In some groups all lanes take part, in some none.
    let mut random = Random(5);
    let mut packets = traffic(128, 24);
    for (i, packet) in packets.packets.iter_mut().enumerate() {
        if let Some(byte) = packet.first_mut() {
            *byte = [0, 1, random.next() as u8][i / 4 % 3];
        }
    }
    let mut maker = Maker::new();
    let mask = some(&mut maker.dag, 0, 1);
    let (one, zero) = (maker.dag.constant(1), maker.dag.constant(0));
    let value = checked(&mut maker.dag, None, 4, 4);
    let body = maker.within();
    let before = maker.effect(mask, Effect::Map { map: 0, word: one, atomic: Atomic::Add(value) }).unwrap();
    let sum = maker.dag.binary(Binary::Add, before, value);
    // Of a range that leaves zero out: what comes out of a body that was left out has to be in it.
    let index = maker.dag.and(value, 3);
    let index = maker.dag.add_constant(index, 5);
    let bit = some(&mut maker.dag, 5, 1);
    let range = maker.dag.range(index);
    maker.behind(body, Step::When { mask, body, outs: vec![sum, index, bit] });
    let around = maker.at;
    let sum = maker.dag.out(body, 0, Kind::Word, around, Range::ALL);
    let index = maker.dag.out(body, 1, Kind::Word, around, range);
    let bit = maker.dag.out(body, 2, Kind::Mask, around, Range::ALL);
    let index = maker.dag.add_constant(index, 5_u32.wrapping_neg());
    let from_table = maker.dag.table(0, index, Range::ALL);
    let bit = maker.dag.word_of(bit);
    let all: Vec<_> = [sum, from_table, bit].map(|node| maker.dag.select(mask, node, zero)).into();
    let verdict = mixed(&mut maker.dag, &all);
    agree(&maker.lanes(verdict, &[], &[vec![10, 11, 12, 13]], false), &packets, &[vec![0; 3]], "a body left out");
}

#[test]
fn lanes_leave_loops_when_they_are_done() {
    let Traffic { mut packets, metadata } = traffic(128, 24);
    for (i, packet) in packets.iter_mut().enumerate() {
        if let Some(byte) = packet.first_mut() {
            *byte = (i * 7 % 23) as u8;
        }
    }
    let mut maker = Maker::new();
    let most = checked(&mut maker.dag, None, 0, 1);
    let seed = checked(&mut maker.dag, None, 4, 4);
    let (zero, one) = (maker.dag.constant(0), maker.dag.constant(1));
    let first_live = maker.dag.not_zero(most);
    let body = maker.within();
    let live = maker.dag.live(body);
    let count = maker.dag.carried(body, 0, Kind::Word);
    let value = maker.dag.carried(body, 1, Kind::Word);
    let flag = maker.dag.carried(body, 2, Kind::Mask);
    maker.effect(live, Effect::Map { map: 0, word: zero, atomic: Atomic::Add(one) });
    // A loop in a loop, of the lanes in which the flag is on.
    let inner_live = maker.dag.both(live, flag);
    let three = maker.dag.constant(3);
    let inner = maker.within();
    let inner_count = maker.dag.carried(inner, 0, Kind::Word);
    let inner_is_live = maker.dag.live(inner);
    maker.effect(inner_is_live, Effect::Map { map: 0, word: one, atomic: Atomic::Add(seed) });
    let next = maker.dag.add_constant(inner_count, 1);
    let goes_on = maker.dag.compare(Compare::Less, next, three);
    let inner_lives = Live { first: inner_live, next: goes_on };
    let carried = vec![Carry { first: count, next, left: next }];
    maker.behind(inner, Step::Loop { live: inner_lives, carried, body: inner });
    let around = maker.at;
    let inner_out = maker.dag.out(inner, 0, Kind::Word, around, Range::ALL);
    let factor = maker.dag.constant(0x0001_0193);
    let next_value = maker.dag.binary(Binary::Multiply, value, factor);
    let next_value = maker.dag.binary(Binary::Xor, next_value, inner_out);
    let next_count = maker.dag.add_constant(count, 1);
    let goes_on = maker.dag.compare(Compare::Less, next_count, most);
    let bit = maker.dag.and(next_value, 1);
    let next_flag = maker.dag.not_zero(bit);
    let carried = vec![
        Carry { first: zero, next: next_count, left: count },
        Carry { first: seed, next: next_value, left: next_count },
        Carry { first: first_live, next: next_flag, left: next_flag },
    ];
    let live = Live { first: first_live, next: goes_on };
    maker.behind(body, Step::Loop { live, carried, body });
    let around = maker.at;
    let outs = [0, 1].map(|index| maker.dag.out(body, index, Kind::Word, around, Range::ALL));
    let flag = maker.dag.out(body, 2, Kind::Mask, around, Range::ALL);
    let flag = maker.dag.word_of(flag);
    let verdict = mixed(&mut maker.dag, &[outs[0], outs[1], flag]);
    agree(&maker.lanes(verdict, &[], &[], false), &Traffic { packets, metadata }, &[vec![0; 2]], "loops");
}
