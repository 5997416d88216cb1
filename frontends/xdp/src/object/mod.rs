//! Reader of BPF object files as clang writes them: programs, functions, maps, types and lines.
//!
//! Sources: ELF with machine `EM_BPF`; relocations as in Documentation/bpf/llvm_reloc.rst; `.maps`,
//! `.BTF` and `.BTF.ext` as in Documentation/bpf/btf.rst and libbpf.

pub mod btf;
mod c_types;
mod from_instructions;
mod line_info;
mod map_definitions;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap};

use object::elf::{EM_BPF, R_BPF_64_32, R_BPF_64_64, SHF_EXECINSTR, STT_FUNC, STT_OBJECT};
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags, RelocationTarget};

use crate::instruction::Instruction;
pub use btf::Btf;
pub use line_info::LineInfo;
pub use map_definitions::{InitialSlot, MapDefinition, MapType, Variable};

/// Maximum size of an object in bytes.
pub const MAX_OBJECT: usize = 16 << 20;

/// Maximum number of instructions in all sections, that of the verifier
/// (`BPF_COMPLEXITY_LIMIT_INSNS`).
const MAX_INSTRUCTIONS: usize = 1_000_000;

/// Maximum number of maps, sections of global variables included. (The kernel takes 64 a program.)
const MAX_MAPS: usize = 512;

/// Upper bound on programs times bytes of instructions and global variables: each program is
/// compiled by itself.
const MAX_TOTAL_WORK: usize = 256 << 20;

/// Why an object cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ObjectError(String);

impl ObjectError {
    fn new(message: impl Into<String>) -> ObjectError {
        ObjectError(message.into())
    }
}

/// Characters of names and lines that may still be read. Strings may overlap in an object's tables,
/// so that a few bytes could expand to very many characters.
struct StringBudget(usize);

impl Default for StringBudget {
    fn default() -> StringBudget {
        StringBudget(4 * MAX_OBJECT)
    }
}

impl StringBudget {
    fn text(&mut self, bytes: &[u8]) -> Result<String, ObjectError> {
        let left = self.0.checked_sub(bytes.len());
        self.0 = left.ok_or_else(|| {
            ObjectError::new(format!("its names have more than {} characters in total", 4 * MAX_OBJECT))
        })?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// The target of an instruction's relocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A map, by index.
    Map(usize),
    /// Global variables; the instruction's constant is added to the offset.
    Data {
        /// Index of the section's map.
        map: usize,
        /// Offset in bytes.
        offset: u64,
    },
    /// Code; the instruction's constant is added to the offset.
    Code {
        /// Index of the section.
        section: usize,
        /// Offset in bytes.
        offset: u64,
    },
    /// A symbol outside of the object: a kernel function or configuration variable.
    External(String),
}

/// A section with code.
#[derive(Debug, Clone)]
pub struct Section {
    /// Name, which says what the section is for.
    pub name: String,
    /// Instructions; an LDDW takes two elements.
    pub instructions: Vec<Instruction>,
    /// Targets of relocations, by instruction.
    pub references: BTreeMap<usize, Reference>,
    /// Source lines, in instruction order.
    pub lines: Vec<LineInfo>,
}

impl Section {
    /// Whether the section is for XDP programs.
    pub fn is_xdp(&self) -> bool {
        // libbpf's section names are `xdp`, `xdp.frags`, `xdp/devmap` and so on; before, any name
        // starting with `xdp`. A leading question mark tells libbpf not to load the program unless
        // asked, as it is here by name.
        self.name.strip_prefix('?').unwrap_or(&self.name).starts_with("xdp")
    }

    /// The source line of an instruction.
    pub fn line(&self, instruction: usize) -> Option<&LineInfo> {
        let before = &self.lines[..self.lines.partition_point(|line| line.instruction <= instruction)];
        before.last().filter(|line| line.line > 0)
    }
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// Index of its section.
    pub section: usize,
    /// First instruction in the section.
    pub first: usize,
    /// The instruction after the last.
    pub end: usize,
    /// Whether the symbol is global. In a section for programs, such a function is a program.
    pub is_global: bool,
}

/// A BPF object.
#[derive(Debug, Clone)]
pub struct Object {
    /// File name.
    pub name: String,
    /// Sections with code.
    pub sections: Vec<Section>,
    /// Functions, sorted by section and first instruction.
    pub functions: Vec<Function>,
    /// Maps; sections of global variables come after the maps that the object defines.
    pub maps: Vec<MapDefinition>,
    /// Types; empty if the object was built without `-g`.
    pub btf: Btf,
}

impl Object {
    /// Reads an object file.
    ///
    /// # Errors
    ///
    /// The file is not a well-formed BPF object, or exceeds a limit.
    pub fn read(name: &str, bytes: &[u8]) -> Result<Object, ObjectError> {
        if bytes.len() > MAX_OBJECT {
            return Err(ObjectError::new(format!("the object is longer than the limit of {MAX_OBJECT} bytes")));
        }
        let is_elf = bytes.starts_with(b"\x7fELF");
        if !is_elf {
            return Err(ObjectError::new("this is not an object file: it does not start with an ELF header"));
        }
        // Check class and byte order first, for a better message than the parser gives.
        if bytes.get(4..6) != Some(&[2, 1]) {
            // The machine has the same offset in both classes, in the object's byte order.
            let is_big = bytes.get(4..6) == Some(&[2, 2]) && bytes.get(18..20) == Some(&EM_BPF.0.to_be_bytes());
            let what = match is_big {
                true => {
                    "this object is for big-endian BPF, which is not supported: build it with `clang -target bpfel`"
                }
                false => "this object is not for BPF: build it with `clang -target bpf`",
            };
            return Err(ObjectError::new(what));
        }
        let file = ElfFile64::<LittleEndian>::parse(bytes).map_err(malformed)?;
        let endian = file.endian();
        let machine = file.elf_header().e_machine(endian);
        if machine != EM_BPF {
            let what = format!("this object is for machine {}, not BPF ({})", machine.0, EM_BPF.0);
            return Err(ObjectError::new(format!("{what}: build it with `clang -target bpf`")));
        }
        ObjectReader::new(name, file)?.read()
    }

    /// The XDP programs, in the order of the object.
    pub fn programs(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|function| function.is_global && self.sections[function.section].is_xdp())
    }

    /// The index of the function that contains an instruction.
    pub fn function_at(&self, section: usize, instruction: usize) -> Option<usize> {
        let begin = |it: &Function| (it.section, it.first);
        let behind = self.functions.partition_point(|it| begin(it) <= (section, instruction));
        let found = self.functions[..behind].last()?;
        let is_in = found.section == section && instruction < found.end;
        // A function may have aliases; take the first.
        is_in.then(|| self.functions.partition_point(|it| begin(it) < begin(found)))
    }
}

type File<'a> = ElfFile64<'a, LittleEndian>;

/// A function or variable of the symbol table.
struct Symbol {
    name: String,
    is_function: bool,
    is_object: bool,
    is_global: bool,
    address: u64,
    size: u64,
}

/// State of reading an object.
struct ObjectReader<'a> {
    file: File<'a>,
    object: Object,
    strings: StringBudget,
    /// Symbols of functions and variables by ELF section index, in table order.
    symbols: BTreeMap<usize, Vec<Symbol>>,
    /// Section index of each ELF section with code.
    code: BTreeMap<usize, usize>,
    /// Map index of each ELF section with global variables.
    data: BTreeMap<usize, usize>,
    /// Index of each map of `.maps` and `maps`, by ELF section index and offset.
    places: BTreeMap<(usize, u64), usize>,
}

fn malformed(error: object::Error) -> ObjectError {
    ObjectError::new(format!("this is not a complete ELF object; the file may be truncated: {error}"))
}

impl<'a> ObjectReader<'a> {
    fn new(name: &str, file: File<'a>) -> Result<ObjectReader<'a>, ObjectError> {
        let mut strings = StringBudget::default();
        // Section names are read several times; charge them once.
        for section in file.sections() {
            strings.text(section.name_bytes().map_err(malformed)?)?;
        }
        let section = |name: &str| file.section_by_name(name).map(|it| it.data().map_err(malformed)).transpose();
        let btf = section(".BTF")?.map(Btf::read).transpose()?.unwrap_or_default();
        let object =
            Object { name: name.to_owned(), sections: Vec::new(), functions: Vec::new(), maps: Vec::new(), btf };
        let (symbols, code, data, places) = Default::default();
        Ok(ObjectReader { file, object, strings, symbols, code, data, places })
    }

    fn read(mut self) -> Result<Object, ObjectError> {
        self.read_symbols()?;
        self.read_code()?;
        self.read_functions();
        let slots = self.read_maps()?;
        self.read_globals()?;
        self.read_slots(slots)?;
        self.read_references()?;
        self.check_total_work()?;
        Ok(self.object)
    }

    fn check_total_work(&self) -> Result<(), ObjectError> {
        let (object, programs) = (&self.object, self.object.programs().count());
        let code: usize = object.sections.iter().map(|section| 8 * section.instructions.len()).sum();
        let data: usize = object.maps.iter().filter_map(|map| map.data.as_ref()).map(Vec::len).sum();
        if programs.saturating_mul(code + data) > MAX_TOTAL_WORK {
            return Err(ObjectError::new(format!(
                "there are {programs} programs, {code} bytes of instructions and {data} of global variables; the limit \
                 for programs times bytes is {MAX_TOTAL_WORK}"
            )));
        }
        Ok(())
    }

    fn read_symbols(&mut self) -> Result<(), ObjectError> {
        for symbol in self.file.symbols() {
            let ty = symbol.elf_symbol().st_type();
            let (is_function, is_global) = (ty == STT_FUNC, symbol.is_global());
            let Some(section) = symbol.section_index().filter(|_| is_function || is_global || ty == STT_OBJECT) else {
                continue;
            };
            // A symbol without a name cannot be referred to.
            let Ok(name) = symbol.name() else { continue };
            let name = self.strings.text(name.as_bytes())?;
            let (address, size) = (symbol.address(), symbol.size());
            let symbol = Symbol { name, is_function, is_object: ty == STT_OBJECT, is_global, address, size };
            self.symbols.entry(section.0).or_default().push(symbol);
        }
        Ok(())
    }

    fn read_code(&mut self) -> Result<(), ObjectError> {
        let mut all = 0;
        for section in self.file.sections() {
            let header = section.elf_section_header();
            let endian = self.file.endian();
            if !header.sh_flags(endian).contains(SHF_EXECINSTR) {
                continue;
            }
            let name = section.name().map_err(malformed)?.to_owned();
            let data = section.data().map_err(malformed)?;
            if data.len() % 8 != 0 {
                let message = format!("the section `{name}` has {} bytes, not a multiple of 8", data.len());
                return Err(ObjectError::new(message));
            }
            all += data.len() / 8;
            if all > MAX_INSTRUCTIONS {
                return Err(ObjectError::new(format!("there are more than {MAX_INSTRUCTIONS} instructions")));
            }
            let instructions = data.as_chunks().0.iter().map(|bytes| Instruction::decode(*bytes)).collect();
            self.code.insert(section.index().0, self.object.sections.len());
            let references = BTreeMap::new();
            self.object.sections.push(Section { name, instructions, references, lines: Vec::new() });
        }
        let Some(ext) = self.file.section_by_name(".BTF.ext") else { return Ok(()) };
        let mut named = HashMap::new();
        for (number, section) in self.object.sections.iter().enumerate() {
            named.entry(section.name.clone()).or_insert(number);
        }
        for (name, lines) in line_info::read(ext.data().map_err(malformed)?, &self.object.btf)? {
            if let Some(&section) = named.get(&name) {
                self.object.sections[section].lines = lines;
            }
        }
        Ok(())
    }

    fn read_functions(&mut self) {
        let functions = &mut self.object.functions;
        for (index, &section) in &self.code {
            let count = self.object.sections[section].instructions.len();
            for symbol in self.symbols.get(index).into_iter().flatten().filter(|symbol| symbol.is_function) {
                let first = (symbol.address / 8) as usize;
                let end = first.saturating_add((symbol.size / 8) as usize).min(count);
                let (name, is_global) = (symbol.name.clone(), symbol.is_global);
                functions.push(Function { name, section, first, end, is_global });
            }
        }
        functions.sort_by_key(|function| (function.section, function.first));
        // A function ends where the next begins at the latest, or there if no symbol states its
        // size. Aliases share the end.
        let mut next = None;
        for same in functions.chunk_by_mut(|a, b| (a.section, a.first) == (b.section, b.first)).rev() {
            let (section, first) = (same[0].section, same[0].first);
            let count = self.object.sections[section].instructions.len();
            let limit = next.filter(|(of, _)| *of == section).map_or(count, |(_, next)| next);
            let said = same.iter().map(|it| it.end).max().unwrap_or(first);
            let end = if said > first { said.min(limit) } else { limit };
            same.iter_mut().for_each(|it| it.end = end);
            next = Some((section, first));
        }
    }

    fn read_maps(&mut self) -> Result<Vec<map_definitions::SlotsOffset>, ObjectError> {
        let mut slots = Vec::new();
        if let Some(section) = self.file.section_by_name(".maps") {
            let index = section.index().0;
            if self.object.btf.section(".maps").is_none() {
                let message = "there are maps in `.maps`, but no types for them";
                return Err(ObjectError::new(format!("{message}: build with -g, and keep `.BTF` when stripping")));
            }
            let symbols = self.variables_in(index);
            // If a name occurs twice, the first place counts.
            let places: HashMap<&str, u64> = symbols.iter().rev().map(|it| (it.name.as_str(), it.address)).collect();
            let (maps, at) = map_definitions::from_btf(&self.object.btf, &places)?;
            slots = at;
            let placed = (0..).zip(&maps).filter_map(|(number, map)| Some(((index, *places.get(&*map.name)?), number)));
            self.places = placed.collect();
            self.object.maps = maps;
        }
        if let Some(section) = self.file.section_by_name("maps") {
            let (index, data) = (section.index().0, section.data().map_err(malformed)?);
            let mut maps = Vec::new();
            for symbol in self.variables_in(index) {
                maps.push((symbol.address, map_definitions::from_bpf_map_def(&symbol.name, symbol.address, data)?));
            }
            for (at, map) in maps {
                self.places.insert((index, at), self.object.maps.len());
                self.add_map(map)?;
            }
        }
        Ok(slots)
    }

    fn add_map(&mut self, map: MapDefinition) -> Result<(), ObjectError> {
        map_definitions::check_map_count(self.object.maps.len() + 1)?;
        self.object.maps.push(map);
        Ok(())
    }

    /// The variables of a section, by ascending offset.
    fn variables_in(&self, section: usize) -> Vec<&Symbol> {
        let mut all: Vec<&Symbol> = self.symbols.get(&section).into_iter().flatten().collect();
        all.retain(|it| it.is_object || it.is_global);
        all.sort_by_key(|it| it.address);
        all
    }

    /// Reads the sections of global variables.
    fn read_globals(&mut self) -> Result<(), ObjectError> {
        let mut all = 0_u64;
        let mut found = Vec::new();
        for section in self.file.sections() {
            let name = section.name().map_err(malformed)?;
            let is = |kind: &str| name == kind || name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.'));
            let size = section.size();
            if !(is(".rodata") || is(".data") || is(".bss")) || size == 0 {
                continue;
            }
            all = all.saturating_add(size);
            if all > MAX_OBJECT as u64 {
                return Err(ObjectError::new(format!(
                    "with the section `{name}` there are {all} bytes of global variables; the limit is {MAX_OBJECT}"
                )));
            }
            let data = if is(".bss") { vec![0; size as usize] } else { section.data().map_err(malformed)?.to_vec() };
            let variables = self.data_variables(section.index().0, name, data.len())?;
            found.push((section.index().0, MapDefinition::from_section(name, data, variables, is(".rodata"))));
        }
        for (index, map) in found {
            self.data.insert(index, self.object.maps.len());
            self.add_map(map)?;
        }
        Ok(())
    }

    /// The variables of a data section. With BTF, only typed symbols are variables; the others are
    /// the compiler's. (BTF has offsets only after linking, symbols have them before.)
    fn data_variables(&self, index: usize, section: &str, length: usize) -> Result<Vec<Variable>, ObjectError> {
        let btf = &self.object.btf;
        let typed = btf.section(section);
        // If a name occurs twice, the first type counts.
        let types = typed.unwrap_or_default().iter().rev().map(|(ty, ..)| *ty);
        let types: HashMap<&str, u32> = types.filter_map(|ty| Some((btf.get(ty)?.name.as_str(), ty))).collect();
        let own = self.symbols.get(&index).into_iter().flatten().filter(|it| it.is_object);
        let variable = |symbol: &Symbol| {
            let ty = types.get(symbol.name.as_str()).copied();
            let size = ty.and_then(|ty| btf.size(ty)).map_or(symbol.size, u64::from);
            let fits = symbol.address.checked_add(size).is_some_and(|end| end <= length as u64);
            let is_one = fits && size > 0 && !symbol.name.is_empty() && (typed.is_none() || ty.is_some());
            is_one.then(|| Variable { name: symbol.name.clone(), at: symbol.address as u32, size: size as u32, ty })
        };
        let mut all: Vec<Variable> = own.filter_map(variable).collect();
        all.sort_by(|a, b| (a.at, &a.name).cmp(&(b.at, &b.name)));
        // A variable may have aliases, but not without bound.
        if all.iter().map(|it| it.size as usize).sum::<usize>() > 8 * length {
            return Err(ObjectError::new(format!("the variables of the section `{section}` overlap")));
        }
        Ok(all)
    }

    /// Reads the initial contents of maps from the relocations of `.maps`.
    fn read_slots(&mut self, mut slots: Vec<map_definitions::SlotsOffset>) -> Result<(), ObjectError> {
        let Some(section) = self.file.section_by_name(".maps") else { return Ok(()) };
        slots.sort_by_key(|it| it.offset);
        for (at, relocation) in section.relocations() {
            let RelocationTarget::Symbol(index) = relocation.target() else { continue };
            // The last map whose slots begin at or before the relocation.
            let Some(map) = slots[..slots.partition_point(|it| it.offset <= at)].last() else { continue };
            let symbol = self.file.symbol_by_index(index).map_err(malformed)?;
            let index = ((at - map.offset) / 8) as u32;
            let symbol = self.strings.text(symbol.name().map_err(malformed)?.as_bytes())?;
            self.object.maps[map.map].slots.push(InitialSlot { index, symbol });
        }
        Ok(())
    }

    fn read_references(&mut self) -> Result<(), ObjectError> {
        for (&index, &number) in &self.code {
            let section = self.file.section_by_index(object::SectionIndex(index)).map_err(malformed)?;
            for (at, relocation) in section.relocations() {
                let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
                if r_type != R_BPF_64_64 && r_type != R_BPF_64_32 {
                    continue;
                }
                let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
                let symbol = self.file.symbol_by_index(symbol).map_err(malformed)?;
                let (section, offset) = (symbol.section_index().map(|index| index.0), symbol.address());
                let reference = match section.and_then(|section| self.resolve(section, offset)) {
                    Some(reference) => reference,
                    None => Reference::External(self.strings.text(symbol.name().unwrap_or_default().as_bytes())?),
                };
                self.object.sections[number].references.insert((at / 8) as usize, reference);
            }
        }
        Ok(())
    }

    /// Returns the symbol that a section and offset refer to.
    fn resolve(&self, section: usize, offset: u64) -> Option<Reference> {
        if let Some(&section) = self.code.get(&section) {
            return Some(Reference::Code { section, offset });
        }
        if let Some(&map) = self.places.get(&(section, offset)) {
            return Some(Reference::Map(map));
        }
        self.data.get(&section).map(|&map| Reference::Data { map, offset })
    }
}
