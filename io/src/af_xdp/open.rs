//! Sockets, memory and programs for a run.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_core::packet::{RESIZE_ROOM, ResizeRoom};
use xsk_rs::config::UmemConfig;

use super::error::XdpError;
use super::executor::{IntoStack, Port, Ways, XdpExecutor};
use super::frame_audit::FrameAudit;
use super::homes::Homes;
use super::port::{PortSpec, queues};
use super::receiver::{Handing, Queue, XdpReceiver};
use super::rules::Steering;
use super::rx::Rx;
use super::sender::Sender;
use super::socket::{self, BusyPoll, CopyMode, Rings, SocketOptions};
use super::tx::{self, Outgoing, Tx};
use super::umem::{HEADROOM, Umem};
use super::xdp::{self, AttachedProgram, Mode};
use crate::live::Lane;
use crate::live::link::{InjectionPoint, Interface, StackDevice, StackInjector};

/// How queues are dealt to lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LaneLayout {
    /// Each queue has a lane of its own.
    #[default]
    PerQueue,
    /// One lane has all queues: for filters whose state all packets share.
    Shared,
}

/// What a run is to have.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where packets come in. A port's number is its index here.
    pub ports: Vec<PortSpec>,
    /// Whether filters know a port by its interface's number in place of its own.
    pub by_interface: bool,
    /// Which interface packets go out of that are redirected to a target.
    pub redirect: Vec<(u32, String)>,
    /// How packets that pass get into the kernel's stack; they are lost where this is `None`.
    pub stack: Option<StackDevice>,
    /// How queues are dealt to lanes.
    pub lanes: LaneLayout,
    /// Which frames are taken.
    pub steer: Steering,
    /// Where the program runs; the best place that the driver has where this is `None`.
    pub mode: Option<Mode>,
    /// How frames get into memory.
    pub copying: CopyMode,
    /// Busy polling, where it is wanted.
    pub busy_poll: Option<BusyPoll>,
    /// Whether memory is of huge pages.
    pub huge_pages: bool,
    /// Whether packets have room for filters that change lengths.
    pub room: ResizeRoom,
    /// Whether batches carry metadata.
    pub metadata: bool,
    /// Whether the filter writes to packets. Checksums that the sender left to its network card are completed before such a
    /// filter, which may count on them and change them with the rest, and otherwise where a packet leaves.
    pub rewrites: bool,
    /// Frames for each queue: a power of two, at least 64. A ring has a quarter of it for what has come in and for what goes out,
    /// and half of it for what is to come; the rest are in batches.
    pub frames: u32,
}

impl Options {
    /// Frames for each queue, if nobody says otherwise: 16 MiB of 2 KiB each.
    pub const FRAMES: u32 = 8192;
}

/// What was got of a port.
#[derive(Debug)]
pub struct PortInfo {
    /// Its interface.
    pub interface: String,
    /// Whether VLAN tags are taken out of packets before the program sees them ([`Interface::loses_vlan_tags`]).
    pub loses_vlan_tags: bool,
    /// The queues.
    pub queues: Vec<u32>,
    /// Where the program runs.
    pub mode: Mode,
    /// Why not in native mode, where that was tried.
    pub not_native: Option<String>,
    /// Whether the driver itself puts frames into memory.
    pub is_zero_copy: bool,
    /// Bytes of a frame.
    pub frame_size: usize,
    /// Bytes of the longest packet that one frame has room for.
    pub longest: usize,
    /// Whether longer packets come in several frames, and are put together.
    pub multi_buffer: bool,
    /// How packets that pass get into the kernel's stack (`tcx`, `mirred`, `beside`, and `tap` before these), if they do.
    pub stack: Option<String>,
}

/// Ports that are open. Dropped, it takes its programs away, and the kernel has its packets again.
pub struct AfXdp {
    attached: Vec<AttachedProgram>,
    /// What packets come in by and go out by; each is to be driven from now on.
    pub lanes: Vec<Lane>,
    /// What was got of each port.
    pub ports: Vec<PortInfo>,
    /// Out of each queue that packets come in by.
    back: Vec<Port>,
    umem: Arc<Umem>,
    homes: Arc<Homes>,
    /// Where frames are.
    pub frame_audit: FrameAudit,
    /// Removed after the sockets that send into them.
    _stacks: Vec<Arc<StackInjector>>,
}

impl AfXdp {
    /// Takes the programs away. What has come in until now can still be received.
    pub fn detach(&mut self) {
        self.attached.clear();
    }

    /// Sends copies of a frame out of each queue that packets come in by. Gives how many left, all together. Their memory comes
    /// home as that of other packets.
    ///
    /// # Panics
    /// When the frame is longer than [`PortInfo::longest`].
    pub fn send(&self, frame: &[u8], copies: usize) -> u64 {
        let mut sent = 0;
        for (lane, port) in self.back.iter().enumerate() {
            let (mut frames, mut out) = (Vec::new(), Outgoing::default());
            self.homes.take(lane % self.lanes.len().max(1), copies, &mut frames);
            for copy in frames {
                let mut copy = self.umem.reset(copy);
                self.umem.bytes_mut(&mut copy)[..frame.len()].copy_from_slice(frame);
                out.push([self.umem.packet(copy, frame.len())], frame.len());
            }
            // Its rings are whole whoever died meanwhile.
            sent += port.lock().unwrap_or_else(std::sync::PoisonError::into_inner).send(&mut out).packets;
        }
        sent
    }
}

/// A frame's bytes for packets of this length: as few as there may be.
fn frame_size(longest: usize, room: ResizeRoom) -> u32 {
    let behind = if room == ResizeRoom::Both { RESIZE_ROOM as usize } else { 0 };
    if HEADROOM + longest + behind <= 2048 { 2048 } else { 4096 }
}

/// Bytes of a packet that may come where the rest has `mtu`: an Ethernet header, and two VLAN tags.
const fn longest(mtu: usize) -> usize {
    mtu + 14 + 2 * 4
}

/// Bytes of a packet that an interface takes: the header and one tag. What is longer veth drops without a word
/// (`__is_skb_forwardable`, `linux/netdevice.h`).
const fn sendable(mtu: usize) -> usize {
    mtu + 14 + 4
}

/// Packets in several frames that a lane can have in batches.
const SLOTS: usize = 64;

/// Opens ports: from the moment when this comes back, their packets are here and no longer with the kernel.
///
/// # Errors
/// [`XdpError`] tells what to do. Nothing is left behind.
pub fn open(options: &Options) -> Result<AfXdp, XdpError> {
    match open_as(options, options.copying) {
        // Some ports have a zero-copy mode and some have not; but all sockets of a UMEM are bound as the first one was
        // (`xp_assign_dev_shared`, `net/xdp/xsk_buff_pool.c`).
        Err(XdpError::NoZeroCopy { .. }) if options.copying == CopyMode::Auto => open_as(options, CopyMode::Copy),
        opened => opened,
    }
}

/// How frames get into memory where programs run in these modes.
fn copying(asked: CopyMode, programs: &[AttachedProgram]) -> Result<CopyMode, XdpError> {
    let Some(skb) = programs.iter().find(|program| program.mode() == Mode::Skb) else { return Ok(asked) };
    match asked {
        CopyMode::ZeroCopy => Err(XdpError::NoZeroCopyInSkbMode {
            interface: skb.interface().to_owned(),
            not_native: skb.not_native().map(ToString::to_string),
        }),
        // The kernel would bind them without a copy all the same where the driver can, and then driver and stack both take from
        // one fill ring.
        CopyMode::Auto | CopyMode::Copy => Ok(CopyMode::Copy),
    }
}

fn open_as(options: &Options, asked: CopyMode) -> Result<AfXdp, XdpError> {
    let facts = options.ports.iter().map(|port| Interface::find(&port.interface));
    let facts: Vec<Interface> = facts.collect::<Result<_, _>>()?;
    let ports: Vec<Vec<u32>> =
        options.ports.iter().zip(&facts).map(|(port, facts)| queues(port, facts)).collect::<Result<_, _>>()?;
    // What is not there is known before an interface is touched.
    options.redirect.iter().try_for_each(|(_, interface)| Interface::find(interface).map(drop))?;
    let count: usize = ports.iter().map(Vec::len).sum();
    let lanes = if options.lanes == LaneLayout::PerQueue { count } else { 1 };

    let longest_packet = facts.iter().map(|facts| longest(facts.mtu as usize)).max().unwrap_or(0);
    let mut run = Run::new(options, longest_packet, count, lanes)?;
    // They take nothing before they have sockets. How these are to be bound depends on where programs run.
    let program = xdp::Options { mode: options.mode, frags: run.multi_buffer };
    let mut attached = Vec::new();
    for (port, facts) in options.ports.iter().zip(&facts) {
        attached.push(AttachedProgram::new(&port.interface, facts.receive_queues, &options.steer, &program)?);
    }
    run.copying = copying(asked, &attached)?;
    let mut received = Vec::new();
    for (number, ((port, queues), facts)) in options.ports.iter().zip(&ports).zip(&facts).enumerate() {
        run.ports.push(facts.index);
        for queue in queues {
            let known_as = if options.by_interface { facts.index } else { number as u32 };
            let numbers = (number as u32, known_as);
            received.push(run.receiving(numbers, &port.interface, *queue, facts, received.len() % lanes)?);
        }
    }
    let mut stacks = run.stacks(lanes)?.into_iter();
    let redirect = run.redirect(lanes)?;

    let mut info = Vec::new();
    let mut into_stack = Vec::new();
    for (number, (((port, queues), facts), program)) in
        options.ports.iter().zip(ports).zip(&facts).zip(&attached).enumerate()
    {
        let mut way = None;
        let mut ways = vec![IntoStack::Nowhere; lanes];
        let mut kept = None;
        if let Some((mut stack, by_lane)) = stacks.next() {
            let joined = stack.connect(program.mode()).map(|way| way.name());
            let name = joined.map_err(|error| XdpError::StackInjector { interface: port.interface.clone(), error })?;
            let is_tap = by_lane.is_empty();
            way = Some(if is_tap { format!("tap, {name}") } else { name.to_owned() });
            let stack = Arc::new(stack);
            ways = if is_tap { vec![IntoStack::Tap(stack.clone()); lanes] } else { by_lane };
            kept = Some(stack);
        }
        into_stack.push((ways, kept));
        let of_port: Vec<&RxPort> = received.iter().filter(|it| it.queue.port as usize == number).collect();
        info.push(PortInfo {
            interface: port.interface.clone(),
            loses_vlan_tags: facts.loses_vlan_tags(),
            queues,
            mode: program.mode(),
            not_native: program.not_native().map(ToString::to_string),
            is_zero_copy: of_port.iter().all(|it| it.is_zero_copy),
            frame_size: run.umem.frame_size(),
            longest: run.umem.frame_size() - HEADROOM,
            multi_buffer: run.multi_buffer,
            stack: way,
        });
    }

    let back = received.iter().map(|it| it.back.clone()).collect();
    let lent = received.iter().map(|it| it.queue.rx.lent()).collect();
    let frame_audit = FrameAudit::new(run.homes.clone(), lent, std::mem::take(&mut run.sending));
    let handing = Handing { room: options.room, metadata: options.metadata, complete: options.rewrites };
    let mut by_lane: Vec<Vec<RxPort>> = Vec::new();
    by_lane.resize_with(lanes, Vec::new);
    for (number, it) in received.into_iter().enumerate() {
        by_lane[number % lanes].push(it);
    }
    let ring = run.ring() as usize;
    let polls = options.busy_poll.map(|it| Duration::from_micros(it.microseconds.into()));
    let mut lanes = Vec::new();
    for (lane, queues) in by_lane.into_iter().enumerate() {
        let names: Vec<String> = queues.iter().map(|it| format!("{}:{}", it.queue.interface, it.queue.queue)).collect();
        let ways = Ways {
            back: queues.iter().map(|it| it.back.clone()).collect(),
            redirect: redirect.iter().map(|(target, ports)| (*target, ports[lane].clone())).collect(),
            stack: queues.iter().map(|it| into_stack[it.queue.port as usize].0[lane].clone()).collect(),
        };
        let sockets: Vec<_> = queues.iter().map(|it| (it.queue.port, it.queue.queue, it.queue.rx.fd())).collect();
        let queues = queues.into_iter().map(|it| it.queue).collect();
        let mut receiver = XdpReceiver::new(run.umem.clone(), run.homes.clone(), lane, handing, queues, ring, polls);
        receiver.prime()?;
        for (port, queue, fd) in sockets {
            attached[port as usize].set_socket(queue, &fd)?;
        }
        let executor = XdpExecutor::new(run.umem.clone(), run.homes.clone(), lane, !options.rewrites, ways);
        lanes.push(Lane {
            name: names.join(" "),
            memory: Some(run.umem.span().clone()),
            receiver: Box::new(receiver),
            executor: Box::new(executor),
        });
    }
    let stacks = into_stack.into_iter().filter_map(|(_, stack)| stack).collect();
    let Run { umem, homes, .. } = run;
    Ok(AfXdp { attached, lanes, ports: info, back, umem, homes, frame_audit, _stacks: stacks })
}

/// A queue that packets come in by, with the way back out of it.
struct RxPort {
    queue: Queue,
    back: Port,
    is_zero_copy: bool,
}

/// What is open so far.
struct Run<'a> {
    umem: Arc<Umem>,
    homes: Arc<Homes>,
    /// Whether packets may be longer than what a frame has room for.
    multi_buffer: bool,
    options: &'a Options,
    /// The numbers of interfaces that packets come in by, each of which has a queue open.
    ports: Vec<u32>,
    /// How sockets that receive are bound.
    copying: CopyMode,
    /// Ways out, by the interface's number and queue: an interface may have several names.
    out: BTreeMap<(u32, u32), Port>,
    sending: Vec<Arc<std::sync::atomic::AtomicI64>>,
    /// The first socket that only sends.
    first_sender: Option<Arc<OwnedFd>>,
}

impl<'a> Run<'a> {
    /// Memory for so many queues, and the packets of so many lanes.
    fn new(options: &'a Options, longest: usize, queues: usize, lanes: usize) -> Result<Run<'a>, XdpError> {
        let size = frame_size(longest, options.room);
        let config = UmemConfig::builder()
            .frame_size(size.try_into().expect("2,048 or 4,096"))
            .fill_queue_size((options.frames / 2).try_into().expect("a power of two"))
            .comp_queue_size((options.frames / 4).try_into().expect("a power of two"))
            .build()
            .expect("a frame has room behind its headroom");
        let slot_frames = (longest.max(size as usize) + 2 * RESIZE_ROOM as usize).div_ceil(size as usize);
        let frames = options.frames as usize * queues + SLOTS * slot_frames * lanes;
        let frames = u32::try_from(frames).ok().filter(|frames| u64::from(*frames) * u64::from(size) < 1 << 32);
        let frames = frames.ok_or(XdpError::TooManyFrames { queues, frames: options.frames, size })?;
        let (umem, frames) = Umem::new(frames, config, options.huge_pages)?;
        let homes = Homes::new(frames, lanes, SLOTS, slot_frames, umem.frame_size());
        Ok(Run {
            multi_buffer: HEADROOM + longest > umem.frame_size(),
            umem: Arc::new(umem),
            homes: Arc::new(homes),
            options,
            ports: Vec::new(),
            copying: options.copying,
            out: BTreeMap::new(),
            sending: Vec::new(),
            first_sender: None,
        })
    }

    /// Of each port, the way into the kernel's stack by lane; nothing where packets do not pass.
    fn stacks(&mut self, lanes: usize) -> Result<Vec<(StackInjector, Vec<IntoStack>)>, XdpError> {
        let Some(kind) = self.options.stack else { return Ok(Vec::new()) };
        let mut stacks = Vec::new();
        for port in &self.options.ports {
            let stack = StackInjector::open(&port.interface, kind)?;
            let ways = match stack.injection_point() {
                InjectionPoint::Veth(near) => {
                    let ways = (0..lanes).map(|lane| self.sending(&near.name, lane).map(IntoStack::Port));
                    ways.collect::<Result<Vec<_>, _>>()?
                }
                InjectionPoint::Tap(_) => Vec::new(),
            };
            stacks.push((stack, ways));
        }
        Ok(stacks)
    }

    /// Of each target, the way out by lane: by the queue of the lane's number where there are as many.
    fn redirect(&mut self, lanes: usize) -> Result<Vec<(u32, Vec<Port>)>, XdpError> {
        let options = self.options;
        let by_lane = |(target, interface): &(u32, String)| {
            let ports = (0..lanes).map(|lane| self.sending(interface, lane)).collect::<Result<Vec<_>, _>>()?;
            Ok((*target, ports))
        };
        options.redirect.iter().map(by_lane).collect()
    }

    /// A queue of a port to receive by.
    fn receiving(
        &mut self,
        (port, known_as): (u32, u32),
        interface: &str,
        queue: u32,
        facts: &Interface,
        lane: usize,
    ) -> Result<RxPort, XdpError> {
        let Rings { rx, tx, fill, completion, is_zero_copy } =
            socket::open(&self.umem, interface, queue, &self.socket_options())?;
        let tx = self.tx(tx::Rings::Both(tx, completion), is_zero_copy, facts);
        let back = self.add((facts.index, queue), tx);
        let rx = Rx::new(rx, fill, self.homes.clone(), lane);
        let queue = Queue { interface: interface.into(), port, known_as, queue, rx };
        Ok(RxPort { queue, back, is_zero_copy })
    }

    /// A way out of an interface for a lane: by a queue that is open already, or one of its own.
    fn sending(&mut self, interface: &str, lane: usize) -> Result<Port, XdpError> {
        let facts = Interface::find(interface)?;
        if self.ports.contains(&facts.index) {
            let open: Vec<&Port> =
                self.out.range((facts.index, 0)..=(facts.index, u32::MAX)).map(|(_, port)| port).collect();
            return Ok(open[lane % open.len()].clone());
        }
        let queue = lane as u32 % facts.send_queues.min(facts.receive_queues);
        if let Some(port) = self.out.get(&(facts.index, queue)) {
            return Ok(port.clone());
        }
        let first = self.first_sender.as_deref();
        let (place, ring, multi_buffer) = ((facts.index, queue), self.ring(), self.multi_buffer);
        let sender = socket::once_free(|| Sender::open(&self.umem, first, place, ring, multi_buffer))
            .map_err(|error| XdpError::socket(interface, queue, &error))?;
        self.first_sender.get_or_insert_with(|| sender.socket());
        let tx = self.tx(tx::Rings::Sending(sender), false, &facts);
        Ok(self.add((facts.index, queue), tx))
    }

    fn tx(&self, rings: tx::Rings, is_zero_copy: bool, facts: &Interface) -> Tx {
        let longest = sendable(facts.mtu as usize);
        Tx::new(rings, self.ring(), is_zero_copy, self.homes.clone(), longest, self.multi_buffer)
    }

    fn add(&mut self, queue: (u32, u32), tx: Tx) -> Port {
        self.sending.push(tx.sending());
        let port = Arc::new(Mutex::new(tx));
        self.out.insert(queue, port.clone());
        port
    }

    /// Entries of a ring for packets that have come, and of one for those that go.
    fn ring(&self) -> u32 {
        self.options.frames / 4
    }

    fn socket_options(&self) -> SocketOptions {
        SocketOptions {
            copying: self.copying,
            multi_buffer: self.multi_buffer,
            rx_size: self.ring(),
            tx_size: self.ring(),
            busy_poll: self.options.busy_poll,
        }
    }
}
