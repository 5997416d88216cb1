//! A number that the host and a GPU both see.

use std::sync::Arc;

use portcullis_dpdk_sys as sys;

use super::gpu::Gpu;
use crate::dpdk::error::DpdkError;

/// A number of 32 bits in the host's memory that a GPU sees as well, for either to tell the other something: 0 at first.
#[derive(Debug)]
pub struct CommFlag {
    gpu: Arc<Gpu>,
    flag: sys::rte_gpu_comm_flag,
}

// SAFETY: the number is read and written whole, whoever does it.
unsafe impl Send for CommFlag {}
// SAFETY: as above.
unsafe impl Sync for CommFlag {}

impl CommFlag {
    /// A new one.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`]: the GPU is not shown the memory.
    pub fn new(gpu: &Arc<Gpu>) -> Result<CommFlag, DpdkError> {
        let flag = gpu.whole(
            || {
                let mut flag = sys::rte_gpu_comm_flag::default();
                let kind = sys::rte_gpu_comm_flag_type::RTE_GPU_COMM_FLAG_CPU;
                // SAFETY: the GPU is there, and the flag is written.
                let result = unsafe { sys::rte_gpu_comm_create_flag(gpu.number() as u16, &raw mut flag, kind) };
                gpu.check("making a flag", result)?;
                Ok(flag)
            },
            |_| None,
        )?;
        Ok(CommFlag { gpu: gpu.clone(), flag })
    }

    /// Writes it.
    pub fn set(&self, value: u32) {
        let mut flag = self.flag;
        // SAFETY: the flag is there, and its description is read.
        let result = unsafe { sys::rte_gpu_comm_set_flag(&raw mut flag, value) };
        debug_assert_eq!(result, 0);
    }

    /// Reads it.
    pub fn get(&self) -> u32 {
        let (mut flag, mut value) = (self.flag, 0);
        // SAFETY: the flag is there, and the value is written.
        let result = unsafe { sys::rte_gpu_comm_get_flag_value(&raw mut flag, &raw mut value) };
        debug_assert_eq!(result, 0);
        value
    }

    /// Where the GPU finds it.
    pub fn address(&self) -> u64 {
        self.flag.ptr as u64
    }
}

impl Drop for CommFlag {
    fn drop(&mut self) {
        // SAFETY: it is there, and nobody has it any more.
        self.gpu.alone(|| unsafe { sys::rte_gpu_comm_destroy_flag(&raw mut self.flag) });
    }
}
