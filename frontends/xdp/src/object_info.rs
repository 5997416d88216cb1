//! What the host needs to know of the object that a program was compiled from.

use std::collections::BTreeSet;

use crate::analysis::program::AnalyzedProgram;
use crate::broadcast::{self, Broadcast};
use crate::decode::linked::LinkedObject;
use crate::decode::maps::MapInfo;
use crate::helper;
use crate::ir::privatize::PrivateCopy;
use crate::object::{Btf, MapDefinition};
use crate::parameters::GlobalVariable;
use crate::rejection;
use crate::{events, fib};
use portcullis_core::map::{Annotation, Annotations};
use portcullis_core::program::{InitialMapWords, Program};

/// Description of the object that a program was compiled from, for the host.
#[derive(Debug)]
pub struct ObjectInfo {
    /// File name of the object.
    pub object: String,
    /// Name of the program.
    pub program: String,
    /// Definitions of the program's maps in the object, in the order of
    /// [`Program::maps`]; `None` for a map that the front end added.
    pub maps: Vec<Option<MapDefinition>>,
    /// The object's types.
    pub btf: Btf,
    /// Sites where a packet may be aborted, in the order of the counters in the map `traps`.
    pub traps: Vec<ProgramSite>,
    /// Sites where an addition to a map value is not atomic, so that packets running side by side
    /// may lose additions.
    pub lost_updates: Vec<ProgramSite>,
    /// The map values of which each packet has a private copy.
    pub copies: Vec<PrivatizedValue>,
    /// Redirect targets that stand for all ports in a map.
    pub broadcasts: Vec<Broadcast>,
    /// The filter maps that hold routing tables.
    pub fib: fib::Maps,
    /// Names of the helpers that reachable code calls.
    pub helpers: Vec<String>,
    /// Programs that a program array can hold; the value 1 stands for the first.
    pub programs: Vec<String>,
    /// Maps that a map of maps can hold; the value 1 stands for the first.
    pub inner_maps: Vec<String>,
    /// Global variables, with the values that the program was compiled with.
    pub globals: Vec<GlobalVariable>,
    /// The event rings: ring buffers, perf event arrays, and prints.
    pub rings: Vec<events::EventRing>,
    /// Formats of the program's prints, by the number that a record holds.
    pub prints: Vec<events::PrintFormat>,
}

impl ObjectInfo {
    /// Returns the object that a program was compiled from, if it was.
    pub fn of(program: &Program) -> Option<&ObjectInfo> {
        program.origin()
    }
}

/// A map value of which each packet has a private copy of some words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivatizedValue {
    /// Name of the map in the object.
    pub map: String,
    /// Number of words that are copied.
    pub words: usize,
    /// Number of words that every packet copies when it begins, since the program indexes them by
    /// values known only at run time.
    pub filled: usize,
}

/// An instruction worth reporting: the packet may be aborted there because an access is not proven
/// safe, or an addition there may be lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramSite {
    /// The enclosing function, or the section if there is none.
    pub function: String,
    /// Number in the function, function and disassembly.
    pub instruction: String,
    /// File and line, if known.
    pub line: Option<(String, u32)>,
    /// Why the site is reported.
    pub reason: &'static str,
}

impl ProgramSite {
    /// Column names and rows that annotate the entries of the map `traps`.
    pub(super) fn notes(all: &[ProgramSite]) -> Annotations {
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

impl LinkedObject<'_> {
    /// Builds the description for the host, and the initial contents of maps.
    pub(super) fn describe(
        &self,
        analyzed: &AnalyzedProgram,
        (section, first): (usize, usize),
        rings: Vec<events::EventRing>,
        (fib, added_maps): (fib::Maps, usize),
    ) -> (ObjectInfo, Vec<InitialMapWords>) {
        let object = self.object;
        let name = |section, at| object.function_at(section, at).map(|it| object.functions[it].name.clone());
        let used: Vec<&MapInfo> = analyzed.facts.used_maps.iter().map(|&map| &self.maps[usize::from(map)]).collect();
        let initial = used.iter().enumerate().flat_map(|(map, info)| {
            self.initial_words(info).into_iter().map(move |(offset, words)| InitialMapWords {
                map,
                offset,
                words: words.into(),
            })
        });
        let maps = used
            .iter()
            .map(|info| Some(info.definition.clone()))
            .chain(std::iter::repeat_n(None, added_maps))
            .collect();
        // A broadcast found early in the analysis may be of a map that the final code does not use.
        let broadcasts =
            (0..).zip(analyzed.facts.broadcasts.values()).filter_map(|(number, &(map, exclude_ingress))| {
                let map = analyzed.facts.used_maps.iter().position(|used| *used == map)?;
                Some(Broadcast { target: broadcast::FIRST_TARGET + number, map, exclude_ingress })
            });
        let copies = analyzed.facts.used_maps.iter().filter_map(|&map| {
            let PrivateCopy { variables, memory } = analyzed.facts.privatization.copy_of(map)?;
            let name = self.maps[usize::from(map)].definition.name.clone();
            let copy = PrivatizedValue { map: name, words: variables.len() + memory.len(), filled: memory.len() };
            (copy.words > 0).then_some(copy)
        });
        // In program order; the analysis reports them in block order.
        let lost_updates: BTreeSet<_> = analyzed.facts.lost_update_sites.values().iter().copied().collect();
        let lost_updates: Vec<_> = lost_updates.into_iter().collect();
        let info = ObjectInfo {
            object: object.name.clone(),
            program: name(section, first).unwrap_or_default(),
            maps,
            broadcasts: broadcasts.collect(),
            fib,
            btf: object.btf.clone(),
            traps: self.program_sites(analyzed.facts.trap_sites.values()),
            lost_updates: self.program_sites(&lost_updates),
            copies: copies.collect(),
            helpers: analyzed.facts.helpers.iter().map(|&helper| helper::name(helper)).collect(),
            programs: self.programs.iter().map(|(name, ..)| name.clone()).collect(),
            inner_maps: object.maps.iter().map(|map| map.name.clone()).collect(),
            globals: Vec::new(),
            rings,
            prints: analyzed.facts.events.prints.clone(),
        };
        (info, initial.collect())
    }

    /// Converts (section, instruction, reason) to sites, keeping the order.
    pub(super) fn program_sites(&self, all: &[(u32, u32, &'static str)]) -> Vec<ProgramSite> {
        let object = self.object;
        let sites = all.iter().map(|&(section, at, reason)| {
            let (section, at) = (section as usize, at as usize);
            let line = object.sections[section].line(at).map(|line| (line.file.to_string(), line.line));
            let function = object.function_at(section, at).map(|it| object.functions[it].name.clone());
            let function = function.unwrap_or_else(|| object.sections[section].name.clone());
            ProgramSite { function, instruction: rejection::describe_instruction(object, section, at), line, reason }
        });
        sites.collect()
    }
}
