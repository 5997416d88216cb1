//! Maps: state that outlives a packet. `docs/guide/maps.md` specifies their semantics,
//! `docs/reference/map-memory.md` their layout in memory.
//!
//! - [`declaration`]: maps as filters declare them.
//! - [`fields`]: names and types for the words of their entries; [`Columns`]: those of a map.
//! - [`layout`]: where a map's parts are in its memory; [`lpm`]: access to prefix maps.
//! - [`wgsl_text`]: the functions by which filters access maps, as a part of the prelude.
//! - [`Table`]: a map in the host's memory; [`Words`]: Rust types for keys and values.
//! - [`rows`]: the entries in a map's memory; [`dump`]: entries as text; [`Annotations`]: extra
//!   columns of that text.
//! - [`typed`]: maps of an eBPF object, whose keys and values have C types.
//! - [`compactor`]: maintenance of hash maps between batches.

mod annotations;
mod cidr;
mod columns;
pub mod compactor;
pub mod declaration;
mod dump;
pub mod fields;
pub mod layout;
pub mod lpm;
mod quoting;
mod rows;
pub(crate) mod slot;
mod table;
pub mod typed;
mod wgsl;
mod words;

pub use annotations::{Annotation, Annotations};
pub use columns::Columns;
pub use declaration::{Declaration, MapKind};
pub use dump::{Format, dump, dump_rows};
pub use rows::{Row, rows, sorted_rows};
pub use table::{MapFull, Table};
pub use typed::TypeInfo;
pub use wgsl::ATOMIC_FUNCTION_PREFIX;
pub use wgsl::{Accumulation, AtomicOp, MapFunction, atomic_function_name, atomic_functions, functions, wgsl_text};
pub use words::{Prefix, Words};

/// Index of the bind group of maps.
pub const BIND_GROUP: u32 = 1;
