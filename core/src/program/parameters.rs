//! Parameters of a filter: resolution of its `override`s to values that the host gives. (Parameters
//! of a filter in OpenCL C are macros, which its preprocessor handles.)

use std::fmt;
use std::net::Ipv4Addr;

use naga::back::PipelineConstants;
use naga::back::pipeline_constants::{PipelineConstantError, process_overrides};
use naga::proc::{ConstantEvaluatorError, TypeResolution};
use naga::valid::{ModuleInfo, ValidationFlags, Validator};
use naga::{
    Block, EntryPoint, Expression, Function, Handle, Literal, LocalVariable, Module, Override, ShaderStage, Span,
    Statement, Type, TypeInner,
};

use super::{CAPABILITIES, is_computed};
use crate::diagnostics::{Diagnostic, Diagnostics, Source};

/// A parameter's value, in the parameter's type.
#[derive(Debug, Clone, PartialEq)]
pub enum ParameterValue {
    /// `u32`: decimal, hexadecimal (`0x1f`), or an IPv4 address (`10.0.0.1`, highest byte first).
    U32(u32),
    /// `i32`: decimal or hexadecimal, with or without `-`.
    I32(i32),
    /// `bool`: `true` or `false`.
    Bool(bool),
    /// `f32`, finite.
    F32(f32),
    /// A macro of OpenCL C that expands to something else: an expression, a string, a 64-bit
    /// number.
    Text(String),
}

impl ParameterValue {
    /// Name of the type in WGSL; `text` for a macro's expansion.
    pub fn type_name(&self) -> &'static str {
        match self {
            ParameterValue::U32(_) => "u32",
            ParameterValue::I32(_) => "i32",
            ParameterValue::Bool(_) => "bool",
            ParameterValue::F32(_) => "f32",
            ParameterValue::Text(_) => "text",
        }
    }

    /// The value in the form that naga's pass takes, which is exact for all four types of WGSL.
    /// `None` for text.
    fn as_f64(&self) -> Option<f64> {
        Some(match *self {
            ParameterValue::U32(value) => f64::from(value),
            ParameterValue::I32(value) => f64::from(value),
            ParameterValue::Bool(value) => f64::from(u8::from(value)),
            ParameterValue::F32(value) => f64::from(value),
            ParameterValue::Text(_) => return None,
        })
    }

    fn from_literal(literal: Literal) -> Option<ParameterValue> {
        Some(match literal {
            Literal::U32(value) => ParameterValue::U32(value),
            Literal::I32(value) => ParameterValue::I32(value),
            Literal::Bool(value) => ParameterValue::Bool(value),
            Literal::F32(value) => ParameterValue::F32(value),
            _ => return None,
        })
    }
}

impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterValue::U32(value) => write!(f, "{value}"),
            ParameterValue::I32(value) => write!(f, "{value}"),
            ParameterValue::Bool(value) => write!(f, "{value}"),
            ParameterValue::F32(value) => write!(f, "{value}"),
            ParameterValue::Text(value) => f.write_str(value),
        }
    }
}

/// A parameter of a filter.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Name of the `override` or macro.
    pub name: String,
    /// The effective value.
    pub value: ParameterValue,
    /// Whether the value is the filter's default.
    pub is_default: bool,
}

/// Replaces a valid module's `override`s by constants: the values in `given`, and the defaults of
/// the others.
///
/// # Errors
/// Unknown names, values of the wrong type, parameters without a value, and constant expressions
/// that cannot be evaluated with these values.
pub(super) fn resolve(
    source: &Source,
    module: Module,
    info: &ModuleInfo,
    filter: Handle<Function>,
    given: &[(String, String)],
) -> Result<(Module, Vec<Parameter>), Diagnostics> {
    let one = |error| Diagnostics::one(source, error);
    let values =
        parse_values(source, &module, given).map_err(|errors| Diagnostics { source: source.clone(), errors })?;
    if module.overrides.is_empty() {
        return Ok((module, Vec::new()));
    }
    let names: Vec<String> = module.overrides.iter().map(|(_, o)| o.name.clone().unwrap_or_default()).collect();
    // naga orders `override`s by dependency; parameters are listed in source order.
    let spans: Vec<_> =
        module.overrides.iter().map(|(handle, _)| module.overrides.get_span(handle).to_range()).collect();
    let constants = module
        .overrides
        .iter()
        .zip(&values)
        .filter_map(|((_, o), value)| Some((override_key(o), value.as_ref()?.as_f64()?)))
        .collect();
    let mut rooted = module;
    add_root_entry_point(&mut rooted, filter);
    // The pass requires a module that has been validated in this form.
    let rooted_info =
        Validator::new(ValidationFlags::all(), CAPABILITIES).validate(&rooted).unwrap_or_else(|_| info.clone());
    let mut resolved = substitute(&rooted, &rooted_info, &constants).map_err(|error| {
        let mut errors = match *error {
            // The module that the error refers to no longer exists.
            PipelineConstantError::ValidationError(error) => super::verifier::explain(source, None, &error),
            error => one(evaluation_failed(source, &rooted, &rooted_info, &constants, &error)),
        };
        let set = names.iter().zip(&values).filter_map(|(name, value)| Some(format!("`{name}` = {}", value.as_ref()?)));
        let set = set.collect::<Vec<_>>().join(", ");
        let set = if set.is_empty() { "with all parameters at their defaults".into() } else { format!("with {set}") };
        errors.errors.iter_mut().for_each(|error| error.notes.push(set.clone()));
        errors
    })?;
    resolved.entry_points.clear();
    resolved.overrides = naga::Arena::new();
    let mut parameters = names
        .into_iter()
        .zip(values)
        .zip(spans)
        .map(|((name, given), span)| {
            let is_default = given.is_none();
            let value = given.or_else(|| effective_value(&resolved, &name));
            let value = value.ok_or_else(|| one(Diagnostic::new(format!("the parameter `{name}` has no value"))))?;
            Ok((span.map(|p| p.start), Parameter { name, value, is_default }))
        })
        .collect::<Result<Vec<_>, Diagnostics>>()?;
    parameters.sort_by_key(|(span, _)| *span);
    Ok((resolved, parameters.into_iter().map(|(_, parameter)| parameter).collect()))
}

/// Name of a temporary entry point that keeps everything alive during the pass.
const ROOT: &str = "pc_root";

/// The key by which naga's pass looks up an `override`'s value.
fn override_key(o: &Override) -> String {
    o.id.map_or_else(|| o.name.clone().unwrap_or_default(), |id| id.to_string())
}

/// Adds an entry point that uses the filter, the prelude and every `override`, because naga's pass
/// drops everything that no entry point reaches.
fn add_root_entry_point(module: &mut Module, filter: Handle<Function>) {
    let mut function = Function::default();
    let mut body = Block::new();
    let overrides: Vec<_> = module.overrides.iter().map(|(handle, o)| (handle, o.ty)).collect();
    for (handle, ty) in overrides {
        let local = LocalVariable { name: None, ty, init: None };
        let local = function.local_variables.append(local, Span::UNDEFINED);
        let pointer = function.expressions.append(Expression::LocalVariable(local), Span::UNDEFINED);
        let value = function.expressions.append(Expression::Override(handle), Span::UNDEFINED);
        body.push(Statement::Store { pointer, value }, Span::UNDEFINED);
    }
    for (handle, callee) in module.functions.iter() {
        // Helpers are kept if something calls them. The prelude's functions take values only; keys
        // of maps may be arrays.
        let is_value = |ty| {
            matches!(module.types[ty].inner, TypeInner::Scalar(_) | TypeInner::Vector { .. } | TypeInner::Array { .. })
        };
        if handle != filter && !callee.arguments.iter().all(|argument| is_value(argument.ty)) {
            continue;
        }
        let arguments = callee.arguments.iter();
        let arguments = arguments.map(|a| function.expressions.append(Expression::ZeroValue(a.ty), Span::UNDEFINED));
        let arguments = arguments.collect();
        let result = callee
            .result
            .as_ref()
            .map(|_| function.expressions.append(Expression::CallResult(handle), Span::UNDEFINED));
        body.push(Statement::Call { function: handle, arguments, result }, Span::UNDEFINED);
    }
    body.push(Statement::Return { value: None }, Span::UNDEFINED);
    function.body = body;
    module.entry_points.push(EntryPoint {
        name: ROOT.into(),
        stage: ShaderStage::Compute,
        early_depth_test: None,
        workgroup_size: [1; 3],
        workgroup_size_overrides: None,
        function,
        mesh_info: None,
        task_payload: None,
        incoming_ray_payload: None,
    });
}

/// The value of the constant that replaced an `override`.
fn effective_value(module: &Module, name: &str) -> Option<ParameterValue> {
    let (_, constant) = module.constants.iter().find(|(_, c)| c.name.as_deref() == Some(name))?;
    let mut init = constant.init;
    loop {
        match module.global_expressions[init] {
            Expression::Literal(literal) => return ParameterValue::from_literal(literal),
            Expression::Constant(constant) => init = module.constants[constant].init,
            Expression::ZeroValue(ty) => match module.types[ty].inner {
                TypeInner::Scalar(scalar) => return ParameterValue::from_literal(Literal::zero(scalar)?),
                _ => return None,
            },
            _ => return None,
        }
    }
}

/// The parsed value for each `override`, in the module's order; `None` for those not given.
fn parse_values(
    source: &Source,
    module: &Module,
    given: &[(String, String)],
) -> Result<Vec<Option<ParameterValue>>, Vec<Diagnostic>> {
    let mut errors = Vec::new();
    let names: Vec<&str> = module.overrides.iter().map(|(_, o)| o.name.as_deref().unwrap_or_default()).collect();
    let list = match names.as_slice() {
        [] => "this filter has no parameters".to_owned(),
        names => {
            format!("its parameters are {}", names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "))
        }
    };
    for (i, (name, _)) in given.iter().enumerate() {
        if !names.contains(&name.as_str()) {
            errors.push(
                Diagnostic::new(format!("the filter has no parameter `{name}`"))
                    .with_parameter(name)
                    .note(&list)
                    .note("parameters are declared by `override NAME: TYPE = DEFAULT;`"),
            );
        } else if given[..i].iter().any(|(earlier, _)| earlier == name) {
            errors.push(
                Diagnostic::new(format!("the parameter `{name}` is given twice")).with_parameter(name).note(&list),
            );
        }
    }
    let mut values = Vec::new();
    for (handle, o) in module.overrides.iter() {
        let name = o.name.as_deref().unwrap_or_default();
        let at = super::verifier::name_range(source, module.overrides.get_span(handle), name);
        let located = |error: Diagnostic, label: &str| match at.clone() {
            Some(at) => error.at(at, label),
            None => error,
        };
        let zero = match module.types[o.ty].inner {
            TypeInner::Scalar(scalar) => Literal::zero(scalar).and_then(ParameterValue::from_literal),
            _ => None,
        };
        let Some(zero) = zero else {
            errors.push(located(
                Diagnostic::new(format!("the parameter `{name}` has a type that cannot be set")),
                "parameters are u32, i32, bool or f32",
            ));
            continue;
        };
        let text = given.iter().find(|(given, _)| given == name).map(|(_, text)| text);
        match text.map(|text| parse_value(text, zero).map_err(|reason| (text, reason))) {
            Some(Ok(value)) => values.push(Some(value)),
            Some(Err((text, reason))) => errors.push(located(
                Diagnostic::new(format!("`{text}` is no value for the parameter `{name}`: {reason}"))
                    .with_parameter(name)
                    .note(&list),
                "declared here",
            )),
            None if o.init.is_none() => errors.push(located(
                Diagnostic::new(format!("the parameter `{name}` has no value"))
                    .with_parameter(name)
                    .note(format!("it has no default: set it with `{name}=VALUE`, or give it one in the text")),
                "declared without a default",
            )),
            None => values.push(None),
        }
    }
    if errors.is_empty() { Ok(values) } else { Err(errors) }
}

/// Why a value with leading zeros is refused.
pub const LEADING_ZEROS: &str = "expected a number without leading zeros, which C reads as octal";

/// Whether a value is an integer with leading zeros, which C reads as octal and WGSL does not have.
/// All front ends refuse it, so that a value means the same in each.
pub fn has_leading_zeros(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text).trim_end_matches(|c: char| c.is_ascii_alphabetic());
    digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|digit| digit.is_ascii_digit())
}

/// Parses a value of the type of `like`.
fn parse_value(text: &str, like: ParameterValue) -> Result<ParameterValue, String> {
    let text = text.trim();
    match like {
        ParameterValue::U32(_) | ParameterValue::I32(_) | ParameterValue::F32(_) if has_leading_zeros(text) => {
            Err(LEADING_ZEROS.into())
        }
        ParameterValue::U32(_) => {
            if let Ok(address) = text.parse::<Ipv4Addr>() {
                return Ok(ParameterValue::U32(address.to_bits()));
            }
            let value = parse_integer(text.strip_suffix('u').unwrap_or(text))
                .ok_or("expected a number (`80`, `0x50`) or an IPv4 address (`10.0.0.1`)")?;
            u32::try_from(value).map(ParameterValue::U32).map_err(|_| "a u32 is 0 to 4294967295".into())
        }
        ParameterValue::I32(_) => {
            let value =
                parse_integer(text.strip_suffix('i').unwrap_or(text)).ok_or("expected a number (`-5`, `0x50`)")?;
            i32::try_from(value).map(ParameterValue::I32).map_err(|_| "an i32 is -2147483648 to 2147483647".into())
        }
        ParameterValue::Bool(_) => {
            text.parse().map(ParameterValue::Bool).map_err(|_| "expected `true` or `false`".into())
        }
        ParameterValue::F32(_) => match text.strip_suffix('f').unwrap_or(text).parse::<f32>() {
            Ok(value) if value.is_finite() => Ok(ParameterValue::F32(value)),
            Ok(_) => Err("an f32 parameter is finite".into()),
            Err(_) => Err("expected a number (`1.5`, `1e-3`)".into()),
        },
        ParameterValue::Text(_) => Ok(ParameterValue::Text(text.to_owned())),
    }
}

/// Parses a decimal or hexadecimal integer with an optional minus sign; saturates far outside the
/// range of any parameter.
fn parse_integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (radix, digits) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None => (10, digits),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let value = i128::from_str_radix(digits, radix).unwrap_or(i128::MAX);
    Some(if negative { -value } else { value })
}

/// Runs naga's pass: substitutes the constants and evaluates what depends on them.
fn substitute(
    rooted: &Module,
    info: &ModuleInfo,
    constants: &PipelineConstants,
) -> Result<Module, Box<PipelineConstantError>> {
    process_overrides(rooted, info, Some((ShaderStage::Compute, ROOT)), constants)
        .map(|(module, _)| module.into_owned())
        .map_err(Box::new)
}

/// The error for an expression that the pass cannot evaluate, with its location. The pass reports
/// no location, but it evaluates expressions in order, so a binary search finds the first one whose
/// removal lets it get further.
fn evaluation_failed(
    source: &Source,
    rooted: &Module,
    info: &ModuleInfo,
    constants: &PipelineConstants,
    error: &PipelineConstantError,
) -> Diagnostic {
    let message = match error {
        PipelineConstantError::ConstantEvaluatorError(ConstantEvaluatorError::InvalidAccessIndex) => {
            "the index is out of range".to_owned()
        }
        PipelineConstantError::ConstantEvaluatorError(ConstantEvaluatorError::ShiftedMoreThan32Bits) => {
            "the shift count is 32 or more".to_owned()
        }
        error => super::verifier::plain_message(&error.to_string()),
    };
    let diagnostic = Diagnostic::new(message);
    if !matches!(error, PipelineConstantError::ConstantEvaluatorError(_)) {
        return diagnostic;
    }
    let fails = |kept: usize| {
        let module = without_values(rooted, info, kept);
        substitute(&module, info, constants)
            .is_err_and(|error| matches!(*error, PipelineConstantError::ConstantEvaluatorError(_)))
    };
    let spans: Vec<Span> = expressions(rooted).map(|(_, _, span)| span).collect();
    let (mut least, mut most) = (0, spans.len());
    while least < most {
        let middle = least.midpoint(most);
        if fails(middle) { most = middle } else { least = middle + 1 }
    }
    let culprit = least.checked_sub(1).and_then(|last| spans.get(last));
    match culprit.and_then(|span| super::verifier::text_range(source, *span)) {
        Some(at) => diagnostic.at(at, ""),
        None => diagnostic,
    }
}

/// All expressions in the order in which naga's pass evaluates them; module-scope expressions have
/// no function.
fn expressions(module: &Module) -> impl Iterator<Item = (Option<Handle<Function>>, Handle<Expression>, Span)> {
    let global = module.global_expressions.iter().map(|(e, _)| (None, e, module.global_expressions.get_span(e)));
    let local = module.functions.iter().flat_map(|(handle, function)| {
        function.expressions.iter().map(move |(e, _)| (Some(handle), e, function.expressions.get_span(e)))
    });
    global.chain(local)
}

/// The module with zeros in place of all values after the first `kept` expressions. The pass drops
/// unused expressions, but in functions a name counts as a use; at module scope, an initialiser is
/// replaced as a whole.
fn without_values(module: &Module, info: &ModuleInfo, kept: usize) -> Module {
    let mut blank = module.clone();
    for (function, expression, _) in expressions(module).take(kept) {
        if let Some(handle) = function {
            blank.functions[handle].named_expressions.entry(expression).or_default();
        }
    }
    for (function, expression, _) in expressions(module).skip(kept) {
        let (found, ty) = match function {
            Some(handle) => (&mut blank.functions[handle].expressions[expression], &info[handle][expression].ty),
            None => (&mut blank.global_expressions[expression], &info[expression]),
        };
        if !is_computed(found) || ty.inner_with(&module.types).pointer_space().is_some() {
            continue;
        }
        let ty = match ty {
            TypeResolution::Handle(ty) => *ty,
            TypeResolution::Value(inner) => {
                blank.types.insert(Type { name: None, inner: inner.clone() }, Span::UNDEFINED)
            }
        };
        *found = Expression::ZeroValue(ty);
    }
    blank
}
