//! Memory of a GPU's that packets come into.

use std::ptr::NonNull;
use std::sync::Arc;

use portcullis_core::packet::{DeviceView, READABLE_PAST_END, Span};
use portcullis_dpdk_sys as sys;

use super::gpu::Gpu;
use super::memory::{CpuMapping, GpuMemory};
use crate::dpdk::eal::Eal;
use crate::dpdk::error::{DpdkError, last};

/// How the ports of a run get packets into memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::dpdk) enum Writers {
    /// Network cards do that, without a processor.
    Cards,
    /// Nobody does: packets are made of nothing, and nobody reads them either (net_null).
    Nobody,
    /// Their drivers do, by the processor: this port for one.
    Processor {
        /// What it is called.
        port: String,
        /// Its driver.
        driver: String,
    },
}

/// Memory of a GPU's that DPDK takes as memory of its own: for ports' drivers to have buffers there.
#[derive(Debug)]
pub(in crate::dpdk) struct Buffers {
    // In the order in which they go.
    known: Known,
    view: Option<CpuMapping>,
    memory: Arc<GpuMemory>,
}

/// Memory that was made known to DPDK, where ports' drivers find it.
#[derive(Debug)]
struct Known {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: addresses alone.
unsafe impl Send for Known {}
// SAFETY: as above.
unsafe impl Sync for Known {}

impl Known {
    fn new(eal: &Eal, gpu: &Gpu, start: NonNull<u8>, len: usize) -> Result<Known, DpdkError> {
        // Where the processor has it, the system has put it to one of its own pages.
        let page = gpu.info().properties.page.min(1 << (start.as_ptr() as usize).trailing_zeros());
        // SAFETY: there are so many bytes from there on; of what they are called to cards, nothing is said.
        let result = unsafe { sys::rte_extmem_register(start.as_ptr().cast(), len, std::ptr::null_mut(), 0, page) };
        if result != 0 {
            let what = format!("making {len} bytes of its memory known to DPDK");
            return Err(DpdkError::Gpu { gpu: gpu.title(), what, error: last(), why: None, said: eal.said() });
        }
        Ok(Known { start, len })
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        // SAFETY: it was made known, and no port has it.
        unsafe { sys::rte_extmem_unregister(self.start.as_ptr().cast(), self.len) };
    }
}

impl Buffers {
    /// So many bytes, and as many behind them as may be read.
    pub fn new(eal: &Eal, gpu: &Arc<Gpu>, bytes: usize, writers: &Writers) -> Result<Buffers, DpdkError> {
        let memory = Arc::new(GpuMemory::new(gpu, bytes + READABLE_PAST_END)?);
        let (view, start) = match writers {
            Writers::Cards => {
                gpu.check_cards()?;
                (None, memory.start())
            }
            Writers::Nobody => {
                let view = CpuMapping::new(&memory).ok();
                let start = view.as_ref().map_or_else(|| memory.start(), CpuMapping::view);
                (view, start)
            }
            Writers::Processor { port, driver } => {
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
        let known = Known::new(eal, gpu, start, memory.len())?;
        Ok(Buffers { known, view, memory })
    }

    /// Where ports' drivers find the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.known.start
    }

    /// Bytes from there on.
    pub fn len(&self) -> usize {
        self.known.len
    }

    /// Bytes from where ports' drivers have them to where the GPU does.
    pub fn shift(&self) -> isize {
        self.memory.address().wrapping_sub(self.known.start.as_ptr() as u64) as isize
    }

    /// Whether the processor reads and writes where ports' drivers have packets.
    pub fn is_on_host(&self) -> bool {
        self.view.is_some() || self.memory.gpu().info().properties.device.is_none()
    }

    /// What cards call the first byte. Where they know the addresses that the program does, they are told the GPU's; elsewhere theirs is
    /// unknown (`RTE_BAD_IOVA`), which those that find memory by themselves, mlx5's, do not mind.
    pub fn iova(&self) -> u64 {
        // SAFETY: DPDK has begun.
        match unsafe { sys::rte_eal_iova_mode() } {
            sys::rte_iova_mode::RTE_IOVA_VA => self.known.start.as_ptr() as u64,
            _ => u64::MAX,
        }
    }

    /// A pool's piece of it, in buffers of `stride` bytes.
    pub fn piece(&self, at: usize, stride: usize, count: usize) -> sys::rte_pktmbuf_extmem {
        assert!(at + stride * count <= self.known.len);
        // SAFETY: the bytes are there.
        let start = unsafe { self.known.start.add(at) };
        let buf_iova = if self.iova() == u64::MAX { u64::MAX } else { start.as_ptr() as u64 };
        sys::rte_pktmbuf_extmem {
            buf_ptr: start.as_ptr().cast(),
            buf_iova,
            buf_len: stride * count,
            elt_size: stride as u16,
        }
    }

    /// The first `len` bytes, for packets.
    pub fn span(self: &Arc<Self>, len: usize) -> Result<Arc<Span>, DpdkError> {
        let host = self.is_on_host().then_some(self.known.start);
        let device = self.memory.gpu().info().properties.device.clone();
        let device = device.map(|device| DeviceView { device, address: self.memory.address() });
        // SAFETY: both views are of the same bytes, which are there as long as `self`; their contents are whatever the GPU has there.
        let span = unsafe { Span::from_views(host, device, len, self.known.len, Box::new(self.clone())) };
        span.map_err(|error| DpdkError::TooMuchMemory { error })
    }
}
