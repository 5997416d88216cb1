//! What is wrong with a filter's text, where, and why.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use codespan_reporting::diagnostic::{Diagnostic as Report, Label as ReportLabel};
use codespan_reporting::files::SimpleFile;
use codespan_reporting::term;

use super::MAX_SOURCE;

/// A filter's text and the name to show for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file's name, or what stands for it (`<stdin>`).
    pub name: String,
    /// The text.
    pub text: Arc<str>,
}

impl Source {
    /// A text with a name.
    pub fn new(name: impl Into<String>, text: impl Into<Arc<str>>) -> Source {
        Source { name: name.into(), text: text.into() }
    }

    /// A text as it was read.
    ///
    /// # Errors
    /// What is not UTF-8 (the place of the first wrong byte is said), or larger than
    /// [`MAX_SOURCE`](super::MAX_SOURCE).
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Result<Source, Diagnostics> {
        let name = name.into();
        if bytes.len() > MAX_SOURCE {
            return Err(Diagnostics::one(&Source::new(name, ""), too_long(bytes.len())));
        }
        String::from_utf8(bytes).map(|text| Source::new(name.as_str(), text)).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let byte = error.as_bytes()[at];
            // The lossy text is the same up to that byte, and has U+FFFD there.
            let source = Source::new(name.as_str(), String::from_utf8_lossy(error.as_bytes()));
            let message = format!("the text is not UTF-8: byte {byte:#04x} at offset {at}");
            Diagnostics::one(&source, Diagnostic::new(message).at(at..at + 3, ""))
        })
    }

    /// The line and column (both from 1, the column in characters) of a byte offset.
    pub fn location(&self, offset: usize) -> (usize, usize) {
        let mut at = offset.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &self.text[..at];
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

/// Refuses a text of `length` bytes.
pub(super) fn too_long(length: usize) -> Diagnostic {
    Diagnostic::new(format!("the text is {length} bytes long"))
        .note(format!("a filter's text is at most {MAX_SOURCE} bytes"))
}

/// A place in the text and what is to be said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Bytes of the text.
    pub range: Range<usize>,
    /// What is wrong there; may be empty.
    pub message: String,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnostic {
    /// What is wrong, in a sentence without a full stop.
    pub message: String,
    /// Where; the first label is the place itself, others explain it.
    pub labels: Vec<Label>,
    /// Why it is so, and what to do.
    pub notes: Vec<String>,
}

impl Diagnostic {
    /// Something wrong with the text as a whole.
    pub fn new(message: impl Into<String>) -> Diagnostic {
        Diagnostic { message: message.into(), ..Diagnostic::default() }
    }

    /// Adds a place.
    #[must_use]
    pub fn at(mut self, range: Range<usize>, message: impl Into<String>) -> Diagnostic {
        self.labels.push(Label { range, message: message.into() });
        self
    }

    /// Adds a reason or a way out.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Diagnostic {
        self.notes.push(note.into());
        self
    }
}

/// Everything that is wrong with a filter: at least one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostics {
    /// The text that the labels' ranges are of.
    pub source: Source,
    /// What is wrong.
    pub errors: Vec<Diagnostic>,
}

impl std::error::Error for Diagnostics {}

/// `name:line:column: message`, a line each: for logs. [`Diagnostics::render`] is for people.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", self.source.name)?;
            if let Some(label) = error.labels.first() {
                let (line, column) = self.source.location(label.range.start);
                write!(f, ":{line}:{column}")?;
            }
            write!(f, ": {}", error.message)?;
        }
        Ok(())
    }
}

impl Diagnostics {
    /// One thing that is wrong with `source`.
    pub fn one(source: &Source, error: Diagnostic) -> Diagnostics {
        Diagnostics { source: source.clone(), errors: vec![error] }
    }

    /// The errors with the lines they are about, as compilers print them, without colour.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let mut out = FmtWriter(&mut text);
        for report in self.reports() {
            // Writing to a string cannot fail, and a label outside the text is clamped below.
            let _ = term::emit_to_io_write(&mut out, &self.config(), &self.file(), &report);
        }
        text
    }

    /// The same, coloured where the stream is.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn emit(&self, to: &mut dyn term::termcolor::WriteColor) -> std::io::Result<()> {
        for report in self.reports() {
            term::emit_to_write_style(to, &self.config(), &self.file(), &report).map_err(std::io::Error::other)?;
        }
        Ok(())
    }

    fn config(&self) -> term::Config {
        term::Config::default()
    }

    fn file(&self) -> SimpleFile<&str, &str> {
        SimpleFile::new(&self.source.name, &self.source.text)
    }

    fn reports(&self) -> impl Iterator<Item = Report<()>> + '_ {
        let length = self.source.text.len();
        self.errors.iter().map(move |error| {
            let labels = error.labels.iter().enumerate().map(|(i, label)| {
                let end = label.range.end.min(length);
                let range = label.range.start.min(end)..end;
                let report = if i == 0 { ReportLabel::primary((), range) } else { ReportLabel::secondary((), range) };
                report.with_message(&label.message)
            });
            Report::error().with_message(&error.message).with_labels(labels.collect()).with_notes(error.notes.clone())
        })
    }
}

/// A string as a byte stream; codespan writes whole UTF-8 pieces.
struct FmtWriter<'a>(&'a mut String);

impl std::io::Write for FmtWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
