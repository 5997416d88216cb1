use super::super::encode::VectorOp;
use super::*;
use crate::compile::vector::emit::tests::Random;

fn row(code: &mut VCode) -> VReg {
    let to = code.new_vreg();
    code.instructions.push(Instruction::Row { to, lane: 0, at: 0 });
    to
}

fn sum(code: &mut VCode, a: VReg, b: VReg) -> VReg {
    let to = code.new_vreg();
    code.instructions.push(Instruction::Binary { op: VectorOp::Add, to, a, b: Source::Vector(b) });
    to
}

/// Executes code on locations: every read must find the virtual register that was last written
/// written.
struct Simulator<'a> {
    code: &'a VCode,
    allocation: &'a Allocation,
    written: HashMap<Location, VReg>,
}

impl Simulator<'_> {
    /// `skips` decides for each conditional range whether it is skipped. Loops have two iterations.
    fn execute(&mut self, skips: &mut impl FnMut() -> bool) {
        let ends = conditional_exits(self.code);
        let (mut at, mut loops) = (0, Vec::new());
        while let Some(instruction) = self.code.instructions.get(at) {
            match instruction {
                Instruction::EnterConditional if skips() => {
                    at = ends[&at] + 1;
                    continue;
                }
                Instruction::BeginLoop => loops.push((at, 0)),
                Instruction::EndLoop => match loops.last_mut().unwrap() {
                    (start, rounds @ 0) => {
                        *rounds += 1;
                        at = *start;
                    }
                    _ => drop(loops.pop()),
                },
                _ => self.step(at),
            }
            at += 1;
        }
        if let Some(verdict) = self.code.verdict {
            assert_eq!(self.written.get(&self.allocation.locations[verdict.0]), Some(&verdict), "the verdict");
        }
    }

    fn step(&mut self, at: usize) {
        let Simulator { code, allocation, written } = self;
        let instruction = &code.instructions[at];
        for &(register, place) in allocation.spills.get(&at).into_iter().flatten() {
            let (register, place) = (Location::Register(register), Location::Slot(place));
            let (from, to) =
                if *instruction == Instruction::EnterConditional { (register, place) } else { (place, register) };
            match written.get(&from) {
                Some(&vector) => written.insert(to, vector),
                None => written.remove(&to),
            };
        }
        for vector in instruction.reads() {
            let location = allocation.locations[vector.0];
            assert_ne!(location, Location::Dead);
            assert_eq!(written.get(&location), Some(&vector), "{at}: {instruction:?} reads {location:?}");
        }
        written.extend(instruction.writes().map(|vector| (allocation.locations[vector.0], vector)));
    }
}

/// Executes all conditional ranges, then none.
fn check(code: &VCode, allocation: &Allocation) {
    for skips in [false, true] {
        Simulator { code, allocation, written: HashMap::new() }.execute(&mut || skips);
    }
}

/// Generates code of every shape that selection produces: nested conditional ranges, loops, and
/// virtual registers of the outside written again inside.
fn random_code(random: &mut Random, code: &mut VCode, written: &mut Vec<VReg>, depth: usize) {
    let outside = written.len();
    for _ in 0..random.below(24) + 4 {
        let any = |random: &mut Random, written: &[VReg]| written[random.below(written.len())];
        match random.below(12) {
            0..4 => written.push(row(code)),
            4..8 => {
                let (a, b) = (any(random, written), any(random, written));
                written.push(sum(code, a, b));
            }
            8 if depth > 0 => {
                let (to, from) = (written[random.below(outside)], Source::Vector(any(random, written)));
                code.instructions.push(Instruction::Move { to, from });
            }
            kind @ 9..12 if depth < 4 => {
                let is_loop = kind == 11;
                code.instructions.push(Instruction::EnterConditional);
                code.instructions.extend(is_loop.then_some(Instruction::BeginLoop));
                let outer = written.len();
                random_code(random, code, written, depth + 1);
                written.truncate(outer);
                code.instructions.extend(is_loop.then_some(Instruction::EndLoop));
                code.instructions.push(Instruction::ExitConditional);
            }
            _ => {}
        }
    }
}

#[test]
fn reads_find_what_was_written_in_random_code() {
    let (mut ranges, mut spilled) = (0, 0);
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut code = VCode::default();
        let mut written = (0..random.below(24) + 1).map(|_| row(&mut code)).collect();
        random_code(&mut random, &mut code, &mut written, 0);
        code.verdict = written.pop();
        let allocation = allocate(&code);
        check(&code, &allocation);
        for _ in 0..4 {
            let mut places = Simulator { code: &code, allocation: &allocation, written: HashMap::new() };
            places.execute(&mut || random.below(2) == 0);
        }
        ranges += allocation.spills.len();
        spilled += allocation.locations.iter().filter(|location| matches!(location, Location::Slot(_))).count();
    }
    assert!(ranges > 400 && spilled > 400, "{ranges} ranges with spills, {spilled} in the frame");
}

#[test]
fn frame_slots_are_reused() {
    let mut code = VCode::default();
    let kept: Vec<VReg> = (0..REGISTERS).map(|_| row(&mut code)).collect();
    let mut last = kept[0];
    for _ in 0..100 {
        let two = [row(&mut code), row(&mut code)];
        last = sum(&mut code, two[0], two[1]);
    }
    for &row in &kept {
        last = sum(&mut code, last, row);
    }
    code.verdict = Some(last);
    let allocation = allocate(&code);
    check(&code, &allocation);
    assert!(allocation.slots <= 3, "{}", allocation.slots);
}

#[test]
fn the_longest_interval_is_spilled() {
    let mut code = VCode::default();
    let rows: Vec<VReg> = (0..REGISTERS + 6).map(|_| row(&mut code)).collect();
    let mut last = rows[0];
    for &row in &rows[1..] {
        last = sum(&mut code, last, row);
    }
    code.verdict = Some(last);
    let allocation = allocate(&code);
    check(&code, &allocation);
    assert!((6..=7).contains(&allocation.slots), "{}", allocation.slots);
    assert!(matches!(allocation.locations[rows[0].0], Location::Register(_)));
}

#[test]
fn registers_are_reused() {
    let mut code = VCode::default();
    let mut last = row(&mut code);
    for _ in 0..100 {
        let other = row(&mut code);
        last = sum(&mut code, last, other);
    }
    code.verdict = Some(last);
    let allocation = allocate(&code);
    check(&code, &allocation);
    assert_eq!(allocation.slots, 0);
}

#[test]
fn a_value_that_is_live_into_a_loop_keeps_its_register_to_the_end() {
    let mut code = VCode::default();
    let outside = row(&mut code);
    code.instructions.push(Instruction::BeginLoop);
    let inside = row(&mut code);
    sum(&mut code, outside, inside);
    let behind: Vec<VReg> = (0..REGISTERS).map(|_| row(&mut code)).collect();
    for pair in behind.windows(2) {
        sum(&mut code, pair[0], pair[1]);
    }
    code.instructions.push(Instruction::EndLoop);
    let allocation = allocate(&code);
    check(&code, &allocation);
    let others =
        allocation.locations.iter().skip(1).filter(|&&location| location == allocation.locations[outside.0]).count();
    assert_eq!(others, 0, "the second iteration would find something else there");
}

#[test]
fn an_unread_value_does_not_overwrite_another() {
    let mut code = VCode::default();
    let kept = row(&mut code);
    let unread = row(&mut code);
    let other = row(&mut code);
    sum(&mut code, kept, other);
    let allocation = allocate(&code);
    check(&code, &allocation);
    assert_ne!(allocation.locations[unread.0], allocation.locations[kept.0]);
}

#[test]
fn untouched_registers_are_spilled_around_a_conditional_range() {
    let mut code = VCode::default();
    let outside: Vec<VReg> = (0..REGISTERS - 2).map(|_| row(&mut code)).collect();
    code.instructions.push(Instruction::EnterConditional);
    let rows: Vec<VReg> = (0..5).map(|_| row(&mut code)).collect();
    code.instructions.push(Instruction::EnterConditional);
    let inner: Vec<VReg> = (0..5).map(|_| row(&mut code)).collect();
    let mut last = inner[0];
    for &row in &inner[1..] {
        last = sum(&mut code, last, row);
    }
    code.instructions.push(Instruction::ExitConditional);
    let mut last = sum(&mut code, outside[3], rows[0]);
    for &row in &rows[1..] {
        last = sum(&mut code, last, row);
    }
    code.instructions.push(Instruction::ExitConditional);
    let mut last = outside[0];
    for &row in &outside[1..] {
        last = sum(&mut code, last, row);
    }
    code.verdict = Some(last);
    let allocation = allocate(&code);
    check(&code, &allocation);
    let in_memory = allocation.locations.iter().filter(|location| matches!(location, Location::Slot(_))).count();
    assert_eq!(in_memory, 0, "{:?}", allocation.locations);
    assert_eq!((allocation.spills.len(), allocation.slots), (2, 8), "{:?}", allocation.spills);
}
