//! Errors: messages, places and suggestions.

use super::{errors, filter};

/// Bodies of filters, and a part of the error that each causes.
#[test]
fn invalid_and_unsupported_code_is_explained() {
    for (inside, expected) in [
        ("goto end; end: ;", "`goto` is not supported in filters"),
        ("end: ;", "there are no labels"),
        ("int (*f)(int);", "there are no function pointers"),
        ("__global uchar **p;", "there are no pointers to pointers"),
        ("__global uchar *p[4];", "there are no arrays of pointers"),
        ("uint a = (uint)pkt;", "a cast between a pointer and a number"),
        ("__global uchar *p = (__global uchar *)16;", "a cast between a pointer and a number"),
        ("__global uchar *p = 0;", "expected a `__global uchar *`"),
        ("if (pkt) return 1;", "a pointer is not a condition"),
        ("if (!pkt) return 1;", "a pointer is not a condition"),
        ("if (pkt == 0) return 1;", "cannot apply"),
        ("__local uint a;", "`__local` is not supported in filters"),
        ("barrier(1);", "`barrier` is not supported in filters"),
        ("printf(\"x\");", "`printf` is not supported in filters"),
        ("atomic_inc(pkt);", "`atomic_inc` is not supported in filters"),
        ("get_global_id(0);", "`get_global_id` is not supported in filters"),
        ("image2d_t i;", "`image2d_t` is not supported in filters"),
        ("asm(\"nop\");", "`asm` is not supported in filters"),
        ("double d;", "`double` is not supported in filters"),
        ("half h;", "`half` is not supported in filters"),
        ("uint8 v;", "`uint8` is not supported in filters"),
        ("struct { uint a : 3; } s;", "there are no bit-fields"),
        ("union { uint a; } u;", "there are no unions"),
        ("struct { __global uchar *p; } s;", "a pointer as a member"),
        ("undefined = 1;", "`undefined` is not declared"),
        ("f(1);", "there is no function `f`"),
        ("uint a = 1, a = 2;", "`a` is declared twice"),
        ("const uint a = 1; a = 2;", "`=` cannot store here"),
        ("const __global uchar *p = pkt; *p = 1;", "`=` cannot store here"),
        ("const __global uchar *p = pkt; __global uchar *q = p;", "expected a `__global uchar *`"),
        ("5 = 6;", "must be a variable or a place"),
        ("uint a[2]; a[2] = 1;", "index 2 is out of range for an array of 2"),
        ("uint a[0];", "an array of 0 elements"),
        ("uint a[len];", "must be an integer constant"),
        ("uint a[] ;", "an array without a size"),
        ("uint a[2] = {1, 2, 3};", "too many values for"),
        ("uint a = {1, 2};", "expected a single value"),
        ("uint4 v; v.q = 1;", "has no component `q`"),
        ("uint4 v; v.xx = (uint2)(1);", "`=` cannot store here"),
        ("uint2 v = (uint2)(1, 2, 3);", "`uint2` of 3 components"),
        ("uint4 a; uint2 b; a + b;", "cannot apply `+` to `uint4` and `uint2`"),
        ("uint4 v; if (v) return 1;", "a condition is a number"),
        ("uint4 v; &v.x;", "the address of a vector's component"),
        ("uint a[2]; &a;", "there are no pointers to arrays"),
        ("break;", "`break` outside"),
        ("continue;", "`continue` outside"),
        ("case 1: ;", "a case that is not directly in a `switch`"),
        ("switch (len) { case 1: ; case 1: ; }", "a second case 1"),
        ("switch (len) { int x; case 1: ; }", "a statement before the first case"),
        ("switch (len) { case 1: { case 2: ; } }", "a case that is not directly in a `switch`"),
        ("switch (1.5f) { }", "`switch` takes an integer"),
        ("1.5f % 2;", "`%` takes integers"),
        ("pkt * 2;", "cannot apply"),
        ("load_u8(1, 2);", "argument 1 of `load_u8` must be the packet"),
        ("uint x; load_u8(&x, 2);", "argument 1 of `load_u8` must be the packet"),
        ("load_u8(pkt);", "`load_u8` takes 2 arguments, found 1"),
        ("min(1);", "`min` takes 2 arguments, found 1"),
        ("uint x; uchar *p = &x;", "expected a `uchar *`"),
        ("uint x; uchar *p = (uchar *)&x; *p = 1;", "accessed as another type"),
        ("__global uchar *p; *p = 1;", "`p` has no target yet"),
        ("uint x; uint *p = &x; p = (uint *)pkt;", "changes its target"),
        ("uint x, y; uint *p = len ? &x : &y;", "has another target than the other one"),
        ("uint x; uint y; if (&x < &y) return 1;", "these pointers cannot be compared"),
        ("__constant uchar *p = pkt;", "expected a"),
        ("struct s x;", "not defined"),
        ("int x = sizeof(void);", "`void` has no size"),
        ("return;", "must return a `uint`"),
        ("uint f;  f();", "`f` is not a function"),
        ("xdp_filter(pkt, len);", "calls itself"),
        ("uint x = (struct s)1;", "a cast of"),
        ("(uint4){1, 2, 3, 4};", "there are no compound literals"),
        ("int x = ({ 1; });", "no statement expressions"),
        ("unsigned long long x;", "there is no `long long`"),
        ("convert_uint4(1);", "it takes a value of as many components"),
        ("as_uint(1l);", "of the same width"),
        ("as_uchar4((ushort4)(1));", "of the same width"),
        ("as_uchar3(1u).x = 1;", "must be a variable or a place"),
        ("as_uint((bool)len);", "of the same width"),
        ("__global uint x;", "a `__global` variable"),
        ("static uint count; count++;", "a variable declared `static`"),
        ("extern uint count;", "a variable declared `extern`"),
        ("__attribute__((opencl_unroll_hint(4))) len = 1;", "expected a loop after `opencl_unroll_hint`"),
        ("__attribute__((fallthrough)) len = 1;", "expected `;` after `fallthrough`"),
        ("__attribute__((noreturn)) len = 1;", "unknown attribute `noreturn`"),
        ("static uint count = 3;", "a variable declared `static`"),
        ("static const __global uchar *p = pkt;", "a variable declared `static`"),
        ("for (static uint i = 0; i < 3; i++) ;", "a variable declared `static`"),
        ("uint4 v; v.xx.xy = (uint2)(1);", "`=` cannot store here"),
        ("uint4 v; v.xyz.zz = (uint2)(1);", "a component occurs twice"),
        ("const uint4 v = 1; v.xy.x = 1;", "it is `const`"),
        ("uint4 v; &v.hi.lo;", "the address of a vector's component"),
        ("uint x = \"abc\";", "a string can only initialise"),
        ("typeof(len) x;", "`typeof` is not supported in filters"),
        ("pkt->x;", "has no members"),
        ("struct { int a; } s; s->a;", "`->` takes a pointer"),
        ("struct { int a; } s; s.b;", "has no member `b`"),
        ("vload4(0, pkt);", "`vload4` is not supported in filters"),
        ("min(pkt, pkt);", "takes numbers and vectors"),
    ] {
        let (messages, shown) = errors(&filter("", inside));
        assert!(shown.contains(expected), "{inside}: {shown}");
        assert!(shown.contains("test.cl:2:"), "{inside} is reported with its place: {shown}");
        assert!(messages.len() <= 2, "{inside} is reported once: {messages:?}");
    }
}

#[test]
fn errors_outside_functions() {
    let inside = "";
    for (outside, expected) in [
        ("uint counter;", "a variable outside functions"),
        ("__global uint x;", "a variable outside functions"),
        ("__constant uint x;", "`x` has no value"),
        ("__constant uint x = y;", "`y` is not declared"),
        ("uint f(uint n) { return n ? f(n - 1) : 0; }", "`f` calls itself"),
        ("uint g(uint n); uint f(uint n) { return g(n); } uint g(uint n) { return f(n); }", "calls itself"),
        ("uint g(uint n); uint f(uint n) { return g(n); }", "`g` is called but never defined"),
        ("uint f(uint n) { return n; } uint f(uint n) { return n; }", "`f` is defined twice"),
        ("uint f(uint n); uint f(int n) { return n; }", "declared with another type"),
        ("uint load_u8(uint n) { return n; }", "`load_u8` cannot be declared"),
        ("uint min(uint n) { return n; }", "`min` cannot be declared"),
        ("uint pc_x(uint n) { return n; }", "`pc_x` cannot be declared"),
        ("__kernel void k() { }", "`__kernel` is not supported in filters"),
        ("foo bar;", "unknown type `foo`"),
        ("struct s { struct s inner; };", "not defined yet"),
        ("struct s { int a; int a; };", "a second member `a`"),
        ("struct s { };", "a structure without members"),
        ("struct s { uchar rest[]; };", "an array without a size as a member"),
        ("typedef uint (*f)(uint);", "there are no function pointers"),
        ("uint f(uint a, ...) { return a; }", "a fixed number of arguments"),
        ("struct s { uchar a; int b __attribute__((packed)); };", "`packed` has no effect here"),
        ("typedef struct { uchar a; int b; } s __attribute__((packed));", "`packed` has no effect here"),
        ("typedef __attribute__((packed)) uint u;", "`packed` has no effect here"),
        ("struct s { int a; } __attribute__((aligned(8)));", "unknown attribute `aligned`"),
        ("uint *f(void) { uint x; return &x; }", "returning a pointer to a local variable"),
        ("void f(__private uint *p) { uchar *q = (uchar *)p; *q = 1; }", "accessed as another type"),
    ] {
        let (_, shown) = errors(&filter(outside, inside));
        assert!(shown.contains(expected), "{outside}: {shown}");
    }
    let (_, shown) = errors("uint f(uint a) { return a; }");
    assert!(shown.contains("there is no function `xdp_filter`"), "{shown}");
    for wrong in [
        "int xdp_filter(__global uchar *p, uint l) { return 1; }",
        "uint xdp_filter(uint p, uint l) { return 1; }",
        "uint xdp_filter(__global uchar *p) { return 1; }",
    ] {
        let (_, shown) = errors(wrong);
        assert!(shown.contains("`xdp_filter` has the wrong type"), "{shown}");
    }
}

#[test]
fn rejected_members_are_reported_once() {
    for (outside, expected) in [
        ("struct n { struct n *next; };", "a pointer as a member"),
        ("struct n { __global uchar *p; __constant uint *q; };", "a pointer as a member"),
        ("struct n { uchar rest[]; };", "an array without a size as a member"),
        ("struct n { void v; };", "a member of type `void`"),
    ] {
        let (messages, shown) = errors(&filter(outside, ""));
        assert!(messages.iter().all(|message| message.contains(expected)), "{outside}: {shown}");
    }
}

#[test]
fn unclosed_brace_is_marked() {
    let text = "uint f(uint a) {\n    if (a) {\n        a++;\n    return a;\n}\n";
    let (messages, shown) = errors(text);
    assert_eq!(messages, ["expected `}`, found the end of the text"], "{shown}");
    assert!(shown.contains("test.cl:6:1") && shown.contains("1 │ uint f(uint a) {"), "{shown}");
    assert!(shown.contains("this brace is never closed"), "{shown}");
}

/// For each text: the first message, its place, and the place of the open bracket.
#[test]
fn unclosed_bracket_is_marked() {
    const FILTER: &str = "uint xdp_filter(__global uchar *pkt, uint len) {";
    for (text, expected, place, opened) in [
        ("struct s {\n uint a;\n\nFILTER\n return 1; }", "`xdp_filter` starts inside other braces", (4, 6), (1, 10)),
        ("uint f(uint a) {\n a++;\n\nFILTER\n return 1; }", "`xdp_filter` starts inside other braces", (4, 6), (1, 16)),
        ("struct s {\n uint a;\nenum e { A };", "unnamed member", (3, 13), (1, 10)),
        ("struct s {\n uint a;\n", "expected a member or `}`", (3, 1), (1, 10)),
        ("struct s {\n uint a;\n#define A 1\n A", "expected a member or `}`", (4, 2), (1, 10)),
        ("enum e {\n A,\n B\nuint f(void);", "expected `,` between the constants or `}`", (4, 1), (1, 8)),
        ("enum e {\n A,\nuint f(void);", "expected a name for a constant or `}`", (3, 1), (1, 8)),
        ("enum e {\n A,\n", "expected a name for a constant or `}`", (3, 1), (1, 8)),
        ("__constant uint t[] = {\n 1, 2;", "expected `,` between the values or `}`", (2, 6), (1, 23)),
        ("__constant uint t[2][2] = {\n {1}, {2;", "expected `,` between the values or `}`", (2, 9), (2, 7)),
        ("__constant uint t[] = {\n {1}, {2};", "expected `,` between the values or `}`", (2, 10), (1, 23)),
        ("__constant uint t[] = {\n 1,", "expected a value", (2, 4), (1, 23)),
        ("__constant uint t[3] = { [0 = 1 };", "expected `]` after the index", (1, 29), (1, 26)),
        ("FILTER\n if (len) {\n return 1;", "expected `}`, found the end", (3, 11), (2, 11)),
        ("FILTER\n switch (len) {\n case 1: return 1;", "expected `}`, found the end", (3, 19), (2, 15)),
        ("FILTER\n len = 3 +", "expected a value, found the end", (2, 11), (1, 48)),
        ("FILTER\n if ((len > 3)\n return 1; }", "expected `)` to close the parenthesis", (3, 2), (2, 5)),
        ("FILTER\n while (len {} }", "expected `)` to close the parenthesis", (2, 13), (2, 8)),
        ("FILTER\n for (; len; len-- {} }", "expected `)` to close the head of `for`", (2, 20), (2, 6)),
        ("FILTER\n len = 2 * (len + (3);\n }", "expected `)` to close the parenthesis", (2, 22), (2, 12)),
        ("FILTER\n len = load_u8(pkt, (3);\n }", "expected `,` or `)` after the arguments", (2, 24), (2, 15)),
        ("FILTER\n len = load_u8(pkt 3);\n }", "expected `,` or `)` after the arguments", (2, 20), (2, 15)),
        ("FILTER\n len = pkt[3;\n }", "expected `]` after the index", (2, 13), (2, 11)),
        ("FILTER\n uint a[3;\n }", "expected `]` after the size", (2, 10), (2, 8)),
        ("FILTER\n len = (uint;\n }", "expected `)` after the type of a cast", (2, 13), (2, 8)),
        ("FILTER\n len = sizeof(uint;\n }", "expected `)` after the type", (2, 19), (2, 14)),
        ("uint f(uint a\n{ return a; }", "expected `,` or `)` after the parameters", (2, 1), (1, 7)),
        ("struct __attribute__((packed) s { uint a; };", "expected `)` after", (1, 31), (1, 21)),
    ] {
        let text = text.replace("FILTER", FILTER);
        let Err(errors) = super::compile_text(&text, &[]) else { panic!("accepted:\n{text}") };
        let (error, shown) = (&errors.errors[0], errors.render());
        assert!(error.message.contains(expected), "{text}\n{shown}");
        let places: Vec<_> = error.labels.iter().take(2).map(|l| errors.source.location(l.range.start)).collect();
        assert_eq!(places, [place, opened], "{text}\n{shown}");
        assert!(["opened here", "this brace is never closed"].contains(&error.labels[1].message.as_str()), "{shown}");
    }
}

#[test]
fn unmatched_closing_bracket_is_marked() {
    for (text, places, expected) in [
        ("uint f(uint a) {\n if (a > 3)) a++;\n return a; }", vec![(2, 12)], "this `)` has no opening bracket"),
        ("uint f(uint a) {\n ]; return a; }", vec![(2, 2)], "this `]` has no opening bracket"),
        ("uint f(uint a) { return a; } }\nuint b(void);", vec![(1, 30)], "this `}` has no opening brace"),
        ("uint f(uint a) {\n if (a) a++; }\n return a;\n}", vec![(3, 2), (4, 1)], "is there an extra `}` above?"),
        ("uint f(uint a) { a++; }\n if (a) { a++; }\n", vec![(2, 2)], "is there an extra `}` above?"),
    ] {
        let Err(errors) = super::compile_text(text, &[]) else { panic!("accepted:\n{text}") };
        let shown = errors.render();
        let found: Vec<_> = errors.errors.iter().map(|e| errors.source.location(e.labels[0].range.start)).collect();
        assert_eq!(found, places, "{text}\n{shown}");
        assert!(shown.contains(expected), "{text}\n{shown}");
    }
}

#[test]
fn several_errors_are_reported_at_once() {
    let text = "uint helper(uint a) {\n    uint b = missing;\n    retrun a;\n    return a +;\n}\n\nfoo x;\nuint xdp_filter(__global uchar *pkt, uint len) {\n    goto out;\n    return pkt;\n}\n";
    let (messages, shown) = errors(text);
    // Parser errors only: names are resolved after a successful parse.
    assert_eq!(messages.len(), 4, "{shown}");
    for place in ["test.cl:3:5", "test.cl:4:15", "test.cl:7:1", "test.cl:9:5"] {
        assert!(shown.contains(place), "{place}: {shown}");
    }
    let text = "uint helper(uint a) {\n    uint b = missing;\n    return other + 1;\n}\nuint xdp_filter(__global uchar *pkt, uint len) {\n    helper(1, 2);\n    return pkt;\n}\n";
    let (messages, shown) = errors(text);
    assert_eq!(messages.len(), 4, "{shown}");
    for place in ["test.cl:2:14", "test.cl:3:12", "test.cl:6:5", "test.cl:7:12"] {
        assert!(shown.contains(place), "{place}: {shown}");
    }
}

#[test]
fn report_has_text_reason_and_remedy() {
    let (_, shown) = errors(&filter("", "uint a = (uint)pkt;"));
    assert_eq!(
        shown,
        "error: a cast between a pointer and a number
  ┌─ test.cl:2:59
  │
2 │ uint xdp_filter(__global uchar *pkt, uint len) { uint a = (uint)pkt; return XDP_PASS; }
  │                                                           ^^^^^^^^^
  │
  = a pointer has no numeric address; `p - q` is a distance, `p + n` moves a pointer

"
    );
}

#[test]
fn errors_in_expansions_point_at_the_macro_use() {
    let (_, shown) = errors(&filter(
        "#define BAD (undefined + 1)\n#define TWICE(x) ((x) + (x))",
        "uint a = BAD;\nuint b = TWICE(other);",
    ));
    assert!(shown.contains("test.cl:3:59"), "{shown}");
    assert!(shown.contains("test.cl:4:16"), "{shown}");
}

/// Unsupported features in the fourth line of a text: the column and the text that the error marks.
#[test]
fn unsupported_features_are_marked() {
    for (line, column, pointed, expected) in [
        ("    goto out;", 5, "goto", "`goto` is not supported in filters"),
        ("    out: return 1;", 5, "out", "there are no labels"),
        ("    return again(1);", 12, "again(1)", "`again` calls itself"),
        ("    uint (*f)(uint);", 10, "(", "there are no function pointers"),
        ("    __global uchar **p;", 21, "*", "there are no pointers to pointers"),
        ("    uint a = (uint)pkt;", 14, "(uint)pkt", "a cast between a pointer and a number"),
        ("    len = *(__global uint *)len;", 12, "(__global uint *)len", "a cast between a pointer and a number"),
        ("    __local uint a[4];", 5, "__local", "`__local` is not supported in filters"),
        (
            "    barrier(CLK_LOCAL_MEM_FENCE);",
            5,
            "barrier(CLK_LOCAL_MEM_FENCE)",
            "`barrier` is not supported in filters",
        ),
        ("    len = get_global_id(0);", 11, "get_global_id(0)", "`get_global_id` is not supported in filters"),
        ("    atomic_add(pkt, 1);", 5, "atomic_add(pkt, 1)", "`atomic_add` is not supported in filters"),
        ("    image2d_t image;", 5, "image2d_t", "`image2d_t` is not supported in filters"),
        ("    sampler_t s;", 5, "sampler_t", "`sampler_t` is not supported in filters"),
        ("    printf(\"%u\", len);", 5, "printf(\"%u\", len)", "`printf` is not supported in filters"),
        ("    struct { uint a : 3; } s;", 21, ":", "there are no bit-fields"),
        ("    asm(\"nop\");", 5, "asm", "`asm` is not supported in filters"),
        ("    __asm__ volatile (\"nop\");", 5, "__asm__", "`__asm__` is not supported in filters"),
    ] {
        let text = format!(
            "uint again(uint n);\nuint again(uint n) {{ return n; }}\nuint xdp_filter(__global uchar *pkt, uint len) {{\n{line}\n    return 1;\n}}\n"
        );
        let text = if line.contains("again") {
            text.replace("{ return n; }", "{ return n ? again(n - 1) : 0; }")
        } else {
            text
        };
        let Err(errors) = super::compile_text(&text, &[]) else { panic!("accepted:\n{text}") };
        let error = &errors.errors[0];
        assert!(error.message.contains(expected), "{line}: {}", errors.render());
        assert!(!error.notes.is_empty(), "{line}: no remedy: {}", errors.render());
        let range = error.labels[0].range.clone();
        let place = errors.source.location(range.start);
        if line.contains("again") {
            // The error marks the recursive call, not the call in the filter.
            assert_eq!((place, &text[range]), ((2, 33), "again(n - 1)"));
        } else {
            assert_eq!((place, &text[range]), ((4, column), pointed), "{line}: {}", errors.render());
        }
    }
}

#[test]
fn errors_in_expansions_show_the_definition() {
    let (_, shown) = errors(&filter("#define INNER missing\n#define OUTER (INNER + 1)", "uint a = OUTER;"));
    for part in ["`missing` is not declared", "test.cl:3:59", "2 │ #define OUTER", "the macro is defined here"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn unknown_names_get_suggestions() {
    for (outside, inside, expected, suggestion) in [
        ("", "uint32_t a = 1;", "unknown type `uint32_t`", "that is `uint`"),
        ("", "__u8 a = 1;", "unknown type `__u8`", "that is `uchar`"),
        ("", "s64 a;", "unknown type `s64`", "that is `long`"),
        ("struct s { __be16 port; };", "", "unknown type `__be16`", "that is `ushort`"),
        ("int16_t f(int a) { return a; }", "", "unknown type `int16_t`", "that is `short`"),
        ("static __always_inline uint f(uint a) { return a; }", "", "unknown type `__always_inline`", "leave it out"),
        ("uint f(__u32 a) { return a; }", "", "`__u32`", "that is `uint`"),
        ("", "len = (uint16_t)len;", "unknown type `uint16_t`", "that is `ushort`"),
        ("", "len = *(__be32 *)pkt;", "unknown type `__be32`", "that is `uint`"),
        ("", "memcpy(pkt, pkt + 6, 6);", "no function `memcpy`", "assign a structure"),
        ("", "__builtin_memset(pkt, 0, 6);", "no function `__builtin_memset`", "a loop"),
        ("", "if (bpf_ntohs(1) == 2) return 1;", "no function `bpf_ntohs`", "`ntohs` does that"),
        ("", "if (__constant_htons(1) == 2) return 1;", "no function `__constant_htons`", "`htons` does that"),
        ("", "if (unlikely(len < 14)) return 1;", "no function `unlikely`", "the condition alone"),
        ("", "retrun 1;", "`retrun` does not start", "did you mean `return`?"),
        ("", "retrun len;", "unknown type `retrun`", "did you mean `return`?"),
        ("", "if (len) len++; esle { len--; }", "`esle` does not start", "did you mean `else`?"),
        ("", "whlie (len) { len--; }", "`whlie` does not start", "did you mean `while`?"),
        ("", "__gobal uchar *p = pkt;", "unknown type `__gobal`", "did you mean `__global`?"),
        ("uint f(__globl uchar *p) { return *p; }", "", "unknown type `__globl`", "did you mean `__global`?"),
        ("", "cosnt uint a = 1;", "unknown type `cosnt`", "did you mean `const`?"),
        ("strcut s { uint a; };", "", "unknown type `strcut`", "did you mean `struct`?"),
        ("typedef struct { uint a; } flow_t;", "flw_t f;", "unknown type `flw_t`", "did you mean `flow_t`?"),
        ("struct s { uint a; }", "", "expected `;` after the `}`, found `uint`", ""),
        ("enum e { A }\nuint f(void) { return A; }", "", "expected `;` after the `}`, found `uint`", ""),
        ("", "nowhere(1);", "no function `nowhere`", "declared before"),
        ("", "len = __builtin_bswap32(len);", "no function `__builtin_bswap32`", "`ntohl` does that"),
        ("", "if (__builtin_expect(len < 14, 0)) return 1;", "no function `__builtin_expect`", "the condition alone"),
        (
            "struct s { uchar a, b; };",
            "len = offsetof(struct s, b);",
            "`offsetof` is not supported in filters",
            "&p->member",
        ),
        ("", "float f = sqrt(2.0f);", "`sqrt` is not supported in filters", "with integers"),
        ("", "float f = half_powr(2.0f, 2.0f);", "`half_powr` is not supported in filters", "with integers"),
        ("", "float f = fabs(-2.0f);", "`fabs` is not supported in filters", "x < 0 ? -x : x"),
        ("", "float f = floor(-2.0f);", "`floor` is not supported in filters", "(float)(int)x"),
        ("", "float2 v; float f = dot(v, v);", "`dot` is not supported in filters", "a.x * b.x"),
        ("", "float f = mix(1.0f, 2.0f, 0.5f);", "`mix` is not supported in filters", "a + (b - a) * t"),
        ("", "if (isnan(1.0f)) return 1;", "`isnan` is not supported in filters", "x != x"),
        ("uint lengths(uint a) { return a; }", "lenghts(1);", "no function `lenghts`", "did you mean `lengths`?"),
        ("", "len = load_be_16(pkt, 12);", "no function `load_be_16`", "did you mean `load_be16`?"),
        ("", "len = popcnt(len);", "no function `popcnt`", "did you mean `popcount`?"),
        ("", "return XDP_DRP;", "`XDP_DRP` is not declared", "did you mean `XDP_DROP`?"),
        ("", "return xdp_drop;", "`xdp_drop` is not declared", "did you mean `XDP_DROP`?"),
        ("", "uint total = 1; return totl;", "`totl` is not declared", "did you mean `total`?"),
    ] {
        let (messages, shown) = errors(&filter(outside, inside));
        assert!(
            messages.len() == 1 && shown.contains(expected) && shown.contains(suggestion),
            "{outside} {inside}: {shown}"
        );
    }
}

/// Flow functions beside a filter, and a part of the error that each causes.
#[test]
fn invalid_flow_functions_are_explained() {
    const FILTER: &str = "uint xdp_filter(__global uchar *pkt, uint len)";
    for (outside, inside, expected) in [
        ("uint xdp_flow(__global uchar *pkt) { return 1; }", "", "`xdp_flow` has the wrong type"),
        ("void xdp_flow(__global uchar *pkt, uint len) { }", "", "`xdp_flow` has the wrong type"),
        ("uint xdp_flow(__global uchar *pkt, uint len);", "", "`xdp_flow` is declared but never defined"),
        (
            "uint xdp_flow(__global uchar *pkt, uint len) { *pkt = 1; return 1; }",
            "",
            "`xdp_flow` may not change the packet",
        ),
        (
            "uint xdp_flow(__global uchar *pkt, uint len) { return 1; }",
            "xdp_flow(pkt, len);",
            "cannot call the flow function",
        ),
    ] {
        let (_, rendered) = errors(&format!("{outside}\n{FILTER} {{ {inside} return 2; }}"));
        assert!(rendered.contains(expected), "{outside}\n{rendered}");
    }
}
