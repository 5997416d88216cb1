//! XDP programs that return the same verdict for every frame.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_sys as bpf;

use crate::veth::End;

/// An XDP program loaded into the kernel that returns one fixed verdict.
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
        // SAFETY: `code` outlives the call and has the stated number of instructions; there are no
        // options.
        let fd = unsafe {
            bpf::bpf_prog_load(
                bpf::BPF_PROG_TYPE_XDP,
                c"fixed_verdict".as_ptr(),
                c"GPL".as_ptr(),
                code.as_ptr().cast(),
                code.len() as bpf::size_t,
                std::ptr::null_mut(),
            )
        };
        assert!(fd >= 0, "loading a program: {}", Error::from_raw_os_error(-fd));
        // SAFETY: the call has just returned this descriptor, and nothing else owns it.
        KernelXdp(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Attaches the program at an end of a link in native mode, for as long as the returned
    /// descriptor is open.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn attach(&self, end: &End) -> OwnedFd {
        end.namespace().run(|| {
            // SAFETY: there are no options.
            let fd =
                unsafe { bpf::bpf_link_create(self.fd(), index(end.name()) as i32, bpf::BPF_XDP, std::ptr::null()) };
            assert!(fd >= 0, "a program at {}: {}", end.name(), Error::from_raw_os_error(-fd));
            // SAFETY: the call has just returned this descriptor, and nothing else owns it.
            unsafe { OwnedFd::from_raw_fd(fd) }
        })
    }

    pub(crate) fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Returns the index of an interface of this thread's namespace.
pub(crate) fn index(name: &str) -> u32 {
    let name = CString::new(name).expect("an interface name without NUL");
    // SAFETY: the name is NUL-terminated and only read.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}
