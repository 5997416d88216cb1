//! Ports, memory and lanes for a run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use portcullis_core::packet::ResizeRoom;

use super::captures;
use super::eal::{Eal, EalOptions};
use super::error::DpdkError;
use super::executor::{self, DpdkExecutor, SendQueue, Ways};
use super::gpudev::{CommList, Gpu, GpuInfo, GpuSpec, Mempool, Writers};
use super::interfaces::Interfaces;
use super::memory::{Memory, Place};
use super::pass_to::PassTarget;
use super::port::{Port, PortInfo, RING};
use super::receiver::{DpdkReceiver, Handing, Listing, Queue};
use super::spec::PortSpec;
use super::way_back::WayBack;
use super::written::WrittenCaptures;
use crate::live::Lane;

/// What a run is to have.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where packets come in. A port's number in metadata is its index here.
    pub ports: Vec<PortSpec>,
    /// Queues of each that packets come in by; each has a lane, if nothing else is said.
    pub queues: u16,
    /// Whether one lane has all queues: for filters whose state all packets share.
    pub one_lane: bool,
    /// Which port packets go out of that are redirected to a target: one of `ports`, or another one.
    pub redirect: Vec<(u32, PortSpec)>,
    /// Where packets go that pass; they are lost where this is `None`. What comes from there goes out of the first of `ports`, past the
    /// filter, but where it is one of `ports` itself.
    pub pass_to: Option<PassTarget>,
    /// What DPDK is given beside.
    pub eal: Vec<String>,
    /// Whether packets have room for filters that change lengths.
    pub room: ResizeRoom,
    /// Whether batches carry metadata.
    pub metadata: bool,
    /// Whether the filter writes to packets (as `af_xdp::Options::rewrites`).
    pub rewrites: bool,
    /// Packets for each queue, at least 64: a driver's rings have up to 2,048 of them, and the rest are in batches.
    pub packets: u32,
    /// Packets for each queue that DPDK is to have memory for at least when it begins, which it does once: for runs of this process that
    /// come later.
    pub later: u32,
    /// Where packets' buffers are.
    pub mempool: Mempool,
    /// Header split: so many bytes of a packet come into the host's memory, and the rest where `mempool` says.
    pub split: Option<u16>,
    /// Items of each lane's communication list, by which a GPU has batches: of more that are on their way at a time, packets are dropped.
    pub items: u32,
}

impl Options {
    /// Packets for each queue, if nobody says otherwise.
    pub const PACKETS: u32 = 8192;

    /// Items of a communication list, if nobody says otherwise: more than a session takes batches.
    pub const ITEMS: u32 = 64;

    /// These ports with one queue each, for filters that neither look at metadata nor change anything, with nowhere else to go.
    pub fn of(ports: Vec<PortSpec>) -> Options {
        Options {
            ports,
            queues: 1,
            one_lane: false,
            redirect: Vec::new(),
            pass_to: None,
            eal: Vec::new(),
            room: ResizeRoom::None,
            metadata: false,
            rewrites: false,
            packets: Options::PACKETS,
            later: 0,
            mempool: Mempool::Host,
            split: None,
            items: Options::ITEMS,
        }
    }
}

/// Ports that are open.
pub struct Dpdk {
    /// What packets come in by and go out by; each is to be driven from now on.
    pub lanes: Vec<Lane>,
    /// What there is of each port: those that packets come in by, and then those that they only go out of.
    pub info: Vec<PortInfo>,
    /// The GPU that knows of packets, if there is one.
    pub gpu: Option<GpuInfo>,
    ports: Vec<Port>,
    memory: Arc<Memory>,
    ending: Arc<AtomicBool>,
}

/// Where packets' memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MbufCounts {
    /// There are in all.
    pub total: usize,
    /// Nobody needs them.
    pub free: usize,
    /// Drivers have kept them, that do so.
    pub kept_by_driver: usize,
}

impl Dpdk {
    /// Has lanes receive what may have come until now, and no more: as many packets as their rings have room for. Ports are not
    /// stopped, for one that is stopped gives nothing more.
    pub fn stop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// The captures that ports have written, to be [checked](Written::check) when all is closed.
    pub fn written(&self) -> Vec<WrittenCaptures> {
        self.ports.iter().filter_map(Port::written).collect()
    }

    /// Closes all, and says where packets are then: all of them at home, if none was lost.
    pub fn close(self) -> MbufCounts {
        let Dpdk { lanes, ports, memory, .. } = self;
        drop(lanes);
        let keeps = ports.iter().any(|port| port.driver() == "net_af_xdp");
        drop(ports);
        let (total, free) = memory.count();
        // That driver does not give back what its sockets have to receive into (`eth_dev_close`).
        MbufCounts { total, free, kept_by_driver: if keeps { total.saturating_sub(free) } else { 0 } }
    }
}

/// Opens ports: from the moment when this comes back, packets come in.
///
/// # Errors
/// [`DpdkError`] tells what to do. Nothing is left behind, but for DPDK itself, which stays as it was begun.
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
    let needed = |each: u32, ports: usize| (count * each as usize + ports * lanes * usize::from(RING)).max(1024);
    let packets = |ports| needed(options.packets, ports);
    let eal = Eal::start(&EalOptions {
        arguments: options.eal.clone(),
        memory: Memory::bytes(needed(options.packets.max(options.later), all().count() + 1)),
        card: all().find(|port| matches!(port, PortSpec::Card(_))).map(ToString::to_string),
        finds_cards: all().any(|port| matches!(port, PortSpec::Number(_)))
            || matches!(options.mempool.gpu(), Some(GpuSpec::Found { .. })),
    })?;
    let place = match &options.mempool {
        Mempool::Host => Place::Host,
        Mempool::Pinned(gpu) => Place::Pinned(Gpu::open(eal, gpu)?),
        Mempool::Gpu(gpu) => Place::Gpu(Gpu::open(eal, gpu)?),
    };

    // Each lane sends by a queue of its own, where there are as many.
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
            Some(run.port(&pass_to.port(mac)?).map_err(|error| pass_to.refused(error))?)
        }
    };

    // Before memory is taken, of which so many queues may need more than there is.
    let asked = |(index, port): (usize, &Port)| {
        // Some drivers do not start without a queue to receive by.
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

    // What goes out of others is lost where they are gone, and the rest goes on.
    let needed =
        (0..receiving).chain(pass_to.filter(|port| *port >= receiving)).filter_map(|port| info[port].interface.clone());
    let mut interfaces = Some(Interfaces::watch(needed));
    let handing = Handing { room: options.room, metadata: options.metadata, complete: false };
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
        // One of the lanes has it.
        let from_stack = pass_to.filter(|port| lane == 0 && *port >= receiving).map(|port| {
            let completes = leaves_checksums(&info[port].driver);
            WayBack::new(memory.clone(), run.ports[port].number, run.way(0, lane), completes, ending.clone())
        });
        let ways = Ways {
            from_stack,
            back: queues.iter().map(|(port, _)| run.way(*port, lane)).collect(),
            redirect: redirect.iter().map(|(target, port)| (*target, run.way(*port, lane))).collect(),
            stack: pass_to.map(|port| run.way(port, lane)),
        };
        // The lane with a port's first queue counts what the port has dropped.
        let counts = queues.iter().filter(|(_, queue)| *queue == 0).map(|(port, _)| run.ports[*port].number).collect();
        let most = queues.len() * options.packets as usize / 2;
        let queues =
            queues.into_iter().map(|(port, queue)| Queue { port: run.ports[port].number, queue, number: port as u32 });
        let handing = Handing { complete: options.rewrites && leaves, ..handing };
        let dropped = Arc::<AtomicU64>::default();
        let list = place.gpu().map(|gpu| CommList::new(gpu, options.items, memory.shift, options.split.is_some()));
        let listing = list.transpose()?.map(|list| Listing { list, dropped: dropped.clone() });
        let receiver =
            DpdkReceiver::new(memory.clone(), handing, queues.collect(), counts, most, ending.clone(), listing)
                .looking_after(interfaces.take());
        let executor = DpdkExecutor::new(memory.clone(), options.room, !options.rewrites && leaves, ways, dropped);
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

/// How packets get into the memory of these ports, if that is a GPU's.
fn writers(ports: &[Port], place: &Place) -> Result<Writers, DpdkError> {
    let made = ports.iter().find(|port| !port.is_card() && port.touches_packets);
    let Place::Gpu(gpu) = place else { return Ok(Writers::Cards) };
    let (card, gpu) = (ports.iter().find(|port| port.is_card()), gpu.title());
    if let Some(port) = ports.iter().find(|port| port.driver() == "net_af_xdp") {
        // Its rings are made of the mempool's own memory, and that is where descriptions are.
        let (port, driver, missing) =
            (port.name.clone(), port.driver(), "its rings are in a mempool's own memory".to_owned());
        return Err(DpdkError::OutOfReach { port, driver, gpu, missing });
    }
    match (card, made) {
        (Some(card), Some(made)) => {
            let (card, port) = (card.name.clone(), made.name.clone());
            Err(DpdkError::Mixed { card, port, driver: made.driver(), gpu })
        }
        (_, Some(made)) => Ok(Writers::Processor { port: made.name.clone(), driver: made.driver() }),
        (Some(_), None) => Ok(Writers::Cards),
        (None, None) => Ok(Writers::Nobody),
    }
}

/// Refuses header split where packets have to be in one piece.
fn check_ports(bytes: u16, room: ResizeRoom, ports: &[Port]) -> Result<(), DpdkError> {
    let refused = |why: String| Err(DpdkError::Split { bytes, why });
    if room == ResizeRoom::Both {
        return refused("packets may become longer and shorter, which needs them in one piece".into());
    }
    if let Some(port) = ports.iter().find(|port| leaves_checksums(&port.driver())) {
        let (name, driver) = (&port.name, port.driver());
        return refused(format!(
            "{name} ({driver}) leaves checksums to be completed, which needs packets in one piece"
        ));
    }
    Ok(())
}

/// What is open so far.
struct Run {
    eal: &'static Eal,
    ports: Vec<Port>,
    /// Ports by what they are called.
    by_name: BTreeMap<String, usize>,
    /// Ways out, by port and queue.
    out: BTreeMap<(usize, u16), executor::Port>,
}

impl Run {
    /// A port's index. It is opened once.
    fn port(&mut self, spec: &PortSpec) -> Result<usize, DpdkError> {
        if let Some(index) = self.by_name.get(&spec.to_string()) {
            return Ok(*index);
        }
        let port = Port::open(self.eal, spec)?;
        if let Some(index) = self.ports.iter().position(|known| known.number == port.number) {
            // Named in another way before. It is closed with the one that has it.
            std::mem::forget(port);
            return Ok(index);
        }
        self.by_name.insert(spec.to_string(), self.ports.len());
        self.ports.push(port);
        Ok(self.ports.len() - 1)
    }

    /// The way out of a port for a lane.
    fn way(&mut self, port: usize, lane: usize) -> executor::Port {
        let queue = (lane % usize::from(self.ports[port].sends_by)) as u16;
        let number = self.ports[port].number;
        self.out.entry((port, queue)).or_insert_with(|| Arc::new(Mutex::new(SendQueue { port: number, queue }))).clone()
    }
}

/// Whether packets of a driver may have checksums that their sender on this machine left to a card that there is not.
fn leaves_checksums(driver: &str) -> bool {
    ["net_af_packet", "net_af_xdp", "net_tap", "net_virtio", "net_virtio_user", "net_vhost"].contains(&driver)
}
