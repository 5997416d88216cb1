//! The filters of the self-test: the stock ones and the probes.

use std::sync::Arc;

use portcullis_core::lang::{Diagnostics, Source, wgsl};
use portcullis_core::program::{DEFAULT_FUEL, Program, ProgramOptions};

/// A filter that every device must agree about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Its name: that of its file, without the ending.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// What it is compiled with.
    pub fuel: u32,
    /// Its parameters, by name.
    pub parameters: Vec<(String, String)>,
    /// Whether it passes every packet where all is right, by its own reckoning. Then the
    /// interpreter is on trial too.
    pub always_passes: bool,
}

macro_rules! texts {
    ($dir:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!($dir, "/", $name, ".wgsl")))),*]
    };
}

/// The stock filters, name and text.
pub const STOCK: &[(&str, &str)] = texts!(
    "../../shaders": "simple_filter", "port_filter", "minimal", "complex_filter", "http_only", "hash_lb", "mac_swap",
    "dscp_mark", "vlan_pop",
);

/// The probes, name and text: one or more for each rule of what a filter means. The second line of
/// each that begins with `// probe:` holds its directives: `expect=pass`, `fuel=N`,
/// `set=NAME=VALUE`.
pub const PROBES: &[(&str, &str)] = texts!(
    "probes": "loads", "parts", "stores", "overlaps", "every_byte", "arithmetic", "arithmetic_mixed", "arithmetic64", "vectors",
    "structures", "indices", "control", "helpers", "fresh_state", "fuel", "fuel_shared", "endless", "adjust",
    "adjust_mixed", "redirects", "verdicts", "metadata", "checksums", "parameters", "floats",
);

/// All of them, the stock filters first.
pub fn cases() -> Vec<Case> {
    STOCK.iter().chain(PROBES).map(|&(name, text)| Case::new(name, text)).collect()
}

impl Case {
    /// Reads the directives in a filter's text.
    ///
    /// # Panics
    /// At a directive that there is not: a mistake in one of our own files.
    fn new(name: &'static str, text: &'static str) -> Case {
        let mut case = Case { name, text, fuel: DEFAULT_FUEL, parameters: Vec::new(), always_passes: false };
        let directives = text.lines().find_map(|line| line.strip_prefix("// probe:")).unwrap_or_default();
        for directive in directives.split_whitespace() {
            match directive.split_once('=') {
                Some(("expect", "pass")) => case.always_passes = true,
                Some(("fuel", n)) => case.fuel = n.parse().expect("a number"),
                Some(("set", parameter)) => {
                    let (name, value) = parameter.split_once('=').expect("NAME=VALUE");
                    case.parameters.push((name.into(), value.into()));
                }
                _ => panic!("{name}: there is no directive `{directive}`"),
            }
        }
        case
    }

    /// Compiles it.
    ///
    /// # Errors
    /// None, unless this build is broken.
    pub fn compile(&self) -> Result<Arc<Program>, Diagnostics> {
        let options = ProgramOptions { parameters: self.parameters.clone(), fuel: self.fuel };
        wgsl::compile(&Source::new(format!("{}.wgsl", self.name), self.text), &options).map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_compiles() {
        let errors: String = cases()
            .iter()
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
}
