//! Hand-written kernels for tests, compiled by the vendor's compiler as they are.

use ocl_core::{ArgVal, Kernel, Mem, MemFlags};
use portcullis_core::device::DeviceError;

use crate::compile::build_kernel;
use crate::device::OpenClDevice;
use crate::driver::gpu::Gpu;

/// A kernel `__kernel void NAME(__global uchar *memory)`. That it stays within that memory cannot
/// be checked here.
pub struct VendorKernel {
    kernel: Kernel,
    gpu: Gpu,
}

impl VendorKernel {
    /// Compiles the kernel.
    ///
    /// # Errors
    /// If the kernel does not compile.
    pub fn compile(device: &OpenClDevice, text: &str, name: &str) -> Result<VendorKernel, DeviceError> {
        let gpu = Gpu::open(device.properties(), false)?;
        Ok(VendorKernel { kernel: build_kernel(&gpu, text, name, "", None)?, gpu })
    }

    /// Runs `items` work items over a copy of `memory`, and copies the result back.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&self, memory: &mut [u8], items: usize) -> Result<(), DeviceError> {
        let (gpu, queue) = (&self.gpu, &self.gpu.kernels);
        let failed = |error: ocl_core::Error| gpu.error("running a kernel failed", &error);
        let buffer: Mem = gpu.device_buffer(MemFlags::READ_WRITE, memory.len() as u64)?;
        // SAFETY: the buffer has as many bytes, and the call blocks until all were read.
        let written =
            unsafe { ocl_core::enqueue_write_buffer::<u8, _, (), ()>(queue, &buffer, true, 0, memory, None, None) };
        written.map_err(failed)?;
        ocl_core::set_kernel_arg(&self.kernel, 0, ArgVal::mem(&buffer)).map_err(failed)?;
        let size = [items, 1, 1];
        // SAFETY: the one argument is set, and the buffer exists until the kernel has completed.
        // The kernel's author promises that it stays within the buffer.
        let queued =
            unsafe { ocl_core::enqueue_kernel::<(), ()>(queue, &self.kernel, 1, None, &size, None, None, None) };
        queued.map_err(failed)?;
        // SAFETY: as for writing; the queue is in order, so the kernel has completed.
        let read =
            unsafe { ocl_core::enqueue_read_buffer::<u8, _, (), ()>(queue, &buffer, true, 0, memory, None, None) };
        read.map_err(failed)
    }
}
