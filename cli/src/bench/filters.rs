//! Filters to measure: by stock name, file or expression, with their parameters and initial maps.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use portcullis::device::LoadOptions;
use portcullis::devices;
use portcullis::diagnostics::{Diagnostic, Diagnostics};
use portcullis::map_file::find_map;
use portcullis::program::{InitialMapWords, Program};
use portcullis_bench::run::Filter;

use crate::failure::Failure;
use crate::filter::{self, parameter};
use crate::out;
use crate::run::map_args::{self, MapArgs, MapFile};
use crate::run::maps::Maps;

/// The arguments that choose filters and their settings.
#[derive(Debug, clap::Args)]
pub struct FilterArgs {
    /// Measure this filter: the name of a stock filter, or a file
    ///
    /// FILE.o:PROGRAM names a program of an object that has several. May be repeated.
    #[arg(long, value_name = "FILTER", value_parser = filter::NameParser, hide_possible_values = true, help_heading = "Filters")]
    filter: Vec<OsString>,
    /// Measure this tcpdump expression; may be repeated
    #[arg(long, value_name = "EXPRESSION", allow_hyphen_values = true, help_heading = "Filters")]
    expr: Vec<String>,
    /// Set a parameter of the filters that have it
    ///
    /// As `run` takes it: a WGSL `override`, an OpenCL C macro, or of an XDP object a global
    /// variable or a map's size. It is an error if no filter has the parameter. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parameter, requires = "filter", help_heading = "Filters")]
    set: Vec<(String, String)>,
    /// Set initial entries of a map from a CSV or JSON file, in the filters that have the map
    ///
    /// The file is as `run` takes it. It is an error if no filter has the map. May be repeated.
    #[arg(long, value_name = "NAME=FILE", value_parser = map_args::input("--map"), requires = "filter", help_heading = "Filters")]
    map: Vec<MapFile>,
    /// Set initial entries of a map from a pinned kernel BPF map, in the filters that have the map
    ///
    /// As `run` does. May be repeated.
    #[cfg(target_os = "linux")]
    #[arg(long, value_name = "NAME=PATH", value_parser = map_args::pinned(), requires = "filter", help_heading = "Filters", hide_short_help = true)]
    from_pin: Vec<MapFile>,
    /// Fill the routing maps of an XDP program from the kernel's
    ///
    /// Packets count as received on IFACE.
    #[arg(long, value_name = "IFACE", num_args = 0..=1, require_equals = true, default_missing_value = "", requires = "filter",
          help_heading = "Filters", hide_short_help = true)]
    kernel_routes: Option<String>,
}

/// A loaded filter, and which of the settings apply to it.
struct LoadedFilter {
    name: String,
    program: Program,
    /// For each `--set`, in the order of the arguments: the error if the filter lacks that
    /// parameter.
    parameters: Vec<Result<(), Box<Diagnostics>>>,
}

impl LoadedFilter {
    fn has_map(&self, file: &MapFile) -> bool {
        self.program.maps().iter().any(|map| map.is_called(&file.map))
    }
}

impl FilterArgs {
    /// Whether the arguments name no filter, so that the default ones are measured.
    pub fn is_default(&self) -> bool {
        self.filter.is_empty() && self.expr.is_empty()
    }

    /// Returns the files that filters and maps are read from, with a description of each. Names of
    /// stock filters may be among them.
    pub fn files(&self) -> impl Iterator<Item = (PathBuf, &'static str)> {
        let of_filter = |name: &OsString| Some(filter::FilterArgs::from_name(name).ok()?.file()?.to_owned());
        let filters = self.filter.iter().filter_map(of_filter).map(|file| (file, "a filter to measure"));
        filters.chain(self.map.iter().map(|it| (it.file.clone(), "the input of --map")))
    }

    /// Loads the filters to measure; if the arguments name none, the default ones of a `full` or a
    /// quick run. Settings apply to the filters that have the parameter or map, and a note says
    /// which these are unless all have it.
    ///
    /// # Errors
    /// A filter does not load, or no filter has the parameter or map of a setting.
    pub fn load(&self, full: bool) -> Result<Vec<Filter>, Failure> {
        if self.is_default() {
            let more: &[&str] = if full { &["mac_swap", "flow_stats"] } else { &[] };
            let default = ["simple_filter", "port_filter", "http_only", "hash_lb"];
            let names = default.iter().chain(more).map(OsStr::new);
            return names.map(|name| self.load_named(name).and_then(|loaded| self.with_initial_maps(loaded))).collect();
        }
        let loaded = self.filter.iter().map(|name| self.load_named(name)).collect::<Result<Vec<_>, _>>()?;
        self.check_settings(&loaded)?;
        let filters = loaded.into_iter().map(|loaded| self.with_initial_maps(loaded));
        let expressions = self.expr.iter().map(|text| {
            let filter = filter::FilterArgs::from_expression(text);
            Ok(Filter { name: filter.name(), program: Arc::new(filter.load()?) })
        });
        filters.chain(expressions).collect()
    }

    /// Loads a file or a stock filter, with the parameters that it has.
    fn load_named(&self, name: &OsStr) -> Result<LoadedFilter, Failure> {
        let mut parameters: Vec<Result<(), Box<Diagnostics>>> = self.set.iter().map(|_| Ok(())).collect();
        loop {
            let applied: Vec<_> = self.set.iter().zip(&parameters).filter(|(_, has)| has.is_ok()).collect();
            let applied: Vec<_> = applied.into_iter().map(|(parameter, _)| parameter.clone()).collect();
            let args = filter::FilterArgs::from_name(name)?.with_parameters(&applied);
            let diagnostics = match args.load() {
                Ok(program) => return Ok(LoadedFilter { name: args.name(), program, parameters }),
                Err(Failure::Filter(diagnostics)) => diagnostics,
                Err(other) => return Err(other),
            };
            let unknown: Vec<_> = diagnostics.errors.iter().filter_map(unknown_parameter).collect();
            let before = applied.len();
            for ((name, _), has) in self.set.iter().zip(&mut parameters) {
                if has.is_ok() && unknown.contains(&name.as_str()) {
                    *has = Err(diagnostics.clone());
                }
            }
            // A parameter that the only filter lacks is the error to report, not what its absence
            // causes.
            if self.filter.len() < 2 || parameters.iter().filter(|has| has.is_ok()).count() == before {
                return Err(Failure::Filter(diagnostics));
            }
        }
    }

    /// Refuses settings that apply to no filter, and notes which filters the others apply to.
    fn check_settings(&self, loaded: &[LoadedFilter]) -> Result<(), Failure> {
        for (place, (name, value)) in self.set.iter().enumerate() {
            let has = loaded.iter().map(|filter| filter.parameters[place].is_ok()).collect::<Vec<_>>();
            if let (false, Err(diagnostics)) = (has.contains(&true), &loaded[0].parameters[place]) {
                return Err(Failure::Filter(diagnostics.clone()));
            }
            note_partial(&format!("--set {name}={value}"), loaded, &has);
        }
        for (option, file) in self.map_files() {
            let has: Vec<_> = loaded.iter().map(|filter| filter.has_map(file)).collect();
            if let (false, Err(why)) = (has.contains(&true), find_map(loaded[0].program.maps(), &file.map)) {
                return Err(self.attribute(&loaded[0].name, Failure::Usage(format!("{option} {file}: {why}"))));
            }
            note_partial(&format!("{option} {file}"), loaded, &has);
        }
        Ok(())
    }

    /// Returns the files that maps are filled from, with their options.
    fn map_files(&self) -> impl Iterator<Item = (&'static str, &MapFile)> {
        #[cfg(target_os = "linux")]
        let pinned = &self.from_pin[..];
        #[cfg(not(target_os = "linux"))]
        let pinned: &[MapFile] = &[];
        self.map.iter().map(|file| ("--map", file)).chain(pinned.iter().map(|file| ("--from-pin", file)))
    }

    /// If there are several filters, names the one that a usage error is about.
    fn attribute(&self, name: &str, failure: Failure) -> Failure {
        match failure {
            Failure::Usage(text) if self.filter.len() > 1 => Failure::Usage(format!("{name}: {text}")),
            other => other,
        }
    }

    /// Gives the program's maps the initial entries that the arguments name for them: fills a
    /// session of the interpreter once and copies its contents. The filter's name includes the
    /// settings that apply to it, so that comparisons distinguish runs with other settings.
    fn with_initial_maps(&self, loaded: LoadedFilter) -> Result<Filter, Failure> {
        let set = self.set.iter().zip(&loaded.parameters).filter(|(_, has)| has.is_ok());
        let set = set.map(|((name, value), _)| format!(" --set {name}={value}"));
        let files = self.map_files().filter(|(_, file)| loaded.has_map(file));
        let files = files.map(|(option, file)| format!(" {option} {file}"));
        let routes = self.kernel_routes.iter().map(|by| match by.as_str() {
            "" => " --kernel-routes".to_owned(),
            by => format!(" --kernel-routes={by}"),
        });
        let name = loaded.name.clone() + &set.chain(files).chain(routes).collect::<String>();
        let of_filter = |files: &[MapFile]| files.iter().filter(|file| loaded.has_map(file)).cloned().collect();
        let args = MapArgs {
            map: of_filter(&self.map),
            #[cfg(target_os = "linux")]
            from_pin: of_filter(&self.from_pin),
            kernel_routes: self.kernel_routes.clone(),
            ..MapArgs::default()
        };
        let is_filled = self.map_files().any(|(_, file)| loaded.has_map(file)) || args.kernel_routes.is_some();
        if !is_filled {
            return Ok(Filter { name, program: Arc::new(loaded.program) });
        }
        let device = devices::open("interp")?;
        Maps::check(&args, &loaded.program, device.info()).map_err(|failure| self.attribute(&loaded.name, failure))?;
        let program = Arc::new(loaded.program);
        let mut session = device.load(&program, &LoadOptions::default())?;
        drop(Maps::load(&args, &program, &mut *session)?);
        let mut initial = Vec::new();
        for (map, _) in program.maps().iter().enumerate().filter(|(_, map)| map.is_persistent()) {
            let words = session.map_words(map)?;
            if words.iter().any(|word| *word != 0) {
                initial.push(InitialMapWords { map, offset: 0, words: words.into() });
            }
        }
        Ok(Filter { name, program: Arc::new((*program).clone().with_initial_map_words(initial)) })
    }
}

/// Returns the parameter that the filter lacks, if the error is about a missing parameter. The
/// front ends have these two messages for it.
fn unknown_parameter(error: &Diagnostic) -> Option<&str> {
    let name = error.parameter.as_deref()?;
    let is_unknown = ["the filter has no parameter", "the object has no variable"];
    is_unknown.iter().any(|message| error.message.contains(message)).then_some(name)
}

/// Notes which filters a setting applies to, unless it applies to all of them.
fn note_partial(setting: &str, loaded: &[LoadedFilter], has: &[bool]) {
    let names = |wanted: bool| {
        let names = loaded.iter().zip(has).filter(|(_, has)| **has == wanted).map(|(filter, _)| filter.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    if has.contains(&false) {
        let (with, without) = (names(true), names(false));
        out::note(&out::printable(&format!("{setting} applies to {with}, not to {without}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_starts_with_the_maps_of_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let text = "//! map limits: array value=1 entries=4\n\
                    override most: u32 = 1u;\n\
                    fn xdp_filter(pkt: u32) -> u32 {\n    \
                        if limits_read(2u, 0u) > most { return XDP_TX; }\n    \
                        return XDP_DROP;\n}\n";
        std::fs::write(path("f.wgsl"), text).unwrap();
        std::fs::write(path("limits.csv"), "2,9\n").unwrap();
        let args = |set: &str| FilterArgs {
            filter: vec![path("f.wgsl").into()],
            expr: Vec::new(),
            set: vec![("most".into(), set.into())],
            map: vec![MapFile {
                map: "limits".into(),
                file: path("limits.csv").into(),
                format: portcullis::map::Format::Csv,
            }],
            #[cfg(target_os = "linux")]
            from_pin: Vec::new(),
            kernel_routes: None,
        };
        for (set, action) in [("8", "tx"), ("9", "drop")] {
            let filters = args(set).load(false).unwrap();
            let name = format!("{} --set most={set} --map limits={}", path("f.wgsl"), path("limits.csv"));
            assert_eq!((filters.len(), &filters[0].name), (1, &name));
            for device in ["interp", "cpu"] {
                let Ok(device) = devices::open(device) else { continue };
                for _ in 0..2 {
                    let mut session = device.load(&filters[0].program, &LoadOptions::default()).unwrap();
                    let done = session.run(portcullis::packet::Batch::from_packets(&[[0; 64]]).unwrap()).unwrap();
                    assert_eq!(done.verdicts.get(0).action().name(), action, "{}", device.info().id);
                }
            }
        }
    }
}
