//! Reading a filter: the arguments that say which, and what becomes of them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
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

/// What standard input is called.
const STDIN: &str = "<stdin>";

/// Path that stands for standard input where `-` cannot, as in `/dev/stdin:PROGRAM`; `-:PROGRAM`
/// would be an option.
const STDIN_FILE: &str = "/dev/stdin";

/// Fuel, at most.
const MOST_FUEL: u32 = 1 << 24;

/// What to filter with.
#[derive(Debug, clap::Args)]
pub struct FilterArgs {
    /// Filter file: .wgsl, .cl (OpenCL C), .bpf (`tcpdump -ddd`) or .o (XDP)
    ///
    /// Of an object with several XDP programs name one: FILE.o:PROGRAM. `-` reads standard input.
    #[arg(required_unless_present = "expr", help_heading = "Filter")]
    filter: Option<PathBuf>,
    /// Filter with a tcpdump expression: matches PASS, the rest is dropped
    #[arg(long, value_name = "EXPRESSION", allow_hyphen_values = true, conflicts_with_all = ["filter", "language", "set"], help_heading = "Filter")]
    expr: Option<String>,
    /// Language of the filter, if the file name does not tell; WGSL for standard input
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
    #[arg(long, value_name = "N", default_value_t = DEFAULT_FUEL, value_parser = clap::value_parser!(u32).range(..=i64::from(MOST_FUEL)), help_heading = "Filter", hide_short_help = true)]
    fuel: u32,
}

/// What a filter can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Language {
    /// The WebGPU shading language
    Wgsl,
    /// OpenCL C 1.2
    OpenclC,
    /// Classic BPF, as `tcpdump -ddd`, `tcpdump -dd` or `bpf_asm` print it
    Bpf,
    /// An object of clang's for BPF, with programs of XDP
    Xdp,
}

/// Input to compile.
enum Text<'a> {
    /// A file's text, or standard input's: `-`.
    File(&'a Path),
    /// An expression of tcpdump's.
    Expression(&'a str),
}

/// What `--set` takes.
pub fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected NAME=VALUE, for example --set limit=10".into()),
    }
}

impl FilterArgs {
    /// This is set besides.
    pub fn with(self, set: &[(String, String)]) -> FilterArgs {
        FilterArgs { set: set.to_vec(), ..self }
    }

    /// A file, with nothing set.
    pub fn of_file(filter: &Path) -> FilterArgs {
        FilterArgs { filter: Some(filter.to_owned()), expr: None, language: None, set: Vec::new(), fuel: DEFAULT_FUEL }
    }

    /// An expression of tcpdump's.
    pub fn of_expression(expression: &str) -> FilterArgs {
        FilterArgs { filter: None, expr: Some(expression.to_owned()), ..FilterArgs::of_file(Path::new("")) }
    }

    fn text(&self) -> Text<'_> {
        match (&self.expr, &self.filter) {
            (Some(expression), _) => Text::Expression(expression),
            (None, Some(file)) => Text::File(file),
            // One of them is there: clap sees to it.
            (None, None) => Text::File(Path::new("")),
        }
    }

    /// The file that the filter is in, without a program's name behind it.
    pub fn file(&self) -> Option<&Path> {
        self.filter.as_deref().map(|filter| self.object().map_or(filter, |(file, _)| file))
    }

    /// The file of an object, and the program of it that is named, if one is; `None` of what is no
    /// object.
    fn object(&self) -> Option<(&Path, Option<&str>)> {
        object(self.filter.as_deref()?, self.language)
    }

    /// Whether the text comes from standard input.
    pub fn is_stdin(&self) -> bool {
        self.file().is_some_and(|file| ["-", STDIN_FILE].map(Path::new).contains(&file))
    }

    /// The name to show for the filter.
    pub fn name(&self) -> String {
        match self.text() {
            // Which all packets match.
            Text::Expression(expression) if expression.trim().is_empty() => "''".into(),
            Text::Expression(expression) => expression.to_owned(),
            Text::File(_) if self.is_stdin() => match self.object() {
                Some((_, Some(program))) => format!("{STDIN}:{program}"),
                _ => STDIN.into(),
            },
            Text::File(file) => file.display().to_string(),
        }
    }

    /// Converts the arguments to a reload request for a running instance.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn reload(&self) -> Result<Reload, Failure> {
        if self.is_stdin() {
            return Err(Failure::Usage("the run reads the filter itself, and needs a file".into()));
        }
        let reload = Reload { set: self.set.clone(), fuel: Some(self.fuel), ..Reload::default() };
        let Text::File(file) = self.text() else { return Ok(Reload { expr: self.expr.clone(), ..reload }) };
        // Here, since the run may be in another folder.
        let wrong = |what: &str| Failure::Usage(format!("{}: {what}", self.name()));
        let path = std::path::absolute(file).map_err(|error| wrong(&reason(&error)))?;
        let filter = path.to_str().ok_or_else(|| wrong("the path is no text in UTF-8, and cannot be sent"))?.to_owned();
        self.language()?;
        let language = self.language.and_then(|language| Some(language.to_possible_value()?.get_name().to_owned()));
        Ok(Reload { filter: Some(filter), language, ..reload })
    }

    /// Converts a reload request back to arguments.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn of(reload: &Reload) -> Result<FilterArgs, Refusal> {
        let Reload { filter, expr, language, set, fuel } = reload;
        let language = language.as_deref().map(|name| <Language as ValueEnum>::from_str(name, false)).transpose();
        let language = language.map_err(|_| Refusal::usage("the language is `wgsl`, `opencl-c`, `bpf` or `xdp`"))?;
        let fuel = fuel.unwrap_or(DEFAULT_FUEL);
        if fuel > MOST_FUEL {
            return Err(Refusal::usage(format!("fuel is {MOST_FUEL} at most")));
        }
        Ok(FilterArgs {
            filter: filter.as_ref().map(PathBuf::from),
            expr: expr.clone(),
            language,
            set: set.clone(),
            fuel,
        })
    }

    /// What the text of a file is written in.
    fn language(&self) -> Result<Language, Failure> {
        if self.object().is_some() {
            return Ok(Language::Xdp);
        }
        let ending = self.file().and_then(Path::extension).map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        match (self.language, ending.as_deref()) {
            (Some(language), _) => Ok(language),
            (None, _) if self.is_stdin() => Ok(Language::Wgsl),
            (None, Some("wgsl")) => Ok(Language::Wgsl),
            (None, Some("cl")) => Ok(Language::OpenclC),
            (None, Some("bpf")) => Ok(Language::Bpf),
            (None, _) => Err(Failure::Usage(format!(
                "{}: filters' names end in .wgsl, .cl, .bpf or .o; of any other say the language: --language wgsl, --language \
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
        let folder = match self.text() {
            Text::Expression(text) => {
                let source = Source::new("--expr", text);
                let instructions = portcullis::expression::program(&source)?;
                let program = bpf::compile_program(&source, &instructions, &options)?;
                return Ok((program, Some(instructions)));
            }
            Text::File(file) => file.parent().unwrap_or(Path::new("")),
        };
        if matches!(self.language(), Ok(Language::Xdp)) {
            return Ok((self.load_object(&options)?, None));
        }
        let source = self.source()?;
        let mut instructions = None;
        let compiled = match self.language()? {
            Language::Xdp => unreachable!("objects are no texts"),
            Language::Wgsl => wgsl::compile(&source, &options),
            Language::OpenclC if self.is_stdin() => opencl_c::compile(&source, &options, &mut NoIncludes),
            Language::OpenclC => opencl_c::compile(&source, &options, &mut Folder(folder)),
            Language::Bpf => {
                instructions = bpf::parse(&source).ok();
                bpf::compile(&source, &options)
            }
        };
        let program = compiled.map_err(|mut diagnostics| {
            if self.is_stdin() && self.language.is_none() && source.text.contains("__global") {
                let hint = "standard input is taken for WGSL; of OpenCL C say --language opencl-c";
                diagnostics.errors.iter_mut().take(1).for_each(|error| error.notes.push(hint.into()));
            }
            if self.is_stdin() && self.language.is_none() && bpf::parse(&source).is_ok() {
                let hint = "standard input is taken for WGSL; of what `tcpdump -ddd` prints say --language bpf";
                diagnostics.errors.iter_mut().take(1).for_each(|error| error.notes.push(hint.into()));
            }
            of_arguments(diagnostics)
        })?;
        Ok((program, instructions))
    }

    /// A program of an object.
    fn load_object(&self, options: &ProgramOptions) -> Result<Program, Failure> {
        let (shown, bytes, program) = self.object_file()?;
        let compiled = xdp::compile(&shown, &bytes, program, options);
        Ok(compiled.map_err(|mut diagnostics| {
            if self.is_stdin() {
                // A program there is named as an argument names it.
                let as_named = |text: &mut String| {
                    *text = text.replace(&format!(" {STDIN}:"), &format!(" {STDIN_FILE}:"));
                };
                for error in &mut diagnostics.errors {
                    as_named(&mut error.message);
                    error.notes.iter_mut().for_each(as_named);
                }
            }
            of_arguments(diagnostics)
        })?)
    }

    /// Inspects the whole object if the filter is an object and no program is named.
    pub fn inspect(&self) -> Result<Option<ObjectReport>, Failure> {
        if self.is_stdin() || !matches!(self.object(), Some((_, None))) {
            return Ok(None);
        }
        let (shown, bytes, _) = self.object_file()?;
        Ok(Some(xdp::inspect(&shown, &bytes, &self.options()).map_err(of_arguments)?))
    }

    fn options(&self) -> ProgramOptions {
        ProgramOptions::default().with_parameters(self.set.clone()).with_fuel(self.fuel)
    }

    /// An object's name, what is in the file, and the program that is named.
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
        let bytes = bytes.map_err(|error| Failure::Wrong(format!("{shown}: {}", reason(&error))))?;
        Ok((shown, bytes, program))
    }

    fn source(&self) -> Result<Source, Failure> {
        let bytes = match self.file() {
            Some(file) if !self.is_stdin() => File::open(file).and_then(beginning),
            _ => beginning(io::stdin().lock()),
        }
        .map_err(|error| Failure::Wrong(format!("{}: {}", self.name(), reason(&error))))?;
        if is_capture(&bytes) {
            let what = "this is a capture, not a filter; captures are given to --read";
            return Err(Failure::Wrong(format!("{}: {what}", self.name())));
        }
        if bytes.starts_with(b"\x7fELF") {
            let what =
                "this is an ELF object; `--language xdp`, or a name that ends in .o, takes one with programs for XDP";
            return Err(Failure::Wrong(format!("{}: {what}", self.name())));
        }
        Ok(Source::from_bytes(self.name(), bytes)?)
    }
}

/// Has errors of parameters tell of the arguments that those are.
pub fn of_arguments(mut diagnostics: Diagnostics) -> Diagnostics {
    for error in &mut diagnostics.errors {
        if let Some(name) = &error.parameter {
            error.message = format!("--set {name}: {}", error.message);
        }
    }
    diagnostics
}

/// An object's file, and the program of it that is meant, if one is: `FILE.o` or `FILE.o:PROGRAM`,
/// and where the language is told `FILE` or `FILE:PROGRAM`, unless there is a file of the whole
/// name. `None` of what is no object.
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

/// Reads at most one byte more than a filter may have: enough to refuse a longer input, which may
/// be endless.
fn beginning(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_SOURCE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The folder that a filter includes files from.
struct Folder<'a>(&'a Path);

impl Includes for Folder<'_> {
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        let folder = if self.0.as_os_str().is_empty() { Path::new(".") } else { self.0 };
        let path = folder.join(path);
        // A pipe might never be opened from its other end.
        let is_file = path.metadata().map_err(|error| reason(&error))?.is_file();
        if !is_file {
            return Err("this is no file".into());
        }
        let real = |path: &Path| path.canonicalize().map_err(|error| reason(&error));
        if !real(&path)?.starts_with(real(folder)?) {
            return Err("a symbolic link leads out of the filter's folder".into());
        }
        File::open(&path).and_then(beginning).map_err(|error| reason(&error))
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
    fn programs_of_objects_are_named_behind_a_colon() {
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
        // Where the language is told, it is for no ending to say.
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
