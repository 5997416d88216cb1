//! Where all frames are.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::homes::Homes;

/// Tells where a run's frames are.
#[derive(Debug)]
pub struct FrameAudit {
    homes: Arc<Homes>,
    lent: Vec<Arc<AtomicI64>>,
    sending: Vec<Arc<AtomicI64>>,
}

/// Where frames are. While a run goes on, the rest are in batches; in the end there is no rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameCounts {
    /// There are in all.
    pub total: usize,
    /// Nobody needs them now.
    pub free: usize,
    /// The kernel has them to receive into, or has received into them what nobody has taken.
    pub rx: usize,
    /// The kernel has them to send, or has sent them.
    pub tx: usize,
}

impl FrameCounts {
    /// Those that are nowhere else.
    pub fn in_batches(&self) -> isize {
        self.total as isize - (self.free + self.rx + self.tx) as isize
    }
}

impl FrameAudit {
    pub(crate) fn new(homes: Arc<Homes>, lent: Vec<Arc<AtomicI64>>, sending: Vec<Arc<AtomicI64>>) -> FrameAudit {
        FrameAudit { homes, lent, sending }
    }

    /// Where frames are now: exact when neither a receiver nor an executor is at work.
    pub fn frames(&self) -> FrameCounts {
        let sum = |counts: &[Arc<AtomicI64>]| {
            counts.iter().map(|count| count.load(Ordering::Relaxed).max(0) as usize).sum::<usize>()
        };
        FrameCounts { total: self.homes.all(), free: self.homes.count(), rx: sum(&self.lent), tx: sum(&self.sending) }
    }
}
