//! GPU memory that packets are received into.

use std::ptr::NonNull;
use std::sync::Arc;

use portcullis_core::packet::{DeviceView, READABLE_PAST_END, Span};
use portcullis_dpdk_sys as sys;

use super::gpu::Gpu;
use super::memory::{CpuMapping, GpuMemory};
use crate::dpdk::eal::Eal;
use crate::dpdk::error::{DpdkError, last};

/// How the ports of a run write packets into memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::dpdk) enum PacketWriters {
    /// Network cards write packets by DMA, without the CPU.
    CardDma,
    /// No port writes packets: they have no contents and are not read either (net_null).
    NoWriter,
    /// The CPU writes packets, in the driver of at least this port.
    Cpu {
        /// The port.
        port: String,
        /// Driver of the port.
        driver: String,
    },
}

/// GPU memory registered with DPDK as external memory, for mbuf data buffers.
#[derive(Debug)]
pub(in crate::dpdk) struct Buffers {
    // Fields are dropped in order.
    external: ExternalMemory,
    view: Option<CpuMapping>,
    memory: Arc<GpuMemory>,
}

/// External memory registered with DPDK.
#[derive(Debug)]
struct ExternalMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: only addresses.
unsafe impl Send for ExternalMemory {}
// SAFETY: as above.
unsafe impl Sync for ExternalMemory {}

impl ExternalMemory {
    fn new(eal: &Eal, gpu: &Gpu, start: NonNull<u8>, len: usize) -> Result<ExternalMemory, DpdkError> {
        // A CPU mapping may be aligned to system pages only.
        let page = gpu.info().properties.page.min(1 << (start.as_ptr() as usize).trailing_zeros());
        // SAFETY: the range exists. A null IOVA table is allowed.
        let result = unsafe { sys::rte_extmem_register(start.as_ptr().cast(), len, std::ptr::null_mut(), 0, page) };
        if result != 0 {
            let what = format!("registering {len} bytes of its memory with DPDK");
            return Err(DpdkError::Gpu {
                gpu: gpu.title(),
                what,
                error: last(),
                why: None,
                log_lines: eal.log_lines(),
            });
        }
        Ok(ExternalMemory { start, len })
    }
}

impl Drop for ExternalMemory {
    fn drop(&mut self) {
        // SAFETY: the range was registered, and no port uses it.
        unsafe { sys::rte_extmem_unregister(self.start.as_ptr().cast(), self.len) };
    }
}

impl Buffers {
    /// Allocates `bytes` bytes, and readable bytes after them.
    pub fn new(eal: &Eal, gpu: &Arc<Gpu>, bytes: usize, writers: &PacketWriters) -> Result<Buffers, DpdkError> {
        let memory = Arc::new(GpuMemory::new(gpu, bytes + READABLE_PAST_END)?);
        let (view, start) = match writers {
            PacketWriters::CardDma => {
                gpu.check_cards()?;
                (None, memory.start())
            }
            PacketWriters::NoWriter => {
                let view = CpuMapping::new(&memory).ok();
                let start = view.as_ref().map_or_else(|| memory.start(), CpuMapping::view);
                (view, start)
            }
            PacketWriters::Cpu { port, driver } => {
                let view = CpuMapping::new(&memory).map_err(|error| {
                    let (port, driver, gpu) = (port.clone(), driver.clone(), gpu.title());
                    let missing = match error {
                        DpdkError::Gpu { why: Some(why), .. } => why,
                        error => error.to_string(),
                    };
                    DpdkError::OutOfReach { port, driver, gpu, missing }
                })?;
                let start = view.view();
                (Some(view), start)
            }
        };
        let external = ExternalMemory::new(eal, gpu, start, memory.len())?;
        Ok(Buffers { external, view, memory })
    }

    /// Address of the first byte for port drivers.
    pub fn start(&self) -> NonNull<u8> {
        self.external.start
    }

    /// Size in bytes, including the readable bytes at the end.
    pub fn len(&self) -> usize {
        self.external.len
    }

    /// Offset in bytes from the address for port drivers to the address for the GPU.
    pub fn shift(&self) -> isize {
        self.memory.address().wrapping_sub(self.external.start.as_ptr() as u64) as isize
    }

    /// Whether the CPU can access the memory at the drivers' address.
    pub fn is_on_host(&self) -> bool {
        self.view.is_some() || self.memory.gpu().info().properties.device.is_none()
    }

    /// IO virtual address of the first byte. In IOVA-as-VA mode it is the GPU's address; otherwise
    /// it is unknown (`RTE_BAD_IOVA`), which suffices for drivers that register memory themselves,
    /// such as mlx5.
    pub fn iova(&self) -> u64 {
        // SAFETY: the EAL is initialised.
        match unsafe { sys::rte_eal_iova_mode() } {
            sys::rte_iova_mode::RTE_IOVA_VA => self.external.start.as_ptr() as u64,
            _ => u64::MAX,
        }
    }

    /// Describes an area of `count` buffers of `stride` bytes for a mempool.
    pub fn chunk(&self, at: usize, stride: usize, count: usize) -> sys::rte_pktmbuf_extmem {
        assert!(at + stride * count <= self.external.len);
        // SAFETY: the offset is in range.
        let start = unsafe { self.external.start.add(at) };
        let buf_iova = if self.iova() == u64::MAX { u64::MAX } else { start.as_ptr() as u64 };
        sys::rte_pktmbuf_extmem {
            buf_ptr: start.as_ptr().cast(),
            buf_iova,
            buf_len: stride * count,
            elt_size: stride as u16,
        }
    }

    /// The first `len` bytes as a span for batches.
    pub fn span(self: &Arc<Self>, len: usize) -> Result<Arc<Span>, DpdkError> {
        let host = self.is_on_host().then_some(self.external.start);
        let device = self.memory.gpu().info().properties.device.clone();
        let device = device.map(|device| DeviceView { device, address: self.memory.address() });
        // SAFETY: both views refer to the same bytes, which live as long as `self`. Their contents
        // are whatever the GPU memory holds.
        let span = unsafe { Span::from_views(host, device, len, self.external.len, Box::new(self.clone())) };
        span.map_err(|error| DpdkError::TooMuchMemory { error })
    }
}
