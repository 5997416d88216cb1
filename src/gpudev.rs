//! Selects the GPU whose memory DPDK receives packets into (`--gpu`).
//!
//! CUDA GPUs get a gpudev driver implemented by this process ([`CudaDriver`]), so that GPUs unknown
//! to DPDK's own driver work, too. A GPU that DPDK's driver has found uses that one.
#![allow(unsafe_code)]

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

#[cfg(feature = "cuda")]
pub use cuda::CudaDriver;
use portcullis_core::device::{DeviceError, DeviceInfo};
use portcullis_io::dpdk::Mempool;
use portcullis_io::dpdk::gpudev::{GpuProperties, GpuSpec, SoftwareGpu};

/// Memory size of the software GPU; pages are allocated only when used.
const SOFTWARE_GPU_BYTES: usize = 4 << 30;

/// A GPU for `--gpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuChoice {
    /// An emulated GPU in host memory.
    Software,
    /// The CUDA device of this index.
    Cuda(usize),
    /// The GPU of this number among those that DPDK's own driver has found.
    Enumerated(i16),
}

/// Error of parsing a [`GpuChoice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected `software` (an emulated GPU in host memory), `cuda:N`, or the number of a GPU that DPDK's own driver has found"
)]
pub struct UnknownGpu;

/// Why a GPU cannot provide memory for packets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The device that filters packets is no GPU that could receive them.
    #[error(
        "cannot choose a GPU to receive packets for {device}; name one, for example `--gpu cuda:0` or `--gpu software`"
    )]
    Undetermined {
        /// The device's id.
        device: String,
    },
    /// CUDA is not part of this build.
    #[error("this program was built without CUDA; build it with `--features cuda`")]
    NotBuilt,
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The GPU that was chosen fails.
    #[error("--gpu {choice}: {error}")]
    Chosen {
        /// The choice.
        choice: GpuChoice,
        /// Why it fails.
        error: Box<GpuError>,
    },
}

impl FromStr for GpuChoice {
    type Err = UnknownGpu;

    fn from_str(text: &str) -> Result<GpuChoice, UnknownGpu> {
        let number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok());
        let choice = match (text, text.strip_prefix("cuda:")) {
            ("software", _) => Some(GpuChoice::Software),
            ("cuda", _) => Some(GpuChoice::Cuda(0)),
            (_, Some(digits)) => number(digits).flatten().map(|number: u16| GpuChoice::Cuda(number.into())),
            _ => number(text).flatten().and_then(|number: u16| i16::try_from(number).ok()).map(GpuChoice::Enumerated),
        };
        choice.ok_or(UnknownGpu)
    }
}

impl fmt::Display for GpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuChoice::Software => f.write_str("software"),
            GpuChoice::Cuda(number) => write!(f, "cuda:{number}"),
            GpuChoice::Enumerated(number) => write!(f, "{number}"),
        }
    }
}

impl GpuChoice {
    /// The default GPU to receive packets into: the one that filters them.
    ///
    /// # Errors
    /// If the device is not a CUDA device, with advice.
    pub fn for_device(device: &DeviceInfo) -> Result<GpuChoice, GpuError> {
        let number = device.id.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        number.map(GpuChoice::Cuda).ok_or_else(|| GpuError::Undetermined { device: device.id.clone() })
    }

    /// Packet buffers for DPDK in GPU memory, or in host memory registered with the GPU.
    ///
    /// # Errors
    /// As [`GpuChoice::spec`], with the option's name.
    pub fn mempool(self, in_gpu: bool) -> Result<Mempool, GpuError> {
        let spec = self.spec().map_err(|error| GpuError::Chosen { choice: self, error: Box::new(error) })?;
        Ok(if in_gpu { Mempool::Gpu(spec) } else { Mempool::Pinned(spec) })
    }

    /// The GPU as DPDK needs it.
    ///
    /// # Errors
    /// If there is no such CUDA device, with advice.
    pub fn spec(self) -> Result<GpuSpec, GpuError> {
        Ok(match self {
            GpuChoice::Software => GpuSpec::Driver(Arc::new(SoftwareGpu::new(SOFTWARE_GPU_BYTES))),
            #[cfg(feature = "cuda")]
            GpuChoice::Cuda(number) => GpuSpec::Driver(Arc::new(CudaDriver::open(number)?)),
            #[cfg(not(feature = "cuda"))]
            GpuChoice::Cuda(_) => return Err(GpuError::NotBuilt),
            GpuChoice::Enumerated(number) => GpuSpec::Detected { number, properties },
        })
    }
}

/// Properties of a GPU, given its name in DPDK.
fn properties(_name: &str) -> Option<GpuProperties> {
    #[cfg(feature = "cuda")]
    return cuda::properties_at(_name);
    #[cfg(not(feature = "cuda"))]
    None
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::collections::BTreeMap;
    use std::fmt;
    use std::ptr::NonNull;
    use std::sync::{Arc, Mutex, PoisonError};

    use portcullis_core::device::DeviceError;
    use portcullis_cuda::memory::{CpuMapping, DeviceBuffer, EVERY_DEVICE, Gpu, HostRegistration};
    use portcullis_io::dpdk::gpudev::{Block, DriverError, GpuDriver, GpuProperties};

    /// Page size of GPU memory for access by other devices.
    const GPU_PAGE_BYTES: usize = 64 << 10;

    /// A gpudev driver for a CUDA device.
    pub struct CudaDriver {
        gpu: Gpu,
        state: Mutex<State>,
    }

    /// Memory handed out, by address.
    #[derive(Default)]
    struct State {
        buffers: BTreeMap<u64, Arc<DeviceBuffer>>,
        views: BTreeMap<u64, CpuMapping>,
        registered: BTreeMap<u64, HostRegistration>,
    }

    impl fmt::Debug for CudaDriver {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_tuple("CudaDriver").field(&self.gpu).finish()
        }
    }

    impl CudaDriver {
        /// Opens the driver for `cuda:NUMBER`.
        ///
        /// # Errors
        /// As [`Gpu::open`].
        pub fn open(number: usize) -> Result<CudaDriver, DeviceError> {
            Ok(CudaDriver { gpu: Gpu::open(number)?, state: Mutex::default() })
        }

        fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
            // The maps are valid after every operation, so a panic elsewhere does not spoil them.
            act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }

    /// Properties of the CUDA device at a PCI address.
    pub fn properties_at(name: &str) -> Option<GpuProperties> {
        let all = (0..).map_while(|number| Gpu::open(number).ok());
        let found = all.filter(|gpu| gpu.pci_address().is_some_and(|pci| pci.eq_ignore_ascii_case(name)));
        found.map(|gpu| properties(&gpu)).next()
    }

    fn properties(gpu: &Gpu) -> GpuProperties {
        GpuProperties {
            device: Some(gpu.id().to_owned()),
            title: None,
            shown: Some(EVERY_DEVICE.to_owned()),
            processors: gpu.multiprocessors(),
            memory: gpu.total_memory(),
            page: GPU_PAGE_BYTES,
            node: gpu.numa_node().and_then(|node| u16::try_from(node).ok()),
            pci: gpu.pci_address().map(str::to_owned),
        }
    }

    fn driver_error(error: DeviceError) -> DriverError {
        match error {
            DeviceError::Missing(what) => DriverError::Unsupported(what),
            error => DriverError::Other(error.to_string()),
        }
    }

    impl GpuDriver for CudaDriver {
        fn properties(&self) -> GpuProperties {
            properties(&self.gpu)
        }

        fn allocate(&self, size: usize, align: usize) -> Result<u64, DriverError> {
            let buffer = self.gpu.allocate(size, align).map_err(driver_error)?;
            let address = buffer.address();
            self.with(|state| state.buffers.insert(address, buffer));
            Ok(address)
        }

        unsafe fn free(&self, block: Block) -> Result<(), DriverError> {
            let known = self.with(|state| state.buffers.remove(&block.address));
            known.map(drop).ok_or(DriverError::Unknown { what: "freeing memory", address: block.address })
        }

        unsafe fn register(&self, start: NonNull<u8>, size: usize) -> Result<u64, DriverError> {
            // SAFETY: the caller guarantees that the memory stays valid until it is unregistered.
            let shown = unsafe { self.gpu.register(start, size) }.map_err(driver_error)?;
            let address = shown.address();
            self.with(|state| state.registered.insert(start.as_ptr() as u64, shown));
            Ok(address)
        }

        unsafe fn unregister(&self, start: NonNull<u8>, _size: usize) -> Result<(), DriverError> {
            let address = start.as_ptr() as u64;
            let known = self.with(|state| state.registered.remove(&address));
            let known = known.ok_or(DriverError::Unknown { what: "unregistering memory", address })?;
            known.unregister().map_err(driver_error)
        }

        fn cpu_map(&self, address: u64, _size: usize) -> Result<NonNull<u8>, DriverError> {
            let unknown = DriverError::Unknown { what: "mapping memory", address };
            let buffer = self.with(|state| state.buffers.range(..=address).next_back().map(|(_, it)| it.clone()));
            let buffer = buffer.ok_or(unknown)?;
            let view = buffer.map().map_err(driver_error)?;
            // SAFETY: the view covers the whole buffer, and the address is within it.
            let at = unsafe { view.start().add((address - buffer.address()) as usize) };
            self.with(|state| state.views.insert(address, view));
            Ok(at)
        }

        unsafe fn cpu_unmap(&self, address: u64, _size: usize, _view: NonNull<u8>) -> Result<(), DriverError> {
            let known = self.with(|state| state.views.remove(&address));
            known.map(drop).ok_or(DriverError::Unknown { what: "unmapping memory", address })
        }

        fn check_nic_access(&self) -> Result<(), DriverError> {
            self.gpu.gpudirect().map(|_| ()).map_err(driver_error)
        }

        fn barrier(&self) -> Result<(), DriverError> {
            self.gpu.barrier().map_err(driver_error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_choices_parse_their_own_display() {
        for (text, choice) in
            [("software", GpuChoice::Software), ("cuda:3", GpuChoice::Cuda(3)), ("0", GpuChoice::Enumerated(0))]
        {
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(GpuChoice::Cuda(0)));
        for text in ["", "cuda:", "cuda:-1", "cuda:x", "-1", "70000", "33000", "gpu", "cpu"] {
            assert!(text.parse::<GpuChoice>().unwrap_err().to_string().contains("cuda:N"), "{text}");
        }
    }
}
