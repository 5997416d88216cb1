//! Pointers, structures, arrays, tables and the packet.

use super::{filter, run, run_with, value};
use portcullis_core::packet::Metadata;

#[test]
fn packet_pointers_work_as_in_c() {
    let packet: Vec<u8> = (0..64).collect();
    for (inside, expected) in [
        ("pkt[8] = pkt[3];", 3u64),
        ("__global uchar *p = pkt; pkt[8] = *++p + *p++ + *p;", 1 + 1 + 2),
        ("__global uchar *p = pkt + 9; *--p = 5;", 5),
        ("*(__global uint *)(pkt + 8) = *(__global uint *)(pkt + 3);", 0x0605_0403),
        ("*(__global ushort *)(pkt + 8) = ((__global ushort *)(pkt + 1))[2];", 0x0605),
        ("__global uint *p = (__global uint *)pkt; p += 2; *p = p - (__global uint *)pkt;", 2),
        ("__global uint *p = (__global uint *)pkt; pkt[8] = (__global uchar *)(p + 2) == pkt + 8;", 1),
        ("pkt[8] = pkt + 4 > pkt + len;", 0),
        ("pkt[8] = pkt + 65 > pkt + len;", 1),
        ("uchar *p = pkt; p[8] = p[5];", 5),
        ("pkt[8] = (&pkt[10] - &pkt[3]) * 2;", 14),
        ("__global char *p = (__global char *)pkt + 8; *p = -1; pkt[9] = *p < 0;", 0x01ff),
        ("pkt[8] += 250;", 2),
        ("pkt[8]++; ++pkt[8]; pkt[8] <<= 1;", 20),
        ("*(__global long *)(pkt + 8) = -2; pkt[15] = *(__global long *)(pkt + 8) >> 60;", 0xffff_ffff_ffff_fffe),
        ("*(__global uint2 *)(pkt + 8) = (*(__global uint2 *)pkt).yx;", 0x0302_0100_0706_0504),
        ("(*(__global uchar4 *)(pkt + 8)).zx = (uchar2)(7, 9);", 0x0007_0009),
        (
            "const __global uchar *end = pkt + len; int n = 0; for (const __global uchar *p = pkt; p < end; p++) n++; pkt[8] = n;",
            64,
        ),
        ("*(__global float *)(pkt + 8) = 1.5f;", 0x3fc0_0000),
        ("__global bool *b = (__global bool *)pkt + 8; *b = pkt[7]; pkt[9] = *b + ((__global bool *)pkt)[0];", 0x0101),
        ("__global void *v = pkt + 3; pkt[8] = *(__global uchar *)v;", 3),
        ("__global uchar *p; if (len > 10) p = pkt + 3; else p = pkt + 4; pkt[8] = *p;", 3),
        ("__global uchar *p = len > 10 ? pkt + 3 : pkt + 4; pkt[8] = *p;", 3),
        ("pkt[8] = *(len > 100 ? pkt + 3 : (pkt[0]++, pkt + 4));", 4),
    ] {
        let outcome = run(&filter("", &format!("for (int i = 9; i < 16; i++) pkt[i] = 0; {inside}")), &packet);
        let got = u64::from_le_bytes(outcome.packet[8..16].try_into().unwrap());
        let mask = match expected {
            0..=0xff => 0xff,
            0x100..=0xffff => 0xffff,
            _ => u64::MAX,
        };
        assert_eq!(got & mask, expected, "{inside}");
    }
}

#[test]
fn accesses_past_the_packet_are_dropped() {
    let packet: Vec<u8> = (1..=16).collect();
    for (inside, changed) in [
        ("pkt[0] = *(__global uint *)(pkt + 13);", Some((0, 0))),
        ("pkt[0] = *(__global uint *)(pkt + 12);", Some((0, 13))),
        ("pkt[0] = pkt[16] + pkt[-1] + pkt[0xffffffff];", Some((0, 0))),
        ("pkt[0] = *(__global ulong *)(pkt + 9) != 0;", Some((0, 0))),
        ("pkt[0] = *(__global ulong *)(pkt - 4) != 0;", Some((0, 0))),
        ("*(__global uint *)(pkt + 13) = 0;", None),
        ("*(__global ulong *)(pkt + 9) = 0;", None),
        ("*(__global ulong *)(pkt - 4) = 0;", None),
        // Each component of a vector is a separate access.
        ("pkt[0] = (*(__global uint4 *)(pkt + 8)).y;", Some((0, 13))),
        ("pkt[0] = (*(__global uint4 *)(pkt + 8)).z;", Some((0, 0))),
    ] {
        let mut expected = packet.clone();
        if let Some((at, byte)) = changed {
            expected[at] = byte;
        }
        assert_eq!(run(&filter("", inside), &packet).packet, expected, "{inside}");
    }
}

const STRUCTS: &str = "
    struct inner { uchar a; ushort b; };
    struct outer { uchar c; struct inner in[2]; uint d; ulong e; };
    struct tight { uchar c; struct inner in; uint d; } __attribute__((packed));
    typedef struct { uint3 v; char tail; } vectors;
    typedef struct __attribute__((packed)) { uchar x; uint y; } bytes;
    enum { RED = 3, GREEN, BLUE = RED * 2 };
    enum kind { NONE = -1, SOME };
    enum small { A, B };
";

#[test]
fn structure_layout_matches_c() {
    for (expression, expected) in [
        ("sizeof(struct inner)", 4),
        ("sizeof(struct outer)", 24),
        ("sizeof(struct tight)", 9),
        ("sizeof(vectors)", 32),
        ("sizeof(bytes)", 5),
        ("RED + GREEN * 10 + BLUE * 100", 643),
        ("NONE", -1),
        ("(enum kind)NONE < 0", 1),
        ("(enum small)A - 1 > 0", 1),
        ("sizeof(enum kind)", 4),
        ("(__global uchar *)&((__global struct outer *)pkt)->in[1].b - pkt", 8),
        ("(__global uchar *)&((__global struct outer *)pkt)->e - pkt", 16),
        ("(__global uchar *)&((__global struct tight *)pkt)->d - pkt", 5),
        ("(__global uchar *)((__global struct outer *)pkt + 2) - pkt", 48),
    ] {
        assert_eq!(value(STRUCTS, "", expression), expected, "{expression}");
    }
}

#[test]
fn structures_are_values() {
    for (before, expression, expected) in [
        ("struct outer o = {1, {{2, 3}, {4, 5}}, 6, 7};", "o.c + o.in[1].b * 10 + o.e * 100", 751),
        ("struct outer o = {1, 2, 3, 4, 5, 6, 7};", "o.c + o.in[1].b * 10 + o.e * 100", 751),
        (
            "struct outer o = {.d = 6, .in[1].a = 4, 9, .c = 1};",
            "o.c + o.in[1].a * 10 + o.in[1].b * 100 + o.d * 1000",
            6941,
        ),
        ("struct inner i = {300, 70000};", "i.a + i.b * 1000", 44 + 4_464_000),
        ("struct inner i = {1, 2}, j = i; i.a = 9;", "j.a + i.a * 10", 91),
        (
            "struct outer o = {0}; struct inner *p = &o.in[one]; p->b = 8; p--; p->a = 2;",
            "o.in[1].b * 10 + o.in[0].a",
            82,
        ),
        (
            "struct outer o; *(__global struct outer *)(pkt + 16) = o; struct outer q = *(__global struct outer *)(pkt + 16);",
            "q.d",
            0,
        ),
        (
            "struct tight t = {1, {2, 3}, 4}; *(__global struct tight *)(pkt + 17) = t;",
            "pkt[17] + pkt[18] * 10 + pkt[20] * 100 + pkt[22] * 1000",
            4321,
        ),
        ("struct inner i = {5, 6};", "swap(i).a * 10 + i.a", 65),
    ] {
        let outside =
            format!("{STRUCTS} struct inner swap(struct inner i) {{ uchar a = i.a; i.a = i.b; i.b = a; return i; }}");
        assert_eq!(value(&outside, before, expression), expected, "{before} {expression}");
    }
}

#[test]
fn arrays_and_pointers_to_variables() {
    let outside = "
        int sum(const int *p, int n) { int s = 0; while (n--) s += *p++; return s; }
        void fill(uint *p, uint n) { for (uint i = 0; i < n; i++) p[i] = i; }
        int *second(int *p) { return p + 1; }
        void swap(int *a, int *b) { int t = *a; *a = *b; *b = t; }
        void twice(int *p) { swap(p, p + 1); swap(p + 1, p); swap(&p[0], second(p)); }
        int third(int a[3]) { return a[2]; }
        struct pair { int a[2]; int b; };
        void bump(struct pair *p, int i) { p->a[i]++; p->b += 2; }
    ";
    for (before, expression, expected) in [
        ("int a[4] = {1, 2, 3};", "sum(a, 4)", 6),
        ("int a[] = {1, 2, 3};", "sum(a + 1, 2) * 10 + sizeof(a)", 62),
        ("int a[2][3] = {{1}, {2, 3}};", "sum(a[1], 3) * 10 + a[0][0]", 51),
        ("int a[2][2] = {1, 2, 3, 4};", "a[one][zero] * 10 + a[1][1]", 34),
        ("uint a[8]; fill(a, 8);", "a[7] + a[zero]", 7),
        ("int x = 5;", "sum(&x, 1)", 5),
        ("int x = 1, y = 2; swap(&x, &y);", "x * 10 + y", 21),
        ("int a[2] = {1, 2}; twice(a);", "a[0] * 10 + a[1]", 21),
        ("int a[3] = {1, 2, 3};", "*second(a) * 10 + *second(&a[1])", 23),
        ("int a[3] = {1, 2, 3}; *second(a) = 9;", "third(a) + a[1]", 12),
        ("struct pair p[3] = {0}; bump(&p[one], 1); bump(p + 1, 1);", "p[1].a[1] * 10 + p[1].b", 24),
        ("int a[4] = {1, 2, 3, 4}; int *p = a + 3;", "(p - a) * 10 + *p + (p > a) + (p == &a[3])", 36),
        ("int a[4] = {1, 2, 3, 4}; int *p = a; int *q = &a[2]; p = q; p[1] = 7;", "a[3]", 7),
        ("char s[] = \"ab\"; ", "sizeof(s) * 1000 + s[0] + s[2]", 3097),
        ("uchar b[3] = {255, 256, 257};", "b[0] + b[1] + b[2]", 256),
        ("int a[3] = {[2] = 5, [0] = 1};", "a[0] + a[1] + a[2]", 6),
        ("int x = 3; uint *p = (uint *)&x; *p += 1;", "x", 4),
        ("int a[4] = {1, 2, 3, 4}; int i = 9 * one;", "a[i]", 4),
        ("int a[4] = {1, 2, 3, 4}, n = 0; for (int *p = a; p != &a[4]; p++) n += *p;", "n", 10),
        ("int a[4] = {1, 2, 3, 4}, *p = &a[4];", "(p - a) * 100 + *p * 10 + p[-1]", 444),
        ("int a[4] = {1, 2, 3, 4};", "*&a[4] * 100 + (&a[4])[0] * 10 + (&a[4])[-1]", 444),
        ("struct pair p[2] = {{{1, 2}, 3}, {{4, 5}, 6}};", "(&p[2])->b * 10 + (&p[1])->a[1]", 65),
        ("int a[2][2] = {1, 2, 3, 4};", "&a[1][2] - &a[1][0]", 2),
        ("int x = 1; int *p = &x; int *q = p; *q = 5;", "*p", 5),
        ("uint4 x = (uint4)(1, 2, 3, 4), *p = &x; p->xy.y = 3; p->hi.lo += 4;", "x.x * 100 + x.y * 10 + x.z", 137),
        ("uint4 a[2] = {1u, 4u}; a[one].xy.y = 2; a[1].zw.x--;", "a[1].x * 100 + a[1].y * 10 + a[1].z", 423),
        ("static const uint x = 5, a[2] = {1, 2};", "x * 10 + a[one]", 52),
        ("int a[3]; for (int i = 0; i < 3; i++) { int *p = &a[i]; *p = i; }", "a[2]", 2),
    ] {
        assert_eq!(value(outside, before, expression), expected, "{before} {expression}");
    }
}

#[test]
fn tables_are_readable() {
    let outside = "
        __constant uint primes[] = {2, 3, 5, 7, 11};
        __constant uchar grid[2][3] = {{1, 2}, {4}};
        __constant struct { ushort port; uchar rate; } rules[] = {{80, 1}, {443, 2}, {.rate = 9}};
        __constant char name[] = \"abc\";
        __constant uint LIMIT = 10 * 3;
        __constant uint4 quad = (uint4)(1, 2, 3, 4);
        const int plain[2] = {-1, LIMIT};
        uint at(__constant uint *p, int i) { return p[i]; }
        uint total(__constant uchar *p, int n) { uint s = 0; for (int i = 0; i < n; i++) s += p[i]; return s; }
    ";
    for (expression, expected) in [
        ("primes[3 + zero]", 7),
        ("primes[4]", 11),
        ("at(primes, 2) * 100 + at(primes + 1, one)", 505),
        ("sizeof(primes) / sizeof(primes[0])", 5),
        ("grid[one][zero] * 10 + grid[0][1]", 42),
        ("total(grid[0], 3) + total(&grid[1][0], 3)", 7),
        ("rules[1 + zero].port + rules[2].rate", 452),
        ("name[one]", 98),
        ("LIMIT", 30),
        ("&primes[5] - primes", 5),
        ("*&primes[5]", 11),
        ("quad.w + quad.x", 5),
        ("plain[one] + plain[0]", 29),
    ] {
        assert_eq!(value(outside, "", expression), expected, "{expression}");
    }
    assert_eq!(value("", "__constant int t[2] = {4, 5};", "t[one]"), 5);
}

#[test]
fn prelude_functions_are_callable() {
    let packet: Vec<u8> = (0..64).collect();
    let metadata =
        Metadata { wire_length: 99, port: 7, time_low: 0x6789_abcd, time_high: 0x1_2345, ..Metadata::default() };
    for (expression, expected) in [
        ("pkt_len(pkt)", 64u64),
        ("len", 64),
        ("pkt_wire_len(pkt)", 99),
        ("pkt_port(pkt)", 7),
        ("pkt_time(pkt)", 0x1_2345_6789_abcd),
        ("load_u8(pkt, 5)", 5),
        ("load_be16(pkt, 5)", 0x0506),
        ("load_be16(pkt + 1, 5)", 0x0607),
        ("load_le32((__global ushort *)pkt + 2, 1)", 0x0807_0605),
        ("load_be32(pkt, 62)", 0),
        ("redirect(5)", 0x504),
        ("csum_add(0xffffffff, 1)", 1),
        ("csum_fold(0x12345678)", 0x68ac),
        ("csum_replace16(0x1234, 1, 2)", 0x1233),
        ("XDP_TX + IPPROTO_UDP", 20),
        ("(adjust_head(pkt, 4), len * 1000 + pkt_len(pkt))", 64060),
        ("adjust_tail(pkt, -100)", 0),
        ("ETH_P_IP > -1", 0),
        ("sizeof(ETH_P_IP)", 4),
    ] {
        let inside = format!("ulong v = {expression}; *(__global ulong *)(pkt + 8) = v;");
        let outcome = run_with(&filter("", &inside), &[], &packet, &metadata);
        let got = u64::from_le_bytes(outcome.packet[8..16].try_into().unwrap());
        assert_eq!(got, expected, "{expression}");
    }
}

#[test]
fn pointers_keep_their_offset_when_the_head_moves() {
    let packet: Vec<u8> = (0..64).collect();
    let inside = "__global uchar *p = pkt + 4; adjust_head(pkt, 4); *p = 99; pkt[0] = len; pkt[1] = pkt_len(pkt);";
    let outcome = run(&filter("", inside), &packet);
    assert_eq!((outcome.packet.len(), &outcome.packet[..5]), (60, &[64, 60, 6, 7, 99][..]));
}

#[test]
fn nested_swizzles_can_be_stored_to() {
    let packet: Vec<u8> = (0..16).map(|i| if i % 4 == 0 { i } else { 0 }).collect();
    let inside =
        "(*(__global uint4*)pkt).hi.lo += 3; __global uint4 *p = (__global uint4*)pkt; p->xy.y = 3; p->wzyx.lo.x++;";
    let outcome = run(&filter("", inside), &packet);
    assert_eq!(outcome.packet, [0, 0, 0, 0, 3, 0, 0, 0, 11, 0, 0, 0, 13, 0, 0, 0]);
}

#[test]
fn byte_swaps_become_big_endian_accesses() {
    let packet: Vec<u8> = (0..64).collect();
    let outside = "struct h { ushort a; uint b; ushort c; } __attribute__((packed));";
    let inside = "__global struct h *h = (__global struct h *)pkt; h->c = htons(ntohs(h->a) + 1); uint b = ntohl(h->b); h->b = htonl(b + 1);";
    let outcome = run(&filter(outside, inside), &packet);
    assert_eq!(outcome.packet[..8], [0, 1, 2, 3, 4, 6, 0, 2]);
}

#[test]
fn parameters_are_macros() {
    let text = filter(
        "#ifndef PORT\n#define PORT 80\n#endif\n#ifndef NET\n#define NET 0x0a000001\n#endif",
        "pkt[0] = PORT; pkt[1] = NET & 0xff;",
    );
    assert_eq!(run(&text, &[0, 0]).packet, [80, 1]);
    let set = [("PORT", "81"), ("NET", "10.0.0.9")];
    assert_eq!(run_with(&text, &set, &[0, 0], &Metadata::default()).packet, [81, 9]);
    assert!(super::compile_text(&text, &[("OTHER", "1")]).is_err());
}
