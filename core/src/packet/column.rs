//! Columns of verdicts: an item per packet, in memory of their own or lent by a device.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// An immutable column with an item per packet of a batch.
///
/// A device can lend the memory into which it has written the items, so that they are handed out
/// without a copy. It may use that memory again once nothing else holds the owner: the column and
/// its clones are dropped.
pub struct Column<T: 'static>(Storage<T>);

#[derive(Clone)]
enum Storage<T: 'static> {
    Owned(Vec<T>),
    Lent {
        start: NonNull<T>,
        len: usize,
        #[expect(dead_code, reason = "kept for its drop")]
        owner: Arc<dyn Any + Send + Sync>,
    },
}

// SAFETY: lent items are read only, and their owner may be shared and sent to other threads.
unsafe impl<T: Send + Sync> Send for Column<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Column<T> {}

impl<T> Column<T> {
    /// Creates a column over memory that `owner` keeps.
    ///
    /// # Safety
    /// From `start` on, aligned, are `len` initialised items, which nothing writes to while the
    /// column or a clone of `owner` from it exists.
    pub unsafe fn lent(start: NonNull<T>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Column<T> {
        Column(Storage::Lent { start, len, owner })
    }
}

impl<T: Copy> Column<T> {
    /// Returns the items as a vector, copied if the memory is lent.
    pub fn into_vec(self) -> Vec<T> {
        match self.0 {
            Storage::Owned(items) => items,
            Storage::Lent { .. } => self.to_vec(),
        }
    }
}

impl<T> Deref for Column<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Storage::Owned(items) => items,
            // SAFETY: the promise of `lent`.
            Storage::Lent { start, len, .. } => unsafe { std::slice::from_raw_parts(start.as_ptr(), *len) },
        }
    }
}

impl<T> From<Vec<T>> for Column<T> {
    fn from(items: Vec<T>) -> Column<T> {
        Column(Storage::Owned(items))
    }
}

impl<T> Default for Column<T> {
    fn default() -> Column<T> {
        Vec::new().into()
    }
}

/// A clone of a lent column shares its memory.
impl<T: Clone> Clone for Column<T> {
    fn clone(&self) -> Column<T> {
        Column(self.0.clone())
    }
}

impl<T: PartialEq> PartialEq for Column<T> {
    fn eq(&self, other: &Column<T>) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Column<T> {}

impl<T: fmt::Debug> fmt::Debug for Column<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_memory_is_returned_with_the_last_clone() {
        let memory = Arc::new([1_u32, 2, 3]);
        let start = NonNull::from(&memory[1]);
        // SAFETY: two items of the array, which is never written to.
        let column = unsafe { Column::lent(start, 2, memory.clone()) };
        let clone = column.clone();
        assert_eq!((&*column, Arc::strong_count(&memory)), (&[2, 3][..], 3));
        assert_eq!(column, Column::from(vec![2, 3]));
        drop(column);
        assert_eq!((clone.into_vec(), Arc::strong_count(&memory)), (vec![2, 3], 1));
    }
}
