//! Loads and stores in the packet, map values and the stack.

use super::*;

impl Generator<'_> {
    /// Generates a pointer into the packet, checked to have some bytes after it.
    pub(super) fn checked_pointer(&mut self) {
        if !self.is_main {
            return;
        }
        let (pointer, end, beyond) = (self.allocate_register(), self.allocate_register(), self.allocate_register());
        if pointer == end || pointer == beyond || end == beyond {
            return;
        }
        let count = 1 + self.random.below(24) as i32;
        let by = match self.random.below(3) {
            0 => {
                // Move it by a masked number.
                let by = self.own_number();
                let mask = self.random.pick(&[3, 15, 31, 63]);
                if by == pointer || by == end || by == beyond {
                    return;
                }
                self.emit(0x57, by, 0, 0, mask);
                Some(by)
            }
            _ => None,
        };
        self.emit(0x61, pointer, 6, 0, 0);
        self.emit(0x61, end, 6, 4, 0);
        if let Some(by) = by {
            self.emit(0x0f, pointer, by, 0, 0);
        }
        if self.random.once_in(3) {
            let off = self.random.below(20) as i32;
            self.emit(0x07, pointer, 0, 0, off);
        }
        self.emit(0xbf, beyond, pointer, 0, 0);
        self.emit(0x07, beyond, 0, 0, count);
        // Skip the return if the bytes are there.
        let (code, a, b) =
            self.random.pick(&[(0xbd, beyond, end), (0x3d, end, beyond), (0xad, beyond, end), (0x2d, end, beyond)]);
        self.emit(code, a, b, 2, 0);
        self.emit(0xb7, 0, 0, 0, 1);
        self.emit(0x95, 0, 0, 0, 0);
        self.set(pointer, Kind::Packet(count));
        self.set(end, Kind::Unset);
        self.set(beyond, Kind::Unset);
        if self.random.once_in(2) && self.random.once_in(2) {
            // A pointer to their end.
            self.set(beyond, Kind::Packet(0));
        }
    }

    /// Generates a load, store or atomic operation.
    pub(super) fn memory(&mut self) {
        let is_memory = |kind| match kind {
            Kind::Packet(count) => count > 0,
            Kind::Value(..) | Kind::CallerStack => true,
            _ => false,
        };
        let Some(base) = self.any(is_memory) else { return self.on_stack() };
        let (bytes, aligned) = match self.of(base) {
            Kind::Packet(count) => (count, false),
            Kind::Value(_, count) => (count, false),
            Kind::CallerStack => (16, true),
            _ => return self.on_stack(),
        };
        let sizes: Vec<(i32, u8)> =
            [(1, 0x10), (2, 0x08), (4, 0x00), (8, 0x18)].into_iter().filter(|(size, _)| *size <= bytes).collect();
        if sizes.is_empty() {
            return;
        }
        let (size, bits) = self.random.pick(&sizes);
        let mut off = self.random.below((bytes - size + 1) as u32) as i32;
        if aligned || self.random.once_in(2) {
            off -= off % size;
        }
        let off = off as i16;
        match self.random.below(8) {
            0..3 => {
                let dst = self.allocate_register();
                let mode = if size < 8 && self.random.once_in(3) { 0x81 } else { 0x61 };
                self.emit(mode | bits, dst, base, off, 0);
                self.set(dst, Kind::Number);
            }
            3 | 4 => {
                let src = self.number();
                self.emit(0x63 | bits, base, src, off, 0);
            }
            5 => {
                let imm = constant(self.random);
                self.emit(0x62 | bits, base, 0, off, imm);
            }
            6 if size >= 4 && i32::from(off) % size == 0 && !self.of(base).is_packet() => {
                let imm = self.random.pick(&[0, 0, 1, 0x40, 0x41, 0x51, 0xa0, 0xa1, 0xe1]);
                let src = if imm & 1 != 0 { self.own_number() } else { self.number() };
                if src != base {
                    self.emit(0xc3 | bits, base, src, off, imm);
                }
            }
            _ if size <= 8 => {
                // What clang generates for `x += y`.
                let (dst, by) = (self.allocate_register(), self.number());
                if dst == base || dst == by {
                    return;
                }
                self.emit(0x61 | bits, dst, base, off, 0);
                if self.random.once_in(2) {
                    self.emit(0x0f, dst, by, 0, 0);
                } else {
                    let imm = constant(self.random);
                    let code = self.random.pick(&[0x07, 0x04]);
                    self.emit(code, dst, 0, 0, imm);
                }
                self.emit(0x63 | bits, base, dst, off, 0);
                self.set(dst, Kind::Number);
            }
            _ => {}
        }
    }

    /// Reads or writes part of a slot.
    pub(super) fn on_stack(&mut self) {
        let slots: Vec<usize> = (0..SLOTS).filter(|&slot| self.state.slots[slot] == Slot::Bytes).collect();
        if slots.is_empty() {
            return self.spill();
        }
        let slot = self.random.pick(&slots);
        let (size, bits) = self.random.pick(&[(1, 0x10), (2, 0x08), (4, 0x00), (8, 0x18)]);
        let off = at(slot) + (self.random.below(8 / size) * size) as i16;
        let frozen = self.state.frozen_slots >> slot & 1 != 0;
        match self.random.below(4) {
            0 if !frozen => {
                let src = self.number();
                self.emit(0x63 | bits, 10, src, off, 0);
            }
            1 if !frozen => {
                let imm = constant(self.random);
                self.emit(0x62 | bits, 10, 0, off, imm);
            }
            2 if !frozen && size >= 4 => {
                let imm = self.random.pick(&[0, 1, 0x41, 0x51, 0xa1, 0xe1]);
                let src = self.own_number();
                self.emit(0xc3 | bits, 10, src, off, imm);
            }
            _ => {
                let dst = self.allocate_register();
                let mode = if size < 8 && self.random.once_in(3) { 0x81 } else { 0x61 };
                self.emit(mode | bits, dst, 10, off, 0);
                self.set(dst, Kind::Number);
            }
        }
    }

    pub(super) fn free_slot(&mut self) -> usize {
        loop {
            let slot = self.random.below(SLOTS as u32) as usize;
            if self.state.frozen_slots >> slot & 1 == 0 {
                return slot;
            }
        }
    }

    pub(super) fn spill(&mut self) {
        let Some(src) = self.any(|kind| kind != Kind::Unset) else { return };
        let slot = self.free_slot();
        self.emit(0x7b, 10, src, at(slot), 0);
        self.state.slots[slot] = match self.of(src) {
            Kind::Number => Slot::Bytes,
            kind => Slot::SavedRegister(kind),
        };
    }

    pub(super) fn fill(&mut self) {
        let all: Vec<usize> = (0..SLOTS).filter(|&slot| self.state.slots[slot] != Slot::Unset).collect();
        if all.is_empty() {
            return self.spill();
        }
        let slot = self.random.pick(&all);
        let dst = self.allocate_register();
        self.emit(0x79, dst, 10, at(slot), 0);
        let kind = match self.state.slots[slot] {
            Slot::SavedRegister(kind) => kind,
            _ => Kind::Number,
        };
        self.set(dst, kind);
    }
}
