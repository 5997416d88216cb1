//! For tests: kernels that no filter became, compiled by the driver as they stand. No part of the crate's
//! interface.

use ocl_core::{ArgVal, Kernel, Mem, MemFlags};
use portcullis_c_writer::Kernel as Source;
use portcullis_core::device::DeviceError;

use crate::compile::build;
use crate::device::Gpu;
use crate::probe::OpenClDevice;

/// A kernel of somebody else's: `__kernel void NAME(__global uchar *memory)`. It keeps to that memory, which
/// nothing here can make sure of.
pub struct VendorKernel {
    kernel: Kernel,
    gpu: Gpu,
}

impl VendorKernel {
    /// Compiles the text.
    ///
    /// # Errors
    /// The compiler's own.
    pub fn compile(device: &OpenClDevice, text: &str, name: &str) -> Result<VendorKernel, DeviceError> {
        let gpu = Gpu::open(device, false)?;
        let source = Source { source: text.to_owned(), entry: name.to_owned(), arguments: Vec::new(), size: 0 };
        Ok(VendorKernel { kernel: build(&gpu, &source, "", None)?, gpu })
    }

    /// Runs so many work items over a copy of `memory`, and copies back what became of it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn run(&self, memory: &mut [u8], items: usize) -> Result<(), DeviceError> {
        let (gpu, queue) = (&self.gpu, &self.gpu.kernels);
        let failed = |error: ocl_core::Error| gpu.failed("a foreign kernel", &error);
        let buffer: Mem = gpu.own_buffer(MemFlags::READ_WRITE, memory.len() as u64)?;
        // SAFETY: the buffer has as many bytes, and the call waits until it has read all of them.
        let written =
            unsafe { ocl_core::enqueue_write_buffer::<u8, _, (), ()>(queue, &buffer, true, 0, memory, None, None) };
        written.map_err(failed)?;
        ocl_core::set_kernel_arg(&self.kernel, 0, ArgVal::mem(&buffer)).map_err(failed)?;
        let size = [items, 1, 1];
        // SAFETY: the one argument is set, and the buffer stays until the kernel has ended. That the kernel
        // keeps to it is its author's promise, as this type says.
        let queued =
            unsafe { ocl_core::enqueue_kernel::<(), ()>(queue, &self.kernel, 1, None, &size, None, None, None) };
        queued.map_err(failed)?;
        // SAFETY: as for writing; the queue is in order, so the kernel has ended.
        let read =
            unsafe { ocl_core::enqueue_read_buffer::<u8, _, (), ()>(queue, &buffer, true, 0, memory, None, None) };
        read.map_err(failed)
    }
}
