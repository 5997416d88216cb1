//! Maps of a run: their initial entries, the files they follow, and where they are written.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use portcullis::device::{CancelToken, DeviceError, DeviceInfo, Session};
use portcullis::frontend::xdp::events::EventCounts;
use portcullis::map::{Declaration, Format};
use portcullis::map_file::find_map;
use portcullis::map_file::text::ParsedRows;
use portcullis::packet_io::SinkError;
use portcullis::program::Program;

use super::dump::Dumps;
use super::events::{Events, Log};
use super::kernel_routes::KernelRoutes;
use super::normalize_stdout;
#[cfg(target_os = "linux")]
use super::pin;
use super::rows;
use super::state::State;
use super::traps::Traps;
use super::watch::Follower;
use crate::failure::Failure;

/// Arguments about maps.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct MapArgs {
    /// Load all maps from this file if it exists; save them to it after the run
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new(), help_heading = "Maps")]
    pub state: Option<PathBuf>,
    /// Also save the --state file at this interval during the run, in seconds
    #[arg(long, value_name = "SECONDS", requires = "state", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Maps", hide_short_help = true)]
    pub state_every: Option<u32>,
    /// Set initial entries of a map from a CSV or JSON file
    ///
    /// Overrides entries from `--state`. Takes numbers, addresses, prefixes and MAC addresses as
    /// usually written, and the output of `--dump-map`; `portcullis check` lists the columns. May
    /// be repeated.
    #[arg(long, value_name = "NAME=FILE", value_parser = input("--map"), help_heading = "Maps")]
    pub map: Vec<MapFile>,
    /// Set initial entries of a map from a pinned kernel BPF map
    ///
    /// The map must have the same type and sizes; per-CPU values are summed. Overrides `--state`;
    /// `--map` overrides it. May be repeated.
    #[cfg(target_os = "linux")]
    #[arg(long, value_name = "NAME=PATH", value_parser = pinned(), help_heading = "Maps", hide_short_help = true)]
    pub from_pin: Vec<MapFile>,
    /// Keep a map equal to a CSV or JSON file, reloading it when it changes
    #[arg(long, value_name = "NAME=FILE", value_parser = input("--watch-map"), help_heading = "Maps", hide_short_help = true)]
    pub watch_map: Vec<MapFile>,
    /// Fill an XDP program's routing maps from the kernel's and keep them current
    ///
    /// For `bpf_fib_lookup` and `bpf_check_mtu`. The packets of a capture count as received on
    /// IFACE.
    #[arg(long, value_name = "IFACE", num_args = 0..=1, require_equals = true, default_missing_value = "",
          conflicts_with_all = ["nfqueue", "dpdk"], help_heading = "Maps", hide_short_help = true)]
    pub kernel_routes: Option<String>,
    /// Write a map's entries to a CSV or JSON file after the run
    ///
    /// Sorted by key; `-` is standard output, in CSV. May be repeated.
    #[arg(long, value_name = "NAME=FILE", value_parser = output(), help_heading = "Maps")]
    pub dump_map: Vec<MapFile>,
    /// Write events of an XDP program to this file, as JSON lines
    ///
    /// Ring buffers, perf buffers and prints, during the run; `-` is standard output.
    #[arg(long, value_name = "FILE", value_parser = super::output(), help_heading = "Observability", hide_short_help = true)]
    pub events: Option<PathBuf>,
}

/// A map and a file: `NAME=FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapFile {
    /// Name of the map.
    pub map: String,
    /// The file; `-` is standard output.
    pub file: PathBuf,
    /// Format of the file.
    pub format: Format,
}

fn output() -> impl TypedValueParser<Value = MapFile> {
    OsStringValueParser::new().try_map(|text| MapFile::output(&text))
}

pub fn input(option: &'static str) -> impl TypedValueParser<Value = MapFile> {
    OsStringValueParser::new().try_map(move |text| MapFile::input(&text, option))
}

#[cfg(target_os = "linux")]
pub fn pinned() -> impl TypedValueParser<Value = MapFile> {
    OsStringValueParser::new().try_map(|text| {
        let (map, file) = parts(&text, "--from-pin flows=/sys/fs/bpf/flows")?;
        Ok::<_, String>(MapFile { map: map.into(), file: file.into(), format: Format::Json })
    })
}

impl MapFile {
    /// Parses the argument of `--dump-map`.
    fn output(text: &OsStr) -> Result<MapFile, String> {
        let (map, file) = parts(text, "--dump-map flows=flows.csv")?;
        let file = normalize_stdout(file);
        let by_name = if file == Path::new("-") { Some(Format::Csv) } else { Format::of(&file) };
        let format = by_name.ok_or("the file name must end in .csv or .json, which selects the format")?;
        Ok(MapFile { map: map.into(), file, format })
    }

    /// Parses the argument of `option`, which reads a file.
    fn input(text: &OsStr, option: &str) -> Result<MapFile, String> {
        let (map, file) = parts(text, &format!("{option} blocked=blocked.csv"))?;
        let format = Format::of(file).ok_or("the file name must end in .csv or .json, which selects the format")?;
        Ok(MapFile { map: map.into(), file: file.into(), format })
    }

    /// Returns the map's number. [`MapArgs::check`] ensures that the filter has the map.
    pub fn number(&self, program: &Program) -> Option<usize> {
        find_map(program.maps(), &self.map).ok()
    }
}

impl fmt::Display for MapFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.map, self.file.display())
    }
}

fn parts<'a>(text: &'a OsStr, example: &str) -> Result<(&'a str, &'a Path), String> {
    let parts = split_at_equals(text).map(|(map, file)| (map.trim(), file));
    let parts = parts.filter(|(map, file)| !map.is_empty() && !file.as_os_str().is_empty());
    parts.ok_or_else(|| format!("expected NAME=FILE, for example {example}"))
}

/// Splits `NAME=FILE` at the first equals sign; the file's name may have any bytes.
fn split_at_equals(text: &OsStr) -> Option<(&str, &Path)> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let bytes = text.as_bytes();
        let (name, file) = bytes.split_at(bytes.iter().position(|byte| *byte == b'=')?);
        Some((str::from_utf8(name).ok()?, Path::new(OsStr::from_bytes(&file[1..]))))
    }
    #[cfg(not(unix))]
    text.to_str()?.split_once('=').map(|(name, file)| (name, Path::new(file)))
}

impl MapArgs {
    /// Whether any map may have entries before the first packet.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn has_initial_entries(&self) -> bool {
        let from_files = !self.map.is_empty() || !self.watch_map.is_empty() || !self.pinned().is_empty();
        self.state.is_some() || from_files || self.kernel_routes.is_some()
    }

    /// Maps that are initialised from pinned kernel maps.
    fn pinned(&self) -> &[MapFile] {
        #[cfg(target_os = "linux")]
        return &self.from_pin;
        #[cfg(not(target_os = "linux"))]
        &[]
    }

    /// Returns the arguments without those that apply only to the start of a run.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn without_initial_entries(&self) -> MapArgs {
        MapArgs { map: Vec::new(), from_pin: Vec::new(), ..self.clone() }
    }

    /// Whether maps are updated or saved between batches.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn follows(&self) -> bool {
        self.state_every.is_some() || !self.watch_map.is_empty() || self.kernel_routes.is_some()
    }

    /// Whether a dump or the events go to standard output.
    pub fn takes_stdout(&self) -> bool {
        self.dump_map.iter().any(|dump| dump.file == Path::new("-")) || self.events.as_deref() == Some(Path::new("-"))
    }

    /// Refuses maps that the filter does not have, and devices without maps.
    pub fn check(&self, program: &Program, device: &DeviceInfo) -> Result<(), Failure> {
        let state = self.state.iter().map(|file| (format!("--state {}", file.display()), None));
        let (map, watched, dumped) = (&self.map[..], &self.watch_map[..], &self.dump_map[..]);
        let files = [("--from-pin", self.pinned()), ("--map", map), ("--watch-map", watched), ("--dump-map", dumped)]
            .into_iter();
        let files = files.flat_map(|(option, files)| files.iter().map(move |file| (option, file)));
        let files = files.map(|(option, it)| (format!("{option} {it}"), Some(it)));
        for (given, file) in state.chain(files) {
            let wrong = |what: String| Err(Failure::Usage(format!("{given}: {what}")));
            if let Some(Err(what)) = file.map(|file| find_map(program.maps(), &file.map)) {
                return wrong(what.to_string());
            }
            match file {
                None if !program.maps().iter().any(Declaration::is_persistent) => {
                    return wrong("the filter has no maps whose entries could be saved".into());
                }
                _ if device.id == "noop" => {
                    let what = "runs no filter and leaves maps unchanged; choose another device";
                    return wrong(format!("{} {what}", device.id));
                }
                _ => {}
            }
        }
        if self.kernel_routes.is_some() {
            let others = self.map.iter().chain(&self.watch_map).map(|file| file.map.as_str());
            KernelRoutes::check(program, device, others)?;
        }
        if let Some(file) = &self.events {
            let wrong = |what: &str| Err(Failure::Usage(format!("--events {}: {what}", file.display())));
            if portcullis::frontend::xdp::ObjectInfo::of(program).is_none_or(|object| object.rings.is_empty()) {
                return wrong(
                    "the filter sends no events; XDP programs do, with ring buffers, perf buffers and bpf_printk",
                );
            }
            if device.id == "noop" {
                return wrong("noop runs no filter and sends no events; choose another device");
            }
        }
        for (index, file) in self.watch_map.iter().enumerate() {
            if let Some(before) = self.watch_map[..index].iter().find(|before| before.map == file.map) {
                let what = format!("the map already follows {}; a map can follow only one file", before.file.display());
                return Err(Failure::Usage(format!("--watch-map {file}: {what}")));
            }
        }
        Ok(())
    }
}

/// A message about maps during a run.
pub enum MapNotice {
    /// An operation failed.
    Warning(String),
    /// An operation that had failed succeeds again.
    Note(String),
}

/// The maps of a run.
pub struct Maps {
    pub(super) args: MapArgs,
    pub(super) program: Arc<Program>,
    state: Option<State>,
    pub(super) followers: Vec<Follower>,
    pub(super) routes: Option<KernelRoutes>,
    dumps: Option<Dumps>,
    pub(super) events: Events,
    /// Counters of aborted packets, by instruction.
    pub traps: Traps,
}

/// Number and declaration of a map.
type Numbered<'a> = (usize, &'a Declaration);

/// Returns the map that a file is for.
fn numbered<'a>(file: &MapFile, program: &'a Program) -> Option<Numbered<'a>> {
    file.number(program).map(|number| (number, &program.maps()[number]))
}

impl Maps {
    /// Loads the initial entries into the session's maps.
    pub fn load(args: &MapArgs, program: &Arc<Program>, session: &mut dyn Session) -> Result<Maps, Failure> {
        let every = args.state_every.map(|seconds| Duration::from_secs(seconds.into()));
        let mut state = args.state.as_deref().map(|name| State::open(name, every)).transpose()?;
        // Check all files before any map is changed.
        let given = args.map.iter().filter_map(|file| Some((file, numbered(file, program)?)));
        let given = given.map(|(file, map)| Ok((file, map, rows::read(file, map.1)?)));
        let given: Vec<_> = given.collect::<Result<_, Failure>>()?;
        #[cfg(target_os = "linux")]
        let pinned: Vec<_> = {
            let pinned = args.pinned().iter().filter_map(|file| Some((file, numbered(file, program)?)));
            pinned.map(|(file, map)| Ok((file, map, pin::read(file, map.1)?))).collect::<Result<_, Failure>>()?
        };
        let watched = watched(args, program)?;
        if let Some(state) = &mut state {
            state.load(program, session)?;
        }
        let routes = KernelRoutes::begin(args, program, session)?;
        #[cfg(target_os = "linux")]
        for (file, map, entries) in pinned {
            pin::set(&entries, file, map, session)?;
        }
        for (file, map, rows) in given {
            rows::set(&rows, file, map, session)?;
        }
        let mut followers = Vec::new();
        for (mut follower, rows) in watched {
            follower.begin(rows, session)?;
            followers.push(follower);
        }
        let events = Events::begin(program, session)?;
        let traps = Traps::begin(program, session)?;
        Ok(Maps { args: args.clone(), program: program.clone(), state, followers, routes, dumps: None, events, traps })
    }

    /// Checks that the files written after the run can be written, and creates the event file,
    /// whose write errors cancel `stop`.
    pub fn open_outputs(&mut self, stop: &CancelToken) -> Result<(), SinkError> {
        self.dumps = Some(Dumps::open(&self.args.dump_map)?);
        if let Some(file) = &self.args.events {
            self.events.log_to(Log::create(file, stop)?);
        }
        Ok(())
    }

    /// Does the work between two batches: saves state if it is due, updates maps that follow files
    /// or routes, and reads events so that the next batch, of `coming` packets, has room for its
    /// own. Returns messages for the user.
    pub fn follow(&mut self, session: &mut dyn Session, coming: usize) -> Result<Vec<MapNotice>, DeviceError> {
        let mut notices = Vec::new();
        self.events.boundary(session, coming)?;
        if let Some(Err(error)) = self.state.as_mut().map(|state| state.save_if_due(&self.program, session)) {
            notices
                .push(MapNotice::Warning(format!("{error}; the file is unchanged, and will be written again later")));
        }
        for follower in &mut self.followers {
            notices.extend(follower.boundary(session)?);
        }
        if let Some(routes) = &mut self.routes {
            notices.extend(routes.boundary(session)?);
        }
        Ok(notices)
    }

    /// Whether maps are written after the run.
    pub fn writes(&self) -> bool {
        self.args.state.is_some() || !self.args.dump_map.is_empty()
    }

    /// Reads the last events. Without a session, only those read before are written.
    pub fn last_events(&mut self, session: Option<&mut dyn Session>) -> Result<(), Failure> {
        self.events.finish(session)
    }

    /// Whether a write error of the event file has stopped the run.
    pub fn events_failed(&self) -> bool {
        self.events.failed()
    }

    /// Counts of events, if the filter has any.
    pub fn events(&self) -> Option<EventCounts> {
        self.events.counts()
    }

    /// Writes all files, even if one fails. Returns the first error.
    pub fn write(&mut self, session: &mut dyn Session) -> Result<(), Failure> {
        let saved =
            self.state.as_mut().map_or(Ok(()), |state| state.save(&self.program, session).map_err(Failure::from));
        saved.and(self.dumps.as_ref().map_or(Ok(()), |dumps| dumps.write(&self.program, session)))
    }
}

/// Reads the files that maps follow, and starts to watch them.
pub(super) fn watched(args: &MapArgs, program: &Program) -> Result<Vec<(Follower, ParsedRows)>, Failure> {
    let watched = args.watch_map.iter().filter_map(|file| Some((file, numbered(file, program)?)));
    watched.map(|(file, map)| Follower::new(file, map)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_a_map_and_a_file() {
        let file = |map: &str, file: &str, format| Ok(MapFile { map: map.into(), file: file.into(), format });
        let output = |text: &str| MapFile::output(OsStr::new(text));
        assert_eq!(output("a=b.csv"), file("a", "b.csv", Format::Csv));
        assert_eq!(output("a=b=c/d.JSON"), file("a", "b=c/d.JSON", Format::Json));
        assert_eq!(output("a=-"), file("a", "-", Format::Csv));
        assert_eq!(output("a=/dev/stdout"), file("a", "-", Format::Csv));
        for bad in ["", "a", "=", "a=", "=b.csv", " =b.csv"] {
            assert!(output(bad).unwrap_err().starts_with("expected NAME=FILE"), "{bad:?}");
        }
        for bad in ["a=b", "a=csv", "a=b.txt", "a=.csv", "a=b.csv/x"] {
            assert!(output(bad).unwrap_err().contains(".csv or .json"), "{bad:?}");
        }
    }
}
