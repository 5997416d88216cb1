//! Helpers of the kernel's (linux/bpf.h, `enum bpf_func_id`). Those that lead elsewhere (`bpf_tail_call`, `bpf_loop`) are in
//! `flow`.

use super::{Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{Ty, Value};
use crate::decode::helper;
use crate::decode::instruction::{Instruction, call};
use crate::errno::EINVAL;
use crate::lower::ir::{Argument, Effect, Id};
use crate::object::MapType;

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

    /// `bpf_tail_call(ctx, map, index)`: the programs that may be meant, each with whether it is.
    pub(crate) fn tail_call(&mut self) -> Result<(u16, Id)> {
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
