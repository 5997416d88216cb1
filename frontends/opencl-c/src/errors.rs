//! What is wrong with a text, collected.

use std::collections::HashSet;

use super::files::{Files, Span};
use portcullis_core::diagnostics::{Diagnostic, Diagnostics};

/// Errors shown of one run; behind that many, one more is a consequence or can wait.
const MAX_ERRORS: usize = 20;

struct Error {
    /// The first is the place itself.
    places: Vec<(Span, String)>,
    message: String,
    note: String,
}

/// Diagnostics in the making: one for each place, in the order in which they were found.
#[derive(Default)]
pub(super) struct Errors {
    list: Vec<Error>,
    seen: HashSet<Span>,
    stopped: bool,
}

impl Errors {
    /// Adds an error; `label` stands below the text itself and `note` says why, or what to do. Either
    /// may be empty.
    pub fn add(&mut self, span: Span, message: impl Into<String>, label: &str, note: &str) {
        self.with(span, message, label, note, None);
    }

    /// The same with a second place that explains it.
    pub fn with(
        &mut self,
        span: Span,
        message: impl Into<String>,
        label: &str,
        note: &str,
        other: Option<(Span, &str)>,
    ) {
        if self.list.len() >= MAX_ERRORS || !self.seen.insert(span) {
            return;
        }
        let mut places = vec![(span, label.to_owned())];
        places.extend(other.map(|(place, label)| (place, label.to_owned())));
        self.list.push(Error { places, message: message.into(), note: note.to_owned() });
    }

    /// Adds an error of the text as a whole.
    pub fn whole(&mut self, message: impl Into<String>, note: &str) {
        self.list.push(Error { places: Vec::new(), message: message.into(), note: note.to_owned() });
    }

    /// Nothing more is to be looked for.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    pub fn is_full(&self) -> bool {
        self.stopped || self.list.len() >= MAX_ERRORS
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// By place, files in the order in which they were read.
    pub fn finish(mut self, files: &Files) -> Diagnostics {
        self.list.sort_by_key(|error| error.places.first().map(|(span, _)| (span.file, span.start)));
        let errors = self.list.into_iter().map(|error| {
            let defined = error.places.first().and_then(|(span, _)| files.definition(*span));
            let mut diagnostic =
                error.places.into_iter().fold(Diagnostic::new(error.message), |diagnostic, (span, label)| {
                    diagnostic.at(files.range(span), label)
                });
            if let Some(defined) = defined {
                diagnostic = diagnostic.at(files.range(defined), "the macro is defined here");
            }
            if error.note.is_empty() { diagnostic } else { diagnostic.note(error.note) }
        });
        files.diagnostics(errors.collect())
    }
}
