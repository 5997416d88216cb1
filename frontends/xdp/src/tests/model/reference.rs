//! Interpreter of eBPF written from RFC 9669 and, for helpers, linux/bpf.h.
//!
//! For every register the interpreter knows whether it holds a number or a pointer, and to what. A
//! program that relies on the undefined (an address as a number, uninitialised stack, r1 to r5
//! after a call) ends with [`Ending::Undefined`].

use super::arithmetic::{self, ALU, ALU64, JMP, JMP32};
use super::{Code, Instruction, MapSpec};

/// Content of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    Number(u64),
    /// A pointer, with a byte offset from the start of the region; from the top of a stack.
    Pointer(Region, i64),
}

/// Target of a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Region {
    Context,
    /// The packet, as of so many moves of its ends.
    Packet(u32),
    /// A frame by depth.
    Stack(usize),
    Map(usize),
    /// A map value, by map and entry index.
    Value(usize, usize),
    /// A function.
    Code,
}

/// How the run of a packet ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Exit(u64),
    /// An access out of bounds.
    Outside,
    /// Behaviour that programs cannot rely on.
    Undefined(&'static str),
    /// An instruction that does not exist, or a jump out of the program.
    Unknown,
    /// The step limit was exceeded.
    Endless,
}

type Step<T> = Result<T, Ending>;

/// An entry of a map.
#[derive(Debug, Clone)]
struct Entry {
    key: Vec<u8>,
    value: Vec<u8>,
    /// Whether the entry is still in the map.
    is_live: bool,
}

/// Contents of a map.
#[derive(Debug, Clone)]
struct Table {
    of: MapSpec,
    entries: Vec<Entry>,
}

impl Table {
    fn new(of: MapSpec) -> Table {
        let value = vec![0; of.value as usize];
        let entry = |index: u32| Entry { key: index.to_le_bytes().to_vec(), value: value.clone(), is_live: true };
        let count = if of.ty == HASH { 0 } else { of.entries };
        Table { of, entries: (0..count).map(entry).collect() }
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        self.entries.iter().position(|entry| entry.is_live && entry.key == key)
    }
}

/// `BPF_MAP_TYPE_HASH`; other types are treated as arrays.
const HASH: u32 = 1;

/// A byte of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Byte {
    Unset,
    Of(u8),
    /// One of the eight bytes of a pointer.
    Part(Region, i64, u8),
}

/// An active function.
#[derive(Debug, Clone)]
struct Frame {
    stack: Vec<Byte>,
    /// r6 to r9 of the caller, and where to continue.
    saved: [Option<Cell>; 4],
    continuation: Continuation,
}

#[derive(Debug, Clone, Copy)]
enum Continuation {
    Nowhere,
    To(usize),
    /// The next round of a `bpf_loop`: callback, round, limit, argument, and where to continue
    /// after the loop.
    Round {
        function: usize,
        round: u64,
        rounds: u64,
        argument: Cell,
        then: usize,
    },
}

const STACK: i64 = 512;
const FRAMES: usize = 8;

/// Distance of addresses from zero, and of regions from each other.
const FAR: i64 = 1 << 40;

/// A program with its maps, which processes packets one after another.
#[derive(Debug, Clone)]
pub struct Machine<'a> {
    code: &'a Code,
    tables: Vec<Table>,
    packet: Vec<u8>,
    /// Number of moves of the packet's ends.
    moves: u32,
    /// Whether bytes were cut off at the front. If the front grows back, they may be the old ones
    /// or zero.
    is_cut: bool,
    port: u32,
    /// Redirect target.
    pub target: Option<u64>,
    registers: [Option<Cell>; 10],
    frames: Vec<Frame>,
    /// Number of instructions executed for the last packet.
    pub steps: u32,
}

impl<'a> Machine<'a> {
    pub fn new(code: &'a Code) -> Machine<'a> {
        let tables = code.maps.iter().map(|&map| Table::new(map)).collect();
        let packet = Vec::new();
        Machine {
            code,
            tables,
            packet,
            moves: 0,
            is_cut: false,
            port: 0,
            target: None,
            registers: [None; 10],
            frames: Vec::new(),
            steps: 0,
        }
    }

    /// Entries of a map, sorted by key.
    pub fn entries(&self, map: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let entries = self.tables[map].entries.iter().filter(|entry| entry.is_live);
        let mut entries: Vec<_> = entries.map(|entry| (entry.key.clone(), entry.value.clone())).collect();
        entries.sort();
        entries
    }

    /// Runs a packet received at a port; returns how it ended and the packet's final content.
    pub fn run(&mut self, packet: &[u8], port: u32, most: u32) -> (Ending, Vec<u8>) {
        (self.packet, self.port, self.target) = (packet.to_vec(), port, None);
        self.moves += 1;
        self.is_cut = false;
        self.registers = [None; 10];
        self.registers[1] = Some(Cell::Pointer(Region::Context, 0));
        self.frames = vec![Frame {
            stack: vec![Byte::Unset; STACK as usize],
            saved: [None; 4],
            continuation: Continuation::Nowhere,
        }];
        let ending = self.go(most);
        (ending, std::mem::take(&mut self.packet))
    }

    fn go(&mut self, most: u32) -> Ending {
        let mut at = 0;
        self.steps = 0;
        loop {
            self.steps += 1;
            if self.steps > most {
                return Ending::Endless;
            }
            at = match self.step(at) {
                Ok(next) => next,
                Err(ending) => return ending,
            };
        }
    }

    fn get(&self, register: u8) -> Step<Cell> {
        match register {
            10 => Ok(Cell::Pointer(Region::Stack(self.frames.len() - 1), 0)),
            0..10 => self.registers[usize::from(register)].ok_or(Ending::Undefined("a register that was not set")),
            _ => Err(Ending::Unknown),
        }
    }

    fn number(&self, register: u8) -> Step<u64> {
        match self.get(register)? {
            Cell::Number(number) => Ok(number),
            Cell::Pointer(..) => Err(Ending::Undefined("an address as a number")),
        }
    }

    fn set(&mut self, register: u8, cell: Cell) -> Step<()> {
        *self.registers.get_mut(usize::from(register)).ok_or(Ending::Unknown)? = Some(cell);
        Ok(())
    }

    fn jump(&self, at: usize, by: i64) -> Step<usize> {
        usize::try_from(at as i64 + 1 + by).map_err(|_| Ending::Unknown)
    }

    fn step(&mut self, at: usize) -> Step<usize> {
        let it = *self.code.instructions.get(at).ok_or(Ending::Unknown)?;
        match it.code & 7 {
            ALU | ALU64 => self.alu(it)?,
            JMP | JMP32 => return self.control(at, it),
            0 => {
                let rest = self.code.instructions.get(at + 1).ok_or(Ending::Unknown)?;
                let cell = match (it.code, it.src) {
                    (0x18, 0) => Cell::Number(u64::from(rest.imm as u32) << 32 | u64::from(it.imm as u32)),
                    (0x18, 1) => Cell::Pointer(Region::Map(it.imm as usize), 0),
                    (0x18, 4) => Cell::Pointer(Region::Code, self.jump(at, it.imm.into())? as i64),
                    _ => return Err(Ending::Unknown),
                };
                self.set(it.dst, cell)?;
                return Ok(at + 2);
            }
            // Loads, plain or sign-extending.
            1 => {
                let size = size(it);
                let (Cell::Pointer(region, off), signed) = (self.get(it.src)?, it.code >> 5 == 4) else {
                    return Err(Ending::Outside);
                };
                if !(it.code >> 5 == 3 || signed && size < 8) {
                    return Err(Ending::Unknown);
                }
                let cell = match (self.load(region, off + i64::from(it.off), size)?, signed) {
                    (Cell::Number(number), true) => Cell::Number(extended(number, size)),
                    (cell, _) => cell,
                };
                self.set(it.dst, cell)?;
            }
            class => {
                let value = if class == 2 { Cell::Number(i64::from(it.imm) as u64) } else { self.get(it.src)? };
                let Cell::Pointer(region, off) = self.get(it.dst)? else { return Err(Ending::Outside) };
                let off = off + i64::from(it.off);
                match it.code >> 5 {
                    3 => self.store(region, off, size(it), value)?,
                    6 if class == 3 => self.atomic(it, region, off)?,
                    _ => return Err(Ending::Unknown),
                }
            }
        }
        Ok(at + 1)
    }

    fn alu(&mut self, it: Instruction) -> Step<()> {
        let one = it.code >> 4 == 8 || it.code >> 4 == 13;
        let is_move = it.code >> 4 == 11;
        let zero = Cell::Number(0);
        let a = if is_move { zero } else { self.get(it.dst)? };
        let b = if it.code & 8 != 0 && !one { self.get(it.src)? } else { Cell::Number(i64::from(it.imm) as u64) };
        // Whether an instruction exists does not depend on its operands.
        arithmetic::alu(it, 1, 1).ok_or(Ending::Unknown)?;
        let strange = Err(Ending::Undefined("an address as a number"));
        let moved = |region, off: i64, by: Option<i64>| {
            let to = by.and_then(|by| off.checked_add(by)).filter(|to| to.abs() < FAR);
            to.map(|to| Cell::Pointer(region, to)).ok_or(Ending::Undefined("a pointer is moved far away"))
        };
        let cell = match (it.code, a, b) {
            (0xbf, _, _) if it.off == 0 => b,
            (_, Cell::Number(a), Cell::Number(b)) => Cell::Number(arithmetic::alu(it, a, b).ok_or(Ending::Unknown)?),
            (0x07 | 0x0f, Cell::Pointer(region, off), Cell::Number(by)) => moved(region, off, Some(by as i64))?,
            (0x0f, Cell::Number(by), Cell::Pointer(region, off)) => moved(region, off, Some(by as i64))?,
            (0x17 | 0x1f, Cell::Pointer(region, off), Cell::Number(by)) => {
                moved(region, off, (by as i64).checked_neg())?
            }
            (0x1f, Cell::Pointer(a, x), Cell::Pointer(b, y)) if a == b => Cell::Number((x - y) as u64),
            _ => return strange,
        };
        self.set(it.dst, cell)
    }

    fn control(&mut self, at: usize, it: Instruction) -> Step<usize> {
        match it.code {
            0x05 => return self.jump(at, it.off.into()),
            0x06 => return self.jump(at, it.imm.into()),
            0x95 => return self.leave(),
            0x85 if it.src == 1 => return self.enter(self.jump(at, it.imm.into())?, Continuation::To(at + 1)),
            0x85 if it.src == 0 && it.imm == 181 => return self.begin_loop(at + 1),
            0x85 if it.src == 0 => {
                let result = self.helper(it.imm)?;
                (1..6).for_each(|register| self.registers[register] = None);
                self.registers[0] = Some(result);
                return Ok(at + 1);
            }
            _ => {}
        }
        arithmetic::holds(it, 0, 0).ok_or(Ending::Unknown)?;
        let a = self.get(it.dst)?;
        let b = if it.code & 8 != 0 { self.get(it.src)? } else { Cell::Number(i64::from(it.imm) as u64) };
        let wide = it.code & 7 == JMP;
        let taken = match (a, b) {
            (Cell::Number(a), Cell::Number(b)) => arithmetic::holds(it, a, b),
            // Addresses in one region compare like offsets, but not by sign.
            (Cell::Pointer(a, x), Cell::Pointer(b, y)) if wide && a == b && !is_signed(it) => {
                arithmetic::holds(it, (x + 2 * FAR) as u64, (y + 2 * FAR) as u64)
            }
            // No address is zero.
            (Cell::Pointer(..), Cell::Number(0)) if wide && !is_signed(it) => arithmetic::holds(it, FAR as u64, 0),
            (Cell::Number(0), Cell::Pointer(..)) if wide && !is_signed(it) => arithmetic::holds(it, 0, FAR as u64),
            _ => return Err(Ending::Undefined("addresses are compared")),
        };
        if taken == Some(true) { self.jump(at, it.off.into()) } else { Ok(at + 1) }
    }

    fn enter(&mut self, function: usize, continuation: Continuation) -> Step<usize> {
        if self.frames.len() == FRAMES {
            return Err(Ending::Unknown);
        }
        let saved = [6, 7, 8, 9].map(|register| self.registers[register]);
        (6..10).for_each(|register| self.registers[register] = None);
        self.registers[0] = None;
        self.frames.push(Frame { stack: vec![Byte::Unset; STACK as usize], saved, continuation });
        Ok(function)
    }

    fn leave(&mut self) -> Step<usize> {
        let result = self.get(0)?;
        let Some(frame) = self.frames.pop() else { return Err(Ending::Unknown) };
        (1..6).for_each(|register| self.registers[register] = None);
        let number = match result {
            Cell::Number(number) => number,
            Cell::Pointer(..) if matches!(frame.continuation, Continuation::To(_)) => 0,
            Cell::Pointer(..) => return Err(Ending::Undefined("an address as a number")),
        };
        (6..10).zip(frame.saved).for_each(|(register, saved)| self.registers[register] = saved);
        match frame.continuation {
            Continuation::Nowhere => Err(Ending::Exit(number)),
            Continuation::To(at) => Ok(at),
            Continuation::Round { function, round, rounds, argument, then } => {
                let round = round + 1;
                if number != 0 || round == rounds {
                    self.registers[0] = Some(Cell::Number(round));
                    return Ok(then);
                }
                self.round(function, round, rounds, argument, then)
            }
        }
    }

    /// `long bpf_loop(u32 nr_loops, void *callback_fn, void *callback_ctx, u64 flags)`
    fn begin_loop(&mut self, then: usize) -> Step<usize> {
        let (rounds, function, argument, flags) = (self.number(1)?, self.get(2)?, self.get(3)?, self.number(4)?);
        let Cell::Pointer(Region::Code, function) = function else { return Err(Ending::Unknown) };
        if flags != 0 || rounds > 1 << 23 {
            return Err(Ending::Undefined("a loop that is none"));
        }
        (1..6).for_each(|register| self.registers[register] = None);
        if rounds == 0 {
            self.registers[0] = Some(Cell::Number(0));
            return Ok(then);
        }
        self.round(function as usize, 0, rounds, argument, then)
    }

    fn round(&mut self, function: usize, round: u64, rounds: u64, argument: Cell, then: usize) -> Step<usize> {
        let to = self.enter(function, Continuation::Round { function, round, rounds, argument, then })?;
        (self.registers[1], self.registers[2]) = (Some(Cell::Number(round)), Some(argument));
        Ok(to)
    }

    /// Bytes that exist and are numbers.
    fn bytes(&self, region: Region, off: i64, count: usize) -> Step<Vec<u8>> {
        let within = |bytes: &[u8]| {
            let from = usize::try_from(off).map_err(|_| Ending::Outside)?;
            bytes.get(from..from + count).map(<[u8]>::to_vec).ok_or(Ending::Outside)
        };
        match region {
            Region::Packet(moves) if moves == self.moves => within(&self.packet),
            Region::Packet(_) => Err(Ending::Undefined("a pointer from before the packet's ends moved")),
            Region::Value(map, entry) => {
                let entry = &self.tables[map].entries[entry];
                let there = within(&entry.value)?;
                if entry.is_live { Ok(there) } else { Err(Ending::Undefined("an entry that is gone")) }
            }
            Region::Stack(frame) => {
                let bytes = self.frames.get(frame).ok_or(Ending::Undefined("the stack of a function that is over"))?;
                let from = usize::try_from(off + STACK).map_err(|_| Ending::Outside)?;
                let bytes = bytes.stack.get(from..from + count).ok_or(Ending::Outside)?;
                let number = |byte: &Byte| match byte {
                    Byte::Of(byte) => Ok(*byte),
                    Byte::Unset => Err(Ending::Undefined("bytes of the stack that nobody wrote")),
                    Byte::Part(..) => Err(Ending::Undefined("an address as a number")),
                };
                bytes.iter().map(number).collect()
            }
            _ => Err(Ending::Outside),
        }
    }

    fn write(&mut self, region: Region, off: i64, bytes: &[u8]) -> Step<()> {
        let moves = self.moves;
        let to = match region {
            Region::Packet(at) if at == moves => &mut self.packet,
            Region::Packet(_) => return Err(Ending::Undefined("a pointer from before the packet's ends moved")),
            Region::Value(map, entry) => {
                let entry = &mut self.tables[map].entries[entry];
                if !entry.is_live {
                    return Err(Ending::Undefined("an entry that is gone"));
                }
                &mut entry.value
            }
            Region::Stack(_) => {
                let cells: Vec<Byte> = bytes.iter().map(|&byte| Byte::Of(byte)).collect();
                self.stack(region, off, bytes.len())?.copy_from_slice(&cells);
                return Ok(());
            }
            _ => return Err(Ending::Outside),
        };
        let from = usize::try_from(off).map_err(|_| Ending::Outside)?;
        to.get_mut(from..from + bytes.len()).ok_or(Ending::Outside)?.copy_from_slice(bytes);
        Ok(())
    }

    fn stack(&mut self, region: Region, off: i64, count: usize) -> Step<&mut [Byte]> {
        let Region::Stack(frame) = region else { return Err(Ending::Outside) };
        let frame = self.frames.get_mut(frame).ok_or(Ending::Undefined("the stack of a function that is over"))?;
        let from = usize::try_from(off + STACK).map_err(|_| Ending::Outside)?;
        frame.stack.get_mut(from..from + count).ok_or(Ending::Outside)
    }

    fn load(&mut self, region: Region, off: i64, size: usize) -> Step<Cell> {
        match region {
            Region::Context if size == 4 => {
                let packet = Region::Packet(self.moves);
                return match off {
                    0 | 8 => Ok(Cell::Pointer(packet, 0)),
                    4 => Ok(Cell::Pointer(packet, self.packet.len() as i64)),
                    12 => Ok(Cell::Number(self.port.into())),
                    16 => Ok(Cell::Number(0)),
                    _ => Err(Ending::Unknown),
                };
            }
            // The verifier requires aligned stack accesses.
            Region::Stack(_) if off % size as i64 != 0 => return Err(Ending::Outside),
            _ => {}
        }
        if let (Region::Stack(_), 8) = (region, size) {
            let bytes = self.stack(region, off, 8)?;
            if let Byte::Part(of, to, 0) = bytes[0]
                && (0..8).zip(&*bytes).all(|(number, byte)| *byte == Byte::Part(of, to, number))
            {
                return Ok(Cell::Pointer(of, to));
            }
        }
        let bytes = self.bytes(region, off, size)?;
        Ok(Cell::Number(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))))
    }

    fn store(&mut self, region: Region, off: i64, size: usize, value: Cell) -> Step<()> {
        if matches!(region, Region::Stack(_)) && off % size as i64 != 0 {
            return Err(Ending::Outside);
        }
        match value {
            Cell::Number(number) => self.write(region, off, &number.to_le_bytes()[..size]),
            Cell::Pointer(of, to) if matches!(region, Region::Stack(_)) && size == 8 => {
                let bytes = self.stack(region, off, 8)?;
                (0..8).zip(bytes).for_each(|(number, byte)| *byte = Byte::Part(of, to, number));
                Ok(())
            }
            Cell::Pointer(..) => Err(Ending::Undefined("an address as a number")),
        }
    }

    /// Section 5.3.
    fn atomic(&mut self, it: Instruction, region: Region, off: i64) -> Step<()> {
        let size = size(it);
        let fetches = it.imm & 1 != 0;
        if size < 4 || !matches!(it.imm & !1, 0 | 0x40 | 0x50 | 0xa0 | 0xe0 | 0xf0) || it.imm >= 0xe0 && !fetches {
            return Err(Ending::Unknown);
        }
        if off % size as i64 != 0 {
            return Err(Ending::Undefined("an atomic operation at an odd address"));
        }
        if !matches!(region, Region::Stack(_) | Region::Value(..)) {
            return Err(Ending::Undefined("an atomic operation on a packet"));
        }
        let cut = |number: u64| if size == 4 { number & 0xffff_ffff } else { number };
        let value = cut(self.number(it.src)?);
        let Cell::Number(old) = self.load(region, off, size)? else {
            return Err(Ending::Undefined("an address as a number"));
        };
        let new = match it.imm & !1 {
            0 => old.wrapping_add(value),
            0x40 => old | value,
            0x50 => old & value,
            0xa0 => old ^ value,
            0xe0 => value,
            _ if cut(self.number(0)?) == old => value,
            _ => old,
        };
        self.store(region, off, size, Cell::Number(new))?;
        if it.imm == 0xf1 {
            self.set(0, Cell::Number(old))
        } else if fetches {
            self.set(it.src, Cell::Number(old))
        } else {
            Ok(())
        }
    }

    fn helper(&mut self, number: i32) -> Step<Cell> {
        let error = |number: i64| Ok(Cell::Number(-number as u64));
        let done = Ok(Cell::Number(0));
        match number {
            1 => {
                let (map, key) = self.key()?;
                Ok(self.tables[map]
                    .find(&key)
                    .map_or(Cell::Number(0), |entry| Cell::Pointer(Region::Value(map, entry), 0)))
            }
            2 => {
                let (map, key) = self.key()?;
                let of = self.tables[map].of;
                let (flags, Cell::Pointer(region, off)) = (self.number(4)?, self.get(3)?) else {
                    return Err(Ending::Outside);
                };
                let value = self.bytes(region, off, of.value as usize)?;
                let table = &mut self.tables[map];
                let found = table.find(&key);
                match (flags, found) {
                    (3.., _) => error(22),
                    // All entries of an array exist.
                    (1, _) if of.ty != HASH && found.is_some() => error(17),
                    (_, None) if of.ty != HASH => error(7),
                    (1, Some(_)) => error(17),
                    (2, None) => error(2),
                    (_, Some(entry)) if of.ty != HASH => {
                        table.entries[entry].value = value;
                        done
                    }
                    (_, found) => {
                        // The kernel replaces the entry: pointers to the old one keep its value.
                        if let Some(entry) = found {
                            table.entries[entry].is_live = false;
                        } else if table.entries.iter().filter(|entry| entry.is_live).count() == of.entries as usize {
                            return Err(Ending::Undefined("a map is full"));
                        }
                        table.entries.push(Entry { key, value, is_live: true });
                        done
                    }
                }
            }
            3 => {
                let (map, key) = self.key()?;
                let table = &mut self.tables[map];
                match table.find(&key) {
                    _ if table.of.ty != HASH => error(22),
                    None => error(2),
                    Some(entry) => {
                        table.entries[entry].is_live = false;
                        done
                    }
                }
            }
            8 => done,
            // long bpf_redirect(u32 ifindex, u64 flags)
            23 => {
                let (target, flags) = (self.number(1)?, self.number(2)?);
                if flags == 0 {
                    self.target = Some(target);
                }
                Ok(Cell::Number(if flags == 0 { 4 } else { 0 }))
            }
            28 => self.csum_diff(),
            44 | 65 => {
                if self.get(1)? != Cell::Pointer(Region::Context, 0) {
                    return Err(Ending::Undefined("this is no context"));
                }
                let delta = self.number(2)? as i32;
                let length = self.packet.len() as i64;
                let new = length + if number == 44 { -i64::from(delta) } else { i64::from(delta) };
                // The headroom is implementation-defined.
                if delta.unsigned_abs() > 64 {
                    return Err(Ending::Undefined("a packet grows beyond its room"));
                }
                self.moves += 1;
                if new < 14 {
                    return error(22);
                }
                if number == 65 {
                    self.packet.resize(new as usize, 0);
                } else if new < length {
                    self.is_cut = true;
                    self.packet.drain(..(length - new) as usize);
                } else if new > length && self.is_cut {
                    return Err(Ending::Undefined("bytes come back at the packet's front"));
                } else {
                    let more = vec![0; (new - length) as usize];
                    self.packet.splice(..0, more);
                }
                done
            }
            188 => Ok(Cell::Number(self.packet.len() as u64)),
            189 | 190 => {
                let (off, Cell::Pointer(region, to), count) = (self.number(2)?, self.get(3)?, self.number(4)?) else {
                    return Err(Ending::Outside);
                };
                let (off, count) = (off as u32 as i64, count as u32 as usize);
                let inside = off + count as i64 <= self.packet.len() as i64 && off <= 0xffff && count > 0;
                // `bpf_xdp_pointer`, net/core/filter.c: an offset above 16 bits is -EFAULT.
                let wrong = if off > 0xffff { 14 } else { 22 };
                let packet = Region::Packet(self.moves);
                if number == 189 {
                    // The buffer must be writable even if nothing is copied; then it is unchanged.
                    match region {
                        Region::Stack(_) => drop(self.stack(region, to, count)?),
                        _ => drop(self.bytes(region, to, count)?),
                    }
                    if !inside {
                        return error(wrong);
                    }
                    let bytes = self.bytes(packet, off, count)?;
                    self.write(region, to, &bytes)?;
                } else {
                    let bytes = self.bytes(region, to, count)?;
                    if !inside {
                        return error(wrong);
                    }
                    self.write(packet, off, &bytes)?;
                }
                done
            }
            _ => Err(Ending::Undefined("a helper that is not known here")),
        }
    }

    /// The map and key arguments of a helper.
    fn key(&mut self) -> Step<(usize, Vec<u8>)> {
        let (Cell::Pointer(Region::Map(map), 0), Cell::Pointer(region, off)) = (self.get(1)?, self.get(2)?) else {
            return Err(Ending::Outside);
        };
        let size = self.code.maps.get(map).ok_or(Ending::Unknown)?.key as usize;
        Ok((map, self.bytes(region, off, size)?))
    }

    /// `s64 bpf_csum_diff(from, from_size, to, to_size, seed)`: the sum of `to` minus that of
    /// `from`, folded to 16 bits. Which of the two zeros results follows net/core/filter.c (Linux
    /// 6.13).
    fn csum_diff(&mut self) -> Step<Cell> {
        let (from, to, seed) = (self.number(2)? as usize, self.number(4)? as usize, self.number(5)? as u32);
        if from > 512 || to > 512 {
            return Err(Ending::Undefined("a sum of too much"));
        }
        let sum = match (from, to) {
            (0, 0) => seed,
            (0, _) => self.summed(3, to, seed)?,
            (_, 0) => !self.summed(1, from, !seed)?,
            _ => folded(u64::from(self.summed(3, to, seed)?) + u64::from(!self.summed(1, from, 0)?), 32) as u32,
        };
        Ok(Cell::Number(folded(sum.into(), 16)))
    }

    fn summed(&mut self, register: u8, count: usize, seed: u32) -> Step<u32> {
        let Cell::Pointer(region, off) = self.get(register)? else { return Err(Ending::Outside) };
        let mut sum = u64::from(seed);
        for word in self.bytes(region, off, count)?.chunks(4) {
            sum += word.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        }
        Ok(folded(sum, 32) as u32)
    }
}

/// Folds a one's complement sum to so many bits.
fn folded(mut sum: u64, bits: u32) -> u64 {
    while sum >> bits != 0 {
        sum = (sum & ((1 << bits) - 1)) + (sum >> bits);
    }
    sum
}

/// Size of a load or store in bytes.
fn size(it: Instruction) -> usize {
    [4, 2, 1, 8][usize::from(it.code >> 3 & 3)]
}

fn extended(number: u64, size: usize) -> u64 {
    match size {
        1 => number as i8 as u64,
        2 => number as i16 as u64,
        _ => number as i32 as u64,
    }
}

/// Whether a jump compares signed numbers, or tests bits.
fn is_signed(it: Instruction) -> bool {
    matches!(it.code >> 4, 4 | 6 | 7 | 12 | 13)
}
