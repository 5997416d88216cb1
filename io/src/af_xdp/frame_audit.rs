//! Accounting for all frames of a run, to detect leaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::frame_pool::FramePool;

/// Counts a run's frames by their location.
#[derive(Debug)]
pub struct FrameAudit {
    pool: Arc<FramePool>,
    kernel_frames: Vec<Arc<AtomicI64>>,
    in_rings: Vec<Arc<AtomicI64>>,
}

/// Numbers of frames by location. While a run is active, the others are in batches; at the end
/// there must be no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameCounts {
    /// Total number of frames.
    pub total: usize,
    /// Frames in the pool's free lists.
    pub free: usize,
    /// Frames in fill and RX rings.
    pub rx: usize,
    /// Frames in TX and completion rings.
    pub tx: usize,
}

impl FrameCounts {
    /// Number of frames in none of these places: in batches, or leaked.
    pub fn in_batches(&self) -> isize {
        self.total as isize - (self.free + self.rx + self.tx) as isize
    }
}

impl FrameAudit {
    pub(crate) fn new(
        pool: Arc<FramePool>,
        kernel_frames: Vec<Arc<AtomicI64>>,
        in_rings: Vec<Arc<AtomicI64>>,
    ) -> FrameAudit {
        FrameAudit { pool, kernel_frames, in_rings }
    }

    /// Counts the frames. Exact only while no receiver or executor is active.
    pub fn frames(&self) -> FrameCounts {
        let sum = |counts: &[Arc<AtomicI64>]| {
            counts.iter().map(|count| count.load(Ordering::Relaxed).max(0) as usize).sum::<usize>()
        };
        FrameCounts {
            total: self.pool.total_frames(),
            free: self.pool.free_frames(),
            rx: sum(&self.kernel_frames),
            tx: sum(&self.in_rings),
        }
    }
}
