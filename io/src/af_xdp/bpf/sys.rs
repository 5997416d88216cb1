//! Maps, programs and links through bpf(2), each a file descriptor that is closed on drop. Callers
//! add context to the errors.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::from_ref;

use libbpf_sys as bpf;

use super::insn::Insn;

/// Size of the verifier log in bytes; a longer log loses its beginning.
const LOG_BYTES: usize = 1 << 20;

/// Converts a libbpf result, where errors are negative errno values.
fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

/// Takes ownership of a descriptor that libbpf returned, or converts its error.
fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor was just created; nothing else owns it.
    checked(result).map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A map of type BPF_MAP_TYPE_XSKMAP: one socket per receive queue.
#[derive(Debug)]
pub struct XskMap(OwnedFd);

impl XskMap {
    pub fn create(entries: u32) -> io::Result<XskMap> {
        let (key, value) = (size_of::<u32>() as u32, size_of::<RawFd>() as u32);
        let name = c"portcullis_xsks";
        // SAFETY: the name is zero-terminated, and null options are allowed.
        let made = unsafe {
            bpf::bpf_map_create(bpf::BPF_MAP_TYPE_XSKMAP, name.as_ptr(), key, value, entries, std::ptr::null())
        };
        owned(made).map(XskMap)
    }

    pub fn set(&self, queue: u32, socket: RawFd) -> io::Result<()> {
        let (key, value) = (from_ref(&queue).cast(), from_ref(&socket).cast());
        // SAFETY: key and value have the map's sizes.
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
    /// The verifier's log; empty if the verifier did not run.
    pub log: String,
}

/// A loaded program.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads a program; `flags` are for `prog_flags`.
    pub fn load(kind: bpf::bpf_prog_type, name: &CStr, insns: &[Insn], flags: u32) -> Result<Program, LoadError> {
        let mut log = vec![0u8; LOG_BYTES];
        // With `log_level` 0 libbpf requests the log only after a failure.
        let mut options = bpf::bpf_prog_load_opts {
            sz: size_of::<bpf::bpf_prog_load_opts>() as bpf::size_t,
            prog_flags: flags,
            log_buf: log.as_mut_ptr().cast(),
            log_size: LOG_BYTES as u32,
            ..Default::default()
        };
        // SAFETY: `Insn` has the layout of `bpf_insn`; all pointers outlive the call.
        let made = unsafe {
            bpf::bpf_prog_load(
                kind,
                name.as_ptr(),
                // The called helpers do not require GPL.
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
        // SAFETY: the kernel writes at most `length` bytes, and any bytes are valid in the
        // structure.
        checked(unsafe { bpf::bpf_prog_get_info_by_fd(self.0.as_raw_fd(), &mut info, &mut length) })?;
        Ok(info)
    }

    /// ID of the program, as shown by `bpftool`.
    pub fn id(&self) -> io::Result<u32> {
        self.info().map(|info| info.id)
    }

    /// Number of instructions that the verifier processed.
    #[cfg(test)]
    pub fn verified_insns(&self) -> io::Result<u32> {
        self.info().map(|info| info.verified_insns)
    }

    /// Runs the program once on a frame (BPF_PROG_TEST_RUN); returns its result.
    #[cfg(test)]
    pub fn test_run(&self, frame: &[u8]) -> io::Result<u32> {
        let mut options = bpf::bpf_test_run_opts {
            sz: size_of::<bpf::bpf_test_run_opts>() as bpf::size_t,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: the frame outlives the call, and only the options are written.
        checked(unsafe { bpf::bpf_prog_test_run_opts(self.0.as_raw_fd(), &mut options) })?;
        Ok(options.retval)
    }
}

/// A BPF link: an attached program. It is detached when the last descriptor is closed, also when
/// the process is killed.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Attaches a program; `flags` are those of the attach type.
    pub fn create(program: &Program, interface: u32, kind: bpf::bpf_attach_type, flags: u32) -> io::Result<Link> {
        // The kernel's interface indexes are positive signed integers.
        let interface = i32::try_from(interface).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
        let options = bpf::bpf_link_create_opts {
            sz: size_of::<bpf::bpf_link_create_opts>() as bpf::size_t,
            flags,
            ..Default::default()
        };
        // SAFETY: the options outlive the call.
        owned(unsafe { bpf::bpf_link_create(program.0.as_raw_fd(), interface, kind, &options) }).map(Link)
    }

    /// Whether the kernel supports links of this type: if so, it looks for the interface, which
    /// does not exist.
    pub fn is_known(program: &Program, kind: bpf::bpf_attach_type) -> bool {
        match Link::create(program, i32::MAX as u32, kind, 0) {
            Err(error) => error.raw_os_error() == Some(libc::ENODEV),
            Ok(_) => true,
        }
    }

    /// Index of the interface, 0 once that is removed; for links of XDP and tcx.
    pub fn interface(&self) -> io::Result<u32> {
        let mut info = bpf::bpf_link_info::default();
        let mut length = size_of_val(&info) as u32;
        // SAFETY: the kernel writes at most `length` bytes, and any bytes are valid in the
        // structure.
        checked(unsafe { bpf::bpf_link_get_info_by_fd(self.0.as_raw_fd(), &mut info, &mut length) })?;
        // SAFETY: both union members start with the interface index.
        Ok(unsafe { info.__bindgen_anon_1.xdp.ifindex })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Closing the descriptor is not always enough: a child process between fork and exec may
        // still hold it. Ignore failure: before Linux 5.10 there is no detach, and once the
        // interface is removed nothing to detach. SAFETY: the call takes no pointers.
        // SAFETY: it takes no memory.
        let _ = unsafe { bpf::bpf_link_detach(self.0.as_raw_fd()) };
    }
}

/// ID of the XDP program at an interface; `None` if there is none or the query fails.
pub fn xdp_program_at(interface: u32) -> Option<u32> {
    let mut options =
        bpf::bpf_xdp_query_opts { sz: size_of::<bpf::bpf_xdp_query_opts>() as bpf::size_t, ..Default::default() };
    // SAFETY: libbpf writes at most `sz` bytes.
    checked(unsafe { bpf::bpf_xdp_query(i32::try_from(interface).ok()?, 0, &mut options) }).ok()?;
    [options.drv_prog_id, options.skb_prog_id, options.hw_prog_id, options.prog_id].into_iter().find(|&id| id != 0)
}

/// Index of an interface in the calling thread's network namespace.
pub fn interface_index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is zero-terminated.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}
