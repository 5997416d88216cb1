//! Report on an object as a whole: which of its programs compile, and why the others do not.

use std::collections::BTreeSet;

use crate::decode::maps::{self, MapUse};
use crate::helper;
use crate::instruction::{CALL, call};
use crate::object::{Object, Reference};
use crate::parameters::{self, GlobalVariable, globals};
use crate::{MapDefinition, compile_configured, file_error};
use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::map::TypeInfo;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_core::stack::run_on_large_stack;

/// Report on a program.
#[derive(Debug)]
pub struct ProgramReport {
    /// Name of the program.
    pub name: String,
    /// Name of the section.
    pub section: String,
    /// Helpers called in the program and its functions, reachable or not.
    pub helpers: Vec<String>,
    /// The compiled filter, or the rejection.
    pub result: Result<Program, Diagnostics>,
}

/// Report on a map.
#[derive(Debug)]
pub struct MapReport {
    /// Definition in the object.
    pub definition: MapDefinition,
    /// Types of keys and values.
    pub typed: TypeInfo,
    /// Why no program can use the map, if so.
    pub refused: Option<String>,
}

/// Report on an object.
#[derive(Debug)]
pub struct ObjectReport {
    /// File name of the object.
    pub name: String,
    /// The XDP programs.
    pub programs: Vec<ProgramReport>,
    /// Sections with code for other hooks.
    pub other_sections: Vec<String>,
    /// The maps, without sections of global variables.
    pub maps: Vec<MapReport>,
    /// The global variables.
    pub globals: Vec<GlobalVariable>,
}

/// Compiles all programs of an object and reports on them.
///
/// # Errors
///
/// The object is malformed, or a parameter does not fit it.
pub fn inspect(name: &str, bytes: &[u8], options: &ProgramOptions) -> Result<ObjectReport, Diagnostics> {
    let mut object = Object::read(name, bytes).map_err(|wrong| file_error(name, wrong.to_string()))?;
    let given = &options.parameters;
    let options = parameters::apply(&mut object, options)?;
    let object = object;
    let mut programs = Vec::new();
    for function in object.programs() {
        let compiled = run_on_large_stack(&Source::new(name, ""), || {
            compile_configured(&object, Some(&function.name), &options, given)
        });
        programs.push(ProgramReport {
            name: function.name.clone(),
            section: object.sections[function.section].name.clone(),
            helpers: reachable_helpers(&object, (function.section, function.first)),
            result: compiled.and_then(|result| result),
        });
    }
    let with_functions: BTreeSet<usize> =
        object.functions.iter().filter(|it| it.is_global).map(|it| it.section).collect();
    let other_sections = with_functions.into_iter().map(|number| &object.sections[number]);
    let other_sections = other_sections.filter(|section| !section.is_xdp() && section.name != ".text");
    let other_sections = other_sections.map(|section| section.name.clone()).collect();
    let maps = maps::link_maps(&object).into_iter().filter(|info| !info.is_global_section());
    let maps = maps.map(|info| MapReport {
        typed: info.type_info(&object),
        refused: match info.used_as {
            MapUse::Unsupported(why) => Some(why),
            _ => None,
        },
        definition: info.definition,
    });
    let maps = maps.collect();
    Ok(ObjectReport { name: name.to_owned(), programs, other_sections, maps, globals: globals(&object, given) })
}

/// Names of the helpers called in a function and all functions that it references.
fn reachable_helpers(object: &Object, begin: (usize, usize)) -> Vec<String> {
    let (mut found, mut seen, mut open) = (BTreeSet::new(), BTreeSet::from([begin]), vec![begin]);
    while let Some((section, first)) = open.pop() {
        let Some(function) = object.function_at(section, first).map(|it| &object.functions[it]) else { continue };
        let code = &object.sections[section];
        for at in function.first..function.end {
            let Some(it) = code.instructions.get(at) else { break };
            let is_call = it.code == CALL;
            let to = match code.references.get(&at) {
                Some(&Reference::Code { section, offset }) => {
                    // A call counts instructions from the next one; an address counts bytes.
                    let shift = if is_call { i64::from(it.imm) + 1 } else { i64::from(it.imm) / 8 };
                    Some((section, offset as i64 / 8 + shift))
                }
                _ if is_call && it.src == call::FUNCTION => Some((section, at as i64 + 1 + i64::from(it.imm))),
                _ => None,
            };
            if is_call && it.src == call::HELPER {
                found.insert(it.imm as u32);
            }
            if let Some((section, first)) = to
                && let Ok(first) = usize::try_from(first)
                && seen.insert((section, first))
            {
                open.push((section, first));
            }
        }
    }
    found.into_iter().map(helper::name).collect()
}
