//! Memory that host and device both have to do with.
//!
//! Where the device's memory is the host's ([`Gpu::shares_memory`]) kernels work on host memory as it
//! lies: buffers are made over it (`CL_MEM_USE_HOST_PTR`), and mapping one, which says who may look at
//! it now, moves nothing; verdicts are written where the caller gets them (`column`). Else there are
//! two of each: a buffer in pinned host memory (`CL_MEM_ALLOC_HOST_PTR`), which stays mapped, and one
//! on the device, with copies between the two that nobody waits for.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use ocl_core::{CommandQueue, Event, MapFlags, Mem, MemFlags, MemMap};
use portcullis_core::device::DeviceError;
use portcullis_core::packet::Span;

use crate::device::Gpu;

/// Buffers grow to a power of two from this size on, so that batches of changing sizes soon find
/// one that is large enough.
const SMALLEST: u64 = 64 << 10;

fn grown(bytes: u64, limit: u64) -> u64 {
    bytes.next_power_of_two().clamp(SMALLEST, limit.max(SMALLEST)).max(bytes)
}

/// A buffer that stays where it is from batch to batch.
struct Kept {
    memory: Mem,
    size: u64,
}

impl Kept {
    fn new(gpu: &Gpu, bytes: u64) -> Result<Kept, DeviceError> {
        let size = grown(bytes, gpu.largest);
        // Memory that is shared has to be where the host reaches it, too.
        let place = if gpu.shares_memory { MemFlags::ALLOC_HOST_PTR } else { MemFlags::empty() };
        Ok(Kept { memory: gpu.own_buffer(MemFlags::READ_WRITE | place, size)?, size })
    }
}

/// Host memory that a device copies from and to by itself, mapped for as long as it is there.
struct Pinned {
    map: MemMap<u8>,
    memory: Mem,
    queue: CommandQueue,
    size: u64,
}

impl Pinned {
    fn new(gpu: &Gpu, bytes: u64) -> Result<Pinned, DeviceError> {
        let size = grown(bytes, gpu.largest);
        let memory = gpu.own_buffer(MemFlags::READ_WRITE | MemFlags::ALLOC_HOST_PTR, size)?;
        // SAFETY: used within its size, and unmapped by being released, by this struct only.
        let map = unsafe { gpu.map_now(&memory, MapFlags::READ | MapFlags::WRITE, size)? };
        Ok(Pinned { map, memory, queue: gpu.uploads.clone(), size })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A failure leaves the memory to the driver, which it belongs to.
        let unmapped =
            ocl_core::enqueue_unmap_mem_object::<u8, _, (), ()>(&self.queue, &self.memory, &self.map, None, None);
        let _ = unmapped.and_then(|()| ocl_core::flush(&self.queue));
    }
}

/// A buffer that is there and large enough.
fn reserve<T>(
    kept: &mut Option<T>,
    bytes: u64,
    size: impl Fn(&T) -> u64,
    make: impl FnOnce(u64) -> Result<T, DeviceError>,
) -> Result<&mut T, DeviceError> {
    if kept.as_ref().is_none_or(|kept| size(kept) < bytes) {
        // The old one goes first: there may not be memory for both.
        *kept = None;
        *kept = Some(make(bytes)?);
    }
    Ok(kept.as_mut().expect("made above"))
}

/// Data on its way to kernels.
#[derive(Default)]
pub(crate) struct Upload {
    kept: Option<Kept>,
    pinned: Option<Pinned>,
    /// A buffer over memory of the batch.
    lent: Option<Mem>,
}

impl Upload {
    /// Lets kernels read `data`: where it lies if the device shares memory, else a copy of it. The
    /// event is that of a command which has to end before kernels run, where there is one.
    ///
    /// # Safety
    /// The data stays where it is, and as it is, until this is told to [`Upload::take_back`] or
    /// dropped, which is not before the last command that uses it has ended.
    pub unsafe fn lend<T: Copy>(&mut self, gpu: &Gpu, data: &[T]) -> Result<Option<Event>, DeviceError> {
        let bytes = size_of_val(data) as u64;
        let start = data.as_ptr().cast::<u8>();
        if gpu.shares_memory {
            let flags = MemFlags::READ_ONLY | MemFlags::USE_HOST_PTR;
            // SAFETY: initialised memory that stays as it is by the caller's promise. Kernels do not
            // write to it, as the flag says, though the function takes a pointer for writing.
            self.lent = Some(unsafe { gpu.buffer(flags, bytes, start.cast_mut())? });
            return Ok(None);
        }
        self.write(gpu, bytes, |to| {
            // SAFETY: plain data without padding (descriptors and metadata are words), read as bytes.
            to.copy_from_slice(unsafe { std::slice::from_raw_parts(start, to.len()) });
        })
    }

    /// Fills the first `bytes` bytes, which are not 0, through `fill`; the event is as for
    /// [`Upload::lend`].
    pub fn write(&mut self, gpu: &Gpu, bytes: u64, fill: impl FnOnce(&mut [u8])) -> Result<Option<Event>, DeviceError> {
        let kept = reserve(&mut self.kept, bytes, |kept| kept.size, |bytes| Kept::new(gpu, bytes))?;
        let mut event = Event::null();
        if gpu.shares_memory {
            // SAFETY: used here only, within its bounds. No command uses the buffer: its batch is
            // yet to be launched, so mapping it waits for nothing.
            unsafe {
                let mut map = gpu.map_now(&kept.memory, MapFlags::WRITE_INVALIDATE_REGION, bytes)?;
                fill(map.as_slice_mut(bytes as usize));
                unmap(gpu, &gpu.uploads, &kept.memory, &map, Some(&mut event))?;
            }
            return Ok(Some(event));
        }
        let pinned = reserve(&mut self.pinned, bytes, |pinned| pinned.size, |bytes| Pinned::new(gpu, bytes))?;
        // SAFETY: within the bounds of the map, which nobody else uses: the copy out of it that an
        // earlier batch queued has ended with that batch.
        let from = unsafe { pinned.map.as_slice_mut(bytes as usize) };
        fill(from);
        // SAFETY: the pinned memory stays as it is until the batch has ended.
        let queued = unsafe {
            ocl_core::enqueue_write_buffer::<u8, _, _, ()>(
                &gpu.uploads,
                &kept.memory,
                false,
                0,
                from,
                None,
                Some(&mut event),
            )
        };
        queued.map_err(|error| gpu.failed("queuing a copy failed", &error))?;
        Ok(Some(event))
    }

    /// The buffer that kernels read.
    pub fn memory(&self) -> &Mem {
        let kept = || &self.kept.as_ref().expect("written before it is used").memory;
        self.lent.as_ref().unwrap_or_else(kept)
    }

    /// Lets go of the batch's memory.
    pub fn take_back(&mut self) {
        self.lent = None;
    }
}

/// What kernels write and the host does not give them.
#[derive(Default)]
pub(crate) struct Output {
    kept: Option<Kept>,
}

impl Output {
    /// Sees to it that there is room for `bytes` bytes.
    pub fn reserve(&mut self, gpu: &Gpu, bytes: u64) -> Result<(), DeviceError> {
        reserve(&mut self.kept, bytes, |kept| kept.size, |bytes| Kept::new(gpu, bytes)).map(|_| ())
    }

    /// The buffer that kernels write.
    pub fn memory(&self) -> &Mem {
        &self.kept.as_ref().expect("reserved before it is used").memory
    }
}

/// Bytes of a buffer on their way back to the host.
#[derive(Default)]
pub(crate) struct Download {
    pinned: Option<Pinned>,
    /// The map that the bytes are looked at through, of a device that shares memory.
    map: Option<MemMap<u8>>,
    bytes: usize,
}

impl Download {
    /// Queues bringing the first `bytes` bytes of a buffer, once the event has come about. Where memory is shared
    /// that is in the queue of kernels, whose order keeps kernels from what is mapped.
    pub fn enqueue(&mut self, gpu: &Gpu, from: &Mem, bytes: u64, after: &Event) -> Result<Event, DeviceError> {
        let mut event = Event::null();
        self.bytes = bytes as usize;
        if gpu.shares_memory {
            let (flags, bytes) = (MapFlags::READ, self.bytes);
            // SAFETY: looked at in `read` only, when the event has come about, and unmapped there.
            let map = unsafe {
                ocl_core::enqueue_map_buffer(&gpu.kernels, from, false, flags, 0, bytes, Some(after), Some(&mut event))
            };
            self.map = Some(map.map_err(|error| gpu.failed("mapping a buffer failed", &error))?);
            return Ok(event);
        }
        let pinned = reserve(&mut self.pinned, bytes, |pinned| pinned.size, |bytes| Pinned::new(gpu, bytes))?;
        // SAFETY: within the bounds of the map, which nobody looks at before the event has come about.
        let queued = unsafe {
            let to = pinned.map.as_slice_mut(self.bytes);
            let (queue, event) = (&gpu.downloads, Some(&mut event));
            ocl_core::enqueue_read_buffer::<u8, _, _, _>(queue, from, false, 0, to, Some(after), event)
        };
        queued.map_err(|error| gpu.failed("queuing a read failed", &error))?;
        Ok(event)
    }

    /// Reads what was brought from `from`, once its event has come about.
    pub fn read<T>(&mut self, gpu: &Gpu, from: &Mem, read: impl FnOnce(&[u8]) -> T) -> Result<T, DeviceError> {
        if let Some(map) = self.map.take() {
            // SAFETY: the map is complete, and of as many bytes; kernels that write there come behind
            // the unmapping, in the same queue.
            let result = read(unsafe { map.as_slice(self.bytes) });
            unmap(gpu, &gpu.kernels, from, &map, None)?;
            return Ok(result);
        }
        let pinned = self.pinned.as_ref().expect("queued before it is read");
        // SAFETY: the copy is complete, and of as many bytes.
        Ok(read(unsafe { pinned.map.as_slice(self.bytes) }))
    }
}

fn unmap(
    gpu: &Gpu,
    queue: &CommandQueue,
    memory: &Mem,
    map: &MemMap<u8>,
    event: Option<&mut Event>,
) -> Result<(), DeviceError> {
    let queued = ocl_core::enqueue_unmap_mem_object::<u8, _, _, ()>(queue, memory, map, None, event);
    queued.map_err(|error| gpu.failed("unmapping a buffer failed", &error))
}

/// A buffer over a span's own memory.
pub(crate) struct Import {
    // First: the memory stays until the buffer is gone.
    memory: Mem,
    span: Arc<Span>,
}

impl Import {
    fn new(gpu: &Gpu, span: &Arc<Span>, writes: bool) -> Option<Import> {
        let size = span.allocated() as u64;
        if size > gpu.largest {
            return None;
        }
        let access = if writes { MemFlags::READ_WRITE } else { MemFlags::READ_ONLY };
        // SAFETY: the span is an allocation of this size, which stays as long as the buffer does. What
        // kernels do with it, and when, is the session's affair, which holds a batch for each of them.
        let memory = unsafe { gpu.buffer(access | MemFlags::USE_HOST_PTR, size, span.as_ptr()) };
        memory.ok().map(|memory| Import { memory, span: span.clone() })
    }

    pub fn memory(&self) -> &Mem {
        &self.memory
    }

    /// Tells the device, in its queue of kernels, that the host has written these bytes: a driver that
    /// keeps a copy of host memory brings it up to date.
    pub fn written(&self, gpu: &Gpu, bytes: &Range<u64>) -> Result<(), DeviceError> {
        self.touch(gpu, MapFlags::WRITE_INVALIDATE_REGION, bytes, None)
    }

    /// Sees to it, in the queue of kernels, that the host finds in these bytes what kernels have
    /// written there.
    pub fn read_back(&self, gpu: &Gpu, bytes: &Range<u64>, event: &mut Event) -> Result<(), DeviceError> {
        self.touch(gpu, MapFlags::READ, bytes, Some(event))
    }

    /// Maps bytes and unmaps them again.
    fn touch(
        &self,
        gpu: &Gpu,
        flags: MapFlags,
        bytes: &Range<u64>,
        event: Option<&mut Event>,
    ) -> Result<(), DeviceError> {
        let (queue, memory) = (&gpu.kernels, &self.memory);
        let (at, size) = (bytes.start as usize, (bytes.end - bytes.start) as usize);
        // SAFETY: nobody looks through the map. It is the memory that the buffer was made over (the
        // OpenCL specification, 5.2.4), and the bytes are those of a batch that the session holds.
        let map =
            unsafe { ocl_core::enqueue_map_buffer::<u8, _, (), ()>(queue, memory, false, flags, at, size, None, None) };
        let map = map.map_err(|error| gpu.failed("mapping host memory failed", &error))?;
        unmap(gpu, queue, memory, &map, event)
    }
}

/// The spans that the device works on in place, those used last at the back.
#[derive(Default)]
pub(crate) struct Imports {
    known: VecDeque<(u64, Option<Arc<Import>>)>,
}

impl Imports {
    /// Pinned memory is a scarce thing.
    const MOST: usize = 64;

    /// The buffer over a span's memory, imported now if it is new; `None` where the device shares no
    /// memory, or its driver refuses.
    pub fn get(&mut self, gpu: &Gpu, span: &Arc<Span>, writes: bool) -> Option<Arc<Import>> {
        if !gpu.shares_memory {
            return None;
        }
        if let Some(at) = self.known.iter().position(|(id, _)| *id == span.id()) {
            let known = self.known.remove(at).expect("found there");
            let import = known.1.clone();
            self.known.push_back(known);
            return import;
        }
        // A span that only its import keeps alive will not be seen again.
        self.known.retain(|(_, import)| {
            import.as_ref().is_none_or(|import| Arc::strong_count(import) > 1 || Arc::strong_count(&import.span) > 1)
        });
        if self.known.len() >= Self::MOST {
            self.known.pop_front();
        }
        let import = Import::new(gpu, span, writes).map(Arc::new);
        self.known.push_back((span.id(), import.clone()));
        import
    }
}
