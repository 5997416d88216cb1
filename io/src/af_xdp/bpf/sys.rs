//! Maps, programs and links of the bpf(2) system call, each a descriptor that is closed when dropped. What an error
//! means is said by whoever asked.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::from_ref;

use libbpf_sys as bpf;

use super::insn::Insn;

/// Where the verifier writes; what is longer loses its beginning.
const LOG_BYTES: usize = 1 << 20;

/// What libbpf gave back: its errors are negative numbers of errno.h.
fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

/// A descriptor that libbpf made, or its error.
fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: it was just made, and is nobody else's.
    checked(result).map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// BPF_MAP_TYPE_XSKMAP: a socket for each receive queue.
#[derive(Debug)]
pub struct XskMap(OwnedFd);

impl XskMap {
    pub fn create(entries: u32) -> io::Result<XskMap> {
        let (key, value) = (size_of::<u32>() as u32, size_of::<RawFd>() as u32);
        let name = c"portcullis_xsks";
        // SAFETY: the name is a string, and no options are a null pointer.
        let made = unsafe {
            bpf::bpf_map_create(bpf::BPF_MAP_TYPE_XSKMAP, name.as_ptr(), key, value, entries, std::ptr::null())
        };
        owned(made).map(XskMap)
    }

    pub fn set(&self, queue: u32, socket: RawFd) -> io::Result<()> {
        let (key, value) = (from_ref(&queue).cast(), from_ref(&socket).cast());
        // SAFETY: key and value are as long as the map was made for.
        checked(unsafe { bpf::bpf_map_update_elem(self.0.as_raw_fd(), key, value, bpf::BPF_ANY.into()) }).map(drop)
    }

    pub fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Why a program was not loaded.
#[derive(Debug)]
pub struct LoadError {
    pub error: io::Error,
    /// What the verifier says; empty where it was not asked.
    pub log: String,
}

/// A loaded program.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// `flags` are those of `prog_flags`.
    pub fn load(kind: bpf::bpf_prog_type, name: &CStr, insns: &[Insn], flags: u32) -> Result<Program, LoadError> {
        let mut log = vec![0u8; LOG_BYTES];
        // With `log_level` 0 libbpf asks for the log only after a failure.
        let mut options = bpf::bpf_prog_load_opts {
            sz: size_of::<bpf::bpf_prog_load_opts>() as bpf::size_t,
            prog_flags: flags,
            log_buf: log.as_mut_ptr().cast(),
            log_size: LOG_BYTES as u32,
            ..Default::default()
        };
        // SAFETY: `Insn` has the layout of `bpf_insn`; strings, instructions, options and log outlive the call.
        let made = unsafe {
            bpf::bpf_prog_load(
                kind,
                name.as_ptr(),
                // None of the helpers that are called asks for more.
                c"MIT".as_ptr(),
                insns.as_ptr().cast(),
                insns.len() as bpf::size_t,
                &mut options,
            )
        };
        owned(made).map(Program).map_err(|error| {
            log.truncate(log.iter().position(|&byte| byte == 0).unwrap_or(log.len()));
            LoadError { error, log: String::from_utf8_lossy(&log).trim_end().to_owned() }
        })
    }

    fn info(&self) -> io::Result<bpf::bpf_prog_info> {
        let mut info = bpf::bpf_prog_info::default();
        let mut length = size_of_val(&info) as u32;
        // SAFETY: the kernel writes no more than `length` bytes, and all bytes are values of the structure's fields.
        checked(unsafe { bpf::bpf_prog_get_info_by_fd(self.0.as_raw_fd(), &mut info, &mut length) })?;
        Ok(info)
    }

    /// Its number, by which `bpftool` knows it.
    pub fn id(&self) -> io::Result<u32> {
        self.info().map(|info| info.id)
    }

    /// How many instructions the verifier went through.
    #[cfg(test)]
    pub fn verified_insns(&self) -> io::Result<u32> {
        self.info().map(|info| info.verified_insns)
    }

    /// Runs it once over a frame (BPF_PROG_TEST_RUN), and gives its result.
    #[cfg(test)]
    pub fn test_run(&self, frame: &[u8]) -> io::Result<u32> {
        let mut options = bpf::bpf_test_run_opts {
            sz: size_of::<bpf::bpf_test_run_opts>() as bpf::size_t,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: the frame outlives the call, and nothing is written but the options.
        checked(unsafe { bpf::bpf_prog_test_run_opts(self.0.as_raw_fd(), &mut options) })?;
        Ok(options.retval)
    }
}

/// A program's place at an interface, which it leaves when the last descriptor is closed, and be it by the end of the
/// process.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// `flags` are those of the attach type.
    pub fn create(program: &Program, interface: u32, kind: bpf::bpf_attach_type, flags: u32) -> io::Result<Link> {
        // The kernel's numbers of interfaces are positive and signed.
        let interface = i32::try_from(interface).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
        let options = bpf::bpf_link_create_opts {
            sz: size_of::<bpf::bpf_link_create_opts>() as bpf::size_t,
            flags,
            ..Default::default()
        };
        // SAFETY: the options outlive the call.
        owned(unsafe { bpf::bpf_link_create(program.0.as_raw_fd(), interface, kind, &options) }).map(Link)
    }

    /// Whether the kernel knows links of this type: it looks for the interface then, and finds none.
    pub fn is_known(program: &Program, kind: bpf::bpf_attach_type) -> bool {
        match Link::create(program, i32::MAX as u32, kind, 0) {
            Err(error) => error.raw_os_error() == Some(libc::ENODEV),
            Ok(_) => true,
        }
    }

    /// The interface where it is, 0 once that is gone; for links of XDP and tcx.
    pub fn interface(&self) -> io::Result<u32> {
        let mut info = bpf::bpf_link_info::default();
        let mut length = size_of_val(&info) as u32;
        // SAFETY: the kernel writes no more than `length` bytes, and all bytes are values of the structure's fields.
        checked(unsafe { bpf::bpf_link_get_info_by_fd(self.0.as_raw_fd(), &mut info, &mut length) })?;
        // SAFETY: in either member the first field is the interface's number.
        Ok(unsafe { info.__bindgen_anon_1.xdp.ifindex })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // To close it is not always enough: a child that another thread is making has all descriptors until it runs its
        // program. Before Linux 5.10 it has to be enough; and once the interface is gone there is nothing to detach.
        // SAFETY: it takes no memory.
        let _ = unsafe { bpf::bpf_link_detach(self.0.as_raw_fd()) };
    }
}

/// The XDP program at an interface, by its number; `None` where there is none or nobody says.
pub fn xdp_program_at(interface: u32) -> Option<u32> {
    let mut options =
        bpf::bpf_xdp_query_opts { sz: size_of::<bpf::bpf_xdp_query_opts>() as bpf::size_t, ..Default::default() };
    // SAFETY: libbpf writes no more than `sz` bytes.
    checked(unsafe { bpf::bpf_xdp_query(i32::try_from(interface).ok()?, 0, &mut options) }).ok()?;
    [options.drv_prog_id, options.skb_prog_id, options.hw_prog_id, options.prog_id].into_iter().find(|&id| id != 0)
}

/// An interface's number, in this thread's network namespace.
pub fn interface_index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is a string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}
