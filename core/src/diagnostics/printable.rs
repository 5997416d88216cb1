//! A filter's text as a terminal may see it: nothing in it moves the cursor, turns the writing
//! around or fills the screen, and places still mean the text as it is.

use std::borrow::Cow;
use std::ops::Range;

use codespan_reporting::files::{Error, Files};

use super::Source;

/// Characters of a line that are shown; of longer ones it is a piece around the place in question.
const LINE: usize = 240;

/// Characters in front of the place in such a piece.
const LEAD: usize = 60;

/// The files of a text that have places to be pointed at, made printable.
pub(super) struct Shown<'a> {
    source: &'a Source,
    parts: Vec<Part>,
}

/// A file made printable, with the way back to the places of the original.
struct Part {
    /// The file in the original.
    range: Range<usize>,
    name: String,
    text: String,
    line_starts: Vec<usize>,
    /// Where the distance between the two texts changes: offsets in the original and here.
    steps: Vec<(usize, usize)>,
}

impl<'a> Shown<'a> {
    /// Makes `source` printable; `places` are the offsets that are going to be pointed at.
    pub fn new(source: &'a Source, places: impl Iterator<Item = usize>) -> Shown<'a> {
        let mut places: Vec<usize> = places.collect();
        places.sort_unstable();
        let mut parts: Vec<Part> = Vec::new();
        for &place in &places {
            if parts.last().is_none_or(|part| part.range.end < place) {
                parts.extend(Part::new(source, place, &places));
            }
        }
        Shown { source, parts }
    }

    /// The file that shows a range of the original, and the range of the file's text.
    pub fn range(&self, original: &Range<usize>) -> (usize, Range<usize>) {
        let index = self.parts.partition_point(|part| part.range.end < original.start);
        let index = index.min(self.parts.len().saturating_sub(1));
        let Some(part) = self.parts.get(index) else { return (0, 0..0) };
        let start = part.offset(original.start);
        (index, start..part.offset(original.end).max(start))
    }

    fn part(&self, index: usize) -> Result<&Part, Error> {
        self.parts.get(index).ok_or(Error::FileMissing)
    }
}

impl Part {
    /// The file of `source` that `place` is in; nothing if it is in none. `places` in order.
    fn new(source: &Source, place: usize, places: &[usize]) -> Option<Part> {
        let super::Part { name, range } = source.file_at(place);
        let original = source.text.get(range.clone())?;
        let mut part = Part {
            range: range.clone(),
            name: printable(name, false).into_owned(),
            text: String::with_capacity(original.len()),
            line_starts: Vec::new(),
            steps: vec![(range.start, 0)],
        };
        let mut start = range.start;
        for line in original.split_inclusive('\n') {
            part.line_starts.push(part.text.len());
            let place = places.get(places.partition_point(|&p| p < start)).filter(|&&p| p < start + line.len());
            part.line(start, line, place.map(|p| p - start));
            start += line.len();
        }
        if original.is_empty() || original.ends_with('\n') {
            part.line_starts.push(part.text.len());
        }
        Some(part)
    }

    /// Adds a line that begins at `start` of the original, with a place to be seen in it.
    fn line(&mut self, start: usize, line: &str, place: Option<usize>) {
        let body = line.strip_suffix('\n').unwrap_or(line);
        let body = body.strip_suffix('\r').unwrap_or(body);
        let mut window = 0..body.len();
        // Bytes are at least as many as characters: most lines are seen to be short at once.
        if body.len() > LINE && body.chars().count() > LINE {
            let place = place.unwrap_or(0).min(body.len());
            let before = body.char_indices().rev().skip_while(|&(at, _)| at >= place).map(|(at, _)| at);
            window.start = if place == 0 { 0 } else { before.take(LEAD).last().unwrap_or(0) };
            window.end = body[window.start..].char_indices().nth(LINE).map_or(body.len(), |(at, _)| window.start + at);
        }
        if window.start > 0 {
            self.text.push('…');
        }
        self.step(start + window.start);
        for (at, c) in body[window.clone()].char_indices() {
            match replacement(c) {
                None => self.text.push(c),
                Some(other) => {
                    self.step(start + window.start + at);
                    self.text.push(other);
                    self.step(start + window.start + at + c.len_utf8());
                }
            }
        }
        if window.end < body.len() {
            self.step(start + window.end);
            self.text.push('…');
        }
        self.step(start + body.len());
        if line.ends_with('\n') {
            self.step(start + line.len() - 1);
            self.text.push('\n');
        }
    }

    /// Notes that `original` is where this text ends now.
    fn step(&mut self, original: usize) {
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

impl<'a> Files<'a> for Shown<'_> {
    type FileId = usize;
    type Name = &'a str;
    type Source = &'a str;

    fn name(&'a self, part: usize) -> Result<&'a str, Error> {
        Ok(&self.part(part)?.name)
    }

    fn source(&'a self, part: usize) -> Result<&'a str, Error> {
        Ok(&self.part(part)?.text)
    }

    fn line_index(&'a self, part: usize, at: usize) -> Result<usize, Error> {
        Ok(self.part(part)?.line_starts.partition_point(|&start| start <= at).saturating_sub(1))
    }

    fn line_range(&'a self, part: usize, line: usize) -> Result<Range<usize>, Error> {
        let Part { line_starts, text, .. } = self.part(part)?;
        let max = line_starts.len().saturating_sub(1);
        let start = *line_starts.get(line).ok_or(Error::LineTooLarge { given: line, max })?;
        Ok(start..line_starts.get(line + 1).copied().unwrap_or(text.len()))
    }

    fn column_number(&'a self, part: usize, _: usize, at: usize) -> Result<usize, Error> {
        Ok(self.source.location(self.part(part)?.original(at)).1)
    }
}

/// What stands for a character that a terminal would obey, or that hides or turns around what is
/// written: control characters, and the Unicode ones that set the direction of writing.
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

/// A message or a name without anything that a terminal would obey, on one line unless `lines`.
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

/// A text for a message: cut where it is long.
pub fn elide(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(60) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}
