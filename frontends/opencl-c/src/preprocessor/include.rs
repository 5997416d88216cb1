//! `#include` (C11 6.10.2): resolves file names and rejects those outside the filter's folder.

use std::path::{Path, PathBuf};

use super::{Abort, MAX_INCLUDE_DEPTH, PpToken, PpTokenKind, Preprocessor};
use crate::files::{FileId, Span};
use crate::lexer;
use crate::token::Punctuator;
use portcullis_core::diagnostics::elide;
use portcullis_core::diagnostics::{Diagnostic, Source};
use portcullis_core::program::map_declarations::{CommentSyntax, map_directives};

/// Name of the prelude's header. Including it does nothing, because the prelude is always
/// available.
const PRELUDE: &str = "portcullis.h";

/// Maximum length of a file name, in bytes.
const MAX_PATH_BYTES: usize = 1024;

impl Preprocessor<'_> {
    /// `#include`
    pub(super) fn include(&mut self, directive: PpToken) -> Result<(), Abort> {
        let Some((text, angled, span)) = self.header(directive)? else { return Ok(()) };
        if text == PRELUDE {
            return Ok(());
        }
        let at_name = |error: Diagnostic, label: &str| error.at(self.files.range(span), label);
        if angled {
            let error = at_name(Diagnostic::new(format!("unknown header <{}>", elide(&text))), "");
            let error = error.note("the only one is <portcullis.h>; include files beside the filter by \"name\"");
            return self.report(error);
        }
        let folder = self.inputs.last().map(|input| input.folder.clone()).unwrap_or_default();
        let path = match below(&folder, &text) {
            Ok(path) => path,
            Err(reason) => {
                let error = at_name(Diagnostic::new(format!("\"{}\" cannot be included", elide(&text))), &reason);
                return self.report(error.note("only files in the filter's folder and below can be included"));
            }
        };
        if self.inputs.len() > MAX_INCLUDE_DEPTH {
            let error = Diagnostic::new(format!("files include one another more than {MAX_INCLUDE_DEPTH} deep"));
            let error = at_name(error, "limit exceeded here");
            return self.fatal(error.note("a file that includes itself needs `#pragma once` or an `#ifndef` guard"));
        }
        let Some(file) = self.file(&path, span)? else { return Ok(()) };
        if self.pragma_once.contains(&file) {
            return Ok(());
        }
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        self.push_input(file, folder, Some(span))
    }

    /// Parses the header's name; also returns whether it is in angle brackets, and its place.
    fn header(&mut self, directive: PpToken) -> Result<Option<(String, bool, Span)>, Abort> {
        let Some(input) = self.inputs.last_mut() else { return Ok(None) };
        let written = match input.front.first_on_line {
            true => None,
            // The lexer may have split the name differently, so scan it again as a header name.
            false => lexer::header_name(&input.text, input.front.start),
        };
        if let Some(range) = written {
            let name = input.text[range.start + 1..range.end - 1].to_owned();
            let angled = input.text.as_bytes()[range.start] == b'<';
            let span = Span { file: input.file, start: range.start as u32, end: range.end as u32 };
            input.front = lexer::next_token(&input.text, range.end, false);
            let rest = self.take_line()?;
            self.expect_line_end(directive, &rest)?;
            return Ok(Some((name, angled, span)));
        }
        // C11 6.10.2p4: the name may come from a macro.
        let line = self.take_line()?;
        let expanded = self.expand_isolated(line.clone())?;
        if let [token] = expanded[..]
            && let PpTokenKind::String(name) = token.kind
            && let Some(name) = self.names.text(name).strip_prefix('"').and_then(|name| name.strip_suffix('"'))
        {
            return Ok(Some((name.to_owned(), false, line[0].span)));
        }
        let spelled: String = expanded.iter().map(|token| self.spelled(*token)).collect();
        let bracket = |token: Option<&PpToken>, wanted| token.is_some_and(|token| token.is(wanted));
        if bracket(expanded.first(), Punctuator::Less) && bracket(expanded.last(), Punctuator::Greater) {
            return Ok(Some((spelled[1..spelled.len() - 1].to_owned(), true, line[0].span)));
        }
        let error = Diagnostic::new("`#include` expects the name of a file");
        let at = line.first().copied().unwrap_or(directive);
        self.report_at(error.note("write #include \"name\", or #include <portcullis.h>"), at, "")?;
        Ok(None)
    }

    /// Reports maps declared in included files: a filter's maps must be visible in its own file.
    fn no_maps(&mut self, file: FileId) -> Result<(), Abort> {
        for place in map_directives(self.files.text(file), CommentSyntax::C) {
            let span = Span { file, start: place.start as u32, end: place.end as u32 };
            let error = Diagnostic::new("an included file declares a map").at(self.files.range(span), "");
            let filter = self.files.name(FileId::FILTER);
            let note = format!("maps must be declared in the filter's own file: move this line to `{filter}`");
            self.report(error.note(note))?;
        }
        Ok(())
    }

    /// Reads a file, unless it has been read already.
    fn file(&mut self, path: &Path, from: Span) -> Result<Option<FileId>, Abort> {
        if let Some(&file) = self.files_by_path.get(path) {
            return Ok(Some(file));
        }
        let name = self.files.name_beside_filter(path);
        let included = |error: Diagnostic| error.at(self.files.range(from), "included here");
        let bytes = match self.includes.read(path) {
            Ok(bytes) => bytes,
            Err(reason) => {
                let error = included(Diagnostic::new(format!("\"{name}\" cannot be read: {reason}")));
                return self.report(error).map(|()| None);
            }
        };
        match Source::from_bytes(&*name, bytes) {
            Ok(source) => {
                let file = self.files.add(name, source.text, Some(from));
                self.files_by_path.insert(path.to_owned(), file);
                self.no_maps(file)?;
                Ok(Some(file))
            }
            Err(errors) => {
                for error in errors.errors {
                    let message = format!("\"{name}\": {}", error.message);
                    self.report(
                        Diagnostic { message, labels: Vec::new(), ..error }.at(self.files.range(from), "included here"),
                    )?;
                }
                Ok(None)
            }
        }
    }
}

/// Resolves a name relative to `folder`.
///
/// # Errors
/// The reason why the name is not allowed.
fn below(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let mut path = folder.to_owned();
    if name.is_empty() {
        return Err("the name is empty".into());
    }
    if name.len() > MAX_PATH_BYTES || folder.as_os_str().len() > MAX_PATH_BYTES {
        return Err(format!("the name is longer than {MAX_PATH_BYTES} bytes"));
    }
    // On some systems these lead out of the folder, or to a device.
    if let Some(odd) = name.chars().find(|c| matches!(c, '\\' | ':') || c.is_control()) {
        return Err(format!("{} is not allowed in a file name: separate folders by `/`", quoted(odd)));
    }
    if name.starts_with('/') {
        return Err("an absolute path leads out of the filter's folder".into());
    }
    for part in name.split('/') {
        match part {
            "" => return Err("a folder or file name is empty".into()),
            ".." => return Err("`..` leads out of the filter's folder".into()),
            "." => {}
            part => path.push(part),
        }
    }
    if name.ends_with("/.") || path == folder {
        return Err("this names a folder".into());
    }
    Ok(path)
}

fn quoted(c: char) -> String {
    if c.is_control() { format!("U+{:04X}", c as u32) } else { format!("`{c}`") }
}
