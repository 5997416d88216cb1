//! Random numbers: of nobody's state, so that a packet has the same on every device, whichever others there are.

use super::{DRAWS, Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::Value;
use crate::lower::ir::{Argument, Effect};

impl Walk<'_, '_> {
    /// `bpf_get_prandom_u32()`: a hash of the seed, of the packet, and of how many numbers it has asked for before.
    pub(super) fn random(&mut self) -> Result<Value> {
        let draws = self.get(DRAWS)?;
        let seed = self.code.known(self.linked.random_seed);
        let packet = self.code.call("x_hash_packet", vec![Argument::Packet, Argument::One(seed)], Effect::Reads);
        let number = self.code.call_with("x_random", &[packet, draws.low], Effect::None);
        let more = self.code.by(crate::lower::ir::Binary::Add, draws.low, 1);
        let more = self.word(Range::WORD, more);
        self.set(DRAWS, more)?;
        Ok(self.word(Range::WORD, number))
    }
}
