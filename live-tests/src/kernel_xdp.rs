//! XDP programs that say the same of every frame.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_sys as bpf;

use crate::veth::End;

/// A program in the kernel with the same verdict on every frame.
#[derive(Debug)]
pub struct KernelXdp(OwnedFd);

impl KernelXdp {
    /// Loads a program that returns this `xdp_action` (`linux/bpf.h`) for every packet.
    ///
    /// # Panics
    /// If the kernel rejects it.
    pub fn new(action: u32) -> KernelXdp {
        // r0 = action; exit
        let code: [u64; 2] = [0xb7 | u64::from(action) << 32, 0x95];
        // SAFETY: an instruction is eight bytes, of which there are as many as is said; there are
        // no options.
        let made = unsafe {
            bpf::bpf_prog_load(
                bpf::BPF_PROG_TYPE_XDP,
                c"same".as_ptr(),
                c"GPL".as_ptr(),
                code.as_ptr().cast(),
                code.len() as bpf::size_t,
                std::ptr::null_mut(),
            )
        };
        assert!(made >= 0, "loading a program: {}", Error::from_raw_os_error(-made));
        // SAFETY: it was just made, and is nobody else's.
        KernelXdp(unsafe { OwnedFd::from_raw_fd(made) })
    }

    /// Has it decide on what comes in at an end of a link, in the driver, for as long as what this
    /// gives is kept.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn attach(&self, end: &End) -> OwnedFd {
        end.namespace().run(|| {
            // SAFETY: there are no options.
            let made =
                unsafe { bpf::bpf_link_create(self.fd(), index(end.name()) as i32, bpf::BPF_XDP, std::ptr::null()) };
            assert!(made >= 0, "a program at {}: {}", end.name(), Error::from_raw_os_error(-made));
            // SAFETY: it was just made, and is nobody else's.
            unsafe { OwnedFd::from_raw_fd(made) }
        })
    }

    pub(crate) fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// The number of an interface of this thread's namespace.
pub(crate) fn index(name: &str) -> u32 {
    let name = CString::new(name).expect("a name");
    // SAFETY: the name ends with a zero byte, and is read only.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}
