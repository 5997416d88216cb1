//! Printing untrusted filter text safely: control characters, direction overrides and very long
//! lines are replaced or cut, while reported locations still refer to the original text.

use std::borrow::Cow;
use std::ops::Range;

use codespan_reporting::files::{Error, Files};

use super::Source;

/// Maximum number of characters shown of a line; a longer line is cut around the reported location.
const MAX_LINE_CHARS: usize = 240;

/// Number of characters shown before the location in a cut line.
const LEADING_CHARS: usize = 60;

/// Printable copies of the source files that contain reported locations.
pub(super) struct PrintableFiles<'a> {
    source: &'a Source,
    printed: Vec<PrintableFile>,
}

/// A printable copy of a source file, with a mapping back to the original.
struct PrintableFile {
    /// The byte range of the file in the original.
    range: Range<usize>,
    name: String,
    text: String,
    line_starts: Vec<usize>,
    /// Where the distance between original and printable offsets changes: (original, printable).
    steps: Vec<(usize, usize)>,
}

impl<'a> PrintableFiles<'a> {
    /// Makes printable copies of the files that contain `offsets`.
    pub fn new(source: &'a Source, offsets: impl Iterator<Item = usize>) -> PrintableFiles<'a> {
        let mut offsets: Vec<usize> = offsets.collect();
        offsets.sort_unstable();
        let mut printed: Vec<PrintableFile> = Vec::new();
        for &offset in &offsets {
            if printed.last().is_none_or(|file| file.range.end < offset) {
                printed.extend(PrintableFile::new(source, offset, &offsets));
            }
        }
        PrintableFiles { source, printed }
    }

    /// The index of the file that contains a range of the original, and the range in its printable
    /// copy.
    pub fn range(&self, original: &Range<usize>) -> (usize, Range<usize>) {
        let index = self.printed.partition_point(|file| file.range.end < original.start);
        let index = index.min(self.printed.len().saturating_sub(1));
        let Some(file) = self.printed.get(index) else { return (0, 0..0) };
        let start = file.offset(original.start);
        (index, start..file.offset(original.end).max(start))
    }

    fn file(&self, index: usize) -> Result<&PrintableFile, Error> {
        self.printed.get(index).ok_or(Error::FileMissing)
    }
}

impl PrintableFile {
    /// A printable copy of the file that contains `offset`; `None` if the range is invalid.
    /// `offsets` are all reported locations, sorted.
    fn new(source: &Source, offset: usize, offsets: &[usize]) -> Option<PrintableFile> {
        let super::SourceFile { name, range } = source.file_at(offset);
        let original = source.text.get(range.clone())?;
        let mut file = PrintableFile {
            range: range.clone(),
            name: printable(name, false).into_owned(),
            text: String::with_capacity(original.len()),
            line_starts: Vec::new(),
            steps: vec![(range.start, 0)],
        };
        let mut start = range.start;
        for line in original.split_inclusive('\n') {
            file.line_starts.push(file.text.len());
            let offset = offsets.get(offsets.partition_point(|&p| p < start)).filter(|&&p| p < start + line.len());
            file.push_line(start, line, offset.map(|p| p - start));
            start += line.len();
        }
        if original.is_empty() || original.ends_with('\n') {
            file.line_starts.push(file.text.len());
        }
        Some(file)
    }

    /// Appends a line that starts at `start` in the original, keeping the location `offset` in it
    /// visible.
    fn push_line(&mut self, start: usize, line: &str, offset: Option<usize>) {
        let body = line.strip_suffix('\n').unwrap_or(line);
        let body = body.strip_suffix('\r').unwrap_or(body);
        let mut window = 0..body.len();
        // A line has at least as many bytes as characters, so the byte length rules out most lines.
        if body.len() > MAX_LINE_CHARS && body.chars().count() > MAX_LINE_CHARS {
            let offset = offset.unwrap_or(0).min(body.len());
            let before = body.char_indices().rev().skip_while(|&(at, _)| at >= offset).map(|(at, _)| at);
            window.start = if offset == 0 { 0 } else { before.take(LEADING_CHARS).last().unwrap_or(0) };
            window.end =
                body[window.start..].char_indices().nth(MAX_LINE_CHARS).map_or(body.len(), |(at, _)| window.start + at);
        }
        if window.start > 0 {
            self.text.push('…');
        }
        self.add_step(start + window.start);
        for (at, c) in body[window.clone()].char_indices() {
            match replacement(c) {
                None => self.text.push(c),
                Some(other) => {
                    self.add_step(start + window.start + at);
                    self.text.push(other);
                    self.add_step(start + window.start + at + c.len_utf8());
                }
            }
        }
        if window.end < body.len() {
            self.add_step(start + window.end);
            self.text.push('…');
        }
        self.add_step(start + body.len());
        if line.ends_with('\n') {
            self.add_step(start + line.len() - 1);
            self.text.push('\n');
        }
    }

    /// Records that offset `original` corresponds to the current end of the printable text.
    fn add_step(&mut self, original: usize) {
        let here = self.text.len();
        if self.steps.last().is_none_or(|&(o, s)| original.wrapping_sub(o) != here.wrapping_sub(s)) {
            self.steps.push((original, here));
        }
    }

    fn offset(&self, original: usize) -> usize {
        let next = self.steps.partition_point(|step| step.0 <= original);
        let (from, to) = self.steps[next.saturating_sub(1)];
        let end = self.steps.get(next).map_or(self.text.len(), |step| step.1);
        let mut at = (to + original.saturating_sub(from)).min(end);
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }

    fn original(&self, here: usize) -> usize {
        let next = self.steps.partition_point(|step| step.1 <= here);
        let (from, to) = self.steps[next.saturating_sub(1)];
        from + here.saturating_sub(to)
    }
}

impl<'a> Files<'a> for PrintableFiles<'_> {
    type FileId = usize;
    type Name = &'a str;
    type Source = &'a str;

    fn name(&'a self, file: usize) -> Result<&'a str, Error> {
        Ok(&self.file(file)?.name)
    }

    fn source(&'a self, file: usize) -> Result<&'a str, Error> {
        Ok(&self.file(file)?.text)
    }

    fn line_index(&'a self, file: usize, at: usize) -> Result<usize, Error> {
        Ok(self.file(file)?.line_starts.partition_point(|&start| start <= at).saturating_sub(1))
    }

    fn line_range(&'a self, file: usize, line: usize) -> Result<Range<usize>, Error> {
        let PrintableFile { line_starts, text, .. } = self.file(file)?;
        let max = line_starts.len().saturating_sub(1);
        let start = *line_starts.get(line).ok_or(Error::LineTooLarge { given: line, max })?;
        Ok(start..line_starts.get(line + 1).copied().unwrap_or(text.len()))
    }

    fn column_number(&'a self, file: usize, _: usize, at: usize) -> Result<usize, Error> {
        Ok(self.source.location(self.file(file)?.original(at)).1)
    }
}

/// The replacement for a character that would control the terminal or hide or reorder text: control
/// characters and Unicode formatting characters.
fn replacement(c: char) -> Option<char> {
    match c {
        '\t' => None,
        '\0'..='\u{1f}' => char::from_u32(0x2400 + c as u32),
        '\u{7f}' => Some('\u{2421}'),
        '\u{80}'..='\u{9f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => Some(char::REPLACEMENT_CHARACTER),
        _ => None,
    }
}

/// Makes a message or a name printable, on one line unless `lines` is set.
pub(super) fn printable(text: &str, lines: bool) -> Cow<'_, str> {
    let change = |c: char| match c {
        '\n' if lines => None,
        '\n' | '\t' => Some(' '),
        c => replacement(c),
    };
    if text.chars().all(|c| change(c).is_none()) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| change(c).unwrap_or(c)).collect())
}

/// Abbreviates a text for use in a message.
pub fn elide(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(60) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}
