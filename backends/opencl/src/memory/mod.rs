//! Memory that both host and device use.
//!
//! If the device's memory is the host's (`Gpu::shares_memory`), kernels work on host memory in
//! place: buffers are created over it (`CL_MEM_USE_HOST_PTR`), and mapping one synchronises access
//! without a copy. Verdicts are written directly to the caller's column (`verdict_column`).
//!
//! Otherwise each buffer exists twice: in pinned host memory (`CL_MEM_ALLOC_HOST_PTR`), which stays
//! mapped, and on the device, with asynchronous copies between the two. Pinned columns of verdicts
//! are handed out (`lent_verdicts`).

mod buffers;
mod imports;
mod lent_verdicts;
mod verdict_column;

pub(crate) use buffers::{Download, Upload};
pub(crate) use imports::{ImportCache, ImportedSpan};
pub(crate) use lent_verdicts::LentVerdicts;
pub(crate) use verdict_column::VerdictColumn;
