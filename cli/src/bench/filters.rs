//! Filters to measure: by stock name, file or expression, with their parameters and initial maps.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use portcullis::device::LoadOptions;
use portcullis::devices;
use portcullis::program::{InitialMapWords, Program};
use portcullis_bench::run::Filter;

use crate::failure::Failure;
use crate::filter::{self, parameter};
use crate::run::maps::{self, MapArgs, MapFile, Maps};

/// The arguments about them.
#[derive(Debug, clap::Args)]
pub struct FilterArgs {
    /// Measure this filter: the name of a stock filter, or a file (FILE.o:PROGRAM of an object with
    /// several programs); may be given several times
    #[arg(long, value_name = "FILTER", value_parser = filter::NameParser, hide_possible_values = true)]
    filter: Vec<OsString>,
    /// Measure this expression of tcpdump's; may be given several times
    #[arg(long, value_name = "EXPRESSION", allow_hyphen_values = true)]
    expr: Vec<String>,
    /// Set a parameter of the filters that --filter names, of an object a global variable or how
    /// many entries a map has, as `run` does; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = parameter, requires = "filter")]
    set: Vec<(String, String)>,
    /// Have a map of theirs begin with these entries: a CSV or JSON file, as `run` takes it; may be
    /// given several times
    #[arg(long, value_name = "NAME=FILE", value_parser = maps::input("--map"), requires = "filter")]
    map: Vec<MapFile>,
    /// Have a map of theirs begin with what is in one of the kernel's, as `run` does; may be given
    /// several times
    #[cfg(target_os = "linux")]
    #[arg(long, value_name = "NAME=PATH", value_parser = maps::pinned(), requires = "filter")]
    from_pin: Vec<MapFile>,
    /// Fill the maps by which a program of XDP looks for routes from the kernel's, as they are when
    /// it begins; packets come in by IFACE
    #[arg(long, value_name = "IFACE", num_args = 0..=1, require_equals = true, default_missing_value = "", requires = "filter")]
    kernel_routes: Option<String>,
}

impl FilterArgs {
    /// Whether none is named.
    pub fn is_usual(&self) -> bool {
        self.filter.is_empty() && self.expr.is_empty()
    }

    /// The files that filters and their maps are read from, and what each is. What is no file has
    /// the name of none.
    pub fn files(&self) -> impl Iterator<Item = (PathBuf, &'static str)> {
        let of_filter = |name: &OsString| Some(filter::FilterArgs::from_name(name).ok()?.file()?.to_owned());
        let filters = self.filter.iter().filter_map(of_filter).map(|file| (file, "a filter to measure"));
        filters.chain(self.map.iter().map(|it| (it.file.clone(), "what --map reads")))
    }

    /// The filters to measure; where none is named those that are measured `full`y or in short.
    pub fn all(&self, full: bool) -> Result<Vec<Filter>, Failure> {
        if self.is_usual() {
            let more: &[&str] = if full { &["mac_swap", "flow_stats"] } else { &[] };
            let usual = ["simple_filter", "port_filter", "http_only", "hash_lb"];
            return usual.iter().chain(more).map(|name| self.named(OsStr::new(name))).collect();
        }
        let expression = |text: &String| -> Result<Filter, Failure> {
            let filter = filter::FilterArgs::from_expression(text);
            Ok(Filter { name: filter.name(), program: Arc::new(filter.load()?) })
        };
        self.filter.iter().map(|name| self.named(name)).chain(self.expr.iter().map(expression)).collect()
    }

    /// Loads a file or a stock filter. In results it is called as it was asked for, so that those
    /// of other settings are not compared with it.
    fn named(&self, name: &OsStr) -> Result<Filter, Failure> {
        let args = filter::FilterArgs::from_name(name)?.with_parameters(&self.set);
        let name = args.name();
        let program = self.begun(&name, args.load()?)?;
        let set = self.set.iter().map(|(name, value)| format!(" --set {name}={value}"));
        let set: String = set.chain(self.maps().1).collect();
        Ok(Filter { name: name + &set, program: Arc::new(program) })
    }

    /// Returns the map arguments and the options that gave them.
    fn maps(&self) -> (MapArgs, Vec<String>) {
        let args = MapArgs {
            map: self.map.clone(),
            #[cfg(target_os = "linux")]
            from_pin: self.from_pin.clone(),
            kernel_routes: self.kernel_routes.clone(),
            ..MapArgs::default()
        };
        let file = |option: &'static str| move |it: &MapFile| format!(" {option} {it}");
        let mut said: Vec<String> = self.map.iter().map(file("--map")).collect();
        #[cfg(target_os = "linux")]
        said.extend(self.from_pin.iter().map(file("--from-pin")));
        said.extend(self.kernel_routes.iter().map(|by| match by.as_str() {
            "" => " --kernel-routes".to_owned(),
            by => format!(" --kernel-routes={by}"),
        }));
        (args, said)
    }

    /// Of several filters says which one it is that something is wrong with.
    fn of(&self, name: &str, failure: Failure) -> Failure {
        match failure {
            Failure::Usage(text) if self.filter.len() > 1 => Failure::Usage(format!("{name}: {text}")),
            other => other,
        }
    }

    /// The program with maps that begin with what they are to begin with, in all sessions: they are
    /// filled once, in one of the interpreter's.
    fn begun(&self, name: &str, program: Program) -> Result<Program, Failure> {
        let (args, said) = self.maps();
        if said.is_empty() {
            return Ok(program);
        }
        let device = devices::open("interp")?;
        args.check(&program, device.info()).map_err(|failure| self.of(name, failure))?;
        let program = Arc::new(program);
        let mut session = device.load(&program, &LoadOptions::default())?;
        drop(Maps::load(&args, &program, &mut *session)?);
        let mut begun = Vec::new();
        for (map, _) in program.maps().iter().enumerate().filter(|(_, map)| map.is_persistent()) {
            let words = session.map_words(map)?;
            if words.iter().any(|word| *word != 0) {
                begun.push(InitialMapWords { map, offset: 0, words: words.into() });
            }
        }
        Ok((*program).clone().with_initial_map_words(begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_begin_in_every_session_with_what_their_files_have() {
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
            let filters = args(set).all(false).unwrap();
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
