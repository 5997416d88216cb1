//! A CUDA module with its one kernel: loading, occupancy and launches.

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUfunc_st, CUfunction, CUfunction_attribute, CUmod_st};
use portcullis_core::device::metadata_format::MetadataRule;
use portcullis_core::device::{CancelToken, DeviceError};
use portcullis_core::map::declaration::MAX_MAPS;

use super::source::KernelSource;
use crate::driver::context::{Context, Handle};
use crate::driver::gpu::Gpu;
use crate::driver::stream::Stream;
use crate::driver::{ErrorCode, check, poll};

/// Maximum number of arguments of a kernel: the nine of the packets and the launch
/// ([`Argument`](portcullis_c_writer::Argument)), and one for each map. Each has at most 64 bits,
/// except the rules of descriptors and metadata, and the map addresses of mailbox and graph
/// kernels, which are one argument.
pub(crate) const MAX_ARGUMENTS: usize = 9 + MAX_MAPS;

// `Kernel::warm_up` passes as many zeros for each argument.
const _: () = assert!(size_of::<MetadataRule>() <= 8 * MAX_ARGUMENTS);

/// A kernel loaded into a context.
#[derive(Debug)]
pub(crate) struct Kernel {
    function: Handle<CUfunc_st>,
    module: Handle<CUmod_st>,
    /// Threads in a block.
    block_size: u32,
    context: Arc<Context>,
}

impl Kernel {
    pub(super) fn load(context: &Arc<Context>, image: &[u8], source: &KernelSource) -> Result<Kernel, ErrorCode> {
        if !is_complete_image(image) {
            return Err(ErrorCode::INVALID_IMAGE);
        }
        let (_quiescent, driver) = (context.quiesce()?, context.driver);
        let mut module = ptr::null_mut();
        // SAFETY: the pointer outlives the call, and the image is complete; there are no options.
        check(unsafe {
            (driver.cuModuleLoadDataEx)(&mut module, image.as_ptr().cast(), 0, ptr::null_mut(), ptr::null_mut())
        })?;
        let (function, block_size) = (Handle(ptr::null_mut()), source.block_size);
        let mut kernel = Kernel { function, module: Handle(module), block_size, context: context.clone() };
        let entry = CString::new(source.entry).map_err(|_| ErrorCode::INVALID_VALUE)?;
        // SAFETY: the pointer outlives the call; the module was loaded above, and the name ends in
        // a zero.
        check(unsafe { (driver.cuModuleGetFunction)(&mut kernel.function.0, module, entry.as_ptr()) })?;
        Ok(kernel)
    }

    /// Launches the kernel once over no packets. Drivers load a kernel's code and allocate its
    /// local memory at the first launch, and may wait for the device then.
    pub(super) fn warm_up(&self, gpu: &Arc<Gpu>, cancel: &CancelToken) -> Result<(), DeviceError> {
        let failed = |code: ErrorCode| match code {
            ErrorCode::OUT_OF_MEMORY => gpu.failure(format!(
                "has no memory for the filter's own arrays and variables, {} bytes for each packet that is filtered at \
                 a time: {code}",
                self.local_bytes()
            )),
            _ => gpu.error("launching the filter failed", code),
        };
        let quiescent = self.context.quiesce().map_err(failed)?;
        // Zeros for all arguments: no packets and no memory.
        let mut zeros = [0_u64; MAX_ARGUMENTS];
        let mut arguments: [*mut c_void; MAX_ARGUMENTS] = [zeros.as_mut_ptr().cast(); MAX_ARGUMENTS];
        // SAFETY: kernels take at most as many bytes of arguments: the longest argument is that of
        // all map addresses. A kernel that is given no packets, or no memory, returns at once.
        unsafe { self.launch(1, &mut arguments, &gpu.kernels) }.map_err(failed)?;
        // Queuing suffices: the driver has loaded the kernel when the launch returns.
        drop(quiescent);
        let end = gpu.kernels.record_event().map_err(failed)?;
        let ended = poll::until(&gpu.id, cancel, || end.is_complete().map_err(failed));
        if ended.is_err() {
            gpu.abandon(end, || ());
        }
        ended
    }

    /// Local memory of a thread, in bytes.
    fn local_bytes(&self) -> i32 {
        let mut bytes = 0;
        let what = CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
        // SAFETY: the pointer outlives the call; the function's module is loaded.
        unsafe { (self.context.driver.cuFuncGetAttribute)(&mut bytes, what, self.function()) };
        bytes
    }

    pub fn function(&self) -> CUfunction {
        self.function.get()
    }

    /// Blocks that can be resident on a multiprocessor at once.
    pub fn blocks_per_multiprocessor(&self) -> Result<u32, ErrorCode> {
        let _current = self.context.enter()?;
        let mut blocks = 0;
        let ask = self.context.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor;
        // SAFETY: the pointer outlives the call; the function's module is loaded.
        check(unsafe { ask(&mut blocks, self.function(), self.block_size as c_int, 0) })?;
        Ok(blocks.max(1).unsigned_abs())
    }

    /// Number of blocks that together have a thread for each lane.
    pub fn blocks_for(&self, lanes: u32) -> u32 {
        lanes.div_ceil(self.block_size)
    }

    /// Queues a launch of `blocks` blocks.
    ///
    /// # Safety
    /// `arguments` match the kernel's in number and type. With them the kernel stays within memory
    /// that exists until it has completed, and that is otherwise used only as the kernel allows.
    pub unsafe fn launch(&self, blocks: u32, arguments: &mut [*mut c_void], stream: &Stream) -> Result<(), ErrorCode> {
        let _current = self.context.enter()?;
        // SAFETY: the driver copies the arguments before it returns; the rest is the caller's
        // promise.
        check(unsafe {
            (self.context.driver.cuLaunchKernel)(
                self.function(),
                blocks,
                1,
                1,
                self.block_size,
                1,
                1,
                0,
                stream.handle(),
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }
}

/// Whether the image is complete. The driver is not told its length: PTX must end in a zero, and a
/// cubin is 64-bit ELF, whose header says where the segment and section tables end.
fn is_complete_image(image: &[u8]) -> bool {
    if !image.starts_with(b"\x7fELF") {
        return image.last() == Some(&0);
    }
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = image.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    };
    // e_phoff, e_phentsize and e_phnum; e_shoff, e_shentsize and e_shnum (elf(5)).
    let ends = [(0x20, 0x36, 0x38), (0x28, 0x3a, 0x3c)].map(|(start, size, count)| {
        let table = number(size, 2)? * number(count, 2)?;
        number(start, 8)?.checked_add(table)
    });
    ends.iter().all(|end| end.is_some_and(|end| end <= image.len() as u64))
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let module = self.module;
        self.context.release_when_quiescent(move |driver| {
            // SAFETY: the module was loaded here, and sessions release it only when no launch is
            // queued.
            unsafe { (driver.cuModuleUnload)(module.get()) };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_images_are_detected() {
        let mut elf = vec![0_u8; 200];
        elf[..4].copy_from_slice(b"\x7fELF");
        elf[0x20] = 64;
        (elf[0x36], elf[0x38]) = (56, 1);
        elf[0x28] = 120;
        (elf[0x3a], elf[0x3c]) = (40, 2);
        assert!(is_complete_image(&elf));
        assert!(!is_complete_image(&elf[..199]));
        assert!(!is_complete_image(&elf[..20]) && !is_complete_image(b""));
        elf[0x20 + 7] = 255;
        assert!(!is_complete_image(&elf));
        assert!(is_complete_image(b".version 8.0\n\0") && !is_complete_image(b".version 8.0\n"));
    }
}
