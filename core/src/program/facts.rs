//! What is known about a filter before it runs.

/// How far into a packet something may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// No byte at all.
    Nothing,
    /// Bytes `0..n`, counted from the packet's first byte as it arrived.
    Bytes(u32),
    /// No bound is known.
    WholePacket,
}

/// What the analysis knows about a filter. Every entry errs on the safe side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Bytes that may be read.
    pub reads: Window,
    /// Bytes that may be written.
    pub writes: Window,
    /// Whether `adjust_head` or `adjust_tail` may be called.
    pub changes_length: bool,
    /// Whether the verdict may be a redirect.
    pub redirects: bool,
    /// Whether it reads the wire length, the port or the time, so that the batch's metadata matters.
    pub uses_metadata: bool,
    /// Whether it reads the packet's time.
    pub uses_time: bool,
    /// The most loop iterations a packet can cost, where that is known: 0 without loops.
    pub max_iterations: Option<u32>,
    /// Whether 64-bit integers occur.
    pub uses_int64: bool,
    /// Whether floating point occurs: outside the promise of identical results.
    pub uses_float: bool,
}

impl Facts {
    /// Nothing known, everything possible.
    pub fn unknown() -> Facts {
        Facts {
            reads: Window::WholePacket,
            writes: Window::WholePacket,
            changes_length: true,
            redirects: true,
            uses_metadata: true,
            uses_time: true,
            max_iterations: None,
            uses_int64: true,
            uses_float: true,
        }
    }

    /// Whether the filter may change its packet's bytes or length.
    pub fn rewrites(&self) -> bool {
        self.changes_length || self.writes != Window::Nothing
    }
}
