//! Abstract types of registers and stack words.
//!
//! The lattice is flat but for its parameters: two types of one kind and one base join to that kind
//! with joined offsets, NULL and a pointer join to a nullable pointer, and all else joins to
//! `Conflict` or `Uninit`, which a program must not use.

use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::offsets::{OFFSET_LIMIT, Offsets};

/// Symbolic name of a base address in the packet that is known only at run time, like the
/// verifier's `reg->id`: what is proven about one pointer holds for every copy of the same name.
pub(crate) type SymbolicName = u32;
/// Name of the packet's first byte.
pub(crate) const PACKET_START: SymbolicName = 0;
/// Name of a pointer about which nothing can be learned.
pub(crate) const ANONYMOUS: SymbolicName = u32::MAX;

/// Abstract type of a register, in the manner of the kernel verifier's `enum bpf_reg_type`.
///
/// At run time a register is two 32-bit halves. A scalar has its own low and high half. A pointer
/// has its offset in the low half and, in the high half, what it points into; that is never zero,
/// so a zero high half is NULL for every pointer type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegType {
    /// A register that is not set on every path. Reading it is rejected. Absorbing in joins.
    Uninit,
    /// A number within an interval.
    Scalar(Interval),
    /// The context, `struct xdp_md`, plus a byte offset.
    Context(i64),
    /// Into the packet: `off` bytes after the place called `name`, and at least `floor` bytes after
    /// the packet's first byte.
    Packet { name: SymbolicName, off: i64, floor: i64, nullable: bool },
    /// The end of the packet, `data_end`.
    PacketEnd,
    /// Into the stack of a frame, or the packet's metadata ([`METADATA_FRAME`]); offsets count from
    /// the top of the frame.
    Stack { frame: u8, off: Offsets },
    /// A map, by its index in the object.
    Map(u16),
    /// Into a map value. The low half is the byte offset, the high half the entry index plus one.
    /// `name` is that of the lookup while the pointer may be NULL.
    MapValue { map: u16, off: Offsets, name: SymbolicName, nullable: bool },
    /// A function, by section and first instruction.
    Function { section: u16, first: u32 },
    /// Into a reserved ring buffer record that is not submitted yet. `name` is that of the
    /// reservation.
    RingRecord { record: u16, off: Offsets, name: SymbolicName, nullable: bool },
    /// Values of two kinds that cannot be joined, one per path; must not be used.
    Conflict(RegKind, RegKind),
}

/// Kind of a register's contents, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegKind {
    Scalar,
    Context,
    Packet,
    PacketEnd,
    Stack,
    Map,
    MapValue,
    Function,
    RingRecord,
    Uninit,
}

impl RegKind {
    pub fn describe(self) -> &'static str {
        match self {
            RegKind::Scalar => "a number",
            RegKind::Context => "the context",
            RegKind::Packet => "a pointer into the packet",
            RegKind::PacketEnd => "the packet's end",
            RegKind::Stack => "a pointer to the stack",
            RegKind::Map => "a map",
            RegKind::MapValue => "a pointer to a map's value",
            RegKind::Function => "a function",
            RegKind::RingRecord => "a pointer to a reserved record",
            RegKind::Uninit => "an uninitialised value",
        }
    }
}

impl RegType {
    pub const UNKNOWN: RegType = RegType::Scalar(Interval::ANY);

    pub fn kind(self) -> RegKind {
        match self {
            RegType::Uninit => RegKind::Uninit,
            RegType::Scalar(_) => RegKind::Scalar,
            RegType::Context(_) => RegKind::Context,
            RegType::Packet { .. } => RegKind::Packet,
            RegType::PacketEnd => RegKind::PacketEnd,
            RegType::Stack { .. } => RegKind::Stack,
            RegType::Map(_) => RegKind::Map,
            RegType::MapValue { .. } => RegKind::MapValue,
            RegType::Function { .. } => RegKind::Function,
            RegType::RingRecord { .. } => RegKind::RingRecord,
            RegType::Conflict(first, _) => first,
        }
    }

    /// Description for messages.
    pub fn describe(self) -> String {
        match self {
            RegType::Conflict(a, b) => format!("{} on one path, and {} on another", a.describe(), b.describe()),
            _ if self.is_nullable() => format!("{}, or NULL", self.kind().describe()),
            _ => self.kind().describe().into(),
        }
    }

    pub fn as_scalar(self) -> Option<Interval> {
        match self {
            RegType::Scalar(range) => Some(range),
            _ => None,
        }
    }

    pub fn is_pointer(self) -> bool {
        !matches!(self, RegType::Uninit | RegType::Scalar(_) | RegType::Conflict(..))
    }

    /// Whether the pointer may be NULL.
    pub fn is_nullable(self) -> bool {
        matches!(
            self,
            RegType::Packet { nullable: true, .. }
                | RegType::MapValue { nullable: true, .. }
                | RegType::RingRecord { nullable: true, .. }
        )
    }

    pub(super) fn is_null(self) -> bool {
        self == RegType::Scalar(Interval::constant(0))
    }

    /// The nullable variant of a pointer type that has one.
    fn with_null(self) -> Option<RegType> {
        match self {
            RegType::Packet { name, off, floor, .. } => Some(RegType::Packet { name, off, floor, nullable: true }),
            RegType::MapValue { map, off, name, .. } => Some(RegType::MapValue { map, off, name, nullable: true }),
            RegType::RingRecord { record, off, name, .. } => {
                Some(RegType::RingRecord { record, off, name, nullable: true })
            }
            _ => None,
        }
    }

    /// Whether the join loses a value that could be used on at least one of the paths.
    pub(super) fn conflicts_with(self, other: RegType) -> bool {
        let joined = self.join(other, |_, _| (ANONYMOUS, 0));
        let is_lost = |ty: RegType| matches!(ty, RegType::Uninit | RegType::Conflict(..));
        // A non-null pointer can be moved and a nullable one cannot, so joining it with NULL loses
        // that.
        let is_null = |a: RegType, b: RegType| a.is_null() && b.is_pointer() && !b.is_nullable();
        is_lost(joined) && !(is_lost(self) && is_lost(other)) || is_null(self, other) || is_null(other, self)
    }

    /// The symbolic name of a named pointer, else [`PACKET_START`].
    pub fn name(self) -> SymbolicName {
        match self {
            RegType::Packet { name, .. } | RegType::MapValue { name, .. } | RegType::RingRecord { name, .. } => name,
            _ => PACKET_START,
        }
    }

    /// The type with [`ANONYMOUS`] for its name.
    pub fn without_name(self) -> RegType {
        match self {
            RegType::Packet { off, floor, nullable, .. } => RegType::Packet { name: ANONYMOUS, off, floor, nullable },
            RegType::MapValue { map, off, nullable, .. } => RegType::MapValue { map, off, name: ANONYMOUS, nullable },
            RegType::RingRecord { record, off, nullable, .. } => {
                RegType::RingRecord { record, off, name: ANONYMOUS, nullable }
            }
            other => other,
        }
    }

    /// Lattice join. For pointers into the packet with different bases, `name` gives the name and
    /// offset of the joined pointer from those of both.
    pub(super) fn join(
        self,
        other: RegType,
        name: impl FnOnce((SymbolicName, i64), (SymbolicName, i64)) -> (SymbolicName, i64),
    ) -> RegType {
        if self == other {
            return self;
        }
        match (self, other) {
            (RegType::Uninit, _) | (_, RegType::Uninit) => RegType::Uninit,
            (RegType::Scalar(a), RegType::Scalar(b)) => RegType::Scalar(a.join(b)),
            (
                RegType::Packet { name: a, off, floor, nullable },
                RegType::Packet { name: b, off: there, floor: other, nullable: or },
            ) => {
                let (nullable, floor) = (nullable || or, floor.min(other));
                match (a, off) == (b, there) && a != ANONYMOUS {
                    true => RegType::Packet { name: a, off, floor, nullable },
                    false => {
                        let (name, off) = name((a, off), (b, there));
                        RegType::Packet { name, off, floor, nullable }
                    }
                }
            }
            (RegType::Stack { frame, off: a }, RegType::Stack { frame: other, off: b }) if frame == other => {
                RegType::Stack { frame, off: a.join(b) }
            }
            (
                RegType::MapValue { map, off: a, name: x, nullable },
                RegType::MapValue { map: other, off: b, name: y, nullable: or },
            ) if map == other => {
                let name = if x == y { x } else { ANONYMOUS };
                RegType::MapValue { map, off: a.join(b), name, nullable: nullable || or }
            }
            (
                RegType::RingRecord { record, off: a, name: x, nullable },
                RegType::RingRecord { record: other, off: b, name: y, nullable: or },
            ) if record == other => {
                let name = if x == y { x } else { ANONYMOUS };
                RegType::RingRecord { record, off: a.join(b), name, nullable: nullable || or }
            }
            // A later NULL check of a pointer with that name would say nothing about this NULL.
            (null, pointer) | (pointer, null) if null.is_null() && pointer.with_null().is_some() => {
                match pointer.with_null() {
                    Some(packet @ RegType::Packet { .. }) => packet,
                    other => other.unwrap_or(pointer).without_name(),
                }
            }
            (RegType::Conflict(..), _) => self,
            (_, RegType::Conflict(..)) => other,
            _ => RegType::Conflict(self.kind(), other.kind()),
        }
    }

    /// Widens what changed since `before`: scalars to the next of the thresholds `bounds`, offsets
    /// to [`OFFSET_LIMIT`].
    pub(super) fn widen(self, before: RegType, bounds: &[u64]) -> RegType {
        match (self, before) {
            (RegType::Scalar(now), RegType::Scalar(before)) => RegType::Scalar(now.widen(before, bounds)),
            (RegType::Packet { name, off, floor, nullable }, RegType::Packet { floor: before, .. })
                if floor < before =>
            {
                RegType::Packet { name, off, floor: -OFFSET_LIMIT, nullable }
            }
            (RegType::Stack { frame, off }, RegType::Stack { off: before, .. }) => {
                RegType::Stack { frame, off: off.widen(before) }
            }
            (RegType::MapValue { map, off, name, nullable }, RegType::MapValue { off: before, .. }) => {
                RegType::MapValue { map, off: off.widen(before), name, nullable }
            }
            (RegType::RingRecord { record, off, name, nullable }, RegType::RingRecord { off: before, .. }) => {
                RegType::RingRecord { record, off: off.widen(before), name, nullable }
            }
            _ => self,
        }
    }
}
