//! What is in an object file that clang made for the BPF target: programs, functions, maps, types and lines.
//!
//! Sources: ELF with machine `EM_BPF`; relocations as in Documentation/bpf/llvm_reloc.rst; `.maps`, `.BTF` and `.BTF.ext` as
//! in Documentation/bpf/btf.rst and libbpf.

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

use crate::decode::instruction::Instruction;
pub use btf::Btf;
pub use line_info::Line;
pub use map_definitions::{MapDefinition, MapType, Slot, Variable};

/// The largest object taken, in bytes.
pub const MAX_OBJECT: usize = 16 << 20;

/// Instructions of all sections together, at most: as many as the kernel looks at (`BPF_COMPLEXITY_LIMIT_INSNS`).
const MAX_INSTRUCTIONS: usize = 1_000_000;

/// Maps at most, sections of global variables included. (Of one program's the kernel takes 64.)
const MAX_MAPS: usize = 512;

/// What programs are looked at with, each by itself: so many times their number, all bytes of instructions and of global
/// variables may be at most.
const MAX_LOOKED_AT: usize = 256 << 20;

/// Why an object cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Wrong(String);

impl Wrong {
    fn new(message: impl Into<String>) -> Wrong {
        Wrong(message.into())
    }
}

/// Letters of names and lines that are still taken. Those of an object lie anywhere in its tables, over each other as well: a
/// few bytes could have many letters.
struct Letters(usize);

impl Default for Letters {
    fn default() -> Letters {
        Letters(4 * MAX_OBJECT)
    }
}

impl Letters {
    fn text(&mut self, bytes: &[u8]) -> Result<String, Wrong> {
        let left = self.0.checked_sub(bytes.len());
        self.0 = left.ok_or_else(|| {
            Wrong::new(format!("its names have more than {} letters, taken together", 4 * MAX_OBJECT))
        })?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// What an instruction refers to by a relocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A map, by its number.
    Map(usize),
    /// Global variables: their map, and an offset in them that the instruction's constant is added to.
    Data {
        /// The map's number.
        map: usize,
        /// Bytes.
        offset: u64,
    },
    /// Code: a section, and an offset in it in bytes that the instruction's constant is added to.
    Code {
        /// The section's number.
        section: usize,
        /// Bytes.
        offset: u64,
    },
    /// What is not in the object: a function of the kernel's, or a variable of its configuration.
    External(String),
}

/// A section with code.
#[derive(Debug, Clone)]
pub struct Section {
    /// Its name, by which it is known what it is for.
    pub name: String,
    /// Its instructions; one with 64 bits takes two places.
    pub instructions: Vec<Instruction>,
    /// What instructions refer to.
    pub references: BTreeMap<usize, Reference>,
    /// The lines that they come from.
    pub lines: Vec<Line>,
}

impl Section {
    /// Whether it is for programs of XDP.
    pub fn is_xdp(&self) -> bool {
        // libbpf's names are `xdp`, `xdp.frags`, `xdp/devmap` and so on; before them `xdp` was what a name began with.
        // With a question mark libbpf leaves a program alone until it is asked for, which it is here by its name.
        self.name.strip_prefix('?').unwrap_or(&self.name).starts_with("xdp")
    }

    /// The line that an instruction comes from.
    pub fn line(&self, instruction: usize) -> Option<&Line> {
        let before = &self.lines[..self.lines.partition_point(|line| line.instruction <= instruction)];
        before.last().filter(|line| line.line > 0)
    }
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The number of its section.
    pub section: usize,
    /// Its first instruction there.
    pub first: usize,
    /// The first behind it.
    pub end: usize,
    /// Whether others see it: what is in a section of programs is one then.
    pub is_global: bool,
}

/// An object.
#[derive(Debug, Clone)]
pub struct Object {
    /// The name of its file.
    pub name: String,
    /// Sections with code.
    pub sections: Vec<Section>,
    /// Their functions, in the order of the sections and in them.
    pub functions: Vec<Function>,
    /// Its maps. Global variables are behind those that it defines.
    pub maps: Vec<MapDefinition>,
    /// Its types; none where it was built without `-g`.
    pub btf: Btf,
}

impl Object {
    /// Reads an object.
    ///
    /// # Errors
    /// What is wrong with the file as a whole.
    pub fn read(name: &str, bytes: &[u8]) -> Result<Object, Wrong> {
        if bytes.len() > MAX_OBJECT {
            return Err(Wrong::new(format!("the object is longer than {MAX_OBJECT} bytes, the most there may be")));
        }
        let is_elf = bytes.starts_with(b"\x7fELF");
        if !is_elf {
            return Err(Wrong::new("this is no object file: it does not begin as ELF does"));
        }
        // Class and byte order: another kind of file would only be said to be wrong.
        if bytes.get(4..6) != Some(&[2, 1]) {
            // The machine is where it is in either class, in the object's own byte order.
            let is_big = bytes.get(4..6) == Some(&[2, 2]) && bytes.get(18..20) == Some(&EM_BPF.0.to_be_bytes());
            let what = match is_big {
                true => {
                    "this object is for big-endian BPF, and programs are taken of little-endian: build it with `clang -target bpfel`"
                }
                false => "this object is not for BPF: build it with `clang -target bpf`",
            };
            return Err(Wrong::new(what));
        }
        let file = ElfFile64::<LittleEndian>::parse(bytes).map_err(bad)?;
        let endian = file.endian();
        let machine = file.elf_header().e_machine(endian);
        if machine != EM_BPF {
            let what = format!("this object is for machine {}, and BPF is {}", machine.0, EM_BPF.0);
            return Err(Wrong::new(format!("{what}: build it with `clang -target bpf`")));
        }
        Reading::new(name, file)?.object()
    }

    /// The programs for XDP, in the order of the object.
    pub fn programs(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|function| function.is_global && self.sections[function.section].is_xdp())
    }

    /// The function that an instruction is in.
    pub fn function_at(&self, section: usize, instruction: usize) -> Option<usize> {
        let begin = |it: &Function| (it.section, it.first);
        let behind = self.functions.partition_point(|it| begin(it) <= (section, instruction));
        let found = self.functions[..behind].last()?;
        let is_in = found.section == section && instruction < found.end;
        // A function may have several names.
        is_in.then(|| self.functions.partition_point(|it| begin(it) < begin(found)))
    }
}

type File<'a> = ElfFile64<'a, LittleEndian>;

/// A function or variable, as the table of symbols has it.
struct Symbol {
    name: String,
    is_function: bool,
    is_object: bool,
    is_global: bool,
    address: u64,
    size: u64,
}

/// An object being read.
struct Reading<'a> {
    file: File<'a>,
    object: Object,
    letters: Letters,
    /// The symbols of functions and variables by ELF's number of their section, in the order of the table.
    symbols: BTreeMap<usize, Vec<Symbol>>,
    /// By ELF's numbers of the sections: those that have code, and of those of global variables the numbers of their maps.
    code: BTreeMap<usize, usize>,
    data: BTreeMap<usize, usize>,
    /// The maps of `.maps` and `maps` by ELF's number of the section and the place in it.
    places: BTreeMap<(usize, u64), usize>,
}

fn bad(error: object::Error) -> Wrong {
    Wrong::new(format!("this is no whole ELF object, and the file may be cut off: {error}"))
}

impl<'a> Reading<'a> {
    fn new(name: &str, file: File<'a>) -> Result<Reading<'a>, Wrong> {
        let mut letters = Letters::default();
        // They are looked at several times: once they count.
        for section in file.sections() {
            letters.text(section.name_bytes().map_err(bad)?)?;
        }
        let section = |name: &str| file.section_by_name(name).map(|it| it.data().map_err(bad)).transpose();
        let btf = section(".BTF")?.map(Btf::read).transpose()?.unwrap_or_default();
        let object =
            Object { name: name.to_owned(), sections: Vec::new(), functions: Vec::new(), maps: Vec::new(), btf };
        let (symbols, code, data, places) = Default::default();
        Ok(Reading { file, object, letters, symbols, code, data, places })
    }

    fn object(mut self) -> Result<Object, Wrong> {
        self.symbols()?;
        self.code()?;
        self.functions();
        let slots = self.maps()?;
        self.globals()?;
        self.slots(slots)?;
        self.references()?;
        self.is_not_too_much()?;
        Ok(self.object)
    }

    fn is_not_too_much(&self) -> Result<(), Wrong> {
        let (object, programs) = (&self.object, self.object.programs().count());
        let code: usize = object.sections.iter().map(|section| 8 * section.instructions.len()).sum();
        let data: usize = object.maps.iter().filter_map(|map| map.data.as_ref()).map(Vec::len).sum();
        if programs.saturating_mul(code + data) > MAX_LOOKED_AT {
            return Err(Wrong::new(format!(
                "there are {programs} programs, {code} bytes of instructions and {data} of global variables: the product of \
                 programs and bytes may be {MAX_LOOKED_AT} at most"
            )));
        }
        Ok(())
    }

    fn symbols(&mut self) -> Result<(), Wrong> {
        for symbol in self.file.symbols() {
            let ty = symbol.elf_symbol().st_type();
            let (is_function, is_global) = (ty == STT_FUNC, symbol.is_global());
            let Some(section) = symbol.section_index().filter(|_| is_function || is_global || ty == STT_OBJECT) else {
                continue;
            };
            // One without a name is asked for by nobody.
            let Ok(name) = symbol.name() else { continue };
            let name = self.letters.text(name.as_bytes())?;
            let (address, size) = (symbol.address(), symbol.size());
            let symbol = Symbol { name, is_function, is_object: ty == STT_OBJECT, is_global, address, size };
            self.symbols.entry(section.0).or_default().push(symbol);
        }
        Ok(())
    }

    fn code(&mut self) -> Result<(), Wrong> {
        let mut all = 0;
        for section in self.file.sections() {
            let header = section.elf_section_header();
            let endian = self.file.endian();
            if !header.sh_flags(endian).contains(SHF_EXECINSTR) {
                continue;
            }
            let name = section.name().map_err(bad)?.to_owned();
            let data = section.data().map_err(bad)?;
            if data.len() % 8 != 0 {
                let message = format!("the section `{name}` has {} bytes, and instructions have 8", data.len());
                return Err(Wrong::new(message));
            }
            all += data.len() / 8;
            if all > MAX_INSTRUCTIONS {
                return Err(Wrong::new(format!("there are more than {MAX_INSTRUCTIONS} instructions")));
            }
            let instructions = data.as_chunks().0.iter().map(|bytes| Instruction::of(*bytes)).collect();
            self.code.insert(section.index().0, self.object.sections.len());
            let references = BTreeMap::new();
            self.object.sections.push(Section { name, instructions, references, lines: Vec::new() });
        }
        let Some(ext) = self.file.section_by_name(".BTF.ext") else { return Ok(()) };
        let mut named = HashMap::new();
        for (number, section) in self.object.sections.iter().enumerate() {
            named.entry(section.name.clone()).or_insert(number);
        }
        for (name, lines) in line_info::read(ext.data().map_err(bad)?, &self.object.btf)? {
            if let Some(&section) = named.get(&name) {
                self.object.sections[section].lines = lines;
            }
        }
        Ok(())
    }

    fn functions(&mut self) {
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
        // A function ends where the next begins at the latest, or there, where nobody says how long it is; and by each of its
        // names.
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

    fn maps(&mut self) -> Result<Vec<map_definitions::SlotsAt>, Wrong> {
        let mut slots = Vec::new();
        if let Some(section) = self.file.section_by_name(".maps") {
            let index = section.index().0;
            if self.object.btf.section(".maps").is_none() {
                let message = "there are maps in `.maps`, but no types that say what they are";
                return Err(Wrong::new(format!("{message}: build with -g, and keep `.BTF` when stripping")));
            }
            let symbols = self.variables(index);
            // Of a name the first place.
            let places: HashMap<&str, u64> = symbols.iter().rev().map(|it| (it.name.as_str(), it.address)).collect();
            let (maps, at) = map_definitions::by_types(&self.object.btf, &places)?;
            slots = at;
            let placed = (0..).zip(&maps).filter_map(|(number, map)| Some(((index, *places.get(&*map.name)?), number)));
            self.places = placed.collect();
            self.object.maps = maps;
        }
        if let Some(section) = self.file.section_by_name("maps") {
            let (index, data) = (section.index().0, section.data().map_err(bad)?);
            let mut maps = Vec::new();
            for symbol in self.variables(index) {
                maps.push((symbol.address, map_definitions::by_definition(&symbol.name, symbol.address, data)?));
            }
            for (at, map) in maps {
                self.places.insert((index, at), self.object.maps.len());
                self.add(map)?;
            }
        }
        Ok(slots)
    }

    fn add(&mut self, map: MapDefinition) -> Result<(), Wrong> {
        map_definitions::is_room(self.object.maps.len() + 1)?;
        self.object.maps.push(map);
        Ok(())
    }

    /// The variables of a section, in the order of their places.
    fn variables(&self, section: usize) -> Vec<&Symbol> {
        let mut all: Vec<&Symbol> = self.symbols.get(&section).into_iter().flatten().collect();
        all.retain(|it| it.is_object || it.is_global);
        all.sort_by_key(|it| it.address);
        all
    }

    /// Sections of global variables.
    fn globals(&mut self) -> Result<(), Wrong> {
        let mut all = 0_u64;
        let mut found = Vec::new();
        for section in self.file.sections() {
            let name = section.name().map_err(bad)?;
            let is = |kind: &str| name == kind || name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.'));
            let size = section.size();
            if !(is(".rodata") || is(".data") || is(".bss")) || size == 0 {
                continue;
            }
            all = all.saturating_add(size);
            if all > MAX_OBJECT as u64 {
                return Err(Wrong::new(format!(
                    "with the section `{name}` there are {all} bytes of global variables, and {MAX_OBJECT} are the most"
                )));
            }
            let data = if is(".bss") { vec![0; size as usize] } else { section.data().map_err(bad)?.to_vec() };
            let variables = self.variables_of(section.index().0, name, data.len())?;
            found.push((section.index().0, MapDefinition::of_section(name, data, variables, is(".rodata"))));
        }
        for (index, map) in found {
            self.data.insert(index, self.object.maps.len());
            self.add(map)?;
        }
        Ok(())
    }

    /// The variables of such a section. Where there are types, only what has one is a variable: the rest is what the compiler
    /// made. (Types say the places only once an object is linked; symbols do before.)
    fn variables_of(&self, index: usize, section: &str, length: usize) -> Result<Vec<Variable>, Wrong> {
        let btf = &self.object.btf;
        let typed = btf.section(section);
        // Of a name the first type.
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
        // One may have several names, and that is all.
        if all.iter().map(|it| it.size as usize).sum::<usize>() > 8 * length {
            return Err(Wrong::new(format!("the variables of the section `{section}` lie over each other")));
        }
        Ok(all)
    }

    /// What maps hold from the beginning: the relocations of `.maps`.
    fn slots(&mut self, mut slots: Vec<map_definitions::SlotsAt>) -> Result<(), Wrong> {
        let Some(section) = self.file.section_by_name(".maps") else { return Ok(()) };
        slots.sort_by_key(|it| it.offset);
        for (at, relocation) in section.relocations() {
            let RelocationTarget::Symbol(index) = relocation.target() else { continue };
            // The last map whose slots begin before.
            let Some(map) = slots[..slots.partition_point(|it| it.offset <= at)].last() else { continue };
            let symbol = self.file.symbol_by_index(index).map_err(bad)?;
            let index = ((at - map.offset) / 8) as u32;
            let symbol = self.letters.text(symbol.name().map_err(bad)?.as_bytes())?;
            self.object.maps[map.map].slots.push(Slot { index, symbol });
        }
        Ok(())
    }

    fn references(&mut self) -> Result<(), Wrong> {
        for (&index, &number) in &self.code {
            let section = self.file.section_by_index(object::SectionIndex(index)).map_err(bad)?;
            for (at, relocation) in section.relocations() {
                let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
                if r_type != R_BPF_64_64 && r_type != R_BPF_64_32 {
                    continue;
                }
                let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
                let symbol = self.file.symbol_by_index(symbol).map_err(bad)?;
                let (section, offset) = (symbol.section_index().map(|index| index.0), symbol.address());
                let reference = match section.and_then(|section| self.reference(section, offset)) {
                    Some(reference) => reference,
                    None => Reference::External(self.letters.text(symbol.name().unwrap_or_default().as_bytes())?),
                };
                self.object.sections[number].references.insert((at / 8) as usize, reference);
            }
        }
        Ok(())
    }

    /// What is at a place in a section.
    fn reference(&self, section: usize, offset: u64) -> Option<Reference> {
        if let Some(&section) = self.code.get(&section) {
            return Some(Reference::Code { section, offset });
        }
        if let Some(&map) = self.places.get(&(section, offset)) {
            return Some(Reference::Map(map));
        }
        self.data.get(&section).map(|&map| Reference::Data { map, offset })
    }
}
