//! Calls of the filter's functions, of the prelude, of OpenCL C's built-in functions on integers
//! and vectors (OpenCL C 1.2, 6.12.3, 6.12.6), and conversion functions (6.2.3, 6.2.4).

use super::{Checker, Symbol, unsupported_functions};
use crate::ast::{self, ExprKind as Ast};
use crate::files::Span;
use crate::library;
use crate::parser::{Keyword, keyword_from_name};
use crate::suggestions;
use crate::tree::{Builtin, Expr, ExprKind, FunctionId};
use crate::types::{INT, Scalar, Space, Type, UINT};
use portcullis_core::program::prelude::{self, Intrinsic};
use portcullis_core::spelling::nearest;

/// Built-in functions whose arguments all have one type, with their number of arguments.
const BUILTINS: &[(&str, Builtin, usize)] = &[
    ("min", Builtin::Min, 2),
    ("max", Builtin::Max, 2),
    ("clamp", Builtin::Clamp, 3),
    ("abs", Builtin::Abs, 1),
    ("abs_diff", Builtin::AbsDiff, 2),
    ("rotate", Builtin::Rotate, 2),
    ("mul_hi", Builtin::MulHi, 2),
    ("mad_hi", Builtin::MadHi, 3),
    ("mad_sat", Builtin::MadSat, 3),
    ("mad24", Builtin::Mad, 3),
    ("mad", Builtin::Mad, 3),
    ("popcount", Builtin::Popcount, 1),
    ("clz", Builtin::Clz, 1),
    ("ctz", Builtin::Ctz, 1),
    ("add_sat", Builtin::AddSat, 2),
    ("sub_sat", Builtin::SubSat, 2),
    ("hadd", Builtin::Hadd, 2),
    ("rhadd", Builtin::Rhadd, 2),
    ("bitselect", Builtin::Bitselect, 3),
    ("any", Builtin::Any, 1),
    ("all", Builtin::All, 1),
    ("select", Builtin::Select, 3),
];

/// Network byte order: not in OpenCL C, but needed to read headers. A filter may define its own.
const BYTE_SWAPS: &[(&str, Scalar)] =
    &[("ntohs", Scalar::UShort), ("htons", Scalar::UShort), ("ntohl", Scalar::UInt), ("htonl", Scalar::UInt)];

/// Whether OpenCL C has a built-in function of this name.
pub(super) fn is_builtin(name: &str) -> bool {
    BUILTINS.iter().any(|(builtin, ..)| *builtin == name)
        || matches!(name, "mul24" | "upsample")
        || conversion(name).is_some()
}

enum Conversion {
    Value { saturate: bool },
    Bits,
}

/// Parses the name of a conversion function, such as `convert_uchar4_sat` or `as_uint`.
fn conversion(name: &str) -> Option<(Conversion, Type)> {
    let of = |name| match keyword_from_name(name)? {
        Keyword::Scalar(scalar) => Some(Type::Scalar(scalar)),
        Keyword::Vector(scalar, size) => Some(Type::Vector(scalar, size)),
        _ => None,
    };
    if let Some(name) = name.strip_prefix("as_") {
        return Some((Conversion::Bits, of(name)?));
    }
    let name = name.strip_prefix("convert_")?;
    // Conversions to integers round towards zero anyway.
    let name = name.strip_suffix("_rtz").unwrap_or(name);
    match name.strip_suffix("_sat") {
        Some(name) => Some((Conversion::Value { saturate: true }, of(name)?)),
        None => Some((Conversion::Value { saturate: false }, of(name)?)),
    }
}

impl Checker<'_> {
    pub(super) fn call(&mut self, callee: &ast::Expr, arguments: &[ast::Expr], span: Span) -> Expr {
        let Ast::Name(name) = callee.kind else {
            let note = "there are no function pointers: devices have no indirect calls; use `switch`";
            return self.report_error(callee.span, "only a function's name can be called", note);
        };
        let text = self.name(name);
        let found = self.find(name).map(|(symbol, _)| symbol.clone());
        if let (Some(reason), None) = (unsupported_functions::reason(&text), &found) {
            return self.report_error(span, format!("`{text}` is not supported in filters"), reason);
        }
        let arguments: Vec<Expr> = arguments.iter().map(|argument| self.value(argument)).collect();
        match found {
            Some(Symbol::Function(id)) => return self.user_call(id, arguments, span),
            Some(Symbol::Type(Type::Error)) => return Expr::error(span),
            Some(_) => return self.report_error(callee.span, format!("`{text}` is not a function"), ""),
            None => {}
        }
        if arguments.iter().any(|argument| argument.ty == Type::Error) {
            return Expr::error(span);
        }
        if let Some(intrinsic) = library::function(self.maps, &text) {
            return self.prelude(&text, intrinsic, arguments, span);
        }
        if let Some((conversion, ty)) = conversion(&text) {
            return self.conversion(&text, &conversion, ty, arguments, span);
        }
        if let Some((_, scalar)) = BYTE_SWAPS.iter().find(|(name, _)| *name == text) {
            return self.swap(&text, *scalar, arguments, span);
        }
        if let Some((_, builtin, count)) = BUILTINS.iter().find(|(name, ..)| *name == text) {
            return self.builtin(&text, *builtin, *count, arguments, span);
        }
        if text == "mul24" {
            return self.mul24(arguments, span);
        }
        if text == "upsample" {
            return self.upsample(arguments, span);
        }
        let known = || suggestions::suggest_function(&text).map(str::to_owned);
        let near = || self.nearest_function(&text).map(|nearest| format!("did you mean `{nearest}`?"));
        let note = known()
            .or_else(|| self.describe_map_functions(&text))
            .or_else(near)
            .or_else(|| self.missing_map_note(&text));
        let note = note.unwrap_or_else(|| "a function must be declared before it is called".into());
        self.report_error(callee.span, format!("there is no function `{text}`"), &note)
    }

    fn nearest_function(&self, name: &str) -> Option<String> {
        let own = self.scopes.iter().flat_map(|scope| &scope.symbols);
        let own = own.filter(|(_, (symbol, _))| matches!(symbol, Symbol::Function(_)));
        let own = own.map(|(&name, _)| self.names.text(name));
        let maps: Vec<String> = library::map_functions(self.maps).collect();
        let prelude = prelude::FUNCTIONS.iter().map(|(name, _)| *name).chain(maps.iter().map(|name| &**name));
        let builtins = BUILTINS.iter().map(|(name, ..)| *name).chain(BYTE_SWAPS.iter().map(|(name, _)| *name));
        let known = own.chain(prelude).chain(builtins).chain(["mul24", "upsample"]);
        nearest(name, known).map(str::to_owned)
    }

    pub(super) fn check_argument_count(&mut self, name: &str, wanted: usize, given: &[Expr], span: Span) -> bool {
        if wanted == given.len() {
            return true;
        }
        let plural = if wanted == 1 { "" } else { "s" };
        let message = format!("`{name}` takes {wanted} argument{plural}, found {}", given.len());
        self.errors.add(span, message, "", "");
        false
    }

    fn user_call(&mut self, id: FunctionId, arguments: Vec<Expr>, span: Span) -> Expr {
        let function = &self.functions[id.0 as usize];
        let (name, result) = (function.name.clone(), function.result.clone());
        // Parameter types come from the first declaration; the current function's locals are kept
        // separately.
        let locals = if self.current.id == Some(id) { &self.current.locals } else { &function.locals };
        let types: Vec<Type> = function.parameters.iter().map(|p| locals[p.0 as usize].ty.clone()).collect();
        if let Some(caller) = self.current.id {
            self.calls.push((caller, id, span));
        }
        if !self.check_argument_count(&name, types.len(), &arguments, span) {
            return Expr::error(span);
        }
        let mut converted = Vec::with_capacity(arguments.len());
        for (i, (argument, ty)) in arguments.into_iter().zip(&types).enumerate() {
            let what = format!("argument {} of `{name}`", i + 1);
            converted.push(self.convert_for_assignment(argument, ty, &what));
        }
        if converted.iter().any(|argument| argument.ty == Type::Error) {
            return Expr::error(span);
        }
        if name == portcullis_core::program::FILTER_FUNCTION {
            return self.report_error(span, "the filter calls itself", "the device calls it once for each packet");
        }
        if name == portcullis_core::program::FLOW_FUNCTION {
            let note = "the device calls it before the filter: put shared code into a helper function";
            return self.report_error(span, "the filter cannot call the flow function", note);
        }
        Expr { kind: ExprKind::Call(id, converted), ty: result, span }
    }

    /// Checks a call of a prelude function (docs/reference/semantics.md). Where the prelude takes a
    /// packet, C passes a pointer into it, and offsets are relative to the pointer.
    fn prelude(&mut self, name: &str, intrinsic: Intrinsic, arguments: Vec<Expr>, span: Span) -> Expr {
        let (numbers, result): (&[Type], Type) = match intrinsic {
            Intrinsic::PktLen | Intrinsic::PktWireLen | Intrinsic::PktPort | Intrinsic::PktTimeMs => (&[], UINT),
            Intrinsic::PktTime => (&[], Type::Scalar(Scalar::ULong)),
            Intrinsic::Load { .. } => (&[UINT], UINT),
            Intrinsic::Store { .. } => (&[UINT, UINT], Type::Void),
            Intrinsic::AdjustHead | Intrinsic::AdjustTail => (&[INT], Type::Scalar(Scalar::Bool)),
            Intrinsic::Redirect | Intrinsic::CsumFold => (&[UINT], UINT),
            Intrinsic::CsumAdd => (&[UINT, UINT], UINT),
            Intrinsic::CsumReplace16 | Intrinsic::CsumReplace32 => (&[UINT, UINT, UINT], UINT),
            Intrinsic::MapIsNew => (&[UINT], Type::Scalar(Scalar::Bool)),
            Intrinsic::Map { map, call } => return self.map_call(name, map, call, arguments, span),
        };
        let first = usize::from(intrinsic.takes_packet());
        if !self.check_argument_count(name, first + numbers.len(), &arguments, span) {
            return Expr::error(span);
        }
        let mut converted = Vec::with_capacity(arguments.len());
        for (i, argument) in arguments.into_iter().enumerate() {
            if i < first {
                let fits = matches!(&argument.ty, Type::Pointer(it) if matches!(it.space, None | Some(Space::Global)));
                if !fits {
                    let message = format!("argument 1 of `{name}` must be the packet");
                    return self.report_error(
                        argument.span,
                        message,
                        "the packet is the filter's parameter, or a pointer into it",
                    );
                }
                if let (Intrinsic::Store { .. }, Type::Pointer(it)) = (intrinsic, &argument.ty)
                    && it.constant
                {
                    return self.report_error(argument.span, format!("`{name}` cannot store here"), "it is `const`");
                }
                converted.push(argument);
            } else {
                converted.push(self.convert_for_assignment(
                    argument,
                    &numbers[i - first],
                    &format!("argument {} of `{name}`", i + 1),
                ));
            }
        }
        if converted.iter().any(|argument| argument.ty == Type::Error) {
            return Expr::error(span);
        }
        Expr { kind: ExprKind::Prelude(intrinsic, converted), ty: result, span }
    }

    fn conversion(&mut self, name: &str, how: &Conversion, ty: Type, mut arguments: Vec<Expr>, span: Span) -> Expr {
        if !self.check_argument_count(name, 1, &arguments, span) {
            return Expr::error(span);
        }
        let Some(value) = arguments.pop() else { return Expr::error(span) };
        let components = |ty: &Type| match ty {
            Type::Scalar(_) => Some(1),
            Type::Vector(_, size) => Some(*size),
            _ => None,
        };
        let same = components(&value.ty).is_some() && components(&value.ty) == components(&ty);
        match how {
            Conversion::Value { saturate } if same => {
                if *saturate && ty.element() != Some(Scalar::Float) && ty.element() != Some(Scalar::Bool) {
                    return Expr { kind: ExprKind::Saturate(value.into()), ty, span };
                }
                Expr { span, ..self.convert_to(value, &ty) }
            }
            Conversion::Bits => {
                let is_number = |ty: &Type| components(ty).is_some() && ty.element() != Some(Scalar::Bool);
                let fits =
                    is_number(&value.ty) && is_number(&ty) && self.structs.size(&value.ty) == self.structs.size(&ty);
                if !fits {
                    let message = format!("`{name}` of a `{}`", self.display_type(&value.ty));
                    return self.report_error(
                        span,
                        message,
                        "the bits are reinterpreted as another type of the same width",
                    );
                }
                if value.ty == ty { value } else { Expr { kind: ExprKind::Reinterpret(value.into()), ty, span } }
            }
            Conversion::Value { .. } => {
                let message = format!("`{name}` of a `{}`", self.display_type(&value.ty));
                self.report_error(span, message, "it takes a value of as many components")
            }
        }
    }

    fn swap(&mut self, name: &str, scalar: Scalar, mut arguments: Vec<Expr>, span: Span) -> Expr {
        if !self.check_argument_count(name, 1, &arguments, span) {
            return Expr::error(span);
        }
        let Some(value) = arguments.pop() else { return Expr::error(span) };
        let ty = Type::Scalar(scalar);
        let value = self.convert_for_assignment(value, &ty, &format!("argument 1 of `{name}`"));
        match value.constant() {
            _ if value.ty == Type::Error => value,
            Some(known) => {
                let swapped = if scalar == Scalar::UShort {
                    i128::from((known as u16).swap_bytes())
                } else {
                    i128::from((known as u32).swap_bytes())
                };
                Self::integer(swapped, ty, span)
            }
            None => Expr { kind: ExprKind::Builtin(Builtin::Swap, vec![value]), ty, span },
        }
    }

    fn mul24(&mut self, mut arguments: Vec<Expr>, span: Span) -> Expr {
        if !self.check_argument_count("mul24", 2, &arguments, span) {
            return Expr::error(span);
        }
        let (Some(right), Some(left)) = (arguments.pop(), arguments.pop()) else { return Expr::error(span) };
        // For operands of more than 24 bits the result is implementation-defined; here it is a
        // plain product.
        self.binary(ast::BinaryOp::Multiply, left, right, span)
    }

    /// Checks `upsample(high, low)`: the type of `high` decides; `low` is unsigned, of the same
    /// width.
    fn upsample(&mut self, mut arguments: Vec<Expr>, span: Span) -> Expr {
        if !self.check_argument_count("upsample", 2, &arguments, span) {
            return Expr::error(span);
        }
        let (Some(low), Some(high)) = (arguments.pop(), arguments.pop()) else { return Expr::error(span) };
        let Some((scalar, wider)) = high.ty.element().and_then(|scalar| Some((scalar, scalar.widened_type()?))) else {
            let message = format!("`upsample` of a `{}`", self.display_type(&high.ty));
            return self.report_error(
                high.span,
                message,
                "it takes integers of 8, 16 and 32 bits, and vectors of them",
            );
        };
        let low =
            self.convert_for_assignment(low, &high.ty.with_element(scalar.unsigned()), "argument 2 of `upsample`");
        if low.ty == Type::Error {
            return Expr::error(span);
        }
        let ty = high.ty.with_element(wider);
        Expr { kind: ExprKind::Builtin(Builtin::Upsample, vec![high, low]), ty, span }
    }

    fn builtin(&mut self, name: &str, builtin: Builtin, count: usize, mut arguments: Vec<Expr>, span: Span) -> Expr {
        if !self.check_argument_count(name, count, &arguments, span) {
            return Expr::error(span);
        }
        if let Some(other) = arguments.iter().find(|argument| argument.ty.element().is_none()) {
            let message = format!("`{name}` takes numbers and vectors, not `{}`", self.display_type(&other.ty));
            return self.report_error(other.span, message, "");
        }
        if builtin == Builtin::Select {
            let (Some(c), Some(b), Some(a)) = (arguments.pop(), arguments.pop(), arguments.pop()) else {
                return Expr::error(span);
            };
            let ty = a.ty.clone();
            if ty != b.ty {
                let Some((a, b)) = self.common(a, b, name, span) else { return Expr::error(span) };
                let ty = a.ty.clone();
                return self.select(a, b, c, &ty, span);
            }
            return self.select(a, b, c, &ty, span);
        }
        // Arguments of one type keep it (`rotate` of a uchar rotates 8 bits); otherwise scalars are
        // converted to the common type, or broadcast to the vector type.
        let same = arguments.windows(2).all(|pair| pair[0].ty == pair[1].ty);
        if !same {
            let vector = arguments.iter().find(|a| matches!(a.ty, Type::Vector(..))).map(|a| a.ty.clone());
            let ty = match vector {
                Some(vector) => vector,
                None => {
                    let scalars = arguments.iter().filter_map(|a| a.ty.scalar());
                    Type::Scalar(scalars.reduce(Scalar::common).unwrap_or(Scalar::Int))
                }
            };
            let what = format!("an argument of `{name}`");
            arguments =
                arguments.into_iter().map(|argument| self.convert_for_assignment(argument, &ty, &what)).collect();
        }
        let Some(ty) = arguments.first().map(|first| first.ty.clone()) else { return Expr::error(span) };
        if arguments.iter().any(|argument| argument.ty == Type::Error) {
            return Expr::error(span);
        }
        let Some(mut scalar) = ty.element() else { return Expr::error(span) };
        if scalar == Scalar::Bool {
            arguments = arguments.into_iter().map(|argument| self.convert_to(argument, &INT)).collect();
            scalar = Scalar::Int;
        }
        let for_floats = matches!(builtin, Builtin::Min | Builtin::Max | Builtin::Clamp | Builtin::Mad);
        if scalar == Scalar::Float && !for_floats {
            return self.report_error(span, format!("`{name}` takes integers"), "");
        }
        let ty = ty.with_element(scalar);
        let result = match builtin {
            Builtin::Abs | Builtin::AbsDiff => ty.with_element(scalar.unsigned()),
            Builtin::Any | Builtin::All => INT,
            _ => ty,
        };
        Expr { kind: ExprKind::Builtin(builtin, arguments), ty: result, span }
    }
}
