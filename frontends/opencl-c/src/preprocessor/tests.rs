use std::collections::HashMap;
use std::path::Path;

use super::*;
use crate::files::NoIncludes;

/// The tokens of a text, separated by spaces.
fn expand(text: &str) -> Result<String, Diagnostics> {
    with_files(text, &[])
}

fn with_files(text: &str, files: &[(&str, &str)]) -> Result<String, Diagnostics> {
    let files: HashMap<&str, &str> = files.iter().copied().collect();
    let mut read = |path: &Path| {
        let name = path.to_str().unwrap();
        files.get(name).map(|text| text.as_bytes().to_vec()).ok_or_else(|| "no such file".to_owned())
    };
    let tokens = preprocess(&Source::new("f.cl", text), &[], &mut read)?;
    Ok(spell(&tokens))
}

fn spell(TranslationUnit { tokens, names, .. }: &TranslationUnit) -> String {
    let text = |token: &Token| match token.kind {
        TokenKind::Identifier(name) | TokenKind::String(name) => names.text(name).to_owned(),
        TokenKind::Integer { value, unsigned, long } => {
            format!("{value}{}{}", if unsigned { "u" } else { "" }, if long { "l" } else { "" })
        }
        TokenKind::Float { value, single } => format!("{value:?}{}", if single { "f" } else { "" }),
        TokenKind::Character(value) => format!("'{}'", value as i32),
        TokenKind::Punctuator(punctuator) => punctuator.text().to_owned(),
        TokenKind::End => String::new(),
    };
    tokens.iter().map(text).collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

#[track_caller]
fn assert_expands(text: &str, wanted: &str) {
    match expand(text) {
        Ok(found) => assert_eq!(found, wanted, "{text}"),
        Err(errors) => panic!("{}", errors.render()),
    }
}

/// The error messages of a text.
fn errors(text: &str) -> String {
    expand(text).map_or_else(|errors| errors.to_string(), |tokens| format!("no error: {tokens}"))
}

/// The examples of C11 6.10.3.5.
#[test]
fn examples_of_the_standard() {
    assert_expands(
        "#define x 3
#define f(a) f(x * (a))
#undef x
#define x 2
#define g f
#define z z[0]
#define h g(~
#define m(a) a(w)
#define w 0,1
#define t(a) a
#define p() int
#define q(x) x
#define r(x,y) x ## y
#define str(x) # x
f(y+1) + f(f(z)) % t(t(g)(0) + t)(1);
g(x+(3,4)-w) | h 5) & m
(f)^m(m);
p() i[q()] = { q(1), r(2,3), r(4,), r(,5), r(,) };
char c[2][6] = { str(hello), str() };",
        "f ( 2 * ( y + 1 ) ) + f ( 2 * ( f ( 2 * ( z [ 0 ] ) ) ) ) % f ( 2 * ( 0 ) ) + t ( 1 ) ; \
         f ( 2 * ( 2 + ( 3 , 4 ) - 0 , 1 ) ) | f ( 2 * ( ~ 5 ) ) & f ( 2 * ( 0 , 1 ) ) ^ m ( 0 , 1 ) ; \
         int i [ ] = { 1 , 23 , 4 , 5 , } ; \
         char c [ 2 ] [ 6 ] = { \"hello\" , \"\" } ;",
    );
    assert_expands(
        r#"#define str(s) # s
#define xstr(s) str(s)
#define debug(s, t) printf("x" # s "= %d, x" # t "= %s", \
 x ## s, x ## t)
#define INCFILE(n) vers ## n
#define glue(a, b) a ## b
#define xglue(a, b) glue(a, b)
#define HIGHLOW "hello"
#define LOW LOW ", world"
debug(1, 2);
fputs(str(strncmp("abc\0d", "abc", '\4') // this goes away
 == 0) str(: @\n), s);
xstr(INCFILE(2).h)
glue(HIGH, LOW);
xglue(HIGH, LOW)"#,
        r#"printf ( "x" "1" "= %d, x" "2" "= %s" , x1 , x2 ) ; fputs ( "strncmp(\"abc\\0d\", \"abc\", '\\4') == 0" ": @\n" , s ) ; "vers2.h" "hello" ; "hello" ", world""#,
    );
    assert_expands(
        "#define hash_hash # ## #
#define mkstr(a) # a
#define in_between(a) mkstr(a)
#define join(c, d) in_between(c hash_hash d)
join(x, y)
#define t(x,y,z) x ## y ## z
j[] = { t(1,2,3), t(,4,5), t(6,,7), t(8,9,), t(10,,), t(,11,), t(,,12), t(,,) };",
        "\"x ## y\" j [ ] = { 123 , 45 , 67 , 89 , 10 , 11 , 12 , } ;",
    );
    assert_expands(
        "#define debug(...) fprintf(stderr, __VA_ARGS__)
#define showlist(...) puts(#__VA_ARGS__)
#define report(test, ...) ((test)?puts(#test): printf(__VA_ARGS__))
debug(\"Flag\");
debug(\"X = %d\", x);
showlist(The first, second, and third items.);
report(x>y, \"x is %d but y is %d\", x, y);",
        "fprintf ( stderr , \"Flag\" ) ; fprintf ( stderr , \"X = %d\" , x ) ; \
         puts ( \"The first, second, and third items.\" ) ; \
         ( ( x > y ) ? puts ( \"x>y\" ) : printf ( \"x is %d but y is %d\" , x , y ) ) ;",
    );
}

#[test]
fn several_errors_are_reported_at_once() {
    assert_eq!(
        errors("#define f(a, b) a\n  f(1)\n#if 1 / 0\n#endif\nint a = 08;\n#error no more\n"),
        "f.cl:2:3: the macro `f` takes 2 arguments, 1 argument is given\n\
         f.cl:3:7: division by zero in a condition\n\
         f.cl:5:9: `08` is not a valid constant: `8` is not an octal digit, and a number that starts with 0 is octal\n\
         f.cl:6:2: `#error`: no more"
    );
}

/// [`expand`] with macros that the host sets.
fn preprocess_with(text: &str, defines: &[(&str, &str)]) -> Result<String, Diagnostics> {
    let defines: Vec<_> = defines.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let mut none = NoIncludes;
    preprocess(&Source::new("f.cl", text), &defines, &mut none).map(|tokens| spell(&tokens))
}

#[test]
fn errors_point_at_their_origin() {
    let text = "#define DOUBLE(x) ((x) + 08)\n\nint a = DOUBLE(1);\n";
    assert_eq!(
        expand(text).unwrap_err().render(),
        "error: `08` is not a valid constant: `8` is not an octal digit, and a number that starts with 0 is octal
  ┌─ f.cl:1:26
  │
1 │ #define DOUBLE(x) ((x) + 08)
  │                          ^^ `8` is not an octal digit, and a number that starts with 0 is octal
2 │ 
3 │ int a = DOUBLE(1);
  │         ------ in the expansion of the macro `DOUBLE`
  │
  = leave out the leading zeros to write it in decimal

"
    );
    let files = [("sub/a.h", "#include \"b.h\"\n"), ("sub/b.h", "int x;\n#if 1\n  #error wrong file\n")];
    assert_eq!(
        with_files("\n#include \"sub/a.h\"\n@", &files).unwrap_err().to_string(),
        "sub/b.h:3:4: `#error`: wrong file\n\
         sub/b.h:2:2: this conditional has no `#endif`\n\
         f.cl:3:1: unexpected character `@`"
    );
    let text = "#define F(x) x\nF(\n";
    assert_eq!(
        expand(text).unwrap_err().render(),
        "error: the arguments of the macro `F` are not closed
  ┌─ f.cl:2:2
  │
2 │ F(
  │  ^ they start here
  │
  = close them with `)` in the same file

"
    );
}

#[test]
fn error_messages_and_places() {
    for (text, wanted) in [
        ("int a = 'ab';", "f.cl:1:9: `'ab'` is not a valid constant: it contains more than one character"),
        ("a = \"b;\n", "f.cl:1:5: this \" is not closed on its line"),
        ("a\n /* b", "f.cl:2:2: unterminated comment"),
        ("é", "f.cl:1:1: unexpected character U+00E9"),
        ("a \\ \nb", "f.cl:1:3: unexpected character `\\`"),
        ("\u{feff}a", "f.cl:1:1: unexpected character U+FEFF"),
        ("a\0b", "f.cl:1:2: unexpected character U+0000"),
        ("#line 7", "f.cl:1:2: `#line` is not supported"),
        ("#warning a", "f.cl:1:2: unknown directive `#warning`"),
        ("#define A-1", "f.cl:1:10: missing space after the macro name `A`"),
        ("#define F(a...) a", "f.cl:1:12: unexpected `...` in a parameter list, expected `,` or `)`"),
        ("#define A 1\n#define A 2", "f.cl:2:9: the macro `A` is already defined differently"),
        ("#define __LINE__ 2", "f.cl:1:9: `__LINE__` cannot be defined or undefined"),
        ("#define __VA_ARGS__ 2", "f.cl:1:9: `__VA_ARGS__` cannot be defined or undefined"),
        ("#define F(x) __VA_ARGS__", "f.cl:1:14: `__VA_ARGS__` in a macro without variable arguments"),
        ("#define CHAR_BIT 16", "f.cl:1:9: the macro `CHAR_BIT` is already defined differently"),
        ("#define F(x) #x\nF(\n#define A\n)", "f.cl:3:1: directive in the arguments of the macro `F`"),
        ("#define F(x, y) x##y\nF(+, a)", "f.cl:2:3: `+` ## `a` gives `+a`, which is not a token"),
        ("#if 1 << 64\n#endif", "f.cl:1:7: shift by 64"),
        ("#if 1 >> -1\n#endif", "f.cl:1:7: shift by -1"),
        ("#if ETH_P_IP == 0x800\n#endif", "f.cl:1:5: `ETH_P_IP` is a constant of the prelude, which"),
        ("#if A = 1\n#endif", "f.cl:1:7: `=` is not allowed in a condition"),
        ("#if F(1)\n#endif", "f.cl:1:6: `(` is not allowed in a condition"),
        ("#if (1\n#endif", "f.cl:1:5: this `(` is not closed"),
        ("#if 1 +\n#endif", "f.cl:1:7: the condition ends where an operand is expected"),
        ("#if 9223372036854775808\n#endif", "f.cl:1:5: `9223372036854775808` is not a valid constant: it does not fit"),
        ("#endif X", "f.cl:1:2: `#endif` without an `#if`"),
        ("#if 1\n#endif X", "f.cl:2:8: unexpected tokens after `#endif`"),
        ("#if 1\n#else\n#else\n#endif", "f.cl:3:2: `#else` after `#else`"),
    ] {
        assert!(errors(text).starts_with(wanted), "{text}\n{}", errors(text));
    }
}

#[test]
fn reports_at_most_max_errors() {
    assert_eq!(expand(&"@\n".repeat(1000)).unwrap_err().errors.len(), MAX_ERRORS);
}

#[test]
fn includes_are_confined_to_the_filters_folder() {
    let files = [
        ("a.h", "#pragma once\na #include\n"),
        ("b.h", "#ifndef B_H\n#define B_H\nb\n#endif\n"),
        ("sub/c.h", "#include \"d.h\"\n#include \"./deep/e.h\"\nc"),
        ("sub/d.h", "d"),
        ("sub/deep/e.h", "e __LINE__ __FILE__"),
    ];
    let found = |text: &str| with_files(text, &files).map_err(|errors| errors.to_string());
    assert_eq!(found("#include \"d.h\"").unwrap_err(), "f.cl:1:10: \"d.h\" cannot be read: no such file");
    assert_eq!(found("#include \"b.h\"\n#include \"b.h\"\nx").unwrap(), "b x");
    assert_eq!(found("#include \"sub/c.h\"").unwrap(), "d e 1 \"sub/deep/e.h\" c");
    assert_eq!(found("#include <portcullis.h>\n#include \"portcullis.h\"\nx").unwrap(), "x");
    assert_eq!(found("#define D \"sub/d.h\"\n#include D\n#define P <portcullis.h>\n#include P").unwrap(), "d");
    // The `#` is not the first token of its line, so it starts no directive.
    assert_eq!(found("#include \"a.h\" // once\n#include \"a.h\"").unwrap(), "a # include");
    for (name, reason) in [
        ("\"../a.h\"", "`..` leads out"),
        ("\"sub/../a.h\"", "`..` leads out"),
        ("\"/etc/passwd\"", "an absolute path"),
        ("\"sub\\..\\a.h\"", "`\\` is not allowed"),
        ("\"C:a.h\"", "`:` is not allowed"),
        ("\"sub//d.h\"", "is empty"),
        ("\"sub/\"", "is empty"),
        ("\"\"", "is empty"),
        ("\".\"", "a folder"),
        ("\"sub/.\"", "a folder"),
        ("\"a\u{1}.h\"", "U+0001"),
        ("<stdio.h>", "unknown header <stdio.h>"),
        ("a.h", "expects the name"),
        ("", "expects the name"),
        ("\"a.h\" x", "unexpected tokens"),
    ] {
        let text = format!("#include {name}\n");
        let errors = with_files(&text, &files).unwrap_err().render();
        assert!(errors.contains(reason) && errors.contains("f.cl:1:"), "{name}: {errors}");
    }
    let endless = with_files("#include \"f.h\"", &[("f.h", "\n#include \"f.h\"")]).unwrap_err();
    assert_eq!(endless.to_string(), "f.h:2:10: files include one another more than 16 deep");
    let names: Vec<_> = (0..17).map(|i| (format!("{i}.h"), format!("#include \"{}.h\"\n{i}", i + 1))).collect();
    let mut files: Vec<_> = names.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    files[15].1 = "15";
    assert!(with_files("#include \"0.h\"", &files).unwrap().starts_with("15 14"));
    files[15].1 = names[15].1.as_str();
    files[16].1 = "16";
    assert!(with_files("#include \"0.h\"", &files).unwrap_err().to_string().starts_with("15.h:1:10: files include"));
}

#[test]
fn included_files_are_named_relative_to_the_filter() {
    for (filter, wanted) in [
        ("f.cl", "sub/a.h:2:2: `#error`: no"),
        ("in/f.cl", "in/sub/a.h:2:2: `#error`: no"),
        ("/x/in/f.cl", "/x/in/sub/a.h:2:2: `#error`: no"),
        ("<stdin>", "sub/a.h:2:2: `#error`: no"),
    ] {
        let mut read = |path: &Path| match path.to_str() {
            Some("sub/a.h") => Ok(b"#include \"b.h\"\n#error no".to_vec()),
            Some("sub/b.h") => Ok(Vec::new()),
            _ => Err("not there".to_owned()),
        };
        let errors = preprocess(&Source::new(filter, "#include \"sub/a.h\""), &[], &mut read).unwrap_err();
        assert_eq!(errors.to_string(), wanted);
        let missing = preprocess(&Source::new(filter, "#include \"c.h\""), &[], &mut read).unwrap_err();
        let name = wanted.split("sub").next().unwrap();
        assert_eq!(missing.to_string(), format!("{filter}:1:10: \"{name}c.h\" cannot be read: not there"));
    }
}

#[test]
fn a_carriage_return_alone_ends_a_line() {
    let text = "#define A 1\r// comment\r#if A\r\nyes \\\r__LINE__\r#endif\r\"open\r";
    let errors = preprocess_with(text, &[]).unwrap_err();
    assert_eq!(errors.to_string(), "f.cl:7:1: this \" is not closed on its line");
    assert_eq!(preprocess_with(&text.replace("\"open", "end"), &[]).unwrap(), "yes 5 end");
    let included = with_files("#include \"a.h\"\rlast", &[("a.h", "#define X 1\rX")]);
    assert_eq!(included.unwrap(), "1 last");
}

#[test]
fn binary_includes_are_rejected() {
    for (bytes, reason) in [(vec![b'a', 0], "zero byte"), (vec![b'a', 0xff], "UTF-8"), (vec![b'a'; 1 << 21], "exceeds")]
    {
        let mut read = |_: &Path| Ok(bytes.clone());
        let errors = preprocess(&Source::new("f.cl", "#include \"a.h\""), &[], &mut read).unwrap_err().to_string();
        assert!(errors.starts_with("f.cl:1:10: \"a.h\": ") && errors.contains(reason), "{errors}");
    }
}

#[test]
fn parameters_override_defaults_in_the_text() {
    let text = "#ifndef LIMIT\n#define LIMIT 7\n#endif\nLIMIT";
    assert_eq!(preprocess_with(text, &[]).unwrap(), "7");
    assert_eq!(preprocess_with(text, &[("LIMIT", "9")]).unwrap(), "9");
    assert_eq!(preprocess_with(text, &[("LIMIT", "10.0.0.1")]).unwrap(), "167772161u");
    assert_eq!(preprocess_with(text, &[("LIMIT", "192.168.0.1")]).unwrap(), "3232235521u");
    for (text, given, wanted) in [
        (text, ("LIMTI", "9"), "f.cl: the filter has no parameter `LIMTI`"),
        ("#if ON\nyes\n#endif\nON", ("ON", "1"), "f.cl: the filter has no parameter `ON`"),
        ("#ifndef ONCE\n#define ONCE\n#endif", ("ONCE", "1"), "f.cl: the filter has no parameter `ONCE`"),
        ("f(pkt)", ("pkt", "1"), "f.cl: the filter has no parameter `pkt`"),
        ("XDP_PASS", ("XDP_PASS", "1"), "f.cl: `XDP_PASS` belongs to the prelude and cannot be set"),
        ("load_u8", ("load_u8", "1"), "f.cl: `load_u8` belongs to the prelude"),
        ("#ifndef ETH_P_IP\n#define ETH_P_IP 1\n#endif", ("ETH_P_IP", "1"), "f.cl: `ETH_P_IP` belongs to the prelude"),
        (text, ("LIMIT", "9\""), "<value of LIMIT>:1:2: this \" is not closed on its line"),
        (text, ("LIMIT", "1 /*"), "<value of LIMIT>:1:3: unterminated comment"),
        (text, ("LIMIT", "09"), "f.cl: `09` is no value for the parameter `LIMIT`: expected a number"),
        (text, ("a b", "9"), "f.cl: `a b` cannot be set"),
        (text, ("F(x)", "9"), "f.cl: `F(x)` cannot be set"),
        (text, ("defined", "9"), "f.cl: `defined` cannot be set"),
        (text, ("PORTCULLIS", "9"), "f.cl: `PORTCULLIS` is already defined"),
        ("#define A 1\nA", ("A", "2"), "f.cl:1:9: the macro `A` is already defined differently"),
    ] {
        let errors = preprocess_with(text, &[given]).unwrap_err();
        assert!(errors.to_string().starts_with(wanted), "{errors}");
    }
    let twice = preprocess_with(text, &[("LIMIT", "1"), ("LIMIT", "2")]).unwrap_err();
    assert_eq!(twice.to_string(), "f.cl: `LIMIT` is given twice");
    assert_eq!(twice.errors[0].parameter.as_deref(), Some("LIMIT"));
}

/// Host values and the defaults of their macros: the value is spelled so that it has the default's
/// type.
#[test]
fn parameter_values_take_the_defaults_type() {
    for (default, given, wanted) in [
        ("7", "9", Ok("9")),
        ("7", "-9", Ok("( - 8 - 1 )")),
        ("7", "0x10", Ok("16")),
        ("7", "(9)", Ok("9")),
        ("010", "9", Ok("9")),
        ("7", "(-010)", Err("leading zeros")),
        ("(1 << 4)", "2 + 03", Err("leading zeros")),
        ("1.5f", "010", Err("leading zeros")),
        // Unlike decimal constants in C, not widened to 64 bits.
        ("7", "4294967295", Ok("4294967295u")),
        ("7", "-2147483648", Ok("( - 2147483647 - 1 )")),
        ("7", "4294967296", Err("expected -2147483648 to 4294967295")),
        ("7", "-2147483649", Err("expected -2147483648 to 4294967295")),
        ("7", "", Err("expected a number")),
        ("7", "x", Err("expected a number")),
        ("7", "1.5f", Err("expected a number")),
        ("(-7)", "9", Ok("9")),
        ("8u", "9", Ok("9u")),
        ("8u", "-1", Err("expected 0 to 4294967295")),
        ("8u", "5l", Ok("5u")),
        ("0xc0a80001", "10.0.0.1", Ok("167772161u")),
        ("1l", "4294967296", Ok("4294967296l")),
        ("1l", "18446744073709551615", Err("18446744073709551615")),
        ("1ul", "18446744073709551615u", Ok("18446744073709551615ul")),
        ("1ul", "-1", Err("expected 0 to 18446744073709551615")),
        ("true", "false", Ok("false")),
        ("true", "1", Ok("true")),
        ("true", "2", Err("expected `true` or `false`")),
        ("1.5f", "2", Ok("2.0f")),
        ("1.5f", "-0.25", Ok("- 0.25f")),
        ("1.5f", "1e99", Err("expected a finite number")),
        // If the default is not a literal, any value is accepted.
        ("(1 << 4)", "2 + 3", Ok("2 + 3")),
        ("uint", "ushort", Ok("ushort")),
    ] {
        let text = format!("#ifndef P\n#define P {default}\n#endif\nP");
        let found = preprocess_with(&text, &[("P", given)]).map_err(|errors| errors.to_string());
        match (wanted, found) {
            (Ok(wanted), found) => assert_eq!(found.as_deref(), Ok(wanted), "{default} {given}"),
            (Err(reason), found) => {
                let errors = found.unwrap_err();
                assert!(errors.contains(reason) && errors.lines().count() == 1, "{default} {given}: {errors}");
            }
        }
    }
}

#[test]
fn parameters_are_listed_with_their_values() {
    let text = "#ifndef GUARD_H\n#define GUARD_H\n#ifndef A\n#define A 7\n#endif\n#ifndef B\n#define OTHER 3\n\
                #define B 0xc0a80001\n#else\n#define NONE 1\n#endif\n#ifdef C\n#define D 1\n#endif\n#ifndef E\n\
                #ifdef F\n#define E 2\n#else\n#define E 3\n#endif\n#endif\n#ifndef S\n#define S \"text\"\n#endif\n\
                #ifndef M\n#define M(x) x\n#endif\n#ifndef A\n#define A 8\n#endif\n#endif\nA B";
    let told = |given: &[(&str, &str)]| {
        let given: Vec<_> = given.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let tokens = preprocess(&Source::new("f.cl", text), &given, &mut NoIncludes).unwrap();
        let shown = |p: &Parameter| format!("{}={}{}", p.name, p.value, if p.is_default { "" } else { "!" });
        tokens.parameters.iter().map(shown).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(told(&[]), "A=7 B=3232235521 S=\"text\"");
    assert_eq!(told(&[("B", "10.0.0.1"), ("A", "8")]), "A=8! B=167772161! S=\"text\"");
    let errors = preprocess_with(text, &[("AA", "1")]).unwrap_err();
    assert_eq!(errors.errors[0].notes[0], "its parameters are `A`, `B`, `S`");
    let misspelt = preprocess_with("#ifndef PORT\n#define PORT 7\n#endif", &[("PROT", "1")]).unwrap_err();
    assert_eq!(misspelt.errors[0].notes[..2], ["did you mean `PORT`?", "its parameters are `PORT`"]);
    let portable = "#ifndef XDP_PASS\n#define XDP_PASS 2\n#endif\nXDP_PASS";
    assert!(preprocess(&Source::new("f.cl", portable), &[], &mut NoIncludes).unwrap().parameters.is_empty());
}

#[test]
fn pragmas_other_than_once_and_pack_are_ignored() {
    for pragma in
        ["unroll", "unroll 4", "OPENCL EXTENSION cl_khr_fp64 : enable", "GCC diagnostic", "", "'", "once more"]
    {
        assert_eq!(expand(&format!("#pragma {pragma}\na")).unwrap(), "a", "{pragma}");
    }
    for pragma in ["pack(1)", "pack(push, 1)", "pack()", "pack"] {
        let errors = expand(&format!("a\n #pragma {pragma}\nb")).unwrap_err();
        assert_eq!(errors.to_string(), "f.cl:2:3: `#pragma pack` is not supported");
        assert!(errors.errors[0].notes[0].contains("__attribute__((packed))"), "{}", errors.render());
    }
    assert_eq!(expand("#if 0\n#pragma pack(1)\n#endif\na").unwrap(), "a");
}

#[test]
fn errors_in_included_files_name_the_include_chain() {
    let files = [("a.h", "\n\n#include \"b.h\"\n"), ("b.h", "\n@\n")];
    let errors = with_files("#include \"a.h\"\n$", &files).unwrap_err();
    assert_eq!(errors.to_string(), "b.h:2:1: unexpected character `@`\nf.cl:2:1: unexpected character `$`");
    assert_eq!(errors.errors[0].notes, ["in a file included from a.h:3:10, included from f.cl:1:10"]);
    assert!(errors.errors[1].notes.is_empty());
}

#[test]
fn predefined_macros() {
    assert_expands(
        "PORTCULLIS CL_VERSION_1_2 __OPENCL_VERSION__ __OPENCL_C_VERSION__ __ENDIAN_LITTLE__ INT_MIN ULONG_MAX FLT_MAX",
        "1 120 120 120 1 ( - 2147483647 - 1 ) 18446744073709551615ul 3.4028234663852886e38f",
    );
    assert_expands(
        "#if __OPENCL_VERSION__ >= 120 && INT_MIN < 0 && UINT_MAX == 4294967295 && LONG_MIN < 0\nyes\n#endif",
        "yes",
    );
    assert_expands("#define L __LINE__\n__LINE__ L\n\n__LINE__ /*\n*/ L", "2 2 4 5");
    assert_expands("#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#pragma unroll\nXDP_DROP", "XDP_DROP");
    assert_expands("#define XDP_DROP 1\nXDP_DROP", "1");
}

/// Runs on a small stack, whatever the size of the tests' own.
fn on_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        std::thread::Builder::new().stack_size(1 << 20).spawn_scoped(scope, work).unwrap().join().unwrap()
    })
}

#[test]
fn nesting_limits_are_exact() {
    let nested = |depth: usize, open: &str, inner: &str, close: &str, end: &str| {
        let text = format!("#define F(x) x\n{}{inner}{}{end}", open.repeat(depth), close.repeat(depth));
        on_small_stack(|| errors(&text))
    };
    for (open, inner, close, end, most) in [
        ("F(", "1", ")", "", MAX_NESTING),
        ("#if 1\n", "1", "\n#endif", "", MAX_NESTING),
        ("#if 0\n", "1", "\n#endif", "", MAX_NESTING),
    ] {
        let fits = nested(most, open, inner, close, end);
        assert!(fits.starts_with("no error"), "{fits}");
        let too_deep = nested(most + 1, open, inner, close, end);
        assert!(too_deep.contains("more than 256 deep"), "{too_deep}");
        let refused = nested(20_000, open, inner, close, end);
        assert!(refused.contains("more than 256 deep") || refused.contains("steps to expand"), "{refused}");
    }
    for (open, close) in [
        ("(", ")"),
        ("~", ""),
        ("1 ? 1 : ", ""),
        ("1 ? ", " : 1"),
        ("1 || 1 && 1 | 1 ^ 1 & 1 == 1 < 1 << 1 + 1 * (", ")"),
    ] {
        let condition = |depth: usize| {
            let text = format!("#if {}1{}\nyes\n#endif", open.repeat(depth), close.repeat(depth));
            on_small_stack(|| errors(&text))
        };
        assert_eq!(condition(MAX_NESTING), "no error: yes");
        for depth in [MAX_NESTING + 1, 20_000] {
            assert!(condition(depth).contains("more than 256 deep"), "{}", condition(depth));
        }
    }
}

#[test]
fn exponential_macros_are_stopped_and_named() {
    let grow = |first: &str, step: &dyn Fn(usize) -> String, last: &str| {
        let steps: String = (1..64).map(|i| format!("#define {}\n", step(i))).collect();
        let text = format!("#define {first}\n{steps}int a;\nint b = {last};\n");
        let start = std::time::Instant::now();
        let errors = errors(&text);
        // Takes seconds without optimisation and beside other tests; without the limits it would
        // not end.
        assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
        errors
    };
    let doubles = |i: usize| format!("A{i} A{} A{}", i - 1, i - 1);
    assert!(
        grow("A0 1", &doubles, "A63")
            .starts_with("f.cl:66:9: the text has more than 1048576 tokens after expansion: the macro `A63`")
    );
    // Expansion to nothing.
    let nothing = grow("A0", &doubles, "A63");
    assert_eq!(nothing, format!("f.cl:66:9: the macro `A63` takes more than {MAX_EXPANSION_STEPS} steps to expand"));
    let calls = |i: usize| format!("A{i}(x) A{}(x x)", i - 1);
    assert!(grow("A0(x) x", &calls, "A63(1)").contains("the macro `A63` takes more than 4194304 steps"));
    // In a condition, and in an argument that is dropped.
    assert!(grow("A0 1", &doubles, "0\n#if A63\n#endif\n").contains("the macro `A63` takes more than 4194304 steps"));
    assert!(grow("DROP(x)\n#define USE(x) DROP(x) x\n#define A0 1", &doubles, "USE(A63)").contains("the macro `USE`"));
    // In a single expansion.
    let text = format!("#define F(x) {}\nF({})", "x ".repeat(1 << 18), "1 ".repeat(1 << 17));
    assert_eq!(errors(&text), "f.cl:2:1: the macro `F` takes more than 4194304 steps to expand");
    let text = format!("#define F(x) {}\nF({})", "#x ".repeat(1 << 17), "1 ".repeat(1 << 14));
    assert_eq!(errors(&text), "f.cl:2:1: the macro `F` takes more than 4194304 steps to expand");
    // A single long token.
    let pastes = |i: usize| format!("A{i}(x) A{}(x##x)", i - 1);
    assert!(grow("A0(x) x", &pastes, "A63(a)").contains("the macro `A63` produces a token of more than 65536 bytes"));
    let quotes = |i: usize| format!("A{i}(x) A{}(#x)", i - 1);
    assert!(grow("A0(x) x", &quotes, "A63(a)").contains("the macro `A63` produces a token of more than 65536 bytes"));
}

#[test]
fn long_texts_without_macros_are_rejected() {
    let file = "1 ".repeat(1 << 19);
    let text = "#include \"a.h\"\n".repeat(3);
    let error = with_files(&text, &[("a.h", &file)]).unwrap_err().to_string();
    assert_eq!(error, "a.h:1:1: the text has more than 1048576 tokens after expansion");
    let at_the_limit = "#include \"a.h\"\n".repeat(2);
    assert!(with_files(&at_the_limit, &[("a.h", &file)]).is_ok());
    let beyond = with_files(&format!("{at_the_limit}1"), &[("a.h", &file)]).unwrap_err().to_string();
    assert_eq!(beyond, "f.cl:3:1: the text has more than 1048576 tokens after expansion");
    // Comments are no tokens, but take time.
    let file = format!("/*{}*/", " ".repeat(1 << 19));
    let error = with_files(&"#include \"a.h\"\n".repeat(40), &[("a.h", &file)]).unwrap_err().to_string();
    assert!(error.ends_with("the filter and its files have more than 16777216 bytes"), "{error}");
}

#[test]
fn long_names_are_shortened_in_messages() {
    let name = "n".repeat(1 << 18);
    for text in
        [format!("#{name}"), format!("#if {name}(1)"), format!("#define {name}(x)\n{name}()\n{name}(1, 2)\n0{name}")]
    {
        let errors = expand(&text).unwrap_err().render();
        assert!(errors.len() < 4000, "{} bytes", errors.len());
    }
}

#[test]
fn line_numbers_take_linear_time() {
    let files = [("l.h", "__LINE__")];
    let found = with_files(&"#include \"l.h\"\n__LINE__\n".repeat(20_000), &files).unwrap();
    assert!(found.starts_with("1 2 1 4 1 6") && found.ends_with("1 40000"));
}

#[test]
fn maximum_size_texts_terminate() {
    for piece in [
        "#",
        "(",
        "a ",
        "\"",
        "'",
        "\\\n",
        "/*",
        "#if 1\n",
        "#define A A A\nA ",
        "\n#define F(x) x\nF(",
        "1.",
        "é",
        "#if (",
        "\r",
        "##",
    ] {
        let text = piece.repeat((1 << 20) / piece.len());
        let text = text.as_str();
        on_small_stack(|| drop(expand(text)));
    }
}
