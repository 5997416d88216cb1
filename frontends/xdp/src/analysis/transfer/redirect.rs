//! `bpf_redirect` and `bpf_redirect_map`: where a packet goes if its verdict is to redirect it.

use super::{Result, TARGET, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::Value;
use crate::broadcast;
use crate::lower::ir::Binary::*;
use crate::lower::ir::Id;
use crate::object::MapType;

/// `enum xdp_action`
const XDP_ABORTED: u32 = 0;
const XDP_REDIRECT: u32 = 4;

/// Bits of `bpf_redirect_map`'s flags that are the verdict where there is no entry.
const ACTION_MASK: u32 = 3;
/// `BPF_F_BROADCAST`, `BPF_F_EXCLUDE_INGRESS`
const BROADCAST: u32 = 8;
const EXCLUDE_INGRESS: u32 = 16;

/// No target: the verdict is ABORTED.
const NO_TARGET: u32 = 1 << 24;

impl Walk<'_, '_> {
    pub(super) fn redirect(&mut self, target: Id, flags: Value) -> Result<Value> {
        self.expect_number(flags, "what the flags are")?;
        // There are no flags: with any it fails, and leaves what was noted before.
        let any = self.code.binary(Or, flags.low, flags.high);
        let is_plain = self.code.by(Eq, any, 0);
        let before = self.get(TARGET)?.low;
        let target = self.one_target(target);
        let target = self.code.by(Add, target, 1);
        let target = self.code.select(is_plain, target, before);
        let target = self.word(Range::WORD, target);
        self.set(TARGET, target)?;
        let (redirect, aborted) = (self.code.known(XDP_REDIRECT), self.code.known(XDP_ABORTED));
        let verdict = self.code.select(is_plain, redirect, aborted);
        Ok(self.word(Range::new(0, u64::from(XDP_REDIRECT)), verdict))
    }

    /// A target that stands for one port: where the program has others, which stand for several, it is none of those.
    fn one_target(&mut self, target: Id) -> Id {
        if self.shared.broadcasts.all().is_empty() {
            return target;
        }
        let is_one = self.code.by(Lt, target, broadcast::FIRST);
        let none = self.code.known(NO_TARGET);
        self.code.select(is_one, target, none)
    }

    pub(super) fn redirect_map(&mut self) -> Result<Value> {
        let (map, index, flags) = (self.get(1)?, self.get(2)?, self.get(3)?);
        let map = self.map(map)?;
        let ty = self.linked.maps[usize::from(map)].definition.ty;
        if !ty.holds_redirect_targets() {
            let takes = "devmap, devmap_hash, cpumap or xskmap";
            let given = ty.name();
            return self
                .refuse(format!("bpf_redirect_map is given a map of type {given}, and takes one of type {takes}"));
        }
        self.expect_number(index, "the index")?;
        let range = self.expect_number(flags, "what the flags are")?;
        let known = match ty {
            MapType::DEVMAP | MapType::DEVMAP_HASH => ACTION_MASK | BROADCAST | EXCLUDE_INGRESS,
            _ => ACTION_MASK,
        };
        if range.exact().is_some_and(|flags| flags & !u64::from(known) != 0) {
            return Ok(self.constant(XDP_ABORTED.into()));
        }
        let slot = self.slot_of(map, index.low);
        let there = self.code.by(Ne, slot, 0);
        // A port is what it is; sockets and processors are known by the number that the host has set.
        let one = self.one_target(slot);
        let one = self.code.by(Add, one, 1);
        let nobody = self.code.known(0);
        let mut target = self.code.select(there, one, nobody);
        let mut leads = there;
        if known & BROADCAST != 0 && range.high >= u64::from(BROADCAST) {
            let to_all = self.code.by(And, flags.low, BROADCAST);
            let to_all = self.code.by(Ne, to_all, 0);
            if self.code.as_truth(to_all) != Some(false) {
                let others = self.code.by(And, flags.low, EXCLUDE_INGRESS);
                let others = self.code.by(Ne, others, 0);
                let all = self.all_of(map, others)?;
                target = self.code.select(to_all, all, target);
                leads = self.code.binary(Either, there, to_all);
            }
        }
        let redirect = self.code.known(XDP_REDIRECT);
        let otherwise = self.code.by(And, flags.low, ACTION_MASK);
        let mut verdict = self.code.select(leads, redirect, otherwise);
        if range.high > u64::from(known) {
            // Flags that there are none of, which only the packet tells: it fails, and leaves what was noted before.
            let wrong = self.code.by(And, flags.low, !known);
            let wrong = self.code.binary(Or, wrong, flags.high);
            let is_wrong = self.code.by(Ne, wrong, 0);
            let (before, aborted) = (self.get(TARGET)?.low, self.code.known(XDP_ABORTED));
            target = self.code.select(is_wrong, before, target);
            verdict = self.code.select(is_wrong, aborted, verdict);
        }
        let target = self.word(Range::WORD, target);
        self.set(TARGET, target)?;
        Ok(self.word(Range::new(0, 4), verdict))
    }

    /// The target, and one, that stands for all of a map's entries, or where `others` is true for those but the port that the
    /// packet came in by.
    fn all_of(&mut self, map: u16, others: Id) -> Result<Id> {
        let mut targets = [0; 2];
        for (target, exclude) in targets.iter_mut().zip([false, true]) {
            // Only what is asked for has a number.
            if self.code.as_truth(others) == Some(!exclude) {
                *target = self.code.known(0);
                continue;
            }
            let number = self.shared.broadcasts.of((map, exclude));
            if number >= broadcast::MOST {
                let most = broadcast::MOST / 2;
                let what = format!("packets are redirected to all devices of more than {most} maps");
                return self.lack(what, "BPF_F_BROADCAST to any number of maps");
            }
            *target = self.code.known(broadcast::FIRST + number + 1);
        }
        Ok(self.code.select(others, targets[1], targets[0]))
    }
}
