//! Programs of XDP in the Linux kernel, which says what is right: a loader of our own, and the
//! kernel's test run (`BPF_PROG_TEST_RUN`). It takes root.
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

/// `enum bpf_prog_type`
const BPF_PROG_TYPE_XDP: u32 = 6;

/// A program of an object in the kernel, with maps of its own.
#[derive(Debug)]
pub struct KernelProgram {
    program: OwnedFd,
    maps: Vec<Option<OwnedFd>>,
    definitions: Vec<MapDefinition>,
    /// Programs that maps of programs hold.
    _others: Vec<OwnedFd>,
    /// What reads the maps of events, by their numbers.
    rings: Vec<(usize, RingBuffer)>,
    perf: Vec<(usize, PerfBuffer)>,
    /// What reads prints; why they are not read, where there are some.
    prints: Option<Result<Trace, String>>,
}

/// What the kernel made of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRun {
    /// What the program returned.
    pub verdict: u32,
    /// The packet.
    pub packet: Vec<u8>,
    /// Records sent to the host, in order, by map name; prints are under [`PRINTS`].
    pub told: BTreeMap<String, Vec<Vec<u8>>>,
}

/// What prints go by.
pub const PRINTS: &str = "printk";

/// Contents of a map: keys and values, ordered by the bytes of the keys.
pub type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

impl KernelProgram {
    /// Loads a program of an object.
    ///
    /// # Errors
    /// What the kernel says: of a program the verifier's last lines.
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

    /// Instructions of a program, by their numbers, as the verifier shows them where it comes to
    /// them.
    ///
    /// # Errors
    /// What the kernel says.
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

    /// Why the prints of the program are not read.
    pub fn prints_missing(&self) -> Option<&str> {
        self.prints.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Runs it over a packet.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run(&self, packet: &[u8]) -> io::Result<KernelRun> {
        self.run_at(packet, 0)
    }

    /// Runs the program over a packet received on an interface of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run_at(&self, packet: &[u8], interface: u32) -> io::Result<KernelRun> {
        let (verdict, packet) = sys::test_run(self.program.as_raw_fd(), packet, interface)?;
        let mut told = BTreeMap::new();
        let mut tell = |map: &str, records: Vec<Vec<u8>>| {
            if !records.is_empty() {
                told.insert(map.to_owned(), records);
            }
        };
        self.rings.iter().for_each(|(map, ring)| tell(&self.definitions[*map].name, ring.read()));
        self.perf.iter().for_each(|(map, perf)| tell(&self.definitions[*map].name, perf.read()));
        if let Some(Ok(trace)) = &self.prints {
            tell(PRINTS, trace.read().into_iter().map(String::into_bytes).collect());
        }
        Ok(KernelRun { verdict, packet, told })
    }

    /// Runs it over a packet so many times.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run_times(&self, packet: &[u8], times: u32) -> io::Result<()> {
        sys::test_run_times(self.program.as_raw_fd(), packet, times)
    }

    /// Has one of its maps of programs hold another program.
    ///
    /// # Errors
    /// There is no such map; the kernel's.
    pub fn call(&self, map: &str, slot: u32, other: &KernelProgram) -> io::Result<()> {
        let number = self.definitions.iter().position(|it| it.name == map).ok_or(io::ErrorKind::NotFound)?;
        let Some(fd) = &self.maps[number] else { return Err(io::ErrorKind::NotFound.into()) };
        sys::update(fd.as_raw_fd(), &slot.to_ne_bytes(), &other.program.as_raw_fd().to_ne_bytes())
    }

    /// Has it see the packets of an interface, by its number in this thread's network namespace,
    /// until what is given back is dropped.
    ///
    /// # Errors
    /// The kernel's: there is another program, or the driver takes none.
    pub fn attach(&self, interface: u32) -> io::Result<OwnedFd> {
        sys::link(self.program.as_raw_fd(), interface)
    }

    /// Returns the contents of a map, by its number in the object; of per-CPU maps, the value of
    /// CPU 0. `None` if the map type cannot be looked up.
    ///
    /// # Errors
    /// The kernel's.
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

    /// Sets an entry.
    ///
    /// # Errors
    /// The kernel's.
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

/// Whether programs of an object print.
fn prints(object: &Object) -> bool {
    // A call of bpf_trace_printk or bpf_trace_vprintk.
    let calls = |it: &Instruction| (it.code, it.src) == (0x85, 0) && matches!(it.imm, 6 | 177);
    object.sections.iter().any(|section| section.instructions.iter().any(calls))
}

/// Makes an object's maps, with the numbers of their descriptors.
fn create_all(object: &Object) -> Result<(Vec<Option<OwnedFd>>, Vec<i32>), String> {
    let maps = object.maps.iter().map(create).collect::<Result<Vec<_>, _>>()?;
    let fds = maps.iter().map(|fd| fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)).collect();
    Ok((maps, fds))
}

/// Makes a map.
fn create(map: &MapDefinition) -> Result<Option<OwnedFd>, String> {
    let fail = |error: io::Error| format!("the map `{}`: {error}", map.name);
    let (key, value, entries) = match map.ty {
        MapType::PERF_EVENT_ARRAY => (4, 4, sys::processors() as u32),
        _ => (map.key_size, map.value_size, map.max_entries),
    };
    // What a map of maps holds is of this kind; it need not be one of them.
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

/// Has all packets of an interface pass, until what is given back is dropped: a veth takes what a
/// program at its other end sends back only where it has a program of its own.
///
/// # Errors
/// The kernel's.
pub fn pass(interface: u32) -> Result<OwnedFd, String> {
    // r0 = XDP_PASS; exit
    let program = sys::program_load(BPF_PROG_TYPE_XDP, &[2 << 32 | 0xb7, 0x95], &[0])?;
    sys::link(program.as_raw_fd(), interface).map_err(|error| error.to_string())
}

/// Keeps this thread on the first processor, so that what is counted per processor is counted in
/// one place.
pub fn on_first_processor() {
    sys::on_first_processor();
}

/// Why there is no kernel to ask; `None` where there is one.
pub fn missing() -> Option<String> {
    match sys::map_create(2, 4, 4, 1, 0, None) {
        Ok(_) => None,
        Err(error) => Some(format!("the kernel takes no BPF maps from us: {error}")),
    }
}
