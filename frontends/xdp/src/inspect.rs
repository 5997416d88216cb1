//! What is in an object as a whole: which of its programs can be taken, and why the others cannot.

use std::collections::BTreeSet;

use crate::decode::helper;
use crate::decode::instruction::{CALL, call};
use crate::decode::maps::{self, Use};
use crate::object::{Object, Reference};
use crate::parameters::{self, GlobalVariable, globals};
use crate::{MapDefinition, compile_here, whole};
use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::map::TypeInfo;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_core::stack::run_on_large_stack;

/// A program of an object.
#[derive(Debug)]
pub struct ProgramReport {
    /// Its name.
    pub name: String,
    /// Its section.
    pub section: String,
    /// Helpers that it and the functions that it calls name, whether or not a way leads there.
    pub helpers: Vec<String>,
    /// The filter that it becomes, or why it becomes none.
    pub result: Result<Program, Diagnostics>,
}

/// A map of an object.
#[derive(Debug)]
pub struct MapReport {
    /// As the object defines it.
    pub definition: MapDefinition,
    /// What its keys and values are.
    pub typed: TypeInfo,
    /// Why no program can use it, where that is so.
    pub refused: Option<String>,
}

/// What is in an object.
#[derive(Debug)]
pub struct ObjectReport {
    /// The object's file.
    pub name: String,
    /// Its programs for XDP.
    pub programs: Vec<ProgramReport>,
    /// Sections with code for other hooks.
    pub other_sections: Vec<String>,
    /// Its maps, without the sections of its global variables.
    pub maps: Vec<MapReport>,
    /// Its global variables.
    pub globals: Vec<GlobalVariable>,
}

/// Looks at all programs of an object.
///
/// # Errors
/// What is wrong with the object as a whole, and with what is set in it.
pub fn inspect(name: &str, bytes: &[u8], options: &ProgramOptions) -> Result<ObjectReport, Diagnostics> {
    let mut object = Object::read(name, bytes).map_err(|wrong| whole(name, wrong.to_string()))?;
    let given = &options.parameters;
    let options = parameters::set(&mut object, options)?;
    let object = object;
    let mut programs = Vec::new();
    for function in object.programs() {
        let compiled =
            run_on_large_stack(&Source::new(name, ""), || compile_here(&object, Some(&function.name), &options, given));
        programs.push(ProgramReport {
            name: function.name.clone(),
            section: object.sections[function.section].name.clone(),
            helpers: helpers(&object, (function.section, function.first)),
            result: compiled.and_then(|result| result),
        });
    }
    let with_functions: BTreeSet<usize> =
        object.functions.iter().filter(|it| it.is_global).map(|it| it.section).collect();
    let other_sections = with_functions.into_iter().map(|number| &object.sections[number]);
    let other_sections = other_sections.filter(|section| !section.is_xdp() && section.name != ".text");
    let other_sections = other_sections.map(|section| section.name.clone()).collect();
    let maps = maps::maps(&object).into_iter().filter(|info| !info.is_data());
    let maps = maps.map(|info| MapReport {
        typed: info.typed(&object),
        refused: match info.used_as {
            Use::Refused(why) => Some(why),
            _ => None,
        },
        definition: info.definition,
    });
    let maps = maps.collect();
    Ok(ObjectReport { name: name.to_owned(), programs, other_sections, maps, globals: globals(&object, given) })
}

/// The helpers that a function and those that it leads to call.
fn helpers(object: &Object, begin: (usize, usize)) -> Vec<String> {
    let (mut found, mut seen, mut open) = (BTreeSet::new(), BTreeSet::from([begin]), vec![begin]);
    while let Some((section, first)) = open.pop() {
        let Some(function) = object.function_at(section, first).map(|it| &object.functions[it]) else { continue };
        let code = &object.sections[section];
        for at in function.first..function.end {
            let Some(it) = code.instructions.get(at) else { break };
            let is_call = it.code == CALL;
            let to = match code.references.get(&at) {
                Some(&Reference::Code { section, offset }) => {
                    // A call counts from the next instruction on, an address is in bytes.
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
