//! Redirect targets that stand for all devices of a map (`BPF_F_BROADCAST`). The executor of
//! verdicts replaces them by the map's entries.

/// Upper bound on such targets; a map needs up to two.
pub(super) const MAX_BROADCASTS: u32 = 32;

/// The first such target; they are the highest target numbers.
pub(super) const FIRST_TARGET: u32 = (1 << 24) - MAX_BROADCASTS;

/// A target that stands for all ports in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broadcast {
    /// Number of the target.
    pub target: u32,
    /// Index of the map in the filter. The first word of each value is a port; 0 is none.
    pub map: usize,
    /// Whether the ingress port is excluded (`BPF_F_EXCLUDE_INGRESS`).
    pub exclude_ingress: bool,
}
