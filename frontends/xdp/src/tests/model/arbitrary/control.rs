//! Generates branches and bounded loops of random eBPF programs, and joins the tracked state where
//! paths meet.

use super::*;

impl Generator<'_> {
    /// Merges the states of two paths: keeps only what holds on both.
    pub(super) fn join(a: &State, b: &State) -> State {
        let mut state = a.clone();
        for (kind, other) in state.registers.iter_mut().zip(&b.registers) {
            *kind = match (*kind, *other) {
                (Kind::Packet(a), Kind::Packet(b)) => Kind::Packet(a.min(b)),
                (a, b) if a == b => a,
                _ => Kind::Unset,
            };
        }
        for (slot, other) in state.slots.iter_mut().zip(&b.slots) {
            *slot = match (*slot, *other) {
                (Slot::SavedRegister(Kind::Packet(a)), Slot::SavedRegister(Kind::Packet(b))) => {
                    Slot::SavedRegister(Kind::Packet(a.min(b)))
                }
                (a, b) if a == b => a,
                _ => Slot::Unset,
            };
        }
        state
    }

    /// Generates a comparison of numbers; returns the jump to be patched.
    pub(super) fn condition(&mut self) -> usize {
        let class = self.random.pick(&[5_u8, 6]);
        let condition = self.random.pick(&[1_u8, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13]);
        let dst = self.number();
        if self.random.once_in(2) {
            let src = self.number();
            self.emit(condition << 4 | 8 | class, dst, src, 0, 0);
        } else {
            let imm = constant(self.random);
            self.emit(condition << 4 | class, dst, 0, 0, imm);
        }
        self.code.len() - 1
    }

    pub(super) fn patch_jump(&mut self, at: usize) {
        self.code[at].off = (self.code.len() - at - 1) as i16;
    }

    /// Generates conditions that jump past the following code or right to it, like C's `&&` and
    /// `||`. Returns the jumps past it, to be patched, and the state there.
    fn conditions(&mut self) -> (Vec<usize>, State) {
        let mut exit_jumps = vec![self.condition()];
        let mut exit_state = self.state.clone();
        let mut entry_jumps = Vec::new();
        while exit_jumps.len() + entry_jumps.len() < 4 && self.random.once_in(3) {
            if self.random.once_in(2) {
                // Sets a register in between.
                let register = self.allocate_register();
                let imm = constant(self.random);
                self.emit(0xb7, register, 0, 0, imm);
                self.set(register, Kind::Number);
            }
            let jump = self.condition();
            if self.random.once_in(2) {
                exit_jumps.push(jump);
                exit_state = Self::join(&exit_state, &self.state);
            } else {
                entry_jumps.push((jump, self.state.clone()));
            }
        }
        for (jump, state) in entry_jumps {
            self.patch_jump(jump);
            self.state = Self::join(&self.state, &state);
        }
        (exit_jumps, exit_state)
    }

    pub(super) fn branch(&mut self) {
        let (jumps, before) = self.conditions();
        self.depth += 1;
        let budget = 1 + self.random.below(5);
        self.block(budget);
        let returns = self.random.once_in(8);
        if returns {
            self.emit_return();
        }
        let fallen = std::mem::replace(&mut self.state, before);
        if self.random.once_in(2) && !returns {
            // The other path is empty.
            jumps.into_iter().for_each(|jump| self.patch_jump(jump));
            self.state = Self::join(&fallen, &self.state);
        } else {
            let over = self.code.len();
            if !returns {
                self.emit(0x05, 0, 0, 0, 0);
            }
            jumps.into_iter().for_each(|jump| self.patch_jump(jump));
            let budget = 1 + self.random.below(4);
            self.block(budget);
            if !returns {
                self.patch_jump(over);
                self.state = Self::join(&fallen, &self.state);
            }
        }
        self.depth -= 1;
    }

    /// Generates a loop of a few rounds.
    pub(super) fn loop_of_rounds(&mut self) {
        let counter = self.allocate_register();
        let before = (self.state.frozen, self.state.frozen_slots);
        // Anything but a number must stay unchanged in the loop, or is forgotten.
        for register in 0..10 {
            if !matches!(self.state.registers[register], Kind::Number | Kind::Unset) && before.0 >> register & 1 == 0 {
                if self.random.once_in(2) {
                    self.state.frozen |= 1 << register;
                } else {
                    self.state.registers[register] = Kind::Unset;
                }
            }
        }
        for slot in 0..SLOTS {
            if matches!(self.state.slots[slot], Slot::SavedRegister(_)) && before.1 >> slot & 1 == 0 {
                if self.random.once_in(2) {
                    self.state.frozen_slots |= 1 << slot;
                } else {
                    self.state.slots[slot] = Slot::Unset;
                }
            }
        }
        self.emit(0xb7, counter, 0, 0, 0);
        self.set(counter, Kind::Number);
        self.state.frozen |= 1 << counter;
        // Calls clobber low registers, and some must stay free.
        if counter < 6 || (self.state.frozen & 0x3ff).count_ones() > 6 || self.state.frozen_slots.count_ones() > 5 {
            (self.state.frozen, self.state.frozen_slots) = before;
            return;
        }
        let head = self.state.clone();
        let first = self.code.len();
        (self.depth, self.loops) = (self.depth + 1, self.loops + 1);
        let budget = 1 + self.random.below(4);
        self.block(budget);
        (self.depth, self.loops) = (self.depth - 1, self.loops - 1);
        // What was a number must be one again.
        for register in 0..10_u8 {
            let (was, is) = (head.registers[usize::from(register)], self.of(register));
            if was == Kind::Number && is != was {
                self.set_to_number(register);
            }
        }
        for slot in 0..SLOTS {
            if head.slots[slot] == Slot::Bytes && self.state.slots[slot] != Slot::Bytes {
                self.emit(0x7a, 10, 0, at(slot), 9);
            }
        }
        let rounds = 1 + self.random.below(6) as i32;
        self.emit(0x07, counter, 0, 0, 1);
        let back = first as i64 - self.code.len() as i64 - 1;
        let code = self.random.pick(&[0xa5, 0x55, 0xa6]);
        self.emit(code, counter, 0, back as i16, rounds);
        // Forget pointers that a call invalidated in the loop.
        let lost: Vec<usize> = (0..10).filter(|&r| head.registers[r] != self.state.registers[r]).collect();
        let slots = self.state.slots;
        self.state = head;
        for register in lost {
            if self.state.registers[register] != Kind::Number {
                self.state.registers[register] = Kind::Unset;
            }
        }
        for (slot, now) in self.state.slots.iter_mut().zip(slots) {
            if *slot != now && *slot != Slot::Bytes {
                *slot = Slot::Unset;
            }
        }
        (self.state.frozen, self.state.frozen_slots) = before;
    }
}
