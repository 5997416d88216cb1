//! Built-in functions that take whole vectors, and components at run-time indices.

use naga::{MathFunction, Scalar};

use super::unsupported_builtin;
use crate::c_expr::CExpr;
use crate::dialect::short_name;
use crate::types::{COMPONENTS, is_signed, unsigned};
use crate::{Result, Writer};

impl Writer<'_> {
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
}
