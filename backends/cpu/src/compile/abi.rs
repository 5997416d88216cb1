//! The interface of generated code: what it is called with, and where it finds its data.

use std::mem::offset_of;

use portcullis_core::packet::{Descriptor, Metadata};

/// The signature of every compiled function: context, index of the first packet, index past the
/// last one.
pub(super) type BatchFunction = unsafe extern "C" fn(*const BatchContext, usize, usize);

/// Addresses of the buffers that generated code reads and writes; its first argument.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BatchContext {
    /// First byte of the arena.
    pub arena: *mut u8,
    /// One descriptor per packet.
    pub descriptors: *const Descriptor,
    /// One byte per packet, written.
    pub verdicts: *mut u8,
    /// One redirect target per packet, written by filters that redirect.
    pub targets: *mut u32,
    /// One entry per packet, read by filters that use metadata.
    pub metadata: *const Metadata,
    /// The program's constant tables.
    pub tables: *const u8,
    /// One descriptor per packet, written by filters that change lengths.
    pub resized: *mut Descriptor,
    /// Addresses of the [`FloatFunction`](super::float_runtime::FloatFunction)s.
    pub float_functions: *const usize,
    /// Addresses of the maps' words, read and written.
    pub maps: *const *mut u32,
}

// Generated code reads each field as 64 bits, the only pointer width that it supports.
const _: () = assert!(size_of::<usize>() != 8 || size_of::<BatchContext>() == 72);

/// Byte offsets of [`BatchContext`]'s fields.
pub(crate) mod context_offset {
    use super::{BatchContext, offset_of};

    pub const ARENA: i32 = offset_of!(BatchContext, arena) as i32;
    pub const DESCRIPTORS: i32 = offset_of!(BatchContext, descriptors) as i32;
    pub const VERDICTS: i32 = offset_of!(BatchContext, verdicts) as i32;
    pub const TARGETS: i32 = offset_of!(BatchContext, targets) as i32;
    pub const METADATA: i32 = offset_of!(BatchContext, metadata) as i32;
    pub const TABLES: i32 = offset_of!(BatchContext, tables) as i32;
    pub const RESIZED: i32 = offset_of!(BatchContext, resized) as i32;
    pub const MAPS: i32 = offset_of!(BatchContext, maps) as i32;
    pub const FLOAT_FUNCTIONS: i32 = offset_of!(BatchContext, float_functions) as i32;
}
