//! Comments of a source in which maps are declared.

use std::ops::Range;

/// Comment syntax of a language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommentSyntax {
    /// WGSL: block comments nest (section 3.3).
    Wgsl,
    /// C: block comments do not nest, a line that ends in `\` continues in the next, and literals
    /// may contain comment markers (C11, sections 5.1.1.2, 6.4.5 and 6.4.9).
    C,
}

/// The line comments that begin with `//! map` and are alone on their line, without trailing space.
pub fn map_directives(text: &str, comments: CommentSyntax) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut at, mut at_line_start) = (0, true);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let length = if rest.starts_with("//") {
            let length = line_comment_length(rest, comments);
            let words = rest[..length].strip_prefix("//!").map(|words| words.split_whitespace().next());
            if at_line_start && words == Some(Some("map")) {
                found.push(at..at + rest[..length].trim_end().len());
            }
            length
        } else if rest.starts_with("/*") {
            block_comment_length(rest, comments)
        } else if comments == CommentSyntax::C && matches!(first, '"' | '\'') {
            literal_length(rest, first)
        } else {
            first.len_utf8()
        };
        at_line_start = match first {
            '\n' | '\r' => true,
            _ => at_line_start && first.is_whitespace(),
        };
        at += length;
    }
    found
}

/// Length in bytes of a line comment.
fn line_comment_length(rest: &str, comments: CommentSyntax) -> usize {
    let mut end = 0;
    loop {
        end += rest[end..].find(['\n', '\r']).unwrap_or(rest.len() - end);
        if comments == CommentSyntax::Wgsl || !rest[..end].ends_with('\\') || end == rest.len() {
            return end;
        }
        end += if rest[end..].starts_with("\r\n") { 2 } else { 1 };
    }
}

/// Length in bytes of a block comment; it extends to the end of the source if it is not closed.
fn block_comment_length(rest: &str, comments: CommentSyntax) -> usize {
    let (mut at, mut depth) = (2, 1);
    while depth > 0 {
        let marks = rest[at..].find("*/").map(|end| (end, rest[at..].find("/*").filter(|open| *open < end)));
        match marks {
            None => return rest.len(),
            Some((_, Some(open))) if comments == CommentSyntax::Wgsl => (at, depth) = (at + open + 2, depth + 1),
            Some((end, _)) => (at, depth) = (at + end + 2, depth - 1),
        }
    }
    at
}

/// Length in bytes of a literal, which ends with its line at the latest.
fn literal_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            '\n' => return at,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}
