//! The compiled variants of one filter, and how packets run through them.
//!
//! A variant is a compiled function together with a prefetch depth: how far ahead of the filter the
//! packets' map searches are prefetched. All variants give the same results; the session measures
//! which one is fastest.

use std::ops::Range;
use std::sync::Arc;

use cranelift_codegen::isa::OwnedTargetIsa;

use super::abi::BatchContext;
use super::background::BackgroundCell;
use super::float_runtime;
use super::lowered::Lowered;
use super::lpm_prefetch::{self, LpmPrefetch, MAX_STEPS, PrefetchCursor, STEP_BYTES};
use super::native::{EntryPoint, NativeCode};

/// When map searches are prefetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrefetchPolicy {
    /// Separate variants prefetch, and are used if they measure faster.
    IfFaster,
    /// Every variant prefetches.
    Always,
}

/// Code that computes where a packet's first map search will read, without filtering the packet.
pub(crate) struct PrefetchCode {
    pub lowered: Lowered,
    pub policy: PrefetchPolicy,
    /// Whether to prefetch at all. The code is also needed to partition batches.
    pub pays: bool,
    /// Bytes to prefetch from each address that it computes, at least one.
    pub bytes: usize,
    /// How to continue a search in each map; `None` unless it is an LPM map.
    pub lpm_searches: Vec<Option<LpmPrefetch>>,
}

/// Packets that are prefetched together: enough to keep the memory system busy, few enough that
/// what is prefetched is still in the cache when it is used.
const PREFETCH_GROUP: usize = 16;

/// Cache line in bytes.
const CACHE_LINE: usize = 64;

/// Distance in groups at which packet headers are prefetched before the prefetch code reads them.
const HEADER_DISTANCE: usize = 4;

/// One way of running the filter.
#[derive(Clone, Copy)]
struct Variant {
    /// Index of the function.
    entry: usize,
    /// 0: no prefetching; 1: the first address of a search; 2: also the further steps of an LPM
    /// search.
    prefetch_depth: usize,
}

/// The compiled code of a filter: functions that do the same in different styles. More may be added
/// in the background.
pub(crate) struct FilterCode {
    native: NativeCode,
    /// The prefetch function, and the bytes to prefetch from the addresses that it computes.
    prefetch: Option<(EntryPoint, usize)>,
    /// See [`PrefetchCode::lpm_searches`].
    lpm_searches: Vec<Option<LpmPrefetch>>,
    variants: Vec<Variant>,
    /// Smallest and largest prefetch depth; every function comes with each depth between them.
    prefetch_depths: (usize, usize),
    background: Option<Arc<BackgroundCell<NativeCode>>>,
    float_functions: Vec<usize>,
    /// Bytes of stack of the function that needs most, functions added in the background excepted.
    pub stack_bytes: usize,
    /// Operations per packet of the function that has most, plus those of the prefetch code; see
    /// [`Lowered::operations`].
    pub operations: u64,
}

impl FilterCode {
    /// Compiles functions. The first one must have a group size of 1: it also filters the packets
    /// that the others leave over. If `first_is_variant` is false it does nothing else.
    pub fn new(
        mut lowered: Vec<Lowered>,
        first_is_variant: bool,
        prefetch: Option<PrefetchCode>,
        isa: OwnedTargetIsa,
    ) -> Result<FilterCode, String> {
        let functions = lowered.len();
        let operations = lowered.iter().map(|l| l.operations / l.group_size as u64).max().unwrap_or(0)
            + prefetch.iter().map(|prefetch| prefetch.lowered.operations).sum::<u64>();
        let (mut prefetch_depths, mut lpm_searches, mut prefetch_bytes) = ((0, 0), Vec::new(), None);
        if let Some(PrefetchCode { lowered: function, policy, pays, bytes, lpm_searches: searches }) = prefetch {
            // Depth 1 remains a variant of its own: the steps of an LPM search may be in the cache
            // even if its root is not.
            let deepest = match searches.iter().any(Option::is_some) {
                _ if !pays => 0,
                true => 2,
                false => 1,
            };
            prefetch_depths = (if policy == PrefetchPolicy::Always { deepest } else { 0 }, deepest);
            (lpm_searches, prefetch_bytes) = (searches, Some(bytes));
            lowered.push(function);
        }
        let mut native = NativeCode::new(lowered, isa)?;
        let prefetch = prefetch_bytes.and_then(|bytes| Some((native.entries.pop()?, bytes)));
        let variants = |entry| {
            (prefetch_depths.0..=prefetch_depths.1).rev().map(move |prefetch_depth| Variant { entry, prefetch_depth })
        };
        Ok(FilterCode {
            prefetch,
            lpm_searches,
            variants: (usize::from(!first_is_variant)..functions).flat_map(variants).collect(),
            prefetch_depths,
            background: None,
            float_functions: float_runtime::addresses(),
            stack_bytes: native.stack_bytes,
            operations,
            native,
        })
    }

    /// Attaches functions that are compiled in the background; each runs with the same prefetch
    /// depths.
    pub fn with_background(mut self, background: Arc<BackgroundCell<NativeCode>>) -> FilterCode {
        self.background = Some(background);
        self
    }

    /// Returns the functions that are compiled in the background, if any are.
    pub fn background(&self) -> Option<&Arc<BackgroundCell<NativeCode>>> {
        self.background.as_ref()
    }

    /// Returns a variant by its number, and the code that has its function.
    fn variant(&self, number: usize) -> (&NativeCode, Variant) {
        let Some(number) = number.checked_sub(self.variants.len()) else {
            return (&self.native, self.variants[number]);
        };
        let native = self.background.as_ref().and_then(|background| background.get());
        let native = native.expect("variants compiled in the background exist once they are counted");
        let depths = self.prefetch_depths.1 - self.prefetch_depths.0 + 1;
        (native, Variant { entry: number / depths, prefetch_depth: self.prefetch_depths.1 - number % depths })
    }

    /// Number of variants, including those compiled in the background so far.
    pub fn variant_count(&self) -> usize {
        let background = self.background.as_ref().and_then(|background| background.get());
        let functions = background.map_or(0, |native| native.entries.len());
        self.variants.len() + functions * (self.prefetch_depths.1 - self.prefetch_depths.0 + 1)
    }

    /// Returns the table for [`BatchContext::float_functions`].
    pub fn float_functions(&self) -> *const usize {
        self.float_functions.as_ptr()
    }

    /// Whether [`FilterCode::search_addresses`] knows where searches begin.
    pub fn finds_searches(&self) -> bool {
        self.prefetch.is_some()
    }

    /// Whether every variant prefetches ([`PrefetchPolicy::Always`]).
    pub fn always_prefetches(&self) -> bool {
        self.prefetch_depths.0 > 0
    }

    /// Passes on where the first map search of each packet begins; null or any other address if it
    /// has none or that is not known.
    ///
    /// # Safety
    ///
    /// As for [`FilterCode::run`].
    pub unsafe fn search_addresses(
        &self,
        context: &BatchContext,
        packets: Range<usize>,
        mut pass_on: impl FnMut(*const u8),
    ) {
        let Some((prefetch, _)) = &self.prefetch else { return packets.for_each(|_| pass_on(std::ptr::null())) };
        let mut cursors = [PrefetchCursor::NONE; PREFETCH_GROUP];
        for start in packets.clone().step_by(PREFETCH_GROUP) {
            let end = packets.end.min(start + PREFETCH_GROUP);
            // SAFETY: passed on to the caller.
            unsafe { find_searches(prefetch, context, start, end, &mut cursors) };
            let address =
                |cursor: &PrefetchCursor| if cursor.address.is_null() { cursor.second } else { cursor.address };
            cursors[..end - start].iter().for_each(|cursor| pass_on(address(cursor)));
        }
    }

    /// Filters packets `start..end` with one of the variants.
    ///
    /// # Safety
    ///
    /// - Every pointer of the context that the program uses (see its fields; the tables are
    ///   replaced by this code's own) is valid for packets `start..end`.
    /// - The packets' descriptors lie in the arena, with their room if the filter changes lengths,
    ///   and the arena is readable [`READABLE_PAST_END`] bytes past its end.
    /// - No other code accesses the packets, or writes to anything else that the context points to.
    ///
    /// [`READABLE_PAST_END`]: portcullis_core::packet::READABLE_PAST_END
    pub unsafe fn run(&self, variant: usize, context: &BatchContext, start: usize, end: usize) {
        let (native, Variant { entry, prefetch_depth }) = self.variant(variant);
        let run = |context, start, end| {
            // SAFETY: passed on to the caller.
            unsafe { self.run_entry(&native.entries[entry], context, start, end) };
        };
        let Some((prefetch, bytes)) = self.prefetch.as_ref().filter(|_| prefetch_depth > 0) else {
            return run(context, start, end);
        };
        let groups = (end - start).div_ceil(PREFETCH_GROUP);
        let group = |number: usize| (start + number * PREFETCH_GROUP, end.min(start + (number + 1) * PREFETCH_GROUP));
        let steps = if prefetch_depth > 1 { MAX_STEPS } else { 0 };
        // Cursors of the groups in flight, and whether any search of the group is unfinished.
        let mut in_flight = [([PrefetchCursor::NONE; PREFETCH_GROUP], false); MAX_STEPS + 1];
        // Software pipeline: in each round every group in flight makes one step, and the oldest one
        // is filtered.
        for round in 0..groups + steps + 1 {
            let (start, end) = group(round + HEADER_DISTANCE);
            for packet in start..end {
                // SAFETY: passed on to the caller.
                prefetch_lines(unsafe { packet_start(context, packet) }, CACHE_LINE);
            }
            if round < groups {
                let (start, end) = group(round);
                let (cursors, unfinished) = &mut in_flight[round % (MAX_STEPS + 1)];
                // SAFETY: passed on to the caller.
                unsafe { find_searches(prefetch, context, start, end, cursors) };
                for cursor in cursors.iter() {
                    prefetch_lines(cursor.address, *bytes);
                    prefetch_lines(cursor.second, *bytes);
                }
                *unfinished = true;
            }
            for step in 1..=steps.min(round) {
                let (cursors, unfinished) = &mut in_flight[(round - step) % (MAX_STEPS + 1)];
                if round - step < groups && *unfinished {
                    // SAFETY: there is a search for each map, and the context has the maps' words.
                    *unfinished =
                        unsafe { lpm_prefetch::advance_all(&self.lpm_searches, context.maps, cursors, step == 1) };
                    cursors.iter().for_each(|cursor| prefetch_lines(cursor.address, STEP_BYTES));
                }
            }
            if let Some(number) = round.checked_sub(steps + 1) {
                let (start, end) = group(number);
                run(context, start, end);
            }
        }
    }

    /// Runs a function, and the first one on the packets that it leaves over at the end.
    ///
    /// # Safety
    ///
    /// As for [`FilterCode::run`].
    unsafe fn run_entry(&self, entry: &EntryPoint, context: &BatchContext, start: usize, end: usize) {
        let whole = end - (end - start) % entry.group_size;
        for (entry, start, end) in [(entry, start, whole), (&self.native.entries[0], whole, end)] {
            if start < end {
                let EntryPoint { run, tables, .. } = entry;
                let context = BatchContext { tables: tables.as_ptr(), ..*context };
                // SAFETY: passed on to the caller, except for the tables, which are the function's
                // own.
                unsafe { run(&context, start, end) };
            }
        }
    }
}

/// Address of the packet at a position of the call's range.
///
/// # Safety
///
/// As for [`FilterCode::run`], for that packet.
unsafe fn packet_start(context: &BatchContext, position: usize) -> *const u8 {
    // SAFETY: the caller's packets have descriptors.
    let offset = unsafe { (*context.descriptors.add(position)).offset };
    context.arena.wrapping_add(offset as usize)
}

/// Computes where the first map searches of packets `start..end`, at most a group, will read.
/// Cursors beyond these packets are cleared.
///
/// # Safety
///
/// As for [`FilterCode::run`].
unsafe fn find_searches(
    prefetch: &EntryPoint,
    context: &BatchContext,
    start: usize,
    end: usize,
    cursors: &mut [PrefetchCursor; PREFETCH_GROUP],
) {
    for cursor in cursors.iter_mut() {
        (cursor.address, cursor.second, cursor.map) = (std::ptr::null(), std::ptr::null(), 0);
    }
    assert!(end - start <= PREFETCH_GROUP, "at most one group of packets");
    let verdicts = cursors.as_mut_ptr().cast();
    let context = BatchContext { verdicts, tables: prefetch.tables.as_ptr(), ..*context };
    // SAFETY: passed on to the caller, except for the verdicts: prefetch code writes one cursor for
    // each of the call's packets from that address on, for which there is room, and writes nothing
    // else.
    unsafe { (prefetch.run)(&context, start, end) };
}

/// Prefetches the cache lines that `bytes` bytes from an address on lie in. An address that is not
/// mapped is no fault.
#[inline]
pub(crate) fn prefetch_lines(at: *const u8, bytes: usize) {
    if at.is_null() {
        return;
    }
    let into_line = at as usize % CACHE_LINE;
    for offset in (0..into_line + bytes).step_by(CACHE_LINE) {
        let at = at.wrapping_sub(into_line).wrapping_add(offset);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction faults at no address, and every x86-64 processor has it.
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

impl Drop for FilterCode {
    fn drop(&mut self) {
        if let Some(background) = &self.background {
            background.cancel();
        }
    }
}

#[cfg(test)]
mod tests;
