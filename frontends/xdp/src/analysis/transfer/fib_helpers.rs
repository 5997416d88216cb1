//! `bpf_fib_lookup` and `bpf_check_mtu`: what they are given, and what is where they write.

use super::{Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{Ty, Value};
use crate::errno::EINVAL;
use crate::fib;
use crate::lower::ir::Binary::*;
use crate::lower::ir::{Argument, Code, Effect, Id, Op};

/// Bytes of `struct bpf_fib_lookup`.
const PARAMETERS: u32 = 64;

/// `BPF_FIB_LOOKUP_*`, all of them.
const FLAGS: u64 = 0x3f;

/// `AF_INET`, `AF_INET6`
const INET: u32 = 2;
const INET6: u32 = 10;

impl Walk<'_, '_> {
    /// `bpf_fib_lookup(ctx, params, plen, flags)`
    pub(super) fn fib_lookup(&mut self) -> Result<Value> {
        let (context, params, length, flags) = (self.get(1)?, self.get(2)?, self.get(3)?, self.get(4)?);
        self.expect_context(context, "bpf_fib_lookup")?;
        let size = self.expect_number(length, "how long the structure is")?;
        let known = self.expect_number(flags, "what the flags are")?;
        if size.high < u64::from(PARAMETERS) {
            return Ok(self.error(EINVAL));
        }
        if size.low < u64::from(PARAMETERS) {
            let what = format!(
                "bpf_fib_lookup is called with a length that may be below {PARAMETERS}, which is known only when the packet is there"
            );
            return self.lack(what, "lengths of structures that are known only when the packet is there");
        }
        // The kernel takes 32 bits of them.
        if known.exact().is_some_and(|flags| flags & 0xffff_ffff & !FLAGS != 0) {
            return Ok(self.error(EINVAL));
        }
        let (frame, base) = self.exactly_on_stack(params, "the structure of a bpf_fib_lookup")?;
        let mut words = vec![self.code.known(0)];
        words.extend(self.words(params, PARAMETERS, "the structure of a bpf_fib_lookup")?);
        let family = low_byte(&self.code, words[1], 64);
        self.shared.families.v4 |= family.is_none_or(|family| family == INET);
        self.shared.families.v6 |= family.is_none_or(|family| family == INET6);
        let arguments = vec![Argument::Words(words), Argument::One(flags.low)];
        let all = self.code.call(fib::LOOKUP, arguments, Effect::Reads);
        let words: Vec<Id> = (1..=PARAMETERS / 4).map(|word| self.code.add(Op::Part(all, word))).collect();
        self.set_bytes(frame, base, PARAMETERS, &words)?;
        let result = self.code.add(Op::Part(all, 0));
        Ok(self.with_sign(result))
    }

    /// `bpf_check_mtu(ctx, ifindex, mtu_len, len_diff, flags)`
    pub(super) fn check_mtu(&mut self) -> Result<Value> {
        let (context, number, length) = (self.get(1)?, self.get(2)?, self.get(3)?);
        let (more, flags) = (self.get(4)?, self.get(5)?);
        self.expect_context(context, "bpf_check_mtu")?;
        self.expect_number(number, "the interface")?;
        self.expect_number(more, "how much longer the packet becomes")?;
        self.expect_number(flags, "what the flags are")?;
        let (frame, base) = self.exactly_on_stack(length, "the length of a bpf_check_mtu")?;
        let given = self.words(length, 4, "the length of a bpf_check_mtu")?;
        let flags = self.code.binary(Or, flags.low, flags.high);
        let arguments = [number.low, given[0], more.low, flags].map(Argument::One);
        let arguments = [Argument::Packet].into_iter().chain(arguments).collect();
        let both = self.code.call(fib::MTU, arguments, Effect::Reads);
        let (result, mtu) = self.pair(both);
        self.set_bytes(frame, base, 4, &[mtu])?;
        Ok(self.with_sign(result))
    }

    fn expect_context(&self, value: Value, helper: &str) -> Result<()> {
        match value.ty {
            Ty::Context(0) => Ok(()),
            other => self.refuse(format!("{helper} is given {} in place of the context", other.words())),
        }
    }

    /// Where on the stack what a helper reads and writes is.
    fn exactly_on_stack(&self, pointer: Value, what: &str) -> Result<(u8, i64)> {
        match pointer.ty {
            Ty::Stack { frame, off } => match off.exact() {
                Some(base) => Ok((frame, base)),
                None => self.lack(
                    format!("{what} is on the stack at an offset that is not known"),
                    "structures for helpers at any place of the stack",
                ),
            },
            other => self.lack(
                format!("{what} is at {}; on the stack it can be", other.words()),
                "structures for helpers in other memory than the stack",
            ),
        }
    }

    /// An `int` that a helper returns.
    fn with_sign(&mut self, low: Id) -> Value {
        let high = self.code.by(Sar, low, 31);
        self.number(Range::ANY, low, high)
    }
}

/// The lowest byte of a number, where it is known; what is deeper than this is not looked at.
fn low_byte(code: &Code, of: Id, depth: u32) -> Option<u32> {
    let known = |id: Id| code.value(id);
    let depth = depth.checked_sub(1)?;
    match code.ops[of as usize] {
        Op::Known(value) => Some(value & 0xff),
        Op::Binary(Shl, _, by) if known(by)? >= 8 => Some(0),
        Op::Binary(And, a, mask) => match known(mask)? & 0xff {
            0 => Some(0),
            mask => Some(low_byte(code, a, depth)? & mask),
        },
        Op::Binary(Or, a, b) => Some(low_byte(code, a, depth)? | low_byte(code, b, depth)?),
        _ => None,
    }
}
