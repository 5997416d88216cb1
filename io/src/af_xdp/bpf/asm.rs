//! An assembler: instructions one after the other, and jumps to labels further on.
//!
//! All jumps lead forward, so every program ends.

use super::insn::{Cond, Insn, Op, Operand, Reg, Size};

/// A place in a program, which jumps before it lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

/// A program that is being written.
#[derive(Debug, Default)]
pub struct Assembler {
    insns: Vec<Insn>,
    /// Where each label is, by its number; `None` until it is placed.
    places: Vec<Option<usize>>,
    /// Instructions that jump, and whereto.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// A new place, to be placed with [`Assembler::place`].
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// The label is here.
    ///
    /// # Panics
    /// It is elsewhere already: a mistake in the generator.
    pub fn place(&mut self, label: Label) {
        let before = self.places[label.0].replace(self.insns.len());
        assert_eq!(before, None, "a label is in one place");
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

    /// `register = *(be16 *)(address + offset)`, as a number.
    pub fn load_be16(&mut self, register: Reg, address: Reg, offset: i16) {
        self.load(Size::Half, register, address, offset);
        self.insns.push(Insn::be16(register));
    }

    /// `register = ` the map with this descriptor.
    pub fn load_map(&mut self, register: Reg, map: i32) {
        self.insns.extend(Insn::load_map(register, map));
    }

    /// Goes on at the label.
    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.insns.push(Insn::jump(0));
    }

    /// Goes on at the label if the comparison holds.
    pub fn jump_if(&mut self, register: Reg, cond: Cond, operand: impl Into<Operand>, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.insns.push(Insn::jump_if(cond, register, operand.into(), 0));
    }

    /// Calls a helper of the kernel.
    pub fn call(&mut self, helper: u32) {
        self.insns.push(Insn::call(helper));
    }

    /// Ends with `R0` as result.
    pub fn exit(&mut self) {
        self.insns.push(Insn::exit());
    }

    /// The program, with all jumps resolved.
    ///
    /// # Panics
    /// A label that is jumped to is not placed, or not after the jump, or too far away: mistakes in the generator.
    pub fn finish(mut self) -> Vec<Insn> {
        for (at, label) in self.jumps {
            let place = self.places[label.0].expect("a label that is jumped to has a place");
            let distance = place.checked_sub(at + 1).expect("jumps lead forward");
            let distance = i16::try_from(distance).expect("a jump reaches 32,767 instructions");
            self.insns[at] = self.insns[at].with_distance(distance);
        }
        self.insns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_lead_to_where_labels_are() {
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
                // A map takes two instructions.
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
    fn there_are_no_loops() {
        let mut asm = Assembler::default();
        let label = asm.label();
        asm.place(label);
        asm.jump(label);
        asm.finish();
    }

    #[test]
    #[should_panic(expected = "has a place")]
    fn a_label_needs_a_place() {
        let mut asm = Assembler::default();
        let label = asm.label();
        asm.jump(label);
        asm.finish();
    }
}
