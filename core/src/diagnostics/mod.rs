//! Diagnostics: errors in a filter's source, with their locations and explanations.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use codespan_reporting::diagnostic::{Diagnostic as Report, Label as ReportLabel, LabelStyle};
use codespan_reporting::term;

mod printable;

pub use printable::elide;
use printable::{PrintableFiles, printable};

/// Maximum size of a source text in bytes.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;

/// A filter's source text and its name. The text of several files is concatenated; an offset then
/// also identifies the file, and locations are reported relative to that file.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    /// The first file's name, or a placeholder (`<stdin>`).
    pub name: String,
    /// The concatenated text.
    pub text: Arc<str>,
    /// Start offsets and names of the files after the first.
    more_files: Arc<[(usize, String)]>,
}

/// One file of a [`Source`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile<'a> {
    /// The file's name, or a placeholder.
    pub name: &'a str,
    /// The byte range of the file in the concatenated text.
    pub range: Range<usize>,
}

/// Prints the text's length only: it may be a megabyte.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).field("bytes", &self.text.len()).finish()
    }
}

impl Source {
    /// Creates a source of a single file.
    pub fn new(name: impl Into<String>, text: impl Into<Arc<str>>) -> Source {
        Source { name: name.into(), text: text.into(), more_files: Arc::default() }
    }

    /// Concatenates files, separated by a line feed so that tokens do not join. Without files the
    /// source is empty.
    pub fn joined<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Source {
        let mut files = files.into_iter();
        let (name, first) = files.next().unwrap_or_default();
        let mut text = String::from(first);
        let more_files = files.map(|(name, file)| {
            text.push('\n');
            let start = text.len();
            text.push_str(file);
            (start, name.to_owned())
        });
        let more_files = more_files.collect();
        Source { name: name.to_owned(), text: text.into(), more_files }
    }

    /// The file that contains an offset; the line feed after a file belongs to it.
    pub fn file_at(&self, offset: usize) -> SourceFile<'_> {
        let index = self.more_files.partition_point(|(start, _)| *start <= offset);
        let end = self.more_files.get(index).map_or(self.text.len(), |(start, _)| start - 1);
        match index.checked_sub(1).map(|i| &self.more_files[i]) {
            None => SourceFile { name: &self.name, range: 0..end },
            Some((start, name)) => SourceFile { name, range: *start..end },
        }
    }

    /// Decodes a source from bytes as they were read. Of a text that is too long, only the first
    /// [`MAX_SOURCE_BYTES`] bytes and one more need be present.
    ///
    /// # Errors
    /// If the bytes contain a zero byte or are not UTF-8 (the message has the offset of the first
    /// invalid byte), or exceed [`MAX_SOURCE_BYTES`].
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Result<Source, Diagnostics> {
        let name = name.into();
        let fails = |text: &str, error| Err(Diagnostics::one(&Source::new(name.as_str(), text), error));
        let head = &bytes[..bytes.len().min(MAX_SOURCE_BYTES)];
        if let Some(at) = head.iter().position(|&byte| byte == 0) {
            let message = format!("the source is not text: zero byte at offset {at}");
            return fails("", Diagnostic::new(message).note("a filter is source text"));
        }
        match std::str::from_utf8(head) {
            Ok(text) if head.len() == bytes.len() => Ok(Source::new(name.as_str(), text)),
            // Cutting the head may have split a character.
            Err(error) if error.error_len().is_some() || head.len() == bytes.len() => {
                let at = error.valid_up_to();
                let message = format!("the text is not UTF-8: byte {:#04x} at offset {at}", head[at]);
                // The lossy text is identical up to that byte, where it has U+FFFD.
                fails(&String::from_utf8_lossy(head), Diagnostic::new(message).at(at..at + 3, ""))
            }
            _ => fails("", too_long()),
        }
    }

    /// The line and column of a byte offset in its file, both counted from 1, the column in
    /// characters.
    pub fn location(&self, offset: usize) -> (usize, usize) {
        let part = self.file_at(offset).range;
        let mut at = offset.min(part.end);
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &self.text[part.start..at];
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

/// The error for a text of more than [`MAX_SOURCE_BYTES`] bytes.
pub fn too_long() -> Diagnostic {
    Diagnostic::new(format!("the source exceeds {MAX_SOURCE_BYTES} bytes, the maximum for a filter"))
}

/// A location in the source and a message about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The byte range.
    pub range: Range<usize>,
    /// The message at the location; may be empty.
    pub message: String,
}

/// One error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnostic {
    /// The error, as a sentence without a full stop.
    pub message: String,
    /// The locations; the first is the error's own, others explain it.
    pub labels: Vec<Label>,
    /// Explanations and next steps.
    pub notes: Vec<String>,
    /// The parameter at fault, by name, if the source itself is fine.
    pub parameter: Option<String>,
}

impl Diagnostic {
    /// An error in the source as a whole.
    pub fn new(message: impl Into<String>) -> Diagnostic {
        Diagnostic { message: message.into(), ..Diagnostic::default() }
    }

    /// Adds a location.
    #[must_use]
    pub fn at(mut self, range: Range<usize>, message: impl Into<String>) -> Diagnostic {
        self.labels.push(Label { range, message: message.into() });
        self
    }

    /// Attributes the error to a parameter, given or missing.
    #[must_use]
    pub fn with_parameter(mut self, name: impl Into<String>) -> Diagnostic {
        self.parameter = Some(name.into());
        self
    }

    /// Adds an explanation or a next step.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Diagnostic {
        self.notes.push(note.into());
        self
    }
}

/// All errors in a filter; at least one.
#[derive(Clone, PartialEq, Eq)]
pub struct Diagnostics {
    /// The source that the labels refer to.
    pub source: Source,
    /// The errors.
    pub errors: Vec<Diagnostic>,
}

impl std::error::Error for Diagnostics {}

/// Like [`Diagnostics::render`], which is what a `main` that returns the error prints.
impl fmt::Debug for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render().trim_end())
    }
}

/// One line per error, `name:line:column: message`, for logs. [`Diagnostics::render`] is for
/// people.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            match error.labels.first() {
                None => f.write_str(&printable(&self.source.name, false))?,
                Some(label) => {
                    let name = self.source.file_at(label.range.start).name;
                    let (line, column) = self.source.location(label.range.start);
                    write!(f, "{}:{line}:{column}", printable(name, false))?;
                }
            }
            write!(f, ": {}", printable(&error.message, false))?;
        }
        Ok(())
    }
}

impl Diagnostics {
    /// A single error in `source`.
    pub fn one(source: &Source, error: Diagnostic) -> Diagnostics {
        Diagnostics { source: source.clone(), errors: vec![error] }
    }

    /// Renders the errors with the source lines they refer to, like a compiler, without colour.
    /// Characters that control a terminal are replaced.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let printable_files = self.printable_files();
        for report in self.reports(&printable_files) {
            // Writing to a string cannot fail, and `PrintableFiles` keeps every label inside the
            // text.
            let _ = term::emit_to_string(&mut text, &term::Config::default(), &printable_files, &report);
        }
        text
    }

    /// Like [`Diagnostics::render`], with colour if the stream supports it.
    ///
    /// # Errors
    /// The errors of the stream.
    pub fn emit(&self, to: &mut dyn term::termcolor::WriteColor) -> std::io::Result<()> {
        let printable_files = self.printable_files();
        for report in self.reports(&printable_files) {
            term::emit_to_write_style(to, &term::Config::default(), &printable_files, &report)
                .map_err(std::io::Error::other)?;
        }
        Ok(())
    }

    fn printable_files(&self) -> PrintableFiles<'_> {
        PrintableFiles::new(&self.source, self.errors.iter().flat_map(|e| &e.labels).map(|label| label.range.start))
    }

    fn reports<'a>(&'a self, printable_files: &'a PrintableFiles<'a>) -> impl Iterator<Item = Report<usize>> + 'a {
        self.errors.iter().map(|error| {
            let labels = error.labels.iter().enumerate().map(|(i, label)| {
                let (part, range) = printable_files.range(&label.range);
                let style = if i == 0 { LabelStyle::Primary } else { LabelStyle::Secondary };
                ReportLabel::new(style, part, range).with_message(printable(&label.message, false))
            });
            let message = printable(&error.message, false);
            // A location names the file; without one, the message has to.
            let message = match error.labels.is_empty() {
                true => format!("{}: {message}", printable(&self.source.name, false)),
                false => message.to_string(),
            };
            Report::error()
                .with_message(message)
                .with_labels(labels.collect())
                .with_notes(error.notes.iter().map(|note| printable(note, true).into_owned()).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str, range: Range<usize>) -> String {
        let source = Source::new("f.wgsl", text);
        Diagnostics::one(&source, Diagnostic::new("wrong").at(range, "here").note("so")).render()
    }

    #[test]
    fn reports_look_like_a_compilers() {
        let text = "fn a() {\n    let ä = wrong;\n}\n";
        let at = text.find("wrong").unwrap();
        assert_eq!(
            render(text, at..at + 5),
            "error: wrong
  ┌─ f.wgsl:2:13
  │
2 │     let ä = wrong;
  │             ^^^^^ here
  │
  = so

"
        );
    }

    #[test]
    fn columns_count_characters() {
        let source = Source::new("f", "é\n€x\u{1f600}y");
        assert_eq!(source.location(0), (1, 1));
        assert_eq!(source.location(3), (2, 1));
        assert_eq!(source.location(6), (2, 2));
        assert_eq!(source.location(11), (2, 4));
        // Inside a character, and past the end.
        assert_eq!(source.location(9), (2, 3));
        assert_eq!(source.location(99), (2, 5));
    }

    #[test]
    fn terminal_control_characters_are_replaced() {
        let source = Source::new("a\u{1b}[31m\nb", "x\u{1b}[2J\u{202e}y\rz\r\nlast \u{9b}0m wrong");
        let at = source.text.find("wrong").unwrap();
        let error = Diagnostic::new("bad\u{1b}]0;title\u{7}").at(at..at + 5, "\u{1b}c").at(0..1, "\n").note("\u{8}");
        let errors = Diagnostics::one(&source, error);
        for text in [errors.render(), errors.to_string()] {
            assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
        }
        assert!(errors.render().contains("b:2:10"), "{}", errors.render());
        assert_eq!(errors.to_string().lines().count(), 1);
    }

    #[test]
    fn debug_output_is_the_report_without_the_source() {
        let source = Source::new("f.wgsl", "long line\n".repeat(100_000) + "wrong");
        assert_eq!(format!("{source:?}"), r#"Source { name: "f.wgsl", bytes: 1000005 }"#);
        let errors = Diagnostics::one(&source, Diagnostic::new("wrong").at(1_000_000..1_000_005, "here"));
        for shown in [format!("{errors:?}"), format!("{errors:#?}")] {
            assert!(shown.starts_with("error: wrong\n") && shown.ends_with("^^^^^ here"), "{shown}");
        }
    }

    #[test]
    fn long_lines_are_cut_around_the_location() {
        let text = format!("first\n{}wrong{}\nlast", "é".repeat(100_000), "b".repeat(100_000));
        let at = text.find("wrong").unwrap();
        let shown = render(&text, at..at + 5);
        assert!(shown.contains("f.wgsl:2:100001"), "{shown}");
        assert!(shown.contains(&format!("…{}wrongb", "é".repeat(60))), "{shown}");
        assert!(shown.len() < 2000);
        let lines: Vec<_> = shown.lines().collect();
        let column = |line: &str, what: &str| line[..line.find(what).unwrap()].chars().count();
        let marks = lines.iter().position(|l| l.contains("^^^^^")).unwrap();
        assert_eq!(column(lines[marks], "^"), column(lines[marks - 1], "wrong"));
        // A location that is the whole line, and one at its end.
        assert!(render(&text, 6..text.len() - 5).len() < 2000);
        assert!(render(&text, text.len() - 5..text.len() - 5).contains("f.wgsl:2:200006"));
    }

    #[test]
    fn locations_outside_the_text_are_clamped() {
        for text in ["", "\n", "a", "é", "a\r\n", "a\u{1b}\r\nb"] {
            for start in 0..8 {
                for end in 0..8 {
                    assert!(render(text, start..end).starts_with("error: wrong\n"), "{text:?} {start}..{end}");
                    assert!(render(text, start..end).contains("here"), "{text:?} {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn locations_are_relative_to_their_file() {
        let source = Source::joined([("f.cl", "a\nbc"), ("sub/x.h", ""), ("y.h", "é\n\u{1b}wrong\n")]);
        assert_eq!(&*source.text, "a\nbc\n\né\n\u{1b}wrong\n");
        let locations =
            [(0, "f.cl", 1, 1), (4, "f.cl", 2, 3), (5, "sub/x.h", 1, 1), (6, "y.h", 1, 1), (8, "y.h", 1, 2)];
        for (offset, name, line, column) in locations {
            assert_eq!((source.file_at(offset).name, source.location(offset)), (name, (line, column)), "{offset}");
        }
        assert_eq!(source.file_at(99), SourceFile { name: "y.h", range: 6..16 });
        assert_eq!(source.location(99), (3, 1));
        let at = source.text.find("wrong").unwrap();
        let error = Diagnostic::new("bad").at(at..at + 5, "this").at(2..4, "for that").at(5..5, "and nothing");
        let errors = Diagnostics { source, errors: vec![error, Diagnostic::new("worse")] };
        assert_eq!(errors.to_string(), "y.h:2:2: bad\nf.cl: worse");
        assert_eq!(
            errors.render(),
            "error: bad
  ┌─ y.h:2:2
  │
2 │ ␛wrong
  │  ^^^^^ this
  │
  ┌─ f.cl:2:1
  │
2 │ bc
  │ -- for that
  │
  ┌─ sub/x.h:1:1
  │
1 │\u{20}
  │ - and nothing

error: f.cl: worse

"
        );
        assert_eq!(Source::joined([]), Source::new("", ""));
    }
}
