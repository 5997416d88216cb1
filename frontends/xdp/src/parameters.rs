//! Parameters that the host sets in an object before a program is compiled: global variables, and
//! the number of entries of maps. Constants among them decide which code is reachable.

use crate::decode::maps::max_entries_of;
use crate::decode::variable_types::{section_type, variable_type};
use crate::object::{MapDefinition, Object};
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};
use portcullis_core::map::typed::{self, CKind, CMember, FieldLocation, NumberStyle};
use portcullis_core::program::{LEADING_ZEROS, ProgramOptions, has_leading_zeros};
use portcullis_core::spelling::nearest;

/// Number of names listed when one is not found.
const MAX_LISTED_NAMES: usize = 24;

/// The property of a map that can be set.
const MAX_ENTRIES_FIELD: &str = "max_entries";

/// Parameter for the seed of random numbers, unless the object has a variable of this name.
const RANDOM_SEED: &str = "random_seed";

/// A global variable, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalVariable {
    /// Name of the variable.
    pub name: String,
    /// Section of the variable.
    pub section: String,
    /// Type in C notation.
    pub ty: String,
    /// Value in the notation in which it is set.
    pub value: String,
    /// Value as JSON, with numbers in host byte order.
    pub json: String,
    /// Whether programs cannot write the variable, so that its value is known at compile time.
    pub constant: bool,
    /// Whether the host has set the variable or a part of it.
    pub is_set: bool,
}

/// The global variables of an object; `given` are the parameters that were applied to it.
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
            is_set: given.iter().any(|(name, _)| member_path(name, &it.name).is_some()),
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

/// The rest of a parameter's name after a variable: empty, `.member` or `[3]`.
fn member_path<'n>(name: &'n str, variable: &str) -> Option<&'n str> {
    let rest = name.strip_prefix(variable)?;
    (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
}

/// Applies parameters to an object. Returns the options for its programs, with no parameters left.
///
/// # Errors
///
/// All parameters that could not be applied.
pub(super) fn apply(object: &mut Object, options: &ProgramOptions) -> Result<ProgramOptions, Diagnostics> {
    let given = &options.parameters;
    let mut done = options.clone().with_parameters(Vec::new());
    let mut errors = Vec::new();
    for (number, (name, value)) in given.iter().enumerate() {
        let twice = given[..number].iter().any(|(earlier, _)| earlier == name);
        let set = match name.as_str() {
            _ if twice => Err(vec![format!("`{name}` is given twice")]),
            RANDOM_SEED if !has_variable(object, RANDOM_SEED) => parse_seed(value).map(|seed| done.random_seed = seed),
            _ => apply_one(object, name, value),
        };
        if let Err(words) = set {
            let mut words = words.into_iter();
            let error = Diagnostic::new(words.next().unwrap_or_default()).with_parameter(name);
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

fn parse_seed(value: &str) -> Result<u32, Vec<String>> {
    let wrong = || vec![format!("`{value}` is not a seed of random numbers: 0 to {}", u32::MAX)];
    parse_u32(value).ok_or_else(wrong)
}

fn parse_u32(value: &str) -> Option<u32> {
    let number = typed::parse_integer(value).ok().filter(|_| !has_leading_zeros(value));
    number.and_then(|it| u32::try_from(it).ok())
}

/// Applies one parameter; on error, returns the message and notes.
fn apply_one(object: &mut Object, name: &str, value: &str) -> Result<(), Vec<String>> {
    // Prefer the longest name: a static variable of a function has a dot in its name.
    let all =
        object.maps.iter().enumerate().flat_map(|(map, it)| it.variables.iter().map(move |variable| (map, variable)));
    let meant = all.filter_map(|(map, variable)| Some((map, variable, member_path(name, &variable.name)?)));
    let meant: Vec<_> = meant.collect();
    let longest = meant.iter().map(|(_, variable, _)| variable.name.len()).max();
    let mut meant = meant.into_iter().filter(|(_, variable, _)| Some(variable.name.len()) == longest);
    if let Some((map, variable, path)) = meant.next() {
        if meant.next().is_some() {
            return Err(vec![format!("there are several variables `{}`, static in different files", variable.name)]);
        }
        let ty = variable_type(object, variable);
        let known = variable.ty.is_some();
        let range = variable.at as usize..(variable.at + variable.size) as usize;
        let of = format!("`{}` is {}, in {}", variable.name, ty.name, object.maps[map].name);
        let untyped = || {
            let what = "the object has no types, so its variables are plain numbers: build it with -g";
            (!known).then(|| what.to_owned())
        };
        let wrong = |what: String| [what].into_iter().chain([of.clone()]).chain(untyped()).collect::<Vec<_>>();
        let place = typed::resolve_path(&ty, path).map_err(|what| wrong(format!("`{name}`: {what}")))?;
        let data = object.maps[map].data.as_mut().and_then(|data| data.get_mut(range));
        let data = data.ok_or_else(|| wrong(format!("`{name}` lies outside of its section")))?;
        let is_number = matches!(place.ty.kind, CKind::Int(_) | CKind::Enum { .. } | CKind::Network | CKind::Pointer);
        if is_number && has_leading_zeros(value) {
            return Err(wrong(format!("`{value}`: {LEADING_ZEROS}")));
        }
        return typed::parse_into(&place, value, NumberStyle::Human, data)
            .map_err(|what| wrong(format!("`{value}` {what}")));
    }
    if let Some((map, what)) = name.rsplit_once('.')
        && let Some(map) = object.maps.iter_mut().find(|it| it.name == map && it.data.is_none())
    {
        if what != MAX_ENTRIES_FIELD {
            return Err(vec![format!(
                "only `{MAX_ENTRIES_FIELD}` of a map can be set: `{}.{MAX_ENTRIES_FIELD}`",
                map.name
            )]);
        }
        let entries = parse_u32(value);
        let most = max_entries_of(map.ty);
        let entries = entries.filter(|entries| (1..=most).contains(entries));
        map.max_entries = entries.ok_or_else(|| vec![format!("`{value}` is not a number of entries: 1 to {most}")])?;
        return Ok(());
    }
    Err(explain_unknown_name(object, name))
}

/// Message and notes for a parameter that names nothing, with what could be meant.
fn explain_unknown_name(object: &Object, name: &str) -> Vec<String> {
    let variables = object.maps.iter().flat_map(|map| map.variables.iter().map(|it| it.name.clone()));
    let maps =
        object.maps.iter().filter(|map| map.data.is_none()).map(|map| format!("{}.{MAX_ENTRIES_FIELD}", map.name));
    let all: Vec<String> = variables.chain(maps).chain([RANDOM_SEED.to_owned()]).collect();
    let mut words = vec![format!("the object has no variable `{}`", name.escape_debug())];
    let root = name.split(['.', '[']).next().unwrap_or(name);
    let near = nearest(name, all.iter().map(String::as_str)).or_else(|| nearest(root, all.iter().map(String::as_str)));
    words.extend(near.map(|near| format!("did you mean `{near}`?")));
    let listed: Vec<String> = all.iter().take(MAX_LISTED_NAMES).map(|it| format!("`{it}`")).collect();
    words.push(match all.len() {
        count if count > MAX_LISTED_NAMES => {
            format!(
                "there are {}, and {} more (`portcullis check` lists all)",
                listed.join(", "),
                count - MAX_LISTED_NAMES
            )
        }
        _ => format!("there are {}", listed.join(", ")),
    });
    words
}
