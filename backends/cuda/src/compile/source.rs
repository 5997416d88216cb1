//! The CUDA C++ text of a filter's kernel, assembled for one dispatch method.
//!
//! For `inline` and `pipelined` the C writer emits the whole kernel. For the other methods it emits
//! the filter as a device function, and the kernel around it is fixed text (`session/*.cu`).

use std::num::NonZeroU64;

use portcullis_c_writer::{Argument, Language, Options, PacketAccess, WriteError};
use portcullis_core::device::chunk::OVERREAD_BYTES;
use portcullis_core::device::offload::KernelEffects;
use portcullis_core::device::{DeviceError, Dispatch};
use portcullis_core::map::declaration::MAX_MAPS;
use portcullis_core::program::Program;

use super::kernel::MAX_ARGUMENTS;
use super::nvrtc::ImageKind;

/// Threads in a block, unless the caller sets another number for `inline` and `pipelined`.
pub(crate) const BLOCK_SIZE: u32 = 256;

/// Size in bytes up to which the packets of a part of a request are copied to a block's shared
/// memory: 256 windows of 64 bytes, which fit beside the rest in the 48 KiB that every kernel may
/// have.
pub(crate) const SHARED_BYTES: usize = 16 << 10;

/// Name of the device function that filters one packet.
const FILTER_FUNCTION: &str = "pc_filter_packet";

/// A filter's kernel in CUDA C++, for one dispatch method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelSource {
    pub text: String,
    /// The kernel's name.
    pub entry: &'static str,
    /// Threads in a block, which the kernel is compiled for.
    pub block_size: u32,
    /// The kernel's arguments; meaningful only if the C writer has emitted the kernel.
    pub arguments: Vec<Argument>,
    pub effects: KernelEffects,
}

impl KernelSource {
    /// Writes the kernel. `block_size` is the number of threads in a block for `inline` and
    /// `pipelined`; the kernels of the other methods are written for [`BLOCK_SIZE`]. With `work`,
    /// each packet keeps its thread busy for that many more clock cycles.
    pub fn new(
        program: &Program,
        dispatch: Dispatch,
        block_size: u32,
        work: Option<NonZeroU64>,
    ) -> Result<KernelSource, WriteError> {
        let writes_kernel = matches!(dispatch, Dispatch::Inline | Dispatch::Pipelined);
        let block_size = if writes_kernel { block_size } else { BLOCK_SIZE };
        // Unaligned packets are packed so that they start at multiples of 4 bytes.
        let options = Options::new(Language::Cuda)
            .with_packet_access(PacketAccess::AlignedWords)
            .with_descriptor_rules()
            .with_metadata_rules()
            .with_group_size(block_size)
            .with_epilogue(work.map(busy_wait));
        let options = if writes_kernel { options } else { options.with_function(FILTER_FUNCTION) };
        let kernel = portcullis_c_writer::write(program, &options)?;
        let effects = kernel.effects();
        if kernel.arguments.len() > MAX_ARGUMENTS {
            let count = kernel.arguments.len();
            return Err(WriteError::Failed(format!("the kernel has {count} arguments, more than {MAX_ARGUMENTS}")));
        }
        let (entry, parts): (_, &[&str]) = match dispatch {
            Dispatch::Inline | Dispatch::Pipelined => ("xdp_kernel", &[]),
            Dispatch::Persistent => ("pc_persistent", &[include_str!("../session/persistent.cu")]),
            Dispatch::WaitValue | Dispatch::Graph => ("pc_queued", &[include_str!("../session/queued.cu")]),
        };
        let mut text = kernel.source;
        if !writes_kernel {
            let flag = |name: &str, value: bool| format!("#define PC_{name} {}\n", i32::from(value));
            text += "\n";
            text += &flag("ACCESSES_PACKETS", effects.accesses_packets);
            text += &flag("WRITES_PACKETS", effects.writes_packets);
            text += &flag("RESIZES_PACKETS", effects.resizes_packets);
            text += &flag("METADATA", effects.metadata);
            text += &flag("REDIRECTS", effects.redirects);
            text += &flag("MAPS", !program.maps().is_empty());
            text += &format!("#define PC_MAX_MAPS {MAX_MAPS}\n");
            text += &format!("#define PC_BLOCK_SIZE {BLOCK_SIZE}u\n");
            text += &format!("#define PC_SHARED_BYTES {SHARED_BYTES}u\n");
            text += &format!("#define PC_OVERREAD_BYTES {OVERREAD_BYTES}u\n");
            text += include_str!("../session/slot.cu");
        }
        parts.iter().for_each(|part| text += part);
        Ok(KernelSource { text, entry, block_size, arguments: kernel.arguments, effects })
    }
}

/// A block statement that spins for a number of clock cycles.
fn busy_wait(cycles: NonZeroU64) -> String {
    format!("{{ long long pc_began = clock64(); while (clock64() - pc_began < {cycles}ll) {{}} }}")
}

/// NVRTC's options: architecture and language; no fused multiply-add, which would round differently
/// from other devices.
pub(super) fn nvrtc_options(arch: i32, output: ImageKind) -> Vec<String> {
    let kind = if output == ImageKind::Cubin { "sm" } else { "compute" };
    vec![format!("--gpu-architecture={kind}_{arch}"), "--std=c++17".into(), "--fmad=false".into()]
}

/// File name of a prebuilt cubin, `HASH-sm_90.cubin`. The hash covers the source and the options
/// that do not depend on the architecture.
pub(super) fn file_name(source: &str, arch: i32) -> String {
    let text = format!("{}\n{}", nvrtc_options(0, ImageKind::Cubin).join(" "), without_name_comment(source));
    // FNV-1a of 128 bits (RFC 9923).
    let prime = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let hash = text.bytes().fold(start, |hash: u128, byte| (hash ^ u128::from(byte)).wrapping_mul(prime));
    format!("{hash:032x}-sm_{arch}.cubin")
}

/// The source without its first line, a comment with the filter's name, which does not affect the
/// binary.
pub(super) fn without_name_comment(source: &str) -> &str {
    source.split_once('\n').map_or(source, |(_, rest)| rest)
}

pub(crate) fn write_error(device: &str, error: WriteError) -> DeviceError {
    let (device, reason) = (device.to_owned(), error.to_string());
    match error {
        WriteError::Unsupported(_) => DeviceError::Unsupported { device, reason },
        WriteError::Failed(_) => DeviceError::Failed { device, reason },
    }
}
