//! Big aligned memory, in huge pages where the system has them.
//!
//! A forward pass streams all weights and the KV cache once per step; in 4 KiB pages the address
//! translation alone costs a quarter to a half of the read bandwidth.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Size and alignment of a huge page on x86-64 and most arm64 systems.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed bytes aligned to 2 MiB, from the system and in huge pages if it grants them. A page
/// takes memory only once it is touched.
///
/// [`Arena::split_to`] cuts an arena in two that share one mapping, as many small matrices must
/// to lie in the same huge page.
pub struct Arena {
    /// Keeps the bytes mapped.
    _mapping: Arc<Mapping>,
    start: NonNull<u8>,
    n_bytes: usize,
}

// SAFETY: an arena owns its bytes alone (parts of a mapping are disjoint), as a `Box<[u8]>` does.
unsafe impl Send for Arena {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Arena {}

/// The system refused memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot allocate {n_bytes} bytes of memory ({source}): free some, or ask for less")]
pub struct AllocError {
    n_bytes: usize,
    source: io::Error,
}

impl Arena {
    /// An arena of `n_bytes` zeros.
    ///
    /// # Errors
    /// If the system refuses the address space.
    pub fn zeroed(n_bytes: usize) -> Result<Arena, AllocError> {
        let mapping = Mapping::new(n_bytes)?;
        let start = mapping.start;
        Ok(Arena { _mapping: Arc::new(mapping), start, n_bytes })
    }

    /// Cuts off the first `n_bytes` as an arena of their own; the rest stays here.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_to(&mut self, n_bytes: usize) -> Arena {
        assert!(n_bytes <= self.n_bytes, "an arena of {} bytes has no {n_bytes}", self.n_bytes);
        let head = Arena { _mapping: Arc::clone(&self._mapping), start: self.start, n_bytes };
        // SAFETY: inside the mapping or one past its end, by the assert.
        self.start = unsafe { self.start.add(n_bytes) };
        self.n_bytes -= n_bytes;
        head
    }

    /// Number of bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped, readable and zeroed at least; borrowed as `self` is.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.n_bytes) }
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and no other arena has these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.n_bytes) }
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} bytes)", self.n_bytes)
    }
}

/// Pages from the system, given back on drop.
struct Mapping {
    start: NonNull<u8>,
    n_bytes: usize,
}

// SAFETY: an address range; nothing in it is tied to a thread, and only arenas look inside.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(n_bytes: usize) -> Result<Mapping, AllocError> {
        let refused = |source| AllocError { n_bytes, source };
        let too_big = || refused(io::ErrorKind::OutOfMemory.into());
        // Map one huge page more than needed, keep the aligned middle:
        //   raw          start = aligned up                           raw + raw_bytes
        //    |-- head ----|------------- n_bytes ------------|--- tail ---|
        #[cfg(target_os = "linux")]
        let huge = n_bytes >= HUGE_PAGE; // A smaller one would waste most of a huge page.
        let n_bytes = n_bytes.max(1).checked_next_multiple_of(HUGE_PAGE).ok_or_else(too_big)?;
        let raw_bytes = n_bytes.checked_add(HUGE_PAGE).ok_or_else(too_big)?;
        // SAFETY: a new private anonymous mapping touches no existing memory.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                raw_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(refused(io::Error::last_os_error()));
        }
        let raw = raw.cast::<u8>();
        let head = raw.align_offset(HUGE_PAGE);
        // SAFETY: `head` < HUGE_PAGE, so start and tail lie in the mapping, and head and tail are
        // page-aligned pieces that nothing points into. The advice changes no contents.
        unsafe {
            let start = raw.add(head);
            if head > 0 {
                libc::munmap(raw.cast(), head);
            }
            libc::munmap(start.add(n_bytes).cast(), HUGE_PAGE - head);
            #[cfg(target_os = "linux")]
            if huge {
                libc::madvise(start.cast(), n_bytes, libc::MADV_HUGEPAGE);
            }
            Ok(Mapping { start: NonNull::new_unchecked(start), n_bytes })
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` kept; no arena of it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.n_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_zeroed_aligned_and_writable() {
        for n_bytes in [0, 1, 4096, HUGE_PAGE, HUGE_PAGE + 1] {
            let mut arena = Arena::zeroed(n_bytes).unwrap();
            assert_eq!(arena.as_slice().len(), n_bytes);
            assert!(arena.as_slice().as_ptr().addr().is_multiple_of(HUGE_PAGE));
            assert!(arena.as_slice().iter().all(|&byte| byte == 0));
            arena.as_mut_slice().fill(7);
            assert!(arena.as_slice().iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn parts_are_disjoint_and_outlive_the_whole() {
        let mut rest = Arena::zeroed(300).unwrap();
        let mut head = rest.split_to(100);
        let mut middle = rest.split_to(200);
        assert_eq!((head.n_bytes(), middle.n_bytes(), rest.n_bytes()), (100, 200, 0));
        drop(rest);
        head.as_mut_slice().fill(1);
        middle.as_mut_slice().fill(2);
        assert!(head.as_slice().iter().all(|&byte| byte == 1));
        drop(head);
        assert!(middle.as_slice().iter().all(|&byte| byte == 2));
    }

    #[test]
    fn memory_that_nobody_has_is_an_error() {
        for n_bytes in [usize::MAX, usize::MAX - HUGE_PAGE, 1 << 60] {
            let error = Arena::zeroed(n_bytes).unwrap_err().to_string();
            assert!(error.contains("cannot allocate"), "{error}");
        }
    }
}
