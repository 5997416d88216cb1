//! Declarations and types (C11 6.7, 6.9), with OpenCL C's address spaces.

use std::collections::HashMap;

use super::{ErrorReported, Keyword, ParseResult, Parser, is};
use crate::ast::{
    Base, Declaration, Declarator, Designator, Entry, Enum, Expr, Function, Init, Item, Parameter, Pointer, Specifiers,
    Struct, TypeName,
};
use crate::files::Span;
use crate::suggestions;
use crate::token::{Name, TokenKind};
use crate::types::{Scalar, Space};

/// Type specifiers parsed so far, such as `unsigned long int`.
#[derive(Default)]
struct TypeSpecifiers {
    base: Option<Base>,
    signed: bool,
    unsigned: bool,
    long: u8,
    packed: bool,
}

impl Parser<'_> {
    /// Parses a function definition or a declaration outside functions.
    pub(super) fn item(&mut self, items: &mut Vec<Item>) -> ParseResult<()> {
        if self.consume(";") {
            return Ok(());
        }
        if !self.is_type_at(0) {
            return match (self.identifier(), self.keyword()) {
                (Some(name), None) => {
                    self.unknown_type(name, "outside functions only declarations are allowed; each starts with a type")
                }
                (_, Some(Keyword::Unsupported(reason))) => {
                    let message = format!("{} is not supported in filters", self.describe_token());
                    self.fail(message, reason)
                }
                (None, _) if self.is("}") => self.fail("this `}` has no opening brace", ""),
                _ => {
                    let message = format!("expected a declaration, found {}", self.describe_token());
                    self.fail(message, "outside functions only declarations are allowed: is there an extra `}` above?")
                }
            };
        }
        let specifiers = self.specifiers()?;
        if self.consume(";") {
            items.push(Item::Declaration(Declaration { specifiers, declarators: Vec::new() }));
            return Ok(());
        }
        let mut first = self.declarator()?;
        self.declare(first.name, specifiers.typedef);
        if first.parameters.is_some() && self.consume("{") {
            self.scopes.push(HashMap::new());
            for (name, _) in first.parameters.iter().flatten().filter_map(|p| p.name) {
                self.declare(name, false);
            }
            let body = self.block();
            self.scopes.pop();
            items.push(Item::Function(Function { specifiers, declarator: first, body: body? }));
            return Ok(());
        }
        first.init = self.initialiser()?;
        let declaration = self.rest_of_declaration(specifiers, first)?;
        items.push(Item::Declaration(declaration));
        Ok(())
    }

    /// Parses a declaration in a block, including its `;`.
    pub(super) fn declaration(&mut self) -> ParseResult<Declaration> {
        let specifiers = self.specifiers()?;
        if self.consume(";") {
            return Ok(Declaration { specifiers, declarators: Vec::new() });
        }
        let mut first = self.declarator()?;
        self.declare(first.name, specifiers.typedef);
        first.init = self.initialiser()?;
        self.rest_of_declaration(specifiers, first)
    }

    fn rest_of_declaration(&mut self, specifiers: Specifiers, first: Declarator) -> ParseResult<Declaration> {
        let mut declarators = vec![first];
        while self.consume(",") {
            let mut next = self.declarator()?;
            self.declare(next.name, specifiers.typedef);
            next.init = self.initialiser()?;
            declarators.push(next);
        }
        if self.is(":") {
            return self.fail(
                "there are no bit-fields",
                "use shifts and masks: the order of bits in bit-fields is not defined",
            );
        }
        if self.is("{")
            && let Some(Declarator { name, name_span, parameters: Some(_), .. }) = declarators.last()
            && let Some(brace) = self.unclosed_bracket("}")
        {
            let message = format!("`{}` starts inside other braces", self.names.text(*name));
            let note = "functions cannot nest: is a `}` missing above?";
            self.errors.add_related(*name_span, message, "", note, Some((brace, "opened here")));
            return Err(ErrorReported);
        }
        self.expect(";", "after the declaration")?;
        Ok(Declaration { specifiers, declarators })
    }

    /// Parses the type and qualifiers that a declaration starts with.
    fn specifiers(&mut self) -> ParseResult<Specifiers> {
        let start = self.span();
        let mut words = TypeSpecifiers::default();
        let (mut space, mut constant, mut typedef, mut storage) = (None, false, false, None);
        loop {
            match self.keyword() {
                Some(Keyword::Const) => constant = true,
                Some(Keyword::Typedef) => typedef = true,
                Some(Keyword::Ignored) => {}
                Some(Keyword::Storage(type_word)) => storage = Some((type_word, self.span())),
                Some(Keyword::Space(found)) => {
                    if space.is_some_and(|space| space != found) {
                        return self
                            .fail("a second address space", "a type has one of `__global`, `__constant`, `__private`");
                    }
                    space = Some(found);
                }
                Some(Keyword::Attribute) => {
                    words.packed |= self.attribute()?;
                    continue;
                }
                Some(Keyword::Unsupported(reason)) if words.base.is_none() => {
                    let message = format!("{} is not supported in filters", self.describe_token());
                    return self.fail(message, reason);
                }
                Some(_) if self.type_word(&mut words)? => continue,
                Some(_) => break,
                None => match self.identifier() {
                    // A second identifier is the declared name.
                    Some(name) if words.is_empty() && self.is_type_name(name) => words.base = Some(Base::Named(name)),
                    _ => break,
                },
            }
            self.advance();
        }
        let span = self.span_since(start);
        let Some(mut base) = words.base(self, span)? else {
            return match self.identifier() {
                Some(name) if self.keyword().is_none() => self.unknown_type(name, ""),
                _ => self.expected("a type"),
            };
        };
        match &mut base {
            Base::Struct(it) if it.fields.is_some() => it.packed |= words.packed,
            _ if words.packed => return self.misplaced_packed(span),
            _ => {}
        }
        Ok(Specifiers { base, space, constant: constant || space == Some(Space::Constant), typedef, storage, span })
    }

    /// Consumes a type specifier, if the next token is one.
    fn type_word(&mut self, words: &mut TypeSpecifiers) -> ParseResult<bool> {
        let base = match self.keyword() {
            Some(Keyword::Signed) => {
                words.signed = true;
                None
            }
            Some(Keyword::Unsigned) => {
                words.unsigned = true;
                None
            }
            Some(Keyword::Scalar(Scalar::Long))
                if words.long > 0 || matches!(words.base, Some(Base::Scalar(Scalar::Int))) =>
            {
                words.long += 1;
                None
            }
            Some(Keyword::Scalar(Scalar::Long)) => {
                words.long = 1;
                None
            }
            Some(Keyword::Scalar(Scalar::Int))
                if words.long > 0 || matches!(words.base, Some(Base::Scalar(Scalar::Short))) =>
            {
                None
            }
            Some(Keyword::Scalar(Scalar::Short)) if matches!(words.base, Some(Base::Scalar(Scalar::Int))) => {
                words.base = None;
                Some(Base::Scalar(Scalar::Short))
            }
            Some(Keyword::Void) => Some(Base::Void),
            Some(Keyword::Scalar(scalar)) => Some(Base::Scalar(scalar)),
            Some(Keyword::Vector(scalar, size)) => Some(Base::Vector(scalar, size)),
            Some(Keyword::Struct) => {
                self.new_base(words)?;
                let it = self.struct_specifier()?;
                words.base = Some(Base::Struct(it));
                return Ok(true);
            }
            Some(Keyword::Enum) => {
                self.new_base(words)?;
                let it = self.enum_specifier()?;
                words.base = Some(Base::Enum(it));
                return Ok(true);
            }
            Some(Keyword::Union) => {
                return self.fail(
                    "there are no unions",
                    "cast a pointer into the packet to another type, or use `as_uint` and the like",
                );
            }
            _ => return Ok(false),
        };
        if base.is_some() {
            self.new_base(words)?;
            words.base = base;
        }
        self.advance();
        Ok(true)
    }

    fn new_base(&mut self, words: &TypeSpecifiers) -> ParseResult<()> {
        if let Some(Base::Struct(Struct { fields: Some(_), .. }) | Base::Enum(Enum { values: Some(_), .. })) =
            words.base
        {
            return self.missing(";", "`;` after the `}`");
        }
        if words.base.is_some() {
            return self.fail("a second type", "a declaration starts with one type; is a `;` or `,` missing?");
        }
        Ok(())
    }

    /// Parses `__attribute__((...))` and returns whether it contains `packed`.
    fn attribute(&mut self) -> ParseResult<bool> {
        self.advance();
        self.expect("(", "after `__attribute__`")?;
        self.expect("(", "after `__attribute__(`")?;
        let mut packed = false;
        while !self.consume(")") {
            let Some(name) = self.identifier() else { return self.expected("an attribute") };
            match self.names.text(name).trim_matches('_') {
                "packed" => packed = true,
                "always_inline" | "noinline" | "unused" | "const" | "pure" | "used" | "nothrow" | "flatten" => {}
                other => {
                    let message = format!("unknown attribute `{other}`");
                    return self
                        .fail(message, "supported are `packed` and attributes without effect, like `always_inline`");
                }
            }
            self.advance();
            if !self.is(")") {
                self.expect(",", "between attributes")?;
            }
        }
        self.expect(")", "after `__attribute__((...)`")?;
        Ok(packed)
    }

    fn attributes(&mut self) -> ParseResult<bool> {
        let mut packed = false;
        while self.is_keyword(Keyword::Attribute) {
            packed |= self.attribute()?;
        }
        Ok(packed)
    }

    /// Parses attributes in a position where `packed` would not apply to the structure.
    fn reject_packed(&mut self) -> ParseResult<()> {
        let span = self.span();
        if self.attributes()? {
            return self.misplaced_packed(span);
        }
        Ok(())
    }

    fn misplaced_packed<T>(&mut self, span: Span) -> ParseResult<T> {
        let note = "it applies to a whole structure: write it after `struct` or after the `}`";
        self.errors.add(span, "`packed` has no effect here", "", note);
        Err(ErrorReported)
    }

    fn struct_specifier(&mut self) -> ParseResult<Struct> {
        self.advance();
        let mut packed = self.attributes()?;
        let name = if self.is("{") { None } else { Some(self.declared_name("a structure's name or `{`")?) };
        packed |= self.attributes()?;
        if !self.consume("{") {
            return Ok(Struct { name, fields: None, packed });
        }
        let fields = self.deeper(|this| {
            let mut fields = Vec::new();
            while !this.consume("}") {
                fields.push(this.field()?);
            }
            Ok(fields)
        })?;
        packed |= self.attributes()?;
        Ok(Struct { name, fields: Some(fields), packed })
    }

    /// Reports an unknown name in the place of a type.
    pub(super) fn unknown_type<T>(&mut self, name: Name, otherwise: &str) -> ParseResult<T> {
        let text = self.names.text(name);
        let note = suggestions::suggest_type(text).or_else(|| self.did_you_mean(name));
        let message = format!("unknown type `{text}`");
        self.fail(message, note.as_deref().unwrap_or(otherwise))
    }

    fn field(&mut self) -> ParseResult<Declaration> {
        if !self.is_type_at(0) {
            return match self.identifier() {
                Some(name) if self.keyword().is_none() => self.unknown_type(name, ""),
                _ => self.expected_or_brace("a member"),
            };
        }
        let specifiers = self.specifiers()?;
        if self.is(":") {
            return self.fail(
                "there are no bit-fields",
                "use shifts and masks: the order of bits in bit-fields is not defined",
            );
        }
        if self.is(";") {
            let (span, message) = (self.span(), "unnamed member");
            // A named type may have been meant to follow this structure.
            let own = matches!(
                specifiers.base,
                Base::Struct(Struct { name: Some(_), .. }) | Base::Enum(Enum { name: Some(_), .. })
            );
            let Some(brace) = self.unclosed_bracket("}").filter(|_| own) else {
                return self.fail(message, "name it, or move its members into this structure");
            };
            let note = "name it; or is the `}` of the enclosing structure missing?";
            self.errors.add_related(span, message, "", note, Some((brace, "opened here")));
            return Err(ErrorReported);
        }
        let first = self.declarator()?;
        self.rest_of_declaration(specifiers, first)
    }

    fn enum_specifier(&mut self) -> ParseResult<Enum> {
        self.advance();
        let name = if self.is("{") { None } else { Some(self.declared_name("an enumeration's name or `{`")?) };
        if !self.consume("{") {
            return Ok(Enum { name, values: None });
        }
        let mut values = Vec::new();
        while !self.consume("}") {
            if self.identifier().is_none() || self.keyword().is_some() {
                return self.expected_or_brace("a name for a constant");
            }
            let (name, span) = self.declared_name("a name for a constant")?;
            let value = if self.consume("=") { Some(self.conditional()?) } else { None };
            self.declare(name, false);
            values.push((name, span, value));
            if !self.is("}") {
                self.expect_comma("between the constants")?;
            }
        }
        Ok(Enum { name, values: Some(values) })
    }

    fn pointers(&mut self) -> ParseResult<Vec<Pointer>> {
        let mut pointers = Vec::new();
        while self.is("*") {
            let span = self.span();
            self.advance();
            let mut constant = false;
            loop {
                match self.keyword() {
                    Some(Keyword::Const) => constant = true,
                    Some(Keyword::Ignored | Keyword::Space(Space::Private)) => {}
                    Some(Keyword::Space(_)) => {
                        return self.fail(
                            "an address space after `*` would be that of the pointer itself",
                            "write it before the type: `__global uchar *p` points into the packet",
                        );
                    }
                    _ => break,
                }
                self.advance();
            }
            pointers.push(Pointer { constant, span });
        }
        Ok(pointers)
    }

    fn declarator(&mut self) -> ParseResult<Declarator> {
        let pointers = self.pointers()?;
        self.attributes()?;
        if self.is("(") {
            return self.reject_parenthesized();
        }
        let (name, name_span) = self.declared_name("a name")?;
        let (mut sizes, mut parameters) = (Vec::new(), None);
        if self.consume("(") {
            parameters = Some(self.parameters()?);
        } else {
            sizes = self.sizes()?;
        }
        self.reject_packed()?;
        Ok(Declarator { name, name_span, pointers, sizes, parameters, init: None })
    }

    /// Reports a parenthesized declarator, such as `(*f)(int)`.
    fn reject_parenthesized<T>(&mut self) -> ParseResult<T> {
        if is(self.lookahead(1), "*") {
            return self.fail(
                "there are no function pointers, and no pointers to arrays",
                "devices have no indirect calls: use `switch`, or a pointer to an array's first element",
            );
        }
        self.fail("parentheses around a name", "write the name alone")
    }

    fn sizes(&mut self) -> ParseResult<Vec<Option<Expr>>> {
        let mut sizes = Vec::new();
        while self.consume("[") {
            sizes.push(if self.is("]") { None } else { Some(self.assignment()?) });
            self.expect("]", "after the size")?;
        }
        Ok(sizes)
    }

    /// Parses parameters after the `(`, and consumes the `)`.
    fn parameters(&mut self) -> ParseResult<Vec<Parameter>> {
        let mut parameters = Vec::new();
        if self.consume(")") {
            return Ok(parameters);
        }
        if self.is_keyword(Keyword::Void) && is(self.lookahead(1), ")") {
            self.advance();
            self.advance();
            return Ok(parameters);
        }
        loop {
            if self.is("...") {
                return self.fail("a function takes a fixed number of arguments", "");
            }
            let start = self.span();
            if !self.is_type_at(0) {
                return match self.identifier() {
                    Some(name) if self.keyword().is_none() => self.unknown_type(name, ""),
                    _ => self.expected("a parameter's type"),
                };
            }
            let specifiers = self.specifiers()?;
            let pointers = self.pointers()?;
            self.attributes()?;
            if self.is("(") {
                return self.reject_parenthesized();
            }
            let name = if self.identifier().is_some() { Some(self.declared_name("a parameter's name")?) } else { None };
            let sizes = self.sizes()?;
            self.reject_packed()?;
            parameters.push(Parameter { specifiers, name, pointers, sizes, span: self.span_since(start) });
            if !self.consume(",") {
                self.expect_after_list(")", "after the parameters")?;
                return Ok(parameters);
            }
        }
    }

    /// Parses a type name, as in casts.
    pub(super) fn type_name(&mut self) -> ParseResult<TypeName> {
        let start = self.span();
        let specifiers = self.specifiers()?;
        let pointers = self.pointers()?;
        if self.is("(") {
            return self.reject_parenthesized();
        }
        let sizes = self.sizes()?;
        Ok(TypeName { specifiers, pointers, sizes, span: self.span_since(start) })
    }

    fn initialiser(&mut self) -> ParseResult<Option<Init>> {
        if self.consume("=") { self.init().map(Some) } else { Ok(None) }
    }

    fn init(&mut self) -> ParseResult<Init> {
        if !self.is("{") {
            return self.assignment().map(Init::Value);
        }
        self.deeper(|this| {
            let start = this.span();
            this.advance();
            let mut entries = Vec::new();
            while !this.consume("}") {
                let designators = this.designators()?;
                entries.push(Entry { designators, init: this.init()? });
                if !this.is("}") {
                    this.expect_comma("between the values")?;
                }
            }
            Ok(Init::List(entries, this.span_since(start)))
        })
    }

    fn designators(&mut self) -> ParseResult<Vec<Designator>> {
        let mut designators = Vec::new();
        loop {
            if self.consume("[") {
                designators.push(Designator::Index(self.conditional()?));
                self.expect("]", "after the index")?;
            } else if self.is(".") && matches!(self.lookahead(1).kind, TokenKind::Identifier(_)) {
                self.advance();
                let (name, span): (Name, Span) = self.declared_name("a member's name")?;
                designators.push(Designator::Field(name, span));
            } else {
                break;
            }
        }
        if !designators.is_empty() {
            self.expect("=", "after the designators")?;
        }
        Ok(designators)
    }
}

impl TypeSpecifiers {
    fn is_empty(&self) -> bool {
        self.base.is_none() && !self.signed && !self.unsigned && self.long == 0
    }

    /// Combines the specifiers to a type.
    fn base(&mut self, parser: &mut Parser, span: Span) -> ParseResult<Option<Base>> {
        let fail = |parser: &mut Parser, message: &str, note: &str| {
            parser.errors.add(span, message, "", note);
            Err(ErrorReported)
        };
        if self.long > 1 {
            return fail(parser, "there is no `long long`", "`long` has 64 bits");
        }
        if self.signed && self.unsigned {
            return fail(parser, "a type is signed or unsigned, not both", "");
        }
        let scalar = match (self.base.take(), self.long) {
            (None, 0) if !self.signed && !self.unsigned => return Ok(None),
            (None | Some(Base::Scalar(Scalar::Int)), 0) => Scalar::Int,
            (None | Some(Base::Scalar(Scalar::Int)), _) => Scalar::Long,
            (Some(Base::Scalar(scalar)), 0) => scalar,
            (base, 0) if !self.signed && !self.unsigned => return Ok(base),
            _ => return fail(parser, "these specifiers do not form a type", ""),
        };
        Ok(Some(Base::Scalar(match (self.unsigned, self.signed, scalar) {
            (false, false, scalar) => scalar,
            (true, _, Scalar::Char | Scalar::Short | Scalar::Int | Scalar::Long) => scalar.unsigned(),
            (_, true, Scalar::Char | Scalar::Short | Scalar::Int | Scalar::Long) => scalar,
            _ => return fail(parser, "these specifiers do not form a type", ""),
        })))
    }
}
