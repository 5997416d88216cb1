//! Packs verdicts on the device. WGSL has no byte stores, so the kernel writes a word for each
//! packet, and a second pass packs four into one.

use std::borrow::Cow;

use portcullis_core::device::DeviceError;
use wgpu::{BufferUsages, CommandEncoder};

use crate::driver::gpu::Gpu;
use crate::memory::{Binding, CachedBindGroup, MIN_CAPACITY};

/// Invocations in a work group, as in [`SHADER`].
const GROUP_SIZE: u32 = 64;

/// Packs four verdicts in each invocation. The grid has two dimensions because one is limited to
/// 65,535 groups.
const SHADER: &str = "
    @group(0) @binding(0) var<storage, read> words: array<vec4<u32>>;
    @group(0) @binding(1) var<storage, read_write> bytes: array<u32>;

    @compute @workgroup_size(64)
    fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
        let at = id.x + id.y * groups.x * 64u;
        if at < arrayLength(&bytes) { bytes[at] = pack4xU8(words[at]); }
    }";

/// The compiled pass.
pub(crate) struct VerdictPacker {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// Device-only buffer of a chunk's verdicts, a word each.
#[derive(Default)]
pub(crate) struct VerdictWords(Option<wgpu::Buffer>);

/// Size in bytes of the words of that many verdicts, rounded up to whole groups of four.
pub(crate) fn words_size(packets: u64) -> u64 {
    packets.next_multiple_of(4) * 4
}

/// Size in bytes of that many packed verdicts, rounded up to whole words.
pub(crate) fn packed_size(packets: u64) -> u64 {
    packets.next_multiple_of(4)
}

impl VerdictWords {
    /// Ensures room for that many verdicts; `limit` is the largest size of a binding.
    pub fn ensure_capacity(&mut self, gpu: &Gpu, packets: u64, limit: u64) -> Result<(), DeviceError> {
        let size = words_size(packets);
        if self.0.as_ref().is_none_or(|buffer| buffer.size() < size) {
            let size = size.next_power_of_two().clamp(MIN_CAPACITY, limit.max(MIN_CAPACITY));
            self.0 = Some(gpu.buffer("verdicts' words", size, BufferUsages::STORAGE, false));
        }
        gpu.check()
    }

    pub fn buffer(&self) -> &wgpu::Buffer {
        self.0.as_ref().expect("reserved before it is used")
    }
}

impl VerdictPacker {
    /// Compiles the pass.
    pub fn new(gpu: &Gpu) -> Result<VerdictPacker, DeviceError> {
        let module = naga::front::wgsl::parse_str(SHADER).map_err(|error| gpu.failure(error.emit_to_string(SHADER)))?;
        let device = &gpu.device;
        let entry = |binding, read_only| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some("packing"),
            entries: &[entry(0, true), entry(1, false)],
        });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some("packing"),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let source = wgpu::ShaderSource::Naga(Cow::Owned(module));
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some("packing"), source };
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some("packing"),
            layout: Some(&pipeline_layout),
            module: &device.create_shader_module(descriptor),
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        gpu.check()?;
        Ok(VerdictPacker { pipeline, layout })
    }

    /// The bind group for the verdicts of a chunk.
    pub fn bind_group<'a>(
        &self,
        gpu: &Gpu,
        cached: &'a mut CachedBindGroup,
        words: &VerdictWords,
        bytes: &wgpu::Buffer,
        packets: u64,
    ) -> &'a wgpu::BindGroup {
        let words = Binding { index: 0, buffer: words.buffer(), offset: 0, size: words_size(packets) };
        let bytes = Binding { index: 1, buffer: bytes, offset: 0, size: packed_size(packets) };
        cached.get_or_create(gpu, &self.layout, &[words, bytes])
    }

    /// Encodes the pass over the verdicts of a chunk, after its kernel.
    pub fn encode(&self, gpu: &Gpu, encoder: &mut CommandEncoder, bindings: &wgpu::BindGroup, packets: u64) {
        let groups = (packets.div_ceil(4) as u32).div_ceil(GROUP_SIZE);
        let width = groups.min(gpu.limits.max_compute_workgroups_per_dimension);
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, bindings, &[]);
        pass.dispatch_workgroups(width, groups.div_ceil(width), 1);
    }
}
