//! Opening the ports, memory and lanes of a run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use portcullis_core::packet::ResizeRoom;

use super::captures;
use super::eal::{Eal, EalOptions};
use super::error::DpdkError;
use super::executor::{DpdkExecutor, LaneOutputs};
use super::gpudev::{CommList, Gpu, GpuInfo, GpuSpec, Mempool, PacketWriters};
use super::interface_watch::InterfaceWatch;
use super::memory::{BufferLocation, Memory};
use super::options::Options;
use super::pass_target::PassTarget;
use super::port::{Port, PortInfo, RING_SIZE};
use super::receiver::{BatchFormat, DpdkReceiver, LaneCommList, Queue};
use super::spec::PortSpec;
use super::stack_forwarder::StackForwarder;
use super::tx_queue::{SharedTxQueue, TxQueue};
use super::written_captures::WrittenCaptures;
use crate::live::Lane;

/// A run's open ports.
pub struct Dpdk {
    /// The lanes, to be driven by the caller from now on.
    pub lanes: Vec<Lane>,
    /// Properties of each port: receiving ports first, then those that only transmit.
    pub info: Vec<PortInfo>,
    /// The GPU that packets are shared with, if any.
    pub gpu: Option<GpuInfo>,
    ports: Vec<Port>,
    memory: Arc<Memory>,
    ending: Arc<AtomicBool>,
}

/// Numbers of mbufs by location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MbufCounts {
    /// Total number of mbufs.
    pub total: usize,
    /// Mbufs in the mempools.
    pub free: usize,
    /// Mbufs that drivers do not return when closed.
    pub kept_by_driver: usize,
}

impl Dpdk {
    /// Makes lanes receive only what may have arrived until now: as many packets as their rings
    /// hold. Ports are not stopped, because a stopped port returns nothing more.
    pub fn stop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// The captures that ports have written, to be [checked](WrittenCaptures::check) after closing.
    pub fn written(&self) -> Vec<WrittenCaptures> {
        self.ports.iter().filter_map(Port::written).collect()
    }

    /// Closes all ports and counts the mbufs: all are free unless one was leaked.
    pub fn close(self) -> MbufCounts {
        let Dpdk { lanes, ports, memory, .. } = self;
        drop(lanes);
        let keeps = ports.iter().any(|port| port.driver() == "net_af_xdp");
        drop(ports);
        let (total, free) = memory.mbuf_counts();
        // net_af_xdp does not free what is in its sockets' fill rings (`eth_dev_close`).
        MbufCounts { total, free, kept_by_driver: if keeps { total.saturating_sub(free) } else { 0 } }
    }
}

/// Opens the ports. Once this returns, packets are received.
///
/// # Errors
/// [`DpdkError`] names the next step. Everything opened so far is closed again, except the EAL,
/// which stays initialised.
pub fn open(options: &Options) -> Result<Dpdk, DpdkError> {
    captures::check(options)?;
    let pass_to = match &options.pass_to {
        Some(PassTarget::Port(port)) => Some(port),
        _ => None,
    };
    let all = || options.ports.iter().chain(options.redirect.iter().map(|(_, port)| port)).chain(pass_to);
    let queues = options.queues.max(1);
    let count = options.ports.len() * usize::from(queues);
    let lanes = if options.one_lane { 1 } else { count };
    let needed = |each: u32, ports: usize| (count * each as usize + ports * lanes * usize::from(RING_SIZE)).max(1024);
    let packets = |ports| needed(options.packets, ports);
    let eal = Eal::start(&EalOptions {
        arguments: options.eal.clone(),
        memory: Memory::bytes(needed(options.packets.max(options.later), all().count() + 1)),
        card: all().find(|port| matches!(port, PortSpec::Card(_))).map(ToString::to_string),
        finds_cards: all().any(|port| matches!(port, PortSpec::Number(_)))
            || matches!(options.mempool.gpu(), Some(GpuSpec::Detected { .. })),
    })?;
    let place = match &options.mempool {
        Mempool::Host => BufferLocation::Host,
        Mempool::Pinned(gpu) => BufferLocation::Pinned(Gpu::open(eal, gpu)?),
        Mempool::Gpu(gpu) => BufferLocation::Gpu(Gpu::open(eal, gpu)?),
    };

    // Each lane transmits on its own queue if the port has enough.
    let mut run = Run { eal, ports: Vec::new(), by_name: BTreeMap::new(), out: BTreeMap::new() };
    for port in &options.ports {
        run.port(port)?;
    }
    let receiving = run.ports.len();
    let redirect: Vec<(u32, usize)> = options
        .redirect
        .iter()
        .map(|(target, port)| Ok((*target, run.port(port)?)))
        .collect::<Result<_, DpdkError>>()?;
    let pass_to = match &options.pass_to {
        None => None,
        Some(pass_to) => {
            let mac = run.ports.first().map_or([0; 6], Port::mac);
            Some(run.port(&pass_to.port(mac)?).map_err(|error| pass_to.explain_refusal(error))?)
        }
    };

    // Check queues before allocating memory, which many queues may exhaust.
    let asked = |(index, port): (usize, &Port)| {
        // Some drivers do not start without a receive queue.
        let receive = if index < receiving { queues } else { 1 };
        let send = port.send_queues(receive, lanes);
        port.check_queues(receive, send).map(|()| (receive, send))
    };
    let asked: Vec<(u16, u16)> = run.ports.iter().enumerate().map(asked).collect::<Result<_, DpdkError>>()?;
    let writers = writers(&run.ports, &place)?;
    if let Some(bytes) = options.split {
        check_ports(bytes, options.room, &run.ports)?;
    }
    let memory = Memory::new(eal, packets(run.ports.len()), &place, &writers, options.split)?;
    let mut info = Vec::new();
    for (port, (receive, send)) in run.ports.iter_mut().zip(asked) {
        port.start(receive, send, &memory)?;
        info.push(port.info(receive, send));
    }

    // If other output interfaces are removed, their packets are lost, and the run continues.
    let needed =
        (0..receiving).chain(pass_to.filter(|port| *port >= receiving)).filter_map(|port| info[port].interface.clone());
    let mut interfaces = Some(InterfaceWatch::watch(needed));
    let format = BatchFormat { room: options.room, metadata: options.metadata, complete: false };
    let mut by_lane: Vec<Vec<(usize, u16)>> = vec![Vec::new(); lanes];
    let all = (0..receiving).flat_map(|port| (0..queues).map(move |queue| (port, queue)));
    for (number, it) in all.enumerate() {
        by_lane[number % lanes].push(it);
    }
    let (mut made, ending) = (Vec::new(), Arc::<AtomicBool>::default());
    for (lane, queues) in by_lane.into_iter().enumerate() {
        let leaves: Vec<bool> = queues.iter().map(|(port, _)| leaves_checksums(&info[*port].driver)).collect();
        let leaves = leaves.contains(&true);
        let names: Vec<String> = queues.iter().map(|(port, queue)| format!("{}:{queue}", info[*port].name)).collect();
        // Only the first lane forwards packets from the stack.
        let stack_forwarder = pass_to.filter(|port| lane == 0 && *port >= receiving).map(|port| {
            let completes = leaves_checksums(&info[port].driver);
            StackForwarder::new(
                memory.clone(),
                run.ports[port].number,
                run.tx_queue(0, lane),
                completes,
                ending.clone(),
            )
        });
        let outputs = LaneOutputs {
            stack_forwarder,
            back: queues.iter().map(|(port, _)| run.tx_queue(*port, lane)).collect(),
            redirect: redirect.iter().map(|(target, port)| (*target, run.tx_queue(*port, lane))).collect(),
            stack: pass_to.map(|port| run.tx_queue(port, lane)),
        };
        // The lane with a port's first queue counts the port's drops.
        let counts = queues.iter().filter(|(_, queue)| *queue == 0).map(|(port, _)| run.ports[*port].number).collect();
        let max = queues.len() * options.packets as usize / 2;
        let queues =
            queues.into_iter().map(|(port, queue)| Queue { port: run.ports[port].number, queue, number: port as u32 });
        let format = BatchFormat { complete: options.rewrites && leaves, ..format };
        let dropped = Arc::<AtomicU64>::default();
        let list = place.gpu().map(|gpu| CommList::new(gpu, options.items, memory.gpu_offset, options.split.is_some()));
        let comm_list = list.transpose()?.map(|list| LaneCommList { list, dropped: dropped.clone() });
        let receiver =
            DpdkReceiver::new(memory.clone(), format, queues.collect(), counts, max, ending.clone(), comm_list)
                .watching(interfaces.take());
        let executor = DpdkExecutor::new(memory.clone(), options.room, !options.rewrites && leaves, outputs, dropped);
        made.push(Lane {
            name: names.join(" "),
            memory: Some(memory.span.clone()),
            receiver: Box::new(receiver),
            executor: Box::new(executor),
        });
    }
    let gpu = place.gpu().map(|gpu| gpu.info().clone());
    Ok(Dpdk { lanes: made, info, gpu, ports: run.ports, memory, ending })
}

/// How the ports' packets are written, if their memory is a GPU's.
fn writers(ports: &[Port], place: &BufferLocation) -> Result<PacketWriters, DpdkError> {
    let made = ports.iter().find(|port| !port.is_card() && port.touches_packets);
    let BufferLocation::Gpu(gpu) = place else { return Ok(PacketWriters::CardDma) };
    let (card, gpu) = (ports.iter().find(|port| port.is_card()), gpu.title());
    if let Some(port) = ports.iter().find(|port| port.driver() == "net_af_xdp") {
        // Its UMEM is the mempool's own memory, where the mbufs are too.
        let (port, driver, missing) =
            (port.name.clone(), port.driver(), "its rings are in a mempool's own memory".to_owned());
        return Err(DpdkError::OutOfReach { port, driver, gpu, missing });
    }
    match (card, made) {
        (Some(card), Some(made)) => {
            let (card, port) = (card.name.clone(), made.name.clone());
            Err(DpdkError::Mixed { card, port, driver: made.driver(), gpu })
        }
        (_, Some(made)) => Ok(PacketWriters::Cpu { port: made.name.clone(), driver: made.driver() }),
        (Some(_), None) => Ok(PacketWriters::CardDma),
        (None, None) => Ok(PacketWriters::NoWriter),
    }
}

/// Refuses header split if packets have to be contiguous.
fn check_ports(bytes: u16, room: ResizeRoom, ports: &[Port]) -> Result<(), DpdkError> {
    let refused = |why: String| Err(DpdkError::Split { bytes, why });
    if room == ResizeRoom::Both {
        return refused("the filter changes packet lengths, which requires contiguous packets".into());
    }
    if let Some(port) = ports.iter().find(|port| leaves_checksums(&port.driver())) {
        let (name, driver) = (&port.name, port.driver());
        return refused(format!(
            "{name} ({driver}) leaves checksums to be completed, which requires contiguous packets"
        ));
    }
    Ok(())
}

/// State of a run while it is being opened.
struct Run {
    eal: &'static Eal,
    ports: Vec<Port>,
    /// Indexes of ports by name.
    by_name: BTreeMap<String, usize>,
    /// TX queues by port and queue.
    out: BTreeMap<(usize, u16), SharedTxQueue>,
}

impl Run {
    /// Returns a port's index, opening it at the first mention.
    fn port(&mut self, spec: &PortSpec) -> Result<usize, DpdkError> {
        if let Some(index) = self.by_name.get(&spec.to_string()) {
            return Ok(*index);
        }
        let port = Port::open(self.eal, spec)?;
        if let Some(index) = self.ports.iter().position(|known| known.number == port.number) {
            // Already opened under another name: forget this handle, the first one closes the port.
            std::mem::forget(port);
            return Ok(index);
        }
        self.by_name.insert(spec.to_string(), self.ports.len());
        self.ports.push(port);
        Ok(self.ports.len() - 1)
    }

    /// Returns the TX queue of a port for a lane.
    fn tx_queue(&mut self, port: usize, lane: usize) -> SharedTxQueue {
        let queue = (lane % usize::from(self.ports[port].tx_queue_count)) as u16;
        let number = self.ports[port].number;
        self.out.entry((port, queue)).or_insert_with(|| Arc::new(Mutex::new(TxQueue { port: number, queue }))).clone()
    }
}

/// Whether a driver's packets may have partial checksums, left by senders on this machine.
fn leaves_checksums(driver: &str) -> bool {
    ["net_af_packet", "net_af_xdp", "net_tap", "net_virtio", "net_virtio_user", "net_vhost"].contains(&driver)
}
