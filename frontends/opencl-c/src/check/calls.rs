//! Calls: of the filter's own functions, of the prelude, of OpenCL C's built-in functions for integers
//! and vectors (OpenCL C 1.2, 6.12.3, 6.12.6), and conversions by name (6.2.3, 6.2.4).

use super::expressions::wrong;
use super::{Checker, Symbol, absent};
use crate::ast::{self, ExprKind as Ast, Space};
use crate::files::Span;
use crate::foreign;
use crate::library;
use crate::parser::{Keyword, keyword};
use crate::tree::{Builtin, Expr, ExprKind, FunctionId};
use crate::types::{INT, Scalar, Type, UINT};
use portcullis_core::program::prelude::{self, Intrinsic};
use portcullis_core::spelling::nearest;

/// Functions that take so many arguments, all of one type.
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

/// Network order: not OpenCL C's, but what headers are read with. A filter may define its own.
const SWAPS: &[(&str, Scalar)] =
    &[("ntohs", Scalar::UShort), ("htons", Scalar::UShort), ("ntohl", Scalar::UInt), ("htonl", Scalar::UInt)];

/// Whether OpenCL C has this as a built-in function.
pub(super) fn is_builtin(name: &str) -> bool {
    BUILTINS.iter().any(|(builtin, ..)| *builtin == name)
        || matches!(name, "mul24" | "upsample")
        || conversion(name).is_some()
}

enum Conversion {
    Value { saturate: bool },
    Bits,
}

/// `convert_uchar4_sat`, `as_uint`: what it does, and to which type.
fn conversion(name: &str) -> Option<(Conversion, Type)> {
    let of = |name| match keyword(name)? {
        Keyword::Scalar(scalar) => Some(Type::Scalar(scalar)),
        Keyword::Vector(scalar, size) => Some(Type::Vector(scalar, size)),
        _ => None,
    };
    if let Some(name) = name.strip_prefix("as_") {
        return Some((Conversion::Bits, of(name)?));
    }
    let name = name.strip_prefix("convert_")?;
    // Towards zero is what conversions to integers do anyway.
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
            return self.wrong(callee.span, "only a function's name can be called", note);
        };
        let text = self.name(name);
        let found = self.find(name).map(|(symbol, _)| symbol.clone());
        if let (Some(reason), None) = (absent::reason(&text), &found) {
            return self.wrong(span, format!("`{text}` is not for filters"), reason);
        }
        let arguments: Vec<Expr> = arguments.iter().map(|argument| self.value(argument)).collect();
        match found {
            Some(Symbol::Function(id)) => return self.own(id, arguments, span),
            Some(Symbol::Type(Type::Wrong)) => return wrong(span),
            Some(_) => return self.wrong(callee.span, format!("`{text}` is no function"), ""),
            None => {}
        }
        if arguments.iter().any(|argument| argument.ty == Type::Wrong) {
            return wrong(span);
        }
        if let Some(intrinsic) = library::function(self.maps, &text) {
            return self.prelude(&text, intrinsic, arguments, span);
        }
        if let Some((conversion, ty)) = conversion(&text) {
            return self.conversion(&text, &conversion, ty, arguments, span);
        }
        if let Some((_, scalar)) = SWAPS.iter().find(|(name, _)| *name == text) {
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
        let known = || foreign::function_instead(&text).map(str::to_owned);
        let near = || self.nearest_function(&text).map(|nearest| format!("did you mean `{nearest}`?"));
        let note = known().or_else(|| self.calls_of_its_map(&text)).or_else(near).or_else(|| self.wants_maps(&text));
        let note = note.unwrap_or_else(|| "a function is declared before it is called".into());
        self.wrong(callee.span, format!("there is no function `{text}`"), &note)
    }

    fn nearest_function(&self, name: &str) -> Option<String> {
        let own = self.scopes.iter().flat_map(|scope| &scope.symbols);
        let own = own.filter(|(_, (symbol, _))| matches!(symbol, Symbol::Function(_)));
        let own = own.map(|(&name, _)| self.names.text(name));
        let maps: Vec<String> = library::map_functions(self.maps).collect();
        let prelude = prelude::FUNCTIONS.iter().map(|(name, _)| *name).chain(maps.iter().map(|name| &**name));
        let builtins = BUILTINS.iter().map(|(name, ..)| *name).chain(SWAPS.iter().map(|(name, _)| *name));
        let known = own.chain(prelude).chain(builtins).chain(["mul24", "upsample"]);
        nearest(name, known).map(str::to_owned)
    }

    pub(super) fn count(&mut self, name: &str, wanted: usize, given: &[Expr], span: Span) -> bool {
        if wanted == given.len() {
            return true;
        }
        let plural = if wanted == 1 { "" } else { "s" };
        let message = format!("`{name}` takes {wanted} argument{plural}, given are {}", given.len());
        self.errors.add(span, message, "", "");
        false
    }

    fn own(&mut self, id: FunctionId, arguments: Vec<Expr>, span: Span) -> Expr {
        let function = &self.functions[id.0 as usize];
        let (name, result) = (function.name.clone(), function.result.clone());
        // The types are those of the first declaration; the function under way has its locals elsewhere.
        let locals = if self.current.id == Some(id) { &self.current.locals } else { &function.locals };
        let types: Vec<Type> = function.parameters.iter().map(|p| locals[p.0 as usize].ty.clone()).collect();
        if let Some(caller) = self.current.id {
            self.calls.push((caller, id, span));
        }
        if !self.count(&name, types.len(), &arguments, span) {
            return wrong(span);
        }
        let mut converted = Vec::with_capacity(arguments.len());
        for (i, (argument, ty)) in arguments.into_iter().zip(&types).enumerate() {
            let what = format!("argument {} of `{name}`", i + 1);
            converted.push(self.assigned(argument, ty, &what));
        }
        if converted.iter().any(|argument| argument.ty == Type::Wrong) {
            return wrong(span);
        }
        if name == portcullis_core::program::FILTER_FUNCTION {
            return self.wrong(span, "the filter calls itself", "it is called once for each packet, by the device");
        }
        if name == portcullis_core::program::FLOW_FUNCTION {
            let note = "it is called before the filter, by the device: a helper can be called from both";
            return self.wrong(span, "a packet's flow is not for the filter to ask", note);
        }
        Expr { kind: ExprKind::Call(id, converted), ty: result, span }
    }

    /// The prelude's functions, under the names and with the parameters of docs/semantics.md; where a
    /// packet is wanted, a pointer into it, from which offsets count.
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
        if !self.count(name, first + numbers.len(), &arguments, span) {
            return wrong(span);
        }
        let mut converted = Vec::with_capacity(arguments.len());
        for (i, argument) in arguments.into_iter().enumerate() {
            if i < first {
                let fits = matches!(&argument.ty, Type::Pointer(it) if matches!(it.space, None | Some(Space::Global)));
                if !fits {
                    let message = format!("argument 1 of `{name}` has to be the packet");
                    return self.wrong(
                        argument.span,
                        message,
                        "the packet is the filter's parameter, or a pointer into it",
                    );
                }
                if let (Intrinsic::Store { .. }, Type::Pointer(it)) = (intrinsic, &argument.ty)
                    && it.constant
                {
                    return self.wrong(argument.span, format!("`{name}` cannot store here"), "it is `const`");
                }
                converted.push(argument);
            } else {
                converted.push(self.assigned(
                    argument,
                    &numbers[i - first],
                    &format!("argument {} of `{name}`", i + 1),
                ));
            }
        }
        if converted.iter().any(|argument| argument.ty == Type::Wrong) {
            return wrong(span);
        }
        Expr { kind: ExprKind::Prelude(intrinsic, converted), ty: result, span }
    }

    fn conversion(&mut self, name: &str, how: &Conversion, ty: Type, mut arguments: Vec<Expr>, span: Span) -> Expr {
        if !self.count(name, 1, &arguments, span) {
            return wrong(span);
        }
        let Some(value) = arguments.pop() else { return wrong(span) };
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
                Expr { span, ..self.converted(value, &ty) }
            }
            Conversion::Bits => {
                let is_number = |ty: &Type| components(ty).is_some() && ty.element() != Some(Scalar::Bool);
                let fits =
                    is_number(&value.ty) && is_number(&ty) && self.structs.size(&value.ty) == self.structs.size(&ty);
                if !fits {
                    let message = format!("`{name}` of a `{}`", self.shown(&value.ty));
                    return self.wrong(span, message, "the bits of a number or vector are taken for another as wide");
                }
                if value.ty == ty { value } else { Expr { kind: ExprKind::Reinterpret(value.into()), ty, span } }
            }
            Conversion::Value { .. } => {
                let message = format!("`{name}` of a `{}`", self.shown(&value.ty));
                self.wrong(span, message, "it takes a value of as many components")
            }
        }
    }

    fn swap(&mut self, name: &str, scalar: Scalar, mut arguments: Vec<Expr>, span: Span) -> Expr {
        if !self.count(name, 1, &arguments, span) {
            return wrong(span);
        }
        let Some(value) = arguments.pop() else { return wrong(span) };
        let ty = Type::Scalar(scalar);
        let value = self.assigned(value, &ty, &format!("argument 1 of `{name}`"));
        match value.constant() {
            _ if value.ty == Type::Wrong => value,
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
        if !self.count("mul24", 2, &arguments, span) {
            return wrong(span);
        }
        let (Some(right), Some(left)) = (arguments.pop(), arguments.pop()) else { return wrong(span) };
        // What does not fit in 24 bits is left to the implementation: here it is a multiplication.
        self.binary(ast::BinaryOp::Multiply, left, right, span)
    }

    /// `upsample(high, low)`: what decides is the type of the first; the second is the same without a sign.
    fn upsample(&mut self, mut arguments: Vec<Expr>, span: Span) -> Expr {
        if !self.count("upsample", 2, &arguments, span) {
            return wrong(span);
        }
        let (Some(low), Some(high)) = (arguments.pop(), arguments.pop()) else { return wrong(span) };
        let Some((scalar, wider)) = high.ty.element().and_then(|scalar| Some((scalar, scalar.of_twice_the_width()?)))
        else {
            let message = format!("`upsample` of a `{}`", self.shown(&high.ty));
            return self.wrong(high.span, message, "it takes integers of 8, 16 and 32 bits, and vectors of them");
        };
        let low = self.assigned(low, &high.ty.with_element(scalar.unsigned()), "argument 2 of `upsample`");
        if low.ty == Type::Wrong {
            return wrong(span);
        }
        let ty = high.ty.with_element(wider);
        Expr { kind: ExprKind::Builtin(Builtin::Upsample, vec![high, low]), ty, span }
    }

    fn builtin(&mut self, name: &str, builtin: Builtin, count: usize, mut arguments: Vec<Expr>, span: Span) -> Expr {
        if !self.count(name, count, &arguments, span) {
            return wrong(span);
        }
        if let Some(other) = arguments.iter().find(|argument| argument.ty.element().is_none()) {
            let message = format!("`{name}` takes numbers and vectors, not `{}`", self.shown(&other.ty));
            return self.wrong(other.span, message, "");
        }
        if builtin == Builtin::Select {
            let (Some(c), Some(b), Some(a)) = (arguments.pop(), arguments.pop(), arguments.pop()) else {
                return wrong(span);
            };
            let ty = a.ty.clone();
            if ty != b.ty {
                let Some((a, b)) = self.common(a, b, name, span) else { return wrong(span) };
                let ty = a.ty.clone();
                return self.select(a, b, c, &ty, span);
            }
            return self.select(a, b, c, &ty, span);
        }
        // Of the same type they stay as they are (`rotate` of uchar turns 8 bits); numbers of different
        // types go to the common one, and go with vectors.
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
            arguments = arguments.into_iter().map(|argument| self.assigned(argument, &ty, &what)).collect();
        }
        let Some(ty) = arguments.first().map(|first| first.ty.clone()) else { return wrong(span) };
        if arguments.iter().any(|argument| argument.ty == Type::Wrong) {
            return wrong(span);
        }
        let Some(mut scalar) = ty.element() else { return wrong(span) };
        if scalar == Scalar::Bool {
            arguments = arguments.into_iter().map(|argument| self.converted(argument, &INT)).collect();
            scalar = Scalar::Int;
        }
        let for_floats = matches!(builtin, Builtin::Min | Builtin::Max | Builtin::Clamp | Builtin::Mad);
        if scalar == Scalar::Float && !for_floats {
            return self.wrong(span, format!("`{name}` takes integers"), "");
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
