//! Helpers that tell the host something: ring buffers, perf buffers, prints. What becomes of a record is in
//! `lang::xdp::events`.

use std::collections::BTreeMap;

use super::ring_record::frame_of;
use super::{Result, Walk};
use crate::analysis::domain::state::{Offsets, Ty, Value};
use crate::errno::{E2BIG, EAGAIN, EFAULT, EINVAL, EOPNOTSUPP};
use crate::events::{Argument, MAX_PACKET_BYTES, Print, Sizes};
use crate::lower::ir::Binary::*;
use crate::lower::ir::{Argument as Given, Effect, Id, Op};
use crate::object::MapType;

/// Bytes of a record that a program gives, at most.
const MOST_BYTES: u64 = 2048;

/// What is missing where a print's format cannot be read.
const UNKNOWN_FORMATS: &str = "formats of prints that are known only when the packet is there";

/// Records that are reserved at different places of a program, at most.
const MOST_RESERVED: usize = 1024;

/// Flags of `bpf_ringbuf_output` (`BPF_RB_NO_WAKEUP`, `BPF_RB_FORCE_WAKEUP`).
const WAKEUP: u32 = 3;

/// In front of each record of the kernel's (`BPF_RINGBUF_HDR_SZ`).
const RECORD_HEADER: u64 = 8;

/// Arguments of a print, at most (`MAX_TRACE_PRINTK_VARARGS`, `MAX_BPRINTF_VARARGS`).
const MOST_PRINTED: usize = 3;
const MOST_PRINTED_BY_ARRAY: u64 = 12;

/// Registers in which `bpf_trace_printk` has its arguments.
const FIRST_PRINTED: u8 = 3;

/// A record that is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reserved {
    map: u16,
    pub bytes: u32,
}

/// What a program tells the host.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Records that are reserved, and by which instruction: section, number.
    reserved: Vec<(Reserved, (u32, u32))>,
    records: Vec<Reserved>,
    /// What records a map has, or prints (`None`).
    pub rings: BTreeMap<Option<u16>, Sizes>,
    /// Prints, by number.
    pub prints: Vec<Print>,
}

impl Events {
    /// Those that are reserved, by number.
    pub fn records(&self) -> &[Reserved] {
        &self.records
    }

    /// Forgets what may not be left in the end; the numbers of reserved records stay.
    pub fn begin_again(&mut self) {
        self.rings.clear();
        self.prints.clear();
    }

    /// Notes that a ring is used.
    fn ring(&mut self, ring: Option<u16>) -> &mut Sizes {
        self.rings.entry(ring).or_default()
    }
}

/// What is to be recorded.
struct Record {
    ring: Option<u16>,
    /// Whether it is.
    wanted: Id,
    words: Vec<Id>,
    /// Bytes of it, at most and in fact; or which print it is.
    bytes: u32,
    length: Id,
    /// Bytes of the packet, at most and in fact.
    packet: Option<(u32, Id)>,
}

impl Walk<'_, '_> {
    /// The name of a ring's functions.
    fn of_ring(&self, ring: Option<u16>, end: &str, own: bool) -> String {
        let name = ring.map_or(crate::events::PRINTS, |map| &self.linked.maps[usize::from(map)].name);
        if own { format!("{name}_{end}") } else { format!("x_{name}_{end}") }
    }

    fn record(&mut self, record: Record) {
        let Record { ring, wanted, words, bytes, length, packet } = record;
        if self.code.as_truth(wanted) == Some(false) {
            return;
        }
        let sizes = self.shared.events.ring(ring);
        sizes.bytes = sizes.bytes.max(bytes);
        sizes.packet = sizes.packet.max(packet.map_or(0, |(most, _)| most));
        sizes.places += 1;
        let slot = self.code.call_with(&self.of_ring(ring, "take", false), &[wanted], Effect::Writes);
        let (entry, sequence) = self.pair(slot);
        let write = self.of_ring(ring, "write", true);
        for (word, value) in (crate::events::HEADER..).zip(words) {
            let word = self.code.known(word);
            self.code.call_with(&write, &[entry, word, value], Effect::Writes);
        }
        let mut asked = self.code.known(0);
        if let Some((most, count)) = packet {
            asked = count;
            let known_most = self.code.known(most);
            let is_more = self.code.binary(Lt, known_most, count);
            let count = self.code.select(is_more, known_most, count);
            let arguments = vec![Given::Packet, Given::One(entry), Given::One(count)];
            self.code.call(&self.of_ring(ring, "packet", false), arguments, Effect::Writes);
        }
        let arguments = [entry, sequence, length, asked].map(Given::One);
        let arguments = [Given::Packet].into_iter().chain(arguments).collect();
        self.code.call(&self.of_ring(ring, "done", false), arguments, Effect::Writes);
    }

    /// A map of this type that a helper is given.
    fn ring(&mut self, map: Value, ty: MapType) -> Result<u16> {
        let map = self.map(map)?;
        let given = self.linked.maps[usize::from(map)].definition.ty;
        if given != ty {
            let (needed, given) = (ty.name(), given.name());
            let name = self.helper_name();
            return self.refuse(format!("{name} is given a map of type {given}, and takes one of type {needed}"));
        }
        self.shared.events.ring(Some(map));
        Ok(map)
    }

    /// What is at a pointer, so many bytes of it as there may be, and how many there are.
    fn recorded(&mut self, data: Value, size: Value) -> Result<(Vec<Id>, u32)> {
        let range = self.expect_number(size, "how many bytes are recorded")?;
        if range.high > MOST_BYTES {
            let what =
                if range.high > 1 << 29 { "a number that nothing bounds".into() } else { range.high.to_string() };
            let what = format!("a record may have {what} of bytes, and {MOST_BYTES} are the most");
            return self.lack(what, "records of any length");
        }
        Ok((self.words(data, range.high as u32, "what is recorded")?, range.high as u32))
    }

    /// Whether records of so many bytes ever fit in a ring buffer, as the kernel counts.
    fn fits(&self, map: u16, bytes: u64) -> bool {
        let room = u64::from(self.linked.maps[usize::from(map)].definition.max_entries);
        (bytes + RECORD_HEADER).next_multiple_of(RECORD_HEADER) <= room
    }

    /// `bpf_ringbuf_output(map, data, size, flags)`
    pub(super) fn ringbuf_output(&mut self) -> Result<Value> {
        let (map, data, size, flags) = (self.get(1)?, self.get(2)?, self.get(3)?, self.get(4)?);
        let map = self.ring(map, MapType::RINGBUF)?;
        self.expect_number(flags, "what the flags are")?;
        let (words, bytes) = self.recorded(data, size)?;
        let other = self.code.by(And, flags.low, !WAKEUP);
        let other = self.code.binary(Or, other, flags.high);
        let is_right = self.code.by(Eq, other, 0);
        // What never fits is never there.
        let room = self.linked.maps[usize::from(map)].definition.max_entries.saturating_sub(RECORD_HEADER as u32) & !7;
        let room = self.code.known(room);
        let fits = self.code.binary(Le, size.low, room);
        let wanted = self.code.binary(Both, is_right, fits);
        self.record(Record { ring: Some(map), wanted, words, bytes, length: size.low, packet: None });
        Ok(self.first_of(&[(is_right, EINVAL), (fits, EAGAIN)]))
    }

    /// `bpf_ringbuf_reserve(map, size, flags)`
    pub(super) fn ringbuf_reserve(&mut self) -> Result<Value> {
        let (map, size, flags) = (self.get(1)?, self.get(2)?, self.get(3)?);
        let map = self.ring(map, MapType::RINGBUF)?;
        let range = self.expect_number(size, "how many bytes are reserved")?;
        self.expect_number(flags, "what the flags are")?;
        let Some(bytes) = range.exact() else {
            return self.refuse("how many bytes are reserved is known only when the packet is there");
        };
        if !self.fits(map, bytes) {
            return Ok(self.constant(0));
        }
        if bytes > MOST_BYTES {
            let what = format!("a record of {bytes} bytes is reserved, and {MOST_BYTES} are the most");
            return self.lack(what, "records of any length");
        }
        let reserved = (Reserved { map, bytes: bytes as u32 }, (self.section as u32, self.at as u32));
        let events = &mut self.shared.events;
        let number = events.reserved.iter().position(|known| *known == reserved).unwrap_or_else(|| {
            events.reserved.push(reserved);
            events.records.push(reserved.0);
            events.records.len() - 1
        });
        if number >= MOST_RESERVED {
            let what = format!("records are reserved at more than {MOST_RESERVED} places");
            return self.lack(what, "records that are reserved at any number of places");
        }
        let record = number as u16;
        if self.state.holds_record(record) {
            let what = "a record is reserved while the one that was reserved here before is not handed over yet";
            return self.lack(what, "several records at once by one call");
        }
        let any = self.code.binary(Or, flags.low, flags.high);
        let is_there = self.code.by(Eq, any, 0);
        let (low, high) = (self.code.known(0), self.code.number(is_there));
        let nullable = self.code.as_truth(is_there) != Some(true);
        if self.code.as_truth(is_there) == Some(false) {
            return Ok(self.constant(0));
        }
        let name = self.name();
        Ok(Value { ty: Ty::Record { record, off: Offsets::one(0), name, nullable }, low, high })
    }

    /// `bpf_ringbuf_submit(data, flags)`, `bpf_ringbuf_discard(data, flags)`
    pub(super) fn ringbuf_hand_over(&mut self, is_shown: bool) -> Result<Value> {
        let (data, flags) = (self.get(1)?, self.get(2)?);
        self.expect_number(flags, "what the flags are")?;
        let Ty::Record { record, off, .. } = data.ty else {
            let what = data.ty.words();
            return self.refuse(format!("{what} is handed over, and a record that was reserved can be"));
        };
        if off.exact() != Some(0) {
            return self.refuse("a record is handed over by a pointer that was moved");
        }
        self.trap_null(data, "the pointer to a reserved record is NULL");
        let Reserved { map, bytes } = self.shared.events.records[usize::from(record)];
        self.shared.used.insert(map);
        self.shared.events.ring(Some(map));
        if is_shown {
            let mut words = Vec::new();
            for word in 0..bytes.div_ceil(4) {
                let word = self.code.known(word);
                words.push(self.code.add(Op::Recall { frame: frame_of(record), word }));
            }
            let (wanted, length) = (self.code.truth(true), self.code.known(bytes));
            self.record(Record { ring: Some(map), wanted, words, bytes, length, packet: None });
        }
        self.state.forget_record(record);
        // It gives nothing.
        Ok(Value::of(Ty::Nothing))
    }

    /// `bpf_ringbuf_query(map, what)`
    pub(super) fn ringbuf_query(&mut self) -> Result<Value> {
        let (map, what) = (self.get(1)?, self.get(2)?);
        let map = self.ring(map, MapType::RINGBUF)?;
        let range = self.expect_number(what, "what is asked of a ring buffer")?;
        match range.exact() {
            // BPF_RB_AVAIL_DATA: the host has always read all that there is.
            Some(0) => Ok(self.constant(0)),
            // BPF_RB_RING_SIZE
            Some(1) => Ok(self.constant(self.linked.maps[usize::from(map)].definition.max_entries.into())),
            Some(4..) => Ok(self.constant(0)),
            _ => self
                .lack("a ring buffer is asked for positions, which it has none of here", "positions of ring buffers"),
        }
    }

    /// `bpf_perf_event_output(ctx, map, flags, data, size)`
    pub(super) fn perf_event_output(&mut self) -> Result<Value> {
        let (context, map, flags) = (self.get(1)?, self.get(2)?, self.get(3)?);
        let (data, size) = (self.get(4)?, self.get(5)?);
        if context.ty != Ty::Context(0) {
            return self.refuse("bpf_perf_event_output is not given the context");
        }
        let map = self.ring(map, MapType::PERF_EVENT_ARRAY)?;
        let range = self.expect_number(flags, "what the flags are")?;
        let (words, bytes) = self.recorded(data, size)?;
        // The upper half: how many bytes of the packet, in 20 bits (BPF_F_CTXLEN_MASK).
        let rest = self.code.by(Shr, flags.high, 20);
        let is_right = self.code.by(Eq, rest, 0);
        let asked = flags.high;
        let length = self.length();
        let reaches = self.code.binary(Le, asked, length);
        // The lower half: for which processor, of which there is one (BPF_F_CURRENT_CPU).
        let (current, first) = (self.code.by(Eq, flags.low, u32::MAX), self.code.by(Eq, flags.low, 0));
        let is_ours = self.code.binary(Either, current, first);
        let entries = self.linked.maps[usize::from(map)].definition.max_entries;
        let is_in_map = match entries {
            0 => self.code.truth(true),
            _ => {
                let entries = self.code.known(entries);
                let below = self.code.binary(Lt, flags.low, entries);
                self.code.binary(Either, current, below)
            }
        };
        let mut wanted = is_ours;
        for holds in [is_right, reaches, is_in_map] {
            wanted = self.code.binary(Both, wanted, holds);
        }
        let most = (range.high >> 32).min(MAX_PACKET_BYTES.into()) as u32;
        let packet = (most > 0).then_some((most, asked));
        self.record(Record { ring: Some(map), wanted, words, bytes, length: size.low, packet });
        Ok(self.first_of(&[(is_right, EINVAL), (reaches, EFAULT), (is_in_map, E2BIG), (is_ours, EOPNOTSUPP)]))
    }

    /// `bpf_trace_printk(format, size, ...)`
    pub(super) fn trace_printk(&mut self) -> Result<Value> {
        let Some(print) = self.print()? else { return Ok(self.error(EINVAL)) };
        let count = print.arguments().count();
        if count > MOST_PRINTED {
            return Ok(self.error(EINVAL));
        }
        let given = (FIRST_PRINTED..).take(count).map(|register| self.get(register));
        let given: Vec<Value> = given.collect::<Result<_>>()?;
        self.printed(print, &given)
    }

    /// `bpf_trace_vprintk(format, size, data, length)`
    pub(super) fn trace_vprintk(&mut self) -> Result<Value> {
        let print = self.print()?;
        let (data, length) = (self.get(3)?, self.get(4)?);
        let range = self.expect_number(length, "how many bytes the arguments of a print have")?;
        let Some(length) = range.exact() else {
            let what = "how many arguments a print has is known only when the packet is there";
            return self.lack(what, "prints of any number of arguments");
        };
        let is_right = |print: &Print| {
            length % 8 == 0 && length <= 8 * MOST_PRINTED_BY_ARRAY && print.arguments().count() as u64 <= length / 8
        };
        let Some(print) = print.filter(is_right) else { return Ok(self.error(EINVAL)) };
        let mut given = Vec::new();
        for place in 0..print.arguments().count() {
            given.push(self.load(data, 8 * place as i64, 8)?);
        }
        self.printed(print, &given)
    }

    /// The format that a print is given; `None` where the kernel would give `-EINVAL` for it.
    fn print(&mut self) -> Result<Option<Print>> {
        let (format, size) = (self.get(1)?, self.get(2)?);
        let range = self.expect_number(size, "how long the format of a print is")?;
        let Some(size) = range.exact().filter(|&size| size > 0 && size <= MOST_BYTES) else {
            let what = format!("the format of a print has no length that is known, or more than {MOST_BYTES} bytes");
            return self.lack(what, UNKNOWN_FORMATS);
        };
        let words = self.words(format, size as u32, "the format of a print")?;
        let known: Option<Vec<u32>> = words.iter().map(|&word| self.code.value(word)).collect();
        let Some(known) = known else {
            return self.lack("the format of a print is known only when the packet is there", UNKNOWN_FORMATS);
        };
        let bytes: Vec<u8> = known.iter().flat_map(|word| word.to_le_bytes()).take(size as usize).collect();
        Ok(Print::read(&bytes))
    }

    /// Prints. It gives 0, and no number of letters: those are known to the host alone.
    fn printed(&mut self, mut print: Print, given: &[Value]) -> Result<Value> {
        let mut words = Vec::new();
        let arguments: Vec<Argument> = print.arguments().cloned().collect();
        for (place, (argument, &value)) in arguments.iter().zip(given).enumerate() {
            match argument {
                Argument::Text(_) => {
                    let text = self.constant_text(value)?;
                    print.set_text(place, text);
                }
                Argument::Ipv4 { .. } => words.extend(self.words(value, 4, "an address to be printed")?),
                Argument::Ipv6 { .. } => words.extend(self.words(value, 16, "an address to be printed")?),
                _ if argument.words() == 2 => words.extend([value.low, value.high]),
                _ => words.push(value.low),
            }
        }
        let bytes = 4 * words.len() as u32;
        let events = &mut self.shared.events;
        let number = events.prints.iter().position(|known| *known == print).unwrap_or_else(|| {
            events.prints.push(print);
            events.prints.len() - 1
        });
        let (wanted, length) = (self.code.truth(true), self.code.known(number as u32));
        self.record(Record { ring: None, wanted, words, bytes, length, packet: None });
        Ok(self.constant(0))
    }

    /// Text that is a constant of the program.
    fn constant_text(&mut self, pointer: Value) -> Result<String> {
        let bytes = match pointer.ty {
            Ty::Value { map, off, .. } => {
                let definition = &self.linked.maps[usize::from(map)].definition;
                let data = definition.data.as_ref().filter(|_| definition.read_only);
                data.zip(off.exact()).and_then(|(data, at)| data.get(usize::try_from(at).ok()?..))
            }
            _ => None,
        };
        match bytes.and_then(|bytes| bytes.split(|&byte| byte == 0).next()) {
            Some(text) => Ok(text.iter().take(1024).map(|&byte| char::from(byte)).collect()),
            None => {
                let what = "text is printed (`%s`) that is no constant of the program";
                self.lack(what, "`%s` of text that is known only when the packet is there")
            }
        }
    }
}
