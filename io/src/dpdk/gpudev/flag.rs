//! A flag shared by host and GPU.

use std::sync::Arc;

use portcullis_dpdk_sys as sys;

use super::gpu::Gpu;
use crate::dpdk::error::DpdkError;

/// A 32-bit value in host memory that the GPU can access as well, initially 0.
#[derive(Debug)]
pub struct CommFlag {
    gpu: Arc<Gpu>,
    flag: sys::rte_gpu_comm_flag,
}

// SAFETY: the value is accessed as a whole.
unsafe impl Send for CommFlag {}
// SAFETY: as above.
unsafe impl Sync for CommFlag {}

impl CommFlag {
    /// Creates a flag.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`] if the memory cannot be registered with the GPU.
    pub fn new(gpu: &Arc<Gpu>) -> Result<CommFlag, DpdkError> {
        let flag = gpu.with_rollback(
            || {
                let mut flag = sys::rte_gpu_comm_flag::default();
                let kind = sys::rte_gpu_comm_flag_type::RTE_GPU_COMM_FLAG_CPU;
                // SAFETY: the GPU exists, and the call only writes the flag.
                let result = unsafe { sys::rte_gpu_comm_create_flag(gpu.number() as u16, &raw mut flag, kind) };
                gpu.check("creating a flag", result)?;
                Ok(flag)
            },
            |_| None,
        )?;
        Ok(CommFlag { gpu: gpu.clone(), flag })
    }

    /// Sets the value.
    pub fn set(&self, value: u32) {
        let mut flag = self.flag;
        // SAFETY: the flag exists, and the call only reads its description.
        let result = unsafe { sys::rte_gpu_comm_set_flag(&raw mut flag, value) };
        debug_assert_eq!(result, 0);
    }

    /// Returns the value.
    pub fn get(&self) -> u32 {
        let (mut flag, mut value) = (self.flag, 0);
        // SAFETY: the flag exists, and the call only writes the value.
        let result = unsafe { sys::rte_gpu_comm_get_flag_value(&raw mut flag, &raw mut value) };
        debug_assert_eq!(result, 0);
        value
    }

    /// Address for the GPU.
    pub fn address(&self) -> u64 {
        self.flag.ptr as u64
    }
}

impl Drop for CommFlag {
    fn drop(&mut self) {
        // SAFETY: the flag exists, and nothing uses it any more.
        self.gpu.locked(|| unsafe { sys::rte_gpu_comm_destroy_flag(&raw mut self.flag) });
    }
}
