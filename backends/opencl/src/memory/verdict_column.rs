//! Columns of verdicts, an item for each packet, from kernels to the caller.
//!
//! A CPU's kernels write the batch's column directly: for each chunk a buffer is created over its
//! part of the column, and nothing is copied. Other devices write to a buffer of their own, which
//! is downloaded to the column; without one, to pinned memory, and copied by the host.

use std::ptr::{self, NonNull};

use ocl_core::{ClWaitListPtr, Event, Mem, MemFlags, ffi};
use portcullis_core::device::DeviceError;

use super::buffers::{DeviceOutput, Download};
use crate::driver::gpu::{Gpu, status_name};

/// A chunk's part of a column of verdicts, and the buffer that kernels write.
pub(crate) struct VerdictColumn<T> {
    /// Start of the column's part, if there is a column.
    column: Option<NonNull<T>>,
    /// A buffer over the column's part.
    over_column: Option<Mem>,
    output: DeviceOutput,
    download: Download,
}

impl<T> Default for VerdictColumn<T> {
    fn default() -> Self {
        VerdictColumn {
            column: None,
            over_column: None,
            output: DeviceOutput::default(),
            download: Download::default(),
        }
    }
}

// SAFETY: the pointer is into memory of the batch's, which the session owns.
unsafe impl<T: Send> Send for VerdictColumn<T> {}

impl<T: Copy> VerdictColumn<T> {
    /// Makes room for `items` items, at least one; in the batch's column, if it is given.
    ///
    /// # Safety
    /// From `column` on are that many items, which nobody else uses before
    /// [`VerdictColumn::release`].
    pub unsafe fn ensure_capacity(
        &mut self,
        gpu: &Gpu,
        items: usize,
        column: Option<NonNull<T>>,
    ) -> Result<(), DeviceError> {
        let bytes = (items * size_of::<T>()) as u64;
        (self.column, self.over_column) = (column, None);
        let Some(column) = column.filter(|_| gpu.shares_memory) else {
            return self.output.ensure_capacity(gpu, bytes);
        };
        let flags = MemFlags::WRITE_ONLY | MemFlags::USE_HOST_PTR;
        // SAFETY: by the caller's promise.
        self.over_column = Some(unsafe { gpu.buffer(flags, bytes, column.as_ptr().cast())? });
        Ok(())
    }

    /// The buffer that kernels write.
    pub fn memory(&self) -> &Mem {
        self.over_column.as_ref().unwrap_or_else(|| self.output.memory())
    }

    /// Queues downloading the items, as many as there is room for, after an event: that of the last
    /// command that writes them.
    pub fn enqueue_download(&mut self, gpu: &Gpu, items: usize, after: &Event) -> Result<Event, DeviceError> {
        let bytes = items * size_of::<T>();
        let Some(column) = self.column else {
            return self.download.enqueue(gpu, self.output.memory(), bytes as u64, after);
        };
        // Reading a buffer into the memory that it was created over makes what kernels have written
        // visible there (the OpenCL specification, 5.2.2). That is one command, where a map would
        // need a second to unmap. It is in another queue, so that the next kernel does not wait for
        // it, nor for the host's notification.
        let mut event = ptr::null_mut();
        // SAFETY: the column has that many bytes from the buffer's start on. Nobody uses it
        // meanwhile: kernels have completed, and the host reads it once this command has.
        let status = unsafe {
            let (queue, from, to) = (gpu.downloads.as_ptr(), self.memory().as_ptr(), column.as_ptr().cast());
            ffi::clEnqueueReadBuffer(queue, from, 0, 0, bytes, to, 1, after.as_ptr_ptr(), &mut event)
        };
        if status != 0 {
            return Err(gpu.failure(format!("reading verdicts failed: {}", status_name(status))));
        }
        // SAFETY: the object is new, and nothing else refers to it.
        Ok(unsafe { Event::from_raw_create_ptr(event) })
    }

    /// Reads the items of a chunk that has no column.
    pub fn read(&mut self, gpu: &Gpu, copy: impl FnOnce(&[u8])) -> Result<(), DeviceError> {
        self.download.read(gpu, self.output.memory(), copy)
    }

    /// Gives up the column, and drops the buffer over it.
    pub fn release(&mut self) {
        (self.column, self.over_column) = (None, None);
    }
}
