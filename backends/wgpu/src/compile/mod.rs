//! Compiles a program to a compute pipeline.

use std::borrow::Cow;
use std::sync::Arc;

use naga::StorageAccess;
use portcullis_core::device::offload::{self, KernelEffects};
use portcullis_core::device::{CancelToken, DeviceError, DeviceKind};
use portcullis_core::program::Program;

use crate::driver::gpu::{Gpu, GpuProperties};
use kernel::{ENTRY, Kernel};

mod kernel;

pub use kernel::spirv;
pub(crate) use kernel::{ARENA, DESCRIPTORS, LAUNCH, Launch, METADATA, VERDICTS, WORKGROUP_SIZE};

/// Maximum number of loop iterations that a software device executes: llvmpipe silently leaves a
/// loop after 65,535 (Mesa 22.3, LLVM 15), and a packet that loops longer would get a wrong
/// verdict.
const SOFTWARE_MAX_ITERATIONS: u32 = 65_000;

/// Maximum number of expressions, calls inlined, for a software device. The compile time of
/// llvmpipe grows with the square of the expressions that access memory (same versions, one core):
/// 2 s for 16,000 that read packets, 6 s for 18,500 with 500 map reads among them, each a loop over
/// the lanes, and a minute for 80,000.
pub(crate) const SOFTWARE_MAX_EXPRESSIONS: u64 = 24_576;

/// Deepest nesting of branches ([`Kernel::inlined_nesting`]) for a software device. llvmpipe has a
/// stack of 80 lane masks and silently skips what is nested deeper, so that packets get wrong
/// verdicts. Wrong results begin at 81 by our count (same versions); its compiler may restructure
/// branches before it counts.
pub(crate) const SOFTWARE_MAX_NESTING: u64 = 64;

/// A program loaded on a device, ready to be launched.
pub(crate) struct LoadedProgram {
    pub pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
    /// Layout of the maps' bind group, and the numbers of the maps in it.
    map_layout: Option<wgpu::BindGroupLayout>,
    pub used_maps: Vec<u32>,
    /// Effects of the kernel, which determine what the session transfers.
    pub effects: KernelEffects,
    /// Whether the kernel reads descriptors.
    pub descriptors: bool,
    /// Whether the kernel filters packets in the order of their flows.
    pub flows: bool,
    /// Whether the kernel finds descriptors by a rule; else they are a table.
    pub takes_descriptor_rule: bool,
}

/// Opens the device and compiles the program for it.
pub(crate) fn load(
    device: &GpuProperties,
    program: &Arc<Program>,
    cancel: &CancelToken,
) -> Result<(Gpu, LoadedProgram), DeviceError> {
    let id = &device.id;
    let (device, program) = (device.clone(), program.clone());
    // On a thread that may panic: naga's writers and wgpu have `unimplemented!` where no valid
    // filter should lead.
    offload::compile_on_thread(id, cancel, move || compile(&device, &program))
}

fn compile(device: &GpuProperties, program: &Program) -> Result<(Gpu, LoadedProgram), DeviceError> {
    let unsupported = |reason: String| DeviceError::Unsupported { device: device.id.clone(), reason };
    let iterations = program.facts().max_iterations.unwrap_or(program.fuel()).min(program.fuel());
    let software = device.kind == DeviceKind::Software;
    if software && iterations > SOFTWARE_MAX_ITERATIONS {
        return Err(unsupported(format!(
            "a packet may cost {iterations} loop iterations, and a software device may leave a loop after \
             65,535 rounds without a word; set the fuel to {SOFTWARE_MAX_ITERATIONS} or less"
        )));
    }
    // With a rule, kernels that read packets run ten times as long on llvmpipe, whose descriptors
    // cross no bus. One that stands in for a discrete GPU is to be like that in tests.
    let accepts_rule = !software || device.is_discrete;
    let kernel = kernel::lower_kernel(program, device.group_size, accepts_rule).map_err(unsupported)?;
    let size = kernel.inlined_size();
    if software && size > SOFTWARE_MAX_EXPRESSIONS {
        return Err(unsupported(format!(
            "it has {size} expressions with every helper and prelude function inlined where it is called, and \
             beyond {SOFTWARE_MAX_EXPRESSIONS} a software device's compiler takes minutes; call helpers less often, or take \
             --device cpu"
        )));
    }
    let nested = kernel.inlined_nesting();
    if software && nested > SOFTWARE_MAX_NESTING {
        return Err(unsupported(format!(
            "its branches are {nested} deep, all behind an early `return`, `break` or `continue` counted as one deeper, \
             and beyond {SOFTWARE_MAX_NESTING} a software device may give wrong verdicts without a word; look things up in \
             a table in place of many branches, or take --device cpu"
        )));
    }
    let gpu = Gpu::open(device)?;
    let (buffers, most) = (kernel.storage_buffers(), gpu.limits.max_storage_buffers_per_shader_stage);
    if buffers > most as usize {
        return Err(unsupported(format!(
            "it needs {buffers} storage buffers, {} of them for its maps, and the device binds at most {most} to a \
             kernel; use fewer maps, or take --device cpu",
            kernel.maps.len()
        )));
    }
    let loaded = LoadedProgram::new(&gpu, kernel, program.facts().redirects)?;
    Ok((gpu, loaded))
}

impl LoadedProgram {
    fn new(gpu: &Gpu, kernel: Kernel, redirects: bool) -> Result<LoadedProgram, DeviceError> {
        let Kernel { flows, takes_descriptor_rule, .. } = kernel;
        let descriptors = kernel.descriptors.is_some();
        let effects = KernelEffects {
            accesses_packets: kernel.arena.is_some(),
            writes_packets: kernel.writes_packets(),
            resizes_packets: kernel.resizes_packets(),
            metadata: kernel.metadata,
            redirects,
            size: kernel.inlined_size(),
        };

        let storage = |access: StorageAccess| wgpu::BufferBindingType::Storage {
            read_only: !access.contains(StorageAccess::STORE),
        };
        let mut types = vec![
            (VERDICTS, storage(StorageAccess::LOAD | StorageAccess::STORE)),
            (LAUNCH, wgpu::BufferBindingType::Uniform),
        ];
        types.extend(kernel.arena.map(|access| (ARENA, storage(access))));
        types.extend(kernel.descriptors.map(|access| (DESCRIPTORS, storage(access))));
        types.extend(kernel.metadata.then_some((METADATA, storage(StorageAccess::LOAD))));
        let device = &gpu.device;
        let layout = |label, types: Vec<(u32, wgpu::BufferBindingType)>| {
            let entries: Vec<_> = types
                .into_iter()
                .map(|(binding, ty)| wgpu::BindGroupLayoutEntry {
                    binding,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
                    count: None,
                })
                .collect();
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(label), entries: &entries })
        };
        let used_maps = kernel.maps;
        let words = |map: &u32| (*map, storage(StorageAccess::LOAD | StorageAccess::STORE));
        let maps = (!used_maps.is_empty()).then(|| layout("maps", used_maps.iter().map(words).collect()));
        let layout = layout("filter", types);
        let both = [Some(&layout), maps.as_ref()];
        let bind_group_layouts = if maps.is_some() { &both[..] } else { &both[..1] };
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some("filter"),
            bind_group_layouts,
            immediate_size: 0,
        });
        let source = wgpu::ShaderSource::Naga(Cow::Owned(kernel.module));
        let checks = wgpu::ShaderRuntimeChecks { bounds_checks: false, ..wgpu::ShaderRuntimeChecks::checked() };
        // SAFETY: without naga's bounds checks every index must be in bounds by itself.
        // - Arrays, vectors and matrices in function and private memory: the filter's dynamic
        //   indices are clamped by `Lowering::clamp_indices`; the prelude has none.
        // - The arena: only the prelude accesses it, at bytes of the packet (`pc_inside`,
        //   `pc_first`, `pc_last`) and in the word after them. Every packet and its room lie in the
        //   arena (`BatchCutter::cut_batch`), and a binding covers them and `OVERREAD_BYTES` more.
        // - Maps: only the prelude accesses them, at indices that are masked or compared with the
        //   map's size (`map::wgsl_text`).
        // - Descriptors, metadata and verdicts: at the packet's index, which is below the launch's
        //   count, and the bindings cover all packets of a chunk.
        //
        // Loops stay bounded and divisions checked.
        let module = unsafe {
            device.create_shader_module_trusted(wgpu::ShaderModuleDescriptor { label: Some("filter"), source }, checks)
        };
        gpu.check()?;
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some("filter"),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(ENTRY),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        gpu.check()?;
        Ok(LoadedProgram {
            pipeline,
            layout,
            map_layout: maps,
            used_maps,
            effects,
            descriptors,
            flows,
            takes_descriptor_rule,
        })
    }

    /// Creates the bind group of the maps that the kernel uses; `None` if it uses none.
    pub fn map_bind_group(&self, gpu: &Gpu, maps: &[wgpu::Buffer]) -> Option<wgpu::BindGroup> {
        let entry = |&number: &u32| wgpu::BindGroupEntry {
            binding: number,
            resource: maps[number as usize].as_entire_binding(),
        };
        let entries: Vec<_> = self.used_maps.iter().map(entry).collect();
        let layout = self.map_layout.as_ref()?;
        Some(gpu.bind_group(layout, &entries))
    }

    /// Layout of the bind group of launches.
    pub fn layout(&self) -> &wgpu::BindGroupLayout {
        &self.layout
    }
}
