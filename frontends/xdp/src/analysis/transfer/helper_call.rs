//! Calls of kernel helpers (linux/bpf.h, `enum bpf_func_id`). Those that continue elsewhere
//! (`bpf_tail_call`, `bpf_loop`, `bpf_for_each_map_elem`) are in `analysis::fixpoint`.

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::reg_type::RegType;
use crate::analysis::domain::state::Value;
use crate::errno::EINVAL;
use crate::helper;
use crate::instruction::{Instruction, call};
use crate::ir::{Argument, Effect, Id};
use crate::object::MapType;

impl BlockInterpreter<'_, '_> {
    pub(super) fn call_helper(&mut self, it: Instruction) -> Result<()> {
        if it.src == call::KERNEL {
            return self.reject_unsupported("a kernel function is called", "kernel functions (kfuncs)");
        }
        if it.src != call::HELPER {
            return self.reject(format!("unknown kind of call: {}", it.src));
        }
        let number = it.imm as u32;
        self.facts.helpers.insert(number);
        let result = match number {
            helper::MAP_LOOKUP_ELEM => {
                let (map, key) = (self.read_register(1)?, self.read_register(2)?);
                let map = self.expect_map(map)?;
                self.lookup(map, key)?
            }
            helper::MAP_UPDATE_ELEM => {
                let (map, key, value, flags) =
                    (self.read_register(1)?, self.read_register(2)?, self.read_register(3)?, self.read_register(4)?);
                let map = self.expect_map(map)?;
                self.update(map, key, value, flags)?
            }
            helper::MAP_DELETE_ELEM => {
                let (map, key) = (self.read_register(1)?, self.read_register(2)?);
                let map = self.expect_map(map)?;
                self.delete(map, key)?
            }
            helper::MAP_LOOKUP_PERCPU_ELEM => {
                let (map, key, processor) = (self.read_register(1)?, self.read_register(2)?, self.read_register(3)?);
                let map = self.expect_map(map)?;
                self.lookup_percpu(map, key, processor)?
            }
            helper::KTIME_GET_NS
            | helper::KTIME_GET_BOOT_NS
            | helper::KTIME_GET_COARSE_NS
            | helper::KTIME_GET_TAI_NS => {
                let pair = self.code.call("pkt_time", vec![Argument::Packet], Effect::Reads);
                let (low, high) = self.split_pair(pair);
                self.scalar(Interval::ANY, low, high)
            }
            helper::TRACE_PRINTK => self.trace_printk()?,
            helper::GET_PRANDOM_U32 => self.random_u32()?,
            helper::GET_SMP_PROCESSOR_ID => self.constant(0),
            helper::REDIRECT => {
                let (target, flags) = (self.read_register(1)?, self.read_register(2)?);
                self.expect_scalar(target, "the interface")?;
                self.redirect(target.low, flags)?
            }
            helper::REDIRECT_MAP => self.redirect_map()?,
            helper::PERF_EVENT_OUTPUT => self.perf_event_output()?,
            helper::CSUM_DIFF => self.csum_diff()?,
            helper::XDP_ADJUST_HEAD => self.adjust_packet("adjust_head")?,
            helper::XDP_ADJUST_META => self.adjust_meta()?,
            helper::XDP_ADJUST_TAIL => self.adjust_packet("adjust_tail")?,
            helper::FIB_LOOKUP => self.fib_lookup()?,
            helper::CHECK_MTU => self.check_mtu()?,
            helper::RINGBUF_OUTPUT => self.ringbuf_output()?,
            helper::RINGBUF_RESERVE => self.ringbuf_reserve()?,
            helper::RINGBUF_SUBMIT => self.ringbuf_commit(true)?,
            helper::RINGBUF_DISCARD => self.ringbuf_commit(false)?,
            helper::RINGBUF_QUERY => self.ringbuf_query()?,
            helper::TRACE_VPRINTK => self.trace_vprintk()?,
            helper::XDP_GET_BUFF_LEN => {
                let length = self.packet_length();
                self.scalar32(Interval::new(u64::from(self.state.proven_length), u64::from(u32::MAX)), length)
            }
            helper::XDP_LOAD_BYTES => self.load_bytes()?,
            helper::XDP_STORE_BYTES => self.store_bytes()?,
            helper::SPIN_LOCK | helper::SPIN_UNLOCK => {
                let what = format!("{} is called", helper::name(number));
                return self.reject_unsupported(what, helper::missing_feature(number)).map_err(|refused| {
                    refused
                        .note("packets run in lock step, so none can wait for another: use atomic operations to count")
                });
            }
            _ => {
                return self.reject_unsupported(
                    format!("{} is called", helper::name(number)),
                    helper::missing_feature(number),
                );
            }
        };
        self.clear_caller_saved();
        self.write_register(0, result)
    }

    fn adjust_packet(&mut self, which: &str) -> Result<Value> {
        let context = self.read_register(1)?;
        if context.ty != RegType::Context(0) {
            let what = context.ty.describe();
            return self
                .reject(format!("the first argument is {what}, not the context, where the packet's ends are moved"));
        }
        let delta = self.read_register(2)?;
        self.expect_scalar(delta, "the distance by which an end is moved")?;
        let done =
            self.code.call(&format!("x_{which}"), vec![Argument::Packet, Argument::Value(delta.low)], Effect::Writes);
        let result = self.zero_or_error(done, EINVAL);
        self.state.invalidate_packet_pointers();
        Ok(result)
    }

    /// `bpf_tail_call(ctx, map, index)`: returns the program array and the slot's value.
    pub(crate) fn read_tail_call(&mut self) -> Result<(u16, Id)> {
        self.facts.helpers.insert(helper::TAIL_CALL);
        let (context, map, index) = (self.read_register(1)?, self.read_register(2)?, self.read_register(3)?);
        if context.ty != RegType::Context(0) {
            return self.reject("the first argument of bpf_tail_call is not the context");
        }
        self.expect_scalar(index, "the index of a tail call")?;
        let map = self.expect_map(map)?;
        let ty = self.linked.maps[usize::from(map)].definition.ty;
        if ty != MapType::PROG_ARRAY {
            let (given, takes) = (ty.name(), MapType::PROG_ARRAY.name());
            return self.reject(format!("bpf_tail_call takes a map of type {takes}, not {given}"));
        }
        let slot = self.read_slot(map, index.low);
        Ok((map, slot))
    }
}
