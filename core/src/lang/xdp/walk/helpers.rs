//! Helpers of the kernel's (linux/bpf.h, `enum bpf_func_id`). Those that lead elsewhere (`bpf_tail_call`, `bpf_loop`) are in
//! `flow`.

use super::{Result, Walk};
use crate::lang::xdp::code::Binary::*;
use crate::lang::xdp::code::{Argument, Effect, Id};
use crate::lang::xdp::fib;
use crate::lang::xdp::instruction::{Instruction, call};
use crate::lang::xdp::object::MapType;
use crate::lang::xdp::range::Range;
use crate::lang::xdp::types::{Ty, Value};

/// Errors that helpers give (errno.h).
const EINVAL: i32 = -22;

/// The most that a helper copies at once here, in bytes.
const MOST_BYTES: u64 = 512;

/// Names by number, of those that programs of XDP can call.
pub(in super::super) fn name(helper: u32) -> String {
    let name = match helper {
        1 => "bpf_map_lookup_elem",
        2 => "bpf_map_update_elem",
        3 => "bpf_map_delete_elem",
        5 => "bpf_ktime_get_ns",
        6 => "bpf_trace_printk",
        7 => "bpf_get_prandom_u32",
        8 => "bpf_get_smp_processor_id",
        12 => "bpf_tail_call",
        23 => "bpf_redirect",
        25 => "bpf_perf_event_output",
        28 => "bpf_csum_diff",
        44 => "bpf_xdp_adjust_head",
        51 => "bpf_redirect_map",
        54 => "bpf_xdp_adjust_meta",
        65 => "bpf_xdp_adjust_tail",
        69 => "bpf_fib_lookup",
        93 => "bpf_spin_lock",
        94 => "bpf_spin_unlock",
        125 => "bpf_ktime_get_boot_ns",
        130 => "bpf_ringbuf_output",
        131 => "bpf_ringbuf_reserve",
        132 => "bpf_ringbuf_submit",
        133 => "bpf_ringbuf_discard",
        134 => "bpf_ringbuf_query",
        160 => "bpf_ktime_get_coarse_ns",
        163 => "bpf_check_mtu",
        164 => "bpf_for_each_map_elem",
        177 => "bpf_trace_vprintk",
        181 => "bpf_loop",
        188 => "bpf_xdp_get_buff_len",
        189 => "bpf_xdp_load_bytes",
        190 => "bpf_xdp_store_bytes",
        195 => "bpf_map_lookup_percpu_elem",
        208 => "bpf_ktime_get_tai_ns",
        _ => return format!("helper {helper}"),
    };
    name.to_owned()
}

impl Walk<'_, '_> {
    pub(super) fn helper(&mut self, it: Instruction) -> Result<()> {
        if it.src == call::KERNEL {
            return self
                .refuse("a function of the kernel's is called")
                .map_err(|refused| refused.note("missing feature: kernel functions (kfuncs)"));
        }
        if it.src != call::HELPER {
            return self.refuse(format!("unknown kind of call: {}", it.src));
        }
        let number = it.imm as u32;
        self.shared.helpers.insert(number);
        let result = match number {
            1 => {
                let (map, key) = (self.get(1)?, self.get(2)?);
                let map = self.map(map)?;
                self.lookup(map, key)?
            }
            2 => {
                let (map, key, value, flags) = (self.get(1)?, self.get(2)?, self.get(3)?, self.get(4)?);
                let map = self.map(map)?;
                self.update(map, key, value, flags)?
            }
            3 => {
                let (map, key) = (self.get(1)?, self.get(2)?);
                let map = self.map(map)?;
                self.delete(map, key)?
            }
            195 => {
                let (map, key, processor) = (self.get(1)?, self.get(2)?, self.get(3)?);
                let map = self.map(map)?;
                self.lookup_percpu(map, key, processor)?
            }
            5 | 125 | 160 | 208 => {
                let pair = self.code.call("pkt_time", vec![Argument::Packet], Effect::Reads);
                let (low, high) = self.pair(pair);
                self.number(Range::ANY, low, high)
            }
            6 => self.trace_printk()?,
            7 => self.random()?,
            8 => self.constant(0),
            23 => {
                let (target, flags) = (self.get(1)?, self.get(2)?);
                self.expect_number(target, "the interface")?;
                self.redirect(target.low, flags)?
            }
            51 => self.redirect_map()?,
            25 => self.perf_event_output()?,
            28 => self.csum_diff()?,
            44 => self.adjust("adjust_head")?,
            54 => self.adjust_meta()?,
            65 => self.adjust("adjust_tail")?,
            fib::FIB_LOOKUP => self.fib_lookup()?,
            fib::CHECK_MTU => self.check_mtu()?,
            130 => self.ringbuf_output()?,
            131 => self.ringbuf_reserve()?,
            132 => self.ringbuf_hand_over(true)?,
            133 => self.ringbuf_hand_over(false)?,
            134 => self.ringbuf_query()?,
            177 => self.trace_vprintk()?,
            188 => {
                let length = self.length();
                self.word(Range::new(u64::from(self.state.length), u64::from(u32::MAX)), length)
            }
            189 => self.load_bytes()?,
            190 => self.store_bytes()?,
            93 | 94 => {
                let what = format!("{} is called", name(number));
                return self.refuse(what).map_err(|refused| {
                    refused.note(
                        "packets run side by side in lock step, and nobody may wait for another: count with atomics",
                    )
                });
            }
            _ => {
                let name = name(number);
                return self
                    .refuse(format!("{name} is called"))
                    .map_err(|refused| refused.note(format!("missing feature: {name}")));
            }
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
                    return self.refuse(format!(
                        "bpf_csum_diff is called with a size that is above {MOST_BYTES}, or known only when the packet is there"
                    ));
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
            return self.refuse(format!(
                "bytes are copied of which the number is above {MOST_BYTES}, or known only when the packet is there"
            ));
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
                    return self.refuse("bytes of the packet are copied to the stack at an offset that is not known");
                }
            },
            other => {
                let what = other.words();
                return self.refuse(format!(
                    "bytes of the packet are copied to {what}; to the stack or a reserved record they can be"
                ));
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
        Ok(self.outcome(inside, EINVAL))
    }

    /// `bpf_xdp_store_bytes(ctx, off, buffer, length)`
    fn store_bytes(&mut self) -> Result<Value> {
        let (at, inside, count) = self.copied()?;
        let buffer = self.get(3)?;
        let words = self.words(buffer, count, "what is copied into the packet")?;
        // All of them or none: far beyond the end a store does nothing.
        let nowhere = self.code.known(1 << 31);
        let at = self.code.select(inside, at, nowhere);
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
        Ok(self.outcome(inside, EINVAL))
    }

    /// `bpf_tail_call(ctx, map, index)`: the programs that may be meant, each with whether it is.
    pub(in super::super) fn tail_call(&mut self) -> Result<(u16, Id)> {
        self.shared.helpers.insert(12);
        let (context, map, index) = (self.get(1)?, self.get(2)?, self.get(3)?);
        if context.ty != Ty::Context(0) {
            return self.refuse("bpf_tail_call is not given the context");
        }
        self.expect_number(index, "which program is meant")?;
        let map = self.map(map)?;
        if self.linked.maps[usize::from(map)].definition.ty != MapType::PROG_ARRAY {
            return self.refuse("bpf_tail_call is given a map that holds no programs");
        }
        let slot = self.slot_of(map, index.low);
        Ok((map, slot))
    }
}
