//! What is wrong, and how it is told.

use super::{errors, filter};

/// Texts inside of a filter, and a part of what is said of each.
#[test]
fn each_is_refused_with_its_reason() {
    for (inside, said) in [
        ("goto end; end: ;", "`goto` is not for filters"),
        ("end: ;", "there are no labels"),
        ("int (*f)(int);", "there are no function pointers"),
        ("__global uchar **p;", "there are no pointers to pointers"),
        ("__global uchar *p[4];", "there are no arrays of pointers"),
        ("uint a = (uint)pkt;", "a cast between a pointer and a number"),
        ("__global uchar *p = (__global uchar *)16;", "a cast between a pointer and a number"),
        ("__global uchar *p = 0;", "wanted is a `__global uchar *`"),
        ("if (pkt) return 1;", "a pointer is no condition"),
        ("if (!pkt) return 1;", "a pointer is no condition"),
        ("if (pkt == 0) return 1;", "does not go between"),
        ("__local uint a;", "`__local` is not for filters"),
        ("barrier(1);", "`barrier` is not for filters"),
        ("printf(\"x\");", "`printf` is not for filters"),
        ("atomic_inc(pkt);", "`atomic_inc` is not for filters"),
        ("get_global_id(0);", "`get_global_id` is not for filters"),
        ("image2d_t i;", "`image2d_t` is not for filters"),
        ("asm(\"nop\");", "`asm` is not for filters"),
        ("double d;", "`double` is not for filters"),
        ("half h;", "`half` is not for filters"),
        ("uint8 v;", "`uint8` is not for filters"),
        ("struct { uint a : 3; } s;", "there are no bit-fields"),
        ("union { uint a; } u;", "there are no unions"),
        ("struct { __global uchar *p; } s;", "a pointer as a member"),
        ("undefined = 1;", "`undefined` is not declared"),
        ("f(1);", "there is no function `f`"),
        ("uint a = 1, a = 2;", "`a` is declared twice"),
        ("const uint a = 1; a = 2;", "`=` cannot store here"),
        ("const __global uchar *p = pkt; *p = 1;", "`=` cannot store here"),
        ("const __global uchar *p = pkt; __global uchar *q = p;", "wanted is a `__global uchar *`"),
        ("5 = 6;", "has to be a variable or a place"),
        ("uint a[2]; a[2] = 1;", "the index 2 lies outside an array of 2"),
        ("uint a[0];", "an array of 0 elements"),
        ("uint a[len];", "has to be an integer that is known"),
        ("uint a[] ;", "an array without a size"),
        ("uint a[2] = {1, 2, 3};", "more values than"),
        ("uint a = {1, 2};", "one value is wanted"),
        ("uint4 v; v.q = 1;", "has no component `q`"),
        ("uint4 v; v.xx = (uint2)(1);", "`=` cannot store here"),
        ("uint2 v = (uint2)(1, 2, 3);", "`uint2` of 3 components"),
        ("uint4 a; uint2 b; a + b;", "`+` does not go between `uint4` and `uint2`"),
        ("uint4 v; if (v) return 1;", "a condition is a number"),
        ("uint4 v; &v.x;", "the address of a vector's component"),
        ("uint a[2]; &a;", "there are no pointers to arrays"),
        ("break;", "`break` outside"),
        ("continue;", "`continue` outside"),
        ("case 1: ;", "a case that is not directly in a `switch`"),
        ("switch (len) { case 1: ; case 1: ; }", "a second case 1"),
        ("switch (len) { int x; case 1: ; }", "a statement in front of the first case"),
        ("switch (len) { case 1: { case 2: ; } }", "a case that is not directly in a `switch`"),
        ("switch (1.5f) { }", "`switch` takes an integer"),
        ("1.5f % 2;", "`%` takes integers"),
        ("pkt * 2;", "does not go between"),
        ("load_u8(1, 2);", "argument 1 of `load_u8` has to be the packet"),
        ("uint x; load_u8(&x, 2);", "argument 1 of `load_u8` has to be the packet"),
        ("load_u8(pkt);", "`load_u8` takes 2 arguments, given are 1"),
        ("min(1);", "`min` takes 2 arguments, given are 1"),
        ("uint x; uchar *p = &x;", "wanted is a `uchar *`"),
        ("uint x; uchar *p = (uchar *)&x; *p = 1;", "reached as another type"),
        ("__global uchar *p; *p = 1;", "`p` points nowhere yet"),
        ("uint x; uint *p = &x; p = (uint *)pkt;", "points into something else than before"),
        ("uint x, y; uint *p = len ? &x : &y;", "points into something else than the other"),
        ("uint x; uint y; if (&x < &y) return 1;", "these pointers are not to be compared"),
        ("__constant uchar *p = pkt;", "wanted is a"),
        ("struct s x;", "not defined"),
        ("int x = sizeof(void);", "`void` has no size"),
        ("return;", "nothing is given here"),
        ("uint f;  f();", "`f` is no function"),
        ("xdp_filter(pkt, len);", "calls itself"),
        ("uint x = (struct s)1;", "a cast of"),
        ("(uint4){1, 2, 3, 4};", "there are no compound literals"),
        ("int x = ({ 1; });", "no statements inside of expressions"),
        ("unsigned long long x;", "there is no `long long`"),
        ("convert_uint4(1);", "it takes a value of as many components"),
        ("as_uint(1l);", "another as wide"),
        ("as_uchar4((ushort4)(1));", "another as wide"),
        ("as_uchar3(1u).x = 1;", "has to be a variable or a place"),
        ("as_uint((bool)len);", "another as wide"),
        ("__global uint x;", "a `__global` variable"),
        ("static uint count; count++;", "a variable that is `static`"),
        ("extern uint count;", "a variable that is `extern`"),
        ("__attribute__((opencl_unroll_hint(4))) len = 1;", "expected a loop behind `opencl_unroll_hint`"),
        ("__attribute__((fallthrough)) len = 1;", "expected `;` behind `fallthrough`"),
        ("__attribute__((noreturn)) len = 1;", "the attribute `noreturn` is not known"),
        ("static uint count = 3;", "a variable that is `static`"),
        ("static const __global uchar *p = pkt;", "a variable that is `static`"),
        ("for (static uint i = 0; i < 3; i++) ;", "a variable that is `static`"),
        ("uint4 v; v.xx.xy = (uint2)(1);", "`=` cannot store here"),
        ("uint4 v; v.xyz.zz = (uint2)(1);", "it names a component twice"),
        ("const uint4 v = 1; v.xy.x = 1;", "it is `const`"),
        ("uint4 v; &v.hi.lo;", "the address of a vector's component"),
        ("uint x = \"abc\";", "a string stands only where"),
        ("typeof(len) x;", "`typeof` is not for filters"),
        ("pkt->x;", "has no members"),
        ("struct { int a; } s; s->a;", "`->` takes a pointer"),
        ("struct { int a; } s; s.b;", "has no member `b`"),
        ("vload4(0, pkt);", "`vload4` is not for filters"),
        ("min(pkt, pkt);", "takes numbers and vectors"),
    ] {
        let (messages, shown) = errors(&filter("", inside));
        assert!(shown.contains(said), "{inside}: {shown}");
        assert!(shown.contains("test.cl:2:"), "{inside} is told with its place: {shown}");
        assert!(messages.len() <= 2, "{inside} is told once: {messages:?}");
    }
}

#[test]
fn outside_of_functions() {
    let inside = "";
    for (outside, said) in [
        ("uint counter;", "a variable outside functions"),
        ("__global uint x;", "a variable outside functions"),
        ("__constant uint x;", "`x` has no value"),
        ("__constant uint x = y;", "`y` is not declared"),
        ("uint f(uint n) { return n ? f(n - 1) : 0; }", "`f` calls itself"),
        ("uint g(uint n); uint f(uint n) { return g(n); } uint g(uint n) { return f(n); }", "calls itself"),
        ("uint g(uint n); uint f(uint n) { return g(n); }", "`g` is called and never defined"),
        ("uint f(uint n) { return n; } uint f(uint n) { return n; }", "`f` is defined twice"),
        ("uint f(uint n); uint f(int n) { return n; }", "declared with another type"),
        ("uint load_u8(uint n) { return n; }", "`load_u8` cannot be declared"),
        ("uint min(uint n) { return n; }", "`min` cannot be declared"),
        ("uint pc_x(uint n) { return n; }", "`pc_x` cannot be declared"),
        ("__kernel void k() { }", "`__kernel` is not for filters"),
        ("foo bar;", "unknown type `foo`"),
        ("struct s { struct s inner; };", "not defined yet"),
        ("struct s { int a; int a; };", "a second member `a`"),
        ("struct s { };", "a structure without members"),
        ("struct s { uchar rest[]; };", "an array without a size as a member"),
        ("typedef uint (*f)(uint);", "there are no function pointers"),
        ("uint f(uint a, ...) { return a; }", "a fixed number of arguments"),
        ("struct s { uchar a; int b __attribute__((packed)); };", "`packed` means nothing here"),
        ("typedef struct { uchar a; int b; } s __attribute__((packed));", "`packed` means nothing here"),
        ("typedef __attribute__((packed)) uint u;", "`packed` means nothing here"),
        ("struct s { int a; } __attribute__((aligned(8)));", "the attribute `aligned` is not known"),
        ("uint *f(void) { uint x; return &x; }", "a pointer to a local variable is given back"),
        ("void f(__private uint *p) { uchar *q = (uchar *)p; *q = 1; }", "reached as another type"),
    ] {
        let (_, shown) = errors(&filter(outside, inside));
        assert!(shown.contains(said), "{outside}: {shown}");
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
fn a_structure_whose_members_are_refused_is_told_once() {
    for (outside, said) in [
        ("struct n { struct n *next; };", "a pointer as a member"),
        ("struct n { __global uchar *p; __constant uint *q; };", "a pointer as a member"),
        ("struct n { uchar rest[]; };", "an array without a size as a member"),
        ("struct n { void v; };", "a member of type `void`"),
    ] {
        let (messages, shown) = errors(&filter(outside, ""));
        assert!(messages.iter().all(|message| message.contains(said)), "{outside}: {shown}");
    }
}

#[test]
fn a_brace_without_a_partner_is_pointed_at() {
    let text = "uint f(uint a) {\n    if (a) {\n        a++;\n    return a;\n}\n";
    let (messages, shown) = errors(text);
    assert_eq!(messages, ["expected `}`, found the end of the text"], "{shown}");
    assert!(shown.contains("test.cl:6:1") && shown.contains("1 │ uint f(uint a) {"), "{shown}");
    assert!(shown.contains("this brace has no partner"), "{shown}");
}

/// For each text what is said first, its place, and the bracket that it is about.
#[test]
fn a_bracket_that_is_not_closed_is_pointed_at() {
    const FILTER: &str = "uint xdp_filter(__global uchar *pkt, uint len) {";
    for (text, said, place, opened) in [
        ("struct s {\n uint a;\n\nFILTER\n return 1; }", "`xdp_filter` begins inside of other braces", (4, 6), (1, 10)),
        (
            "uint f(uint a) {\n a++;\n\nFILTER\n return 1; }",
            "`xdp_filter` begins inside of other braces",
            (4, 6),
            (1, 16),
        ),
        ("struct s {\n uint a;\nenum e { A };", "a member without a name", (3, 13), (1, 10)),
        ("struct s {\n uint a;\n", "expected a member or `}`", (3, 1), (1, 10)),
        ("struct s {\n uint a;\n#define A 1\n A", "expected a member or `}`", (4, 2), (1, 10)),
        ("enum e {\n A,\n B\nuint f(void);", "expected `,` between the constants or `}`", (4, 1), (1, 8)),
        ("enum e {\n A,\nuint f(void);", "expected a name for a constant or `}`", (3, 1), (1, 8)),
        ("enum e {\n A,\n", "expected a name for a constant or `}`", (3, 1), (1, 8)),
        ("__constant uint t[] = {\n 1, 2;", "expected `,` between the values or `}`", (2, 6), (1, 23)),
        ("__constant uint t[2][2] = {\n {1}, {2;", "expected `,` between the values or `}`", (2, 9), (2, 7)),
        ("__constant uint t[] = {\n {1}, {2};", "expected `,` between the values or `}`", (2, 10), (1, 23)),
        ("__constant uint t[] = {\n 1,", "expected a value", (2, 4), (1, 23)),
        ("__constant uint t[3] = { [0 = 1 };", "expected `]` behind the index", (1, 29), (1, 26)),
        ("FILTER\n if (len) {\n return 1;", "expected `}`, found the end", (3, 11), (2, 11)),
        ("FILTER\n switch (len) {\n case 1: return 1;", "expected `}`, found the end", (3, 19), (2, 15)),
        ("FILTER\n len = 3 +", "expected a value, found the end", (2, 11), (1, 48)),
        ("FILTER\n if ((len > 3)\n return 1; }", "expected `)` to close the brackets", (3, 2), (2, 5)),
        ("FILTER\n while (len {} }", "expected `)` to close the brackets", (2, 13), (2, 8)),
        ("FILTER\n for (; len; len-- {} }", "expected `)` to close the brackets of `for`", (2, 20), (2, 6)),
        ("FILTER\n len = 2 * (len + (3);\n }", "expected `)` to close the brackets", (2, 22), (2, 12)),
        ("FILTER\n len = load_u8(pkt, (3);\n }", "expected `,` or `)` behind the arguments", (2, 24), (2, 15)),
        ("FILTER\n len = load_u8(pkt 3);\n }", "expected `,` or `)` behind the arguments", (2, 20), (2, 15)),
        ("FILTER\n len = pkt[3;\n }", "expected `]` behind the index", (2, 13), (2, 11)),
        ("FILTER\n uint a[3;\n }", "expected `]` behind the size", (2, 10), (2, 8)),
        ("FILTER\n len = (uint;\n }", "expected `)` behind the type of a cast", (2, 13), (2, 8)),
        ("FILTER\n len = sizeof(uint;\n }", "expected `)` behind the type", (2, 19), (2, 14)),
        ("uint f(uint a\n{ return a; }", "expected `,` or `)` behind the parameters", (2, 1), (1, 7)),
        ("struct __attribute__((packed) s { uint a; };", "expected `)` behind", (1, 31), (1, 21)),
    ] {
        let text = text.replace("FILTER", FILTER);
        let Err(errors) = super::compiled(&text, &[]) else { panic!("this is compiled:\n{text}") };
        let (error, shown) = (&errors.errors[0], errors.render());
        assert!(error.message.contains(said), "{text}\n{shown}");
        let places: Vec<_> = error.labels.iter().take(2).map(|l| errors.source.location(l.range.start)).collect();
        assert_eq!(places, [place, opened], "{text}\n{shown}");
        assert!(["opened here", "this brace has no partner"].contains(&error.labels[1].message.as_str()), "{shown}");
    }
}

#[test]
fn a_bracket_that_closes_nothing_is_pointed_at() {
    for (text, places, said) in [
        ("uint f(uint a) {\n if (a > 3)) a++;\n return a; }", vec![(2, 12)], "this `)` closes nothing"),
        ("uint f(uint a) {\n ]; return a; }", vec![(2, 2)], "this `]` closes nothing"),
        ("uint f(uint a) { return a; } }\nuint b(void);", vec![(1, 30)], "this `}` closes nothing"),
        ("uint f(uint a) {\n if (a) a++; }\n return a;\n}", vec![(3, 2), (4, 1)], "is there a `}` too many above?"),
        ("uint f(uint a) { a++; }\n if (a) { a++; }\n", vec![(2, 2)], "is there a `}` too many above?"),
    ] {
        let Err(errors) = super::compiled(text, &[]) else { panic!("this is compiled:\n{text}") };
        let shown = errors.render();
        let found: Vec<_> = errors.errors.iter().map(|e| errors.source.location(e.labels[0].range.start)).collect();
        assert_eq!(found, places, "{text}\n{shown}");
        assert!(shown.contains(said), "{text}\n{shown}");
    }
}

#[test]
fn several_errors_are_told_at_once_each_in_its_place() {
    let text = "uint helper(uint a) {\n    uint b = missing;\n    retrun a;\n    return a +;\n}\n\nfoo x;\nuint xdp_filter(__global uchar *pkt, uint len) {\n    goto out;\n    return pkt;\n}\n";
    let (messages, shown) = errors(text);
    // What the parser finds; names are looked up when it found nothing.
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
fn a_report_shows_the_text_the_reason_and_the_way_out() {
    let (_, shown) = errors(&filter("", "uint a = (uint)pkt;"));
    assert_eq!(
        shown,
        "error: a cast between a pointer and a number
  ┌─ test.cl:2:59
  │
2 │ uint xdp_filter(__global uchar *pkt, uint len) { uint a = (uint)pkt; return XDP_PASS; }
  │                                                           ^^^^^^^^^
  │
  = a pointer has no address; `p - q` is how far two are apart, `p + n` goes on from one

"
    );
}

#[test]
fn a_macros_use_is_the_place_of_what_it_stands_for() {
    let (_, shown) = errors(&filter(
        "#define BAD (undefined + 1)\n#define TWICE(x) ((x) + (x))",
        "uint a = BAD;\nuint b = TWICE(other);",
    ));
    assert!(shown.contains("test.cl:3:59"), "{shown}");
    assert!(shown.contains("test.cl:4:16"), "{shown}");
}

/// What devices or filters cannot do, in the fourth line of a text: the column and the text that is pointed at.
#[test]
fn what_is_refused_is_pointed_at() {
    for (line, column, pointed, said) in [
        ("    goto out;", 5, "goto", "`goto` is not for filters"),
        ("    out: return 1;", 5, "out", "there are no labels"),
        ("    return again(1);", 12, "again(1)", "`again` calls itself"),
        ("    uint (*f)(uint);", 10, "(", "there are no function pointers"),
        ("    __global uchar **p;", 21, "*", "there are no pointers to pointers"),
        ("    uint a = (uint)pkt;", 14, "(uint)pkt", "a cast between a pointer and a number"),
        ("    len = *(__global uint *)len;", 12, "(__global uint *)len", "a cast between a pointer and a number"),
        ("    __local uint a[4];", 5, "__local", "`__local` is not for filters"),
        ("    barrier(CLK_LOCAL_MEM_FENCE);", 5, "barrier(CLK_LOCAL_MEM_FENCE)", "`barrier` is not for filters"),
        ("    len = get_global_id(0);", 11, "get_global_id(0)", "`get_global_id` is not for filters"),
        ("    atomic_add(pkt, 1);", 5, "atomic_add(pkt, 1)", "`atomic_add` is not for filters"),
        ("    image2d_t image;", 5, "image2d_t", "`image2d_t` is not for filters"),
        ("    sampler_t s;", 5, "sampler_t", "`sampler_t` is not for filters"),
        ("    printf(\"%u\", len);", 5, "printf(\"%u\", len)", "`printf` is not for filters"),
        ("    struct { uint a : 3; } s;", 21, ":", "there are no bit-fields"),
        ("    asm(\"nop\");", 5, "asm", "`asm` is not for filters"),
        ("    __asm__ volatile (\"nop\");", 5, "__asm__", "`__asm__` is not for filters"),
    ] {
        let text = format!(
            "uint again(uint n);\nuint again(uint n) {{ return n; }}\nuint xdp_filter(__global uchar *pkt, uint len) {{\n{line}\n    return 1;\n}}\n"
        );
        let text = if line.contains("again") {
            text.replace("{ return n; }", "{ return n ? again(n - 1) : 0; }")
        } else {
            text
        };
        let Err(errors) = super::compiled(&text, &[]) else { panic!("this is compiled:\n{text}") };
        let error = &errors.errors[0];
        assert!(error.message.contains(said), "{line}: {}", errors.render());
        assert!(!error.notes.is_empty(), "{line}: no way out: {}", errors.render());
        let range = error.labels[0].range.clone();
        let place = errors.source.location(range.start);
        if line.contains("again") {
            // Where it does so, which is not where it is called.
            assert_eq!((place, &text[range]), ((2, 33), "again(n - 1)"));
        } else {
            assert_eq!((place, &text[range]), ((4, column), pointed), "{line}: {}", errors.render());
        }
    }
}

#[test]
fn what_a_macro_stands_for_is_told_with_the_macro() {
    let (_, shown) = errors(&filter("#define INNER missing\n#define OUTER (INNER + 1)", "uint a = OUTER;"));
    for part in ["`missing` is not declared", "test.cl:3:59", "2 │ #define OUTER", "the macro is defined here"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn names_of_other_kinds_of_c_are_answered_with_ours() {
    for (outside, inside, said, instead) in [
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
        ("", "retrun 1;", "`retrun` is no word", "did you mean `return`?"),
        ("", "retrun len;", "unknown type `retrun`", "did you mean `return`?"),
        ("", "if (len) len++; esle { len--; }", "`esle` is no word", "did you mean `else`?"),
        ("", "whlie (len) { len--; }", "`whlie` is no word", "did you mean `while`?"),
        ("", "__gobal uchar *p = pkt;", "unknown type `__gobal`", "did you mean `__global`?"),
        ("uint f(__globl uchar *p) { return *p; }", "", "unknown type `__globl`", "did you mean `__global`?"),
        ("", "cosnt uint a = 1;", "unknown type `cosnt`", "did you mean `const`?"),
        ("strcut s { uint a; };", "", "unknown type `strcut`", "did you mean `struct`?"),
        ("typedef struct { uint a; } flow_t;", "flw_t f;", "unknown type `flw_t`", "did you mean `flow_t`?"),
        ("struct s { uint a; }", "", "expected `;` behind the `}`, found `uint`", ""),
        ("enum e { A }\nuint f(void) { return A; }", "", "expected `;` behind the `}`, found `uint`", ""),
        ("", "nowhere(1);", "no function `nowhere`", "declared before"),
        ("", "len = __builtin_bswap32(len);", "no function `__builtin_bswap32`", "`ntohl` does that"),
        ("", "if (__builtin_expect(len < 14, 0)) return 1;", "no function `__builtin_expect`", "the condition alone"),
        ("struct s { uchar a, b; };", "len = offsetof(struct s, b);", "`offsetof` is not for filters", "&p->member"),
        ("", "float f = sqrt(2.0f);", "`sqrt` is not for filters", "with integers"),
        ("", "float f = half_powr(2.0f, 2.0f);", "`half_powr` is not for filters", "with integers"),
        ("", "float f = fabs(-2.0f);", "`fabs` is not for filters", "x < 0 ? -x : x"),
        ("", "float f = floor(-2.0f);", "`floor` is not for filters", "(float)(int)x"),
        ("", "float2 v; float f = dot(v, v);", "`dot` is not for filters", "a.x * b.x"),
        ("", "float f = mix(1.0f, 2.0f, 0.5f);", "`mix` is not for filters", "a + (b - a) * t"),
        ("", "if (isnan(1.0f)) return 1;", "`isnan` is not for filters", "x != x"),
        ("uint lengths(uint a) { return a; }", "lenghts(1);", "no function `lenghts`", "did you mean `lengths`?"),
        ("", "len = load_be_16(pkt, 12);", "no function `load_be_16`", "did you mean `load_be16`?"),
        ("", "len = popcnt(len);", "no function `popcnt`", "did you mean `popcount`?"),
        ("", "return XDP_DRP;", "`XDP_DRP` is not declared", "did you mean `XDP_DROP`?"),
        ("", "return xdp_drop;", "`xdp_drop` is not declared", "did you mean `XDP_DROP`?"),
        ("", "uint total = 1; return totl;", "`totl` is not declared", "did you mean `total`?"),
    ] {
        let (messages, shown) = errors(&filter(outside, inside));
        assert!(messages.len() == 1 && shown.contains(said) && shown.contains(instead), "{outside} {inside}: {shown}");
    }
}

/// Functions of flows beside a filter, and a part of what is said of each.
#[test]
fn flows_are_refused_with_their_reason() {
    const FILTER: &str = "uint xdp_filter(__global uchar *pkt, uint len)";
    for (outside, inside, said) in [
        ("uint xdp_flow(__global uchar *pkt) { return 1; }", "", "`xdp_flow` has the wrong type"),
        ("void xdp_flow(__global uchar *pkt, uint len) { }", "", "`xdp_flow` has the wrong type"),
        ("uint xdp_flow(__global uchar *pkt, uint len);", "", "`xdp_flow` is declared and never defined"),
        (
            "uint xdp_flow(__global uchar *pkt, uint len) { *pkt = 1; return 1; }",
            "",
            "`xdp_flow` may not change the packet",
        ),
        (
            "uint xdp_flow(__global uchar *pkt, uint len) { return 1; }",
            "xdp_flow(pkt, len);",
            "not for the filter to ask",
        ),
    ] {
        let (_, said_all) = errors(&format!("{outside}\n{FILTER} {{ {inside} return 2; }}"));
        assert!(said_all.contains(said), "{outside}\n{said_all}");
    }
}
