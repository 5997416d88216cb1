//! Ports.

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
use super::written::WrittenCaptures;
use crate::live::link::interface_name;

/// Entries of a queue's ring, where its driver lets us choose.
pub(super) const RING: u16 = 1024;

/// Packets that are taken from a port at a time when it is closed.
const BURST: usize = 64;

/// What there is at a port.
#[derive(Debug, Clone)]
pub struct PortInfo {
    /// What it is called.
    pub name: String,
    /// Its number in DPDK.
    pub number: u16,
    /// Its driver (`net_pcap`).
    pub driver: String,
    /// Queues that packets come in by.
    pub receive_queues: u16,
    /// Queues that packets go out by.
    pub send_queues: u16,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// The interface of the kernel's that it is, where it is one that DPDK has made a device of.
    pub interface: Option<String>,
    /// The NUMA node it is at; none where nobody knows.
    pub node: Option<u32>,
    /// Who splits its packets, if they are split.
    pub splitting: Option<HeaderSplit>,
}

/// Who has the first bytes of packets and the others come into memory of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderSplit {
    /// The port does it (`RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT`).
    Hardware,
    /// Its driver cannot: what comes behind the first bytes is copied by who receives.
    Software,
}

/// Memory that a port was shown. Dropped, it is no longer.
#[derive(Debug)]
struct Mapped {
    device: *mut sys::rte_device,
    buffers: Arc<Buffers>,
    iova: u64,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let (start, len) = (self.buffers.start().as_ptr(), self.buffers.len());
        // SAFETY: it was shown so, and the port is stopped.
        unsafe { sys::rte_dev_dma_unmap(self.device, start.cast(), self.iova, len) };
    }
}

/// A port that is ours. Dropped, it is stopped and closed, and its packets are back in their pools.
#[derive(Debug)]
pub(super) struct Port {
    eal: &'static Eal,
    pub name: String,
    pub number: u16,
    /// Queues that packets go out by, once it is started.
    pub sends_by: u16,
    /// Whether anybody looks at packets' bytes, or writes them: not net_null, if nobody has it copy.
    pub touches_packets: bool,
    /// Queues that packets come in by, then.
    receives_by: u16,
    /// Captures that it writes.
    files: Vec<PathBuf>,
    /// The interface of the kernel's that it is. A network card may have one beside, which packets do not go by.
    interface: Option<String>,
    info: sys::rte_eth_dev_info,
    is_started: bool,
    splitting: Option<HeaderSplit>,
    mapped: Option<Mapped>,
    /// Whose packets its queues have.
    memory: Option<Arc<Memory>>,
}

// SAFETY: the pointers in a port's description are to what its driver has, which stays.
unsafe impl Send for Port {}
// SAFETY: as above.
unsafe impl Sync for Port {}

impl Port {
    /// Finds a port, or has DPDK make it: also one that was there before, and was closed.
    pub fn open(eal: &'static Eal, spec: &PortSpec) -> Result<Port, DpdkError> {
        // Of what was said before, nothing is about this port.
        eal.said();
        let text = match spec {
            PortSpec::Card(text) | PortSpec::Made(text) => text.clone(),
            PortSpec::Number(number) => number.to_string(),
        };
        let probe = |error: &io::Error, hint: Option<String>| {
            let said = eal.said();
            let (why, advice) = advice::probe(spec, error, &said);
            let hint = hint.or(advice::locked_memory(error, &said)).or(advice);
            DpdkError::Probe { port: text.clone(), why, hint, said }
        };
        let none = io::Error::from_raw_os_error(libc::ENODEV);
        let number = match spec {
            PortSpec::Number(number) => {
                revive(*number);
                // SAFETY: DPDK has begun.
                let (is_valid, count) =
                    unsafe { (sys::rte_eth_dev_is_valid_port(*number) != 0, sys::rte_eth_dev_count_avail()) };
                if !is_valid {
                    let hint = format!(
                        "it has found {count}: network cards that are bound to a driver of its (dpdk-devbind.py --status), and what \
                         --eal '--vdev …' names"
                    );
                    return Err(probe(&none, Some(hint)));
                }
                *number
            }
            PortSpec::Card(text) | PortSpec::Made(text) => {
                let arguments = CString::new(text.as_str()).expect("looked at when it was read");
                let name = CString::new(spec.name()).expect("a part of it");
                match (number_of(&name), spec) {
                    // One that --eal has named.
                    (Some(number), PortSpec::Card(_)) => number,
                    (Some(number), _) => {
                        let error = io::Error::from_raw_os_error(libc::EEXIST);
                        return Err(probe(&error, Some(format!("port {number} has this name; give it that number"))));
                    }
                    (None, _) => {
                        let _lock = devices();
                        // SAFETY: the text ends with a zero byte.
                        let result = unsafe { sys::rte_dev_probe(arguments.as_ptr()) };
                        if result < 0 {
                            return Err(probe(&negative(result), None));
                        }
                        number_of(&name).ok_or_else(|| probe(&none, None))?
                    }
                }
            }
        };
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: the description is written, and no further.
        let result = unsafe { sys::rte_eth_dev_info_get(number, &raw mut info) };
        let name = match spec {
            PortSpec::Number(_) => name_of(number).unwrap_or_else(|| spec.to_string()),
            _ => spec.to_string(),
        };
        let mut port = Port {
            eal,
            name,
            number,
            sends_by: 1,
            receives_by: 0,
            touches_packets: spec.driver() != Some("net_null") || text.contains("copy="),
            files: captures::files(spec, "tx_pcap"),
            interface: None,
            info,
            is_started: false,
            splitting: None,
            mapped: None,
            memory: None,
        };
        port.check(result, "its description")?;
        port.interface = if port.is_card() { None } else { interface_name(port.info.if_index) };
        Ok(port)
    }

    /// Refuses more queues than the port has.
    pub fn check_queues(&self, receive: u16, send: u16) -> Result<(), DpdkError> {
        let queues =
            |kind, most, asked| DpdkError::Queues { port: self.name.clone(), driver: self.driver(), kind, most, asked };
        if receive > self.info.max_rx_queues {
            return Err(queues("receive", self.info.max_rx_queues, receive));
        }
        if send > self.info.max_tx_queues {
            return Err(queues("transmit", self.info.max_tx_queues, send));
        }
        Ok(())
    }

    /// Has packets come in by and go out of so many queues, which the port has, into a memory's buffers.
    pub fn start(&mut self, receive: u16, send: u16, memory: &Arc<Memory>) -> Result<(), DpdkError> {
        let mut conf = sys::rte_eth_conf::default();
        if receive > 1 {
            conf.rxmode.mq_mode = sys::rte_eth_rx_mq_mode::RTE_ETH_MQ_RX_RSS;
            // SAFETY: a constant.
            conf.rx_adv_conf.rss_conf.rss_hf = unsafe { sys::pc_rss_flows } & self.info.flow_type_rss_offloads;
        }
        // Longer packets than a buffer has room for come in several, where the driver can do that, and are put together.
        // SAFETY: a constant.
        conf.rxmode.offloads = unsafe { sys::pc_scatter } & self.info.rx_offload_capa;
        let rest = memory.rest();
        if let Some((_, bytes)) = rest {
            self.splitting = Some(self.split(&mut conf, bytes, memory)?);
        }
        // SAFETY: the configuration is read.
        let result = unsafe { sys::rte_eth_dev_configure(self.number, receive, send, &raw const conf) };
        self.check(result, "setting it up")?;
        let (mut rx_ring, mut tx_ring) = (RING, RING);
        // SAFETY: both numbers are written.
        let result = unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.number, &raw mut rx_ring, &raw mut tx_ring) };
        self.check(result, "the size of its rings")?;
        // SAFETY: the port is configured.
        let node = unsafe { sys::rte_eth_dev_socket_id(self.number) } as u32;
        for queue in 0..receive {
            let result = match (rest, self.splitting) {
                (Some((rest, head)), Some(HeaderSplit::Hardware)) => {
                    let split = sys::pc_split { rest, head };
                    // SAFETY: both pools are there as long as the port is.
                    unsafe { sys::pc_split_queue(self.number, queue, rx_ring, node, memory.pool(), split) }
                }
                // SAFETY: the pool is there as long as the port is.
                _ => unsafe {
                    sys::rte_eth_rx_queue_setup(self.number, queue, rx_ring, node, std::ptr::null(), memory.pool())
                },
            };
            self.check(result, &format!("receive queue {queue}"))?;
        }
        for queue in 0..send {
            // SAFETY: there are no options.
            let result = unsafe { sys::rte_eth_tx_queue_setup(self.number, queue, tx_ring, node, std::ptr::null()) };
            self.check(result, &format!("transmit queue {queue}"))?;
        }
        (self.receives_by, self.sends_by) = (receive, send);
        if let Some(buffers) = memory.buffers() {
            self.map(buffers)?;
        }
        self.memory = Some(memory.clone());
        // SAFETY: it is set up.
        let result = unsafe { sys::rte_eth_dev_start(self.number) };
        self.check(result, "starting it")?;
        self.is_started = true;
        // What comes is the filter's to judge, whomever it is for. Many drivers have nothing to switch on.
        // SAFETY: it is started.
        let result = unsafe { sys::rte_eth_promiscuous_enable(self.number) };
        if result == -libc::ENOTSUP { Ok(()) } else { self.check(result, "receiving what is for others") }
    }

    /// Has packets be split, by the port if it can.
    fn split(&self, conf: &mut sys::rte_eth_conf, bytes: u16, memory: &Memory) -> Result<HeaderSplit, DpdkError> {
        let refused = |why: String| Err(DpdkError::Split { bytes, why });
        // SAFETY: constants.
        let (pieces, split) = unsafe { (sys::pc_multi_segs, sys::pc_buffer_split) };
        conf.txmode.offloads |= pieces & self.info.tx_offload_capa;
        let driver = self.driver();
        // What is no card sends pieces whether it says so or not.
        if self.is_card() && self.info.tx_offload_capa & pieces == 0 {
            return refused(format!("{} ({driver}) sends no packets in several pieces", self.name));
        }
        // SAFETY: the description is read.
        if unsafe { sys::pc_splits(&raw const self.info) } != 0 {
            conf.rxmode.offloads |= split;
            return Ok(HeaderSplit::Hardware);
        }
        if memory.buffers().is_some_and(|buffers| !buffers.is_on_host()) {
            return refused(format!(
                "{} ({driver}) does not split packets, and the processor, which would have to, does not reach the GPU's memory",
                self.name
            ));
        }
        Ok(HeaderSplit::Software)
    }

    /// Shows the port memory that is not DPDK's, where its bus has that.
    fn map(&mut self, buffers: &Arc<Buffers>) -> Result<(), DpdkError> {
        let (start, len, iova) = (buffers.start().as_ptr(), buffers.len(), buffers.iova());
        if self.info.device.is_null() {
            return Ok(());
        }
        // SAFETY: the port's device is there as long as the port, and the memory is known to DPDK.
        if unsafe { sys::rte_dev_dma_map(self.info.device, start.cast(), iova, len) } == 0 {
            self.mapped = Some(Mapped { device: self.info.device, buffers: buffers.clone(), iova });
            return Ok(());
        }
        let error = last();
        // What is no card has no use for it. Of a card it means that its driver does not take memory of others, and that it has no IOMMU
        // which could: it would write to wherever the GPU's address leads (`pci_dma_map`).
        if error.raw_os_error() == Some(libc::ENOTSUP) && !self.is_card() {
            return Ok(());
        }
        let what = "showing it the GPU's memory (is nvidia-peermem loaded?)".to_owned();
        Err(self.refused(what, error))
    }

    /// Whether it is a network card, which writes packets into memory by itself; and no device that DPDK makes.
    pub fn is_card(&self) -> bool {
        if self.info.device.is_null() {
            return false;
        }
        // SAFETY: the port's device is there as long as the port, on a bus, whose name ends with a zero byte.
        let bus = unsafe { CStr::from_ptr(sys::rte_bus_name(sys::rte_dev_bus(self.info.device))) };
        bus != c"vdev"
    }

    /// No more packets come, and none are left that were sent into a ring and never came out of it.
    pub fn stop(&mut self) {
        if std::mem::take(&mut self.is_started) {
            // That driver does not free what is in its rings (`eth_dev_close`).
            if self.driver() == "net_ring" {
                self.empty();
            }
            // SAFETY: it is started. What it says is of no use: there is nothing else to be done.
            unsafe { sys::rte_eth_dev_stop(self.number) };
        }
    }

    /// Frees what comes in: no more than there are packets.
    fn empty(&self) {
        let most = self.memory.as_ref().map_or(0, |memory| memory.count().0);
        for queue in 0..self.receives_by {
            let (mut mbufs, mut all) = (Mbufs::default(), 0);
            while all < most {
                // SAFETY: the port is started, and its lanes are gone or have died: nobody else receives by its queues. There is
                // room for so many packets, which are ours.
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

    /// Packets that were dropped for want of room, by the driver's count.
    pub fn dropped(number: u16) -> u64 {
        counts(number).map_or(0, |counts| counts.imissed + counts.rx_nombuf)
    }

    /// The captures that it has written, if that is what it does.
    pub fn written(&self) -> Option<WrittenCaptures> {
        let counts = counts(self.number).filter(|_| !self.files.is_empty())?;
        // Of queues that nobody uses the driver does not close the captures.
        let files = self.files.iter().take(self.sends_by.into()).cloned().collect();
        Some(WrittenCaptures::new(files, counts.opackets, counts.obytes))
    }

    pub fn driver(&self) -> String {
        // SAFETY: the driver's name ends with a zero byte, and stays.
        unsafe { CStr::from_ptr(self.info.driver_name) }.to_string_lossy().into_owned()
    }

    /// Queues that packets should go out by: one for each lane, if there may be as many, beside so many to receive by.
    pub fn send_queues(&self, receive: u16, lanes: usize) -> u16 {
        match self.driver().as_str() {
            // These have queues in pairs (`tap_dev_configure`, `eth_dev_configure` of af_xdp), or give what goes out by a queue back by
            // the same one.
            "net_tap" | "net_af_xdp" | "net_ring" => receive,
            _ => lanes.min(self.info.max_tx_queues.into()).max(1) as u16,
        }
    }

    pub fn mac(&self) -> [u8; 6] {
        let mut mac = sys::rte_ether_addr::default();
        // SAFETY: the address is written, and no further.
        unsafe { sys::rte_eth_macaddr_get(self.number, &raw mut mac) };
        mac.addr_bytes
    }

    pub fn info(&self, receive_queues: u16, send_queues: u16) -> PortInfo {
        // SAFETY: the port is there, and the node is a number.
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
        Err(self.refused(what.to_owned(), negative(result)))
    }

    fn refused(&self, what: String, error: io::Error) -> DpdkError {
        let said = self.eal.said();
        let hint = advice::locked_memory(&error, &said);
        DpdkError::Port { port: self.name.clone(), what, error, hint, said }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.stop();
        self.mapped = None;
        let _lock = devices();
        let device = self.info.device;
        // SAFETY: it is stopped.
        unsafe { sys::rte_eth_dev_close(self.number) };
        if device.is_null() || has_ports(device) {
            return;
        }
        if let Some(text) = text_of(device) {
            closed().insert(self.number, text);
        }
        // The device goes with its last port. Otherwise DPDK has one of this name without a port, and makes no other.
        // SAFETY: it is DPDK's, which has it until here, and nobody else looks at it any more.
        unsafe { sys::rte_dev_remove(device) };
    }
}

/// What DPDK was told of devices that are gone, by the numbers of their ports.
fn closed() -> MutexGuard<'static, BTreeMap<u16, CString>> {
    static CLOSED: Mutex<BTreeMap<u16, CString>> = Mutex::new(BTreeMap::new());
    // A list is whole whoever died meanwhile.
    CLOSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has DPDK make a device anew that it had by itself, if this is the number of its port.
fn revive(number: u16) {
    // SAFETY: DPDK has begun.
    if unsafe { sys::rte_eth_dev_is_valid_port(number) } != 0 {
        return;
    }
    let _lock = devices();
    if let Some(text) = closed().get(&number) {
        // SAFETY: the text ends with a zero byte. Where it fails there is no port of this number, which is seen.
        unsafe { sys::rte_dev_probe(text.as_ptr()) };
    }
}

/// Whether a device has ports.
fn has_ports(device: *const sys::rte_device) -> bool {
    let mut port = 0;
    loop {
        // SAFETY: DPDK has begun. 0 are ports that nobody has claimed for himself (`RTE_ETH_DEV_NO_OWNER`).
        let Ok(number) = u16::try_from(unsafe { sys::rte_eth_find_next_owned_by(port, 0) }) else { return false };
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: the description is written, and no further; of a number that is none, nothing.
        if unsafe { sys::rte_eth_dev_info_get(number, &raw mut info) } != 0 {
            return false;
        }
        if std::ptr::eq(info.device, device) {
            return true;
        }
        port = number + 1;
    }
}

/// What DPDK was told of a device: its name, and what its driver was told.
fn text_of(device: *const sys::rte_device) -> Option<CString> {
    // SAFETY: the device is there, and so is what it was made of, if anything: a name with a zero byte at its end, and an address
    // of such a text, or none.
    unsafe {
        let given = sys::rte_dev_devargs(device).as_ref()?;
        let name = CStr::from_ptr(given.name.as_ptr()).to_bytes();
        let arguments = given.__bindgen_anon_1.args;
        let arguments = if arguments.is_null() { c"" } else { CStr::from_ptr(arguments) }.to_bytes();
        let comma: &[u8] = if arguments.is_empty() { b"" } else { b"," };
        CString::new([name, comma, arguments].concat()).ok()
    }
}

/// DPDK's list of devices is made for one thread.
fn devices() -> MutexGuard<'static, ()> {
    static DEVICES: Mutex<()> = Mutex::new(());
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn counts(number: u16) -> Option<sys::rte_eth_stats> {
    let mut stats = sys::rte_eth_stats::default();
    // SAFETY: the counts are written, and no further.
    let result = unsafe { sys::rte_eth_stats_get(number, &raw mut stats) };
    (result == 0).then_some(stats)
}

fn number_of(name: &CStr) -> Option<u16> {
    let mut number = 0;
    // SAFETY: the name ends with a zero byte, and the number is written.
    let result = unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut number) };
    (result == 0).then_some(number)
}

fn name_of(number: u16) -> Option<String> {
    let mut name = [0; sys::RTE_ETH_NAME_MAX_LEN as usize];
    // SAFETY: names have no more bytes, with a zero byte at the end.
    let result = unsafe { sys::rte_eth_dev_get_name_by_port(number, name.as_mut_ptr()) };
    // SAFETY: as above.
    (result == 0).then(|| unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}
