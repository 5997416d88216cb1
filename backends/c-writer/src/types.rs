//! Types, their zero values, and constants.
//!
//! Arrays and matrices are structs with one member, `at`, since C arrays cannot be assigned, passed
//! or returned.

use naga::{ArraySize, Expression, Handle, Literal, Scalar, ScalarKind, Type, TypeInner};

use crate::{Result, WriteError, Writer, dialect};

pub(crate) const COMPONENTS: [&str; 4] = ["x", "y", "z", "w"];

impl Writer<'_> {
    /// Names all types, constants and struct members of the module, before any function is named.
    pub(crate) fn name_types(&mut self) {
        for (handle, ty) in self.module.types.iter() {
            let name = match &ty.inner {
                TypeInner::Struct { members, .. } => {
                    let mut names = crate::scope::Scope::within(&self.words);
                    // In C++ a member must not have the name of a type that the struct uses. Member
                    // types come first.
                    members
                        .iter()
                        .filter_map(|member| self.type_names.get(&member.ty))
                        .for_each(|ty| names.reserve(ty));
                    let members = members.iter().enumerate().map(|(index, member)| match &member.name {
                        Some(name) => names.unique_name(name),
                        None => names.unique_name(&format!("member{index}")),
                    });
                    self.members.insert(handle, members.collect());
                    ty.name.clone().unwrap_or_else(|| "pair".into())
                }
                TypeInner::Array { base, size: ArraySize::Constant(length), .. } => {
                    format!("{}_array{length}", self.stem(*base))
                }
                TypeInner::Matrix { columns, rows, .. } => format!("mat{}x{}", *columns as u8, *rows as u8),
                _ => continue,
            };
            let name = self.names.unique_name(&name);
            self.type_names.insert(handle, name);
        }
    }

    /// Name of an element type as part of its array's name.
    fn stem(&self, ty: Handle<Type>) -> String {
        match self.module.types[ty].inner {
            TypeInner::Scalar(scalar) => self.dialect.scalar(scalar).into(),
            TypeInner::Vector { size, scalar } => self.dialect.vector_type(scalar, size as usize).0,
            _ => self.type_names.get(&ty).cloned().unwrap_or_else(|| "pc_unknown".into()),
        }
    }

    /// Returns the name of a type, and defines it if it is new.
    pub(crate) fn type_name(&mut self, handle: Handle<Type>) -> Result<String> {
        let module = self.module;
        let inner = &module.types[handle].inner;
        let definition = match inner {
            TypeInner::Struct { .. } | TypeInner::Array { .. } | TypeInner::Matrix { .. } => {
                let name = self.type_names.get(&handle).cloned().ok_or_else(|| unsupported_type(inner))?;
                if !self.defined.insert(handle) {
                    return Ok(name);
                }
                match inner {
                    TypeInner::Struct { members, .. } => {
                        let mut text = String::from("typedef struct {\n");
                        for (index, member) in members.iter().enumerate() {
                            let ty = self.type_name(member.ty)?;
                            text += &format!("    {ty} {};\n", self.members[&handle][index]);
                        }
                        format!("{text}}} {name};\n")
                    }
                    TypeInner::Array { base, size: ArraySize::Constant(length), .. } => {
                        format!("typedef struct {{ {} at[{length}]; }} {name};\n", self.type_name(*base)?)
                    }
                    TypeInner::Matrix { columns, rows, scalar } => {
                        let column = self.vector_name(*scalar, *rows as usize);
                        format!("typedef struct {{ {column} at[{}]; }} {name};\n", *columns as u8)
                    }
                    _ => return Err(unsupported_type(inner)),
                }
            }
            _ => return self.inner_name(inner),
        };
        self.types += &definition;
        Ok(self.type_names[&handle].clone())
    }

    /// Returns the name of a type that may lack a handle.
    pub(crate) fn inner_name(&mut self, inner: &TypeInner) -> Result<String> {
        match *inner {
            TypeInner::Scalar(scalar) => Ok(self.dialect.scalar(scalar).into()),
            TypeInner::Vector { size, scalar } => Ok(self.vector_name(scalar, size as usize)),
            TypeInner::Pointer { base, .. } => Ok(format!("{} *", self.type_name(base)?)),
            TypeInner::Matrix { .. } => {
                let module = self.module;
                match module.types.iter().find(|(_, ty)| ty.inner == *inner) {
                    Some((handle, _)) => self.type_name(handle),
                    None => self.loose_matrix(inner),
                }
            }
            ref other => Err(unsupported_type(other)),
        }
    }

    /// Returns the name of a matrix type that only an intermediate result has.
    fn loose_matrix(&mut self, inner: &TypeInner) -> Result<String> {
        let &TypeInner::Matrix { columns, rows, scalar } = inner else { return Err(unsupported_type(inner)) };
        let name = format!("pc_mat{}x{}", columns as u8, rows as u8);
        if self.defined_helpers.insert(name.clone()) {
            let column = self.vector_name(scalar, rows as usize);
            self.types += &format!("typedef struct {{ {column} at[{}]; }} {name};\n", columns as u8);
        }
        Ok(name)
    }

    /// Returns the name of a vector type.
    pub(crate) fn vector_name(&mut self, scalar: Scalar, size: usize) -> String {
        let (name, definition) = self.dialect.vector_type(scalar, size);
        if let Some(definition) = definition
            && self.defined_helpers.insert(name.clone())
        {
            self.types += &definition;
            self.types.push('\n');
        }
        name
    }

    /// Writes a literal.
    pub(crate) fn literal(&self, literal: Literal) -> Result<String> {
        Ok(match literal {
            Literal::Bool(value) => value.to_string(),
            Literal::U32(value) => format!("{value}u"),
            // -2147483648 would be the negation of a literal that is not an `int`.
            Literal::I32(i32::MIN) => "(-2147483647 - 1)".into(),
            Literal::I32(value) => signed(value, ""),
            Literal::U64(value) => format!("{value}{}", self.dialect.wide_suffix(false)),
            Literal::I64(i64::MIN) => {
                let suffix = self.dialect.wide_suffix(true);
                format!("(-9223372036854775807{suffix} - 1{suffix})")
            }
            Literal::I64(value) => signed(value, self.dialect.wide_suffix(true)),
            Literal::F32(value) if value.is_finite() => signed(format!("{value:?}"), "f"),
            Literal::F32(value) => self.dialect.float_bits(&format!("0x{:08x}u", value.to_bits()), true),
            other => return Err(WriteError::Unsupported(format!("the literal {other:?}"))),
        })
    }

    /// The zero of a scalar type.
    pub(crate) fn scalar_zero(&self, scalar: Scalar) -> Result<String> {
        let zero = Literal::zero(scalar).ok_or_else(|| unsupported_type(&TypeInner::Scalar(scalar)))?;
        self.literal(zero)
    }

    /// The zero of a type, as a value.
    pub(crate) fn zero(&mut self, ty: Handle<Type>) -> Result<String> {
        let inner = &self.module.types[ty].inner;
        match *inner {
            TypeInner::Scalar(scalar) => self.scalar_zero(scalar),
            TypeInner::Vector { size, scalar } => {
                let name = self.vector_name(scalar, size as usize);
                Ok(self.dialect.vector(&name, &vec![self.scalar_zero(scalar)?; size as usize]))
            }
            _ => {
                let name = self.type_name(ty)?;
                let first = self.zero_initialiser(ty)?;
                Ok(self.dialect.zero(&name, &first))
            }
        }
    }

    /// Contents of the braces that initialise a type to zero: its first scalar or vector, since C
    /// zeroes the rest (C99, section 6.7.8, paragraph 21).
    fn zero_initialiser(&mut self, ty: Handle<Type>) -> Result<String> {
        let inner = &self.module.types[ty].inner;
        match inner {
            TypeInner::Scalar(scalar) => self.scalar_zero(*scalar),
            &TypeInner::Vector { size, scalar } => {
                let name = self.vector_name(scalar, size as usize);
                Ok(self.dialect.vector_initialiser(&name, &vec![self.scalar_zero(scalar)?; size as usize]))
            }
            &TypeInner::Matrix { rows, scalar, .. } => {
                let name = self.vector_name(scalar, rows as usize);
                let zeros = vec![self.scalar_zero(scalar)?; rows as usize];
                Ok(format!("{{{}}}", self.dialect.vector_initialiser(&name, &zeros)))
            }
            TypeInner::Array { base, .. } => Ok(format!("{{{}}}", self.braced_zero(*base)?)),
            TypeInner::Struct { members, .. } => match members.first() {
                Some(member) => self.braced_zero(member.ty),
                None => Ok(String::new()),
            },
            other => Err(unsupported_type(other)),
        }
    }

    fn braced_zero(&mut self, ty: Handle<Type>) -> Result<String> {
        let zero = self.zero_initialiser(ty)?;
        let plain = matches!(self.module.types[ty].inner, TypeInner::Scalar(_) | TypeInner::Vector { .. });
        Ok(if plain { zero } else { format!("{{{zero}}}") })
    }

    /// Returns the name of a constant, and defines it if it is new.
    pub(crate) fn constant(&mut self, constant: Handle<naga::Constant>) -> Result<String> {
        let module = self.module;
        let of = &module.constants[constant];
        // Unnamed numbers are written as literals.
        let Some(name) = self.constant_names.get(&constant).cloned() else { return self.initialiser(of.init) };
        if self.constants_written.insert(constant) {
            let init = self.initialiser(of.init)?;
            let ty = match module.types[of.ty].inner {
                TypeInner::Scalar(Scalar::BOOL) => self.dialect.constant_bool().to_owned(),
                _ => self.type_name(of.ty)?,
            };
            let table = !matches!(module.types[of.ty].inner, TypeInner::Scalar(_));
            let start = self.dialect.constant(table);
            self.constants += &format!("{start}{ty} {name} = {init};\n");
        }
        Ok(name)
    }

    /// Writes a constant expression as an initialiser at file scope.
    fn initialiser(&mut self, expression: Handle<Expression>) -> Result<String> {
        let module = self.module;
        match &module.global_expressions[expression] {
            Expression::Literal(literal) => self.literal(*literal),
            Expression::Constant(constant) => self.initialiser(module.constants[*constant].init),
            Expression::ZeroValue(ty) => self.braced_zero(*ty),
            Expression::Splat { size, value } => {
                let scalar = self.global_scalar(expression)?;
                let name = self.vector_name(scalar, *size as usize);
                let value = self.initialiser(*value)?;
                Ok(self.dialect.vector_initialiser(&name, &vec![value; *size as usize]))
            }
            Expression::Compose { ty, components } => match module.types[*ty].inner {
                TypeInner::Vector { size, scalar } => {
                    let name = self.vector_name(scalar, size as usize);
                    let parts = self.vector_parts(expression)?;
                    Ok(self.dialect.vector_initialiser(&name, &parts))
                }
                ref inner => {
                    let parts =
                        components.iter().map(|&part| self.initialiser(part)).collect::<Result<Vec<_>>>()?.join(", ");
                    let wrapped = matches!(inner, TypeInner::Array { .. } | TypeInner::Matrix { .. });
                    Ok(if wrapped { format!("{{{{{parts}}}}}") } else { format!("{{{parts}}}") })
                }
            },
            other => Err(WriteError::Unsupported(format!("the constant expression {other:?}"))),
        }
    }

    fn global_scalar(&self, expression: Handle<Expression>) -> Result<Scalar> {
        let inner = self.lowered.info[expression].inner_with(&self.module.types);
        inner.scalar().ok_or_else(|| unsupported_type(inner))
    }

    /// Writes the components of a constant vector, which may consist of vectors.
    fn vector_parts(&mut self, expression: Handle<Expression>) -> Result<Vec<String>> {
        let module = self.module;
        let inner = self.lowered.info[expression].inner_with(&module.types);
        let TypeInner::Vector { size, scalar } = *inner else { return Ok(vec![self.initialiser(expression)?]) };
        match &module.global_expressions[expression] {
            Expression::Compose { components, .. } => {
                let parts = components.iter().map(|&part| self.vector_parts(part)).collect::<Result<Vec<_>>>()?;
                Ok(parts.concat())
            }
            Expression::Splat { value, .. } => Ok(vec![self.initialiser(*value)?; size as usize]),
            Expression::ZeroValue(_) => Ok(vec![self.scalar_zero(scalar)?; size as usize]),
            Expression::Constant(constant) => self.vector_parts(module.constants[*constant].init),
            other => Err(WriteError::Unsupported(format!("the constant expression {other:?}"))),
        }
    }

    /// Writes a constant expression as a value.
    pub(crate) fn constant_value(&mut self, expression: Handle<Expression>) -> Result<String> {
        let module = self.module;
        let text = self.initialiser(expression)?;
        let Some(ty) = self.lowered.info[expression].handle() else { return Ok(text) };
        match module.types[ty].inner {
            TypeInner::Scalar(_) | TypeInner::Vector { .. } => Ok(text),
            _ => {
                let name = self.type_name(ty)?;
                // The struct value adds the initialiser's braces itself.
                Ok(self
                    .dialect
                    .structure(&name, text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(&text)))
            }
        }
    }
}

/// A number that may be negative, parenthesised if so.
fn signed(value: impl ToString, suffix: &str) -> String {
    let text = value.to_string();
    if text.starts_with('-') { format!("({text}{suffix})") } else { format!("{text}{suffix}") }
}

/// Whether a scalar type is a signed integer.
pub(crate) fn is_signed(scalar: Scalar) -> bool {
    scalar.kind == ScalarKind::Sint
}

/// The unsigned type of the same width.
pub(crate) fn unsigned(scalar: Scalar) -> Scalar {
    Scalar { kind: ScalarKind::Uint, ..scalar }
}

pub(crate) fn unsupported_type(inner: &TypeInner) -> WriteError {
    match inner.scalar() {
        Some(scalar) => WriteError::Unsupported(format!("the type {} here", dialect::short_name(scalar))),
        None => WriteError::Unsupported(format!("the type {inner:?}")),
    }
}
