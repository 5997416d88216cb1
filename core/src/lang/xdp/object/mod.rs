//! What is in an object file that clang made for the BPF target: programs, functions, maps, types and lines.
//!
//! Sources: ELF with machine `EM_BPF`; relocations as in Documentation/bpf/llvm_reloc.rst; `.maps`, `.BTF` and `.BTF.ext` as
//! in Documentation/bpf/btf.rst and libbpf.

pub mod btf;
mod lines;
mod made;
mod maps;

use std::collections::BTreeMap;

use object::elf::{EM_BPF, R_BPF_64_32, R_BPF_64_64, SHF_EXECINSTR, STT_FUNC, STT_OBJECT};
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags, RelocationTarget};

use super::instruction::Instruction;
pub use btf::Btf;
pub use lines::Line;
pub use maps::{MapDefinition, MapType, Slot, Variable};

/// The largest object taken, in bytes.
pub const MAX_OBJECT: usize = 16 << 20;

/// Instructions of all sections together, at most: as many as the kernel looks at (`BPF_COMPLEXITY_LIMIT_INSNS`).
const MAX_INSTRUCTIONS: usize = 1_000_000;

/// Why an object cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Wrong(String);

impl Wrong {
    fn new(message: impl Into<String>) -> Wrong {
        Wrong(message.into())
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
        self.lines[..self.lines.partition_point(|line| line.instruction <= instruction)].last()
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
        let file = ElfFile64::<LittleEndian>::parse(bytes).map_err(|error| Wrong::new(format!("bad ELF: {error}")))?;
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
        let is_it = |it: &Function| it.section == section && (it.first..it.end).contains(&instruction);
        self.functions.iter().position(is_it)
    }
}

type File<'a> = ElfFile64<'a, LittleEndian>;

/// An object being read.
struct Reading<'a> {
    file: File<'a>,
    object: Object,
    /// ELF's numbers of the sections that have code, and those of global variables with the numbers of their maps.
    code: Vec<usize>,
    data: Vec<(usize, usize)>,
    /// The maps of `.maps` and `maps` by ELF's number of the section and the place in it.
    places: BTreeMap<(usize, u64), usize>,
}

fn bad(error: object::Error) -> Wrong {
    Wrong::new(format!("bad ELF: {error}"))
}

impl<'a> Reading<'a> {
    fn new(name: &str, file: File<'a>) -> Result<Reading<'a>, Wrong> {
        let section = |name: &str| file.section_by_name(name).map(|it| it.data().map_err(bad)).transpose();
        let btf = section(".BTF")?.map(Btf::read).transpose()?.unwrap_or_default();
        let object =
            Object { name: name.to_owned(), sections: Vec::new(), functions: Vec::new(), maps: Vec::new(), btf };
        Ok(Reading { file, object, code: Vec::new(), data: Vec::new(), places: BTreeMap::new() })
    }

    fn object(mut self) -> Result<Object, Wrong> {
        self.code()?;
        self.functions();
        let slots = self.maps()?;
        self.globals()?;
        self.slots(&slots)?;
        self.references()?;
        Ok(self.object)
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
            self.code.push(section.index().0);
            let references = BTreeMap::new();
            self.object.sections.push(Section { name, instructions, references, lines: Vec::new() });
        }
        let Some(ext) = self.file.section_by_name(".BTF.ext") else { return Ok(()) };
        for (name, lines) in lines::read(ext.data().map_err(bad)?, &self.object.btf)? {
            if let Some(section) = self.object.sections.iter_mut().find(|section| section.name == name) {
                section.lines = lines;
            }
        }
        Ok(())
    }

    fn functions(&mut self) {
        for symbol in self.file.symbols() {
            let is_function = symbol.elf_symbol().st_type() == STT_FUNC;
            let section = symbol.section_index().and_then(|index| self.section_of(index.0));
            let (Some(section), true, Ok(name)) = (section, is_function, symbol.name()) else { continue };
            let count = self.object.sections[section].instructions.len();
            let first = (symbol.address() / 8) as usize;
            let end = first.saturating_add((symbol.size() / 8) as usize).min(count);
            let is_global = symbol.is_global();
            self.object.functions.push(Function { name: name.to_owned(), section, first, end, is_global });
        }
        self.object.functions.sort_by_key(|function| (function.section, function.first));
    }

    fn section_of(&self, index: usize) -> Option<usize> {
        self.code.iter().position(|&it| it == index)
    }

    fn maps(&mut self) -> Result<Vec<maps::SlotsAt>, Wrong> {
        let mut slots = Vec::new();
        if let Some(section) = self.file.section_by_name(".maps") {
            if self.object.btf.section(".maps").is_none() {
                let message = "there are maps in `.maps`, but no types that say what they are";
                return Err(Wrong::new(format!("{message}: build with -g, and keep `.BTF` when stripping")));
            }
            let symbols = self.variables(section.index());
            let (maps, at) = maps::by_types(&self.object.btf, &symbols)?;
            slots = at;
            for (number, map) in maps.iter().enumerate() {
                if let Some((_, at)) = symbols.iter().find(|(name, _)| *name == map.name) {
                    self.places.insert((section.index().0, *at), number);
                }
            }
            self.object.maps = maps;
        }
        if let Some(section) = self.file.section_by_name("maps") {
            let index = section.index();
            let symbols = self.variables(index);
            for map in maps::by_definitions(&symbols, section.data().map_err(bad)?)? {
                let at = symbols.iter().find(|(name, _)| *name == map.name).map_or(0, |(_, at)| *at);
                self.places.insert((index.0, at), self.object.maps.len());
                self.object.maps.push(map);
            }
        }
        Ok(slots)
    }

    /// The variables of a section, and where they are in it.
    fn variables(&self, section: object::SectionIndex) -> Vec<(String, u64)> {
        let own = self.file.symbols().filter(|it| it.section_index() == Some(section));
        let own = own.filter(|it| it.elf_symbol().st_type() == STT_OBJECT || it.is_global());
        let mut all: Vec<(String, u64)> =
            own.filter_map(|it| Some((it.name().ok()?.to_owned(), it.address()))).collect();
        all.sort_by_key(|(_, at)| *at);
        all
    }

    /// Sections of global variables.
    fn globals(&mut self) -> Result<(), Wrong> {
        for section in self.file.sections() {
            let name = section.name().map_err(bad)?;
            let is = |kind: &str| name == kind || name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.'));
            let size = section.size();
            if !(is(".rodata") || is(".data") || is(".bss")) || size == 0 {
                continue;
            }
            if size > MAX_OBJECT as u64 {
                return Err(Wrong::new(format!(
                    "the section `{name}` has {size} bytes, and {MAX_OBJECT} are the most"
                )));
            }
            let data = if is(".bss") { vec![0; size as usize] } else { section.data().map_err(bad)?.to_vec() };
            let variables = self.variables_of(section.index(), name, data.len());
            self.data.push((section.index().0, self.object.maps.len()));
            self.object.maps.push(MapDefinition::of_section(name, data, variables, is(".rodata")));
        }
        Ok(())
    }

    /// The variables of such a section. Where there are types, only what has one is a variable: the rest is what the compiler
    /// made. (Types say the places only once an object is linked; symbols do before.)
    fn variables_of(&self, index: object::SectionIndex, section: &str, length: usize) -> Vec<Variable> {
        let btf = &self.object.btf;
        let typed = btf.section(section);
        let own = self.file.symbols().filter(|it| it.section_index() == Some(index));
        let own = own.filter(|it| it.elf_symbol().st_type() == STT_OBJECT);
        let variable = |symbol: object::read::elf::ElfSymbol64<'_, '_, LittleEndian>| {
            let name = symbol.name().ok()?;
            let is_it = |&&(ty, ..): &&(u32, u32, u32)| btf.get(ty).is_some_and(|it| it.name == name);
            let ty = typed.and_then(|all| all.iter().find(is_it)).map(|(ty, ..)| *ty);
            let size = ty.and_then(|ty| btf.size(ty)).map_or(symbol.size(), u64::from);
            let fits = symbol.address().checked_add(size).is_some_and(|end| end <= length as u64);
            let is_one = fits && size > 0 && !name.is_empty() && (typed.is_none() || ty.is_some());
            is_one.then(|| Variable { name: name.to_owned(), at: symbol.address() as u32, size: size as u32, ty })
        };
        let mut all: Vec<Variable> = own.filter_map(variable).collect();
        all.sort_by(|a, b| (a.at, &a.name).cmp(&(b.at, &b.name)));
        all
    }

    /// What maps hold from the beginning: the relocations of `.maps`.
    fn slots(&mut self, slots: &[maps::SlotsAt]) -> Result<(), Wrong> {
        let Some(section) = self.file.section_by_name(".maps") else { return Ok(()) };
        for (at, relocation) in section.relocations() {
            let RelocationTarget::Symbol(index) = relocation.target() else { continue };
            let symbol = self.file.symbol_by_index(index).map_err(bad)?;
            // The last map whose slots begin before.
            let map = slots.iter().filter(|it| it.offset <= at).max_by_key(|it| it.offset);
            let Some(map) = map else { continue };
            let index = ((at - map.offset) / 8) as u32;
            let symbol = symbol.name().map_err(bad)?.to_owned();
            self.object.maps[map.map].slots.push(Slot { index, symbol });
        }
        Ok(())
    }

    fn references(&mut self) -> Result<(), Wrong> {
        for (number, &index) in self.code.iter().enumerate() {
            let section = self.file.section_by_index(object::SectionIndex(index)).map_err(bad)?;
            for (at, relocation) in section.relocations() {
                let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
                if r_type != R_BPF_64_64 && r_type != R_BPF_64_32 {
                    continue;
                }
                let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
                let symbol = self.file.symbol_by_index(symbol).map_err(bad)?;
                let reference = self.reference(&symbol)?;
                self.object.sections[number].references.insert((at / 8) as usize, reference);
            }
        }
        Ok(())
    }

    fn reference(&self, symbol: &object::read::elf::ElfSymbol64<'_, '_, LittleEndian>) -> Result<Reference, Wrong> {
        let (name, offset) = (symbol.name().unwrap_or_default(), symbol.address());
        let Some(index) = symbol.section_index() else { return Ok(Reference::External(name.to_owned())) };
        if let Some(section) = self.section_of(index.0) {
            return Ok(Reference::Code { section, offset });
        }
        if let Some(&map) = self.places.get(&(index.0, offset)) {
            return Ok(Reference::Map(map));
        }
        match self.data.iter().find(|(section, _)| *section == index.0) {
            Some(&(_, map)) => Ok(Reference::Data { map, offset }),
            None => Ok(Reference::External(name.to_owned())),
        }
    }
}
