//! A program made into a compute pipeline.

use std::borrow::Cow;
use std::sync::Arc;

use naga::StorageAccess;
use portcullis_core::device::offload::{self, KernelEffects};
use portcullis_core::device::{CancelToken, DeviceError, DeviceKind};
use portcullis_core::program::Program;

use crate::compile::{self, ARENA, DESCRIPTORS, ENTRY, Kernel, LAUNCH, METADATA, VERDICTS};
use crate::device::Gpu;
use crate::probe::WgpuDevice;

/// llvmpipe leaves a loop after this many rounds and says nothing (measured with Mesa 22.3 and
/// LLVM 15); a packet that may loop longer would get a wrong verdict.
const SOFTWARE_ROUNDS: u32 = 65_000;

/// Expressions, functions inlined, that a software device takes. llvmpipe's compiler takes time by the square of them
/// where they look at memory: with the same version, on one core, 2 seconds for 16,000 that look at packets, 6 for 18,500
/// with 500 reads of maps among them (each a loop over the lanes), a minute for 80,000.
pub(crate) const SOFTWARE_SIZE: u64 = 24_576;

/// Levels of branches in each other ([`Kernel::nested`]) that a software device takes. llvmpipe has room for the lanes'
/// masks of 80, leaves out what stands deeper and says nothing: packets get wrong verdicts. What it was seen to get
/// wrong begins at 81 by our count (the same version); its compiler may turn some things round before it counts.
pub(crate) const SOFTWARE_NESTING: u64 = 64;

/// A program ready to be launched.
pub(crate) struct Loaded {
    pub pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
    /// The maps' own, and which they are.
    maps: Option<wgpu::BindGroupLayout>,
    pub used_maps: Vec<u32>,
    /// What the session has to bring.
    pub effects: KernelEffects,
    /// Whether it reads descriptors.
    pub descriptors: bool,
    /// Whether it takes packets in the order of their flows.
    pub flows: bool,
}

/// Opens the device and compiles the program for it.
pub(crate) fn load(
    device: &WgpuDevice,
    program: &Arc<Program>,
    cancel: &CancelToken,
) -> Result<(Gpu, Loaded), DeviceError> {
    let id = &portcullis_core::device::Device::info(device).id;
    let (device, program) = (device.clone(), program.clone());
    // naga's writers and wgpu have `unimplemented!` in places that no valid filter should reach.
    offload::compile_on_thread(id, cancel, move || compile(&device, &program))
}

fn compile(device: &WgpuDevice, program: &Program) -> Result<(Gpu, Loaded), DeviceError> {
    let info = portcullis_core::device::Device::info(device);
    let unsupported = |reason: String| DeviceError::Unsupported { device: info.id.clone(), reason };
    let iterations = program.facts().max_iterations.unwrap_or(program.fuel()).min(program.fuel());
    let software = info.kind == DeviceKind::Software;
    if software && iterations > SOFTWARE_ROUNDS {
        return Err(unsupported(format!(
            "a packet may cost {iterations} loop iterations, and a software device may leave a loop after \
             65,535 rounds without a word; set the fuel to {SOFTWARE_ROUNDS} or less"
        )));
    }
    let kernel = compile::kernel(program, device.group()).map_err(unsupported)?;
    let size = kernel.inlined();
    if software && size > SOFTWARE_SIZE {
        return Err(unsupported(format!(
            "it has {size} expressions with every helper and prelude function inlined where it is called, and \
             beyond {SOFTWARE_SIZE} a software device's compiler takes minutes; call helpers less often, or take \
             --device cpu"
        )));
    }
    let nested = kernel.nested();
    if software && nested > SOFTWARE_NESTING {
        return Err(unsupported(format!(
            "its branches are {nested} deep, all behind an early `return`, `break` or `continue` counted as one deeper, \
             and beyond {SOFTWARE_NESTING} a software device may give wrong verdicts without a word; look things up in \
             a table in place of many branches, or take --device cpu"
        )));
    }
    let gpu = device.open()?;
    let (buffers, most) = (kernel.buffers(), gpu.limits.max_storage_buffers_per_shader_stage);
    if buffers > most as usize {
        return Err(unsupported(format!(
            "it needs {buffers} storage buffers, {} of them for its maps, and the device binds at most {most} to a \
             kernel; use fewer maps, or take --device cpu",
            kernel.maps.len()
        )));
    }
    let loaded = Loaded::new(&gpu, kernel, program.facts().redirects)?;
    Ok((gpu, loaded))
}

impl Loaded {
    fn new(gpu: &Gpu, kernel: Kernel, redirects: bool) -> Result<Loaded, DeviceError> {
        let (descriptors, flows) = (kernel.descriptors.is_some(), kernel.flows);
        let effects = KernelEffects {
            accesses_packets: kernel.arena.is_some(),
            writes_packets: kernel.writes_packets(),
            resizes_packets: kernel.resizes_packets(),
            metadata: kernel.metadata,
            redirects,
            size: kernel.inlined(),
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
        // SAFETY: without naga's bounds checks every index has to be in bounds by itself.
        // - Arrays, vectors and matrices in function and private memory: the filter's dynamic
        //   indices are clamped by `Lowering::clamp_indices`; the prelude has none.
        // - The arena: only the prelude reaches it, and only at bytes of the packet (`pc_inside`,
        //   `pc_first`, `pc_last`) and in the word behind them. Every packet and its room lie in the
        //   arena (`BatchCutter::cut_batch`), and a binding covers them and `OVERREAD_BYTES` bytes more.
        // - Maps: only the prelude reaches them, in places that are masked or compared with their number (`map::wgsl_text`).
        // - Descriptors, metadata and verdicts: at the packet's index, which is below the launch's
        //   count, and the bindings are made for all packets of a piece.
        // Loops are left bounded and divisions checked.
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
        Ok(Loaded { pipeline, layout, maps, used_maps, effects, descriptors, flows })
    }

    /// The words of all maps that the filter uses, in their order, put together; `None` where it uses none.
    pub fn map_bindings(&self, gpu: &Gpu, maps: &[wgpu::Buffer]) -> Option<wgpu::BindGroup> {
        let entry = |&number: &u32| wgpu::BindGroupEntry {
            binding: number,
            resource: maps[number as usize].as_entire_binding(),
        };
        let entries: Vec<_> = self.used_maps.iter().map(entry).collect();
        let layout = self.maps.as_ref()?;
        Some(gpu.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries }))
    }

    /// Buffers put together for a launch.
    pub fn bindings(&self, gpu: &Gpu, entries: &[wgpu::BindGroupEntry<'_>]) -> wgpu::BindGroup {
        gpu.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &self.layout, entries })
    }
}
