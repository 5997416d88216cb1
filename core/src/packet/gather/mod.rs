//! The windows of packets, side by side: what a filter may look at of each, in rows of one length, for devices that get a
//! copy.
//!
//! A row is copied by two moves of a power of two bytes, which overlap in its middle: which power is the same for all rows of a
//! batch, so nothing depends on a packet but whether it is long enough. Moves are as wide as the processor has registers for.
//! Packets in slots, which lie further apart than hardware fetches ahead, are fetched some packets ahead. Where nobody on
//! the host will look at the rows soon, as a device copies them from there, they are stored past the caches: whole
//! lines, out of a piece of memory that the rows are put together in.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;

use super::{Batch, Descriptor};

#[cfg(test)]
mod tests;

/// Packets whose rows are put together before they are stored past the caches: any number of words in a row makes whole lines
/// of so many.
const TILE: usize = 64;

/// Bytes of a row, at most, to be stored past the caches.
const STREAMED: usize = 128;

/// Bytes of a row, at least, for that to take less time: `cargo bench --bench gather`. Nor does it of packets far apart, where the
/// time goes into fetching them.
const WORTH_IT: usize = 64;

/// Packets that are fetched ahead.
const AHEAD: usize = 16;

/// Packets further apart than this on average are fetched ahead.
const FAR: usize = 512;

/// Why the host touches no packet: sessions refuse to copy those.
const ELSEWHERE: &str = "the packets are in a device's memory";

/// Bytes from one row's start to the next one's: the window, in whole words.
pub fn stride(window: u32) -> usize {
    (window as usize).next_multiple_of(4)
}

/// How rows are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StorePolicy {
    /// Into the caches: for rows that the host's processor reads next.
    #[default]
    Cached,
    /// Past them, where the processor has a way to and that takes less time: for rows that a device copies out of the host's memory.
    Streamed,
}

/// The windows of some packets of a batch.
#[derive(Debug, Clone, Copy)]
pub struct WindowRows<'a> {
    batch: &'a Batch,
    descriptors: &'a [Descriptor],
    window: u32,
}

impl<'a> WindowRows<'a> {
    /// The first `window` bytes of each packet, at least one, or all of it where it is shorter.
    ///
    /// # Panics
    /// Where there are no such packets, the window has no byte, or the packets are not in the host's memory.
    pub fn new(batch: &'a Batch, packets: Range<usize>, window: u32) -> WindowRows<'a> {
        assert!(window > 0, "nothing is looked at");
        assert!(batch.span().is_on_host(), "{ELSEWHERE}");
        WindowRows { batch, descriptors: &batch.descriptors()[packets], window }
    }

    /// Bytes that the rows have in all.
    pub fn size(&self) -> usize {
        self.descriptors.len() * stride(self.window)
    }

    /// Copies the windows into rows. What is between the end of a window or packet and the next row stays as it is, or is
    /// anything where it is streamed.
    ///
    /// # Panics
    /// Where there are fewer bytes than [`WindowRows::size`].
    pub fn write(&self, to: &mut [u8], store: StorePolicy) {
        assert!(to.len() >= self.size(), "room for {} of {} bytes", to.len(), self.size());
        // SAFETY: there is room, which nobody else has meanwhile.
        unsafe { self.write_to(to.as_mut_ptr(), store) }
    }

    /// The same to memory that need not be readable.
    ///
    /// # Safety
    /// There is room for [`WindowRows::size`] bytes, which nobody else uses meanwhile.
    pub unsafe fn write_to(&self, to: *mut u8, store: StorePolicy) {
        let base: *const u8 = self.batch.span().as_ptr();
        let far = is_far(self.descriptors);
        // SAFETY: packets lie in the span, and are the batch's alone (`Batch::packet`); room is the caller's promise.
        unsafe { best(base, self.descriptors, self.window as usize, to, store, far) }
    }

    /// The same without anything that depends on the processor: what tests and benches compare with.
    ///
    /// # Panics
    /// As [`WindowRows::write`].
    pub fn write_reference(&self, to: &mut [u8]) {
        let stride = stride(self.window);
        for (row, d) in to[..self.size()].chunks_exact_mut(stride).zip(self.descriptors) {
            let length = self.window.min(d.length) as usize;
            // SAFETY: the packet lies in the span, and is the batch's alone (`Batch::packet`).
            let packet =
                unsafe { std::slice::from_raw_parts(self.batch.span().as_ptr().add(d.offset as usize), length) };
            row[..length].copy_from_slice(packet);
        }
    }
}

/// Copies the first `window` bytes of each row, which begin `stride` bytes apart, back to the packets, or fewer to those that are
/// shorter.
///
/// # Panics
/// Where there are no such packets, fewer rows, or the packets are not in the host's memory.
pub fn scatter(batch: &mut Batch, packets: Range<usize>, window: u32, from: &[u8], stride: usize) {
    let count = packets.len();
    let descriptors = &batch.descriptors()[packets];
    let window = window as usize;
    assert!(window <= stride && from.len() >= count * stride, "{count} rows in {} bytes", from.len());
    assert!(batch.span().is_on_host(), "{ELSEWHERE}");
    let base = batch.span().as_ptr();
    let far = is_far(descriptors);
    // SAFETY: packets lie in the span, and are the batch's alone, which is borrowed for writing (`Batch::packet_mut`); the rows
    // were counted, and are no part of it.
    unsafe { best_back(base, descriptors, window, from.as_ptr(), stride, far) }
}

/// Whether packets lie so far apart that they are better fetched ahead.
fn is_far(descriptors: &[Descriptor]) -> bool {
    let (Some(first), Some(last)) = (descriptors.first(), descriptors.last()) else { return false };
    last.offset.abs_diff(first.offset) as usize / descriptors.len() > FAR
}

/// # Safety
/// As [`rows`]'s.
unsafe fn best(base: *const u8, all: &[Descriptor], window: usize, to: *mut u8, store: StorePolicy, far: bool) {
    #[cfg(target_arch = "x86_64")]
    {
        let fits = (WORTH_IT..=STREAMED).contains(&stride(window as u32)) && !far;
        let streams = store == StorePolicy::Streamed && fits && to.addr().is_multiple_of(16);
        // SAFETY: the processor has what the function uses; the rest is the caller's promise.
        unsafe {
            match (is_x86_feature_detected!("avx2"), streams) {
                (true, true) => x86::streamed_avx2(base, all, window, to),
                (true, false) => x86::rows_avx2(base, all, window, to, far),
                (false, true) => x86::streamed(base, all, window, to),
                (false, false) => rows(base, all, window, to, far),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = store;
        // SAFETY: the caller's promise.
        unsafe { rows(base, all, window, to, far) }
    }
}

/// # Safety
/// As [`back`]'s.
unsafe fn best_back(base: *mut u8, all: &[Descriptor], window: usize, from: *const u8, stride: usize, far: bool) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function uses; the rest is the caller's promise.
        return unsafe { x86::back_avx2(base, all, window, from, stride, far) };
    }
    // SAFETY: the caller's promise.
    unsafe { back(base, all, window, from, stride, far) }
}

/// Moves `N` bytes, from anywhere to anywhere.
///
/// # Safety
/// They may be read, and written.
#[inline(always)]
unsafe fn one<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: by the caller's promise; an array of bytes may begin anywhere.
    unsafe { to.cast::<[u8; N]>().write_unaligned(from.cast::<[u8; N]>().read_unaligned()) }
}

/// Moves `N` to `2 * N` bytes by two moves of `N`.
///
/// # Safety
/// `window` is in that range, and so many bytes may be read, and written.
#[inline(always)]
unsafe fn two<const N: usize>(from: *const u8, to: *mut u8, window: usize) {
    // SAFETY: both lie in the window.
    unsafe {
        one::<N>(from, to);
        one::<N>(from.add(window - N), to.add(window - N));
    }
}

/// Any number of bytes.
///
/// # Safety
/// So many may be read, and written, and are not the same.
#[inline(always)]
unsafe fn any(from: *const u8, to: *mut u8, window: usize) {
    // SAFETY: by the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, window) }
}

/// Asks for the lines of a packet's window to be brought near.
#[inline(always)]
fn fetch(at: *const u8, window: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which reads nothing, whatever the address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(window - 1).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, window);
}

/// Calls `go!` with the way to move a window of this length: the same for all packets.
macro_rules! by_window {
    ($window:expr, $go:ident) => {
        match $window {
            4..=8 => $go!(two::<4>),
            9..=16 => $go!(two::<8>),
            17..=32 => $go!(two::<16>),
            33..=64 => $go!(two::<32>),
            65..=128 => $go!(two::<64>),
            _ => $go!(any),
        }
    };
}

/// Copies windows into rows.
///
/// # Safety
/// The packets lie behind `base`, and may be read; there is room for a row of each.
#[inline(always)]
unsafe fn rows(base: *const u8, all: &[Descriptor], window: usize, to: *mut u8, far: bool) {
    let stride = stride(window as u32);
    macro_rules! go {
        ($move:expr) => {
            for (index, d) in all.iter().enumerate() {
                if far && let Some(next) = all.get(index + AHEAD) {
                    fetch(base.wrapping_add(next.offset as usize), window);
                }
                // SAFETY: the packet has so many bytes, and its row as well.
                unsafe {
                    let (from, to) = (base.add(d.offset as usize), to.add(index * stride));
                    match d.length as usize >= window {
                        true => $move(from, to, window),
                        false => any(from, to, d.length as usize),
                    }
                }
            }
        };
    }
    by_window!(window, go);
}

/// Copies rows, `stride` bytes apart, back to the packets.
///
/// # Safety
/// The packets lie behind `base`, and may be written; there is a row for each, of at least `window` bytes.
#[inline(always)]
unsafe fn back(base: *mut u8, all: &[Descriptor], window: usize, from: *const u8, stride: usize, far: bool) {
    macro_rules! go {
        ($move:expr) => {
            for (index, d) in all.iter().enumerate() {
                if far && let Some(next) = all.get(index + AHEAD) {
                    fetch(base.wrapping_add(next.offset as usize), window);
                }
                // SAFETY: the packet has so many bytes, and its row as well.
                unsafe {
                    let (from, to) = (from.add(index * stride), base.add(d.offset as usize));
                    match d.length as usize >= window {
                        true => $move(from, to, window),
                        false => any(from, to, d.length as usize),
                    }
                }
            }
        };
    }
    by_window!(window, go);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_sfence, _mm_stream_si128};

    use super::{Descriptor, STREAMED, TILE, back, rows, stride};

    /// # Safety
    /// As [`rows`]'s; the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn rows_avx2(base: *const u8, all: &[Descriptor], window: usize, to: *mut u8, far: bool) {
        // SAFETY: the caller's promise.
        unsafe { rows(base, all, window, to, far) }
    }

    /// # Safety
    /// As [`back`]'s; the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn back_avx2(
        base: *mut u8,
        all: &[Descriptor],
        window: usize,
        from: *const u8,
        stride: usize,
        far: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe { back(base, all, window, from, stride, far) }
    }

    /// # Safety
    /// As [`streamed`]'s; the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn streamed_avx2(base: *const u8, all: &[Descriptor], window: usize, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { streamed(base, all, window, to) }
    }

    /// Rows of a tile, put together.
    #[repr(C, align(64))]
    struct Tile([u8; TILE * STREAMED]);

    /// Copies windows into rows, past the caches.
    ///
    /// # Safety
    /// As [`rows`]'s; a row has at most [`STREAMED`] bytes, and the first begins at a multiple of 16.
    #[inline(always)]
    pub unsafe fn streamed(base: *const u8, all: &[Descriptor], window: usize, to: *mut u8) {
        let stride = stride(window as u32);
        let mut tile = Tile([0; TILE * STREAMED]);
        let (whole, rest) = all.as_chunks::<TILE>();
        for (number, part) in whole.iter().enumerate() {
            // SAFETY: the tile has room for so many rows of so many bytes, and there is room for them, which are a multiple
            // of 256 bytes, where they are stored; both begin at multiples of 16.
            unsafe {
                rows(base, part, window, tile.0.as_mut_ptr(), false);
                let to = to.add(number * TILE * stride).cast::<__m128i>();
                for index in 0..TILE * stride / 16 {
                    _mm_stream_si128(to.add(index), _mm_load_si128(tile.0.as_ptr().cast::<__m128i>().add(index)));
                }
            }
        }
        // SAFETY: the rest of the rows; what was streamed is in memory before anything is stored or told after this.
        unsafe {
            rows(base, rest, window, to.add(whole.len() * TILE * stride), false);
            _mm_sfence();
        }
    }
}
