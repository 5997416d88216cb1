//! DPDK ports.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_dpdk_sys as sys;

use super::advice;
use super::captures;
use super::eal::Eal;
use super::error::{DpdkError, last, negative};
use super::gpudev::Buffers;
use super::memory::{Mbufs, Memory};
use super::spec::PortSpec;
use super::written_captures::WrittenCaptures;
use crate::live::link::interface_name;

/// Number of descriptors per ring, if the driver accepts it.
pub(super) const RING_SIZE: u16 = 1024;

/// Number of packets drained at a time when a port is closed.
const BURST: usize = 64;

/// Properties of a port.
#[derive(Debug, Clone)]
pub struct PortInfo {
    /// Device name.
    pub name: String,
    /// Port number in DPDK.
    pub number: u16,
    /// Driver name, for example `net_pcap`.
    pub driver: String,
    /// Number of receive queues.
    pub receive_queues: u16,
    /// Number of transmit queues.
    pub send_queues: u16,
    /// MAC address.
    pub mac: [u8; 6],
    /// Kernel interface behind a virtual device, if any.
    pub interface: Option<String>,
    /// NUMA node; `None` if unknown.
    pub node: Option<u32>,
    /// Implementation of header split, if enabled.
    pub splitting: Option<HeaderSplit>,
}

/// Implementation of header split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderSplit {
    /// The port splits packets (`RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT`).
    Hardware,
    /// The receiver copies the tail, because the driver does not support header split.
    Software,
}

/// Memory mapped for a port's DMA, unmapped on drop.
#[derive(Debug)]
struct DmaMapping {
    device: *mut sys::rte_device,
    buffers: Arc<Buffers>,
    iova: u64,
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        let (start, len) = (self.buffers.start().as_ptr(), self.buffers.len());
        // SAFETY: the memory was mapped with these arguments, and the port is stopped.
        unsafe { sys::rte_dev_dma_unmap(self.device, start.cast(), self.iova, len) };
    }
}

/// An open port. On drop it is stopped and closed, and its mbufs are freed.
#[derive(Debug)]
pub(super) struct Port {
    eal: &'static Eal,
    pub name: String,
    pub number: u16,
    /// Number of transmit queues, once started.
    pub tx_queue_count: u16,
    /// Whether packet bytes are read or written at all: not by net_null without `copy=`.
    pub touches_packets: bool,
    /// Number of receive queues, once started.
    rx_queue_count: u16,
    /// Captures that it writes.
    files: Vec<PathBuf>,
    /// Kernel interface behind a virtual device. Network cards may have one too, which packets do
    /// not pass through.
    interface: Option<String>,
    info: sys::rte_eth_dev_info,
    is_started: bool,
    splitting: Option<HeaderSplit>,
    dma_mapping: Option<DmaMapping>,
    /// The memory that its queues receive into.
    memory: Option<Arc<Memory>>,
}

// SAFETY: the pointers in the device info refer to static data of the driver.
unsafe impl Send for Port {}
// SAFETY: as above.
unsafe impl Sync for Port {}

impl Port {
    /// Opens a port, or has DPDK create it, also again after it was closed.
    pub fn open(eal: &'static Eal, spec: &PortSpec) -> Result<Port, DpdkError> {
        // Discard messages about earlier operations.
        eal.log_lines();
        let text = match spec {
            PortSpec::Card(text) | PortSpec::VirtualDevice(text) => text.clone(),
            PortSpec::Number(number) => number.to_string(),
        };
        let probe = |error: &io::Error, hint: Option<String>| {
            let log_lines = eal.log_lines();
            let (why, advice) = advice::for_port(spec, error, &log_lines);
            let hint = hint.or(advice::locked_memory(error, &log_lines)).or(advice);
            DpdkError::Probe { port: text.clone(), why, hint, log_lines }
        };
        let none = io::Error::from_raw_os_error(libc::ENODEV);
        let number = match spec {
            PortSpec::Number(number) => {
                reprobe_removed(*number);
                // SAFETY: the EAL is initialised.
                let (is_valid, count) =
                    unsafe { (sys::rte_eth_dev_is_valid_port(*number) != 0, sys::rte_eth_dev_count_avail()) };
                if !is_valid {
                    let hint = format!(
                        "it has found {count}: network cards bound to one of its drivers (dpdk-devbind.py --status), and devices from \
                         --eal '--vdev …'"
                    );
                    return Err(probe(&none, Some(hint)));
                }
                *number
            }
            PortSpec::Card(text) | PortSpec::VirtualDevice(text) => {
                let arguments = CString::new(text.as_str()).expect("parsing has excluded zero bytes");
                let name = CString::new(spec.name()).expect("a part of the text");
                match (port_by_name(&name), spec) {
                    // Already probed because --eal names it.
                    (Some(number), PortSpec::Card(_)) => number,
                    (Some(number), _) => {
                        let error = io::Error::from_raw_os_error(libc::EEXIST);
                        return Err(probe(
                            &error,
                            Some(format!("port {number} has this name; specify it by that number")),
                        ));
                    }
                    (None, _) => {
                        let _lock = lock_devices();
                        // SAFETY: the text is zero-terminated.
                        let result = unsafe { sys::rte_dev_probe(arguments.as_ptr()) };
                        if result < 0 {
                            return Err(probe(&negative(result), None));
                        }
                        port_by_name(&name).ok_or_else(|| probe(&none, None))?
                    }
                }
            }
        };
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: the call only writes the structure.
        let result = unsafe { sys::rte_eth_dev_info_get(number, &raw mut info) };
        let name = match spec {
            PortSpec::Number(_) => port_name(number).unwrap_or_else(|| spec.to_string()),
            _ => spec.to_string(),
        };
        let mut port = Port {
            eal,
            name,
            number,
            tx_queue_count: 1,
            rx_queue_count: 0,
            touches_packets: spec.driver() != Some("net_null") || text.contains("copy="),
            files: captures::files(spec, "tx_pcap"),
            interface: None,
            info,
            is_started: false,
            splitting: None,
            dma_mapping: None,
            memory: None,
        };
        port.check(result, "reading its properties")?;
        port.interface = if port.is_card() { None } else { interface_name(port.info.if_index) };
        Ok(port)
    }

    /// Checks that the port has enough queues.
    pub fn check_queues(&self, receive: u16, send: u16) -> Result<(), DpdkError> {
        let queues =
            |kind, max, asked| DpdkError::Queues { port: self.name.clone(), driver: self.driver(), kind, max, asked };
        if receive > self.info.max_rx_queues {
            return Err(queues("receive", self.info.max_rx_queues, receive));
        }
        if send > self.info.max_tx_queues {
            return Err(queues("transmit", self.info.max_tx_queues, send));
        }
        Ok(())
    }

    /// Sets up the queues, whose numbers must have been checked, and starts the port.
    pub fn start(&mut self, receive: u16, send: u16, memory: &Arc<Memory>) -> Result<(), DpdkError> {
        let mut conf = sys::rte_eth_conf::default();
        if receive > 1 {
            conf.rxmode.mq_mode = sys::rte_eth_rx_mq_mode::RTE_ETH_MQ_RX_RSS;
            // SAFETY: a constant.
            conf.rx_adv_conf.rss_conf.rss_hf = unsafe { sys::pc_rss_flows } & self.info.flow_type_rss_offloads;
        }
        // Longer packets arrive in several buffers if the driver supports that, and are linearised.
        // SAFETY: a constant.
        conf.rxmode.offloads = unsafe { sys::pc_scatter } & self.info.rx_offload_capa;
        let rest = memory.tail_pool();
        if let Some((_, bytes)) = rest {
            self.splitting = Some(self.split(&mut conf, bytes, memory)?);
        }
        // SAFETY: the call only reads the configuration.
        let result = unsafe { sys::rte_eth_dev_configure(self.number, receive, send, &raw const conf) };
        self.check(result, "configuring it")?;
        let (mut rx_ring, mut tx_ring) = (RING_SIZE, RING_SIZE);
        // SAFETY: the call only writes both numbers.
        let result = unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.number, &raw mut rx_ring, &raw mut tx_ring) };
        self.check(result, "choosing the size of its rings")?;
        // SAFETY: the port is configured.
        let node = unsafe { sys::rte_eth_dev_socket_id(self.number) } as u32;
        for queue in 0..receive {
            let result = match (rest, self.splitting) {
                (Some((rest, head)), Some(HeaderSplit::Hardware)) => {
                    let split = sys::pc_split { rest, head };
                    // SAFETY: both pools outlive the port.
                    unsafe { sys::pc_split_queue(self.number, queue, rx_ring, node, memory.pool(), split) }
                }
                // SAFETY: the pool outlives the port.
                _ => unsafe {
                    sys::rte_eth_rx_queue_setup(self.number, queue, rx_ring, node, std::ptr::null(), memory.pool())
                },
            };
            self.check(result, &format!("setting up receive queue {queue}"))?;
        }
        for queue in 0..send {
            // SAFETY: a null configuration is allowed.
            let result = unsafe { sys::rte_eth_tx_queue_setup(self.number, queue, tx_ring, node, std::ptr::null()) };
            self.check(result, &format!("setting up transmit queue {queue}"))?;
        }
        (self.rx_queue_count, self.tx_queue_count) = (receive, send);
        if let Some(buffers) = memory.buffers() {
            self.map(buffers)?;
        }
        self.memory = Some(memory.clone());
        // SAFETY: the queues are set up.
        let result = unsafe { sys::rte_eth_dev_start(self.number) };
        self.check(result, "starting it")?;
        self.is_started = true;
        // The filter judges all packets, whatever their destination. Many drivers need no
        // promiscuous mode. SAFETY: the port is started.
        let result = unsafe { sys::rte_eth_promiscuous_enable(self.number) };
        if result == -libc::ENOTSUP { Ok(()) } else { self.check(result, "enabling promiscuous mode") }
    }

    /// Enables header split, by the port if it supports it.
    fn split(&self, conf: &mut sys::rte_eth_conf, bytes: u16, memory: &Memory) -> Result<HeaderSplit, DpdkError> {
        let refused = |why: String| Err(DpdkError::Split { bytes, why });
        // SAFETY: constants.
        let (pieces, split) = unsafe { (sys::pc_multi_segs, sys::pc_buffer_split) };
        conf.txmode.offloads |= pieces & self.info.tx_offload_capa;
        let driver = self.driver();
        // Virtual devices transmit several segments even if they do not announce it.
        if self.is_card() && self.info.tx_offload_capa & pieces == 0 {
            return refused(format!("{} ({driver}) cannot send packets in several segments", self.name));
        }
        // SAFETY: the call only reads the device info.
        if unsafe { sys::pc_splits(&raw const self.info) } != 0 {
            conf.rxmode.offloads |= split;
            return Ok(HeaderSplit::Hardware);
        }
        if memory.buffers().is_some_and(|buffers| !buffers.is_on_host()) {
            return refused(format!(
                "{} ({driver}) cannot split packets, and neither can the CPU, which has no access to the GPU's memory",
                self.name
            ));
        }
        Ok(HeaderSplit::Software)
    }

    /// Maps external memory for the port's DMA, if its bus supports that.
    fn map(&mut self, buffers: &Arc<Buffers>) -> Result<(), DpdkError> {
        let (start, len, iova) = (buffers.start().as_ptr(), buffers.len(), buffers.iova());
        if self.info.device.is_null() {
            return Ok(());
        }
        // SAFETY: the device outlives the port, and the memory is registered with DPDK.
        if unsafe { sys::rte_dev_dma_map(self.info.device, start.cast(), iova, len) } == 0 {
            self.dma_mapping = Some(DmaMapping { device: self.info.device, buffers: buffers.clone(), iova });
            return Ok(());
        }
        let error = last();
        // Virtual devices need no mapping. For a card this error means that its driver does not
        // support external memory and there is no IOMMU: it would write to arbitrary addresses
        // (`pci_dma_map`).
        if error.raw_os_error() == Some(libc::ENOTSUP) && !self.is_card() {
            return Ok(());
        }
        let what = "mapping the GPU's memory for DMA (is nvidia-peermem loaded?)".to_owned();
        Err(self.refusal_error(what, error))
    }

    /// Whether the port is a network card, which writes packets by DMA, and not a virtual device.
    pub fn is_card(&self) -> bool {
        if self.info.device.is_null() {
            return false;
        }
        // SAFETY: the device outlives the port, and the bus name is zero-terminated.
        let bus = unsafe { CStr::from_ptr(sys::rte_bus_name(sys::rte_dev_bus(self.info.device))) };
        bus != c"vdev"
    }

    /// Stops the port; no more packets arrive.
    pub fn stop(&mut self) {
        if std::mem::take(&mut self.is_started) {
            // net_ring does not free what is in its rings (`eth_dev_close`), so drain them first.
            if self.driver() == "net_ring" {
                self.empty();
            }
            // SAFETY: the port is started. A failure cannot be handled.
            unsafe { sys::rte_eth_dev_stop(self.number) };
        }
    }

    /// Drains the receive queues, bounded by the number of mbufs.
    fn empty(&self) {
        let max = self.memory.as_ref().map_or(0, |memory| memory.mbuf_counts().0);
        for queue in 0..self.rx_queue_count {
            let (mut mbufs, mut all) = (Mbufs::default(), 0);
            while all < max {
                // SAFETY: the port is started, and its lanes are gone, so nothing else receives
                // from its queues. The array has room for a burst, which becomes owned here.
                let came =
                    unsafe { mbufs.extend(BURST, |room| sys::pc_burst(self.number, queue, room, BURST as u16).into()) };
                if came == 0 {
                    break;
                }
                all += came;
                mbufs.free();
            }
        }
    }

    /// Packets dropped for lack of descriptors or mbufs, by the driver's counters.
    pub fn dropped(number: u16) -> u64 {
        port_stats(number).map_or(0, |port_stats| port_stats.imissed + port_stats.rx_nombuf)
    }

    /// The captures that it has written, if any.
    pub fn written(&self) -> Option<WrittenCaptures> {
        let port_stats = port_stats(self.number).filter(|_| !self.files.is_empty())?;
        // The driver does not close the captures of unused queues.
        let files = self.files.iter().take(self.tx_queue_count.into()).cloned().collect();
        Some(WrittenCaptures::new(files, port_stats.opackets, port_stats.obytes))
    }

    pub fn driver(&self) -> String {
        // SAFETY: the driver's name is a static zero-terminated string.
        unsafe { CStr::from_ptr(self.info.driver_name) }.to_string_lossy().into_owned()
    }

    /// Number of transmit queues for `receive` receive queues: one per lane, if the port has
    /// enough.
    pub fn send_queues(&self, receive: u16, lanes: usize) -> u16 {
        match self.driver().as_str() {
            // These require equal numbers (`tap_dev_configure`; `eth_dev_configure` of af_xdp), or
            // loop packets back to the queue of the same number (net_ring).
            "net_tap" | "net_af_xdp" | "net_ring" => receive,
            _ => lanes.min(self.info.max_tx_queues.into()).max(1) as u16,
        }
    }

    pub fn mac(&self) -> [u8; 6] {
        let mut mac = sys::rte_ether_addr::default();
        // SAFETY: the call only writes the address.
        unsafe { sys::rte_eth_macaddr_get(self.number, &raw mut mac) };
        mac.addr_bytes
    }

    pub fn info(&self, receive_queues: u16, send_queues: u16) -> PortInfo {
        // SAFETY: the call takes no pointers.
        let node = unsafe { sys::rte_eth_dev_socket_id(self.number) };
        PortInfo {
            name: self.name.clone(),
            number: self.number,
            driver: self.driver(),
            receive_queues,
            send_queues,
            mac: self.mac(),
            interface: self.interface.clone(),
            node: u32::try_from(node).ok(),
            splitting: self.splitting,
        }
    }

    fn check(&self, result: i32, what: &str) -> Result<(), DpdkError> {
        if result >= 0 {
            return Ok(());
        }
        Err(self.refusal_error(what.to_owned(), negative(result)))
    }

    fn refusal_error(&self, what: String, error: io::Error) -> DpdkError {
        let log_lines = self.eal.log_lines();
        let hint = advice::locked_memory(&error, &log_lines);
        DpdkError::Port { port: self.name.clone(), what, error, hint, log_lines }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.stop();
        self.dma_mapping = None;
        let _lock = lock_devices();
        let device = self.info.device;
        // SAFETY: the port is stopped.
        unsafe { sys::rte_eth_dev_close(self.number) };
        if device.is_null() || has_ports(device) {
            return;
        }
        if let Some(text) = device_arguments(device) {
            removed_devices().insert(self.number, text);
        }
        // Remove the device with its last port: otherwise DPDK would keep a device of this name
        // without a port, and refuse to create another. SAFETY: the device belongs to DPDK, and
        // nothing uses it any more.
        unsafe { sys::rte_dev_remove(device) };
    }
}

/// Arguments of removed devices, by port number.
fn removed_devices() -> MutexGuard<'static, BTreeMap<u16, CString>> {
    static CLOSED: Mutex<BTreeMap<u16, CString>> = Mutex::new(BTreeMap::new());
    // The map stays consistent even if a user panicked.
    CLOSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Recreates a removed device if its port had this number.
fn reprobe_removed(number: u16) {
    // SAFETY: the EAL is initialised.
    if unsafe { sys::rte_eth_dev_is_valid_port(number) } != 0 {
        return;
    }
    let _lock = lock_devices();
    if let Some(text) = removed_devices().get(&number) {
        // SAFETY: the text is zero-terminated. If probing fails, the caller finds no port with this
        // number.
        unsafe { sys::rte_dev_probe(text.as_ptr()) };
    }
}

/// Whether a device has ports.
fn has_ports(device: *const sys::rte_device) -> bool {
    let mut port = 0;
    loop {
        // SAFETY: the EAL is initialised. 0 is `RTE_ETH_DEV_NO_OWNER`.
        let Ok(number) = u16::try_from(unsafe { sys::rte_eth_find_next_owned_by(port, 0) }) else { return false };
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: the call only writes the structure, or fails.
        if unsafe { sys::rte_eth_dev_info_get(number, &raw mut info) } != 0 {
            return false;
        }
        if std::ptr::eq(info.device, device) {
            return true;
        }
        port = number + 1;
    }
}

/// Reconstructs the device arguments: name and driver arguments.
fn device_arguments(device: *const sys::rte_device) -> Option<CString> {
    // SAFETY: the device exists, and so do its devargs, if any: a zero-terminated name and a
    // pointer to zero-terminated arguments, or null.
    unsafe {
        let given = sys::rte_dev_devargs(device).as_ref()?;
        let name = CStr::from_ptr(given.name.as_ptr()).to_bytes();
        let arguments = given.__bindgen_anon_1.args;
        let arguments = if arguments.is_null() { c"" } else { CStr::from_ptr(arguments) }.to_bytes();
        let comma: &[u8] = if arguments.is_empty() { b"" } else { b"," };
        CString::new([name, comma, arguments].concat()).ok()
    }
}

/// Lock for DPDK's device list, which is not thread-safe.
fn lock_devices() -> MutexGuard<'static, ()> {
    static DEVICES: Mutex<()> = Mutex::new(());
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn port_stats(number: u16) -> Option<sys::rte_eth_stats> {
    let mut stats = sys::rte_eth_stats::default();
    // SAFETY: the call only writes the structure.
    let result = unsafe { sys::rte_eth_stats_get(number, &raw mut stats) };
    (result == 0).then_some(stats)
}

fn port_by_name(name: &CStr) -> Option<u16> {
    let mut number = 0;
    // SAFETY: the name is zero-terminated, and the call only writes the number.
    let result = unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut number) };
    (result == 0).then_some(number)
}

fn port_name(number: u16) -> Option<String> {
    let mut name = [0; sys::RTE_ETH_NAME_MAX_LEN as usize];
    // SAFETY: the buffer has room for the longest name.
    let result = unsafe { sys::rte_eth_dev_get_name_by_port(number, name.as_mut_ptr()) };
    // SAFETY: the call has written a zero-terminated name.
    (result == 0).then(|| unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}
