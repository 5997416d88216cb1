//! Tokens as the parser takes them (C11 6.4): keywords are still identifiers, numbers have values.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::files::Span;

/// An interned identifier or spelling; see [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(u32);

/// Interner of spellings.
#[derive(Debug, Clone, Default)]
pub struct Names {
    texts: Vec<Arc<str>>,
    known: HashMap<Arc<str>, Name>,
}

impl Names {
    /// Returns the name of a text, interning it on first use.
    pub fn intern(&mut self, text: &str) -> Name {
        if let Some(name) = self.get(text) {
            return name;
        }
        let name = Name(u32::try_from(self.texts.len()).expect("the limits on text bound the names"));
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.known.insert(text, name);
        name
    }

    /// Returns the name of a text that has been interned.
    pub fn get(&self, text: &str) -> Option<Name> {
        self.known.get(text).copied()
    }

    /// Returns the text of a name.
    pub fn text(&self, name: Name) -> &str {
        &self.texts[name.0 as usize]
    }
}

/// A token, after preprocessing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    /// Kind and value.
    pub kind: TokenKind,
    /// Place of the spelling: in the text itself or in a macro's definition.
    pub span: Span,
    /// Place of the outermost macro use that the token comes from.
    pub expanded: Option<Span>,
}

/// Kind and value of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenKind {
    /// An identifier, or a keyword.
    Identifier(Name),
    /// An integer constant (C11 6.4.4.1). Its type is `int`, `uint`, `long` or `ulong`; `int` has
    /// 32 bits and `long` 64.
    Integer {
        /// The value.
        value: u64,
        /// Whether the type is unsigned.
        unsigned: bool,
        /// Whether the type has 64 bits.
        long: bool,
    },
    /// A floating constant (C11 6.4.4.2), finite.
    Float {
        /// The value; if `single`, rounded to `f32` once.
        value: f64,
        /// Whether the constant has the suffix `f`.
        single: bool,
    },
    /// A character constant (C11 6.4.4.4) as an `int` in two's complement. `char` is signed (OpenCL
    /// C 1.2, 6.1.1).
    Character(u32),
    /// A string literal, as spelled. Adjacent strings are not joined yet.
    String(Name),
    /// A punctuator.
    Punctuator(Punctuator),
    /// The end of the text: the last token, and only that.
    End,
}

macro_rules! punctuators {
    ($($name:ident $text:literal)*) => {
        /// A punctuator (C11 6.4.6), without the digraphs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Punctuator {
            $(#[doc = concat!("`", $text, "`")] $name,)*
        }

        impl Punctuator {
            /// All punctuators.
            pub const ALL: &[Punctuator] = &[$(Punctuator::$name),*];

            /// The punctuator's spelling.
            pub fn text(self) -> &'static str {
                match self {
                    $(Punctuator::$name => $text,)*
                }
            }
        }
    };
}

punctuators! {
    LeftBracket "["
    RightBracket "]"
    LeftParenthesis "("
    RightParenthesis ")"
    LeftBrace "{"
    RightBrace "}"
    Dot "."
    Arrow "->"
    Increment "++"
    Decrement "--"
    And "&"
    Star "*"
    Plus "+"
    Minus "-"
    Tilde "~"
    Not "!"
    Slash "/"
    Percent "%"
    ShiftLeft "<<"
    ShiftRight ">>"
    Less "<"
    Greater ">"
    LessEqual "<="
    GreaterEqual ">="
    Equal "=="
    NotEqual "!="
    Caret "^"
    Or "|"
    AndAnd "&&"
    OrOr "||"
    Question "?"
    Colon ":"
    Semicolon ";"
    Ellipsis "..."
    Assign "="
    StarAssign "*="
    SlashAssign "/="
    PercentAssign "%="
    PlusAssign "+="
    MinusAssign "-="
    ShiftLeftAssign "<<="
    ShiftRightAssign ">>="
    AndAssign "&="
    CaretAssign "^="
    OrAssign "|="
    Comma ","
    Hash "#"
    HashHash "##"
}

impl fmt::Display for Punctuator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
