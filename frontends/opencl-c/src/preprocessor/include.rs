//! `#include` (C11 6.10.2): which file a name means, and that it is one the filter may read.

use std::path::{Path, PathBuf};

use super::{MAX_INCLUDES, Pp, PpKind, Preprocessor, Stop};
use crate::files::{FileId, Span};
use crate::lexer;
use crate::token::Punctuator;
use portcullis_core::diagnostics::short;
use portcullis_core::diagnostics::{Diagnostic, Source};
use portcullis_core::map::declaration::{CommentSyntax, map_directives};

/// The prelude's header. The prelude is there without it.
const PRELUDE: &str = "portcullis.h";

/// The longest name of a file, in bytes.
const MAX_PATH: usize = 1024;

impl Preprocessor<'_> {
    /// `#include`
    pub(super) fn include(&mut self, directive: Pp) -> Result<(), Stop> {
        let Some((text, angled, span)) = self.header(directive)? else { return Ok(()) };
        if text == PRELUDE {
            return Ok(());
        }
        let wrong = |error: Diagnostic, label: &str| error.at(self.files.range(span), label);
        if angled {
            let error = wrong(Diagnostic::new(format!("there is no header <{}>", short(&text))), "");
            let error = error.note("the only one is <portcullis.h>; files beside the filter are included by \"name\"");
            return self.report(error);
        }
        let folder = self.inputs.last().map(|input| input.folder.clone()).unwrap_or_default();
        let path = match below(&folder, &text) {
            Ok(path) => path,
            Err(reason) => {
                let error = wrong(Diagnostic::new(format!("\"{}\" cannot be included", short(&text))), &reason);
                return self.report(error.note("a filter is made of the files in its folder and below"));
            }
        };
        if self.inputs.len() > MAX_INCLUDES {
            let error = Diagnostic::new(format!("files include one another more than {MAX_INCLUDES} deep"));
            let error = wrong(error, "this is one too many");
            return self
                .fatal(error.note("a file that includes itself needs `#pragma once`, or its text within `#ifndef`"));
        }
        let Some(file) = self.file(&path, span)? else { return Ok(()) };
        if self.once.contains(&file) {
            return Ok(());
        }
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        self.enter(file, folder, Some(span))
    }

    /// The name between the quotes or angle brackets, and whether it is brackets.
    fn header(&mut self, directive: Pp) -> Result<Option<(String, bool, Span)>, Stop> {
        let Some(input) = self.inputs.last_mut() else { return Ok(None) };
        let written = match input.front.first {
            true => None,
            // Where the token in front begins a header's name, it is to be read as one.
            false => lexer::header_name(&input.text, input.front.start),
        };
        if let Some(range) = written {
            let name = input.text[range.start + 1..range.end - 1].to_owned();
            let angled = input.text.as_bytes()[range.start] == b'<';
            let span = Span { file: input.file, start: range.start as u32, end: range.end as u32 };
            input.front = lexer::next(&input.text, range.end, false);
            let rest = self.line()?;
            self.no_more(directive, &rest)?;
            return Ok(Some((name, angled, span)));
        }
        // C11 6.10.2p4: a macro may stand for the name.
        let line = self.line()?;
        let expanded = self.expand_apart(line.clone())?;
        if let [token] = expanded[..]
            && let PpKind::String(name) = token.kind
            && let Some(name) = self.names.text(name).strip_prefix('"').and_then(|name| name.strip_suffix('"'))
        {
            return Ok(Some((name.to_owned(), false, line[0].span)));
        }
        let spelled: String = expanded.iter().map(|token| self.spelled(*token)).collect();
        let bracket = |token: Option<&Pp>, wanted| token.is_some_and(|token| token.is(wanted));
        if bracket(expanded.first(), Punctuator::Less) && bracket(expanded.last(), Punctuator::Greater) {
            return Ok(Some((spelled[1..spelled.len() - 1].to_owned(), true, line[0].span)));
        }
        let error = Diagnostic::new("`#include` wants the name of a file");
        let at = line.first().copied().unwrap_or(directive);
        self.wrong(error.note("write #include \"name\", or #include <portcullis.h>"), at, "")?;
        Ok(None)
    }

    /// Refuses maps that an included file declares: a filter's maps are to be seen where it is.
    fn no_maps(&mut self, file: FileId) -> Result<(), Stop> {
        for place in map_directives(self.files.text(file), CommentSyntax::C) {
            let span = Span { file, start: place.start as u32, end: place.end as u32 };
            let error = Diagnostic::new("an included file declares a map").at(self.files.range(span), "");
            let filter = self.files.name(FileId::FILTER);
            let note = format!("maps are declared in the filter's own file: move this line to `{filter}`");
            self.report(error.note(note))?;
        }
        Ok(())
    }

    /// Reads a file, once.
    fn file(&mut self, path: &Path, from: Span) -> Result<Option<FileId>, Stop> {
        if let Some(&file) = self.known.get(path) {
            return Ok(Some(file));
        }
        let name = self.files.beside_filter(path);
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
                self.known.insert(path.to_owned(), file);
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

/// The path that a name in `folder` means; or why it means none.
fn below(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let mut path = folder.to_owned();
    if name.is_empty() {
        return Err("the name is empty".into());
    }
    if name.len() > MAX_PATH || folder.as_os_str().len() > MAX_PATH {
        return Err(format!("the name is longer than {MAX_PATH} bytes"));
    }
    // On some systems these lead out of a folder, or to a device.
    if let Some(odd) = name.chars().find(|c| matches!(c, '\\' | ':') || c.is_control()) {
        return Err(format!("{} has no place in a name: folders are separated by `/`", quoted(odd)));
    }
    if name.starts_with('/') {
        return Err("an absolute path leads out of the filter's folder".into());
    }
    for part in name.split('/') {
        match part {
            "" => return Err("the name of a folder or file is empty".into()),
            ".." => return Err("`..` leads out of the filter's folder".into()),
            "." => {}
            part => path.push(part),
        }
    }
    if name.ends_with("/.") || path == folder {
        return Err("this is a folder".into());
    }
    Ok(path)
}

fn quoted(c: char) -> String {
    if c.is_control() { format!("U+{:04X}", c as u32) } else { format!("`{c}`") }
}
