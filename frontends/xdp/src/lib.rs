//! XDP objects in: programs that clang made for the BPF target become filters, unmodified. `docs/xdp-objects.md` says which.
//!
//! [`object`] reads the file. `flow` goes through a program with types in place of values (`types`, `range`), block by block
//! (`walk`), and has each block's computations in numbers of 32 bits (`code`), bytes side by side as words (`bytes`). `live` says which of them are asked for, so that
//! the high half of a register is there only where somebody reads it. `emit` writes what is left as a function of naga's, by
//! `lang::structure`. `maps` are the object's maps as a filter's.

mod analysis;
mod broadcast;
mod decode;
mod errno;
pub mod events;
pub mod fib;
mod inspect;
mod lower;
pub mod object;
mod parameters;
mod rejection;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use broadcast::Broadcast;
pub use decode::instruction;
use decode::maps::{MapInfo, Use};
pub use inspect::{MapReport, ObjectReport, ProgramReport, inspect};
use lower::ir::Op;
use lower::privatize::Copy;
use object::MapType;
pub use object::{Btf, MapDefinition, Object};
pub use parameters::{GlobalVariable, globals};
use rejection::Listing;

use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};
use portcullis_core::map::declaration::MAX_MAPS;
use portcullis_core::map::layout::Layout;
use portcullis_core::map::{Annotation, Annotations, Declaration, MapKind, Table};
use portcullis_core::program::prelude;
use portcullis_core::program::{InitialMapWords, Program, ProgramOptions};
use portcullis_core::spelling::nearest;
use portcullis_core::stack::run_on_large_stack;

/// Where a program comes from: the object, as far as the host wants to know of it.
#[derive(Debug)]
pub struct ObjectInfo {
    /// The object's file.
    pub object: String,
    /// The program.
    pub program: String,
    /// What the program's maps are in the object, in the order of [`Program::maps`]; `None` of those that it has besides.
    pub maps: Vec<Option<MapDefinition>>,
    /// The object's types.
    pub btf: Btf,
    /// Where a packet may be aborted, by the number of the counter in the map that counts traps.
    pub traps: Vec<ProgramSite>,
    /// Where a number is added to one in a map's value, and packets side by side may lose additions.
    pub lost_updates: Vec<ProgramSite>,
    /// What of maps' values each packet has a copy of.
    pub copies: Vec<PrivatizedValue>,
    /// Targets that stand for several ports.
    pub broadcasts: Vec<Broadcast>,
    /// Which of them say where packets go by routes.
    pub fib: fib::Maps,
    /// Helpers that are called, by name.
    pub helpers: Vec<String>,
    /// The programs that maps of programs can hold: the first by 1, and so on.
    pub programs: Vec<String>,
    /// The maps that maps of maps can hold: the first by 1, and so on.
    pub inner_maps: Vec<String>,
    /// The object's global variables, with the values that the program was compiled with.
    pub globals: Vec<GlobalVariable>,
    /// The maps that are rings of events.
    pub rings: Vec<events::EventRing>,
    /// What the program prints, by the number in a record.
    pub prints: Vec<events::Print>,
}

impl ObjectInfo {
    /// Returns where a program comes from, if it was compiled from an object.
    pub fn of(program: &Program) -> Option<&ObjectInfo> {
        program.origin()
    }
}

/// Words of a map's only value that the program takes for its own while it has a packet: each packet has a copy of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivatizedValue {
    /// The map's name in the object.
    pub map: String,
    /// How many there are.
    pub words: usize,
    /// How many of them each packet copies when it begins, whatever it does: the program indexes them by what is known only then.
    pub filled: usize,
}

/// An instruction of which there is something to tell: a packet may be aborted there, since the program has not shown that what
/// it does is right, or what it adds may be lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramSite {
    /// The function that it is in; outside of any the section.
    pub function: String,
    /// The instruction, in words: its number, its function, itself.
    pub instruction: String,
    /// File and line, where they are known.
    pub line: Option<(String, u32)>,
    /// Why.
    pub reason: &'static str,
}

impl ProgramSite {
    /// What a map that counts traps says of its entries.
    fn notes(all: &[ProgramSite]) -> Annotations {
        let note = |it: &ProgramSite| {
            let (file, line) = it.line.as_ref().map(|(file, line)| (file.as_str(), *line)).unzip();
            let text = [it.function.as_str(), &it.instruction].map(Annotation::from);
            text.into_iter().chain([file.into(), line.into(), it.reason.into()]).collect()
        };
        Annotations {
            columns: vec!["function", "instruction", "file", "line", "reason"],
            rows: all.iter().map(note).collect(),
        }
    }
}

/// Linux' flag of arrays that are held by maps of maps, of any number of entries.
const BPF_F_INNER_MAP: u32 = 1 << 12;

/// The section that iproute2's examples have programs in: for XDP or another hook, which only who names it knows.
const OLD_SECTION: &str = "prog";

/// An object with what its maps are here.
pub(crate) struct Linked<'o> {
    object: &'o Object,
    maps: Vec<MapInfo>,
    /// The programs, by number: name, section, first instruction.
    programs: Vec<(String, u32, u32)>,
    /// What random numbers begin with.
    random_seed: u32,
}

impl<'o> Linked<'o> {
    fn of(object: &'o Object, random_seed: u32) -> Linked<'o> {
        let programs = object.programs().map(|it| (it.name.clone(), it.section as u32, it.first as u32)).collect();
        Linked { object, maps: decode::maps::maps(object), programs, random_seed }
    }

    /// What the host wants to know, and what maps hold from the beginning.
    fn origin(
        &self,
        flow: &analysis::fixpoint::Flow,
        (section, first): (usize, usize),
        rings: Vec<events::EventRing>,
        (fib, besides): (fib::Maps, usize),
    ) -> (ObjectInfo, Vec<InitialMapWords>) {
        let object = self.object;
        let name = |section, at| object.function_at(section, at).map(|it| object.functions[it].name.clone());
        let used: Vec<&MapInfo> = flow.shared.used.iter().map(|&map| &self.maps[usize::from(map)]).collect();
        let initial = used.iter().enumerate().flat_map(|(map, info)| {
            self.initial(info).into_iter().map(move |(offset, words)| InitialMapWords {
                map,
                offset,
                words: words.into(),
            })
        });
        let maps =
            used.iter().map(|info| Some(info.definition.clone())).chain(std::iter::repeat_n(None, besides)).collect();
        // What was found on the way there may not be what is left.
        let broadcasts = (0..).zip(flow.shared.broadcasts.all()).filter_map(|(number, &(map, exclude_ingress))| {
            let map = flow.shared.used.iter().position(|used| *used == map)?;
            Some(Broadcast { target: broadcast::FIRST + number, map, exclude_ingress })
        });
        let copies = flow.shared.used.iter().filter_map(|&map| {
            let Copy { variables, memory } = flow.shared.copies.of(map)?;
            let name = self.maps[usize::from(map)].definition.name.clone();
            let copy = PrivatizedValue { map: name, words: variables.len() + memory.len(), filled: memory.len() };
            (copy.words > 0).then_some(copy)
        });
        // In the order of the program: they were found in that of its blocks.
        let lost_updates: BTreeSet<_> = flow.shared.losses.all().iter().copied().collect();
        let lost_updates: Vec<_> = lost_updates.into_iter().collect();
        let origin = ObjectInfo {
            object: object.name.clone(),
            program: name(section, first).unwrap_or_default(),
            maps,
            broadcasts: broadcasts.collect(),
            fib,
            btf: object.btf.clone(),
            traps: self.sites(flow.shared.sites.all()),
            lost_updates: self.sites(&lost_updates),
            copies: copies.collect(),
            helpers: flow.shared.helpers.iter().map(|&helper| decode::helper::name(helper)).collect(),
            programs: self.programs.iter().map(|(name, ..)| name.clone()).collect(),
            inner_maps: object.maps.iter().map(|map| map.name.clone()).collect(),
            globals: Vec::new(),
            rings,
            prints: flow.shared.events.prints.clone(),
        };
        (origin, initial.collect())
    }

    /// Instructions with reasons, in the order of the numbers that they have.
    fn sites(&self, all: &[(u32, u32, &'static str)]) -> Vec<ProgramSite> {
        let object = self.object;
        let sites = all.iter().map(|&(section, at, reason)| {
            let (section, at) = (section as usize, at as usize);
            let line = object.sections[section].line(at).map(|line| (line.file.to_string(), line.line));
            let function = object.function_at(section, at).map(|it| object.functions[it].name.clone());
            let function = function.unwrap_or_else(|| object.sections[section].name.clone());
            ProgramSite { function, instruction: rejection::instruction(object, section, at), line, reason }
        });
        sites.collect()
    }

    /// Words of a map's memory that are not zeros at first: global variables, and slots that hold programs or maps.
    fn initial(&self, info: &MapInfo) -> Vec<(usize, Vec<u32>)> {
        let MapDefinition { data, slots, max_entries, .. } = &info.definition;
        let layout = Layout::of(&info.declaration());
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        if let Some(data) = data {
            return vec![(layout.slot_offset(0), data.chunks(4).map(word).collect())];
        }
        if slots.is_empty() {
            return Vec::new();
        }
        let number = |symbol: &str| match info.definition.ty.is_map_of_maps() {
            true => self.object.maps.iter().position(|map| map.name == symbol),
            false => self.programs.iter().position(|(name, ..)| name == symbol),
        };
        if info.used_as == Use::Hash {
            let mut table = Table::new(&info.declaration(), Vec::new());
            for slot in slots {
                let mut key = vec![0; info.declaration().key as usize];
                key[0] = slot.index;
                if let Some(number) = number(&slot.symbol) {
                    // There is room for as many as it has entries.
                    let _ = table.set(&key, &[number as u32 + 1]);
                }
            }
            let (at, words) = table.changes();
            return if words.is_empty() { Vec::new() } else { vec![(at, words.to_vec())] };
        }
        let slots = slots.iter().filter(|slot| slot.index < *max_entries);
        slots
            .filter_map(|slot| {
                let number = number(&slot.symbol)?;
                Some((layout.slot_offset(slot.index), vec![number as u32 + 1]))
            })
            .collect()
    }

    /// The programs that a map of programs may hold: number, section, first instruction. Those that it holds from the
    /// beginning, or where the host fills it, any.
    fn programs_of(&self, map: u16) -> Vec<(u32, u32, u32)> {
        let slots = &self.maps[usize::from(map)].definition.slots;
        let held: BTreeSet<&str> = slots.iter().map(|slot| slot.symbol.as_str()).collect();
        let all = (0..).zip(&self.programs);
        let all = all.filter(|(_, (name, ..))| held.is_empty() || held.contains(name.as_str()));
        all.map(|(number, (_, section, first))| (number, *section, *first)).collect()
    }

    /// The maps that a map of maps may hold: those that it holds from the beginning, or where the host fills it, those that
    /// are as it says its maps are.
    fn maps_in(&self, outer: u16) -> Vec<u16> {
        let MapDefinition { slots, inner, .. } = &self.maps[usize::from(outer)].definition;
        let shape = |map: &MapDefinition| (map.ty, map.key_size, map.value_size, map.flags);
        // Of arrays the bounds are compiled in, unless it is said that they are not (`array_map_meta_equal`).
        let is_bound = |map: &MapDefinition| map.ty.is_array() && map.flags & BPF_F_INNER_MAP == 0;
        let is_like = |inner: &MapDefinition, map: &MapDefinition| {
            shape(inner) == shape(map) && (!is_bound(inner) || inner.max_entries == map.max_entries)
        };
        let may = |map: &MapDefinition| match slots.is_empty() {
            true => inner.as_ref().is_some_and(|inner| is_like(inner, map)),
            false => slots.iter().any(|slot| slot.symbol == map.name),
        };
        let all = (0..).zip(&self.object.maps);
        all.filter(|(_, map)| may(map)).map(|(number, _)| number).collect()
    }
}

/// What is wrong with a file as a whole.
fn whole(name: &str, message: impl Into<String>) -> Diagnostics {
    Diagnostics::one(&Source::new(name, ""), Diagnostic::new(message))
}

/// Makes a filter of a program of an object: that of this name (or in this section), or the only one that there is.
///
/// # Errors
/// What is wrong with the object, and what of the program cannot be taken, with its instruction and line.
pub fn compile(
    name: &str,
    bytes: &[u8],
    program: Option<&str>,
    options: &ProgramOptions,
) -> Result<Program, Diagnostics> {
    let object = Object::read(name, bytes).map_err(|wrong| whole(name, wrong.to_string()))?;
    compile_object(&object, program, options)
}

/// The same of an object that has been read, or [made](Object::of_instructions).
///
/// # Errors
/// As [`compile`], but for what is wrong with the file.
pub fn compile_object(
    object: &Object,
    program: Option<&str>,
    options: &ProgramOptions,
) -> Result<Program, Diagnostics> {
    let given = &options.parameters;
    let mut set = object.clone();
    let options = parameters::set(&mut set, options)?;
    run_on_large_stack(&Source::new(object.name.as_str(), ""), || compile_here(&set, program, &options, given))?
}

/// Compiles a program of an object in which everything is set that was `given`.
fn compile_here(
    object: &Object,
    program: Option<&str>,
    options: &ProgramOptions,
    given: &[(String, String)],
) -> Result<Program, Diagnostics> {
    let (section, first) = chosen(object, program)?;
    let mut linked = Linked::of(object, options.random_seed);
    let refused = |refused| Listing::of(object).diagnostics(object, &refused);
    let (flow, needed) = analysis::fixpoint::find(&linked, section, first).map_err(refused)?;
    for &trie in &flow.shared.tries {
        decode::maps::by_length(&mut linked.maps[usize::from(trie)]).map_err(|why| whole(&object.name, why))?;
    }
    // What is called, for what it takes.
    let mut called: BTreeSet<&str> = BTreeSet::new();
    let mut traps = false;
    for (block, needed) in flow.blocks.iter().zip(&needed) {
        for (op, _) in block.code.ops.iter().zip(&needed.ops).filter(|(_, needed)| **needed) {
            match op {
                Op::Call(call) => {
                    called.insert(&call.function);
                }
                Op::Trap { .. } => traps = true,
                _ => {}
            }
        }
    }
    let mut declared: Vec<Declaration> = Vec::new();
    let mut text = include_str!("lower/runtime.wgsl").to_owned();
    let mut rings = Vec::new();
    let uses = &flow.shared.events.rings;
    for &map in &flow.shared.used {
        let info = &linked.maps[usize::from(map)];
        if info.used_as == Use::EventRing {
            let sizes = uses.get(&Some(map)).copied().unwrap_or_default();
            let (records, wanted) = match info.definition.ty {
                MapType::RINGBUF => (events::RecordKind::RingBuffer, info.definition.max_entries),
                _ => (events::RecordKind::Perf, 0),
            };
            rings.push(events::EventRing::new(&info.name, declared.len(), records, sizes, wanted));
            declared.extend(rings.last().map(events::EventRing::declaration));
        } else {
            declared.push(Declaration { typed: Some(Arc::new(info.typed(object))), ..info.declaration() });
            text += &info.text();
        }
    }
    let own = declared.len();
    let (tables, functions_of_tables, fib) = fib::needed(&called, flow.shared.families, &declared);
    declared.extend(tables);
    if let Some(&sizes) = uses.get(&None) {
        rings.push(events::EventRing::new(events::PRINTS, declared.len(), events::RecordKind::Prints, sizes, 0));
        declared.extend(rings.last().map(events::EventRing::declaration));
    }
    rings.iter().for_each(|ring| text += &ring.text());
    if traps {
        let traps = linked.sites(flow.shared.sites.all());
        let counter = Declaration::new(lower::emit::TRAPS, MapKind::Counter, 1, 2, traps.len() as u32);
        declared.push(Declaration { annotations: Some(Arc::new(ProgramSite::notes(&traps))), ..counter });
    }
    let listing = Listing::of(object);
    let fails = |message: String| Err(Diagnostics::one(&listing.source, Diagnostic::new(message)));
    if declared.len() > MAX_MAPS {
        let count = declared.len();
        return fails(format!(
            "the program uses {count} maps, sections of global variables and what is told to the host included, and \
             {MAX_MAPS} are the most"
        ));
    }
    text += &functions_of_tables;
    let besides = declared.len() - own;
    let mut module = prelude::module(&declared, &functions(&text, &called));
    if lower::emit::filter(&flow, &needed, &linked.maps, &mut module).is_err() {
        return fails("the program's loops stand in each other too deep".into());
    }
    let program = Program::new(&listing.source, module, declared, options)?;
    let (mut origin, initial) = linked.origin(&flow, (section, first), rings, (fib, besides));
    origin.globals = globals(object, given);
    Ok(program.with_origin(origin, initial))
}

/// Those functions of a text that are called, by their names, and those that they call.
fn functions(text: &str, called: &BTreeSet<&str>) -> String {
    let starts: Vec<usize> = text.match_indices("\nfn ").map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let parts = starts.iter().zip(ends).map(|(&start, end)| {
        let part = &text[start..end];
        // What stands behind the last brace is said of the next.
        let part = &part[..part.rfind("\n}").map_or(part.len(), |end| end + 2)];
        (part[4..].split('(').next().unwrap_or_default(), part)
    });
    let parts: BTreeMap<&str, &str> = parts.collect();
    let mut open: Vec<&str> = called.iter().copied().collect();
    let mut wanted: BTreeMap<&str, &str> = BTreeMap::new();
    while let Some(name) = open.pop() {
        let Some((&name, &part)) = parts.get_key_value(name) else { continue };
        if wanted.insert(name, part).is_none() {
            let words = part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            open.extend(words.filter(|word| word.starts_with("x_")));
        }
    }
    wanted.values().flat_map(|part| [part, "\n"]).collect()
}

/// The program that is meant.
fn chosen(object: &Object, program: Option<&str>) -> Result<(usize, usize), Diagnostics> {
    let all: Vec<_> = object.programs().collect();
    let names = || {
        let names: Vec<String> = all.iter().map(|it| format!("`{}`", it.name)).collect();
        match names.len() {
            0 => "the object has no programs for XDP".to_owned(),
            _ => format!("programs for XDP in it: {}", names.join(", ")),
        }
    };
    let fails = |message: String| {
        Err(Diagnostics::one(&Source::new(object.name.as_str(), ""), Diagnostic::new(message).note(names())))
    };
    match (program, all.as_slice()) {
        (None, [only]) => Ok((only.section, only.first)),
        (None, []) => {
            let sections: Vec<String> = object.sections.iter().map(|it| format!("`{}`", it.name)).collect();
            let message = format!(
                "the object has no programs for XDP: they are in sections whose names begin with `xdp`, and it has {}",
                sections.join(", ")
            );
            let mut error = Diagnostic::new(message);
            if let Some(it) = object.functions.iter().find(|it| it.is_global && may_be_xdp(object, it)) {
                error = error.note(format!(
                    "the section `{OLD_SECTION}` may be for XDP: where it is, say so, as in {}:{}",
                    object.name, it.name
                ));
            }
            Err(Diagnostics::one(&Source::new(object.name.as_str(), ""), error))
        }
        (None, several) => fails(format!(
            "the object has {} programs: say which, as in {}:{}",
            several.len(),
            object.name,
            several[0].name
        )),
        (Some(name), _) => {
            let shown = name.escape_debug();
            let programs = object.functions.iter().filter(|it| it.is_global && may_be_xdp(object, it));
            let (mut named, mut here) = (None, Vec::new());
            for it in programs {
                if it.name == name {
                    named = named.or(Some(it));
                }
                if object.sections[it.section].name == name {
                    here.push(it);
                }
            }
            match (named, here.as_slice()) {
                (Some(it), _) | (None, &[it]) => Ok((it.section, it.first)),
                (None, [first, ..]) => {
                    let names: Vec<String> = here.iter().map(|it| format!("`{}`", it.name)).collect();
                    fails(format!(
                        "the section `{shown}` has {} programs, {}: say which, as in {}:{}",
                        here.len(),
                        names.join(", "),
                        object.name,
                        first.name
                    ))
                }
                (None, []) => match object.functions.iter().find(|it| it.name == name) {
                    Some(it) => fails(format!("`{shown}` {}", why_none(object, it))),
                    None if object.sections.iter().any(|it| it.name == name && !it.instructions.is_empty()) => {
                        fails(format!("the section `{shown}` has no program for XDP"))
                    }
                    None if name.is_empty() => fails("behind the colon there is no name of a program".into()),
                    None => {
                        let near = nearest(name, all.iter().map(|it| it.name.as_str()));
                        let near = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
                        fails(format!("the object has no program `{shown}`{near}"))
                    }
                },
            }
        }
    }
}

/// Whether a function is in a section for XDP, or in one that is where it is named.
fn may_be_xdp(object: &Object, function: &object::Function) -> bool {
    let section = &object.sections[function.section];
    section.is_xdp() || section.name == OLD_SECTION
}

/// Why a function is no program that could be chosen.
fn why_none(object: &Object, function: &object::Function) -> String {
    let section = object.sections[function.section].name.escape_debug();
    match may_be_xdp(object, function) || object.sections[function.section].name == ".text" {
        true => format!("is in the section `{section}`, a function that programs call and no program itself"),
        false => format!("is in the section `{section}`, for another hook"),
    }
}
