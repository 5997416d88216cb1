//! Times the Linux kernel's LPM trie (`BPF_MAP_TYPE_LPM_TRIE`) with `BPF_PROG_TEST_RUN`, as
//! `bpftool prog run` does, but with another address in each run: the program reads them in turn
//! from an array.
//!
//! Two programs differ only in the lookup; the difference of their times is the time of the lookup.

#![allow(unsafe_code, reason = "bpf(2) has no safe wrapper among our dependencies")]

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Handles of the kernel's trie, the two programs, and the maps that they share.
pub struct Kernel {
    addresses: OwnedFd,
    /// State: the number of runs so far, and a fold of all answers.
    state: OwnedFd,
    searching: OwnedFd,
    empty: OwnedFd,
    /// Number of addresses, and bytes of each.
    count: u32,
    bytes: usize,
}

impl Kernel {
    /// Creates a trie of `count` prefixes, each given by length and address bytes, with their next
    /// hops, and room for `addresses` to look up, a power of two.
    ///
    /// # Errors
    /// The kernel's error, for example if the process may not use BPF.
    pub fn new(prefixes: &[u8], next_hops: &[u8], count: u32, addresses: u32) -> Result<Kernel> {
        assert!(addresses.is_power_of_two(), "the programs mask the run's number");
        let key = prefixes.len() as u32 / count;
        let trie = create(Map::LpmTrie, key, 4, count)?;
        update(&trie, prefixes, next_hops, count)?;
        let (state, addresses) = (create(Map::Array, 4, 16, 1)?, (create(Map::Array, 4, key, addresses)?, addresses));
        let searching = load(&program(&state, &addresses, Some(&trie)))?;
        let empty = load(&program(&state, &addresses, None))?;
        Ok(Kernel { addresses: addresses.0, count: addresses.1, state, searching, empty, bytes: key as usize - 4 })
    }

    /// Writes the addresses to look up, concatenated.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_addresses(&mut self, addresses: &[u8]) -> Result<()> {
        let length = (self.bytes as u32 * 8).to_ne_bytes();
        let keys: Vec<u8> =
            addresses.chunks_exact(self.bytes).flat_map(|address| [&length, address].concat()).collect();
        let numbers: Vec<u8> = (0..self.count).flat_map(u32::to_ne_bytes).collect();
        update(&self.addresses, &numbers, &keys, self.count)
    }

    /// Looks up all addresses. Returns the time of the lookups, and the answers as [`folded`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn run(&self) -> Result<(Duration, u64)> {
        let timed = |program| {
            update(&self.state, &[0; 4], &[0; 16], 1)?;
            test_run(program, self.count)
        };
        let empty = timed(&self.empty)?;
        let searching = timed(&self.searching)?;
        let state = lookup::<16>(&self.state, &[0; 4])?;
        let answers = u64::from_ne_bytes(*state.last_chunk().expect("the value has 16 bytes"));
        Ok((searching.saturating_sub(empty), answers))
    }
}

/// Folds answers, the next hop or 0 without a route, into one number as the programs do.
pub fn folded(answers: impl Iterator<Item = u32>) -> u64 {
    answers.fold(0, |all, answer| all.wrapping_mul(FOLD).wrapping_add(answer.into()))
}

const FOLD: u64 = 31;

/// An instruction: opcode, destination, source, offset and immediate (RFC 9669).
const fn op(code: u8, to: u8, with: u8, offset: i16, number: i32) -> u64 {
    code as u64 | (to as u64) << 8 | (with as u64) << 12 | (offset as u16 as u64) << 16 | (number as u32 as u64) << 32
}

/// Assembles the program, with or without the lookup. Register 0 has return values, 1 and 2 have
/// arguments, 10 is the stack pointer, 6 the state, and 8 the answer.
fn program(state: &OwnedFd, (addresses, count): &(OwnedFd, u32), trie: Option<&OwnedFd>) -> Vec<u64> {
    const FIND: u64 = op(0x85, 0, 0, 0, 1);
    // Load a map's address, and that of the value of an array's first entry.
    let map = |to, map: &OwnedFd| [op(0x18, to, 1, 0, map.as_raw_fd()), 0];
    let value = |to, map: &OwnedFd| [op(0x18, to, 2, 0, map.as_raw_fd()), 0];
    let mut code = Vec::new();
    code.extend(value(6, state));
    code.extend([
        op(0x79, 7, 6, 0, 0),                 // r7 = the number of the run
        op(0xbf, 1, 7, 0, 0),                 // r1 = r7
        op(0x57, 1, 0, 0, *count as i32 - 1), // r1 &= count - 1
        op(0x63, 10, 1, -4, 0),               // the key is r1
        op(0x07, 7, 0, 0, 1),                 // r7 += 1
        op(0x7b, 6, 7, 0, 0),                 // the number of the next run = r7
    ]);
    code.extend(map(1, addresses));
    code.extend([
        op(0xbf, 2, 10, 0, 0), // r2 = the key
        op(0x07, 2, 0, 0, -4),
        FIND,                 // r0 = the address
        op(0x55, 0, 0, 1, 0), // if NULL,
        op(0x95, 0, 0, 0, 0), // exit
        op(0xb7, 8, 0, 0, 0), // r8 = 0
    ]);
    if let Some(trie) = trie {
        code.push(op(0xbf, 2, 0, 0, 0)); // r2 = the address
        code.extend(map(1, trie));
        code.extend([
            FIND,                 // r0 = the next hop
            op(0x15, 0, 0, 2, 0), // if not NULL,
            op(0x61, 8, 0, 0, 0), // r8 = the next hop
            op(0x07, 8, 0, 0, 1), // r8 += 1
        ]);
    } else {
        code.push(op(0x61, 8, 0, 4, 0)); // r8 = four bytes of the address
    }
    code.extend([
        op(0x79, 7, 6, 8, 0),           // r7 = the fold of the answers so far
        op(0x27, 7, 0, 0, FOLD as i32), // r7 *= FOLD
        op(0x0f, 7, 8, 0, 0),           // r7 += r8
        op(0x7b, 6, 7, 8, 0),           // the fold = r7
        op(0xb7, 0, 0, 0, 1),           // XDP_DROP
        op(0x15, 8, 0, 1, 0),           // if there is an answer,
        op(0xb7, 0, 0, 0, 3),           // XDP_TX
        op(0x95, 0, 0, 0, 0),
    ]);
    code
}

/// Command numbers of bpf(2).
#[derive(Clone, Copy)]
enum Command {
    MapCreate = 0,
    MapLookup = 1,
    ProgramLoad = 5,
    ProgramTestRun = 10,
    MapUpdateBatch = 26,
}

/// Map types of the kernel.
#[derive(Clone, Copy)]
enum Map {
    Array = 2,
    LpmTrie = 11,
}

fn create(kind: Map, key: u32, value: u32, entries: u32) -> Result<OwnedFd> {
    const NO_PREALLOC: u32 = 1;
    let flags = if matches!(kind, Map::LpmTrie) { NO_PREALLOC } else { 0 };
    // SAFETY: the attributes contain no address.
    owned(unsafe { bpf(Command::MapCreate, &mut [kind as u32, key, value, entries, flags]) }?)
}

/// Sets entries of a map, whose keys and values are concatenated.
fn update(map: &OwnedFd, keys: &[u8], values: &[u8], count: u32) -> Result<()> {
    let ([k0, k1], [v0, v1]) = (halves(keys.as_ptr()), halves(values.as_ptr()));
    let mut attributes = [0, 0, 0, 0, k0, k1, v0, v1, count, map.as_raw_fd() as u32, 0, 0, 0, 0];
    // SAFETY: the kernel reads keys and values of the map's sizes, which the caller provides.
    unsafe { bpf(Command::MapUpdateBatch, &mut attributes) }.map(drop)
}

fn lookup<const VALUE: usize>(map: &OwnedFd, key: &[u8]) -> Result<[u8; VALUE]> {
    let mut value = [0; VALUE];
    let ([k0, k1], [v0, v1]) = (halves(key.as_ptr()), halves(value.as_mut_ptr()));
    // SAFETY: key and value have the map's sizes.
    unsafe { bpf(Command::MapLookup, &mut [map.as_raw_fd() as u32, 0, k0, k1, v0, v1, 0, 0]) }?;
    Ok(value)
}

fn load(code: &[u64]) -> Result<OwnedFd> {
    const XDP: u32 = 6;
    let ([c0, c1], [l0, l1]) = (halves(code.as_ptr()), halves(c"MIT".as_ptr()));
    // SAFETY: the pointers refer to the given number of instructions and a NUL-terminated text.
    owned(unsafe { bpf(Command::ProgramLoad, &mut [XDP, code.len() as u32, c0, c1, l0, l1]) }?)
}

/// Runs a program `times` times and returns the total time.
fn test_run(program: &OwnedFd, times: u32) -> Result<Duration> {
    let packet = [0_u8; 64];
    let [p0, p1] = halves(packet.as_ptr());
    let mut attributes = [program.as_raw_fd() as u32, 0, 64, 0, p0, p1, 0, 0, times, 0];
    // SAFETY: the packet has the given length.
    unsafe { bpf(Command::ProgramTestRun, &mut attributes) }?;
    // The kernel returns the mean time of a run in nanoseconds.
    Ok(times * Duration::from_nanos(attributes[9].into()))
}

/// Splits an address into the two words that the kernel takes.
fn halves<T>(address: *const T) -> [u32; 2] {
    let bytes = (address as u64).to_ne_bytes();
    [0, 4].map(|at| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}

fn owned(fd: i64) -> Result<OwnedFd> {
    // SAFETY: the kernel has just created it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Calls bpf(2) with a command and its attributes.
///
/// # Safety
/// Addresses among the attributes must refer to memory that is valid for the command.
unsafe fn bpf(command: Command, attributes: &mut [u32]) -> Result<i64> {
    // SAFETY: the attributes are memory of that size; the caller guarantees their content.
    let given =
        unsafe { libc::syscall(libc::SYS_bpf, command as i64, attributes.as_mut_ptr(), size_of_val(attributes)) };
    if given < 0 { Err(Error::last_os_error()) } else { Ok(given) }
}
