//! Abstract state of a program point: registers, stack frames, metadata and what is proven about
//! the packet.

use std::collections::BTreeMap;

use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::pseudo_registers::{LOOP_ROUND, REDIRECT_TARGET};
use crate::analysis::domain::reg_type::{ANONYMOUS, PACKET_START, RegKind, RegType, SymbolicName};
use crate::analysis::register_liveness::RegisterSet;
use crate::ir::privatize::StoredBytes;
use crate::ir::{Id, Variable};

/// Words of a stack frame; a frame has 512 bytes (`MAX_BPF_STACK`).
pub(crate) const STACK_WORDS: usize = 128;

/// Maximum call depth (`MAX_CALL_FRAMES`).
pub(crate) const MAX_FRAMES: usize = 8;

/// Pseudo frame that holds the metadata in front of the packet; its top is the packet's first byte.
pub(crate) const METADATA_FRAME: u8 = MAX_FRAMES as u8;

/// Number of frames, the metadata included.
pub(crate) const STACK_COUNT: usize = MAX_FRAMES + 1;

/// Marks a half that the current block has not computed or loaded. The half is in its variable,
/// unless the type determines it.
pub(crate) const NOT_LOADED: Id = Id::MAX;

/// Abstract value of a register, and the IR values of its halves in the current block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub ty: RegType,
    pub low: Id,
    pub high: Id,
}

impl Value {
    pub const fn of(ty: RegType) -> Value {
        Value { ty, low: NOT_LOADED, high: NOT_LOADED }
    }
}

/// Abstract value of a 32-bit stack word.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word {
    /// Type of all 8 bytes if this is the low word of a spilled register, else a 32-bit scalar.
    pub ty: RegType,
    /// Whether this is the high word of a spilled register.
    pub is_high_half: bool,
    pub id: Id,
}

impl Word {
    const UNINIT: Word = Word { ty: RegType::Uninit, is_high_half: false, id: NOT_LOADED };
}

/// A scalar that equals a field of a map value plus an amount, at a block boundary. In a block it
/// is an [`ir::FieldAlias`](crate::ir::FieldAlias).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CarriedAlias {
    /// Low half of the register or stack word that holds the scalar.
    pub number: Variable,
    pub map: u16,
    pub place: FieldLocation,
    pub size: u32,
    /// The map load that the scalar stems from.
    pub load: u32,
    /// Whether the amount may be non-zero; it is in [`Variable::Amount`] then.
    pub has_amount: bool,
}

/// Location of a field, in terms that are valid across blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FieldLocation {
    /// The entry index plus one, and the byte offset in the value.
    Constant { entry: u32, at: u32 },
    /// `off` bytes after the pointer that a variable holds.
    Relative { pointer: Variable, off: u32 },
}

/// Abstract frame of an active function.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    /// r6 to r9, then four pseudo registers: round, limit, argument and callback of a `bpf_loop`.
    pub saved: [Value; 8],
    pub words: Vec<Word>,
}

impl Frame {
    pub fn new() -> Frame {
        Frame { saved: [Value::of(RegType::Uninit); 8], words: vec![Word::UNINIT; STACK_WORDS] }
    }
}

/// Path sensitivity: which states are kept in separate variants of a block instead of being joined,
/// beyond pointers to different objects. Each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sensitivity {
    /// No other distinctions.
    Minimal,
    /// A pointer and a scalar; an initialised register and an uninitialised one.
    Types,
    /// Pointers to different constant offsets in the stack or a map value, and different constant
    /// results of functions.
    Offsets,
}

/// Abstract state at a program point.
#[derive(Debug, Clone)]
pub(crate) struct State {
    /// r0 to r5, then four pseudo registers: redirect target plus one, tail calls made, bytes of
    /// metadata, random numbers drawn.
    pub scratch: [Value; 10],
    pub frames: Vec<Frame>,
    /// Words of the metadata, as in a frame; empty until first accessed.
    pub metadata: Vec<Word>,
    /// Number of bytes that the packet is proven to have.
    pub proven_length: u32,
    /// Number of bytes that the packet is proven to have after each named place.
    pub extents: BTreeMap<SymbolicName, u32>,
    /// Scalars that still equal a field of a map value plus an amount, sorted.
    pub field_aliases: Vec<CarriedAlias>,
    /// Bytes that the packet has stored in values that may be privatized.
    pub stored: StoredBytes,
}

impl State {
    /// State at a program's entry: r1 is the context.
    pub fn at_entry() -> State {
        let mut scratch = [Value::of(RegType::Uninit); 10];
        scratch[1].ty = RegType::Context(0);
        scratch[6..].iter_mut().for_each(|value| value.ty = RegType::Scalar(Interval::constant(0)));
        State {
            scratch,
            frames: vec![Frame::new()],
            metadata: Vec::new(),
            proven_length: 0,
            extents: BTreeMap::new(),
            field_aliases: Vec::new(),
            stored: StoredBytes::default(),
        }
    }

    /// Forgets all IR values, which are valid in one block only.
    pub fn unload(&mut self) {
        self.values().for_each(|value| (value.low, value.high) = (NOT_LOADED, NOT_LOADED));
        self.frames.iter_mut().flat_map(|frame| &mut frame.words).for_each(|word| word.id = NOT_LOADED);
        self.metadata.iter_mut().for_each(|word| word.id = NOT_LOADED);
    }

    /// Words of a frame's stack, or of the metadata.
    pub fn words(&mut self, frame: u8) -> &mut Vec<Word> {
        if frame != METADATA_FRAME {
            return &mut self.frames[usize::from(frame)].words;
        }
        if self.metadata.is_empty() {
            self.metadata = vec![Word::UNINIT; STACK_WORDS];
        }
        &mut self.metadata
    }

    fn values(&mut self) -> impl Iterator<Item = &mut Value> {
        self.scratch.iter_mut().chain(self.frames.iter_mut().flat_map(|frame| &mut frame.saved))
    }

    pub(super) fn types(&mut self) -> impl Iterator<Item = &mut RegType> {
        let State { scratch, frames, metadata, .. } = self;
        let values = scratch.iter_mut().map(|value| &mut value.ty);
        let framed = frames.iter_mut().flat_map(|frame| {
            let saved = frame.saved.iter_mut().map(|value| &mut value.ty);
            saved.chain(frame.words.iter_mut().map(|word| &mut word.ty))
        });
        values.chain(framed).chain(metadata.iter_mut().map(|word| &mut word.ty))
    }

    /// Collects all types in order. Internal iteration is much faster here than `collect`.
    pub(super) fn all_types(&mut self) -> Vec<RegType> {
        let mut all = Vec::with_capacity(self.type_count());
        self.types().for_each(|ty| all.push(*ty));
        all
    }

    /// Approximate number of types, as a capacity.
    pub(super) fn type_count(&self) -> usize {
        self.scratch.len() + (self.frames.len() + 1) * (STACK_WORDS + 8)
    }

    /// Positions of pointers into the packet, as [`join`](State::join) numbers them.
    pub fn packet_pointer_slots(&mut self) -> Vec<usize> {
        let all = self.types().enumerate();
        all.filter(|(_, ty)| matches!(ty, RegType::Packet { .. })).map(|(slot, _)| slot).collect()
    }

    /// All registers with frame and number, pseudo registers included.
    fn registers(&self) -> impl Iterator<Item = (u8, u8, &Value)> {
        let scratch = (0..).zip(&self.scratch);
        let scratch = scratch.map(|(at, it)| (0, if at < 6 { at } else { at - 6 + REDIRECT_TARGET }, it));
        let framed = (0..).zip(&self.frames).flat_map(|(frame, it)| {
            let saved = (0..).zip(&it.saved);
            saved.map(move |(at, it)| (frame, if at < 4 { at + 6 } else { at - 4 + LOOP_ROUND }, it))
        });
        scratch.chain(framed)
    }

    /// The register with this frame and number.
    pub fn register(&mut self, frame: u8, register: u8) -> &mut Value {
        match register {
            0..6 => &mut self.scratch[usize::from(register)],
            REDIRECT_TARGET.. => &mut self.scratch[usize::from(register - REDIRECT_TARGET + 6)],
            // r10 is the frame pointer and not stored.
            _ => {
                let at = if register < 10 { register - 6 } else { register - LOOP_ROUND + 4 };
                &mut self.frames[usize::from(frame)].saved[usize::from(at)]
            }
        }
    }

    /// Registers and spilled registers whose halves are both available in the current block, each
    /// by the variable of its low half.
    pub fn loaded_values(&self) -> Vec<(Variable, Value)> {
        let registers = self.registers();
        let registers = registers.map(|(frame, register, it)| (Variable::Register { frame, register, half: 0 }, *it));
        let framed = (0..).zip(&self.frames).flat_map(|(frame, it)| {
            let pairs = (0..).zip(it.words.windows(2)).filter(|(_, pair)| pair[1].is_high_half);
            pairs.map(move |(word, pair)| {
                (Variable::Stack { frame, word }, Value { ty: pair[0].ty, low: pair[0].id, high: pair[1].id })
            })
        });
        registers.chain(framed).filter(|(_, it)| it.low != NOT_LOADED && it.high != NOT_LOADED).collect()
    }

    /// Variables for which the current block has an IR value.
    pub fn loaded_variables(&self) -> Vec<(Variable, Id)> {
        let mut all = Vec::new();
        for (frame, register, value) in self.registers() {
            all.push((Variable::Register { frame, register, half: 0 }, value.low));
            all.push((Variable::Register { frame, register, half: 1 }, value.high));
        }
        let framed = (0..).zip(&self.frames).map(|(frame, it)| (frame, &it.words));
        for (frame, words) in framed.chain([(METADATA_FRAME, &self.metadata)]) {
            let words = words.iter().enumerate();
            all.extend(words.map(|(word, it)| (Variable::Stack { frame, word: word as u8 }, it.id)));
        }
        all.retain(|(_, id)| *id != NOT_LOADED);
        all
    }

    /// Marks registers that are not live uninitialised, so that they do not prevent joins.
    pub fn drop_dead_registers(&mut self, asked: RegisterSet) {
        let is_asked = |register: usize| asked >> register & 1 != 0;
        let scratch = self.scratch.iter_mut().take(6).enumerate();
        scratch.filter(|(register, _)| !is_asked(*register)).for_each(|(_, it)| it.ty = RegType::Uninit);
        if let Some(frame) = self.frames.last_mut() {
            let saved = frame.saved.iter_mut().take(4).enumerate();
            saved.filter(|(register, _)| !is_asked(register + 6)).for_each(|(_, it)| it.ty = RegType::Uninit);
        }
    }

    /// Clears the pseudo registers of a `bpf_loop` after it ends.
    pub fn without_loop_registers(mut self) -> State {
        if let Some(frame) = self.frames.last_mut() {
            frame.saved[4..].fill(Value::of(RegType::Uninit));
        }
        self
    }

    /// Makes names available for other places: pointers with such a name become anonymous.
    pub fn forget_names(&mut self, is_it: impl Fn(SymbolicName) -> bool) {
        self.extents.retain(|name, _| !is_it(*name));
        self.types().filter(|ty| ty.is_pointer() && is_it(ty.name())).for_each(|ty| *ty = ty.without_name());
    }

    /// Invalidates pointers into the packet after a helper has moved its ends. They become scalars.
    pub fn invalidate_packet_pointers(&mut self) {
        (self.proven_length, self.extents) = (0, BTreeMap::new());
        self.types()
            .filter(|ty| matches!(ty.kind(), RegKind::Packet | RegKind::PacketEnd))
            .for_each(|ty| *ty = RegType::UNKNOWN);
    }

    /// Whether a pointer to a ring buffer record exists.
    pub fn has_record_pointer(&mut self, number: u16) -> bool {
        self.types().any(|ty| matches!(ty, RegType::RingRecord { record, .. } if *record == number))
    }

    /// Invalidates pointers to a ring buffer record after it is submitted or discarded.
    pub fn invalidate_record(&mut self, number: u16) {
        let all = self.types();
        all.filter(|ty| matches!(ty, RegType::RingRecord { record, .. } if *record == number))
            .for_each(|ty| *ty = RegType::UNKNOWN);
    }

    /// Refines the type of every copy of a value: those with the same halves, and those with the
    /// same symbolic name.
    pub fn refine(&mut self, of: Value, name: SymbolicName, to: impl Fn(RegType) -> RegType) {
        let is_named = |ty: RegType| ty.is_pointer() && ty.name() == name && name != PACKET_START && name != ANONYMOUS;
        let before = of.ty;
        for value in self.values() {
            let is_same = value.low != NOT_LOADED && (value.low, value.high) == (of.low, of.high) && value.ty == before;
            if is_named(value.ty) || is_same {
                value.ty = to(value.ty);
            }
        }
        for frame in &mut self.frames {
            for at in 0..STACK_WORDS {
                let word = frame.words[at];
                let rest = frame.words.get(at + 1).copied().unwrap_or(Word::UNINIT);
                let is_same = rest.is_high_half
                    && word.id != NOT_LOADED
                    && (word.id, rest.id) == (of.low, of.high)
                    && word.ty == before;
                if is_named(word.ty) || is_same {
                    frame.words[at].ty = to(word.ty);
                }
            }
        }
    }
}
