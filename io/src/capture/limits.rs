//! Limits of captures.

/// Maximum length of a packet in bytes, as in libpcap (`MAXIMUM_SNAPLEN`).
pub const MAX_PACKET: usize = 262_144;
