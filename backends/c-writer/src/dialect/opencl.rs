//! The OpenCL C 1.2 dialect; section numbers are those of the OpenCL 1.2 specification, revision
//! 19.

use naga::{Scalar, ScalarKind};

use super::{AtomicFn, C_KEYWORDS, C_LIBRARY, Dialect};

pub(super) struct OpenCl;

impl Dialect for OpenCl {
    fn name(&self) -> &'static str {
        "OpenCL C 1.2"
    }

    fn header(&self, float: bool) -> String {
        // Section 6.12.2: contraction is allowed unless disabled.
        if float { "#pragma OPENCL FP_CONTRACT OFF\n".into() } else { String::new() }
    }

    fn reserved_words(&self) -> &'static [&'static str] {
        &[C_KEYWORDS, TYPES, WORDS]
    }

    fn builtin_functions(&self) -> &'static [&'static str] {
        &[C_LIBRARY, FUNCTIONS]
    }

    /// clang's limit is 256, and most drivers are based on clang.
    fn max_nesting(&self) -> usize {
        250
    }

    fn scalar(&self, scalar: Scalar) -> &'static str {
        match (scalar.kind, scalar.width) {
            (ScalarKind::Uint, 8) => "ulong",
            (ScalarKind::Sint, 8) => "long",
            (ScalarKind::Uint, _) => "uint",
            (ScalarKind::Sint, _) => "int",
            (ScalarKind::Float, _) => "float",
            _ => "bool",
        }
    }

    fn wide_suffix(&self, signed: bool) -> &'static str {
        if signed { "L" } else { "UL" }
    }

    /// There are no vectors of `bool` (section 6.1.2); 0 and 1 as `uchar` represent it.
    fn vector_type(&self, scalar: Scalar, size: usize) -> (String, Option<String>) {
        let scalar = if scalar.kind == ScalarKind::Bool { "uchar" } else { self.scalar(scalar) };
        (format!("{scalar}{size}"), None)
    }

    fn vector(&self, ty: &str, components: &[String]) -> String {
        format!("({ty})({})", components.join(", "))
    }

    fn vector_initialiser(&self, ty: &str, components: &[String]) -> String {
        self.vector(ty, components)
    }

    /// A compound literal (C99, section 6.5.2.5).
    fn structure(&self, ty: &str, members: &str) -> String {
        format!("({ty}){{{members}}}")
    }

    /// C has no empty braces before C23.
    fn zero(&self, ty: &str, first: &str) -> String {
        self.structure(ty, first)
    }

    fn buffer(&self) -> &'static str {
        "__global "
    }

    fn restrict(&self) -> &'static str {
        "restrict "
    }

    fn assume_aligned(&self, _: &str, _: u32) -> Option<String> {
        None
    }

    /// A vector is aligned to its size (section 6.1.5). clang assumes that it may alias anything,
    /// as its components may.
    fn store_pair(&self, pointer: &str, [low, high]: [&str; 2]) -> Vec<String> {
        vec![format!("*(__global uchar2 *){pointer} = (uchar2)({low}, {high});")]
    }

    fn aligned_struct(&self, bytes: u32) -> String {
        format!("typedef struct __attribute__((aligned({bytes})))")
    }

    /// Section 6.5.3: variables at file scope are `__constant`.
    fn constant(&self, _: bool) -> &'static str {
        "__constant "
    }

    /// Not `bool`: clang 14 stores such a constant as one bit, but loads a whole byte into a vector
    /// of bytes.
    fn constant_bool(&self) -> &'static str {
        "uchar"
    }

    fn function(&self) -> &'static str {
        "static "
    }

    fn kernel(&self, group: Option<u32>) -> String {
        match group {
            Some(size) => format!("__kernel __attribute__((reqd_work_group_size({size}, 1, 1)))\nvoid"),
            None => "__kernel void".into(),
        }
    }

    fn grid(&self) -> (&'static str, &'static str) {
        ("(uint)get_global_id(0)", "(uint)get_global_size(0)")
    }

    fn count_ones(&self, value: &str, _: bool) -> String {
        format!("popcount({value})")
    }

    fn leading_zeros(&self, value: &str, _: bool) -> String {
        format!("clz({value})")
    }

    fn swap(&self, _: &str) -> Option<String> {
        None
    }

    fn reverse_bits(&self, _: &str, _: bool) -> Option<String> {
        None
    }

    fn float_bits(&self, value: &str, to_float: bool) -> String {
        format!("{}({value})", if to_float { "as_float" } else { "as_uint" })
    }

    fn atomic(&self, function: AtomicFn, place: &str, value: &str) -> String {
        let name = match function {
            AtomicFn::Add => "atomic_add",
            AtomicFn::Min => "atomic_min",
            AtomicFn::Max => "atomic_max",
            AtomicFn::Or => "atomic_or",
            AtomicFn::Exchange => "atomic_xchg",
        };
        format!("{name}({place}, {value})")
    }

    fn atomic_compare_exchange(&self, place: &str, expected: &str, value: &str) -> String {
        format!("atomic_cmpxchg({place}, {expected}, {value})")
    }

    fn float_function(&self, name: &str) -> String {
        name.into()
    }
}

/// Names of built-in types (section 6.1).
const TYPES: &str = "
    uchar ushort uint ulong half quad complex imaginary size_t ptrdiff_t intptr_t uintptr_t
    image1d_t image1d_array_t image1d_buffer_t image2d_t image2d_array_t image3d_t sampler_t event_t
    float2x2 cl_mem_fence_flags INFINITY NAN HUGE_VAL HUGE_VALF MAXFLOAT uchar2 uchar3 uchar4 uchar8
    uchar16 ushort2 ushort3 ushort4 ushort8 ushort16 uint2 uint3 uint4 uint8 uint16 ulong2 ulong3
    ulong4 ulong8 ulong16 char2 char3 char4 char8 char16 short2 short3 short4 short8 short16 int2
    int3 int4 int8 int16 long2 long3 long4 long8 long16 float2 float3 float4 float8 float16 double2
    double3 double4 double8 double16 half2 half3 half4 half8 half16 bool2 bool3 bool4 bool8 bool16
";

/// Reserved words (section 6.9), with those of later versions and extensions.
const WORDS: &str = "
    kernel global local constant private generic pipe read_only write_only read_write uniform
    vec_type_hint work_group_size_hint aligned packed endian opencl_unroll_hint
";

/// Built-in functions (section 6.12).
const FUNCTIONS: &str = "
    get_work_dim get_global_size get_global_id get_local_size get_local_id get_num_groups
    get_group_id get_global_offset acospi asinpi atanpi atan2pi fract lgamma_r mad maxmag minmag
    pown powr rootn tanpi half_cos half_divide half_exp half_exp2 half_exp10 half_log half_log2
    half_log10 half_powr half_recip half_rsqrt half_sin half_sqrt half_tan native_cos native_divide
    native_exp native_exp2 native_exp10 native_log native_log2 native_log10 native_powr native_recip
    native_rsqrt native_sin native_sqrt native_tan abs_diff add_sat hadd rhadd clamp clz ctz mad_hi
    mad_sat mul_hi rotate sub_sat upsample popcount mad24 mul24 degrees mix radians step smoothstep
    sign cross dot distance length normalize fast_distance fast_length fast_normalize isequal
    isnotequal isgreater isgreaterequal isless islessequal islessgreater isordered isunordered any
    all bitselect select barrier mem_fence read_mem_fence write_mem_fence async_work_group_copy
    async_work_group_strided_copy wait_group_events prefetch atomic_add atomic_sub atomic_xchg
    atomic_inc atomic_dec atomic_cmpxchg atomic_min atomic_max atomic_and atomic_or atomic_xor
    atom_add atom_sub atom_xchg atom_inc atom_dec atom_cmpxchg atom_min atom_max atom_and atom_or
    atom_xor vec_step shuffle shuffle2 read_imagef read_imagei read_imageui write_imagef
    write_imagei write_imageui get_image_width get_image_height get_image_depth get_image_dim
    get_image_array_size get_image_channel_data_type get_image_channel_order vload2 vload3 vload4
    vload8 vload16 vstore2 vstore3 vstore4 vstore8 vstore16 vload_half vstore_half as_char as_uchar
    as_short as_ushort as_int as_uint as_long as_ulong as_float as_double work_group_barrier
    atomic_init atomic_load atomic_store atomic_exchange atomic_fetch_add atomic_fetch_sub to_global
    to_local to_private
";
