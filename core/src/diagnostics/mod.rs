//! What is wrong with a filter's text, where, and why.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use codespan_reporting::diagnostic::{Diagnostic as Report, Label as ReportLabel, LabelStyle};
use codespan_reporting::term;

mod printable;

pub use printable::elide;
use printable::{Shown, printable};

/// The largest source text taken, in bytes.
pub const MAX_SOURCE: usize = 1 << 20;

/// A filter's text and the name to show for it. Where the text came from several files it is all of
/// theirs, one behind the other, and an offset in it says the file as well: places are then given as
/// for a single file.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    /// The first file's name, or what stands for it (`<stdin>`).
    pub name: String,
    /// The text.
    pub text: Arc<str>,
    /// Where the files behind the first begin, and their names.
    behind: Arc<[(usize, String)]>,
}

/// One of the files of a [`Source`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part<'a> {
    /// Its name, or what stands for it.
    pub name: &'a str,
    /// Where its text lies in the whole.
    pub range: Range<usize>,
}

/// The text by its length: it may be a megabyte.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).field("bytes", &self.text.len()).finish()
    }
}

impl Source {
    /// A text with a name.
    pub fn new(name: impl Into<String>, text: impl Into<Arc<str>>) -> Source {
        Source { name: name.into(), text: text.into(), behind: Arc::default() }
    }

    /// Several files as one text, with a line feed between each two: the end of one is not the
    /// beginning of the next. Without files it is empty.
    pub fn joined<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Source {
        let mut files = files.into_iter();
        let (name, first) = files.next().unwrap_or_default();
        let mut text = String::from(first);
        let behind = files.map(|(name, file)| {
            text.push('\n');
            let start = text.len();
            text.push_str(file);
            (start, name.to_owned())
        });
        let behind = behind.collect();
        Source { name: name.to_owned(), text: text.into(), behind }
    }

    /// The file that an offset is in; its end, where the line feed between files is, is in it.
    pub fn file_at(&self, offset: usize) -> Part<'_> {
        let index = self.behind.partition_point(|(start, _)| *start <= offset);
        let end = self.behind.get(index).map_or(self.text.len(), |(start, _)| start - 1);
        match index.checked_sub(1).map(|i| &self.behind[i]) {
            None => Part { name: &self.name, range: 0..end },
            Some((start, name)) => Part { name, range: *start..end },
        }
    }

    /// A text as it was read. Of one that is too long only the beginning is looked at, and need be
    /// there.
    ///
    /// # Errors
    /// What holds a zero byte or is not UTF-8 (the place of the first wrong byte is said), or is
    /// larger than [`MAX_SOURCE`].
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Result<Source, Diagnostics> {
        let name = name.into();
        let fails = |text: &str, error| Err(Diagnostics::one(&Source::new(name.as_str(), text), error));
        let head = &bytes[..bytes.len().min(MAX_SOURCE)];
        if let Some(at) = head.iter().position(|&byte| byte == 0) {
            let message = format!("this is no text: there is a zero byte at offset {at}");
            return fails("", Diagnostic::new(message).note("a filter is source text"));
        }
        match std::str::from_utf8(head) {
            Ok(text) if head.len() == bytes.len() => Ok(Source::new(name.as_str(), text)),
            // A cut may have gone through a character.
            Err(error) if error.error_len().is_some() || head.len() == bytes.len() => {
                let at = error.valid_up_to();
                let message = format!("the text is not UTF-8: byte {:#04x} at offset {at}", head[at]);
                // The lossy text is the same up to that byte, and has U+FFFD there.
                fails(&String::from_utf8_lossy(head), Diagnostic::new(message).at(at..at + 3, ""))
            }
            _ => fails("", too_long()),
        }
    }

    /// The line and column (both from 1, the column in characters) of a byte offset, in the file that
    /// it is in.
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

/// Refuses a text of more than [`MAX_SOURCE`] bytes.
pub fn too_long() -> Diagnostic {
    Diagnostic::new(format!("the text is longer than {MAX_SOURCE} bytes, the most that a filter may have"))
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
    /// The parameter that is at fault, by its name, as it was or was not given: then the text is not.
    pub parameter: Option<String>,
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

    /// Puts the blame on a parameter that was given, or was not.
    #[must_use]
    pub fn with_parameter(mut self, name: impl Into<String>) -> Diagnostic {
        self.parameter = Some(name.into());
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
#[derive(Clone, PartialEq, Eq)]
pub struct Diagnostics {
    /// The text that the labels' ranges are of.
    pub source: Source,
    /// What is wrong.
    pub errors: Vec<Diagnostic>,
}

impl std::error::Error for Diagnostics {}

/// As [`Diagnostics::render`]: a `main` that returns an error shows it so.
impl fmt::Debug for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render().trim_end())
    }
}

/// `name:line:column: message`, a line each: for logs. [`Diagnostics::render`] is for people.
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
    /// One thing that is wrong with `source`.
    pub fn one(source: &Source, error: Diagnostic) -> Diagnostics {
        Diagnostics { source: source.clone(), errors: vec![error] }
    }

    /// The errors with the lines they are about, as compilers print them, without colour. Nothing
    /// of the text, its name or the messages reaches the reader that a terminal would obey.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let shown = self.shown();
        for report in self.reports(&shown) {
            // Writing to a string cannot fail, and `Shown` keeps every label in the text.
            let _ = term::emit_to_string(&mut text, &term::Config::default(), &shown, &report);
        }
        text
    }

    /// The same, coloured where the stream is.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn emit(&self, to: &mut dyn term::termcolor::WriteColor) -> std::io::Result<()> {
        let shown = self.shown();
        for report in self.reports(&shown) {
            term::emit_to_write_style(to, &term::Config::default(), &shown, &report).map_err(std::io::Error::other)?;
        }
        Ok(())
    }

    fn shown(&self) -> Shown<'_> {
        Shown::new(&self.source, self.errors.iter().flat_map(|e| &e.labels).map(|label| label.range.start))
    }

    fn reports<'a>(&'a self, shown: &'a Shown<'a>) -> impl Iterator<Item = Report<usize>> + 'a {
        self.errors.iter().map(|error| {
            let labels = error.labels.iter().enumerate().map(|(i, label)| {
                let (part, range) = shown.range(&label.range);
                let style = if i == 0 { LabelStyle::Primary } else { LabelStyle::Secondary };
                ReportLabel::new(style, part, range).with_message(printable(&label.message, false))
            });
            let message = printable(&error.message, false);
            // A place names the file; without one, the message has to.
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
    fn a_report_looks_like_a_compilers() {
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
        // In the middle of a character, and past the end.
        assert_eq!(source.location(9), (2, 3));
        assert_eq!(source.location(99), (2, 5));
    }

    #[test]
    fn nothing_reaches_a_terminal_that_it_would_obey() {
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
    fn debugging_shows_the_report_and_not_the_text() {
        let source = Source::new("f.wgsl", "long line\n".repeat(100_000) + "wrong");
        assert_eq!(format!("{source:?}"), r#"Source { name: "f.wgsl", bytes: 1000005 }"#);
        let errors = Diagnostics::one(&source, Diagnostic::new("wrong").at(1_000_000..1_000_005, "here"));
        for shown in [format!("{errors:?}"), format!("{errors:#?}")] {
            assert!(shown.starts_with("error: wrong\n") && shown.ends_with("^^^^^ here"), "{shown}");
        }
    }

    #[test]
    fn long_lines_are_shown_around_the_place() {
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
        // The whole line as the place, and a place at its very end.
        assert!(render(&text, 6..text.len() - 5).len() < 2000);
        assert!(render(&text, text.len() - 5..text.len() - 5).contains("f.wgsl:2:200006"));
    }

    #[test]
    fn places_outside_the_text_are_brought_in() {
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
    fn places_are_in_one_of_several_files() {
        let source = Source::joined([("f.cl", "a\nbc"), ("sub/x.h", ""), ("y.h", "é\n\u{1b}wrong\n")]);
        assert_eq!(&*source.text, "a\nbc\n\né\n\u{1b}wrong\n");
        let places = [(0, "f.cl", 1, 1), (4, "f.cl", 2, 3), (5, "sub/x.h", 1, 1), (6, "y.h", 1, 1), (8, "y.h", 1, 2)];
        for (offset, name, line, column) in places {
            assert_eq!((source.file_at(offset).name, source.location(offset)), (name, (line, column)), "{offset}");
        }
        assert_eq!(source.file_at(99), Part { name: "y.h", range: 6..16 });
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
