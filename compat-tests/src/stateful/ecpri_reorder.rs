//! Model of `ecpri_reorder`: U-plane messages of O-RAN.WG4.CUS over the eCPRI specification V2.0,
//! and a fronthaul whose messages arrive in any order, late, early, twice or damaged.

use std::collections::{BTreeMap, BTreeSet};

use portcullis::packet_io::synth::Random;
use portcullis_core::packet::{Metadata, Verdict};

use super::{Maps, Model, Phase, Writes};
use crate::models::Outcome;
use crate::traffic::Packet;

/// Entries of the maps `iq`, `claims` and `symbols`.
const IQ_WORDS: usize = 1 << 20;
const POSITIONS: usize = 1 << 16;
const SYMBOLS: usize = 1 << 12;

const SYMBOLS_PER_SLOT: usize = 14;

/// Entries of the map `events`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Written,
    Duplicate,
    Late,
    Early,
    OutOfRange,
    Malformed,
    Unsupported,
}

/// Number of entries of the map `events` in use.
pub const EVENTS: usize = 7;

/// Parameters of the filter.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// First eAxC, or 65,536.
    pub eaxc: u32,
    /// Number of antenna ports.
    pub ports: usize,
    /// Slots in the buffer.
    pub slots: usize,
    /// Slots in a subframe.
    pub slots_per_subframe: usize,
    /// PRBs of the carrier.
    pub carrier_prbs: usize,
    /// Bytes of a PRB.
    pub prb_bytes: usize,
    /// The compression header's first byte; `None` if compression is static.
    pub comp_header: Option<u8>,
}

impl Default for Cell {
    fn default() -> Cell {
        Cell {
            eaxc: 0,
            ports: 4,
            slots: 4,
            slots_per_subframe: 2,
            carrier_prbs: 273,
            prb_bytes: 28,
            comp_header: Some(0x91),
        }
    }
}

impl Cell {
    /// Returns the values of the filter's parameters.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![
            ("eaxc", self.eaxc.to_string()),
            ("ports", self.ports.to_string()),
            ("slots", self.slots.to_string()),
            ("slots_per_subframe", self.slots_per_subframe.to_string()),
            ("carrier_prbs", self.carrier_prbs.to_string()),
            ("prb_bytes", self.prb_bytes.to_string()),
            ("comp_header", self.comp_header.is_some().to_string()),
        ]
    }

    /// Number of slots until their numbers start again.
    fn all_slots(&self) -> usize {
        256 * 10 * self.slots_per_subframe
    }

    /// Returns whether `slot` is before the other one, going the shorter way round.
    fn is_before(&self, slot: usize, other: usize) -> bool {
        self.distance(other, slot) >= self.all_slots() / 2
    }

    /// Slots from one to the other, going forward.
    fn distance(&self, from: usize, to: usize) -> usize {
        (to as isize - from as isize).rem_euclid(self.all_slots() as isize) as usize
    }
}

/// Symbol of a port and place in the ring of slots.
type SymbolKey = (usize, usize, usize);

/// What the buffer has of a symbol.
#[derive(Debug, Default)]
struct Symbol {
    slot: usize,
    /// Number of slots that have had the symbol.
    generation: u16,
    prbs: BTreeSet<usize>,
    /// The generation that last got a PRB, and how many it has.
    filled: u32,
}

impl Symbol {
    fn claim(&self) -> u32 {
        (self.slot as u32 + 1) << 16 | u32::from(self.generation)
    }
}

/// Model of the reordering filter.
#[derive(Debug)]
pub struct EcpriReorder {
    cell: Cell,
    ports: BTreeMap<u32, u32>,
    /// First slot and number of slots.
    window: Option<(usize, usize)>,
    symbols: BTreeMap<SymbolKey, Symbol>,
    /// Bytes and claim of PRBs by position.
    buffer: BTreeMap<usize, (Vec<u8>, u32)>,
    packets: BTreeMap<usize, u64>,
    events: BTreeMap<Event, u64>,
}

/// A U-plane message whose headers are complete.
struct Message<'a> {
    eaxc: u32,
    is_whole: bool,
    frame: usize,
    subframe: usize,
    slot: usize,
    symbol: usize,
    /// The sections; `None` if the message does not end within the packet.
    sections: Option<&'a [u8]>,
}

impl<'a> Message<'a> {
    /// Parses the packet if it is an uplink message with filter index 0.
    fn of(packet: &'a [u8]) -> Option<Message<'a>> {
        let is_tagged = matches!(packet.get(12..14)?, [0x81, 0x00] | [0x88, 0xa8]);
        let (ethertype, ecpri) = packet.get(if is_tagged { 16 } else { 12 }..)?.split_at_checked(2)?;
        let [first, 0, size @ .., eaxc_high, eaxc_low, _, part, 0x10, frame, time_high, time_low] = ecpri.get(..12)?
        else {
            return None;
        };
        if ethertype != [0xae, 0xfe] || first >> 4 != 1 {
            return None;
        }
        let size = usize::from(u16::from_be_bytes(size.try_into().unwrap()));
        let time = usize::from(u16::from_be_bytes([*time_high, *time_low]));
        Some(Message {
            eaxc: u16::from_be_bytes([*eaxc_high, *eaxc_low]).into(),
            is_whole: first & 1 == 0 && *part == 0x80,
            frame: (*frame).into(),
            subframe: time >> 12,
            slot: time >> 6 & 63,
            symbol: time & 63,
            sections: ecpri.get(12..4 + size),
        })
    }
}

/// Number of bytes of a PRB with this compression header (O-RAN.WG4.CUS, annex A).
fn compressed_bytes(header: u8) -> usize {
    let width = match header >> 4 {
        0 => 16,
        bits => usize::from(bits),
    };
    let parameter = match header & 15 {
        1..=3 => 8,
        _ => 0,
    };
    (12 * 2 * width + parameter) / 8
}

impl EcpriReorder {
    /// Creates a model with these parameters.
    pub fn new(cell: Cell) -> EcpriReorder {
        EcpriReorder {
            cell,
            ports: BTreeMap::new(),
            window: None,
            symbols: BTreeMap::new(),
            buffer: BTreeMap::new(),
            packets: BTreeMap::new(),
            events: BTreeMap::new(),
        }
    }

    fn count(&mut self, event: Event, amount: usize) {
        *self.events.entry(event).or_default() += amount as u64;
    }

    fn verdict(&mut self, packet: &[u8]) -> Verdict {
        let Some(message) = Message::of(packet) else { return Verdict::Pass };
        let port = match self.ports.get(&message.eaxc) {
            Some(port) => Some(*port),
            None => message.eaxc.checked_sub(self.cell.eaxc),
        };
        let Some(port) = port.map(|port| port as usize).filter(|port| *port < self.cell.ports) else {
            return Verdict::Pass;
        };
        if !message.is_whole {
            self.count(Event::Unsupported, 1);
            return Verdict::Pass;
        }
        if self.consume(&message, port).is_none() {
            self.count(Event::Malformed, 1);
        }
        Verdict::Drop
    }

    /// Takes a message's sections up to the first malformed one, for which it returns `None`.
    fn consume(&mut self, message: &Message<'_>, port: usize) -> Option<()> {
        let Cell { slots_per_subframe, slots, ports, carrier_prbs, prb_bytes, .. } = self.cell;
        let mut rest = message.sections?;
        if message.subframe > 9 || message.slot >= slots_per_subframe {
            return None;
        }
        let slot = (message.frame * 10 + message.subframe) * slots_per_subframe + message.slot;
        let (mut symbol, mut counted) = (message.symbol, None);
        while !rest.is_empty() {
            let (header, after) = rest.split_at_checked(4)?;
            let fields = u32::from_be_bytes(header.try_into().unwrap());
            let after = match self.cell.comp_header {
                None => after,
                Some(_) => {
                    let (header, after) = after.split_at_checked(2)?;
                    if compressed_bytes(header[0]) != prb_bytes {
                        return None;
                    }
                    after
                }
            };
            let (every_other, increment) = (fields >> 19 & 1 == 1, fields >> 18 & 1 == 1);
            let count = if fields & 255 == 0 { carrier_prbs } else { fields as usize & 255 };
            let (data, after) = after.split_at_checked(count * prb_bytes)?;
            rest = after;
            symbol += usize::from(increment);
            if symbol >= SYMBOLS_PER_SLOT {
                return None;
            }
            let entry = (slot % slots * ports + port) * SYMBOLS_PER_SLOT + symbol;
            if entry >= SYMBOLS {
                self.count(Event::OutOfRange, count);
                continue;
            }
            if let Some(missed) = self.timing(slot, (slot % slots, port, symbol)) {
                self.count(missed, count);
                continue;
            }
            if counted != Some(symbol) {
                *self.packets.entry(port * SYMBOLS_PER_SLOT + symbol).or_default() += 1;
                counted = Some(symbol);
            }
            let first = fields as usize >> 8 & 0x3ff;
            for (number, bytes) in data.chunks(prb_bytes).enumerate() {
                let prb = first + if every_other { 2 * number } else { number };
                self.write(entry, (slot % slots, port, symbol), prb, bytes);
            }
        }
        Some(())
    }

    /// Gives the symbol to the slot, or returns why it is too late or too early.
    fn timing(&mut self, slot: usize, key: SymbolKey) -> Option<Event> {
        let cell = self.cell;
        if let Some((first, span)) = self.window {
            let distance = cell.distance(first, slot);
            if distance >= span {
                return Some(if distance >= cell.all_slots() / 2 { Event::Late } else { Event::Early });
            }
        }
        let symbol = self.symbols.entry(key).or_default();
        if symbol.generation != 0 && symbol.slot == slot {
            return None;
        }
        if symbol.generation != 0 && cell.is_before(slot, symbol.slot) {
            return Some(Event::Late);
        }
        symbol.slot = slot;
        symbol.generation += 1;
        symbol.prbs.clear();
        None
    }

    fn write(&mut self, entry: usize, key: SymbolKey, prb: usize, bytes: &[u8]) {
        let position = entry * self.cell.carrier_prbs + prb;
        let words = self.cell.prb_bytes.div_ceil(4);
        if prb >= self.cell.carrier_prbs || position >= POSITIONS || (position + 1) * words > IQ_WORDS {
            return self.count(Event::OutOfRange, 1);
        }
        let symbol = self.symbols.get_mut(&key).expect("the symbol has a slot");
        if !symbol.prbs.insert(prb) {
            return self.count(Event::Duplicate, 1);
        }
        symbol.filled = u32::from(symbol.generation) << 16 | symbol.prbs.len() as u32;
        self.buffer.insert(position, (bytes.to_vec(), symbol.claim()));
        self.count(Event::Written, 1);
    }
}

impl Model for EcpriReorder {
    fn filter(&mut self, packet: &Packet) -> Outcome {
        Outcome { verdict: self.verdict(&packet.bytes), bytes: packet.bytes.clone() }
    }

    fn set(&mut self, map: &str, key: &[u32], value: &[u32]) {
        match map {
            "eaxcs" => _ = self.ports.insert(key[0], value[0]),
            "window" => self.window = (value[1] != 0).then_some((value[0] as usize, value[1] as usize)),
            other => panic!("the host does not set {other}"),
        }
    }

    fn maps(&self) -> Maps {
        let words = self.cell.prb_bytes.div_ceil(4);
        let mut iq = BTreeMap::new();
        for (position, (bytes, _)) in &self.buffer {
            for (number, word) in bytes.chunks(4).enumerate() {
                let mut padded = [0; 4];
                padded[..word.len()].copy_from_slice(word);
                let word = u32::from_le_bytes(padded);
                if word != 0 {
                    iq.insert(vec![(position * words + number) as u32], vec![word]);
                }
            }
        }
        let sum = |(index, sum): (u32, u64)| (vec![index], vec![sum as u32, (sum >> 32) as u32]);
        let symbols = self.symbols.iter().map(|((ring, port, symbol), record)| {
            let entry = (ring * self.cell.ports + port) * SYMBOLS_PER_SLOT + symbol;
            (vec![entry as u32], vec![record.claim(), record.filled])
        });
        let window = self.window.map(|(first, span)| (vec![0], vec![first as u32, span as u32]));
        let claims = self.buffer.iter().map(|(position, (_, claim))| (vec![*position as u32], vec![*claim]));
        let events = self.events.iter().filter(|(_, count)| **count != 0);
        [
            ("iq".into(), iq),
            ("claims".into(), claims.collect()),
            ("symbols".into(), symbols.collect()),
            ("window".into(), window.into_iter().collect()),
            ("eaxcs".into(), self.ports.iter().map(|(eaxc, port)| (vec![*eaxc], vec![*port])).collect()),
            ("packets".into(), self.packets.iter().map(|(symbol, count)| sum((*symbol as u32, *count))).collect()),
            ("events".into(), events.map(|(event, count)| sum((*event as u32, *count))).collect()),
        ]
        .into()
    }
}

/// A section of a message: PRBs from the first on, each or every other one.
#[derive(Debug, Clone, Copy)]
struct Section {
    first: usize,
    count: usize,
    every_other: bool,
    /// Whether the section begins the next symbol (symInc).
    increments: bool,
}

/// Time and port of a message.
#[derive(Debug, Clone, Copy)]
struct Address {
    eaxc: u32,
    slot: usize,
    symbol: usize,
}

/// Builds a message. A PRB's bytes depend on its position alone, so that duplicates are equal.
fn message(cell: &Cell, to: Address, sections: &[Section], random: &mut Random) -> Vec<u8> {
    let mut body = vec![0x10, (to.slot / (10 * cell.slots_per_subframe)) as u8];
    let (subframe, slot) = (to.slot / cell.slots_per_subframe % 10, to.slot % cell.slots_per_subframe);
    body.extend(((subframe << 12 | slot << 6 | to.symbol) as u16).to_be_bytes());
    let mut symbol = to.symbol;
    for section in sections {
        symbol += usize::from(section.increments);
        let flags = u32::from(section.every_other) << 19 | u32::from(section.increments) << 18;
        let (first, number) = ((section.first as u32) << 8, section.count as u32 % 256);
        let number = if section.count == cell.carrier_prbs { 0 } else { number };
        body.extend((random.below(1 << 12) << 20 | flags | first | number).to_be_bytes());
        body.extend(cell.comp_header.iter().flat_map(|header| [*header, 0]));
        for number in 0..section.count {
            let prb = section.first + number * if section.every_other { 2 } else { 1 };
            let seed = [to.eaxc as usize, to.slot, symbol, prb].iter().fold(0, |seed, part| seed << 16 | *part as u64);
            let mut bytes = vec![0; cell.prb_bytes];
            Random::new(seed, 71).fill(&mut bytes);
            body.extend(bytes);
        }
    }
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if !random.one_in(3) {
        bytes.extend([0x81, 0x00, 0xe0, 0x02]);
    }
    bytes.extend([0xae, 0xfe, 0x10, 0]);
    bytes.extend((4 + body.len() as u16).to_be_bytes());
    bytes.extend((to.eaxc as u16).to_be_bytes());
    bytes.extend([random.u32() as u8, 0x80]);
    bytes.extend(body);
    // Ethernet pads short frames; some have a padding that they do not need.
    let padding = if random.one_in(10) { random.below(30) as usize } else { 0 };
    bytes.resize((bytes.len() + padding).max(60), 0xff);
    bytes
}

/// Changes a message so that it is passed, malformed or cut, but none of its PRBs gets to the
/// position of another.
fn damage(cell: &Cell, bytes: &mut Vec<u8>, random: &mut Random) {
    let ecpri = if bytes[12] == 0x81 { 18 } else { 14 };
    let size = u16::from_be_bytes([bytes[ecpri + 2], bytes[ecpri + 3]]);
    let mut set_size = |size: u16| bytes[ecpri + 2..ecpri + 4].copy_from_slice(&size.to_be_bytes());
    match random.below(18) {
        0 => bytes.truncate(random.below(bytes.len() as u32) as usize),
        1 => bytes.truncate(random.between(14, 45) as usize),
        2 => set_size(random.below(u32::from(size)) as u16),
        3 => set_size(random.below(12) as u16),
        4 => {
            set_size(size + random.between(1, 5) as u16);
            bytes.extend([0xff; 5]);
        }
        5 => set_size(random.pick(&[0, 7, u16::MAX])),
        6 => bytes[ecpri - 1] = 0,
        7 => bytes[ecpri] = random.pick(&[0x00, 0x11, 0x20, 0x1e]),
        8 => bytes[ecpri + 1] = random.pick(&[1, 2, 5]),
        9 => bytes[ecpri + 4] ^= 0x80,
        10 => bytes[ecpri + 7] = random.pick(&[0x00, 0x81, 0x01]),
        11 => bytes[ecpri + 8] ^= random.pick(&[0x80, 0x10, 0x20, 1, 8]),
        12 => bytes[ecpri + 10] |= 0xf0,
        13 => {
            bytes[ecpri + 10] |= 0x0f;
            bytes[ecpri + 11] |= 0xc0;
        }
        14 => bytes[ecpri + 11] |= 0x3f,
        15 | 16 if cell.comp_header.is_some() => bytes[ecpri + 16] ^= random.pick(&[0x10, 0x80, 0x01, 0x0f]),
        _ => {
            // Two VLAN tags, of which only one is looked past.
            let tag = [0x81, 0x00, 0, 9];
            bytes.splice(12..12, tag);
            bytes.splice(12..12, tag);
        }
    }
}

/// Draws sections of a symbol, or of this and the next one.
fn sections(cell: &Cell, symbol: usize, random: &mut Random) -> Vec<Section> {
    if random.one_in(60) {
        return vec![Section { first: 0, count: cell.carrier_prbs, every_other: false, increments: false }];
    }
    let count = random.between(1, 3);
    let mut increments = symbol + 1 < SYMBOLS_PER_SLOT && random.one_in(8);
    let section = |_| {
        // Some sections end behind the carrier's last PRB.
        let first = random.below(cell.carrier_prbs as u32 + 2) as usize;
        let section =
            Section { first, count: random.between(1, 7) as usize, every_other: random.one_in(5), increments };
        increments = false;
        section
    };
    (0..count).map(section).collect()
}

/// Generates phases of traffic: in each, `cell.slots` consecutive slots in any order.
///
/// With windows, messages of slots around are among them. Without, there are late ones, of symbols
/// that a later slot has got in the phase before: for others the order would decide.
pub fn phases(cell: &Cell, eaxcs: &[u32], writes: &Writes, windows: bool, seed: u64) -> Vec<Phase> {
    let mut random = Random::new(seed, 61);
    let mut has_got: BTreeSet<(usize, u32, usize)> = BTreeSet::new();
    let mut phases = Vec::new();
    for phase in 0..4 {
        // The numbers of slots start again in the second phase.
        let first = cell.all_slots() - cell.slots + phase * cell.slots;
        let mut packets = Vec::new();
        let mut gets = BTreeSet::new();
        for (slot, &eaxc, symbol) in (0..cell.slots)
            .flat_map(|slot| eaxcs.iter().map(move |eaxc| (slot, eaxc)))
            .flat_map(|(slot, eaxc)| (0..SYMBOLS_PER_SLOT).map(move |symbol| (slot, eaxc, symbol)))
        {
            let number =
                |ahead: isize| (first as isize + slot as isize + ahead).rem_euclid(cell.all_slots() as isize) as usize;
            let address = Address { eaxc, slot: number(0), symbol };
            for _ in 0..random.between(0, 2) {
                let sections = sections(cell, symbol, &mut random);
                let bytes = message(cell, address, &sections, &mut random);
                if random.one_in(8) {
                    packets.push(bytes.clone());
                }
                if random.one_in(4) {
                    let mut damaged = bytes.clone();
                    damage(cell, &mut damaged, &mut random);
                    packets.push(damaged);
                }
                packets.push(bytes);
                gets.insert((slot, eaxc, symbol + usize::from(sections[0].increments)));
            }
            let slots = cell.slots as isize;
            let around = match windows {
                true => Some(random.pick(&[-slots, slots, -2 * slots, 3 * slots, cell.all_slots() as isize / 2])),
                false => has_got.contains(&(slot, eaxc, symbol)).then_some(-2 * slots),
            };
            if let Some(around) = around.filter(|_| random.one_in(10)) {
                let sections = [Section { first: 0, count: 2, every_other: false, increments: false }];
                packets.push(message(cell, Address { slot: number(around), ..address }, &sections, &mut random));
            }
        }
        has_got = gets;
        // Fisher and Yates.
        for last in (1..packets.len()).rev() {
            packets.swap(last, random.below(last as u32 + 1) as usize);
        }
        let mut writes = if phase == 0 { writes.clone() } else { Vec::new() };
        if windows {
            let first = (first % cell.all_slots()) as u32;
            writes.push(("window", vec![0], vec![first, cell.slots as u32]));
        }
        let packet = |bytes: Vec<u8>| {
            let metadata = Metadata::new(bytes.len() as u32, 0, 0);
            Packet { bytes, metadata }
        };
        phases.push(Phase { writes, packets: packets.into_iter().map(packet).collect() });
    }
    phases
}
