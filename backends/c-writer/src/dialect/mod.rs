//! What differs between the languages of the C family. All that is the same is written once, in the
//! modules beside this one.

mod cuda;
mod opencl;

use std::fmt;

use naga::{Scalar, ScalarKind};

/// A language that filters can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// OpenCL C 1.2.
    OpenCl,
    /// CUDA C++ as NVRTC takes it, without any header.
    Cuda,
}

impl Language {
    pub(crate) fn dialect(self) -> &'static dyn Dialect {
        match self {
            Language::OpenCl => &opencl::OpenCl,
            Language::Cuda => &cuda::Cuda,
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dialect().name())
    }
}

/// What the writer asks of a language. Expressions are given and come back as text that stands
/// for itself: a name, a call, or something in parentheses.
pub(crate) trait Dialect: Sync {
    /// The language's name and version.
    fn name(&self) -> &'static str;

    /// Definitions that stand before everything else. `float`: whether the filter uses floating point.
    fn header(&self, float: bool) -> String;

    /// Words that are no names of ours: keywords and built-in types.
    fn words(&self) -> &'static [&'static [&'static str]];

    /// Built-in functions and variables, which ours cannot be called like at file scope.
    fn functions(&self) -> &'static [&'static [&'static str]];

    /// Brackets that may stand in each other, of every kind.
    fn max_nesting(&self) -> usize;

    /// A scalar type's name.
    fn scalar(&self, scalar: Scalar) -> &'static str;

    /// What ends a literal of `u64`, and of `i64`.
    fn wide_suffix(&self, signed: bool) -> &'static str;

    /// A vector type's name, and its definition where the language has none.
    fn vector_type(&self, scalar: Scalar, size: usize) -> (String, Option<String>);

    /// A vector of these components.
    fn vector(&self, ty: &str, components: &[String]) -> String;

    /// The same in the initialiser of a constant.
    fn vector_initialiser(&self, ty: &str, components: &[String]) -> String;

    /// A structure with these members, as a value. Members that are themselves in braces are the array in a
    /// wrapper.
    fn structure(&self, ty: &str, members: &str) -> String;

    /// A structure of zeros, the first of which is `first`.
    fn zero(&self, ty: &str, first: &str) -> String;

    /// How a pointer to a buffer begins: the address space, with a space behind it.
    fn buffer(&self) -> &'static str;

    /// The qualifier of a pointer that nothing else points into.
    fn restrict(&self) -> &'static str;

    /// A `uchar *` that compilers may take for a multiple of this many bytes, where the language can say so.
    fn assume_aligned(&self, pointer: &str, bytes: u32) -> Option<String>;

    /// Statements that store two `uchar` at an even address, of which compilers make one store.
    fn store_pair(&self, pointer: &str, values: [&str; 2]) -> Vec<String>;

    /// How a structure with an alignment begins.
    fn aligned_struct(&self, bytes: u32) -> String;

    /// How a constant at file scope begins; `table`: one that is indexed.
    fn constant(&self, table: bool) -> &'static str;

    /// The type of a truth value that is a constant at file scope.
    fn constant_bool(&self) -> &'static str {
        "bool"
    }

    /// How a function begins.
    fn function(&self) -> &'static str;

    /// How the kernel begins, up to its name.
    fn kernel(&self, group: Option<u32>) -> String;

    /// The number of this work item, and that of all work items of the launch, `uint`.
    fn grid(&self) -> (&'static str, &'static str);

    /// Bits that are set in an unsigned value, `int` or as wide as it.
    fn count_ones(&self, value: &str, wide: bool) -> String;

    /// Zero bits above the highest that is set, all of them for zero.
    fn leading_zeros(&self, value: &str, wide: bool) -> String;

    /// A `uint` with its bytes in the opposite order, where the language has something for it.
    fn swap(&self, value: &str) -> Option<String>;

    /// An unsigned value with its bits in the opposite order, where the language has something for it.
    fn reverse_bits(&self, value: &str, wide: bool) -> Option<String>;

    /// The bits of a `float`, or the `float` of these bits.
    fn float_bits(&self, value: &str, to_float: bool) -> String;

    /// Adds to a `uint` of a buffer, and gives what was there before.
    fn atomic_add(&self, place: &str, value: &str) -> String;

    /// Replaces it, and gives what was there before.
    fn atomic_exchange(&self, place: &str, value: &str) -> String;

    /// Replaces it where it is `expected`, and gives what was there before.
    fn atomic_compare_exchange(&self, place: &str, expected: &str, value: &str) -> String;

    /// What a function of C's `math.h` for `float` is called, given its name for `double`.
    fn float_function(&self, name: &str) -> String;
}

/// A short name for a scalar type, the same in every language, for the names of helpers.
pub(crate) fn short(scalar: Scalar) -> &'static str {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Uint, 8) => "u64",
        (ScalarKind::Sint, 8) => "i64",
        (ScalarKind::Uint, _) => "u32",
        (ScalarKind::Sint, _) => "i32",
        (ScalarKind::Float, _) => "f32",
        _ => "bool",
    }
}

/// C99 section 6.4.1, the preprocessor's `defined`, and what every implementation here has beside.
const C_KEYWORDS: &[&str] = &[
    "auto", "break", "case", "char", "const", "continue", "default", "defined", "do", "double", "else", "enum",
    "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short",
    "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while",
    "asm", "typeof", "bool", "true", "false", "NULL", "main", "unix", "linux", "i386",
];

/// Names of C's library that compilers know without a header.
const C_LIBRARY: &[&str] = &[
    "abort",
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "assert",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "clock",
    "copysign",
    "cos",
    "cosh",
    "cospi",
    "erf",
    "erfc",
    "exit",
    "exp",
    "exp10",
    "exp2",
    "expm1",
    "fabs",
    "fdim",
    "floor",
    "fma",
    "fmax",
    "fmin",
    "fmod",
    "free",
    "frexp",
    "hypot",
    "ilogb",
    "index",
    "isfinite",
    "isinf",
    "isnan",
    "isnormal",
    "j0",
    "j1",
    "jn",
    "labs",
    "ldexp",
    "lgamma",
    "llabs",
    "llrint",
    "llround",
    "log",
    "log10",
    "log1p",
    "log2",
    "logb",
    "lrint",
    "lround",
    "malloc",
    "max",
    "memcmp",
    "memcpy",
    "memset",
    "min",
    "modf",
    "nan",
    "nearbyint",
    "nextafter",
    "norm",
    "normcdf",
    "pow",
    "printf",
    "rcbrt",
    "remainder",
    "remquo",
    "rhypot",
    "rint",
    "round",
    "rsqrt",
    "scalbln",
    "scalbn",
    "signbit",
    "sin",
    "sincos",
    "sinh",
    "sinpi",
    "sqrt",
    "tan",
    "tanh",
    "tgamma",
    "trunc",
    "y0",
    "y1",
    "yn",
];
