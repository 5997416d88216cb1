//! Arguments that name a filter, and the compilation of that filter.

mod input;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, FromArgMatches, ValueEnum};
#[cfg(all(target_os = "linux", feature = "live"))]
use portcullis::control::{Refusal, Reload};
use portcullis::diagnostics::{Diagnostics, MAX_SOURCE_BYTES, Source};
use portcullis::frontend::bpf::Instruction;
use portcullis::frontend::opencl_c::files::{Includes, NoIncludes};
use portcullis::frontend::xdp::ObjectReport;
use portcullis::frontend::{bpf, opencl_c, wgsl, xdp};
use portcullis::program::{DEFAULT_FUEL, Program, ProgramOptions};
use portcullis::reason;

use super::failure::Failure;
use input::{Expression, Input};
pub use input::{NameParser, unknown};

/// The name of standard input in messages.
const STDIN: &str = "<stdin>";

/// Path that stands for standard input where `-` cannot, as in `/dev/stdin:PROGRAM`; `-:PROGRAM`
/// would be an option.
const STDIN_FILE: &str = "/dev/stdin";

/// Maximum fuel.
const MAX_FUEL: u32 = 1 << 24;

/// A filter, its parameters and its fuel, as named on the command line.
#[derive(Debug)]
pub struct FilterArgs {
    input: Input,
    language: Option<Language>,
    set: Vec<(String, String)>,
    fuel: u32,
}

/// The arguments as clap parses them, before [`FilterArgs`] resolves them.
#[derive(Debug, clap::Args)]
#[group(skip)]
struct RawFilterArgs {
    /// Filter: a stock filter (`portcullis filters`), a file, or a tcpdump expression
    ///
    /// Files are .wgsl, .cl (OpenCL C), .bpf (`tcpdump -ddd`) or .o (XDP); if an object has several
    /// XDP programs, name one: FILE.o:PROGRAM. `-` reads standard input. Words that name neither a
    /// file nor a stock filter are an expression, as with `--expr`.
    #[arg(required_unless_present = "expr", value_parser = NameParser, hide_possible_values = true, help_heading = "Filter")]
    filter: Vec<OsString>,
    /// Filter with a tcpdump expression: matches PASS, the rest is dropped
    #[arg(long, value_name = "EXPRESSION", allow_hyphen_values = true, conflicts_with_all = ["filter", "language", "set"], help_heading = "Filter")]
    expr: Option<String>,
    /// Language of the filter, if its name does not imply it
    ///
    /// The default is WGSL for standard input and for stock filters, which exist in OpenCL C, too.
    #[arg(long, value_enum, value_name = "LANGUAGE", help_heading = "Filter", hide_short_help = true)]
    language: Option<Language>,
    /// Set a filter parameter
    ///
    /// A WGSL `override`, an OpenCL C macro, or of an XDP object a global variable or part of one
    /// (`config.ports[2]=80`) or a map's size (`flows.max_entries=1000`). May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parameter, help_heading = "Filter")]
    set: Vec<(String, String)>,
    /// Maximum loop iterations per packet; beyond it the packet is ABORTED
    ///
    /// At most 16777216, which bounds how long Ctrl-C waits for a packet.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_FUEL, value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_FUEL)), help_heading = "Filter", hide_short_help = true)]
    fuel: u32,
}

impl Args for FilterArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        RawFilterArgs::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        RawFilterArgs::augment_args_for_update(command)
    }
}

impl FromArgMatches for FilterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<FilterArgs, clap::Error> {
        let RawFilterArgs { filter, expr, language, set, fuel } = RawFilterArgs::from_arg_matches(matches)?;
        let usage = |what: String| {
            // clap would show the usage of `portcullis` alone.
            let command = std::env::args_os().nth(1).unwrap_or_default();
            let usage = format!("portcullis {} [OPTIONS] [FILTER]...", command.display());
            let error = clap::Error::raw(ErrorKind::ValueValidation, what);
            error.format(&mut clap::Command::new("portcullis").override_usage(usage))
        };
        let input = match expr {
            Some(text) => Input::Expression(Expression { text, is_bare: false }),
            None => Input::from_words(&filter, language).map_err(usage)?,
        };
        if let (Input::Expression(expression), Some((name, _))) = (&input, set.first()) {
            return Err(usage(format!("--set {name}: the expression `{}` has no parameters", expression.text)));
        }
        Ok(FilterArgs { input, language, set, fuel })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = FilterArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Language of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// The WebGPU shading language
    Wgsl,
    /// OpenCL C 1.2
    OpenclC,
    /// Classic BPF, as `tcpdump -ddd`, `tcpdump -dd` or `bpf_asm` print it
    Bpf,
    /// An ELF object with XDP programs, as clang compiles it for BPF
    Xdp,
}

/// Parses the argument of `--set`.
pub fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected NAME=VALUE, for example --set limit=10".into()),
    }
}

impl FilterArgs {
    /// Replaces the parameters.
    pub fn with_parameters(self, set: &[(String, String)]) -> FilterArgs {
        FilterArgs { set: set.to_vec(), ..self }
    }

    fn new(input: Input) -> FilterArgs {
        FilterArgs { input, language: None, set: Vec::new(), fuel: DEFAULT_FUEL }
    }

    /// The filter of an option that takes a file or the name of a stock filter.
    pub fn from_name(name: &OsStr) -> Result<FilterArgs, Failure> {
        Input::from_name(name, None).map(FilterArgs::new).map_err(Failure::Usage)
    }

    /// The filter of an option that takes a tcpdump expression.
    pub fn from_expression(expression: &str) -> FilterArgs {
        FilterArgs::new(Input::Expression(Expression { text: expression.to_owned(), is_bare: false }))
    }

    fn path(&self) -> Option<&Path> {
        match &self.input {
            Input::File(path) => Some(path),
            Input::Stock(_) | Input::Expression(_) => None,
        }
    }

    /// The file that the filter is read from, without a program's name; `-` is standard input.
    pub fn file(&self) -> Option<&Path> {
        self.path().map(|path| self.object().map_or(path, |(file, _)| file))
    }

    /// The object's file and the program named after the colon, if the filter is an object.
    fn object(&self) -> Option<(&Path, Option<&str>)> {
        object(self.path()?, self.language)
    }

    /// Whether the filter is read from standard input.
    pub fn is_stdin(&self) -> bool {
        self.file().is_some_and(|file| ["-", STDIN_FILE].map(Path::new).contains(&file))
    }

    /// The name to show for the filter.
    pub fn name(&self) -> String {
        match &self.input {
            // All packets match the empty expression.
            Input::Expression(expression) if expression.text.trim().is_empty() => "''".into(),
            Input::Expression(expression) => expression.text.clone(),
            Input::Stock(stock) => stock.name.into(),
            Input::File(_) if self.is_stdin() => match self.object() {
                Some((_, Some(program))) => format!("{STDIN}:{program}"),
                _ => STDIN.into(),
            },
            Input::File(file) => file.display().to_string(),
        }
    }

    /// Converts the arguments to a reload request for a running instance.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn reload(&self) -> Result<Reload, Failure> {
        if self.is_stdin() {
            return Err(Failure::Usage("the running instance reads the filter itself, and needs a file".into()));
        }
        let language = self.language.and_then(|language| Some(language.to_possible_value()?.get_name().to_owned()));
        let reload = Reload { language, set: self.set.clone(), fuel: Some(self.fuel), ..Reload::default() };
        let file = match &self.input {
            Input::Expression(expression) => return Ok(Reload { expr: Some(expression.text.clone()), ..reload }),
            Input::Stock(stock) => return Ok(Reload { filter: Some(stock.name.into()), ..reload }),
            Input::File(file) => file,
        };
        // Resolved here, since the run may have another working directory.
        let wrong = |what: &str| Failure::Usage(format!("{}: {what}", self.name()));
        let path = std::path::absolute(file).map_err(|error| wrong(&reason(&error)))?;
        self.language()?;
        Ok(Reload { filter: Some(path), ..reload })
    }

    /// Converts a reload request back to arguments.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn from_reload(reload: &Reload) -> Result<FilterArgs, Refusal> {
        let Reload { filter, expr, language, set, fuel } = reload;
        let language = language.as_deref().map(|name| <Language as ValueEnum>::from_str(name, false)).transpose();
        let language = language.map_err(|_| Refusal::usage("the language is `wgsl`, `opencl-c`, `bpf` or `xdp`"))?;
        let fuel = fuel.unwrap_or(DEFAULT_FUEL);
        if fuel > MAX_FUEL {
            return Err(Refusal::usage(format!("fuel is {MAX_FUEL} at most")));
        }
        let input = match (filter, expr) {
            (Some(filter), _) => {
                let stock = filter.to_str().map_or(Ok(None), |name| Input::of_stock(name, language));
                stock.map_err(Refusal::usage)?.unwrap_or_else(|| Input::File(filter.clone()))
            }
            (None, expr) => Input::Expression(Expression { text: expr.clone().unwrap_or_default(), is_bare: false }),
        };
        Ok(FilterArgs { input, language, set: set.clone(), fuel })
    }

    /// Language of the filter's text, by `--language` or the file's ending.
    fn language(&self) -> Result<Language, Failure> {
        if self.object().is_some() {
            return Ok(Language::Xdp);
        }
        let ending = self.file().and_then(Path::extension).map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        match (self.language, ending.as_deref()) {
            (Some(language), _) => Ok(language),
            (None, _) if self.is_stdin() || matches!(self.input, Input::Stock(_)) => Ok(Language::Wgsl),
            (None, Some("wgsl")) => Ok(Language::Wgsl),
            (None, Some("cl")) => Ok(Language::OpenclC),
            (None, Some("bpf")) => Ok(Language::Bpf),
            (None, _) => Err(Failure::Usage(format!(
                "{}: the name of a filter ends in .wgsl, .cl, .bpf or .o; for any other name give --language wgsl, --language \
                 opencl-c, --language bpf or --language xdp",
                self.name()
            ))),
        }
    }

    /// Reads and compiles the filter.
    pub fn load(&self) -> Result<Program, Failure> {
        self.load_with_instructions().map(|(program, _)| program)
    }

    /// Reads and compiles the filter; also returns its classic BPF instructions, if it has any.
    pub fn load_with_instructions(&self) -> Result<(Program, Option<Vec<Instruction>>), Failure> {
        let options = self.options();
        if let Input::Expression(Expression { text, is_bare }) = &self.input {
            let source = Source::new(if *is_bare { "expression" } else { "--expr" }, text.as_str());
            let instructions = portcullis::expression::program(&source).map_err(|mut diagnostics| {
                if let (true, Some(error)) = (is_bare, diagnostics.errors.first_mut()) {
                    let why = "there is no file and no stock filter of this name, and so it is taken as an expression";
                    error.notes.push(why.into());
                }
                diagnostics
            })?;
            let program = bpf::compile_program(&source, &instructions, &options)?;
            return Ok((program, Some(instructions)));
        }
        if matches!(self.language(), Ok(Language::Xdp)) {
            return Ok((self.load_object(&options)?, None));
        }
        let source = self.source()?;
        let mut instructions = None;
        let compiled = match self.language()? {
            Language::Xdp => unreachable!("loaded above"),
            Language::Wgsl => wgsl::compile(&source, &options),
            Language::OpenclC => match self.path().filter(|_| !self.is_stdin()) {
                Some(file) => {
                    let folder = file.parent().unwrap_or(Path::new(""));
                    opencl_c::compile(&source, &options, &mut Folder(folder))
                }
                None => opencl_c::compile(&source, &options, &mut NoIncludes),
            },
            Language::Bpf => {
                instructions = bpf::parse(&source).ok();
                bpf::compile(&source, &options)
            }
        };
        let program = compiled.map_err(|mut diagnostics| {
            if self.is_stdin() && self.language.is_none() && source.text.contains("__global") {
                let hint = "standard input is read as WGSL; for OpenCL C add --language opencl-c";
                diagnostics.errors.iter_mut().take(1).for_each(|error| error.notes.push(hint.into()));
            }
            if self.is_stdin() && self.language.is_none() && bpf::parse(&source).is_ok() {
                let hint = "standard input is read as WGSL; for the output of `tcpdump -ddd` add --language bpf";
                diagnostics.errors.iter_mut().take(1).for_each(|error| error.notes.push(hint.into()));
            }
            name_options(diagnostics)
        })?;
        Ok((program, instructions))
    }

    /// Compiles a program of an object.
    fn load_object(&self, options: &ProgramOptions) -> Result<Program, Failure> {
        let (shown, bytes, program) = self.object_file()?;
        let compiled = xdp::compile(&shown, &bytes, program, options);
        Ok(compiled.map_err(|mut diagnostics| {
            if self.is_stdin() {
                // Name programs the way the argument must: /dev/stdin:PROGRAM.
                let as_named = |text: &mut String| {
                    *text = text.replace(&format!(" {STDIN}:"), &format!(" {STDIN_FILE}:"));
                };
                for error in &mut diagnostics.errors {
                    as_named(&mut error.message);
                    error.notes.iter_mut().for_each(as_named);
                }
            }
            name_options(diagnostics)
        })?)
    }

    /// Inspects the whole object if the filter is an object and no program is named.
    pub fn inspect(&self) -> Result<Option<ObjectReport>, Failure> {
        if self.is_stdin() || !matches!(self.object(), Some((_, None))) {
            return Ok(None);
        }
        let (shown, bytes, _) = self.object_file()?;
        Ok(Some(xdp::inspect(&shown, &bytes, &self.options()).map_err(name_options)?))
    }

    fn options(&self) -> ProgramOptions {
        ProgramOptions::default().with_parameters(self.set.clone()).with_fuel(self.fuel)
    }

    /// Reads an object: its name for messages, its bytes, and the program named.
    fn object_file(&self) -> Result<(String, Vec<u8>, Option<&str>), Failure> {
        let (file, program) = self.object().unwrap_or((Path::new(""), None));
        let shown = if self.is_stdin() { STDIN.into() } else { file.display().to_string() };
        let read = |from: &mut dyn Read| {
            let mut bytes = Vec::new();
            from.take(xdp::object::MAX_OBJECT as u64 + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = if self.is_stdin() {
            read(&mut io::stdin().lock())
        } else {
            File::open(file).and_then(|mut it| read(&mut it))
        };
        let bytes = bytes.map_err(|error| Failure::Error(format!("{shown}: {}", reason(&error))))?;
        Ok((shown, bytes, program))
    }

    fn source(&self) -> Result<Source, Failure> {
        if let Input::Stock(stock) = &self.input {
            return Ok(match self.language {
                Some(Language::OpenclC) => Source::new(format!("{}.cl", stock.name), stock.opencl_c),
                _ => Source::new(format!("{}.wgsl", stock.name), stock.wgsl),
            });
        }
        let bytes = match self.file() {
            Some(file) if !self.is_stdin() => File::open(file).and_then(read_limited),
            _ => read_limited(io::stdin().lock()),
        }
        .map_err(|error| Failure::Error(format!("{}: {}", self.name(), reason(&error))))?;
        if is_capture(&bytes) {
            let what = "this is a capture, not a filter; captures are given to --read";
            return Err(Failure::Error(format!("{}: {what}", self.name())));
        }
        if bytes.starts_with(b"\x7fELF") {
            let what = "this is an ELF object; if it has XDP programs, add `--language xdp` or rename it to end in .o";
            return Err(Failure::Error(format!("{}: {what}", self.name())));
        }
        Ok(Source::from_bytes(self.name(), bytes)?)
    }
}

/// Prefixes errors about parameters with the option that set them.
pub fn name_options(mut diagnostics: Diagnostics) -> Diagnostics {
    for error in &mut diagnostics.errors {
        if let Some(name) = &error.parameter {
            error.message = format!("--set {name}: {}", error.message);
        }
    }
    diagnostics
}

/// Splits the name of an object into its file and the program named, if one is: `FILE.o` or
/// `FILE.o:PROGRAM`; with `--language xdp` also `FILE` or `FILE:PROGRAM`, unless the whole name is
/// a file's. Returns `None` for other filters.
fn object(path: &Path, language: Option<Language>) -> Option<(&Path, Option<&str>)> {
    let has_ending = |path: &Path| path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("o"));
    let split = || path.to_str()?.rsplit_once(':').map(|(file, program)| (Path::new(file), Some(program)));
    match language {
        Some(Language::Xdp) if has_ending(path) || path.exists() => Some((path, None)),
        Some(Language::Xdp) => Some(split().unwrap_or((path, None))),
        Some(_) => None,
        None if has_ending(path) => Some((path, None)),
        None => split().filter(|(file, _)| has_ending(file)),
    }
}

/// Reads up to one byte more than the limit on sources: enough to refuse a longer input, which may
/// be endless.
fn read_limited(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_SOURCE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The folder that an OpenCL C filter may include files from.
struct Folder<'a>(&'a Path);

impl Includes for Folder<'_> {
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        let folder = if self.0.as_os_str().is_empty() { Path::new(".") } else { self.0 };
        let path = folder.join(path);
        // Opening a pipe could block forever.
        let is_file = path.metadata().map_err(|error| reason(&error))?.is_file();
        if !is_file {
            return Err("not a regular file".into());
        }
        let real = |path: &Path| path.canonicalize().map_err(|error| reason(&error));
        if !real(&path)?.starts_with(real(folder)?) {
            return Err("a symbolic link leads out of the filter's folder".into());
        }
        File::open(&path).and_then(read_limited).map_err(|error| reason(&error))
    }
}

fn is_capture(bytes: &[u8]) -> bool {
    let magics = [[0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0xc3, 0xd4], [0x0a, 0x0d, 0x0d, 0x0a]];
    bytes.first_chunk().is_some_and(|magic| magics.contains(magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_objects_are_named_after_a_colon() {
        let in_language = |path: &'static str, language| {
            object(Path::new(path), language).map(|(file, program)| (file.to_str().unwrap(), program))
        };
        let of = |path| in_language(path, None);
        assert_eq!(of("a/b.o"), Some(("a/b.o", None)));
        assert_eq!(of("a/b.o:drop"), Some(("a/b.o", Some("drop"))));
        assert_eq!(of("a:b.o"), Some(("a:b.o", None)));
        assert_eq!(of("b.wgsl"), None);
        assert_eq!(of("b.wgsl:drop"), None);
        assert_eq!(of("-:drop"), None);
        // With an explicit language the extension does not matter.
        let xdp = |path| in_language(path, Some(Language::Xdp));
        assert_eq!(xdp("a/b"), Some(("a/b", None)));
        assert_eq!(xdp("a/b:drop"), Some(("a/b", Some("drop"))));
        assert_eq!(xdp("a:b:xdp/c"), Some(("a:b", Some("xdp/c"))));
        assert_eq!(xdp("a:b.o"), Some(("a:b.o", None)));
        assert_eq!(xdp("-:drop"), Some(("-", Some("drop"))));
        assert_eq!(in_language("b.o:drop", Some(Language::Bpf)), None);
    }

    #[test]
    fn parameters_need_a_name_and_a_value() {
        assert_eq!(parameter("a=1"), Ok(("a".into(), "1".into())));
        assert_eq!(parameter("a=b=c"), Ok(("a".into(), "b=c".into())));
        for bad in ["", "=", "a", "a=", "=1", " =1"] {
            assert!(parameter(bad).is_err(), "{bad:?}");
        }
    }
}
