//! Parser for program listings, in the formats of:
//!
//! - `tcpdump -ddd`: the number of instructions on a line, then a line of four decimal numbers for
//!   each;
//! - `bpf_asm` and `iptables -m bpf --bytecode`: the same with commas instead of line ends, `4,40 0
//!   0 12,21 0 1 2048,…`;
//! - `tcpdump -dd`: a C array's initialiser, `{ 0x28, 0, 0, 0x0000000c },` for each instruction.

use std::ops::Range;

use super::instruction::Instruction;
use super::{MAX_INSTRUCTIONS, too_many_instructions};
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};

/// Maximum number of errors reported for one listing.
pub(super) const MAX_ERRORS: usize = 20;

/// A parsed program and the places of its instructions in the text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ParsedListing {
    pub program: Vec<Instruction>,
    /// Byte range of each instruction; empty if the program was not parsed from a text.
    pub spans: Vec<Range<usize>>,
}

/// Parses a listing.
///
/// # Errors
/// At most [`MAX_ERRORS`] syntax errors.
pub(super) fn parse(source: &Source) -> Result<ParsedListing, Diagnostics> {
    let mut parser = Parser { text: &source.text, listing: ParsedListing::default(), errors: Vec::new() };
    let start = source.text.len() - source.text.trim_ascii_start().len();
    match source.text.as_bytes().get(start) {
        Some(b'{') => parser.parse_c_initialiser(),
        Some(b'0'..=b'9') => parser.parse_counted_list(),
        Some(b'(') => parser.push_error(
            Diagnostic::new("this listing has the format of `tcpdump -d`, which is for reading only")
                .at(start..start + 1, "")
                .note("print the program with `tcpdump -ddd` instead"),
        ),
        Some(_) => parser.push_error(
            Diagnostic::new("this is not a classic BPF program")
                .at(char_range(&source.text, start), "expected the number of instructions, or `{`")
                .note(
                    "print a program with `tcpdump -ddd` or `tcpdump -dd`; give a tcpdump expression itself to --expr",
                ),
        ),
        None => parser.push_error(Diagnostic::new("the listing is empty: a program has at least one instruction")),
    }
    let Parser { listing, errors, .. } = parser;
    if errors.is_empty() { Ok(listing) } else { Err(Diagnostics { source: source.clone(), errors }) }
}

/// Byte range of the character at `at`.
fn char_range(text: &str, at: usize) -> Range<usize> {
    at..at + text[at..].chars().next().map_or(0, char::len_utf8)
}

struct Parser<'a> {
    text: &'a str,
    listing: ParsedListing,
    errors: Vec<Diagnostic>,
}

/// The fields of an instruction and their maximum values.
const FIELDS: [(&str, u64); 4] = [("the code", 0xffff), ("jt", 0xff), ("jf", 0xff), ("k", 0xffff_ffff)];

impl Parser<'_> {
    fn push_error(&mut self, error: Diagnostic) {
        self.errors.push(error);
    }

    /// Whether to stop: too many instructions (which it reports) or too many errors.
    fn is_full(&mut self) -> bool {
        if self.listing.program.len() > MAX_INSTRUCTIONS {
            self.errors.push(too_many_instructions());
            return true;
        }
        self.errors.len() >= MAX_ERRORS
    }

    /// Parses a count and as many instructions, separated by line ends or commas.
    fn parse_counted_list(&mut self) {
        let mut records = split_ranges(self.text, 0..self.text.len(), |c| matches!(c, '\n' | ','));
        let Some(head) = records.next() else { return };
        let count = match word_ranges(self.text, head.clone()).as_slice() {
            [word] => self.parse_number(word.clone(), ("the number of instructions", u64::from(u32::MAX))),
            _ => {
                let error = Diagnostic::new("expected the number of instructions on a line of its own");
                self.push_error(error.at(head.clone(), ""));
                None
            }
        };
        for record in records {
            if self.is_full() {
                return;
            }
            let fields = word_ranges(self.text, record.clone());
            self.push_instruction(record, &fields);
        }
        let found = self.listing.program.len() as u64;
        if let Some(count) = count
            && self.errors.is_empty()
            && count != found
        {
            let instructions = if found == 1 { "instruction" } else { "instructions" };
            let error = Diagnostic::new(format!("the listing has {found} {instructions} but announces {count}"));
            self.push_error(error.at(head, "").note("the listing may be truncated"));
        } else if count == Some(0) {
            self.push_error(Diagnostic::new("a program has at least one instruction").at(head, ""));
        }
    }

    /// Parses the elements of a C array's initialiser.
    fn parse_c_initialiser(&mut self) {
        let mut at = 0;
        loop {
            at += self.text[at..].find(|c: char| !c.is_ascii_whitespace() && c != ',').unwrap_or(self.text.len() - at);
            if at == self.text.len() || self.is_full() {
                return;
            }
            if !self.text[at..].starts_with('{') {
                let place = char_range(self.text, at);
                return self.push_error(
                    Diagnostic::new("expected an instruction").at(place, "an instruction starts with `{`"),
                );
            }
            let Some(length) = self.text[at..].find('}') else {
                return self.push_error(
                    Diagnostic::new("this instruction is not closed").at(at..at + 1, "the matching `}` is missing"),
                );
            };
            let inner = at + 1..at + length;
            let fields: Vec<_> =
                split_ranges(self.text, inner, |c| c == ',').flat_map(|field| word_ranges(self.text, field)).collect();
            self.push_instruction(at..at + length + 1, &fields);
            at += length + 1;
        }
    }

    fn push_instruction(&mut self, place: Range<usize>, fields: &[Range<usize>]) {
        let [code, jt, jf, k] = fields else {
            let (count, numbers) = (fields.len(), if fields.len() == 1 { "number" } else { "numbers" });
            let error = Diagnostic::new("an instruction is four numbers: code, jt, jf and k");
            return self.push_error(error.at(place, format!("found {count} {numbers}")));
        };
        let mut values = [0; 4];
        let mut is_valid = true;
        for ((value, word), field) in values.iter_mut().zip([code, jt, jf, k]).zip(FIELDS) {
            match self.parse_number(word.clone(), field) {
                Some(number) => *value = number,
                None => is_valid = false,
            }
        }
        if is_valid {
            let [code, jt, jf, k] = values;
            self.listing.program.push(Instruction { code: code as u16, jt: jt as u8, jf: jf as u8, k: k as u32 });
            self.listing.spans.push(place);
        }
    }

    /// Parses a number, decimal or hexadecimal with the prefix `0x`, of at most `max`.
    fn parse_number(&mut self, place: Range<usize>, (field, max): (&str, u64)) -> Option<u64> {
        let word = &self.text[place.clone()];
        let (digits, radix) = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None => (word, 10),
        };
        if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
            let error = Diagnostic::new(format!("{field} is not a number"));
            self.push_error(error.at(place, "expected a decimal number, or a hexadecimal one with the prefix 0x"));
            return None;
        }
        match u64::from_str_radix(digits, radix).ok().filter(|&number| number <= max) {
            Some(number) => Some(number),
            None => {
                self.push_error(Diagnostic::new(format!("{field} is too large")).at(place, format!("at most {max}")));
                None
            }
        }
    }
}

/// Splits a range of the text at separators; yields the non-empty parts, trimmed of white space.
fn split_ranges<'a>(
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

fn word_ranges(text: &str, range: Range<usize>) -> Vec<Range<usize>> {
    split_ranges(text, range, |c| c.is_ascii_whitespace()).collect()
}
