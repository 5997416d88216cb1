use std::collections::HashMap;
use std::path::Path;

use super::*;

/// The tokens of a text, with a space between each two.
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
    Ok(spelled(&tokens))
}

fn spelled(Tokens { tokens, names, .. }: &Tokens) -> String {
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
fn expands(text: &str, wanted: &str) {
    match expand(text) {
        Ok(found) => assert_eq!(found, wanted, "{text}"),
        Err(errors) => panic!("{}", errors.render()),
    }
}

/// The messages of what is wrong with a text.
fn errors(text: &str) -> String {
    expand(text).map_or_else(|errors| errors.to_string(), |tokens| format!("no error: {tokens}"))
}

/// C11 6.10.3.5, the examples.
#[test]
fn the_standards_examples() {
    expands(
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
    expands(
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
    expands(
        "#define hash_hash # ## #
#define mkstr(a) # a
#define in_between(a) mkstr(a)
#define join(c, d) in_between(c hash_hash d)
join(x, y)
#define t(x,y,z) x ## y ## z
j[] = { t(1,2,3), t(,4,5), t(6,,7), t(8,9,), t(10,,), t(,11,), t(,,12), t(,,) };",
        "\"x ## y\" j [ ] = { 123 , 45 , 67 , 89 , 10 , 11 , 12 , } ;",
    );
    expands(
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
fn several_errors_are_found_at_once() {
    assert_eq!(
        errors("#define f(a, b) a\n  f(1)\n#if 1 / 0\n#endif\nint a = 08;\n#error no more\n"),
        "f.cl:2:3: the macro `f` takes 2, and 1 argument is given\n\
         f.cl:3:7: a division by zero in a condition\n\
         f.cl:5:9: `08` is no constant: `8` is no octal digit, and a number that begins with 0 is octal\n\
         f.cl:6:2: `#error`: no more"
    );
}
