//! What the host sets of an object before a program of it is looked at: global variables, and how many entries maps have. What is
//! constant decides which parts of a program there are.

use std::sync::Arc;

use crate::decode::maps::most_entries;
use crate::object::{MapDefinition, Object, Variable};
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};
use portcullis_core::map::typed::{self, CKind, CMember, CType, FieldLocation, NumberStyle};
use portcullis_core::program::ProgramOptions;
use portcullis_core::spelling::nearest;

/// Names that are listed where one is not found.
const LISTED: usize = 24;

/// What is set of a map.
const ENTRIES: &str = "max_entries";

/// What is set of random numbers, where the object has no variable of this name.
const SEED: &str = "random_seed";

/// A global variable, as the host sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalVariable {
    /// Its name.
    pub name: String,
    /// Its section.
    pub section: String,
    /// Its type, as C writes it.
    pub ty: String,
    /// Its value, and each part of it, as the host sets it.
    pub value: String,
    /// The same as JSON, where numbers are as the processor has them.
    pub json: String,
    /// Whether programs cannot write to it: it is looked at before a program is compiled.
    pub constant: bool,
    /// Whether the host has set it, or a part of it.
    pub is_set: bool,
}

/// The type of a variable: the BTF's, or a number of the symbol's size.
fn type_of(object: &Object, variable: &Variable) -> Arc<CType> {
    let known = variable.ty.and_then(|ty| object.btf.c_type(ty)).filter(|ty| ty.size == variable.size);
    known.unwrap_or_else(|| CType::unknown(variable.size))
}

/// The type of all variables of a section.
pub(super) fn section_type(object: &Object, map: &MapDefinition) -> Arc<CType> {
    let members = map.variables.iter().map(|it| (it.name.clone(), it.at, type_of(object, it)));
    CType::section(&map.name, map.value_size, members)
}

/// The global variables of an object; `given` is what the host has set.
pub fn globals(object: &Object, given: &[(String, String)]) -> Vec<GlobalVariable> {
    let sections = object.maps.iter().filter_map(|map| Some((map, map.data.as_ref()?)));
    let global = |map: &MapDefinition, data: &[u8], it: &CMember| {
        let (at, ty) = (it.bit as usize / 8, &it.ty);
        let bytes = data.get(at..at + ty.size as usize).unwrap_or_default();
        GlobalVariable {
            name: it.name.clone(),
            section: map.name.clone(),
            ty: ty.name.clone(),
            value: FieldLocation::whole(ty).text(bytes),
            json: typed::json(ty, bytes),
            constant: map.read_only,
            is_set: given.iter().any(|(name, _)| part_of(name, &it.name).is_some()),
        }
    };
    let mut all = Vec::new();
    for (map, data) in sections {
        if let CKind::Section(members) = &section_type(object, map).kind {
            all.extend(members.iter().map(|it| global(map, data, it)));
        }
    }
    all
}

/// What stands behind a variable's name, where it is of this one: nothing, `.member` or `[3]`.
fn part_of<'n>(name: &'n str, variable: &str) -> Option<&'n str> {
    let rest = name.strip_prefix(variable)?;
    (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
}

/// Sets what is given in an object, and gives the options for its programs, in which nothing is left to be set.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn set(object: &mut Object, options: &ProgramOptions) -> Result<ProgramOptions, Diagnostics> {
    let given = &options.parameters;
    let mut done = ProgramOptions { parameters: Vec::new(), ..options.clone() };
    let mut errors = Vec::new();
    for (number, (name, value)) in given.iter().enumerate() {
        let twice = given[..number].iter().any(|(earlier, _)| earlier == name);
        let set = match name.as_str() {
            _ if twice => Err(vec![format!("`{name}` is given twice")]),
            SEED if !has_variable(object, SEED) => seed(value).map(|seed| done.random_seed = seed),
            _ => set_one(object, name, value),
        };
        if let Err(words) = set {
            let mut words = words.into_iter();
            let error = Diagnostic::new(words.next().unwrap_or_default()).of_parameter(name);
            errors.push(words.fold(error, |error, note| error.note(note)));
        }
    }
    if errors.is_empty() {
        return Ok(done);
    }
    Err(Diagnostics { source: Source::new(object.name.as_str(), ""), errors })
}

fn has_variable(object: &Object, name: &str) -> bool {
    object.maps.iter().flat_map(|map| &map.variables).any(|variable| variable.name == name)
}

fn seed(value: &str) -> Result<u32, Vec<String>> {
    let wrong = || vec![format!("`{value}` is no number that random numbers could begin with: 0 to {}", u32::MAX)];
    typed::parse_integer(value).ok().and_then(|it| u32::try_from(it).ok()).ok_or_else(wrong)
}

/// Sets one; else what is wrong, and notes on it.
fn set_one(object: &mut Object, name: &str, value: &str) -> Result<(), Vec<String>> {
    // The longest name: one that is static in a function has a dot in it.
    let all =
        object.maps.iter().enumerate().flat_map(|(map, it)| it.variables.iter().map(move |variable| (map, variable)));
    let meant = all.filter_map(|(map, variable)| Some((map, variable, part_of(name, &variable.name)?)));
    let meant: Vec<_> = meant.collect();
    let longest = meant.iter().map(|(_, variable, _)| variable.name.len()).max();
    let mut meant = meant.into_iter().filter(|(_, variable, _)| Some(variable.name.len()) == longest);
    if let Some((map, variable, path)) = meant.next() {
        if meant.next().is_some() {
            return Err(vec![format!("there are several variables `{}`, static in different files", variable.name)]);
        }
        let ty = type_of(object, variable);
        let known = variable.ty.is_some();
        let range = variable.at as usize..(variable.at + variable.size) as usize;
        let of = format!("`{}` is {}, in {}", variable.name, ty.name, object.maps[map].name);
        let untyped = || {
            let what =
                "the object has no types (build it with -g), and so its variables are numbers of their sizes alone";
            (!known).then(|| what.to_owned())
        };
        let wrong = |what: String| [what].into_iter().chain([of.clone()]).chain(untyped()).collect::<Vec<_>>();
        let place = typed::resolve_path(&ty, path).map_err(|what| wrong(format!("`{name}`: {what}")))?;
        let data = object.maps[map].data.as_mut().and_then(|data| data.get_mut(range));
        let data = data.ok_or_else(|| wrong(format!("`{name}` lies outside of its section")))?;
        return typed::parse_into(&place, value, NumberStyle::Human, data)
            .map_err(|what| wrong(format!("`{value}` {what}")));
    }
    if let Some((map, what)) = name.rsplit_once('.')
        && let Some(map) = object.maps.iter_mut().find(|it| it.name == map && it.data.is_none())
    {
        if what != ENTRIES {
            return Err(vec![format!("of a map `{ENTRIES}` can be set: `{}.{ENTRIES}`", map.name)]);
        }
        let entries = typed::parse_integer(value).ok().and_then(|it| u32::try_from(it).ok());
        let most = most_entries(map.ty);
        let entries = entries.filter(|entries| (1..=most).contains(entries));
        map.max_entries = entries.ok_or_else(|| vec![format!("`{value}` is no number of entries: 1 to {most}")])?;
        return Ok(());
    }
    Err(unknown(object, name))
}

/// There is nothing of this name, and this there is.
fn unknown(object: &Object, name: &str) -> Vec<String> {
    let variables = object.maps.iter().flat_map(|map| map.variables.iter().map(|it| it.name.clone()));
    let maps = object.maps.iter().filter(|map| map.data.is_none()).map(|map| format!("{}.{ENTRIES}", map.name));
    let all: Vec<String> = variables.chain(maps).chain([SEED.to_owned()]).collect();
    let mut words = vec![format!("the object has no variable `{}`", name.escape_debug())];
    let root = name.split(['.', '[']).next().unwrap_or(name);
    let near = nearest(name, all.iter().map(String::as_str)).or_else(|| nearest(root, all.iter().map(String::as_str)));
    words.extend(near.map(|near| format!("did you mean `{near}`?")));
    let listed: Vec<String> = all.iter().take(LISTED).map(|it| format!("`{it}`")).collect();
    words.push(match all.len() {
        count if count > LISTED => {
            format!("there are {}, and {} more (`portcullis check` lists all)", listed.join(", "), count - LISTED)
        }
        _ => format!("there are {}", listed.join(", ")),
    });
    words
}
