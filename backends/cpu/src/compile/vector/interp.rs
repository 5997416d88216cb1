//! Executes lane IR, as it is said in `dag` and no faster: what the code generator's answers are
//! held to, and, held to the reference interpreter itself, the proof that a filter was traced right.
//!
//! What is unspecified in lanes that are off is a number here that the caller chooses, so that a
//! filter in which it matters is found out by two runs.

use std::collections::HashMap;

use portcullis_core::packet::{Metadata, RESIZE_ROOM};

use super::ir::{
    Atomic, Carry, Dag, Effect, EffectId, Field, Kind, Lanes, Live, Load, Node, Op, Place, Range, RegionId, Step,
    binary, compare, unary,
};

/// Something in the IR that must not be: a fault of whoever made it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("inconsistent lane IR: {0}")]
pub struct InvalidLaneIr(pub String);

/// What became of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The verdict, its target in the upper 24 bits.
    pub verdict: u32,
    /// The packet as the filter left it.
    pub packet: Vec<u8>,
    /// Where it begins, in bytes from where it began.
    pub start: i32,
}

/// A packet, and what is known beside its bytes.
pub type Packet<'a> = (&'a [u8], &'a Metadata);

/// Bytes of the filter's making around a packet: what it can grow by.
const AROUND: usize = RESIZE_ROOM as usize;

/// What is not the packet's, and not zero, so that nobody takes it for it.
const BESIDE: u8 = 0xa5;

/// Runs up to `N` packets in lock step; `maps` are the words of the filter's maps, `unspecified`
/// what comes of what is.
pub(super) fn run<const N: usize>(
    lanes: &Lanes,
    packets: &[Packet],
    maps: &mut [Vec<u32>],
    unspecified: u32,
) -> Result<Vec<Outcome>, InvalidLaneIr> {
    if packets.len() > N {
        return Err(InvalidLaneIr(format!("{} packets in {N} lanes", packets.len())));
    }
    let around = |bytes: &[u8]| {
        let mut memory = vec![BESIDE; bytes.len() + 2 * AROUND];
        memory[AROUND..][..bytes.len()].copy_from_slice(bytes);
        memory
    };
    let mut machine = Machine::<N> {
        lanes,
        dag: &lanes.dag,
        packets,
        memory: packets.iter().map(|(bytes, _)| around(bytes)).collect(),
        arrays: lanes.arrays.iter().map(|&words| vec![[unspecified; N]; words as usize]).collect(),
        maps,
        values: vec![None; lanes.dag.len()],
        homes: HashMap::new(),
        unspecified,
    };
    for node in lanes.dag.nodes() {
        machine.homes.entry(lanes.dag.home(node)).or_default().push(node);
    }
    // Lanes without a packet are off from the beginning: their length is 0, and no effect is theirs.
    machine.region(RegionId::ROOT)?;
    let verdicts = machine.value(lanes.verdict)?;
    let ends = match lanes.ends {
        Some((start, length)) => Some((machine.value(start)?, machine.value(length)?)),
        None => None,
    };
    (0..packets.len())
        .map(|lane| {
            let memory = &machine.memory[lane];
            let (start, length) = match ends {
                Some((start, length)) => (start[lane] as i32, length[lane] as usize),
                None => (0, packets[lane].0.len()),
            };
            let at = i64::from(start) + AROUND as i64;
            let packet = usize::try_from(at).ok().and_then(|at| memory.get(at..at.checked_add(length)?));
            let packet =
                packet.ok_or_else(|| InvalidLaneIr(format!("a packet that ends up at {start}, {length} long")))?;
            Ok(Outcome { verdict: verdicts[lane], packet: packet.to_vec(), start })
        })
        .collect()
}

/// A value in every lane; masks are 0 and 1.
type Value<const N: usize> = [u32; N];

struct Machine<'a, const N: usize> {
    lanes: &'a Lanes,
    dag: &'a Dag,
    packets: &'a [Packet<'a>],
    /// Their bytes, and some around them.
    memory: Vec<Vec<u8>>,
    arrays: Vec<Vec<Value<N>>>,
    maps: &'a mut [Vec<u32>],
    /// What has been computed of each node, in this round of the loops that it is in.
    values: Vec<Option<Value<N>>>,
    homes: HashMap<RegionId, Vec<Node>>,
    unspecified: u32,
}

impl<const N: usize> Machine<'_, N> {
    /// Computes a node, and what it needs first.
    fn value(&mut self, node: Node) -> Result<Value<N>, InvalidLaneIr> {
        let mut work = vec![node];
        while let Some(&next) = work.last() {
            if self.values[next.index()].is_some() {
                work.pop();
                continue;
            }
            let before = work.len();
            work.extend(self.dag.operands(next).filter(|operand| self.values[operand.index()].is_none()));
            if work.len() == before {
                let value = self.compute(next)?;
                if self.dag.kind(next) == Kind::Word {
                    let Range { low, high } = self.dag.range(next);
                    if let Some(outside) = value.iter().find(|&&word| word < low || word > high) {
                        return Err(InvalidLaneIr(format!("{next:?} is {outside}, not in {low}..={high}")));
                    }
                }
                self.values[next.index()] = Some(value);
            }
        }
        self.there(node)
    }

    fn there(&self, node: Node) -> Result<Value<N>, InvalidLaneIr> {
        self.values[node.index()]
            .ok_or_else(|| InvalidLaneIr(format!("{:?} is used where it is not there", self.dag.op(node))))
    }

    /// A node whose operands are there.
    fn compute(&self, node: Node) -> Result<Value<N>, InvalidLaneIr> {
        let each = |f: &dyn Fn(usize) -> u32| std::array::from_fn(f);
        let metadata = |lane: usize| self.packets.get(lane).map(|(_, metadata)| **metadata).unwrap_or_default();
        Ok(match self.dag.op(node) {
            Op::Constant(value) => [value; N],
            Op::Flag(value) => [value.into(); N],
            Op::Length => each(&|lane| self.packets.get(lane).map_or(0, |(bytes, _)| bytes.len() as u32)),
            Op::Metadata(field) => each(&|lane| {
                let metadata = metadata(lane);
                match field {
                    Field::WireLength => metadata.wire_length,
                    Field::Port => metadata.port,
                    Field::TimeLow => metadata.time_low,
                    Field::TimeHigh => metadata.time_high,
                    Field::TimeMs => metadata.time_ms,
                }
            }),
            Op::Load(Load { root, add, size }) => {
                if self.lanes.writes {
                    return Err(InvalidLaneIr("a load that is no step in a filter that writes".into()));
                }
                let root = root.map(|root| self.there(root)).transpose()?.unwrap_or([0; N]);
                each(&|lane| {
                    let offset = u64::from(root[lane]) + u64::from(add);
                    let bytes = self.packets.get(lane).map_or(&[][..], |(bytes, _)| bytes);
                    let all = usize::try_from(offset).ok().and_then(|at| bytes.get(at..at + size as usize));
                    all.map_or_else(|| self.within(Range::bytes(size)), little)
                })
            }
            Op::Table { table, index } => {
                let index = self.there(index)?;
                let table = &self.lanes.tables[table as usize];
                if let Some(outside) = index.iter().find(|&&index| index as usize >= table.len()) {
                    return Err(InvalidLaneIr(format!("word {outside} of a table of {}", table.len())));
                }
                each(&|lane| table[index[lane] as usize])
            }
            Op::Unary(op, a) => {
                let a = self.there(a)?;
                each(&|lane| unary(op, a[lane]))
            }
            Op::Binary(op, a, b) => {
                let (a, b) = (self.there(a)?, self.there(b)?);
                each(&|lane| binary(op, a[lane], b[lane]))
            }
            Op::Compare(op, a, b) => {
                let (a, b) = (self.there(a)?, self.there(b)?);
                each(&|lane| compare(op, a[lane], b[lane]).into())
            }
            Op::Select { mask, accept, reject } => {
                let (mask, accept, reject) = (self.there(mask)?, self.there(accept)?, self.there(reject)?);
                each(&|lane| if mask[lane] == 1 { accept[lane] } else { reject[lane] })
            }
            Op::And(a, b) => {
                let (a, b) = (self.there(a)?, self.there(b)?);
                each(&|lane| a[lane] & b[lane])
            }
            Op::Or(a, b) => {
                let (a, b) = (self.there(a)?, self.there(b)?);
                each(&|lane| a[lane] | b[lane])
            }
            Op::Not(a) => {
                let a = self.there(a)?;
                each(&|lane| 1 - a[lane])
            }
            Op::Result(_) | Op::Carried { .. } | Op::Live(_) | Op::Out { .. } => return self.there(node),
        })
    }

    /// What is unspecified, within a range.
    fn within(&self, Range { low, high }: Range) -> u32 {
        match (high - low).checked_add(1) {
            Some(count) => low + self.unspecified % count,
            None => self.unspecified,
        }
    }

    /// A number or a mask in place of what is unspecified in lanes that are off.
    fn specified(&self, node: Node, value: Value<N>, mask: Value<N>) -> Value<N> {
        let off = match self.dag.kind(node) {
            Kind::Word => self.within(self.dag.range(node)),
            Kind::Mask => self.unspecified & 1,
        };
        std::array::from_fn(|lane| if mask[lane] == 1 { value[lane] } else { off })
    }

    /// Puts a value where a node of the IR stands for it.
    fn give(&mut self, op: Op, value: Value<N>, mask: Value<N>) -> Result<(), InvalidLaneIr> {
        if let Some(node) = self.dag.find(op) {
            self.values[node.index()] = Some(self.specified(node, value, mask));
        }
        Ok(())
    }

    fn any(&self, mask: Value<N>) -> bool {
        mask[..self.packets.len()].contains(&1)
    }

    /// Lanes that have a packet, of a mask.
    fn mask(&mut self, node: Node) -> Result<Value<N>, InvalidLaneIr> {
        let mask = self.value(node)?;
        Ok(std::array::from_fn(|lane| if lane < self.packets.len() { mask[lane] } else { 0 }))
    }

    fn region(&mut self, region: RegionId) -> Result<(), InvalidLaneIr> {
        let lanes = self.lanes;
        for step in &lanes.regions[region.index()].steps {
            match step {
                Step::Effect { id, mask, effect } => {
                    let mask = self.mask(*mask)?;
                    self.effect(*id, effect, mask)?;
                }
                Step::When { mask, body, outs } => {
                    let mask = self.mask(*mask)?;
                    let live = self.any(mask);
                    if live {
                        self.region(*body)?;
                    }
                    for (index, &out) in (0..).zip(outs) {
                        let value = if live { self.value(out)? } else { [0; N] };
                        self.give(Op::Out { region: *body, index }, value, mask)?;
                    }
                }
                Step::Loop { live, carried, body } => self.rounds(live, carried, *body)?,
            }
        }
        Ok(())
    }

    fn rounds(&mut self, live: &Live, carried: &[Carry], body: RegionId) -> Result<(), InvalidLaneIr> {
        let mut on = self.mask(live.first)?;
        let mut values = carried.iter().map(|carry| self.value(carry.first)).collect::<Result<Vec<_>, _>>()?;
        while self.any(on) {
            self.forget(body);
            self.give(Op::Live(body), on, [1; N])?;
            for (index, &value) in (0..).zip(&values) {
                self.give(Op::Carried { body, index }, value, [1; N])?;
            }
            self.region(body)?;
            let next = self.mask(live.next)?;
            let goes_on: [u32; N] = std::array::from_fn(|lane| on[lane] & next[lane]);
            for (value, carry) in values.iter_mut().zip(carried) {
                let (next, left) = (self.value(carry.next)?, self.value(carry.left)?);
                *value = std::array::from_fn(|lane| match (on[lane], goes_on[lane]) {
                    (1, 1) => next[lane],
                    (1, _) => left[lane],
                    _ => value[lane],
                });
            }
            on = goes_on;
        }
        for (index, &value) in (0..).zip(&values) {
            self.give(Op::Out { region: body, index }, value, [1; N])?;
        }
        Ok(())
    }

    /// A new round: what was computed in the last one does not hold.
    fn forget(&mut self, region: RegionId) {
        for node in self.homes.get(&region).into_iter().flatten() {
            self.values[node.index()] = None;
        }
        let lanes = self.lanes;
        for step in &lanes.regions[region.index()].steps {
            if let Step::When { body, .. } | Step::Loop { body, .. } = step {
                self.forget(*body);
            }
        }
    }

    /// Where in a lane's memory a place is that must lie in it.
    fn at(
        &self,
        lane: usize,
        start: Value<N>,
        offset: Value<N>,
        size: u32,
    ) -> Result<std::ops::Range<usize>, InvalidLaneIr> {
        let at = i64::from(start[lane] as i32) + i64::from(offset[lane]) + AROUND as i64;
        let end = at + i64::from(size);
        if at < 0 || end > self.memory[lane].len() as i64 {
            return Err(InvalidLaneIr(format!("bytes {at}..{end} of {} are asked for", self.memory[lane].len())));
        }
        Ok(at as usize..end as usize)
    }

    fn effect(&mut self, id: EffectId, effect: &Effect, mask: Value<N>) -> Result<(), InvalidLaneIr> {
        for operand in effect.operands() {
            self.value(operand)?;
        }
        let place = |machine: &Self, at: Place| {
            let start = at.start.map(|start| machine.there(start)).transpose()?.unwrap_or([0; N]);
            Ok((start, machine.there(at.offset)?))
        };
        let on = (0..N).filter(|&lane| mask[lane] == 1);
        let mut result = [0; N];
        match *effect {
            Effect::LoadPacket { at, size } => {
                let (start, offset) = place(self, at)?;
                for lane in on {
                    let at = self.at(lane, start, offset, size)?;
                    result[lane] = little(&self.memory[lane][at]);
                }
            }
            Effect::StorePacket { at, size, value } => {
                let (start, offset) = place(self, at)?;
                let value = self.there(value)?;
                for lane in on {
                    let at = self.at(lane, start, offset, size)?;
                    self.memory[lane][at].copy_from_slice(&value[lane].to_le_bytes()[..size as usize]);
                }
            }
            Effect::ClearPacket { at, count } => {
                let (start, offset) = place(self, at)?;
                let count = self.there(count)?;
                for lane in on {
                    let at = self.at(lane, start, offset, count[lane])?;
                    self.memory[lane][at].fill(0);
                }
            }
            Effect::Map { map, word, atomic } => {
                let word = self.there(word)?;
                let operand = |machine: &Self, node| machine.there(node);
                for lane in on {
                    let words = self.maps.get(map as usize).map_or(0, Vec::len);
                    let at = word[lane] as usize;
                    if at >= words {
                        return Err(InvalidLaneIr(format!("word {at} of a map of {words}")));
                    }
                    let before = self.maps[map as usize][at];
                    let after = match atomic {
                        Atomic::Load => before,
                        Atomic::Store(value) | Atomic::Exchange(value) => operand(self, value)?[lane],
                        Atomic::Add(value) => before.wrapping_add(operand(self, value)?[lane]),
                        Atomic::CompareExchange { expected, value } => {
                            let same = before == operand(self, expected)?[lane];
                            if same { operand(self, value)?[lane] } else { before }
                        }
                    };
                    self.maps[map as usize][at] = after;
                    result[lane] = before;
                }
            }
            Effect::ArrayLoad { array, index } | Effect::ArrayStore { array, index, .. } => {
                let index = self.there(index)?;
                let words = self.arrays[array as usize].len();
                if let Some(outside) = index.iter().find(|&&index| index as usize >= words) {
                    return Err(InvalidLaneIr(format!("word {outside} of an array of {words}")));
                }
                for lane in on {
                    let at = index[lane] as usize;
                    match *effect {
                        Effect::ArrayStore { value, .. } => {
                            self.arrays[array as usize][at][lane] = self.there(value)?[lane];
                        }
                        _ => result[lane] = self.arrays[array as usize][at][lane],
                    }
                }
            }
            Effect::ArrayFill { array, value } => {
                let value = self.there(value)?;
                for lane in on {
                    self.arrays[array as usize].iter_mut().for_each(|word| word[lane] = value[lane]);
                }
            }
        }
        self.give(Op::Result(id), result, mask)
    }
}

/// Bytes as a number, the lowest first.
fn little(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte))
}
