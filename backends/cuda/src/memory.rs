//! Memory that host and device both have to do with: for sources whose packets are in a GPU's memory, or are to be
//! reached by one, [`Gpu`] with what it gives.
//!
//! Three kinds: the device's own; pinned host memory, which the device copies from and to by itself
//! and which kernels reach over the bus (`cuMemHostAlloc`); and memory of a source that is pinned where
//! it lies (`cuMemHostRegister`). Nothing is managed memory: what moves, and when, is said here.
//!
//! A GPU's memory is of the device's primary context, in which all sessions run: what is allocated here they reach as it
//! is, once a [`Span`] says where ([`DeviceBuffer::view`]). Memory comes and goes beside kernels that stay at the device:
//! they leave for as long as that takes.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::CUdeviceptr;
use portcullis_core::packet::Span;

use crate::api::{Code, check};
use crate::context::{Context, Handle};
use crate::device::Stream;

mod gdrcopy;
mod gpu;

pub use gpu::{CpuMapping, DeviceBuffer, EVERY_DEVICE, Gpu, GpuDirect, HostRegistration};

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`; the flags of registering are the same.
const PINNED: u32 = 1 | 2;

/// Buffers grow to a power of two from this size on, so that batches of changing sizes soon find
/// one that is large enough;
const SMALLEST: usize = 64 << 10;

/// and by an eighth from this one on, which is also what drivers hand memory out in: twice as much is
/// much of a device where it is hundreds of megabytes.
const LARGE: usize = 2 << 20;

/// The size to take where `bytes` are needed.
fn grown(bytes: usize) -> usize {
    if bytes <= LARGE {
        return bytes.next_power_of_two().max(SMALLEST);
    }
    bytes.saturating_add(bytes / 8).checked_next_multiple_of(LARGE).unwrap_or(bytes)
}

/// A buffer that is there and has room for `bytes` bytes.
pub(crate) fn reserve<T: Buffer>(kept: &mut Option<T>, bytes: usize, context: &Arc<Context>) -> Result<(), Code> {
    if kept.as_ref().is_none_or(|kept| kept.size() < bytes) {
        // The old one goes first: there may not be memory for both.
        *kept = None;
        *kept = Some(T::new(context, grown(bytes))?);
    }
    Ok(())
}

/// Memory of a size.
pub(crate) trait Buffer: Sized {
    /// As many bytes.
    fn new(context: &Arc<Context>, size: usize) -> Result<Self, Code>;
    fn size(&self) -> usize;
}

/// Memory of the device's.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    address: CUdeviceptr,
    size: usize,
    context: Arc<Context>,
}

impl Buffer for DeviceMemory {
    fn new(context: &Arc<Context>, size: usize) -> Result<DeviceMemory, Code> {
        let _quiet = context.quiet()?;
        let mut address = 0;
        // SAFETY: room for an address; a context is current.
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
    pub fn clear(&self, stream: &Stream, bytes: usize) -> Result<(), Code> {
        assert!(bytes <= self.size, "within the memory");
        let _here = self.context.enter()?;
        // SAFETY: within the memory, which stays as long as the device may use it: that is the session's affair.
        check(unsafe { (self.context.driver.cuMemsetD8Async)(self.address, 0, bytes, stream.handle()) })
    }

    /// Queues a copy of `bytes` bytes from other memory of the device's.
    pub fn copy_from(&self, from: &DeviceMemory, bytes: usize, stream: &Stream) -> Result<(), Code> {
        assert!(bytes <= self.size && bytes <= from.size, "within the memory");
        let _here = self.context.enter()?;
        // SAFETY: as above, both.
        check(unsafe { (self.context.driver.cuMemcpyDtoDAsync_v2)(self.address, from.address, bytes, stream.handle()) })
    }

    /// Queues a copy of host memory to byte `at` of this.
    ///
    /// # Safety
    /// `from` is the start of as many bytes of pinned memory, which stays until the copy has ended, as
    /// does this, and nobody writes to it meanwhile.
    pub unsafe fn bring_in(&self, at: usize, from: *const u8, bytes: usize, stream: &Stream) -> Result<(), Code> {
        assert!(at <= self.size && bytes <= self.size - at, "within the memory");
        let (_here, to) = (self.context.enter()?, self.address + at as CUdeviceptr);
        // SAFETY: within the memory, and the rest is the caller's promise.
        check(unsafe { (self.context.driver.cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, stream.handle()) })
    }

    /// Queues a copy of bytes from `at` on to byte `to_at` of pinned memory.
    ///
    /// # Safety
    /// Both stay until the copy has ended, and nobody looks at the pinned bytes before.
    pub unsafe fn bring_back(
        &self,
        at: usize,
        to: &HostMemory,
        to_at: usize,
        bytes: usize,
        stream: &Stream,
    ) -> Result<(), Code> {
        assert!(at <= self.size && bytes <= self.size - at, "within the memory");
        assert!(to_at <= to.size && bytes <= to.size - to_at, "within the memory");
        let (_here, from) = (self.context.enter()?, self.address + at as CUdeviceptr);
        // SAFETY: within both, and the rest is the caller's promise.
        check(unsafe {
            let to = to.host.as_ptr().add(to_at).cast();
            (self.context.driver.cuMemcpyDtoHAsync_v2)(to, from, bytes, stream.handle())
        })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let address = self.address;
        self.context.release(move |driver| {
            // SAFETY: it was allocated here, and no command that is queued uses it: sessions see to that.
            unsafe { (driver.cuMemFree_v2)(address) };
        });
    }
}

/// Pinned host memory, which kernels reach as well.
#[derive(Debug)]
pub(crate) struct HostMemory {
    host: NonNull<u8>,
    address: CUdeviceptr,
    size: usize,
    context: Arc<Context>,
}

// SAFETY: plain memory, of which this is the only owner on the host's side.
unsafe impl Send for HostMemory {}
// SAFETY: shared, it gives addresses only; reading and writing through them is in unsafe blocks.
unsafe impl Sync for HostMemory {}

impl Buffer for HostMemory {
    /// The bytes are zeros.
    fn new(context: &Arc<Context>, size: usize) -> Result<HostMemory, Code> {
        let _quiet = context.quiet()?;
        let driver = context.driver;
        let mut host = ptr::null_mut();
        // SAFETY: room for a pointer; a context is current.
        check(unsafe { (driver.cuMemHostAlloc)(&mut host, size, PINNED) })?;
        let mut memory = HostMemory {
            host: NonNull::new(host.cast()).ok_or(Code::OUT_OF_MEMORY)?,
            address: 0,
            size,
            context: context.clone(),
        };
        // SAFETY: room for an address; the memory was allocated above as one that is mapped.
        check(unsafe { (driver.cuMemHostGetDevicePointer_v2)(&mut memory.address, host, 0) })?;
        // SAFETY: as many bytes were allocated; nobody else knows of them.
        unsafe { ptr::write_bytes(memory.host.as_ptr(), 0, size) };
        Ok(memory)
    }

    fn size(&self) -> usize {
        self.size
    }
}

impl HostMemory {
    /// Where the host finds it.
    pub fn host(&self) -> *mut u8 {
        self.host.as_ptr()
    }

    /// Where kernels find it.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// A part of it.
    ///
    /// # Safety
    /// No command that is queued writes to these bytes, and nobody has them as [`HostMemory::bytes_mut`].
    pub unsafe fn bytes(&self, at: usize, count: usize) -> &[u8] {
        assert!(at <= self.size && count <= self.size - at, "within the memory");
        // SAFETY: initialised memory, within its bounds; nobody writes there by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr().add(at), count) }
    }

    /// A part of it, to be written.
    ///
    /// # Safety
    /// No command that is queued uses these bytes, and nobody else looks at them.
    #[expect(clippy::mut_from_ref, reason = "the bytes are behind a pointer, shared with the device")]
    pub unsafe fn bytes_mut(&self, at: usize, count: usize) -> &mut [u8] {
        assert!(at <= self.size && count <= self.size - at, "within the memory");
        // SAFETY: as for `bytes`, and nobody else looks by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr().add(at), count) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let host = Handle(self.host.as_ptr());
        self.context.release(move |driver| {
            // SAFETY: it was allocated here, and no command that is queued uses it: sessions see to that.
            unsafe { (driver.cuMemFreeHost)(host.get().cast()) };
        });
    }
}

/// How a device finds memory that it need not be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    /// The first byte's address.
    pub address: CUdeviceptr,
    /// It is the device's own, or nobody else's: what is there is filtered there. Else it is the host's, over the bus.
    pub is_own: bool,
}

impl View {
    /// That which the device of this id has of a span.
    pub fn of(span: &Span, device: &str) -> Option<View> {
        let view = span.device_view()?;
        let is_own = view.device == device;
        let known = is_own || view.device == EVERY_DEVICE;
        known.then(|| View { address: view.address, is_own: is_own || !span.is_on_host() })
    }
}

/// Memory of a source's, pinned where it lies. The driver pins memory for the whole process and once, so sessions share
/// it, and the last one that has it gives it back.
#[derive(Debug)]
pub(crate) struct Registration {
    span: Arc<Span>,
    address: u64,
    context: Arc<Context>,
}

/// What is pinned, by spans' ids.
static PINNED_SPANS: Mutex<BTreeMap<u64, Weak<Registration>>> = Mutex::new(BTreeMap::new());

impl Registration {
    /// The span's, another session's where one has it.
    ///
    /// # Errors
    /// The driver refuses: there is more than may be pinned. Or those of [`Context::quiet`].
    fn of(context: &Arc<Context>, span: &Arc<Span>) -> Result<Arc<Registration>, Code> {
        let pinned = || PINNED_SPANS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = pinned().get(&span.id()).and_then(Weak::upgrade);
        if let Some(registration) = known {
            return Ok(registration);
        }
        // Before the lock, which is every device's.
        let _quiet = context.quiet()?;
        let mut pinned = pinned();
        if let Some(registration) = pinned.get(&span.id()).and_then(Weak::upgrade) {
            return Ok(registration);
        }
        let registration = Arc::new(Registration::new(context, span)?);
        pinned.retain(|_, registration| registration.strong_count() > 0);
        pinned.insert(span.id(), Arc::downgrade(&registration));
        Ok(registration)
    }

    /// In a quiet time.
    fn new(context: &Arc<Context>, span: &Arc<Span>) -> Result<Registration, Code> {
        let start: *mut c_void = span.as_ptr().cast();
        // SAFETY: the span is an allocation of this size, which stays as long as the registration does.
        check(unsafe { (context.driver.cuMemHostRegister_v2)(start, span.allocated(), PINNED) })?;
        let mut registration = Registration { span: span.clone(), address: 0, context: context.clone() };
        // SAFETY: room for an address; the memory was registered above as memory that is mapped.
        check(unsafe { (context.driver.cuMemHostGetDevicePointer_v2)(&mut registration.address, start, 0) })?;
        Ok(registration)
    }

    /// Where devices find its first byte: all of them there, as they have one space of addresses with the host (the driver
    /// API's "Unified Addressing", which 64-bit systems have).
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let span = self.span.clone();
        self.context.release(move |driver| {
            // SAFETY: it was registered here. A batch that is in flight keeps the registration, so no command that is
            // queued uses it.
            match unsafe { (driver.cuMemHostUnregister)(span.as_ptr().cast()) } {
                0 => _ = RELEASED.fetch_add(1, Ordering::Relaxed),
                // It is pinned still, in a context that has failed.
                _ => std::mem::forget(span),
            }
        });
    }
}

/// How many registrations were given back: what was refused for want of room may find some.
static RELEASED: AtomicU64 = AtomicU64::new(0);

/// The spans that are registered, those used last at the back.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    known: VecDeque<Known>,
}

/// What became of asking for a span.
#[derive(Debug)]
struct Known {
    id: u64,
    /// Or, as what [`RELEASED`] was then, when the driver refused.
    registration: Result<Arc<Registration>, u64>,
}

impl Registrations {
    /// Pinned memory is a scarce thing.
    const MOST: usize = 64;

    /// Spans below this size are copied unless the caller announced them: pinning costs as much.
    pub const WORTH_IT: usize = 256 << 10;

    /// A span's registration, made now if it is new and `make` says so; `None` also where the driver refuses.
    pub fn get(&mut self, context: &Arc<Context>, span: &Arc<Span>, make: bool) -> Option<Arc<Registration>> {
        if let Some(at) = self.known.iter().position(|known| known.id == span.id()) {
            let known = self.known.remove(at).expect("found there");
            let stands = known.registration.as_ref().map_or_else(|&then| then == released(), |_| true);
            if stands {
                let registration = known.registration.as_ref().ok().cloned();
                self.known.push_back(known);
                return registration;
            }
        }
        if !make {
            return None;
        }
        // A span that only its registration keeps alive will not be seen again.
        self.known.retain(|Known { registration, .. }| {
            registration.as_ref().is_ok_and(|kept| Arc::strong_count(kept) > 1 || Arc::strong_count(&kept.span) > 1)
                || registration.as_ref().is_err_and(|&then| then == released())
        });
        if self.known.len() >= Self::MOST {
            self.known.pop_front();
        }
        // Before asking: what is given back meanwhile counts.
        let now = released();
        let registration = Registration::of(context, span);
        // That the device was busy is no reason not to ask again.
        if !matches!(registration, Err(Code(..0))) {
            let known = registration.as_ref().map(Arc::clone).map_err(|_| now);
            self.known.push_back(Known { id: span.id(), registration: known });
        }
        registration.ok()
    }
}

fn released() -> u64 {
    RELEASED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_room_to_spare_and_not_twice_what_is_needed() {
        assert_eq!([0, 1, 65_536, 65_537, LARGE].map(grown), [65_536, 65_536, 65_536, 131_072, LARGE]);
        assert_eq!(grown(LARGE + 1), 2 * LARGE);
        let part = (256 << 20) + (8 << 20);
        assert!((part + part / 8..part + part / 8 + LARGE).contains(&grown(part)));
        assert_eq!(grown(usize::MAX - 5), usize::MAX - 5);
    }
}
