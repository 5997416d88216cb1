//! XDP front end: compiles unmodified eBPF programs, as clang builds them, to filters.
//!
//! | stage | module | result |
//! |---|---|---|
//! | object | [`object`] | sections, functions, maps, BTF types and relocations of the ELF file |
//! | decode | `decode` | the object's functions and maps, linked to maps of a filter |
//! | analysis | `analysis` | abstract interpretation to a fixpoint: types, bounds, reachable blocks |
//! | lower | `lower` | if-conversion; naga function |
//!
//! The transfer functions of the analysis also emit a block's code, in an IR over 32-bit words
//! (`ir`), so that what was proven and what is computed cannot drift apart.
//! `docs/reference/xdp-analysis.md` describes the analysis, `docs/guide/xdp-objects.md` says which
//! programs are accepted.

mod analysis;
mod broadcast;
mod decode;
mod errno;
pub mod events;
pub mod fib;
mod helper;
mod inspect;
pub mod instruction;
mod ir;
mod lower;
pub mod object;
mod object_info;
mod parameters;
mod rejection;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use broadcast::Broadcast;

use decode::linked::LinkedObject;
use decode::maps::MapUse;
pub use inspect::{MapReport, ObjectReport, ProgramReport, inspect};
use ir::Op;
use object::MapType;
pub use object::{Btf, MapDefinition, Object};
pub use object_info::{ObjectInfo, PrivatizedValue, ProgramSite};
pub use parameters::{GlobalVariable, globals};
use rejection::Disassembly;

use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};
use portcullis_core::map::declaration::MAX_MAPS;
use portcullis_core::map::{Declaration, MapKind};
use portcullis_core::program::prelude;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_core::spelling::nearest;
use portcullis_core::stack::run_on_large_stack;

/// Section name of iproute2's examples. It does not say which hook the program is for, so such a
/// program is only taken if the user names it.
const LEGACY_SECTION: &str = "prog";

/// An error about a file as a whole.
fn file_error(name: &str, message: impl Into<String>) -> Diagnostics {
    Diagnostics::one(&Source::new(name, ""), Diagnostic::new(message))
}

/// Compiles one program of an object file to a filter: the program (or the only one in the section)
/// called `program`, or the object's only program.
///
/// # Errors
///
/// The object is malformed, the program is not found, or it is rejected; a rejection names the
/// instruction and the source line.
pub fn compile(
    name: &str,
    bytes: &[u8],
    program: Option<&str>,
    options: &ProgramOptions,
) -> Result<Program, Diagnostics> {
    let object = Object::read(name, bytes).map_err(|wrong| file_error(name, wrong.to_string()))?;
    compile_object(&object, program, options)
}

/// Compiles one program of an object that has been read, or built
/// [from instructions](Object::from_instructions).
///
/// # Errors
///
/// See [`compile`].
pub fn compile_object(
    object: &Object,
    program: Option<&str>,
    options: &ProgramOptions,
) -> Result<Program, Diagnostics> {
    let given = &options.parameters;
    let mut configured = object.clone();
    let options = parameters::apply(&mut configured, options)?;
    run_on_large_stack(&Source::new(object.name.as_str(), ""), || {
        compile_configured(&configured, program, &options, given)
    })?
}

/// Compiles a program of an object to which the parameters `given` have been applied.
fn compile_configured(
    object: &Object,
    program: Option<&str>,
    options: &ProgramOptions,
    given: &[(String, String)],
) -> Result<Program, Diagnostics> {
    let (section, first) = select_program(object, program)?;
    let mut linked = LinkedObject::new(object, options.random_seed);
    let diagnose = |rejection| Disassembly::new(object).diagnostics(object, &rejection);
    let (analyzed, needed) = analysis::fixpoint::analyze(&linked, section, first).map_err(diagnose)?;
    for &trie in &analyzed.facts.prefix_search_maps {
        decode::maps::use_prefix_search(&mut linked.maps[usize::from(trie)])
            .map_err(|why| file_error(&object.name, why))?;
    }
    // Only functions that live code calls, and their maps, go into the module.
    let mut called: BTreeSet<&str> = BTreeSet::new();
    let mut traps = false;
    for (block, needed) in analyzed.blocks.iter().zip(&needed) {
        for (op, _) in block.code.ops.iter().zip(&needed.live_ops).filter(|(_, needed)| **needed) {
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
    let uses = &analyzed.facts.events.rings;
    for &map in &analyzed.facts.used_maps {
        let info = &linked.maps[usize::from(map)];
        if info.used_as == MapUse::EventRing {
            let sizes = uses.get(&Some(map)).copied().unwrap_or_default();
            let (records, wanted) = match info.definition.ty {
                MapType::RINGBUF => (events::RecordKind::RingBuffer, info.definition.max_entries),
                _ => (events::RecordKind::Perf, 0),
            };
            rings.push(events::EventRing::new(&info.name, declared.len(), records, sizes, wanted));
            declared.extend(rings.last().map(events::EventRing::declaration));
        } else {
            declared.push(Declaration { typed: Some(Arc::new(info.type_info(object))), ..info.declaration() });
            text += &info.runtime_text();
        }
    }
    let object_maps = declared.len();
    let (fib_maps, fib_functions, fib) = fib::declare_maps(&called, analyzed.facts.families, &declared);
    declared.extend(fib_maps);
    if let Some(&sizes) = uses.get(&None) {
        rings.push(events::EventRing::new(events::PRINT_RING, declared.len(), events::RecordKind::Prints, sizes, 0));
        declared.extend(rings.last().map(events::EventRing::declaration));
    }
    rings.iter().for_each(|ring| text += &ring.text());
    if traps {
        let traps = linked.program_sites(analyzed.facts.trap_sites.values());
        let counter = Declaration::new(decode::maps::TRAP_MAP, MapKind::Counter, 1, 2, traps.len() as u32);
        declared.push(Declaration { annotations: Some(Arc::new(ProgramSite::notes(&traps))), ..counter });
    }
    let disassembly = Disassembly::new(object);
    let fails = |message: String| Err(Diagnostics::one(&disassembly.source, Diagnostic::new(message)));
    if declared.len() > MAX_MAPS {
        let count = declared.len();
        return fails(format!(
            "the program uses {count} maps, sections of global variables and event rings included; the \
             limit is {MAX_MAPS}"
        ));
    }
    text += &fib_functions;
    let added_maps = declared.len() - object_maps;
    let mut module = prelude::module(&declared, &select_functions(&text, &called));
    if lower::emit::emit_filter(&analyzed, &needed, &linked.maps, &mut module).is_err() {
        return fails("the program's loops are nested too deep".into());
    }
    let program = Program::new(&disassembly.source, module, declared, options)?;
    let (mut info, initial) = linked.describe(&analyzed, (section, first), rings, (fib, added_maps));
    info.globals = globals(object, given);
    Ok(program.with_origin(info, initial))
}

/// Selects from WGSL text the functions that are called, directly or by others that are.
fn select_functions(text: &str, called: &BTreeSet<&str>) -> String {
    let starts: Vec<usize> = text.match_indices("\nfn ").map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let parts = starts.iter().zip(ends).map(|(&start, end)| {
        let part = &text[start..end];
        // A comment after the closing brace belongs to the next function.
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

/// Finds the program called `program`, as (section, first instruction).
fn select_program(object: &Object, program: Option<&str>) -> Result<(usize, usize), Diagnostics> {
    let all: Vec<_> = object.programs().collect();
    let names = || {
        let names: Vec<String> = all.iter().map(|it| format!("`{}`", it.name)).collect();
        match names.len() {
            0 => "the object has no programs for XDP".to_owned(),
            _ => format!("its XDP programs: {}", names.join(", ")),
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
            if let Some(it) = object.functions.iter().find(|it| it.is_global && may_be_xdp_program(object, it)) {
                error = error.note(format!(
                    "the section `{LEGACY_SECTION}` may be for XDP: if it is, name the program, as in {}:{}",
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
            let programs = object.functions.iter().filter(|it| it.is_global && may_be_xdp_program(object, it));
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
                    Some(it) => fails(format!("`{shown}` {}", explain_not_a_program(object, it))),
                    None if object.sections.iter().any(|it| it.name == name && !it.instructions.is_empty()) => {
                        fails(format!("the section `{shown}` has no program for XDP"))
                    }
                    None if name.is_empty() => fails("there is no program name after the colon".into()),
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

/// Whether a function is in an XDP section, or in the legacy section that may be for XDP.
fn may_be_xdp_program(object: &Object, function: &object::Function) -> bool {
    let section = &object.sections[function.section];
    section.is_xdp() || section.name == LEGACY_SECTION
}

/// Explains why a function is not an XDP program.
fn explain_not_a_program(object: &Object, function: &object::Function) -> String {
    let section = object.sections[function.section].name.escape_debug();
    match may_be_xdp_program(object, function) || object.sections[function.section].name == ".text" {
        true => format!("is in the section `{section}`, a function that programs call, not a program"),
        false => format!("is in the section `{section}`, for another hook"),
    }
}
