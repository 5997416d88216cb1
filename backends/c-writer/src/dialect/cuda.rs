//! CUDA C++ without headers, as NVRTC compiles it. It is also C++17, except for the qualifiers and
//! built-ins named here.

use naga::{Scalar, ScalarKind};

use super::{AtomicFn, C_KEYWORDS, C_LIBRARY, CombinedAdd, Dialect, short_name};

pub(super) struct Cuda;

impl Dialect for Cuda {
    fn name(&self) -> &'static str {
        "CUDA C++"
    }

    fn header(&self, _: bool) -> String {
        // Not `long`, which has 32 bits on Windows.
        "typedef unsigned char uchar;\ntypedef unsigned int uint;\ntypedef unsigned long long ulonglong;\ntypedef long \
         long longlong;\n"
            .into()
    }

    fn reserved_words(&self) -> &'static [&'static str] {
        &[C_KEYWORDS, CPP_KEYWORDS, TYPES]
    }

    fn builtin_functions(&self) -> &'static [&'static str] {
        &[C_LIBRARY, WORDS]
    }

    fn max_nesting(&self) -> usize {
        1500
    }

    fn scalar(&self, scalar: Scalar) -> &'static str {
        match (scalar.kind, scalar.width) {
            (ScalarKind::Uint, 8) => "ulonglong",
            (ScalarKind::Sint, 8) => "longlong",
            (ScalarKind::Uint, _) => "uint",
            (ScalarKind::Sint, _) => "int",
            (ScalarKind::Float, _) => "float",
            _ => "bool",
        }
    }

    fn wide_suffix(&self, signed: bool) -> &'static str {
        if signed { "LL" } else { "ULL" }
    }

    /// Not CUDA's own vector types: there are none of `bool`, and only headers have functions to
    /// construct them.
    fn vector_type(&self, scalar: Scalar, size: usize) -> (String, Option<String>) {
        let name = format!("vec{size}_{}", short_name(scalar));
        let members = &"x, y, z, w"[..size * 3 - 2];
        let definition = format!("struct {name} {{ {} {members}; }};", self.scalar(scalar));
        (name, Some(definition))
    }

    fn vector(&self, ty: &str, components: &[String]) -> String {
        format!("{ty}{{{}}}", components.join(", "))
    }

    fn vector_initialiser(&self, ty: &str, components: &[String]) -> String {
        self.vector(ty, components)
    }

    fn structure(&self, ty: &str, members: &str) -> String {
        format!("{ty}{{{members}}}")
    }

    fn zero(&self, ty: &str, _: &str) -> String {
        format!("{ty}{{}}")
    }

    fn buffer(&self) -> &'static str {
        ""
    }

    fn restrict(&self) -> &'static str {
        "__restrict__ "
    }

    fn assume_aligned(&self, pointer: &str, bytes: u32) -> Option<String> {
        Some(format!("(uchar *)__builtin_assume_aligned({pointer}, {bytes})"))
    }

    fn store_pair(&self, pointer: &str, [low, high]: [&str; 2]) -> Vec<String> {
        vec![
            format!("{pointer} = (uchar *)__builtin_assume_aligned({pointer}, 2);"),
            format!("{pointer}[0] = {low};"),
            format!("{pointer}[1] = {high};"),
        ]
    }

    fn aligned_struct(&self, bytes: u32) -> String {
        format!("typedef struct alignas({bytes})")
    }

    /// Not `__constant__`, whose cache serves one address at a time: packets index tables
    /// differently.
    fn constant(&self, table: bool) -> &'static str {
        if table { "static __device__ const " } else { "static constexpr " }
    }

    fn function(&self) -> &'static str {
        "static __device__ __forceinline__ "
    }

    fn kernel(&self, group: Option<u32>) -> String {
        match group {
            Some(size) => format!("extern \"C\" __global__ void __launch_bounds__({size})"),
            None => "extern \"C\" __global__ void".into(),
        }
    }

    fn grid(&self) -> (&'static str, &'static str) {
        ("blockIdx.x * blockDim.x + threadIdx.x", "gridDim.x * blockDim.x")
    }

    fn count_ones(&self, value: &str, wide: bool) -> String {
        format!("{}({value})", if wide { "__popcll" } else { "__popc" })
    }

    fn leading_zeros(&self, value: &str, wide: bool) -> String {
        match wide {
            true => format!("__clzll((longlong){value})"),
            false => format!("__clz((int){value})"),
        }
    }

    fn swap(&self, value: &str) -> Option<String> {
        Some(format!("__byte_perm({value}, 0u, 0x0123u)"))
    }

    fn reverse_bits(&self, value: &str, wide: bool) -> Option<String> {
        Some(format!("{}({value})", if wide { "__brevll" } else { "__brev" }))
    }

    fn float_bits(&self, value: &str, to_float: bool) -> String {
        format!("{}({value})", if to_float { "__uint_as_float" } else { "__float_as_uint" })
    }

    fn atomic(&self, function: AtomicFn, place: &str, value: &str) -> String {
        let name = match function {
            AtomicFn::Add => "atomicAdd",
            AtomicFn::Min => "atomicMin",
            AtomicFn::Max => "atomicMax",
            AtomicFn::Or => "atomicOr",
            AtomicFn::Exchange => "atomicExch",
        };
        format!("{name}((uint *){place}, {value})")
    }

    fn atomic_add_wide(&self, place: &str, value: &str) -> Option<String> {
        Some(format!("atomicAdd((ulonglong *){place}, (ulonglong){value})"))
    }

    fn combined_add(&self) -> Option<CombinedAdd> {
        Some(CombinedAdd {
            word: "pc_add_combined",
            word_text: ADD_COMBINED,
            wide: "pc_count_combined",
            wide_text: COUNT_COMBINED,
        })
    }

    fn atomic_compare_exchange(&self, place: &str, expected: &str, value: &str) -> String {
        format!("atomicCAS((uint *){place}, {expected}, {value})")
    }

    fn float_function(&self, name: &str) -> String {
        format!("{name}f")
    }
}

/// C++17, section 5.11, without those of C.
const CPP_KEYWORDS: &str = "
    alignas alignof and and_eq bitand bitor catch char16_t char32_t char8_t class co_await co_return
    co_yield compl concept const_cast consteval constexpr constinit decltype delete dynamic_cast
    explicit export friend mutable namespace new noexcept not not_eq nullptr operator or or_eq
    private protected public reinterpret_cast requires static_assert static_cast template this
    thread_local throw try typeid typename using virtual wchar_t xor xor_eq final override import
    module std
";

/// Types of CUDA headers and of the writer's own vectors.
const TYPES: &str = "
    uchar uint ulonglong longlong ushort ulong schar size_t ptrdiff_t char1 char2 char3 char4 uchar1
    uchar2 uchar3 uchar4 short1 short2 short3 short4 ushort1 ushort2 ushort3 ushort4 int1 int2 int3
    int4 uint1 uint2 uint3 uint4 long1 long2 long3 long4 ulong1 ulong2 ulong3 ulong4 longlong1
    longlong2 longlong3 longlong4 ulonglong1 ulonglong2 ulonglong3 ulonglong4 float1 float2 float3
    float4 double1 double2 double3 double4 dim3 vec2_u32 vec3_u32 vec4_u32 vec2_i32 vec3_i32
    vec4_i32 vec2_u64 vec3_u64 vec4_u64 vec2_i64 vec3_i64 vec4_i64 vec2_f32 vec3_f32 vec4_f32
    vec2_bool vec3_bool vec4_bool
";

/// Built-in variables, handles and functions of CUDA that a filter's names must not shadow.
const WORDS: &str = "
    threadIdx blockIdx blockDim gridDim warpSize cudaStream_t atomicAdd atomicSub atomicExch
    atomicMin atomicMax atomicInc atomicDec atomicCAS atomicAnd atomicOr atomicXor umin umax llmin
    llmax ullmin ullmax mulhi umulhi saturate float2int int_as_float float_as_int clock64
    surfaceReference textureReference
";

/// Threads of a warp that add to one word at the same time elect one, the lowest, that adds for
/// all: a word takes one atomic operation per clock cycle, whoever issues it. `__reduce_add_sync`
/// came with compute capability 8.0. Blocks are one-dimensional.
const ADD_COMBINED: &str = "\
static __device__ __forceinline__ void pc_add_combined(uint *at, uint amount)
{
#if __CUDA_ARCH__ >= 800
    uint peers = __match_any_sync(__activemask(), (ulonglong)at);
    uint sum = __reduce_add_sync(peers, amount);
    if ((threadIdx.x & 31u) + 1u == (uint)__ffs((int)peers)) atomicAdd(at, sum);
#else
    atomicAdd(at, amount);
#endif
}
";

/// [`ADD_COMBINED`] for 64 bits. The sum of a warp's amounts may exceed 32 bits.
const COUNT_COMBINED: &str = "\
static __device__ __forceinline__ void pc_count_combined(ulonglong *at, uint amount)
{
#if __CUDA_ARCH__ >= 800
    uint peers = __match_any_sync(__activemask(), (ulonglong)at);
    uint low = __reduce_add_sync(peers, amount & 0xffffu), high = __reduce_add_sync(peers, amount >> 16u);
    if ((threadIdx.x & 31u) + 1u == (uint)__ffs((int)peers)) atomicAdd(at, ((ulonglong)high << 16u) + low);
#else
    atomicAdd(at, (ulonglong)amount);
#endif
}
";
