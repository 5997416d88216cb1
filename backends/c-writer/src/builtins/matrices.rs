//! Operators and built-in functions with a matrix as an operand.

use naga::{Scalar, TypeInner};

use crate::c_expr::CExpr;
use crate::types::COMPONENTS;
use crate::{Result, WriteError, Writer};

impl Writer<'_> {
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
