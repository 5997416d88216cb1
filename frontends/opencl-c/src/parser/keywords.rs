//! Keywords (OpenCL C 1.2, 6.1.9; C11 6.4.1), including those that are not supported.

use crate::types::{Scalar, Space};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keyword {
    Void,
    Scalar(Scalar),
    Vector(Scalar, u8),
    Signed,
    Unsigned,
    Struct,
    Union,
    Enum,
    Typedef,
    Const,
    Space(Space),
    /// Qualifiers without effect here: `volatile`, `restrict`, `inline`.
    Ignored,
    /// `static` or `extern`, which have no effect on functions and tables.
    Storage(&'static str),
    Attribute,
    Sizeof,
    If,
    Else,
    For,
    While,
    Do,
    Switch,
    Case,
    Default,
    Break,
    Continue,
    Return,
    /// A keyword that is not supported, with the reason.
    Unsupported(&'static str),
}

const DOUBLE: &str = "there is no `double`: devices have no 64-bit floating point; use `float` or integers";
const IMAGES: &str = "images and samplers are not supported in filters: a filter sees its packet and its tables";
const PLATFORM: &str = "its width is the device's: use `uint` for offsets and sizes, `int` for differences";

/// Keywords that declarations and statements start with, separated by spaces: candidates for "did
/// you mean".
pub const STATEMENT_KEYWORDS: &str = "\
    __constant __global __private bool break case char const continue default else enum float for \
    inline int long return short static struct switch typedef uchar uint ulong unsigned ushort \
    void while";

/// Returns the keyword that a name is, if any.
pub fn keyword_from_name(name: &str) -> Option<Keyword> {
    use Keyword as K;
    Some(match name {
        "void" => K::Void,
        "signed" | "__signed__" => K::Signed,
        "unsigned" => K::Unsigned,
        "struct" => K::Struct,
        "union" => K::Union,
        "enum" => K::Enum,
        "typedef" => K::Typedef,
        "const" | "__const" => K::Const,
        "volatile" | "restrict" | "__restrict" | "__restrict__" | "inline" | "__inline" | "__inline__" | "register" => {
            K::Ignored
        }
        "static" => K::Storage("static"),
        "extern" => K::Storage("extern"),
        "__global" | "global" => K::Space(Space::Global),
        "__constant" | "constant" => K::Space(Space::Constant),
        "__private" | "private" => K::Space(Space::Private),
        "__attribute__" | "__attribute" => K::Attribute,
        "sizeof" => K::Sizeof,
        "if" => K::If,
        "else" => K::Else,
        "for" => K::For,
        "while" => K::While,
        "do" => K::Do,
        "switch" => K::Switch,
        "case" => K::Case,
        "default" => K::Default,
        "break" => K::Break,
        "continue" => K::Continue,
        "return" => K::Return,
        "_Bool" => K::Scalar(Scalar::Bool),
        "size_t" => K::Scalar(Scalar::UInt),
        "ptrdiff_t" => K::Scalar(Scalar::Int),
        "goto" => K::Unsupported("there is no `goto`: use loops, `switch`, or a helper with `return`"),
        "__local" | "local" => K::Unsupported(
            "there is no `__local` memory: packets of a batch run in any order, and share nothing; use a local variable",
        ),
        "__kernel" | "kernel" => K::Unsupported(
            "a filter is not a kernel: `uint xdp_filter(__global uchar *pkt, uint len)` is called for each packet",
        ),
        "double" => K::Unsupported(DOUBLE),
        "half" => K::Unsupported("there is no `half`: use `float` or integers"),
        "intptr_t" | "uintptr_t" => K::Unsupported(PLATFORM),
        "asm" | "__asm" | "__asm__" => K::Unsupported("there is no inline assembly: a filter runs on every device"),
        "image1d_t" | "image1d_array_t" | "image1d_buffer_t" | "image2d_t" | "image2d_array_t" | "image3d_t"
        | "sampler_t" | "event_t" | "__read_only" | "read_only" | "__write_only" | "write_only" | "__read_write"
        | "read_write" => K::Unsupported(IMAGES),
        "offsetof" | "__builtin_offsetof" => K::Unsupported(
            "for a pointer `p` to the structure write `(__global uchar *)&p->member - (__global uchar *)p`",
        ),
        "_Complex" | "complex" | "_Imaginary" | "imaginary" => K::Unsupported("there are no complex numbers"),
        "auto" | "typeof" | "__typeof__" => K::Unsupported("types are written out: there is no type inference"),
        "_Atomic" | "_Generic" | "_Static_assert" | "_Alignas" | "_Alignof" | "_Noreturn" | "_Thread_local" => {
            K::Unsupported("OpenCL C is based on C99, and this is a C11 keyword")
        }
        _ => return type_name(name),
    })
}

/// Parses type keywords: `uint`, `uint4`, ….
fn type_name(name: &str) -> Option<Keyword> {
    use Scalar as S;
    let scalar = |name| {
        Some(match name {
            "bool" => S::Bool,
            "char" => S::Char,
            "uchar" => S::UChar,
            "short" => S::Short,
            "ushort" => S::UShort,
            "int" => S::Int,
            "uint" => S::UInt,
            "long" => S::Long,
            "ulong" => S::ULong,
            "float" => S::Float,
            _ => return None,
        })
    };
    if let Some(scalar) = scalar(name) {
        return Some(Keyword::Scalar(scalar));
    }
    let digits = name.find(|c: char| c.is_ascii_digit())?;
    let (element, size) = name.split_at(digits);
    match (element, size) {
        ("double" | "half", "2" | "3" | "4" | "8" | "16") => Some(Keyword::Unsupported(DOUBLE)),
        ("bool", "2" | "3" | "4" | "8" | "16") => {
            Some(Keyword::Unsupported("there are no vectors of bool: comparing vectors gives signed integers"))
        }
        (_, "2" | "3" | "4") => Some(Keyword::Vector(scalar(element)?, size.parse().ok()?)),
        (_, "8" | "16") => {
            scalar(element)?;
            Some(Keyword::Unsupported("vectors have 2, 3 or 4 components: devices have no longer ones"))
        }
        _ => None,
    }
}
