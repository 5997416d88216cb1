//! Lookups in maps of maps: a chain of comparisons with the maps that the outer map may hold, so
//! that on each edge r0 is a known map.

use super::{
    BlockInterpreter, BlockKey, BlockResult, BlockStart, Eq, FixpointSolver, MAX_VARIANTS, RegType, Result, State,
    Value, finish_with_branch, finish_with_goto,
};

impl FixpointSolver<'_, '_> {
    /// Interprets a lookup once the inner maps before `number` are excluded: r0 is inner map
    /// `number`, another one, or NULL.
    pub(super) fn interpret_inner_map(
        &mut self,
        key: BlockKey,
        at: u32,
        number: u32,
        state: State,
    ) -> Result<BlockResult> {
        let context = self.context(key);
        let mut interp =
            BlockInterpreter::new(self.linked, &mut self.facts, state, key.context, context.section as usize);
        interp.pc = at as usize;
        if number == 0 {
            // From here on r0 holds the slot: the index of a map plus one, or zero.
            let slot = interp.read_inner_map_slot()?;
            interp.write_register(0, slot)?;
        }
        let maps = self.linked.inner_maps(interp.outer_map()?);
        if maps.len() >= MAX_VARIANTS as usize {
            let what = format!("a map of maps holds {} maps; the limit is {}", maps.len(), MAX_VARIANTS - 1);
            return interp.reject_unsupported(what, "maps of maps that hold any number of maps");
        }
        let behind = BlockKey { context: key.context, start: BlockStart::Instruction(at + 1), variant: 0 };
        let Some(&map) = maps.get(number as usize) else {
            let null = interp.constant(0);
            interp.write_register(0, null)?;
            interp.clear_caller_saved();
            return Ok(finish_with_goto(interp, behind));
        };
        let slot = interp.read_register(0)?;
        let is_it = interp.code.binary_const(Eq, slot.low, u32::from(map) + 1);
        let next = BlockKey { context: key.context, start: BlockStart::InnerMap(at, number + 1), variant: 0 };
        let mut found = interp.state.clone();
        (1..6).for_each(|register| found.scratch[register] = Value::of(RegType::Uninit));
        found.scratch[0] = Value::of(RegType::Map(map));
        let state = interp.state.clone();
        Ok(finish_with_branch(interp, is_it, (behind, found), (next, state)))
    }
}
