//! Gathering packet windows into rows, and scattering rows back to packets.
//!
//! A filter's *window* is the prefix of each packet that it may access. For devices that work on a
//! copy, the windows of a batch are copied into rows of equal stride.
//!
//! - A window is copied by two moves of the same power of two bytes, which overlap in its middle.
//!   All rows of a batch use the same width, so the only branch per packet is whether the packet is
//!   shorter than the window. With AVX2 the moves are up to 32 bytes wide.
//! - Packets too far apart for the hardware prefetcher are prefetched in software.
//! - Rows that the host will not read soon, because a device copies them, are stored with
//!   non-temporal stores. To fill whole cache lines, rows are first assembled in a tile on the
//!   stack.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;

use super::{Batch, Descriptor, PacketsMut};

#[cfg(test)]
mod tests;

/// Number of rows assembled in a tile before they are streamed: 64 rows of any number of words fill
/// whole cache lines.
const TILE_ROWS: usize = 64;

/// Maximum stride in bytes of rows that are streamed.
const MAX_STREAMED_ROW: usize = 128;

/// Minimum stride in bytes of rows that are streamed: for shorter ones it takes longer than cached
/// stores (`cargo bench --bench gather`). It does not pay for packets far apart either, where
/// fetching them dominates.
const MIN_STREAMED_ROW: usize = 64;

/// Distance of the software prefetch, in packets.
const PREFETCH_DISTANCE: usize = 16;

/// Mean distance between packets, in bytes, above which they are prefetched.
const PREFETCH_STRIDE: usize = 512;

/// Panic message for packets in device memory; sessions refuse to copy those.
const NOT_HOST_MEMORY: &str = "the packets are in device memory";

/// Distance in bytes from one row to the next: the window, rounded up to whole words.
pub fn stride(window: u32) -> usize {
    (window as usize).next_multiple_of(4)
}

/// Kind of stores that write the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StorePolicy {
    /// Ordinary stores, for rows that the host's processor reads next.
    #[default]
    Cached,
    /// Non-temporal stores, for rows that a device copies out of host memory. Ordinary stores are
    /// used where the processor lacks them or they would be slower.
    Streamed,
}

/// The windows of a range of packets of a batch, as rows.
#[derive(Debug, Clone, Copy)]
pub struct WindowRows<'a> {
    batch: &'a Batch,
    descriptors: &'a [Descriptor],
    window: u32,
}

impl<'a> WindowRows<'a> {
    /// Selects the first `window` bytes of each packet, or all of a shorter packet.
    ///
    /// # Panics
    /// If the range exceeds the batch, `window` is 0, or the packets are not in host memory.
    pub fn new(batch: &'a Batch, packets: Range<usize>, window: u32) -> WindowRows<'a> {
        assert!(window > 0, "a window has at least one byte");
        assert!(batch.span().is_on_host(), "{NOT_HOST_MEMORY}");
        WindowRows { batch, descriptors: &batch.descriptors()[packets], window }
    }

    /// Distance in bytes from one row to the next.
    pub fn stride(&self) -> usize {
        stride(self.window)
    }

    /// Size of all rows in bytes.
    pub fn size(&self) -> usize {
        self.descriptors.len() * stride(self.window)
    }

    /// Copies the windows into rows. Bytes between the end of a window or packet and the next row
    /// are left unchanged by cached stores, and undefined after streamed ones.
    ///
    /// # Panics
    /// If `to` is shorter than [`WindowRows::size`].
    pub fn write(&self, to: &mut [u8], store: StorePolicy) {
        assert!(to.len() >= self.size(), "{} bytes are too few for rows of {} bytes", to.len(), self.size());
        // SAFETY: `to` is long enough, and borrowed exclusively.
        unsafe { self.write_to(to.as_mut_ptr(), store) }
    }

    /// Like [`WindowRows::write`], to memory that may be write-only.
    ///
    /// # Safety
    /// `to` points to [`WindowRows::size`] writable bytes that nothing else accesses meanwhile.
    pub unsafe fn write_to(&self, to: *mut u8, store: StorePolicy) {
        let base: *const u8 = self.batch.span().as_ptr();
        let prefetch = needs_prefetch(self.descriptors);
        // SAFETY: the packets lie in the span and belong to this batch (`Batch::packet`); the
        // caller promises the rows' memory.
        unsafe { gather_rows(base, self.descriptors, self.window as usize, to, store, prefetch) }
    }

    /// Reference implementation of [`WindowRows::write`], for tests and benchmarks.
    ///
    /// # Panics
    /// As [`WindowRows::write`].
    pub fn write_reference(&self, to: &mut [u8]) {
        let stride = stride(self.window);
        for (row, d) in to[..self.size()].chunks_exact_mut(stride).zip(self.descriptors) {
            let length = self.window.min(d.length) as usize;
            // SAFETY: the packet lies in the span and belongs to this batch (`Batch::packet`).
            let packet =
                unsafe { std::slice::from_raw_parts(self.batch.span().as_ptr().add(d.offset as usize), length) };
            row[..length].copy_from_slice(packet);
        }
    }
}

/// Copies the first `window` bytes of each row back to its packet, at most the packet's length.
/// Rows are `stride` bytes apart.
///
/// # Panics
/// If there are fewer rows than packets.
pub fn scatter(mut packets: PacketsMut<'_>, window: u32, from: &[u8], stride: usize) {
    let descriptors = packets.descriptors();
    let (count, window) = (descriptors.len(), window as usize);
    assert!(window <= stride && from.len() >= count * stride, "{} bytes are too few for {count} rows", from.len());
    let prefetch = needs_prefetch(descriptors);
    // SAFETY: the packets lie in the span, and are borrowed for writing (`PacketsMut`); `from`
    // holds a row per packet, and does not overlap the batch.
    unsafe { scatter_rows(packets.base(), descriptors, window, from.as_ptr(), stride, prefetch) }
}

/// Whether packets are too far apart for the hardware prefetcher.
fn needs_prefetch(descriptors: &[Descriptor]) -> bool {
    let (Some(first), Some(last)) = (descriptors.first(), descriptors.last()) else { return false };
    last.offset.abs_diff(first.offset) as usize / descriptors.len() > PREFETCH_STRIDE
}

/// Gathers with the best implementation for this processor.
///
/// # Safety
/// As [`gather_plain`].
unsafe fn gather_rows(
    base: *const u8,
    all: &[Descriptor],
    window: usize,
    to: *mut u8,
    store: StorePolicy,
    prefetch: bool,
) {
    #[cfg(target_arch = "x86_64")]
    {
        let fits = (MIN_STREAMED_ROW..=MAX_STREAMED_ROW).contains(&stride(window as u32)) && !prefetch;
        let streams = store == StorePolicy::Streamed && fits && to.addr().is_multiple_of(16);
        // SAFETY: the processor has the required features; the caller promises the rest.
        unsafe {
            match (is_x86_feature_detected!("avx2"), streams) {
                (true, true) => x86::gather_streamed_avx2(base, all, window, to),
                (true, false) => x86::gather_avx2(base, all, window, to, prefetch),
                (false, true) => x86::gather_streamed(base, all, window, to),
                (false, false) => gather_plain(base, all, window, to, prefetch),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = store;
        // SAFETY: the caller's promise.
        unsafe { gather_plain(base, all, window, to, prefetch) }
    }
}

/// Scatters with the best implementation for this processor.
///
/// # Safety
/// As [`scatter_plain`].
unsafe fn scatter_rows(
    base: *mut u8,
    all: &[Descriptor],
    window: usize,
    from: *const u8,
    stride: usize,
    prefetch: bool,
) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the required features; the caller promises the rest.
        return unsafe { x86::scatter_avx2(base, all, window, from, stride, prefetch) };
    }
    // SAFETY: the caller's promise.
    unsafe { scatter_plain(base, all, window, from, stride, prefetch) }
}

/// Copies `N` bytes, unaligned.
///
/// # Safety
/// `N` bytes are readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy_exact<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: by the caller's promise; a byte array has no alignment.
    unsafe { to.cast::<[u8; N]>().write_unaligned(from.cast::<[u8; N]>().read_unaligned()) }
}

/// Copies `N` to `2 * N` bytes by two moves of `N` bytes, which may overlap.
///
/// # Safety
/// `window` is in that range, and as many bytes are readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy_overlapping<const N: usize>(from: *const u8, to: *mut u8, window: usize) {
    // SAFETY: both moves lie in the window.
    unsafe {
        copy_exact::<N>(from, to);
        copy_exact::<N>(from.add(window - N), to.add(window - N));
    }
}

/// Copies any number of bytes.
///
/// # Safety
/// `window` bytes are readable at `from` and writable at `to`, and do not overlap.
#[inline(always)]
unsafe fn copy_any(from: *const u8, to: *mut u8, window: usize) {
    // SAFETY: by the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, window) }
}

/// Prefetches the first and the last cache line of a packet's window.
#[inline(always)]
fn prefetch_window(at: *const u8, window: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint and does not fault, whatever the address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(window - 1).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, window);
}

/// Expands `$copy_all!` with the copy function for this window length, once for all packets.
macro_rules! dispatch_on_window {
    ($window:expr, $copy_all:ident) => {
        match $window {
            4..=8 => $copy_all!(copy_overlapping::<4>),
            9..=16 => $copy_all!(copy_overlapping::<8>),
            17..=32 => $copy_all!(copy_overlapping::<16>),
            33..=64 => $copy_all!(copy_overlapping::<32>),
            65..=128 => $copy_all!(copy_overlapping::<64>),
            _ => $copy_all!(copy_any),
        }
    };
}

/// Gathers windows into rows.
///
/// # Safety
/// The packets lie behind `base` and are readable; `to` has a writable row for each.
#[inline(always)]
unsafe fn gather_plain(base: *const u8, all: &[Descriptor], window: usize, to: *mut u8, prefetch: bool) {
    let stride = stride(window as u32);
    macro_rules! copy_all {
        ($move:expr) => {
            for (index, d) in all.iter().enumerate() {
                if prefetch && let Some(next) = all.get(index + PREFETCH_DISTANCE) {
                    prefetch_window(base.wrapping_add(next.offset as usize), window);
                }
                // SAFETY: the packet and its row have this many bytes.
                unsafe {
                    let (from, to) = (base.add(d.offset as usize), to.add(index * stride));
                    match d.length as usize >= window {
                        true => $move(from, to, window),
                        false => copy_any(from, to, d.length as usize),
                    }
                }
            }
        };
    }
    dispatch_on_window!(window, copy_all);
}

/// Scatters rows, `stride` bytes apart, to the packets.
///
/// # Safety
/// The packets lie behind `base` and are writable; `from` has a row of at least `window` bytes for
/// each.
#[inline(always)]
unsafe fn scatter_plain(
    base: *mut u8,
    all: &[Descriptor],
    window: usize,
    from: *const u8,
    stride: usize,
    prefetch: bool,
) {
    macro_rules! copy_all {
        ($move:expr) => {
            for (index, d) in all.iter().enumerate() {
                if prefetch && let Some(next) = all.get(index + PREFETCH_DISTANCE) {
                    prefetch_window(base.wrapping_add(next.offset as usize), window);
                }
                // SAFETY: the packet and its row have this many bytes.
                unsafe {
                    let (from, to) = (from.add(index * stride), base.add(d.offset as usize));
                    match d.length as usize >= window {
                        true => $move(from, to, window),
                        false => copy_any(from, to, d.length as usize),
                    }
                }
            }
        };
    }
    dispatch_on_window!(window, copy_all);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_sfence, _mm_stream_si128};

    use super::{Descriptor, MAX_STREAMED_ROW, TILE_ROWS, gather_plain, scatter_plain, stride};

    /// [`gather_plain`] compiled for AVX2.
    ///
    /// # Safety
    /// As [`gather_plain`]; the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn gather_avx2(base: *const u8, all: &[Descriptor], window: usize, to: *mut u8, prefetch: bool) {
        // SAFETY: the caller's promise.
        unsafe { gather_plain(base, all, window, to, prefetch) }
    }

    /// [`scatter_plain`] compiled for AVX2.
    ///
    /// # Safety
    /// As [`scatter_plain`]; the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn scatter_avx2(
        base: *mut u8,
        all: &[Descriptor],
        window: usize,
        from: *const u8,
        stride: usize,
        prefetch: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe { scatter_plain(base, all, window, from, stride, prefetch) }
    }

    /// [`gather_streamed`] compiled for AVX2.
    ///
    /// # Safety
    /// As [`gather_streamed`]; the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn gather_streamed_avx2(base: *const u8, all: &[Descriptor], window: usize, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { gather_streamed(base, all, window, to) }
    }

    /// Rows being assembled before they are streamed.
    #[repr(C, align(64))]
    struct RowTile([u8; TILE_ROWS * MAX_STREAMED_ROW]);

    /// Gathers windows into rows with non-temporal stores.
    ///
    /// # Safety
    /// As [`gather_plain`]; a row has at most [`MAX_STREAMED_ROW`] bytes, and `to` is 16-byte
    /// aligned.
    #[inline(always)]
    pub unsafe fn gather_streamed(base: *const u8, all: &[Descriptor], window: usize, to: *mut u8) {
        let stride = stride(window as u32);
        let mut tile = RowTile([0; TILE_ROWS * MAX_STREAMED_ROW]);
        let (whole, rest) = all.as_chunks::<TILE_ROWS>();
        for (number, part) in whole.iter().enumerate() {
            // SAFETY: the tile holds `TILE_ROWS` rows of up to `MAX_STREAMED_ROW` bytes. `to` has
            // room for as many, which take a multiple of 256 bytes. Both are 16-byte aligned.
            unsafe {
                gather_plain(base, part, window, tile.0.as_mut_ptr(), false);
                let to = to.add(number * TILE_ROWS * stride).cast::<__m128i>();
                for index in 0..TILE_ROWS * stride / 16 {
                    _mm_stream_si128(to.add(index), _mm_load_si128(tile.0.as_ptr().cast::<__m128i>().add(index)));
                }
            }
        }
        // SAFETY: these are the remaining rows. The fence orders the streamed stores before any
        // later store or signal to the device.
        unsafe {
            gather_plain(base, rest, window, to.add(whole.len() * TILE_ROWS * stride), false);
            _mm_sfence();
        }
    }
}
