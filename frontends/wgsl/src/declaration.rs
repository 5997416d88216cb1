//! Declarations at module scope.

use std::ops::Range;

/// A declaration at module scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Declaration {
    /// `fn`, `const`, ….
    pub keyword: &'static str,
    /// Byte range of the name.
    pub name: Range<usize>,
    /// Index of the name's token.
    pub token: usize,
}

/// Keywords that declare something at module scope.
pub(super) const DECLARATION_KEYWORDS: [&str; 6] = ["fn", "struct", "alias", "const", "override", "var"];
