//! The files of a filter, and places in them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use portcullis_core::diagnostics::elide;
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};

/// Identifies a file of [`Files`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(u32);

impl FileId {
    /// The file of the filter itself.
    pub const FILTER: FileId = FileId(0);

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A byte range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The file that the bytes are in.
    pub file: FileId,
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// Returns the range from the start of `self` to the end of `other` if `other` follows in the
    /// same file, else `self`.
    #[must_use]
    pub fn to(self, other: Span) -> Span {
        let follows = self.file == other.file && self.start <= other.start;
        Span { end: if follows { other.end.max(self.end) } else { self.end }, ..self }
    }
}

/// Reads included files on behalf of this crate, which does no I/O itself.
pub trait Includes {
    /// Reads a file. `path` is relative to the filter's folder and consists of plain names, without
    /// `..` or a root. Of a file of more than
    /// [`MAX_SOURCE_BYTES`](portcullis_core::diagnostics::MAX_SOURCE_BYTES) bytes, the reader need
    /// not return more than one byte beyond the limit.
    ///
    /// # Errors
    /// The reason why the file cannot be read, as text for the user.
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, String>;
}

impl<F: FnMut(&Path) -> Result<Vec<u8>, String>> Includes for F {
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        self(path)
    }
}

/// Replaces each carriage return that no line feed follows by a line feed, so that every line ends
/// in one. Byte offsets stay the same.
fn normalize_line_ends(text: Arc<str>) -> Arc<str> {
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

/// Rejects all includes; for a filter without a folder.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoIncludes;

impl Includes for NoIncludes {
    fn read(&mut self, _: &Path) -> Result<Vec<u8>, String> {
        Err("the filter has no folder to include from".into())
    }
}

/// A file's name and text.
#[derive(Debug, Clone)]
struct File {
    name: String,
    text: Arc<str>,
    /// Offset of the text in [`Files::joined`].
    start: usize,
    /// The `#include` that the file was first read for.
    included_from: Option<Span>,
}

/// All files that were read, each once; the filter's own is the first.
#[derive(Debug, Clone, Default)]
pub struct Files {
    files: Vec<File>,
    /// Place of each used macro's definition, by the place of the use.
    macro_definitions: HashMap<Span, Span>,
}

impl Files {
    /// Adds a file and the place of the `#include` that names it.
    pub(super) fn add(
        &mut self,
        name: impl Into<String>,
        text: impl Into<Arc<str>>,
        included_from: Option<Span>,
    ) -> FileId {
        let id = FileId(u32::try_from(self.files.len()).expect("MAX_TEXT_BYTES bounds the number of files"));
        let start = self.files.last().map_or(0, |last| last.start + last.text.len() + 1);
        self.files.push(File { name: name.into(), text: normalize_line_ends(text.into()), start, included_from });
        id
    }

    /// Records that the macro defined at `defined` is used at `used`.
    pub(super) fn record_macro_use(&mut self, used: Span, defined: Span) {
        self.macro_definitions.insert(used, defined);
    }

    /// Name for messages of a file below the filter's folder: relative to where the filter's name
    /// is.
    pub(super) fn name_beside_filter(&self, path: &Path) -> String {
        let filter = self.name(FileId::FILTER);
        let folder = filter.rfind(std::path::is_separator).map_or("", |at| &filter[..=at]);
        format!("{folder}{}", path.display())
    }

    /// A file's name: the filter's as given, others' relative to the same folder.
    pub fn name(&self, file: FileId) -> &str {
        &self.files[file.index()].name
    }

    /// A file's text.
    pub fn text(&self, file: FileId) -> &Arc<str> {
        &self.files[file.index()].text
    }

    /// Source text at a place; it may contain line splices and comments.
    pub fn spelling(&self, span: Span) -> &str {
        &self.text(span.file)[span.start as usize..span.end as usize]
    }

    /// All files joined to one text, which diagnostics point into. It starts with the filter's
    /// file.
    pub fn joined(&self) -> Source {
        Source::joined(self.files.iter().map(|file| (&*file.name, &*file.text)))
    }

    /// Converts a place to a range of [`joined`](Files::joined).
    pub fn range(&self, span: Span) -> Range<usize> {
        let start = self.files[span.file.index()].start;
        start + span.start as usize..start + span.end as usize
    }

    /// Adds a label at a token: at its spelling, and, if it comes from a macro, also at the macro's
    /// use.
    #[must_use]
    pub fn point_at(
        &self,
        error: Diagnostic,
        span: Span,
        expanded: Option<Span>,
        message: impl Into<String>,
    ) -> Diagnostic {
        let error = error.at(self.range(span), message);
        match expanded {
            Some(used) if used != span => {
                let name = elide(self.spelling(used));
                error.at(self.range(used), format!("in the expansion of the macro `{name}`"))
            }
            _ => error,
        }
    }

    /// Place of the definition of the macro that is used at `used`.
    pub(super) fn macro_definition(&self, used: Span) -> Option<Span> {
        self.macro_definitions.get(&used).copied()
    }

    /// Wraps errors together with the files that they point into.
    pub fn diagnostics(&self, errors: Vec<Diagnostic>) -> Diagnostics {
        self.add_inclusion_notes(Diagnostics { source: self.joined(), errors })
    }

    /// Adds notes to errors in included files that tell where the files are included. The text of
    /// `diagnostics` is [`joined`](Files::joined).
    pub(super) fn add_inclusion_notes(&self, mut diagnostics: Diagnostics) -> Diagnostics {
        let source = diagnostics.source.clone();
        for error in &mut diagnostics.errors {
            let Some(first) = error.labels.first() else { continue };
            let file = self.files.partition_point(|file| file.start <= first.range.start).saturating_sub(1);
            error.notes.extend(self.inclusion_note(file, &source));
        }
        diagnostics
    }

    /// `in a file included from a.h:3:10, included from f.cl:1:10`
    fn inclusion_note(&self, file: usize, source: &Source) -> Option<String> {
        let mut from = self.files.get(file)?.included_from?;
        let mut text = String::from("in a file");
        loop {
            let (line, column) = source.location(self.range(from).start);
            let between = if text.ends_with("file") { " " } else { ", " };
            let _ = write!(text, "{between}included from {}:{line}:{column}", self.name(from.file));
            match self.files[from.file.index()].included_from {
                Some(next) => from = next,
                None => return Some(text),
            }
        }
    }
}
