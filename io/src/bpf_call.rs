//! The system call bpf(2), of which a command's arguments are fields of `union bpf_attr` (linux/bpf.h) by their offsets. The tests
//! that ask the kernel what is right have this file as a module of theirs.
#![allow(unsafe_code)]

use std::io;

/// Bytes of the attributes: more than the commands here have. What a kernel does not know of has to be zeros.
const SIZE: usize = 152;

/// Attributes in the processor's order of bytes.
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

    /// What the kernel has written there.
    pub(crate) fn get(&self, at: usize) -> u32 {
        self.0[at..].first_chunk().copied().map_or(0, u32::from_ne_bytes)
    }

    /// Asks the kernel.
    ///
    /// # Safety
    /// What the attributes point to lives, and is as long as the command takes it for.
    pub(crate) unsafe fn ask(&mut self, command: libc::c_int) -> io::Result<libc::c_int> {
        // SAFETY: the attributes are as long as is said, and what they point to is the caller's to answer for.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), SIZE) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
    }
}
