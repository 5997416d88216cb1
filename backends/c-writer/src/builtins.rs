//! Operators, conversions and built-in functions of scalars, and built-ins that take whole vectors
//! or matrices. Where C has no such function, or leaves cases undefined, a helper function is
//! written once in each file that needs it.

use naga::{BinaryOperator, MathFunction, Scalar, ScalarKind, TypeInner, UnaryOperator};

use crate::PacketAccess;
use crate::c_expr::CExpr;
use crate::dialect::{MATH_FUNCTIONS, short_name};
use crate::types::{COMPONENTS, is_signed, unsigned};
use crate::{Result, WriteError, Writer};

/// pi / 180, and its inverse.
const RADIANS: &str = "0.017453292f";
const DEGREES: &str = "57.29578f";

impl Writer<'_> {
    /// Defines a helper, unless it is defined already.
    pub(crate) fn define_helper(&mut self, name: &str, text: &str) {
        if self.defined_helpers.insert(name.into()) {
            self.helpers += text;
            self.helpers.push('\n');
        }
    }

    /// Calls a helper that returns `result` and has these parameters, given as types and names;
    /// defines it if it is new.
    fn polyfill(
        &mut self,
        name: &str,
        result: &str,
        parameters: &[(&str, &str)],
        body: &str,
        arguments: &[CExpr],
    ) -> CExpr {
        if !self.defined_helpers.contains(name) {
            let function = self.dialect.function();
            let parameters: Vec<String> = parameters.iter().map(|(ty, name)| format!("{ty} {name}")).collect();
            let lines: String = body.lines().map(|line| format!("    {}\n", line.trim())).collect();
            self.define_helper(name, &format!("{function}{result} {name}({})\n{{\n{lines}}}\n", parameters.join(", ")));
        }
        CExpr::call(name, arguments)
    }

    /// Calls a helper whose parameters and result have the same scalar type.
    fn polyfill_same_type(
        &mut self,
        stem: &str,
        scalar: Scalar,
        parameters: &str,
        body: &str,
        arguments: &[CExpr],
    ) -> CExpr {
        let ty = self.dialect.scalar(scalar);
        let parameters: Vec<(&str, &str)> = parameters.split(' ').map(|name| (ty, name)).collect();
        self.polyfill(&format!("pc_{stem}_{}", short_name(scalar)), ty, &parameters, body, arguments)
    }

    pub(crate) fn unary(&mut self, op: UnaryOperator, scalar: Scalar, value: CExpr) -> Result<CExpr> {
        Ok(match (op, scalar.kind) {
            (UnaryOperator::Negate, ScalarKind::Sint) => {
                let (ty, wide) = (self.dialect.scalar(scalar), self.dialect.scalar(unsigned(scalar)));
                CExpr::cast(ty, CExpr::binary("-", CExpr::atom("0u"), CExpr::cast(wide, value)))
            }
            (UnaryOperator::Negate, ScalarKind::Float) => CExpr::unary("-", value),
            (UnaryOperator::LogicalNot, ScalarKind::Bool) => CExpr::unary("!", value),
            (UnaryOperator::BitwiseNot, ScalarKind::Sint | ScalarKind::Uint) => CExpr::unary("~", value),
            _ => return Err(WriteError::Unsupported(format!("{op:?} of {}", short_name(scalar)))),
        })
    }

    /// The operator for "all of" or "any of" between conditions. Operands have no side effects and
    /// cannot fail, so vectorisable text evaluates both: LLVM would turn a branch between two
    /// comparisons of one value into a `switch`, and not vectorise.
    pub(crate) fn logical(&self, all: bool) -> &'static str {
        match (self.options.packet_access == PacketAccess::Vectorizable, all) {
            (true, true) => "&",
            (true, false) => "|",
            (false, true) => "&&",
            (false, false) => "||",
        }
    }

    /// Writes `left op right`; both have the type `scalar`, except for the count of a shift.
    /// `safe_divisor`: the right operand is a constant that divides anything without overflow.
    pub(crate) fn binary(
        &mut self,
        op: BinaryOperator,
        scalar: Scalar,
        left: CExpr,
        right: CExpr,
        safe_divisor: bool,
    ) -> Result<CExpr> {
        use BinaryOperator as B;
        let dialect = self.dialect;
        let ty = dialect.scalar(scalar);
        let integer = matches!(scalar.kind, ScalarKind::Sint | ScalarKind::Uint);
        let operator = match op {
            B::Add => "+",
            B::Subtract => "-",
            B::Multiply => "*",
            B::Equal => "==",
            B::NotEqual => "!=",
            B::Less => "<",
            B::LessEqual => "<=",
            B::Greater => ">",
            B::GreaterEqual => ">=",
            B::LogicalAnd => self.logical(true),
            B::LogicalOr => self.logical(false),
            B::ExclusiveOr if scalar.kind == ScalarKind::Bool => "!=",
            // For booleans too: `||` would be a branch, and in C they are 0 and 1.
            B::And => "&",
            B::InclusiveOr => "|",
            B::ExclusiveOr => "^",
            B::ShiftLeft => "<<",
            B::ShiftRight => ">>",
            B::Divide | B::Modulo => {
                let operator = if op == B::Divide { "/" } else { "%" };
                if scalar.kind == ScalarKind::Float {
                    return Ok(match op {
                        B::Divide => CExpr::binary("/", left, right),
                        _ => CExpr::call(&dialect.float_function("fmod"), &[left, right]),
                    });
                }
                if safe_divisor {
                    return Ok(CExpr::binary(operator, left, right));
                }
                let stem = if op == B::Divide { "div" } else { "mod" };
                let otherwise = if op == B::Divide { "a" } else { "0" };
                // MIN / -1 overflows: the quotient is -a, wrapped, and the remainder 0.
                let minus = match (is_signed(scalar), op) {
                    (false, _) => String::new(),
                    (true, B::Divide) => {
                        format!("if (b == -1) return ({ty})(0u - ({})a);\n", dialect.scalar(unsigned(scalar)))
                    }
                    (true, _) => "if (b == -1) return 0;\n".into(),
                };
                let body = format!("{minus}return b == 0 ? {otherwise} : a {operator} b;");
                return Ok(self.polyfill_same_type(stem, scalar, "a b", &body, &[left, right]));
            }
        };
        // Signed overflow is undefined, unsigned arithmetic wraps (C99, sections 6.5 and 6.2.5).
        if is_signed(scalar) && matches!(op, B::Add | B::Subtract | B::Multiply | B::ShiftLeft) {
            let wide = dialect.scalar(unsigned(scalar));
            let right = if op == B::ShiftLeft { right } else { CExpr::cast(wide, right) };
            return Ok(CExpr::cast(ty, CExpr::binary(operator, CExpr::cast(wide, left), right)));
        }
        let bits = matches!(operator, "<<" | ">>" | "&" | "|" | "^");
        let of_truth = matches!(op, B::And | B::InclusiveOr | B::LogicalAnd | B::LogicalOr);
        if bits && !integer && !(scalar.kind == ScalarKind::Bool && of_truth) {
            return Err(WriteError::Unsupported(format!("{op:?} of {}", short_name(scalar))));
        }
        Ok(CExpr::binary(operator, left, right))
    }

    /// Writes `to(value)` if `by_value`, else `bitcast<to>(value)`.
    pub(crate) fn convert(&mut self, from: Scalar, to: Scalar, by_value: bool, value: CExpr) -> Result<CExpr> {
        let dialect = self.dialect;
        let ty = dialect.scalar(to);
        Ok(match (from.kind, to.kind) {
            _ if from == to => value,
            (ScalarKind::Float, ScalarKind::Bool) => CExpr::binary("!=", value, CExpr::atom("0.0f")),
            (_, ScalarKind::Bool) => CExpr::binary("!=", value, CExpr::atom("0")),
            (ScalarKind::Float, ScalarKind::Sint | ScalarKind::Uint) if by_value => self.float_to_integer(to, value),
            (ScalarKind::Float, ScalarKind::Uint) => CExpr::atom(dialect.float_bits(&value.text, false)),
            (ScalarKind::Float, ScalarKind::Sint) => {
                CExpr::cast(ty, CExpr::atom(dialect.float_bits(&value.text, false)))
            }
            (ScalarKind::Sint | ScalarKind::Uint, ScalarKind::Float) if !by_value => {
                let bits = CExpr::cast("uint", value);
                CExpr::atom(dialect.float_bits(&bits.text, true))
            }
            _ => CExpr::cast(ty, value),
        })
    }

    /// Rounds towards zero, saturates, and maps NaN to 0; in C all else is undefined (C99, section
    /// 6.3.1.4).
    fn float_to_integer(&mut self, to: Scalar, value: CExpr) -> CExpr {
        let ty = self.dialect.scalar(to);
        let suffix = if to.width == 8 { self.dialect.wide_suffix(is_signed(to)) } else { "" };
        // The greatest `float` in range, and the one above it.
        let (most, above) = match (is_signed(to), to.width) {
            (false, 8) => ("18446742974197923840", "18446744073709551616.0f"),
            (true, 8) => ("9223371487098961920", "9223372036854775808.0f"),
            (false, _) => ("4294967040u", "4294967296.0f"),
            (true, _) => ("2147483520", "2147483648.0f"),
        };
        let least = match (is_signed(to), to.width) {
            (false, _) => "if (!(x > 0.0f)) return 0;".to_owned(),
            (true, 8) => format!("if (x != x) return 0;\nif (x <= -{above}) return -9223372036854775807{suffix} - 1;"),
            (true, _) => format!("if (x != x) return 0;\nif (x <= -{above}) return -2147483647 - 1;"),
        };
        let body = format!("{least}\nif (x >= {above}) return {most}{suffix};\nreturn ({ty})x;");
        self.polyfill(&format!("pc_f32_to_{}", short_name(to)), ty, &[("float", "x")], &body, &[value])
    }

    /// Writes a componentwise built-in, for one component.
    pub(crate) fn math(&mut self, fun: MathFunction, scalar: Scalar, arguments: &[CExpr]) -> Result<CExpr> {
        if scalar.kind == ScalarKind::Float {
            return self.float_math(fun, arguments);
        }
        use MathFunction as M;
        let dialect = self.dialect;
        let wide = scalar.width == 8;
        let signed = is_signed(scalar);
        let ty = dialect.scalar(scalar);
        let bits = unsigned(scalar);
        let u = dialect.scalar(bits);
        let width = u32::from(scalar.width) * 8;
        let as_bits = |value: &CExpr| if signed { CExpr::cast(u, value.clone()) } else { value.clone() };
        Ok(match fun {
            M::Abs if !signed => arguments[0].clone(),
            M::Abs => {
                let body = format!("return x < 0 ? ({ty})(0u - ({u})x) : x;");
                self.polyfill_same_type("abs", scalar, "x", &body, arguments)
            }
            M::Min => self.polyfill_same_type("min", scalar, "a b", "return a < b ? a : b;", arguments),
            M::Max => self.polyfill_same_type("max", scalar, "a b", "return a > b ? a : b;", arguments),
            M::Clamp => {
                let body = "x = x > low ? x : low;\nreturn x < high ? x : high;";
                self.polyfill_same_type("clamp", scalar, "x low high", body, arguments)
            }
            M::Sign => self.polyfill_same_type("sign", scalar, "x", "return x > 0 ? 1 : x < 0 ? -1 : 0;", arguments),
            M::CountOneBits => {
                CExpr::cast(ty, CExpr::atom(dialect.count_ones(&as_bits(&arguments[0]).parenthesized(), wide)))
            }
            M::CountLeadingZeros => {
                CExpr::cast(ty, CExpr::atom(dialect.leading_zeros(&as_bits(&arguments[0]).parenthesized(), wide)))
            }
            M::CountTrailingZeros => {
                let ones = dialect.count_ones("(~x & (x - 1u))", wide);
                let count = self.polyfill_same_type(
                    "trailing_zeros",
                    bits,
                    "x",
                    &format!("return {ones};"),
                    &[as_bits(&arguments[0])],
                );
                if signed { CExpr::cast(ty, count) } else { count }
            }
            M::FirstTrailingBit => {
                let ones = dialect.count_ones("(~x & (x - 1u))", wide);
                let body = format!("return x == 0u ? ~({u})0u : ({u}){ones};");
                let found = self.polyfill_same_type("first_trailing_bit", bits, "x", &body, &[as_bits(&arguments[0])]);
                if signed { CExpr::cast(ty, found) } else { found }
            }
            M::FirstLeadingBit => {
                // The highest bit that differs from the sign, which is 0 for unsigned types; all
                // ones if there is none.
                let of = if signed { format!("({u})(x < 0 ? ~x : x)") } else { "x".into() };
                let zeros = dialect.leading_zeros(&format!("({of})"), wide);
                let body = format!("return ({ty})({} - ({u}){zeros});", width - 1);
                self.polyfill_same_type("first_leading_bit", scalar, "x", &body, arguments)
            }
            M::ReverseBits => {
                let body = match dialect.reverse_bits("x", wide) {
                    Some(text) => format!("return {text};"),
                    None => reverse_bits_body(wide, dialect.wide_suffix(false)),
                };
                let turned = self.polyfill_same_type("reverse_bits", bits, "x", &body, &[as_bits(&arguments[0])]);
                if signed { CExpr::cast(ty, turned) } else { turned }
            }
            M::ExtractBits => {
                // Clamp `offset` and `count` to the width.
                let field = format!(
                    "offset = offset < {width}u ? offset : {width}u;\ncount = count < {width}u - offset ? count : {width}u - \
                     offset;\nif (count == 0u) return 0;"
                );
                let up = format!("(({u})x << ({width}u - offset - count))");
                let body = match signed {
                    true => format!("{field}\nreturn ({ty}){up} >> ({width}u - count);"),
                    false => format!("{field}\nreturn {up} >> ({width}u - count);"),
                };
                let parameters = [(ty, "x"), ("uint", "offset"), ("uint", "count")];
                self.polyfill(&format!("pc_extract_bits_{}", short_name(scalar)), ty, &parameters, &body, arguments)
            }
            M::InsertBits => {
                let body = format!(
                    "offset = offset < {width}u ? offset : {width}u;\ncount = count < {width}u - offset ? count : {width}u - \
                     offset;\nif (count == 0u) return x;\n{u} mask = ~({u})0u >> ({width}u - count) << offset;\nreturn \
                     ({ty})((({u})x & ~mask) | (({u})y << offset & mask));"
                );
                let parameters = [(ty, "x"), (ty, "y"), ("uint", "offset"), ("uint", "count")];
                self.polyfill(&format!("pc_insert_bits_{}", short_name(scalar)), ty, &parameters, &body, arguments)
            }
            other => return Err(unsupported_builtin(other)),
        })
    }

    fn float_math(&mut self, fun: MathFunction, arguments: &[CExpr]) -> Result<CExpr> {
        use MathFunction as M;
        let dialect = self.dialect;
        let name = format!("{fun:?}").to_lowercase();
        let direct = match fun {
            M::Abs => "fabs",
            M::Min => "fmin",
            M::Max => "fmax",
            M::Round => "rint",
            // Most have the same name in C.
            _ => MATH_FUNCTIONS.iter().copied().find(|same| *same == name).unwrap_or_default(),
        };
        if !direct.is_empty() {
            return Ok(CExpr::call(&dialect.float_function(direct), arguments));
        }
        let call = |name: &str, arguments: &str| format!("{}({arguments})", dialect.float_function(name));
        let clamp =
            |x: &str, low: &str, high: &str| call("fmin", &format!("{}, {high}", call("fmax", &format!("{x}, {low}"))));
        let (stem, parameters, body) = match fun {
            M::Clamp => ("clamp", "x low high", format!("return {};", clamp("x", "low", "high"))),
            M::Saturate => ("saturate", "x", format!("return {};", clamp("x", "0.0f", "1.0f"))),
            M::Radians => return Ok(CExpr::binary("*", arguments[0].clone(), CExpr::atom(RADIANS))),
            M::Degrees => return Ok(CExpr::binary("*", arguments[0].clone(), CExpr::atom(DEGREES))),
            M::Fract => ("fract", "x", format!("return x - {};", call("floor", "x"))),
            M::Sign => ("sign", "x", "return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;".into()),
            M::Mix => ("mix", "x y a", "return x * (1.0f - a) + y * a;".into()),
            M::Step => ("step", "edge x", "return edge <= x ? 1.0f : 0.0f;".into()),
            M::SmoothStep => {
                let t = clamp("(x - low) / (high - low)", "0.0f", "1.0f");
                ("smoothstep", "low high x", format!("float t = {t};\nreturn t * t * (3.0f - 2.0f * t);"))
            }
            M::InverseSqrt => ("inverse_sqrt", "x", format!("return 1.0f / {};", call("sqrt", "x"))),
            other => return Err(unsupported_builtin(other)),
        };
        Ok(self.polyfill_same_type(stem, Scalar::F32, parameters, &body, arguments))
    }

    /// Whether a float is NaN or infinite, by its bits, which works even if compiler options assume
    /// that there are none.
    pub(crate) fn float_class(&mut self, nan: bool, value: CExpr) -> CExpr {
        let bits = self.dialect.float_bits("x", false);
        let (name, operator) = if nan { ("pc_is_nan", ">") } else { ("pc_is_inf", "==") };
        let body = format!("return ({bits} & 0x7fffffffu) {operator} 0x7f800000u;");
        self.polyfill(name, "bool", &[("float", "x")], &body, &[value])
    }

    /// The dot product of two vectors, given by components.
    pub(crate) fn dot(&mut self, scalar: Scalar, left: Vec<CExpr>, right: Vec<CExpr>) -> Result<CExpr> {
        let dialect = self.dialect;
        let wide = dialect.scalar(unsigned(scalar));
        let signed = is_signed(scalar);
        let side = |value: CExpr| if signed { CExpr::cast(wide, value) } else { value };
        let products = left.into_iter().zip(right).map(|(a, b)| CExpr::binary("*", side(a), side(b)));
        let sum = products.reduce(|a, b| CExpr::binary("+", a, b));
        let sum = sum.ok_or_else(|| unsupported_builtin(MathFunction::Dot))?;
        Ok(if signed { CExpr::cast(dialect.scalar(scalar), sum) } else { sum })
    }

    /// A component of a vector at a run-time index, which is clamped to the last.
    pub(crate) fn component_at(&mut self, scalar: Scalar, size: usize, vector: CExpr, index: CExpr) -> CExpr {
        let ty = self.vector_name(scalar, size);
        let scalar_type = self.dialect.scalar(scalar);
        let mut body = String::from("return ");
        for (i, component) in COMPONENTS[..size - 1].iter().enumerate() {
            body += &format!("i == {i}u ? v.{component} : ");
        }
        body += &format!("v.{};", COMPONENTS[size - 1]);
        let name = format!("pc_component_{}x{size}", short_name(scalar));
        self.polyfill(&name, scalar_type, &[(&ty, "v"), ("uint", "i")], &body, &[vector, index])
    }

    /// An assignment, without its semicolon, to a component at a run-time index.
    pub(crate) fn set_component(
        &mut self,
        scalar: Scalar,
        size: usize,
        vector: CExpr,
        index: CExpr,
        value: CExpr,
    ) -> CExpr {
        let ty = self.vector_name(scalar, size);
        let scalar_type = self.dialect.scalar(scalar);
        let mut body = String::new();
        for (i, component) in COMPONENTS[..size - 1].iter().enumerate() {
            body += &format!("if (i == {i}u) {{ v->{component} = value; return; }}\n");
        }
        body += &format!("v->{} = value;", COMPONENTS[size - 1]);
        let name = format!("pc_set_component_{}x{size}", short_name(scalar));
        let pointer = format!("{ty} *");
        let arguments = [CExpr::unary("&", vector), index, value];
        self.polyfill(&name, "void", &[(&pointer, "v"), ("uint", "i"), (scalar_type, "value")], &body, &arguments)
    }

    /// Built-ins that take whole float vectors; `size` is that of the first argument.
    pub(crate) fn geometry(&mut self, fun: MathFunction, size: usize, arguments: &[CExpr]) -> Result<CExpr> {
        use MathFunction as M;
        let dialect = self.dialect;
        let ty = self.vector_name(Scalar::F32, size);
        let sum =
            |term: &dyn Fn(&str) -> String| COMPONENTS[..size].iter().map(|c| term(c)).collect::<Vec<_>>().join(" + ");
        let each = |term: &dyn Fn(&str) -> String| {
            let parts: Vec<String> = COMPONENTS[..size].iter().map(|c| term(c)).collect();
            format!("return {};", dialect.vector(&ty, &parts))
        };
        let sqrt = dialect.float_function("sqrt");
        let dot = |a: &str, b: &str| sum(&|c| format!("{a}.{c} * {b}.{c}"));
        let (stem, result, vectors, body) = match fun {
            M::Length => ("length", "float", "v", format!("return {sqrt}({});", dot("v", "v"))),
            M::Distance => {
                let squares = sum(&|c| format!("(a.{c} - b.{c}) * (a.{c} - b.{c})"));
                ("distance", "float", "a b", format!("return {sqrt}({squares});"))
            }
            M::Normalize => {
                let body = format!("float size = {sqrt}({});\n{}", dot("v", "v"), each(&|c| format!("v.{c} / size")));
                ("normalize", ty.as_str(), "v", body)
            }
            M::Cross if size == 3 => {
                let parts = ["a.y * b.z - a.z * b.y", "a.z * b.x - a.x * b.z", "a.x * b.y - a.y * b.x"];
                ("cross", ty.as_str(), "a b", format!("return {};", dialect.vector(&ty, &parts.map(String::from))))
            }
            M::FaceForward => {
                let side = format!("float side = {} < 0.0f ? 1.0f : -1.0f;", dot("incident", "reference"));
                let body = format!("{side}\n{}", each(&|c| format!("v.{c} * side")));
                ("face_forward", ty.as_str(), "v incident reference", body)
            }
            M::Reflect => {
                let twice = format!("float twice = 2.0f * ({});", dot("normal", "incident"));
                let body = format!("{twice}\n{}", each(&|c| format!("incident.{c} - twice * normal.{c}")));
                ("reflect", ty.as_str(), "incident normal", body)
            }
            M::Refract => {
                let body = format!(
                    "float cosine = {};\nfloat k = 1.0f - ratio * ratio * (1.0f - cosine * cosine);\nfloat part = k < 0.0f ? \
                     0.0f : ratio * cosine + {sqrt}(k);\nif (k < 0.0f) ratio = 0.0f;\n{}",
                    dot("normal", "incident"),
                    each(&|c| format!("ratio * incident.{c} - part * normal.{c}"))
                );
                ("refract", ty.as_str(), "incident normal", body)
            }
            other => return Err(unsupported_builtin(other)),
        };
        let mut parameters: Vec<(&str, &str)> = vectors.split(' ').map(|name| (ty.as_str(), name)).collect();
        parameters.extend((fun == M::Refract).then_some(("float", "ratio")));
        Ok(self.polyfill(&format!("pc_{stem}_{size}"), result, &parameters, &body, arguments))
    }

    /// `modf` and `frexp`: a struct of the first parts, then of the second.
    pub(crate) fn split(
        &mut self,
        fun: MathFunction,
        result: &str,
        size: Option<usize>,
        value: CExpr,
    ) -> Result<CExpr> {
        let dialect = self.dialect;
        let modf = fun == MathFunction::Modf;
        let component = |i: usize| size.map_or(String::new(), |_| format!(".{}", COMPONENTS[i]));
        let count = size.unwrap_or(1);
        let mut body = String::new();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for i in 0..count {
            let x = format!("x{}", component(i));
            match modf {
                true => {
                    let whole = format!("{}({x})", dialect.float_function("trunc"));
                    first.push(format!("{x} - {whole}"));
                    second.push(whole);
                }
                false => {
                    body += &format!("int exponent{i} = 0;\n");
                    body += &format!("float fraction{i} = {}({x}, &exponent{i});\n", dialect.float_function("frexp"));
                    first.push(format!("fraction{i}"));
                    second.push(format!("exponent{i}"));
                }
            }
        }
        let (ty, pair) = match size {
            None => ("float".to_owned(), [first.concat(), second.concat()]),
            Some(size) => {
                let ty = self.vector_name(Scalar::F32, size);
                let other = if modf { ty.clone() } else { self.vector_name(Scalar::I32, size) };
                let pair = [dialect.vector(&ty, &first), dialect.vector(&other, &second)];
                (ty, pair)
            }
        };
        body += &format!("return {};", dialect.structure(result, &pair.join(", ")));
        let name = format!("pc_{}_{count}", if modf { "modf" } else { "frexp" });
        Ok(self.polyfill(&name, result, &[(&ty, "x")], &body, &[value]))
    }

    /// Built-ins that pack numbers into a `uint` or unpack them.
    pub(crate) fn pack(&mut self, fun: MathFunction, arguments: &[CExpr]) -> Result<CExpr> {
        use MathFunction as M;
        let dialect = self.dialect;
        // The helper, the component type of its vector, and the bits of each component.
        let (name, scalar, bits) = match fun {
            M::Pack4x8snorm => ("pc_pack4x8snorm", Scalar::F32, 8),
            M::Pack4x8unorm => ("pc_pack4x8unorm", Scalar::F32, 8),
            M::Pack2x16snorm => ("pc_pack2x16snorm", Scalar::F32, 16),
            M::Pack2x16unorm => ("pc_pack2x16unorm", Scalar::F32, 16),
            M::Pack4xI8 => ("pc_pack4xi8", Scalar::I32, 8),
            M::Pack4xU8 => ("pc_pack4xu8", Scalar::U32, 8),
            M::Pack4xI8Clamp => ("pc_pack4xi8_clamp", Scalar::I32, 8),
            M::Pack4xU8Clamp => ("pc_pack4xu8_clamp", Scalar::U32, 8),
            M::Unpack4x8snorm => ("pc_unpack4x8snorm", Scalar::F32, 8),
            M::Unpack4x8unorm => ("pc_unpack4x8unorm", Scalar::F32, 8),
            M::Unpack2x16snorm => ("pc_unpack2x16snorm", Scalar::F32, 16),
            M::Unpack2x16unorm => ("pc_unpack2x16unorm", Scalar::F32, 16),
            M::Unpack4xI8 => ("pc_unpack4xi8", Scalar::I32, 8),
            M::Unpack4xU8 => ("pc_unpack4xu8", Scalar::U32, 8),
            M::Dot4I8Packed | M::Dot4U8Packed => return Ok(self.packed_dot(fun == M::Dot4I8Packed, arguments)),
            other => return Err(unsupported_builtin(other)),
        };
        let ty = self.vector_name(scalar, 32 / bits);
        let mask = u32::MAX >> (32 - bits);
        // What 1.0 is packed as.
        let (most_signed, most) = if bits == 8 { ("127.0f", "255.0f") } else { ("32767.0f", "65535.0f") };
        let packed = |term: &dyn Fn(&str) -> String| {
            let part = |i: usize| {
                let masked = format!("((uint){} & 0x{mask:x}u)", term(&format!("v.{}", COMPONENTS[i])));
                if i == 0 { masked } else { format!("{masked} << {}", bits * i) }
            };
            format!("return {};", (0..32 / bits).map(part).collect::<Vec<_>>().join(" | "))
        };
        let unpacked = |term: &dyn Fn(String) -> String| {
            let part = |i: usize| term(format!("(x >> {} & 0x{mask:x}u)", bits * i));
            format!("return {};", dialect.vector(&ty, &(0..32 / bits).map(part).collect::<Vec<_>>()))
        };
        let [min, max, floor] = ["fmin", "fmax", "floor"].map(|name| dialect.float_function(name));
        let normal = |value: &str, least: &str, scale: &str| {
            format!("(int){floor}(0.5f + {scale} * {min}({max}({value}, {least}), 1.0f))")
        };
        let body = match fun {
            M::Pack4x8snorm | M::Pack2x16snorm => packed(&|v| normal(v, "-1.0f", most_signed)),
            M::Pack4x8unorm | M::Pack2x16unorm => packed(&|v| normal(v, "0.0f", most)),
            M::Pack4xI8Clamp => packed(&|v| format!("({v} < -128 ? -128 : {v} > 127 ? 127 : {v})")),
            M::Pack4xU8Clamp => packed(&|v| format!("({v} > 255u ? 255u : {v})")),
            M::Pack4xI8 | M::Pack4xU8 => packed(&str::to_owned),
            M::Unpack4x8snorm | M::Unpack2x16snorm => {
                unpacked(&|v| format!("{max}((float){} / {most_signed}, -1.0f)", sign_extended(&v, bits)))
            }
            M::Unpack4x8unorm | M::Unpack2x16unorm => unpacked(&|v| format!("(float){v} / {most}")),
            M::Unpack4xI8 => unpacked(&|v| sign_extended(&v, bits)),
            _ => unpacked(&|v| v),
        };
        let (result, parameter) =
            if name.starts_with("pc_pack") { ("uint", (ty.as_str(), "v")) } else { (ty.as_str(), ("uint", "x")) };
        Ok(self.polyfill(name, result, &[parameter], &body, arguments))
    }

    /// The dot product of four bytes each.
    fn packed_dot(&mut self, signed: bool, arguments: &[CExpr]) -> CExpr {
        let byte = |of: &str, i: usize| {
            let value = format!("({of} >> {} & 0xffu)", 8 * i);
            if signed { sign_extended(&value, 8) } else { value }
        };
        let terms: Vec<String> = (0..4).map(|i| format!("{} * {}", byte("x", i), byte("y", i))).collect();
        let body = format!("return {};", terms.join(" + "));
        let (name, result) = if signed { ("pc_dot4_i8", "int") } else { ("pc_dot4_u8", "uint") };
        self.polyfill(name, result, &[("uint", "x"), ("uint", "y")], &body, arguments)
    }

    /// Operators and built-ins with a matrix as an operand. `types` are those of the operands.
    pub(crate) fn matrix(
        &mut self,
        what: MatrixOperation,
        types: [&TypeInner; 2],
        result: &TypeInner,
        arguments: &[CExpr],
    ) -> Result<CExpr> {
        let f = Scalar::F32;
        let shape = |inner: &TypeInner| match *inner {
            TypeInner::Matrix { columns, rows, .. } => Some((columns as usize, rows as usize)),
            _ => None,
        };
        let size = |inner: &TypeInner| match *inner {
            TypeInner::Vector { size, .. } => size as usize,
            _ => 1,
        };
        let (left, right) = (shape(types[0]), shape(types[1]));
        let result_name = self.inner_name(result)?;
        let names = [self.inner_name(types[0])?, self.inner_name(types[1])?];
        // Columns of matrix results need vector types, which are defined here if they are new.
        let vectors: Vec<String> =
            (0..=4).map(|n| if n >= 2 { self.vector_name(f, n) } else { String::new() }).collect();
        let dialect = self.dialect;
        let columns = |count: usize, rows: usize, term: &dyn Fn(usize, usize) -> String| {
            let column = |c: usize| dialect.vector(&vectors[rows], &(0..rows).map(|r| term(c, r)).collect::<Vec<_>>());
            let all: Vec<String> = (0..count).map(column).collect();
            format!("return {};", dialect.structure(&result_name, &format!("{{{}}}", all.join(", "))))
        };
        let element = |m: &str, c: usize, r: usize| format!("{m}.at[{c}].{}", COMPONENTS[r]);
        let sum = |count: usize, term: &dyn Fn(usize) -> String| (0..count).map(term).collect::<Vec<_>>().join(" + ");
        let (name, body) = match (what, left, right) {
            (MatrixOperation::Sum(operator), Some((c, r)), Some(_)) => (
                format!("pc_{}_mat{c}x{r}", if operator == "+" { "add" } else { "subtract" }),
                columns(c, r, &|c, r| format!("{} {operator} {}", element("a", c, r), element("b", c, r))),
            ),
            (MatrixOperation::Product, Some((c, r)), Some((count, _))) => (
                format!("pc_mat{c}x{r}_by_mat{count}x{c}"),
                columns(count, r, &|column, row| {
                    sum(c, &|i| format!("{} * {}", element("a", i, row), element("b", column, i)))
                }),
            ),
            (MatrixOperation::Product, Some((c, r)), None) if size(types[1]) > 1 => {
                let row = |r: usize| sum(c, &|i| format!("{} * b.{}", element("a", i, r), COMPONENTS[i]));
                let parts: Vec<String> = (0..r).map(row).collect();
                (format!("pc_mat{c}x{r}_by_vec"), format!("return {};", dialect.vector(&result_name, &parts)))
            }
            (MatrixOperation::Product, None, Some((c, r))) if size(types[0]) > 1 => {
                let column = |c: usize| sum(r, &|i| format!("a.{} * {}", COMPONENTS[i], element("b", c, i)));
                let parts: Vec<String> = (0..c).map(column).collect();
                (format!("pc_vec_by_mat{c}x{r}"), format!("return {};", dialect.vector(&result_name, &parts)))
            }
            (MatrixOperation::Product, Some((c, r)), None) => {
                (format!("pc_scale_mat{c}x{r}"), columns(c, r, &|c, r| format!("{} * b", element("a", c, r))))
            }
            (MatrixOperation::Product, None, Some((c, r))) => {
                (format!("pc_scaled_mat{c}x{r}"), columns(c, r, &|c, r| format!("a * {}", element("b", c, r))))
            }
            (MatrixOperation::Transpose, Some((c, r)), _) => {
                (format!("pc_transpose_mat{c}x{r}"), columns(r, c, &|column, row| element("a", row, column)))
            }
            (MatrixOperation::Determinant, Some((n, _)), _) => {
                let rows: Vec<usize> = (0..n).collect();
                (format!("pc_determinant_{n}"), format!("return {};", determinant(0, &rows)))
            }
            _ => return Err(WriteError::Unsupported(format!("{what:?} of these matrices"))),
        };
        let parameters = [(names[0].as_str(), "a"), (names[1].as_str(), "b")];
        Ok(self.polyfill(&name, &result_name, &parameters[..arguments.len()], &body, arguments))
    }
}

/// An operation on matrices; see [`Writer::matrix`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatrixOperation {
    Sum(&'static str),
    Product,
    Transpose,
    Determinant,
}

/// The number in the low `bits` of a `uint`, as an `int`.
fn sign_extended(value: &str, bits: usize) -> String {
    format!("((int)({value} << {}) >> {})", 32 - bits, 32 - bits)
}

/// Laplace expansion along the columns; `rows` are those that are left.
fn determinant(column: usize, rows: &[usize]) -> String {
    let element = |row: usize| format!("a.at[{column}].{}", COMPONENTS[row]);
    if let [row] = rows {
        return element(*row);
    }
    let mut text = String::new();
    for (i, &row) in rows.iter().enumerate() {
        let rest: Vec<usize> = rows.iter().copied().filter(|&r| r != row).collect();
        text += match i {
            0 => "",
            i if i % 2 == 0 => " + ",
            _ => " - ",
        };
        text += &format!("{} * ({})", element(row), determinant(column + 1, &rest));
    }
    text
}

/// Reverses bits by swapping neighbours of 1, 2, 4, … bits.
fn reverse_bits_body(wide: bool, suffix: &str) -> String {
    let (masks, half): (&[(u32, &str)], u32) = match wide {
        false => (&[(1, "0x55555555u"), (2, "0x33333333u"), (4, "0x0f0f0f0fu"), (8, "0x00ff00ffu")], 16),
        true => (
            &[
                (1, "0x5555555555555555"),
                (2, "0x3333333333333333"),
                (4, "0x0f0f0f0f0f0f0f0f"),
                (8, "0x00ff00ff00ff00ff"),
                (16, "0x0000ffff0000ffff"),
            ],
            32,
        ),
    };
    let suffix = if wide { suffix } else { "" };
    let mut body = String::new();
    for (shift, mask) in masks {
        body += &format!("x = (x >> {shift} & {mask}{suffix}) | (x & {mask}{suffix}) << {shift};\n");
    }
    body + &format!("return x >> {half} | x << {half};")
}

pub(crate) fn unsupported_builtin(fun: MathFunction) -> WriteError {
    WriteError::Unsupported(format!("the built-in {fun:?}"))
}

/// Whether a built-in works on each component by itself.
pub(crate) fn is_componentwise(fun: MathFunction) -> bool {
    use MathFunction as M;
    !matches!(
        fun,
        M::Dot
            | M::Dot4I8Packed
            | M::Dot4U8Packed
            | M::Outer
            | M::Cross
            | M::Distance
            | M::Length
            | M::Normalize
            | M::FaceForward
            | M::Reflect
            | M::Refract
            | M::Inverse
            | M::Transpose
            | M::Determinant
            | M::Modf
            | M::Frexp
            | M::Pack4x8snorm
            | M::Pack4x8unorm
            | M::Pack2x16snorm
            | M::Pack2x16unorm
            | M::Pack2x16float
            | M::Pack4xI8
            | M::Pack4xU8
            | M::Pack4xI8Clamp
            | M::Pack4xU8Clamp
            | M::Unpack4x8snorm
            | M::Unpack4x8unorm
            | M::Unpack2x16snorm
            | M::Unpack2x16unorm
            | M::Unpack2x16float
            | M::Unpack4xI8
            | M::Unpack4xU8
    )
}
