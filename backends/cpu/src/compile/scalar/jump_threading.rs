//! Jump threading: a branch to a block that only jumps on is redirected to that block's target.
//!
//! Cranelift would do this by itself, but too late: it computes a value where it is used, once in
//! every place that no other one dominates. If such blocks pass on a sum, as in an unrolled loop
//! that may exit after any iteration, the n-th of them would add up all n terms and keep those in
//! registers up to that point. If the branch itself passes the sum on, it is computed before the
//! branch, once.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{Block, BlockCall, Function, InstructionData, Opcode, Value, ValueDef};

/// Threads the jumps of a function.
///
/// A block stays if it passes on values that only such blocks use: those are better computed in the
/// block, which may never be reached.
pub(super) fn thread_jumps(function: &mut Function) {
    let forwarded = forwarded(function);
    let blocks: Vec<_> = function.layout.blocks().collect();
    for &block in &blocks {
        let Some(last) = function.layout.last_inst(block) else { continue };
        let dfg = &mut function.dfg;
        for call in dfg.insts[last].branch_destination_mut(&mut dfg.jump_tables, &mut dfg.exception_tables) {
            while let Some(next) = forwarded[call.block(&dfg.value_lists)] {
                *call = next.deep_clone(&mut dfg.value_lists);
            }
        }
    }
    for block in blocks {
        if forwarded[block].is_some() {
            let jump = function.layout.first_inst(block).expect("the block consists of a jump");
            function.layout.remove_inst(jump);
            function.layout.remove_block(block);
        }
    }
}

/// Finds the blocks that do nothing but jump and may be removed, with the jump of each.
fn forwarded(function: &Function) -> SecondaryMap<Block, Option<BlockCall>> {
    let dfg = &function.dfg;
    let mut candidates = Vec::new();
    let mut used: SecondaryMap<Value, bool> = SecondaryMap::new();
    for (number, block) in function.layout.blocks().enumerate() {
        let first = function.layout.first_inst(block).map(|first| &dfg.insts[first]);
        match first {
            // Not the entry block.
            Some(InstructionData::Jump { destination, .. }) if number > 0 && dfg.block_params(block).is_empty() => {
                candidates.push((block, *destination));
            }
            _ => function.layout.block_insts(block).flat_map(|inst| dfg.inst_values(inst)).for_each(|value| {
                used[dfg.resolve_aliases(value)] = true;
            }),
        }
    }
    // Instructions with side effects are computed where they stand in any case, and constants
    // wherever they are used.
    let may_move = |value: Value| match dfg.value_def(value) {
        ValueDef::Result(inst, _) => {
            let opcode = dfg.insts[inst].opcode();
            used[value] || opcode.can_load() || opcode.other_side_effects() || opcode == Opcode::Iconst
        }
        _ => true,
    };
    let mut forwarded: SecondaryMap<Block, Option<BlockCall>> = SecondaryMap::new();
    for (block, destination) in candidates {
        let next = |at: &Block| forwarded[*at].map(|call| call.block(&dfg.value_lists));
        let mut passed = destination.args(&dfg.value_lists).filter_map(|arg| arg.as_value());
        // A cycle of such blocks must keep one of them.
        if std::iter::successors(Some(destination.block(&dfg.value_lists)), next).last() != Some(block)
            && passed.all(|value| may_move(dfg.resolve_aliases(value)))
        {
            forwarded[block] = Some(destination);
        }
    }
    forwarded
}

#[cfg(test)]
mod tests {
    use cranelift_codegen::Context;
    use cranelift_codegen::control::ControlPlane;
    use cranelift_codegen::cursor::{Cursor, FuncCursor};
    use cranelift_codegen::ir::InstBuilder;
    use portcullis_core::diagnostics::Source;
    use portcullis_core::program::{Program, ProgramOptions};
    use portcullis_wgsl as wgsl;

    use super::super::lower;
    use super::*;
    use crate::compile::lowered::{CompiledBody, Style};
    use crate::compile::processor::Processor;

    /// A sum of the packet's words that returns early at as many points, wherever the packet ends.
    fn words(count: u32) -> Program {
        let turn = |word: u32| {
            let end = word * 2 + 2;
            format!("if pkt_len(pkt) < {end}u {{ return sum; }} sum += load_le16(pkt, {}u);\n", end - 2)
        };
        let packet_loop: String = (0..count).map(turn).collect();
        let text = format!(
            "fn total(pkt: u32) -> u32 {{ var sum = 0u; {packet_loop} return sum; }}
             fn xdp_filter(pkt: u32) -> u32 {{ return 1u + (total(pkt) & 1u); }}"
        );
        wgsl::compile(&Source::new("words.wgsl", text), &ProgramOptions::default())
            .unwrap_or_else(|e| panic!("{}", e.render()))
    }

    /// Size of the program's machine code in bytes.
    fn size(program: &Program, style: Style) -> usize {
        let isa = Processor::Host.isa().unwrap();
        let CompiledBody::Clif(function) = lower(program, style, &*isa).unwrap().body else {
            panic!("Cranelift's form")
        };
        let mut context = Context::for_function(*function);
        context.compile(&*isa, &mut ControlPlane::default()).unwrap().code_buffer().len()
    }

    #[test]
    fn blocks_that_lead_in_a_circle_stay() {
        let mut function = Function::new();
        let entry = function.dfg.make_block();
        function.layout.append_block(entry);
        let circle: [Block; 3] = std::array::from_fn(|_| function.dfg.make_block());
        circle.iter().for_each(|&block| function.layout.append_block(block));
        for (from, to) in
            [entry, circle[0], circle[1], circle[2]].into_iter().zip([circle[0], circle[1], circle[2], circle[1]])
        {
            FuncCursor::new(&mut function).at_bottom(from).ins().jump(to, &[]);
        }
        thread_jumps(&mut function);
        let left: Vec<_> = function.layout.blocks().collect();
        assert_eq!(left.len(), 2, "{function}");
        for block in left {
            let to = function.block_successors(block).collect::<Vec<_>>();
            assert!(to.iter().all(|to| function.layout.is_block_inserted(*to)), "{function}");
        }
    }

    #[test]
    fn code_does_not_grow_faster_than_what_it_is_made_of() {
        for style in [Style::BranchFree, Style::Branching] {
            let (once, fourfold) = (size(&words(50), style), size(&words(200), style));
            assert!(fourfold < 5 * once, "{}: {once} bytes for 50 words, {fourfold} for 200", style.name());
        }
    }
}
