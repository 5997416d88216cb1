//! Table of the prelude's functions, shared by front ends and backends. Their definitions are in
//! `prelude.wgsl`, which is part of every program.

use naga::{Arena, Module, Span, UniqueArena};

use crate::map::{self, Declaration, MapFunction};
use crate::program::CAPABILITIES;

/// Source of the prelude, appended to every WGSL filter, followed by the functions of the filter's
/// maps ([`crate::map::wgsl_text`]).
pub const TEXT: &str = include_str!("prelude.wgsl");

/// Prefix of names that are reserved for the prelude.
pub const RESERVED_PREFIX: &str = "pc_";

/// Byte order of a multi-byte value in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Most significant byte first: network order.
    Big,
    /// Least significant byte first.
    Little,
}

/// A prelude function, for which a backend may have an implementation better than the source's.
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
    /// `load_*(pkt, off) -> u32` (`Little` for a single byte).
    Load {
        /// 1, 2 or 4 bytes.
        size: u32,
        /// Byte order.
        order: ByteOrder,
    },
    /// `store_*(pkt, off, value)` (`Little` for a single byte).
    Store {
        /// 1, 2 or 4 bytes.
        size: u32,
        /// Byte order.
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
    /// A function of one of the filter's maps.
    Map {
        /// Index of the map in the filter's declarations.
        map: u32,
        /// The function.
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

    /// Whether this is a function of maps, for which devices run the source's body.
    pub fn is_map_function(self) -> bool {
        matches!(self, Intrinsic::MapIsNew | Intrinsic::Map { .. })
    }
}

/// Names of all functions that a filter may call, except those of its maps
/// ([`crate::map::functions`]).
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

/// The prelude, the functions of a filter's maps and `more` source as a naga module, for front ends
/// that build a module without WGSL source. All spans are undefined: they would be taken for
/// positions in the filter's source.
pub fn module(maps: &[Declaration], more: &str) -> Module {
    let text = format!("{TEXT}{}{more}", map::wgsl_text(maps));
    let options = naga::front::wgsl::Options { parse_doc_comments: false, capabilities: CAPABILITIES };
    let mut module =
        naga::front::wgsl::Frontend::new_with_options(options).parse(&text).expect("the prelude is valid WGSL");
    let mut types = UniqueArena::new();
    for (_, ty) in module.types.iter() {
        types.insert(ty.clone(), Span::UNDEFINED);
    }
    module.types = types;
    fn clear_spans<T: Clone>(arena: &mut Arena<T>) {
        let mut cleared = Arena::new();
        for (_, item) in arena.iter() {
            cleared.append(item.clone(), Span::UNDEFINED);
        }
        *arena = cleared;
    }
    clear_spans(&mut module.constants);
    clear_spans(&mut module.global_variables);
    clear_spans(&mut module.global_expressions);
    clear_spans(&mut module.functions);
    module
}
