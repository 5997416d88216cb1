//! Maps: state that outlives a packet. `docs/maps.md` says what they mean to a filter and how they lie in memory.
//!
//! - [`declare`]: the lines of a filter's text that declare maps;
//! - [`fields`]: names for the words of their entries;
//! - [`layout`]: where a map's parts lie in its memory;
//! - [`lpm`]: the same for prefixes, and how they are found;
//! - [`rows`]: a map's entries, out of that memory;
//! - [`dump`]: those as text; [`Annotations`]: what is said of them there besides;
//! - `table`: a map as the host has it; `handle`: the same with types of Rust's, in a session; `words`: those types;
//! - [`EntryAccess`]: one entry of a map in a session, without a copy of the rest; `place`: a place of a map, as both have it;
//! - [`typed`]: keys and values of C's types, which an object's maps have;
//! - [`compactor`]: what sessions do for maps between batches;
//! - [`text`]: what filters may do with them, as a part of the prelude.

mod annotations;
pub mod compactor;
pub mod declaration;
mod dump;
mod entry;
pub mod fields;
mod handle;
pub mod layout;
pub mod lpm;
mod rows;
mod slot;
mod table;
pub mod typed;
mod wgsl;
mod words;

pub use annotations::{Annotation, Annotations};
pub use declaration::{Declaration, MapKind};
pub use dump::{Format, dump, dump_rows};
pub use entry::{EntryAccess, EntryUpdate};
pub use handle::{MapHandle, OpenError, Snapshot, UpdateError};
pub use rows::{Row, rows, sorted_rows};
pub use table::{MapFull, Table};
pub use typed::TypeInfo;
pub use wgsl::ATOMIC_FUNCTION_PREFIX;
pub use wgsl::{AtomicOp, MapFunction, atomic_function_name, atomic_functions, functions, wgsl_text};
pub use words::{Prefix, Words};

/// The binding group that maps are bound in.
pub const BIND_GROUP: u32 = 1;
