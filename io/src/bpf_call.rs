//! The bpf(2) system call. A command's arguments are fields of `union bpf_attr` (linux/bpf.h),
//! given by offset. Tests that query the kernel include this file as a module.
#![allow(unsafe_code)]

use std::io;

/// Size of the attributes in bytes: more than the commands used here have. Kernels require that
/// fields unknown to them are zero.
const SIZE: usize = 152;

/// Attributes of a bpf(2) command, in native byte order.
#[repr(C, align(8))]
pub(crate) struct Attributes([u8; SIZE]);

impl Attributes {
    pub(crate) fn new() -> Attributes {
        Attributes([0; SIZE])
    }

    pub(crate) fn u32(mut self, at: usize, value: u32) -> Attributes {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn pointer<T>(mut self, at: usize, to: *const T) -> Attributes {
        self.0[at..at + 8].copy_from_slice(&(to as u64).to_ne_bytes());
        self
    }

    /// Reads a field that the kernel has written.
    pub(crate) fn get(&self, at: usize) -> u32 {
        self.0[at..].first_chunk().copied().map_or(0, u32::from_ne_bytes)
    }

    /// Executes the command.
    ///
    /// # Safety
    /// Every pointer in the attributes must be valid, for as many bytes as the command accesses.
    pub(crate) unsafe fn execute(&mut self, command: libc::c_int) -> io::Result<libc::c_int> {
        // SAFETY: the size passed is that of the attributes; the caller vouches for the pointers in
        // them.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), SIZE) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
    }
}
