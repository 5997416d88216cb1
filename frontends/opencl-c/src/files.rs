//! The files that a filter is made of, and places in them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use portcullis_core::diagnostics::short;
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};

/// A file of a filter's [`Files`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(u32);

impl FileId {
    /// The file that holds the filter itself.
    pub const FILTER: FileId = FileId(0);

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A place: bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The file.
    pub file: FileId,
    /// The first byte.
    pub start: u32,
    /// Behind the last byte.
    pub end: u32,
}

impl Span {
    /// From this place to the end of `other`, where that comes later in the same file; else this place.
    #[must_use]
    pub fn to(self, other: Span) -> Span {
        let follows = self.file == other.file && self.start <= other.start;
        Span { end: if follows { other.end.max(self.end) } else { self.end }, ..self }
    }
}

/// Gives the files that a filter includes. Core does no I/O: whoever has the filter's folder does.
pub trait Includes {
    /// Reads a file. The path is relative to the filter's folder and made of plain names: no `..`, no
    /// root. More than [`MAX_SOURCE`](portcullis_core::diagnostics::MAX_SOURCE) bytes need not be read beyond the
    /// first that is too much.
    ///
    /// # Errors
    /// Why not, in words.
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, String>;
}

impl<F: FnMut(&Path) -> Result<Vec<u8>, String>> Includes for F {
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        self(path)
    }
}

/// A text in which each line ends in a line feed, behind a carriage return or not: what is a carriage
/// return alone becomes one. Places stay what they are.
fn with_line_feeds(text: Arc<str>) -> Arc<str> {
    if !text.contains('\r') {
        return text;
    }
    let mut rest = text.chars().peekable();
    let mut ended = String::with_capacity(text.len());
    while let Some(c) = rest.next() {
        let alone = c == '\r' && rest.peek() != Some(&'\n');
        ended.push(if alone { '\n' } else { c });
    }
    ended.into()
}

/// For a filter that has no folder.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoIncludes;

impl Includes for NoIncludes {
    fn read(&mut self, _: &Path) -> Result<Vec<u8>, String> {
        Err("there is no folder to look in".into())
    }
}

/// A file's name and text.
#[derive(Debug, Clone)]
struct File {
    name: String,
    text: Arc<str>,
    /// Where the text begins in [`Files::joined`].
    start: usize,
    /// Where it was included first.
    included: Option<Span>,
}

/// Every file that was read, each once: the filter's own is the first.
#[derive(Debug, Clone, Default)]
pub struct Files {
    files: Vec<File>,
    /// Where macros are defined, by the places where they are used.
    uses: HashMap<Span, Span>,
}

impl Files {
    /// Adds a file, with the place where it is included.
    pub(super) fn add(&mut self, name: impl Into<String>, text: impl Into<Arc<str>>, included: Option<Span>) -> FileId {
        let id = FileId(u32::try_from(self.files.len()).expect("what may be read bounds the files"));
        let start = self.files.last().map_or(0, |last| last.start + last.text.len() + 1);
        self.files.push(File { name: name.into(), text: with_line_feeds(text.into()), start, included });
        id
    }

    /// Notes that a macro, defined at one place, is used at another.
    pub(super) fn macro_used(&mut self, used: Span, defined: Span) {
        self.uses.insert(used, defined);
    }

    /// The name of a file below the filter's folder, as one who knows the filter by its name finds it.
    pub(super) fn beside_filter(&self, path: &Path) -> String {
        let filter = self.name(FileId::FILTER);
        let folder = filter.rfind(std::path::is_separator).map_or("", |at| &filter[..=at]);
        format!("{folder}{}", path.display())
    }

    /// A file's name: the filter's as it was given, others' as they are found from where that one is.
    pub fn name(&self, file: FileId) -> &str {
        &self.files[file.index()].name
    }

    /// A file's text.
    pub fn text(&self, file: FileId) -> &Arc<str> {
        &self.files[file.index()].text
    }

    /// What is written at a place, with the splices and comments that may be in it.
    pub fn spelling(&self, span: Span) -> &str {
        &self.text(span.file)[span.start as usize..span.end as usize]
    }

    /// All files as one text, which is what diagnostics point into. Its beginning is the filter's file.
    pub fn joined(&self) -> Source {
        Source::joined(self.files.iter().map(|file| (&*file.name, &*file.text)))
    }

    /// A place in [`joined`](Files::joined).
    pub fn range(&self, span: Span) -> Range<usize> {
        let start = self.files[span.file.index()].start;
        start + span.start as usize..start + span.end as usize
    }

    /// Points an error at a token: at the place where it was spelled, and where a macro put it there at
    /// the macro's use too.
    #[must_use]
    pub fn point(
        &self,
        error: Diagnostic,
        span: Span,
        expanded: Option<Span>,
        message: impl Into<String>,
    ) -> Diagnostic {
        let error = error.at(self.range(span), message);
        match expanded {
            Some(used) if used != span => {
                let name = short(self.spelling(used));
                error.at(self.range(used), format!("in what the macro `{name}` stands for here"))
            }
            _ => error,
        }
    }

    /// Where the macro is defined that is used at a place.
    pub(super) fn definition(&self, used: Span) -> Option<Span> {
        self.uses.get(&used).copied()
    }

    /// What is wrong with the filter, with the texts that it is about.
    pub fn diagnostics(&self, errors: Vec<Diagnostic>) -> Diagnostics {
        self.with_inclusions(Diagnostics { source: self.joined(), errors })
    }

    /// Says of errors in included files from where these are included. The text is [`joined`](Files::joined).
    pub(super) fn with_inclusions(&self, mut diagnostics: Diagnostics) -> Diagnostics {
        let source = diagnostics.source.clone();
        for error in &mut diagnostics.errors {
            let Some(first) = error.labels.first() else { continue };
            let file = self.files.partition_point(|file| file.start <= first.range.start).saturating_sub(1);
            error.notes.extend(self.inclusions(file, &source));
        }
        diagnostics
    }

    /// `in file included from a.h:3:10, included from f.cl:1:10`.
    fn inclusions(&self, file: usize, source: &Source) -> Option<String> {
        let mut from = self.files.get(file)?.included?;
        let mut text = String::from("in a file");
        loop {
            let (line, column) = source.location(self.range(from).start);
            let between = if text.ends_with("file") { " " } else { ", " };
            let _ = write!(text, "{between}included from {}:{line}:{column}", self.name(from.file));
            match self.files[from.file.index()].included {
                Some(next) => from = next,
                None => return Some(text),
            }
        }
    }
}
