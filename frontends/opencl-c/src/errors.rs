//! Collects the errors of the stages after the preprocessor.

use std::collections::HashSet;

use super::files::{Files, Span};
use portcullis_core::diagnostics::{Diagnostic, Diagnostics};

/// Maximum number of errors reported; later ones are often consequences of earlier ones.
const MAX_ERRORS: usize = 20;

struct Error {
    /// The places with their labels, the error's own first.
    places: Vec<(Span, String)>,
    message: String,
    note: String,
}

/// Collected errors, at most one for each place, in the order of discovery.
#[derive(Default)]
pub(super) struct Errors {
    list: Vec<Error>,
    seen: HashSet<Span>,
    stopped: bool,
}

impl Errors {
    /// Adds an error. `label` is shown below the marked text; `note` gives the reason or a remedy.
    /// Either may be empty.
    pub fn add(&mut self, span: Span, message: impl Into<String>, label: &str, note: &str) {
        self.add_related(span, message, label, note, None);
    }

    /// Adds an error with a second place that explains it.
    pub fn add_related(
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

    /// Adds an error of the whole text, without a place.
    pub fn add_global(&mut self, message: impl Into<String>, note: &str) {
        self.list.push(Error { places: Vec::new(), message: message.into(), note: note.to_owned() });
    }

    /// Makes the current stage stop as if the list were full.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    pub fn is_full(&self) -> bool {
        self.stopped || self.list.len() >= MAX_ERRORS
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Converts the errors to diagnostics, sorted by place; files are ordered as they were read.
    pub fn into_diagnostics(mut self, files: &Files) -> Diagnostics {
        self.list.sort_by_key(|error| error.places.first().map(|(span, _)| (span.file, span.start)));
        let errors = self.list.into_iter().map(|error| {
            let definition = error.places.first().and_then(|(span, _)| files.macro_definition(*span));
            let mut diagnostic =
                error.places.into_iter().fold(Diagnostic::new(error.message), |diagnostic, (span, label)| {
                    diagnostic.at(files.range(span), label)
                });
            if let Some(definition) = definition {
                diagnostic = diagnostic.at(files.range(definition), "the macro is defined here");
            }
            if error.note.is_empty() { diagnostic } else { diagnostic.note(error.note) }
        });
        files.diagnostics(errors.collect())
    }
}
