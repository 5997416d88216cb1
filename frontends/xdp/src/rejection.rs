//! Why an object cannot be taken, and where.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use crate::object::Object;
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};

/// A refusal at an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub section: usize,
    pub instruction: usize,
    pub message: String,
    pub notes: Vec<String>,
    /// Whether the program is too large for what was tried, of which something smaller may do.
    pub too_much: bool,
}

impl Refused {
    pub fn new(section: usize, instruction: usize, message: impl Into<String>) -> Refused {
        Refused { section, instruction, message: message.into(), notes: Vec::new(), too_much: false }
    }

    pub fn too_much(self) -> Refused {
        Refused { too_much: true, ..self.missing("programs with more ways through them") }
    }

    /// What is missing here for a program that the kernel might take.
    pub fn missing(self, feature: impl Display) -> Refused {
        self.note(format!("missing feature: {feature}"))
    }

    pub fn note(mut self, note: impl Into<String>) -> Refused {
        self.notes.push(note.into());
        self
    }
}

/// An instruction in words: its number in its function, the function, itself.
pub(super) fn instruction(object: &Object, section: usize, at: usize) -> String {
    let function = object.function_at(section, at).map(|function| &object.functions[function]);
    let section = object.sections.get(section);
    let number = at - function.map_or(0, |function| function.first).min(at);
    let of = match (function, section) {
        (Some(function), _) => format!(" of `{}`", function.name),
        (None, Some(section)) => format!(" of section `{}`", section.name),
        (None, None) => String::new(),
    };
    let shown = section.and_then(|section| section.instructions.get(at));
    let what = shown.map_or_else(String::new, |it| format!(": {it}"));
    format!("instruction {number}{of}{what}")
}

/// What stands for an object's text: its sections as instructions, and of its source files the lines that there are.
pub(super) struct Listing {
    pub source: Source,
    /// Where in the text an instruction is, by section.
    instructions: Vec<Vec<(usize, usize)>>,
    /// Where a line of a file is.
    lines: BTreeMap<(Arc<str>, u32), (usize, usize)>,
}

/// Characters of a source line that are kept.
const LINE: usize = 400;

/// Lines of all source files together, at most: what is said of lines beyond has no text.
const MAX_LINES: u32 = 1_000_000;

impl Listing {
    pub fn of(object: &Object) -> Listing {
        let mut text = String::new();
        let mut instructions = Vec::new();
        for section in &object.sections {
            text += &format!("section {}\n", section.name.escape_debug());
            let mut places = Vec::new();
            for (number, instruction) in section.instructions.iter().enumerate() {
                text += &format!("{number:6}: ");
                let start = text.len();
                text += &instruction.to_string();
                places.push((start, text.len()));
                text.push('\n');
            }
            instructions.push(places);
        }
        // The files with the lines that are known, at their numbers.
        let mut files: BTreeMap<&Arc<str>, BTreeMap<u32, &str>> = BTreeMap::new();
        for line in object.sections.iter().flat_map(|section| &section.lines) {
            if line.line > 0 && !line.file.is_empty() {
                files.entry(&line.file).or_default().insert(line.line, &line.text);
            }
        }
        let mut lines = BTreeMap::new();
        let mut before = text.len() + 1;
        let mut parts = vec![(object.name.clone(), text)];
        let mut left = MAX_LINES;
        for (file, known) in files {
            let mut text = String::new();
            let last = known.keys().last().copied().unwrap_or(0).min(left);
            left -= last;
            for number in 1..=last {
                if let Some(line) = known.get(&number) {
                    let line: String = line.chars().filter(|c| *c != '\n' && *c != '\r').take(LINE).collect();
                    let start = before + text.len();
                    lines.insert((file.clone(), number), (start, start + line.len()));
                    text += &line;
                }
                text.push('\n');
            }
            before += text.len() + 1;
            parts.push((file.to_string(), text));
        }
        let source = Source::joined(parts.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        Listing { source, instructions, lines }
    }

    /// A refusal for people: the line where it is known, else the instruction.
    pub fn diagnostic(&self, object: &Object, refused: &Refused) -> Diagnostic {
        let mut diagnostic = Diagnostic::new(refused.message.clone());
        let section = object.sections.get(refused.section);
        let line = section.and_then(|section| section.line(refused.instruction));
        let place = line.and_then(|line| Some((line, *self.lines.get(&(line.file.clone(), line.line))?)));
        let instruction = instruction(object, refused.section, refused.instruction);
        let listed = self.instructions.get(refused.section).and_then(|places| places.get(refused.instruction));
        match (place, listed) {
            (Some((line, (start, end))), _) => {
                let column = (line.column.max(1) as usize - 1).min(end - start);
                // The column is in bytes; what was cut or is no text leaves the line.
                let start = if self.source.text.is_char_boundary(start + column) { start + column } else { start };
                diagnostic = diagnostic.at(start..end, "").note(instruction);
            }
            (None, Some(&(start, end))) => diagnostic = diagnostic.at(start..end, "").note(instruction),
            (None, None) => diagnostic = diagnostic.note(instruction),
        }
        refused.notes.iter().fold(diagnostic, |diagnostic, note| diagnostic.note(note.as_str()))
    }

    pub fn diagnostics(&self, object: &Object, refused: &Refused) -> Diagnostics {
        Diagnostics::one(&self.source, self.diagnostic(object, refused))
    }
}
