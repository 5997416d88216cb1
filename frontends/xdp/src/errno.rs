//! Error numbers that helpers return (linux/errno.h).

pub(super) const ENOENT: i32 = -2;
pub(super) const E2BIG: i32 = -7;
pub(super) const EAGAIN: i32 = -11;
pub(super) const EACCES: i32 = -13;
pub(super) const EFAULT: i32 = -14;
pub(super) const EEXIST: i32 = -17;
pub(super) const EINVAL: i32 = -22;
pub(super) const ENOSPC: i32 = -28;
pub(super) const EOPNOTSUPP: i32 = -95;
