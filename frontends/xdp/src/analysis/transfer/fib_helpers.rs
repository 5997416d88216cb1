//! `bpf_fib_lookup` and `bpf_check_mtu`: checks of their arguments, and the values of what they
//! write.

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::reg_type::RegType;
use crate::analysis::domain::state::Value;
use crate::errno::EINVAL;
use crate::fib;
use crate::ir::BinaryOp::*;
use crate::ir::{Argument, BlockCode, Effect, Id, Op};

/// Size of `struct bpf_fib_lookup` in bytes.
const PARAMETERS: u32 = 64;

/// All `BPF_FIB_LOOKUP_*` flags.
const FLAGS: u64 = 0x3f;

/// `AF_INET`, `AF_INET6`.
const INET: u32 = 2;
const INET6: u32 = 10;

impl BlockInterpreter<'_, '_> {
    /// `bpf_fib_lookup(ctx, params, plen, flags)`
    pub(super) fn fib_lookup(&mut self) -> Result<Value> {
        let (context, params, length, flags) =
            (self.read_register(1)?, self.read_register(2)?, self.read_register(3)?, self.read_register(4)?);
        self.expect_context(context, "bpf_fib_lookup")?;
        let size = self.expect_scalar(length, "the size of the structure")?;
        let known = self.expect_scalar(flags, "the flags argument")?;
        if size.high < u64::from(PARAMETERS) {
            return Ok(self.error_code(EINVAL));
        }
        if size.low < u64::from(PARAMETERS) {
            let what = format!(
                "bpf_fib_lookup is called with a length that may be below {PARAMETERS} and is known only at run time"
            );
            return self.reject_unsupported(what, "lengths of structures known only at run time");
        }
        // The kernel takes 32 bits of flags.
        if known.as_constant().is_some_and(|flags| flags & 0xffff_ffff & !FLAGS != 0) {
            return Ok(self.error_code(EINVAL));
        }
        let (frame, base) = self.constant_stack_offset(params, "the structure of a bpf_fib_lookup")?;
        let mut words = vec![self.code.constant(0)];
        words.extend(self.load_words(params, PARAMETERS, "the structure of a bpf_fib_lookup")?);
        let family = low_byte(&self.code, words[1], 64);
        self.facts.families.v4 |= family.is_none_or(|family| family == INET);
        self.facts.families.v6 |= family.is_none_or(|family| family == INET6);
        let arguments = vec![Argument::Words(words), Argument::Value(flags.low)];
        let all = self.code.call(fib::LOOKUP_FUNCTION, arguments, Effect::Reads);
        let words: Vec<Id> = (1..=PARAMETERS / 4).map(|word| self.code.add(Op::Component(all, word))).collect();
        self.store_stack_bytes(frame, base, PARAMETERS, &words)?;
        let result = self.code.add(Op::Component(all, 0));
        Ok(self.sign_extended_int(result))
    }

    /// `bpf_check_mtu(ctx, ifindex, mtu_len, len_diff, flags)`
    pub(super) fn check_mtu(&mut self) -> Result<Value> {
        let (context, number, length) = (self.read_register(1)?, self.read_register(2)?, self.read_register(3)?);
        let (more, flags) = (self.read_register(4)?, self.read_register(5)?);
        self.expect_context(context, "bpf_check_mtu")?;
        self.expect_scalar(number, "the interface")?;
        self.expect_scalar(more, "the growth of the packet")?;
        self.expect_scalar(flags, "the flags argument")?;
        let (frame, base) = self.constant_stack_offset(length, "the length of a bpf_check_mtu")?;
        let given = self.load_words(length, 4, "the length of a bpf_check_mtu")?;
        let flags = self.code.binary(Or, flags.low, flags.high);
        let arguments = [number.low, given[0], more.low, flags].map(Argument::Value);
        let arguments = [Argument::Packet].into_iter().chain(arguments).collect();
        let both = self.code.call(fib::MTU_FUNCTION, arguments, Effect::Reads);
        let (result, mtu) = self.split_pair(both);
        self.store_stack_bytes(frame, base, 4, &[mtu])?;
        Ok(self.sign_extended_int(result))
    }

    fn expect_context(&self, value: Value, helper: &str) -> Result<()> {
        match value.ty {
            RegType::Context(0) => Ok(()),
            other => self.reject(format!("the first argument of {helper} is {}, not the context", other.describe())),
        }
    }

    /// Frame and constant offset of an argument that the helper reads and writes; it must be on the
    /// stack.
    fn constant_stack_offset(&self, pointer: Value, what: &str) -> Result<(u8, i64)> {
        match pointer.ty {
            RegType::Stack { frame, off } => match off.as_constant() {
                Some(base) => Ok((frame, base)),
                None => self.reject_unsupported(
                    format!("{what} is on the stack at an unknown offset"),
                    "structures for helpers at any place of the stack",
                ),
            },
            other => self.reject_unsupported(
                format!("{what} is at {}; it must be on the stack", other.describe()),
                "structures for helpers in other memory than the stack",
            ),
        }
    }

    /// An `int` returned by a helper, sign-extended to 64 bits.
    fn sign_extended_int(&mut self, low: Id) -> Value {
        let high = self.code.binary_const(Sar, low, 31);
        self.scalar(Interval::ANY, low, high)
    }
}

/// The low byte of a number if it is known, looking through at most `depth` operations.
fn low_byte(code: &BlockCode, of: Id, depth: u32) -> Option<u32> {
    let known = |id: Id| code.as_constant(id);
    let depth = depth.checked_sub(1)?;
    match code.ops[of as usize] {
        Op::Constant(value) => Some(value & 0xff),
        Op::Binary(Shl, _, by) if known(by)? >= 8 => Some(0),
        Op::Binary(And, a, mask) => match known(mask)? & 0xff {
            0 => Some(0),
            mask => Some(low_byte(code, a, depth)? & mask),
        },
        Op::Binary(Or, a, b) => Some(low_byte(code, a, depth)? | low_byte(code, b, depth)?),
        _ => None,
    }
}
