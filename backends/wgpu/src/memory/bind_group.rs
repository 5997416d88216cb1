//! Bind groups of buffers, kept from launch to launch.

use crate::driver::gpu::Gpu;

/// A part of a buffer, bound at an index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub index: u32,
    pub buffer: &'a wgpu::Buffer,
    /// First byte, and size in bytes.
    pub offset: u64,
    pub size: u64,
}

impl Binding<'_> {
    fn entry(&self) -> wgpu::BindGroupEntry<'_> {
        let Binding { index, buffer, offset, size } = *self;
        let buffer = wgpu::BufferBinding { buffer, offset, size: wgpu::BufferSize::new(size) };
        wgpu::BindGroupEntry { binding: index, resource: wgpu::BindingResource::Buffer(buffer) }
    }
}

/// A bind group that is made anew only if its bindings change.
#[derive(Default)]
pub(crate) struct CachedBindGroup(Option<(Vec<OwnedBinding>, wgpu::BindGroup)>);

/// The fields of a [`Binding`].
type OwnedBinding = (u32, wgpu::Buffer, u64, u64);

impl CachedBindGroup {
    /// Returns the bind group of these bindings; errors show at the next [`Gpu::check`].
    pub fn get_or_create(
        &mut self,
        gpu: &Gpu,
        layout: &wgpu::BindGroupLayout,
        bindings: &[Binding<'_>],
    ) -> &wgpu::BindGroup {
        let is_bound = |(known, now): (&OwnedBinding, &Binding<'_>)| {
            (known.0, &known.1, known.2, known.3) == (now.index, now.buffer, now.offset, now.size)
        };
        let known =
            self.0.take_if(|(known, _)| known.len() != bindings.len() || !known.iter().zip(bindings).all(is_bound));
        drop(known);
        let create = || {
            let entries: Vec<_> = bindings.iter().map(Binding::entry).collect();
            let bound = bindings.iter().map(|it| (it.index, it.buffer.clone(), it.offset, it.size)).collect();
            (bound, gpu.bind_group(layout, &entries))
        };
        &self.0.get_or_insert_with(create).1
    }

    /// Drops the bind group, and with it its references to buffers.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}
