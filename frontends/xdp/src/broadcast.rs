//! Targets that stand for several ports: all of a map's devices (`BPF_F_BROADCAST`). Whoever carries verdicts out puts the map's
//! entries in their place.

/// How many there may be: two for each map.
pub(super) const MAX_BROADCASTS: u32 = 32;

/// The first of them; they are the last targets that there are.
pub(super) const FIRST_TARGET: u32 = (1 << 24) - MAX_BROADCASTS;

/// A target that stands for all ports in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broadcast {
    /// The target.
    pub target: u32,
    /// The map, by its number in the filter. The first word of each value is a port; 0 is none.
    pub map: usize,
    /// Whether a packet does not go to the port that it came in by (`BPF_F_EXCLUDE_INGRESS`).
    pub exclude_ingress: bool,
}
