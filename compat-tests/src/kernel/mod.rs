//! XDP programs in the Linux kernel, which is the reference: a loader that needs no libbpf, and the
//! kernel's test run (`BPF_PROG_TEST_RUN`). Requires root.
#![allow(unsafe_code)]

mod events;
mod link;
mod sys;
mod trace;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use portcullis_xdp::MapDefinition;
use portcullis_xdp::instruction::Instruction;
use portcullis_xdp::object::{MapType, Object};

use events::{PerfBuffer, RingBuffer};
pub use link::Linked;
use trace::Trace;

/// Program type of `enum bpf_prog_type`.
const BPF_PROG_TYPE_XDP: u32 = 6;

/// A program of an object loaded into the kernel, with maps of its own.
#[derive(Debug)]
pub struct KernelProgram {
    program: OwnedFd,
    maps: Vec<Option<OwnedFd>>,
    definitions: Vec<MapDefinition>,
    /// Programs referenced by program arrays.
    _others: Vec<OwnedFd>,
    /// Readers of the ring buffers, by map number.
    rings: Vec<(usize, RingBuffer)>,
    perf: Vec<(usize, PerfBuffer)>,
    /// Reader of the program's prints, or why it cannot be opened; `None` if the program does not
    /// print.
    prints: Option<Result<Trace, String>>,
}

/// Result of the kernel's run over one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRun {
    /// The program's return value.
    pub verdict: u32,
    /// The packet after the run.
    pub packet: Vec<u8>,
    /// Records sent to the host, in order, by map name; prints are under [`PRINTS`].
    pub host_records: BTreeMap<String, Vec<Vec<u8>>>,
}

/// Name of the prints among the records sent to the host.
pub const PRINTS: &str = "printk";

/// Contents of a map: keys and values, ordered by the bytes of the keys.
pub type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

impl KernelProgram {
    /// Loads a program of an object.
    ///
    /// # Errors
    /// The kernel's message; for a rejected program, the last lines of the verifier's log.
    pub fn load(object: &Object, name: &str) -> Result<KernelProgram, String> {
        let (maps, fds) = create_all(object)?;
        let load = |name: &str| {
            let linked = Linked::of(object, name, &fds)?;
            sys::program_load(BPF_PROG_TYPE_XDP, &linked.instructions, &linked.functions)
        };
        let program = load(name)?;
        let mut others = Vec::new();
        for (map, fd) in object.maps.iter().zip(&fds) {
            for slot in &map.slots {
                let value = if map.ty == MapType::PROG_ARRAY {
                    let other = load(&slot.symbol)?;
                    let fd = other.as_raw_fd();
                    others.push(other);
                    fd
                } else {
                    let number = object.maps.iter().position(|it| it.name == slot.symbol);
                    number.map_or(-1, |number| fds[number])
                };
                let key = slot.index.to_le_bytes();
                sys::update(*fd, &key, &value.to_le_bytes())
                    .map_err(|error| format!("slot {} of `{}`: {error}", slot.index, map.name))?;
            }
        }
        let (mut rings, mut perf) = (Vec::new(), Vec::new());
        for (number, (map, fd)) in object.maps.iter().zip(&maps).enumerate() {
            let Some(fd) = fd else { continue };
            let fail = |error: io::Error| format!("reading the map `{}`: {error}", map.name);
            match map.ty {
                MapType::RINGBUF => rings.push((number, RingBuffer::open(fd, map.max_entries).map_err(fail)?)),
                MapType::PERF_EVENT_ARRAY => perf.push((number, PerfBuffer::open(fd).map_err(fail)?)),
                _ => {}
            }
        }
        let prints = prints(object).then(|| Trace::open().map_err(|error| error.to_string()));
        Ok(KernelProgram { program, maps, definitions: object.maps.clone(), _others: others, rings, perf, prints })
    }

    /// Returns the instructions of a program that the verifier reaches, by number, as its log
    /// prints them.
    ///
    /// # Errors
    /// The kernel's message.
    pub fn shown(object: &Object, name: &str) -> Result<BTreeMap<usize, String>, String> {
        let (_maps, fds) = create_all(object)?;
        let linked = Linked::of(object, name, &fds)?;
        let (_, said) = sys::program_load_with(BPF_PROG_TYPE_XDP, &linked.instructions, &linked.functions, 2)?;
        // `4: (b7) r0 = 2                       ; R0_w=2`
        let instruction = |line: &str| {
            let (number, rest) = line.split_once(": (")?;
            let (_, text) = rest.split_once(") ")?;
            let text = text.split(" ;").next()?.trim_end();
            Some((number.parse().ok()?, text.to_owned()))
        };
        Ok(said.lines().filter_map(instruction).collect())
    }

    /// Returns why the program's prints cannot be read, if it prints.
    pub fn prints_missing(&self) -> Option<&str> {
        self.prints.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Runs the program over a packet.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn run(&self, packet: &[u8]) -> io::Result<KernelRun> {
        self.run_at(packet, 0)
    }

    /// Runs the program over a packet received on an interface of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn run_at(&self, packet: &[u8], interface: u32) -> io::Result<KernelRun> {
        let (verdict, packet) = sys::test_run(self.program.as_raw_fd(), packet, interface)?;
        let mut host_records = BTreeMap::new();
        let mut tell = |map: &str, records: Vec<Vec<u8>>| {
            if !records.is_empty() {
                host_records.insert(map.to_owned(), records);
            }
        };
        self.rings.iter().for_each(|(map, ring)| tell(&self.definitions[*map].name, ring.read()));
        self.perf.iter().for_each(|(map, perf)| tell(&self.definitions[*map].name, perf.read()));
        if let Some(Ok(trace)) = &self.prints {
            tell(PRINTS, trace.read().into_iter().map(String::into_bytes).collect());
        }
        Ok(KernelRun { verdict, packet, host_records })
    }

    /// Runs the program over a packet `times` times.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn run_times(&self, packet: &[u8], times: u32) -> io::Result<()> {
        sys::test_run_times(self.program.as_raw_fd(), packet, times)
    }

    /// Sets a slot of one of the program's program arrays to another program.
    ///
    /// # Errors
    /// If there is no such map, or the kernel's error.
    pub fn call(&self, map: &str, slot: u32, other: &KernelProgram) -> io::Result<()> {
        let number = self.definitions.iter().position(|it| it.name == map).ok_or(io::ErrorKind::NotFound)?;
        let Some(fd) = &self.maps[number] else { return Err(io::ErrorKind::NotFound.into()) };
        sys::update(fd.as_raw_fd(), &slot.to_ne_bytes(), &other.program.as_raw_fd().to_ne_bytes())
    }

    /// Attaches the program to an interface, by its number in this thread's network namespace,
    /// until the returned link is dropped.
    ///
    /// # Errors
    /// The kernel's error, for example if another program is attached or the driver does not
    /// support XDP.
    pub fn attach(&self, interface: u32) -> io::Result<OwnedFd> {
        sys::link(self.program.as_raw_fd(), interface)
    }

    /// Returns the contents of a map, by its number in the object; for per-CPU maps, the values of
    /// CPU 0. `None` if the map type cannot be looked up.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn entries(&self, map: usize) -> io::Result<Option<Entries>> {
        let definition = &self.definitions[map];
        // Programs and buffers, other maps, processors and sockets.
        let ty = definition.ty;
        if ty.has_no_readable_values() || ty.is_map_of_maps() || matches!(ty, MapType::CPUMAP | MapType::XSKMAP) {
            return Ok(None);
        }
        let Some(fd) = &self.maps[map] else { return Ok(None) };
        let (fd, size) = (fd.as_raw_fd(), definition.value_size as usize);
        let per_processor = definition.ty.is_per_cpu();
        let room = if per_processor { size.next_multiple_of(8) * sys::processors() } else { size };
        let mut entries = Entries::new();
        let mut key: Option<Vec<u8>> = None;
        while let Some(next) = sys::next_key(fd, key.as_deref(), definition.key_size as usize)? {
            if let Some(mut value) = sys::lookup(fd, &next, room)? {
                value.truncate(size);
                entries.insert(next.clone(), value);
            }
            key = Some(next);
        }
        Ok(Some(entries))
    }

    /// Sets an entry of a map, by its number in the object.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set(&self, map: usize, key: &[u8], value: &[u8]) -> io::Result<()> {
        let Some(fd) = &self.maps[map] else { return Ok(()) };
        if !self.definitions[map].ty.is_per_cpu() {
            return sys::update(fd.as_raw_fd(), key, value);
        }
        let mut all = vec![0; value.len().next_multiple_of(8) * sys::processors()];
        all[..value.len()].copy_from_slice(value);
        sys::update(fd.as_raw_fd(), key, &all)
    }
}

/// Returns whether any program of the object prints.
fn prints(object: &Object) -> bool {
    // Calls of bpf_trace_printk or bpf_trace_vprintk.
    let calls = |it: &Instruction| (it.code, it.src) == (0x85, 0) && matches!(it.imm, 6 | 177);
    object.sections.iter().any(|section| section.instructions.iter().any(calls))
}

/// Creates an object's maps and returns them with their file descriptors.
fn create_all(object: &Object) -> Result<(Vec<Option<OwnedFd>>, Vec<i32>), String> {
    let maps = object.maps.iter().map(create).collect::<Result<Vec<_>, _>>()?;
    let fds = maps.iter().map(|fd| fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)).collect();
    Ok((maps, fds))
}

/// Creates one map.
fn create(map: &MapDefinition) -> Result<Option<OwnedFd>, String> {
    let fail = |error: io::Error| format!("the map `{}`: {error}", map.name);
    let (key, value, entries) = match map.ty {
        MapType::PERF_EVENT_ARRAY => (4, 4, sys::processors() as u32),
        _ => (map.key_size, map.value_size, map.max_entries),
    };
    // The inner map is only a template for a map of maps, and need not be one of its entries.
    let inner = match &map.inner {
        Some(inner) => create(inner)?,
        None => None,
    };
    let fd = sys::map_create(map.ty.0, key, value, entries, map.flags, inner.as_ref().map(AsRawFd::as_raw_fd));
    let fd = fd.map_err(fail)?;
    if let Some(data) = &map.data {
        sys::update(fd.as_raw_fd(), &0_u32.to_le_bytes(), data).map_err(fail)?;
    }
    Ok(Some(fd))
}

/// Attaches a program that passes every packet, until the returned link is dropped: a veth accepts
/// what a program at its peer sends back only if it has a program of its own.
///
/// # Errors
/// The kernel's error.
pub fn pass(interface: u32) -> Result<OwnedFd, String> {
    // r0 = XDP_PASS; exit
    let program = sys::program_load(BPF_PROG_TYPE_XDP, &[2 << 32 | 0xb7, 0x95], &[0])?;
    sys::link(program.as_raw_fd(), interface).map_err(|error| error.to_string())
}

/// Pins this thread to the first CPU, so that per-CPU counters are updated in one place.
pub fn on_first_processor() {
    sys::on_first_processor();
}

/// Returns why the kernel cannot be used as a reference, or `None` if it can.
pub fn missing() -> Option<String> {
    match sys::map_create(2, 4, 4, 1, 0, None) {
        Ok(_) => None,
        Err(error) => Some(format!("cannot create BPF maps: {error}")),
    }
}
