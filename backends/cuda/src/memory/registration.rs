//! Host memory of packet sources, pinned where it lies (`cuMemHostRegister`), and the address at
//! which a device finds a span.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::CUdeviceptr;
use portcullis_core::packet::Span;

use super::buffers::PINNED;
use crate::driver::context::Context;
use crate::driver::{ErrorCode, check};

/// Device name in a [`DeviceView`](portcullis_core::packet::DeviceView) of memory that every CUDA
/// device of the process finds at the same address.
pub const EVERY_DEVICE: &str = "cuda";

/// Where a device finds a span that its source has made accessible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanAddress {
    /// Address of the span's first byte.
    pub address: CUdeviceptr,
    /// Whether the span is in device memory, where packets are always filtered in place. Else it is
    /// host memory, accessed over the bus.
    pub is_on_device: bool,
}

impl SpanAddress {
    /// Returns the address of a span for the device of this id, if its source has given one.
    pub fn of_span(span: &Span, device: &str) -> Option<SpanAddress> {
        let view = span.device_view()?;
        let is_on_device = view.device == device;
        let known = is_on_device || view.device == EVERY_DEVICE;
        known.then(|| SpanAddress { address: view.address, is_on_device: is_on_device || !span.is_on_host() })
    }
}

/// Memory of a source, pinned where it lies. The driver pins memory once and for the whole process,
/// so sessions share this, and the last to drop it unpins the memory.
#[derive(Debug)]
pub(crate) struct PinnedSpan {
    span: Arc<Span>,
    address: u64,
    context: Arc<Context>,
}

/// All pinned spans, by their ids.
static PINNED_SPANS: Mutex<BTreeMap<u64, Weak<PinnedSpan>>> = Mutex::new(BTreeMap::new());

impl PinnedSpan {
    /// Returns the pinned span, shared with other sessions, or pins it.
    ///
    /// # Errors
    /// If the driver refuses, because the system limits pinned memory; and errors of
    /// [`Context::quiesce`].
    fn get_or_pin(context: &Arc<Context>, span: &Arc<Span>) -> Result<Arc<PinnedSpan>, ErrorCode> {
        let pinned = || PINNED_SPANS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = pinned().get(&span.id()).and_then(Weak::upgrade);
        if let Some(registration) = known {
            return Ok(registration);
        }
        // Quiesce before locking: the lock is shared by all devices.
        let _quiescent = context.quiesce()?;
        let mut pinned = pinned();
        if let Some(registration) = pinned.get(&span.id()).and_then(Weak::upgrade) {
            return Ok(registration);
        }
        let registration = Arc::new(PinnedSpan::new(context, span)?);
        pinned.retain(|_, registration| registration.strong_count() > 0);
        pinned.insert(span.id(), Arc::downgrade(&registration));
        Ok(registration)
    }

    /// Pins the span; the context is quiescent.
    fn new(context: &Arc<Context>, span: &Arc<Span>) -> Result<PinnedSpan, ErrorCode> {
        let start: *mut c_void = span.as_ptr().cast();
        // SAFETY: the span is an allocation of this size, which this value keeps.
        check(unsafe { (context.driver.cuMemHostRegister_v2)(start, span.allocated(), PINNED) })?;
        let mut registration = PinnedSpan { span: span.clone(), address: 0, context: context.clone() };
        // SAFETY: the pointer outlives the call; the memory was registered as mapped above.
        check(unsafe { (context.driver.cuMemHostGetDevicePointer_v2)(&mut registration.address, start, 0) })?;
        Ok(registration)
    }

    /// Address of the span's first byte for all devices, which share one address space with the
    /// host ("Unified Addressing" of the driver API, which 64-bit systems have).
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for PinnedSpan {
    fn drop(&mut self) {
        let span = self.span.clone();
        self.context.release_when_quiescent(move |driver| {
            // SAFETY: it was registered here. Batches in flight keep this value, so no queued
            // command uses the memory.
            match unsafe { (driver.cuMemHostUnregister)(span.as_ptr().cast()) } {
                0 => _ = UNPIN_COUNT.fetch_add(1, Ordering::Relaxed),
                // The memory stays pinned, in a context that has failed, and so must stay
                // allocated.
                _ => std::mem::forget(span),
            }
        });
    }
}

/// Number of spans unpinned so far. A change means that pinning a span that the driver refused may
/// succeed now.
static UNPIN_COUNT: AtomicU64 = AtomicU64::new(0);

/// A session's pinned spans, least recently used first.
#[derive(Debug, Default)]
pub(crate) struct PinnedSpanCache {
    known: VecDeque<CacheEntry>,
    /// The error of the first span that a limit keeps from being pinned.
    refusal: Option<ErrorCode>,
}

/// The outcome of pinning a span.
#[derive(Debug)]
struct CacheEntry {
    id: u64,
    /// If the driver refused: [`UNPIN_COUNT`] before it was asked.
    registration: Result<Arc<PinnedSpan>, u64>,
}

impl PinnedSpanCache {
    /// Maximum number of spans of a session; pinned memory is scarce.
    const CAPACITY: usize = 64;

    /// Spans of fewer bytes are copied unless the caller imports them: pinning costs as much.
    pub const MIN_BYTES: usize = 256 << 10;

    /// Returns the pinned span, pinning it if it is new and `pin` is set; `None` also if the driver
    /// refuses.
    pub fn get_or_pin(&mut self, context: &Arc<Context>, span: &Arc<Span>, pin: bool) -> Option<Arc<PinnedSpan>> {
        if let Some(at) = self.known.iter().position(|known| known.id == span.id()) {
            let known = self.known.remove(at).expect("found there");
            let stands = known.registration.as_ref().map_or_else(|&then| then == unpin_count(), |_| true);
            if stands {
                let registration = known.registration.as_ref().ok().cloned();
                self.known.push_back(known);
                return registration;
            }
        }
        if !pin {
            return None;
        }
        // Drop spans that only their pinning keeps alive: they will not be seen again.
        self.known.retain(|CacheEntry { registration, .. }| {
            registration.as_ref().is_ok_and(|kept| Arc::strong_count(kept) > 1 || Arc::strong_count(&kept.span) > 1)
                || registration.as_ref().is_err_and(|&then| then == unpin_count())
        });
        if self.known.len() >= Self::CAPACITY {
            self.known.pop_front();
        }
        // Read the count first, so that spans unpinned during the call count.
        let now = unpin_count();
        let registration = PinnedSpan::get_or_pin(context, span);
        // An error of this crate's own, such as a busy device, is temporary: try again next time.
        if !matches!(registration, Err(ErrorCode(..0))) {
            let known = registration.as_ref().map(Arc::clone).map_err(|_| now);
            self.known.push_back(CacheEntry { id: span.id(), registration: known });
        }
        if let Err(code) = registration.as_ref().map_err(|code| code.of_pinning())
            && code.is_unpinnable()
        {
            self.refusal.get_or_insert(code);
        }
        registration.ok()
    }

    /// Why spans are not pinned, if a limit of the system's or of the user's is the cause.
    pub fn refusal(&self) -> Option<ErrorCode> {
        self.refusal
    }
}

fn unpin_count() -> u64 {
    UNPIN_COUNT.load(Ordering::Relaxed)
}
