//! The prelude's functions, as a table that front ends and backends share. What they do is said in
//! `prelude.wgsl`, which is part of every program.

use naga::{Arena, Module, Span, UniqueArena};

use crate::map::{self, Declaration, MapFunction};
use crate::program::CAPABILITIES;

/// The text that gives the prelude its meaning, appended to every WGSL filter; those of its maps come behind it
/// ([`crate::map::text`]).
pub const TEXT: &str = include_str!("prelude.wgsl");

/// The beginning of names that are the machinery's own.
pub const RESERVED_PREFIX: &str = "pc_";

/// The bytes of a multi-byte value in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Highest byte first: network order.
    Big,
    /// Lowest byte first.
    Little,
}

/// A prelude function, for a backend that has a better body for it than the text's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Intrinsic {
    /// `pkt_len(pkt) -> u32`
    PktLen,
    /// `pkt_wire_len(pkt) -> u32`
    PktWireLen,
    /// `pkt_port(pkt) -> u32`
    PktPort,
    /// `pkt_time(pkt) -> vec2<u32>`
    PktTime,
    /// `pkt_time_ms(pkt) -> u32`
    PktTimeMs,
    /// `load_*(pkt, off) -> u32`; `size` is 1, 2 or 4 bytes (the order of one byte is `Little`).
    Load {
        /// Bytes.
        size: u32,
        /// Their order.
        order: ByteOrder,
    },
    /// `store_*(pkt, off, value)`; as `Load`.
    Store {
        /// Bytes.
        size: u32,
        /// Their order.
        order: ByteOrder,
    },
    /// `adjust_head(pkt, i32) -> bool`
    AdjustHead,
    /// `adjust_tail(pkt, i32) -> bool`
    AdjustTail,
    /// `redirect(u32) -> u32`
    Redirect,
    /// `csum_add(u32, u32) -> u32`
    CsumAdd,
    /// `csum_fold(u32) -> u32`
    CsumFold,
    /// `csum_replace16(check, old, new) -> u32`
    CsumReplace16,
    /// `csum_replace32(check, old, new) -> u32`
    CsumReplace32,
    /// `map_is_new(entry) -> bool`
    MapIsNew,
    /// A function of a map of the filter's.
    Map {
        /// Which: its number among the filter's maps.
        map: u32,
        /// What it does.
        call: MapFunction,
    },
}

impl Intrinsic {
    /// Whether the first argument is the packet.
    pub fn takes_packet(self) -> bool {
        !matches!(
            self,
            Intrinsic::Redirect
                | Intrinsic::CsumAdd
                | Intrinsic::CsumFold
                | Intrinsic::CsumReplace16
                | Intrinsic::CsumReplace32
                | Intrinsic::MapIsNew
                | Intrinsic::Map { .. }
        )
    }

    /// Whether it is about maps: devices run the text's body.
    pub fn is_map_function(self) -> bool {
        matches!(self, Intrinsic::MapIsNew | Intrinsic::Map { .. })
    }

    /// Whether it reads the batch's metadata.
    pub fn reads_metadata(self) -> bool {
        matches!(self, Intrinsic::PktWireLen | Intrinsic::PktPort | Intrinsic::PktTime | Intrinsic::PktTimeMs)
    }
}

/// Name and meaning of every function that a filter may call, but for those of its maps ([`crate::map::functions`]).
pub const FUNCTIONS: &[(&str, Intrinsic)] = &[
    ("pkt_len", Intrinsic::PktLen),
    ("pkt_wire_len", Intrinsic::PktWireLen),
    ("pkt_port", Intrinsic::PktPort),
    ("pkt_time", Intrinsic::PktTime),
    ("pkt_time_ms", Intrinsic::PktTimeMs),
    ("load_u8", Intrinsic::Load { size: 1, order: ByteOrder::Little }),
    ("load_be16", Intrinsic::Load { size: 2, order: ByteOrder::Big }),
    ("load_be32", Intrinsic::Load { size: 4, order: ByteOrder::Big }),
    ("load_le16", Intrinsic::Load { size: 2, order: ByteOrder::Little }),
    ("load_le32", Intrinsic::Load { size: 4, order: ByteOrder::Little }),
    ("store_u8", Intrinsic::Store { size: 1, order: ByteOrder::Little }),
    ("store_be16", Intrinsic::Store { size: 2, order: ByteOrder::Big }),
    ("store_be32", Intrinsic::Store { size: 4, order: ByteOrder::Big }),
    ("store_le16", Intrinsic::Store { size: 2, order: ByteOrder::Little }),
    ("store_le32", Intrinsic::Store { size: 4, order: ByteOrder::Little }),
    ("adjust_head", Intrinsic::AdjustHead),
    ("adjust_tail", Intrinsic::AdjustTail),
    ("redirect", Intrinsic::Redirect),
    ("csum_add", Intrinsic::CsumAdd),
    ("csum_fold", Intrinsic::CsumFold),
    ("csum_replace16", Intrinsic::CsumReplace16),
    ("csum_replace32", Intrinsic::CsumReplace32),
];

/// The prelude as naga has it, with the functions of a filter's maps and what else a front end wants behind them, for those
/// that build a module and have no text of WGSL. Nothing in it has a place: that would be taken for one in the filter's text.
pub fn module(maps: &[Declaration], more: &str) -> Module {
    let text = format!("{TEXT}{}{more}", map::wgsl_text(maps));
    let options = naga::front::wgsl::Options { parse_doc_comments: false, capabilities: CAPABILITIES };
    let mut module = naga::front::wgsl::Frontend::new_with_options(options).parse(&text).expect("the prelude is right");
    let mut types = UniqueArena::new();
    for (_, ty) in module.types.iter() {
        types.insert(ty.clone(), Span::UNDEFINED);
    }
    module.types = types;
    fn placeless<T: Clone>(arena: &mut Arena<T>) {
        let mut without = Arena::new();
        for (_, item) in arena.iter() {
            without.append(item.clone(), Span::UNDEFINED);
        }
        *arena = without;
    }
    placeless(&mut module.constants);
    placeless(&mut module.global_variables);
    placeless(&mut module.global_expressions);
    placeless(&mut module.functions);
    module
}
