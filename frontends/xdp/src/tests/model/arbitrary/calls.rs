//! Calls of map helpers and of the program's own functions.

use super::*;

impl Generator<'_> {
    pub(super) fn after_call(&mut self, result: Kind) {
        (1..6).for_each(|register| self.state.registers[register] = Kind::Unset);
        self.state.registers[0] = result;
    }

    /// Whether a call may be generated; it clobbers r0 to r5.
    pub(super) fn can_call(&self) -> bool {
        self.state.frozen & 0x3f == 0
    }

    /// Puts a key on the stack, a pointer to it in r2, and the map in r1.
    pub(super) fn key(&mut self, map: usize) -> Option<()> {
        let slot = self.free_slot();
        let key = self.number();
        let most = if map == 1 { 7 } else { MAPS[map].entries as i32 };
        // Mask a copy; the number may be needed whole.
        self.emit(0xbf, 2, key, 0, 0);
        self.emit(0x57, 2, 0, 0, if map == 1 { most } else { 7 });
        self.emit(0x7b, 10, 2, at(slot), 0);
        self.state.slots[slot] = Slot::Bytes;
        self.emit(0xbf, 2, 10, 0, 0);
        self.emit(0x07, 2, 0, 0, at(slot).into());
        self.map(1, map);
        (self.state.registers[1], self.state.registers[2]) = (Kind::Unset, Kind::Unset);
        Some(())
    }

    pub(super) fn lookup(&mut self) {
        if !self.can_call() {
            return;
        }
        let map = self.random.below(MAPS.len() as u32) as usize;
        if self.key(map).is_none() {
            return;
        }
        self.emit(0x85, 0, 0, 0, 1);
        self.after_call(Kind::Unset);
        let keep = self.allocate_register();
        let value = MAPS[map].value as i32;
        if self.random.once_in(2) && keep != 0 {
            self.emit(0xbf, keep, 0, 0, 0);
        } else {
            self.set(keep, Kind::Unset);
        }
        let moved = self.code.last().is_some_and(|it| it.code == 0xbf && it.dst == keep && it.src == 0);
        if moved {
            self.set(keep, Kind::Unset);
        }
        if self.random.once_in(3) {
            // Continue if there is no entry as well.
            self.emit(0x15, 0, 0, 0, 0);
            let jump = self.code.len() - 1;
            let before = self.state.clone();
            self.set(0, Kind::Value(map, value));
            if moved {
                self.set(keep, Kind::Value(map, value));
            }
            self.depth += 1;
            self.memory();
            self.memory();
            self.depth -= 1;
            self.patch_jump(jump);
            self.state = Self::join(&self.state, &before);
            return;
        }
        self.emit(0x55, 0, 0, 2, 0);
        self.emit(0xb7, 0, 0, 0, 2);
        if self.number % 2 == 1 {
            self.code.pop();
            self.emit(0xb7, 0, 0, 0, 1);
        }
        self.emit(0x95, 0, 0, 0, 0);
        self.set(0, Kind::Value(map, value));
        if moved {
            self.set(keep, Kind::Value(map, value));
        }
        if self.random.once_in(3) {
            // Move by an offset known only at run time.
            let by = self.own_number();
            if by != 0 && by != keep {
                self.emit(0x57, by, 0, 0, 7);
                self.emit(0x0f, 0, by, 0, 0);
                self.set(0, Kind::Value(map, value - 7));
            }
        }
        self.memory();
    }

    /// Generates an update or a deletion.
    pub(super) fn change_map(&mut self) {
        if !self.can_call() || self.loops > 0 && self.random.once_in(2) {
            return;
        }
        let map = self.random.below(MAPS.len() as u32 - 1) as usize;
        let update = !self.random.once_in(4);
        if !update && map != 1 {
            return;
        }
        // Build the value at the far end of the stack.
        let words = MAPS[map].value.div_ceil(8);
        if update {
            for word in 0..words {
                let src = self.number();
                self.emit(0x7b, 10, src, (-200 + 8 * word as i32) as i16, 0);
            }
        }
        if self.key(map).is_none() {
            return;
        }
        if update {
            self.emit(0xbf, 3, 10, 0, 0);
            self.emit(0x07, 3, 0, 0, -200);
            let flags = self.random.pick(&[0, 0, 1, 2]);
            self.emit(0xb7, 4, 0, 0, flags);
        }
        self.emit(0x85, 0, 0, 0, if update { 2 } else { 3 });
        self.after_call(Kind::Number);
        if map == 1 {
            // Pointers to entries may be stale now.
            self.invalidate(|kind| matches!(kind, Kind::Value(1, _)));
        }
    }

    pub(super) fn invalidate(&mut self, is_it: impl Fn(Kind) -> bool) {
        self.state.registers.iter_mut().filter(|kind| is_it(**kind)).for_each(|kind| *kind = Kind::Unset);
        let is_kept = |slot: &&mut Slot| matches!(**slot, Slot::SavedRegister(kind) if is_it(kind));
        self.state.slots.iter_mut().filter(is_kept).for_each(|slot| *slot = Slot::Unset);
    }

    pub(super) fn call(&mut self) {
        let later: Vec<usize> = (self.number + 1..=self.functions).collect();
        if !self.can_call() || later.is_empty() || self.loops > 1 {
            return;
        }
        let function = self.random.pick(&later);
        // Pass 16 bytes of numbers at the top of the stack.
        if self.state.frozen_slots & 3 != 0 {
            return;
        }
        for slot in 0..2 {
            if self.state.slots[slot] != Slot::Bytes {
                let src = self.number();
                self.emit(0x7b, 10, src, at(slot), 0);
                self.state.slots[slot] = Slot::Bytes;
            }
        }
        if function % 2 == 1 {
            let rounds = self.random.below(4) as i32;
            self.emit(0xb7, 1, 0, 0, rounds);
            self.calls.push((self.code.len(), function));
            self.emit(0x18, 2, 4, 0, 0);
            self.emit(0, 0, 0, 0, 0);
            self.emit(0xbf, 3, 10, 0, 0);
            self.emit(0x07, 3, 0, 0, -16);
            self.emit(0xb7, 4, 0, 0, 0);
            self.emit(0x85, 0, 0, 0, 181);
        } else {
            let (a, b) = (self.number(), self.number());
            // b may be r1.
            self.emit(0xbf, 0, b, 0, 0);
            self.emit(0xbf, 1, if a == 0 { b } else { a }, 0, 0);
            self.emit(0xbf, 2, 0, 0, 0);
            self.emit(0xbf, 3, 10, 0, 0);
            self.emit(0x07, 3, 0, 0, -16);
            self.calls.push((self.code.len(), function));
            self.emit(0x85, 0, 1, 0, 0);
        }
        self.after_call(Kind::Number);
        // The function may change the hash.
        self.invalidate(|kind| matches!(kind, Kind::Value(1, _)));
    }
}
