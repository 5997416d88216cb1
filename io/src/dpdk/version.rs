//! The version of DPDK.

use std::ffi::CStr;

use portcullis_dpdk_sys as sys;

/// DPDK's release, for example `DPDK 22.11.11`.
pub fn version() -> String {
    // SAFETY: the function returns a static zero-terminated string.
    unsafe { CStr::from_ptr(sys::rte_version()) }.to_string_lossy().into_owned()
}

/// Parses year and month of a release such as `DPDK 22.11.11`.
pub(super) fn release(version: &str) -> Option<(u32, u32)> {
    let number = version.trim_start_matches(|c: char| !c.is_ascii_digit());
    let mut parts = number.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}
