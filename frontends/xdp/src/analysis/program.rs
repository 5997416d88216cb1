//! An analysed program: its blocks, and facts about all of them.

use std::collections::{BTreeSet, HashMap};

use crate::analysis::domain::state::{STACK_COUNT, State};
use crate::analysis::event_uses::EventUses;
use crate::analysis::interner::Interner;
use crate::fib::AddressFamilies;
use crate::ir::privatize::Privatization;
use crate::ir::{BlockCode, Id};

/// How a block ends; successors are indices of blocks.
#[derive(Debug, Clone)]
pub(crate) enum Terminator {
    Exit,
    Goto(usize),
    Branch(Id, usize, usize),
}

/// An interpreted block.
pub(crate) struct Block {
    pub code: BlockCode,
    /// Abstract state at the end of the block.
    pub exit_state: State,
    pub terminator: Terminator,
}

/// The blocks of an analysed program, the entry block first.
pub(crate) struct AnalyzedProgram {
    pub blocks: Vec<Block>,
    pub facts: ProgramFacts,
    /// Words of privatized map values that are read before they are set, by map and word.
    pub initial_words: Vec<(u16, u16)>,
}

/// Results that the interpretation of all blocks shares.
#[derive(Debug, Default)]
pub(crate) struct ProgramFacts {
    /// Symbolic names, by who introduced them: (context, section, instruction, number), or
    /// (`u32::MAX`, block, position, 0) for names that a join introduced.
    pub names: Interner<(u32, u32, u32, u32)>,
    /// Sites that may abort the packet: (section, instruction, reason).
    pub trap_sites: Interner<(u32, u32, &'static str)>,
    /// Sites where an update of a map value may be lost: (section, instruction, reason).
    pub lost_update_sites: Interner<(u32, u32, &'static str)>,
    /// Loads from map values, by context, section and instruction.
    pub map_loads: Interner<(u32, u32, u32)>,
    /// Map loads whose value only feeds additions stored back to the same field, which can
    /// therefore become atomic additions.
    pub add_only_loads: BTreeSet<u32>,
    /// Map loads whose value is used for more than additions.
    pub observed_loads: BTreeSet<u32>,
    /// The map that each `bpf_for_each_map_elem` call iterates, by context and instruction.
    pub iterated_maps: HashMap<(u32, u32), u16>,
    /// Maps that reachable code uses.
    pub used_maps: BTreeSet<u16>,
    /// LPM tries that are searched for prefixes shorter than an address, or changed by the program.
    pub prefix_search_maps: BTreeSet<u16>,
    /// Helpers that reachable code calls.
    pub helpers: BTreeSet<u32>,
    /// Maps to all of whose devices packets are redirected, each with whether the ingress port is
    /// excluded.
    pub broadcasts: Interner<(u16, bool)>,
    /// Address families for which the program may look up routes.
    pub families: AddressFamilies,
    /// Records and prints for the host.
    pub events: EventUses,
    /// The map values of which packets have private copies.
    pub privatization: Privatization,
    /// Frames whose stack is indexed by values known only at run time. They are arrays then, not a
    /// variable per word.
    pub indexed_frames: [bool; STACK_COUNT],
    /// Whether spilled pointers survive a store at an unknown offset, which a run-time check then
    /// keeps from hitting them. Otherwise such a store turns them into scalars.
    pub guard_spills: bool,
    /// Whether some store at an unknown offset may hit a spilled pointer.
    pub may_overwrite_spills: bool,
}
