//! Which vector is in which register, by a linear scan.
//!
//! M. Poletto, V. Sarkar: Linear Scan Register Allocation, ACM TOPLAS 21 (5), 1999. A vector is in one place as long as it is
//! needed: in a register, or where there are too few, in memory. That is from where it is first written to where it is last
//! read, and to the end of each loop around that which it was there before.
//!
//! But code that is seldom executed shall not take registers from what is executed always: in such a part, vectors that it does
//! not touch are put aside first.

use std::collections::HashMap;

use super::code::{Instruction, Listing, Source, Vector};
use super::encode::Register;

/// Registers for vectors; the two behind them are for what is under way between memory and memory.
pub(super) const REGISTERS: u8 = 14;

/// Where a vector is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Home {
    Register(Register),
    /// The n-th place in the frame.
    Memory(usize),
    /// It is never needed.
    Nowhere,
}

pub(super) struct Homes {
    /// By vectors' numbers.
    pub homes: Vec<Home>,
    /// What is put into the frame where seldom executed code begins, and comes back where it ends: by the number of
    /// [`Instruction::Enter`] or [`Instruction::Exit`], which register and which place.
    pub parked: HashMap<usize, Vec<(Register, usize)>>,
    /// How many places there are in the frame.
    pub places: usize,
}

#[derive(Debug, Clone, Copy)]
struct Interval {
    vector: Vector,
    /// By instructions' numbers, from one's end to one's beginning.
    start: usize,
    end: usize,
    /// It had best be where this one is, which ends where it begins.
    like: Option<Vector>,
}

/// Seldom executed code that the scan is in.
struct Part {
    enter: usize,
    exit: usize,
    /// Vectors in registers that it does not touch, and that are needed behind it.
    untouched: Vec<Vector>,
}

/// A vector that is not in its register as long as the scan is in this part.
struct Parked {
    vector: Vector,
    register: Register,
    place: usize,
    exit: usize,
}

/// A place in the frame.
#[derive(Clone, Copy)]
struct Place {
    number: usize,
    /// The instruction up to which somebody needs what is there.
    end: usize,
}

struct Scan {
    homes: Homes,
    free: Vec<Register>,
    active: Vec<Interval>,
    /// The outermost first.
    parts: Vec<Part>,
    parked: Vec<Parked>,
    /// Places of vectors that are in memory.
    taken: Vec<Place>,
    /// Places that may be had again.
    left: Vec<Place>,
    /// Where each vector is read or written, in order.
    touches: Vec<Vec<usize>>,
}

pub(super) fn allocate(listing: &Listing) -> Homes {
    let (intervals, touches) = intervals(listing);
    let mut scan = Scan {
        homes: Homes { homes: vec![Home::Nowhere; listing.vectors], parked: HashMap::new(), places: 0 },
        free: (0..REGISTERS).rev().map(Register).collect(),
        active: Vec::new(),
        parts: Vec::new(),
        parked: Vec::new(),
        taken: Vec::new(),
        left: Vec::new(),
        touches,
    };
    let exits = exits(listing);
    let mut intervals = intervals.into_iter().peekable();
    for (at, instruction) in listing.instructions.iter().enumerate() {
        scan.expire(at);
        match instruction {
            Instruction::Enter => scan.enter(at, exits[&at]),
            Instruction::Exit => scan.exit(at),
            _ => {}
        }
        while let Some(interval) = intervals.next_if(|interval| interval.start == at) {
            scan.begin(interval);
        }
    }
    scan.homes
}

/// Where each part ends that begins somewhere.
fn exits(listing: &Listing) -> HashMap<usize, usize> {
    let (mut open, mut exits) = (Vec::new(), HashMap::new());
    for (at, instruction) in listing.instructions.iter().enumerate() {
        match instruction {
            Instruction::Enter => open.push(at),
            Instruction::Exit => {
                exits.insert(open.pop().expect("parts begin before they end"), at);
            }
            _ => {}
        }
    }
    exits
}

impl Scan {
    /// Whatever is not needed any more leaves its register, or its place.
    fn expire(&mut self, at: usize) {
        let Scan { homes, free, active, taken, left, .. } = self;
        active.retain(|interval| {
            let there = interval.end > at;
            if !there && let Home::Register(register) = homes.homes[interval.vector.0] {
                free.push(register);
            }
            there
        });
        left.extend(taken.extract_if(.., |place| place.end <= at));
    }

    fn enter(&mut self, enter: usize, exit: usize) {
        let touched = |vector: Vector| {
            let touches = &self.touches[vector.0];
            touches.get(touches.partition_point(|&at| at < enter)).is_some_and(|&at| at < exit)
        };
        let is_parked = |vector| self.parked.iter().any(|parked| parked.vector == vector);
        let untouched = self
            .active
            .iter()
            .map(|interval| interval.vector)
            .filter(|&vector| !touched(vector) && !is_parked(vector))
            .collect();
        self.parts.push(Part { enter, exit, untouched });
    }

    fn exit(&mut self, at: usize) {
        self.parts.pop();
        let Scan { parked, free, left, .. } = self;
        for parked in parked.extract_if(.., |parked| parked.exit == at) {
            // Whoever had it meanwhile began in the part, and ended in it.
            let register = free.iter().position(|&register| register == parked.register);
            free.swap_remove(register.expect("what begins in a part ends in it"));
            left.push(Place { number: parked.place, end: at });
        }
    }

    /// A place in which nothing is needed from an instruction on, which the scan may be beyond.
    fn place(&mut self, from: usize) -> usize {
        if let Some(at) = self.left.iter().position(|place| place.end <= from) {
            return self.left.swap_remove(at).number;
        }
        self.homes.places += 1;
        self.homes.places - 1
    }

    /// A register that can be had for the rest of a part: of a vector that goes into memory meanwhile.
    fn park(&mut self) -> Option<Register> {
        for number in 0..self.parts.len() {
            while let Some(vector) = self.parts[number].untouched.pop() {
                let Home::Register(register) = self.homes.homes[vector.0] else { continue };
                if self.parked.iter().any(|parked| parked.vector == vector) {
                    continue;
                }
                let Part { enter, exit, .. } = self.parts[number];
                let place = self.place(enter);
                for end in [enter, exit] {
                    self.homes.parked.entry(end).or_default().push((register, place));
                }
                self.parked.push(Parked { vector, register, place, exit });
                return Some(register);
            }
        }
        None
    }

    fn begin(&mut self, interval: Interval) {
        let homes = &self.homes.homes;
        let liked = interval.like.map(|like| homes[like.0]);
        let liked = liked.and_then(|like| self.free.iter().position(|&free| Home::Register(free) == like));
        let register = match liked {
            Some(at) => Some(self.free.swap_remove(at)),
            None => self.free.pop().or_else(|| self.park()),
        };
        if let Some(register) = register {
            self.homes.homes[interval.vector.0] = Home::Register(register);
            self.active.push(interval);
            return;
        }
        // The one that is needed longest goes to memory, of those that are in a register now.
        let is_parked = |vector| self.parked.iter().any(|parked| parked.vector == vector);
        let longest = (0..self.active.len())
            .filter(|&at| !is_parked(self.active[at].vector))
            .max_by_key(|&at| self.active[at].end)
            .filter(|&at| self.active[at].end > interval.end);
        // A vector is in one place from the first to the last: what was in a register till now never was.
        let spilled = longest.map_or(interval, |at| std::mem::replace(&mut self.active[at], interval));
        let number = self.place(spilled.start);
        self.taken.push(Place { number, end: spilled.end });
        let homes = &mut self.homes.homes;
        homes[interval.vector.0] = homes[spilled.vector.0];
        homes[spilled.vector.0] = Home::Memory(number);
    }
}

/// In the order in which they begin; and where each vector is read or written.
fn intervals(listing: &Listing) -> (Vec<Interval>, Vec<Vec<usize>>) {
    let mut touches: Vec<Vec<usize>> = vec![Vec::new(); listing.vectors];
    let mut all: Vec<Option<Interval>> = vec![None; listing.vectors];
    let mut loops = Vec::new();
    let mut open = Vec::new();
    for (at, instruction) in listing.instructions.iter().enumerate() {
        instruction.reads().chain(instruction.writes()).for_each(|vector| touches[vector.0].push(at));
        for vector in instruction.reads() {
            let interval = all[vector.0].as_mut().expect("what is read was written before");
            interval.end = at;
        }
        if let Some(vector) = instruction.writes() {
            let like = match *instruction {
                Instruction::Move { from: Source::Vector(from), .. } => Some(from),
                _ => None,
            };
            let interval = all[vector.0].get_or_insert(Interval { vector, start: at, end: at, like });
            // It is not to be written where something else is meanwhile, though nobody reads it.
            interval.end = at + 1;
        }
        match instruction {
            Instruction::Loop => open.push(at),
            Instruction::EndLoop => loops.push((open.pop().expect("loops begin before they end"), at)),
            _ => {}
        }
    }
    if let Some(verdict) = listing.verdict.and_then(|verdict| all[verdict.0].as_mut()) {
        verdict.end = listing.instructions.len();
    }
    let mut all: Vec<Interval> = all.into_iter().flatten().collect();
    // Inner loops end first.
    for (start, end) in loops {
        for interval in &mut all {
            if interval.start < start && interval.end > start && interval.end < end {
                interval.end = end;
            }
        }
    }
    all.sort_by_key(|interval| interval.start);
    (all, touches)
}

#[cfg(test)]
mod tests {
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
}
