//! The program that calls a filter's functions: an ELF file of one segment, and memory with nothing
//! in it.

use portcullis_cpu::cross::{Function, MachineCode};

/// Where the file's first byte is in the process.
const BASE: u64 = 0x40_0000;

/// Where the memory begins.
pub const DATA: u64 = 0x1000_0000;

/// How much there is, in bytes: given when it is written to.
pub const MEMORY: usize = 256 << 20;

/// Startup code of the process, by Linux system calls (`read` is 63, `write` 64, `exit_group` 94).
///
/// The code reads the memory's size from its first 8 bytes, then the rest; calls two functions,
/// each if it has any packets, as [`Image::call`] describes them; writes everything back, and
/// starts over. At the end of the input it exits.
const START: [u32; 43] = [
    0xd2a2_0013, //        mov  x19, #0x10000000
    0xd280_0014, // next:  mov  x20, #0
    0xd280_0115, //        mov  x21, #8
    0xd280_0000, // read:  mov  x0, #0
    0x8b14_0261, //        add  x1, x19, x20
    0xcb14_02a2, //        sub  x2, x21, x20
    0xd280_07e8, //        mov  x8, #63
    0xd400_0001, //        svc  #0
    0xf100_001f, //        cmp  x0, #0
    0x5400_03ed, //        b.le leave
    0x8b00_0294, //        add  x20, x20, x0
    0xeb15_029f, //        cmp  x20, x21
    0x54ff_fee3, //        b.lo read
    0xf100_22bf, //        cmp  x21, #8
    0x5400_0061, //        b.ne first
    0xf940_0275, //        ldr  x21, [x19]
    0x17ff_fff3, //        b    read
    0xa940_8269, // first: ldp  x9, x0, [x19, #8]
    0xa941_8a61, //        ldp  x1, x2, [x19, #24]
    0xeb02_003f, //        cmp  x1, x2
    0x5400_0042, //        b.hs second
    0xd63f_0120, //        blr  x9
    0xa942_8269, // second:ldp  x9, x0, [x19, #40]
    0xa943_8a61, //        ldp  x1, x2, [x19, #56]
    0xeb02_003f, //        cmp  x1, x2
    0x5400_0042, //        b.hs done
    0xd63f_0120, //        blr  x9
    0xd280_0014, // done:  mov  x20, #0
    0xf940_0275, //        ldr  x21, [x19]
    0xd280_0020, // write: mov  x0, #1
    0x8b14_0261, //        add  x1, x19, x20
    0xcb14_02a2, //        sub  x2, x21, x20
    0xd280_0808, //        mov  x8, #64
    0xd400_0001, //        svc  #0
    0xf100_001f, //        cmp  x0, #0
    0x5400_00ad, //        b.le leave
    0x8b00_0294, //        add  x20, x20, x0
    0xeb15_029f, //        cmp  x20, x21
    0x54ff_fee3, //        b.lo write
    0x17ff_ffda, //        b    next
    0xd280_0000, // leave: mov  x0, #0
    0xd280_0bc8, //        mov  x8, #94
    0xd400_0001, //        svc  #0
];

/// Bytes of ELF's header, and of one for a segment.
const HEADER: usize = 64;
const SEGMENT: usize = 56;

/// A filter as a program.
pub struct Image {
    /// The file.
    pub bytes: Vec<u8>,
    /// The tables of both functions.
    pub tables: [u64; 2],
    /// What takes groups, and what takes the rest.
    functions: [u64; 2],
    group_size: usize,
}

impl Image {
    pub fn of(code: &MachineCode) -> Image {
        let vector = code.vector.as_ref();
        let mut bytes = vec![0; (HEADER + 2 * SEGMENT).next_multiple_of(64)];
        let mut put = |part: &[u8]| {
            let place = BASE + bytes.len() as u64;
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(64), 0);
            place
        };
        let start = put(&START.map(u32::to_le_bytes).concat());
        let both = [vector.unwrap_or(&code.scalar), &code.scalar];
        let functions = both.map(|function| put(&function.code));
        let tables = both.map(|Function { tables, .. }| put(tables));
        let size = bytes.len() as u64;

        // As of the System V ABI: 64 bits, the lowest byte first; an executable for machine 183.
        let halves = |halves: &[u16]| halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<u8>>();
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let header = [
            b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
            halves(&[2, 183, 1, 0]),
            words(&[start, HEADER as u64, 0]),
            halves(&[0, 0, HEADER as u16, SEGMENT as u16, 2, 64, 0, 0]),
        ];
        // The file, to be read and executed; and memory to be read and written, of which it has
        // nothing.
        let segment = |flags: u64, offset: u64, at: u64, in_file: u64, size: u64| {
            words(&[1 | flags << 32, offset, at, at, in_file, size, 0x1_0000])
        };
        let segments = [segment(5, 0, BASE, size, size), segment(6, 0, DATA, 0, MEMORY as u64)];
        let head = [header.concat(), segments.concat()].concat();
        bytes[..head.len()].copy_from_slice(&head);
        Image { bytes, tables, functions, group_size: vector.map_or(1, |function| function.group_size) }
    }

    /// What the memory of a batch of so many packets begins with: how many bytes it has in all
    /// (those of this, where that is 0), and for each function its address, that of what it is
    /// called with, and its packets.
    pub fn call(&self, bytes: u64, contexts: [u64; 2], packets: usize) -> Vec<u8> {
        let whole = (packets - packets % self.group_size) as u64;
        let [vector, scalar] = self.functions;
        let words = [bytes, vector, contexts[0], 0, whole, scalar, contexts[1], whole, packets as u64];
        let bytes = if bytes == 0 { size_of_val(&words) as u64 } else { bytes };
        let mut memory = bytes.to_le_bytes().to_vec();
        memory.extend(words[1..].iter().flat_map(|word| word.to_le_bytes()));
        memory
    }
}
