//! Helpers that record events for the host: ring buffers, perf event arrays and prints. The format
//! of the records is in `crate::events`.

use super::ring_record::record_frame;
use super::{BlockInterpreter, Result};
use crate::analysis::domain::offsets::Offsets;
use crate::analysis::domain::reg_type::RegType;
use crate::analysis::domain::state::Value;
use crate::analysis::event_uses::ReservedRecord;
use crate::errno::{E2BIG, EAGAIN, EFAULT, EINVAL, EOPNOTSUPP};
use crate::events::{Argument, MAX_PACKET_BYTES, PrintFormat};
use crate::ir::BinaryOp::*;
use crate::ir::{Argument as Given, Effect, Id, Op};
use crate::object::MapType;

/// Maximum size of the data that a program gives for a record.
const MAX_RECORD_BYTES: u64 = 2048;

/// Feature name for print formats that cannot be read at compile time.
const RUNTIME_FORMATS: &str = "print formats known only at run time";

/// Maximum number of `bpf_ringbuf_reserve` calls in a program.
const MAX_RESERVED_RECORDS: usize = 1024;

/// Flags of `bpf_ringbuf_output` (`BPF_RB_NO_WAKEUP`, `BPF_RB_FORCE_WAKEUP`).
const WAKEUP_FLAGS: u32 = 3;

/// Size of the header that the kernel puts before each record (`BPF_RINGBUF_HDR_SZ`).
const RINGBUF_HEADER_BYTES: u64 = 8;

/// Maximum number of arguments of `bpf_trace_printk` (`MAX_TRACE_PRINTK_VARARGS`).
const MAX_PRINTK_ARGUMENTS: usize = 3;
/// Maximum number of arguments of `bpf_trace_vprintk` (`MAX_BPRINTF_VARARGS`).
const MAX_VPRINTK_ARGUMENTS: u64 = 12;

/// First register that holds an argument of `bpf_trace_printk`.
const FIRST_PRINTK_REGISTER: u8 = 3;

/// A record to be emitted.
struct Record {
    ring: Option<u16>,
    /// Condition under which it is recorded.
    wanted: Id,
    words: Vec<Id>,
    /// Maximum size of the data; the actual size, or the number of the format of a print.
    bytes: u32,
    length: Id,
    /// Maximum and requested number of bytes of the packet.
    packet: Option<(u32, Id)>,
}

impl BlockInterpreter<'_, '_> {
    /// Name of a function of a ring: one of the map's own, or one of the front end's.
    fn ring_function(&self, ring: Option<u16>, end: &str, own: bool) -> String {
        let name = ring.map_or(crate::events::PRINT_RING, |map| &self.linked.maps[usize::from(map)].name);
        if own { format!("{name}_{end}") } else { format!("x_{name}_{end}") }
    }

    fn emit_record(&mut self, record: Record) {
        let Record { ring, wanted, words, bytes, length, packet } = record;
        if self.code.as_boolean(wanted) == Some(false) {
            return;
        }
        let sizes = self.facts.events.ring_sizes(ring);
        sizes.bytes = sizes.bytes.max(bytes);
        sizes.packet = sizes.packet.max(packet.map_or(0, |(most, _)| most));
        sizes.places += 1;
        let slot = self.code.call_values(&self.ring_function(ring, "take", false), &[wanted], Effect::Writes);
        let (entry, sequence) = self.split_pair(slot);
        let write = self.ring_function(ring, "write", true);
        for (word, value) in (crate::events::HEADER_WORDS..).zip(words) {
            let word = self.code.constant(word);
            self.code.call_values(&write, &[entry, word, value], Effect::Writes);
        }
        let mut asked = self.code.constant(0);
        if let Some((most, count)) = packet {
            asked = count;
            let known_most = self.code.constant(most);
            let has_amount = self.code.binary(Lt, known_most, count);
            let count = self.code.select(has_amount, known_most, count);
            let arguments = vec![Given::Packet, Given::Value(entry), Given::Value(count)];
            self.code.call(&self.ring_function(ring, "packet", false), arguments, Effect::Writes);
        }
        let arguments = [entry, sequence, length, asked].map(Given::Value);
        let arguments = [Given::Packet].into_iter().chain(arguments).collect();
        self.code.call(&self.ring_function(ring, "done", false), arguments, Effect::Writes);
    }

    /// The map given to a helper, which must be of type `ty`.
    fn ring_map(&mut self, map: Value, ty: MapType) -> Result<u16> {
        let map = self.expect_map(map)?;
        let given = self.linked.maps[usize::from(map)].definition.ty;
        if given != ty {
            let (needed, given) = (ty.name(), given.name());
            let name = self.helper_name();
            return self.reject(format!("{name} takes a map of type {needed}, not {given}"));
        }
        self.facts.events.ring_sizes(Some(map));
        Ok(map)
    }

    /// The data at a pointer as words, up to the maximum of its size, and that maximum.
    fn record_words(&mut self, data: Value, size: Value) -> Result<(Vec<Id>, u32)> {
        let range = self.expect_scalar(size, "the size of a record")?;
        if range.high > MAX_RECORD_BYTES {
            let what = if range.high > 1 << 29 { "an unbounded number".into() } else { range.high.to_string() };
            let what = format!("a record may have {what} of bytes; the limit is {MAX_RECORD_BYTES}");
            return self.reject_unsupported(what, "records of any length");
        }
        Ok((self.load_words(data, range.high as u32, "the recorded data")?, range.high as u32))
    }

    /// Whether a record of this size ever fits the ring buffer, by the kernel's reckoning.
    fn fits_ring(&self, map: u16, bytes: u64) -> bool {
        let room = u64::from(self.linked.maps[usize::from(map)].definition.max_entries);
        (bytes + RINGBUF_HEADER_BYTES).next_multiple_of(RINGBUF_HEADER_BYTES) <= room
    }

    /// `bpf_ringbuf_output(map, data, size, flags)`
    pub(super) fn ringbuf_output(&mut self) -> Result<Value> {
        let (map, data, size, flags) =
            (self.read_register(1)?, self.read_register(2)?, self.read_register(3)?, self.read_register(4)?);
        let map = self.ring_map(map, MapType::RINGBUF)?;
        self.expect_scalar(flags, "the flags argument")?;
        let (words, bytes) = self.record_words(data, size)?;
        let other = self.code.binary_const(And, flags.low, !WAKEUP_FLAGS);
        let other = self.code.binary(Or, other, flags.high);
        let is_right = self.code.binary_const(Eq, other, 0);
        // A record that never fits gives -EAGAIN each time.
        let room =
            self.linked.maps[usize::from(map)].definition.max_entries.saturating_sub(RINGBUF_HEADER_BYTES as u32) & !7;
        let room = self.code.constant(room);
        let fits = self.code.binary(Le, size.low, room);
        let wanted = self.code.binary(LogicalAnd, is_right, fits);
        self.emit_record(Record { ring: Some(map), wanted, words, bytes, length: size.low, packet: None });
        Ok(self.first_error(&[(is_right, EINVAL), (fits, EAGAIN)]))
    }

    /// `bpf_ringbuf_reserve(map, size, flags)`
    pub(super) fn ringbuf_reserve(&mut self) -> Result<Value> {
        let (map, size, flags) = (self.read_register(1)?, self.read_register(2)?, self.read_register(3)?);
        let map = self.ring_map(map, MapType::RINGBUF)?;
        let range = self.expect_scalar(size, "the size of a reserved record")?;
        self.expect_scalar(flags, "the flags argument")?;
        let Some(bytes) = range.as_constant() else {
            return self.reject("the size of a reserved record is known only at run time");
        };
        if !self.fits_ring(map, bytes) {
            return Ok(self.constant(0));
        }
        if bytes > MAX_RECORD_BYTES {
            let what = format!("a record of {bytes} bytes is reserved; the limit is {MAX_RECORD_BYTES}");
            return self.reject_unsupported(what, "records of any length");
        }
        let reserved = (ReservedRecord { map, bytes: bytes as u32 }, (self.section as u32, self.pc as u32));
        let events = &mut self.facts.events;
        let number = events.reserved.iter().position(|known| *known == reserved).unwrap_or_else(|| {
            events.reserved.push(reserved);
            events.records.push(reserved.0);
            events.records.len() - 1
        });
        if number >= MAX_RESERVED_RECORDS {
            let what = format!("records are reserved at more than {MAX_RESERVED_RECORDS} places");
            return self.reject_unsupported(what, "records that are reserved at any number of places");
        }
        let record = number as u16;
        if self.state.has_record_pointer(record) {
            let what = "a record is reserved while the previous one from here is neither submitted nor discarded";
            return self.reject_unsupported(what, "several records at once by one call");
        }
        let any = self.code.binary(Or, flags.low, flags.high);
        let is_there = self.code.binary_const(Eq, any, 0);
        let (low, high) = (self.code.constant(0), self.code.bool_to_u32(is_there));
        let nullable = self.code.as_boolean(is_there) != Some(true);
        if self.code.as_boolean(is_there) == Some(false) {
            return Ok(self.constant(0));
        }
        let name = self.fresh_name();
        Ok(Value { ty: RegType::RingRecord { record, off: Offsets::constant(0), name, nullable }, low, high })
    }

    /// `bpf_ringbuf_submit(data, flags)`, `bpf_ringbuf_discard(data, flags)`
    pub(super) fn ringbuf_commit(&mut self, is_shown: bool) -> Result<Value> {
        let (data, flags) = (self.read_register(1)?, self.read_register(2)?);
        self.expect_scalar(flags, "the flags argument")?;
        let RegType::RingRecord { record, off, .. } = data.ty else {
            let what = data.ty.describe();
            return self.reject(format!("only a reserved record can be submitted or discarded, not {what}"));
        };
        if off.as_constant() != Some(0) {
            return self.reject("a record is submitted or discarded through a pointer that was moved");
        }
        self.trap_null(data, "the pointer to a reserved record is NULL");
        let ReservedRecord { map, bytes } = self.facts.events.records[usize::from(record)];
        self.facts.used_maps.insert(map);
        self.facts.events.ring_sizes(Some(map));
        if is_shown {
            let mut words = Vec::new();
            for word in 0..bytes.div_ceil(4) {
                let word = self.code.constant(word);
                words.push(self.code.add(Op::LoadIndexed { frame: record_frame(record), word }));
            }
            let (wanted, length) = (self.code.boolean(true), self.code.constant(bytes));
            self.emit_record(Record { ring: Some(map), wanted, words, bytes, length, packet: None });
        }
        self.state.invalidate_record(record);
        // The helper returns nothing.
        Ok(Value::of(RegType::Uninit))
    }

    /// `bpf_ringbuf_query(map, what)`
    pub(super) fn ringbuf_query(&mut self) -> Result<Value> {
        let (map, what) = (self.read_register(1)?, self.read_register(2)?);
        let map = self.ring_map(map, MapType::RINGBUF)?;
        let range = self.expect_scalar(what, "the query of a ring buffer")?;
        match range.as_constant() {
            // BPF_RB_AVAIL_DATA: the host has always read everything.
            Some(0) => Ok(self.constant(0)),
            // BPF_RB_RING_SIZE
            Some(1) => Ok(self.constant(self.linked.maps[usize::from(map)].definition.max_entries.into())),
            Some(4..) => Ok(self.constant(0)),
            _ => self.reject_unsupported(
                "a ring buffer is queried for positions, which are not supported",
                "positions of ring buffers",
            ),
        }
    }

    /// `bpf_perf_event_output(ctx, map, flags, data, size)`
    pub(super) fn perf_event_output(&mut self) -> Result<Value> {
        let (context, map, flags) = (self.read_register(1)?, self.read_register(2)?, self.read_register(3)?);
        let (data, size) = (self.read_register(4)?, self.read_register(5)?);
        if context.ty != RegType::Context(0) {
            return self.reject("the first argument of bpf_perf_event_output is not the context");
        }
        let map = self.ring_map(map, MapType::PERF_EVENT_ARRAY)?;
        let range = self.expect_scalar(flags, "the flags argument")?;
        let (words, bytes) = self.record_words(data, size)?;
        // High half: number of bytes of the packet, 20 bits (BPF_F_CTXLEN_MASK).
        let rest = self.code.binary_const(Shr, flags.high, 20);
        let is_right = self.code.binary_const(Eq, rest, 0);
        let asked = flags.high;
        let length = self.packet_length();
        let reaches = self.code.binary(Le, asked, length);
        // Low half: the CPU, of which there is one (BPF_F_CURRENT_CPU).
        let (current, first) =
            (self.code.binary_const(Eq, flags.low, u32::MAX), self.code.binary_const(Eq, flags.low, 0));
        let is_ours = self.code.binary(LogicalOr, current, first);
        let entries = self.linked.maps[usize::from(map)].definition.max_entries;
        let is_in_map = match entries {
            0 => self.code.boolean(true),
            _ => {
                let entries = self.code.constant(entries);
                let below = self.code.binary(Lt, flags.low, entries);
                self.code.binary(LogicalOr, current, below)
            }
        };
        let mut wanted = is_ours;
        for holds in [is_right, reaches, is_in_map] {
            wanted = self.code.binary(LogicalAnd, wanted, holds);
        }
        let most = (range.high >> 32).min(MAX_PACKET_BYTES.into()) as u32;
        let packet = (most > 0).then_some((most, asked));
        self.emit_record(Record { ring: Some(map), wanted, words, bytes, length: size.low, packet });
        Ok(self.first_error(&[(is_right, EINVAL), (reaches, EFAULT), (is_in_map, E2BIG), (is_ours, EOPNOTSUPP)]))
    }

    /// `bpf_trace_printk(format, size, ...)`
    pub(super) fn trace_printk(&mut self) -> Result<Value> {
        let Some(print) = self.read_format()? else { return Ok(self.error_code(EINVAL)) };
        let count = print.arguments().count();
        if count > MAX_PRINTK_ARGUMENTS {
            return Ok(self.error_code(EINVAL));
        }
        let given = (FIRST_PRINTK_REGISTER..).take(count).map(|register| self.read_register(register));
        let given: Vec<Value> = given.collect::<Result<_>>()?;
        self.emit_print(print, &given)
    }

    /// `bpf_trace_vprintk(format, size, data, length)`
    pub(super) fn trace_vprintk(&mut self) -> Result<Value> {
        let print = self.read_format()?;
        let (data, length) = (self.read_register(3)?, self.read_register(4)?);
        let range = self.expect_scalar(length, "the size of a print's arguments")?;
        let Some(length) = range.as_constant() else {
            let what = "the number of a print's arguments is known only at run time";
            return self.reject_unsupported(what, "prints of any number of arguments");
        };
        let is_right = |print: &PrintFormat| {
            length % 8 == 0 && length <= 8 * MAX_VPRINTK_ARGUMENTS && print.arguments().count() as u64 <= length / 8
        };
        let Some(print) = print.filter(is_right) else { return Ok(self.error_code(EINVAL)) };
        let mut given = Vec::new();
        for place in 0..print.arguments().count() {
            given.push(self.load(data, 8 * place as i64, 8)?);
        }
        self.emit_print(print, &given)
    }

    /// Reads the format of a print; `None` if the kernel would return -EINVAL for it.
    fn read_format(&mut self) -> Result<Option<PrintFormat>> {
        let (format, size) = (self.read_register(1)?, self.read_register(2)?);
        let range = self.expect_scalar(size, "the length of a print's format")?;
        let Some(size) = range.as_constant().filter(|&size| size > 0 && size <= MAX_RECORD_BYTES) else {
            let what = format!("the length of a print's format is unknown or above {MAX_RECORD_BYTES} bytes");
            return self.reject_unsupported(what, RUNTIME_FORMATS);
        };
        let words = self.load_words(format, size as u32, "the format of a print")?;
        let known: Option<Vec<u32>> = words.iter().map(|&word| self.code.as_constant(word)).collect();
        let Some(known) = known else {
            return self.reject_unsupported("the format of a print is known only at run time", RUNTIME_FORMATS);
        };
        let bytes: Vec<u8> = known.iter().flat_map(|word| word.to_le_bytes()).take(size as usize).collect();
        Ok(PrintFormat::parse(&bytes))
    }

    /// Records a print. Returns 0 instead of the number of characters, which only the host knows.
    fn emit_print(&mut self, mut print: PrintFormat, given: &[Value]) -> Result<Value> {
        let mut words = Vec::new();
        let arguments: Vec<Argument> = print.arguments().cloned().collect();
        for (place, (argument, &value)) in arguments.iter().zip(given).enumerate() {
            match argument {
                Argument::Text(_) => {
                    let text = self.constant_text(value)?;
                    print.set_text(place, text);
                }
                Argument::Ipv4 { .. } => words.extend(self.load_words(value, 4, "an address to be printed")?),
                Argument::Ipv6 { .. } => words.extend(self.load_words(value, 16, "an address to be printed")?),
                _ if argument.words() == 2 => words.extend([value.low, value.high]),
                _ => words.push(value.low),
            }
        }
        let bytes = 4 * words.len() as u32;
        let events = &mut self.facts.events;
        let number = events.prints.iter().position(|known| *known == print).unwrap_or_else(|| {
            events.prints.push(print);
            events.prints.len() - 1
        });
        let (wanted, length) = (self.code.boolean(true), self.code.constant(number as u32));
        self.emit_record(Record { ring: None, wanted, words, bytes, length, packet: None });
        Ok(self.constant(0))
    }

    /// Text that is a constant of the program.
    fn constant_text(&mut self, pointer: Value) -> Result<String> {
        let bytes = match pointer.ty {
            RegType::MapValue { map, off, .. } => {
                let definition = &self.linked.maps[usize::from(map)].definition;
                let data = definition.data.as_ref().filter(|_| definition.read_only);
                data.zip(off.as_constant()).and_then(|(data, at)| data.get(usize::try_from(at).ok()?..))
            }
            _ => None,
        };
        match bytes.and_then(|bytes| bytes.split(|&byte| byte == 0).next()) {
            Some(text) => Ok(text.iter().take(1024).map(|&byte| char::from(byte)).collect()),
            None => {
                let what = "printed text (`%s`) is not a constant of the program";
                self.reject_unsupported(what, "`%s` of text known only at run time")
            }
        }
    }
}
