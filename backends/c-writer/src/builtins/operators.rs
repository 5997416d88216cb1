//! Operators and conversions of scalars; helpers define the cases that C leaves undefined.

use naga::{BinaryOperator, Scalar, ScalarKind, UnaryOperator};

use crate::c_expr::CExpr;
use crate::dialect::short_name;
use crate::types::{is_signed, unsigned};
use crate::{Result, WriteError, Writer};

impl Writer<'_> {
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
        match (self.options.packet_access.is_branch_free(), all) {
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
}
