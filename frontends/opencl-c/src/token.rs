//! Tokens as the parser takes them (C11 6.4): keywords are still identifiers, numbers have values.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::files::Span;

/// An interned spelling of [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(u32);

/// Spellings, each kept once.
#[derive(Debug, Clone, Default)]
pub struct Names {
    texts: Vec<Arc<str>>,
    known: HashMap<Arc<str>, Name>,
}

impl Names {
    /// The name of a text.
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

    /// The name of a text that has one.
    pub fn get(&self, text: &str) -> Option<Name> {
        self.known.get(text).copied()
    }

    /// The text of a name.
    pub fn text(&self, name: Name) -> &str {
        &self.texts[name.0 as usize]
    }
}

/// A token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Where it was spelled: in the text itself, or in a macro's definition.
    pub span: Span,
    /// The outermost use of a macro that it came from.
    pub expanded: Option<Span>,
}

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenKind {
    /// An identifier, or a keyword.
    Identifier(Name),
    /// An integer constant (C11 6.4.4.1), of the type that it has with `int` of 32 and `long` of 64
    /// bits: `int`, `uint`, `long` or `ulong`.
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
        /// The value; with `single` rounded to an `f32`, once.
        value: f64,
        /// Whether it has the suffix `f`.
        single: bool,
    },
    /// A character constant (C11 6.4.4.4): its value as an `int`, in two's complement. `char` is signed
    /// (OpenCL C 1.2, 6.1.1).
    Character(u32),
    /// A string literal, as it is spelled. Strings that follow one another are not joined.
    String(Name),
    /// A punctuator.
    Punctuator(Punctuator),
    /// The end of the text. There is exactly one, the last token.
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
            /// All of them.
            pub const ALL: &[Punctuator] = &[$(Punctuator::$name),*];

            /// How it is written.
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
