//! Helpers that copy bytes of the packet or move its ends, and pointers far outside.

use super::*;

impl Generator<'_> {
    /// Generates a call of a helper that copies or sums bytes.
    pub(super) fn call_byte_helper(&mut self) {
        if !self.can_call() {
            return;
        }
        // Use 16 bytes of numbers near the top of the stack.
        if self.state.frozen_slots & 0b1100 != 0 {
            return;
        }
        for slot in 2..4 {
            if self.state.slots[slot] != Slot::Bytes {
                let src = self.number();
                self.emit(0x7b, 10, src, at(slot), 0);
                self.state.slots[slot] = Slot::Bytes;
            }
        }
        match self.random.below(4) {
            0 => {
                let seed = self.number();
                self.emit(0xbf, 5, seed, 0, 0);
                self.emit(0xbf, 1, 10, 0, 0);
                self.emit(0x07, 1, 0, 0, -32);
                let sizes = self.random.pick(&[(0, 16), (8, 8), (4, 12), (16, 0), (0, 7), (5, 3)]);
                self.emit(0xb7, 2, 0, 0, sizes.0);
                self.emit(0xbf, 3, 1, 0, 0);
                self.emit(0xb7, 4, 0, 0, sizes.1);
                self.emit(0x85, 0, 0, 0, 28);
                self.after_call(Kind::Number);
            }
            1 => {
                self.emit(0x85, 0, 0, 0, 8);
                self.after_call(Kind::Number);
            }
            _ if self.is_main => {
                let off = self.number();
                self.emit(0xbf, 2, off, 0, 0);
                self.emit(0x57, 2, 0, 0, 63);
                self.emit(0xbf, 1, 6, 0, 0);
                self.emit(0xbf, 3, 10, 0, 0);
                self.emit(0x07, 3, 0, 0, -32);
                let count = 1 + self.random.below(16) as i32;
                self.emit(0xb7, 4, 0, 0, count);
                let helper = self.random.pick(&[189, 190]);
                self.emit(0x85, 0, 0, 0, helper);
                self.after_call(Kind::Number);
                self.invalidate(Kind::is_packet);
            }
            _ => {}
        }
    }

    /// Generates a move of the packet's ends.
    pub(super) fn move_ends(&mut self) {
        if !self.can_call() {
            return;
        }
        self.emit(0xbf, 1, 6, 0, 0);
        if self.random.once_in(3) {
            let by = self.number();
            self.emit(0xbf, 2, by, 0, 0);
            self.emit(0x57, 2, 0, 0, 15);
        } else {
            let by = self.random.below(33) as i32 - 16;
            self.emit(0xb7, 2, 0, 0, by);
        }
        // Both helpers zero the bytes that they add.
        let helper = self.random.pick(&[44, 65]);
        self.emit(0x85, 0, 0, 0, helper);
        self.after_call(Kind::Number);
        self.invalidate(Kind::is_packet);
    }

    /// Compares a pointer that may be anywhere, also in front of the packet, with another; it is
    /// not dereferenced.
    pub(super) fn far_pointer(&mut self) {
        let (pointer, other, by) = (self.allocate_register(), self.allocate_register(), self.number());
        if pointer == other || pointer == by || other == by {
            return;
        }
        self.emit(0x61, pointer, 6, 0, 0);
        let off = self.random.pick(&[0, 14, -5, -200, 300]);
        self.emit(0x07, pointer, 0, 0, off);
        if self.random.once_in(2) {
            // Move by 32 bits of a number.
            self.emit(0xbc, other, by, 0, 0);
            self.emit(0x0f, pointer, other, 0, 0);
        }
        let off = self.random.pick(&[0, 4, 4]);
        self.emit(0x61, other, 6, off, 0);
        self.set(pointer, Kind::Unset);
        self.set(other, Kind::Unset);
        let condition = self.random.pick(&[1_u8, 2, 3, 5, 10, 11]);
        let (a, b) = if self.random.once_in(2) { (pointer, other) } else { (other, pointer) };
        self.emit(condition << 4 | 0xd, a, b, 0, 0);
        let jump = self.code.len() - 1;
        let before = self.state.clone();
        self.depth += 1;
        self.arithmetic();
        self.depth -= 1;
        self.patch_jump(jump);
        self.state = Self::join(&self.state, &before);
    }

    /// Generates the distance between two pointers into the packet.
    pub(super) fn distance(&mut self) {
        let Some(from) = self.any(Kind::is_packet) else { return };
        let to = self.allocate_register();
        if !self.is_main || to == from {
            return;
        }
        let off = self.random.pick(&[0, 4]);
        self.emit(0x61, to, 6, off, 0);
        self.emit(0x1f, to, from, 0, 0);
        self.set(to, Kind::Number);
    }
}
