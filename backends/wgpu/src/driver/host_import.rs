//! Host memory that a Vulkan device reads in place (`VK_EXT_external_memory_host`).
//!
//! wgpu does not support the extension. The device is therefore opened through wgpu's hal with the
//! extension enabled, and for each span a `VkBuffer` over its pages is created with ash and passed
//! to wgpu.

pub(crate) use platform::{HostImport, HostMemory};

#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
mod platform {
    use std::sync::Arc;

    use ash::{ext, vk};
    use portcullis_core::packet::Span;
    use wgpu::hal::api::Vulkan;

    const HOST_ALLOCATION: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

    /// Usage of buffers over imported memory: read by kernels, and copied from.
    const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
        vk::BufferUsageFlags::STORAGE_BUFFER.as_raw() | vk::BufferUsageFlags::TRANSFER_SRC.as_raw(),
    );

    /// An adapter's ability to import host memory.
    #[derive(Debug, Clone)]
    pub(crate) struct HostImport {
        /// Required alignment of addresses and sizes, in bytes.
        alignment: u64,
    }

    impl HostImport {
        /// Returns the adapter's ability to import host memory, if it has it.
        pub fn of_adapter(adapter: &wgpu::Adapter) -> Option<HostImport> {
            // SAFETY: the hal's adapter is only queried.
            let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
            let capabilities = hal.physical_device_capabilities();
            if !capabilities.supports_extension(ext::external_memory_host::NAME)
                || capabilities.properties().api_version < vk::API_VERSION_1_1
            {
                return None;
            }
            let instance = hal.shared_instance().raw_instance();
            let physical = hal.raw_physical_device();
            let mut external = vk::ExternalBufferProperties::default();
            let query = vk::PhysicalDeviceExternalBufferInfo::default().usage(USAGE).handle_type(HOST_ALLOCATION);
            let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut host);
            // SAFETY: the physical device belongs to the instance, and both support Vulkan 1.1
            // (checked above; wgpu's instance is no older than its devices). The chained structure
            // is that of an extension which the device supports.
            unsafe {
                instance.get_physical_device_external_buffer_properties(physical, &query, &mut external);
                instance.get_physical_device_properties2(physical, &mut properties);
            }
            let features = external.external_memory_properties.external_memory_features;
            let alignment = host.min_imported_host_pointer_alignment.max(1);
            features.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE).then_some(HostImport { alignment })
        }

        /// Opens the adapter's device with the extension; `None` if that fails, in which case it
        /// may be opened without.
        pub fn open(
            &self,
            adapter: &wgpu::Adapter,
            description: &wgpu::DeviceDescriptor,
        ) -> Option<(wgpu::Device, wgpu::Queue, HostMemory)> {
            // SAFETY: the hal's adapter is used to open a device and not kept.
            let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
            // SAFETY: the callback adds an extension that the device supports
            // (`HostImport::of_adapter`), and removes nothing.
            let open = unsafe {
                hal.open_with_callback(
                    description.required_features,
                    &description.required_limits,
                    &description.memory_hints,
                    Some(Box::new(|args| args.extensions.push(ext::external_memory_host::NAME))),
                )
            }
            .ok()?;
            let instance = hal.shared_instance().raw_instance();
            let physical = hal.raw_physical_device();
            let device = open.device.raw_device().clone();
            let host = HostMemory {
                functions: ext::external_memory_host::Device::new(instance, &device),
                // SAFETY: the physical device belongs to the instance.
                memory: unsafe { instance.get_physical_device_memory_properties(physical) },
                alignment: self.alignment,
                device,
            };
            drop(hal);
            // SAFETY: the device was just opened from this adapter with these features.
            let (device, queue) = unsafe { adapter.create_device_from_hal(open, description) }.ok()?;
            Some((device, queue, host))
        }
    }

    /// An open device's ability to import host memory.
    pub(crate) struct HostMemory {
        device: ash::Device,
        functions: ext::external_memory_host::Device,
        memory: vk::PhysicalDeviceMemoryProperties,
        alignment: u64,
    }

    impl HostMemory {
        /// Creates a buffer over the whole span, for kernels to read and for copying from; it keeps
        /// the span alive. `None` if the driver refuses.
        pub fn import(&self, device: &wgpu::Device, span: &Arc<Span>) -> Option<wgpu::Buffer> {
            let size = span.allocated() as u64;
            let fits = size <= device.limits().max_buffer_size
                && size.is_multiple_of(self.alignment)
                && (span.as_ptr() as u64).is_multiple_of(self.alignment);
            if !fits {
                return None;
            }
            let (buffer, memory) = self.bind(span, size)?;
            let (raw, span) = (self.device.clone(), span.clone());
            let free = Box::new(move || {
                // SAFETY: wgpu calls this after it has dropped the buffer, which is after the
                // device's last use of it and before the device is destroyed; nobody else destroys
                // the two.
                unsafe {
                    raw.destroy_buffer(buffer, None);
                    raw.free_memory(memory, None);
                }
                drop(span);
            });
            // SAFETY: `bind` created the buffer on this device, and it outlives the hal's buffer.
            let hal = unsafe { wgpu::hal::vulkan::Buffer::from_raw_externally_owned(buffer, free) };
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
            let description =
                wgpu::BufferDescriptor { label: Some("imported"), size, usage, mapped_at_creation: false };
            // SAFETY: the buffer is of this device, with the same size and usages; its memory is
            // initialised, as a span's always is, and its size is not zero, since a span is
            // readable past its end.
            Some(unsafe { device.create_buffer_from_hal::<Vulkan>(hal, &description) })
        }

        fn bind(&self, span: &Arc<Span>, size: u64) -> Option<(vk::Buffer, vk::DeviceMemory)> {
            let mut pointer = vk::MemoryHostPointerPropertiesEXT::default();
            let get = self.functions.fp().get_memory_host_pointer_properties_ext;
            let start = span.as_ptr();
            // SAFETY: the span is an allocation of at least `size` bytes at this address; the
            // caller has checked the alignment of both.
            let result = unsafe { get(self.device.handle(), HOST_ALLOCATION, start.cast(), &mut pointer) };
            result.result().ok()?;
            let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(HOST_ALLOCATION);
            let info = vk::BufferCreateInfo::default().size(size).usage(USAGE).push_next(&mut external);
            // SAFETY: a valid description, whose usage `HostImport::of_adapter` found importable.
            let buffer = unsafe { self.device.create_buffer(&info, None) }.ok()?;
            // SAFETY: this device has just created the buffer.
            let requirements = unsafe { self.device.get_buffer_memory_requirements(buffer) };
            let allowed = requirements.memory_type_bits & pointer.memory_type_bits;
            let kind = self.memory.memory_types_as_slice().iter().enumerate().position(|(index, kind)| {
                // Coherent memory: host writes before a submission are visible without a flush.
                allowed >> index & 1 == 1 && kind.property_flags.contains(vk::MemoryPropertyFlags::HOST_COHERENT)
            });
            let memory = kind.filter(|_| requirements.size <= size).and_then(|kind| {
                let mut import = vk::ImportMemoryHostPointerInfoEXT::default()
                    .handle_type(HOST_ALLOCATION)
                    .host_pointer(start.cast());
                let info = vk::MemoryAllocateInfo::default()
                    .allocation_size(size)
                    .memory_type_index(kind as u32)
                    .push_next(&mut import);
                // SAFETY: the range is the span's allocation, which whoever frees the memory keeps
                // until then. The driver has listed the memory type for this pointer.
                unsafe { self.device.allocate_memory(&info, None) }.ok()
            });
            // SAFETY: both are of this device and not bound; the memory is large enough and of a
            // type that the buffer supports.
            match memory.filter(|&memory| unsafe { self.device.bind_buffer_memory(buffer, memory, 0) }.is_ok()) {
                Some(bound) => Some((buffer, bound)),
                None => {
                    // SAFETY: nothing uses the two, since the buffer is not bound.
                    unsafe {
                        self.device.destroy_buffer(buffer, None);
                        if let Some(memory) = memory {
                            self.device.free_memory(memory, None);
                        }
                    }
                    None
                }
            }
        }
    }
}

#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
mod platform {
    use std::sync::Arc;

    use portcullis_core::packet::Span;

    /// Uninhabited on platforms without Vulkan, where nothing can be imported.
    #[derive(Debug, Clone)]
    pub(crate) enum HostImport {}

    impl HostImport {
        pub fn of_adapter(_: &wgpu::Adapter) -> Option<HostImport> {
            None
        }

        pub fn open(
            &self,
            _: &wgpu::Adapter,
            _: &wgpu::DeviceDescriptor,
        ) -> Option<(wgpu::Device, wgpu::Queue, HostMemory)> {
            match *self {}
        }
    }

    /// See [`HostImport`].
    pub(crate) enum HostMemory {}

    impl HostMemory {
        pub fn import(&self, _: &wgpu::Device, _: &Arc<Span>) -> Option<wgpu::Buffer> {
            match *self {}
        }
    }
}
