//! Filters of the self-test: the stock filters and the probes.

use std::borrow::Cow;
use std::sync::Arc;

use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::program::{DEFAULT_FUEL, Program, ProgramOptions};
use portcullis_opencl_c as opencl_c;
use portcullis_opencl_c::files::NoIncludes;
use portcullis_wgsl as wgsl;

use portcullis::stock::{
    STATEFUL_OPENCL_C as STATEFUL_IN_C, STATEFUL_WGSL as STATEFUL, STATELESS_OPENCL_C as STOCK_IN_C,
    STATELESS_WGSL as STOCK,
};

use super::state::{self, Entry};

/// The language of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum Language {
    /// WGSL.
    #[serde(rename = "WGSL")]
    Wgsl,
    /// OpenCL C.
    #[serde(rename = "OpenCL C")]
    OpenClC,
}

impl Language {
    /// Every language.
    pub const ALL: [Language; 2] = [Language::Wgsl, Language::OpenClC];

    /// Returns the language's name.
    pub fn name(self) -> &'static str {
        match self {
            Language::Wgsl => "WGSL",
            Language::OpenClC => "OpenCL C",
        }
    }

    /// Returns the extension of the language's files.
    pub fn extension(self) -> &'static str {
        match self {
            Language::Wgsl => "wgsl",
            Language::OpenClC => "cl",
        }
    }
}

/// A filter on whose results every device must agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Name of the filter: its file's, without the extension.
    pub name: &'static str,
    /// Language of the source.
    pub language: Language,
    /// Source text.
    pub text: Cow<'static, str>,
    /// Fuel limit per packet.
    pub fuel: u32,
    /// Values of parameters, by name.
    pub parameters: Vec<(String, String)>,
    /// Whether the filter checks its own results and passes every packet if they are right. Such
    /// filters also test the interpreter.
    pub always_passes: bool,
    /// Initial map entries.
    pub entries: Vec<Entry>,
}

macro_rules! probes {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("probes/", $name, ".wgsl")))),*]
    };
}

/// Names and sources of the probes, at least one for each rule of the filters' semantics. A line
/// that begins with `// probe:` holds a probe's directives: `expect=pass`, `fuel=N`,
/// `set=NAME=VALUE`.
pub const PROBES: &[(&str, &str)] = probes!(
    "loads",
    "parts",
    "stores",
    "overlaps",
    "every_byte",
    "arithmetic",
    "arithmetic_mixed",
    "arithmetic64",
    "vectors",
    "structures",
    "indices",
    "control",
    "helpers",
    "fresh_state",
    "fuel",
    "fuel_shared",
    "endless",
    "adjust",
    "adjust_mixed",
    "redirects",
    "verdicts",
    "metadata",
    "checksums",
    "parameters",
    "floats",
);

/// Returns the stock filters with maps and their initial entries, except `gtpu_decap`: the corpora
/// have no tunnelled packets.
pub fn stateful() -> Vec<Case> {
    let of = |language| move |&(name, text): &(&'static str, &'static str)| Case::stateful(name, language, text);
    let all = STATEFUL.iter().map(of(Language::Wgsl)).chain(STATEFUL_IN_C.iter().map(of(Language::OpenClC)));
    all.filter(|case| case.name != "gtpu_decap").collect()
}

/// Returns the filters without maps, the stock filters first.
pub fn cases() -> Vec<Case> {
    let of = |language| move |&(name, text): &(&'static str, &'static str)| Case::new(name, language, text);
    let in_wgsl = STOCK.iter().chain(PROBES).map(of(Language::Wgsl));
    in_wgsl.chain(STOCK_IN_C.iter().map(of(Language::OpenClC))).collect()
}

impl Case {
    /// Reads the directives in a filter's source.
    ///
    /// # Panics
    /// If a directive is unknown, which is a mistake in one of the probes.
    fn new(name: &'static str, language: Language, text: &'static str) -> Case {
        let mut case = Case {
            name,
            language,
            text: text.into(),
            fuel: DEFAULT_FUEL,
            parameters: Vec::new(),
            always_passes: false,
            entries: Vec::new(),
        };
        let directives = text.lines().find_map(|line| line.strip_prefix("// probe:")).unwrap_or_default();
        for directive in directives.split_whitespace() {
            match directive.split_once('=') {
                Some(("expect", "pass")) => case.always_passes = true,
                Some(("fuel", n)) => case.fuel = n.parse().expect("a number"),
                Some(("set", parameter)) => {
                    let (name, value) = parameter.split_once('=').expect("NAME=VALUE");
                    case.parameters.push((name.into(), value.into()));
                }
                _ => panic!("{name}: unknown directive `{directive}`"),
            }
        }
        case
    }

    /// Returns a stock filter with maps. Keyed maps and `ecpri_reorder`'s buffer, with the constant
    /// that bounds it, are reduced to the size that the corpora need, because they are cleared
    /// before each run.
    fn stateful(name: &'static str, language: Language, text: &str) -> Case {
        let line = |line: &str| match line.split_once(" entries=") {
            Some((map, rest))
                if map.starts_with("//! map ") && [": lpm ", "hash "].iter().any(|kind| map.contains(kind)) =>
            {
                let rest = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
                format!("{map} entries=8192{rest}\n")
            }
            _ => line.replace("1048576", "65536") + "\n",
        };
        let text = text.lines().map(line).collect::<String>().into();
        Case { text, entries: state::entries(name), ..Case::new(name, language, "") }
    }

    /// Compiles the filter.
    ///
    /// # Errors
    /// Never, unless this build is broken.
    pub fn compile(&self) -> Result<Arc<Program>, Diagnostics> {
        let options = ProgramOptions::default().with_parameters(self.parameters.clone()).with_fuel(self.fuel);
        let source = Source::new(format!("{}.{}", self.name, self.language.extension()), &*self.text);
        match self.language {
            Language::Wgsl => wgsl::compile(&source, &options),
            Language::OpenClC => opencl_c::compile(&source, &options, &mut NoIncludes),
        }
        .map(Arc::new)
    }

    /// Returns the case that defines the expected results: the WGSL version of a stock filter, or
    /// the filter itself.
    pub fn reference_case(&self) -> Case {
        let named = |texts: &[(&'static str, &'static str)]| texts.iter().find(|(name, _)| *name == self.name).copied();
        let stock = named(STOCK).map(|(name, text)| Case::new(name, Language::Wgsl, text));
        let stateful = || named(STATEFUL).map(|(name, text)| Case::stateful(name, Language::Wgsl, text));
        stock.or_else(stateful).unwrap_or_else(|| self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_compiles() {
        let errors: String = cases()
            .iter()
            .chain(&stateful())
            .filter_map(|c| Some((c.name, c.compile().err()?)))
            .map(|(name, error)| format!("{name}: {}", error.render()))
            .collect();
        assert!(errors.is_empty(), "{errors}");
    }

    #[test]
    fn directives_are_read() {
        let all = cases();
        let case = |name| all.iter().find(|c| c.name == name).unwrap();
        assert_eq!(case("fuel").fuel, 100);
        assert!(case("loads").always_passes && !case("stores").always_passes);
        assert_eq!(case("parameters").parameters[1], ("offset".into(), "-3".into()));
        assert_eq!(case("minimal").fuel, DEFAULT_FUEL);
    }

    #[test]
    fn every_stock_filter_exists_in_every_language() {
        let names = |texts: &[(&'static str, &str)]| texts.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        assert_eq!(names(STOCK), names(STOCK_IN_C));
        assert_eq!(names(STATEFUL), names(STATEFUL_IN_C));
        for case in cases().into_iter().chain(stateful()) {
            let meaning = case.reference_case();
            assert_eq!((meaning.name, meaning.language), (case.name, Language::Wgsl));
            assert_eq!(meaning == case, case.language == Language::Wgsl);
        }
    }
}
