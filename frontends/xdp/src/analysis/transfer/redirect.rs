//! `bpf_redirect` and `bpf_redirect_map`: they set the target that applies if the verdict is
//! XDP_REDIRECT.

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::pseudo_registers::REDIRECT_TARGET;
use crate::analysis::domain::state::Value;
use crate::broadcast;
use crate::ir::BinaryOp::*;
use crate::ir::Id;
use crate::object::MapType;

/// `enum xdp_action`.
const XDP_ABORTED: u32 = 0;
const XDP_REDIRECT: u32 = 4;

/// Bits of `bpf_redirect_map`'s flags that are the verdict if there is no entry.
const ACTION_MASK: u32 = 3;
/// `BPF_F_BROADCAST`, `BPF_F_EXCLUDE_INGRESS`.
const BROADCAST: u32 = 8;
const EXCLUDE_INGRESS: u32 = 16;

/// A target that does not exist; the verdict becomes ABORTED.
const NO_TARGET: u32 = 1 << 24;

impl BlockInterpreter<'_, '_> {
    pub(super) fn redirect(&mut self, target: Id, flags: Value) -> Result<Value> {
        self.expect_scalar(flags, "the flags argument")?;
        // No flags are defined: with any the helper fails and keeps the earlier target.
        let any = self.code.binary(Or, flags.low, flags.high);
        let is_plain = self.code.binary_const(Eq, any, 0);
        let before = self.read_register(REDIRECT_TARGET)?.low;
        let target = self.clamp_to_single_target(target);
        let target = self.code.binary_const(Add, target, 1);
        let target = self.code.select(is_plain, target, before);
        let target = self.scalar32(Interval::U32, target);
        self.write_register(REDIRECT_TARGET, target)?;
        let (redirect, aborted) = (self.code.constant(XDP_REDIRECT), self.code.constant(XDP_ABORTED));
        let verdict = self.code.select(is_plain, redirect, aborted);
        Ok(self.scalar32(Interval::new(0, u64::from(XDP_REDIRECT)), verdict))
    }

    /// A target from the program must not be one of those that stand for all ports of a map.
    fn clamp_to_single_target(&mut self, target: Id) -> Id {
        if self.facts.broadcasts.values().is_empty() {
            return target;
        }
        let is_one = self.code.binary_const(Lt, target, broadcast::FIRST_TARGET);
        let none = self.code.constant(NO_TARGET);
        self.code.select(is_one, target, none)
    }

    pub(super) fn redirect_map(&mut self) -> Result<Value> {
        let (map, index, flags) = (self.read_register(1)?, self.read_register(2)?, self.read_register(3)?);
        let map = self.expect_map(map)?;
        let ty = self.linked.maps[usize::from(map)].definition.ty;
        if !ty.holds_redirect_targets() {
            let takes = "devmap, devmap_hash, cpumap or xskmap";
            let given = ty.name();
            return self.reject(format!("bpf_redirect_map takes a map of type {takes}, not {given}"));
        }
        self.expect_scalar(index, "the index")?;
        let range = self.expect_scalar(flags, "the flags argument")?;
        let known = match ty {
            MapType::DEVMAP | MapType::DEVMAP_HASH => ACTION_MASK | BROADCAST | EXCLUDE_INGRESS,
            _ => ACTION_MASK,
        };
        if range.as_constant().is_some_and(|flags| flags & !u64::from(known) != 0) {
            return Ok(self.constant(XDP_ABORTED.into()));
        }
        let slot = self.read_slot(map, index.low);
        let there = self.code.binary_const(Ne, slot, 0);
        // For a devmap the value is the port; sockets and CPUs are known by the number that the
        // host has set.
        let one = self.clamp_to_single_target(slot);
        let one = self.code.binary_const(Add, one, 1);
        let nobody = self.code.constant(0);
        let mut target = self.code.select(there, one, nobody);
        let mut leads = there;
        if known & BROADCAST != 0 && range.high >= u64::from(BROADCAST) {
            let to_all = self.code.binary_const(And, flags.low, BROADCAST);
            let to_all = self.code.binary_const(Ne, to_all, 0);
            if self.code.as_boolean(to_all) != Some(false) {
                let others = self.code.binary_const(And, flags.low, EXCLUDE_INGRESS);
                let others = self.code.binary_const(Ne, others, 0);
                let all = self.broadcast_target(map, others)?;
                target = self.code.select(to_all, all, target);
                leads = self.code.binary(LogicalOr, there, to_all);
            }
        }
        let redirect = self.code.constant(XDP_REDIRECT);
        let otherwise = self.code.binary_const(And, flags.low, ACTION_MASK);
        let mut verdict = self.code.select(leads, redirect, otherwise);
        if range.high > u64::from(known) {
            // Undefined flags, known only at run time: the helper fails and keeps the earlier
            // target.
            let wrong = self.code.binary_const(And, flags.low, !known);
            let wrong = self.code.binary(Or, wrong, flags.high);
            let is_wrong = self.code.binary_const(Ne, wrong, 0);
            let (before, aborted) = (self.read_register(REDIRECT_TARGET)?.low, self.code.constant(XDP_ABORTED));
            target = self.code.select(is_wrong, before, target);
            verdict = self.code.select(is_wrong, aborted, verdict);
        }
        let target = self.scalar32(Interval::U32, target);
        self.write_register(REDIRECT_TARGET, target)?;
        Ok(self.scalar32(Interval::new(0, 4), verdict))
    }

    /// The target plus one that stands for all entries of a map, without the ingress port if
    /// `others` is true.
    fn broadcast_target(&mut self, map: u16, others: Id) -> Result<Id> {
        let mut targets = [0; 2];
        for (target, exclude) in targets.iter_mut().zip([false, true]) {
            // Only a target that may be used takes a number.
            if self.code.as_boolean(others) == Some(!exclude) {
                *target = self.code.constant(0);
                continue;
            }
            let number = self.facts.broadcasts.intern((map, exclude));
            if number >= broadcast::MAX_BROADCASTS {
                let most = broadcast::MAX_BROADCASTS / 2;
                let what = format!("packets are redirected to all devices of more than {most} maps");
                return self.reject_unsupported(what, "BPF_F_BROADCAST to any number of maps");
            }
            *target = self.code.constant(broadcast::FIRST_TARGET + number + 1);
        }
        Ok(self.code.select(others, targets[1], targets[0]))
    }
}
