// Every directive and every operator of the preprocessor; behind the control character is "a.h",
// then "b.h".
#include <portcullis.h>
#include "a.h"
#include "b.h"
#define HEADER "a.h"
#include HEADER
#ifndef LIMIT
#define LIMIT 0x40u
#endif
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define CAT(a, b) a ## b
#define XCAT(a, b) CAT(a, b)
#define STR(s) #s
#define XSTR(s) STR(s)
#define LOG(f, ...) log(f, ## __VA_ARGS__)
#define ALL(...) __VA_ARGS__ #__VA_ARGS__
#define F(x) x F
#define EMPTY
#if defined(LIMIT) && LIMIT << 1 > 0x7f - 1 || 1 / 0
uint v = MIN(XCAT(LIM, IT), LIMIT) + F(1)(2);
#elif !defined EMPTY ? ~0u >> 3 : -1 % 2
#error never
#else
don't "look
#endif
char *s = XSTR(CAT(a, EMPTY) \n "b\\" '\'') LOG("x") LOG("x", 1, 2) ALL() ALL(1, (2, 3));
float f = .5f + 1e-3 + 0x1.8p+3f; ulong l = 18446744073709551615ul + 'a' + '\xff' + __LINE__;
#undef F
#pragma once
#pragma unroll
a\
b /* c
*/ F /\
* d */ ; x <<= y >>= z ... -> ++ -- && || != ## #
typedef struct { uchar a[6]; ushort type; } __attribute__((packed)) eth;
#pragma once
int from_a; __FILE__
#ifndef B_H
#define B_H
# include "b.h"
int from_b = INT_MIN;
#endif
