//! Capabilities of the calling thread.

/// The calling thread's effective capabilities (proc(5)), one bit each, numbered as in
/// include/uapi/linux/capability.h. If they cannot be read, all bits are set, so that the operation
/// itself reports what is missing.
pub(crate) fn effective() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(u64::MAX)
}
