//! Programs as text, in the forms that there are of them:
//!
//! - `tcpdump -ddd`: a line with the number of instructions, then a line for each, its four numbers in decimal;
//! - `bpf_asm` and `iptables -m bpf --bytecode`: the same with commas in place of line ends, `4,40 0 0 12,21 0 1 2048,…`;
//! - `tcpdump -dd`: the initialiser of a C array, `{ 0x28, 0, 0, 0x0000000c },` for each.

use std::ops::Range;

use super::instruction::Instruction;
use super::{MAX_INSTRUCTIONS, too_many};
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};

/// Errors shown of one text.
pub(super) const MAX_ERRORS: usize = 20;

/// A program and where its instructions stand in a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listed {
    pub program: Vec<Instruction>,
    /// One an instruction, or none at all.
    pub places: Vec<Range<usize>>,
}

/// Reads a program.
pub(super) fn read(source: &Source) -> Result<Listed, Diagnostics> {
    let mut reader = Reader { text: &source.text, listed: Listed::default(), errors: Vec::new() };
    let start = source.text.len() - source.text.trim_ascii_start().len();
    match source.text.as_bytes().get(start) {
        Some(b'{') => reader.initialiser(),
        Some(b'0'..=b'9') => reader.counted(),
        Some(b'(') => reader.add(
            Diagnostic::new("this is a listing for people")
                .at(start..start + 1, "")
                .note("`tcpdump -d` prints it; what is read here is what `tcpdump -ddd` prints"),
        ),
        Some(_) => reader.add(
            Diagnostic::new("this is no program of classic BPF")
                .at(first(&source.text, start), "the number of its instructions is expected here, or a `{`")
                .note("a program is what `tcpdump -ddd` or `tcpdump -dd` prints; a tcpdump expression itself is given to --expr"),
        ),
        None => reader.add(Diagnostic::new("there is nothing in it: a program has at least one instruction")),
    }
    let Reader { listed, errors, .. } = reader;
    if errors.is_empty() { Ok(listed) } else { Err(Diagnostics { source: source.clone(), errors }) }
}

/// The character at a place.
fn first(text: &str, at: usize) -> Range<usize> {
    at..at + text[at..].chars().next().map_or(0, char::len_utf8)
}

struct Reader<'a> {
    text: &'a str,
    listed: Listed,
    errors: Vec<Diagnostic>,
}

/// The four numbers of an instruction and the most that each can be.
const FIELDS: [(&str, u64); 4] =
    [("the code", 0xffff), ("the jump where it holds", 0xff), ("the jump where it does not", 0xff), ("k", 0xffff_ffff)];

impl Reader<'_> {
    fn add(&mut self, error: Diagnostic) {
        self.errors.push(error);
    }

    /// Whether there is no use in reading on.
    fn is_full(&mut self) -> bool {
        if self.listed.program.len() > MAX_INSTRUCTIONS {
            self.errors.push(too_many());
            return true;
        }
        self.errors.len() >= MAX_ERRORS
    }

    /// A count and so many instructions, each on a line or behind a comma.
    fn counted(&mut self) {
        let mut records = separated(self.text, 0..self.text.len(), |c| matches!(c, '\n' | ','));
        let Some(head) = records.next() else { return };
        let count = match words(self.text, head.clone()).as_slice() {
            [word] => self.number(word.clone(), ("the number of instructions", u64::from(u32::MAX))),
            _ => {
                let error = Diagnostic::new("the number of instructions is expected on a line of its own");
                self.add(error.at(head.clone(), ""));
                None
            }
        };
        for record in records {
            if self.is_full() {
                return;
            }
            let fields = words(self.text, record.clone());
            self.instruction(record, &fields);
        }
        let there = self.listed.program.len() as u64;
        if let Some(count) = count
            && self.errors.is_empty()
            && count != there
        {
            let (is, instructions) = if there == 1 { ("is", "instruction") } else { ("are", "instructions") };
            let error = Diagnostic::new(format!("there {is} {there} {instructions}, and {count} were said"));
            self.add(error.at(head, "").note("the end may be missing"));
        } else if count == Some(0) {
            self.add(Diagnostic::new("a program has at least one instruction").at(head, ""));
        }
    }

    /// What stands between the braces of a C array.
    fn initialiser(&mut self) {
        let mut at = 0;
        loop {
            at += self.text[at..].find(|c: char| !c.is_ascii_whitespace() && c != ',').unwrap_or(self.text.len() - at);
            if at == self.text.len() || self.is_full() {
                return;
            }
            if !self.text[at..].starts_with('{') {
                let place = first(self.text, at);
                return self.add(Diagnostic::new("an instruction is expected").at(place, "`{` begins one"));
            }
            let Some(length) = self.text[at..].find('}') else {
                return self.add(Diagnostic::new("this instruction has no end").at(at..at + 1, "its `}` is missing"));
            };
            let inner = at + 1..at + length;
            let fields: Vec<_> =
                separated(self.text, inner, |c| c == ',').flat_map(|field| words(self.text, field)).collect();
            self.instruction(at..at + length + 1, &fields);
            at += length + 1;
        }
    }

    fn instruction(&mut self, place: Range<usize>, fields: &[Range<usize>]) {
        let [code, jt, jf, k] = fields else {
            let (count, numbers) = (fields.len(), if fields.len() == 1 { "number" } else { "numbers" });
            let error = Diagnostic::new("an instruction is four numbers: code, jt, jf and k");
            return self.add(error.at(place, format!("{count} {numbers}")));
        };
        let mut values = [0; 4];
        let mut good = true;
        for ((value, field), known) in values.iter_mut().zip([code, jt, jf, k]).zip(FIELDS) {
            match self.number(field.clone(), known) {
                Some(number) => *value = number,
                None => good = false,
            }
        }
        if good {
            let [code, jt, jf, k] = values;
            self.listed.program.push(Instruction { code: code as u16, jt: jt as u8, jf: jf as u8, k: k as u32 });
            self.listed.places.push(place);
        }
    }

    /// A number, in decimal or behind `0x`, of at most so much.
    fn number(&mut self, place: Range<usize>, (what, most): (&str, u64)) -> Option<u64> {
        let word = &self.text[place.clone()];
        let (digits, radix) = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None => (word, 10),
        };
        if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
            let error = Diagnostic::new(format!("{what} is no number"));
            self.add(error.at(place, "a number in decimal, or in hexadecimal behind 0x"));
            return None;
        }
        match u64::from_str_radix(digits, radix).ok().filter(|&number| number <= most) {
            Some(number) => Some(number),
            None => {
                self.add(Diagnostic::new(format!("{what} is too large")).at(place, format!("at most {most}")));
                None
            }
        }
    }
}

/// The parts of a text between separators, without the space around them; empty ones are left out.
fn separated<'a>(
    text: &'a str,
    range: Range<usize>,
    is_separator: impl Fn(char) -> bool + 'a,
) -> impl Iterator<Item = Range<usize>> + 'a {
    let mut at = range.start;
    std::iter::from_fn(move || {
        while at < range.end {
            let rest = &text[at..range.end];
            let length = rest.find(&is_separator).unwrap_or(rest.len());
            let part = &rest[..length];
            let start = at + (part.len() - part.trim_ascii_start().len());
            let trimmed = part.trim_ascii();
            at += length + 1;
            if !trimmed.is_empty() {
                return Some(start..start + trimmed.len());
            }
        }
        None
    })
}

fn words(text: &str, range: Range<usize>) -> Vec<Range<usize>> {
    separated(text, range, |c| c.is_ascii_whitespace()).collect()
}
