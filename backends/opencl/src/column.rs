//! What kernels answer, one item a packet, on its way into a column of verdicts.
//!
//! A processor's kernels write the column itself: a buffer is made over it for each part of a batch, and nothing is
//! copied. Other devices write a buffer of their own, which is brought back and copied.

use std::ptr;

use ocl_core::{ClWaitListPtr, Event, Mem, MemFlags, ffi};
use portcullis_core::device::{DeviceError, DeviceKind};

use crate::device::{Gpu, name_of};
use crate::memory::{Download, Output};

/// A column, or what is copied to one.
pub(crate) struct Answers<T> {
    // First: the column stays until the buffer over it is gone.
    lent: Option<Mem>,
    column: Vec<T>,
    own: Output,
    back: Download,
}

impl<T> Default for Answers<T> {
    fn default() -> Self {
        Answers { lent: None, column: Vec::new(), own: Output::default(), back: Download::default() }
    }
}

impl<T: Copy> Answers<T> {
    /// Sees to it that there is room for so many items, at least one.
    pub fn reserve(&mut self, gpu: &Gpu, items: usize) -> Result<(), DeviceError> {
        let bytes = (items * size_of::<T>()) as u64;
        // A GPU's driver copies host memory that does not begin and end where the GPU likes.
        if !gpu.shares_memory || gpu.kind != DeviceKind::Cpu {
            return self.own.reserve(gpu, bytes);
        }
        self.column = Vec::with_capacity(items);
        let start = self.column.as_mut_ptr().cast();
        // SAFETY: the column has room for so many items, and nobody else uses it before `take` or `release`, which
        // let go of the buffer first.
        self.lent = Some(unsafe { gpu.buffer(MemFlags::WRITE_ONLY | MemFlags::USE_HOST_PTR, bytes, start)? });
        Ok(())
    }

    /// The buffer that kernels write.
    pub fn memory(&self) -> &Mem {
        self.lent.as_ref().unwrap_or_else(|| self.own.memory())
    }

    /// Queues bringing the items, as many as there was room made for, once the event has come about, which is that of
    /// the last command that has to do with them.
    pub fn enqueue(&mut self, gpu: &Gpu, items: usize, after: &Event) -> Result<Event, DeviceError> {
        let bytes = items * size_of::<T>();
        let Some(lent) = &self.lent else {
            return self.back.enqueue(gpu, self.own.memory(), bytes as u64, after);
        };
        // To read a buffer to the memory that it was made over has the host find there what kernels have written
        // (the OpenCL specification, 5.2.2): one command, where a map would be a second one to unmap. In a queue of
        // its own: the next kernel need not wait for it, nor for the host to be told.
        let mut event = ptr::null_mut();
        // SAFETY: the column has so many bytes, from the buffer's start on, and nobody uses it meanwhile: kernels are
        // done with it, and the host looks at it when the event of this command has come about.
        let status = unsafe {
            let (queue, lent, to) = (gpu.downloads.as_ptr(), lent.as_ptr(), self.column.as_mut_ptr().cast());
            ffi::clEnqueueReadBuffer(queue, lent, 0, 0, bytes, to, 1, after.as_ptr_ptr(), &mut event)
        };
        if status != 0 {
            return Err(gpu.gave_up(format!("reading verdicts failed: {}", name_of(status))));
        }
        // SAFETY: it was made just now, and is nobody else's.
        Ok(unsafe { Event::from_raw_create_ptr(event) })
    }

    /// Takes the items: a column, or, through `copy`, what one is made of.
    ///
    /// # Safety
    /// Kernels have written so many items, for which there was room made; the event of [`Answers::enqueue`] has come
    /// about; and whatever the bytes are, they are items.
    pub unsafe fn take(
        &mut self,
        gpu: &Gpu,
        items: usize,
        copy: impl FnOnce(&[u8]),
    ) -> Result<Option<Vec<T>>, DeviceError> {
        if self.lent.take().is_none() {
            return self.back.read(gpu, self.own.memory(), copy).map(|()| None);
        }
        let mut column = std::mem::take(&mut self.column);
        // SAFETY: there is room for them, and they were written, by the caller's promise.
        unsafe { column.set_len(items) };
        Ok(Some(column))
    }

    /// Lets go of the column, where it was not taken.
    pub fn release(&mut self) {
        self.lent = None;
        self.column = Vec::new();
    }
}
