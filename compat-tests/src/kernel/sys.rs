//! Wrappers of `bpf(2)`, with `union bpf_attr` laid out as in linux/bpf.h.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

#[path = "../../../io/src/bpf_call.rs"]
mod bpf_call;
use bpf_call::Attributes;

const MAP_CREATE: i32 = 0;
const MAP_LOOKUP_ELEM: i32 = 1;
const MAP_UPDATE_ELEM: i32 = 2;
const MAP_GET_NEXT_KEY: i32 = 4;
const PROG_LOAD: i32 = 5;
const PROG_TEST_RUN: i32 = 10;
const BTF_LOAD: i32 = 18;
const LINK_CREATE: i32 = 28;

/// `BPF_XDP` of `enum bpf_attach_type`, and `XDP_FLAGS_DRV_MODE` of linux/if_link.h (run in the
/// driver).
const XDP: u32 = 37;
const IN_DRIVER: u32 = 1 << 2;

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just returned this descriptor, so nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub fn map_create(ty: u32, key: u32, value: u32, entries: u32, flags: u32, inner: Option<i32>) -> io::Result<OwnedFd> {
    let attributes = Attributes::new().u32(0, ty).u32(4, key).u32(8, value).u32(12, entries).u32(16, flags);
    let mut attributes = attributes.u32(20, inner.unwrap_or(0) as u32);
    // SAFETY: the attributes hold no pointers.
    unsafe { attributes.execute(MAP_CREATE) }.map(owned)
}

pub fn update(map: i32, key: &[u8], value: &[u8]) -> io::Result<()> {
    let attributes = Attributes::new().u32(0, map as u32).pointer(8, key.as_ptr()).pointer(16, value.as_ptr());
    // SAFETY: the caller passes a key and a value of the map's sizes.
    unsafe { { attributes }.execute(MAP_UPDATE_ELEM) }.map(drop)
}

/// Returns the value of a key, of `size` bytes, or `None` if the map has no such key.
pub fn lookup(map: i32, key: &[u8], size: usize) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0_u8; size];
    let attributes = Attributes::new().u32(0, map as u32).pointer(8, key.as_ptr());
    let mut attributes = attributes.pointer(16, value.as_mut_ptr());
    // SAFETY: the caller passes the map's key and value sizes.
    match unsafe { attributes.execute(MAP_LOOKUP_ELEM) } {
        Ok(_) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the key that follows `key`, or the first if there is none.
pub fn next_key(map: i32, key: Option<&[u8]>, size: usize) -> io::Result<Option<Vec<u8>>> {
    let mut next = vec![0_u8; size];
    let at = key.map_or(std::ptr::null(), <[u8]>::as_ptr);
    let mut attributes = Attributes::new().u32(0, map as u32).pointer(8, at).pointer(16, next.as_mut_ptr());
    // SAFETY: the caller passes the map's key size.
    match unsafe { attributes.execute(MAP_GET_NEXT_KEY) } {
        Ok(_) => Ok(Some(next)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Attaches a program to an interface of this thread's network namespace until the link is closed.
pub fn link(program: i32, interface: u32) -> io::Result<OwnedFd> {
    let attributes = Attributes::new().u32(0, program as u32).u32(4, interface).u32(8, XDP).u32(12, IN_DRIVER);
    // SAFETY: the attributes hold no pointers.
    unsafe { { attributes }.execute(LINK_CREATE) }.map(owned)
}

/// Loads minimal BTF for functions, which the kernel requires if a function is passed as a
/// callback. All functions get the same type.
fn types(functions: usize) -> io::Result<OwnedFd> {
    let strings = b"\0int\0f\0";
    let mut types: Vec<u32> = Vec::new();
    // 1: a signed 4-byte INT; 2: a FUNC_PROTO that returns it; then one static FUNC per function.
    types.extend([1, 1 << 24, 4, 1 << 24 | 32]);
    types.extend([0, 13 << 24, 1]);
    (0..functions).for_each(|_| types.extend([5, 12 << 24, 2]));
    let length = 4 * types.len() as u32;
    let mut bytes: Vec<u8> = Vec::new();
    let header = [0x0001_eb9f, 24, 0, length, length, strings.len() as u32];
    header.iter().chain(&types).for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(strings);
    let mut attributes = Attributes::new().pointer(0, bytes.as_ptr()).u32(16, bytes.len() as u32);
    // SAFETY: the attributes give the length of the types.
    unsafe { attributes.execute(BTF_LOAD) }.map(owned)
}

/// Loads a program; `functions` holds the first instruction of each function, the entry function
/// first.
pub fn program_load(ty: u32, instructions: &[u64], functions: &[u32]) -> Result<OwnedFd, String> {
    match program_load_with(ty, instructions, functions, 0) {
        Ok((fd, _)) => Ok(fd),
        Err(_) => program_load_with(ty, instructions, functions, 1).map(|(fd, _)| fd),
    }
}

/// Loads a program and returns the verifier's log; at level 2 it lists every path.
///
/// # Errors
/// See [`program_load`].
pub fn program_load_with(
    ty: u32,
    instructions: &[u64],
    functions: &[u32],
    level: u32,
) -> Result<(OwnedFd, String), String> {
    let types = types(functions.len()).map_err(|error| format!("types of functions: {error}"))?;
    let info: Vec<u32> = (0..).zip(functions).flat_map(|(number, first)| [*first, 3 + number]).collect();
    let mut log = vec![0_u8; 1 << 20];
    let loaded = {
        use std::os::fd::AsRawFd as _;
        let attributes = Attributes::new().u32(0, ty).u32(4, instructions.len() as u32);
        let attributes = attributes.pointer(8, instructions.as_ptr()).pointer(16, c"GPL".as_ptr()).u32(24, level);
        let attributes =
            if level > 0 { attributes.u32(28, log.len() as u32).pointer(32, log.as_mut_ptr()) } else { attributes };
        let attributes = attributes.u32(72, types.as_raw_fd() as u32).u32(76, 8).pointer(80, info.as_ptr());
        let mut attributes = attributes.u32(88, functions.len() as u32);
        // SAFETY: the attributes give the lengths of the instructions, licence, log and functions.
        unsafe { attributes.execute(PROG_LOAD) }
    };
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    let said = String::from_utf8_lossy(&log[..end]).into_owned();
    match loaded {
        Ok(fd) => Ok((owned(fd), said)),
        Err(error) => {
            let lines: Vec<&str> = said.lines().collect();
            let last = &lines[lines.len().saturating_sub(12)..];
            Err(format!("{error}\n{}", last.join("\n")))
        }
    }
}

/// Runs a program over a packet received on an interface of this thread's network namespace (0
/// means the loopback interface). Returns the program's return value and the packet, without
/// metadata in front of it.
pub fn test_run(program: i32, packet: &[u8], interface: u32) -> io::Result<(u32, Vec<u8>)> {
    // More than the program can add at both ends of the packet.
    let mut out = vec![0_u8; packet.len() + 4096];
    let attributes = Attributes::new().u32(0, program as u32).u32(8, packet.len() as u32).u32(12, out.len() as u32);
    // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex and more. Offsets in the context
    // that the kernel returns count from the start of the metadata, as the packet does.
    let context = [0, packet.len() as u32, 0, interface, 0, 0];
    let mut context_out = context;
    let attributes = attributes.u32(40, size_of_val(&context) as u32).u32(44, size_of_val(&context_out) as u32);
    let attributes = attributes.pointer(48, context.as_ptr()).pointer(56, context_out.as_mut_ptr());
    let mut attributes = attributes.pointer(16, packet.as_ptr()).pointer(24, out.as_mut_ptr()).u32(32, 1);
    // SAFETY: the attributes give the lengths of both packets and both contexts.
    unsafe { attributes.execute(PROG_TEST_RUN) }?;
    out.truncate(attributes.get(12) as usize);
    out.drain(..(context_out[0] as usize).min(out.len()));
    Ok((attributes.get(4), out))
}

/// Runs a program over a packet `times` times.
pub fn test_run_times(program: i32, packet: &[u8], times: u32) -> io::Result<()> {
    let attributes = Attributes::new().u32(0, program as u32).u32(8, packet.len() as u32);
    let mut attributes = attributes.pointer(16, packet.as_ptr()).u32(32, times);
    // SAFETY: the attributes give the packet's length, and the kernel writes no packet back.
    unsafe { attributes.execute(PROG_TEST_RUN) }.map(drop)
}

/// Returns the number of possible CPUs, for each of which a per-CPU map has a value.
pub fn processors() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    last.map_or(1, |last| last + 1)
}

/// Opens a CPU's perf event for programs to write to (`PERF_COUNT_SW_BPF_OUTPUT`,
/// linux/perf_event.h).
pub fn perf_event_of_bpf(processor: u32) -> io::Result<OwnedFd> {
    const SOFTWARE: u32 = 1;
    const BPF_OUTPUT: u64 = 10;
    const RAW: u64 = 1 << 10;
    const CLOEXEC: u64 = 8;
    const ENABLE: libc::c_ulong = 0x2400;
    // The first version of `struct perf_event_attr`, 64 bytes: type and size, config, period,
    // sample type.
    let size = 64_u32;
    let attributes = [u64::from(SOFTWARE) | u64::from(size) << 32, BPF_OUTPUT, 1, RAW, 0, 0, 0, 0];
    // SAFETY: the attributes hold their own length.
    let fd =
        unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), -1, processor as i32, -1, CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let event = owned(fd as i32);
    // SAFETY: this `ioctl` takes no argument.
    match unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&event), ENABLE, 0) } {
        0.. => Ok(event),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Memory shared with the kernel.
#[derive(Debug)]
pub struct Mapping {
    address: *mut u8,
    length: usize,
}

// SAFETY: the contents are read atomically, or after the kernel has finished writing them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(fd: i32, length: usize, offset: usize, writes: bool) -> io::Result<Mapping> {
        let may = libc::PROT_READ | if writes { libc::PROT_WRITE } else { 0 };
        // SAFETY: the kernel chooses an unused address.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, may, libc::MAP_SHARED, fd, offset as libc::off_t) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { address: address.cast(), length })
    }

    pub fn address(&self) -> *mut u8 {
        self.address
    }

    pub fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped with this length, and no reference to it is left.
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}

pub fn on_first_processor() {
    // SAFETY: a CPU set is a plain array of bits, and all zeros is the empty set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
