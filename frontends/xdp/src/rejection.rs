//! Rejections of programs, and their rendering as diagnostics.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use crate::object::Object;
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};

/// Why a program is rejected, and at which instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rejection {
    pub section: usize,
    pub instruction: usize,
    pub message: String,
    pub notes: Vec<String>,
    /// Whether a limit of the analysis was exceeded, which a coarser analysis may not do.
    pub is_over_limit: bool,
}

impl Rejection {
    pub fn new(section: usize, instruction: usize, message: impl Into<String>) -> Rejection {
        Rejection { section, instruction, message: message.into(), notes: Vec::new(), is_over_limit: false }
    }

    pub fn over_limit(self) -> Rejection {
        Rejection { is_over_limit: true, ..self.missing_feature("programs with more paths") }
    }

    /// Adds the note that a feature is missing for a program that the kernel may accept.
    pub fn missing_feature(self, feature: impl Display) -> Rejection {
        self.note(format!("missing feature: {feature}"))
    }

    pub fn note(mut self, note: impl Into<String>) -> Rejection {
        self.notes.push(note.into());
        self
    }
}

/// Describes an instruction: number in its function, function, disassembly.
pub(super) fn describe_instruction(object: &Object, section: usize, at: usize) -> String {
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

/// Text that diagnostics point into: the disassembly of each section, and the source lines known
/// from `.BTF.ext`.
pub(super) struct Disassembly {
    pub source: Source,
    /// Range of each instruction in the text, by section.
    instructions: Vec<Vec<(usize, usize)>>,
    /// Range of each source line in the text.
    lines: BTreeMap<(Arc<str>, u32), (usize, usize)>,
}

/// Characters of a source line that are kept.
const MAX_LINE_CHARS: usize = 400;

/// Upper bound on lines of all source files; a diagnostic for a line beyond it shows no text.
const MAX_SOURCE_LINES: u32 = 1_000_000;

impl Disassembly {
    pub fn new(object: &Object) -> Disassembly {
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
        // Reconstruct the source files, with known lines at their numbers.
        let mut files: BTreeMap<&Arc<str>, BTreeMap<u32, &str>> = BTreeMap::new();
        for line in object.sections.iter().flat_map(|section| &section.lines) {
            if line.line > 0 && !line.file.is_empty() {
                files.entry(&line.file).or_default().insert(line.line, &line.text);
            }
        }
        let mut lines = BTreeMap::new();
        let mut before = text.len() + 1;
        let mut parts = vec![(object.name.clone(), text)];
        let mut left = MAX_SOURCE_LINES;
        for (file, known) in files {
            let mut text = String::new();
            let last = known.keys().last().copied().unwrap_or(0).min(left);
            left -= last;
            for number in 1..=last {
                if let Some(line) = known.get(&number) {
                    let line: String = line.chars().filter(|c| *c != '\n' && *c != '\r').take(MAX_LINE_CHARS).collect();
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
        Disassembly { source, instructions, lines }
    }

    /// The diagnostic of a rejection: at the source line if known, else at the instruction.
    pub fn diagnostic(&self, object: &Object, refused: &Rejection) -> Diagnostic {
        let mut diagnostic = Diagnostic::new(refused.message.clone());
        let section = object.sections.get(refused.section);
        let line = section.and_then(|section| section.line(refused.instruction));
        let place = line.and_then(|line| Some((line, *self.lines.get(&(line.file.clone(), line.line))?)));
        let instruction = describe_instruction(object, refused.section, refused.instruction);
        let listed = self.instructions.get(refused.section).and_then(|places| places.get(refused.instruction));
        match (place, listed) {
            (Some((line, (start, end))), _) => {
                let column = (line.column.max(1) as usize - 1).min(end - start);
                // The column is in bytes, and the line may have been cut or be invalid UTF-8.
                let start = if self.source.text.is_char_boundary(start + column) { start + column } else { start };
                diagnostic = diagnostic.at(start..end, "").note(instruction);
            }
            (None, Some(&(start, end))) => diagnostic = diagnostic.at(start..end, "").note(instruction),
            (None, None) => diagnostic = diagnostic.note(instruction),
        }
        refused.notes.iter().fold(diagnostic, |diagnostic, note| diagnostic.note(note.as_str()))
    }

    pub fn diagnostics(&self, object: &Object, refused: &Rejection) -> Diagnostics {
        Diagnostics::one(&self.source, self.diagnostic(object, refused))
    }
}
