// Arithmetic on 64-bit integers as pairs of words, the low word in x, for devices without 64-bit
// integers. Functions named u64 treat the pair as unsigned, those named i64 as two's complement; if
// both agree, only the u64 function exists. Each computes the result that WGSL defines for its
// operation on 64-bit integers: wrapping, x / 0 = x, x % 0 = 0, MIN / -1 = MIN, shift counts modulo
// 64.
//
// Functions only: no module-scope declarations, no loops, no calls of functions further down.

fn pc_u64_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn pc_u64_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn pc_i64_neg(a: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(~a.x + 1u, ~a.y + select(0u, 1u, a.x == 0u));
}

fn pc_u64_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    // Full product of the low words, from 16-bit halves.
    let a0 = a.x & 0xffffu;
    let a1 = a.x >> 16u;
    let b0 = b.x & 0xffffu;
    let b1 = b.x >> 16u;
    let p00 = a0 * b0;
    let p01 = a0 * b1;
    let p10 = a1 * b0;
    // At most 3 * 0xffff: no carry is lost.
    let middle = (p00 >> 16u) + (p01 & 0xffffu) + (p10 & 0xffffu);
    let low = (p00 & 0xffffu) | (middle << 16u);
    let carried = a1 * b1 + (p01 >> 16u) + (p10 >> 16u) + (middle >> 16u);
    return vec2<u32>(low, carried + a.x * b.y + a.y * b.x);
}

fn pc_u64_less(a: vec2<u32>, b: vec2<u32>) -> bool {
    return select(a.y < b.y, a.x < b.x, a.y == b.y);
}

fn pc_i64_less(a: vec2<u32>, b: vec2<u32>) -> bool {
    return select(bitcast<i32>(a.y) < bitcast<i32>(b.y), a.x < b.x, a.y == b.y);
}

fn pc_u64_shl(a: vec2<u32>, count: u32) -> vec2<u32> {
    let n = count & 31u;
    let low = a.x << n;
    // In two steps, because a shift by 32 (n = 0) would be a shift by 0.
    let high = (a.y << n) | ((a.x >> 1u) >> (31u - n));
    return select(vec2<u32>(low, high), vec2<u32>(0u, low), (count & 32u) != 0u);
}

fn pc_u64_shr(a: vec2<u32>, count: u32) -> vec2<u32> {
    let n = count & 31u;
    let high = a.y >> n;
    let low = (a.x >> n) | ((a.y << 1u) << (31u - n));
    return select(vec2<u32>(low, high), vec2<u32>(high, 0u), (count & 32u) != 0u);
}

fn pc_i64_shr(a: vec2<u32>, count: u32) -> vec2<u32> {
    let n = count & 31u;
    let signed = bitcast<i32>(a.y);
    let high = bitcast<u32>(signed >> n);
    let low = (a.x >> n) | ((a.y << 1u) << (31u - n));
    let sign = bitcast<u32>(signed >> 31u);
    return select(vec2<u32>(low, high), vec2<u32>(high, sign), (count & 32u) != 0u);
}

fn pc_u64_min(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, pc_u64_less(b, a));
}

fn pc_u64_max(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, pc_u64_less(a, b));
}

fn pc_i64_min(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, pc_i64_less(b, a));
}

fn pc_i64_max(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, pc_i64_less(a, b));
}

fn pc_i64_abs(a: vec2<u32>) -> vec2<u32> {
    return select(a, pc_i64_neg(a), bitcast<i32>(a.y) < 0i);
}

fn pc_u64_sign(a: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(select(0u, 1u, any(a != vec2<u32>())), 0u);
}

fn pc_i64_sign(a: vec2<u32>) -> vec2<u32> {
    return select(pc_u64_sign(a), vec2<u32>(0xffffffffu), bitcast<i32>(a.y) < 0i);
}

fn pc_u64_count_one_bits(a: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(countOneBits(a.x) + countOneBits(a.y), 0u);
}

// 64 for zero.
fn pc_u64_count_leading_zeros(a: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u), 0u);
}

// 64 for zero.
fn pc_u64_count_trailing_zeros(a: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(select(countTrailingZeros(a.x), 32u + countTrailingZeros(a.y), a.x == 0u), 0u);
}

// All ones for zero.
fn pc_u64_first_leading_bit(a: vec2<u32>) -> vec2<u32> {
    let zeros = pc_u64_count_leading_zeros(a).x;
    return select(vec2<u32>(63u - zeros, 0u), vec2<u32>(0xffffffffu), zeros == 64u);
}

// The highest bit that differs from the sign bit; -1 for 0 and -1.
fn pc_i64_first_leading_bit(a: vec2<u32>) -> vec2<u32> {
    return pc_u64_first_leading_bit(select(a, ~a, bitcast<i32>(a.y) < 0i));
}

// All ones for zero.
fn pc_u64_first_trailing_bit(a: vec2<u32>) -> vec2<u32> {
    let zeros = pc_u64_count_trailing_zeros(a).x;
    return select(vec2<u32>(zeros, 0u), vec2<u32>(0xffffffffu), zeros == 64u);
}

fn pc_u64_reverse_bits(a: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(reverseBits(a.y), reverseBits(a.x));
}

// The field is clamped to the value's end, as by WGSL's extractBits.
fn pc_u64_extract_bits(a: vec2<u32>, offset: u32, count: u32) -> vec2<u32> {
    let from_bit = min(offset, 64u);
    let bits = min(count, 64u - from_bit);
    if bits == 0u { return vec2<u32>(); }
    return pc_u64_shr(pc_u64_shl(a, 64u - bits - from_bit), 64u - bits);
}

fn pc_i64_extract_bits(a: vec2<u32>, offset: u32, count: u32) -> vec2<u32> {
    let from_bit = min(offset, 64u);
    let bits = min(count, 64u - from_bit);
    if bits == 0u { return vec2<u32>(); }
    return pc_i64_shr(pc_u64_shl(a, 64u - bits - from_bit), 64u - bits);
}

fn pc_u64_insert_bits(a: vec2<u32>, b: vec2<u32>, offset: u32, count: u32) -> vec2<u32> {
    let from_bit = min(offset, 64u);
    let bits = min(count, 64u - from_bit);
    if bits == 0u { return a; }
    let mask = pc_u64_shl(pc_u64_shr(vec2<u32>(0xffffffffu), 64u - bits), from_bit);
    return (a & ~mask) | (pc_u64_shl(b, from_bit) & mask);
}

// One 16-bit digit of the quotient, from a 32-bit remainder, the next 16 bits, and a divisor whose
// highest bit is set (Knuth, The Art of Computer Programming, volume 2, 4.3.1, algorithm D: an
// estimate by the divisor's upper half is at most 2 too large). The remainder is less than the
// divisor, so the estimate is at most 2^16 + 1 and its product with the lower half does not
// overflow.
fn pc_u64_digit(rest: u32, next: u32, divisor: u32) -> u32 {
    let high = divisor >> 16u;
    let low = divisor & 0xffffu;
    var digit = rest / high;
    var left = rest - digit * high;
    let once = (left < 0x10000u) & (digit * low > ((left << 16u) | next));
    digit = select(digit, digit - 1u, once);
    left = select(left, left + high, once);
    let twice = (left < 0x10000u) & (digit * low > ((left << 16u) | next));
    return select(digit, digit - 1u, twice);
}

// The quotient in xy, the remainder in zw. Free of loops and branches: drivers inline it at every
// call, and a GPU's lanes would execute both sides anyway.
//
// A 32-bit divisor is handled digit by digit. For a longer one, half of a is divided by the
// divisor's upper 32 bits, normalised, which yields the quotient or one more; after subtracting
// one, it is the quotient or one too small (Warren, Hacker's Delight, 9-5).
fn pc_u64_divide(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
    let short = b.y == 0u;
    let top = select(0u, a.y / b.x, short);
    let rest = a.y - top * b.x;

    let scaled = select(b, vec2<u32>(0u, b.x), short);
    let zeros = countLeadingZeros(scaled.y);
    let divisor = pc_u64_shl(scaled, zeros).y;
    let from_here = select(pc_u64_shr(a, 1u), pc_u64_shl(vec2<u32>(a.x, rest), zeros), short);
    let first = pc_u64_digit(from_here.y, from_here.x >> 16u, divisor);
    let between = ((from_here.y << 16u) | (from_here.x >> 16u)) - first * divisor;
    let bottom = (first << 16u) + pc_u64_digit(between, from_here.x & 0xffffu, divisor);

    let estimate = bottom >> ((31u - zeros) & 31u);
    let less = estimate - select(1u, 0u, estimate == 0u);
    let quotient = vec2<u32>(select(less, bottom, short), top);
    let left = pc_u64_sub(a, pc_u64_mul(quotient, b));
    let exact = short | pc_u64_less(left, b);
    let result = select(
        vec4<u32>(quotient.x + 1u, quotient.y, pc_u64_sub(left, b)),
        vec4<u32>(quotient, left),
        exact,
    );
    return select(result, vec4<u32>(a, 0u, 0u), (b.x | b.y) == 0u);
}

fn pc_u64_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return pc_u64_divide(a, b).xy;
}

fn pc_u64_mod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return pc_u64_divide(a, b).zw;
}

// Rounds towards zero. The magnitude of MIN is correct as an unsigned number, and so is MIN / -1.
fn pc_i64_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let quotient = pc_u64_divide(pc_i64_abs(a), pc_i64_abs(b)).xy;
    return select(quotient, pc_i64_neg(quotient), bitcast<i32>(a.y ^ b.y) < 0i);
}

// The remainder has the sign of a.
fn pc_i64_mod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let rest = pc_u64_divide(pc_i64_abs(a), pc_i64_abs(b)).zw;
    return select(rest, pc_i64_neg(rest), bitcast<i32>(a.y) < 0i);
}

fn pc_i64_from_i32(a: i32) -> vec2<u32> {
    return vec2<u32>(bitcast<u32>(a), bitcast<u32>(a >> 31u));
}

// Converts to an index that is out of range if and only if the 64-bit index is.
fn pc_u64_to_index(a: vec2<u32>) -> u32 {
    return select(a.x, 0xffffffffu, a.y != 0u);
}

// Rounds to the nearest f32, ties to even: the 32 highest bits, with a sticky lowest bit for all
// those below, are rounded once by the device; scaling by a power of two is exact.
fn pc_u64_to_f32(a: vec2<u32>) -> f32 {
    let zeros = pc_u64_count_leading_zeros(a).x;
    if zeros == 64u { return 0.0; }
    let high = pc_u64_shl(a, zeros);
    let kept = high.y | select(0u, 1u, high.x != 0u);
    return f32(kept) * bitcast<f32>((159u - zeros) << 23u);
}

fn pc_i64_to_f32(a: vec2<u32>) -> f32 {
    let magnitude = pc_u64_to_f32(pc_i64_abs(a));
    return select(magnitude, -magnitude, bitcast<i32>(a.y) < 0i);
}

// Rounds a number from 1 to below 2^64 towards zero, using the f32's fields (IEEE 754).
fn pc_u64_truncate(a: f32) -> vec2<u32> {
    let bits = bitcast<u32>(a);
    let exponent = (bits >> 23u) & 0xffu;
    let mantissa = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
    if exponent < 150u { return pc_u64_shr(mantissa, 150u - exponent); }
    return pc_u64_shl(mantissa, exponent - 150u);
}

// Clamped to the largest f32 that is a u64; 0 for NaN.
fn pc_u64_from_f32(a: f32) -> vec2<u32> {
    if !(a >= 1.0) { return vec2<u32>(); }
    if a >= 18446744073709551616.0 { return vec2<u32>(0u, 0xffffff00u); }
    return pc_u64_truncate(a);
}

// Clamped to the range of f32s that are an i64; 0 for NaN.
fn pc_i64_from_f32(a: f32) -> vec2<u32> {
    if a <= -9223372036854775808.0 { return vec2<u32>(0u, 0x80000000u); }
    if a <= -1.0 { return pc_i64_neg(pc_u64_truncate(-a)); }
    if !(a >= 1.0) { return vec2<u32>(); }
    if a >= 9223372036854775808.0 { return vec2<u32>(0u, 0x7fffff80u); }
    return pc_u64_truncate(a);
}
