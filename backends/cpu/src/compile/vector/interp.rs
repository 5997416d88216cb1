//! Interpreter of lane IR, as simple as its definition in `ir`. The code generators are tested
//! against it, and it is tested against the reference interpreter, which shows that filters are
//! traced correctly.
//!
//! Unspecified values of inactive lanes are a number that the caller chooses: a filter that depends
//! on one is found by running it with two numbers.

use std::collections::HashMap;

use portcullis_core::packet::{Metadata, RESIZE_ROOM};

use super::ir::{
    Atomic, Dag, Effect, EffectId, LaneIr, Load, LoopCarried, LoopMask, MetadataField, Node, Op, PacketAddress, Range,
    RegionId, Step, ValueKind, binary, compare, unary,
};

/// A violation of the IR's rules: a bug of whatever produced the IR.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("inconsistent lane IR: {0}")]
pub struct InvalidLaneIr(pub String);

/// Result of filtering a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The verdict, with the redirect target in the upper 24 bits.
    pub verdict: u32,
    /// The packet as the filter left it.
    pub packet: Vec<u8>,
    /// Start of the packet in bytes from its start on arrival.
    pub start: i32,
}

/// Bytes and metadata of a packet.
pub type Packet<'a> = (&'a [u8], &'a Metadata);

/// Bytes around a packet that it can grow into.
const AROUND: usize = RESIZE_ROOM as usize;

/// Filler around packets, different from zero and so from cleared bytes.
const BESIDE: u8 = 0xa5;

/// Runs up to `N` packets in lock step. `maps` are the words of the filter's maps; `unspecified` is
/// the value of everything that the IR leaves unspecified.
pub(super) fn run<const N: usize>(
    lanes: &LaneIr,
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
        by_scope: HashMap::new(),
        unspecified,
    };
    for node in lanes.dag.nodes() {
        machine.by_scope.entry(lanes.dag.scope(node)).or_default().push(node);
    }
    // Lanes without a packet are inactive throughout: their length is 0, and masks are cleared for
    // them.
    machine.run_region(RegionId::ROOT)?;
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
            let packet = packet
                .ok_or_else(|| InvalidLaneIr(format!("a packet of {length} bytes at {start}, outside its room")))?;
            Ok(Outcome { verdict: verdicts[lane], packet: packet.to_vec(), start })
        })
        .collect()
}

/// A value in every lane; masks are 0 and 1.
type Value<const N: usize> = [u32; N];

struct Machine<'a, const N: usize> {
    lanes: &'a LaneIr,
    dag: &'a Dag,
    packets: &'a [Packet<'a>],
    /// Bytes of the packets with [`AROUND`] bytes on either side.
    memory: Vec<Vec<u8>>,
    arrays: Vec<Vec<Value<N>>>,
    maps: &'a mut [Vec<u32>],
    /// Values of nodes computed so far, in the current iteration of the loops around them.
    values: Vec<Option<Value<N>>>,
    by_scope: HashMap<RegionId, Vec<Node>>,
    unspecified: u32,
}

impl<const N: usize> Machine<'_, N> {
    /// Computes a node after its operands.
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
                if self.dag.kind(next) == ValueKind::Word {
                    let Range { low, high } = self.dag.range(next);
                    if let Some(outside) = value.iter().find(|&&word| word < low || word > high) {
                        return Err(InvalidLaneIr(format!("{next:?} is {outside}, not in {low}..={high}")));
                    }
                }
                self.values[next.index()] = Some(value);
            }
        }
        self.computed(node)
    }

    fn computed(&self, node: Node) -> Result<Value<N>, InvalidLaneIr> {
        self.values[node.index()]
            .ok_or_else(|| InvalidLaneIr(format!("{:?} is used before it is computed", self.dag.op(node))))
    }

    /// Computes a node whose operands have been computed.
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
                    MetadataField::WireLength => metadata.wire_length,
                    MetadataField::Port => metadata.port,
                    MetadataField::TimeLow => metadata.time_low,
                    MetadataField::TimeHigh => metadata.time_high,
                    MetadataField::TimeMs => metadata.time_ms,
                }
            }),
            Op::Load(Load { root, add, size }) => {
                if self.lanes.writes {
                    return Err(InvalidLaneIr("a pure load in a filter that writes to packets".into()));
                }
                let root = root.map(|root| self.computed(root)).transpose()?.unwrap_or([0; N]);
                each(&|lane| {
                    let offset = u64::from(root[lane]) + u64::from(add);
                    let bytes = self.packets.get(lane).map_or(&[][..], |(bytes, _)| bytes);
                    let all = usize::try_from(offset).ok().and_then(|at| bytes.get(at..at + size as usize));
                    all.map_or_else(|| self.unspecified_in(Range::of_bytes(size)), from_little_endian)
                })
            }
            Op::Table { table, index } => {
                let index = self.computed(index)?;
                let table = &self.lanes.tables[table as usize];
                if let Some(outside) = index.iter().find(|&&index| index as usize >= table.len()) {
                    return Err(InvalidLaneIr(format!("word {outside} of a table of {}", table.len())));
                }
                each(&|lane| table[index[lane] as usize])
            }
            Op::Unary(op, a) => {
                let a = self.computed(a)?;
                each(&|lane| unary(op, a[lane]))
            }
            Op::Binary(op, a, b) => {
                let (a, b) = (self.computed(a)?, self.computed(b)?);
                each(&|lane| binary(op, a[lane], b[lane]))
            }
            Op::Compare(op, a, b) => {
                let (a, b) = (self.computed(a)?, self.computed(b)?);
                each(&|lane| compare(op, a[lane], b[lane]).into())
            }
            Op::Select { mask, accept, reject } => {
                let (mask, accept, reject) = (self.computed(mask)?, self.computed(accept)?, self.computed(reject)?);
                each(&|lane| if mask[lane] == 1 { accept[lane] } else { reject[lane] })
            }
            Op::And(a, b) => {
                let (a, b) = (self.computed(a)?, self.computed(b)?);
                each(&|lane| a[lane] & b[lane])
            }
            Op::Or(a, b) => {
                let (a, b) = (self.computed(a)?, self.computed(b)?);
                each(&|lane| a[lane] | b[lane])
            }
            Op::Not(a) => {
                let a = self.computed(a)?;
                each(&|lane| 1 - a[lane])
            }
            Op::Result(_) | Op::LoopCarried { .. } | Op::Live(_) | Op::Out { .. } => return self.computed(node),
        })
    }

    /// The unspecified value, reduced to a range.
    fn unspecified_in(&self, Range { low, high }: Range) -> u32 {
        match (high - low).checked_add(1) {
            Some(count) => low + self.unspecified % count,
            None => self.unspecified,
        }
    }

    /// Replaces a value by the unspecified one in inactive lanes.
    fn mask_unspecified(&self, node: Node, value: Value<N>, mask: Value<N>) -> Value<N> {
        let off = match self.dag.kind(node) {
            ValueKind::Word => self.unspecified_in(self.dag.range(node)),
            ValueKind::Mask => self.unspecified & 1,
        };
        std::array::from_fn(|lane| if mask[lane] == 1 { value[lane] } else { off })
    }

    /// Sets the value of a step's node, unspecified outside the mask.
    fn set_value(&mut self, op: Op, value: Value<N>, mask: Value<N>) -> Result<(), InvalidLaneIr> {
        if let Some(node) = self.dag.lookup(op) {
            self.values[node.index()] = Some(self.mask_unspecified(node, value, mask));
        }
        Ok(())
    }

    fn any_active(&self, mask: Value<N>) -> bool {
        mask[..self.packets.len()].contains(&1)
    }

    /// Evaluates a mask, cleared in lanes without a packet.
    fn active_mask(&mut self, node: Node) -> Result<Value<N>, InvalidLaneIr> {
        let mask = self.value(node)?;
        Ok(std::array::from_fn(|lane| if lane < self.packets.len() { mask[lane] } else { 0 }))
    }

    fn run_region(&mut self, region: RegionId) -> Result<(), InvalidLaneIr> {
        let lanes = self.lanes;
        for step in &lanes.regions[region.index()].steps {
            match step {
                Step::Effect { id, mask, effect } => {
                    let mask = self.active_mask(*mask)?;
                    self.run_effect(*id, effect, mask)?;
                }
                Step::When { mask, body, outs } => {
                    let mask = self.active_mask(*mask)?;
                    let live = self.any_active(mask);
                    if live {
                        self.run_region(*body)?;
                    }
                    for (index, &out) in (0..).zip(outs) {
                        let value = if live { self.value(out)? } else { [0; N] };
                        self.set_value(Op::Out { region: *body, index }, value, mask)?;
                    }
                }
                Step::Loop { live, carried, body } => self.run_loop(live, carried, *body)?,
            }
        }
        Ok(())
    }

    fn run_loop(&mut self, live: &LoopMask, carried: &[LoopCarried], body: RegionId) -> Result<(), InvalidLaneIr> {
        let mut on = self.active_mask(live.initial)?;
        let mut values = carried.iter().map(|carry| self.value(carry.initial)).collect::<Result<Vec<_>, _>>()?;
        while self.any_active(on) {
            self.discard_values(body);
            self.set_value(Op::Live(body), on, [1; N])?;
            for (index, &value) in (0..).zip(&values) {
                self.set_value(Op::LoopCarried { body, index }, value, [1; N])?;
            }
            self.run_region(body)?;
            let next = self.active_mask(live.next)?;
            let continues: [u32; N] = std::array::from_fn(|lane| on[lane] & next[lane]);
            for (value, carry) in values.iter_mut().zip(carried) {
                let (next, left) = (self.value(carry.next)?, self.value(carry.on_exit)?);
                *value = std::array::from_fn(|lane| match (on[lane], continues[lane]) {
                    (1, 1) => next[lane],
                    (1, _) => left[lane],
                    _ => value[lane],
                });
            }
            on = continues;
        }
        for (index, &value) in (0..).zip(&values) {
            self.set_value(Op::Out { region: body, index }, value, [1; N])?;
        }
        Ok(())
    }

    /// Discards the values of the previous iteration.
    fn discard_values(&mut self, region: RegionId) {
        for node in self.by_scope.get(&region).into_iter().flatten() {
            self.values[node.index()] = None;
        }
        let lanes = self.lanes;
        for step in &lanes.regions[region.index()].steps {
            if let Step::When { body, .. } | Step::Loop { body, .. } = step {
                self.discard_values(*body);
            }
        }
    }

    /// Returns the position of an access in a lane's memory, or an error if it is out of bounds.
    fn access(
        &self,
        lane: usize,
        start: Value<N>,
        offset: Value<N>,
        size: u32,
    ) -> Result<std::ops::Range<usize>, InvalidLaneIr> {
        let at = i64::from(start[lane] as i32) + i64::from(offset[lane]) + AROUND as i64;
        let end = at + i64::from(size);
        if at < 0 || end > self.memory[lane].len() as i64 {
            return Err(InvalidLaneIr(format!("an access to bytes {at}..{end} of {}", self.memory[lane].len())));
        }
        Ok(at as usize..end as usize)
    }

    fn run_effect(&mut self, id: EffectId, effect: &Effect, mask: Value<N>) -> Result<(), InvalidLaneIr> {
        for operand in effect.operands() {
            self.value(operand)?;
        }
        let place = |machine: &Self, at: PacketAddress| {
            let start = at.start.map(|start| machine.computed(start)).transpose()?.unwrap_or([0; N]);
            Ok((start, machine.computed(at.offset)?))
        };
        let on = (0..N).filter(|&lane| mask[lane] == 1);
        let mut result = [0; N];
        match *effect {
            Effect::LoadPacket { at, size } => {
                let (start, offset) = place(self, at)?;
                for lane in on {
                    let at = self.access(lane, start, offset, size)?;
                    result[lane] = from_little_endian(&self.memory[lane][at]);
                }
            }
            Effect::StorePacket { at, size, value } => {
                let (start, offset) = place(self, at)?;
                let value = self.computed(value)?;
                for lane in on {
                    let at = self.access(lane, start, offset, size)?;
                    self.memory[lane][at].copy_from_slice(&value[lane].to_le_bytes()[..size as usize]);
                }
            }
            Effect::ClearPacket { at, count } => {
                let (start, offset) = place(self, at)?;
                let count = self.computed(count)?;
                for lane in on {
                    let at = self.access(lane, start, offset, count[lane])?;
                    self.memory[lane][at].fill(0);
                }
            }
            Effect::Map { map, word, atomic } => {
                let word = self.computed(word)?;
                let operand = |machine: &Self, node| machine.computed(node);
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
                        Atomic::Min(value) => before.min(operand(self, value)?[lane]),
                        Atomic::Max(value) => before.max(operand(self, value)?[lane]),
                        Atomic::Or(value) => before | operand(self, value)?[lane],
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
                let index = self.computed(index)?;
                let words = self.arrays[array as usize].len();
                if let Some(outside) = index.iter().find(|&&index| index as usize >= words) {
                    return Err(InvalidLaneIr(format!("word {outside} of an array of {words}")));
                }
                for lane in on {
                    let at = index[lane] as usize;
                    match *effect {
                        Effect::ArrayStore { value, .. } => {
                            self.arrays[array as usize][at][lane] = self.computed(value)?[lane];
                        }
                        _ => result[lane] = self.arrays[array as usize][at][lane],
                    }
                }
            }
            Effect::ArrayFill { array, value } => {
                let value = self.computed(value)?;
                for lane in on {
                    self.arrays[array as usize].iter_mut().for_each(|word| word[lane] = value[lane]);
                }
            }
        }
        self.set_value(Op::Result(id), result, mask)
    }
}

/// Converts little-endian bytes to a number.
fn from_little_endian(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte))
}
