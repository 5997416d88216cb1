//! Arguments of `run` for maps, and the messages about maps during a run.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use portcullis::map::Format;
use portcullis::map_file::find_map;
use portcullis::program::Program;

use super::normalize_stdout;

/// Arguments of `run` for maps.
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
    /// File of the entries; `-` is standard output.
    pub file: PathBuf,
    /// Format of the file.
    pub format: Format,
}

/// Parser of the argument of `--dump-map`.
fn output() -> impl TypedValueParser<Value = MapFile> {
    OsStringValueParser::new().try_map(|text| MapFile::output(&text))
}

/// Parser of `NAME=FILE` for `option`, which reads the file.
pub fn input(option: &'static str) -> impl TypedValueParser<Value = MapFile> {
    OsStringValueParser::new().try_map(move |text| MapFile::input(&text, option))
}

/// Parser of the argument of `--from-pin`.
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

    /// Returns the map's number. `Maps::check` ensures that the filter has the map.
    pub fn number(&self, program: &Program) -> Option<usize> {
        find_map(program.maps(), &self.map).ok()
    }
}

impl fmt::Display for MapFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.map, self.file.display())
    }
}

/// Splits `NAME=FILE`; the error shows `example`.
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
    pub fn pinned(&self) -> &[MapFile] {
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
}

/// A message about maps during a run.
pub enum MapNotice {
    /// An operation failed.
    Warning(String),
    /// An operation that had failed succeeds again.
    Note(String),
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
