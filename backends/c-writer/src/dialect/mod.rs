//! Differences between the languages of the C family. Everything else is written once, in the
//! sibling modules.

mod cuda;
mod opencl;

use std::fmt;

use naga::{AtomicFunction, MathFunction, Scalar, ScalarKind};

/// A language that filters can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// OpenCL C 1.2.
    OpenCl,
    /// CUDA C++ as NVRTC compiles it, without headers.
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

/// A language as the writer sees it. Expressions that are passed and returned are names, calls, or
/// in parentheses.
pub(crate) trait Dialect: Sync {
    /// Name and version of the language.
    fn name(&self) -> &'static str;

    /// Definitions at the start of the file. `float`: whether the filter uses floating point.
    fn header(&self, float: bool) -> String;

    /// Reserved words, which cannot be names: keywords and built-in types. Each text is a list of
    /// words between white space.
    fn reserved_words(&self) -> &'static [&'static str];

    /// Built-in functions and variables, which cannot be names at file scope, in the same form.
    fn builtin_functions(&self) -> &'static [&'static str];

    /// Deepest nesting of brackets of any kind.
    fn max_nesting(&self) -> usize;

    /// Name of a scalar type.
    fn scalar(&self, scalar: Scalar) -> &'static str;

    /// Suffix of a `u64` or `i64` literal.
    fn wide_suffix(&self, signed: bool) -> &'static str;

    /// Name of a vector type, and its definition if the language lacks the type.
    fn vector_type(&self, scalar: Scalar, size: usize) -> (String, Option<String>);

    /// A vector with these components.
    fn vector(&self, ty: &str, components: &[String]) -> String;

    /// A vector in the initialiser of a constant.
    fn vector_initialiser(&self, ty: &str, components: &[String]) -> String;

    /// A struct value with these members. Members in braces are the array in a wrapper struct.
    fn structure(&self, ty: &str, members: &str) -> String;

    /// A struct value of zeros; `first` is the zero of its first member.
    fn zero(&self, ty: &str, first: &str) -> String;

    /// Start of a pointer type to a buffer: the address space and a space.
    fn buffer(&self) -> &'static str;

    /// Qualifier of a pointer that nothing else aliases.
    fn restrict(&self) -> &'static str;

    /// A `uchar *` that compilers may assume to be a multiple of `bytes`, if the language can
    /// express that.
    fn assume_aligned(&self, pointer: &str, bytes: u32) -> Option<String>;

    /// Statements that store two `uchar` at an even address, which compilers merge into one store.
    fn store_pair(&self, pointer: &str, values: [&str; 2]) -> Vec<String>;

    /// Start of a struct definition with an alignment.
    fn aligned_struct(&self, bytes: u32) -> String;

    /// Start of a constant at file scope; `table` if it is indexed.
    fn constant(&self, table: bool) -> &'static str;

    /// Type of a boolean constant at file scope.
    fn constant_bool(&self) -> &'static str {
        "bool"
    }

    /// Start of a function definition.
    fn function(&self) -> &'static str;

    /// Start of the kernel's definition, up to its name.
    fn kernel(&self, group: Option<u32>) -> String;

    /// Number of this work item, and number of work items in the launch, as `uint`.
    fn grid(&self) -> (&'static str, &'static str);

    /// Number of bits that are set in an unsigned value, as `int` or in its own type.
    fn count_ones(&self, value: &str, wide: bool) -> String;

    /// Number of zero bits above the highest that is set; the width for zero.
    fn leading_zeros(&self, value: &str, wide: bool) -> String;

    /// Swaps the bytes of a `uint`, if the language has a function for it.
    fn swap(&self, value: &str) -> Option<String>;

    /// Reverses the bits of an unsigned value, if the language has a function for it.
    fn reverse_bits(&self, value: &str, wide: bool) -> Option<String>;

    /// Reinterprets a `float` as its bits, or bits as a `float`.
    fn float_bits(&self, value: &str, to_float: bool) -> String;

    /// Atomically changes a `uint` in a buffer; the value is the previous one.
    fn atomic(&self, function: AtomicFn, place: &str, value: &str) -> String;

    /// Atomically adds a `uint` to 64 bits in a buffer, at a multiple of 8 bytes, if the language
    /// has a function for it.
    fn atomic_add_wide(&self, _place: &str, _value: &str) -> Option<String> {
        None
    }

    /// Helpers that add to a buffer for all threads of a warp that add to the same place, if the
    /// language has any. They return nothing.
    fn combined_add(&self) -> Option<CombinedAdd> {
        None
    }

    /// Atomically replaces a `uint` if it equals `expected`; the value is the previous one.
    fn atomic_compare_exchange(&self, place: &str, expected: &str, value: &str) -> String;

    /// Name of the `float` variant of a function of `math.h`.
    fn float_function(&self, name: &str) -> String;
}

/// An atomic function of a `uint` in a buffer and a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtomicFn {
    Add,
    Min,
    Max,
    Or,
    Exchange,
}

impl AtomicFn {
    /// The function that does this; `None` if there is none.
    pub fn of(function: AtomicFunction) -> Option<AtomicFn> {
        Some(match function {
            AtomicFunction::Add => AtomicFn::Add,
            AtomicFunction::Min => AtomicFn::Min,
            AtomicFunction::Max => AtomicFn::Max,
            AtomicFunction::InclusiveOr => AtomicFn::Or,
            AtomicFunction::Exchange { compare: None } => AtomicFn::Exchange,
            _ => return None,
        })
    }
}

/// Names and definitions of helpers that add a `uint` to a place in a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CombinedAdd {
    /// Adds to a `uint`.
    pub word: &'static str,
    pub word_text: &'static str,
    /// Adds to 64 bits.
    pub wide: &'static str,
    pub wide_text: &'static str,
}

/// Short name of a scalar type for names of helpers, the same in every language.
pub(crate) fn short_name(scalar: Scalar) -> &'static str {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Uint, 8) => "u64",
        (ScalarKind::Sint, 8) => "i64",
        (ScalarKind::Uint, _) => "u32",
        (ScalarKind::Sint, _) => "i32",
        (ScalarKind::Float, _) => "f32",
        _ => "bool",
    }
}

/// C99 section 6.4.1, the preprocessor's `defined`, and names that all implementations here define.
const C_KEYWORDS: &str = "
    auto break case char const continue default defined do double else enum extern float for goto if
    inline int long register restrict return short signed sizeof static struct switch typedef union
    unsigned void volatile while asm typeof bool true false NULL main unix linux i386
";

macro_rules! math_functions {
    ($($builtin:ident => $name:literal),+ $(,)?) => {
        /// Functions of `math.h` that expressions call directly; helpers call others.
        pub(crate) const MATH_FUNCTIONS: &[&str] = &[$($name,)+ "fmod"];

        /// The function of `math.h` that does the same as a built-in of `f32`, if one does.
        pub(crate) fn float_function_name(fun: MathFunction) -> Option<&'static str> {
            match fun {
                $(MathFunction::$builtin => Some($name),)+
                _ => None,
            }
        }
    };
}

math_functions! {
    Abs => "fabs", Min => "fmin", Max => "fmax", Cos => "cos", Cosh => "cosh", Sin => "sin", Sinh => "sinh",
    Tan => "tan", Tanh => "tanh", Acos => "acos", Asin => "asin", Atan => "atan", Atan2 => "atan2",
    Asinh => "asinh", Acosh => "acosh", Atanh => "atanh", Ceil => "ceil", Floor => "floor", Round => "rint",
    Trunc => "trunc", Exp => "exp", Exp2 => "exp2", Log => "log", Log2 => "log2", Pow => "pow", Fma => "fma",
    Sqrt => "sqrt", Ldexp => "ldexp",
}

/// Functions of the C library that compilers know without a header.
const C_LIBRARY: &str = "
    abort abs acos acosh asin asinh assert atan atan2 atanh cbrt ceil clock copysign cos cosh cospi
    erf erfc exit exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod free frexp hypot ilogb
    index isfinite isinf isnan isnormal j0 j1 jn labs ldexp lgamma llabs llrint llround log log10
    log1p log2 logb lrint lround malloc max memcmp memcpy memset min modf nan nearbyint nextafter
    norm normcdf pow printf rcbrt remainder remquo rhypot rint round rsqrt scalbln scalbn signbit
    sin sincos sinh sinpi sqrt tan tanh tgamma trunc y0 y1 yn
";
