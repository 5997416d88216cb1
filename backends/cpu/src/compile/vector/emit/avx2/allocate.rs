//! Which vector is in which register, by a linear scan.
//!
//! M. Poletto, V. Sarkar: Linear Scan Register Allocation, ACM TOPLAS 21 (5), 1999. A vector is in one place as long as it is
//! needed: in a register, or where there are too few, in memory. That is from where it is first written to where it is last
//! read, and to the end of each loop around that which it was there before.
//!
//! But code that is seldom executed shall not take registers from what is executed always: in such a part, vectors that it does
//! not touch are put aside first.

use std::collections::HashMap;

use super::encode::Register;
use super::vcode::{Instruction, Listing, Source, Vector};

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
mod tests;
