//! Hostile object files: small ones that expand to much, large ones that would be processed again
//! and again; and details of functions and lines.

use super::{MAX_MAPS, MAX_OBJECT, MAX_TOTAL_WORK, Object};
use crate::rejection::Disassembly;

const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const NOBITS: u32 = 8;
/// `SHF_ALLOC`; with `SHF_EXECINSTR`.
const DATA: u64 = 2;
const CODE: u64 = 6;
/// `STB_GLOBAL` with `STT_OBJECT` and `STT_FUNC`.
const OBJECT: u8 = 0x11;
const FUNCTION: u8 = 0x12;
const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// Builder of ELF files.
struct Elf {
    names: Vec<u8>,
    /// Name, type, flags, bytes and size.
    sections: Vec<(u32, u32, u64, Vec<u8>, u64)>,
    symbols: Vec<u8>,
}

impl Elf {
    fn new() -> Elf {
        Elf { names: vec![0], sections: vec![(0, 0, 0, Vec::new(), 0)], symbols: vec![0; 24] }
    }

    fn name(&mut self, name: &str) -> u32 {
        let at = self.names.len() as u32;
        self.names.extend(name.as_bytes());
        self.names.push(0);
        at
    }

    /// Adds a section; returns its index.
    fn section(&mut self, name: &str, ty: u32, flags: u64, bytes: Vec<u8>) -> u16 {
        let (name, size) = (self.name(name), bytes.len() as u64);
        self.sections.push((name, ty, flags, bytes, size));
        self.sections.len() as u16 - 1
    }

    fn symbol(&mut self, name: u32, info: u8, section: u16, value: u64, size: u64) {
        self.symbols.extend(name.to_le_bytes());
        self.symbols.extend([info, 0]);
        self.symbols.extend(section.to_le_bytes());
        self.symbols.extend([value.to_le_bytes(), size.to_le_bytes()].concat());
    }

    /// Adds a program of so many exit instructions.
    fn program(&mut self, instructions: usize) -> u16 {
        let section = self.section("xdp", PROGBITS, CODE, EXIT.repeat(instructions));
        let name = self.name("prog");
        self.symbol(name, FUNCTION, section, 0, 8 * instructions as u64);
        section
    }

    fn write(mut self) -> Vec<u8> {
        let [symbols, strings] = [".symtab", ".strtab"].map(|name| self.name(name));
        let link = self.sections.len() as u32 + 1;
        let table = std::mem::take(&mut self.symbols);
        self.sections.push((symbols, SYMTAB, 0, table, 0));
        self.sections.push((strings, STRTAB, 0, self.names, 0));
        let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
        file.resize(64, 0);
        let mut headers = Vec::new();
        for (name, ty, flags, bytes, size) in &self.sections {
            let size = if *ty == NOBITS { *size } else { bytes.len() as u64 };
            let (link, entry) = if *ty == SYMTAB { (link, 24) } else { (0, 0) };
            headers.extend([name.to_le_bytes(), ty.to_le_bytes()].concat());
            headers.extend([*flags, 0, file.len() as u64, size].map(u64::to_le_bytes).concat());
            headers.extend([link, 1].map(u32::to_le_bytes).concat());
            headers.extend([8_u64, entry].map(u64::to_le_bytes).concat());
            file.extend(bytes);
            file.resize(file.len().next_multiple_of(8), 0);
        }
        let at = file.len() as u64;
        let mut set = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        // Relocatable, for BPF; offset, size and number of section headers, and the section of
        // names.
        set(16, &[1, 0, 247, 0, 1]);
        set(40, &at.to_le_bytes());
        set(52, &[64, 0]);
        set(58, &[64, 0]);
        set(60, &(self.sections.len() as u16).to_le_bytes());
        set(62, &(link as u16).to_le_bytes());
        file.extend(headers);
        file
    }

    fn read(self) -> Result<Object, String> {
        Object::read("made.o", &self.write()).map_err(|wrong| wrong.to_string())
    }
}

/// Builds `.BTF` from types and strings (Documentation/bpf/btf.rst).
pub(crate) fn btf(types: &[u32], strings: &[u8]) -> Vec<u8> {
    let length = 4 * types.len() as u32;
    let head = [0x0001_eb9f, 24, 0, length, length, strings.len() as u32];
    let words = head.iter().chain(types).flat_map(|word| word.to_le_bytes());
    words.chain(strings.iter().copied()).collect()
}

/// Builds `.BTF.ext` with lines (file, text, number) of the section `xdp`, whose name is the string
/// at 1.
fn lines(lines: &[[u32; 3]]) -> Vec<u8> {
    lines_of(&[], lines)
}

/// Builds `.BTF.ext` with lines, and functions by their first instructions.
fn lines_of(functions: &[u32], lines: &[[u32; 3]]) -> Vec<u8> {
    let of_functions = 12 + 8 * functions.len() as u32;
    let size = 12 + 16 * lines.len() as u32;
    let head = [0x0001_eb9f, 24, 0, of_functions, of_functions, size, 8, 1, functions.len() as u32];
    let functions = functions.iter().flat_map(|at| [8 * at, 0]);
    let head = head.into_iter().chain(functions).chain([16, 1, lines.len() as u32]);
    let lines = (0..).zip(lines).flat_map(|(at, [file, text, number])| [8 * at, *file, *text, number << 10 | 1]);
    head.chain(lines).flat_map(u32::to_le_bytes).collect()
}

#[track_caller]
fn refused(elf: Elf, why: &str) {
    let said = elf.read().map(|_| "it is taken".to_owned()).unwrap_or_else(|said| said);
    assert!(said.contains(why), "{said}");
}

#[test]
fn a_built_file_is_an_object() {
    let mut elf = Elf::new();
    elf.program(2);
    let object = elf.read().unwrap();
    let programs: Vec<_> = object.programs().map(|it| (it.name.as_str(), it.first, it.end)).collect();
    assert_eq!(programs, [("prog", 0, 2)]);
}

/// Names of a megabyte each, all in the same bytes.
#[test]
fn overlapping_names_are_charged_each() {
    const LONG: usize = 1 << 20;
    let long = "n".repeat(LONG);
    let many = 4 * MAX_OBJECT / LONG + 1;

    let mut symbols = Elf::new();
    let section = symbols.program(1);
    let name = symbols.name(&long);
    (0..many).for_each(|_| symbols.symbol(name, FUNCTION, section, 0, 8));
    refused(symbols, "characters");

    let mut sections = Elf::new();
    sections.program(1);
    let name = sections.name(&long);
    (0..many).for_each(|_| sections.sections.push((name, PROGBITS, 0, Vec::new(), 0)));
    refused(sections, "characters");

    let strings = [b"\0xdp\0", long.as_bytes(), b"\0"].concat();
    let mut types = Elf::new();
    types.program(1);
    // Forward declarations of structures.
    let all: Vec<u32> = (0..many).flat_map(|_| [5, 7 << 24, 0]).collect();
    types.section(".BTF", PROGBITS, 0, btf(&all, &strings));
    refused(types, "characters");

    // Lines with the same text share a string; overlapping texts count each.
    for (step, is_taken) in [(0, true), (1, false)] {
        let mut elf = Elf::new();
        elf.program(many);
        elf.section(".BTF", PROGBITS, 0, btf(&[], &strings));
        let all: Vec<_> = (0..many as u32).map(|at| [5, 5 + step * at, 7]).collect();
        elf.section(".BTF.ext", PROGBITS, 0, lines(&all));
        match is_taken {
            true => assert_eq!(elf.read().unwrap().sections[0].lines.len(), many),
            false => refused(elf, "characters"),
        }
    }
}

#[test]
fn too_many_variables_and_maps_are_refused() {
    // `.bss` takes no room in the file.
    let mut zeros = Elf::new();
    zeros.program(1);
    for name in [".bss.a", ".bss.b"] {
        let number = zeros.section(name, NOBITS, DATA, Vec::new());
        zeros.sections[usize::from(number)].4 = MAX_OBJECT as u64 / 2 + 1;
    }
    refused(zeros, "bytes of global variables");

    let mut sections = Elf::new();
    sections.program(1);
    (0..=MAX_MAPS).for_each(|number| _ = sections.section(&format!(".data.{number}"), PROGBITS, DATA, vec![1]));
    refused(sections, "more than 512 maps");

    let mut old = Elf::new();
    old.program(1);
    let section = old.section("maps", PROGBITS, DATA, vec![1; 20]);
    let name = old.name("map");
    (0..=MAX_MAPS).for_each(|_| old.symbol(name, OBJECT, section, 0, 20));
    refused(old, "more than 512 maps");

    // A variable may have two names, but not ten.
    for (names, is_taken) in [(2, true), (10, false)] {
        let mut elf = Elf::new();
        elf.program(1);
        let section = elf.section(".data", PROGBITS, DATA, vec![1; 400]);
        let name = elf.name("variable");
        (0..names).for_each(|_| elf.symbol(name, OBJECT, section, 0, 400));
        match is_taken {
            true => assert_eq!(elf.read().unwrap().maps[0].variables.len(), names),
            false => refused(elf, "the variables of the section `.data` overlap"),
        }
    }
}

#[test]
fn programs_times_bytes_are_bounded() {
    const INSTRUCTIONS: usize = 1 << 16;
    let mut elf = Elf::new();
    let section = elf.program(INSTRUCTIONS);
    let name = elf.name("again");
    (0..MAX_TOTAL_WORK / (8 * INSTRUCTIONS)).for_each(|_| elf.symbol(name, FUNCTION, section, 0, 8));
    refused(elf, "the limit for programs times bytes is");
}

#[test]
fn functions_end_where_the_next_begins() {
    let mut elf = Elf::new();
    let section = elf.section("xdp", PROGBITS, CODE, EXIT.repeat(10));
    // Name, first instruction, length: an alias, one that reaches into the next, one without a
    // size, one beyond the end.
    for (name, first, count) in
        [("long", 0, 3), ("alias", 0, 0), ("over", 3, 9), ("last", 8, 1), ("mute", 5, 0), ("beyond", 20, 4)]
    {
        let name = elf.name(name);
        elf.symbol(name, FUNCTION, section, 8 * first, 8 * count);
    }
    let object = elf.read().unwrap();
    let at = |at| object.function_at(0, at).map(|function| object.functions[function].name.as_str());
    let wanted = [
        (0, Some("long")),
        (2, Some("long")),
        (3, Some("over")),
        (4, Some("over")),
        (5, Some("mute")),
        (7, Some("mute")),
        (8, Some("last")),
        (9, None),
        (20, None),
    ];
    for (number, name) in wanted {
        assert_eq!(at(number), name, "instruction {number}");
    }
    assert_eq!(object.function_at(1, 0), None);
}

/// The compiler writes line 0 for such instructions.
#[test]
fn instructions_without_a_line_have_the_one_before_in_their_function() {
    let of = |functions: &[u32], numbers: &[u32]| {
        let mut elf = Elf::new();
        elf.program(numbers.len());
        elf.section(".BTF", PROGBITS, 0, btf(&[], b"\0xdp\0p.c\0"));
        let all: Vec<_> = numbers.iter().map(|number| [5, 0, *number]).collect();
        elf.section(".BTF.ext", PROGBITS, 0, lines_of(functions, &all));
        let object = elf.read().unwrap();
        (0..numbers.len()).map(|at| object.sections[0].line(at).map_or(0, |line| line.line)).collect::<Vec<_>>()
    };
    assert_eq!(of(&[0], &[3, 0, 0, 7, 0]), [3, 3, 3, 7, 7]);
    assert_eq!(of(&[0], &[0, 0, 7, 0]), [0, 0, 7, 7]);
    // A line does not carry over to the next function.
    assert_eq!(of(&[3, 0], &[3, 0, 4, 0, 0, 9, 0]), [3, 3, 4, 0, 0, 9, 9]);
    assert_eq!(of(&[], &[3, 0, 4]), [3, 3, 4]);
}

/// Each of many files has one line, with the highest number possible.
#[test]
fn high_line_numbers_do_not_expand_the_listing() {
    let mut strings = b"\0xdp\0".to_vec();
    let mut all = Vec::new();
    for number in 0..2000 {
        all.push([strings.len() as u32, 1, (1 << 22) - 1]);
        strings.extend(format!("{number}.c\0").bytes());
    }
    let mut elf = Elf::new();
    elf.program(all.len());
    elf.section(".BTF", PROGBITS, 0, btf(&[], &strings));
    elf.section(".BTF.ext", PROGBITS, 0, lines(&all));
    let text = Disassembly::new(&elf.read().unwrap()).source.text.len();
    assert!(text < 4 << 20, "{text}");
}
