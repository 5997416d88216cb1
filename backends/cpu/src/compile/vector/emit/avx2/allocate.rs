//! Register allocation by linear scan, with spilling around conditional code.
//!
//! M. Poletto, V. Sarkar: Linear Scan Register Allocation, ACM TOPLAS 21 (5), 1999. A virtual
//! register has one location for its whole live interval: a register, or a slot in the frame if
//! there are too few. The interval reaches from the first write to the last read, and is extended
//! to the end of every loop around that read which it was live into.
//!
//! In addition to the published algorithm, conditional code must not take registers from code that
//! is always executed. So if registers run out in a conditional range, a virtual register that the
//! range does not touch is spilled for the length of the range only: saved where the range begins
//! and restored where it ends, at no cost when the range is skipped.

use std::collections::HashMap;

use super::encode::Ymm;
use super::vcode::{Instruction, Source, VCode, VReg};

/// Registers available to the allocator. The two above them are scratch registers for operands in
/// the frame.
pub(super) const REGISTERS: u8 = 14;

/// Location of a virtual register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Location {
    Register(Ymm),
    /// Slot number in the frame.
    Slot(usize),
    /// Never read or written.
    Dead,
}

/// Result of register allocation.
pub(super) struct Allocation {
    /// Location of each virtual register, by its number.
    pub locations: Vec<Location>,
    /// Registers to save to frame slots at an [`Instruction::EnterConditional`], and to restore at
    /// the matching [`Instruction::ExitConditional`], by that instruction's number.
    pub spills: HashMap<usize, Vec<(Ymm, usize)>>,
    /// Number of slots in the frame.
    pub slots: usize,
}

/// Live interval of a virtual register.
#[derive(Debug, Clone, Copy)]
struct Interval {
    vreg: VReg,
    /// Instruction numbers; the interval reaches from the end of one to the beginning of the other.
    start: usize,
    end: usize,
    /// Coalescing hint: a virtual register whose interval may end where this one starts, and whose
    /// register would save a move.
    hint: Option<VReg>,
}

/// A conditional range that the scan is in.
struct ConditionalRange {
    enter: usize,
    exit: usize,
    /// Virtual registers in registers that the range does not touch and that are live behind it.
    untouched: Vec<VReg>,
}

/// A virtual register that is spilled until the end of a conditional range.
struct SpilledRange {
    vreg: VReg,
    register: Ymm,
    slot: usize,
    exit: usize,
}

/// A frame slot, and the instruction up to which its content is needed.
#[derive(Clone, Copy)]
struct Slot {
    number: usize,
    end: usize,
}

struct LinearScan {
    allocation: Allocation,
    free_registers: Vec<Ymm>,
    /// Intervals in registers.
    active: Vec<Interval>,
    /// The outermost range first.
    ranges: Vec<ConditionalRange>,
    spilled: Vec<SpilledRange>,
    used_slots: Vec<Slot>,
    free_slots: Vec<Slot>,
    /// Instructions that read or write each virtual register, in order.
    touches: Vec<Vec<usize>>,
}

/// Assigns a location to every virtual register.
pub(super) fn allocate(code: &VCode) -> Allocation {
    let (intervals, touches) = live_intervals(code);
    let mut scan = LinearScan {
        allocation: Allocation { locations: vec![Location::Dead; code.vregs], spills: HashMap::new(), slots: 0 },
        free_registers: (0..REGISTERS).rev().map(Ymm).collect(),
        active: Vec::new(),
        ranges: Vec::new(),
        spilled: Vec::new(),
        used_slots: Vec::new(),
        free_slots: Vec::new(),
        touches,
    };
    let exits = conditional_exits(code);
    let mut intervals = intervals.into_iter().peekable();
    for (at, instruction) in code.instructions.iter().enumerate() {
        scan.expire(at);
        match instruction {
            Instruction::EnterConditional => scan.enter_range(at, exits[&at]),
            Instruction::ExitConditional => scan.exit_range(at),
            _ => {}
        }
        while let Some(interval) = intervals.next_if(|interval| interval.start == at) {
            scan.allocate_interval(interval);
        }
    }
    scan.allocation
}

/// Maps each `EnterConditional` to its `ExitConditional`.
fn conditional_exits(code: &VCode) -> HashMap<usize, usize> {
    let (mut open, mut exits) = (Vec::new(), HashMap::new());
    for (at, instruction) in code.instructions.iter().enumerate() {
        match instruction {
            Instruction::EnterConditional => open.push(at),
            Instruction::ExitConditional => {
                exits.insert(open.pop().expect("ranges are entered before they are left"), at);
            }
            _ => {}
        }
    }
    exits
}

impl LinearScan {
    /// Frees registers and slots whose intervals end here.
    fn expire(&mut self, at: usize) {
        let LinearScan { allocation, free_registers, active, used_slots, free_slots, .. } = self;
        active.retain(|interval| {
            let is_live = interval.end > at;
            if !is_live && let Location::Register(register) = allocation.locations[interval.vreg.0] {
                free_registers.push(register);
            }
            is_live
        });
        free_slots.extend(used_slots.extract_if(.., |slot| slot.end <= at));
    }

    fn enter_range(&mut self, enter: usize, exit: usize) {
        let is_touched = |vreg: VReg| {
            let touches = &self.touches[vreg.0];
            touches.get(touches.partition_point(|&at| at < enter)).is_some_and(|&at| at < exit)
        };
        let untouched = self
            .active
            .iter()
            .map(|interval| interval.vreg)
            .filter(|&vreg| !is_touched(vreg) && !self.is_spilled(vreg))
            .collect();
        self.ranges.push(ConditionalRange { enter, exit, untouched });
    }

    fn exit_range(&mut self, at: usize) {
        self.ranges.pop();
        let LinearScan { spilled, free_registers, free_slots, .. } = self;
        for spilled in spilled.extract_if(.., |spilled| spilled.exit == at) {
            // The register's interim owner started in the range, and so has ended in it.
            let register = free_registers.iter().position(|&register| register == spilled.register);
            free_registers.swap_remove(register.expect("what starts in a range ends in it"));
            free_slots.push(Slot { number: spilled.slot, end: at });
        }
    }

    fn is_spilled(&self, vreg: VReg) -> bool {
        self.spilled.iter().any(|spilled| spilled.vreg == vreg)
    }

    /// Returns a slot whose content is not needed from instruction `from` on, which may lie before
    /// the current one.
    fn take_slot(&mut self, from: usize) -> usize {
        if let Some(at) = self.free_slots.iter().position(|slot| slot.end <= from) {
            return self.free_slots.swap_remove(at).number;
        }
        self.allocation.slots += 1;
        self.allocation.slots - 1
    }

    /// Frees a register until the end of a conditional range by spilling a virtual register that
    /// the range does not touch.
    fn spill_around_range(&mut self) -> Option<Ymm> {
        for number in 0..self.ranges.len() {
            while let Some(vreg) = self.ranges[number].untouched.pop() {
                let Location::Register(register) = self.allocation.locations[vreg.0] else { continue };
                if self.is_spilled(vreg) {
                    continue;
                }
                let ConditionalRange { enter, exit, .. } = self.ranges[number];
                let slot = self.take_slot(enter);
                for end in [enter, exit] {
                    self.allocation.spills.entry(end).or_default().push((register, slot));
                }
                self.spilled.push(SpilledRange { vreg, register, slot, exit });
                return Some(register);
            }
        }
        None
    }

    fn allocate_interval(&mut self, interval: Interval) {
        let locations = &self.allocation.locations;
        let hint = interval.hint.map(|hint| locations[hint.0]);
        let hint =
            hint.and_then(|hint| self.free_registers.iter().position(|&register| Location::Register(register) == hint));
        let register = match hint {
            Some(at) => Some(self.free_registers.swap_remove(at)),
            None => self.free_registers.pop().or_else(|| self.spill_around_range()),
        };
        if let Some(register) = register {
            self.allocation.locations[interval.vreg.0] = Location::Register(register);
            self.active.push(interval);
            return;
        }
        // Spill the interval that ends last, of those that are in a register now.
        let longest = (0..self.active.len())
            .filter(|&at| !self.is_spilled(self.active[at].vreg))
            .max_by_key(|&at| self.active[at].end)
            .filter(|&at| self.active[at].end > interval.end);
        // A location holds for the whole interval, so the spilled one is in the frame from its
        // start.
        let spilled = longest.map_or(interval, |at| std::mem::replace(&mut self.active[at], interval));
        let number = self.take_slot(spilled.start);
        self.used_slots.push(Slot { number, end: spilled.end });
        let locations = &mut self.allocation.locations;
        locations[interval.vreg.0] = locations[spilled.vreg.0];
        locations[spilled.vreg.0] = Location::Slot(number);
    }
}

/// Computes live intervals in order of their start, and the instructions that touch each virtual
/// register.
fn live_intervals(code: &VCode) -> (Vec<Interval>, Vec<Vec<usize>>) {
    let mut touches: Vec<Vec<usize>> = vec![Vec::new(); code.vregs];
    let mut intervals: Vec<Option<Interval>> = vec![None; code.vregs];
    let mut loops = Vec::new();
    let mut open = Vec::new();
    for (at, instruction) in code.instructions.iter().enumerate() {
        instruction.reads().chain(instruction.writes()).for_each(|vreg| touches[vreg.0].push(at));
        for vreg in instruction.reads() {
            let interval = intervals[vreg.0].as_mut().expect("a virtual register is written before it is read");
            interval.end = at;
        }
        if let Some(vreg) = instruction.writes() {
            let hint = match *instruction {
                Instruction::Move { from: Source::Vector(from), .. } => Some(from),
                _ => None,
            };
            let interval = intervals[vreg.0].get_or_insert(Interval { vreg, start: at, end: at, hint });
            // Even a value that is never read must not overwrite another one.
            interval.end = at + 1;
        }
        match instruction {
            Instruction::BeginLoop => open.push(at),
            Instruction::EndLoop => loops.push((open.pop().expect("loops begin before they end"), at)),
            _ => {}
        }
    }
    if let Some(verdict) = code.verdict.and_then(|verdict| intervals[verdict.0].as_mut()) {
        verdict.end = code.instructions.len();
    }
    let mut intervals: Vec<Interval> = intervals.into_iter().flatten().collect();
    // Inner loops come first, as they end first.
    for (start, end) in loops {
        for interval in &mut intervals {
            if interval.start < start && interval.end > start && interval.end < end {
                interval.end = end;
            }
        }
    }
    intervals.sort_by_key(|interval| interval.start);
    (intervals, touches)
}

#[cfg(test)]
mod tests;
