//! Slices whose parts are written by different threads.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that hands out parts of itself; whoever takes one sees to it that no other
/// part in use overlaps.
pub(crate) struct Split<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: like `&mut [T]` it only moves T's between threads; `Split::part` forbids overlap.
unsafe impl<T: Send> Sync for Split<'_, T> {}

impl<'a, T> Split<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Split<'a, T> {
        Split { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where the slice starts, for kernels whose parts are no ranges.
    pub(crate) fn as_mut_ptr(&self) -> *mut T {
        self.start
    }

    /// The values in `range`.
    ///
    /// # Safety
    /// No part in use at the same time overlaps `range`.
    ///
    /// # Panics
    /// If the range exceeds the slice.
    #[allow(clippy::mut_from_ref)] // The point of the type.
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds by the assert, unaliased by the caller's promise and our borrow.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
