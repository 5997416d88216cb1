// WGSL that is difficult to express in C: identifiers that are C keywords, loops whose continuing
// block uses variables of the body, `continue` inside a `switch`, pointers to parts of variables,
// components by index, matrices, constants of constants.

struct signed { int: u32, float: vec3<u32>, half: array<u32, 5>, uchar4: bool }
struct double { inner: array<signed, 2>, unsigned: u64 }

const constant: array<vec2<u32>, 3> = array<vec2<u32>, 3>(vec2<u32>(1u, 2u), vec2<u32>(3u), vec2<u32>(5u, 6u));
const kernel: signed = signed(7u, vec3<u32>(1u, 2u, 3u), array<u32, 5>(), true);
const least: i32 = i32(-2147483648);
var<private> char: array<u32, 4> = array<u32, 4>(9u, 8u, 7u, 6u);
var<private> length: u32 = 3u;
var<private> größe: mat2x3<f32>;

fn min_(a: u32) -> u32 { return a + 1u; }
fn printf(main: ptr<function, u32>, long: u32) -> u32 { *main = *main * 31u + long; return *main; }
fn exit(short: ptr<private, u32>) { *short = *short + 5u; }
fn dot4(uint: vec3<bool>) -> vec3<bool> { return !uint.zyx; }
fn bump() -> bool { length = length + 1u; return length > 5u; }
fn spin(pkt: u32, next1: u32) -> u32 {
    var clamp_ = next1;
    loop {
        let here = load_u8(pkt, clamp_) + clamp_;
        if here > 200u { break; }
        if (here & 3u) == 1u { clamp_ = clamp_ + 1u; continue; }
        switch here & 7u {
            case 0u: { clamp_ = clamp_ + 3u; continue; }
            case 2u, 4u: { clamp_ = clamp_ + 7u; break; }
            default: { clamp_ = clamp_ + 1u; }
        }
        continuing {
            let then = here + 1u;
            clamp_ = clamp_ + (then & 15u);
            break if clamp_ > 150u || then == 77u;
        }
    }
    return clamp_;
}

fn xdp_filter(pkt: u32) -> u32 {
    var threadIdx: double;
    var sum = 0u;
    let at = load_u8(pkt, 0u);
    for (var i = 0u; i < 6u; i++) {
        if i == 2u && bump() || at == 3u { continue; }
        sum = sum * 7u + printf(&sum, i);
        threadIdx.inner[i & 1u].half[(at + i) % 5u] = sum;
        threadIdx.inner[1].float[i] = sum ^ i;
        exit(&char[i]);
    }
    threadIdx.unsigned = u64(sum) << (at & 63u);
    let whole = threadIdx.inner[at & 1u];
    var int = select(whole.float, constant[at % 3u].xyx, dot4(vec3<bool>(at > 1u, bump(), sum > 9u)));
    int[at % 3u] = 40u;
    größe[at & 1u][sum % 3u] = f32(at);
    let before = sum;
    sum = sum + 1u;
    let late = before * 2u + char[at & 3u] + length;
    exit(&length);
    var j = 0i;
    while j != least && j > -20i { j = j - 3i; }
    switch j { case -21i: { sum += 1u; } default: { sum += 100u; } }
    {
        let sum = at;
        if sum > 100u { let sum = 5u; store_u8(pkt, 2u, sum); }
        store_u8(pkt, 3u, sum);
    }
    store_le32(pkt, 4u, sum ^ late ^ dot(int, vec3<u32>(1u, 31u, 961u)));
    store_le32(pkt, 8u, whole.half[4] + whole.half[at % 5u] + u32(whole.uchar4) + kernel.int + kernel.half[at % 5u]);
    store_le32(pkt, 12u, u32(threadIdx.unsigned) ^ u32(threadIdx.unsigned >> 32u) ^ length);
    store_le32(pkt, 16u, spin(pkt, at & 31u) + min_(sum) + u32(größe[at & 1u].y));
    store_le32(pkt, 20u, u32(any(dot4(kernel.float > constant[1].xyx)) && (at > 4u || bump()) && !(at == 9u)));
    return redirect(sum & 0xffffu);
}
