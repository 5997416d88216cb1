//! What this thread may do.

/// The capabilities that this thread has, a bit each by their numbers (include/uapi/linux/capability.h), as proc(5) tells; all of them where
/// it does not: what is missing is left to be seen.
pub(crate) fn effective() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(u64::MAX)
}
