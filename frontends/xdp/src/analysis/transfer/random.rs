//! Random numbers: stateless, so that a packet draws the same on every device, whatever other
//! packets there are.

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::pseudo_registers::RANDOM_DRAWS;
use crate::analysis::domain::state::Value;
use crate::ir::{Argument, Effect};

impl BlockInterpreter<'_, '_> {
    /// `bpf_get_prandom_u32()`: a hash of the seed, the packet, and how many numbers it has drawn
    /// before.
    pub(super) fn random_u32(&mut self) -> Result<Value> {
        let draws = self.read_register(RANDOM_DRAWS)?;
        let seed = self.code.constant(self.linked.random_seed);
        let packet = self.code.call("x_hash_packet", vec![Argument::Packet, Argument::Value(seed)], Effect::Reads);
        let number = self.code.call_values("x_random", &[packet, draws.low], Effect::None);
        let more = self.code.binary_const(crate::ir::BinaryOp::Add, draws.low, 1);
        let more = self.scalar32(Interval::U32, more);
        self.write_register(RANDOM_DRAWS, more)?;
        Ok(self.scalar32(Interval::U32, number))
    }
}
