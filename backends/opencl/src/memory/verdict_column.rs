//! Columns of verdicts, an item for each packet, from kernels to the caller.
//!
//! A CPU's kernels write the caller's column directly: for each chunk a buffer is created over it,
//! and nothing is copied. Other devices write to a buffer of their own, which is downloaded and
//! copied.

use std::ptr;

use ocl_core::{ClWaitListPtr, Event, Mem, MemFlags, ffi};
use portcullis_core::device::{DeviceError, DeviceKind};

use super::buffers::{DeviceOutput, Download};
use crate::driver::gpu::{Gpu, status_name};

/// A column of verdicts, or the buffer that it is copied from.
pub(crate) struct VerdictColumn<T> {
    // First: the column must outlive the buffer over it.
    over_column: Option<Mem>,
    column: Vec<T>,
    output: DeviceOutput,
    download: Download,
}

impl<T> Default for VerdictColumn<T> {
    fn default() -> Self {
        VerdictColumn {
            over_column: None,
            column: Vec::new(),
            output: DeviceOutput::default(),
            download: Download::default(),
        }
    }
}

impl<T: Copy> VerdictColumn<T> {
    /// Makes room for `items` items, at least one.
    pub fn ensure_capacity(&mut self, gpu: &Gpu, items: usize) -> Result<(), DeviceError> {
        let bytes = (items * size_of::<T>()) as u64;
        // A GPU's driver would copy host memory that is not aligned as the GPU requires.
        if !gpu.shares_memory || gpu.kind != DeviceKind::Cpu {
            return self.output.ensure_capacity(gpu, bytes);
        }
        self.column = Vec::with_capacity(items);
        let start = self.column.as_mut_ptr().cast();
        // SAFETY: the column has room for that many items, and nobody else uses it before `take` or
        // `release`, which drop the buffer first.
        self.over_column = Some(unsafe { gpu.buffer(MemFlags::WRITE_ONLY | MemFlags::USE_HOST_PTR, bytes, start)? });
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
        let Some(over_column) = &self.over_column else {
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
            let (queue, over_column, to) =
                (gpu.downloads.as_ptr(), over_column.as_ptr(), self.column.as_mut_ptr().cast());
            ffi::clEnqueueReadBuffer(queue, over_column, 0, 0, bytes, to, 1, after.as_ptr_ptr(), &mut event)
        };
        if status != 0 {
            return Err(gpu.failure(format!("reading verdicts failed: {}", status_name(status))));
        }
        // SAFETY: the object is new, and nothing else refers to it.
        Ok(unsafe { Event::from_raw_create_ptr(event) })
    }

    /// Takes the items: returns the column, or passes the bytes to copy to `copy`.
    ///
    /// # Safety
    /// Kernels have written that many items, for which there is room; the event of
    /// [`VerdictColumn::enqueue_download`] has completed; and any bytes are valid items.
    pub unsafe fn take(
        &mut self,
        gpu: &Gpu,
        items: usize,
        copy: impl FnOnce(&[u8]),
    ) -> Result<Option<Vec<T>>, DeviceError> {
        if self.over_column.take().is_none() {
            return self.download.read(gpu, self.output.memory(), copy).map(|()| None);
        }
        let mut column = std::mem::take(&mut self.column);
        // SAFETY: the items have room and were written, by the caller's promise.
        unsafe { column.set_len(items) };
        Ok(Some(column))
    }

    /// Drops the column and the buffer over it, unless they were taken.
    pub fn release(&mut self) {
        self.over_column = None;
        self.column = Vec::new();
    }
}
