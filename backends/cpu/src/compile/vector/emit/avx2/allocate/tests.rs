use super::super::encode::Opcode;
use super::*;

fn row(listing: &mut Listing) -> Vector {
    let to = listing.vector();
    listing.instructions.push(Instruction::Row { to, lane: 0, at: 0 });
    to
}

fn sum(listing: &mut Listing, a: Vector, b: Vector) -> Vector {
    let to = listing.vector();
    listing.instructions.push(Instruction::Binary { op: Opcode::Add, to, a, b: Source::Vector(b) });
    to
}

/// What is where, as the code is executed: whoever reads a vector must find what was last written to it.
struct Places<'a> {
    listing: &'a Listing,
    homes: &'a Homes,
    there: HashMap<Home, Vector>,
}

impl Places<'_> {
    /// `skips`: whether a part is left out that begins somewhere. Loops go round twice.
    fn execute(&mut self, skips: &mut impl FnMut() -> bool) {
        let ends = exits(self.listing);
        let (mut at, mut loops) = (0, Vec::new());
        while let Some(instruction) = self.listing.instructions.get(at) {
            match instruction {
                Instruction::Enter if skips() => {
                    at = ends[&at] + 1;
                    continue;
                }
                Instruction::Loop => loops.push((at, 0)),
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
        if let Some(verdict) = self.listing.verdict {
            assert_eq!(self.there.get(&self.homes.homes[verdict.0]), Some(&verdict), "the verdict");
        }
    }

    fn step(&mut self, at: usize) {
        let Places { listing, homes, there } = self;
        let instruction = &listing.instructions[at];
        for &(register, place) in homes.parked.get(&at).into_iter().flatten() {
            let (register, place) = (Home::Register(register), Home::Memory(place));
            let (from, to) = if *instruction == Instruction::Enter { (register, place) } else { (place, register) };
            match there.get(&from) {
                Some(&vector) => there.insert(to, vector),
                None => there.remove(&to),
            };
        }
        for vector in instruction.reads() {
            let home = homes.homes[vector.0];
            assert_ne!(home, Home::Nowhere);
            assert_eq!(there.get(&home), Some(&vector), "{at}: {instruction:?} reads {home:?}");
        }
        there.extend(instruction.writes().map(|vector| (homes.homes[vector.0], vector)));
    }
}

/// With every part executed, and with none of those that are not within another.
fn check(listing: &Listing, homes: &Homes) {
    for skips in [false, true] {
        Places { listing, homes, there: HashMap::new() }.execute(&mut || skips);
    }
}

/// D. Knuth's linear congruence for MMIX, of which the high bits are used.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Code of every shape that is made: parts in parts, loops in parts, vectors that are written again in them.
fn random_code(random: &mut Random, listing: &mut Listing, there: &mut Vec<Vector>, depth: usize) {
    let outside = there.len();
    for _ in 0..random.below(24) + 4 {
        let any = |random: &mut Random, there: &[Vector]| there[random.below(there.len())];
        match random.below(12) {
            0..4 => there.push(row(listing)),
            4..8 => {
                let (a, b) = (any(random, there), any(random, there));
                there.push(sum(listing, a, b));
            }
            8 if depth > 0 => {
                let (to, from) = (there[random.below(outside)], Source::Vector(any(random, there)));
                listing.instructions.push(Instruction::Move { to, from });
            }
            kind @ 9..12 if depth < 4 => {
                let is_loop = kind == 11;
                listing.instructions.push(Instruction::Enter);
                listing.instructions.extend(is_loop.then_some(Instruction::Loop));
                let outer = there.len();
                random_code(random, listing, there, depth + 1);
                there.truncate(outer);
                listing.instructions.extend(is_loop.then_some(Instruction::EndLoop));
                listing.instructions.push(Instruction::Exit);
            }
            _ => {}
        }
    }
}

#[test]
fn whoever_reads_a_vector_finds_it_in_random_code() {
    let (mut parked, mut spilled) = (0, 0);
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut listing = Listing::default();
        let mut there = (0..random.below(24) + 1).map(|_| row(&mut listing)).collect();
        random_code(&mut random, &mut listing, &mut there, 0);
        listing.verdict = there.pop();
        let homes = allocate(&listing);
        check(&listing, &homes);
        for _ in 0..4 {
            let mut places = Places { listing: &listing, homes: &homes, there: HashMap::new() };
            places.execute(&mut || random.below(2) == 0);
        }
        parked += homes.parked.len();
        spilled += homes.homes.iter().filter(|home| matches!(home, Home::Memory(_))).count();
    }
    assert!(parked > 400 && spilled > 400, "{parked} parts, {spilled} in memory");
}

#[test]
fn places_are_taken_again() {
    let mut listing = Listing::default();
    let kept: Vec<Vector> = (0..REGISTERS).map(|_| row(&mut listing)).collect();
    let mut last = kept[0];
    for _ in 0..100 {
        let two = [row(&mut listing), row(&mut listing)];
        last = sum(&mut listing, two[0], two[1]);
    }
    for &row in &kept {
        last = sum(&mut listing, last, row);
    }
    listing.verdict = Some(last);
    let homes = allocate(&listing);
    check(&listing, &homes);
    assert!(homes.places <= 3, "{}", homes.places);
}

#[test]
fn what_is_needed_longest_goes_to_memory() {
    let mut listing = Listing::default();
    let rows: Vec<Vector> = (0..REGISTERS + 6).map(|_| row(&mut listing)).collect();
    let mut last = rows[0];
    for &row in &rows[1..] {
        last = sum(&mut listing, last, row);
    }
    listing.verdict = Some(last);
    let homes = allocate(&listing);
    check(&listing, &homes);
    assert!((6..=7).contains(&homes.places), "{}", homes.places);
    assert!(matches!(homes.homes[rows[0].0], Home::Register(_)));
}

#[test]
fn registers_are_taken_again() {
    let mut listing = Listing::default();
    let mut last = row(&mut listing);
    for _ in 0..100 {
        let other = row(&mut listing);
        last = sum(&mut listing, last, other);
    }
    listing.verdict = Some(last);
    let homes = allocate(&listing);
    check(&listing, &homes);
    assert_eq!(homes.places, 0);
}

#[test]
fn what_a_loop_reads_stays_where_it_is_to_its_end() {
    let mut listing = Listing::default();
    let outside = row(&mut listing);
    listing.instructions.push(Instruction::Loop);
    let inside = row(&mut listing);
    sum(&mut listing, outside, inside);
    let behind: Vec<Vector> = (0..REGISTERS).map(|_| row(&mut listing)).collect();
    for pair in behind.windows(2) {
        sum(&mut listing, pair[0], pair[1]);
    }
    listing.instructions.push(Instruction::EndLoop);
    let homes = allocate(&listing);
    check(&listing, &homes);
    let others = homes.homes.iter().skip(1).filter(|&&home| home == homes.homes[outside.0]).count();
    assert_eq!(others, 0, "the second round would find something else there");
}

#[test]
fn what_is_written_and_never_read_is_in_nobodys_place() {
    let mut listing = Listing::default();
    let kept = row(&mut listing);
    let unread = row(&mut listing);
    let other = row(&mut listing);
    sum(&mut listing, kept, other);
    let homes = allocate(&listing);
    check(&listing, &homes);
    assert_ne!(homes.homes[unread.0], homes.homes[kept.0]);
}

#[test]
fn what_a_part_does_not_touch_is_put_aside_for_it() {
    let mut listing = Listing::default();
    let outside: Vec<Vector> = (0..REGISTERS - 2).map(|_| row(&mut listing)).collect();
    listing.instructions.push(Instruction::Enter);
    let rows: Vec<Vector> = (0..5).map(|_| row(&mut listing)).collect();
    listing.instructions.push(Instruction::Enter);
    let inner: Vec<Vector> = (0..5).map(|_| row(&mut listing)).collect();
    let mut last = inner[0];
    for &row in &inner[1..] {
        last = sum(&mut listing, last, row);
    }
    listing.instructions.push(Instruction::Exit);
    let mut last = sum(&mut listing, outside[3], rows[0]);
    for &row in &rows[1..] {
        last = sum(&mut listing, last, row);
    }
    listing.instructions.push(Instruction::Exit);
    let mut last = outside[0];
    for &row in &outside[1..] {
        last = sum(&mut listing, last, row);
    }
    listing.verdict = Some(last);
    let homes = allocate(&listing);
    check(&listing, &homes);
    let in_memory = homes.homes.iter().filter(|home| matches!(home, Home::Memory(_))).count();
    assert_eq!(in_memory, 0, "{:?}", homes.homes);
    assert_eq!((homes.parked.len(), homes.places), (2, 8), "{:?}", homes.parked);
}
