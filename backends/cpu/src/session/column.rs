//! Memory of which several threads write parts at the same time.

use std::cell::UnsafeCell;
use std::ops::Range;

/// Cache line in bytes.
const LINE_BYTES: usize = 64;

/// A column of values from a cache line on.
pub(super) struct Column<T> {
    cells: Vec<UnsafeCell<T>>,
    /// Index of the first cell in use.
    start: usize,
}

// SAFETY: the methods' callers synchronize accesses to the values, which may be shared and sent.
unsafe impl<T: Send + Sync> Sync for Column<T> {}

impl<T: Copy + Default> Column<T> {
    pub fn new() -> Column<T> {
        Column { cells: Vec::new(), start: 0 }
    }

    /// Makes room for at least `length` values. What the column holds may be lost.
    pub fn reserve(&mut self, length: usize) {
        if self.cells.len() < length + LINE_BYTES {
            self.cells = (0..length + LINE_BYTES).map(|_| UnsafeCell::new(T::default())).collect();
            self.start = self.cells.as_ptr().align_offset(LINE_BYTES);
        }
    }

    /// Address of the value at an index, valid for all values behind it too.
    pub fn as_mut_ptr(&self, index: usize) -> *mut T {
        UnsafeCell::raw_get(self.cells[self.start + index..].as_ptr())
    }

    /// # Safety
    ///
    /// No thread writes these values while the slice exists.
    pub unsafe fn slice(&self, range: Range<usize>) -> &[T] {
        let cells = &self.cells[self.start..][range];
        // SAFETY: cells have the layout of their values, and the caller rules out writes.
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) }
    }

    /// # Safety
    ///
    /// No other code accesses these values while the slice exists.
    #[expect(clippy::mut_from_ref, reason = "the caller guarantees exclusive access")]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [T] {
        let cells = &self.cells[self.start..][range];
        // SAFETY: as above, and the caller rules out other accesses.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(cells.as_ptr()), cells.len()) }
    }
}
