//! Buffers of sessions: device memory and pinned host memory.

use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use crate::driver::context::{Context, Handle};
use crate::driver::stream::Stream;
use crate::driver::{ErrorCode, check};

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`; registering has the same flags.
pub(super) const PINNED: u32 = 1 | 2;

/// Least capacity of a buffer. Up to [`LARGE`], capacities are powers of two, so that batches of
/// varying sizes soon find a buffer that is large enough.
const MIN_CAPACITY: usize = 64 << 10;

/// From this size on, capacities exceed what is needed by an eighth only: doubling hundreds of
/// megabytes would waste too much of a device. Drivers allocate in units of this size.
const LARGE: usize = 2 << 20;

/// Capacity to allocate for `bytes` bytes.
fn capacity_for(bytes: usize) -> usize {
    if bytes <= LARGE {
        return bytes.next_power_of_two().max(MIN_CAPACITY);
    }
    bytes.saturating_add(bytes / 8).checked_next_multiple_of(LARGE).unwrap_or(bytes)
}

/// Replaces the buffer if it has room for fewer than `bytes` bytes.
pub(crate) fn ensure_capacity<T: Buffer>(
    buffer: &mut Option<T>,
    bytes: usize,
    context: &Arc<Context>,
) -> Result<(), ErrorCode> {
    ensure_capacity_by(buffer, bytes, |size| T::new(context, size))
}

/// Replaces the buffer if it has room for fewer than `bytes` bytes; `allocate` makes one of a size.
pub(crate) fn ensure_capacity_by<T: Buffer>(
    buffer: &mut Option<T>,
    bytes: usize,
    allocate: impl FnOnce(usize) -> Result<T, ErrorCode>,
) -> Result<(), ErrorCode> {
    if bytes > 0 && buffer.as_ref().is_none_or(|buffer| buffer.size() < bytes) {
        // Free the old buffer first: there may not be memory for both.
        *buffer = None;
        *buffer = Some(allocate(capacity_for(bytes))?);
    }
    Ok(())
}

/// Memory of a fixed size.
pub(crate) trait Buffer: Sized {
    /// Allocates `size` bytes.
    fn new(context: &Arc<Context>, size: usize) -> Result<Self, ErrorCode>;
    fn size(&self) -> usize;
}

/// Device memory.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    address: CUdeviceptr,
    size: usize,
    context: Arc<Context>,
}

impl Buffer for DeviceMemory {
    fn new(context: &Arc<Context>, size: usize) -> Result<DeviceMemory, ErrorCode> {
        let _quiescent = context.quiesce()?;
        let mut address = 0;
        // SAFETY: the pointer outlives the call; a context is current.
        check(unsafe { (context.driver.cuMemAlloc_v2)(&mut address, size) })?;
        Ok(DeviceMemory { address, size, context: context.clone() })
    }

    fn size(&self) -> usize {
        self.size
    }
}

impl DeviceMemory {
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Queues filling the first `bytes` bytes with zeros.
    pub fn clear(&self, stream: &Stream, bytes: usize) -> Result<(), ErrorCode> {
        assert!(bytes <= self.size, "within the memory");
        let _current = self.context.enter()?;
        // SAFETY: within the memory, which the session keeps until queued commands have completed.
        check(unsafe { (self.context.driver.cuMemsetD8Async)(self.address, 0, bytes, stream.handle()) })
    }

    /// Queues a copy of `bytes` bytes from other device memory.
    pub fn copy_from(&self, from: &DeviceMemory, bytes: usize, stream: &Stream) -> Result<(), ErrorCode> {
        assert!(bytes <= self.size && bytes <= from.size, "within the memory");
        let _current = self.context.enter()?;
        // SAFETY: as above, for both.
        check(unsafe { (self.context.driver.cuMemcpyDtoDAsync_v2)(self.address, from.address, bytes, stream.handle()) })
    }

    /// Queues a copy of `bytes` bytes from host memory to byte `at` of this.
    ///
    /// # Safety
    /// `from` is the start of `bytes` bytes of host memory. Both memories exist until the copy
    /// has completed, and nobody writes to the host's meanwhile.
    pub unsafe fn upload(&self, at: usize, from: *const u8, bytes: usize, stream: &Stream) -> Result<(), ErrorCode> {
        assert!(at <= self.size && bytes <= self.size - at, "within the memory");
        let (_current, to) = (self.context.enter()?, self.address + at as CUdeviceptr);
        // SAFETY: within the memory; the rest is the caller's promise.
        check(unsafe { (self.context.driver.cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, stream.handle()) })
    }

    /// Queues a copy of `bytes` bytes from byte `at` of this to byte `to_at` of host memory.
    ///
    /// # Safety
    /// Both memories exist until the copy has completed, and nobody accesses the host's bytes
    /// before.
    pub unsafe fn download(
        &self,
        at: usize,
        to: &HostMemory,
        to_at: usize,
        bytes: usize,
        stream: &Stream,
    ) -> Result<(), ErrorCode> {
        assert!(at <= self.size && bytes <= self.size - at, "within the memory");
        assert!(to_at <= to.size && bytes <= to.size - to_at, "within the memory");
        let (_current, from) = (self.context.enter()?, self.address + at as CUdeviceptr);
        // SAFETY: within both; the rest is the caller's promise.
        check(unsafe {
            let to = to.host.as_ptr().add(to_at).cast();
            (self.context.driver.cuMemcpyDtoHAsync_v2)(to, from, bytes, stream.handle())
        })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let address = self.address;
        self.context.release_when_quiescent(move |driver| {
            // SAFETY: it was allocated here, and sessions release it only when no queued command
            // uses it.
            unsafe { (driver.cuMemFree_v2)(address) };
        });
    }
}

/// Pinned host memory, which kernels can access over the bus; or pageable memory, which the driver
/// copies through pinned memory of its own, and blocks the caller meanwhile.
#[derive(Debug)]
pub(crate) struct HostMemory {
    host: NonNull<u8>,
    /// 0 for pageable memory.
    address: CUdeviceptr,
    size: usize,
    /// Why the memory is pageable, if it is.
    pinning_refusal: Option<ErrorCode>,
    context: Arc<Context>,
}

/// Alignment of pageable memory: a page.
const PAGE: usize = 4096;

// SAFETY: plain memory, which only this value owns on the host.
unsafe impl Send for HostMemory {}
// SAFETY: shared references give addresses only; access through them is in `unsafe` functions.
unsafe impl Sync for HostMemory {}

impl Buffer for HostMemory {
    /// Allocates `size` bytes of zeros.
    fn new(context: &Arc<Context>, size: usize) -> Result<HostMemory, ErrorCode> {
        let _quiescent = context.quiesce()?;
        let driver = context.driver;
        let mut host = ptr::null_mut();
        // SAFETY: the pointer outlives the call; a context is current.
        check(unsafe { (driver.cuMemHostAlloc)(&mut host, size, PINNED) }).map_err(ErrorCode::of_pinning)?;
        let mut memory = HostMemory {
            host: NonNull::new(host.cast()).ok_or(ErrorCode::OUT_OF_MEMORY)?,
            address: 0,
            size,
            pinning_refusal: None,
            context: context.clone(),
        };
        // SAFETY: the pointer outlives the call; the memory was allocated as mapped above.
        check(unsafe { (driver.cuMemHostGetDevicePointer_v2)(&mut memory.address, host, 0) })?;
        // SAFETY: `size` bytes were allocated, and nobody else has the pointer.
        unsafe { ptr::write_bytes(memory.host.as_ptr(), 0, size) };
        Ok(memory)
    }

    fn size(&self) -> usize {
        self.size
    }
}

impl HostMemory {
    /// Allocates `size` bytes of zeros, at least one, for copies: pageable ones if no memory can be
    /// pinned.
    pub fn for_copies(context: &Arc<Context>, size: usize) -> Result<HostMemory, ErrorCode> {
        let refusal = match HostMemory::new(context, size) {
            Err(code) if code.is_unpinnable() => code,
            allocated => return allocated,
        };
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| ErrorCode::OUT_OF_MEMORY)?;
        // SAFETY: the size is not 0.
        let host = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or(ErrorCode::OUT_OF_MEMORY)?;
        Ok(HostMemory { host, address: 0, size, pinning_refusal: Some(refusal), context: context.clone() })
    }

    /// Why the memory is not pinned; `None` if it is.
    pub fn pinning_refusal(&self) -> Option<ErrorCode> {
        self.pinning_refusal
    }

    /// The address for the host.
    pub fn start(&self) -> NonNull<u8> {
        self.host
    }

    /// The address for the host, as a raw pointer.
    pub fn as_ptr(&self) -> *mut u8 {
        self.host.as_ptr()
    }

    /// The address for kernels.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Borrows `count` bytes from byte `at` on.
    ///
    /// # Safety
    /// No queued command writes to these bytes, and there is no slice of them from
    /// [`HostMemory::slice_mut`].
    pub unsafe fn slice(&self, at: usize, count: usize) -> &[u8] {
        assert!(at <= self.size && count <= self.size - at, "within the memory");
        // SAFETY: initialised memory within bounds; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr().add(at), count) }
    }

    /// Borrows `count` bytes from byte `at` on, for writing.
    ///
    /// # Safety
    /// No queued command uses these bytes, and there is no other slice of them.
    #[expect(clippy::mut_from_ref, reason = "the bytes are behind a pointer, shared with the device")]
    pub unsafe fn slice_mut(&self, at: usize, count: usize) -> &mut [u8] {
        assert!(at <= self.size && count <= self.size - at, "within the memory");
        // SAFETY: as for `slice`; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr().add(at), count) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if self.pinning_refusal.is_some() {
            let layout = Layout::from_size_align(self.size, PAGE).expect("it was allocated so");
            // SAFETY: it was allocated so in `for_copies`, and sessions release it only when no
            // queued command uses it.
            return unsafe { alloc::dealloc(self.host.as_ptr(), layout) };
        }
        let host = Handle(self.host.as_ptr());
        self.context.release_when_quiescent(move |driver| {
            // SAFETY: it was allocated here, and sessions release it only when no queued command
            // uses it.
            unsafe { (driver.cuMemFreeHost)(host.get().cast()) };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_capacities_are_powers_of_two_and_large_ones_an_eighth_more() {
        assert_eq!([0, 1, 65_536, 65_537, LARGE].map(capacity_for), [65_536, 65_536, 65_536, 131_072, LARGE]);
        assert_eq!(capacity_for(LARGE + 1), 2 * LARGE);
        let part = (256 << 20) + (8 << 20);
        assert!((part + part / 8..part + part / 8 + LARGE).contains(&capacity_for(part)));
        assert_eq!(capacity_for(usize::MAX - 5), usize::MAX - 5);
    }
}
