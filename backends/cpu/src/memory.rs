//! Native code in memory, what it is called with, and its end.

use std::mem::offset_of;
use std::sync::Arc;

use cranelift_codegen::{CodegenError, isa::OwnedTargetIsa};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Module, ModuleError};
use portcullis_core::packet::{Descriptor, Metadata};

use crate::compile::{self, Body, Lowered};
use crate::late::Late;
use crate::runtime;
use crate::walk::{self, Lead, STEPS, Walk};

/// What the code reads its buffers' addresses from.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Context {
    /// The arena's first byte.
    pub arena: *mut u8,
    /// One descriptor a packet.
    pub descriptors: *const Descriptor,
    /// One byte a packet, written.
    pub verdicts: *mut u8,
    /// One target a packet, written by filters that redirect.
    pub targets: *mut u32,
    /// One entry a packet, read by filters that use metadata.
    pub metadata: *const Metadata,
    /// The program's constant tables.
    pub tables: *const u8,
    /// One descriptor a packet, written by filters that change lengths.
    pub resized: *mut Descriptor,
    /// The addresses of [`runtime::FUNCTIONS`](crate::runtime::FUNCTIONS).
    pub runtime: *const usize,
    /// The addresses of the maps' words, read and written.
    pub maps: *const *mut u32,
    /// The packets of a call, by their numbers in the batch, read by filters with flows: then a call's packets
    /// `start..end` are those at these places of it. Null where they are those of the batch.
    pub list: *const u32,
}

/// Where [`Context`]'s fields are, in bytes.
pub(crate) mod context_offset {
    use super::{Context, offset_of};

    pub const ARENA: i32 = offset_of!(Context, arena) as i32;
    pub const DESCRIPTORS: i32 = offset_of!(Context, descriptors) as i32;
    pub const VERDICTS: i32 = offset_of!(Context, verdicts) as i32;
    pub const TARGETS: i32 = offset_of!(Context, targets) as i32;
    pub const METADATA: i32 = offset_of!(Context, metadata) as i32;
    pub const TABLES: i32 = offset_of!(Context, tables) as i32;
    pub const RESIZED: i32 = offset_of!(Context, resized) as i32;
    pub const MAPS: i32 = offset_of!(Context, maps) as i32;
    pub const LIST: i32 = offset_of!(Context, list) as i32;
    pub const RUNTIME: i32 = offset_of!(Context, runtime) as i32;
}

/// One function for a batch, and its tables.
struct Entry {
    run: unsafe extern "C" fn(*const Context, usize, usize),
    /// For [`Context::tables`].
    tables: Vec<u8>,
    /// See [`Lowered::group`].
    group: usize,
}

/// A way of running the filter.
#[derive(Clone, Copy)]
struct Way {
    /// The function.
    entry: usize,
    /// How many steps of searches are made before it, the first of them by the code that runs ahead.
    ahead: usize,
}

/// When what filters search for is fetched ahead of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// For some of the packets, to see whether that is faster, and then for most.
    WhereFaster,
    Always,
}

/// Code that runs ahead of the filter.
pub(crate) struct Ahead {
    pub lowered: Lowered,
    pub when: When,
    /// Bytes to fetch from each address that it finds on: at least one.
    pub bytes: usize,
    /// For each map how it is searched on from there, if it is.
    pub walks: Vec<Option<Walk>>,
}

/// Packets for which that is done at a time: enough for the memory to be busy, few enough for what is fetched to be
/// there still when it is used.
const GROUP: usize = 16;

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Groups of packets whose headers are fetched before the first function that runs ahead comes to them.
const PACKETS_AHEAD: usize = 4;

/// Functions in executable memory, which is freed when this is dropped.
pub(crate) struct Native {
    module: Option<JITModule>,
    entries: Vec<Entry>,
    /// Bytes of stack of the function that needs most.
    pub stack: usize,
    /// Of the function that has most for a packet. See [`Lowered::operations`].
    pub operations: u64,
}

// SAFETY: the module is touched only to free its memory, in `drop`; the code itself is immutable
// and keeps no state.
unsafe impl Send for Native {}
// SAFETY: as above.
unsafe impl Sync for Native {}

impl Native {
    /// Compiles functions and makes them executable. Their pages are writable first and executable
    /// then, never both.
    pub fn new(lowered: Vec<Lowered>, isa: OwnedTargetIsa) -> Result<Native, String> {
        let builder = JITBuilder::with_isa(isa, cranelift_module::default_libcall_names());
        let mut native = Native {
            module: Some(JITModule::new(builder)),
            entries: Vec::with_capacity(lowered.len()),
            stack: 0,
            operations: lowered.iter().map(|l| l.operations / l.group as u64).max().unwrap_or(0),
        };
        // Where this ends early, `drop` frees what there is of the module.
        let Some(module) = &mut native.module else { unreachable!("set above") };
        let mut defined = Vec::with_capacity(lowered.len());
        for Lowered { body, tables, group, .. } in lowered {
            let (id, stack) = Self::define(module, body)?;
            native.stack = native.stack.max(stack);
            defined.push((id, tables, group));
        }
        module.finalize_definitions().map_err(|e| e.to_string())?;
        let finished = |(id, tables, group)| {
            let address = module.get_finalized_function(id);
            // SAFETY: `lower` built the function with exactly this signature, in the C convention.
            let run = unsafe {
                std::mem::transmute::<*const u8, unsafe extern "C" fn(*const Context, usize, usize)>(address)
            };
            Entry { run, tables, group }
        };
        native.entries = defined.into_iter().map(finished).collect();
        Ok(native)
    }

    /// Compiles a function, and says how much stack it needs.
    fn define(module: &mut JITModule, body: Body) -> Result<(FuncId, usize), String> {
        let signature = match &body {
            Body::Clif(function) => function.signature.clone(),
            // Both are called through one type of pointer.
            Body::Machine { .. } => compile::signature(module.isa()),
        };
        let id = module.declare_anonymous_function(&signature).map_err(|e| e.to_string())?;
        let function = match body {
            Body::Clif(function) => function,
            Body::Machine { code, stack, .. } => {
                module.define_function_bytes(id, ALIGNMENT, &code, &[]).map_err(|e| e.to_string())?;
                return Ok((id, stack));
            }
        };
        let mut context = module.make_context();
        context.func = *function;
        module.define_function(id, &mut context).map_err(|error| match error {
            ModuleError::Compilation(CodegenError::Verifier(errors)) => format!("invalid code: {errors}"),
            other => other.to_string(),
        })?;
        let frame = context.compiled_code().and_then(|code| code.buffer.frame_layout());
        let stack = frame.map_or(usize::MAX, |frame| frame.frame_to_fp_offset as usize + BESIDE_FRAME);
        Ok((id, stack))
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: no entry is called again, and nobody else has one.
            unsafe { module.free_memory() };
        }
    }
}

/// Of machine code: a line of the cache, which constants of 256 bits do not go beyond.
const ALIGNMENT: u64 = LINE as u64;

/// Stack beside a function's own frame: the return address, and what it calls of the runtime's.
const BESIDE_FRAME: usize = 4 << 10;

/// Compiled code: one function or more that do the same, to which others may come later.
pub(crate) struct Code {
    native: Native,
    /// The function that runs ahead, and how many bytes are fetched from the addresses that it finds on.
    ahead: Option<(Entry, usize)>,
    /// See [`Ahead::walks`].
    walks: Vec<Option<Walk>>,
    ways: Vec<Way>,
    /// How many steps of searches may be made before a function: the fewest and the most.
    steps: (usize, usize),
    late: Option<Arc<Late<Native>>>,
    runtime: Vec<usize>,
    /// Bytes of stack of the function that needs most, of those that were there from the beginning.
    pub stack: usize,
    /// See [`Lowered::operations`]: of the function that has most, and what runs ahead.
    pub operations: u64,
}

impl Code {
    /// Compiles functions.
    ///
    /// The first one takes any number of packets. Where `offered` is false it is no way of its own,
    /// and has only what the others leave out.
    pub fn new(
        mut lowered: Vec<Lowered>,
        offered: bool,
        ahead: Option<Ahead>,
        isa: OwnedTargetIsa,
    ) -> Result<Code, String> {
        let filters = lowered.len();
        let operations = lowered.iter().map(|l| l.operations / l.group as u64).max().unwrap_or(0)
            + ahead.iter().map(|ahead| ahead.lowered.operations).sum::<u64>();
        let (mut steps, mut walks, mut fetched) = ((0, 0), Vec::new(), None);
        if let Some(Ahead { lowered: function, when, bytes, walks: ways }) = ahead {
            // What a search goes on to may be at hand where what it begins with is not.
            let most = if ways.iter().any(Option::is_some) { 2 } else { 1 };
            steps = (if when == When::Always { most } else { 0 }, most);
            (walks, fetched) = (ways, Some(bytes));
            lowered.push(function);
        }
        let mut native = Native::new(lowered, isa)?;
        let ahead = fetched.and_then(|bytes| Some((native.entries.pop()?, bytes)));
        let ways = |entry| (steps.0..=steps.1).rev().map(move |ahead| Way { entry, ahead });
        Ok(Code {
            ahead,
            walks,
            ways: (usize::from(!offered)..filters).flat_map(ways).collect(),
            steps,
            late: None,
            runtime: runtime::addresses(),
            stack: native.stack,
            operations,
            native,
        })
    }

    /// The same, to which more functions come later, each of which runs the filter in the same ways.
    pub fn with_late(mut self, late: Arc<Late<Native>>) -> Code {
        self.late = Some(late);
        self
    }

    /// What comes later.
    pub fn late(&self) -> Option<&Arc<Late<Native>>> {
        self.late.as_ref()
    }

    /// A way by its number, and where its function is.
    fn way(&self, number: usize) -> (&Native, Way) {
        let Some(late) = number.checked_sub(self.ways.len()) else { return (&self.native, self.ways[number]) };
        let native =
            self.late.as_ref().and_then(|late| late.get()).expect("ways that come later are there when counted");
        let ways = self.steps.1 - self.steps.0 + 1;
        (native, Way { entry: late / ways, ahead: self.steps.1 - late % ways })
    }

    /// How many ways of running the filter there are, by now.
    pub fn len(&self) -> usize {
        let late = self.late.as_ref().and_then(|late| late.get()).map_or(0, |native| native.entries.len());
        self.ways.len() + late * (self.steps.1 - self.steps.0 + 1)
    }

    /// The runtime's functions, for [`Context::runtime`].
    pub fn runtime(&self) -> *const usize {
        self.runtime.as_ptr()
    }

    /// Runs the filter over packets `start..end`, in one of the ways.
    ///
    /// # Safety
    /// Every pointer of the context that the program uses (see its fields; the tables are this code's
    /// own) is good for packets `start..end`; their descriptors lie in the arena (and with their room, where the filter
    /// changes lengths), which is readable [`READABLE_PAST_END`] bytes past its end; and nobody
    /// else touches the packets, or writes to anything else that the context points to.
    ///
    /// [`READABLE_PAST_END`]: portcullis_core::packet::READABLE_PAST_END
    pub unsafe fn run(&self, way: usize, context: &Context, start: usize, end: usize) {
        let (native, Way { entry, ahead: way }) = self.way(way);
        let run = |context, start, end| {
            // SAFETY: passed on to the caller.
            unsafe { self.run_entry(&native.entries[entry], context, start, end) };
        };
        let Some((ahead, bytes)) = self.ahead.as_ref().filter(|_| way > 0) else {
            return run(context, start, end);
        };
        let groups = (end - start).div_ceil(GROUP);
        let group = |number: usize| (start + number * GROUP, end.min(start + (number + 1) * GROUP));
        let steps = if way > 1 { STEPS } else { 0 };
        // Of the groups under way, and whether there is more to be done for them.
        let mut leads = [([Lead::NONE; GROUP], false); STEPS + 1];
        // Each group is a step further than the one behind it, and one is filtered.
        for turn in 0..groups + steps + 1 {
            let (start, end) = group(turn + PACKETS_AHEAD);
            for packet in start..end {
                // SAFETY: passed on to the caller.
                fetch(unsafe { header(context, packet) }, LINE);
            }
            if turn < groups {
                let (start, end) = group(turn);
                let (leads, goes_on) = &mut leads[turn % (STEPS + 1)];
                // SAFETY: passed on to the caller.
                unsafe { lead(ahead, context, start, end, leads) };
                leads.iter().for_each(|lead| fetch(lead.place, *bytes));
                *goes_on = true;
            }
            for step in 1..=steps.min(turn) {
                let (leads, goes_on) = &mut leads[(turn - step) % (STEPS + 1)];
                if turn - step < groups && *goes_on {
                    // SAFETY: there is one for each map, of which the context has the words.
                    *goes_on = unsafe { walk::step(&self.walks, context.maps, leads, step == 1) };
                    leads.iter().for_each(|lead| fetch(lead.place, walk::FETCHED));
                }
            }
            if let Some(number) = turn.checked_sub(steps + 1) {
                let (start, end) = group(number);
                run(context, start, end);
            }
        }
    }

    /// Runs a function, and the first one for the packets at the end that it leaves out.
    ///
    /// # Safety
    /// As for [`Code::run`].
    unsafe fn run_entry(&self, entry: &Entry, context: &Context, start: usize, end: usize) {
        let whole = end - (end - start) % entry.group;
        for (entry, start, end) in [(entry, start, whole), (&self.native.entries[0], whole, end)] {
            if start < end {
                let Entry { run, tables, .. } = entry;
                let context = Context { tables: tables.as_ptr(), ..*context };
                // SAFETY: passed on to the caller, but for the tables, which are the function's.
                unsafe { run(&context, start, end) };
            }
        }
    }
}

/// Where the packet at a place of the call's begins.
///
/// # Safety
/// As for [`Code::run`], for that packet.
unsafe fn header(context: &Context, place: usize) -> *const u8 {
    // SAFETY: the caller's packets are in the list, where there is one, and have descriptors.
    let offset = unsafe {
        let index = if context.list.is_null() { place } else { *context.list.add(place) as usize };
        (*context.descriptors.add(index)).offset
    };
    context.arena.wrapping_add(offset as usize)
}

/// Finds where packets `start..end`, a group at most, will probably begin to search, by code that runs ahead; nowhere for
/// those that are not this call's.
///
/// # Safety
/// As for [`Code::run`].
unsafe fn lead(ahead: &Entry, context: &Context, start: usize, end: usize, leads: &mut [Lead; GROUP]) {
    for lead in leads.iter_mut() {
        (lead.place, lead.map) = (std::ptr::null(), 0);
    }
    assert!(end - start <= GROUP, "there is room for one group");
    let context = Context { verdicts: leads.as_mut_ptr().cast(), tables: ahead.tables.as_ptr(), ..*context };
    // SAFETY: passed on to the caller, but for the column of verdicts: code that runs ahead writes a lead for each
    // packet that is this call's, from the column's beginning on, where there is room for them. It writes nothing else.
    unsafe { (ahead.run)(&context, start, end) };
}

/// Asks for memory to be in the cache soon, wherever that is: an address that is none is no fault.
#[inline]
fn fetch(at: *const u8, bytes: usize) {
    if at.is_null() {
        return;
    }
    let into_line = at as usize % LINE;
    for offset in (0..into_line + bytes).step_by(LINE) {
        let at = at.wrapping_sub(into_line).wrapping_add(offset);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction faults at no address, and every such processor has it.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
        }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(late) = &self.late {
            late.forget();
        }
    }
}

#[cfg(test)]
mod tests;
