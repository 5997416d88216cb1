//! Built-in functions of OpenCL C that filters lack, with alternatives.

const NO_SYNCHRONISATION: &str = "packets of a batch run in any order and cannot wait for each other";
const USE_MAPS: &str = "packets share data in maps, whose functions are atomic: with a line `//! map hits: counter entries=1` \
    use `hits_add(0, 1)`; other kinds have `NAME_add`, `NAME_min`, `NAME_max`, `NAME_or` and `NAME_compare_exchange`; for data of one packet use \
    `x += 1`";
const NO_PACKET_INDEX: &str = "a filter does not know its packet's position in the batch";
const IMAGES: &str = "images are not supported in filters";

/// Families of functions, by prefixes separated by spaces.
const FAMILIES: &[(&str, &str)] = &[
    ("printf", "a filter cannot print: return a verdict, or write to the packet"),
    ("barrier mem_fence read_mem_fence write_mem_fence wait_group_events", NO_SYNCHRONISATION),
    ("atomic_ atom_", USE_MAPS),
    ("async_work_group_", "packets of a batch share no memory"),
    ("prefetch", "packets are already where the device reads them"),
    ("get_global_ get_local_ get_group_ get_num_groups get_work_dim", NO_PACKET_INDEX),
    ("read_image write_image get_image_", IMAGES),
    ("vload", "read the components one by one, or through a pointer to a vector: `*(__global uint4 *)p`"),
    ("vstore", "store the components one by one, or through a pointer to a vector: `*(__global uint4 *)p = v`"),
    ("shuffle", "pick components by name: `v.wzyx`"),
    ("half_ native_", MATHEMATICS),
];

const MATHEMATICS: &str = "`float` has operators, `min`, `max`, `clamp` and `mad`: use these, or compute with integers";
const ROUNDING: &str = "convert to an integer: `(float)(int)x` rounds towards zero";
const COMPARISON: &str = "write the comparison: `a == b`, `a < b`; `x != x` is true only for NaN";
const GEOMETRY: &str = "write it component by component: `a.x * b.x + a.y * b.y`";

/// Functions of OpenCL C 1.2, 6.12.2 to 6.12.6, that are not supported, separated by spaces.
const FUNCTIONS: &[(&str, &str)] = &[
    (
        "acos acosh acospi asin asinh asinpi atan atan2 atan2pi atanh atanpi cbrt copysign cos \
        cosh cospi degrees erf erfc exp exp10 exp2 expm1 fdim fmod fract frexp hypot ilogb ldexp \
        lgamma lgamma_r log log10 log1p log2 logb maxmag minmag modf nan nextafter pow pown powr \
        radians remainder remquo rootn rsqrt sign signbit sin sincos sinh sinpi smoothstep sqrt \
        step tan tanh tanpi tgamma",
        MATHEMATICS,
    ),
    ("ceil floor rint round trunc", ROUNDING),
    ("fabs", "write `x < 0 ? -x : x`"),
    ("fma", "write `a * b + c`, or `mad(a, b, c)`"),
    ("fmax", "write `max(a, b)`"),
    ("fmin", "write `min(a, b)`"),
    ("mix", "write `a + (b - a) * t`"),
    (
        "isequal isfinite isgreater isgreaterequal isinf isless islessequal islessgreater isnan \
        isnormal isnotequal isordered isunordered",
        COMPARISON,
    ),
    ("cross distance dot fast_distance fast_length fast_normalize length normalize", GEOMETRY),
    ("vec_step", "a vector's number of components is in its type's name"),
];

/// Why a built-in function of OpenCL C is not supported; `None` for other names.
pub(super) fn reason(name: &str) -> Option<&'static str> {
    let is_in_family = |prefixes: &str| prefixes.split(' ').any(|prefix| name.starts_with(prefix));
    let is_listed = |names: &str| names.split(' ').any(|listed| listed == name);
    let family = FAMILIES.iter().find(|(prefixes, _)| is_in_family(prefixes));
    let found = family.or_else(|| FUNCTIONS.iter().find(|(names, _)| is_listed(names)));
    found.map(|(_, reason)| *reason)
}
