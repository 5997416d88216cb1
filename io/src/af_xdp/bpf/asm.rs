//! A BPF assembler: appends instructions and resolves labels.
//!
//! All jumps lead forward, so every program terminates.

use super::insn::{Cond, Insn, Op, Operand, Reg, Size};

/// A position in a program, the target of jumps before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

/// A program under construction.
#[derive(Debug, Default)]
pub struct Assembler {
    insns: Vec<Insn>,
    /// Position of each label, by number; `None` until it is placed.
    positions: Vec<Option<usize>>,
    /// Jump instructions with their target labels.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// Creates a label, to be placed with [`Assembler::place`].
    pub fn label(&mut self) -> Label {
        self.positions.push(None);
        Label(self.positions.len() - 1)
    }

    /// Places a label at the current position.
    ///
    /// # Panics
    /// If the label is already placed, which is a bug in the generator.
    pub fn place(&mut self, label: Label) {
        let before = self.positions[label.0].replace(self.insns.len());
        assert_eq!(before, None, "a label is placed once");
    }

    /// `register = operand`.
    pub fn mov(&mut self, register: Reg, operand: impl Into<Operand>) {
        self.insns.push(Insn::alu(Op::Mov, register, operand.into()));
    }

    /// `register += operand`.
    pub fn add(&mut self, register: Reg, operand: impl Into<Operand>) {
        self.insns.push(Insn::alu(Op::Add, register, operand.into()));
    }

    /// `register &= operand`.
    pub fn and(&mut self, register: Reg, operand: impl Into<Operand>) {
        self.insns.push(Insn::alu(Op::And, register, operand.into()));
    }

    /// `register <<= operand`.
    pub fn shl(&mut self, register: Reg, operand: impl Into<Operand>) {
        self.insns.push(Insn::alu(Op::Shl, register, operand.into()));
    }

    /// `register = *(size *)(address + offset)`.
    pub fn load(&mut self, size: Size, register: Reg, address: Reg, offset: i16) {
        self.insns.push(Insn::load(size, register, address, offset));
    }

    /// `register = be16toh(*(u16 *)(address + offset))`.
    pub fn load_be16(&mut self, register: Reg, address: Reg, offset: i16) {
        self.load(Size::Half, register, address, offset);
        self.insns.push(Insn::be16(register));
    }

    /// `register = ` the map with this file descriptor.
    pub fn load_map(&mut self, register: Reg, map: i32) {
        self.insns.extend(Insn::load_map(register, map));
    }

    /// Jumps to the label.
    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.insns.push(Insn::jump(0));
    }

    /// Jumps to the label if the comparison holds.
    pub fn jump_if(&mut self, register: Reg, cond: Cond, operand: impl Into<Operand>, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.insns.push(Insn::jump_if(cond, register, operand.into(), 0));
    }

    /// Calls a kernel helper.
    pub fn call(&mut self, helper: u32) {
        self.insns.push(Insn::call(helper));
    }

    /// Exits with the result in `R0`.
    pub fn exit(&mut self) {
        self.insns.push(Insn::exit());
    }

    /// Resolves all jumps and returns the program.
    ///
    /// # Panics
    /// If a target label is not placed, not after the jump, or too far away; these are bugs in the
    /// generator.
    pub fn finish(mut self) -> Vec<Insn> {
        for (at, label) in self.jumps {
            let place = self.positions[label.0].expect("the target label of a jump is placed");
            let distance = place.checked_sub(at + 1).expect("jumps lead forward");
            let distance = i16::try_from(distance).expect("a jump spans at most 32,767 instructions");
            self.insns[at] = self.insns[at].with_distance(distance);
        }
        self.insns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_resolve_to_their_labels() {
        let mut asm = Assembler::default();
        let (near, far) = (asm.label(), asm.label());
        asm.jump_if(Reg::R1, Cond::Eq, 7, far);
        asm.jump(near);
        asm.load_map(Reg::R2, 5);
        asm.place(near);
        asm.mov(Reg::R0, 1);
        asm.place(far);
        asm.exit();
        let [first, second] = Insn::load_map(Reg::R2, 5);
        assert_eq!(
            asm.finish(),
            [
                Insn::jump_if(Cond::Eq, Reg::R1, 7.into(), 4),
                // Loading a map takes two instructions.
                Insn::jump(2),
                first,
                second,
                Insn::alu(Op::Mov, Reg::R0, 1.into()),
                Insn::exit(),
            ]
        );
    }

    #[test]
    #[should_panic(expected = "jumps lead forward")]
    fn backward_jumps_panic() {
        let mut asm = Assembler::default();
        let label = asm.label();
        asm.place(label);
        asm.jump(label);
        asm.finish();
    }

    #[test]
    #[should_panic(expected = "is placed")]
    fn jumps_to_unplaced_labels_panic() {
        let mut asm = Assembler::default();
        let label = asm.label();
        asm.jump(label);
        asm.finish();
    }
}
