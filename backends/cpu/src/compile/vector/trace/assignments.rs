//! Which variables a loop assigns, and so have to be loop-carried values.

use std::collections::BTreeSet;

use naga::{Block, Statement};
use portcullis_core::program::child_blocks;

use super::scan::{PointerRoot, pointer_root, root_of};
use super::tracer::{FUEL, Frame, LENGTH, Operand, Place, START, Tracer, VariableLocation};
use crate::compile::types;

impl<'a> Tracer<'a> {
    /// Returns the state slots that the blocks of a loop may assign.
    pub(super) fn assigned_slots(&self, frame: &Frame<'a>, all: [&'a Block; 2]) -> BTreeSet<usize> {
        let mut slots = BTreeSet::new();
        let mut work = all.to_vec();
        if self.exhausts {
            slots.insert(FUEL);
        }
        while let Some(block) = work.pop() {
            for statement in block {
                match statement {
                    Statement::Store { pointer, .. } => {
                        self.slots_of(frame, root_of(frame.code, *pointer), &mut slots);
                    }
                    Statement::Call { function, arguments, .. } => {
                        for &argument in arguments {
                            let root = pointer_root(self.module, frame.info, frame.code, argument);
                            self.slots_of(frame, root, &mut slots);
                        }
                        let effects = self.scan.effects(*function);
                        if effects.moves {
                            slots.extend([START, LENGTH]);
                        }
                        for global in &effects.globals {
                            self.slots_of(frame, Some(PointerRoot::Global(*global)), &mut slots);
                        }
                    }
                    _ => {}
                }
                work.extend(child_blocks(statement));
            }
        }
        slots
    }

    fn slots_of(&self, frame: &Frame<'a>, root: Option<PointerRoot>, slots: &mut BTreeSet<usize>) {
        let home = match root {
            Some(PointerRoot::Local(local)) => frame.locals.get(local.index()).copied(),
            Some(PointerRoot::Global(global)) => self.globals.get(&global).copied(),
            Some(PointerRoot::Argument(number)) => match frame.arguments.get(number as usize) {
                // The type says how many slots the variable has.
                Some(&Operand::Place(Place::Slots(first))) => {
                    let ty = types::inner(self.module, frame.code.arguments[number as usize].ty);
                    let count = types::pointee(self.module, ty).and_then(|ty| types::count(self.module, &ty).ok());
                    Some(VariableLocation::Slots { first, count: count.unwrap_or(0) as usize })
                }
                _ => None,
            },
            None => None,
        };
        if let Some(VariableLocation::Slots { first, count }) = home {
            slots.extend(first..first + count);
        }
    }
}
