//! Maps: state that outlives a packet. `docs/maps.md` says what they mean to a filter and how they lie in memory.
//!
//! - [`declare`]: the lines of a filter's text that declare maps;
//! - [`fields`]: names for the words of their entries;
//! - [`layout`]: where a map's parts lie in its memory;
//! - [`lpm`]: the same for prefixes, and how they are found;
//! - [`rows`]: a map's entries, out of that memory;
//! - [`dump`]: those as text; [`Notes`]: what is said of them there besides;
//! - `table`: a map as the host has it; `handle`: the same with types of Rust's, in a session; `words`: those types;
//! - [`Single`]: one entry of a map in a session, without a copy of the rest; `place`: a place of a map, as both have it;
//! - [`typed`]: keys and values of C's types, which an object's maps have;
//! - [`upkeep`]: what sessions do for maps between batches;
//! - [`text`]: what filters may do with them, as a part of the prelude.

pub mod declare;
mod dump;
pub mod fields;
mod handle;
pub mod layout;
pub mod lpm;
mod notes;
mod place;
mod rows;
mod single;
mod table;
mod text;
pub mod typed;
pub mod upkeep;
mod words;

pub use declare::{Declaration, Kind};
pub use dump::{Format, dump, dump_rows};
pub use handle::{Handle, OpenError, Snapshot, UpdateError};
pub use notes::{Note, Notes};
pub use rows::{Row, in_order, rows};
pub use single::{Changed, Single};
pub use table::{Full, Table};
pub use text::CHANGES;
pub use text::{Call, Change, change_of, changes, functions, text};
pub use typed::Typed;
pub use words::{Prefix, Words};

/// The binding group that maps are bound in.
pub const BIND_GROUP: u32 = 1;
