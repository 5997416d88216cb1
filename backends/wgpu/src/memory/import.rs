//! Host memory that a Vulkan device reads in place (`VK_EXT_external_memory_host`).
//!
//! wgpu does not know the extension. So the device is made by wgpu's hal with the extension added,
//! and for each span a `VkBuffer` over the span's own pages is made with ash and handed to wgpu.

pub(crate) use platform::{HostImport, HostMemory};

#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
mod platform {
    use std::sync::Arc;

    use ash::{ext, vk};
    use portcullis_core::packet::Span;
    use wgpu::hal::api::Vulkan;

    const HOST_ALLOCATION: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

    /// How buffers over imported memory are used: read by kernels, and copied from.
    const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
        vk::BufferUsageFlags::STORAGE_BUFFER.as_raw() | vk::BufferUsageFlags::TRANSFER_SRC.as_raw(),
    );

    /// An adapter's ability to import host memory.
    #[derive(Debug, Clone)]
    pub(crate) struct HostImport {
        /// Addresses and sizes must be multiples of this many bytes.
        alignment: u64,
    }

    impl HostImport {
        /// What the adapter can do, if it can.
        pub fn of(adapter: &wgpu::Adapter) -> Option<HostImport> {
            // SAFETY: the hal's adapter is only asked questions.
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
            let asked = vk::PhysicalDeviceExternalBufferInfo::default().usage(USAGE).handle_type(HOST_ALLOCATION);
            let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut host);
            // SAFETY: the physical device belongs to the instance, both are of Vulkan 1.1 or later
            // (checked above; wgpu asks for an instance no older than its devices), and the chained
            // structure is that of an extension which the device has.
            unsafe {
                instance.get_physical_device_external_buffer_properties(physical, &asked, &mut external);
                instance.get_physical_device_properties2(physical, &mut properties);
            }
            let features = external.external_memory_properties.external_memory_features;
            let alignment = host.min_imported_host_pointer_alignment.max(1);
            features.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE).then_some(HostImport { alignment })
        }

        /// Opens the adapter's device with the extension; `None` when that fails, and it may then
        /// be opened without.
        pub fn open(
            &self,
            adapter: &wgpu::Adapter,
            description: &wgpu::DeviceDescriptor,
        ) -> Option<(wgpu::Device, wgpu::Queue, HostMemory)> {
            // SAFETY: the hal's adapter is used to open a device and not kept.
            let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
            // SAFETY: the callback adds an extension that the device has (`HostImport::of`), and
            // takes nothing away.
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

    /// An opened device's ability to import host memory.
    pub(crate) struct HostMemory {
        device: ash::Device,
        functions: ext::external_memory_host::Device,
        memory: vk::PhysicalDeviceMemoryProperties,
        alignment: u64,
    }

    impl HostMemory {
        /// A buffer over the whole of the span's memory, for kernels to read and for copying from.
        /// It keeps the span alive. `None` where the driver does not take it.
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
                // SAFETY: wgpu runs this when it has dropped the buffer, after the device's last
                // use of it and while the device is still there; nobody else destroys the two.
                unsafe {
                    raw.destroy_buffer(buffer, None);
                    raw.free_memory(memory, None);
                }
                drop(span);
            });
            // SAFETY: the buffer is of this device, as `bind` made it, and outlives the hal's buffer.
            let hal = unsafe { wgpu::hal::vulkan::Buffer::from_raw_externally_owned(buffer, free) };
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
            let description =
                wgpu::BufferDescriptor { label: Some("imported"), size, usage, mapped_at_creation: false };
            // SAFETY: of this device, made with the same size and usages; its memory is initialised
            // (a span's always is), and the size is not zero (a span has room past its end).
            Some(unsafe { device.create_buffer_from_hal::<Vulkan>(hal, &description) })
        }

        fn bind(&self, span: &Arc<Span>, size: u64) -> Option<(vk::Buffer, vk::DeviceMemory)> {
            let mut pointer = vk::MemoryHostPointerPropertiesEXT::default();
            let get = self.functions.fp().get_memory_host_pointer_properties_ext;
            let start = span.as_ptr();
            // SAFETY: a span is an allocation of at least `size` bytes at this address, both aligned
            // as the device wants it (checked by the caller).
            let result = unsafe { get(self.device.handle(), HOST_ALLOCATION, start.cast(), &mut pointer) };
            result.result().ok()?;
            let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(HOST_ALLOCATION);
            let info = vk::BufferCreateInfo::default().size(size).usage(USAGE).push_next(&mut external);
            // SAFETY: a valid description; the usage was found importable by `HostImport::of`.
            let buffer = unsafe { self.device.create_buffer(&info, None) }.ok()?;
            // SAFETY: the buffer was just made by this device.
            let needs = unsafe { self.device.get_buffer_memory_requirements(buffer) };
            let allowed = needs.memory_type_bits & pointer.memory_type_bits;
            let kind = self.memory.memory_types_as_slice().iter().enumerate().position(|(index, kind)| {
                // Coherent: what the host wrote before a submission is visible without a flush.
                allowed >> index & 1 == 1 && kind.property_flags.contains(vk::MemoryPropertyFlags::HOST_COHERENT)
            });
            let memory = kind.filter(|_| needs.size <= size).and_then(|kind| {
                let mut import = vk::ImportMemoryHostPointerInfoEXT::default()
                    .handle_type(HOST_ALLOCATION)
                    .host_pointer(start.cast());
                let info = vk::MemoryAllocateInfo::default()
                    .allocation_size(size)
                    .memory_type_index(kind as u32)
                    .push_next(&mut import);
                // SAFETY: the range is the span's allocation; whoever frees the memory keeps the
                // span alive until then. The type is one that the driver named for this pointer.
                unsafe { self.device.allocate_memory(&info, None) }.ok()
            });
            // SAFETY: both are of this device, the memory is large enough and of a type the buffer
            // takes, and neither is bound.
            match memory.filter(|&memory| unsafe { self.device.bind_buffer_memory(buffer, memory, 0) }.is_ok()) {
                Some(bound) => Some((buffer, bound)),
                None => {
                    // SAFETY: nothing uses the two: the buffer is not bound.
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

    /// No platform with Vulkan: nothing can be imported.
    #[derive(Debug, Clone)]
    pub(crate) enum HostImport {}

    impl HostImport {
        pub fn of(_: &wgpu::Adapter) -> Option<HostImport> {
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
