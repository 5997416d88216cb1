//! Helpers of the kernel's (linux/bpf.h, `enum bpf_func_id`). Those that lead elsewhere (`bpf_tail_call`, `bpf_loop`) are in
//! `flow`.

use super::{Result, Walk};
use crate::lang::xdp::code::Binary::*;
use crate::lang::xdp::code::{Argument, Effect, Id};
use crate::lang::xdp::errno::{EFAULT, EINVAL};
use crate::lang::xdp::helper;
use crate::lang::xdp::instruction::{Instruction, call};
use crate::lang::xdp::object::MapType;
use crate::lang::xdp::range::Range;
use crate::lang::xdp::types::{Ty, Value};

/// The most that a helper copies at once here, in bytes.
const MOST_BYTES: u64 = 512;

impl Walk<'_, '_> {
    pub(super) fn helper(&mut self, it: Instruction) -> Result<()> {
        if it.src == call::KERNEL {
            return self.lack("a function of the kernel's is called", "kernel functions (kfuncs)");
        }
        if it.src != call::HELPER {
            return self.refuse(format!("unknown kind of call: {}", it.src));
        }
        let number = it.imm as u32;
        self.shared.helpers.insert(number);
        let result = match number {
            helper::MAP_LOOKUP_ELEM => {
                let (map, key) = (self.get(1)?, self.get(2)?);
                let map = self.map(map)?;
                self.lookup(map, key)?
            }
            helper::MAP_UPDATE_ELEM => {
                let (map, key, value, flags) = (self.get(1)?, self.get(2)?, self.get(3)?, self.get(4)?);
                let map = self.map(map)?;
                self.update(map, key, value, flags)?
            }
            helper::MAP_DELETE_ELEM => {
                let (map, key) = (self.get(1)?, self.get(2)?);
                let map = self.map(map)?;
                self.delete(map, key)?
            }
            helper::MAP_LOOKUP_PERCPU_ELEM => {
                let (map, key, processor) = (self.get(1)?, self.get(2)?, self.get(3)?);
                let map = self.map(map)?;
                self.lookup_percpu(map, key, processor)?
            }
            helper::KTIME_GET_NS
            | helper::KTIME_GET_BOOT_NS
            | helper::KTIME_GET_COARSE_NS
            | helper::KTIME_GET_TAI_NS => {
                let pair = self.code.call("pkt_time", vec![Argument::Packet], Effect::Reads);
                let (low, high) = self.pair(pair);
                self.number(Range::ANY, low, high)
            }
            helper::TRACE_PRINTK => self.trace_printk()?,
            helper::GET_PRANDOM_U32 => self.random()?,
            helper::GET_SMP_PROCESSOR_ID => self.constant(0),
            helper::REDIRECT => {
                let (target, flags) = (self.get(1)?, self.get(2)?);
                self.expect_number(target, "the interface")?;
                self.redirect(target.low, flags)?
            }
            helper::REDIRECT_MAP => self.redirect_map()?,
            helper::PERF_EVENT_OUTPUT => self.perf_event_output()?,
            helper::CSUM_DIFF => self.csum_diff()?,
            helper::XDP_ADJUST_HEAD => self.adjust("adjust_head")?,
            helper::XDP_ADJUST_META => self.adjust_meta()?,
            helper::XDP_ADJUST_TAIL => self.adjust("adjust_tail")?,
            helper::FIB_LOOKUP => self.fib_lookup()?,
            helper::CHECK_MTU => self.check_mtu()?,
            helper::RINGBUF_OUTPUT => self.ringbuf_output()?,
            helper::RINGBUF_RESERVE => self.ringbuf_reserve()?,
            helper::RINGBUF_SUBMIT => self.ringbuf_hand_over(true)?,
            helper::RINGBUF_DISCARD => self.ringbuf_hand_over(false)?,
            helper::RINGBUF_QUERY => self.ringbuf_query()?,
            helper::TRACE_VPRINTK => self.trace_vprintk()?,
            helper::XDP_GET_BUFF_LEN => {
                let length = self.length();
                self.word(Range::new(u64::from(self.state.length), u64::from(u32::MAX)), length)
            }
            helper::XDP_LOAD_BYTES => self.load_bytes()?,
            helper::XDP_STORE_BYTES => self.store_bytes()?,
            helper::SPIN_LOCK | helper::SPIN_UNLOCK => {
                let what = format!("{} is called", helper::name(number));
                return self.lack(what, helper::feature(number)).map_err(|refused| {
                    refused.note(
                        "packets run side by side in lock step, and nobody may wait for another: count with atomics",
                    )
                });
            }
            _ => return self.lack(format!("{} is called", helper::name(number)), helper::feature(number)),
        };
        self.after_call();
        self.set(0, result)
    }

    /// One's complement sum of what is there less what was, folded: since Linux 6.13 it gives no more than 16 bits, and takes any
    /// number of bytes.
    fn csum_diff(&mut self) -> Result<Value> {
        let (from, from_size, to, to_size, seed) =
            (self.get(1)?, self.get(2)?, self.get(3)?, self.get(4)?, self.get(5)?);
        self.expect_number(seed, "the seed")?;
        let mut sizes = [0; 2];
        for (size, value) in sizes.iter_mut().zip([from_size, to_size]) {
            *size = match value.ty.range().and_then(Range::exact) {
                Some(size) if size <= MOST_BYTES => size as u32,
                _ => {
                    let what = format!(
                        "bpf_csum_diff is called with a size that is above {MOST_BYTES}, or known only when the packet is there"
                    );
                    return self.lack(what, "bpf_csum_diff of any size");
                }
            };
        }
        // As the kernel sums it up, so that zero is 0 or 0xffff where it is there.
        let [from_size, to_size] = sizes;
        let sum = match (from_size, to_size) {
            (0, 0) => seed.low,
            (0, _) => self.summed(to, to_size, seed.low)?,
            (_, 0) => {
                let seed = self.code.by(Xor, seed.low, u32::MAX);
                let sum = self.summed(from, from_size, seed)?;
                self.code.by(Xor, sum, u32::MAX)
            }
            _ => {
                let zero = self.code.known(0);
                let (new, old) = (self.summed(to, to_size, seed.low)?, self.summed(from, from_size, zero)?);
                let old = self.code.by(Xor, old, u32::MAX);
                self.code.call_with("csum_add", &[new, old], Effect::None)
            }
        };
        let sum = self.code.call_with("csum_fold", &[sum], Effect::None);
        Ok(self.word(Range::new(0, 0xffff), sum))
    }

    /// The one's complement sum of bytes, as if zeros were behind them, and of a number.
    fn summed(&mut self, pointer: Value, size: u32, mut sum: Id) -> Result<Id> {
        for word in self.words(pointer, size, "what is summed up")? {
            sum = self.code.call_with("csum_add", &[sum, word], Effect::None);
        }
        Ok(sum)
    }

    fn adjust(&mut self, which: &str) -> Result<Value> {
        let context = self.get(1)?;
        if context.ty != Ty::Context(0) {
            let what = context.ty.words();
            return self.refuse(format!("the packet's ends are moved by {what}, and not by the context"));
        }
        let delta = self.get(2)?;
        self.expect_number(delta, "how far an end is moved")?;
        let done =
            self.code.call(&format!("x_{which}"), vec![Argument::Packet, Argument::One(delta.low)], Effect::Writes);
        let result = self.outcome(done, EINVAL);
        self.state.forget_packet();
        Ok(result)
    }

    /// Where bytes of the packet are that a helper copies, whether they are in it, and how many.
    fn copied(&mut self) -> Result<(Id, Id, u32)> {
        let (off, length) = (self.get(2)?, self.get(4)?);
        self.expect_number(off, "where bytes are copied")?;
        let range = self.expect_number(length, "how many bytes are copied")?;
        let Some(count) = range.exact().filter(|&count| count <= MOST_BYTES) else {
            let what = format!(
                "bytes are copied of which the number is above {MOST_BYTES}, or known only when the packet is there"
            );
            return self.lack(what, "bpf_xdp_load_bytes and bpf_xdp_store_bytes of any length");
        };
        let length = self.length();
        let count = self.code.known(count as u32);
        let short = self.code.binary(Lt, length, count);
        let last = self.code.binary(Sub, length, count);
        let far = self.code.binary(Lt, last, off.low);
        let outside = self.code.binary(Either, short, far);
        let inside = self.code.not(outside);
        Ok((off.low, inside, self.code.value(count).unwrap_or(0)))
    }

    /// `bpf_xdp_load_bytes(ctx, off, buffer, length)`
    fn load_bytes(&mut self) -> Result<Value> {
        let (at, inside, count) = self.copied()?;
        let buffer = self.get(3)?;
        let base = match buffer.ty {
            Ty::Record { .. } => None,
            Ty::Stack { frame, off } => match off.exact() {
                Some(off) => Some((frame, off)),
                None => {
                    let what = "bytes of the packet are copied to the stack at an offset that is not known";
                    return self.lack(what, "bpf_xdp_load_bytes to any place of the stack");
                }
            },
            other => {
                let what = other.words();
                let what =
                    format!("bytes of the packet are copied to {what}; to the stack or a reserved record they can be");
                return self.lack(what, "bpf_xdp_load_bytes to other memory");
            }
        };
        let mut words = Vec::new();
        for word in (0..count).step_by(4) {
            let size = (count - word).min(4);
            let pieces: &[(u32, u32)] = match size {
                4 => &[(0, 4)],
                3 => &[(0, 2), (2, 1)],
                2 => &[(0, 2)],
                _ => &[(0, 1)],
            };
            let mut new = self.code.known(0);
            for &(from, size) in pieces {
                let at = self.code.by(Add, at, word + from);
                let piece = self.load_packet(at, size).low;
                let piece = self.code.by(Shl, piece, 8 * from);
                new = self.code.binary(Or, new, piece);
            }
            let Some((frame, base)) = base else {
                for &(from, size) in pieces {
                    let off = i64::from(word + from);
                    let old = self.load_record(buffer, off, size)?.low;
                    let part = self.code.by(Shr, new, 8 * from);
                    let part = self.code.select(inside, part, old);
                    let part = self.word(Range::WORD, part);
                    self.store_record(buffer, off, size, part)?;
                }
                continue;
            };
            let old = self.stack_word(frame, base + i64::from(word), size)?;
            words.push(self.code.select(inside, new, old));
        }
        if let Some((frame, base)) = base {
            self.set_bytes(frame, base, count, &words)?;
        }
        Ok(self.copied_or_not(at, inside))
    }

    /// `bpf_xdp_store_bytes(ctx, off, buffer, length)`
    fn store_bytes(&mut self) -> Result<Value> {
        let (off, inside, count) = self.copied()?;
        let buffer = self.get(3)?;
        let words = self.words(buffer, count, "what is copied into the packet")?;
        // All of them or none: far beyond the end a store does nothing.
        let nowhere = self.code.known(1 << 31);
        let at = self.code.select(inside, off, nowhere);
        for (word, value) in (0..).step_by(4).zip(words) {
            let pieces: &[(u32, u32)] = match count - word {
                4.. => &[(0, 4)],
                3 => &[(0, 2), (2, 1)],
                2 => &[(0, 2)],
                _ => &[(0, 1)],
            };
            for &(from, size) in pieces {
                let to = self.code.by(Add, at, word + from);
                let part = self.code.by(Shr, value, 8 * from);
                let part = self.word(Range::WORD, part);
                self.store_packet(to, size, part);
            }
        }
        Ok(self.copied_or_not(off, inside))
    }

    /// What is given for bytes that were to be copied: of more than 16 bits the kernel takes an offset for no offset at all
    /// (`bpf_xdp_pointer`, net/core/filter.c).
    fn copied_or_not(&mut self, off: Id, inside: Id) -> Value {
        let most = self.code.known(0xffff);
        let is_offset = self.code.binary(Le, off, most);
        self.first_of(&[(is_offset, EFAULT), (inside, EINVAL)])
    }

    /// `bpf_tail_call(ctx, map, index)`: the programs that may be meant, each with whether it is.
    pub(in super::super) fn tail_call(&mut self) -> Result<(u16, Id)> {
        self.shared.helpers.insert(helper::TAIL_CALL);
        let (context, map, index) = (self.get(1)?, self.get(2)?, self.get(3)?);
        if context.ty != Ty::Context(0) {
            return self.refuse("bpf_tail_call is not given the context");
        }
        self.expect_number(index, "which program is meant")?;
        let map = self.map(map)?;
        let ty = self.linked.maps[usize::from(map)].definition.ty;
        if ty != MapType::PROG_ARRAY {
            let (given, takes) = (ty.name(), MapType::PROG_ARRAY.name());
            return self.refuse(format!("bpf_tail_call is given a map of type {given}, and takes one of type {takes}"));
        }
        let slot = self.slot_of(map, index.low);
        Ok((map, slot))
    }
}
